//! Which relay carries a circuit: failover after a silence, planned moves, and the probes that they rest on.
//!
//! The transport drives this behavior itself, synchronously, from counters. Either end may move the circuit
//! (generation + 1); the other follows the newest generation, and at the same generation the lower node id's choice
//! holds, so that both directions end on one relay.

mod channel;
mod choice;
mod message;
mod silence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::choice::Rank;
pub use self::message::{ChannelView, Effect, Event, Figures, MoveReason, Path, Take};
use self::{channel::Channel, silence::Watch};
use crate::{
    id::{Generation, NodeId},
    limits::{CIRCUIT_DOUBLE_MAX, CIRCUIT_TICK, PROBE_INTERVAL, PROBE_MISSES_MAX},
    time::{Moment, Span},
};

/// After a silence both relays get every packet for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Double {
    path: Path,
    until: Moment,
}

/// One end of a circuit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    me: NodeId,
    peer: NodeId,
    packet_bytes: u32,
    larger_bytes: u32,
    /// Whether the key is there that authenticates moves. Before that only the dialling end, the lower id, chooses.
    connected: bool,
    path: Path,
    double: Option<Double>,
    channels: BTreeMap<NodeId, Channel>,
    watch: Watch,
    /// The circuit's relay is silent and no other was a candidate.
    stranded: bool,
    moved: Moment,
    moves: u64,
    sequence: u64,
    round: u64,
    round_at: Moment,
}

impl Circuit {
    /// A circuit between this node and its peer whose QUIC packets have up to `packet_bytes`. Probes look for
    /// `larger_bytes` too where that is more.
    #[must_use]
    pub fn new(now: Moment, me: NodeId, peer: NodeId, packet_bytes: u32, larger_bytes: u32) -> Self {
        Self {
            me,
            peer,
            packet_bytes,
            larger_bytes,
            connected: false,
            path: Path::default(),
            double: None,
            channels: BTreeMap::new(),
            watch: Watch::default(),
            stranded: false,
            moved: now,
            moves: 0,
            sequence: 0,
            round: 0,
            round_at: now.after(PROBE_INTERVAL),
        }
    }

