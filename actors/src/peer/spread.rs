//! What the dialling end of a pair sees of its relays and circuits, for the decision where circuits are to be.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use postroad_cluster::{
    id::{CircuitId, NodeId},
    limits::SPREAD_LOOK,
    packet_size::{PacketSize, choose},
    peer::{Event, Lie},
    spread::{Takers, Way},
};
use postroad_transport::node_socket::CircuitStatus;

use super::Me;
use crate::{
    fabric::{
        Fabric,
        circuits::{Circuit, round_trips},
    },
    packet_size,
    ports::sleep,
};

/// Whether what was told is to be told again, since it did not come of it what should.
#[derive(Debug, Default)]
pub(super) struct Look(AtomicBool);

impl Look {
    pub(super) fn again(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Lies = BTreeMap<CircuitId, Lie>;

/// Looks once a second, and tells the pair when its relays or circuits are others than before.
pub(super) async fn watch(fabric: Arc<Fabric>, peer: NodeId, look: Arc<Look>, me: Me) {
    let mut takers = Takers::default();
    let mut size = PacketSize::default();
    let mut told: Option<(Vec<NodeId>, Lies, bool)> = None;
    loop {
        sleep(&*fabric.clock, SPREAD_LOOK).await;
        let standing = standing(&fabric, peer);
        takers.look(&ways(&fabric, peer, &standing), fabric.spread(peer));
        let large = sized(&fabric, peer, &mut size, &standing);
        let lies = standing.iter().map(|(circuit, stands)| (*circuit, stands.lie(large)));
        let now = (takers.chosen().to_vec(), lies.collect(), large);
        if look.0.swap(false, Ordering::Relaxed) || told.as_ref() != Some(&now) {
            let _ = me.send(Event::Spread { takers: now.0.clone(), lies: now.1.clone(), large });
            told = Some(now);
        }
    }
}

/// A circuit of the pair that stands.
struct Stands {
    status: CircuitStatus,
    /// Whether something is open on it.
    busy: bool,
    /// Whether its packets are as large as they began.
    whole: bool,
}

impl Stands {
    fn lie(&self, large: bool) -> Lie {
        let fits = self.whole && packet_size::is_large(&self.status) == large;
        Lie { relay: self.status.relay.filter(|_| !self.status.stranded), busy: self.busy, fits }
    }
}

/// The circuits of the pair that stand.
fn standing(fabric: &Fabric, peer: NodeId) -> BTreeMap<CircuitId, Stands> {
    let circuits = fabric.circuits.to(peer).into_iter();
    let stands = |circuit: Arc<Circuit>| {
        let status = fabric.socket.status(circuit.key).ok()?;
        let whole = packet_size::is_whole(&circuit, &status);
        Some((circuit.key.circuit, Stands { status, busy: circuit.is_busy(), whole }))
    };
    circuits.filter_map(stands).collect()
}

/// Looks whether new circuits have large packets, and says when that has changed.
fn sized(fabric: &Fabric, peer: NodeId, size: &mut PacketSize, standing: &BTreeMap<CircuitId, Stands>) -> bool {
    let (before, bounded) = (size.is_large(), fabric.packets_are_bounded());
    let found = packet_size::carries(standing.values().map(|it| &it.status));
    size.look(bounded, &found);
    match (before, size.is_large()) {
        (false, true) => tracing::info!(%peer, "every relay carries large packets: further circuits have them"),
        (true, false) => {
            let (_, why) = choose(before, bounded, &found);
            let why = why.words(|relay| relay.to_string());
            tracing::warn!(%peer, why, "further circuits have small packets");
        }
        _ => {}
    }
    size.is_large()
}

/// The relays over which a circuit of the pair has a channel.
fn ways(fabric: &Fabric, peer: NodeId, standing: &BTreeMap<CircuitId, Stands>) -> BTreeMap<NodeId, Way> {
    let round_trips = round_trips(standing.values().map(|it| &it.status));
    let links = fabric.links_with(peer);
    let way =
        |relay, round_trip| Way { round_trip, away: fabric.away_for(relay, &links), shares: shares(fabric, relay) };
    round_trips.into_iter().map(|(relay, round_trip)| (relay, way(relay, round_trip))).collect()
}

fn shares(fabric: &Fabric, relay: NodeId) -> BTreeSet<NodeId> {
    let Some(accepted) = fabric.snapshot() else { return BTreeSet::new() };
    let relays = &accepted.content.relays;
    let Some(domain) = relays.get(&relay).map(|view| &view.domain) else { return BTreeSet::new() };
    let others = relays.iter().filter(|(other, _)| **other != relay);
    others.filter(|(_, view)| !domain.independence(&view.domain).is_independent()).map(|(other, _)| *other).collect()
}
