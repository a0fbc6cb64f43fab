//! Why a term began, as far as this member saw it.

use std::sync::{Mutex, PoisonError};

use postroad_cluster::id::NodeId;
use serde::Serialize;

/// Why a term began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TermCause {
    /// This member was not there, or has restarted since.
    Unknown,
    /// The group was founded.
    Founded,
    /// The last leader handed its leadership over.
    HandedOver {
        /// Who led before, as far as known.
        from: Option<NodeId>,
    },
    /// A member stood for election since it heard of no leader.
    Election {
        /// Who stood.
        candidate: NodeId,
        /// Who led before, as far as known.
        silent: Option<NodeId>,
    },
}

/// What is known of the newest term.
#[derive(Debug)]
pub(crate) struct Causes(Mutex<Known>);

#[derive(Debug)]
struct Known {
    term: u64,
    cause: TermCause,
    leader: Option<NodeId>,
    /// The leader has asked this member to stand.
    asked: bool,
}

impl Causes {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Known { term: 0, cause: TermCause::Unknown, leader: None, asked: false }))
    }

    /// A candidate asks for votes in `term`.
    pub(crate) fn candidate(&self, term: u64, candidate: NodeId, handed_over: bool) {
        self.change(|known| {
            if term > known.term {
                known.term = term;
                known.cause = if handed_over {
                    TermCause::HandedOver { from: known.leader }
                } else {
                    TermCause::Election { candidate, silent: known.leader }
                };
            }
        });
    }

    /// This member stands in `term`.
    pub(crate) fn stands(&self, term: u64, me: NodeId) {
        let mut asked = false;
        self.change(|known| asked = std::mem::take(&mut known.asked));
        self.candidate(term, me, asked);
    }

    /// The leader asks this member to stand.
    pub(crate) fn asked_to_stand(&self) {
        self.change(|known| known.asked = true);
    }

    pub(crate) fn founded(&self) {
        self.change(|known| {
            if known.leader.is_none() {
                (known.term, known.cause) = (1, TermCause::Founded);
            }
        });
    }

    pub(crate) fn leader(&self, leader: NodeId) {
        self.change(|known| known.leader = Some(leader));
    }

    pub(crate) fn of(&self, term: u64) -> TermCause {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.term == term { known.cause } else { TermCause::Unknown }
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_term_is_explained_and_no_other() {
        let causes = Causes::new();
        causes.founded();
        assert_eq!(causes.of(1), TermCause::Founded);
        causes.leader(NodeId(1));
        causes.candidate(2, NodeId(3), false);
        causes.candidate(2, NodeId(4), true);
        assert_eq!(causes.of(2), TermCause::Election { candidate: NodeId(3), silent: Some(NodeId(1)) });
        assert_eq!(causes.of(1), TermCause::Unknown);
        causes.leader(NodeId(3));
        causes.candidate(3, NodeId(2), true);
        assert_eq!(causes.of(3), TermCause::HandedOver { from: Some(NodeId(3)) });
        causes.leader(NodeId(2));
        causes.asked_to_stand();
        causes.stands(4, NodeId(1));
        assert_eq!(causes.of(4), TermCause::HandedOver { from: Some(NodeId(2)) });
        causes.stands(5, NodeId(1));
        assert_eq!(causes.of(5), TermCause::Election { candidate: NodeId(1), silent: Some(NodeId(2)) });
    }
}
