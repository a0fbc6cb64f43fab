//! Drains: a relay goes out of service while what it carries moves elsewhere, and how far that is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    id::{NodeId, Version},
    limits::DRAIN_WAIT,
    time::WallTime,
    wire::control::Report,
};

/// A drain as it was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The entry that began it: who works by this version or a newer one has heard of it.
    pub version: Version,
    /// When it began.
    pub since: WallTime,
    /// When the relay disconnects what could not move.
    pub ends: WallTime,
    /// Whether what its end cut is written down: once for each drain, whoever leads then.
    pub settled: bool,
}

impl Drain {
    /// A drain that begins with this entry (RP-40: what cannot move may go on for [`DRAIN_WAIT`]).
    #[must_use]
    pub const fn new(version: Version, since: WallTime) -> Self {
        Self { version, since, ends: since.after(DRAIN_WAIT), settled: false }
    }
}

/// Somebody's word on whether a relay drains, with the version of the state that it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// The version.
    pub version: Version,
    /// Whether the relay drains.
    pub draining: bool,
}

/// Whether a relay is to be left, by the node's own snapshot and by what the relay itself has said on its session: the
/// newer word counts, since either may be cut off from the control nodes.
#[must_use]
pub fn draining(agreed: Option<Word>, told: Option<Word>) -> bool {
    match (agreed, told) {
        (Some(agreed), Some(told)) if told.version > agreed.version => told.draining,
        (Some(agreed), _) => agreed.draining,
        (None, told) => told.is_some_and(|told| told.draining),
    }
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The relay is not connected to the control nodes: it drains as soon as it is (RP-41).
    Pending,
    /// Flows move to other relays.
    Moving,
    /// Nothing is left.
    Over,
    /// Its time has run out, and the relay disconnects what is left.
    Disconnecting,
}

impl Phase {
    /// The word that people read.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "waits for the relay",
            Self::Moving => "moving",
            Self::Over => "drained",
            Self::Disconnecting => "disconnecting",
        }
    }
}

/// The progress of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How far it is.
    pub phase: Phase,
    /// Circuits that the relay still carries.
    pub circuits: u64,
    /// Flows on them.
    pub flows: u64,
    /// Nodes that have not said yet what they have there since the drain began.
    pub unheard: BTreeSet<NodeId>,
}

/// What the relay carries by the nodes' reports: circuits and flows. Both ends of each report it.
#[must_use]
pub fn carried(relay: NodeId, reports: &BTreeMap<NodeId, Report>) -> (u64, u64) {
    let loads = reports.values().filter_map(|report| report.loads.get(&relay));
    let (circuits, flows) =
        loads.fold((0, 0), |(circuits, flows), load| (circuits + load.circuits, flows + load.flows));
    (circuits.div_ceil(2), flows.div_ceil(2))
}

/// How far a drain is, by the reports of nodes that are there (`present`): others neither hold nor end it.
#[must_use]
pub fn progress(
    drain: &Drain,
    relay: NodeId,
    reports: &BTreeMap<NodeId, Report>,
    present: &BTreeSet<NodeId>,
    now: WallTime,
) -> Progress {
    let there: BTreeMap<NodeId, Report> = reports
        .iter()
        .filter(|(node, _)| present.contains(node))
        .map(|(node, report)| (*node, report.clone()))
        .collect();
    let unheard: BTreeSet<NodeId> =
        there.iter().filter(|(_, report)| report.snapshot < drain.version).map(|(node, _)| *node).collect();
    let (circuits, flows) = carried(relay, &there);
    let phase = if !there.contains_key(&relay) || unheard.contains(&relay) {
        Phase::Pending
    } else if flows == 0 && unheard.is_empty() {
        Phase::Over
    } else if drain.ends <= now {
        Phase::Disconnecting
    } else {
        Phase::Moving
    };
    Progress { phase, circuits, flows, unheard }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::Load;

    const fn word(version: u64, draining: bool) -> Word {
        Word { version: Version(version), draining }
    }

    // RP-40: the relay's notice and the snapshot race; whichever is newer counts.
    #[test]
    fn the_newer_word_counts() {
        for (agreed, told, is) in [
            (None, None, false),
            (Some(word(7, true)), None, true),
            (None, Some(word(7, true)), true),
            (Some(word(7, false)), Some(word(8, true)), true),
            (Some(word(8, true)), Some(word(7, false)), true),
            (Some(word(9, false)), Some(word(8, true)), false),
            (Some(word(8, true)), Some(word(9, false)), false),
            (Some(word(8, true)), Some(word(8, true)), true),
        ] {
            assert_eq!(draining(agreed, told), is, "{agreed:?} {told:?}");
        }
    }

    fn reports(list: &[(u64, u64, u64)]) -> BTreeMap<NodeId, Report> {
        let report = |&(node, version, flows): &(u64, u64, u64)| {
            let loads = BTreeMap::from([(NodeId(9), Load { circuits: u64::from(flows > 0), flows })]);
            (NodeId(node), Report { snapshot: Version(version), loads, ..Report::default() })
        };
        list.iter().map(report).collect()
    }

    // RP-40, RP-41, R15
    #[test]
    fn a_drain_is_over_when_everybody_who_is_there_has_said_that_nothing_is_left() {
        let drain = Drain::new(Version(20), WallTime(1_000));
        assert_eq!(drain.ends, WallTime(601_000));
        let at = |list: &[(u64, u64, u64)], present: &[u64], now: u64| {
            let present = present.iter().map(|node| NodeId(*node)).collect();
            progress(&drain, NodeId(9), &reports(list), &present, WallTime(now))
        };
        let empty = at(&[(1, 20, 0), (2, 21, 0), (9, 20, 0)], &[1, 2, 9], 1_500);
        assert_eq!((empty.phase, empty.flows, empty.circuits), (Phase::Over, 0, 0));
        let unheard = at(&[(1, 19, 0), (2, 21, 0), (9, 20, 0)], &[1, 2, 9], 1_500);
        assert_eq!((unheard.phase, unheard.unheard), (Phase::Moving, BTreeSet::from([NodeId(1)])));
        let moving = at(&[(1, 20, 4), (2, 21, 4), (9, 20, 0)], &[1, 2, 9], 1_500);
        assert_eq!((moving.phase, moving.flows, moving.circuits), (Phase::Moving, 4, 1));
        let late = at(&[(1, 20, 4), (2, 21, 4), (9, 20, 0)], &[1, 2, 9], 601_000);
        assert_eq!(late.phase, Phase::Disconnecting);
        let gone = at(&[(1, 20, 4), (2, 21, 0), (9, 20, 0)], &[2, 9], 1_500);
        assert_eq!(gone.phase, Phase::Over, "who is not there holds nothing up");
        for list in [&[(1, 20, 0)][..], &[(1, 20, 0), (9, 19, 0)]] {
            assert_eq!(at(list, &[1, 9], 1_500).phase, Phase::Pending, "the relay has not heard of it");
        }
    }
}
