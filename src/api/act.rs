//! The handlers of what is done by hand: the audit, actors that are restarted, circuits that are moved, and the plan for
//! moving them.

use std::{collections::BTreeMap, time::Duration};

use postroad_actors::{inspect::Status, status::relays::Standing};
use postroad_cluster::{
    circuit::MoveReason,
    command::{Action, Command, Outcome, Refusal},
    id::{CircuitId, Name, NodeId},
    limits::JOIN_ANSWER_WAIT,
    rebalance::{self, Carried, Move},
    time::Clock as _,
    wire::control::{ControlRequest, ControlResponse},
};
use postroad_transport::node_socket::CircuitKey;
use serde_json::json;
use tokio::time::sleep;

use super::{
    Answer, Core, client, refusal,
    route::{Call, data},
    view,
};
use crate::{
    console::query::{Query, decode},
    errors::Failure,
};

/// What a control node says when it closes the connection of a node that was removed, often before the answer is out.
pub(super) const REVOKED: &str = "(CERTIFICATE_REVOKED)";

/// Why an actor fails that is restarted by hand.
const WHY: &str = "an operator had it restarted";

/// How long an actor is left for the answer to a control node to go out.
const ANSWER_FIRST: Duration = Duration::from_millis(200);

/// Lines of the audit that are told at a time.
const LINES: usize = 200;

impl Core {
    /// The last lines of the audit as agreed, newest first; nodes that are no control nodes ask one.
    pub(super) async fn audit(&self, carried: bool) -> Answer {
        if self.consensus().is_err()
            && !carried
            && let Some(answer) = self.of_control("/api/console/audit").await
        {
            return answer;
        }
        let state = self.consensus()?.state();
        let name = |id: NodeId| state.nodes.get(&id).map_or_else(|| id.to_string(), |record| record.name.to_string());
        let lines = state.audit.iter().rev().take(LINES).map(|line| view::AuditLine {
            version: line.version.0,
            at: line.at,
            by: name(line.by),
            what: line.what.clone(),
        });
        Ok(data(view::Audit { now: self.fabric().wall(), lines: lines.collect() }))
    }

    /// Has the cluster agree on a line of the audit, before what it says is done.
    pub(super) async fn note(&self, who: &Name, what: &str, reason: &str) -> Result<(), Failure> {
        let action = Action::Note { who: who.clone(), what: what.to_owned(), reason: reason.to_owned() };
        if self.fabric().consensus.is_some() {
            return self.propose(action).await.map(drop);
        }
        self.propose_as_node(action).await
    }

    /// A node that is no control node proposes what concerns itself to one that it is connected to.
    ///
    /// # Errors
    /// A refusal, or that no control node took it.
    pub(super) async fn propose_as_node(&self, action: Action) -> Result<(), Failure> {
        let fabric = self.fabric();
        let command = Box::new(Command { at: fabric.clock.wall(), by: fabric.me, expected: None, action });
        let mut last = "this node is connected to none".to_owned();
        for (control, connection) in fabric.controls() {
            let request = ControlRequest::Propose { command: command.clone() };
            match connection.call::<ControlRequest, ControlResponse>(&request, JOIN_ANSWER_WAIT).await {
                Ok(ControlResponse::Outcome(Outcome::Refused(refused)) | ControlResponse::Refused(refused)) => {
                    return Err(refusal(refused));
                }
                Ok(ControlResponse::Outcome(_)) => return Ok(()),
                Ok(_) => last = format!("{control} did not reach the leader"),
                Err(error) => last = format!("{control}: {error}"),
            }
            // Whoever was removed is one for all of them.
            if last.contains(REVOKED) {
                break;
            }
        }
        Err(Failure::unreachable(format!("no control node took it: {last}")).hint("Try again once one answers"))
    }

    /// Lets an actor fail, so that its supervisor starts it anew: of this node, or of the one that the query names.
    pub(super) async fn restart(&self, call: &Call, path: &str) -> Answer {
        let query = Query::parse(&call.query);
        let wanted = query.get("node");
        let own = wanted.is_empty() || wanted == self.fabric().name.as_str();
        if call.carried {
            return self.restart_for_another(path);
        }
        if own {
            return self.restart_here(path);
        }
        self.service()?;
        let node = self.member(wanted).await?;
        if node == self.fabric().me {
            return self.restart_here(path);
        }
        self.act_on(node, format!("/api/restart/{}", Query::default().address(path))).await
    }

    /// A control node wants an actor of this node restarted, for whoever acts from its console.
    fn restart_for_another(&self, path: &str) -> Answer {
        if self.acts {
            let directory = self.fabric().directory.clone();
            let view = directory.view(path).ok_or_else(|| self.no_actor(path))?;
            if !matches!(view.status, Status::Alive | Status::Busy) {
                return Err(down(path));
            }
            let told = data(json!({ "actor": path, "node": self.fabric().name }));
            let path = path.to_owned();
            // The answer goes out first: the actor may hold the connection that takes it.
            tokio::spawn(async move {
                sleep(ANSWER_FIRST).await;
                // Whoever it ended by meanwhile, it starts anew.
                let _ = directory.fail(&path, WHY);
            });
            return Ok(told);
        }
        let name = &self.fabric().name;
        Err(Failure::refused(
            "CONSOLE_READS",
            format!("the console of {name} only reads, so nobody restarts its actors"),
        )
        .hint(format!("Start {name} with console.act = \"on\"")))
    }

    fn restart_here(&self, path: &str) -> Answer {
        match self.fabric().directory.fail(path, WHY) {
            Some(true) => Ok(data(json!({ "actor": path, "node": self.fabric().name }))),
            Some(false) => Err(down(path)),
            None => Err(self.no_actor(path)),
        }
    }

