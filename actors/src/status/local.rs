//! What this node holds: sessions, circuits, links, connections to control nodes, and what ends by itself.

use std::collections::BTreeMap;

use postroad_cluster::{
    control::{self, Control},
    id::{LinkId, NodeId},
    limits::REFUSING_ASK,
    link::{self, Listener},
    node, peer, relay,
    session::{self, Phase},
    spread::Away,
    time::WallTime,
    wire::session::NodeResponse,
};
use postroad_transport::{
    node_socket::{CircuitKey, CircuitStatus},
    switch::Switch,
};
use serde::{Deserialize, Serialize};

use super::View;
use crate::{
    control::CONTROL,
    fabric::{Fabric, circuits::carrying},
    node::NODE,
    peer::PEERS,
    relay::RELAY,
};

/// The session of this node with a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The relay.
    pub relay: NodeId,
    /// Its name.
    pub name: String,
    /// Where it is dialled.
    pub address: String,
    /// Whether it stands.
    pub up: bool,
    /// `idle`, `dialling`, `greeting`, `up`, `waiting` or `left`.
    pub phase: String,
    /// Failed attempts in a row.
    pub failures: u32,
    /// Why the last attempt or session ended.
    pub last_end: Option<String>,
    /// The last round trip, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Endpoints that the relay has confirmed.
    pub registered: usize,
    /// Endpoints that it is to hold.
    pub endpoints: usize,
    /// Refused registrations by link, with the reason.
    pub refused: BTreeMap<LinkId, String>,
}

/// The way over one relay, as a circuit knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// The relay.
    pub relay: NodeId,
    /// Its name.
    pub name: String,
    /// Whether it may carry the circuit now.
    pub candidate: bool,
    /// Whether the session to it is up.
    pub connected: bool,
    /// Whether it is a last resort, since it drains.
    pub avoided: bool,
    /// Whether it is a last resort, since it does not carry packets of the circuit's size.
    #[serde(default)]
    pub too_small: bool,
    /// The round trip of probes to the peer and back, in microseconds.
    pub round_trip_us: Option<u64>,
}

/// A circuit to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    /// The node at the other end.
    pub peer: NodeId,
    /// Its name.
    pub peer_name: String,
    /// The circuit's number.
    pub circuit: u64,
    /// Whether its connection stands.
    pub connected: bool,
    /// The relay that carries it.
    pub relay: Option<NodeId>,
    /// That relay's name.
    pub relay_name: Option<String>,
    /// Why that one, with the figures of that moment.
    pub choice: String,
    /// Open flows on it at this node.
    pub flows: u64,
    /// Whether new flows open on it, or why they do so on others first.
    pub opens: String,
    /// Whether its relay is silent and there is no other.
    pub stranded: bool,
    /// Moves so far.
    pub moves: u64,
    /// Why it moved last.
    pub move_reason: Option<String>,
    /// Datagrams sent again after silences.
    pub replayed: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// The size of its packets, in bytes.
    pub packet_bytes: u32,
    /// Why they have that size.
    pub packet_words: String,
    /// Its channels.
    pub channels: Vec<Channel>,
}

/// A link of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number.
    pub id: LinkId,
    /// Its name.
    pub name: String,
    /// The generation of its route.
    pub generation: u64,
    /// Where this node listens for it.
    pub listen: Option<String>,
    /// `none`, `opening`, `open` or `failed`; nothing while its actor is not up.
    pub listener: Option<String>,
    /// Why the listener could not be opened.
    pub failure: Option<String>,
    /// The node that connects to the target.
    pub target: NodeId,
    /// That node's name.
    pub target_name: String,
    /// The target, if this is its node.
    pub target_address: Option<String>,
    /// How many relays receive its new connections.
    pub spread: u8,
    /// Relays that hold the endpoint, if this is the target node.
    pub registered_at: Vec<String>,
    /// Open flows of it at this node.
    pub flows: u64,
    /// Bytes that they sent.
    pub sent_bytes: u64,
    /// Bytes that they received.
    pub received_bytes: u64,
    /// Open flows by the relay that carries them; those without a relay are under an empty name.
    pub flows_by_relay: BTreeMap<String, u64>,
    /// Open flows by the number of the circuit that they are on.
    pub flows_by_circuit: BTreeMap<String, OnCircuit>,
}

