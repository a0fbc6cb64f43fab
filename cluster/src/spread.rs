//! Which relays take a pair's new connections, and which of the pair's circuits serves a new flow, each with the reason.
//!
//! Nothing here moves a flow: a circuit moves as a whole, by its own behavior.

use core::{cmp::Reverse, fmt};
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    id::{CircuitId, NodeId},
    limits::{NEARER_PERCENT, NEARER_SPAN, PRIMARY_PERCENT, PRIMARY_SPAN, SPREAD_DEFAULT, SPREAD_LOOKS, SPREAD_MAX},
    time::Span,
};

/// A relay as a way of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The round trip over it to the peer and back, if its last probe came back.
    pub round_trip: Option<Span>,
    /// Why it takes no new connection of this pair, if so.
    pub away: Option<Away>,
    /// Relays that share a failure domain with it.
    pub shares: BTreeSet<NodeId>,
}

/// Why nothing new opens over a relay unless there is no other; the worst is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Away {
    /// It has refused tunnels lately (RP-21).
    Refuses,
    /// It is not ready yet (RP-7).
    Pending,
    /// It drains (RP-40).
    Drains,
    /// It is stale for the link (RP-35).
    Stale,
    /// This node has no session with it.
    NoSession,
    /// No relay carries the circuit.
    NoRelay,
}

impl Away {
    /// The reason in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Refuses => "its relay has refused lately",
            Self::Pending => "its relay is not ready yet",
            Self::Drains => "its relay drains",
            Self::Stale => "its relay is stale for the link",
            Self::NoSession => "there is no session with its relay",
            Self::NoRelay => "no relay carries it",
        }
    }
}

/// The round trip over each relay: the shortest of what the pair's circuits have measured. They all go the same way, so that
/// a longer one is an older look or that of a busier circuit.
pub fn round_trips(measured: impl IntoIterator<Item = (NodeId, Option<Span>)>) -> BTreeMap<NodeId, Option<Span>> {
    let mut shortest: BTreeMap<NodeId, Option<Span>> = BTreeMap::new();
    for (relay, round_trip) in measured {
        let known = shortest.entry(relay).or_default();
        *known = known.iter().copied().chain(round_trip).min();
    }
    shortest
}

/// Whether a relay at this round trip shares the primary role with the closest (RP-12).
fn is_near(round_trip: Span, closest: Span) -> bool {
    round_trip <= closest + (closest * PRIMARY_PERCENT / 100).max(PRIMARY_SPAN)
}

/// Whether a relay keeps the role that it has: until another is closer by 30 % and 5 ms, as for a circuit (RP-12).
fn is_near_enough(round_trip: Span, closest: Span) -> bool {
    round_trip < closest + (round_trip * NEARER_PERCENT / 100).max(NEARER_SPAN)
}

/// The relays that take a pair's new connections, `spread` at most: those that did `before` as long as no other is much
/// closer, then the closest, in failure domains of their own first. Relays much farther are spares and take nothing: a
/// circuit there would move to the closest by itself. Without any, nothing changes.
#[must_use]
pub fn takers(before: &[NodeId], ways: &BTreeMap<NodeId, Way>, spread: usize) -> Vec<NodeId> {
    let usable: BTreeMap<NodeId, Span> = ways
        .iter()
        .filter(|(_, way)| way.away.is_none())
        .filter_map(|(relay, way)| Some((*relay, way.round_trip?)))
        .collect();
    let Some(closest) = usable.values().min().copied() else { return before.to_vec() };
    let stays = |relay: &&NodeId| usable.get(relay).is_some_and(|round_trip| is_near_enough(*round_trip, closest));
    let mut chosen: Vec<NodeId> = before.iter().filter(stays).copied().take(spread).collect();
    while chosen.len() < spread {
        let free = usable.iter().filter(|(relay, span)| !chosen.contains(relay) && is_near(**span, closest));
        let shared =
            |relay: &NodeId| ways.get(relay).is_some_and(|way| chosen.iter().any(|it| way.shares.contains(it)));
        let Some((_, _, next)) = free.map(|(relay, span)| (shared(relay), *span, *relay)).min() else { break };
        chosen.push(next);
    }
    chosen.sort_unstable();
    chosen
}

