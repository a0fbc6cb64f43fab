//! One node in a few figures, small enough to be asked of every node of the fleet each few seconds.

use postroad_actors::{
    inspect::{self, ActorRow},
    status::{
        Health, Problem, Status,
        flows::Flows,
        local::{Channel, Circuit, RelayService, Session, Watch},
    },
};
use postroad_cluster::{
    id::{NodeId, Role},
    time::WallTime,
};
use serde::{Deserialize, Serialize};

use super::control::OwnMember;

/// The longest that a turn may take before the actor counts as stuck, in milliseconds: turns are computations.
pub const STUCK_MS: u64 = 1_000;

/// Waiting events from which a mailbox counts as deep.
pub const DEEP: usize = 64;

/// Sessions and circuits that a node tells of itself; the rest is on its own pages.
const SHOWN_MAX: usize = 256;

/// Alarms that a node tells of itself; more of them have one cause.
const ALARMS_MAX: usize = 16;

/// An actor that stands out, with the figure in which it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outstanding {
    /// Its path.
    pub path: String,
    /// Events that wait for it.
    pub depth: usize,
    /// The share of the time that its turns take.
    pub busy_share: f64,
}

/// The way of a node over a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The relay.
    pub relay: NodeId,
    /// Whether the session stands.
    pub up: bool,
    /// Its last round trip, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Why the last attempt or session ended.
    pub last_end: Option<String>,
}

/// A circuit in a few figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The node at the other end.
    pub peer: NodeId,
    /// The circuit's number: a pair may have several.
    #[serde(default)]
    pub circuit: u64,
    /// The relay that carries it.
    pub relay: Option<NodeId>,
    /// Why that one.
    pub choice: String,
    /// Moves so far.
    pub moves: u64,
    /// Why it moved last.
    pub move_reason: Option<String>,
    /// Whether its relay is silent and there is no other.
    pub stranded: bool,
    /// Bytes sent and received.
    pub bytes: u64,
    /// Open flows on it.
    pub flows: u64,
    /// Its channels.
    pub channels: Vec<Channel>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vitals {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<Role>,
    /// When these were true, by its wall clock: up to a second before it said them.
    pub now: WallTime,
    /// Its wall clock when it said them; older releases do not tell.
    #[serde(default)]
    pub clock: Option<WallTime>,
    /// The release that it runs.
    pub release: String,
    /// How it stands by itself.
    pub health: Health,
    /// How many things are wrong with it.
    pub problems: usize,
    /// Its actors.
    pub actors: usize,
    /// Those that are down.
    pub down: usize,
    /// Restarts since it started.
    pub restarts: u64,
    /// Events that wait in all mailboxes.
    pub depth: usize,
    /// The actor for which most events wait.
    pub deepest: Option<Outstanding>,
    /// The busiest actor.
    pub busiest: Option<Outstanding>,
    /// Turns of all actors in each of the last seconds, oldest first.
    pub turns: Vec<u32>,
    /// Its flows.
    pub flows: Flows,
    /// Its sessions.
    pub ways: Vec<Way>,
    /// Its circuits.
    pub circuits: Vec<Carried>,
    /// Its relay.
    pub relay: Option<RelayService>,
    /// What ends by itself unless it is renewed.
    pub watch: Watch,
    /// Its part in the control group, on control nodes.
    pub member: Option<OwnMember>,
    /// What is wrong with it that others do not see, worst first.
    #[serde(default)]
    pub alarms: Vec<Problem>,
}

fn outstanding(row: &ActorRow) -> Outstanding {
    Outstanding { path: row.path.to_string(), depth: row.depth, busy_share: row.busy_share }
}

fn way(session: &Session) -> Way {
    Way {
        relay: session.relay,
        up: session.up,
        round_trip_us: session.round_trip_us,
        last_end: session.last_end.clone().filter(|_| !session.up),
    }
}

fn carried(circuit: &Circuit) -> Carried {
    Carried {
        peer: circuit.peer,
        circuit: circuit.circuit,
        relay: circuit.relay,
        choice: circuit.choice.clone(),
        moves: circuit.moves,
        move_reason: circuit.move_reason.clone(),
        stranded: circuit.stranded,
        bytes: circuit.sent_bytes + circuit.received_bytes,
        flows: circuit.flows,
        channels: circuit.channels.clone(),
    }
}

/// The vitals of the node whose status, actors and turns these are, and whose clock shows `clock`.
pub fn vitals(
    status: &Status,
    clock: WallTime,
    rows: &[ActorRow],
    turns: Vec<u32>,
    member: Option<OwnMember>,
) -> Vitals {
    let is_down = |row: &&ActorRow| matches!(row.status, inspect::Status::Restarting | inspect::Status::Failed);
    let deepest = rows.iter().filter(|row| row.depth > 0).max_by_key(|row| row.depth);
    let busiest = rows.iter().filter(|row| row.busy_share > 0.0);
    Vitals {
        id: status.node.id,
        name: status.node.name.to_string(),
        roles: status.node.roles.clone(),
        now: status.now,
        clock: Some(clock),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        health: status.health,
        problems: status.problems.len(),
        actors: rows.len(),
        down: rows.iter().filter(is_down).count(),
        restarts: rows.iter().map(|row| row.restarts).sum(),
        depth: rows.iter().map(|row| row.depth).sum(),
        deepest: deepest.map(outstanding),
        busiest: busiest.max_by(|one, other| one.busy_share.total_cmp(&other.busy_share)).map(outstanding),
        turns,
        flows: status.flows.clone(),
        ways: status.sessions.iter().take(SHOWN_MAX).map(way).collect(),
        circuits: status.circuits.iter().take(SHOWN_MAX).map(carried).collect(),
        relay: status.relay_service.clone(),
        watch: status.watch.clone(),
        member,
        alarms: status.problems.iter().filter(|problem| problem.own).take(ALARMS_MAX).cloned().collect(),
    }
}
