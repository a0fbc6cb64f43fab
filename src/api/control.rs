//! The handlers of `/api/control`: the members of the control group. Changes are made by the leader, so they are carried
//! there; the authority is opened only on the node that it certifies.

use std::time::Duration;

use postroad_cluster::{
    command::{Action, Command, Outcome},
    id::{NodeId, Role},
    time::{Clock as _, Span},
    wire::control::{ControlRequest, ControlResponse},
};
use postroad_raft::ChangeError;
use postroad_trust::Authority;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Answer, Core, client, node_of, refusal,
    route::{Call, data},
    view,
};
use crate::errors::Failure;

/// How long a change is tried while an election is under way or a new member still learns.
const CHANGE_WAIT: Duration = Duration::from_secs(20);

/// How long the leader itself tries what another node has carried to it; that one asks again.
const CARRIED_WAIT: Duration = Duration::from_secs(3);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// How long the leader may take to answer what is carried to it: a change is committed within
/// [`RAFT_CHANGE_WAIT`](postroad_cluster::limits::RAFT_CHANGE_WAIT), twice for a removal.
const CARRY_WAIT: Span = Span::from_secs(35);

/// Refusals that pass by themselves within seconds.
const PASSING: [&str; 3] = ["CONTROL_NOT_A_MEMBER", "CONTROL_LEARNER_BEHIND", "CONTROL_CHANGE_IN_PROGRESS"];

/// A change of the members.
#[derive(Clone, Copy)]
enum Change {
    Promote(NodeId),
    Demote(NodeId),
    Remove(NodeId),
    StepDown,
}

impl Core {
    pub(super) async fn control_list(&self) -> Answer {
        self.consensus()?;
        let status = self.status().await;
        Ok(data(status.control()))
    }

    /// Certifies this node with the authority and gives it a vote.
    pub(super) async fn control_promote(&self, call: &Call) -> Answer {
        if call.carried {
            return Err(Failure::wrong_use("an authority is opened only on the node that it certifies"));
        }
        let wanted: view::Promote = call.read()?;
        self.learned().await?;
        let (state, _) = self.state().await?;
        let (node, record) = node_of(&state, &wanted.name)?;
        if !record.roles.contains(&Role::Control) {
            let message =
                format!("{} is no control node, and a node's roles are those that it joined with", record.name);
            return Err(Failure::refused("ROLE_MISSING", message)
                .hint("Invite a control node: postroad token create --role control"));
        }
        if node != self.fabric().me {
            let (name, me) = (&record.name, &self.fabric().name);
            let message = format!(
                "{name} is promoted on its own host, and this is {me}: the keys that the authority certifies never \
                 leave theirs"
            );
            return Err(Failure::refused("CONTROL_ELSEWHERE", message)
                .hint(format!("On {name}: postroad control promote {name} --authority FILE")));
        }
        let certified = !self.is_certified(&state);
        if certified {
            let authority = unseal(wanted).await?;
            self.service()?.certify(&authority).await.map_err(refusal)?;
        }
        let voted = !self.consensus()?.status().voters.contains_key(&node);
        if voted {
            self.change(call, Change::Promote(node), &format!("/api/control/voters/{node}"), "POST").await?;
        }
        Ok(data(json!({ "node": record.name, "id": node, "certified": certified, "voted": voted })))
    }

