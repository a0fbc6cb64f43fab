//! The circuits of a node that stand, by peer and number: what is open on each, and which of a peer's serves a new flow.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    admission::Lots,
    command::Refusal,
    id::{CircuitId, LinkId, NodeId},
    packet_size::is_narrow,
    refusing::{News, Refusals},
    snapshot::LinkView,
    spread::{self, Away, Candidate, Served},
    time::Span,
};
use postroad_transport::{
    connection::Connection,
    node_socket::{CircuitKey, CircuitStatus},
};
use tokio::sync::Notify;

use super::Fabric;
use crate::{
    directory::lock,
    packet_size::{carried_bytes, carries},
};

/// The relay that carries a circuit now.
pub(crate) fn carrying(status: &CircuitStatus) -> Option<NodeId> {
    status.relay.filter(|_| !status.stranded)
}

/// The round trips over relays that could carry these circuits of a pair.
pub(crate) fn round_trips<'a>(circuits: impl IntoIterator<Item = &'a CircuitStatus>) -> BTreeMap<NodeId, Option<Span>> {
    let channels = circuits.into_iter().flat_map(|status| &status.channels);
    spread::round_trips(channels.map(|channel| (channel.relay, channel.round_trip.filter(|_| channel.candidate))))
}

/// The circuits of a node.
#[derive(Debug, Default)]
pub struct Circuits {
    stand: Mutex<BTreeMap<CircuitKey, Arc<Circuit>>>,
    changed: Notify,
    refusals: Mutex<Refusals>,
}

/// A circuit that stands.
#[derive(Debug)]
pub struct Circuit {
    /// Its name.
    pub key: CircuitKey,
    /// Its connection.
    pub connection: Connection,
    used: Mutex<Used>,
    emptied: Notify,
    lots: Mutex<Lots>,
}

#[derive(Debug, Default)]
struct Used {
    streams: u64,
    closing: bool,
}

/// A stream's place on a circuit: the circuit is not closed as surplus while somebody holds one.
#[derive(Debug)]
pub struct Place(Arc<Circuit>);

impl Place {
    /// The circuit.
    pub fn circuit(&self) -> &Arc<Circuit> {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut used = lock(&self.0.used);
        used.streams -= 1;
        if used.streams == 0 {
            self.0.emptied.notify_waiters();
        }
    }
}

impl Circuit {
    /// A place for one more stream; none on a circuit that is closing. Both are decided in one step, so that nothing
    /// opens between the look whether a circuit is empty and its close.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut used = lock(&self.used);
        if used.closing {
            return None;
        }
        used.streams += 1;
        Some(Place(Arc::clone(self)))
    }

    /// From now on nothing is opened on it, if nothing is open. False if something is.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut used = lock(&self.used);
        used.closing |= used.streams == 0;
        used.closing
    }

    /// From now on nothing is opened on it: the other end closes it.
    pub(crate) fn close(&self) {
        lock(&self.used).closing = true;
    }

    /// Completes when nothing is open on it.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if lock(&self.used).streams == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Whether something is open on it.
    pub fn is_busy(&self) -> bool {
        lock(&self.used).streams > 0
    }

    /// Whether it is closing.
    pub fn is_closing(&self) -> bool {
        lock(&self.used).closing
    }

    /// What was admitted ahead for flows that open on it.
    pub(crate) fn lots<T>(&self, act: impl FnOnce(&mut Lots) -> T) -> T {
        act(&mut lock(&self.lots))
    }

    fn streams(&self) -> u64 {
        lock(&self.used).streams
    }

    fn serves(&self) -> bool {
        !self.is_closing() && self.connection.close_reason().is_none()
    }
}

impl Circuits {
    pub(crate) fn up(&self, key: CircuitKey, connection: Connection) -> Arc<Circuit> {
        let (used, lots) = (Mutex::default(), Mutex::default());
        let circuit = Arc::new(Circuit { key, connection, used, emptied: Notify::new(), lots });
        lock(&self.stand).insert(key, Arc::clone(&circuit));
        self.changed.notify_waiters();
        circuit
    }

    pub(crate) fn down(&self, key: CircuitKey) {
        lock(&self.stand).remove(&key);
    }

    /// A circuit by its name.
    pub fn get(&self, key: CircuitKey) -> Option<Arc<Circuit>> {
        lock(&self.stand).get(&key).cloned()
    }

    /// All of them, in order.
    pub fn all(&self) -> Vec<Arc<Circuit>> {
        lock(&self.stand).values().cloned().collect()
    }

    /// Those to a peer, in order.
    pub fn to(&self, peer: NodeId) -> Vec<Arc<Circuit>> {
        let key = |circuit| CircuitKey { peer, circuit: CircuitId(circuit) };
        lock(&self.stand).range(key(0)..=key(u64::MAX)).map(|(_, circuit)| Arc::clone(circuit)).collect()
    }

    /// Completes at the next circuit that comes to stand, once it is armed by `enable`.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

impl Fabric {
    /// Why nothing new of a link opens over a relay, if so.
    pub(crate) fn away(&self, relay: NodeId, link: LinkId) -> Option<Away> {
        if self.session(relay).is_none() {
            return Some(Away::NoSession);
        }
        if self.is_stale(relay, link) {
            return Some(Away::Stale);
        }
        if self.drains(relay) {
            return Some(Away::Drains);
        }
        if self.relay(relay).is_some_and(|view| !view.ready) {
            return Some(Away::Pending);
        }
        self.refuses(relay, link).map(|_| Away::Refuses)
    }

