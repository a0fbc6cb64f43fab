//! One circuit inside a node's socket: its behavior, its channels' tokens, its ring, and what it sends.

mod path;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use postroad_cluster::{
    circuit::{Circuit, Event, Figures, MoveReason},
    id::NodeId,
    limits::{CIRCUIT_LINGER, CIRCUIT_TICK, PATH_CHECKS_PER_SECOND, PROBE_ANSWERS_PER_SECOND, RING_AGE},
    time::{Moment, Span},
};
use quinn::udp::Transmit;

use self::path::Inner;
use super::{ChannelSpec, CircuitError, CircuitKey, CircuitSpec, CircuitStatus, Common, held, view::CircuitCounters};
use crate::{
    controller::Meter,
    packet::{FLAG_LARGE, HEADER_BYTES, Header, PROBE_BODY_BYTES, PacketType, PathKey},
};

/// The relay number of a path without a relay.
const NO_RELAY: u64 = u64::MAX;

/// What a circuit's socket asks of its connection. It may lock the connection, so the socket asks only where no lock
/// of its own is held.
pub trait PathFigures: Send + Sync {
    /// The round trip that QUIC measures.
    fn round_trip(&self) -> Span;
    /// Frames sent so far that must be acknowledged.
    fn eliciting_frames(&self) -> u64;
    /// Whether the connection is closed, so that nothing will come back.
    fn closed(&self) -> bool;
}

impl PathFigures for quinn::Connection {
    fn round_trip(&self) -> Span {
        self.rtt()
    }

    fn eliciting_frames(&self) -> u64 {
        // All frames but ACK, CONNECTION_CLOSE and padding, which quinn does not count.
        let frames = self.stats().frame_tx;
        let seldom = u64::from(frames.handshake_done)
            + frames.ack_frequency
            + frames.crypto
            + frames.immediate_ack
            + frames.new_connection_id
            + frames.new_token
            + frames.path_challenge
            + frames.path_response
            + frames.ping
            + frames.retire_connection_id;
        let flow = frames.data_blocked
            + frames.max_data
            + frames.max_stream_data
            + frames.max_streams_bidi
            + frames.max_streams_uni
            + frames.stream_data_blocked
            + frames.streams_blocked_bidi
            + frames.streams_blocked_uni;
        seldom + flow + frames.datagram + frames.reset_stream + frames.stop_sending + frames.stream
    }

    fn closed(&self) -> bool {
        self.close_reason().is_some()
    }
}

/// A bucket of whole things per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerSecond {
    second: u64,
    taken: u32,
}

impl PerSecond {
    pub(super) fn take(&mut self, now: Moment, most: u32) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.second != second {
            *self = Self { second, taken: 0 };
        }
        self.taken += 1;
        self.taken <= most
    }
}

