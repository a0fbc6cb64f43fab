//! What can go wrong with agreement: each error says what was found and what to do, with a stable code.

use std::fmt;

use postroad_cluster::{command::Refusal, id::NodeId, limits};
use postroad_store::StoreError;

/// Why a member does not start, or not found a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsensusError {
    /// The store failed.
    Store(StoreError),
    /// The timing or retention makes no sense.
    Options {
        /// What was found.
        found: String,
    },
    /// What is on disk contradicts itself.
    Corrupt {
        /// What was found.
        found: String,
    },
    /// This member belongs to a group already.
    AlreadyFounded,
    /// The member has stopped.
    Stopped {
        /// Why.
        why: String,
    },
}

impl ConsensusError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Options { .. } => "CONTROL_OPTIONS_INVALID",
            Self::Corrupt { .. } => "CONTROL_LOG_CORRUPT",
            Self::AlreadyFounded => "CONTROL_ALREADY_FOUNDED",
            Self::Stopped { .. } => "CONTROL_STOPPED",
        }
    }
}

impl From<StoreError> for ConsensusError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for ConsensusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Options { found } => write!(f, "the options of the control group are invalid: {found}"),
            Self::Corrupt { found } => write!(
                f,
                "the control group's log and state on this disk contradict each other: {found}. Remove this control \
                 node from another one and join it again with an empty data directory"
            ),
            Self::AlreadyFounded => {
                f.write_str("this node belongs to a cluster already. Use another data directory for a new one")
            }
            Self::Stopped { why } => stopped(f, why),
        }
    }
}

impl std::error::Error for ConsensusError {}

/// Why a proposal has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposeError {
    /// Nothing was proposed: this member does not lead, or leads without a majority.
    NotLeader {
        /// Who leads, as far as known.
        leader: Option<NodeId>,
    },
    /// Nothing was proposed: too many proposals wait.
    Busy,
    /// Nothing was proposed: the command is too large.
    TooLarge {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It was proposed and may have been committed or may still be: look at the state before proposing it again.
    Unknown {
        /// What was found.
        found: String,
    },
    /// The member has stopped. What had been proposed may have been committed.
    Stopped {
        /// Why.
        why: String,
    },
}

impl ProposeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotLeader { .. } => "CONTROL_NOT_LEADER",
            Self::Busy => "CONTROL_BUSY",
            Self::TooLarge { .. } => "CONTROL_COMMAND_TOO_LARGE",
            Self::Unknown { .. } => "CONTROL_OUTCOME_UNKNOWN",
            Self::Stopped { .. } => "CONTROL_STOPPED",
        }
    }
}

impl fmt::Display for ProposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader { leader } => not_leader(f, *leader),
            Self::Busy => {
                write!(f, "{} changes wait for the control group already. Try again later", limits::RAFT_PROPOSALS_MAX)
            }
            Self::TooLarge { bytes } => {
                let bytes_max = limits::RAFT_COMMAND_BYTES_MAX;
                write!(f, "the change has {bytes} bytes, at most {bytes_max} are taken. Divide it")
            }
            Self::Unknown { found } => unknown(f, found),
            Self::Stopped { why } => stopped(f, why),
        }
    }
}

impl std::error::Error for ProposeError {}

/// Why a read cannot be said to see everything that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// No leader is known, or the one known does not lead.
    NotLeader {
        /// Who leads, as far as known.
        leader: Option<NodeId>,
    },
    /// A majority did not answer, or this member did not catch up, within [`limits::RAFT_READ_WAIT`].
    Timeout {
        /// What was waited for.
        waited_for: String,
    },
    /// The member has stopped.
    Stopped {
        /// Why.
        why: String,
    },
}

impl ReadError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotLeader { .. } => "CONTROL_NOT_LEADER",
            Self::Timeout { .. } => "CONTROL_READ_TIMEOUT",
            Self::Stopped { .. } => "CONTROL_STOPPED",
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader { leader } => not_leader(f, *leader),
            Self::Timeout { waited_for } => write!(
                f,
                "waited {} s for {waited_for} to be sure of the newest state. Look at `postroad control list`, or \
                 ask for the state as this node has it",
                limits::RAFT_READ_WAIT.as_secs()
            ),
            Self::Stopped { why } => stopped(f, why),
        }
    }
}

impl std::error::Error for ReadError {}

/// Why the members were not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// Nothing was changed: ask the leader. A leader that is asked to remove itself hands over first and answers this.
    NotLeader {
        /// Who leads, as far as known.
        leader: Option<NodeId>,
    },
    /// Nothing was changed, and why.
    Refused(Refusal),
    /// It was begun and may be completed: look at the members before asking again.
    Unknown {
        /// What was found.
        found: String,
    },
    /// The member has stopped.
    Stopped {
        /// Why.
        why: String,
    },
}

impl ChangeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::NotLeader { .. } => "CONTROL_NOT_LEADER",
            Self::Refused(refusal) => &refusal.code,
            Self::Unknown { .. } => "CONTROL_OUTCOME_UNKNOWN",
            Self::Stopped { .. } => "CONTROL_STOPPED",
        }
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader { leader } => not_leader(f, *leader),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unknown { found } => unknown(f, found),
            Self::Stopped { why } => stopped(f, why),
        }
    }
}

impl std::error::Error for ChangeError {}

fn not_leader(f: &mut fmt::Formatter<'_>, leader: Option<NodeId>) -> fmt::Result {
    match leader {
        Some(leader) => write!(f, "this control node does not lead, {leader} does. Ask that one"),
        None => f.write_str(
            "no control node leads with a majority now. Wait for an election of some seconds, and see that more than \
             half of the control nodes run and reach each other",
        ),
    }
}

fn unknown(f: &mut fmt::Formatter<'_>, found: &str) -> fmt::Result {
    write!(f, "the outcome is unknown: {found}. It may still take effect: look before you try again")
}

fn stopped(f: &mut fmt::Formatter<'_>, why: &str) -> fmt::Result {
    write!(f, "the control group's member on this node has stopped: {why}. Restart the node")
}
