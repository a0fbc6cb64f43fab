//! Why a circuit is on its relay, and what if one died: the very function that decides, asked on a copy.

use std::collections::BTreeMap;

use postroad_actors::status::relays::{Relay, Relays, Standing};
use postroad_cluster::{
    circuit::{Circuit, Effect, Event, Rank},
    domain,
    id::NodeId,
    time::{Moment, WallTime},
};
use serde::{Deserialize, Serialize};

/// One relay as the decision sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The relay.
    pub relay: String,
    /// Whether it carries the circuit.
    pub carries: bool,
    /// Whether it may.
    pub candidate: bool,
    /// Whether it is a last resort: it drains, or is too small for the circuit's packets.
    pub last_resort: bool,
    /// Whether it shares a failure domain with the present one.
    pub shares_domain: bool,
    /// Whether nothing was heard of it since a silence began.
    pub unheard: bool,
    /// The round trip of its probes, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Its place among those that would take over, from 1; none for those that cannot.
    pub place: Option<usize>,
    /// What the circuit would do if this relay died now.
    pub if_it_dies: Outcome,
}

/// What a circuit would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// It would stay where it is.
    Stays,
    /// It would move.
    Moves {
        /// There.
        to: String,
    },
    /// It would wait: no relay is left.
    Waits,
}

/// A circuit on its relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node whose view this is.
    pub node: String,
    /// The node at the other end.
    pub peer: String,
    /// Links over it.
    pub links: Vec<String>,
    /// Open flows.
    pub flows: u64,
    /// The relay that carries it.
    pub relay: Option<String>,
    /// Whether new flows open on it, or why they do so on others first.
    #[serde(default)]
    pub opens: String,
    /// How many relays take new connections of the two nodes, if the node says so.
    #[serde(default)]
    pub spread: Option<usize>,
    /// Whether this end chooses nearer relays; the other one does otherwise.
    pub chooses: bool,
    /// Moves so far.
    pub moves: u64,
    /// Why it moved last.
    pub move_reason: Option<String>,
    /// The size of its packets and why, in words.
    #[serde(default)]
    pub packets: String,
    /// Every relay, best first.
    pub choices: Vec<Choice>,
}

/// What the fleet would still be able to lose without a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Without {
    /// The relay.
    pub relay: String,
    /// Independent relays that could be lost then.
    pub can_lose: u64,
    /// Circuits that would move.
    pub moving: usize,
    /// Flows on them.
    pub flows: u64,
    /// Circuits that would wait.
    pub waiting: usize,
}

/// The page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// When.
    pub now: WallTime,
    /// What was asked about, if not everything.
    pub about: Option<String>,
    /// What is known of the relay that was asked about.
    pub relay: Option<String>,
    /// What if a relay died, for each.
    pub without: Vec<Without>,
    /// Circuits on their relays.
    pub placements: Vec<Placement>,
    /// Links, to choose from.
    pub links: Vec<String>,
    /// Relays, to choose from.
    pub relays: Vec<String>,
    /// Nodes that did not answer.
    pub silent: Vec<String>,
}

impl Placement {
    /// Whether new flows open on the circuit, and over how many relays they are spread.
    pub fn opens_words(&self) -> String {
        let spread =
            self.spread.map(|spread| format!("; spread over {spread} relay{}", if spread == 1 { "" } else { "s" }));
        format!("{}{}", self.opens, spread.unwrap_or_default())
    }
}

fn outcome(circuit: &Circuit, now: Moment, relay: NodeId, name: &impl Fn(NodeId) -> String) -> Outcome {
    let mut copy = circuit.clone();
    let mut effects = Vec::new();
    copy.on(now, Event::SessionLost { relay }, &mut effects);
    let taken = effects.iter().find_map(|effect| match effect {
        Effect::Take(take) => take.path.relay,
        _ => None,
    });
    match taken {
        Some(to) => Outcome::Moves { to: name(to) },
        None if circuit.path().relay == Some(relay) => Outcome::Waits,
        None => Outcome::Stays,
    }
}

/// Every relay of a circuit as its decision sees it, and what if it died.
pub fn choices(circuit: &Circuit, now: Moment, name: impl Fn(NodeId) -> String) -> Vec<Choice> {
    let present = circuit.path().relay;
    let mut ranks: Vec<Rank> = circuit.ranks(now);
    // The one that carries first, then those that may take over in their order, then the others.
    ranks.sort_by_key(|rank| (Some(rank.relay) != present, !rank.candidate, *rank));
    let mut place = 0;
    let choice = |rank: Rank| {
        let carries = Some(rank.relay) == present;
        let place = (rank.candidate && !carries).then(|| {
            place += 1;
            place
        });
        Choice {
            relay: name(rank.relay),
            carries,
            candidate: rank.candidate,
            last_resort: rank.last_resort,
            shares_domain: rank.shares_domain,
            unheard: rank.unheard,
            round_trip_us: rank.round_trip.map(|span| span.as_micros() as u64),
            place,
            if_it_dies: outcome(circuit, now, rank.relay, &name),
        }
    };
    ranks.into_iter().map(choice).collect()
}

/// What is known of a relay, in a sentence.
pub fn relay_words(relay: &Relay) -> String {
    let reason = if relay.reason.is_empty() { String::new() } else { format!(" ({})", relay.reason) };
    let missed: Vec<String> = relay.missed_by.iter().map(|(node, why)| format!("; {node} does not: {why}")).collect();
    let (name, address, state, count) = (&relay.name, &relay.address, relay.state.word(), relay.reached_by.len());
    format!("{name} at {address} is {state}{reason}; {count} nodes reach it{}", missed.concat())
}

/// What the fleet could still lose without each relay, and what its circuits would do.
pub fn without(relays: &Relays, placements: &[Placement]) -> Vec<Without> {
    let ready = relays.list.iter().filter(|relay| relay.state == Standing::Ready);
    let ready: Vec<_> = ready.collect();
    let mut by_relay: BTreeMap<&str, Without> = BTreeMap::new();
    for relay in &relays.list {
        let left = ready.iter().filter(|other| other.id != relay.id).map(|other| &other.domain);
        let can_lose = domain::independent_count(left).saturating_sub(1) as u64;
        let without = Without { relay: relay.name.clone(), can_lose, moving: 0, flows: 0, waiting: 0 };
        by_relay.insert(&relay.name, without);
    }
    // Both ends of a circuit tell of it; the end that chooses is asked.
    for placement in placements.iter().filter(|placement| placement.chooses) {
        for choice in &placement.choices {
            let Some(without) = by_relay.get_mut(choice.relay.as_str()) else { continue };
            match choice.if_it_dies {
                Outcome::Stays => {}
                Outcome::Moves { .. } => {
                    without.moving += 1;
                    without.flows += placement.flows;
                }
                Outcome::Waits => without.waiting += 1,
            }
        }
    }
    by_relay.into_values().collect()
}
