//! One pair of nodes: the circuit between this node and a peer, and its channels over the relays that both reach.
//!
//! The node with the lower number dials and draws the circuit's number; the other takes what relays offer it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Class, Turn},
    id::{ChannelToken, CircuitId, NodeId},
    limits::{CHANNEL_RETRY_MAX, CHANNEL_RETRY_MIN, CIRCUITS_OF_A_PAIR_MAX, DIAL_RETRY_MAX, DIAL_RETRY_MIN},
    retry,
};

/// The pair's state on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// This node.
    pub me: NodeId,
    /// The node at the other end.
    pub peer: NodeId,
    /// Relays with which this node has a session, and how far this pair's channel is there.
    pub relays: BTreeMap<NodeId, Channel>,
    /// Circuits by number.
    pub circuits: BTreeMap<CircuitId, Circuit>,
    /// The circuit that new flows use.
    pub current: Option<CircuitId>,
    /// Failed dials in a row.
    pub failures: u32,
    /// Why the last circuit or dial ended, for people.
    pub last_end: Option<String>,
}

/// The channel of this pair over one relay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// How far it is.
    pub phase: ChannelPhase,
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

/// One circuit of the pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    /// Relays over which it has a channel.
    pub channels: BTreeSet<NodeId>,
    /// A dial is under way.
    pub dialling: bool,
    /// Its connection, once it stands.
    pub connection: Option<u64>,
    /// No relay carries it.
    pub stranded: bool,
}

/// The two tokens of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Written into packets that leave.
    pub outgoing: ChannelToken,
    /// Found in packets that come.
    pub incoming: ChannelToken,
}

/// What happens to a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The session with a relay stands.
    RelayUp {
        /// The relay.
        relay: NodeId,
    },
    /// It ended, and every channel through it.
    RelayDown {
        /// The relay.
        relay: NodeId,
    },
    /// A relay opened the channel that was asked for.
    ChannelOpened {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
        /// The channel's tokens.
        tokens: Tokens,
    },
    /// A relay refused it, or did not answer.
    ChannelRefused {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
        /// Why.
        reason: String,
    },
    /// The peer opened a channel; a relay offers it.
    ChannelOffered {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
        /// The channel's tokens.
        tokens: Tokens,
    },
    /// A relay closed a channel.
    ChannelClosed {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
        /// Why.
        reason: String,
    },
    /// The dial succeeded, or the peer's dial was accepted.
    Connected {
        /// The circuit.
        circuit: CircuitId,
        /// The connection.
        connection: u64,
    },
    /// The dial failed.
    DialFailed {
        /// The circuit.
        circuit: CircuitId,
        /// Why.
        reason: String,
    },
    /// A circuit's connection ended.
    Closed {
        /// The circuit.
        circuit: CircuitId,
        /// The connection.
        connection: u64,
        /// Why.
        reason: String,
    },
    /// No relay carries a circuit.
    Stranded {
        /// The circuit.
        circuit: CircuitId,
        /// How long its flows wait for one, in milliseconds.
        wait_ms: u64,
    },
    /// A relay carries it again.
    Carried {
        /// The circuit.
        circuit: CircuitId,
    },
    /// A timer has run out.
    Timer(Timer),
}

/// The timers of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// Ask this relay again for a channel.
    Channel(NodeId),
    /// Dial again.
    Dial,
    /// The flows of a circuit without a relay have waited long enough.
    Stranded(CircuitId),
}

