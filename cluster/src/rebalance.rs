//! Which circuits to move so that flows are spread over the relays: a plan for people, who ask for it. By itself a circuit
//! only leaves a relay that is silent, drains or is much farther than another, so load may pile up on one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{CircuitId, NodeId},
    limits::{NEARER_PERCENT, NEARER_SPAN, REBALANCE_MOVES_MAX},
    time::Span,
};

/// A circuit on its relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The end that chooses its relay.
    pub node: NodeId,
    /// The other end.
    pub peer: NodeId,
    /// The circuit.
    pub circuit: CircuitId,
    /// The relay.
    pub relay: NodeId,
    /// Flows on it.
    pub flows: u64,
}

impl Carried {
    /// An idle circuit counts nothing: its pair has it where new flows are taken, and would have it there again.
    const fn weight(&self) -> u64 {
        self.flows
    }
}

/// One move, with what speaks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The circuit as it is.
    pub circuit: Carried,
    /// Where it goes.
    pub to: NodeId,
    /// Flows on the relay that it leaves, before.
    pub from_flows: u64,
    /// Flows on the relay that it goes to, before.
    pub to_flows: u64,
    /// The round trip over the relay that it leaves, in microseconds, as far as it is known.
    pub from_round_trip_us: Option<u64>,
    /// The round trip over the relay that it goes to, in microseconds.
    pub to_round_trip_us: u64,
}

/// What the relays are like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relays {
    /// Those that take circuits: ready and not draining.
    pub usable: Vec<NodeId>,
    /// The round trip from each node to each relay that it reaches, in microseconds.
    pub round_trips_us: BTreeMap<(NodeId, NodeId), u64>,
}

impl Relays {
    /// The round trip of a circuit over a relay, if both ends reach it.
    fn round_trip_us(&self, circuit: &Carried, relay: NodeId) -> Option<u64> {
        let of = |node| self.round_trips_us.get(&(node, relay));
        Some(of(circuit.node)? + of(circuit.peer)?)
    }

    /// Whether a circuit would stay on a relay: one that is so much farther than another is left by the circuit itself.
    fn holds(&self, circuit: &Carried, relay: NodeId) -> Option<u64> {
        let to = self.round_trip_us(circuit, relay)?;
        let nearest = self.usable.iter().filter_map(|other| self.round_trip_us(circuit, *other)).min()?;
        let bearable = (to * u64::from(NEARER_PERCENT) / 100).max(Span::as_micros(&NEARER_SPAN) as u64);
        (to < nearest + bearable).then_some(to)
    }
}

/// The moves that spread flows best, one after the other: always from the relay with most to one that has less and both
/// ends reach, only while that makes the larger of the two smaller. Equal facts give equal plans.
#[must_use]
pub fn plan(circuits: &[Carried], relays: &Relays) -> Vec<Move> {
    let mut circuits = circuits.to_vec();
    circuits.sort_by_key(|circuit| (circuit.node, circuit.peer, circuit.circuit));
    let mut moves: Vec<Move> = Vec::new();
    while moves.len() < REBALANCE_MOVES_MAX {
        let mut loads: BTreeMap<NodeId, (u64, u64)> = relays.usable.iter().map(|relay| (*relay, (0, 0))).collect();
        for circuit in &circuits {
            let (weight, flows) = loads.entry(circuit.relay).or_default();
            *weight += circuit.weight();
            *flows += circuit.flows;
        }
        let Some((at, next)) = best(&circuits, relays, &loads) else { break };
        // One circuit moves once: what would move it again only corrects the plan itself.
        let name = |it: &Carried| (it.node, it.peer, it.circuit);
        if moves.iter().any(|known| name(&known.circuit) == name(&next.circuit)) {
            break;
        }
        circuits[at].relay = next.to;
        moves.push(next);
    }
    moves
}

