//! What a member needs to start, with the two ports through which it meets the world.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use openraft::{Config, SnapshotPolicy};
use postroad_cluster::{
    id::NodeId,
    limits,
    time::{Entropy, Span},
};
use postroad_store::{LogStore, StateStore};

use crate::{error::ConsensusError, state_machine::AppliedEntry};

/// The answer of another member, still to come.
pub type Reply = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>>;

/// Carries messages to other members, by `postroad-control/1` in production.
pub trait Carrier: Send + Sync + 'static {
    /// Brings `message` to [`crate::Consensus::handle`] of `to` and its answer back, or fails with the reason, at the
    /// latest after `deadline`. Each message may arrive late, out of order, twice or never.
    fn call(&self, to: NodeId, message: Vec<u8>, deadline: Span) -> Reply;
}

/// Sees what a member does, for the checks of the simulation and of tests. It is called in the member's own tasks and
/// must not wait.
pub trait Observer: Send + Sync + 'static {
    /// `node` has applied an entry; after a restart the same ones again.
    fn on_apply(&self, node: NodeId, entry: &AppliedEntry) {
        let _ = (node, entry);
    }

    /// `node` has replaced its state by a snapshot, whose last entry this is.
    fn on_install(&self, node: NodeId, entry: &AppliedEntry) {
        let _ = (node, entry);
    }

    /// `node`, which may be `leader` itself, has seen that a majority elected `leader` in `term`.
    fn on_leader(&self, node: NodeId, term: u64, leader: NodeId) {
        let _ = (node, term, leader);
    }

    /// `node` is about to tell that it votes for `candidate` in `term`: the vote is on its disk.
    fn on_vote(&self, node: NodeId, term: u64, candidate: NodeId) {
        let _ = (node, term, candidate);
    }

    /// `node` starts with this vote on its disk: a term, and the candidate.
    fn on_start(&self, node: NodeId, vote: Option<(u64, NodeId)>) {
        let _ = (node, vote);
    }
}

/// How long members wait for each other. A heartbeat must be longer than the longest way there and back, and an
/// election several heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two signs of life of the leader.
    pub heartbeat: Duration,
    /// The least silence after which a member stands for election.
    pub election_min: Duration,
    /// The most; each member draws between the two.
    pub election_max: Duration,
}

impl Default for Timing {
    /// For control nodes on different continents.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            election_min: Duration::from_millis(1_500),
            election_max: Duration::from_secs(3),
        }
    }
}

/// How much of the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Entries after which a snapshot is made.
    pub snapshot_entries: u64,
    /// Entries that are kept behind the snapshot.
    pub keep_entries: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { snapshot_entries: limits::RAFT_SNAPSHOT_ENTRIES, keep_entries: limits::RAFT_KEEP_ENTRIES }
    }
}

/// What a member needs to start.
#[derive(Clone)]
pub struct Options {
    /// This node.
    pub me: NodeId,
    /// Its log.
    pub log: LogStore,
    /// Its snapshots.
    pub state: StateStore,
    /// The way to the other members.
    pub carrier: Arc<dyn Carrier>,
    /// Where threads without a seed draw one (see [`crate::runtime::seed`]).
    pub entropy: Arc<dyn Entropy>,
    /// Who watches.
    pub observer: Option<Arc<dyn Observer>>,
    /// How long to wait.
    pub timing: Timing,
    /// How much to keep.
    pub retention: Retention,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("me", &self.me)
            .field("timing", &self.timing)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Options {
    /// The library's settings, each that matters said here.
    pub(crate) fn config(&self) -> Result<Config, ConsensusError> {
        let Timing { heartbeat, election_min, election_max } = self.timing;
        if election_max > Duration::from_mins(1) || self.retention.snapshot_entries == 0 {
            let found = "an election of more than a minute, or snapshots of 0 entries".to_owned();
            return Err(ConsensusError::Options { found });
        }
        let config = Config {
            cluster_name: "postroad".to_owned(),
            heartbeat_interval: millis(heartbeat),
            election_timeout_min: millis(election_min),
            election_timeout_max: millis(election_max),
            install_snapshot_timeout: millis(limits::RAFT_CHUNK_WAIT),
            max_payload_entries: limits::RAFT_APPEND_ENTRIES_MAX,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.retention.snapshot_entries),
            max_in_snapshot_log_to_keep: self.retention.keep_entries,
            snapshot_max_chunk_size: limits::RAFT_CHUNK_BYTES as u64,
            api_channel_size: Some(limits::RAFT_QUEUE_MAX),
            enable_pre_vote: Some(true),
            // A restarted leader would lead on without an election, by a vote that only it knows to be the newest.
            enable_leader_restore: Some(false),
            // A leader without a majority falls silent, so that those who reach each other can elect another.
            quorum_loss_probe_interval: Some(millis(election_max) * 2),
            // Otherwise an answer of another member, whose disk may have lost its end, could end this one.
            allow_log_reversion: Some(true),
            ..Config::default()
        };
        config.validate().map_err(|error| ConsensusError::Options { found: error.to_string() })
    }
}
