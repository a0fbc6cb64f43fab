//! The consumer's end of a flow: a tunnel on a circuit to the target node, then bytes.

use std::sync::Arc;

use postroad_cluster::{command::code, id::LinkId, snapshot::LinkView, wire::flow::ResetCode};
use postroad_transport::{
    flow::{Ahead, FlowCounters, FlowEnd, pump_after},
    network::TcpStream,
    proxy_header,
};

use super::{
    FlowView, Flows, Listed,
    opening::{Failure, Opened, Opening, Refused, Speaker},
};
use crate::fabric::{Fabric, figures::End};

/// Takes an application's connection into a link.
pub(crate) fn take(fabric: &Arc<Fabric>, link: LinkId, tcp: TcpStream) {
    let Some(view) = fabric.link(link) else { return reset(tcp) };
    let counters = Arc::new(FlowCounters::new(fabric.clock.clone()));
    let listed = FlowView {
        tunnel: None,
        link,
        generation: view.generation,
        peer: view.target,
        consumer: true,
        circuit: None,
        why: None,
        counters: Arc::clone(&counters),
    };
    let of = Arc::clone(fabric);
    if !Flows::spawn(fabric, listed, move |place| run(of, place, link, view, tcp, counters)) {
        tracing::warn!(%link, "too many flows are open: the connection was reset");
    }
}

/// A connection that cannot be served is reset, never ended as if it had been.
fn reset(mut tcp: TcpStream) {
    tcp.write.reset();
}

/// An application's connection while its flow opens: given up meanwhile, it is reset too.
struct Held(Option<TcpStream>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(tcp) = self.0.take() {
            reset(tcp);
        }
    }
}

async fn run(
    fabric: Arc<Fabric>,
    place: Listed,
    link: LinkId,
    view: LinkView,
    tcp: TcpStream,
    counters: Arc<FlowCounters>,
) {
    let outcome = tokio::select! {
        biased;
        () = place.revoked() => Err(Refused::of(ResetCode::Revoked)),
        outcome = carry(&fabric, &place, link, &view, tcp, counters) => outcome,
    };
    match outcome {
        Ok(end) => tracing::debug!(%link, %end, "flow ended"),
        Err(Refused { code, reason }) => {
            fabric.flows.refusals.count(End::Consumer, code);
            tracing::warn!(link = %view.name, code, reason, "the connection was reset");
        }
    }
}

/// The connection after its PROXY header, which those that are trusted to send one must begin with (DB-30, DB-32). From
/// others nothing is read: what looks like a header is theirs.
async fn without_header(fabric: &Fabric, mut tcp: TcpStream) -> Result<TcpStream, Refused> {
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
            Err(Refused { code: code::HEADER_INVALID, reason: refused.to_string() })
        }
    }
}

async fn carry(
    fabric: &Arc<Fabric>,
    place: &Listed,
    link: LinkId,
    view: &LinkView,
    tcp: TcpStream,
    counters: Arc<FlowCounters>,
) -> Result<FlowEnd, Refused> {
    if fabric.is_revoked(link, view.generation) {
        reset(tcp);
        let reason = "the link was deleted or changed, which this node's snapshot does not say yet".to_owned();
        return Err(Refused { code: code::ROUTE_REVOKED, reason });
    }
    let Some(grant) = view.grants.last().cloned() else {
        reset(tcp);
        let reason = "this node holds no grant for the link; it comes with the next snapshot".to_owned();
        return Err(Refused { code: code::GRANT_ABSENT, reason });
    };
    let mut held = Held(Some(without_header(fabric, tcp).await?));
    let mut ahead = Ahead::default();
    let opening = Opening { fabric, link, view, grant, kind: None };
    let speaker = held.0.as_mut().map(|tcp| Speaker { tcp, ahead: &mut ahead, counters: &counters });
    let opened = match opening.open(speaker).await {
        Ok(opened) => opened,
        Err(Failure::Ended(end)) => return Ok(end),
        Err(Failure::Free(refused) | Failure::Refused(refused)) => return Err(refused),
    };
    let Opened { mut stream, tunnel, place: on, why } = opened;
    place.served(tunnel, on.circuit().key, why);
    let (Some((send, recv)), Some(tcp)) = (stream.take(), held.0.take()) else { return Ok(FlowEnd::Finished) };
    let end = pump_after(tcp, send, recv, ahead.rest(), counters).await;
    if let FlowEnd::PeerReset(code) = end {
        let code = ResetCode::from_number(code);
        if code != ResetCode::PeerReset {
            return Err(Refused::of(code));
        }
    }
    Ok(end)
}