    /// The path of new packets.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.path
    }

    /// The path that gets a copy of new packets too, after a silence.
    #[must_use]
    pub fn double(&self) -> Option<Path> {
        self.double.as_ref().map(|double| double.path)
    }

    /// How often the circuit has moved since it began.
    #[must_use]
    pub const fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether the circuit's relay is silent and there is no other.
    #[must_use]
    pub const fn stranded(&self) -> bool {
        self.stranded || self.path.relay.is_none()
    }

    /// Whether the key is there that authenticates moves.
    #[must_use]
    pub const fn connected(&self) -> bool {
        self.connected
    }

    /// Whether `relay` may take the circuit now.
    #[must_use]
    pub fn candidate(&self, now: Moment, relay: NodeId) -> bool {
        self.channels.get(&relay).is_some_and(|channel| channel.candidate(now))
    }

    /// What every candidate's probe has carried, in bytes of a QUIC packet; 0 without candidates.
    #[must_use]
    pub fn proven_bytes(&self, now: Moment) -> u32 {
        let candidates = self.channels.values().filter(|channel| channel.candidate(now));
        candidates.map(|channel| channel.carried_bytes).min().unwrap_or(0)
    }

    /// Every channel, in order of relays.
    #[must_use]
    pub fn channels(&self, now: Moment) -> Vec<ChannelView> {
        let view = |(relay, channel): (&NodeId, &Channel)| ChannelView {
            relay: *relay,
            candidate: channel.candidate(now),
            connected: channel.connected,
            avoided: channel.avoided,
            round_trip: channel.round_trip,
            proven_age: channel.proven().map(|sent| now.since(sent)),
            carried_bytes: channel.carried_bytes,
            too_small: channel.too_small,
            larger: channel.larger(self.packet_bytes, self.larger_bytes),
        };
        self.channels.iter().map(view).collect()
    }

    /// When the next [`Event::Tick`] is due.
    #[must_use]
    pub fn next_due(&self, now: Moment) -> Moment {
        let channels = self.channels.values().map(Channel::next_due).min().unwrap_or(Moment::NEVER);
        let rounds = if self.channels.is_empty() { Moment::NEVER } else { self.round_at };
        let double = self.double.as_ref().map_or(Moment::NEVER, |double| double.until);
        // While stranded there is nothing to choose: only probes can end it, and they have their own times.
        let tick = if self.watch.in_flight && !self.stranded { now.after(CIRCUIT_TICK) } else { Moment::NEVER };
        channels.min(rounds).min(double).min(tick)
    }

    /// Takes one event and appends what is to be done to `effects`.
    pub fn on(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::ChannelAdded { relay, shares } => self.channel_added(now, relay, shares, effects),
            Event::ChannelRemoved { relay } => {
                self.channels.remove(&relay);
                self.lost(now, relay, MoveReason::Removed, effects);
            }
            Event::SessionLost { relay } => {
                if let Some(channel) = self.channels.get_mut(&relay) {
                    channel.disconnect(now);
                    self.lost(now, relay, MoveReason::SessionLost, effects);
                }
            }
            Event::Avoided { relay, avoided } => {
                if let Some(channel) = self.channels.get_mut(&relay) {
                    channel.avoided = avoided;
                    self.leave_last_resort(now, effects);
                }
            }
            Event::Connected => self.connected = true,
            Event::Sized { packet_bytes } if !self.connected => self.packet_bytes = packet_bytes,
            Event::Sized { .. } => {}
            Event::Tick(figures) => self.tick(now, figures, effects),
            Event::Echoed { relay, sequence } => self.echoed(now, relay, sequence, effects),
            Event::Heard { path } => self.heard(now, path, effects),
            Event::MoveTo { relay, reason } => {
                if self.path.relay != Some(relay) && self.candidate(now, relay) {
                    self.take(now, relay, reason, effects);
                }
            }
        }
        self.tell(now, effects);
    }

    fn channel_added(&mut self, now: Moment, relay: NodeId, shares: BTreeSet<NodeId>, effects: &mut Vec<Effect>) {
        // A channel that is opened again has new tokens: what the old one proved no longer counts.
        self.channels.insert(relay, Channel::new(now, shares));
        if self.path.relay.is_none() && !self.connected {
            self.take(now, relay, MoveReason::First, effects);
        }
        self.probe_due(now, effects);
    }

    /// The channel of `relay` is gone or its session is: leaves it at once.
    fn lost(&mut self, now: Moment, relay: NodeId, reason: MoveReason, effects: &mut Vec<Effect>) {
        if self.double.as_ref().is_some_and(|double| double.path.relay == Some(relay)) {
            self.double = None;
        }
        if self.path.relay != Some(relay) {
            return;
        }
        match self.best(now, Some(relay)) {
            Some(to) => self.take(now, to, reason, effects),
            None => self.strand(now, reason, effects),
        }
        if self.path.relay == Some(relay) && !self.channels.contains_key(&relay) {
            self.path.relay = None;
        }
    }

    fn tick(&mut self, now: Moment, figures: Figures, effects: &mut Vec<Effect>) {
        self.watch_silence(now, figures, effects);
        let packet_bytes = self.packet_bytes;
        let mut unanswered = false;
        for (relay, channel) in &mut self.channels {
            let lost = channel.expire(now, packet_bytes);
            unanswered |= lost && self.path.relay == Some(*relay) && channel.missed_in_row() >= PROBE_MISSES_MAX;
        }
        if unanswered && self.chooses() && !self.stranded {
            self.suspect(now, MoveReason::Unanswered, effects);
        }
        if self.double.as_ref().is_some_and(|double| double.until <= now) {
            self.double = None;
        }
        self.probe_due(now, effects);
    }

    /// Whether this end may choose: both once the key is there, before that only the one that dials.
    fn chooses(&self) -> bool {
        self.connected || self.me < self.peer
    }

    fn strand(&mut self, now: Moment, reason: MoveReason, effects: &mut Vec<Effect>) {
        self.quiet(now);
        self.stalls(reason);
        if !self.stranded {
            self.stranded = true;
            effects.push(Effect::NoRelay);
        }
    }

    fn echoed(&mut self, now: Moment, relay: NodeId, sequence: u64, effects: &mut Vec<Effect>) {
        let Some(channel) = self.channels.get_mut(&relay) else { return };
        let before = channel.proven();
        if !channel.echoed(now, sequence, self.packet_bytes) {
            return;
        }
        let sent_in_silence = channel.proven() > before && channel.proven() >= Some(self.watch.since);
        if self.stranded() {
            return self.recover(now, relay, effects);
        }
        if self.path.relay == Some(relay) && self.watch.checks > 0 && sent_in_silence {
            self.contradicted(now, relay, effects);
        }
        self.leave_last_resort(now, effects);
        self.look_for_nearer(now, effects);
    }

    /// A probe came back while no relay carried the circuit.
    fn recover(&mut self, now: Moment, relay: NodeId, effects: &mut Vec<Effect>) {
        if !self.candidate(now, relay) || !self.chooses() {
            return;
        }
        if self.path.relay == Some(relay) {
            self.stranded = false;
            self.quiet(now);
            effects.push(Effect::Resend { relay });
        } else {
            self.take(now, relay, MoveReason::Returned, effects);
        }
    }

    /// The other end sent by a path that is not ours; its authenticity was checked.
    fn heard(&mut self, now: Moment, path: Path, effects: &mut Vec<Effect>) {
        let Some(relay) = path.relay else { return };
        if !self.channels.contains_key(&relay) {
            return;
        }
        let follows = if self.connected {
            path.generation > self.path.generation
                || (path.generation == self.path.generation && self.peer < self.me && self.path.relay != Some(relay))
        } else {
            path.generation == Generation(0) && self.peer < self.me && self.path.relay != Some(relay)
        };
        if !follows {
            return;
        }
        let from = self.path.relay;
        if path.after_silence
            && let Some(channel) = from.filter(|from| *from != relay).and_then(|from| self.channels.get_mut(&from))
        {
            channel.distrust(now);
        }
        self.switch(now, path, MoveReason::Followed, effects);
    }

    /// This end moves the circuit to `to`.
    fn take(&mut self, now: Moment, to: NodeId, reason: MoveReason, effects: &mut Vec<Effect>) {
        // Without the key nobody could check a generation: the other end goes by where packets come from.
        let generation = if self.connected { self.path.generation.next() } else { self.path.generation };
        let path = Path { relay: Some(to), generation, after_silence: reason.after_silence() };
        self.switch(now, path, reason, effects);
        // Says it at once, also when there is nothing to send.
        if self.connected {
            self.probe(now, to, None, effects);
        }
    }

    fn switch(&mut self, now: Moment, path: Path, reason: MoveReason, effects: &mut Vec<Effect>) {
        let old = self.path;
        let hold = if path.after_silence { Span::ZERO } else { self.hold(old.relay, path.relay) };
        self.path = path;
        self.double = None;
        if path.after_silence
            && self.connected
            && old.relay != path.relay
            && let Some(channel) = old.relay.and_then(|relay| self.channels.get(&relay))
            && channel.connected
        {
            let until = now.after((self.silence_limit(None) * 2).min(CIRCUIT_DOUBLE_MAX));
            self.double = Some(Double { path: old, until });
        }
        self.moved = now;
        if reason != MoveReason::First {
            self.moves += 1;
        }
        self.stranded = false;
        self.watch.patience = 0;
        self.quiet(now);
        if path.after_silence {
            self.stalls(reason);
        }
        effects.push(Effect::Take(Take { from: old.relay, path, reason, hold }));
    }

    /// Sends the probes that are due: a round over all channels, and quick ones.
    fn probe_due(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let round = (self.round_at <= now).then(|| {
            self.round += 1;
            // A fixed rhythm, but no catching up after a sleep.
            self.round_at = self.round_at.after(PROBE_INTERVAL).max(now.after(PROBE_INTERVAL / 2));
            self.round
        });
        let stranded = self.stranded();
        let relays: Vec<NodeId> = self.channels.keys().copied().collect();
        for relay in relays {
            let Some(channel) = self.channels.get_mut(&relay) else { continue };
            if stranded && self.watch.in_flight {
                channel.burst(now);
            }
            let quick = channel.burst_due(now);
            if !channel.connected || (round.is_none() && !quick) {
                continue;
            }
            let larger = round.is_some_and(|round| channel.larger_due(round)) && self.larger_bytes > self.packet_bytes;
            self.probe(now, relay, round, effects);
            if larger {
                self.probe_larger(now, relay, effects);
            }
        }
    }

    fn probe(&mut self, now: Moment, relay: NodeId, round: Option<u64>, effects: &mut Vec<Effect>) {
        let Some(channel) = self.channels.get_mut(&relay) else { return };
        self.sequence += 1;
        let bytes = channel.probe_bytes(self.packet_bytes, self.sequence);
        channel.sent(now, self.sequence, bytes, round, false);
        effects.push(Effect::Probe { relay, sequence: self.sequence, bytes });
    }

    fn probe_larger(&mut self, now: Moment, relay: NodeId, effects: &mut Vec<Effect>) {
        let Some(channel) = self.channels.get_mut(&relay) else { return };
        self.sequence += 1;
        channel.sent(now, self.sequence, self.larger_bytes, None, true);
        effects.push(Effect::Probe { relay, sequence: self.sequence, bytes: self.larger_bytes });
    }

    /// Tells which relays became candidates or ceased to be.
    fn tell(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        for (relay, channel) in &mut self.channels {
            let candidate = channel.candidate(now);
            if candidate != channel.told {
                channel.told = candidate;
                effects.push(match (candidate, channel.round_trip) {
                    (true, Some(round_trip)) => Effect::Proven { relay: *relay, round_trip },
                    _ => Effect::Silent { relay: *relay },
                });
            }
        }
    }
}
