//! The decisions of the database balancer: who is the primary, who takes reads, and which connections are closed.
//!
//! | what | where |
//! |---|---|
//! | what a probe finds | [`evidence`] |
//! | what the operator sets | [`settings`] |
//! | who is the primary, who takes reads, and why not | [`choice`] |
//! | how far replicas are behind | [`lag`] |
//! | where one connection goes | [`routing`] |
//! | when a node is probed | [`prober`] |
//! | events, effects and log lines | [`event`] |
//! | what `status` says | [`report`] |

pub mod choice;
pub mod event;
pub mod evidence;
pub mod lag;
pub mod prober;
pub mod report;
pub mod routing;
pub mod settings;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::event::{Effect, Event, Line};
use self::{
    choice::{Facts, NoPrimary, Target},
    evidence::{Answer, Cause, Evidence, Outcome, Role},
    lag::History,
    report::{NodeReport, Report},
    routing::{Reader, Routing},
    settings::Settings,
};
use crate::{
    behavior::{Behavior, ReplyId, Turn},
    time::Moment,
};

/// The balancer's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Database {
    /// What the operator set.
    pub settings: Settings,
    /// The list of nodes: addresses by id.
    pub listed: BTreeMap<String, String>,
    /// What is known of each.
    pub evidence: BTreeMap<String, Evidence>,
    /// Where the primary's log has been.
    pub history: History,
    /// What was decided last.
    pub routing: Routing,
    /// What the log said of each node last.
    said: BTreeMap<String, Said>,
    /// Answers so far, to number them.
    answers: u64,
    /// The number of each node's last answer.
    numbers: BTreeMap<String, u64>,
    /// Nodes of the first list of which no probe has come back. Until then an old primary may be all that is known.
    unheard: BTreeSet<String>,
}

/// What the log said of a node last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Said {
    Aside(String),
    Healthy { role: Role, epoch: u64 },
}

impl Database {
    /// A balancer over the nodes that are listed, of which nothing is known yet.
    #[must_use]
    pub fn new(settings: Settings, listed: BTreeMap<String, String>) -> Self {
        let unheard = listed.keys().cloned().collect();
        let evidence = listed.keys().map(|node| (node.clone(), Evidence::default())).collect();
        Self {
            settings,
            listed,
            evidence,
            history: History::default(),
            routing: Routing::default(),
            said: BTreeMap::new(),
            answers: 0,
            numbers: BTreeMap::new(),
            unheard,
        }
    }

