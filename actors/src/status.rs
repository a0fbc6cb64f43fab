//! What `status` says, as exact figures: is this safe, what is wrong since when, and what to do next.
//!
//! It only reads: agreed state, published states of actors, counters. Nothing here waits for an actor, so that it
//! answers also when one is stuck. A map:
//!
//! - [`control`]: the control group
//! - [`relays`]: relays, their independence and who reaches them
//! - [`flows`]: what this node counts of its flows, refusals and stalls
//! - [`local`]: what this node holds: sessions, circuits, links, connections to control nodes, certificate
//! - `problem`: what is wrong, worst first

pub mod control;
pub mod flows;
pub mod local;
mod problem;
pub mod relays;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    id::{Name, NodeId, Role},
    leader,
    limits::REPORT_STALE,
    time::{Clock as _, Moment, Span, WallTime},
    wire::control::Report,
};
use postroad_transport::switch::Switch;
use serde::{Deserialize, Serialize};

use crate::{
    balancer::role::RoleView,
    directory::lock,
    fabric::Fabric,
    inspect::{self, ActorRow, RestartView},
    leader::LEADER,
};

use control::ControlView;
use flows::Flows;
use local::{Circuit, ControlConnection, Link, RelayService, Session, Watch};
use relays::Relays;

/// How things stand, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Nothing is wrong, and something may break.
    #[default]
    Well,
    /// Nothing is broken, but what breaks next may be felt.
    AtRisk,
    /// Something is broken, and the rest carries on without it.
    Degraded,
    /// Something does not work.
    Failing,
}

impl Health {
    /// The word that people read.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::AtRisk => "at risk",
            Self::Degraded => "degraded",
            Self::Failing => "failing",
        }
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// How bad it is.
    pub health: Health,
    /// A stable `SCREAMING_SNAKE` word for its kind.
    pub code: String,
    /// What it is about: a noun and a name.
    pub about: String,
    /// Since when it has been seen by the node that was asked.
    pub since: WallTime,
    /// What was found and its cause, in a sentence without a full stop.
    pub what: String,
    /// What to do, with the next command.
    pub next: String,
    /// Whether it is one of the node itself, which others do not see.
    #[serde(default)]
    pub own: bool,
}

/// What may still be lost without anybody noticing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanLose {
    /// Voting control nodes; nothing on a node that is none.
    pub controls: Option<u64>,
    /// Independent relays.
    pub relays: u64,
}

/// The node that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Its roles.
    pub roles: Vec<Role>,
}

/// A member of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFact {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Open flows, by its last report to the present leader.
    pub flows: Option<u64>,
    /// The version of its snapshot, by that report.
    pub snapshot: Option<u64>,
}

/// An actor that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorDown {
    /// Where it stands in the tree.
    pub path: String,
    /// Why it is down.
    pub error: Option<String>,
    /// How long until its restart, in milliseconds; nothing if it will not come back by itself.
    pub restart_in_ms: Option<u64>,
}

/// An actor that wants a look, though it is not down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noticed {
    /// Where it stands in the tree.
    pub path: String,
    /// `stuck`, `growing` or `restarting`.
    pub lint: String,
    /// What was seen, to follow "the actor PATH ".
    pub what: String,
}

/// The node's actors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actors {
    /// How many there are.
    pub count: usize,
    /// Restarts of all of them since the node started.
    pub restarts: u64,
    /// Those that are down.
    pub down: Vec<ActorDown>,
    /// Those that want a look.
    pub noticed: Vec<Noticed>,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster.
    pub cluster: Name,
    /// The node that was asked.
    pub node: Asked,
    /// When.
    pub now: WallTime,
    /// The worst of the problems.
    pub health: Health,
    /// What may still be lost.
    pub can_lose: CanLose,
    /// What is wrong, worst first.
    pub problems: Vec<Problem>,
    /// The control group; on control nodes.
    pub control: Option<ControlView>,
    /// The fleet; on control nodes.
    pub nodes: Vec<NodeFact>,
    /// The relays that this node knows.
    pub relays: Relays,
    /// How many links there are: all of the cluster on a control node, else this node's.
    pub link_count: usize,
    /// The links of this node.
    pub links: Vec<Link>,
    /// The database balancers that this node has to do with.
    #[serde(default)]
    pub balancers: Vec<RoleView>,
    /// Flows.
    pub flows: Flows,
    /// The circuits of this node, each with the relay that carries it and why.
    pub circuits: Vec<Circuit>,
    /// The sessions of this node.
    pub sessions: Vec<Session>,
    /// The connections of this node to control nodes.
    pub controls: Vec<ControlConnection>,
    /// The relay service, on relays.
    pub relay_service: Option<RelayService>,
    /// What ends by itself unless it is renewed.
    pub watch: Watch,
    /// The actors of this node.
    pub actors: Actors,
}