/// What a pair asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Make room for a circuit in the socket.
    CircuitAdd {
        /// The circuit.
        circuit: CircuitId,
    },
    /// Close its connection and forget it.
    CircuitRemove {
        /// The circuit.
        circuit: CircuitId,
        /// Why.
        reason: String,
    },
    /// Ask a relay for a channel.
    ChannelOpen {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
    },
    /// Tell a relay that a channel is not needed any more.
    ChannelClose {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
    },
    /// Give the socket a channel.
    ChannelAdd {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
        /// Its tokens.
        tokens: Tokens,
    },
    /// Take it from the socket.
    ChannelRemove {
        /// The relay.
        relay: NodeId,
        /// The circuit.
        circuit: CircuitId,
    },
    /// Dial the peer through the circuit.
    Dial {
        /// The circuit.
        circuit: CircuitId,
    },
    /// New flows use this circuit.
    Up {
        /// The circuit.
        circuit: CircuitId,
        /// Its connection.
        connection: u64,
    },
    /// There is no circuit for new flows.
    Down {
        /// Why.
        reason: String,
    },
    /// Start a timer, in place of an earlier one of the same name.
    Start {
        /// Which.
        timer: Timer,
        /// When it runs out.
        after_ms: u64,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::RelayUp { .. } => "relay-up",
            Self::RelayDown { .. } => "relay-down",
            Self::ChannelOpened { .. } => "channel-opened",
            Self::ChannelRefused { .. } => "channel-refused",
            Self::ChannelOffered { .. } => "channel-offered",
            Self::ChannelClosed { .. } => "channel-closed",
            Self::Connected { .. } => "connected",
            Self::DialFailed { .. } => "dial-failed",
            Self::Closed { .. } => "closed",
            Self::Stranded { .. } => "stranded",
            Self::Carried { .. } => "carried",
            Self::Timer(_) => "timer",
        }
    }

    fn class(&self) -> Class {
        // Offers and closures come from relays, one for each channel that this node has asked for or allowed: bounded
        // by the channels of a pair, and none of them can be missed.
        Class::Reserved
    }
}

impl Peer {
    /// A pair that has nothing yet.
    #[must_use]
    pub const fn new(me: NodeId, peer: NodeId) -> Self {
        Self {
            me,
            peer,
            relays: BTreeMap::new(),
            circuits: BTreeMap::new(),
            current: None,
            failures: 0,
            last_end: None,
        }
    }

    /// Whether this node dials.
    #[must_use]
    pub fn dials(&self) -> bool {
        self.me < self.peer
    }

    /// The circuit that this side builds or uses; the dialling side has one at a time.
    fn own_circuit(&mut self, turn: Turn, effects: &mut Vec<Effect>) -> CircuitId {
        if let Some(circuit) = self.circuits.keys().next() {
            return *circuit;
        }
        let circuit = CircuitId(turn.draw(1, u64::MAX));
        self.circuits.insert(circuit, Circuit::default());
        effects.push(Effect::CircuitAdd { circuit });
        circuit
    }

    fn ask(&mut self, turn: Turn, relay: NodeId, effects: &mut Vec<Effect>) {
        if !self.dials() {
            return;
        }
        let circuit = self.own_circuit(turn, effects);
        if let Some(channel) = self.relays.get_mut(&relay) {
            channel.phase = ChannelPhase::Asked;
            effects.push(Effect::ChannelOpen { relay, circuit });
        }
    }

    fn ask_later(&mut self, turn: Turn, relay: NodeId, reason: String, effects: &mut Vec<Effect>) {
        let Some(channel) = self.relays.get_mut(&relay) else { return };
        channel.refusals = channel.refusals.saturating_add(1);
        channel.refusal = Some(reason);
        channel.phase = ChannelPhase::Waiting;
        let wait = retry::delay(&turn, channel.refusals, CHANNEL_RETRY_MIN, CHANNEL_RETRY_MAX);
        effects.push(Effect::Start { timer: Timer::Channel(relay), after_ms: wait.as_millis() as u64 });
    }

    fn channel_add(&mut self, relay: NodeId, circuit: CircuitId, tokens: Tokens, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else { return };
        if !known.channels.insert(relay) {
            effects.push(Effect::ChannelRemove { relay, circuit });
        }
        effects.push(Effect::ChannelAdd { relay, circuit, tokens });
    }

    fn channel_remove(&mut self, relay: NodeId, circuit: CircuitId, effects: &mut Vec<Effect>) {
        if let Some(known) = self.circuits.get_mut(&circuit)
            && known.channels.remove(&relay)
        {
            effects.push(Effect::ChannelRemove { relay, circuit });
        }
    }

    fn dial(&mut self, effects: &mut Vec<Effect>) {
        for (circuit, known) in &mut self.circuits {
            if known.connection.is_none() && !known.dialling && !known.channels.is_empty() {
                known.dialling = true;
                effects.push(Effect::Dial { circuit: *circuit });
            }
        }
    }

    fn offered(&mut self, relay: NodeId, circuit: CircuitId, tokens: Tokens, effects: &mut Vec<Effect>) {
        // The relay may be ahead of the news that its session stands; with the session, the channel goes again.
        if self.dials() {
            return;
        }
        if !self.circuits.contains_key(&circuit) {
            let spare = self.circuits.keys().find(|known| Some(**known) != self.current).copied();
            if self.circuits.len() >= CIRCUITS_OF_A_PAIR_MAX
                && let Some(spare) = spare
            {
                self.remove(spare, "the peer opened another circuit", effects);
            }
            self.circuits.insert(circuit, Circuit::default());
            effects.push(Effect::CircuitAdd { circuit });
        }
        self.channel_add(relay, circuit, tokens, effects);
    }

