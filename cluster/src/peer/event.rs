//! What happens to a pair of nodes, and what it asks of the world.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    behavior::Class,
    id::{ChannelToken, CircuitId, NodeId},
};

/// The two tokens of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Written into packets that leave.
    pub outgoing: ChannelToken,
    /// Found in packets that come.
    pub incoming: ChannelToken,
}

/// Where a circuit lies, and whether it has flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lie {
    /// The relay that carries it.
    pub relay: Option<NodeId>,
    /// Whether something is open on it.
    pub busy: bool,
    /// Whether its packets have the size that new circuits have.
    pub fits: bool,
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
    /// Which relays take the pair's new connections, where its circuits are and how large new ones' packets; comes when that
    /// has changed.
    Spread {
        /// The relays.
        takers: Vec<NodeId>,
        /// The circuits whose connection stands.
        lies: BTreeMap<CircuitId, Lie>,
        /// Whether new circuits have large packets.
        large: bool,
    },
    /// Nothing is open on a circuit that was to be closed, and nothing is opened there any more.
    Retired {
        /// The circuit.
        circuit: CircuitId,
    },
    /// Something was opened on it meanwhile: it stays.
    Kept {
        /// The circuit.
        circuit: CircuitId,
    },
    /// A timer has run out.
    Timer(Timer),
}

/// The timers of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// Ask this relay again for a channel of the circuit.
    Channel(NodeId, CircuitId),
    /// Dial again.
    Dial(CircuitId),
    /// The flows of a circuit without a relay have waited long enough.
    Stranded(CircuitId),
    /// A circuit that no relay needs was empty for long enough; at the other end, one that did not come to stand had no
    /// channel for as long.
    Surplus(CircuitId),
    /// Look again which relays lack a circuit.
    Spread,
}

/// What a pair asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Make room for a circuit in the socket.
    CircuitAdd {
        /// The circuit.
        circuit: CircuitId,
        /// Whether this end dials it with large packets.
        large: bool,
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
    /// New flows may use this circuit.
    Up {
        /// The circuit.
        circuit: CircuitId,
        /// Its connection.
        connection: u64,
    },
    /// It is gone.
    Down {
        /// The circuit.
        circuit: CircuitId,
        /// Why.
        reason: String,
    },
    /// Move an empty circuit as a whole to a relay that takes new connections and has none.
    Move {
        /// The circuit.
        circuit: CircuitId,
        /// The relay.
        relay: NodeId,
    },
    /// Agree with the other end to close a circuit that is surplus: [`Event::Retired`] or [`Event::Kept`] comes of it.
    Retire {
        /// The circuit.
        circuit: CircuitId,
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
            Self::Spread { .. } => "spread",
            Self::Retired { .. } => "retired",
            Self::Kept { .. } => "kept",
            Self::Timer(_) => "timer",
        }
    }

    fn class(&self) -> Class {
        // Offers and closures come from relays, one for each channel that this node has asked for or allowed: bounded
        // by the channels of a pair, and none of them can be missed.
        Class::Reserved
    }
}
