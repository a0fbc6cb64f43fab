//! The actor of one pair of nodes: the circuits to a peer and their channels, given to the node's socket.

mod spread;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use postroad_cluster::{
    circuit::MoveReason,
    id::{Challenge, CircuitId, NodeId, Role},
    limits::{CALL_WAIT, DIAL_WAIT},
    peer::{Effect, Event, Peer, Timer, Tokens},
    wire::session::{NodeRequest, NodeResponse},
};
use postroad_transport::{
    connection::{CloseCode, Connection},
    endpoint::Expect,
    node_socket::{ChannelSpec, CircuitEvent, CircuitKey, CircuitSpec},
    tls::Protocol,
};

use crate::{
    fabric::{Fabric, STOPS},
    flow::{closing, target},
    handle::Handle,
    session::{after, attend, attend_flows, run},
    shell::Performer,
    supervisor::SupervisorHandle,
};

type Me = Handle<Peer>;

/// Where pairs stand in the tree.
pub(crate) const PEERS: &str = "node/peers";

/// The label of the exporter that authenticates the moves of a circuit.
const PATH_LABEL: &str = "EXPORTER-postroad-path";

/// The id of a pair's actor.
pub(crate) fn child(peer: NodeId) -> String {
    format!("peer-{}", peer.0)
}

/// The actor of a pair.
pub(crate) fn find(fabric: &Fabric, peer: NodeId) -> Option<Me> {
    fabric.directory.find(&format!("{PEERS}/{}", child(peer)))
}

/// The actors of all pairs.
pub(crate) fn peers(fabric: &Fabric) -> Vec<Me> {
    let Some(supervisor) = SupervisorHandle::find(&fabric.directory, PEERS) else { return Vec::new() };
    let ids = supervisor.children();
    ids.iter().filter_map(|id| fabric.directory.find(&format!("{PEERS}/{id}"))).collect()
}

/// Performs what a pair decides.
pub(crate) struct PeerPerformer {
    fabric: Arc<Fabric>,
    peer: NodeId,
    addresses: BTreeMap<CircuitId, SocketAddr>,
    connections: BTreeMap<CircuitId, u64>,
    look: Arc<spread::Look>,
}

impl PeerPerformer {
    pub(crate) fn new(fabric: Arc<Fabric>, peer: NodeId) -> Self {
        Self { fabric, peer, addresses: BTreeMap::new(), connections: BTreeMap::new(), look: Arc::default() }
    }

    const fn key(&self, circuit: CircuitId) -> CircuitKey {
        CircuitKey { peer: self.peer, circuit }
    }

    fn circuit_add(&mut self, circuit: CircuitId, large: bool) {
        let (small_bytes, larger_bytes) = self.fabric.packet_sizes();
        let spec = CircuitSpec {
            key: self.key(circuit),
            me: self.fabric.me,
            packet_bytes: if large { larger_bytes } else { small_bytes },
            larger_bytes,
            enlarges: self.fabric.takes_large(self.peer),
        };
        match self.fabric.socket.circuit_add(spec) {
            Ok(address) => {
                self.addresses.insert(circuit, address);
            }
            Err(error) => tracing::error!(peer = %self.peer, %circuit, %error, "circuit not added"),
        }
    }

    fn circuit_remove(&mut self, circuit: CircuitId, reason: &str) {
        if let Some(connection) = self.connections.remove(&circuit).and_then(|it| self.fabric.connections().remove(it))
        {
            connection.close(CloseCode::Done, reason);
        }
        self.addresses.remove(&circuit);
        self.fabric.socket.circuit_remove(self.key(circuit));
    }

