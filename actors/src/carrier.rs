//! The way between control nodes: one connection to each, dialled when needed, for Raft and for what goes to the leader.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, Weak},
};

use postroad_cluster::{
    command::{Command, Outcome, Refusal},
    id::{NodeId, Role},
    limits::{ADMIT_PAUSE, CALL_WAIT, DIAL_WAIT, ELECTION_WAIT, JOIN_ANSWER_WAIT},
    time::Span,
    wire::control::{ControlRequest, ControlResponse},
};
use postroad_raft::{Carrier, ProposeError, Reply};
use postroad_transport::{
    connection::Connection,
    endpoint::{Expect, transport},
    tls::Protocol,
};

use crate::{dial, directory::lock, fabric::Fabric, ports::sleep, trace};

/// Connections to other control nodes, for as long as they are good.
#[derive(Default)]
pub struct ControlCarrier {
    fabric: OnceLock<Weak<Fabric>>,
    open: Mutex<BTreeMap<NodeId, Arc<tokio::sync::Mutex<Option<Connection>>>>>,
}

impl ControlCarrier {
    /// The carrier is made before the fabric, whose consensus needs it.
    pub(crate) fn bind(&self, fabric: &Arc<Fabric>) {
        let _ = self.fabric.set(Arc::downgrade(fabric));
    }

    /// Forgets every connection.
    pub(crate) fn clear(&self) {
        lock(&self.open).clear();
    }

    async fn connection(&self, to: NodeId) -> Result<Connection, String> {
        let fabric = self.fabric.get().and_then(Weak::upgrade).ok_or("the node is not up")?;
        let place = Arc::clone(lock(&self.open).entry(to).or_default());
        // One dial at a time to each; the others wait for it and use what it brings.
        let mut place = place.lock().await;
        if let Some(connection) = place.as_ref().filter(|connection| connection.close_reason().is_none()) {
            return Ok(connection.clone());
        }
        let address = address(&fabric, to).ok_or_else(|| format!("{to} has no address"))?;
        let expect = Expect { node: Some(to), role: Role::Control };
        let dialling = dial::dial(&fabric, &address, Protocol::Control, expect, transport::control());
        let connection = tokio::select! {
            biased;
            connection = dialling => connection?,
            () = sleep(&*fabric.clock, DIAL_WAIT) => return Err(format!("{to} did not answer")),
        };
        *place = Some(connection.clone());
        Ok(connection)
    }

    /// Asks a control node.
    ///
    /// # Errors
    /// Why there is no answer, for people.
    pub async fn ask(&self, to: NodeId, request: &ControlRequest, within: Span) -> Result<ControlResponse, String> {
        call(&self.connection(to).await?, request, within).await
    }
}

async fn call(connection: &Connection, request: &ControlRequest, within: Span) -> Result<ControlResponse, String> {
    connection.call::<ControlRequest, ControlResponse>(request, within).await.map_err(|error| error.to_string())
}

fn address(fabric: &Fabric, to: NodeId) -> Option<String> {
    let agreed = fabric.consensus.as_ref().and_then(|consensus| consensus.state().controls().remove(&to));
    agreed.or_else(|| fabric.kept().controls.remove(&to))
}

/// Carries Raft's messages; a handle of its own, since the consensus owns it.
pub(crate) struct RaftCarrier(pub(crate) Arc<ControlCarrier>);

impl Carrier for RaftCarrier {
    fn call(&self, to: NodeId, message: Vec<u8>, deadline: Span) -> Reply {
        let carrier = Arc::clone(&self.0);
        Box::pin(async move {
            match carrier.ask(to, &ControlRequest::Raft { message }, deadline).await? {
                ControlResponse::Raft { message } => Ok(message),
                ControlResponse::Refused(refusal) => Err(refusal.to_string()),
                _ => Err(format!("{to} misunderstood a message of the group")),
            }
        })
    }
}

/// Brings a command to the leader, wherever it is, and returns what came of it. An election is waited for until the
/// group has been without a leader for [`ELECTION_WAIT`]; from then on the answer is a refusal at once. Nothing is sent
/// twice that may have taken effect.
///
/// # Errors
/// A refusal with what is known: where the leader was looked for, and whether the command may still take effect.
pub(crate) async fn propose(fabric: &Fabric, carrier: &ControlCarrier, command: Command) -> Result<Outcome, Refusal> {
    let consensus = fabric.consensus.as_ref().ok_or_else(not_control)?;
    let deadline = fabric.now().after(ELECTION_WAIT);
    loop {
        let leaderless = consensus.leaderless_for();
        if leaderless >= ELECTION_WAIT {
            let found = format!("no control node has led with a majority for {} s", leaderless.as_secs());
            return Err(no_leader(&found, "Start the control nodes that are down: postroad control list"));
        }
        let refusal = match trace::propose(fabric, consensus, command.clone()).await {
            Ok((_, outcome)) => return Ok(outcome),
            Err(ProposeError::NotLeader { leader: Some(leader) }) => match carrier.connection(leader).await {
                Ok(connection) => {
                    let request = ControlRequest::Propose { command: Box::new(command.clone()) };
                    match call(&connection, &request, JOIN_ANSWER_WAIT).await {
                        Ok(ControlResponse::Outcome(outcome)) => return Ok(outcome),
                        Ok(ControlResponse::Refused(refusal)) => return Err(refusal),
                        Ok(_) => no_leader(&format!("{leader} does not lead any more"), AGAIN),
                        Err(reason) => return Err(unknown(leader, &reason)),
                    }
                }
                Err(reason) => no_leader(&reason, AGAIN),
            },
            Err(error @ ProposeError::NotLeader { leader: None }) => no_leader(&error.to_string(), AGAIN),
            Err(error) => {
                return Err(Refusal::new(error.code(), error.to_string(), "See postroad status, then try again"));
            }
        };
        if fabric.now() >= deadline {
            return Err(refusal);
        }
        sleep(&*fabric.clock, ADMIT_PAUSE).await;
    }
}

const AGAIN: &str = "Try again in a few seconds";

fn unknown(leader: NodeId, found: &str) -> Refusal {
    let message = format!("the leader {leader} was asked and did not answer ({found}): it may still take effect");
    Refusal::new("OUTCOME_UNKNOWN", message, "Look whether it did, then try again: postroad status")
}

fn no_leader(found: &str, hint: &str) -> Refusal {
    Refusal::new("NO_LEADER", format!("the leader was not reached: {found}"), hint)
}

pub(crate) fn not_control() -> Refusal {
    Refusal::new(
        "NOT_CONTROL",
        "this node is no control node, and only those change the cluster",
        "Run the command on a control node; postroad status names them",
    )
}

/// How long a question to the leader may take.
pub(crate) const LEADER_WAIT: Span = CALL_WAIT;