fn best(circuits: &[Carried], relays: &Relays, loads: &BTreeMap<NodeId, (u64, u64)>) -> Option<(usize, Move)> {
    let candidate = |(at, circuit): (usize, &Carried), to: NodeId| {
        let ((from_weight, from_flows), (to_weight, to_flows)) = (*loads.get(&circuit.relay)?, *loads.get(&to)?);
        let larger = (from_weight - circuit.weight()).max(to_weight + circuit.weight());
        // A flow of difference is not worth a move.
        if to == circuit.relay || larger + 1 > from_weight {
            return None;
        }
        let to_round_trip_us = relays.holds(circuit, to)?;
        let next = Move {
            circuit: circuit.clone(),
            to,
            from_flows,
            to_flows,
            from_round_trip_us: relays.round_trip_us(circuit, circuit.relay),
            to_round_trip_us,
        };
        Some(((from_weight, std::cmp::Reverse((larger, to_round_trip_us, at, to))), (at, next)))
    };
    let all = circuits.iter().enumerate();
    let candidates = all.flat_map(|it| relays.usable.iter().filter_map(move |to| candidate(it, *to)));
    candidates.max_by_key(|(rank, _)| *rank).map(|(_, found)| found)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, proptest};

    use super::*;

    fn carried(circuit: u64, relay: u64, flows: u64) -> Carried {
        Carried { node: NodeId(10), peer: NodeId(11), circuit: CircuitId(circuit), relay: NodeId(relay), flows }
    }

    fn relays(round_trips_ms: &[(u64, u64)]) -> Relays {
        let usable = round_trips_ms.iter().map(|(relay, _)| NodeId(*relay)).collect();
        let round_trips_us = round_trips_ms
            .iter()
            .flat_map(|(relay, ms)| [10, 11].map(|node| ((NodeId(node), NodeId(*relay)), ms * 1_000)))
            .collect();
        Relays { usable, round_trips_us }
    }

    fn moved(circuits: &[Carried], relays: &Relays) -> Vec<(u64, u64)> {
        plan(circuits, relays).iter().map(|it| (it.circuit.circuit.0, it.to.0)).collect()
    }

    #[test]
    fn flows_are_spread_and_what_is_spread_stays() {
        let near = relays(&[(1, 2), (2, 3), (3, 2)]);
        let all_on_one = [carried(1, 1, 10), carried(2, 1, 10), carried(3, 1, 10)];
        assert_eq!(moved(&all_on_one, &near), [(1, 3), (2, 2)], "the nearer relay first");
        assert_eq!(moved(&[carried(1, 1, 10), carried(2, 2, 10), carried(3, 3, 11)], &near), []);
        // One circuit alone would only carry its load elsewhere.
        assert_eq!(moved(&[carried(1, 1, 50)], &near), []);
        assert_eq!(moved(&[carried(1, 1, 0), carried(2, 1, 0)], &near), [], "idle circuits are no load");
        let page = plan(&all_on_one, &near);
        assert_eq!((page[0].from_flows, page[0].to_flows, page[1].from_flows), (30, 0, 20));
    }

    #[test]
    fn a_circuit_is_not_sent_where_it_would_not_stay() {
        let circuits = [carried(1, 1, 10), carried(2, 1, 10)];
        assert_eq!(moved(&circuits, &relays(&[(1, 2), (2, 40)])), [], "76 ms farther is left again at once");
        assert_eq!(moved(&circuits, &relays(&[(1, 20), (2, 25)])), [(1, 2)], "10 ms of 50 are not");
        let mut unreached = relays(&[(1, 2), (2, 2)]);
        unreached.round_trips_us.remove(&(NodeId(11), NodeId(2)));
        assert_eq!(moved(&circuits, &unreached), [], "both ends must reach it");
        // A relay that drains is none to go to, and what is still on it is load of others' no longer.
        let mut draining = relays(&[(1, 2), (2, 2)]);
        draining.usable.retain(|relay| *relay != NodeId(2));
        assert_eq!(moved(&circuits, &draining), []);
    }

    proptest! {
        /// Whatever lies where, a plan ends, moves no circuit twice and never makes the fullest relay fuller.
        #[test]
        fn plans_help(flows in vec((1_u64..5, 0_u64..200), 0..60)) {
            let circuits: Vec<Carried> =
                flows.iter().enumerate().map(|(at, (relay, flows))| carried(at as u64, *relay, *flows)).collect();
            let near = relays(&[(1, 2), (2, 3), (3, 2), (4, 4)]);
            let moves = plan(&circuits, &near);
            assert!(moves.len() <= REBALANCE_MOVES_MAX);
            let fullest = |circuits: &[Carried]| {
                let on = |relay| circuits.iter().filter(|it| it.relay.0 == relay).map(Carried::weight).sum::<u64>();
                (1..5).map(on).max().unwrap_or(0)
            };
            let mut after = circuits.clone();
            for next in &moves {
                let found = after.iter_mut().find(|it| it.circuit == next.circuit.circuit).unwrap();
                assert_eq!(found.relay, next.circuit.relay);
                found.relay = next.to;
            }
            let ids: std::collections::BTreeSet<_> = moves.iter().map(|it| it.circuit.circuit).collect();
            assert_eq!(ids.len(), moves.len());
            assert!(fullest(&after) <= fullest(&circuits));
        }
    }
}