/// What only the leader knows: how its followers do, and what nodes have reported to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderFacts {
    /// The control group as the leader sees it.
    pub control: ControlView,
    /// The last report of each node.
    pub reports: BTreeMap<NodeId, Report>,
    /// How long ago each of them came, in milliseconds.
    pub silent_ms: BTreeMap<NodeId, u64>,
}

/// When things were first seen as they still are: the node's memory for "since when".
#[derive(Debug, Default)]
pub struct Sightings(Mutex<BTreeMap<String, Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: WallTime,
    last: WallTime,
}

/// What was not seen for this long is over; when it comes again, it is something new.
const SIGHTING_FORGOTTEN: Span = Span::from_secs(20);

/// Things remembered at a time: some for each relay, node and link. More are not remembered, and count as new.
const SIGHTINGS_MAX: usize = 16_384;

impl Sightings {
    /// Since when this has been so: `now`, if it is new.
    pub fn since(&self, what: impl Display, now: WallTime) -> WallTime {
        let mut seen = lock(&self.0);
        let what = what.to_string();
        if seen.len() >= SIGHTINGS_MAX && !seen.contains_key(&what) {
            return now;
        }
        let entry = seen.entry(what).or_insert(Seen { first: now, last: now });
        entry.last = now;
        entry.first
    }

    fn forget(&self, now: WallTime) {
        lock(&self.0).retain(|_, seen| now.since(seen.last) <= SIGHTING_FORGOTTEN);
    }
}

/// What the status of one moment is made from.
pub(crate) struct View<'a> {
    pub(crate) fabric: &'a Fabric,
    pub(crate) now: WallTime,
    pub(crate) names: BTreeMap<NodeId, Name>,
    pub(crate) reports: BTreeMap<NodeId, Report>,
    /// Nodes that have reported lately; nothing where the leader was not asked.
    pub(crate) present: Option<BTreeSet<NodeId>>,
    pub(crate) seen: &'a Sightings,
}

impl View<'_> {
    /// The name of a node, or its number.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.names.get(&node).map_or_else(|| node.to_string(), ToString::to_string)
    }
}

/// What only the leader knows, if this node leads.
pub fn leader_facts(fabric: &Fabric, seen: &Sightings) -> Option<LeaderFacts> {
    let consensus = fabric.consensus.as_ref().filter(|consensus| consensus.leads())?;
    let leader = fabric.directory.find::<leader::Leader, ()>(LEADER)?;
    let (leader, _) = leader.published()?;
    let silent = |(node, heard): (&NodeId, &Moment)| (*node, fabric.now().since(*heard).as_millis() as u64);
    let silent_ms = leader.heard.iter().map(silent).collect();
    let control = control::view(consensus, seen, fabric.clock.wall());
    Some(LeaderFacts { control, reports: leader.reports.clone(), silent_ms })
}