/// How many relays take a pair's new connections: as many as the link wants that wants most. A circuit is the pair's and not
/// a link's, so a link may use more relays than it asked for, and never fewer.
#[must_use]
pub fn of_pair(links: impl IntoIterator<Item = u8>) -> usize {
    links.into_iter().max().unwrap_or(SPREAD_DEFAULT).clamp(1, SPREAD_MAX).into()
}

/// The relays that take a pair's new connections, look by look: others only once several looks in a row have found the
/// same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takers {
    chosen: Vec<NodeId>,
    seen: Vec<NodeId>,
    looks: u32,
}

impl Takers {
    /// Looks at the pair's ways as they are now, for so many relays at most.
    pub fn look(&mut self, ways: &BTreeMap<NodeId, Way>, spread: usize) {
        let found = takers(&self.chosen, ways, spread);
        self.looks = if found == self.seen { self.looks.saturating_add(1) } else { 1 };
        self.seen = found;
        if self.looks >= SPREAD_LOOKS {
            self.chosen.clone_from(&self.seen);
        }
    }

    /// The relays that take new connections.
    #[must_use]
    pub fn chosen(&self) -> &[NodeId] {
        &self.chosen
    }
}

/// A circuit that could serve a new flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The circuit.
    pub circuit: CircuitId,
    /// The relay that carries it.
    pub relay: Option<NodeId>,
    /// The round trip over that, by [`round_trips`].
    pub round_trip: Option<Span>,
    /// Why nothing new opens over that relay, if so.
    pub away: Option<Away>,
    /// Flows that it carries already.
    pub flows: u64,
    /// The size of its packets, as far as every relay that could carry it carries them; else 0.
    pub packet_bytes: u32,
}

/// The circuit that serves a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// The circuit.
    pub circuit: CircuitId,
    /// Its relay, which is asked first.
    pub relay: Option<NodeId>,
    /// Why this one.
    pub why: Why,
}

/// Why a circuit serves a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It is the only one over a relay that takes new connections.
    Only,
    /// It had the fewest flows of so many.
    Fewest {
        /// How many could have served it.
        of: usize,
    },
    /// No circuit is over a relay that takes new connections: this one is the least bad.
    LastResort(Away),
    /// It is the one with the largest packets.
    Largest,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("the only circuit over a relay that takes new connections"),
            Self::Largest => f.write_str("the one with the largest packets of those over near relays"),
            Self::Fewest { of } => write!(f, "the fewest flows of {of} circuits over near relays"),
            Self::LastResort(away) => {
                write!(f, "no circuit is over a relay that takes new connections: {}", away.text())
            }
        }
    }
}