    fn remove(&mut self, circuit: CircuitId, reason: &str, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.remove(&circuit) else { return };
        if self.dials() {
            for relay in &known.channels {
                effects.push(Effect::ChannelClose { relay: *relay, circuit });
            }
        }
        effects.push(Effect::CircuitRemove { circuit, reason: reason.to_owned() });
        if self.current == Some(circuit) {
            self.current = None;
            effects.push(Effect::Down { reason: reason.to_owned() });
        }
    }

    fn connected(&mut self, circuit: CircuitId, connection: u64, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else {
            effects.push(Effect::CircuitRemove { circuit, reason: "not wanted any more".to_owned() });
            return;
        };
        known.dialling = false;
        known.connection = Some(connection);
        self.failures = 0;
        self.current = Some(circuit);
        effects.push(Effect::Up { circuit, connection });
        let older: Vec<CircuitId> = self.circuits.keys().filter(|other| **other != circuit).copied().collect();
        for older in older {
            self.remove(older, "the peer opened another circuit", effects);
        }
    }

    fn closed(&mut self, turn: Turn, circuit: CircuitId, reason: &str, effects: &mut Vec<Effect>) {
        self.last_end = Some(reason.to_owned());
        if let Some(known) = self.circuits.get(&circuit).filter(|_| !self.dials()) {
            // The dialling end may go on with this circuit: it must hear that its channels lead nowhere any more.
            for relay in &known.channels {
                effects.push(Effect::ChannelClose { relay: *relay, circuit });
            }
        }
        self.remove(circuit, reason, effects);
        if self.dials() {
            let relays: Vec<NodeId> = self.relays.keys().copied().collect();
            for relay in relays {
                self.ask(turn, relay, effects);
            }
        }
    }
}

