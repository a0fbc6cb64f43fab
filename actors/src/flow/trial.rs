//! Trials of a link: how long its way takes, what it carries, and how it bears a relay's death, without the application at
//! its target. The consumer's end measures; the target node answers by itself whoever may open tunnels.

use std::{sync::Arc, time::Duration};

use postroad_cluster::{
    id::LinkId,
    limits::{TRIAL_DEAF, TRIAL_MESSAGE_BYTES, TRIAL_MESSAGES_MAX, TRIAL_SPAN_MAX},
    time::{Clock as _, Moment, Span},
    wire::flow::TrialKind,
};
use postroad_transport::{
    flow::{Receiver, Sender},
    node_socket::CircuitKey,
};
use serde::{Deserialize, Serialize};

use super::opening::{Opened, Opening};
use crate::{
    fabric::{Fabric, circuits::Place},
    ports::sleep,
};

/// What one write of a transfer takes.
const BLOCK_BYTES: usize = 64 << 10;

/// The time between two messages while a relay dies.
const BEAT: Span = Span::from_millis(5);

/// How long everything goes well before the death, so that the difference shows.
const BEFORE_DEATH: Span = Span::from_secs(1);

/// How long messages go on after it.
const AFTER_DEATH: Span = Span::from_secs(4);

/// How long the way there and back takes, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Messages that came back.
    pub exchanges: u64,
    /// Half of them took no longer.
    pub p50_us: u64,
    /// 99 of 100 took no longer.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
    /// The relay that carried them.
    pub relay: Option<String>,
}

/// What one flow carries to the target node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Until the last of them had, in microseconds.
    pub took_us: u64,
    /// The relay that carried them.
    pub relay: Option<String>,
}

/// How a flow bears the death of the relay that carries it, as far as this node can tell it from one: all packets to and
/// from the relay are dropped for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// The relay.
    pub relay: String,
    /// The relay that took over, if one did.
    pub to: Option<String>,
    /// The longest time without an answer, in microseconds.
    pub stall_us: u64,
    /// Messages sent and answered, which are the same or this would be an error.
    pub messages: u64,
    /// The time between two messages, in microseconds.
    pub beat_us: u64,
    /// The message with which the death came.
    pub death_at: u64,
    /// The round trip of every message in its order, in microseconds.
    pub round_trips_us: Vec<u64>,
}

/// A trial's stream, admitted.
struct Trial {
    send: Sender,
    receive: Receiver,
    key: CircuitKey,
    _place: Place,
}

async fn open(fabric: &Arc<Fabric>, link: LinkId, kind: TrialKind) -> Result<Trial, String> {
    let view = fabric.link(link).ok_or("this node has no such link")?;
    if view.listen.is_none() {
        return Err("this node is no consumer of the link; run it on one that is".to_owned());
    }
    let grant = view.grants.last().cloned().ok_or("this node holds no grant for the link yet")?;
    let opening = Opening { fabric, link, view: &view, grant, kind: Some(kind) };
    let opened = opening.open(None).await.map_err(|failure| failure.to_string())?;
    let Opened { mut stream, place, .. } = opened;
    let (send, receive) = stream.take().ok_or("the stream is over")?;
    Ok(Trial { send, receive, key: place.circuit().key, _place: place })
}

impl Trial {
    fn relay(&self, fabric: &Fabric) -> Option<String> {
        let relay = fabric.socket.status(self.key).ok()?.relay?;
        Some(fabric.relay(relay).map_or_else(|| relay.to_string(), |view| view.name.to_string()))
    }

    async fn say(&mut self, message: &[u8]) -> Result<(), String> {
        self.send.write_all(message).await.map_err(|error| format!("the trial ended: {error}"))
    }

    async fn hear(&mut self, message: &mut [u8]) -> Result<(), String> {
        self.receive.read_exact(message).await.map_err(|error| format!("the trial ended: {error}"))
    }
}

fn micros(span: Duration) -> u64 {
    span.as_micros() as u64
}

/// Exchanges messages one after the other for so long.
///
/// # Errors
/// Why it could not, for people.
pub async fn latency(fabric: &Arc<Fabric>, link: LinkId, span: Span) -> Result<Latency, String> {
    let mut trial = open(fabric, link, TrialKind::Echo).await?;
    let (began, span) = (fabric.now(), span.min(TRIAL_SPAN_MAX));
    let mut round_trips = Vec::new();
    let mut message = [0x2e; TRIAL_MESSAGE_BYTES];
    while fabric.now().since(began) < span && round_trips.len() < TRIAL_MESSAGES_MAX {
        let sent = fabric.now();
        trial.say(&message).await?;
        trial.hear(&mut message).await?;
        round_trips.push(micros(fabric.now().since(sent)));
    }
    round_trips.sort_unstable();
    let at = |percent: usize| round_trips.get((round_trips.len().max(1) - 1) * percent / 100).copied().unwrap_or(0);
    let exchanges = round_trips.len() as u64;
    Ok(Latency { exchanges, p50_us: at(50), p99_us: at(99), max_us: at(100), relay: trial.relay(fabric) })
}

