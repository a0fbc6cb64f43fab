//! The log and the vote on the store, as the library asks for them.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use futures_util::{Stream, stream};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use postroad_cluster::{
    id::NodeId,
    limits::RAFT_APPEND_BYTES_MAX,
    wire::{self, Message, raft::LogPlace},
};
use postroad_store::{Done, LogStore, StoreError};
use tokio::sync::oneshot;

use crate::{
    cause::Causes,
    options::Observer,
    types::{self, Entry, LogId, Types, Vote},
};

/// The log of this member. Cloning shares it.
#[derive(Clone)]
pub(crate) struct RaftLog {
    pub(crate) me: NodeId,
    pub(crate) store: LogStore,
    pub(crate) causes: Arc<Causes>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    #[cfg(feature = "planted")]
    pub(crate) unsynced_vote: Arc<std::sync::Mutex<Option<Vec<u8>>>>,
}

/// Any failure of the store ends the member: the library has no other answer, and a vote or entry of which nobody
/// knows whether it is on disk leaves none.
pub(crate) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

fn corrupt(what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} on this disk cannot be read: {error}"))
}

fn stored<M: Message>(bytes: &[u8]) -> io::Result<M> {
    wire::decode(bytes).map_err(|error| corrupt(M::WHAT, error))
}

fn stored_entry((_, bytes): &(u64, Vec<u8>)) -> io::Result<Entry> {
    types::entry(bytes).map_err(|error| corrupt("a log entry", error))
}

fn stored_place(bytes: &[u8]) -> io::Result<LogId> {
    types::log_id(stored::<LogPlace>(bytes)?).map_err(|error| corrupt("a place in the log", error))
}

/// A `done` for writes that nobody waits for: what fails here closes the store, which the next write hears.
fn unawaited(what: &'static str) -> Done {
    Box::new(move |result| {
        if let Err(error) = result {
            tracing::error!(code = error.code(), %error, what, "a write to the control group's log failed");
        }
    })
}

/// Runs `write` with a `done` and waits for it.
pub(crate) async fn durable(write: impl FnOnce(Done) -> Result<(), StoreError>) -> io::Result<()> {
    let (sender, receiver) = oneshot::channel();
    let done: Done = Box::new(move |result| drop(sender.send(result)));
    write(done).map_err(failed)?;
    receiver.await.map_err(failed)?.map_err(failed)
}

impl RaftLog {
    pub(crate) fn entry_at(&self, index: u64) -> io::Result<Option<Entry>> {
        self.store.entries(index, index + 1, 0).map_err(failed)?.first().map(stored_entry).transpose()
    }

    /// Tells the observer of the vote that this member starts with.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let Some(observer) = &self.observer else { return Ok(()) };
        let vote = self.store.vote().map_err(failed)?;
        let vote = vote.map(|bytes| stored::<wire::raft::VoteRecord>(&bytes)).transpose()?;
        observer.on_start(self.me, vote.map(|vote| (vote.term, vote.node)));
        Ok(())
    }

    fn last_place(&self) -> io::Result<Option<LogId>> {
        match self.store.last().map_err(failed)? {
            Some(entry) => Ok(Some(stored_entry(&entry)?.log_id)),
            None => self.purged_place(),
        }
    }

    fn purged_place(&self) -> io::Result<Option<LogId>> {
        self.store.purged().map_err(failed)?.map(|(_, marker)| stored_place(&marker)).transpose()
    }

    fn note(&self, vote: &Vote) {
        let record = types::vote_record(vote);
        if let Some(observer) = self.observer.as_ref().filter(|_| !record.granted) {
            observer.on_vote(self.me, record.term, record.node);
        }
        if record.granted {
            if let Some(observer) = &self.observer {
                observer.on_leader(self.me, record.term, record.node);
            }
        } else if record.node == self.me {
            self.causes.stands(record.term, self.me);
        }
    }

    #[cfg(feature = "planted")]
    fn unsynced_vote(&self) -> std::sync::MutexGuard<'_, Option<Vec<u8>>> {
        self.unsynced_vote.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Entries of a range, read in pieces, so that a member far behind does not hold them all.
struct Pieces {
    store: LogStore,
    next: u64,
    until: u64,
    piece: VecDeque<(u64, Vec<u8>)>,
    ended: bool,
}

impl Pieces {
    fn new(store: &LogStore, range: &impl RangeBounds<u64>) -> Self {
        let next = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let until = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        Self { store: store.clone(), next, until, piece: VecDeque::new(), ended: false }
    }

    fn read(&mut self) -> io::Result<()> {
        self.piece = self.store.entries(self.next, self.until, RAFT_APPEND_BYTES_MAX).map_err(failed)?.into();
        match self.piece.back() {
            Some((last, _)) => self.next = last + 1,
            None => self.ended = true,
        }
        Ok(())
    }
}

impl Iterator for Pieces {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<io::Result<Entry>> {
        let is_due = self.piece.is_empty() && !self.ended && self.next < self.until;
        if is_due && let Err(error) = self.read() {
            self.ended = true;
            return Some(Err(error));
        }
        self.piece.pop_front().as_ref().map(stored_entry)
    }
}

impl RaftLogReader<Types> for RaftLog {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Pieces::new(&self.store, &range).collect()
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        stream::iter(Pieces::new(&self.store, &range))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let entries = self.store.entries(start, end, RAFT_APPEND_BYTES_MAX).map_err(failed)?;
        entries.iter().map(stored_entry).collect()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        #[cfg(feature = "planted")]
        if let Some(bytes) = &*self.unsynced_vote() {
            return Ok(Some(types::vote(stored(bytes)?).map_err(|error| corrupt("the vote", error))?));
        }
        let Some(bytes) = self.store.vote().map_err(failed)? else { return Ok(None) };
        Ok(Some(types::vote(stored(&bytes)?).map_err(|error| corrupt("the vote", error))?))
    }
}

impl RaftLogStorage<Types> for RaftLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        Ok(LogState { last_purged_log_id: self.purged_place()?, last_log_id: self.last_place()? })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let bytes = wire::encode(&types::vote_record(vote));
        #[cfg(feature = "planted")]
        if crate::planted::votes_are_unsynced() {
            *self.unsynced_vote() = Some(bytes);
            self.note(vote);
            return Ok(());
        }
        durable(|done| self.store.save_vote(bytes, done)).await?;
        self.note(vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        self.store.save_committed(wire::encode(&types::place(&committed))).map_err(failed)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let Some(bytes) = self.store.committed().map_err(failed)? else { return Ok(None) };
        let committed = stored_place(&bytes)?;
        // It is a hint that spares waiting for the leader. It may be ahead of a log whose end was not durable yet.
        Ok(Some(committed).min(self.last_place()?))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(|entry| (entry.log_id.index, types::entry_bytes(&entry))).collect();
        #[cfg(feature = "planted")]
        if let Some(vote) = self.unsynced_vote().take() {
            self.store.save_vote(vote, unawaited("vote")).map_err(failed)?;
        }
        let done: Done = Box::new(move |result| callback.io_completed(result.map_err(failed)));
        self.store.append(entries, done).map_err(failed)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        self.store.truncate_from(from, unawaited("truncation")).map_err(failed)
    }

    async fn purge(&mut self, through: LogId) -> io::Result<()> {
        let marker = wire::encode(&types::place(&through));
        self.store.purge_through(through.index, marker, unawaited("purge")).map_err(failed)
    }
}
