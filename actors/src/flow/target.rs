//! The target's end of a flow: the grant in its first frame and a relay's word, then a connection to the target.

use std::sync::Arc;

use postroad_cluster::{
    grant::{self, Right},
    id::NodeId,
    limits::{OPEN_FRAME_BYTES_MAX, TARGET_CONNECT_WAIT, TUNNEL_WAIT, TUNNELS_WAITING_MAX},
    link::{Route, route},
    relay::Presented,
    time::{Clock as _, Span},
    wire::{
        self,
        flow::{OpenFrame, ResetCode, TrialFrame, TrialKind},
    },
};
use postroad_transport::{
    connection::Connection,
    flow::{FlowCounters, Receiver, Sender, pump},
    network::TcpStream,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{FlowView, Flows, Listed, trial};
use crate::{fabric::Fabric, ports::sleep, snapshot, vouch::Vouched};

/// How often a tunnel that is ahead of this node's snapshot looks whether a newer one has come.
const SNAPSHOT_LOOK: Span = Span::from_millis(50);

/// Takes the streams of a circuit until it ends.
pub(crate) async fn serve(fabric: Arc<Fabric>, circuit: Connection) {
    let waiting = Arc::new(Semaphore::new(TUNNELS_WAITING_MAX));
    while let Ok((send, recv)) = circuit.quinn().accept_bi().await {
        let stream = Stream(Some((send, recv)));
        match Arc::clone(&waiting).try_acquire_owned() {
            Ok(place) => {
                tokio::spawn(take(Arc::clone(&fabric), circuit.node(), stream, place));
            }
            Err(_) => stream.refuse(&fabric, ResetCode::TooMany),
        }
    }
}

/// Both halves of a stream that resets when it is dropped: quinn would end it as if all had been sent.
struct Stream(Option<(Sender, Receiver)>);

impl Stream {
    fn refuse(mut self, fabric: &Fabric, code: ResetCode) {
        fabric.flows.count_refusal();
        self.end(code);
    }

    fn end(&mut self, code: ResetCode) {
        let Some((mut send, mut recv)) = self.0.take() else { return };
        // Errors say that the stream has ended already.
        let _ = send.reset((code as u32).into());
        let _ = recv.stop((code as u32).into());
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end(ResetCode::Stopping);
    }
}

async fn take(fabric: Arc<Fabric>, consumer: NodeId, mut stream: Stream, place: OwnedSemaphorePermit) {
    let admitted = tokio::select! {
        biased;
        admitted = admitted(&fabric, consumer, &mut stream) => admitted,
        () = sleep(&*fabric.clock, TUNNEL_WAIT) => Err(ResetCode::NotAdmitted),
    };
    let (frame, trial) = match admitted {
        Ok(first) => first,
        Err(code) => {
            tracing::warn!(%consumer, reason = code.words(), "a tunnel was refused");
            return stream.refuse(&fabric, code);
        }
    };
    drop(place);
    let counters = Arc::new(FlowCounters::new(fabric.clock.clone()));
    let view = FlowView {
        tunnel: frame.tunnel,
        link: frame.link,
        generation: frame.generation,
        peer: consumer,
        consumer: false,
        counters: Arc::clone(&counters),
    };
    let of = Arc::clone(&fabric);
    if !Flows::spawn(&fabric, view, move |place| run(of, place, frame, trial, stream, counters)) {
        tracing::warn!(%consumer, "too many flows are open: a tunnel was reset");
    }
}

/// Reads the first frame, checks it, and waits for a relay's word.
async fn admitted(
    fabric: &Arc<Fabric>,
    consumer: NodeId,
    stream: &mut Stream,
) -> Result<(OpenFrame, Option<TrialKind>), ResetCode> {
    let (frame, trial) = read(stream).await.ok_or(ResetCode::NotGranted)?;
    checked(fabric, consumer, &frame).await?;
    let OpenFrame { tunnel, link, generation, .. } = frame;
    fabric.vouchers.wait(Vouched { consumer, tunnel, link, generation }).await;
    // The wait may have outlived the route.
    checked(fabric, consumer, &frame).await?;
    Ok((frame, trial))
}

/// The first frame of a stream, and if it is a trial's, which.
async fn read(stream: &mut Stream) -> Option<(OpenFrame, Option<TrialKind>)> {
    let (_, recv) = stream.0.as_mut()?;
    let mut length = [0; 4];
    recv.read_exact(&mut length).await.ok()?;
    let length = u32::from_be_bytes(length) as usize;
    if length > OPEN_FRAME_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; length];
    recv.read_exact(&mut bytes).await.ok()?;
    match wire::decode::<OpenFrame>(&bytes) {
        Ok(frame) => Some((frame, None)),
        Err(_) => wire::decode::<TrialFrame>(&bytes).ok().map(|trial| (trial.open, Some(trial.kind))),
    }
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
    place: Listed,
    frame: OpenFrame,
    trial: Option<TrialKind>,
    mut stream: Stream,
    counters: Arc<FlowCounters>,
) {
    let work = async {
        match trial.zip(stream.0.as_mut()) {
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
            fabric.flows.count_refusal();
            return stream.end(ResetCode::TargetRefused);
        }
    };
    let Some((send, recv)) = stream.0.take() else { return };
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
