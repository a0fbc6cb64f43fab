//! How large the packets of a pair's next circuits are: large ones cost less, and are lost where one relay's way is too
//! narrow for them.
//!
//! A circuit keeps the size that it was dialled with, so another size comes with another circuit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::NodeId,
    limits::{CIRCUIT_PACKET_BYTES, SPREAD_LOOKS},
};

/// What probes have found of large packets over one relay. Of several circuits the last in this order counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Carries {
    /// Nothing yet.
    #[default]
    Unknown,
    /// They come back.
    Yes,
    /// They get lost, while small ones come back.
    No,
}

/// Why packets are as large as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// This node is to send no large ones.
    Bounded,
    /// Every relay that could carry the pair's circuits has carried large ones.
    Carried,
    /// This relay does not carry large ones.
    TooSmall(NodeId),
    /// It is not known yet whether this relay carries large ones.
    Unproven(NodeId),
    /// No relay could carry anything.
    NoRelay,
}

impl Why {
    /// The reason in words.
    #[must_use]
    pub fn words(self, name: impl Fn(NodeId) -> String) -> String {
        match self {
            Self::Bounded => "fabric.packet_bytes_max of this node allows no larger ones".to_owned(),
            Self::Carried => "every relay in reach has carried such large ones".to_owned(),
            Self::TooSmall(relay) => format!("{} carries no larger ones", name(relay)),
            Self::Unproven(relay) => format!("{} has carried no larger ones yet", name(relay)),
            Self::NoRelay => "no relay is in reach".to_owned(),
        }
    }
}

/// Whether circuits that are dialled now have large packets, and why: what one relay loses no circuit sends, since any of
/// them may have to carry it. Where nobody knows better it stays as it was `before`.
#[must_use]
pub fn choose(before: bool, bounded: bool, relays: &BTreeMap<NodeId, Carries>) -> (bool, Why) {
    let first = |what: Carries| relays.iter().find(|(_, carries)| **carries == what).map(|(relay, _)| *relay);
    if bounded {
        (false, Why::Bounded)
    } else if let Some(relay) = first(Carries::No) {
        (false, Why::TooSmall(relay))
    } else if let Some(relay) = first(Carries::Unknown) {
        (before, Why::Unproven(relay))
    } else if relays.is_empty() {
        (before, Why::NoRelay)
    } else {
        (true, Why::Carried)
    }
}

/// Whether some relay does not carry large packets.
#[must_use]
pub fn is_narrow(relays: &BTreeMap<NodeId, Carries>) -> bool {
    relays.values().any(|carries| *carries == Carries::No)
}

/// The size of a circuit's packets, for a choice among several: 0 for large ones that a relay or QUIC does not carry, so
/// that small ones are better.
#[must_use]
pub const fn carried_bytes(packet_bytes: u32, narrow: bool, whole: bool) -> u32 {
    let is_large = packet_bytes > CIRCUIT_PACKET_BYTES;
    if is_large && (narrow || !whole) { 0 } else { packet_bytes }
}

/// The size of a pair's next circuits, look by look. A large one must have been good for several looks in a row; what gets
/// lost is left at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketSize {
    large: bool,
    looks: u32,
}

impl PacketSize {
    /// Looks at what relays carry now.
    pub fn look(&mut self, bounded: bool, relays: &BTreeMap<NodeId, Carries>) {
        let (large, _) = choose(self.large, bounded, relays);
        self.looks = if large { self.looks.saturating_add(1) } else { 0 };
        self.large = self.looks >= SPREAD_LOOKS;
    }

    /// Whether circuits that are dialled now have large packets.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.large
    }
}

#[cfg(test)]
mod tests {
    use super::{Carries::*, *};

    fn relays(list: &[(u64, Carries)]) -> BTreeMap<NodeId, Carries> {
        list.iter().map(|(relay, carries)| (NodeId(*relay), *carries)).collect()
    }

    #[test]
    fn what_every_relay_has_carried_is_sent_and_the_reason_is_said() {
        let narrow = Why::TooSmall(NodeId(2));
        for (before, bounded, list, expected) in [
            (false, false, &[(1, Yes), (2, Yes)][..], (true, Why::Carried)),
            (true, true, &[(1, Yes)], (false, Why::Bounded)),
            (true, false, &[(1, Yes), (2, No)], (false, narrow)),
            (true, false, &[(1, Unknown), (2, No)], (false, narrow)),
            (true, false, &[(1, Yes), (3, Unknown)], (true, Why::Unproven(NodeId(3)))),
            (false, false, &[(1, Yes), (3, Unknown)], (false, Why::Unproven(NodeId(3)))),
            (true, false, &[], (true, Why::NoRelay)),
            (false, false, &[], (false, Why::NoRelay)),
        ] {
            assert_eq!(choose(before, bounded, &relays(list)), expected, "{before} {bounded} {list:?}");
        }
        assert_eq!([No, Unknown, Yes].into_iter().max(), Some(No), "one circuit's loss counts");
    }

    #[test]
    fn large_packets_that_something_loses_are_worse_than_small_ones() {
        let large = CIRCUIT_PACKET_BYTES + 1;
        for (bytes, narrow, whole, expected) in [
            (large, false, true, large),
            (large, true, true, 0),
            (large, false, false, 0),
            (CIRCUIT_PACKET_BYTES, true, false, CIRCUIT_PACKET_BYTES),
        ] {
            assert_eq!(carried_bytes(bytes, narrow, whole), expected, "{bytes} {narrow} {whole}");
        }
        assert!(is_narrow(&relays(&[(1, Yes), (2, No)])) && !is_narrow(&relays(&[(1, Yes), (2, Unknown)])));
    }

    #[test]
    fn a_large_size_has_to_be_good_for_a_while_and_is_left_at_once() {
        let (good, bad) = (relays(&[(1, Yes)]), relays(&[(1, No)]));
        let mut size = PacketSize::default();
        let mut look = |relays: &BTreeMap<NodeId, Carries>| {
            size.look(false, relays);
            size.is_large()
        };
        for _ in 0..3 {
            assert!(!look(&bad));
            for _ in 1..SPREAD_LOOKS {
                assert!(!look(&good));
            }
        }
        assert!(look(&good) && look(&relays(&[(1, Yes), (2, Unknown)])) && look(&relays(&[])));
        assert!(!look(&bad) && !look(&good));
    }
}
