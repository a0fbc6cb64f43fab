//! One request across nodes: every step that is part of a trace, in the order of time, each with what led to it.

use std::collections::BTreeMap;

use postroad_actors::{inspect::JournalView, trace};
use postroad_cluster::{time::WallTime, trace::TraceId};
use serde::{Deserialize, Serialize};

use super::actor::name;
use crate::{cli::relative, console::figures::nanoseconds};

/// How far apart two nodes' clocks may be for one to have led to what the other did before, in microseconds.
const SKEW_US: u64 = 5_000;

/// One step: an actor's turn with a message, or what a node did outside of its actors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The node.
    pub node: String,
    /// The actor's path; `api` or `group` where it was none.
    pub place: String,
    /// The number of the actor's event.
    pub event: Option<u64>,
    /// The kind of the message, or what was done.
    pub kind: String,
    /// Who sent the message, or for whom it was done.
    pub sender: String,
    /// When it began, in microseconds since 1970 by the node's wall clock.
    pub began_us: u64,
    /// How long after the first step's message was sent, in microseconds.
    pub after_us: u64,
    /// How long the message waited before, in microseconds.
    pub waited_us: u64,
    /// How long it took, in microseconds; nothing while it is under way or if it failed.
    pub took_us: Option<u64>,
    /// What it led to: the names of effects, or the outcome.
    pub effects: Vec<String>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// The step in this list that led to it, as far as it is known.
    pub cause: Option<usize>,
}

impl Step {
    fn sent_us(&self) -> u64 {
        self.began_us.saturating_sub(self.waited_us)
    }

    /// When it was over.
    fn ended_us(&self) -> u64 {
        self.began_us + self.took_us.unwrap_or(0)
    }
}

/// What one node knows of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its steps.
    pub steps: Vec<Step>,
    /// Whether there are more than it tells.
    pub cut: bool,
}

/// A node that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// The page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Which one.
    pub id: TraceId,
    /// When this was put together.
    pub now: WallTime,
    /// When its first message was sent.
    pub began: Option<WallTime>,
    /// From then to the end of its last step, in microseconds.
    pub span_us: u64,
    /// The steps, in the order of time.
    pub steps: Vec<Step>,
    /// How many nodes were asked.
    pub asked: usize,
    /// Nodes with steps in it, in the order of their first ones.
    pub nodes: Vec<String>,
    /// Nodes that did not answer: what they did is not here.
    pub silent: Vec<Silent>,
    /// Nodes that know more steps than they tell.
    pub cut: Vec<String>,
}

impl Trace {
    /// The whole in a line.
    pub fn words(&self) -> String {
        let Some(began) = self.began else { return format!("{} nodes were asked", self.asked) };
        let nodes = self.nodes.len();
        format!(
            "{} steps on {nodes} {} in {}, begun {}",
            relative::count(self.steps.len() as u64),
            if nodes == 1 { "node" } else { "nodes" },
            nanoseconds(self.span_us * 1_000),
            relative::moment(began, self.now)
        )
    }
}

/// What a node tells of a trace: the turns of its actors, and its own steps.
pub fn part(
    node: &str,
    turns: &[(std::sync::Arc<str>, JournalView)],
    steps: &[trace::Step],
    times: &trace::Times,
    most: usize,
) -> Part {
    let wall = |now_ns: u64| times.wall_us(postroad_cluster::time::Moment(now_ns)).unwrap_or_default();
    let turns = turns.iter().map(|(path, turn)| Step {
        node: node.to_owned(),
        place: path.to_string(),
        event: Some(turn.number),
        kind: turn.kind.clone(),
        sender: turn.sender.clone(),
        began_us: wall(turn.now_ns),
        after_us: 0,
        waited_us: turn.waited_ns / 1_000,
        took_us: turn.took_ns.map(|ns| ns / 1_000),
        effects: turn.effects.iter().map(name).collect(),
        failure: turn.failure.clone(),
        cause: None,
    });
    let own = steps.iter().map(|step| Step {
        node: node.to_owned(),
        place: step.place.to_owned(),
        event: None,
        kind: step.kind.clone(),
        sender: step.by.to_string(),
        began_us: wall(step.at.0),
        after_us: 0,
        waited_us: 0,
        took_us: Some(step.took.as_micros() as u64),
        effects: vec![step.outcome.clone()],
        failure: step.failed.then(|| step.outcome.clone()),
        cause: None,
    });
    let mut steps: Vec<Step> = turns.chain(own).collect();
    steps.sort_by(|one, other| (one.began_us, &one.place, one.event).cmp(&(other.began_us, &other.place, other.event)));
    let cut = steps.len() > most;
    steps.truncate(most);
    Part { steps, cut }
}

