//! What a node keeps: the disk port, and three redb databases on it that lose nothing that was acknowledged.
//!
//! | file            | holds                                                                              |
//! |-----------------|------------------------------------------------------------------------------------|
//! | `disk.rs`       | the disk port                                                                      |
//! | `error.rs`      | [`StoreError`]: what was tried, what was found, what to do                         |
//! | `backend.rs`    | redb's storage on a file of the port, and the fence behind a failing disk          |
//! | `database.rs`   | making, recognizing and opening one database file; transactions that cannot panic  |
//! | `queue.rs`      | one ordered queue a database, committed in groups                                  |
//! | `log.rs`        | the Raft log and vote: `log.redb`                                                  |
//! | `state.rs`      | the state machine's snapshot: `state.redb`                                         |
//! | `node.rs`       | keys, certificates, accepted snapshots, promises, settings: `node.redb`            |
//! | `time_floor.rs` | the time that a node's clock never goes below                                      |
//!
//! Every method is synchronous, and none holds a transaction when it returns.

mod backend;
mod database;
pub mod disk;
pub mod error;
pub mod log;
pub mod node;
mod queue;
pub mod state;
#[cfg(test)]
mod testing;
pub mod time_floor;

pub use disk::{Disk, DiskFile};
pub use error::StoreError;
pub use log::LogStore;
pub use node::{NodeStore, Put, Table};
pub use queue::{Done, Writing};
pub use state::StateStore;
pub use time_floor::TimeFloor;

/// The three databases of a node.
#[derive(Clone, Debug)]
pub struct Databases {
    /// The Raft log and vote.
    pub log: LogStore,
    /// The state machine's snapshot.
    pub state: StateStore,
    /// What every node keeps for itself.
    pub node: NodeStore,
}

impl Databases {
    /// Opens `log.redb`, `state.redb` and `node.redb` of `disk`, making them on a new disk. A crash while they are
    /// made leaves a directory that this makes anew.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if `node.redb` is there and another file is not: a node that starts with an empty
    /// log beside its old identity has forgotten its vote, and could give a second one. [`StoreError::Foreign`],
    /// [`StoreError::Corrupt`] and [`StoreError::Disk`] name the file. No file is changed then, except that one of
    /// them may have been repaired after a crash.
    pub fn open(disk: &dyn Disk, writing: Writing) -> Result<Self, StoreError> {
        // `node.redb` is made last, so that its being there means that all three were.
        let new = !database::is_made(disk, database::Kind::Node)?;
        Ok(Self {
            log: LogStore::open(disk, writing, new)?,
            state: StateStore::open(disk, writing, new)?,
            node: NodeStore::open(disk, writing, new)?,
        })
    }
}
