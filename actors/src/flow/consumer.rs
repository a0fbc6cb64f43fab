//! The consumer's end of a flow: a circuit to the target node, a relay's admission beside it, then bytes.

use std::{collections::BTreeSet, sync::Arc};

use super::{FlowView, Flows, Listed};
use crate::{fabric::Fabric, ports::sleep};
use postroad_cluster::{
    command::Refusal,
    grant::SignedGrant,
    id::{LinkId, NodeId, TunnelId},
    limits::{ADMIT_PAUSE, ADMIT_WAIT, TUNNEL_WAIT},
    link::{Asked, ask_order},
    snapshot::LinkView,
    time::Moment,
    wire::{
        self,
        flow::{OpenFrame, ResetCode},
        session::{NodeRequest, NodeResponse},
    },
};
use postroad_transport::{
    connection::Connection,
    flow::{FlowCounters, FlowEnd, Receiver, Sender, pump},
    network::TcpStream,
    node_socket::CircuitKey,
    proxy_header,
};

/// Takes an application's connection into a link.
pub(crate) fn take(fabric: &Arc<Fabric>, link: LinkId, tcp: TcpStream) {
    let Some(view) = fabric.link(link) else { return reset(tcp) };
    let counters = Arc::new(FlowCounters::new(fabric.clock.clone()));
    let listed = FlowView {
        tunnel: TunnelId(fabric.entropy.next_u64()),
        link,
        generation: view.generation,
        peer: view.target,
        consumer: true,
        counters: Arc::clone(&counters),
    };
    let tunnel = listed.tunnel;
    let of = Arc::clone(fabric);
    if !Flows::spawn(fabric, listed, move |place| run(of, place, link, view, tunnel, tcp, counters)) {
        tracing::warn!(%link, "too many flows are open: the connection was reset");
    }
}

/// A connection that cannot be served is reset, never ended as if it had been.
fn reset(mut tcp: TcpStream) {
    tcp.write.reset();
}

async fn run(
    fabric: Arc<Fabric>,
    place: Listed,
    link: LinkId,
    view: LinkView,
    tunnel: TunnelId,
    tcp: TcpStream,
    counters: Arc<FlowCounters>,
) {
    let outcome = tokio::select! {
        biased;
        () = place.revoked() => Err("the link was deleted or changed".to_owned()),
        outcome = carry(&fabric, link, &view, tunnel, tcp, counters) => outcome,
    };
    match outcome {
        Ok(end) => tracing::debug!(%link, %tunnel, %end, "flow ended"),
        Err(reason) => {
            fabric.flows.count_refusal();
            tracing::warn!(link = %view.name, %tunnel, reason, "the connection was reset");
        }
    }
}

/// The connection after its PROXY header, which those that are trusted to send one must begin with (DB-30, DB-32). From
/// others nothing is read: what looks like a header is theirs.
async fn without_header(fabric: &Fabric, mut tcp: TcpStream) -> Result<TcpStream, String> {
    if !fabric.settings.proxy_protocol_from.contains(tcp.peer.ip()) {
        return Ok(tcp);
    }
    match proxy_header::read(&mut tcp, &*fabric.clock).await {
        Ok(header) => {
            tracing::debug!(peer = %tcp.peer, client = %header.client(tcp.peer), "a client was told of");
            Ok(tcp)
        }
        Err(refused) => {
            reset(tcp);
            Err(refused.to_string())
        }
    }
}

