//! Requests that are followed: what one message leads to carries one trace, through actors, the log and nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use postroad_cluster::{command::Action, time::Clock as _, trace::TraceId};
use postroad_simulations::network::Condition;
use postroad_transport::trace::{Doing, carry};

use crate::support::{AMS, Fleet, run, seconds, until};

/// One step: the node, who did it, the kind of the message, and who sent that.
type Seen = (String, String, String, String);

impl Fleet {
    /// Every step of a trace in the whole fleet, each node's in the order of its clock.
    fn steps(&self, trace: TraceId) -> Vec<Seen> {
        let mut steps = Vec::new();
        for machine in &self.world.machines {
            let Some(node) = &machine.node else { continue };
            let (turns, _) = node.directory().traced(trace, 1_000);
            let turns = turns.into_iter().map(|(path, turn)| (turn.now_ns, path.to_string(), turn.kind, turn.sender));
            let own = node.fabric().steps.of(trace).into_iter();
            let own = own.map(|step| (step.at.0, step.place.to_owned(), step.kind, step.by.to_string()));
            let mut all: Vec<_> = turns.chain(own).collect();
            all.sort();
            let name = machine.name.to_string();
            steps.extend(all.into_iter().map(|(_, place, kind, sender)| (name.clone(), place, kind, sender)));
        }
        steps
    }

    fn has(&self, trace: TraceId, node: &str, place: &str, kind: &str) -> bool {
        self.steps(trace)
            .iter()
            .any(|(of, at, what, _)| (of.as_str(), at.as_str(), what.as_str()) == (node, place, kind))
    }
}

fn operator(number: u64) -> (TraceId, Doing) {
    let trace = TraceId::begun(number);
    (trace, Doing { trace: Some(trace), by: Some("api".into()) })
}

/// A link that is made and a relay that is drained, each followed over the fleet.
fn followed(seed: u64) -> [Vec<Seen>; 2] {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    run(move || async move {
        let fleet = Fleet::new(seed, Condition::default(), 2).await;
        let (making, doing) = operator(1);
        carry(doing, fleet.world.link("cache", &[fleet.web], 7_500, fleet.db, 7_501)).await.unwrap();
        until("the consumer listens", seconds(10), || fleet.has(making, "web", "node/links/link-2", "listening")).await;
        until("a relay has registered the target", seconds(10), || {
            fleet.has(making, "fra", "node/relay", "request") || fleet.has(making, "par", "node/relay", "request")
        })
        .await;
        let relay = fleet.relays[1];
        let (draining, doing) = operator(2);
        carry(doing, fleet.world.propose(Action::RelayDrain { relay: fleet.id(relay), draining: true })).await.unwrap();
        until("the consumer has heard of it", seconds(10), || {
            fleet.node(fleet.web).fabric().drains(fleet.id(relay)) && fleet.has(draining, "fra", "node/relay", "policy")
        })
        .await;
        // What is under way comes to its end, and what was asked for is remembered when journals have long forgotten it.
        tokio::time::sleep(seconds(5)).await;
        let ended = [making, draining].map(|trace| fleet.steps(trace));
        tokio::time::sleep(seconds(120)).await;
        assert_eq!(ended, [making, draining].map(|trace| fleet.steps(trace)), "nothing goes on for ever");
        let now = fleet.node(AMS).fabric().clock.now();
        assert!(now.0 > 0);
        tell.lock().unwrap().extend(ended);
    });
    let told = Arc::try_unwrap(told).unwrap().into_inner().unwrap();
    told.try_into().unwrap()
}

#[test]
fn a_request_is_one_timeline_over_the_nodes() {
    let [making, draining] = followed(70);
    let at = |steps: &[Seen], node: &str, place: &str, kind: &str, sender: &str| {
        let is = |step: &&Seen| (&*step.0, &*step.1, &*step.2, &*step.3) == (node, place, kind, sender);
        assert!(steps.iter().any(|step| is(&step)), "{node} {place} {kind} from {sender} is not in {steps:#?}");
    };
    // From the request into the log, out of it as a snapshot, and on to whom it concerns.
    at(&making, "ams", "group", "propose link_add", "api");
    at(&making, "ams", "group", "apply link_add", "log");
    at(&making, "ams", "node/leader", "agreed", "log");
    for node in ["web", "db"] {
        at(&making, node, "node/self", "snapshot", "n1");
    }
    at(&making, "web", "node/links", "add", "node/self");
    at(&making, "web", "node/links/link-2", "started", "node/links/link-2");
    at(&making, "web", "node/links/link-2", "listening", "node/links/link-2");
    // The target registers its endpoint at the relays: over a session, to another node's actor.
    assert!(making.iter().any(|step| step.1 == "node/relay" && step.2 == "request" && step.3 == "n5"), "{making:#?}");
    let nodes: BTreeSet<&str> = making.iter().map(|step| &*step.0).collect();
    assert_eq!(nodes, BTreeSet::from(["ams", "db", "fra", "par", "web"]));

    at(&draining, "ams", "group", "propose relay_drain", "api");
    at(&draining, "fra", "node/self", "snapshot", "n1");
    at(&draining, "fra", "node/relay", "policy", "node/self");
    at(&draining, "web", "node/self", "snapshot", "n1");
    assert!(draining.iter().all(|step| !making.contains(step) || step.1 != "group"));
}

#[test]
fn one_seed_gives_one_timeline() {
    assert_eq!(followed(71), followed(71));
}

#[test]
fn every_message_has_a_trace_and_few_share_one_by_chance() {
    run(|| async {
        let fleet = Fleet::new(72, Condition::default(), 1).await;
        let directory = fleet.node(fleet.web).directory();
        let mut traces: BTreeMap<TraceId, BTreeSet<String>> = BTreeMap::new();
        for view in directory.inspect() {
            for turn in directory.journal(&view.path, 256).unwrap_or_default() {
                traces.entry(turn.trace).or_default().insert(turn.kind);
            }
        }
        // Each ping begins a trace of its own: what a timer leads to is part of nothing before.
        let pings = traces.values().filter(|kinds| kinds.contains("timer")).count();
        assert!(pings > 3 && traces.len() > pings, "{} traces, {pings} of timers", traces.len());
    });
}
