//! What a circuit does under its lock: effects of its behavior, headers, the ring's pump, probes and claims.

use std::{io, net::SocketAddr, sync::Arc};

use postroad_cluster::{
    circuit::{Circuit, Effect, Event, MoveReason, Path, Take},
    id::{Generation, NodeId},
    limits::{CIRCUIT_PACKET_BYTES, CIRCUIT_ROUND_TRIP_UNKNOWN, RESEND_DATAGRAMS_PER_MS},
    time::{Moment, Span},
};
use quinn::udp::Transmit;

use super::{ChannelSpec, CircuitCounters, CircuitSpec, Common, Meter, PathKey, PerSecond, Wires};
use crate::{
    address::for_family,
    node_socket::CircuitEvent,
    packet::{FLAG_AFTER_SILENCE, FLAG_LARGE, HEADER_BYTES, Header, PROBE_BODY_BYTES, PacketType, expand_generation},
    ring::{Entry, Ring},
};

/// The pump's beat while something waits to be sent.
const PUMP: Span = Span::from_millis(1);

/// A channel's address and tokens.
pub(super) struct Wire {
    address: SocketAddr,
    token_out: u64,
    answers: PerSecond,
}

impl Wire {
    pub(super) fn new(spec: &ChannelSpec, ipv6: bool) -> Self {
        Self { address: for_family(spec.address, ipv6), token_out: spec.token_out, answers: PerSecond::default() }
    }
}

/// Where and with which header data goes.
#[derive(Clone, Copy)]
struct Outgoing {
    address: SocketAddr,
    header: [u8; HEADER_BYTES],
}

/// What the lock of a circuit protects.
pub(super) struct Inner {
    common: Arc<Common>,
    spec: CircuitSpec,
    meter: Arc<Meter>,
    pub(super) circuit: Circuit,
    pub(super) channels: Wires,
    pub(super) key: Option<PathKey>,
    pub(super) ring: Ring,
    /// What waits for more while a driver runs.
    held: Option<Entry>,
    pub(super) counters: CircuitCounters,
    pub(super) reason: Option<MoveReason>,
    pub(super) choice: String,
    pub(super) round_trip: Option<Span>,
    main: Option<Outgoing>,
    double: Option<Outgoing>,
    hold: Moment,
    pumped: Moment,
    checks: PerSecond,
    frames: u64,
    frames_at_clear: Option<u64>,
    clears: u64,
    scratch: Vec<u8>,
    effects: Vec<Effect>,
}

