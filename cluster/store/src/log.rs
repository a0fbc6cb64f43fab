//! The Raft log and vote in `log.redb`: entries are readable as soon as they are appended, durable when `done` hears.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use postroad_cluster::limits;
use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use crate::{
    backend::Fence,
    database::{Database, Kind},
    disk::Disk,
    error::StoreError,
    queue::{Committer, Done, Numbered, Queue, Writing, lock, refuse},
};

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const FACTS: TableDefinition<&str, &[u8]> = TableDefinition::new("facts");
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// An entry: its index and its bytes.
type Entry = (u64, Vec<u8>);

/// The Raft log. Cloning shares it; the last clone dropped commits what is queued.
///
/// Votes, appended entries, truncations and purges share one ordered queue: after a crash the log is as it was after
/// some call of that order, at the earliest the last one whose `done` was called with `Ok`. Every `done` is called
/// exactly once, also when the method itself returns an error.
///
/// When the queue is full a call waits until the writer thread takes it, which it does after each commit. To refuse
/// instead would end the Raft node, which has no answer to an append that fails; and waiting is what a leader on a
/// slow disk should do. A commit that takes longer than [`limits::STORE_WAIT`] counts as a failed disk.
#[derive(Clone)]
pub struct LogStore {
    queue: Arc<Queue<LogCommitter>>,
}

impl fmt::Debug for LogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore").finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Operation {
    Append(Vec<(u64, Arc<[u8]>)>),
    Vote(Vec<u8>),
    Truncate(u64),
    Purge(u64, Vec<u8>),
}

/// The log as its callers see it; the database may still be behind.
#[derive(Default)]
struct Memory {
    /// The first and last index of the log, if it has entries. What the database holds outside is not seen.
    range: Option<(u64, u64)>,
    /// The end of the log that may not be durable yet, each entry with the number of its operation.
    unsynced: BTreeMap<u64, (u64, Arc<[u8]>)>,
    purged: Option<Entry>,
    vote: Option<Vec<u8>>,
    committed: Option<Vec<u8>>,
    /// Whether `committed` is newer than the database's.
    committed_waits: bool,
}

impl Memory {
    /// The index that the log takes next, if not any.
    fn next(&self) -> Option<u64> {
        self.range.map(|(_, last)| last + 1)
    }

    fn check_order(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let lowest = self.purged.as_ref().map_or(0, |(purged, _)| purged.saturating_add(1));
        let mut next = self.next();
        for (found, _) in entries {
            let expected = next.unwrap_or(lowest);
            // An empty log may begin anywhere behind what was purged; u64::MAX is no index, so that `next` exists.
            let fits = if next.is_none() { *found >= expected } else { *found == expected };
            if !fits || *found == u64::MAX {
                return Err(StoreError::OutOfOrder { expected, found: *found });
            }
            next = Some(found + 1);
        }
        Ok(())
    }

    fn append(&mut self, number: u64, entries: &[(u64, Arc<[u8]>)]) {
        for (index, bytes) in entries {
            self.unsynced.insert(*index, (number, Arc::clone(bytes)));
            self.range = Some((self.range.map_or(*index, |(first, _)| first), *index));
        }
    }

    fn truncate_from(&mut self, index: u64) {
        self.unsynced.split_off(&index);
        if let Some((first, last)) = self.range {
            self.range = (index > first).then(|| (first, last.min(index - 1)));
        }
    }

    fn purge_through(&mut self, index: u64, marker: Vec<u8>) {
        self.unsynced = self.unsynced.split_off(&index.saturating_add(1));
        if let Some((first, last)) = self.range {
            self.range = (index < last).then(|| (first.max(index + 1), last));
        }
        self.purged = Some((index, marker));
    }
}

impl LogStore {
    pub(crate) fn open(disk: &dyn Disk, writing: Writing, may_make: bool) -> Result<Self, StoreError> {
        let database = Database::open(disk, Kind::Log, may_make, |transaction| {
            transaction.open_table(ENTRIES)?;
            transaction.open_table(FACTS)?;
            Ok(())
        })?;
        let memory = Mutex::new(load(&database)?);
        Ok(Self { queue: Arc::new(Queue::new(LogCommitter { database, memory }, writing)?) })
    }

    /// Appends entries, each (index, bytes) one index after the last, to the log. They are readable as soon as this
    /// returns. An entry has at most [`limits::MESSAGE_BYTES_MAX`] bytes.
    pub fn append(&self, entries: Vec<(u64, Vec<u8>)>, done: Done) -> Result<(), StoreError> {
        let too_large = entries.iter().find(|(_, bytes)| bytes.len() > limits::MESSAGE_BYTES_MAX);
        if let Some((_, bytes)) = too_large {
            let error =
                StoreError::TooLarge { what: "log entry", bytes: bytes.len(), bytes_max: limits::MESSAGE_BYTES_MAX };
            return refuse(done, error);
        }
        let bytes = entries.iter().map(|(_, bytes)| bytes.len()).sum();
        self.submit(bytes, done, move |memory, push, done| {
            if let Err(error) = memory.check_order(&entries) {
                return refuse(done, error);
            }
            let entries: Vec<(u64, Arc<[u8]>)> =
                entries.into_iter().map(|(index, bytes)| (index, Arc::from(bytes))).collect();
            let number = push(Operation::Append(entries.clone()), done);
            memory.append(number, &entries);
            Ok(())
        })
    }