/// How this node and, on a control node, the whole fleet stand. `facts` are the leader's, where it could be asked; `rows`
/// are the node's actors over the last [`ROWS_SECONDS`].
pub fn status(
    fabric: &Arc<Fabric>,
    switch: Option<&Switch>,
    facts: Option<LeaderFacts>,
    rows: &[ActorRow],
    seen: &Sightings,
) -> Status {
    let now = fabric.clock.wall();
    let leaderless = facts.is_none();
    let (control, reports, silent_ms) = match (&fabric.consensus, facts) {
        (Some(_), Some(facts)) => (Some(facts.control), facts.reports, facts.silent_ms),
        (Some(consensus), None) => (Some(control::view(consensus, seen, now)), BTreeMap::new(), BTreeMap::new()),
        (None, _) => (None, BTreeMap::new(), BTreeMap::new()),
    };
    let fresh = |(node, ms): (NodeId, u64)| (u128::from(ms) <= REPORT_STALE.as_millis()).then_some(node);
    let present = (!leaderless).then(|| silent_ms.into_iter().filter_map(fresh).collect());
    let view = View { fabric, now, names: names(fabric), reports, present, seen };
    let kept = fabric.kept();
    let relays = relays::view(&view);
    let mut status = Status {
        cluster: fabric.cluster.clone(),
        node: Asked { id: fabric.me, name: fabric.name.clone(), roles: kept.roles.iter().copied().collect() },
        now,
        health: Health::Well,
        can_lose: CanLose { controls: control.as_ref().map(ControlView::can_lose), relays: relays.can_lose() },
        problems: Vec::new(),
        nodes: nodes(&view),
        control,
        relays,
        link_count: link_count(fabric),
        links: local::links(&view),
        balancers: fabric.balancers.views(fabric),
        flows: flows::flows(&view),
        circuits: local::circuits(&view),
        sessions: local::sessions(&view),
        controls: local::controls(&view),
        relay_service: local::relay_service(fabric, switch),
        watch: local::watch(fabric),
        actors: actors(fabric, rows),
    };
    status.problems = problem::find(&status, &view, leaderless);
    status.health = status.problems.iter().map(|problem| problem.health).max().unwrap_or_default();
    seen.forget(now);
    status
}

fn names(fabric: &Fabric) -> BTreeMap<NodeId, Name> {
    let mut names = BTreeMap::from([(fabric.me, fabric.name.clone())]);
    if let Some(accepted) = fabric.snapshot() {
        names.extend(accepted.content.relays.iter().map(|(node, view)| (*node, view.name.clone())));
        names.extend(accepted.content.peers.iter().map(|(node, view)| (*node, view.name.clone())));
    }
    if let Some(consensus) = &fabric.consensus {
        names.extend(consensus.state().nodes.iter().map(|(node, record)| (*node, record.name.clone())));
    }
    names
}

fn nodes(view: &View<'_>) -> Vec<NodeFact> {
    let Some(consensus) = &view.fabric.consensus else { return Vec::new() };
    let fact = |(id, record): (&NodeId, &postroad_cluster::state::NodeRecord)| {
        let report = view.reports.get(id);
        NodeFact {
            id: *id,
            name: record.name.clone(),
            flows: report.map(|report| report.flows),
            snapshot: report.map(|report| report.snapshot.0),
        }
    };
    consensus.state().nodes.iter().map(fact).collect()
}

fn link_count(fabric: &Fabric) -> usize {
    match &fabric.consensus {
        Some(consensus) => consensus.state().links.len(),
        None => fabric.snapshot().map_or(0, |accepted| accepted.content.links.len()),
    }
}

fn actors(fabric: &Fabric, rows: &[ActorRow]) -> Actors {
    let is_down = |status| matches!(status, inspect::Status::Restarting | inspect::Status::Failed);
    let down = rows.iter().filter(|row| is_down(row.status)).map(|row| {
        let view = fabric.directory.view(&row.path);
        ActorDown {
            path: row.path.to_string(),
            error: view.as_ref().and_then(|view| view.error.clone()),
            restart_in_ms: view.and_then(|view| view.restart_in_ms),
        }
    });
    let restarts = |path: &str| fabric.directory.view(path).map(|view| view.history).unwrap_or_default();
    let now = fabric.clock.wall();
    let noticed = rows.iter().filter_map(|row| noticed(row, now, &restarts)).take(NOTICED_MAX);
    Actors {
        count: rows.len(),
        restarts: rows.iter().map(|row| row.restarts).sum(),
        down: down.collect(),
        noticed: noticed.collect(),
    }
}

