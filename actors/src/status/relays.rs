//! The relays: ready or not, independent of each other or not, and which nodes reach them.

use std::collections::BTreeMap;

use postroad_cluster::{
    domain::{self, FailureDomain},
    drain::{self, Drain, Phase, Progress},
    id::NodeId,
    revocation::Revocations,
    snapshot::RelayView,
    time::WallTime,
    wire::control::CircuitReport,
};
use serde::{Deserialize, Serialize};

use super::View;

/// How a relay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It counts as capacity.
    Ready,
    /// No node has reached its address yet (RP-7).
    Pending,
    /// It is being taken out of service.
    Draining,
    /// Most of the nodes that measure it do not reach it (RP-18).
    Unreachable,
}

impl Standing {
    /// The word that people read.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Pending => "pending",
            Self::Draining => "draining",
            Self::Unreachable => "unreachable",
        }
    }
}

/// The relays and what they amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relays {
    /// How many are ready.
    pub ready: usize,
    /// How many are pending.
    pub pending: usize,
    /// How many drain.
    pub draining: usize,
    /// How many are not reached.
    pub unreachable: usize,
    /// How many of the ready ones are independent of each other (RP-3).
    pub independent: usize,
    /// How many of the ready ones are off the control nodes.
    pub off_control: usize,
    /// How many of those are independent of each other (RP-61).
    pub off_control_independent: usize,
    /// Ready relays that are not independent of another: both names, and what they share or what is not said.
    pub shared: Vec<Shared>,
    /// Each of them.
    pub list: Vec<Relay>,
    /// The fleet's circuits, the busiest first, bounded; on control nodes.
    pub circuits: Vec<Carried>,
}

/// Two relays that may die together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// One.
    pub one: String,
    /// The other.
    pub other: String,
    /// What they share, or what is not confirmed.
    pub what: String,
}

/// One relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    /// Its node.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where participants reach it.
    pub address: String,
    /// How it stands.
    pub state: Standing,
    /// The reason of readiness, as agreed; empty where it is not known.
    pub reason: String,
    /// Whether it stands on a control node.
    pub local: bool,
    /// Where it stands.
    pub domain: FailureDomain,
    /// Nodes that reach it, with the round-trip time in microseconds.
    pub reached_by: BTreeMap<String, u64>,
    /// Nodes that do not, with the reason.
    pub missed_by: BTreeMap<String, String>,
    /// Whether it has reported to the leader lately; nothing where the leader was not asked.
    pub connected: Option<bool>,
    /// Circuits that it carries in the whole fleet, by the nodes' reports.
    pub circuits: Option<u64>,
    /// Flows on them.
    pub flows: Option<u64>,
    /// Revoked routes that it has not applied yet, and those for which it is stale; known on control nodes (RP-35).
    pub revocations: Option<Outstanding>,
    /// Its drain, while it is out of service; known on control nodes.
    pub drain: Option<DrainView>,
}

/// Revocations that a relay has not applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outstanding {
    /// For less than 90 s.
    pub pending: usize,
    /// For longer: nothing of these routes is admitted through it.
    pub stale: usize,
}

/// How far a drain is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// When it began.
    pub since: WallTime,
    /// When the relay disconnects what is left.
    pub ends: WallTime,
    /// Circuits and flows that are left, and how it goes on; nothing where the leader was not asked.
    pub progress: Option<Progress>,
    /// Nodes that have not said yet what they have there.
    pub unheard: Vec<String>,
}

/// A circuit of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The nodes that it joins.
    pub between: [String; 2],
    /// Its number, as text since it takes all 64 bits.
    pub circuit: String,
    /// The relay that carries it.
    pub relay: Option<String>,
    /// Flows on it.
    pub flows: u64,
}

impl Relay {
    /// A relay as it was agreed on, of which no node has said anything.
    #[must_use]
    pub fn agreed(id: NodeId, view: &RelayView) -> Self {
        Self {
            id,
            name: view.name.to_string(),
            address: view.address.clone(),
            state: standing(view, 0, 0),
            reason: String::new(),
            local: view.local,
            domain: view.domain.clone(),
            reached_by: BTreeMap::new(),
            missed_by: BTreeMap::new(),
            connected: None,
            circuits: None,
            flows: None,
            revocations: None,
            drain: None,
        }
    }