    fn channel_open(&self, relay: NodeId, circuit: CircuitId, me: &Me) {
        let peer = self.peer;
        let refused = move |reason: String| Event::ChannelRefused { relay, circuit, reason };
        let Some(session) = self.fabric.session(relay) else {
            let _ = me.send(refused("there is no session with the relay".to_owned()));
            return;
        };
        let late = refused("the relay did not answer in time".to_owned());
        let work = async move {
            let request = NodeRequest::ChannelOpen { circuit, peer };
            match session.connection.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await {
                Ok(NodeResponse::ChannelOpened { token_out, token_in }) => {
                    let tokens = Tokens { outgoing: token_out, incoming: token_in };
                    Event::ChannelOpened { relay, circuit, tokens }
                }
                Ok(NodeResponse::Refused(refusal)) => refused(refusal.to_string()),
                Ok(_) => refused("the relay misunderstood the request".to_owned()),
                Err(error) => refused(error.to_string()),
            }
        };
        run(me, CALL_WAIT * 2, late, work);
    }

    fn channel_close(&self, relay: NodeId, circuit: CircuitId, me: &Me) {
        let Some(session) = self.fabric.session(relay) else { return };
        let request = NodeRequest::ChannelClose { circuit, peer: self.peer };
        attend(me, async move {
            // The relay also forgets it with the session.
            let _ = session.connection.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await;
        });
    }

    fn channel_add(&self, relay: NodeId, circuit: CircuitId, tokens: Tokens) {
        let Some(session) = self.fabric.session(relay) else { return };
        let relays = self.fabric.snapshot().map(|accepted| accepted.content.relays.clone()).unwrap_or_default();
        let domain = relays.get(&relay).map(|view| view.domain.clone()).unwrap_or_default();
        let shares =
            |other: &postroad_cluster::snapshot::RelayView| !domain.independence(&other.domain).is_independent();
        let spec = ChannelSpec {
            relay,
            address: session.address,
            token_out: tokens.outgoing.0,
            token_in: tokens.incoming.0,
            shares_domain_with: relays.iter().filter(|(_, view)| shares(view)).map(|(other, _)| *other).collect(),
        };
        if let Err(error) = self.fabric.socket.channel_add(self.key(circuit), spec) {
            tracing::error!(peer = %self.peer, %relay, %error, "channel not added");
        } else if self.fabric.drains(relay) {
            // A circuit that was removed meanwhile needs no last resort.
            let _ = self.fabric.socket.channel_avoid(self.key(circuit), relay, true);
        }
    }

    fn dial(&self, circuit: CircuitId, me: &Me) {
        let failed = move |reason: String| Event::DialFailed { circuit, reason };
        let key = self.key(circuit);
        let transport = self.fabric.socket.transport_config(key, self.fabric.flow_wait());
        let (Some(address), Ok(transport)) = (self.addresses.get(&circuit).copied(), transport) else {
            let _ = me.send(failed("the circuit is gone".to_owned()));
            return;
        };
        if self.fabric.is_stopping() {
            let _ = me.send(failed(STOPS.to_owned()));
            return;
        }
        let fabric = Arc::clone(&self.fabric);
        let late = failed(format!("the peer did not answer within {} s", DIAL_WAIT.as_secs()));
        let work = async move {
            let expect = Expect { node: Some(key.peer), role: Role::Node };
            match fabric.outbound.connect(address, Protocol::Flow, expect, transport).await {
                Ok(connection) => match keyed(&fabric, key, &connection) {
                    Ok(()) => Event::Connected { circuit, connection: fabric.connections().add(connection) },
                    Err(reason) => failed(reason),
                },
                Err(error) => failed(error.to_string()),
            }
        };
        run(me, DIAL_WAIT, late, work);
    }

    fn up(&mut self, circuit: CircuitId, number: u64, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        let before = self.connections.insert(circuit, number).filter(|before| *before != number);
        if let Some(before) = before.and_then(|before| self.fabric.connections().remove(before)) {
            // A dial that the peer gave up had succeeded here: flows that wait on it would wait for nobody.
            before.close(CloseCode::Done, "the peer dialled the circuit again");
        }
        tracing::info!(peer = %self.peer, %circuit, "circuit stands");
        let standing = self.fabric.circuits.up(self.key(circuit), connection.clone());
        let (fabric, back) = (Arc::clone(&self.fabric), me.clone());
        attend_flows(me, &self.fabric, async move {
            target::serve(fabric, standing).await;
            let closed = connection.closed().await;
            let _ = back.send(Event::Closed { circuit, connection: number, reason: closed.to_string() });
        });
    }