async fn carry(
    fabric: &Arc<Fabric>,
    link: LinkId,
    view: &LinkView,
    tunnel: TunnelId,
    tcp: TcpStream,
    counters: Arc<FlowCounters>,
) -> Result<FlowEnd, String> {
    if fabric.is_revoked(link, view.generation) {
        reset(tcp);
        return Err("the link was deleted or changed, which this node's snapshot does not say yet".to_owned());
    }
    let Some(grant) = view.grants.last().cloned() else {
        reset(tcp);
        return Err("this node holds no grant for the link; it comes with the next snapshot".to_owned());
    };
    let tcp = without_header(fabric, tcp).await?;
    let wait = fabric.flow_wait();
    let Some((key, circuit)) = fabric.circuit_within(view.target, wait).await else {
        reset(tcp);
        return Err(format!("no path to {} within {} s", view.target, wait.as_secs()));
    };
    let frame = OpenFrame { tunnel, link, generation: view.generation, grant: grant.clone() };
    let (send, recv) = match open(&circuit, &wire::encode(&frame)).await {
        Ok(halves) => halves,
        Err(reason) => {
            reset(tcp);
            return Err(reason);
        }
    };
    // The application's bytes travel while the relay is asked; the target reads them only once it was told.
    let pumping = pump(tcp, send, recv, counters);
    tokio::pin!(pumping);
    tokio::select! {
        biased;
        admitted = admit(fabric, key, link, view, tunnel, &grant) => admitted?,
        end = &mut pumping => return Ok(end),
    }
    let end = pumping.await;
    if let FlowEnd::PeerReset(code) = end {
        let code = ResetCode::from_number(code);
        if code != ResetCode::PeerReset {
            return Err(code.words().to_owned());
        }
    }
    Ok(end)
}

/// Opens a stream whose first frame are these bytes.
pub(super) async fn open(circuit: &Connection, frame: &[u8]) -> Result<(Sender, Receiver), String> {
    let lost = |error: &dyn std::fmt::Display| format!("the circuit ended: {error}");
    let (mut send, recv) = circuit.quinn().open_bi().await.map_err(|error| lost(&error))?;
    let length = (frame.len() as u32).to_be_bytes();
    send.write_all(&[&length[..], frame].concat()).await.map_err(|error| lost(&error))?;
    Ok((send, recv))
}

/// Asks relays in turn until one has admitted the tunnel and told the target node. A relay that dies meanwhile is
/// passed over: the same tunnel is asked of the next.
pub(super) async fn admit(
    fabric: &Arc<Fabric>,
    key: CircuitKey,
    link: LinkId,
    view: &LinkView,
    tunnel: TunnelId,
    grant: &SignedGrant,
) -> Result<(), String> {
    // Without any session the tunnel waits like an open flow would; relays that answer are given less time.
    let give_up = fabric.now().after(fabric.flow_wait());
    let mut answered_by: Option<Moment> = None;
    let mut last: Option<Refusal> = None;
    loop {
        let mut asked = BTreeSet::new();
        while let Some(relay) = next(fabric, key, link, &asked) {
            asked.insert(relay);
            let Some(session) = fabric.session(relay) else { continue };
            let request = NodeRequest::Admit { tunnel, link, generation: view.generation, grant: grant.clone() };
            match session.connection.call::<NodeRequest, NodeResponse>(&request, ADMIT_WAIT).await {
                Ok(NodeResponse::Admitted { .. }) => return Ok(()),
                Ok(NodeResponse::Refused(refusal)) => {
                    answered_by.get_or_insert(fabric.now());
                    last = Some(refusal);
                }
                Ok(_) | Err(_) => {}
            }
        }
        let limit = answered_by.map_or(give_up, |since| since.after(TUNNEL_WAIT).min(give_up));
        if fabric.now() >= limit {
            return Err(refused(last.as_ref()));
        }
        sleep(&*fabric.clock, ADMIT_PAUSE).await;
    }
}

fn refused(last: Option<&Refusal>) -> String {
    last.map_or_else(|| "no relay answered in time".to_owned(), ToString::to_string)
}

/// The next relay to ask of those that were not asked in this round. One that is stale for the link is none (RP-35).
fn next(fabric: &Fabric, key: CircuitKey, link: LinkId, asked: &BTreeSet<NodeId>) -> Option<NodeId> {
    let carrying = fabric.socket.status(key).ok().and_then(|status| status.relay);
    let relays =
        fabric.sessions().into_iter().filter(|(relay, _)| !asked.contains(relay) && !fabric.is_stale(*relay, link));
    let relays = relays.map(|(relay, standing)| Asked {
        relay,
        round_trip_us: standing.round_trip_us,
        draining: fabric.drains(relay),
    });
    ask_order(carrying, relays.collect()).into_iter().next()
}
