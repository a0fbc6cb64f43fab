//! What happens to a session with a relay, and what it asks of the world.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    behavior::Class,
    command::Refusal,
    grant::SignedGrant,
    id::{Generation, LinkId, Version},
};

/// What happens to a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Begin, or go on at another address.
    Target {
        /// `host:port`.
        address: String,
    },
    /// These endpoints are to be registered, no others.
    Endpoints {
        /// By link.
        wanted: BTreeMap<LinkId, (Generation, SignedGrant)>,
    },
    /// The dial succeeded.
    Connected {
        /// The connection.
        connection: u64,
    },
    /// The dial failed.
    DialFailed {
        /// Why.
        reason: String,
    },
    /// The relay welcomed the node.
    Welcomed {
        /// The connection.
        connection: u64,
        /// The version of its policy.
        policy: Version,
    },
    /// A connection ended.
    Closed {
        /// The connection.
        connection: u64,
        /// Why.
        reason: String,
    },
    /// A registration was answered.
    Registered {
        /// The connection.
        connection: u64,
        /// The link.
        link: LinkId,
        /// The generation.
        generation: Generation,
        /// The refusal, if it was refused.
        refusal: Option<Refusal>,
    },
    /// A ping came back.
    Pong {
        /// The connection.
        connection: u64,
        /// The round-trip time in microseconds.
        round_trip_us: u64,
    },
    /// A ping did not come back in time: the way there or back is dead, whatever the other direction says.
    Silent {
        /// The connection.
        connection: u64,
    },
    /// This node's revocations are these.
    Revocations {
        /// The newest of them.
        version: Version,
    },
    /// The relay says what it has applied.
    Applied {
        /// Everything up to this version.
        version: Version,
        /// The newest of its revocations.
        revocations: Version,
    },
    /// This node stops: say goodbye, and dial no more (RP-34).
    Leave,
    /// A timer has run out.
    Timer(Timer),
}

/// The timers of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// Dial again.
    Retry,
    /// Send the next ping.
    Ping,
    /// Register again what was refused.
    Register,
    /// Pass on revocations that the relay has not applied.
    PassOn,
}

/// What a session asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Dial the relay.
    Dial {
        /// `host:port`.
        address: String,
    },
    /// Say hello on a new connection.
    Hello {
        /// The connection.
        connection: u64,
        /// This session.
        session: Generation,
    },
    /// Register an endpoint.
    Register {
        /// The connection.
        connection: u64,
        /// The link.
        link: LinkId,
        /// The generation of its route.
        generation: Generation,
        /// The grant.
        grant: SignedGrant,
    },
    /// End a registration.
    Unregister {
        /// The connection.
        connection: u64,
        /// The link.
        link: LinkId,
        /// The generation.
        generation: Generation,
    },
    /// Ping the relay.
    Ping {
        /// The connection.
        connection: u64,
        /// Counts up.
        sequence: u64,
    },
    /// Say goodbye, so that the relay answers "restarting" instead of "gone" for a while.
    Goodbye {
        /// The connection.
        connection: u64,
        /// This session.
        session: Generation,
    },
    /// Close a connection.
    Close {
        /// The connection.
        connection: u64,
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
    /// Pass this node's revocations on to the relay; its answer is an [`Event::Applied`].
    PassOn {
        /// The connection.
        connection: u64,
    },
    /// Get the relay's revocations, which are newer than this node's.
    Fetch {
        /// The connection.
        connection: u64,
    },
    /// Tell the node what the relay has applied.
    Applied {
        /// Everything up to this version.
        version: Version,
    },
    /// Tell the node how far the relay is.
    Measured {
        /// The round-trip time in microseconds.
        round_trip_us: u64,
    },
    /// Tell the node that the relay is up: its session stands.
    Up {
        /// The connection.
        connection: u64,
    },
    /// Tell the node that it is down.
    Down {
        /// Why.
        reason: String,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Target { .. } => "target",
            Self::Endpoints { .. } => "endpoints",
            Self::Connected { .. } => "connected",
            Self::DialFailed { .. } => "dial-failed",
            Self::Welcomed { .. } => "welcomed",
            Self::Closed { .. } => "closed",
            Self::Registered { .. } => "registered",
            Self::Pong { .. } => "pong",
            Self::Silent { .. } => "silent",
            Self::Revocations { .. } => "revocations",
            Self::Applied { .. } => "applied",
            Self::Leave => "leave",
            Self::Timer(_) => "timer",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Target { .. } => Class::State { key: 0 },
            Self::Endpoints { .. } => Class::State { key: 1 },
            Self::Revocations { .. } => Class::State { key: 2 },
            _ => Class::Reserved,
        }
    }
}
