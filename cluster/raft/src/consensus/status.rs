//! What people and the leader's own decisions see of the group.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use openraft::{Instant, RaftMetrics, ServerState, async_runtime::WatchReceiver};
use postroad_cluster::id::NodeId;
use serde::Serialize;

use super::{Consensus, why};
use crate::{cause::TermCause, error::ChangeError, quorum::View, types::Types};

/// What a member is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MemberRole {
    /// It leads, as far as it knows.
    Leader,
    /// It votes and follows.
    Follower,
    /// It stands for election.
    Candidate,
    /// It has no vote, or no group yet.
    Learner,
    /// It has stopped.
    Stopped,
}

/// Another member, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FollowerStatus {
    /// The last entry that is known to be equal there.
    pub matched: Option<u64>,
    /// Entries that it is behind.
    pub lag_entries: u64,
    /// How long ago the last message that it answered was sent, in ms; nothing if it never answered this leader.
    pub silent_ms: Option<u64>,
}

/// The group as this member sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControlStatus {
    /// This node.
    pub me: NodeId,
    /// What it is.
    pub role: MemberRole,
    /// Who leads, as far as known.
    pub leader: Option<NodeId>,
    /// The newest term.
    pub term: u64,
    /// Why it began.
    pub cause: TermCause,
    /// The node that it gave its vote to in the newest term.
    pub voted_for: NodeId,
    /// The end of the log here.
    pub last_log: Option<u64>,
    /// How far it is known to be committed.
    pub committed: Option<u64>,
    /// How far it is applied here.
    pub applied: Option<u64>,
    /// The last entry in the snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that was removed from the log.
    pub purged: Option<u64>,
    /// The members that vote, with their addresses.
    pub voters: BTreeMap<NodeId, String>,
    /// The members that only learn, with their addresses.
    pub learners: BTreeMap<NodeId, String>,
    /// Whether a change of the members is half done.
    pub changing: bool,
    /// The other members; on the leader only.
    pub followers: BTreeMap<NodeId, FollowerStatus>,
    /// Why the member has stopped, if it has.
    pub stopped: Option<String>,
}

/// A member that answered no message of this age or younger is silent.
fn is_live(silence: Option<Duration>, bound: Duration) -> bool {
    silence.is_some_and(|silence| silence <= bound)
}

fn silence(metrics: &RaftMetrics<Types>, node: u64) -> Option<Duration> {
    let answered = metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?;
    Some(Instant::elapsed(&**answered))
}

fn matched(metrics: &RaftMetrics<Types>, node: u64) -> Option<u64> {
    Some(metrics.replication.as_ref()?.get(&node)?.as_ref()?.index)
}

fn members(metrics: &RaftMetrics<Types>, voting: bool) -> BTreeMap<NodeId, String> {
    let membership = metrics.membership_config.membership();
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    membership
        .nodes()
        .filter(|(node, _)| voters.contains(node) == voting)
        .map(|(node, at)| (NodeId(*node), at.addr.clone()))
        .collect()
}

impl Consensus {
    /// The group as this member sees it.
    #[must_use]
    pub fn status(&self) -> ControlStatus {
        let metrics = self.metrics();
        let index = |id: &Option<crate::types::LogId>| id.as_ref().map(|id| id.index);
        let view = self.view(&metrics);
        let leads = metrics.state == ServerState::Leader;
        let others = view.voters.union(&view.learners).filter(|node| leads && **node != self.0.me);
        let followers = others.map(|node| {
            let silent_ms = silence(&metrics, node.0).map(|silence| silence.as_millis() as u64);
            let matched = matched(&metrics, node.0);
            (*node, FollowerStatus { matched, lag_entries: view.lag(*node), silent_ms })
        });
        let stopped = metrics.running_state.as_ref().err().map(why);
        ControlStatus {
            me: self.0.me,
            role: match metrics.state {
                _ if stopped.is_some() => MemberRole::Stopped,
                ServerState::Leader => MemberRole::Leader,
                ServerState::Follower => MemberRole::Follower,
                ServerState::Candidate => MemberRole::Candidate,
                ServerState::Learner => MemberRole::Learner,
                ServerState::Shutdown => MemberRole::Stopped,
            },
            leader: metrics.current_leader.map(NodeId),
            term: metrics.current_term,
            cause: self.0.causes.of(metrics.current_term),
            voted_for: NodeId(metrics.vote.leader_id.voted_for),
            last_log: metrics.last_log_index,
            committed: index(&metrics.local_committed),
            applied: index(&self.0.machine.last()),
            snapshot: index(&metrics.snapshot),
            purged: index(&metrics.purged),
            voters: members(&metrics, true),
            learners: members(&metrics, false),
            changing: self.members_are_joint(),
            followers: followers.collect(),
            stopped,
        }
    }

    /// The members, if this one leads.
    pub(super) fn leader_view(&self) -> Result<View, ChangeError> {
        let metrics = self.metrics();
        if let Err(fatal) = &metrics.running_state {
            return Err(ChangeError::Stopped { why: why(fatal) });
        }
        if metrics.state != ServerState::Leader {
            return Err(ChangeError::NotLeader { leader: self.other(metrics.current_leader) });
        }
        Ok(self.view(&metrics))
    }

    pub(super) fn members_are_joint(&self) -> bool {
        self.metrics().membership_config.membership().get_joint_config().len() > 1
    }

    pub(super) fn metrics(&self) -> RaftMetrics<Types> {
        self.0.raft.metrics().borrow_watched().clone()
    }

    fn view(&self, metrics: &RaftMetrics<Types>) -> View {
        let voters: BTreeSet<NodeId> = members(metrics, true).into_keys().collect();
        let learners: BTreeSet<NodeId> = members(metrics, false).into_keys().collect();
        let all = || voters.union(&learners).copied();
        let bound = self.0.timing.election_max;
        let live = all().filter(|node| *node == self.0.me || is_live(silence(metrics, node.0), bound)).collect();
        let matched = all().map(|node| (node, matched(metrics, node.0))).collect();
        let last = metrics.last_log_index.unwrap_or_default();
        View { me: self.0.me, live, matched, last, voters, learners }
    }
}
