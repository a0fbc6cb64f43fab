//! The target's end of a flow: the grant in its first frame and a relay's word, then a connection to the target.

use std::sync::Arc;

use postroad_cluster::{
    grant::{self, Right},
    id::NodeId,
    limits::{TARGET_CONNECT_WAIT, TUNNEL_WAIT, TUNNELS_WAITING_MAX},
    link::{Route, route},
    relay::Presented,
    time::{Clock as _, Span},
    wire::flow::{OpenFrame, ResetCode, TrialKind},
};
use postroad_transport::{
    flow::{FlowCounters, pump},
    network::TcpStream,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    FlowView, Flows, Listed, closing,
    stream::{First, Stream},
    trial,
};
use crate::{
    fabric::{
        Fabric,
        circuits::{Circuit, Place},
        figures::End,
    },
    ports::sleep,
    snapshot,
    vouch::Vouched,
};

/// How often a tunnel that is ahead of this node's snapshot looks whether a newer one has come.
const SNAPSHOT_LOOK: Span = Span::from_millis(50);

/// Takes the streams of a circuit until it ends. One that is closing takes none, and says that it connects nothing.
pub(crate) async fn serve(fabric: Arc<Fabric>, circuit: Arc<Circuit>) {
    let waiting = Arc::new(Semaphore::new(TUNNELS_WAITING_MAX));
    while let Ok((send, recv)) = circuit.connection.quinn().accept_bi().await {
        let mut stream = Stream::new(send, recv);
        let Some(on) = circuit.enter() else {
            stream.end(ResetCode::Closing);
            continue;
        };
        match Arc::clone(&waiting).try_acquire_owned() {
            Ok(place) => {
                tokio::spawn(take(Arc::clone(&fabric), on, stream, place));
            }
            Err(_) => refuse(&fabric, &mut stream, ResetCode::TooMany),
        }
    }
}

fn refuse(fabric: &Fabric, stream: &mut Stream, code: ResetCode) {
    fabric.flows.refusals.count(End::Target, code.code());
    stream.end(code);
}

async fn take(fabric: Arc<Fabric>, on: Place, mut stream: Stream, place: OwnedSemaphorePermit) {
    let circuit = Arc::clone(on.circuit());
    let consumer = circuit.key.peer;
    let admitted = tokio::select! {
        biased;
        admitted = admitted(&fabric, consumer, &mut stream) => admitted,
        () = sleep(&*fabric.clock, TUNNEL_WAIT) => Err(ResetCode::NotAdmitted),
    };
    drop(place);
    let (frame, trial) = match admitted {
        Ok(Admitted::Tunnel(frame, trial)) => (frame, trial),
        Ok(Admitted::Closing) => {
            drop(on);
            return closing::agree(&circuit, stream).await;
        }
        Err(ResetCode::NotConnected) => return stream.end(ResetCode::NotConnected),
        Err(code) => {
            tracing::warn!(%consumer, reason = code.words(), "a tunnel was refused");
            return refuse(&fabric, &mut stream, code);
        }
    };
    let counters = Arc::new(FlowCounters::new(fabric.clock.clone()));
    let view = FlowView {
        tunnel: Some(frame.tunnel),
        link: frame.link,
        generation: frame.generation,
        peer: consumer,
        consumer: false,
        circuit: Some(circuit.key),
        why: None,
        counters: Arc::clone(&counters),
    };
    let of = Arc::clone(&fabric);
    if !Flows::spawn(&fabric, view, move |place| run(of, (place, on), frame, trial, stream, counters)) {
        tracing::warn!(%consumer, "too many flows are open: a tunnel was reset");
    }
}

/// What a stream is for.
enum Admitted {
    Tunnel(OpenFrame, Option<TrialKind>),
    Closing,
}

/// Reads the first frame, checks it, and waits for a relay's word. A consumer that takes its tunnel back meanwhile is told
/// that nothing was connected, which is so until this returns.
async fn admitted(fabric: &Arc<Fabric>, consumer: NodeId, stream: &mut Stream) -> Result<Admitted, ResetCode> {
    let (frame, trial) = match stream.first().await? {
        First::Open(frame, trial) => (frame, trial),
        // Only the end that dials closes.
        First::Closing if consumer < fabric.me => return Ok(Admitted::Closing),
        First::Closing => return Err(ResetCode::NotGranted),
    };
    let OpenFrame { tunnel, link, generation, .. } = frame;
    let waiting = async {
        checked(fabric, consumer, &frame).await?;
        fabric.vouchers.wait(Vouched { consumer, tunnel, link, generation }).await;
        // The wait may have outlived the route.
        checked(fabric, consumer, &frame).await
    };
    tokio::select! {
        biased;
        () = stream.withdrawn() => return Err(ResetCode::NotConnected),
        checked = waiting => checked?,
    }
    Ok(Admitted::Tunnel(frame, trial))
}

