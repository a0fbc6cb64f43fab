//! Who stands where and what moves over whom: nodes, relays in their failure domains, sessions and the circuits that
//! carry flows. Pure: a picture is made of it by [`chart`](crate::console::chart).

use postroad_actors::status::relays::Standing;
use postroad_cluster::{
    id::{NodeId, Role},
    time::WallTime,
};
use serde::{Deserialize, Serialize};

use super::overview::Overview;

/// A relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hub {
    /// Its node.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: Standing,
    /// Whether it stands on a control node.
    pub local: bool,
    /// Whether it leads the control group.
    pub leads: bool,
    /// Whether it is silent.
    pub silent: bool,
    /// Sessions at it.
    pub sessions: usize,
    /// Bytes that it has forwarded.
    pub bytes: u64,
    /// Flows over it, by the nodes' words.
    pub flows: u64,
    /// Bytes that it forwards a second.
    #[serde(default)]
    pub forwards: Option<u64>,
}

/// Relays that stand or fall together, as far as their operators say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// What they share, in words; empty if nothing was said.
    pub name: String,
    /// The relays.
    pub hubs: Vec<Hub>,
}

/// A node that is no relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// Its node.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Whether it is silent.
    pub silent: bool,
    /// Its open flows.
    pub flows: u64,
}

/// A session of a node with a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spoke {
    /// The node.
    pub node: NodeId,
    /// The relay.
    pub relay: NodeId,
    /// Whether it stands.
    pub up: bool,
    /// Its last round trip, in microseconds.
    pub round_trip_us: Option<u64>,
}

/// A circuit over its relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// One end; the one of the lesser number.
    pub one: NodeId,
    /// The other end.
    pub other: NodeId,
    /// The circuit's number.
    #[serde(default)]
    pub circuit: u64,
    /// The relay that carries it; none if it is stranded.
    pub relay: Option<NodeId>,
    /// Flows on it.
    pub flows: u64,
    /// Bytes over it, both ways.
    pub bytes: u64,
    /// Moves so far.
    pub moves: u64,
    /// Why that relay.
    pub choice: String,
}

/// The picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The cluster.
    pub cluster: String,
    /// When.
    pub now: WallTime,
    /// Relays by failure domain: those of control nodes first.
    pub domains: Vec<Domain>,
    /// The others.
    pub leaves: Vec<Leaf>,
    /// Sessions.
    pub spokes: Vec<Spoke>,
    /// Circuits.
    pub threads: Vec<Thread>,
}

impl Topology {
    /// The name of a node that is in it, or its number.
    pub fn name(&self, id: NodeId) -> String {
        let hubs = self.domains.iter().flat_map(|domain| &domain.hubs).map(|hub| (hub.id, &hub.name));
        let leaves = self.leaves.iter().map(|leaf| (leaf.id, &leaf.name));
        hubs.chain(leaves).find(|(known, _)| *known == id).map_or_else(|| id.to_string(), |(_, name)| name.clone())
    }
}

/// The picture of a fleet.
pub fn topology(overview: &Overview) -> Topology {
    let vitals = || overview.cards.iter().filter_map(|card| card.heard.vitals.as_ref());
    let mut threads: Vec<Thread> = Vec::new();
    for from in vitals() {
        for circuit in &from.circuits {
            let (one, other) = (from.id.min(circuit.peer), from.id.max(circuit.peer));
            let flows = circuit.flows;
            let name = (one, other, circuit.circuit);
            match threads.iter_mut().find(|thread| (thread.one, thread.other, thread.circuit) == name) {
                // Both ends tell of it; the one that opens flows knows how many.
                Some(thread) => {
                    thread.flows = thread.flows.max(flows);
                    thread.bytes = thread.bytes.max(circuit.bytes);
                }
                None => threads.push(Thread {
                    one,
                    other,
                    circuit: circuit.circuit,
                    relay: circuit.relay.filter(|_| !circuit.stranded),
                    flows,
                    bytes: circuit.bytes,
                    moves: circuit.moves,
                    choice: circuit.choice.clone(),
                }),
            }
        }
    }
    let mut domains: Vec<Domain> = Vec::new();
    let mut relays: Vec<_> = overview.relays.list.iter().collect();
    relays.sort_by_key(|relay| (!relay.local, relay.domain.host.clone(), relay.name.clone()));
    for relay in relays {
        let card = overview.cards.iter().find(|card| card.id == relay.id);
        let service = card.and_then(|card| card.heard.vitals.as_ref()?.relay.as_ref());
        let hub = Hub {
            id: relay.id,
            name: relay.name.clone(),
            state: relay.state,
            local: relay.local,
            leads: card.is_some_and(|card| card.leads),
            silent: card.is_some_and(super::overview::Card::silent),
            sessions: service.map_or(0, |service| service.sessions),
            bytes: service.map_or(0, |service| service.bytes),
            flows: threads.iter().filter(|thread| thread.relay == Some(relay.id)).map(|thread| thread.flows).sum(),
            forwards: card.and_then(|card| card.heard.forwards),
        };
        let domain = &relay.domain;
        let parts = [&domain.host, &domain.power, &domain.network];
        let name = parts.into_iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(" · ");
        match domains.iter_mut().find(|known| known.name == name && !name.is_empty()) {
            Some(known) => known.hubs.push(hub),
            None => domains.push(Domain { name, hubs: vec![hub] }),
        }
    }
    let is_hub = |id: NodeId| overview.relays.list.iter().any(|relay| relay.id == id);
    let leaves = overview.cards.iter().filter(|card| !is_hub(card.id) && !card.roles.contains(&Role::Relay));
    let leaves = leaves.map(|card| Leaf {
        id: card.id,
        name: card.name.clone(),
        silent: card.silent(),
        flows: card.heard.vitals.as_ref().map_or(0, |vitals| vitals.flows.open),
    });
    let leaves = leaves.collect();
    // What a silent node said of its sessions is over.
    let heard = overview.cards.iter().filter(|card| !card.silent()).filter_map(|card| card.heard.vitals.as_ref());
    let spokes = heard.flat_map(|from| {
        from.ways.iter().map(|way| Spoke {
            node: from.id,
            relay: way.relay,
            up: way.up,
            round_trip_us: way.round_trip_us,
        })
    });
    let spokes = spokes.filter(|spoke| spoke.node != spoke.relay).collect();
    Topology { cluster: overview.cluster.clone(), now: overview.now, domains, leaves, spokes, threads }
}