/// One circuit.
pub(super) struct Cell {
    common: Arc<Common>,
    spec: CircuitSpec,
    index: u64,
    address: SocketAddr,
    meter: Arc<Meter>,
    /// The size of its packets, and whether the dialling end may still say that it is the larger one.
    packet_bytes: AtomicU32,
    enlarges: AtomicBool,
    /// Whether a tick is scheduled for what was sent.
    ticking: AtomicBool,
    /// The present path, for receivers: only packets of another one take the lock.
    generation: AtomicU64,
    relay: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    /// When a removed circuit is gone for good.
    leaves: AtomicU64,
    figures: Mutex<Option<Arc<dyn PathFigures>>>,
    inner: Mutex<Inner>,
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("spec", &self.spec).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Cell {
    pub(super) fn new(common: Arc<Common>, spec: CircuitSpec, index: u64, address: SocketAddr) -> Self {
        let now = common.clock.now();
        let circuit = Circuit::new(now, spec.me, spec.key.peer, spec.packet_bytes, spec.larger_bytes);
        let meter = Arc::new(Meter::default());
        Self {
            inner: Mutex::new(Inner::new(Arc::clone(&common), spec, Arc::clone(&meter), circuit)),
            common,
            spec,
            index,
            address,
            meter,
            packet_bytes: AtomicU32::new(spec.packet_bytes),
            enlarges: AtomicBool::new(spec.enlarges && spec.larger_bytes > spec.packet_bytes),
            ticking: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            relay: AtomicU64::new(NO_RELAY),
            received: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            leaves: AtomicU64::new(Moment::NEVER.0),
            figures: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn key(&self) -> CircuitKey {
        self.spec.key
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn packet_bytes(&self) -> u32 {
        self.packet_bytes.load(Ordering::Acquire)
    }

    /// The dialling end sends large packets: so does this one. Only before the connection, which has one size for good.
    fn enlarge(&self) {
        if self.enlarges.swap(false, Ordering::AcqRel) {
            let packet_bytes = self.spec.larger_bytes;
            self.packet_bytes.store(packet_bytes, Ordering::Release);
            self.handle(self.lock(), Event::Sized { packet_bytes });
        }
    }

    pub(super) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    pub(super) fn channel_count(&self) -> usize {
        self.lock().channels.len()
    }

    pub(super) fn has_channel(&self, relay: NodeId) -> bool {
        self.lock().channels.contains_key(&relay)
    }

    pub(super) fn channel_add(&self, spec: ChannelSpec) {
        let mut inner = self.lock();
        inner.channels.insert(spec.relay, path::Wire::new(&spec, self.common.ipv6));
        self.handle(inner, Event::ChannelAdded { relay: spec.relay, shares: spec.shares_domain_with });
    }

    pub(super) fn channel_remove(&self, relay: NodeId) {
        let mut inner = self.lock();
        inner.channels.remove(&relay);
        self.handle(inner, Event::ChannelRemoved { relay });
    }

    pub(super) fn connected(&self, figures: Arc<dyn PathFigures>, key: PathKey) {
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures);
        self.enlarges.store(false, Ordering::Release);
        let mut inner = self.lock();
        inner.key = Some(key);
        self.handle(inner, Event::Connected);
    }

    pub(super) fn disconnect(&self) {
        // Dropped after the lock: it may be the last handle of the connection.
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(figures);
    }

    /// The circuit is removed; its connection's driver may still have a last word.
    pub(super) fn leave(&self) {
        let at = self.common.clock.now().after(CIRCUIT_LINGER);
        self.leaves.store(at.0, Ordering::Release);
        self.common.schedule.set(self.index, at, true);
    }

    /// Whether the circuit is removed.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaves.load(Ordering::Acquire) != Moment::NEVER.0
    }

    /// Whether the time for a last word is over.
    pub(super) fn has_left(&self) -> bool {
        self.common.clock.now() >= Moment(self.leaves.load(Ordering::Acquire))
    }

    pub(super) fn event(&self, event: Event) {
        self.handle(self.lock(), event);
    }

    pub(super) fn move_to(&self, relay: NodeId, reason: MoveReason) -> Result<(), CircuitError> {
        let inner = self.lock();
        if inner.circuit.path().relay == Some(relay) || !inner.circuit.candidate(self.common.clock.now(), relay) {
            return Err(CircuitError::NoCandidate);
        }
        self.handle(inner, Event::MoveTo { relay, reason });
        Ok(())
    }

    /// Lets the behavior take an event, does what it asks for and schedules the next tick.
    fn handle(&self, mut inner: MutexGuard<'_, Inner>, event: Event) {
        let now = self.common.clock.now();
        inner.handle(now, event);
        self.publish(&inner);
        let due = inner.next_due(now);
        drop(inner);
        self.common.schedule.set(self.index, due, true);
    }

    fn publish(&self, inner: &Inner) {
        let path = inner.circuit.path();
        self.generation.store(path.generation.0, Ordering::Release);
        self.relay.store(path.relay.map_or(NO_RELAY, |relay| relay.0), Ordering::Release);
    }

    /// The circuit's tick: figures first, since the connection's lock must not be taken under ours.
    pub(super) fn tick(&self) {
        let source = self.figures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let closed = source.as_ref().is_some_and(|source| source.closed());
        if closed {
            self.disconnect();
        }
        let frames = source.as_ref().map(|source| source.eliciting_frames());
        let round_trip = source.as_ref().map(|source| source.round_trip());
        let now = self.common.clock.now();
        let mut inner = self.lock();
        let in_flight = inner.in_flight(frames) && !closed;
        inner.round_trip = round_trip.or(inner.round_trip);
        let acknowledged = self.meter.acknowledged();
        inner.handle(now, Event::Tick(Figures { in_flight, acknowledged, sent: frames.unwrap_or(0), round_trip }));
        inner.pump(now);
        let age = round_trip.unwrap_or(Span::ZERO) * 4 + RING_AGE;
        inner.ring.prune(now, age, self.meter.largest_acknowledged());
        self.publish(&inner);
        let mut due = inner.next_due(now).min(Moment(self.leaves.load(Ordering::Acquire)));
        drop(inner);
        self.ticking.store(in_flight, Ordering::Release);
        // Something may have been sent since the figures were taken.
        if !in_flight && !closed && self.meter.in_flight() {
            self.ticking.store(true, Ordering::Release);
            due = due.min(now.after(CIRCUIT_TICK));
        }
        self.common.schedule.set(self.index, due, true);
    }

    /// Sends what quinn built, or keeps it until the driver that built it has done. Only a full socket is an error.
    pub(super) fn send(self: &Arc<Self>, transmit: &Transmit<'_>) -> io::Result<()> {
        let now = self.common.clock.now();
        let mut inner = self.lock();
        let number = self.meter.last_sent();
        let sent = inner.send(now, transmit, number, held::may_hold(self));
        let due = inner.ring.has_pending().then(|| inner.next_due(now));
        drop(inner);
        self.tick_at(due);
        if !self.ticking.swap(true, Ordering::AcqRel) {
            self.common.schedule.set(self.index, now.after(CIRCUIT_TICK), true);
        }
        sent
    }

    /// Sends what was kept.
    pub(super) fn flush(&self) {
        let now = self.common.clock.now();
        let mut inner = self.lock();
        // A full socket is tried again by the tick.
        let _ = inner.flush(now);
        let due = inner.waits().then(|| inner.next_due(now));
        drop(inner);
        self.tick_at(due);
    }

    fn tick_at(&self, due: Option<Moment>) {
        if let Some(due) = due {
            self.common.schedule.set(self.index, due, true);
        }
    }

    /// Counts received data. Cheap, since it is asked once per run of packets.
    pub(super) fn count_received(&self, packets: u64, bytes: u64) {
        self.meter.heard();
        self.received.fetch_add(packets, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What the header of a received packet says about the peer's path.
    pub(super) fn heard(&self, relay: NodeId, header: &Header) {
        if header.flags & FLAG_LARGE != 0 {
            self.enlarge();
        }
        let present = self.generation.load(Ordering::Acquire) as u16;
        if header.generation == present && self.relay.load(Ordering::Acquire) == relay.0 {
            return;
        }
        let now = self.common.clock.now();
        let mut inner = self.lock();
        if let Some(path) = inner.claim(now, relay, header, PATH_CHECKS_PER_SECOND) {
            self.handle(inner, Event::Heard { path });
        }
    }

    /// Answers a probe in place: the same bytes go back over the same relay.
    pub(super) fn answer(&self, relay: NodeId, packet: &mut [u8]) {
        let now = self.common.clock.now();
        let mut inner = self.lock();
        if packet.len() >= HEADER_BYTES + PROBE_BODY_BYTES {
            inner.answer(now, relay, packet, PROBE_ANSWERS_PER_SECOND);
        }
    }

    /// A probe came back.
    pub(super) fn echoed(&self, relay: NodeId, packet: &[u8]) {
        let inner = self.lock();
        if let Some(sequence) = inner.echo(relay, packet) {
            self.handle(inner, Event::Echoed { relay, sequence });
        }
    }

    pub(super) fn copy(&self) -> (Circuit, Moment) {
        let now = self.common.clock.now();
        (self.lock().circuit.clone(), now)
    }

    pub(super) fn status(&self) -> CircuitStatus {
        let now = self.common.clock.now();
        let inner = self.lock();
        let path = inner.circuit.path();
        CircuitStatus {
            circuit: self.spec.key,
            address: self.address,
            relay: path.relay,
            generation: path.generation,
            connected: inner.circuit.connected(),
            stranded: inner.circuit.stranded(),
            moves: inner.circuit.moves(),
            reason: inner.reason,
            choice: inner.choice.clone(),
            channels: inner.circuit.channels(now),
            packet_bytes: self.packet_bytes(),
            proven_bytes: inner.circuit.proven_bytes(now),
            counters: CircuitCounters {
                received: self.received.load(Ordering::Relaxed),
                received_bytes: self.received_bytes.load(Ordering::Relaxed),
                ..inner.counters
            },
        }
    }
}

/// Channels by relay, as the cell keeps them.
type Wires = BTreeMap<NodeId, path::Wire>;

/// Which types of packets a node's socket hands to quinn.
pub(super) const fn is_data(header: &Header) -> bool {
    matches!(header.packet_type, PacketType::Data)
}