/// The window of rates in what is said of actors, in seconds.
pub const ROWS_SECONDS: usize = 20;

/// A turn that takes longer is stuck: turns are computations.
const STUCK_MS: u64 = 1_000;

/// Waiting events from which a mailbox is said to grow, once that lasts.
const GROWING: usize = 64;

/// Restarts within a minute that are a storm; two more and the supervisor fails upwards.
const STORM: usize = 3;

/// Actors of which something is said; more of them have one cause.
const NOTICED_MAX: usize = 20;

/// What there is to say of an actor that is not down.
fn noticed(row: &ActorRow, now: WallTime, restarts: &impl Fn(&str) -> Vec<RestartView>) -> Option<Noticed> {
    let says = |lint: &str, what: String| Some(Noticed { path: row.path.to_string(), lint: lint.to_owned(), what });
    if let Some(ms) = row.busy_for_ms.filter(|ms| *ms >= STUCK_MS) {
        return says("stuck", format!("has been in one turn for {} s and handles nothing else", ms / 1_000));
    }
    if row.depth >= GROWING {
        return says("growing", format!("has {} events waiting and handles {:.0} a second", row.depth, row.rate));
    }
    if row.restarts >= STORM as u64 {
        let lately = |it: &&RestartView| now.since(WallTime(it.wall_ms)) < Span::from_mins(1);
        let history = restarts(&row.path);
        let count = history.iter().filter(lately).count();
        let last = history.last().map(|restart| restart.error.as_str()).unwrap_or_default();
        if count >= STORM {
            return says("restarting", format!("was restarted {count} times within a minute, last for: {last}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_away_and_comes_back_is_new() {
        let seen = Sightings::default();
        assert_eq!(seen.since("relay par-1 is silent", WallTime(1_000)), WallTime(1_000));
        assert_eq!(seen.since("relay par-1 is silent", WallTime(9_000)), WallTime(1_000));
        seen.forget(WallTime(29_000));
        assert_eq!(seen.since("relay par-1 is silent", WallTime(29_000)), WallTime(1_000));
        seen.forget(WallTime(50_000));
        assert_eq!(seen.since("relay par-1 is silent", WallTime(50_000)), WallTime(50_000));
    }

    #[test]
    fn actors_that_want_a_look_are_named_with_what_was_seen() {
        let row = |busy_for_ms, depth, restarts| ActorRow {
            path: "node/relay".into(),
            kind: "relay".into(),
            status: inspect::Status::Busy,
            supervisor: None,
            children: 0,
            depth,
            wait_p99_us: 0,
            rate: 12.0,
            busy_share: 0.0,
            busy_for_ms,
            restarts,
            refused: 0,
            handled: 0,
        };
        let restart = |wall_ms| RestartView {
            wall_ms,
            error: "poison".into(),
            event: None,
            kind: None,
            state_before: None,
            backoff_ms: 100,
        };
        let history = |_: &str| vec![restart(1_000), restart(70_000), restart(80_000), restart(90_000)];
        let says = |row: &ActorRow| noticed(row, WallTime(100_000), &history).map(|it| (it.lint, it.what));
        let lint = |row: &ActorRow| says(row).map(|(lint, _)| lint);
        assert_eq!(says(&row(Some(999), 63, 2)), None);
        assert_eq!(says(&row(Some(2_500), 99, 9)).unwrap().1, "has been in one turn for 2 s and handles nothing else");
        assert_eq!(says(&row(None, 64, 9)).unwrap().1, "has 64 events waiting and handles 12 a second");
        assert_eq!(lint(&row(None, 0, 4)).as_deref(), Some("restarting"));
        assert!(says(&row(None, 0, 4)).unwrap().1.contains("3 times within a minute, last for: poison"));
    }

    #[test]
    fn the_worst_problem_is_the_health() {
        assert!(Health::Failing > Health::Degraded && Health::Degraded > Health::AtRisk);
        assert!(Health::AtRisk > Health::Well);
    }
}
