//! One leader a term, nothing committed is lost or changed, equal state at equal index, votes are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use postroad_cluster::{
    id::{NodeId, TokenId},
    invariant,
};
use postroad_raft::{AppliedEntry, Observer};
use tokio::sync::mpsc;

use super::Findings;
use crate::{faults::is_control, trace::Trace, world::World};

const CHECK: &str = "raft";

#[derive(Default)]
struct Seen {
    /// Term and hash of every entry that anybody applied.
    entries: BTreeMap<u64, (u64, u64)>,
    /// The hash of the state after every index.
    states: BTreeMap<u64, u64>,
    leaders: BTreeMap<u64, NodeId>,
    /// The newest vote that each member has acknowledged: term and candidate.
    votes: BTreeMap<NodeId, (u64, NodeId)>,
    acknowledged: BTreeSet<TokenId>,
}

/// Watches every member of the control group.
pub struct RaftCheck {
    findings: Findings,
    trace: Trace,
    seen: Mutex<Seen>,
    voted: mpsc::UnboundedSender<NodeId>,
}

impl RaftCheck {
    /// The check of a world, and who votes, as it happens.
    #[must_use]
    pub fn new(findings: Findings, trace: Trace) -> (Arc<Self>, mpsc::UnboundedReceiver<NodeId>) {
        let (voted, votes) = mpsc::unbounded_channel();
        (Arc::new(Self { findings, trace, seen: Mutex::default(), voted }), votes)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrong(&self, what: String) {
        self.findings.add(CHECK, what);
    }

    /// A client was told that its token is in the log.
    pub fn acknowledged(&self, token: TokenId) {
        self.seen().acknowledged.insert(token);
    }

    /// How many commands were acknowledged.
    #[must_use]
    pub fn acknowledgements(&self) -> usize {
        self.seen().acknowledged.len()
    }

    fn state_at(&self, node: NodeId, entry: &AppliedEntry) {
        let known = *self.seen().states.entry(entry.index).or_insert(entry.state_hash);
        if known != entry.state_hash {
            self.wrong(format!("{node} has another state after entry {} than another member", entry.index));
        }
    }

    /// At the end, when every member runs: each has everything that was ever committed.
    pub fn judge(&self, world: &World) {
        let seen = self.seen();
        let newest = seen.entries.last_key_value().map(|(index, _)| *index);
        let mut wrong = Vec::new();
        for machine in world.machines.iter().enumerate().filter(|(index, _)| is_control(*index)).map(|(_, it)| it) {
            let Some(consensus) = machine.node.as_ref().and_then(|node| node.fabric().consensus.as_ref()) else {
                wrong.push(format!("{} does not run", machine.name));
                continue;
            };
            let applied = consensus.status().applied;
            if applied < newest {
                wrong.push(format!("{} has applied up to {applied:?}, another member up to {newest:?}", machine.name));
            }
            let state = consensus.state();
            if let Err(broken) = invariant::state_consistent(&state) {
                wrong.push(format!("the state of {} contradicts itself: {broken}", machine.name));
            }
            let lost = seen.acknowledged.iter().filter(|token| !state.tokens.contains_key(token)).count();
            if lost > 0 {
                wrong.push(format!("{} lacks {lost} acknowledged commands", machine.name));
            }
        }
        drop(seen);
        for what in wrong {
            self.wrong(what);
        }
    }
}

impl Observer for RaftCheck {
    fn on_apply(&self, node: NodeId, entry: &AppliedEntry) {
        self.trace
            .note(format_args!("{node} applies {} of term {}: {:016x}", entry.index, entry.term, entry.state_hash));
        let known = *self.seen().entries.entry(entry.index).or_insert((entry.term, entry.entry_hash));
        if known != (entry.term, entry.entry_hash) {
            let (index, term) = (entry.index, entry.term);
            self.wrong(format!(
                "{node} applied another entry {index} (term {term}) than another member (term {})",
                known.0
            ));
        }
        self.state_at(node, entry);
    }

    fn on_install(&self, node: NodeId, entry: &AppliedEntry) {
        self.trace.note(format_args!("{node} installs the state after {}", entry.index));
        self.state_at(node, entry);
    }

    fn on_leader(&self, node: NodeId, term: u64, leader: NodeId) {
        self.trace.note(format_args!("{node} sees {leader} lead in term {term}"));
        let known = *self.seen().leaders.entry(term).or_insert(leader);
        if known != leader {
            self.wrong(format!("{known} and {leader} both lead in term {term}"));
        }
    }

    fn on_vote(&self, node: NodeId, term: u64, candidate: NodeId) {
        self.trace.note(format_args!("{node} votes for {candidate} in term {term}"));
        let known = self.seen().votes.insert(node, (term, candidate));
        if let Some((before, other)) =
            known.filter(|(before, other)| *before > term || (*before == term && *other != candidate))
        {
            self.wrong(format!("{node} votes for {candidate} in term {term} after {other} in term {before}"));
        }
        // Nobody waits for an election fault if the receiver is gone.
        let _ = self.voted.send(node);
    }

    fn on_start(&self, node: NodeId, vote: Option<(u64, NodeId)>) {
        let known = self.seen().votes.get(&node).copied();
        // Of one term the disk may hold who was elected instead of whom this member voted for.
        if vote.map(|(term, _)| term) < known.map(|(term, _)| term) {
            self.wrong(format!("{node} has acknowledged the vote {known:?} and found {vote:?} on its disk"));
        }
    }
}