impl Inner {
    pub(super) fn new(common: Arc<Common>, spec: CircuitSpec, meter: Arc<Meter>, circuit: Circuit) -> Self {
        Self {
            common,
            spec,
            meter,
            circuit,
            channels: Wires::new(),
            key: None,
            ring: Ring::default(),
            held: None,
            counters: CircuitCounters::default(),
            reason: None,
            choice: String::new(),
            round_trip: None,
            main: None,
            double: None,
            hold: Moment::ZERO,
            pumped: Moment::ZERO,
            checks: PerSecond::default(),
            frames: 0,
            frames_at_clear: None,
            clears: 0,
            scratch: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Whether something that must be acknowledged is under way: the meter says so, and such frames were counted
    /// since everything was acknowledged last.
    pub(super) fn in_flight(&mut self, frames: Option<u64>) -> bool {
        let (in_flight, clears) = (self.meter.in_flight(), self.meter.clears());
        if clears != self.clears {
            self.clears = clears;
            self.frames_at_clear = Some(self.frames);
        }
        let Some(frames) = frames else { return in_flight };
        self.frames = frames;
        in_flight && self.frames_at_clear.is_none_or(|before| frames > before)
    }

    pub(super) fn next_due(&self, now: Moment) -> Moment {
        let pump = if self.waits() && self.main.is_some() { now.after(PUMP).max(self.hold) } else { Moment::NEVER };
        self.circuit.next_due(now).min(pump)
    }

    pub(super) fn handle(&mut self, now: Moment, event: Event) {
        // By the path that quinn sent it on. With a full socket it stays, unless the event moves the circuit.
        let _ = self.flush(now);
        let mut effects = std::mem::take(&mut self.effects);
        self.circuit.on(now, event, &mut effects);
        // Headers first: an effect may send.
        self.rewrite_paths();
        for effect in effects.drain(..) {
            self.apply(now, &effect);
        }
        self.effects = effects;
    }

    fn rewrite_paths(&mut self) {
        self.main = self.outgoing(self.circuit.path());
        self.double = self.circuit.double().and_then(|path| self.outgoing(path));
    }

    fn outgoing(&self, path: Path) -> Option<Outgoing> {
        let relay = path.relay?;
        let wire = self.channels.get(&relay)?;
        Some(Outgoing { address: wire.address, header: self.header(PacketType::Data, relay, path)?.encode() })
    }

    /// The header of a packet over `relay`, which claims `path` if that is the relay's.
    fn header(&self, packet_type: PacketType, relay: NodeId, path: Path) -> Option<Header> {
        let token = self.channels.get(&relay)?.token_out;
        let large = if self.spec.packet_bytes > CIRCUIT_PACKET_BYTES { FLAG_LARGE } else { 0 };
        let plain = Header { packet_type, flags: large, generation: 0, mac: [0; 4], token };
        let Some(key) = self.key.as_ref().filter(|_| path.relay == Some(relay) && path.generation.0 > 0) else {
            return Some(plain);
        };
        let flags = if path.after_silence { FLAG_AFTER_SILENCE } else { 0 };
        let mac = key.path_mac(self.spec.me, relay, path.generation, flags);
        Some(Header { flags: flags | large, generation: path.generation.0 as u16, mac, ..plain })
    }

    fn apply(&mut self, now: Moment, effect: &Effect) {
        let circuit = self.spec.key;
        match *effect {
            Effect::Probe { relay, sequence, bytes } => self.probe(relay, sequence, bytes),
            Effect::Take(take) => self.take(now, take),
            Effect::Resend { relay } => {
                let replayed = self.resend(now);
                self.common.tell(CircuitEvent::Resumed { circuit, relay, replayed });
            }
            Effect::Proven { relay, round_trip } => {
                self.common.tell(CircuitEvent::ChannelProven { circuit, relay, round_trip });
            }
            Effect::Silent { relay } => self.common.tell(CircuitEvent::ChannelSilent { circuit, relay }),
            Effect::NoRelay => self.common.tell(CircuitEvent::NoRelay { circuit }),
            Effect::Stalled { reason, span } => {
                self.common.tell(CircuitEvent::Stalled { circuit, reason, span });
            }
        }
    }

    fn take(&mut self, now: Moment, take: Take) {
        self.line_up();
        let Take { from, path, reason, hold } = take;
        self.reason = Some(reason);
        self.choice = self.circuit.choice(now);
        self.hold = now.after(hold);
        if from.is_some() {
            self.meter.moved();
        }
        let replayed = if path.after_silence { self.resend(now) } else { 0 };
        if let Some(to) = path.relay {
            let generation = path.generation;
            let event = CircuitEvent::Moved { circuit: self.spec.key, from, to, generation, reason, replayed };
            self.common.tell(event);
        }
    }

    /// What a full socket did not take waits in its turn: quinn has been told that it is on its way.
    fn line_up(&mut self) {
        if let Some(entry) = self.held.take() {
            self.keep(entry, true);
        }
    }

    /// Makes the ring go again, and begins at once.
    fn resend(&mut self, now: Moment) -> usize {
        self.line_up();
        let replayed = self.ring.rewind(self.meter.largest_acknowledged());
        self.counters.replayed += replayed as u64;
        self.pumped = Moment::ZERO;
        self.pump(now);
        replayed
    }

    /// Sends what waits, as much as the time since the last beat allows: spread over a round trip, so that a slow way
    /// is not flooded.
    pub(super) fn pump(&mut self, now: Moment) {
        let Some(main) = self.main.filter(|_| self.ring.has_pending() && self.hold <= now) else { return };
        let (waiting, _) = self.ring.pending();
        let beats = now.since(self.pumped).as_millis().clamp(1, 5) as usize;
        self.pumped = now;
        let round_trip = self.round_trip.unwrap_or(CIRCUIT_ROUND_TRIP_UNKNOWN);
        let spread = waiting / (round_trip.as_millis() as usize).max(1);
        let mut budget = RESEND_DATAGRAMS_PER_MS.max(spread) * beats;
        let acknowledged = self.meter.largest_acknowledged();
        while budget > 0
            && let Some(entry) = self.ring.next_pending(acknowledged)
        {
            entry.set_header(&main.header);
            if transmit(&self.common, main.address, entry).is_err() {
                return;
            }
            budget = budget.saturating_sub(entry.datagrams());
            self.ring.advance();
        }
    }

    /// Sends new datagrams; with `hold` they may wait for more, until [`Inner::flush`]. Only a full socket is an error.
    pub(super) fn send(&mut self, now: Moment, transmit: &Transmit<'_>, number: u64, hold: bool) -> io::Result<()> {
        let segments_max = self.common.socket.send_segments_max();
        let mut rest = transmit.clone();
        if let Some(held) = &mut self.held {
            let level = held.level();
            rest.contents = held.fill(&rest, number, segments_max);
            if rest.contents.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.flush(now) {
                // quinn sends all of it again.
                if let Some(held) = &mut self.held {
                    held.empty_to(level);
                }
                return Err(error);
            }
        }
        loop {
            let begun = rest.contents.len() < transmit.contents.len();
            let mut entry = Entry::like(&rest, now, self.ring.buffer());
            rest.contents = entry.fill(&rest, number, segments_max);
            self.held = Some(entry);
            if hold && rest.contents.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.flush(now) {
                self.withdraw();
                // After a first part the rest is lost, as on any network: quinn would send all of it again.
                return if begun { Ok(()) } else { Err(error) };
            }
            if rest.contents.is_empty() {
                return Ok(());
            }
        }
    }

    /// Forgets what is held, since quinn is told that it was not sent.
    fn withdraw(&mut self) {
        if let Some(entry) = self.held.take() {
            self.ring.give_back(entry.data);
        }
    }

    /// Sends what is held. Only a full socket is an error; then it is held on.
    pub(super) fn flush(&mut self, now: Moment) -> io::Result<()> {
        let Some(entry) = self.held.take() else { return Ok(()) };
        self.put(now, entry).map_err(|(entry, error)| {
            self.held = Some(entry);
            error
        })
    }

    /// Whether something waits for the socket or for what goes again before it.
    pub(super) fn waits(&self) -> bool {
        self.held.is_some() || self.ring.has_pending()
    }

    /// Sends datagrams, or lets them wait behind those that go again. Only a full socket is an error.
    fn put(&mut self, now: Moment, mut entry: Entry) -> Result<(), (Entry, io::Error)> {
        let Some(main) = self.main else {
            self.counters.dropped += entry.datagrams() as u64;
            self.ring.push(entry, false);
            return Ok(());
        };
        let pending = self.ring.has_pending();
        #[cfg(feature = "planted")]
        let waits = (pending && !crate::planted::ring_is_last()) || self.hold > now;
        #[cfg(not(feature = "planted"))]
        let waits = pending || self.hold > now;
        if !waits {
            self.counters.overtaken += u64::from(pending) * entry.datagrams() as u64;
            entry.set_header(&main.header);
            let sent = transmit(&self.common, main.address, &entry);
            self.common.waiters.note(&sent);
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err((entry, error)),
                Err(_) => self.counters.dropped += entry.datagrams() as u64,
                Ok(()) => {}
            }
        }
        self.keep(entry, waits);
        Ok(())
    }

    /// Counts datagrams as sent and puts them into the ring, a copy on its way over the second path.
    fn keep(&mut self, mut entry: Entry, waits: bool) {
        let datagrams = entry.datagrams();
        self.counters.sent += datagrams as u64;
        self.counters.sent_bytes += (entry.data.len() - datagrams * HEADER_BYTES) as u64;
        if let Some(double) = self.double {
            entry.set_header(&double.header);
            if transmit(&self.common, double.address, &entry).is_ok() {
                self.counters.doubled += datagrams as u64;
            }
        }
        self.counters.dropped += self.ring.push(entry, waits) as u64;
    }

    fn probe(&mut self, relay: NodeId, sequence: u64, bytes: u32) {
        let Some(header) = self.header(PacketType::Probe, relay, self.circuit.path()) else { return };
        let Some(address) = self.channels.get(&relay).map(|wire| wire.address) else { return };
        self.scratch.clear();
        self.scratch.extend_from_slice(&header.encode());
        self.scratch.extend_from_slice(&sequence.to_le_bytes());
        self.scratch.resize(HEADER_BYTES + (bytes as usize).max(PROBE_BODY_BYTES), 0);
        // A full socket loses it, as the network may.
        let _ = self.common.put(&single(address, &self.scratch));
        if self.circuit.stranded() && self.key.is_some() {
            self.knock(relay, address);
        }
    }

    /// Sends the newest datagram again: a peer that has restarted cannot answer probes by the circuit's key, but QUIC
    /// answers what it does not know by a reset, so that the circuit is dialled anew instead of waiting for nobody.
    fn knock(&mut self, relay: NodeId, address: SocketAddr) {
        let Some(header) = self.header(PacketType::Data, relay, self.circuit.path()) else { return };
        let Some(packet) = self.ring.newest() else { return };
        self.scratch.clear();
        self.scratch.extend_from_slice(&header.encode());
        self.scratch.extend_from_slice(packet);
        let _ = self.common.put(&single(address, &self.scratch));
    }

    /// Turns a probe into its echo and sends it back.
    pub(super) fn answer(&mut self, now: Moment, relay: NodeId, packet: &mut [u8], most: u32) {
        let Some(header) = self.header(PacketType::Echo, relay, self.circuit.path()) else { return };
        let Some(wire) = self.channels.get_mut(&relay) else { return };
        if !wire.answers.take(now, most) {
            return;
        }
        packet[..HEADER_BYTES].copy_from_slice(&header.encode());
        let (sequence, tag) = packet[HEADER_BYTES..HEADER_BYTES + PROBE_BODY_BYTES].split_at_mut(8);
        let sequence = u64::from_le_bytes(sequence.try_into().unwrap_or_default());
        let signed = self.key.as_ref().map(|key| key.echo_tag(self.spec.me, relay, sequence));
        tag.copy_from_slice(&signed.unwrap_or_default());
        let _ = self.common.put(&single(wire.address, packet));
    }

    /// The sequence of an echo, once there is a key only if the peer itself has answered.
    pub(super) fn echo(&self, relay: NodeId, packet: &[u8]) -> Option<u64> {
        let body: &[u8; PROBE_BODY_BYTES] = packet.get(HEADER_BYTES..)?.first_chunk()?;
        let (sequence, tag) = body.split_at(8);
        let sequence = u64::from_le_bytes(sequence.try_into().ok()?);
        let holds = |key: &PathKey| key.echo_holds(self.spec.key.peer, relay, sequence, tag);
        self.key.as_ref().is_none_or(holds).then_some(sequence)
    }

    /// The path that the peer claims by a header, if it is not ours and may be followed.
    pub(super) fn claim(&mut self, now: Moment, relay: NodeId, header: &Header, most: u32) -> Option<Path> {
        let after_silence = header.flags & FLAG_AFTER_SILENCE != 0;
        let present = self.circuit.path();
        let Some(key) = &self.key else {
            // Before there is a key the other end's data shows its relay, be it a handshake or a circuit of before this
            // end's restart.
            let data = header.packet_type == PacketType::Data;
            return data.then_some(Path { relay: Some(relay), generation: Generation(0), after_silence: false });
        };
        let generation = expand_generation(present.generation, header.generation);
        if generation.0 == 0 || generation < present.generation {
            return None;
        }
        if generation == present.generation && (present.relay == Some(relay) || self.spec.me < self.spec.key.peer) {
            return None;
        }
        let flags = header.flags & FLAG_AFTER_SILENCE;
        if !self.checks.take(now, most) || !key.path_holds(self.spec.key.peer, relay, generation, flags, header.mac) {
            self.counters.forged += 1;
            return None;
        }
        Some(Path { relay: Some(relay), generation, after_silence })
    }
}

fn single(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
    Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None }
}

fn transmit(common: &Common, destination: SocketAddr, entry: &Entry) -> io::Result<()> {
    let segment_size = (entry.data.len() > entry.stride).then_some(entry.stride);
    let transmit = Transmit { destination, ecn: entry.ecn, contents: &entry.data, segment_size, src_ip: None };
    common.put(&transmit)
}