    fn move_to(&self, circuit: CircuitId, relay: NodeId) {
        let moved = self.fabric.socket.move_to(self.key(circuit), relay, MoveReason::Assigned);
        if let Err(error) = moved {
            tracing::debug!(peer = %self.peer, %circuit, %relay, %error, "an empty circuit did not move");
        }
        // The pair believes that it is there now: it may not be, or not for long.
        self.look.again();
    }

    /// Closes a circuit that is surplus, unless something was opened on it meanwhile.
    fn retire(&self, circuit: CircuitId, me: &Me) {
        // A flow that was admitted ahead of need may be on its way.
        let awaits = self.fabric.vouchers.awaits(self.fabric.now(), self.peer);
        let standing = self.fabric.circuits.get(self.key(circuit)).filter(|_| !awaits);
        let Some(standing) = standing.filter(|standing| standing.close_if_empty()) else {
            let _ = me.send(Event::Kept { circuit });
            return;
        };
        let (fabric, back) = (Arc::clone(&self.fabric), me.clone());
        attend(me, async move {
            closing::ask(&fabric, &standing).await;
            let _ = back.send(Event::Retired { circuit });
        });
    }
}

/// Brings what the socket sees of its circuits to the pairs' actors.
pub(crate) async fn watch(fabric: Arc<Fabric>, mut events: tokio::sync::mpsc::Receiver<CircuitEvent>) {
    while let Some(event) = events.recv().await {
        let (key, event) = match event {
            CircuitEvent::Moved { circuit: key, from, to, generation, reason, replayed } => {
                tracing::info!(peer = %key.peer, ?from, %to, %generation, ?reason, replayed, "circuit moved");
                (key, Event::Carried { circuit: key.circuit })
            }
            CircuitEvent::Resumed { circuit: key, relay, replayed } => {
                tracing::info!(peer = %key.peer, %relay, replayed, "circuit goes on");
                (key, Event::Carried { circuit: key.circuit })
            }
            CircuitEvent::NoRelay { circuit: key } => {
                tracing::warn!(peer = %key.peer, "no relay carries the circuit: its flows wait");
                let wait_ms = fabric.flow_wait().as_millis() as u64;
                (key, Event::Stranded { circuit: key.circuit, wait_ms })
            }
            CircuitEvent::Stalled { circuit: key, reason, span } => {
                tracing::info!(peer = %key.peer, ?reason, ms = span.as_millis() as u64, "flows stood still and go on");
                fabric.stalls.note(reason, span);
                continue;
            }
            CircuitEvent::Challenged { from, challenge } => {
                prove_address(&fabric, from, challenge);
                continue;
            }
            CircuitEvent::ChannelProven { .. } | CircuitEvent::ChannelSilent { .. } => continue,
        };
        if let Some(peer) = find(&fabric, key.peer) {
            let _ = peer.send(event);
        }
    }
}

/// Names a relay's challenge in the session with it. The socket bounds how many come.
fn prove_address(fabric: &Fabric, from: SocketAddr, challenge: Challenge) {
    let mut sessions = fabric.sessions().into_values();
    let is_at = |address: SocketAddr| (address.ip().to_canonical(), address.port()) == (from.ip(), from.port());
    let Some(session) = sessions.find(|session| is_at(session.address)) else { return };
    tokio::spawn(async move {
        // Unanswered, the relay asks again.
        let request = NodeRequest::AddressProof { challenge };
        let _ = session.connection.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await;
    });
}

