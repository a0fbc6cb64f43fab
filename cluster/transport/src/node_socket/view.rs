//! What a node's socket is told about circuits, and what it shows of them.

use std::{collections::BTreeSet, fmt, net::SocketAddr};

use postroad_cluster::{
    circuit::{ChannelView, MoveReason},
    id::{Challenge, CircuitId, Generation, NodeId},
    time::Span,
};

/// A circuit as one node names it. Ids are drawn by the dialling node, so that only peer and id together are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CircuitKey {
    /// The node at the other end.
    pub peer: NodeId,
    /// The circuit's id, the same at both ends.
    pub circuit: CircuitId,
}

/// A circuit to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitSpec {
    /// Its name.
    pub key: CircuitKey,
    /// This node.
    pub me: NodeId,
    /// The largest QUIC packet, without our header.
    pub packet_bytes: u32,
    /// A larger size for which its probes look, to be used by a later circuit; not used if not larger.
    pub larger_bytes: u32,
    /// Whether this circuit itself has the larger size once the dialling end says so.
    pub enlarges: bool,
}

/// A channel to add. `Debug` leaves out the tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct ChannelSpec {
    /// The relay.
    pub relay: NodeId,
    /// The relay's address, to which packets go and from which they must come.
    pub address: SocketAddr,
    /// The token that packets of this node leave with.
    pub token_out: u64,
    /// The token that packets for this node arrive with.
    pub token_in: u64,
    /// Relays that share a failure domain with this one: after its death they are chosen last.
    pub shares_domain_with: BTreeSet<NodeId>,
}

impl fmt::Debug for ChannelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelSpec")
            .field("relay", &self.relay)
            .field("address", &self.address)
            .field("shares_domain_with", &self.shares_domain_with)
            .finish_non_exhaustive()
    }
}

/// Why a request about a circuit was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitError {
    /// There is no such circuit.
    Unknown,
    /// There is such a circuit already.
    Taken,
    /// The node has as many circuits as it may have.
    TooMany,
    /// The circuit has as many channels as it may have.
    TooManyChannels,
    /// Another channel has this incoming token.
    TokenTaken,
    /// The relay has not proven itself, or carries the circuit already.
    NoCandidate,
}

impl CircuitError {
    /// A stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unknown => "CIRCUIT_UNKNOWN",
            Self::Taken => "CIRCUIT_TAKEN",
            Self::TooMany => "CIRCUIT_TOO_MANY",
            Self::TooManyChannels => "CIRCUIT_TOO_MANY_CHANNELS",
            Self::TokenTaken => "CIRCUIT_TOKEN_TAKEN",
            Self::NoCandidate => "CIRCUIT_NO_CANDIDATE",
        }
    }
}

impl fmt::Display for CircuitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "there is no such circuit; it may have been closed",
            Self::Taken => "the peer has a circuit of this id; draw another id",
            Self::TooMany => "this node has 4,096 circuits; close some first",
            Self::TooManyChannels => "the circuit has 16 channels; remove one first",
            Self::TokenTaken => "another channel has this token; draw another",
            Self::NoCandidate => {
                "no probe came back over that relay lately, or the circuit is on it; look at its status"
            }
        })
    }
}

impl std::error::Error for CircuitError {}

/// What happened to a circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CircuitEvent {
    /// It goes through another relay.
    Moved {
        /// The circuit.
        circuit: CircuitKey,
        /// The relay before.
        from: Option<NodeId>,
        /// The relay now.
        to: NodeId,
        /// The path's generation.
        generation: Generation,
        /// Why.
        reason: MoveReason,
        /// Datagrams sent again.
        replayed: usize,
    },
    /// A relay has proven itself: a probe came back.
    ChannelProven {
        /// The circuit.
        circuit: CircuitKey,
        /// The relay.
        relay: NodeId,
        /// There and back, relay and peer included.
        round_trip: Span,
    },
    /// A relay is no candidate any longer.
    ChannelSilent {
        /// The circuit.
        circuit: CircuitKey,
        /// The relay.
        relay: NodeId,
    },
    /// No relay carries the circuit.
    NoRelay {
        /// The circuit.
        circuit: CircuitKey,
    },
    /// Its flows go on after they stood still.
    Stalled {
        /// The circuit.
        circuit: CircuitKey,
        /// Why it left, or lost, the relay before.
        reason: MoveReason,
        /// From the last acknowledgement before that to the first one after it.
        span: Span,
    },
    /// A relay asks whether this node is where it was heard from; whoever has a session with it names the challenge
    /// there.
    Challenged {
        /// The relay's address, in its own family's form.
        from: SocketAddr,
        /// What is to be named.
        challenge: Challenge,
    },
    /// The circuit's own relay came back, and what the ring held was sent again.
    Resumed {
        /// The circuit.
        circuit: CircuitKey,
        /// The relay.
        relay: NodeId,
        /// Datagrams sent again.
        replayed: usize,
    },
}

/// What a circuit sent and received, in datagrams unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CircuitCounters {
    /// Sent for the first time.
    pub sent: u64,
    /// Bytes of them, without our header.
    pub sent_bytes: u64,
    /// Received.
    pub received: u64,
    /// Bytes of them, without our header.
    pub received_bytes: u64,
    /// Sent again after a silence.
    pub replayed: u64,
    /// Sent a second time over another relay during a silence.
    pub doubled: u64,
    /// Dropped, since there was no relay or no room.
    pub dropped: u64,
    /// Claims of a newer path whose MAC did not hold.
    pub forged: u64,
    /// Sent while older ones waited to go again: never, since the peer drops what comes too late.
    pub overtaken: u64,
}

/// The state of a circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitStatus {
    /// The circuit.
    pub circuit: CircuitKey,
    /// Its constant address.
    pub address: SocketAddr,
    /// The relay that carries it.
    pub relay: Option<NodeId>,
    /// The path's generation.
    pub generation: Generation,
    /// Whether its connection stands.
    pub connected: bool,
    /// Whether its relay is silent and there is no other.
    pub stranded: bool,
    /// Moves so far.
    pub moves: u64,
    /// Why it moved last.
    pub reason: Option<MoveReason>,
    /// The last choice in words and figures of that moment: `n7: 4.1 ms, next n9 9.8 ms`.
    pub choice: String,
    /// Its channels.
    pub channels: Vec<ChannelView>,
    /// The size of its packets.
    pub packet_bytes: u32,
    /// What every candidate's probe has carried: the size for a new circuit.
    pub proven_bytes: u32,
    /// What it sent and received.
    pub counters: CircuitCounters,
}

/// What a node's socket has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Packets of unknown tokens, wrong sources or no known type.
    pub unknown_packets: u64,
    /// Sends that failed other than by a full socket.
    pub send_errors: u64,
    /// Receives that failed.
    pub receive_errors: u64,
    /// Packets lost since a received buffer mixed more circuits than fit the queue.
    pub queue_full: u64,
    /// Events that nobody took.
    pub events_lost: u64,
}
