//! Messages of a circuit (`postroad-flow/1`): the first frame of a stream, and the codes that end one early.

use serde::{Deserialize, Serialize};

use crate::{
    command::code,
    grant::SignedGrant,
    id::{Generation, LinkId, TunnelId},
};

/// The first frame of every stream; the target node verifies it before it reads on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFrame {
    /// The tunnel, drawn by the consumer.
    pub tunnel: TunnelId,
    /// The link.
    pub link: LinkId,
    /// The generation of its route.
    pub generation: Generation,
    /// The consumer's grant.
    pub grant: SignedGrant,
}

/// The first frame of a trial's stream, which the target node answers itself. Its version tells it from an open frame; one
/// that does not know it refuses the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialFrame {
    /// As for any tunnel: a trial needs the same grant and the same admission.
    pub open: OpenFrame,
    /// What the target node does.
    pub kind: TrialKind,
}

/// What the target node does with a trial's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialKind {
    /// Sends them back as they come.
    Echo,
    /// Counts them, and says at their end how many came.
    Sink,
}

/// The first frame of the stream by which the dialling end closes a circuit that is surplus: it opens nothing there any
/// more. The other end ends that stream once it has nothing open there either, and opens nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosingFrame;

/// Why a stream was reset, as the QUIC error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum ResetCode {
    /// The socket at the other end was reset.
    PeerReset = 1,
    /// The open frame was refused: grant, route, peer or time.
    NotGranted = 2,
    /// No relay vouched for the tunnel in time.
    NotAdmitted = 3,
    /// The target did not take the connection.
    TargetRefused = 4,
    /// The route was revoked.
    Revoked = 5,
    /// The node stops.
    Stopping = 6,
    /// Too many streams wait for admission.
    TooMany = 7,
    /// The consumer takes its tunnel back, and asks whether anything was connected for it.
    Withdrawn = 8,
    /// The answer to that: nothing was connected for this tunnel, and nothing will be.
    NotConnected = 9,
    /// This circuit is closing: nothing was connected for this tunnel, and nothing will be.
    Closing = 10,
}

impl ResetCode {
    /// The code of a number, unknown ones as [`ResetCode::PeerReset`].
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        match number {
            2 => Self::NotGranted,
            3 => Self::NotAdmitted,
            4 => Self::TargetRefused,
            5 => Self::Revoked,
            6 => Self::Stopping,
            7 => Self::TooMany,
            8 => Self::Withdrawn,
            9 => Self::NotConnected,
            10 => Self::Closing,
            _ => Self::PeerReset,
        }
    }

    /// The stable code of the refusal, for figures.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::PeerReset => code::TUNNEL_RESET,
            Self::NotGranted => code::TUNNEL_NOT_GRANTED,
            Self::NotAdmitted => code::TUNNEL_NOT_ADMITTED,
            Self::TargetRefused => code::TARGET_REFUSED,
            Self::Revoked => code::ROUTE_REVOKED,
            Self::Stopping => code::NODE_STOPPING,
            Self::TooMany => code::TOO_MANY,
            Self::Withdrawn | Self::NotConnected => code::TUNNEL_WITHDRAWN,
            Self::Closing => code::CIRCUIT_CLOSING,
        }
    }

    /// The reason in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::PeerReset => "the other end reset the connection",
            Self::NotGranted => "the grant does not allow this tunnel",
            Self::NotAdmitted => "no relay vouched for the tunnel in time",
            Self::TargetRefused => "the target did not take the connection",
            Self::Revoked => "the link was deleted or changed",
            Self::Stopping => "the node stops",
            Self::TooMany => "too many tunnels wait for admission",
            Self::Withdrawn => "the consumer has taken its tunnel back",
            Self::NotConnected => "nothing was connected",
            Self::Closing => "the circuit is closing",
        }
    }

    /// Whether the target says by it that nothing is and will be connected for the tunnel: the only words after which the
    /// same connection of an application may be opened on another circuit.
    #[must_use]
    pub const fn frees(self) -> bool {
        matches!(self, Self::NotConnected | Self::Closing)
    }
}