impl Behavior for Peer {
    const NOUN: &'static str = "peer";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::RelayUp { relay } => {
                self.relays.insert(relay, Channel::default());
                self.ask(turn, relay, effects);
            }
            Event::RelayDown { relay } => {
                self.relays.remove(&relay);
                let circuits: Vec<CircuitId> = self.circuits.keys().copied().collect();
                for circuit in circuits {
                    self.channel_remove(relay, circuit, effects);
                }
            }
            Event::ChannelOpened { relay, circuit, tokens } => {
                if !self.circuits.contains_key(&circuit) {
                    effects.push(Effect::ChannelClose { relay, circuit });
                } else if let Some(channel) = self.relays.get_mut(&relay) {
                    *channel = Channel { phase: ChannelPhase::Open, ..Channel::default() };
                    self.channel_add(relay, circuit, tokens, effects);
                    self.dial(effects);
                }
            }
            Event::ChannelRefused { relay, circuit, reason } => {
                if self.circuits.contains_key(&circuit) {
                    self.ask_later(turn, relay, reason, effects);
                }
            }
            Event::ChannelOffered { relay, circuit, tokens } => self.offered(relay, circuit, tokens, effects),
            Event::ChannelClosed { relay, circuit, reason } => {
                self.channel_remove(relay, circuit, effects);
                if self.dials() && self.circuits.contains_key(&circuit) {
                    self.ask_later(turn, relay, reason, effects);
                }
            }
            Event::Connected { circuit, connection } => self.connected(circuit, connection, effects),
            Event::DialFailed { circuit, reason } => {
                let Some(known) = self.circuits.get_mut(&circuit) else { return };
                known.dialling = false;
                self.last_end = Some(reason);
                self.failures = self.failures.saturating_add(1);
                let wait = retry::delay(&turn, self.failures, DIAL_RETRY_MIN, DIAL_RETRY_MAX);
                effects.push(Effect::Start { timer: Timer::Dial, after_ms: wait.as_millis() as u64 });
            }
            Event::Closed { circuit, connection, reason } => {
                if self.circuits.get(&circuit).is_some_and(|known| known.connection == Some(connection)) {
                    self.closed(turn, circuit, &reason, effects);
                }
            }
            Event::Timer(Timer::Channel(relay)) => {
                if self.relays.get(&relay).is_some_and(|channel| channel.phase == ChannelPhase::Waiting) {
                    self.ask(turn, relay, effects);
                }
            }
            Event::Stranded { circuit, wait_ms } => {
                if let Some(known) = self.circuits.get_mut(&circuit).filter(|known| !known.stranded) {
                    known.stranded = true;
                    effects.push(Effect::Start { timer: Timer::Stranded(circuit), after_ms: wait_ms });
                }
            }
            Event::Carried { circuit } => {
                if let Some(known) = self.circuits.get_mut(&circuit) {
                    known.stranded = false;
                }
            }
            Event::Timer(Timer::Stranded(circuit)) => {
                if self.circuits.get(&circuit).is_some_and(|known| known.stranded) {
                    self.closed(turn, circuit, "no relay carried it for as long as flows wait", effects);
                }
            }
            Event::Timer(Timer::Dial) => self.dial(effects),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: NodeId = NodeId(9);
    const TOKENS: Tokens = Tokens { outgoing: ChannelToken(1), incoming: ChannelToken(2) };

    fn on(peer: &mut Peer, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        peer.on(Turn { chance: 77, ..Turn::default() }, event, &mut effects);
        effects
    }

    fn connected() -> (Peer, CircuitId) {
        let mut peer = Peer::new(NodeId(1), NodeId(2));
        let effects = on(&mut peer, Event::RelayUp { relay: RELAY });
        let [Effect::CircuitAdd { circuit }, Effect::ChannelOpen { relay: RELAY, .. }] = effects[..] else {
            panic!("{effects:?}")
        };
        let effects = on(&mut peer, Event::ChannelOpened { relay: RELAY, circuit, tokens: TOKENS });
        assert_eq!(effects, [Effect::ChannelAdd { relay: RELAY, circuit, tokens: TOKENS }, Effect::Dial { circuit }]);
        let effects = on(&mut peer, Event::Connected { circuit, connection: 5 });
        assert_eq!(effects, [Effect::Up { circuit, connection: 5 }]);
        (peer, circuit)
    }

    #[test]
    fn the_lower_node_opens_channels_and_dials_once() {
        let (mut peer, circuit) = connected();
        // RP-2: a second relay becomes a second channel of the same circuit.
        let effects = on(&mut peer, Event::RelayUp { relay: NodeId(8) });
        assert_eq!(effects, [Effect::ChannelOpen { relay: NodeId(8), circuit }]);
        let effects = on(&mut peer, Event::ChannelOpened { relay: NodeId(8), circuit, tokens: TOKENS });
        assert_eq!(effects, [Effect::ChannelAdd { relay: NodeId(8), circuit, tokens: TOKENS }]);
    }

    // RP-1: losing a relay leaves the circuit as it is.
    #[test]
    fn a_lost_relay_takes_its_channel_and_nothing_else() {
        let (mut peer, circuit) = connected();
        let effects = on(&mut peer, Event::RelayDown { relay: RELAY });
        assert_eq!(effects, [Effect::ChannelRemove { relay: RELAY, circuit }]);
        assert_eq!(peer.current, Some(circuit));
        let effects = on(&mut peer, Event::RelayUp { relay: RELAY });
        assert_eq!(effects, [Effect::ChannelOpen { relay: RELAY, circuit }]);
    }

    #[test]
    fn a_closed_circuit_is_opened_anew_under_another_number() {
        let (mut peer, circuit) = connected();
        let mut effects = Vec::new();
        let event = Event::Closed { circuit, connection: 5, reason: "timed out".into() };
        peer.on(Turn { chance: 78, ..Turn::default() }, event, &mut effects);
        assert!(matches!(effects[0], Effect::ChannelClose { .. }), "{effects:?}");
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Down { .. })));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::CircuitAdd { circuit: new } if *new != circuit)));
        let late = on(&mut peer, Event::ChannelOpened { relay: RELAY, circuit, tokens: TOKENS });
        assert_eq!(late, [Effect::ChannelClose { relay: RELAY, circuit }]);
    }

    #[test]
    fn the_higher_node_takes_offers_and_keeps_the_newest_circuit() {
        let mut peer = Peer::new(NodeId(2), NodeId(1));
        assert_eq!(on(&mut peer, Event::RelayUp { relay: RELAY }), []);
        let offer = |circuit| Event::ChannelOffered { relay: RELAY, circuit: CircuitId(circuit), tokens: TOKENS };
        assert!(matches!(on(&mut peer, offer(1))[..], [Effect::CircuitAdd { .. }, Effect::ChannelAdd { .. }]));
        on(&mut peer, Event::Connected { circuit: CircuitId(1), connection: 5 });
        on(&mut peer, offer(2));
        assert_eq!(peer.current, Some(CircuitId(1)), "the old one serves until the new one stands");
        let effects = on(&mut peer, Event::Connected { circuit: CircuitId(2), connection: 6 });
        assert!(matches!(
            effects[..],
            [Effect::Up { circuit: CircuitId(2), .. }, Effect::CircuitRemove { circuit: CircuitId(1), .. }]
        ));
        for number in 3..20 {
            on(&mut peer, offer(number));
            assert!(peer.circuits.len() <= CIRCUITS_OF_A_PAIR_MAX);
            assert_eq!(peer.current, Some(CircuitId(2)));
        }
    }

    // RP-1: with no relay to be reached, flows wait, then they end.
    #[test]
    fn a_circuit_without_a_relay_ends_after_the_wait_and_not_if_one_came_back() {
        let (mut peer, circuit) = connected();
        let wait = [Effect::Start { timer: Timer::Stranded(circuit), after_ms: 60_000 }];
        assert_eq!(on(&mut peer, Event::Stranded { circuit, wait_ms: 60_000 }), wait);
        assert_eq!(on(&mut peer, Event::Stranded { circuit, wait_ms: 60_000 }), [], "the first wait counts");
        on(&mut peer, Event::Carried { circuit });
        assert_eq!(on(&mut peer, Event::Timer(Timer::Stranded(circuit))), []);
        assert_eq!(on(&mut peer, Event::Stranded { circuit, wait_ms: 60_000 }), wait, "and starts anew");
        let effects = on(&mut peer, Event::Timer(Timer::Stranded(circuit)));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::CircuitRemove { .. })), "{effects:?}");
    }

    // A dial that was given up at its beginning leaves a connection here that is reset later.
    #[test]
    fn the_higher_node_tells_relays_of_a_circuit_that_ended_here_alone() {
        let mut peer = Peer::new(NodeId(2), NodeId(1));
        on(&mut peer, Event::RelayUp { relay: RELAY });
        let circuit = CircuitId(1);
        on(&mut peer, Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS });
        on(&mut peer, Event::Connected { circuit, connection: 5 });
        let effects = on(&mut peer, Event::Closed { circuit, connection: 5, reason: "reset".into() });
        assert_eq!(effects[0], Effect::ChannelClose { relay: RELAY, circuit });
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Down { .. })));
        let offer = Event::ChannelOffered { relay: RELAY, circuit, tokens: TOKENS };
        assert!(matches!(on(&mut peer, offer)[..], [Effect::CircuitAdd { .. }, Effect::ChannelAdd { .. }]));
    }

    #[test]
    fn an_offer_that_is_ahead_of_its_session_is_taken() {
        let mut peer = Peer::new(NodeId(2), NodeId(1));
        let offer = Event::ChannelOffered { relay: RELAY, circuit: CircuitId(1), tokens: TOKENS };
        assert!(matches!(on(&mut peer, offer)[..], [Effect::CircuitAdd { .. }, Effect::ChannelAdd { .. }]));
        assert_eq!(on(&mut peer, Event::RelayUp { relay: RELAY }), []);
        let removed = [Effect::ChannelRemove { relay: RELAY, circuit: CircuitId(1) }];
        assert_eq!(on(&mut peer, Event::RelayDown { relay: RELAY }), removed);
    }

    #[test]
    fn a_refused_channel_is_asked_for_again() {
        let mut peer = Peer::new(NodeId(1), NodeId(2));
        on(&mut peer, Event::RelayUp { relay: RELAY });
        let circuit = *peer.circuits.keys().next().unwrap();
        let effects = on(&mut peer, Event::ChannelRefused { relay: RELAY, circuit, reason: "not connected".into() });
        assert!(matches!(effects[..], [Effect::Start { timer: Timer::Channel(RELAY), .. }]));
        assert_eq!(on(&mut peer, Event::Timer(Timer::Channel(RELAY))), [Effect::ChannelOpen { relay: RELAY, circuit }]);
        assert_eq!(on(&mut peer, Event::Timer(Timer::Channel(RELAY))), [], "it is under way");
    }
}