/// Flows of a link on one circuit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnCircuit {
    /// How many.
    pub flows: u64,
    /// The relay that carries the circuit.
    pub relay: Option<String>,
    /// Why the newest of them opened there, at the consumer's end.
    pub why: Option<String>,
}

/// The connection of this node to a control node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlConnection {
    /// The control node.
    pub node: NodeId,
    /// Its name, or its number.
    pub name: String,
    /// Where it is dialled.
    pub address: String,
    /// Whether it stands.
    pub up: bool,
    /// Failed attempts in a row.
    pub failures: u32,
    /// Why the last attempt failed or the connection ended.
    pub last_failure: Option<String>,
}

/// The relay service of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayService {
    /// Sessions.
    pub sessions: usize,
    /// Registered endpoints.
    pub registrations: usize,
    /// Open channels.
    pub channels: usize,
    /// Tunnels admitted since the start, those ahead of need too.
    pub admitted: u64,
    /// Refusals since the start, by code.
    pub refused: BTreeMap<String, u64>,
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes forwarded.
    pub bytes: u64,
}

/// What ends by itself unless it is renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// When the node's certificate ends.
    pub certificate_expires: WallTime,
    /// When it is renewed.
    pub certificate_renews: WallTime,
    /// Why the last renewal failed.
    pub certificate_failure: Option<String>,
    /// The version of the snapshot that the node works by.
    pub snapshot: Option<u64>,
    /// When that snapshot was issued.
    pub snapshot_issued: Option<WallTime>,
    /// When its lease ends.
    pub lease_ends: Option<WallTime>,
}

const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::Dialling => "dialling",
        Phase::Greeting { .. } => "greeting",
        Phase::Up { .. } => "up",
        Phase::Waiting => "waiting",
        Phase::Left => "left",
    }
}

pub(super) fn sessions(view: &View<'_>) -> Vec<Session> {
    let Some(accepted) = view.fabric.snapshot() else { return Vec::new() };
    let state = |relay: NodeId| {
        let path = format!("{}/relay-{}", crate::node::SESSIONS, relay.0);
        Some(view.fabric.directory.find::<session::Session, ()>(&path)?.published()?.0)
    };
    let sessions = accepted.content.relays.iter().filter_map(|(relay, known)| {
        let state = state(*relay)?;
        let refusal =
            |(link, endpoint): (&LinkId, &session::Endpoint)| Some((*link, endpoint.refusal.as_ref()?.to_string()));
        Some(Session {
            relay: *relay,
            name: known.name.to_string(),
            address: state.address.clone(),
            up: state.is_up(),
            phase: phase(state.phase).to_owned(),
            failures: state.failures,
            last_end: state.last_end.clone(),
            round_trip_us: state.round_trip_us.filter(|_| state.is_up()),
            registered: state.endpoints.values().filter(|it| it.registered == Some(it.generation)).count(),
            endpoints: state.endpoints.len(),
            refused: state.endpoints.iter().filter_map(refusal).collect(),
        })
    });
    sessions.collect()
}