    /// The state with what is left of a drain: `draining (3 flows left, moving)`.
    #[must_use]
    pub fn state_words(&self) -> String {
        let progress = self.drain.as_ref().and_then(|drain| drain.progress.as_ref());
        match (self.state, progress) {
            (Standing::Draining, Some(progress)) if progress.phase == Phase::Over => "drained".to_owned(),
            (Standing::Draining, Some(progress)) => {
                let flows = if progress.flows == 1 { "flow" } else { "flows" };
                format!("draining ({} {flows} left, {})", progress.flows, progress.phase.word())
            }
            _ => self.state.word().to_owned(),
        }
    }
}

impl Relays {
    /// Independent relays that may be lost while one is left.
    #[must_use]
    pub fn can_lose(&self) -> u64 {
        self.independent.saturating_sub(1) as u64
    }
}

/// Circuits that are shown one by one: more than a person reads.
const CIRCUITS_SHOWN: usize = 1_000;

/// Witnesses that it takes to call a relay unreachable (RP-18).
const WITNESSES_MIN: usize = 2;

fn standing(view: &RelayView, reached: usize, missed: usize) -> Standing {
    if !view.ready {
        Standing::Pending
    } else if missed >= WITNESSES_MIN && missed > reached {
        Standing::Unreachable
    } else if view.draining {
        Standing::Draining
    } else {
        Standing::Ready
    }
}

pub(super) fn view(view: &View<'_>) -> Relays {
    let state = view.fabric.consensus.as_ref().map(postroad_raft::Consensus::state);
    let known = match &state {
        Some(state) => state.relays(),
        None => view.fabric.snapshot().map(|accepted| accepted.content.relays.clone()).unwrap_or_default(),
    };
    let list = known.into_iter().map(|(id, relay)| {
        let mut reached_by = BTreeMap::new();
        let mut missed_by = BTreeMap::new();
        // Its own word says nothing of the way to it.
        for (from, report) in view.reports.iter().filter(|(from, _)| **from != id) {
            match report.relays.get(&id) {
                Some(Ok(round_trip_us)) => drop(reached_by.insert(view.name(*from), *round_trip_us)),
                Some(Err(reason)) => drop(missed_by.insert(view.name(*from), reason.clone())),
                None => {}
            }
        }
        let record = state.as_ref().and_then(|state| state.nodes.get(&id));
        Relay {
            state: standing(&relay, reached_by.len(), missed_by.len()),
            reason: record.map(|record| record.ready_reason.clone()).unwrap_or_default(),
            reached_by,
            missed_by,
            connected: view.present.as_ref().map(|present| present.contains(&id)),
            circuits: view.present.as_ref().map(|_| drain::carried(id, &view.reports).0),
            flows: view.present.as_ref().map(|_| drain::carried(id, &view.reports).1),
            revocations: state.as_ref().and_then(|state| outstanding(view, id, &state.revocations)),
            drain: record.and_then(|record| record.drain).map(|drain| drain_view(view, id, &drain)),
            ..Relay::agreed(id, &relay)
        }
    });
    Relays { circuits: circuits(view), ..summed(list.collect()) }
}

/// What a relay has not applied, by its own report and by what it told nodes on its sessions.
fn outstanding(view: &View<'_>, relay: NodeId, revocations: &Revocations) -> Option<Outstanding> {
    view.present.as_ref()?;
    let own = view.reports.get(&relay).map(|report| report.snapshot);
    let told = view.reports.values().filter_map(|report| report.applied.get(&relay).copied());
    let applied = told.chain(own).max().unwrap_or_default();
    let (pending, stale) = revocations.outstanding(applied, view.now);
    Some(Outstanding { pending, stale })
}

fn drain_view(view: &View<'_>, relay: NodeId, drain: &Drain) -> DrainView {
    let progress = view.present.as_ref().map(|present| drain::progress(drain, relay, &view.reports, present, view.now));
    let unheard = progress.iter().flat_map(|progress| &progress.unheard).map(|node| view.name(*node)).collect();
    DrainView { since: drain.since, ends: drain.ends, unheard, progress }
}