    /// What a choice at `now` rests on.
    #[must_use]
    pub const fn facts(&self, now: Moment) -> Facts<'_> {
        Facts { now, settings: &self.settings, nodes: &self.evidence, history: &self.history }
    }

    /// The primary, once every node of the first list has been heard of.
    fn primary(&self, now: Moment) -> Result<Target, NoPrimary> {
        if self.unheard.is_empty() {
            return self.facts(now).primary();
        }
        Err(NoPrimary::Starting { nodes: self.unheard.iter().cloned().collect() })
    }

    /// Takes another list. What is known of a node stays if its address does.
    fn relist(&mut self, nodes: BTreeMap<String, String>) {
        let before = core::mem::replace(&mut self.listed, nodes);
        let mut known = core::mem::take(&mut self.evidence);
        for (node, address) in &self.listed {
            let kept = if before.get(node) == Some(address) { known.remove(node) } else { None };
            self.evidence.insert(node.clone(), kept.unwrap_or_default());
        }
        self.said.retain(|node, _| self.listed.contains_key(node));
        self.numbers.retain(|node, _| self.listed.contains_key(node));
        self.unheard.retain(|node| self.listed.contains_key(node));
    }

    fn probed(&mut self, now: Moment, node: &str, outcome: Outcome) {
        let Some(evidence) = self.evidence.get_mut(node) else { return };
        self.unheard.remove(node);
        match outcome {
            Ok(answer) => {
                let ours = answer.identity == node
                    && self.settings.cluster.as_ref().is_none_or(|cluster| answer.cluster.as_ref() == Some(cluster));
                if ours {
                    evidence.epoch_max = evidence.epoch_max.max(answer.epoch);
                }
                evidence.failures = 0;
                evidence.failure = None;
                evidence.answer = Some((now, answer));
                self.answers += 1;
                self.numbers.insert(node.to_owned(), self.answers);
            }
            // It answered, so it lives; it has no place left for reads, and otherwise is what it was (DB-14).
            Err(failure) if failure.cause == Cause::Saturated => {
                if let Some((at, answer)) = &mut evidence.answer {
                    *at = now;
                    answer.connections = answer.connections_max;
                }
                evidence.failures = 0;
                evidence.failure = Some(failure);
            }
            Err(failure) => {
                evidence.failures += 1;
                evidence.failure = Some(failure);
            }
        }
    }

    /// Notes how far the primary is.
    fn follow(&mut self, now: Moment, node: &str) {
        let leads = self.primary(now).is_ok_and(|primary| primary.node == node);
        let answer = self.evidence.get(node).and_then(|evidence| evidence.answer.as_ref());
        if leads && let Some(position) = answer.and_then(|(_, answer)| answer.position) {
            self.history.saw(now, node, position);
        }
    }

    /// Says what has changed with each node since the log last spoke of it.
    fn say(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        for node in self.listed.keys() {
            let facts = Facts { now, settings: &self.settings, nodes: &self.evidence, history: &self.history };
            let standing = facts.healthy(node);
            let before = self.said.get(node);
            let (says, lines) = match standing {
                Err(choice::Aside::NeverProbed) => continue,
                // The first failures of a node that never answered are worth a line at once.
                Err(why) => {
                    let same = matches!(before, Some(Said::Aside(code)) if code == why.code());
                    let says = Said::Aside(why.code().to_owned());
                    (says, if same { vec![] } else { vec![Line::Aside { node: node.clone(), why }] })
                }
                Ok(answer) => (Said::Healthy { role: answer.role, epoch: answer.epoch }, changes(node, before, answer)),
            };
            effects.extend(lines.into_iter().map(|line| Effect::Say { line }));
            self.said.insert(node.clone(), says);
        }
    }

    /// Decides anew. `closing` tells whether write connections to what is no longer the primary may be closed.
    fn decide(&mut self, now: Moment, closing: bool, effects: &mut Vec<Effect>) {
        self.say(now, effects);
        let write = self.primary(now);
        let moved = place(&self.routing.write) != place(&write);
        let reworded = self.routing.write != write;
        let generation = self.routing.generation + u64::from(moved);
        let routing = self.route(now, generation, write);
        let changed = routing != self.routing;
        self.routing = routing;
        if changed {
            effects.push(Effect::Route { routing: Box::new(self.routing.clone()) });
        }
        let quiet = matches!(self.routing.write, Err(NoPrimary::Starting { .. }));
        if (moved || reworded) && !quiet {
            let line = match self.routing.write.clone() {
                Ok(target) => Line::Primary { target, generation },
                Err(why) => Line::NoPrimary { why, generation },
            };
            effects.push(Effect::Say { line });
        }
        if moved && closing && self.settings.close_rw_on_primary_change {
            let (but, why) = match &self.routing.write {
                Ok(target) => (Some(target.node.clone()), format!("the primary is {} now", target.node)),
                Err(why) => (None, why.to_string()),
            };
            effects.push(Effect::CloseWrites { but, why });
        }
        let oldest = self.evidence.values().filter_map(|evidence| evidence.answer.as_ref()).map(|(at, _)| *at);
        let due = oldest.map(|at| at.after(self.settings.evidence_age_max())).filter(|due| *due > now).min();
        if let Some(at) = due {
            effects.push(Effect::AgedAt { at });
        }
    }

    fn route(&self, now: Moment, generation: u64, write: Result<Target, NoPrimary>) -> Routing {
        let facts = self.facts(now);
        let primary = write.as_ref().ok();
        let readers = self.listed.keys().filter_map(|node| {
            let answer = facts.reads(node, primary).ok()?;
            Some(Reader {
                target: Target { node: node.clone(), address: answer.address, epoch: answer.epoch },
                active: answer.active,
                connections: answer.connections,
                connections_max: answer.connections_max,
                answer: self.numbers.get(node).copied().unwrap_or_default(),
            })
        });
        Routing {
            generation,
            readers: readers.collect(),
            write,
            active_weight: self.settings.active_weight,
            connection_reserve: self.settings.connection_reserve,
        }
    }

    /// What `status` says.
    #[must_use]
    pub fn report(&self, now: Moment) -> Report {
        let facts = self.facts(now);
        let primary = self.primary(now);
        let nodes = self.listed.iter();
        let nodes = nodes.map(|(node, address)| NodeReport::new(&facts, node, address, primary.as_ref().ok()));
        Report {
            generation: self.routing.generation,
            no_primary: primary.as_ref().err().map(ToString::to_string),
            ambiguous: match &primary {
                Err(NoPrimary::Ambiguous { nodes }) => nodes.clone(),
                _ => Vec::new(),
            },
            nodes: nodes.collect(),
            primary: primary.ok(),
        }
    }

    fn reply(&self, now: Moment, reply: ReplyId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Reply { reply, report: Box::new(self.report(now)) });
    }
}

/// What makes a primary another one: the node, where it is, and its epoch.
fn place(write: &Result<Target, NoPrimary>) -> Option<&Target> {
    write.as_ref().ok()
}

/// The lines about a healthy node of which `before` was said.
fn changes(node: &str, before: Option<&Said>, answer: &Answer) -> Vec<Line> {
    let (node, role, epoch) = (node.to_owned(), answer.role, answer.epoch);
    let Some(Said::Healthy { role: was, epoch: bore }) = before else {
        return vec![Line::Restored { node, role, epoch }];
    };
    let mut lines = Vec::new();
    if *was != role {
        lines.push(Line::Role { node: node.clone(), from: *was, to: role });
    }
    if *bore != epoch {
        lines.push(Line::Epoch { node, from: *bore, to: epoch });
    }
    lines
}

impl Behavior for Database {
    const NOUN: &'static str = "database";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        let now = turn.now;
        match event {
            Event::Started => {
                effects.push(Effect::Watch { nodes: self.listed.clone() });
                effects.push(Effect::Route { routing: Box::new(self.routing.clone()) });
            }
            Event::Nodes { nodes } => {
                if nodes != self.listed {
                    self.relist(nodes.clone());
                    let line = Line::Nodes { nodes: nodes.keys().cloned().collect() };
                    effects.extend([Effect::Say { line }, Effect::Watch { nodes }]);
                    // A reload drops no connection (DB-44): only what probes find does.
                    self.decide(now, false, effects);
                }
            }
            Event::Probed { node, listed, outcome } => {
                if self.listed.get(&node) == Some(&listed) {
                    self.probed(now, &node, *outcome);
                    self.follow(now, &node);
                    self.decide(now, true, effects);
                }
            }
            Event::Aged => self.decide(now, true, effects),
            Event::Asked { reply } => self.reply(now, reply, effects),
        }
    }
}

#[cfg(test)]
mod tests;