    /// Saves the vote, in the same order as the entries.
    pub fn save_vote(&self, vote: Vec<u8>, done: Done) -> Result<(), StoreError> {
        self.submit(vote.len(), done, move |memory, push, done| {
            memory.vote = Some(vote.clone());
            push(Operation::Vote(vote), done);
            Ok(())
        })
    }

    /// The vote saved last, durable or not.
    pub fn vote(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.memory()?.vote.clone())
    }

    /// Saves how far the log is committed. It goes to the disk with the next operation or at the end, so that after
    /// a crash it may be older; it never waits.
    pub fn save_committed(&self, committed: Vec<u8>) -> Result<(), StoreError> {
        let mut memory = self.memory()?;
        memory.committed = Some(committed);
        memory.committed_waits = true;
        Ok(())
    }

    /// What [`LogStore::save_committed`] saved last.
    pub fn committed(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.memory()?.committed.clone())
    }

    /// The entries of `[from, until)` that exist, in order, as many as `bytes_max` holds, but at least one.
    pub fn entries(&self, from: u64, until: u64, bytes_max: usize) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let memory = self.memory()?;
        let Some((first, last)) = memory.range else { return Ok(Vec::new()) };
        let (from, until) = (from.max(first), until.min(last + 1));
        if from >= until {
            return Ok(Vec::new());
        }
        // The unsynced entries are the end of the log, and everything before them is committed.
        let unsynced: Vec<(u64, Arc<[u8]>)> =
            memory.unsynced.range(from..until).map(|(index, (_, bytes))| (*index, Arc::clone(bytes))).collect();
        let split = unsynced.first().map_or(until, |(index, _)| *index);
        let database = &self.queue.committer().database;
        // The view is taken under the lock and read without it: it keeps what a purge removes meanwhile.
        let view = (from < split).then(|| database.view()).transpose()?;
        drop(memory);
        let mut gathered = Gathered { entries: Vec::new(), bytes: 0, bytes_max, full: false };
        if let Some(view) = view {
            database.look(&view, |view| gathered.take_committed(view, from, split))?;
            let expected = from + gathered.entries.len() as u64;
            if !gathered.full && expected != split {
                return Err(database.corrupt(format!("entry {expected} of the log is missing")));
            }
        }
        for (index, bytes) in &unsynced {
            gathered.take(*index, bytes);
        }
        gathered.check(database, from)
    }

    /// The last entry of the log.
    pub fn last(&self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let range = self.memory()?.range;
        match range {
            Some((_, last)) => Ok(self.entries(last, last + 1, 0)?.pop()),
            None => Ok(None),
        }
    }

    /// Removes the entries from `index` on.
    pub fn truncate_from(&self, index: u64, done: Done) -> Result<(), StoreError> {
        self.submit(0, done, move |memory, push, done| {
            memory.truncate_from(index);
            push(Operation::Truncate(index), done);
            Ok(())
        })
    }

    /// Removes the entries through `index`, which need not exist, and keeps `marker` for [`LogStore::purged`].
    /// An index before that of an earlier purge changes nothing.
    pub fn purge_through(&self, index: u64, marker: Vec<u8>, done: Done) -> Result<(), StoreError> {
        self.submit(marker.len(), done, move |memory, push, done| {
            if memory.purged.as_ref().is_some_and(|(purged, _)| *purged > index) {
                push(Operation::Append(Vec::new()), done);
                return Ok(());
            }
            memory.purge_through(index, marker.clone());
            push(Operation::Purge(index, marker), done);
            Ok(())
        })
    }

    /// The index and marker of the last purge.
    pub fn purged(&self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        Ok(self.memory()?.purged.clone())
    }

    fn memory(&self) -> Result<std::sync::MutexGuard<'_, Memory>, StoreError> {
        let committer = self.queue.committer();
        committer.database.fence().check()?;
        Ok(lock(&committer.memory))
    }

    /// Waits for room, then has `act` change the memory and push its operation under one lock, so that both have the
    /// same order.
    fn submit(
        &self,
        bytes: usize,
        done: Done,
        act: impl FnOnce(&mut Memory, &dyn Fn(Operation, Done) -> u64, Done) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if let Err(error) = self.queue.wait_for_room(bytes) {
            return refuse(done, error);
        }
        let push = |operation, done| self.queue.push(operation, bytes, done);
        act(&mut lock(&self.queue.committer().memory), &push, done)?;
        self.queue.kick()
    }
}

/// Entries read so far.
struct Gathered {
    entries: Vec<Entry>,
    bytes: usize,
    bytes_max: usize,
    full: bool,
}

impl Gathered {
    fn take(&mut self, index: u64, bytes: &[u8]) {
        let total = self.bytes.saturating_add(bytes.len());
        self.full |= !self.entries.is_empty() && total > self.bytes_max;
        if !self.full {
            self.bytes = total;
            self.entries.push((index, bytes.to_vec()));
        }
    }