/// The fleet's circuits by the nodes' reports, the busiest first.
fn circuits(view: &View<'_>) -> Vec<Carried> {
    let all = view.reports.iter().flat_map(|(from, report)| report.circuits.iter().map(|circuit| (*from, circuit)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(from, circuit)| (std::cmp::Reverse(circuit.flows), *from, circuit.peer));
    let carried = |(from, circuit): (NodeId, &CircuitReport)| Carried {
        between: [view.name(from), view.name(circuit.peer)],
        circuit: circuit.circuit.0.to_string(),
        relay: circuit.relay.map(|relay| view.name(relay)),
        flows: circuit.flows,
    };
    all.into_iter().take(CIRCUITS_SHOWN).map(carried).collect()
}

fn summed(list: Vec<Relay>) -> Relays {
    let count = |state| list.iter().filter(|relay| relay.state == state).count();
    let ready: Vec<&Relay> = list.iter().filter(|relay| relay.state == Standing::Ready).collect();
    let off: Vec<&Relay> = ready.iter().copied().filter(|relay| !relay.local).collect();
    let independent = |relays: &[&Relay]| domain::independent_count(relays.iter().map(|relay| &relay.domain));
    let mut shared = Vec::new();
    for (at, one) in ready.iter().enumerate() {
        for other in &ready[at + 1..] {
            let between = one.domain.independence(&other.domain);
            if !between.is_independent() {
                let (one, other) = (one.name.clone(), other.name.clone());
                shared.push(Shared { one, other, what: between.to_string() });
            }
        }
    }
    Relays {
        ready: ready.len(),
        pending: count(Standing::Pending),
        draining: count(Standing::Draining),
        unreachable: count(Standing::Unreachable),
        independent: independent(&ready),
        off_control: off.len(),
        off_control_independent: independent(&off),
        shared,
        list,
        circuits: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn relay(name: &str, state: Standing, local: bool, place: &str) -> Relay {
        let part = |kind: &str| (!place.is_empty()).then(|| format!("{kind}-{place}").parse().unwrap());
        let domain = FailureDomain { host: part("h"), power: part("p"), network: part("n"), zone: None };
        let (name, address) = (name.parse().unwrap(), "r:9443".to_owned());
        let agreed = RelayView { name, address, domain, local, ready: true, draining: false };
        Relay { state, ..Relay::agreed(NodeId(1), &agreed) }
    }

    // RP-40
    #[test]
    fn a_draining_relay_says_what_is_left() {
        let words = |phase, flows| {
            let progress = Some(Progress { phase, circuits: 1, flows, unheard: BTreeSet::new() });
            let drain = DrainView { since: WallTime(1), ends: WallTime(2), progress, unheard: Vec::new() };
            Relay { drain: Some(drain), ..relay("fra", Standing::Draining, false, "a") }.state_words()
        };
        assert_eq!(words(Phase::Moving, 3), "draining (3 flows left, moving)");
        assert_eq!(words(Phase::Disconnecting, 1), "draining (1 flow left, disconnecting)");
        assert_eq!(words(Phase::Over, 0), "drained");
        assert_eq!(relay("fra", Standing::Draining, false, "a").state_words(), "draining");
    }

    // RP-3, RP-59, RP-61: independence is counted from domains; what is not said is not counted.
    #[test]
    fn independence_is_counted_and_what_is_shared_is_named() {
        let ready = Standing::Ready;
        let relays = summed(vec![
            relay("ams", ready, true, "a"),
            relay("fra", ready, false, "b"),
            relay("par", ready, false, "b"),
            relay("nyc", Standing::Draining, false, "c"),
        ]);
        assert_eq!((relays.ready, relays.draining, relays.independent), (3, 1, 2));
        assert_eq!((relays.off_control, relays.off_control_independent, relays.can_lose()), (2, 1, 1));
        assert_eq!(relays.shared.len(), 1);
        assert_eq!(relays.shared[0].what, "share host h-b, power p-b, network n-b");
        let unsaid = summed(vec![relay("ams", ready, true, ""), relay("fra", ready, false, "")]);
        assert_eq!((unsaid.independent, unsaid.can_lose()), (0, 0));
        assert!(unsaid.shared[0].what.starts_with("unconfirmed"));
    }

    // RP-18: the majority of at least two witnesses.
    #[test]
    fn one_witness_condemns_no_relay() {
        let view = RelayView {
            name: "fra".parse().unwrap(),
            address: "fra:9443".into(),
            domain: FailureDomain::default(),
            local: false,
            ready: true,
            draining: false,
        };
        assert_eq!(standing(&view, 0, 1), Standing::Ready);
        assert_eq!(standing(&view, 0, 2), Standing::Unreachable);
        assert_eq!(standing(&view, 2, 2), Standing::Ready);
        assert_eq!(standing(&RelayView { ready: false, ..view }, 0, 5), Standing::Pending);
    }
}