    /// Waits until the log has reached this node: one that has just joined knows nobody yet, not even itself.
    async fn learned(&self) -> Result<(), Failure> {
        let consensus = self.consensus()?;
        let (me, deadline) = (self.fabric().me, Instant::now() + CHANGE_WAIT);
        while !consensus.state().nodes.contains_key(&me) {
            if Instant::now() >= deadline {
                return Err(Failure::unreachable("the leader has not reached this control node with its log yet")
                    .hint("Check that UDP reaches the address that it advertises: postroad status"));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Whether the authority has certified this node and the cluster knows it.
    fn is_certified(&self, state: &postroad_cluster::state::State) -> bool {
        let fabric = self.fabric();
        let Some(keys) = fabric.kept().issuing() else { return false };
        let agreed =
            state.issuers.get(&fabric.me).is_some_and(|record| record.snapshot_key == keys.snapshot.public().0);
        agreed && matches!(keys.certified_issuer(&fabric.cluster), Some(Ok(_)))
    }

    pub(super) async fn voter_add(&self, call: &Call, name: &str) -> Answer {
        let (state, _) = self.state().await?;
        let (node, record) = node_of(&state, name)?;
        self.change(call, Change::Promote(node), &call.path, "POST").await?;
        Ok(data(json!({ "node": record.name, "id": node })))
    }

    pub(super) async fn voter_remove(&self, call: &Call, name: &str) -> Answer {
        let (state, _) = self.state().await?;
        let (node, record) = node_of(&state, name)?;
        self.change(call, Change::Demote(node), &call.path, "DELETE").await?;
        Ok(data(json!({ "node": record.name, "id": node })))
    }

    /// Takes a control node out of the group and the cluster.
    pub(super) async fn control_remove(&self, call: &Call, name: &str) -> Answer {
        let (state, _) = self.state().await?;
        let (node, record) = node_of(&state, name)?;
        if !record.roles.contains(&Role::Control) {
            let message = format!("{} is no control node", record.name);
            return Err(Failure::refused("ROLE_MISSING", message)
                .hint(format!("To take it out of the cluster: postroad node remove {}", record.name)));
        }
        self.change(call, Change::Remove(node), &format!("/api/control/{node}"), "DELETE").await?;
        Ok(data(json!({ "node": record.name, "id": node })))
    }

    pub(super) async fn control_step_down(&self, call: &Call) -> Answer {
        let before = self.consensus()?.leadership().get().leader;
        self.change(call, Change::StepDown, &call.path, "POST").await?;
        let after = self.consensus()?.leadership().get().leader;
        let state = self.consensus()?.state();
        let name = |node: Option<NodeId>| Some(state.nodes.get(&node?)?.name.to_string());
        Ok(data(json!({ "before": name(before), "leader": name(after) })))
    }

    /// Makes a change here if this node leads, and else by the leader, whoever that is by then.
    async fn change(&self, call: &Call, change: Change, path: &str, method: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + if call.carried { CARRIED_WAIT } else { CHANGE_WAIT };
        loop {
            let leader = self.consensus()?.leadership().get().leader;
            let tried = match leader {
                Some(leader) if leader == self.fabric().me => self.change_here(change).await,
                Some(leader) if !call.carried => self.carry(leader, method, path).await,
                _ => Err(not_leader()),
            };
            let Err(failure) = tried else { return Ok(()) };
            let passing = failure.code == "CONTROL_NOT_LEADER" || PASSING.contains(&&*failure.code);
            let handed_over = call.carried && failure.code == "CONTROL_NOT_LEADER";
            if !passing || handed_over || Instant::now() >= deadline {
                return Err(failure);
            }
            if matches!(change, Change::StepDown) && leader.is_some() && self.leads_another(leader) {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }

    fn leads_another(&self, before: Option<NodeId>) -> bool {
        let now = self.fabric().consensus.as_ref().and_then(|consensus| consensus.leadership().get().leader);
        now.is_some() && now != before
    }

    async fn change_here(&self, change: Change) -> Result<(), Failure> {
        let consensus = self.consensus()?;
        let changed = match change {
            Change::Promote(node) => consensus.promote(node).await,
            Change::Demote(node) => consensus.demote(node).await,
            Change::StepDown => consensus.step_down().await.map(drop),
            Change::Remove(node) => return self.remove_here(node).await,
        };
        changed.map_err(changing)
    }

    /// The vote first, since only the group may refuse that; then the node, so that the leader does not teach it again;
    /// then its place as a learner.
    async fn remove_here(&self, node: NodeId) -> Result<(), Failure> {
        let consensus = self.consensus()?;
        let mut trial = (*consensus.state()).clone();
        let (at, by) = (self.fabric().clock.wall(), self.fabric().me);
        let action = Action::NodeRemove { node };
        let command = Command { at, by, expected: None, action: action.clone() };
        if let Outcome::Refused(refused) = trial.apply(trial.version.0 + 1, command) {
            return Err(refusal(refused));
        }
        if consensus.status().voters.contains_key(&node) {
            consensus.demote(node).await.map_err(changing)?;
        }
        self.propose(action).await?;
        if consensus.status().learners.contains_key(&node) {
            consensus.remove(node).await.map_err(changing)?;
        }
        Ok(())
    }

    async fn carry(&self, leader: NodeId, method: &str, path: &str) -> Result<(), Failure> {
        let request = ControlRequest::Api { method: method.to_owned(), path: path.to_owned(), body: Vec::new() };
        match self.node.carrier().ask(leader, &request, CARRY_WAIT).await {
            Ok(ControlResponse::Api { status, body }) => client::parse(status, &body).map(drop),
            Ok(ControlResponse::Refused(refused)) => Err(refusal(refused)),
            Ok(_) => Err(Failure::failed("ANSWER_MALFORMED", format!("{leader} misunderstood the request"))),
            Err(reason) => {
                let message = format!("the leader {leader} did not answer: {reason}");
                Err(Failure::unreachable(message).hint("It may still act: look at postroad control list"))
            }
        }
    }
}

/// Opens the authority on a thread of its own, since guessing is made slow on purpose.
async fn unseal(wanted: view::Promote) -> Result<Authority, Failure> {
    let opening =
        tokio::task::spawn_blocking(move || Authority::unseal(wanted.authority.as_bytes(), &wanted.passphrase));
    match opening.await {
        Ok(Ok(authority)) => Ok(authority),
        Ok(Err(error)) => Err(Failure::refused(error.code(), error.to_string())),
        Err(_) => Err(Failure::failed("AUTHORITY_NOT_OPENED", "the authority was not opened, since the node stops")),
    }
}

fn not_leader() -> Failure {
    refusal(postroad_cluster::command::Refusal::new(
        "CONTROL_NOT_LEADER",
        "no control node leads with a majority now",
        "See that more than half of them run and reach each other: postroad control list",
    ))
}

fn changing(error: ChangeError) -> Failure {
    match error {
        ChangeError::Refused(refused) => refusal(refused),
        ChangeError::NotLeader { .. } => not_leader(),
        ChangeError::Unknown { .. } => {
            Failure { code: "CONTROL_OUTCOME_UNKNOWN".into(), ..Failure::timed_out(error.to_string()) }
        }
        ChangeError::Stopped { .. } => {
            Failure { code: "CONTROL_STOPPED".into(), ..Failure::unreachable(error.to_string()) }
        }
    }
}
