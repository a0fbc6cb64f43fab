//! What happens to a circuit and what it asks for: its events, effects and views.

use core::fmt;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Generation, NodeId},
    packet_size::Carries,
    time::Span,
};

/// The way that a circuit's packets take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The relay; none before the first channel is open or after the last was removed.
    pub relay: Option<NodeId>,
    /// How often the path was chosen anew since the circuit's key is there.
    pub generation: Generation,
    /// Whether the move to this path ended a silence, so that both ends send again what it may have swallowed.
    pub after_silence: bool,
}

/// Why a circuit moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveReason {
    /// The first channel was opened.
    First,
    /// Nothing was acknowledged for three round trips.
    Silence,
    /// Probes of the circuit's relay did not come back.
    Unanswered,
    /// The session to the relay ended.
    SessionLost,
    /// The channel was removed.
    Removed,
    /// A relay came back after there was none.
    Returned,
    /// Another relay is nearer by 30 % and 5 ms.
    Nearer,
    /// The relay drains.
    Draining,
    /// The relay does not carry packets of the circuit's size.
    TooSmall,
    /// The assignment asked for it.
    Assigned,
    /// The other end moved.
    Followed,
    /// Probes come back over the circuit's relay, and nothing else does.
    Selective,
}

impl MoveReason {
    /// Whether packets may have been swallowed before the move.
    #[must_use]
    pub const fn after_silence(self) -> bool {
        matches!(
            self,
            Self::Silence | Self::Unanswered | Self::SessionLost | Self::Removed | Self::Returned | Self::Selective
        )
    }

    /// The reason in one word, for figures.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Silence => "silence",
            Self::Unanswered => "unanswered",
            Self::Selective => "selective",
            Self::SessionLost => "session-lost",
            Self::Removed => "removed",
            Self::Returned => "returned",
            Self::Nearer => "nearer",
            Self::Draining => "draining",
            Self::TooSmall => "too-small",
            Self::Assigned => "assigned",
            Self::Followed => "followed",
        }
    }

    /// The reason in a few words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::First => "first channel",
            Self::Silence => "nothing was acknowledged",
            Self::Unanswered => "its probes did not come back",
            Self::Selective => "it carried probes and no data",
            Self::SessionLost => "the session to it ended",
            Self::Removed => "its channel was removed",
            Self::Returned => "a relay came back",
            Self::Nearer => "another relay is nearer",
            Self::Draining => "it drains",
            Self::TooSmall => "it does not carry packets of this size",
            Self::Assigned => "the assignment changed",
            Self::Followed => "the other end moved",
        }
    }
}

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// What the transport counted since the circuit began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Whether something that must be acknowledged is under way.
    pub in_flight: bool,
    /// Packets acknowledged so far: only that it grows matters.
    pub acknowledged: u64,
    /// Frames sent so far that must be acknowledged, those that were sent again too.
    pub sent: u64,
    /// The round trip that QUIC measures; none before the first.
    pub round_trip: Option<Span>,
}

/// What happens to a circuit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A channel through `relay` is open at both ends, the first time or again.
    ChannelAdded {
        /// The relay.
        relay: NodeId,
        /// Other relays that share a failure domain with it.
        shares: BTreeSet<NodeId>,
    },
    /// The channel through `relay` is closed.
    ChannelRemoved {
        /// The relay.
        relay: NodeId,
    },
    /// The session to `relay` ended, so that its channel is dead until it is opened again.
    SessionLost {
        /// The relay.
        relay: NodeId,
    },
    /// Whether `relay` is to be left (it drains) and used only as a last resort.
    Avoided {
        /// The relay.
        relay: NodeId,
        /// Whether it is to be left.
        avoided: bool,
    },
    /// The circuit's key is there: from now on moves are authenticated, and both ends may choose.
    Connected,
    /// The dialling end says that the circuit's packets have this size, which it may before there is a key.
    Sized {
        /// The size in bytes, without our header.
        packet_bytes: u32,
    },
    /// Time has passed.
    Tick(Figures),
    /// A probe came back.
    Echoed {
        /// The relay that carried it both ways.
        relay: NodeId,
        /// Which probe.
        sequence: u64,
    },
    /// The other end sends by this path, authenticated where its generation is not 0.
    Heard {
        /// Its path.
        path: Path,
    },
    /// Moves to `relay` if that is a candidate.
    MoveTo {
        /// The relay.
        relay: NodeId,
        /// Why.
        reason: MoveReason,
    },
}

/// A change of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Take {
    /// The relay before.
    pub from: Option<NodeId>,
    /// The path from now on. After a silence what the ring holds is sent again over it, before anything new.
    pub path: Path,
    /// Why.
    pub reason: MoveReason,
    /// How long new packets wait, so that they do not overtake those of a slower way.
    pub hold: Span,
}

/// What a circuit asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Send a probe.
    Probe {
        /// Over which relay.
        relay: NodeId,
        /// Which one; the echo repeats it.
        sequence: u64,
        /// Its size in bytes, without our header.
        bytes: u32,
    },
    /// Send by another path from now on.
    Take(Take),
    /// The circuit's own relay is back: send again what the ring holds.
    Resend {
        /// The relay.
        relay: NodeId,
    },
    /// A relay became a candidate.
    Proven {
        /// The relay.
        relay: NodeId,
        /// There and back, relay and peer included.
        round_trip: Span,
    },
    /// A relay is no candidate any longer.
    Silent {
        /// The relay.
        relay: NodeId,
    },
    /// No relay carries the circuit; what is sent may get lost.
    NoRelay,
    /// What was in flight while the circuit left a silent relay, or had none, is acknowledged again.
    Stalled {
        /// Why it left, or lost, that relay.
        reason: MoveReason,
        /// Since the last acknowledgement before that.
        span: Span,
    },
}

/// A channel as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelView {
    /// The relay.
    pub relay: NodeId,
    /// Whether it may carry the circuit now.
    pub candidate: bool,
    /// Whether the session to it is up.
    pub connected: bool,
    /// Whether it is a last resort because it drains.
    pub avoided: bool,
    /// The smoothed round trip of probes.
    pub round_trip: Option<Span>,
    /// How long ago the newest probe that came back was sent.
    pub proven_age: Option<Span>,
    /// The largest packet carried there and back, in bytes without our header.
    pub carried_bytes: u32,
    /// Whether it is a last resort because it does not carry packets of the circuit's size.
    pub too_small: bool,
    /// Whether it carries packets of the larger size.
    pub larger: Carries,
}