    fn take_committed(&mut self, view: &ReadTransaction, from: u64, until: u64) -> Result<(), redb::Error> {
        for entry in view.open_table(ENTRIES)?.range(from..until)? {
            let (index, bytes) = entry?;
            self.take(index.value(), bytes.value());
            if self.full {
                break;
            }
        }
        Ok(())
    }

    /// The entries, if they are without gaps and within their bound.
    fn check(self, database: &Database, from: u64) -> Result<Vec<Entry>, StoreError> {
        for (expected, (index, bytes)) in (from..).zip(&self.entries) {
            if *index != expected {
                return Err(database.corrupt(format!("entry {expected} of the log is missing")));
            }
            if bytes.len() > limits::MESSAGE_BYTES_MAX {
                return Err(database.corrupt(format!("entry {index} of the log has {} bytes", bytes.len())));
            }
        }
        Ok(self.entries)
    }
}

/// The index before a purge's marker.
const PURGED_INDEX_BYTES: usize = 8;

fn load(database: &Database) -> Result<Memory, StoreError> {
    let view = database.view()?;
    let (mut memory, purged, count) = database.look(&view, |view| {
        let facts = view.open_table(FACTS)?;
        let fact = |key| Ok::<_, redb::Error>(facts.get(key)?.map(|value| value.value().to_vec()));
        let entries = view.open_table(ENTRIES)?;
        let first = entries.first()?.map(|(index, _)| index.value());
        let last = entries.last()?.map(|(index, _)| index.value());
        let (vote, committed) = (fact(VOTE)?, fact(COMMITTED)?);
        let memory = Memory { range: first.zip(last), vote, committed, ..Memory::default() };
        Ok((memory, fact(PURGED)?, entries.len()?))
    })?;
    if let Some(purged) = purged {
        let Some((index, marker)) = purged.split_first_chunk::<PURGED_INDEX_BYTES>() else {
            return Err(database.corrupt("the mark of the last purge is too short".to_owned()));
        };
        memory.purged = Some((u64::from_le_bytes(*index), marker.to_vec()));
    }
    if let Some((first, last)) = memory.range {
        let follows = memory.purged.as_ref().is_none_or(|(purged, _)| *purged < first);
        if !follows || last == u64::MAX || last - first + 1 != count {
            return Err(database.corrupt(format!("the log runs from {first} to {last} with {count} entries")));
        }
    }
    Ok(memory)
}

struct LogCommitter {
    database: Database,
    memory: Mutex<Memory>,
}

impl LogCommitter {
    fn commit_with(&self, batch: &[Numbered<Operation>]) -> Result<(), StoreError> {
        let committed = {
            let mut memory = lock(&self.memory);
            let waits = std::mem::take(&mut memory.committed_waits);
            if waits { memory.committed.clone() } else { None }
        };
        self.database.write(|transaction| {
            for numbered in batch {
                apply(transaction, &numbered.operation)?;
            }
            if let Some(committed) = &committed {
                transaction.open_table(FACTS)?.insert(COMMITTED, committed.as_slice())?;
            }
            Ok(())
        })
    }
}

fn apply(transaction: &WriteTransaction, operation: &Operation) -> Result<(), redb::Error> {
    match operation {
        Operation::Append(entries) => {
            let mut table = transaction.open_table(ENTRIES)?;
            for (index, bytes) in entries {
                table.insert(index, &**bytes)?;
            }
        }
        Operation::Vote(vote) => {
            transaction.open_table(FACTS)?.insert(VOTE, vote.as_slice())?;
        }
        Operation::Truncate(index) => {
            transaction.open_table(ENTRIES)?.retain_in::<u64, _>(*index.., |_, _| false)?;
        }
        Operation::Purge(index, marker) => {
            transaction.open_table(ENTRIES)?.retain_in::<u64, _>(..=*index, |_, _| false)?;
            let value = [index.to_le_bytes().as_slice(), marker].concat();
            transaction.open_table(FACTS)?.insert(PURGED, value.as_slice())?;
        }
    }
    Ok(())
}

impl Committer for LogCommitter {
    type Operation = Operation;

    fn commit(&self, batch: &[Numbered<Operation>]) -> Result<(), StoreError> {
        self.commit_with(batch)
    }

    fn settled(&self, batch: &[Numbered<Operation>]) {
        let mut memory = lock(&self.memory);
        for numbered in batch {
            let Operation::Append(entries) = &numbered.operation else { continue };
            for (index, _) in entries {
                // A later operation may have put another entry in its place.
                if memory.unsynced.get(index).is_some_and(|(number, _)| *number == numbered.number) {
                    memory.unsynced.remove(index);
                }
            }
        }
    }

    fn close(&self) {
        // What is not written now is only older after the next start.
        if lock(&self.memory).committed_waits {
            let _ = self.commit_with(&[]);
        }
    }

    fn fence(&self) -> &Arc<Fence> {
        self.database.fence()
    }
}

#[cfg(test)]
mod tests;