/// The whole of what nodes tell. `names` are those of nodes by their numbers, as senders are written: `n3`.
pub fn trace(
    id: TraceId,
    now: WallTime,
    parts: Vec<(String, Part)>,
    silent: Vec<Silent>,
    names: &BTreeMap<String, String>,
) -> Trace {
    let asked = parts.len() + silent.len();
    let cut = parts.iter().filter(|(_, part)| part.cut).map(|(node, _)| node.clone()).collect();
    let mut steps: Vec<Step> = parts.into_iter().flat_map(|(_, part)| part.steps).collect();
    for step in &mut steps {
        if let Some(name) = names.get(&step.sender) {
            step.sender.clone_from(name);
        }
    }
    let order = |step: &Step| (step.began_us, step.node.clone(), step.place.clone(), step.event);
    steps.sort_by_key(order);
    let first = steps.iter().map(Step::sent_us).min();
    let last = steps.iter().map(Step::ended_us).max();
    let causes: Vec<Option<usize>> = (0..steps.len()).map(|at| cause(&steps, at)).collect();
    for (step, cause) in steps.iter_mut().zip(causes) {
        step.after_us = step.began_us - first.unwrap_or_default().min(step.began_us);
        step.cause = cause;
    }
    let mut nodes: Vec<String> = Vec::new();
    for step in &steps {
        if !nodes.contains(&step.node) {
            nodes.push(step.node.clone());
        }
    }
    Trace {
        id,
        now,
        began: first.map(|us| WallTime(us / 1_000)),
        span_us: last.unwrap_or_default() - first.unwrap_or_default().min(last.unwrap_or_default()),
        steps,
        asked,
        nodes,
        silent,
        cut,
    }
}

/// The step that led to the one at `at`: the sender's last one before the message was sent.
fn cause(steps: &[Step], at: usize) -> Option<usize> {
    let step = &steps[at];
    let sent = step.sent_us();
    let last = |slack: u64, is: &dyn Fn(&Step) -> bool| {
        let before = |it: &Step| it.began_us <= sent + slack;
        (0..steps.len()).rev().find(|other| *other != at && before(&steps[*other]) && is(&steps[*other]))
    };
    let own = || last(0, &|it| it.node == step.node && it.place == step.sender);
    let remote = || last(SKEW_US, &|it| it.node == step.sender && it.node != step.node);
    // What was agreed goes back to whoever proposed it.
    let agreed = || last(SKEW_US, &|it| step.sender == "log" && it.kind.starts_with("propose "));
    own().or_else(remote).or_else(agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(node: &str, place: &str, sender: &str, began_us: u64, waited_us: u64, took_us: u64) -> Step {
        Step {
            node: node.into(),
            place: place.into(),
            event: None,
            kind: if place == "group" && sender == "api" { "propose link_add".into() } else { "x".into() },
            sender: sender.into(),
            began_us,
            after_us: 0,
            waited_us,
            took_us: Some(took_us),
            effects: Vec::new(),
            failure: None,
            cause: None,
        }
    }

    #[test]
    fn parts_of_nodes_become_one_timeline_with_causes() {
        let one = Part {
            steps: vec![
                step("ams", "api", "this host", 1_000_100, 0, 5_000),
                step("ams", "group", "api", 1_000_200, 0, 4_000),
                step("ams", "group", "log", 1_003_000, 0, 0),
            ],
            cut: false,
        };
        let two = Part {
            steps: vec![
                step("web", "node/links", "node/self", 1_005_500, 100, 50),
                step("web", "node/self", "n1", 1_005_000, 30, 600),
            ],
            cut: true,
        };
        let silent = vec![Silent { node: "par".into(), reason: "no answer".into() }];
        let names = BTreeMap::from([("n1".to_owned(), "ams".to_owned())]);
        let parts = vec![("web".to_owned(), two), ("ams".to_owned(), one), ("db".to_owned(), Part::default())];
        let page = trace(TraceId::drawn(1), WallTime(2_000), parts, silent, &names);
        let seen: Vec<_> = page.steps.iter().map(|it| (&*it.node, &*it.place, it.after_us, it.cause)).collect();
        assert_eq!(
            seen,
            [
                ("ams", "api", 0, None),
                ("ams", "group", 100, Some(0)),
                ("ams", "group", 2_900, Some(1)),
                ("web", "node/self", 4_900, Some(2)),
                ("web", "node/links", 5_400, Some(3)),
            ]
        );
        assert_eq!((page.began, page.span_us), (Some(WallTime(1_000)), 5_500));
        assert_eq!((page.asked, page.nodes), (4, vec!["ams".to_owned(), "web".to_owned()]));
        assert_eq!((page.silent.len(), page.cut), (1, vec!["web".to_owned()]));
        let nothing = trace(TraceId::drawn(2), WallTime(2_000), Vec::new(), Vec::new(), &names);
        assert_eq!((nothing.began, nothing.span_us, nothing.steps.len()), (None, 0, 0));
    }
}
