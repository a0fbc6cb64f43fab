//! One circuit of a pair: its channels over the relays that both nodes reach, and how far it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Effect, Peer, Timer, Tokens};
use crate::{
    behavior::Turn,
    id::{CircuitId, NodeId},
    limits::{CHANNEL_RETRY_MAX, CHANNEL_RETRY_MIN, CHANNELS_OF_A_CIRCUIT_MAX, CIRCUIT_SURPLUS},
    retry,
};

/// One circuit of the pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    /// The relay that it was opened for; none for the first one, which takes any.
    pub home: Option<NodeId>,
    /// Its channel there is still to come, before all others: so it begins where it is wanted.
    pub waits: bool,
    /// Whether it has large packets; at the end that is dialled, its socket knows.
    pub large: bool,
    /// Channels by relay.
    pub channels: BTreeMap<NodeId, Channel>,
    /// A dial is under way.
    pub dialling: bool,
    /// Failed dials in a row.
    pub failures: u32,
    /// Its connection, once it stands.
    pub connection: Option<u64>,
    /// No relay carries it.
    pub stranded: bool,
    /// No relay needs it and it is empty: it is closed unless that changes.
    pub surplus: bool,
    /// It is being closed: nothing opens on it any more.
    pub closing: bool,
}

/// The channel of a circuit over one relay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// How far it is.
    pub phase: ChannelPhase,
    /// The socket has it.
    pub added: bool,
    /// Refusals in a row.
    pub refusals: u32,
    /// The last refusal, for people.
    pub refusal: Option<String>,
}

/// How far a channel is, on the dialling side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChannelPhase {
    /// Not asked for.
    #[default]
    Idle,
    /// The relay was asked.
    Asked,
    /// Open.
    Open,
    /// Until the retry timer.
    Waiting,
}

impl Circuit {
    /// Whether new flows may use it.
    #[must_use]
    pub const fn serves(&self) -> bool {
        self.connection.is_some() && !self.closing
    }

    pub(super) fn added(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.channels.iter().filter(|(_, channel)| channel.added).map(|(relay, _)| *relay)
    }

    fn wants(&self, relay: NodeId) -> bool {
        if self.waits {
            return self.home == Some(relay);
        }
        self.channels.contains_key(&relay) || self.channels.len() < CHANNELS_OF_A_CIRCUIT_MAX
    }
}

impl Peer {
    /// Asks a relay for a channel of a circuit, if that is to have one there.
    pub(super) fn ask(&mut self, relay: NodeId, circuit: CircuitId, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else { return };
        if self.relays.contains(&relay) && known.wants(relay) {
            known.channels.entry(relay).or_default().phase = ChannelPhase::Asked;
            effects.push(Effect::ChannelOpen { relay, circuit });
        }
    }

    /// Asks every relay where the circuit has none yet.
    pub(super) fn ask_all(&mut self, circuit: CircuitId, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get(&circuit) else { return };
        let missing: Vec<NodeId> =
            self.relays.iter().filter(|relay| !known.channels.contains_key(relay)).copied().collect();
        for relay in missing {
            self.ask(relay, circuit, effects);
        }
    }

    pub(super) fn ask_later(
        &mut self,
        turn: Turn,
        relay: NodeId,
        circuit: CircuitId,
        reason: String,
        effects: &mut Vec<Effect>,
    ) {
        let known = self.circuits.get_mut(&circuit).filter(|_| self.relays.contains(&relay));
        let Some(channel) = known.and_then(|known| known.channels.get_mut(&relay)) else { return };
        channel.refusals = channel.refusals.saturating_add(1);
        channel.refusal = Some(reason);
        channel.phase = ChannelPhase::Waiting;
        let wait = retry::delay(&turn, channel.refusals, CHANNEL_RETRY_MIN, CHANNEL_RETRY_MAX);
        let timer = Timer::Channel(relay, circuit);
        effects.push(Effect::Start { timer, after_ms: wait.as_millis() as u64 });
    }

    pub(super) fn channel_add(&mut self, relay: NodeId, circuit: CircuitId, tokens: Tokens, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else { return };
        let open = Channel { phase: ChannelPhase::Open, added: true, ..Channel::default() };
        let before = known.channels.insert(relay, open);
        if before.is_some_and(|before| before.added) {
            effects.push(Effect::ChannelRemove { relay, circuit });
        }
        effects.push(Effect::ChannelAdd { relay, circuit, tokens });
    }

    /// Takes a channel from the socket. Its place stays, so that it is asked for again; a circuit of the other end that has
    /// none left and does not stand is given up there.
    pub(super) fn channel_remove(&mut self, relay: NodeId, circuit: CircuitId, effects: &mut Vec<Effect>) {
        let channel = self.circuits.get_mut(&circuit).and_then(|known| known.channels.get_mut(&relay));
        let Some(channel) = channel.filter(|channel| channel.added) else { return };
        channel.added = false;
        effects.push(Effect::ChannelRemove { relay, circuit });
        let dials = self.dials();
        let known = self.circuits.get(&circuit).filter(|known| !dials && known.connection.is_none());
        if known.is_some_and(|known| known.added().next().is_none()) {
            let timer = Timer::Surplus(circuit);
            effects.push(Effect::Start { timer, after_ms: CIRCUIT_SURPLUS.as_millis() as u64 });
        }
    }
}