/// Checks until this node's snapshot knows the route; the caller bounds the wait.
async fn checked(fabric: &Fabric, consumer: NodeId, frame: &OpenFrame) -> Result<(), ResetCode> {
    while !check(fabric, consumer, frame)? {
        sleep(&*fabric.clock, SNAPSHOT_LOOK).await;
    }
    Ok(())
}

/// Whether the frame's grant lets this consumer open this tunnel here and now (RP-35: by this node's own snapshot and the
/// revocations that it knows, whatever the relay believes). False if the snapshot must be newer to tell (RP-31).
fn check(fabric: &Fabric, consumer: NodeId, frame: &OpenFrame) -> Result<bool, ResetCode> {
    let revoked = fabric.is_revoked(frame.link, frame.generation);
    let route = route(fabric.link(frame.link).as_ref(), fabric.me, consumer, frame.generation, revoked);
    if route == Route::Gone {
        return Err(ResetCode::Revoked);
    }
    let not_granted = |reason: &dyn std::fmt::Display| {
        tracing::warn!(%consumer, %reason, "a grant does not hold");
        ResetCode::NotGranted
    };
    let granted = match snapshot::presented(fabric, &frame.grant) {
        Presented::Good(granted) => granted,
        // Its signer may be in the next snapshot.
        Presented::Unknown => return Ok(false),
        Presented::Absent | Presented::Bad => return Err(not_granted(&"its signature is wrong")),
    };
    let wanted = grant::Use {
        cluster: &fabric.cluster,
        link: frame.link,
        generation: frame.generation,
        holder: consumer,
        target: fabric.me,
        right: Right::Open,
        now: fabric.clock.wall(),
    };
    grant::check(granted.get(), &wanted).map_err(|refusal| not_granted(&refusal))?;
    Ok(route == Route::Live)
}

async fn run(
    fabric: Arc<Fabric>,
    (place, _on): (Listed, Place),
    frame: OpenFrame,
    trial: Option<TrialKind>,
    mut stream: Stream,
    counters: Arc<FlowCounters>,
) {
    let work = async {
        match trial.zip(stream.halves()) {
            Some((kind, (send, receive))) => trial::answer(&fabric, kind, send, receive).await,
            None => carry(&fabric, &frame, &mut stream, counters).await,
        }
    };
    tokio::select! {
        biased;
        () = place.revoked() => {}
        () = work => return,
    }
    stream.end(ResetCode::Revoked);
}

async fn carry(fabric: &Arc<Fabric>, frame: &OpenFrame, stream: &mut Stream, counters: Arc<FlowCounters>) {
    let tcp = match connect(fabric, frame).await {
        Ok(tcp) => tcp,
        Err(reason) => {
            tracing::warn!(link = %frame.link, reason, "the target did not take a connection");
            return refuse(fabric, stream, ResetCode::TargetRefused);
        }
    };
    let Some((send, recv)) = stream.take() else { return };
    let end = pump(tcp, send, recv, counters).await;
    tracing::debug!(link = %frame.link, tunnel = %frame.tunnel, %end, "flow ended");
}

async fn connect(fabric: &Arc<Fabric>, frame: &OpenFrame) -> Result<TcpStream, String> {
    let target = fabric.link(frame.link).and_then(|view| view.target_address).ok_or("the link is gone")?;
    let dialling = async {
        let addresses = fabric.network.resolve(&target).await.map_err(|error| format!("{target}: {error}"))?;
        let mut last = format!("{target} has no address");
        for address in addresses {
            match fabric.network.tcp_connect(address).await {
                Ok(tcp) => return Ok(tcp),
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        Err(last)
    };
    tokio::select! {
        biased;
        tcp = dialling => tcp,
        () = sleep(&*fabric.clock, TARGET_CONNECT_WAIT) => {
            Err(format!("{target} did not answer within {} s", TARGET_CONNECT_WAIT.as_secs()))
        }
    }
}
