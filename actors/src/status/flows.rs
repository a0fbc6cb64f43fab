//! What this node counts of its flows: open and ended ones, refusals by reason, and how long they stood still.

use std::collections::BTreeMap;

use postroad_cluster::{circuit::MoveReason, stall::Histogram};
use serde::{Deserialize, Serialize};

use super::View;

/// How long flows stood still when their circuit left a silent relay, or had none: from the last acknowledgement before
/// that to the first one after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Why the circuit left its relay, in a word.
    pub cause: String,
    /// How often.
    pub count: u64,
    /// All of them together, in microseconds.
    pub sum_us: u64,
    /// How many were within so many milliseconds.
    pub within_ms: BTreeMap<u64, u64>,
}

impl Stall {
    /// The least bound within which this share of them was, in milliseconds; nothing if it was beyond all.
    pub fn share_ms(&self, percent: u64) -> Option<u64> {
        let wanted = (self.count * percent).div_ceil(100);
        self.within_ms.iter().find(|(_, count)| **count >= wanted).map(|(ms, _)| *ms)
    }
}

/// Flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Open at this node.
    pub open: u64,
    /// Ended at this node since it started.
    pub ended: u64,
    /// Tunnels refused at this node since it started.
    pub refused: u64,
    /// The same by the stable code of the reason, by `consumer` or `target`: this node's end of the tunnel.
    #[serde(default)]
    pub refused_by_reason: BTreeMap<String, BTreeMap<String, u64>>,
    /// How long flows of this node stood still since it started, by cause.
    #[serde(default)]
    pub stalls: Vec<Stall>,
    /// Open in the fleet, by the nodes' last reports: both ends of a flow count it, so it is half their sum.
    pub fleet: Option<u64>,
}

fn stall((cause, histogram): (MoveReason, &Histogram)) -> Stall {
    Stall {
        cause: cause.word().to_owned(),
        count: histogram.count(),
        sum_us: histogram.sum().as_micros() as u64,
        within_ms: histogram.within_ms(),
    }
}

pub(super) fn flows(view: &View<'_>) -> Flows {
    let flows = &view.fabric.flows;
    let reported = view.reports.values().map(|report| report.flows).sum::<u64>();
    Flows {
        open: flows.len() as u64,
        ended: flows.ended(),
        refused: flows.refusals.total(),
        refused_by_reason: flows.refusals.by_reason(),
        stalls: view.fabric.stalls.get().causes().map(stall).collect(),
        fleet: (!view.reports.is_empty()).then_some(reported.div_ceil(2)),
    }
}