/// The circuit for a new flow: of those over near relays that take new connections, and of these with the largest packets,
/// the one with the fewest flows; else the least bad.
#[must_use]
pub fn serve(candidates: &[Candidate]) -> Option<Served> {
    let good = |it: &&Candidate| it.away.is_none();
    let closest = candidates.iter().filter(good).filter_map(|it| it.round_trip).min();
    // What was not measured yet is as good as anything: a circuit that has just moved.
    let near = |it: &Candidate| it.round_trip.zip(closest).is_none_or(|(span, closest)| is_near_enough(span, closest));
    let rank = |it: &&Candidate| (it.away, !near(it), Reverse(it.packet_bytes), it.flows, it.round_trip, it.circuit);
    let chosen = candidates.iter().min_by_key(rank)?;
    let among: Vec<&Candidate> = candidates.iter().filter(good).filter(|it| near(it)).collect();
    let of = among.iter().filter(|it| it.packet_bytes == chosen.packet_bytes).count();
    let why = match (chosen.away, of) {
        (Some(away), _) => Why::LastResort(away),
        (None, 1) if among.len() > 1 => Why::Largest,
        (None, 1) => Why::Only,
        (None, of) => Why::Fewest { of },
    };
    Some(Served { circuit: chosen.circuit, relay: chosen.relay, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CIRCUIT_PACKET_BYTES, CIRCUIT_PACKET_BYTES_JUMBO};

    fn ways(list: &[(u64, u64)]) -> BTreeMap<NodeId, Way> {
        let way = |ms| Way { round_trip: Some(Span::from_millis(ms)), ..Way::default() };
        list.iter().map(|(relay, ms)| (NodeId(*relay), way(*ms))).collect()
    }

    fn chosen(before: &[u64], ways: &BTreeMap<NodeId, Way>, spread: usize) -> Vec<u64> {
        let before: Vec<NodeId> = before.iter().map(|relay| NodeId(*relay)).collect();
        takers(&before, ways, spread).iter().map(|relay| relay.0).collect()
    }

    // RP-10, RP-12: so many of the closest, and no jitter changes them.
    #[test]
    fn the_closest_take_new_connections_and_keep_them_through_jitter() {
        let three = ways(&[(1, 10), (2, 12), (3, 11)]);
        assert_eq!(chosen(&[], &three, 2), [1, 3]);
        assert_eq!(chosen(&[], &three, 8), [1, 2, 3]);
        assert_eq!(chosen(&[1, 2], &three, 2), [1, 2], "who takes them goes on");
        assert_eq!(chosen(&[], &ways(&[(1, 10), (2, 30)]), 2), [1], "a far one is a spare");
        assert_eq!(chosen(&[1], &ways(&[(1, 100), (2, 75)]), 1), [1], "25 % closer");
        assert_eq!(chosen(&[1], &ways(&[(1, 100), (2, 69)]), 1), [2], "31 % and 31 ms closer");
        assert_eq!(chosen(&[1], &ways(&[(1, 8), (2, 4)]), 1), [1], "4 ms closer");
        assert_eq!(chosen(&[1, 2], &BTreeMap::new(), 2), [1, 2], "who knows nothing changes nothing");
    }

    // A circuit that was dialled on a busy machine, and idles since, has measured a round trip that nobody else sees.
    #[test]
    fn the_shortest_round_trip_over_a_relay_counts_for_every_circuit() {
        let ms = |ms| Some(Span::from_millis(ms));
        let measured = [(1, ms(14)), (1, ms(1)), (1, None), (2, None), (3, ms(2))];
        let shortest = round_trips(measured.map(|(relay, span)| (NodeId(relay), span)));
        assert_eq!(shortest, [(NodeId(1), ms(1)), (NodeId(2), None), (NodeId(3), ms(2))].into());
    }

    // RP-11: the next one stands in another failure domain, as far as one does.
    #[test]
    fn takers_are_independent_where_they_can_be() {
        let mut three = ways(&[(1, 10), (2, 10), (3, 12)]);
        for (relay, other) in [(1, 2), (2, 1)] {
            three.get_mut(&NodeId(relay)).unwrap().shares.insert(NodeId(other));
        }
        assert_eq!(chosen(&[], &three, 2), [1, 3]);
        assert_eq!(chosen(&[], &three, 3), [1, 2, 3]);
    }

    // RP-21, RP-35, RP-40
    #[test]
    fn who_takes_nothing_is_none_of_them() {
        for away in [Away::Refuses, Away::Pending, Away::Drains, Away::Stale, Away::NoSession] {
            let mut two = ways(&[(1, 10), (2, 10)]);
            two.get_mut(&NodeId(1)).unwrap().away = Some(away);
            assert_eq!(chosen(&[1], &two, 2), [2], "{away:?}");
        }
        let mut unproven = ways(&[(1, 10), (2, 10)]);
        unproven.get_mut(&NodeId(1)).unwrap().round_trip = None;
        assert_eq!(chosen(&[], &unproven, 2), [2]);
    }

    // RP-10
    #[test]
    fn the_link_that_wants_most_counts_for_the_pair() {
        for (links, spread) in [(&[][..], 2), (&[1], 1), (&[1, 4, 2], 4), (&[8, 8], 8), (&[200], 8), (&[0], 1)] {
            assert_eq!(of_pair(links.iter().copied()), spread, "{links:?}");
        }
    }

    fn candidate(circuit: u64, ms: u64, away: Option<Away>, flows: u64) -> Candidate {
        let round_trip = Some(Span::from_millis(ms));
        let packet_bytes = CIRCUIT_PACKET_BYTES;
        Candidate { circuit: CircuitId(circuit), relay: Some(NodeId(circuit)), round_trip, away, flows, packet_bytes }
    }

    #[test]
    fn the_emptiest_near_circuit_serves_and_says_why() {
        let why = |list: &[Candidate]| serve(list).map(|served| (served.circuit.0, served.why));
        assert_eq!(why(&[]), None);
        assert_eq!(why(&[candidate(1, 10, None, 5)]), Some((1, Why::Only)));
        let two = [candidate(1, 10, None, 5), candidate(2, 11, None, 4)];
        assert_eq!(why(&two), Some((2, Why::Fewest { of: 2 })));
        let far = [candidate(1, 10, None, 500), candidate(2, 40, None, 0)];
        assert_eq!(why(&far), Some((1, Why::Only)), "a far one is none of them");
        let drains = [candidate(1, 10, Some(Away::Drains), 0), candidate(2, 40, None, 9)];
        assert_eq!(why(&drains), Some((2, Why::Only)));
        let none = [candidate(1, 10, Some(Away::Stale), 0), candidate(2, 40, Some(Away::Refuses), 9)];
        assert_eq!(why(&none), Some((2, Why::LastResort(Away::Refuses))));
        let moved = [Candidate { round_trip: None, ..candidate(1, 0, None, 0) }, candidate(2, 4, None, 1)];
        assert_eq!(why(&moved), Some((1, Why::Fewest { of: 2 })));
        let sized = |it: Candidate, packet_bytes| Candidate { packet_bytes, ..it };
        let [small, large, larger] =
            [(1, 0), (2, 9), (3, 8)].map(|(circuit, flows)| candidate(circuit, 10, None, flows));
        let [large, larger] = [large, larger].map(|it| sized(it, CIRCUIT_PACKET_BYTES_JUMBO));
        assert_eq!(why(&[small.clone(), large.clone()]), Some((2, Why::Largest)));
        assert_eq!(why(&[small.clone(), large.clone(), larger]), Some((3, Why::Fewest { of: 2 })));
        assert_eq!(why(&[small, sized(large, 0)]), Some((1, Why::Largest)), "some relay does not carry them");
    }

    #[test]
    fn a_relay_that_flaps_changes_nothing() {
        let (one, both) = (ways(&[(1, 10)]), ways(&[(1, 10), (2, 11)]));
        let mut takers = Takers::default();
        let mut look = |ways: &BTreeMap<NodeId, Way>| {
            takers.look(ways, 2);
            takers.chosen().iter().map(|relay| relay.0).collect::<Vec<u64>>()
        };
        for _ in 1..SPREAD_LOOKS {
            assert!(look(&one).is_empty());
        }
        assert_eq!(look(&one), [1], "so many looks in a row found the same");
        for _ in 0..10 {
            assert_eq!((look(&both), look(&one)), (vec![1], vec![1]));
        }
        for _ in 1..SPREAD_LOOKS {
            assert_eq!(look(&both), [1]);
        }
        assert_eq!(look(&both), [1, 2]);
    }
}
