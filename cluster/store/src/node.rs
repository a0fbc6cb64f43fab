//! What every node keeps for itself in `node.redb`: keys and values in a few tables, written in transactions.

use std::{fmt, sync::Arc};

use postroad_cluster::limits;
use redb::{ReadableTable, TableDefinition};

use crate::{
    backend::Fence,
    database::{Database, Kind},
    disk::Disk,
    error::StoreError,
    queue::{Committer, Done, Numbered, Queue, Writing, refuse},
};

/// A table of the node's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Keys, certificates and the authorities that are trusted.
    Identity,
    /// Accepted snapshots.
    Snapshot,
    /// Promises given as a voter.
    Promise,
    /// The time floor.
    TimeFloor,
    /// What else a node remembers.
    Setting,
}

impl Table {
    /// Every table.
    pub const ALL: [Self; 5] = [Self::Identity, Self::Snapshot, Self::Promise, Self::TimeFloor, Self::Setting];

    const fn definition(self) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
        TableDefinition::new(match self {
            Self::Identity => "identity",
            Self::Snapshot => "snapshot",
            Self::Promise => "promise",
            Self::TimeFloor => "time_floor",
            Self::Setting => "setting",
        })
    }
}

/// One change of a transaction.
#[derive(Clone, PartialEq, Eq)]
pub struct Put {
    /// The table.
    pub table: Table,
    /// The key, at most [`limits::STORE_KEY_BYTES_MAX`] bytes.
    pub key: Vec<u8>,
    /// The new value, at most [`limits::STORE_VALUE_BYTES_MAX`] bytes; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// Without the value, which may be a private key.
impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("table", &self.table)
            .field("key", &format_args!("\"{}\"", self.key.escape_ascii()))
            .field("value_bytes", &self.value.as_ref().map(Vec::len))
            .finish()
    }
}

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// What a node keeps for itself. Cloning shares it. Reads see what is durable, and nothing else: a promise that was
/// read is one that a crash cannot take back.
///
/// When its queue is full, [`NodeStore::write_then`] is refused with [`StoreError::Busy`]: its callers answer
/// requests of other nodes, which ask again, and must not make an actor's thread wait.
#[derive(Clone)]
pub struct NodeStore {
    queue: Arc<Queue<NodeCommitter>>,
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStore").finish_non_exhaustive()
    }
}

impl NodeStore {
    pub(crate) fn open(disk: &dyn Disk, writing: Writing, may_make: bool) -> Result<Self, StoreError> {
        let database = Database::open(disk, Kind::Node, may_make, |transaction| {
            for table in Table::ALL {
                transaction.open_table(table.definition())?;
            }
            Ok(())
        })?;
        database.look(&database.view()?, |view| {
            for table in Table::ALL {
                view.open_table(table.definition())?;
            }
            Ok(())
        })?;
        Ok(Self { queue: Arc::new(Queue::new(NodeCommitter { database }, writing)?) })
    }

    /// The value of `key`, if there is one.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let database = &self.queue.committer().database;
        let view = database.view()?;
        let value = database.look(&view, |view| {
            Ok(view.open_table(table.definition())?.get(key)?.map(|value| value.value().to_vec()))
        })?;
        if let Some(value) = &value {
            check_value(database, table, value)?;
        }
        Ok(value)
    }

    /// Every key of the table and its value, in the order of the keys.
    pub fn list(&self, table: Table) -> Result<Vec<Row>, StoreError> {
        let database = &self.queue.committer().database;
        let view = database.view()?;
        let rows = database.look(&view, |view| {
            let mut rows = Vec::new();
            for row in view.open_table(table.definition())?.iter()? {
                let (key, value) = row?;
                rows.push((key.value().to_vec(), value.value().to_vec()));
            }
            Ok(rows)
        })?;
        for (_, value) in &rows {
            check_value(database, table, value)?;
        }
        Ok(rows)
    }

    /// Makes all changes in one transaction, durable when this returns. It waits for the disk, and must not be
    /// called by a [`Done`].
    pub fn write(&self, puts: Vec<Put>) -> Result<(), StoreError> {
        let bytes = check_sizes(&puts)?;
        self.queue.write(puts, bytes)
    }

    /// Makes all changes in one transaction without waiting; `done` hears when they are durable. It is called
    /// exactly once, also when this returns an error.
    pub fn write_then(&self, puts: Vec<Put>, done: Done) -> Result<(), StoreError> {
        let room = check_sizes(&puts).and_then(|bytes| self.queue.check_room(bytes).map(|()| bytes));
        match room {
            Ok(bytes) => self.queue.push(puts, bytes, done),
            Err(error) => return refuse(done, error),
        };
        self.queue.kick()
    }
}

fn check_sizes(puts: &[Put]) -> Result<usize, StoreError> {
    let mut total: usize = 0;
    for put in puts {
        let (key, value) = (put.key.len(), put.value.as_ref().map_or(0, Vec::len));
        for (what, bytes, bytes_max) in
            [("key", key, limits::STORE_KEY_BYTES_MAX), ("value", value, limits::STORE_VALUE_BYTES_MAX)]
        {
            if bytes > bytes_max {
                return Err(StoreError::TooLarge { what, bytes, bytes_max });
            }
        }
        total = total.saturating_add(key).saturating_add(value);
    }
    Ok(total)
}

fn check_value(database: &Database, table: Table, value: &[u8]) -> Result<(), StoreError> {
    if value.len() > limits::STORE_VALUE_BYTES_MAX {
        return Err(database.corrupt(format!("a value of table {table:?} has {} bytes", value.len())));
    }
    Ok(())
}

struct NodeCommitter {
    database: Database,
}

impl Committer for NodeCommitter {
    type Operation = Vec<Put>;

    fn commit(&self, batch: &[Numbered<Vec<Put>>]) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            for put in batch.iter().flat_map(|numbered| &numbered.operation) {
                let mut table = transaction.open_table(put.table.definition())?;
                match &put.value {
                    Some(value) => table.insert(put.key.as_slice(), value.as_slice())?,
                    None => table.remove(put.key.as_slice())?,
                };
            }
            Ok(())
        })
    }

    fn fence(&self) -> &Arc<Fence> {
        self.database.fence()
    }
}
