//! The words of the database balancer: events, effects, and the lines of its log.

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    choice::{Aside, NoPrimary, Target},
    evidence::{Outcome, Role},
    report::Report,
    routing::Routing,
};
use crate::{
    behavior::{Class, ReplyId},
    time::Moment,
};

/// What happens to the balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// It begins.
    Started,
    /// The list of nodes is this from now on: addresses by id.
    Nodes {
        /// The list.
        nodes: BTreeMap<String, String>,
    },
    /// A probe came back.
    Probed {
        /// Of which node.
        node: String,
        /// The address that the list had for it then.
        listed: String,
        /// What it came to.
        outcome: Box<Outcome>,
    },
    /// Some evidence may have grown too old.
    Aged,
    /// Somebody asks for the state.
    Asked {
        /// Who.
        reply: ReplyId,
    },
}

/// What the balancer asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Probe these nodes and no others: addresses by id.
    Watch {
        /// The list.
        nodes: BTreeMap<String, String>,
    },
    /// New connections go by this.
    Route {
        /// What was decided.
        routing: Box<Routing>,
    },
    /// The open write connections to all nodes but this one end.
    CloseWrites {
        /// The node whose stay.
        but: Option<String>,
        /// Why the others end.
        why: String,
    },
    /// Send [`Event::Aged`] then.
    AgedAt {
        /// When.
        at: Moment,
    },
    /// A line for the log (DB-42).
    Say {
        /// Which.
        line: Line,
    },
    /// The answer to whoever asked.
    Reply {
        /// Who.
        reply: ReplyId,
        /// The state.
        report: Box<Report>,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Nodes { .. } => "nodes",
            Self::Probed { .. } => "probed",
            Self::Aged => "aged",
            Self::Asked { .. } => "asked",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Nodes { .. } => Class::State { key: 0 },
            Self::Probed { .. } | Self::Asked { .. } => Class::Request,
            Self::Started | Self::Aged => Class::Reserved,
        }
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    /// A node answers and counts.
    Restored {
        /// The node.
        node: String,
        /// What it says that it is.
        role: Role,
        /// Its epoch.
        epoch: u64,
    },
    /// A node is set aside.
    Aside {
        /// The node.
        node: String,
        /// Why.
        why: Aside,
    },
    /// A node says that it is something else now.
    Role {
        /// The node.
        node: String,
        /// What it was.
        from: Role,
        /// What it is.
        to: Role,
    },
    /// A node bears another epoch.
    Epoch {
        /// The node.
        node: String,
        /// What it bore.
        from: u64,
        /// What it bears.
        to: u64,
    },
    /// Writes go to this node from now on.
    Primary {
        /// Where.
        target: Target,
        /// The generation of the choice.
        generation: u64,
    },
    /// Writes are refused from now on.
    NoPrimary {
        /// Why.
        why: NoPrimary,
        /// The generation of the choice.
        generation: u64,
    },
    /// The list of nodes has changed.
    Nodes {
        /// The nodes of it.
        nodes: Vec<String>,
    },
}

impl Line {
    /// Whether somebody should look.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        matches!(self, Self::Aside { .. } | Self::NoPrimary { .. })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored { node, role, epoch } => write!(f, "node {node} is healthy: {}, epoch {epoch}", role.word()),
            Self::Aside { node, why } => write!(f, "node {node} is set aside: {why}"),
            Self::Role { node, from, to } => write!(f, "node {node} was {} and is {}", from.word(), to.word()),
            Self::Epoch { node, from, to } => write!(f, "node {node} bore epoch {from} and bears {to}"),
            Self::Primary { target, generation } => {
                write!(f, "writes go to {}, epoch {} (generation {generation})", target.node, target.epoch)
            }
            Self::NoPrimary { why, generation } => write!(f, "writes are refused: {why} (generation {generation})"),
            Self::Nodes { nodes } => write!(f, "the nodes are {}", nodes.join(", ")),
        }
    }
}
