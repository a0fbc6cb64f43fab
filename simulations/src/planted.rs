//! Faults in the code itself, planted at run time in a build with the feature `planted`, to prove that the checks see
//! them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A fault in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Planted {
    /// The late goodbye of an old session removes the registrations of the new one.
    OldGoodbye,
    /// A vote is acknowledged before it is on disk.
    UnsyncedVote,
    /// After a silence new packets go before those that are sent again.
    RingLast,
}

impl Planted {
    /// Whether this build can plant faults.
    pub const POSSIBLE: bool = cfg!(feature = "planted");
}

/// Plants a fault on this thread, which is one world; without one, takes any other back.
#[cfg(feature = "planted")]
pub fn plant(planted: Option<Planted>) {
    postroad_cluster::planted::goodbyes_are_unguarded(planted == Some(Planted::OldGoodbye));
    postroad_raft::planted::leave_votes_unsynced(planted == Some(Planted::UnsyncedVote));
    postroad_transport::planted::send_ring_last(planted == Some(Planted::RingLast));
}

/// This build plants nothing.
#[cfg(not(feature = "planted"))]
pub const fn plant(_planted: Option<Planted>) {}
