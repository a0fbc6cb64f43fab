//! What only the leader does: renew leases, count a relay as capacity once nodes have reached it, and have it written down
//! what a drain cuts in the end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Class, Turn},
    command::Action,
    drain::{self, Drain},
    id::NodeId,
    limits::{DRAIN_SEEN, LEASE_RENEW_INTERVAL},
    time::{Moment, WallTime},
    wire::control::Report,
};

/// The leader's state. Reports are soft: they never enter the log, and a new leader starts without them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leader {
    /// The term in which this node leads.
    pub term: Option<u64>,
    /// Since when it leads, or led last.
    pub since: WallTime,
    /// The newest report of each node.
    pub reports: BTreeMap<NodeId, Report>,
    /// When it came.
    pub heard: BTreeMap<NodeId, Moment>,
    /// Relays by number, as agreed: whether ready.
    pub relays: BTreeMap<NodeId, bool>,
    /// Relays about which a command is under way.
    pub proposed: BTreeMap<NodeId, bool>,
    /// Nodes that are not removed; reports of others are forgotten.
    pub nodes: Vec<NodeId>,
    /// Control nodes that are no members of the group yet, with their addresses.
    pub strangers: BTreeMap<NodeId, String>,
    /// The control node that is being let in.
    pub teaching: Option<NodeId>,
    /// Relays that are being drained.
    pub drains: BTreeMap<NodeId, Drain>,
}

/// What happens to the leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// This node leads in a term, or does not lead.
    Leads {
        /// The term.
        term: Option<u64>,
    },
    /// The agreed state has changed.
    Agreed {
        /// Nodes.
        nodes: Vec<NodeId>,
        /// Relays by number: whether ready.
        relays: BTreeMap<NodeId, bool>,
        /// Control nodes that are no members of the group, with their addresses.
        strangers: BTreeMap<NodeId, String>,
        /// Relays that are being drained.
        drains: BTreeMap<NodeId, Drain>,
    },
    /// A node has reported.
    Reported {
        /// The node.
        from: NodeId,
        /// What.
        report: Report,
    },
    /// A control node was let in, or was not.
    Taught {
        /// The control node.
        node: NodeId,
    },
    /// A proposed command was answered.
    Answered {
        /// The relay that it was about, if it was about one.
        relay: Option<NodeId>,
    },
    /// The lease timer has run out.
    LeaseTimer,
    /// The time of a drain has run out: its relay cuts what is left.
    CutTimer {
        /// The relay.
        relay: NodeId,
    },
}

/// What the leader asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Propose an action; its answer names the relay.
    Propose {
        /// The action.
        action: Box<Action>,
        /// The relay that it is about.
        relay: Option<NodeId>,
    },
    /// Let a control node learn the log.
    AddLearner {
        /// The control node.
        node: NodeId,
        /// Its address.
        address: String,
    },
    /// Send [`Event::LeaseTimer`] later.
    LeaseAfter {
        /// When.
        after_ms: u64,
    },
    /// Send [`Event::CutTimer`] of a relay later, in place of an earlier one.
    CutAfter {
        /// The relay.
        relay: NodeId,
        /// When.
        after_ms: u64,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Leads { .. } => "leads",
            Self::Agreed { .. } => "agreed",
            Self::Reported { .. } => "reported",
            Self::Taught { .. } => "taught",
            Self::Answered { .. } => "answered",
            Self::LeaseTimer => "lease-timer",
            Self::CutTimer { .. } => "cut-timer",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Leads { .. } => Class::State { key: 0 },
            Self::Agreed { .. } => Class::State { key: u64::MAX },
            Self::Reported { from, .. } => Class::State { key: from.0 },
            _ => Class::Reserved,
        }
    }
}

