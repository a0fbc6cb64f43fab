//! What happens to the relay service, and what it asks of the world.

use serde::{Deserialize, Serialize};

use super::ChannelEnd;
use crate::{
    behavior::{Class, ReplyId},
    command::PublicKeyBytes,
    grant::{Grant, SignedGrant},
    id::{ChannelToken, Name, NodeId, Version},
    revocation::Revocations,
    snapshot::{Accepted, Policy},
    time::WallTime,
    verified::Verified,
    wire::session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
};

/// What the actor found of a request's grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presented {
    /// The request has none.
    Absent,
    /// An issuer of the accepted snapshot has signed it.
    Good(Verified<Grant>),
    /// Its signer is not in the accepted snapshot, but may be in the next.
    Unknown,
    /// It does not decode, or its signature is wrong.
    Bad,
}

/// What happens to the relay service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A snapshot was accepted; [`Event::policy`] makes this of it.
    Policy {
        /// The cluster.
        cluster: Name,
        /// Its version.
        version: Version,
        /// When it was issued.
        issued: WallTime,
        /// When its lease ends.
        ends: WallTime,
        /// The policy in it.
        policy: Box<Policy>,
    },
    /// Newer revocations came, from a control node or from a node.
    Revoked {
        /// All of them.
        revocations: Verified<Revocations>,
    },
    /// A node has connected; its certificate is good and has the role node.
    Connected {
        /// The connection.
        connection: u64,
        /// The node.
        node: NodeId,
        /// The key of its certificate.
        public: PublicKeyBytes,
    },
    /// A connection has ended.
    Disconnected {
        /// The connection.
        connection: u64,
        /// Why, for people.
        reason: String,
    },
    /// Something came from a node: the answer to a ping, or whatever its transport acknowledged.
    Heard {
        /// The connection.
        connection: u64,
    },
    /// A node asks.
    Request {
        /// The connection.
        connection: u64,
        /// Names the waiting asker.
        reply: ReplyId,
        /// What it asks.
        request: NodeRequest,
        /// What was found of the grant in it.
        grant: Presented,
        /// Fresh, unpredictable numbers for the tokens of a channel.
        draws: [ChannelToken; 4],
    },
    /// A node has answered, or did not in time.
    Answered {
        /// The ask.
        ask: u64,
        /// The answer, or why there is none.
        response: Result<RelayResponse, String>,
    },
    /// A waiting request's grant was checked by the newest snapshot.
    Checked {
        /// The waiting request.
        waiting: u64,
        /// What was found.
        grant: Presented,
    },
    /// A timer has run out.
    Timer(Timer),
}

/// The timers of the relay service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// Look at every session and at what waits.
    Sweep,
}

/// What the relay service asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Answer a request.
    Reply {
        /// The asker.
        reply: ReplyId,
        /// The answer.
        response: NodeResponse,
    },
    /// Ask a node and report its answer, or that none came in time.
    Ask {
        /// The connection.
        connection: u64,
        /// The number of the ask.
        ask: u64,
        /// What is asked.
        request: RelayRequest,
    },
    /// Tell a node; its answer does not matter.
    Tell {
        /// The connection.
        connection: u64,
        /// What it is told.
        request: RelayRequest,
    },
    /// Ping a node; its answer is a `Heard`.
    Ping {
        /// The connection.
        connection: u64,
        /// Counts up.
        sequence: u64,
    },
    /// Forward packets between two sessions, both ways.
    SwitchOpen {
        /// The two ends.
        ends: [ChannelEnd; 2],
    },
    /// Forward packets with these tokens no more.
    SwitchClose {
        /// The tokens that the two ends write.
        tokens: [ChannelToken; 2],
    },
    /// Close a connection.
    CloseSession {
        /// The connection.
        connection: u64,
        /// Why, for people.
        reason: String,
    },
    /// Check the grant of a waiting request by the newest snapshot.
    Check {
        /// The waiting request.
        waiting: u64,
        /// Its grant.
        grant: SignedGrant,
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
            Self::Policy { .. } => "policy",
            Self::Revoked { .. } => "revoked",
            Self::Connected { .. } => "connected",
            Self::Disconnected { .. } => "disconnected",
            Self::Heard { .. } => "heard",
            Self::Request { .. } => "request",
            Self::Answered { .. } => "answered",
            Self::Checked { .. } => "checked",
            Self::Timer(_) => "timer",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Policy { .. } => Class::State { key: 0 },
            Self::Revoked { .. } => Class::State { key: u64::MAX },
            Self::Heard { connection } => Class::State { key: connection.wrapping_add(1) },
            Self::Request { .. } => Class::Request,
            _ => Class::Reserved,
        }
    }
}

impl Event {
    /// The event of an accepted snapshot; nothing if it has no policy, since then the node is no relay.
    #[must_use]
    pub fn policy(accepted: &Accepted) -> Option<Self> {
        Some(Self::Policy {
            cluster: accepted.header.cluster.clone(),
            version: accepted.header.version,
            issued: accepted.header.issued,
            ends: accepted.ends(),
            policy: Box::new(accepted.content.policy.clone()?),
        })
    }
}
