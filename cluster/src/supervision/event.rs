//! The words of supervision: rules, exits, events and effects.

use serde::{Deserialize, Serialize};

use crate::{
    behavior::Class,
    time::{Moment, Span},
};

/// When a child that has ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Only after a failure; a child that ends normally leaves.
    Transient,
    /// Never; a child that ends leaves.
    Temporary,
}

/// Who is started again when a child has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Only the child.
    OneForOne,
    /// The child and every child that was started after it, since those rely on it.
    RestForOne,
}

/// How a child is supervised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// When it is started again.
    pub restart: Restart,
    /// Who is started again with it.
    pub strategy: Strategy,
    /// How long a stop may take before the child is killed.
    pub stop_within: Span,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By its own wish, or because it was asked to stop.
    Normal,
    /// It was killed.
    Killed,
    /// It failed, or did not start; the text is the error.
    Failed(String),
}

/// Where a child is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not running, and nothing is under way.
    Idle,
    /// Asked to start.
    Starting,
    /// Running.
    Up {
        /// Since when.
        since: Moment,
    },
    /// Asked to stop.
    Stopping {
        /// Whether the time for a stop was over and it has been killed.
        killed: bool,
    },
    /// Failed, and started again at that moment.
    Waiting {
        /// The end of the wait.
        until: Moment,
    },
}

/// What happens to a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Start the children that were there from the beginning.
    Begin,
    /// A new child, started after all others.
    Add {
        /// Its id, unique in this supervisor.
        id: String,
        /// How it is supervised.
        rule: Rule,
    },
    /// A child is no longer wanted.
    Remove {
        /// Its id.
        id: String,
    },
    /// A child runs.
    Started {
        /// Its id.
        id: String,
        /// The run that [`Effect::Start`] named.
        run: u64,
    },
    /// A child has ended, or could not start.
    Exited {
        /// Its id.
        id: String,
        /// The run that ended.
        run: u64,
        /// How.
        exit: Exit,
    },
    /// The wait before a restart is over.
    Due {
        /// The child's id.
        id: String,
        /// The run that had failed.
        run: u64,
    },
    /// A child took too long to stop, or to die.
    Overdue {
        /// Its id.
        id: String,
        /// The run.
        run: u64,
    },
    /// Stop all children in reverse order and end.
    Stop,
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Add { .. } => "add",
            Self::Remove { .. } => "remove",
            Self::Started { .. } => "started",
            Self::Exited { .. } => "exited",
            Self::Due { .. } => "due",
            Self::Overdue { .. } => "overdue",
            Self::Stop => "stop",
        }
    }

    fn class(&self) -> Class {
        if matches!(self, Self::Add { .. }) { Class::Request } else { Class::Reserved }
    }
}

/// What a supervisor asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Start the child; [`Event::Started`] or [`Event::Exited`] follows.
    Start {
        /// Its id.
        id: String,
        /// The number of this run.
        run: u64,
    },
    /// Ask the child to stop; [`Event::Exited`] follows.
    Stop {
        /// Its id.
        id: String,
        /// The run.
        run: u64,
    },
    /// Kill the child and everything under it.
    Kill {
        /// Its id.
        id: String,
        /// The run.
        run: u64,
    },
    /// Write down that the child has failed and will be started again; [`Event::Due`] at that moment.
    Restart {
        /// Its id.
        id: String,
        /// The run that failed.
        run: u64,
        /// How it ended.
        exit: Exit,
        /// How long the restart waits.
        backoff: Span,
        /// When [`Event::Due`] is to come.
        at: Moment,
    },
    /// [`Event::Overdue`] at that moment, unless the run has ended.
    OverdueAt {
        /// The child's id.
        id: String,
        /// The run.
        run: u64,
        /// When.
        at: Moment,
    },
    /// The child has left for good.
    Forget {
        /// Its id.
        id: String,
        /// How it ended.
        exit: Exit,
    },
    /// All children that can start now have been started, for the first time.
    Ready,
    /// All children have ended after [`Event::Stop`]: end normally.
    Finish,
    /// All children have ended after too many restarts: fail, so that the next supervisor decides.
    FailUpwards {
        /// What was tried and what happened.
        reason: String,
    },
}