impl Leader {
    /// Proposes readiness for each pending relay that a node has reached (RP-7): another node's word is needed as soon
    /// as any other node reports, since a relay always reaches itself.
    fn verify(&mut self, effects: &mut Vec<Effect>) {
        if self.term.is_none() {
            return;
        }
        let pending: Vec<NodeId> = self.relays.iter().filter(|(_, ready)| !**ready).map(|(relay, _)| *relay).collect();
        for relay in pending {
            if self.proposed.contains_key(&relay) {
                continue;
            }
            let alone = self.reports.keys().all(|from| *from == relay);
            let reached = self.reports.iter().find_map(|(from, report)| match report.relays.get(&relay) {
                Some(Ok(round_trip_us)) if *from != relay || alone => Some((*from, *round_trip_us)),
                _ => None,
            });
            if let Some((from, round_trip_us)) = reached {
                self.proposed.insert(relay, true);
                let reason =
                    format!("reached by {from} in {}.{} ms", round_trip_us / 1_000, round_trip_us % 1_000 / 100);
                let action = Box::new(Action::RelayVerified { relay, ready: true, reason });
                effects.push(Effect::Propose { action, relay: Some(relay) });
            }
        }
    }
}

impl Leader {
    /// Lets a control node that has reported, and so is there, learn the log: one at a time.
    fn teach(&mut self, effects: &mut Vec<Effect>) {
        if self.term.is_none() || self.teaching.is_some() {
            return;
        }
        let next = self.strangers.iter().find(|(node, _)| self.reports.contains_key(node));
        if let Some((node, address)) = next {
            self.teaching = Some(*node);
            effects.push(Effect::AddLearner { node: *node, address: address.clone() });
        }
    }

    /// Waits for the end of each drain that is new, or whose end is another than before.
    fn drains(&mut self, wall: WallTime, drains: BTreeMap<NodeId, Drain>, effects: &mut Vec<Effect>) {
        let before = core::mem::replace(&mut self.drains, drains);
        self.await_ends(wall, effects, |relay, drain| before.get(&relay) != Some(drain));
    }

    /// Waits for the end of those of the drains of which nobody has written down what they cut.
    fn await_ends(&self, wall: WallTime, effects: &mut Vec<Effect>, which: impl Fn(NodeId, &Drain) -> bool) {
        let open = self.drains.iter().filter(|(relay, drain)| !drain.settled && which(**relay, drain));
        effects.extend(open.map(|(relay, drain)| {
            let after_ms = drain.ends.since(wall).as_millis() as u64;
            Effect::CutAfter { relay: *relay, after_ms }
        }));
    }

    /// Has it written down what a drain cuts, by what nodes reported last before that (RP-40). Who began to lead too late
    /// to have heard it says so: after the cut nodes report nothing there any more.
    fn cut(&self, wall: WallTime, relay: NodeId, effects: &mut Vec<Effect>) {
        let Some(drain) = self.drains.get(&relay).filter(|drain| !drain.settled && self.term.is_some()) else { return };
        if drain.ends > wall {
            let after_ms = drain.ends.since(wall).as_millis() as u64;
            return effects.push(Effect::CutAfter { relay, after_ms });
        }
        let (circuits, flows) = drain::carried(relay, &self.reports);
        let began = drain.version;
        let action = if flows > 0 || self.since.after(DRAIN_SEEN) <= drain.ends {
            Action::DrainCut { relay, began, circuits, flows }
        } else {
            Action::DrainUnseen { relay, began }
        };
        effects.push(Effect::Propose { action: Box::new(action), relay: None });
    }
}