    /// Has another node do what a path of its API does.
    async fn act_on(&self, node: NodeId, path: String) -> Answer {
        let (status, body) = self.service()?.act(node, path).await.map_err(refusal)?;
        client::parse(status, &body)
    }

    /// Moves a circuit of this node, as a control node has planned it.
    pub(super) fn move_circuit(&self, call: &Call, circuit: &str) -> Answer {
        let query = Query::parse(&call.query);
        let number = |key: &str| query.number(key).ok_or_else(|| Failure::wrong_use(format!("{key} is no number")));
        let circuit = circuit.parse().map_err(|_| Failure::wrong_use("the circuit is no number"))?;
        let (peer, relay) = (NodeId(number("peer")?), NodeId(number("relay")?));
        let key = CircuitKey { peer, circuit: CircuitId(circuit) };
        let socket = &self.fabric().socket;
        let gone = |_| Failure::refused("CIRCUIT_UNKNOWN", "the circuit has ended meanwhile");
        socket.move_to(key, relay, MoveReason::Assigned).map_err(gone)?;
        if socket.status(key).map_err(gone)?.relay == Some(relay) {
            return Ok(data(json!({ "circuit": circuit.to_string(), "relay": relay })));
        }
        let name = self.fabric().relay(relay).map_or_else(|| relay.to_string(), |known| known.name.to_string());
        Err(Failure::refused("RELAY_NO_CANDIDATE", format!("no probe of the circuit comes back over {name}"))
            .hint(format!("See how it stands: postroad relay show {name}")))
    }

    /// Plans how circuits are to be moved so that flows are spread, and has it done unless only the plan is wanted.
    pub(super) async fn rebalance(&self, wanted: view::Rebalance) -> Answer {
        let (moves, mut warnings) = self.rebalance_plan().await?;
        let state = self.consensus()?.state();
        let name = |id: NodeId| state.nodes.get(&id).map_or_else(|| id.to_string(), |record| record.name.to_string());
        let mut told = Vec::new();
        for next in moves {
            let circuit = &next.circuit;
            let query =
                Query::default().with("peer", &circuit.peer.0.to_string()).with("relay", &next.to.0.to_string());
            let path = query.address(&format!("/api/moves/{}", circuit.circuit.0));
            let failure = if wanted.dry_run { None } else { self.act_on(circuit.node, path).await.err() };
            if let Some(failure) = &failure {
                let (one, other) = (name(circuit.node), name(circuit.peer));
                warnings.push(format!("the circuit of {one} and {other} was not moved: {failure}"));
            }
            told.push(view::Moved {
                node: name(circuit.node),
                peer: name(circuit.peer),
                circuit: circuit.circuit.0.to_string(),
                from: name(circuit.relay),
                to: name(next.to),
                flows: circuit.flows,
                why: why(&next, name),
                done: !wanted.dry_run && failure.is_none(),
            });
        }
        Ok(data(view::Rebalanced { dry_run: wanted.dry_run, moves: told }).warn(warnings))
    }

    /// The plan by what nodes have reported to the leader.
    async fn rebalance_plan(&self) -> Result<(Vec<Move>, Vec<String>), Failure> {
        let (state, warnings) = self.state().await?;
        let found = self.status().await;
        let relays = found.relays();
        if relays.list.iter().all(|relay| relay.connected.is_none()) {
            return Err(refusal(Refusal::new(
                "NO_LEADER",
                "what relays carry is known to the leader, which did not answer",
                "Try again in a few seconds: postroad control list",
            )));
        }
        let ids: BTreeMap<&str, NodeId> = state.nodes.iter().map(|(id, record)| (record.name.as_str(), *id)).collect();
        let id = |name: &str| ids.get(name).copied();
        let circuit = |known: &postroad_actors::status::relays::Carried| {
            Some(Carried {
                node: id(&known.between[0])?,
                peer: id(&known.between[1])?,
                circuit: CircuitId(known.circuit.parse().ok()?),
                relay: id(known.relay.as_deref()?)?,
                flows: known.flows,
            })
        };
        let circuits: Vec<Carried> = relays.circuits.iter().filter_map(circuit).collect();
        let ready = relays.list.iter().filter(|relay| relay.state == Standing::Ready);
        let reached = relays.list.iter().flat_map(|relay| {
            let reached = relay.reached_by.iter();
            reached.filter_map(move |(node, us)| Some(((id(node)?, relay.id), *us)))
        });
        let facts =
            rebalance::Relays { usable: ready.map(|relay| relay.id).collect(), round_trips_us: reached.collect() };
        Ok((rebalance::plan(&circuits, &facts), warnings))
    }
}

fn down(path: &str) -> Failure {
    Failure::refused("ACTOR_DOWN", format!("{path} is not running, so it cannot be restarted"))
        .hint(format!("See why: postroad actor {path}"))
}

/// What speaks for a move, in a sentence.
fn why(next: &Move, name: impl Fn(NodeId) -> String) -> String {
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1e3);
    let before = next.from_round_trip_us.map_or_else(|| "not known".to_owned(), ms);
    format!(
        "{} carries {} flows and {} {}; over it {} there and back instead of {before}",
        name(next.circuit.relay),
        next.from_flows,
        name(next.to),
        next.to_flows,
        ms(next.to_round_trip_us),
    )
}

/// The path of an actor in a path of the API.
pub(super) fn actor_path(parts: &[&str]) -> String {
    decode(&parts.join("/"))
}
