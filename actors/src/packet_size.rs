//! What a pair's circuits have found of large packets, and how large this node's packets are.

use std::{collections::BTreeMap, sync::Arc};

use postroad_cluster::{
    id::NodeId,
    limits::CIRCUIT_PACKET_BYTES,
    packet_size::{self, Carries, Why, choose, is_narrow},
};
use postroad_transport::node_socket::CircuitStatus;

use crate::fabric::{Fabric, circuits::Circuit};

/// What circuits have found, by relay that could carry them: if one has found losses, those count.
pub(crate) fn carries<'a>(circuits: impl IntoIterator<Item = &'a CircuitStatus>) -> BTreeMap<NodeId, Carries> {
    let mut found: BTreeMap<NodeId, Carries> = BTreeMap::new();
    let channels = circuits.into_iter().flat_map(|status| &status.channels);
    for channel in channels.filter(|channel| channel.candidate) {
        let known = found.entry(channel.relay).or_default();
        *known = (*known).max(channel.larger);
    }
    found
}

/// Whether a circuit's packets are as large as they began; QUIC falls back to less, for good, where large ones get lost.
pub(crate) fn is_whole(circuit: &Circuit, status: &CircuitStatus) -> bool {
    !is_large(status) || u32::from(circuit.connection.quinn().stats().path.current_mtu) >= status.packet_bytes
}

/// The size of a circuit's packets, for a choice among several.
pub(crate) fn carried_bytes(circuit: &Circuit, status: &CircuitStatus, narrow: bool) -> u32 {
    packet_size::carried_bytes(status.packet_bytes, narrow, is_whole(circuit, status))
}

/// Whether a circuit has large packets.
pub(crate) const fn is_large(status: &CircuitStatus) -> bool {
    status.packet_bytes > CIRCUIT_PACKET_BYTES
}

impl Fabric {
    /// The sizes of small and of large packets here, in bytes of a QUIC packet without our header.
    pub(crate) fn packet_sizes(&self) -> (u32, u32) {
        let most = self.settings.packet_bytes_max;
        (most.min(CIRCUIT_PACKET_BYTES), most)
    }

    /// Whether this node is to send no large packets.
    pub(crate) fn packets_are_bounded(&self) -> bool {
        self.settings.packet_bytes_max <= CIRCUIT_PACKET_BYTES
    }

    /// What the circuits to a peer that stand have found.
    pub(crate) fn carries_to(&self, peer: NodeId) -> BTreeMap<NodeId, Carries> {
        let standing = self.circuits.to(peer);
        let all: Vec<CircuitStatus> =
            standing.iter().filter_map(|circuit| self.socket.status(circuit.key).ok()).collect();
        carries(&all)
    }

    /// Whether a circuit that the peer dials with large packets gets such ones from here as well. The peer's word for them
    /// passes relays, any of which could have said it: it is not taken against what this node's own probes have found.
    pub(crate) fn takes_large(&self, peer: NodeId) -> bool {
        self.me > peer && !self.packets_are_bounded() && !is_narrow(&self.carries_to(peer))
    }

    /// Whether new flows open on a circuit whose relay takes them, or on others for the size of their packets.
    pub(crate) fn opens_by_size(&self, circuit: &Circuit, status: &CircuitStatus) -> &'static str {
        let peer = circuit.key.peer;
        let narrow = is_narrow(&self.carries_to(peer));
        let mine = carried_bytes(circuit, status, narrow);
        let larger = |other: &Arc<Circuit>| {
            self.socket.status(other.key).is_ok_and(|status| carried_bytes(other, &status, narrow) > mine)
        };
        match (mine, self.circuits.to(peer).iter().any(larger)) {
            (0, _) => "a relay does not carry packets of its size",
            (_, true) => "others have larger packets",
            (_, false) => "its relay takes new connections",
        }
    }

    /// Why a circuit's packets have their size, by what is known now.
    pub fn packet_words(&self, status: &CircuitStatus, name: impl Fn(NodeId) -> String) -> String {
        let (is, found) = (is_large(status), self.carries_to(status.circuit.peer));
        match (is, choose(is, self.packets_are_bounded(), &found)) {
            (false, (true, _)) => "it was dialled before every relay in reach had carried larger ones".to_owned(),
            (true, (false, Why::TooSmall(relay))) => format!("{} has ceased to carry them", name(relay)),
            (_, (_, why)) => why.words(name),
        }
    }
}
