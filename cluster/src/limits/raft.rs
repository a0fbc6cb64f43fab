//! The Raft group.

use super::MESSAGE_BYTES_MAX;
use crate::time::Span;

/// The largest command that is proposed. An entry travels and is stored as a whole; real commands stay under 20 KiB.
pub const RAFT_COMMAND_BYTES_MAX: usize = 512 << 10;

/// Entries sent in one message, in bytes (one entry is sent whatever its size): a follower far behind catches up in
/// messages that a slow way carries within an election's time.
pub const RAFT_APPEND_BYTES_MAX: usize = 1 << 20;

/// Entries sent in one message.
pub const RAFT_APPEND_ENTRIES_MAX: u64 = 256;

/// One chunk of a state snapshot on its way to a member.
pub const RAFT_CHUNK_BYTES: usize = 1 << 20;

/// The largest state snapshot: it is decoded as one message, and a member reassembles one at a time in memory.
pub const RAFT_SNAPSHOT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// How long one chunk may take there and back; installing is part of the last one.
pub const RAFT_CHUNK_WAIT: Span = Span::from_secs(10);

/// Chunks that may be sent again in one transfer before it starts anew.
pub const RAFT_CHUNK_RETRIES: u32 = 8;

/// How long a proposal waits for its outcome before it is said to be unknown.
pub const RAFT_PROPOSE_WAIT: Span = Span::from_secs(10);

/// Proposals that wait for their outcome; past it they are refused at once.
pub const RAFT_PROPOSALS_MAX: usize = 1_024;

/// How long a read waits until everything acknowledged before it is applied here.
pub const RAFT_READ_WAIT: Span = Span::from_secs(5);

/// How long a change of the members waits to be committed before its outcome is said to be unknown.
pub const RAFT_CHANGE_WAIT: Span = Span::from_secs(15);

/// Entries that a learner may be behind when it becomes a voter: more would hold up every decision meanwhile.
pub const RAFT_PROMOTE_LAG_MAX: u64 = 64;

/// Voters of the control plane: past 7 every decision waits for more disks without surviving more that matters.
pub const CONTROL_VOTERS_MAX: usize = 7;

/// Entries after which a state snapshot is made, and the log before it can go.
pub const RAFT_SNAPSHOT_ENTRIES: u64 = 4_096;

/// Entries kept behind a snapshot, so that a member back from a restart needs no whole snapshot.
pub const RAFT_KEEP_ENTRIES: u64 = 1_024;

/// Messages and calls that wait for the Raft group's task.
pub const RAFT_QUEUE_MAX: u64 = 1_024;

/// Terms and indexes above this are refused: nobody gets there by elections, and the next one must still exist.
pub const RAFT_NUMBER_MAX: u64 = 1 << 62;

/// How long a command waits for a leader: an election takes a few seconds, and its answer must come before a joiner's
/// patience ends.
pub const ELECTION_WAIT: Span = Span::from_secs(8);
