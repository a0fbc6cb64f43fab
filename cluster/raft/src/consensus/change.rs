//! Changes of the members, and handing over: one at a time, by the leader, never below a majority that answers.

use std::collections::{BTreeMap, BTreeSet};

use openraft::{
    BasicNode, ChangeMembers,
    error::{ChangeMembershipError, ClientWriteError, RaftError},
};
use postroad_cluster::{command::Refusal, id::NodeId, limits};
use tokio::time::{Instant, sleep, timeout};

use super::{Consensus, why};
use crate::{error::ChangeError, quorum::View, types::Types};

type Changes = ChangeMembers<u64, BasicNode>;

fn in_progress() -> ChangeError {
    ChangeError::Refused(Refusal::new(
        "CONTROL_CHANGE_IN_PROGRESS",
        "another change of the control group is under way",
        "Try again in some seconds",
    ))
}

fn refused(error: ChangeMembershipError<openraft::alias::CommittedLeaderIdOf<Types>, u64>) -> ChangeError {
    match error {
        // A new leader first commits an entry of its own term.
        ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => in_progress(),
        error => ChangeError::Refused(Refusal::new(
            "CONTROL_CHANGE_REFUSED",
            format!("the control group does not take the change: {error}"),
            "Look at `postroad control list` for the members",
        )),
    }
}

impl Consensus {
    /// Adds a node that learns but does not vote, reached at `address`. Adding a member again changes nothing.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn add_learner(&self, node: NodeId, address: String) -> Result<(), ChangeError> {
        let changes = ChangeMembers::AddNodes(BTreeMap::from([(node.0, BasicNode::new(address))]));
        self.change(|view| view.check_addition(node), changes, true).await
    }

    /// Gives a learner that has caught up a vote. 1 to 7 may vote.
    ///
    /// # Errors
    /// Refused with `CONTROL_TOO_MANY_VOTERS`, `CONTROL_LEARNER_BEHIND`, `QUORUM_WOULD_BE_LOST` and others.
    pub async fn promote(&self, node: NodeId) -> Result<(), ChangeError> {
        let changes = ChangeMembers::AddVoterIds(BTreeSet::from([node.0]));
        self.change(|view| view.check_promotion(node), changes, true).await
    }

    /// Takes a voter's vote; it goes on learning. A leader that is asked to demote itself hands over first and answers
    /// [`ChangeError::NotLeader`] with its heir.
    ///
    /// # Errors
    /// Refused with `CONTROL_LAST_VOTER` and `QUORUM_WOULD_BE_LOST` if the rest could decide nothing.
    pub async fn demote(&self, node: NodeId) -> Result<(), ChangeError> {
        self.lose(node, true).await
    }

    /// Takes a member out of the group. A leader that is asked to remove itself hands over first and answers
    /// [`ChangeError::NotLeader`] with its heir.
    ///
    /// # Errors
    /// Refused with `CONTROL_LAST_VOTER` and `QUORUM_WOULD_BE_LOST` if the rest could decide nothing.
    pub async fn remove(&self, node: NodeId) -> Result<(), ChangeError> {
        self.lose(node, false).await
    }

    async fn lose(&self, node: NodeId, keep_learning: bool) -> Result<(), ChangeError> {
        let (view, ()) = self.agreeing(|view| view.check_loss(node)).await?;
        if node == self.0.me {
            let leader = self.step_down().await?;
            return Err(ChangeError::NotLeader { leader: Some(leader) });
        }
        let node_set = BTreeSet::from([node.0]);
        let changes = match (view.voters.contains(&node), keep_learning) {
            (true, _) => ChangeMembers::RemoveVoters(node_set),
            (false, false) => ChangeMembers::RemoveNodes(node_set),
            (false, true) => return Ok(()),
        };
        self.change(|view| view.check_loss(node), changes, keep_learning).await
    }

    /// Hands leadership to the voter that is least behind, and returns it once it leads. Nothing acknowledged is lost,
    /// and proposals meanwhile are answered that this member does not lead.
    ///
    /// # Errors
    /// Refused with `CONTROL_NO_SUCCESSOR` if no other voter answers; unknown if nobody took over in time, in which
    /// case the others elect a leader, perhaps this one again.
    pub async fn step_down(&self) -> Result<NodeId, ChangeError> {
        let _changing = self.0.changing.try_lock().map_err(|_| in_progress())?;
        let (_, heir) = self.agreeing(View::heir).await?;
        let mut leadership = self.leadership();
        let asked = self.0.raft.trigger().transfer_leader(heir.0).await;
        asked.map_err(|fatal| ChangeError::Stopped { why: why(&fatal) })?;
        let other = |leader: Option<NodeId>| leader.filter(|leader| *leader != self.0.me);
        let taken = timeout(self.election_wait(), leadership.until(|now| other(now.leader).is_some())).await;
        match taken {
            Ok(Some(now)) => other(now.leader).ok_or(ChangeError::NotLeader { leader: None }),
            Ok(None) => Err(ChangeError::Stopped { why: "it was shut down".to_owned() }),
            Err(_) => Err(ChangeError::Unknown { found: format!("{heir} was asked to lead and has not begun to") }),
        }
    }

    /// Asks `check`, and again after each heartbeat while some member is silent: a new leader has heard of nobody yet,
    /// which is no reason to refuse. After an election's time it is.
    async fn agreeing<T>(&self, check: impl Fn(&View) -> Result<T, Refusal>) -> Result<(View, T), ChangeError> {
        let timing = self.0.timing;
        let deadline = Instant::now() + timing.election_max;
        loop {
            let view = self.leader_view()?;
            match check(&view) {
                Ok(found) => return Ok((view, found)),
                Err(refusal) if view.all_answer() || Instant::now() >= deadline => {
                    return Err(ChangeError::Refused(refusal));
                }
                Err(_) => sleep(timing.heartbeat).await,
            }
        }
    }

    /// Completes a change that the last leader left half done, unless one of this leader is under way.
    pub(super) async fn complete_change(&self) {
        let Ok(_changing) = self.0.changing.try_lock() else { return };
        if let Err(error) = self.complete().await {
            tracing::warn!(code = error.code(), %error, "a half-done change of the control group is not completed yet");
        }
    }

    async fn complete(&self) -> Result<(), ChangeError> {
        self.commit(ChangeMembers::AddVoterIds(BTreeSet::new()), true).await
    }

    async fn change(
        &self,
        check: impl Fn(&View) -> Result<(), Refusal>,
        changes: Changes,
        retain: bool,
    ) -> Result<(), ChangeError> {
        let _changing = self.0.changing.try_lock().map_err(|_| in_progress())?;
        self.agreeing(check).await?;
        if self.members_are_joint() {
            self.complete().await?;
        }
        self.commit(changes, retain).await
    }

    async fn commit(&self, changes: Changes, retain: bool) -> Result<(), ChangeError> {
        match timeout(limits::RAFT_CHANGE_WAIT, self.0.raft.change_membership(changes, retain)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::Fatal(fatal))) => Err(ChangeError::Stopped { why: why(&fatal) }),
            Ok(Err(RaftError::APIError(error))) => Err(match error {
                ClientWriteError::ForwardToLeader(forward) => {
                    ChangeError::NotLeader { leader: self.other(forward.leader_id) }
                }
                ClientWriteError::ChangeMembershipError(error) => refused(error),
                error => ChangeError::Unknown { found: error.to_string() },
            }),
            Err(_) => {
                Err(ChangeError::Unknown { found: "no majority of the control nodes took it in time".to_owned() })
            }
        }
    }
}