impl Behavior for Leader {
    const NOUN: &'static str = "leader";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Leads { term } => {
                if self.term == term {
                    return;
                }
                self.term = term;
                self.proposed.clear();
                self.teaching = None;
                self.reports.clear();
                self.heard.clear();
                if term.is_some() {
                    self.since = turn.wall;
                    // Their ends may have passed while nobody led.
                    self.await_ends(turn.wall, effects, |_, _| true);
                    effects.push(Effect::Propose { action: Box::new(Action::LeaseRenew), relay: None });
                    effects.push(Effect::LeaseAfter { after_ms: LEASE_RENEW_INTERVAL.as_millis() as u64 });
                }
            }
            Event::Agreed { nodes, relays, strangers, drains } => {
                self.drains(turn.wall, drains, effects);
                self.nodes = nodes;
                self.relays = relays;
                self.strangers = strangers;
                let nodes = &self.nodes;
                self.reports.retain(|from, _| nodes.contains(from));
                self.heard.retain(|from, _| nodes.contains(from));
                self.verify(effects);
                self.teach(effects);
            }
            Event::Reported { from, report } => {
                if self.nodes.contains(&from) {
                    self.reports.insert(from, report);
                    self.heard.insert(from, turn.now);
                    self.verify(effects);
                    self.teach(effects);
                }
            }
            Event::Answered { relay } => {
                if let Some(relay) = relay {
                    self.proposed.remove(&relay);
                }
            }
            Event::Taught { node } => {
                if self.teaching == Some(node) {
                    self.teaching = None;
                }
            }
            Event::CutTimer { relay } => self.cut(turn.wall, relay, effects),
            Event::LeaseTimer => {
                if self.term.is_some() {
                    effects.push(Effect::Propose { action: Box::new(Action::LeaseRenew), relay: None });
                    effects.push(Effect::LeaseAfter { after_ms: LEASE_RENEW_INTERVAL.as_millis() as u64 });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::Version, wire::control::Load};

    fn on(leader: &mut Leader, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        leader.on(Turn::default(), event, &mut effects);
        effects
    }

    fn report(relay: u64, reached: Result<u64, &str>) -> Report {
        let reached = reached.map_err(str::to_owned);
        Report { relays: BTreeMap::from([(NodeId(relay), reached)]), ..Report::default() }
    }

    fn agreed(relays: &[(u64, bool)]) -> Event {
        let relays = relays.iter().map(|(relay, ready)| (NodeId(*relay), *ready)).collect();
        let strangers = BTreeMap::from([(NodeId(3), "c3:9443".to_owned())]);
        let nodes = vec![NodeId(1), NodeId(2), NodeId(3)];
        Event::Agreed { nodes, relays, strangers, drains: BTreeMap::new() }
    }

    // RP-40: what the end of a drain cuts is written down by whoever leads then.
    #[test]
    fn the_end_of_a_drain_says_what_it_cuts() {
        let drain = Drain::new(Version(7), WallTime(1_000));
        let ends = drain.ends;
        let at = |leader: &mut Leader, wall: WallTime, event: Event| {
            let mut effects = Vec::new();
            leader.on(Turn { wall, ..Turn::default() }, event, &mut effects);
            effects
        };
        let drains = BTreeMap::from([(NodeId(2), drain)]);
        let nodes = vec![NodeId(1), NodeId(3)];
        let agreed = Event::Agreed { nodes, relays: BTreeMap::new(), strangers: BTreeMap::new(), drains };
        let mut leader = Leader::default();
        let waits = [Effect::CutAfter { relay: NodeId(2), after_ms: 600_000 }];
        assert_eq!(at(&mut leader, WallTime(1_000), agreed.clone()), waits);
        assert_eq!(at(&mut leader, WallTime(1_001), agreed), [], "the same again begins nothing anew");
        let timer = || Event::CutTimer { relay: NodeId(2) };
        assert_eq!(at(&mut leader, ends, timer()), [], "it does not lead");
        let waits = Effect::CutAfter { relay: NodeId(2), after_ms: 590_000 };
        assert_eq!(at(&mut leader, WallTime(11_000), Event::Leads { term: Some(1) })[0], waits, "it may come to lead");
        assert_eq!(at(&mut leader, WallTime(11_000), timer()), [waits], "too early");
        let propose = |action| [Effect::Propose { action: Box::new(action), relay: None }];
        let nothing = Action::DrainCut { relay: NodeId(2), began: Version(7), circuits: 0, flows: 0 };
        assert_eq!(at(&mut leader, ends, timer()), propose(nothing), "nothing was left");
        let loads = BTreeMap::from([(NodeId(2), Load { circuits: 1, flows: 3 })]);
        for from in [1, 3] {
            let report = Report { loads: loads.clone(), ..Report::default() };
            on(&mut leader, Event::Reported { from: NodeId(from), report });
        }
        let cut = Action::DrainCut { relay: NodeId(2), began: Version(7), circuits: 1, flows: 3 };
        assert_eq!(at(&mut leader, ends, timer()), propose(cut));

        // Who leads from the very end on has heard nothing before it, and nothing is there after it.
        on(&mut leader, Event::Leads { term: None });
        let effects = at(&mut leader, ends, Event::Leads { term: Some(2) });
        assert_eq!(effects[0], Effect::CutAfter { relay: NodeId(2), after_ms: 0 });
        let unseen = Action::DrainUnseen { relay: NodeId(2), began: Version(7) };
        assert_eq!(at(&mut leader, ends, timer()), propose(unseen));
        let drains = BTreeMap::from([(NodeId(2), Drain { settled: true, ..drain })]);
        let nodes = vec![NodeId(1), NodeId(3)];
        let settled = Event::Agreed { nodes, relays: BTreeMap::new(), strangers: BTreeMap::new(), drains };
        assert_eq!(at(&mut leader, ends, settled), []);
        assert_eq!(at(&mut leader, ends, timer()), [], "it is written down");
    }

    // RP-7: a relay is pending until a node has reached it.
    #[test]
    fn a_relay_is_ready_once_another_node_has_reached_it() {
        let mut leader = Leader::default();
        on(&mut leader, agreed(&[(2, false)]));
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(1), report: report(2, Ok(900)) }), []);
        let effects = on(&mut leader, Event::Leads { term: Some(4) });
        assert_eq!(effects.len(), 2, "a lease at once, and the timer for the next: {effects:?}");
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(1), report: report(2, Err("no answer")) }), []);
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(2), report: report(2, Ok(10)) }), [], "its own word");
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(9), report: report(2, Ok(10)) }), [], "a stranger's");
        let effects = on(&mut leader, Event::Reported { from: NodeId(3), report: report(2, Ok(4_100)) });
        let [Effect::Propose { action, relay: Some(NodeId(2)) }, Effect::AddLearner { .. }] = &effects[..] else {
            panic!("{effects:?}")
        };
        let reason = "reached by n3 in 4.1 ms".to_owned();
        assert_eq!(**action, Action::RelayVerified { relay: NodeId(2), ready: true, reason });
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(3), report: report(2, Ok(4_000)) }), [], "under way");
    }

    #[test]
    fn a_relay_that_stands_alone_may_vouch_for_itself() {
        let mut leader = Leader::default();
        on(&mut leader, agreed(&[(1, false)]));
        on(&mut leader, Event::Leads { term: Some(1) });
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(1), report: report(1, Ok(10)) }).len(), 1);
    }

    #[test]
    fn a_control_node_that_is_there_learns_the_log() {
        let mut leader = Leader::default();
        on(&mut leader, Event::Leads { term: Some(1) });
        assert_eq!(on(&mut leader, agreed(&[])), [], "it has not reported");
        let learn = [Effect::AddLearner { node: NodeId(3), address: "c3:9443".into() }];
        assert_eq!(on(&mut leader, Event::Reported { from: NodeId(3), report: Report::default() }), learn);
        assert_eq!(on(&mut leader, agreed(&[])), [], "one at a time");
        on(&mut leader, Event::Taught { node: NodeId(3) });
        assert_eq!(on(&mut leader, agreed(&[])), learn, "and again, if it is still none");
    }

    #[test]
    fn only_a_leader_renews_leases() {
        let mut leader = Leader::default();
        assert_eq!(on(&mut leader, Event::LeaseTimer), []);
        on(&mut leader, Event::Leads { term: Some(4) });
        assert_eq!(on(&mut leader, Event::LeaseTimer).len(), 2);
        on(&mut leader, Event::Leads { term: None });
        assert_eq!(on(&mut leader, Event::LeaseTimer), []);
        assert!(leader.reports.is_empty());
    }
}
