//! The state machine's snapshot in `state.redb`, replaced as a whole.

use std::{fmt, sync::Arc};

use postroad_cluster::limits;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use crate::{
    backend::Fence,
    database::{Database, Kind},
    disk::Disk,
    error::StoreError,
    queue::{Committer, Done, Numbered, Queue, Writing, refuse},
};

const CHUNKS: TableDefinition<u32, &[u8]> = TableDefinition::new("snapshot_chunks");
const HEADS: TableDefinition<&str, &[u8]> = TableDefinition::new("snapshot_heads");
const NEWEST: &str = "newest";

/// The length of the data, before its meta in the head.
const LENGTH_BYTES: usize = 8;

/// The meta and the data of a snapshot.
pub type Stored = (Vec<u8>, Vec<u8>);

/// The snapshots. Cloning shares them.
#[derive(Clone)]
pub struct StateStore {
    queue: Arc<Queue<StateCommitter>>,
}

impl fmt::Debug for StateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateStore").finish_non_exhaustive()
    }
}

struct Snapshot {
    meta: Vec<u8>,
    data: Vec<u8>,
}

impl StateStore {
    pub(crate) fn open(disk: &dyn Disk, writing: Writing, may_make: bool) -> Result<Self, StoreError> {
        let database = Database::open(disk, Kind::State, may_make, |transaction| {
            transaction.open_table(CHUNKS)?;
            transaction.open_table(HEADS)?;
            Ok(())
        })?;
        // A damaged file is to be found now, and not when the state machine is asked for its snapshot.
        database.look(&database.view()?, |view| {
            view.open_table(CHUNKS)?;
            view.open_table(HEADS)?;
            Ok(())
        })?;
        Ok(Self { queue: Arc::new(Queue::new(StateCommitter { database }, writing)?) })
    }

    /// Replaces the snapshot; it is durable when this returns. `data` has at most
    /// [`limits::STORE_SNAPSHOT_BYTES_MAX`] bytes.
    pub fn save_snapshot(&self, meta: Vec<u8>, data: Vec<u8>) -> Result<(), StoreError> {
        let bytes = check_size(&meta, &data)?;
        self.queue.write(Snapshot { meta, data }, bytes)
    }

    /// Replaces the snapshot without waiting: `done` hears when it is durable. [`StoreError::Busy`] while the queue
    /// is full. `done` is called exactly once, also when this returns an error.
    pub fn save_snapshot_then(&self, meta: Vec<u8>, data: Vec<u8>, done: Done) -> Result<(), StoreError> {
        let room = check_size(&meta, &data).and_then(|bytes| self.queue.check_room(bytes).map(|()| bytes));
        match room {
            Ok(bytes) => self.queue.push(Snapshot { meta, data }, bytes, done),
            Err(error) => return refuse(done, error),
        };
        self.queue.kick()
    }

    /// The meta and data of the last durable snapshot.
    pub fn snapshot(&self) -> Result<Option<Stored>, StoreError> {
        let database = &self.queue.committer().database;
        let view = database.view()?;
        let Some(read) = database.look(&view, read_snapshot)? else { return Ok(None) };
        read.map(Some).map_err(|found| database.corrupt(found))
    }
}

fn check_size(meta: &[u8], data: &[u8]) -> Result<usize, StoreError> {
    let bytes = meta.len().saturating_add(data.len());
    let bytes_max = limits::STORE_SNAPSHOT_BYTES_MAX;
    if bytes > bytes_max { Err(StoreError::TooLarge { what: "snapshot", bytes, bytes_max }) } else { Ok(bytes) }
}

/// A snapshot as it was read, or what is wrong with it.
type Read = Result<Stored, String>;

fn read_snapshot(view: &ReadTransaction) -> Result<Option<Read>, redb::Error> {
    let Some(head) = view.open_table(HEADS)?.get(NEWEST)? else { return Ok(None) };
    let Some((length, meta)) = head.value().split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(Some(Err("the head of the snapshot is too short".to_owned())));
    };
    let length = u64::from_le_bytes(*length);
    if length > limits::STORE_SNAPSHOT_BYTES_MAX as u64 {
        return Ok(Some(Err(format!("the snapshot claims {length} bytes"))));
    }
    let mut data = Vec::new();
    for (expected, chunk) in (0..).zip(view.open_table(CHUNKS)?.iter()?) {
        let (number, bytes) = chunk?;
        if number.value() != expected {
            return Ok(Some(Err(format!("chunk {expected} of the snapshot is missing"))));
        }
        if (data.len() + bytes.value().len()) as u64 > length {
            return Ok(Some(Err(format!("the snapshot is longer than its {length} bytes"))));
        }
        data.extend_from_slice(bytes.value());
    }
    if data.len() as u64 != length {
        return Ok(Some(Err(format!("the snapshot has {} of its {length} bytes", data.len()))));
    }
    Ok(Some(Ok((meta.to_vec(), data))))
}

struct StateCommitter {
    database: Database,
}

impl Committer for StateCommitter {
    type Operation = Snapshot;

    fn commit(&self, batch: &[Numbered<Snapshot>]) -> Result<(), StoreError> {
        // Each replaces those before it, so only the last one is worth writing.
        let Some(Numbered { operation: snapshot, .. }) = batch.last() else { return Ok(()) };
        self.database.write(|transaction| write_snapshot(transaction, snapshot))
    }

    fn fence(&self) -> &Arc<Fence> {
        self.database.fence()
    }
}

fn write_snapshot(transaction: &WriteTransaction, snapshot: &Snapshot) -> Result<(), redb::Error> {
    let mut chunks = transaction.open_table(CHUNKS)?;
    chunks.retain(|_, _| false)?;
    for (number, chunk) in (0..).zip(snapshot.data.chunks(limits::STORE_CHUNK_BYTES)) {
        chunks.insert(number, chunk)?;
    }
    let length = (snapshot.data.len() as u64).to_le_bytes();
    let head = [length.as_slice(), &snapshot.meta].concat();
    transaction.open_table(HEADS)?.insert(NEWEST, head.as_slice())?;
    Ok(())
}