/// Tells the socket of a circuit's connection, so that it authenticates moves and knows what is in flight.
fn keyed(fabric: &Fabric, key: CircuitKey, connection: &Connection) -> Result<(), String> {
    let secret = connection.exporter(PATH_LABEL);
    let figures = Arc::new(connection.quinn().clone());
    fabric.socket.circuit_connected(key, figures, &secret).map_err(|error| error.to_string())
}

/// Takes a circuit that a peer has dialled: it must come from the peer to whom the circuit's address belongs.
pub(crate) fn accepted(fabric: &Arc<Fabric>, connection: Connection) {
    let refuse = |reason: &str| {
        tracing::warn!(peer = %connection.node(), reason, "a circuit was refused");
        connection.close(CloseCode::Refused, reason);
    };
    if fabric.is_stopping() {
        return connection.close(CloseCode::Stopping, STOPS);
    }
    let Some(key) = fabric.socket.circuit_of(connection.remote_address()) else {
        return refuse("flows come through a circuit, not by a plain connection");
    };
    if key.peer != connection.node() {
        return refuse("this circuit belongs to another node");
    }
    let Some(peer) = find(fabric, key.peer) else { return refuse("there is no link between the two nodes") };
    if let Err(reason) = keyed(fabric, key, &connection) {
        return refuse(&reason);
    }
    let number = fabric.connections().add(connection);
    if peer.send(Event::Connected { circuit: key.circuit, connection: number }).is_err() {
        fabric.connections().remove(number);
    }
}

/// A number for each timer of a pair: circuits' numbers are drawn, so that two fall together as often as never.
const fn timer_key(timer: Timer) -> u64 {
    match timer {
        Timer::Spread => 0,
        Timer::Dial(circuit) => circuit.0 << 2 | 1,
        Timer::Stranded(circuit) => circuit.0 << 2 | 2,
        Timer::Surplus(circuit) => circuit.0 << 2 | 3,
        Timer::Channel(relay, circuit) => (circuit.0 ^ relay.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 2,
    }
}

impl Performer<Peer> for PeerPerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::CircuitAdd { circuit, large } => self.circuit_add(circuit, large),
            Effect::CircuitRemove { circuit, reason } => self.circuit_remove(circuit, &reason),
            Effect::ChannelOpen { relay, circuit } => self.channel_open(relay, circuit, me),
            Effect::ChannelClose { relay, circuit } => self.channel_close(relay, circuit, me),
            Effect::ChannelAdd { relay, circuit, tokens } => self.channel_add(relay, circuit, tokens),
            Effect::ChannelRemove { relay, circuit } => {
                self.fabric.socket.channel_remove(self.key(circuit), relay);
            }
            Effect::Dial { circuit } => self.dial(circuit, me),
            Effect::Up { circuit, connection } => self.up(circuit, connection, me),
            Effect::Down { circuit, reason } => {
                tracing::warn!(peer = %self.peer, %circuit, reason, "circuit ended");
                self.fabric.circuits.down(self.key(circuit));
            }
            Effect::Move { circuit, relay } => self.move_to(circuit, relay),
            Effect::Retire { circuit } => self.retire(circuit, me),
            Effect::Start { timer, after_ms } => after(me, after_ms, timer_key(timer), Event::Timer(timer)),
        }
    }

    fn first(&mut self, me: &Me) -> Option<Event> {
        if self.fabric.me < self.peer {
            let look = spread::watch(Arc::clone(&self.fabric), self.peer, Arc::clone(&self.look), me.clone());
            attend(me, look);
        }
        for relay in self.fabric.sessions().into_keys() {
            let _ = me.send(Event::RelayUp { relay });
        }
        None
    }
}

impl Drop for PeerPerformer {
    fn drop(&mut self) {
        let circuits: Vec<CircuitId> = self.addresses.keys().copied().collect();
        for circuit in circuits {
            self.circuit_remove(circuit, "the pair's actor ends");
            self.fabric.circuits.down(self.key(circuit));
        }
    }
}