/// A sentence in which numbers of nodes become their names.
fn named(view: &View<'_>, text: &str) -> String {
    let word = |word: &str| {
        let end = word.trim_end_matches([':', ',', '.']).len();
        let id = word[..end].strip_prefix('n').and_then(|number| number.parse().ok()).map(NodeId);
        id.map_or_else(|| word.to_owned(), |id| view.name(id) + &word[end..])
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn channels(view: &View<'_>, status: &CircuitStatus) -> Vec<Channel> {
    let channels = status.channels.iter().map(|channel| Channel {
        relay: channel.relay,
        name: view.name(channel.relay),
        candidate: channel.candidate,
        connected: channel.connected,
        avoided: channel.avoided,
        too_small: channel.too_small,
        round_trip_us: channel.round_trip.map(|it| it.as_micros() as u64),
    });
    channels.collect()
}

pub(super) fn circuits(view: &View<'_>) -> Vec<Circuit> {
    let socket = &view.fabric.socket;
    let flows = view.fabric.flows.by_circuit();
    let known = socket.circuits().into_iter().filter_map(|key| Some((key, socket.status(key).ok()?)));
    let circuits = known.map(|(key, status)| Circuit {
        peer: key.peer,
        peer_name: view.name(key.peer),
        circuit: key.circuit.0,
        connected: status.connected,
        relay: status.relay,
        relay_name: status.relay.map(|relay| view.name(relay)),
        choice: named(view, &status.choice),
        flows: flows.get(&key).copied().unwrap_or_default(),
        opens: opens(view.fabric, key, &status),
        stranded: status.stranded,
        moves: status.moves,
        move_reason: status.reason.map(|reason| reason.text().to_owned()),
        replayed: status.counters.replayed,
        sent_bytes: status.counters.sent_bytes,
        received_bytes: status.counters.received_bytes,
        packet_bytes: status.packet_bytes,
        packet_words: view.fabric.packet_words(&status, |relay| view.name(relay)),
        channels: channels(view, &status),
    });
    circuits.collect()
}

/// Whether new flows open on a circuit, for any link of the pair, or why they do so on others first.
pub fn opens(fabric: &Fabric, key: CircuitKey, status: &CircuitStatus) -> String {
    let Some(circuit) = fabric.circuits.get(key) else { return "it does not stand yet".to_owned() };
    if circuit.is_closing() {
        return "it is closing: no relay needs it".to_owned();
    }
    let Some(relay) = carrying(status) else { return Away::NoRelay.text().to_owned() };
    let links = fabric.links_with(key.peer);
    match fabric.away_for(relay, &links) {
        Some(Away::Refuses) => {
            let code = links.iter().find_map(|link| fabric.refuses(relay, *link)).unwrap_or_default();
            format!(
                "{} ({code}): others are asked first, it once in {} s",
                Away::Refuses.text(),
                REFUSING_ASK.as_secs()
            )
        }
        Some(away) => away.text().to_owned(),
        None => fabric.opens_by_size(&circuit, status).to_owned(),
    }
}

fn listener(state: &link::Link) -> (&'static str, Option<String>) {
    match &state.listener {
        Listener::None => ("none", None),
        Listener::Opening => ("opening", None),
        Listener::Open => ("open", None),
        Listener::Failed { reason } => ("failed", Some(reason.clone())),
    }
}

/// The relays at which this node's endpoint of a link is registered.
fn registered_at(view: &View<'_>, link: LinkId) -> Vec<String> {
    let holds = |relay: &NodeId| {
        let path = format!("{}/relay-{}", crate::node::SESSIONS, relay.0);
        let state = view.fabric.directory.find::<session::Session, ()>(&path)?.published()?.0;
        let endpoint = state.endpoints.get(&link)?;
        (state.is_up() && endpoint.registered == Some(endpoint.generation)).then(|| view.name(*relay))
    };
    let relays = view.fabric.snapshot().map(|accepted| accepted.content.relays.clone()).unwrap_or_default();
    relays.keys().filter_map(holds).collect()
}

pub(super) fn links(view: &View<'_>) -> Vec<Link> {
    let Some(accepted) = view.fabric.snapshot() else { return Vec::new() };
    let open = view.fabric.flows.views();
    let carrier = |circuit: Option<CircuitKey>| view.fabric.socket.status(circuit?).ok()?.relay;
    let links = accepted.content.links.iter().map(|(id, known)| {
        let state = crate::link::find(view.fabric, *id).and_then(|handle| handle.published()).map(|(state, _)| state);
        let listener = state.as_deref().map(listener);
        let mut link = Link {
            id: *id,
            name: known.name.to_string(),
            generation: known.generation.0,
            listen: known.listen.clone(),
            listener: listener.as_ref().map(|(word, _)| (*word).to_owned()),
            failure: listener.and_then(|(_, failure)| failure),
            target: known.target,
            target_name: view.name(known.target),
            target_address: known.target_address.clone(),
            spread: known.spread,
            registered_at: if known.target == view.fabric.me { registered_at(view, *id) } else { Vec::new() },
            flows: 0,
            sent_bytes: 0,
            received_bytes: 0,
            flows_by_relay: BTreeMap::new(),
            flows_by_circuit: BTreeMap::new(),
        };
        for flow in open.iter().filter(|flow| flow.link == *id) {
            link.flows += 1;
            link.sent_bytes += flow.counters.sent_bytes();
            link.received_bytes += flow.counters.received_bytes();
            let relay = carrier(flow.circuit).map(|relay| view.name(relay)).unwrap_or_default();
            *link.flows_by_relay.entry(relay).or_default() += 1;
            if let Some(circuit) = flow.circuit {
                let carried = link.flows_by_circuit.entry(circuit.circuit.0.to_string()).or_default();
                carried.flows += 1;
                carried.relay = carrier(flow.circuit).map(|relay| view.name(relay));
                carried.why = flow.why.map(|why| why.to_string()).or_else(|| carried.why.take());
            }
        }
        link
    });
    links.collect()
}

pub(super) fn controls(view: &View<'_>) -> Vec<ControlConnection> {
    let handle = view.fabric.directory.find::<Control, ()>(CONTROL);
    let Some((state, _)) = handle.and_then(|handle| handle.published()) else { return Vec::new() };
    let connection = |(node, candidate): (&NodeId, &control::Candidate)| ControlConnection {
        node: *node,
        name: view.name(*node),
        address: candidate.address.clone(),
        up: matches!(candidate.phase, control::Phase::Up { .. }),
        failures: candidate.failures,
        last_failure: candidate.failure.clone(),
    };
    state.candidates.iter().map(connection).collect()
}

pub(super) fn relay_service(fabric: &Fabric, switch: Option<&Switch>) -> Option<RelayService> {
    let switch = switch?;
    let handle = fabric.directory.find::<relay::Relay, NodeResponse>(RELAY);
    let state = handle.and_then(|handle| handle.published()).map(|(state, _)| state);
    let counters = switch.counters();
    Some(RelayService {
        sessions: state.as_ref().map_or(0, |state| state.sessions.len()),
        registrations: state.as_ref().map_or(0, |state| state.registrations.len()),
        channels: state.as_ref().map_or(0, |state| state.channels.len()),
        admitted: state.as_ref().map_or(0, |state| state.counters.admitted),
        refused: state.map(|state| state.counters.refused.clone()).unwrap_or_default(),
        packets: counters.packets,
        bytes: counters.bytes,
    })
}

pub(super) fn watch(fabric: &Fabric) -> Watch {
    let described = fabric.identity.current();
    let described = described.described();
    let certificate = node::Certificate { starts: described.starts, expires: described.expires };
    let state = fabric.directory.find::<node::Node, ()>(NODE).and_then(|handle| handle.published());
    let accepted = fabric.snapshot();
    Watch {
        certificate_expires: certificate.expires,
        certificate_renews: certificate.renew_at(),
        certificate_failure: state.and_then(|(state, _)| state.failure.clone()),
        snapshot: accepted.as_ref().map(|accepted| accepted.header.version.0),
        snapshot_issued: accepted.as_ref().map(|accepted| accepted.header.issued),
        lease_ends: accepted.as_ref().map(|accepted| accepted.ends()),
    }
}

/// Peers without a circuit that stands, each with why the last one ended.
pub(super) fn peers_without_circuit(view: &View<'_>) -> Vec<(NodeId, Option<String>)> {
    let Some(accepted) = view.fabric.snapshot() else { return Vec::new() };
    let missing = accepted.content.peers.keys().filter(|peer| view.fabric.circuit(**peer).is_none()).map(|peer| {
        let path = format!("{PEERS}/{}", crate::peer::child(*peer));
        let state = view.fabric.directory.find::<peer::Peer, ()>(&path).and_then(|handle| handle.published());
        (*peer, state.and_then(|(state, _)| state.last_end.clone()))
    });
    missing.collect()
}