/// Sends as fast as the way takes it for so long, and waits until all has arrived.
///
/// # Errors
/// Why it could not, for people.
pub async fn throughput(fabric: &Arc<Fabric>, link: LinkId, span: Span) -> Result<Throughput, String> {
    let mut trial = open(fabric, link, TrialKind::Sink).await?;
    let block = vec![0x2e; BLOCK_BYTES];
    let (began, span) = (fabric.now(), span.min(TRIAL_SPAN_MAX));
    let mut sent = 0;
    while fabric.now().since(began) < span {
        trial.say(&block).await?;
        sent += block.len() as u64;
    }
    trial.send.finish().map_err(|error| format!("the trial ended: {error}"))?;
    let mut count = [0; 8];
    trial.hear(&mut count).await?;
    let bytes = u64::from_be_bytes(count);
    if bytes != sent {
        return Err(format!("{sent} bytes were sent and {bytes} arrived"));
    }
    Ok(Throughput { bytes, took_us: micros(fabric.now().since(began)), relay: trial.relay(fabric) })
}

/// Exchanges messages all along while the relay in use is dead to this node for a while.
///
/// # Errors
/// Why it could not, for people; also that something was lost.
pub async fn death(fabric: &Arc<Fabric>, link: LinkId) -> Result<Death, String> {
    let trial = open(fabric, link, TrialKind::Echo).await?;
    let relay = trial.relay(fabric).ok_or("no relay carries the link's circuit")?;
    let address = fabric
        .socket
        .status(trial.key)
        .ok()
        .and_then(|status| fabric.session(status.relay?))
        .map(|session| session.address)
        .ok_or("there is no session with the relay in use")?;
    let messages = ((BEFORE_DEATH + AFTER_DEATH).as_millis() / BEAT.as_millis()) as usize;
    let death_at = (BEFORE_DEATH.as_millis() / BEAT.as_millis()) as usize;
    let sent: Arc<std::sync::Mutex<Vec<Moment>>> = Arc::default();
    let Trial { mut send, mut receive, key, _place } = trial;
    let talking = async {
        let began = fabric.now();
        for number in 0..messages {
            fabric.clock.sleep_until(began.after(BEAT * number as u32)).await;
            if number == death_at {
                fabric.socket.deafen(address, TRIAL_DEAF);
            }
            crate::directory::lock(&sent).push(fabric.now());
            let message = [number as u8; TRIAL_MESSAGE_BYTES];
            send.write_all(&message).await.map_err(|error| format!("the trial ended: {error}"))?;
        }
        Ok::<_, String>(())
    };
    let listening = async {
        let (mut round_trips, mut stall, mut last) = (Vec::with_capacity(messages), Span::ZERO, fabric.now());
        for number in 0..messages {
            let mut message = [0; TRIAL_MESSAGE_BYTES];
            receive.read_exact(&mut message).await.map_err(|error| format!("the trial ended: {error}"))?;
            if message != [number as u8; TRIAL_MESSAGE_BYTES] {
                return Err(format!("message {number} came back as another one"));
            }
            let now = fabric.now();
            let at = crate::directory::lock(&sent).get(number).copied().unwrap_or(now);
            if number > 0 {
                stall = stall.max(now.since(last));
            }
            last = now;
            round_trips.push(micros(now.since(at)));
        }
        Ok((round_trips, stall))
    };
    let both = async { tokio::try_join!(talking, listening) };
    let limit = sleep(&*fabric.clock, fabric.flow_wait() + BEFORE_DEATH + AFTER_DEATH);
    let (round_trips_us, stall) = tokio::select! {
        biased;
        done = both => done?.1,
        () = limit => return Err("the flow has not gone on within a flow's wait".to_owned()),
    };
    let now = fabric.socket.status(key).ok().and_then(|status| status.relay);
    let to = now.map(|now| fabric.relay(now).map_or_else(|| now.to_string(), |view| view.name.to_string()));
    Ok(Death {
        to: to.filter(|to| *to != relay),
        relay,
        stall_us: micros(stall),
        messages: messages as u64,
        beat_us: micros(BEAT),
        death_at: death_at as u64,
        round_trips_us,
    })
}

/// The target's end: answers until the consumer has ended, [`TRIAL_SPAN_MAX`] and a flow's wait at most.
pub(super) async fn answer(fabric: &Arc<Fabric>, kind: TrialKind, send: &mut Sender, receive: &mut Receiver) {
    let work = async {
        let mut count = 0_u64;
        while let Ok(Some(chunk)) = receive.read_chunk(BLOCK_BYTES, true).await {
            match kind {
                TrialKind::Echo => send.write_chunk(chunk.bytes).await.ok()?,
                TrialKind::Sink => count += chunk.bytes.len() as u64,
            }
        }
        if kind == TrialKind::Sink {
            send.write_all(&count.to_be_bytes()).await.ok()?;
        }
        send.finish().ok()?;
        send.stopped().await.ok()
    };
    tokio::select! {
        biased;
        _ = work => {}
        () = sleep(&*fabric.clock, TRIAL_SPAN_MAX + fabric.flow_wait()) => {}
    }
}
