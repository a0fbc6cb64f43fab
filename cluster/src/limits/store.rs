//! What is kept on a disk, and clocks.

use super::MESSAGE_BYTES_MAX;
use crate::time::Span;

/// What may wait for the disk: operations of one database. A disk that syncs in 10 ms takes them in one commit.
pub const STORE_QUEUE_OPERATIONS: usize = 8_192;

/// What may wait for the disk: bytes of one database, kept in memory until they are synced.
pub const STORE_QUEUE_BYTES: usize = 32 << 20;

/// A commit that takes longer is a failed disk. Cloud disks stall for seconds, and more than the longest election
/// helps nobody.
pub const STORE_WAIT: Span = Span::from_secs(30);

/// The log's page cache: followers that lag read from it.
pub const STORE_LOG_CACHE_BYTES: usize = 32 << 20;

/// The page cache of the state and node databases, which are read at the start and rarely after.
pub const STORE_CACHE_BYTES: usize = 8 << 20;

/// A chunk of a stored snapshot: under 1 MiB by a page, so that redb, whose pages are powers of two, wastes none.
pub const STORE_CHUNK_BYTES: usize = (1 << 20) - 4_096;

/// The largest stored snapshot with its meta; 16 messages.
pub const STORE_SNAPSHOT_BYTES_MAX: usize = 16 * MESSAGE_BYTES_MAX;

/// The largest key in a node's own tables: names and numbers.
pub const STORE_KEY_BYTES_MAX: usize = 1_024;

/// The largest value in a node's own tables: an accepted snapshot, which came as a message.
pub const STORE_VALUE_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// How far the wall clock may go from the boot clock before a control node has to confirm it.
pub const TIME_JUMP_MAX: Span = Span::from_mins(5);