    /// The code by which a relay has refused a link's tunnels lately, if it has.
    pub(crate) fn refuses(&self, relay: NodeId, link: LinkId) -> Option<&'static str> {
        lock(&self.circuits.refusals).refusing(self.now(), relay, link)
    }

    /// Whether a tunnel of a link may ask a relay now; of those that come while it refuses, one in a while may (RP-21).
    pub(crate) fn may_ask(&self, relay: NodeId, link: LinkId) -> bool {
        lock(&self.circuits.refusals).may_ask(self.now(), relay, link)
    }

    /// The links that join this node and a peer.
    pub(crate) fn links_with(&self, peer: NodeId) -> Vec<LinkId> {
        let Some(accepted) = self.snapshot() else { return Vec::new() };
        let ends = |view: &LinkView, target: NodeId, consumer: NodeId| {
            view.target == target && view.consumers.contains(&consumer)
        };
        let joins = |view: &LinkView| ends(view, peer, self.me) || ends(view, self.me, peer);
        accepted.content.links.iter().filter(|(_, view)| joins(view)).map(|(link, _)| *link).collect()
    }

    /// How many relays take new connections to a peer.
    pub fn spread(&self, peer: NodeId) -> usize {
        spread::of_pair(self.links_with(peer).into_iter().filter_map(|link| Some(self.link(link)?.spread)))
    }

    /// Why nothing new of any of these links opens over a relay, if so: as long as it takes one's, it takes.
    pub(crate) fn away_for(&self, relay: NodeId, links: &[LinkId]) -> Option<Away> {
        links.iter().map(|link| self.away(relay, *link)).min().flatten()
    }

    /// A relay has refused a link's tunnel (RP-21). The words are stable (RP-22, RP-62).
    pub(crate) fn relay_refused(&self, relay: NodeId, link: LinkId, refusal: &Refusal) {
        match lock(&self.circuits.refusals).refused(self.now(), relay, link, &refusal.code) {
            Some(News::First) => {
                tracing::warn!(%relay, %link, %refusal, "a relay refuses new tunnels: others are asked first");
            }
            Some(News::Still) => tracing::warn!(%relay, %link, %refusal, "a relay still refuses new tunnels"),
            None => {}
        }
    }

    /// A relay has admitted one.
    pub(crate) fn relay_admitted(&self, relay: NodeId, link: LinkId) {
        if lock(&self.circuits.refusals).admitted(relay, link) {
            tracing::info!(%relay, %link, "a relay admits new tunnels again");
        }
    }

    fn candidate(
        &self,
        circuit: &Circuit,
        status: Option<&CircuitStatus>,
        round_trips: &BTreeMap<NodeId, Option<Span>>,
        narrow: bool,
        link: LinkId,
    ) -> Candidate {
        let relay = status.and_then(carrying);
        Candidate {
            circuit: circuit.key.circuit,
            relay,
            round_trip: relay.and_then(|relay| round_trips.get(&relay).copied().flatten()),
            away: relay.map_or(Some(Away::NoRelay), |relay| self.away(relay, link)),
            flows: circuit.streams(),
            packet_bytes: status.map_or(0, |status| carried_bytes(circuit, status, narrow)),
        }
    }

    /// The circuit to a peer that serves a new flow of a link, and why that one; without any of `tried` while there is
    /// another.
    pub(crate) fn serve(&self, peer: NodeId, link: LinkId, tried: &BTreeSet<CircuitId>) -> Option<(Served, Place)> {
        let mut standing = self.circuits.to(peer);
        standing.retain(|circuit| circuit.serves());
        if standing.iter().any(|circuit| !tried.contains(&circuit.key.circuit)) {
            standing.retain(|circuit| !tried.contains(&circuit.key.circuit));
        }
        let known: Vec<Option<CircuitStatus>> =
            standing.iter().map(|circuit| self.socket.status(circuit.key).ok()).collect();
        let narrow = is_narrow(&carries(known.iter().flatten()));
        let round_trips = round_trips(known.iter().flatten());
        let both = standing.iter().zip(&known);
        let candidate = |(circuit, status): (&Arc<Circuit>, &Option<CircuitStatus>)| {
            self.candidate(circuit, status.as_ref(), &round_trips, narrow, link)
        };
        let candidates: Vec<Candidate> = both.map(candidate).collect();
        let served = spread::serve(&candidates)?;
        let chosen = standing.into_iter().find(|circuit| circuit.key.circuit == served.circuit)?;
        Some((served, chosen.enter()?))
    }

    /// Whether another circuit than those lies at a relay that takes new connections of the link.
    pub(crate) fn serves_elsewhere(&self, peer: NodeId, link: LinkId, tried: &BTreeSet<CircuitId>) -> bool {
        let others = self.circuits.to(peer).into_iter().filter(|circuit| !tried.contains(&circuit.key.circuit));
        let takes = |circuit: &Circuit| {
            let relay = self.socket.status(circuit.key).ok().as_ref().and_then(carrying);
            relay.is_some_and(|relay| self.away(relay, link).is_none())
        };
        others.filter(|circuit| circuit.serves()).any(|circuit| takes(&circuit))
    }

    /// A circuit to a peer that stands, for whoever asks for any.
    pub fn circuit(&self, peer: NodeId) -> Option<(CircuitKey, Connection)> {
        let standing = self.circuits.to(peer);
        let any = standing.iter().find(|circuit| circuit.serves()).or_else(|| standing.first())?;
        Some((any.key, any.connection.clone()))
    }
}
