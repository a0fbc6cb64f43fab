//! What a node counts of its flows: refusals by reason, and how long they stood still.

use std::{collections::BTreeMap, sync::Mutex};

use postroad_cluster::{circuit::MoveReason, stall::Stalls, time::Span};

use crate::directory::lock;

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Where the application connects.
    Consumer,
    /// Where the target is.
    Target,
}

impl End {
    /// The end in one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Target => "target",
        }
    }
}

/// Refused tunnels by end and reason. Reasons are codes of this release, so there are only so many.
#[derive(Debug, Default)]
pub struct RefusalCounts(Mutex<BTreeMap<(End, &'static str), u64>>);

impl RefusalCounts {
    pub(crate) fn count(&self, end: End, code: &'static str) {
        *lock(&self.0).entry((end, code)).or_default() += 1;
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        lock(&self.0).values().sum()
    }

    /// How many by reason, by the end at which they were refused.
    pub fn by_reason(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut ends = BTreeMap::<String, BTreeMap<String, u64>>::new();
        for ((end, code), count) in &*lock(&self.0) {
            ends.entry(end.word().to_owned()).or_default().insert((*code).to_owned(), *count);
        }
        ends
    }
}

/// Stalls of the node's circuits since it started.
#[derive(Debug, Default)]
pub struct StallCounts(Mutex<Stalls>);

impl StallCounts {
    pub(crate) fn note(&self, cause: MoveReason, span: Span) {
        lock(&self.0).note(cause, span);
    }

    /// What was counted so far.
    pub fn get(&self) -> Stalls {
        lock(&self.0).clone()
    }
}
