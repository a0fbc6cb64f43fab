//! The ordered queue before a database: whatever queued while it synced becomes its next commit.

use std::{
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use postroad_cluster::limits;

use crate::{backend::Fence, error::StoreError};

/// Who writes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// A thread a database, which commits in groups: production.
    Thread,
    /// The caller, one commit a call: the simulation, where threads would make order a matter of luck.
    Inline,
}

/// Called exactly once, with `Ok` when what it covers is durable, else with the error that the call has returned or
/// that closed the database. It runs on the writer thread (or in the call, if inline) and must not block.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Locks, also after a panic elsewhere: every state here is whole between two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `done` with an error and returns it.
pub(crate) fn refuse(done: Done, error: StoreError) -> Result<(), StoreError> {
    done(Err(error.clone()));
    Err(error)
}

/// An operation and its place in the queue.
pub(crate) struct Numbered<O> {
    pub(crate) number: u64,
    pub(crate) operation: O,
}

/// What makes operations durable.
pub(crate) trait Committer: Send + Sync + 'static {
    /// One operation.
    type Operation: Send + 'static;
    /// Commits all of `batch`, in order, or nothing.
    fn commit(&self, batch: &[Numbered<Self::Operation>]) -> Result<(), StoreError>;
    /// Hears that `batch` is durable, before anybody else does.
    fn settled(&self, _batch: &[Numbered<Self::Operation>]) {}
    /// Writes what waits for no operation, at the end.
    fn close(&self) {}
    /// The fence of the database.
    fn fence(&self) -> &Arc<Fence>;
}

struct Waiting<O> {
    queue: VecDeque<(Numbered<O>, Done)>,
    bytes: usize,
    number: u64,
    stopping: bool,
}

struct Shared<C: Committer> {
    committer: C,
    waiting: Mutex<Waiting<C::Operation>>,
    work: Condvar,
    room: Condvar,
    committing: Mutex<()>,
}

/// The queue of one database. Dropping it commits what is queued, then closes the database.
pub(crate) struct Queue<C: Committer> {
    shared: Arc<Shared<C>>,
    writer: Option<JoinHandle<()>>,
}

impl<C: Committer> Queue<C> {
    pub(crate) fn new(committer: C, writing: Writing) -> Result<Self, StoreError> {
        let file = committer.fence().file();
        let shared = Arc::new(Shared {
            committer,
            waiting: Mutex::new(Waiting { queue: VecDeque::new(), bytes: 0, number: 0, stopping: false }),
            work: Condvar::new(),
            room: Condvar::new(),
            committing: Mutex::new(()),
        });
        let writer = match writing {
            Writing::Inline => None,
            Writing::Thread => {
                let shared = Arc::clone(&shared);
                let thread = thread::Builder::new().name(file.to_owned()).spawn(move || shared.run());
                Some(thread.map_err(|error| StoreError::disk(file, "start the writer thread", &error))?)
            }
        };
        Ok(Self { shared, writer })
    }

    pub(crate) fn committer(&self) -> &C {
        &self.shared.committer
    }

    /// Waits until the queue has room for `bytes` more. The wait ends with the present commit, since the next one
    /// takes the whole queue; a disk that needs longer than [`limits::STORE_WAIT`] is given up.
    pub(crate) fn wait_for_room(&self, bytes: usize) -> Result<(), StoreError> {
        let fence = self.committer().fence();
        // The writer thread itself, in a `done`, would wait for itself.
        let is_writer = self.writer.as_ref().is_some_and(|writer| writer.thread().id() == thread::current().id());
        let waiting = lock(&self.shared.waiting);
        let (waiting, timeout) = self
            .shared
            .room
            .wait_timeout_while(waiting, limits::STORE_WAIT, |waiting| {
                !is_writer && waiting.is_full(bytes) && fence.check().is_ok()
            })
            .unwrap_or_else(PoisonError::into_inner);
        drop(waiting);
        if timeout.timed_out() { Err(self.stalled()) } else { fence.check() }
    }

    /// [`StoreError::Busy`] if the queue has no room for `bytes` more.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), StoreError> {
        let fence = self.committer().fence();
        fence.check()?;
        if lock(&self.shared.waiting).is_full(bytes) { Err(StoreError::Busy { file: fence.file() }) } else { Ok(()) }
    }

    /// Appends to the queue and returns the operation's number. [`Queue::kick`] must follow.
    pub(crate) fn push(&self, operation: C::Operation, bytes: usize, done: Done) -> u64 {
        let mut waiting = lock(&self.shared.waiting);
        waiting.number += 1;
        waiting.bytes += bytes;
        let number = waiting.number;
        waiting.queue.push_back((Numbered { number, operation }, done));
        number
    }

    /// Has the queue written: by the thread, or now.
    pub(crate) fn kick(&self) -> Result<(), StoreError> {
        if self.writer.is_some() {
            self.shared.work.notify_one();
            Ok(())
        } else {
            self.shared.drain()
        }
    }

    /// Appends to the queue and waits until the operation is durable.
    pub(crate) fn write(&self, operation: C::Operation, bytes: usize) -> Result<(), StoreError> {
        self.wait_for_room(bytes)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        self.push(operation, bytes, Box::new(move |result| drop(sender.try_send(result))));
        // The result comes by `done` as well.
        let _ = self.kick();
        receiver.recv_timeout(limits::STORE_WAIT).unwrap_or_else(|_| Err(self.stalled()))
    }

    fn stalled(&self) -> StoreError {
        let fence = self.committer().fence();
        let found = format!("it took longer than {} s", limits::STORE_WAIT.as_secs());
        fence.close(StoreError::Disk { file: fence.file(), tried: "commit", found })
    }
}

impl<O> Waiting<O> {
    fn is_full(&self, bytes: usize) -> bool {
        // One operation alone is always taken, whatever its size, which its own bound keeps.
        !self.queue.is_empty()
            && (self.queue.len() >= limits::STORE_QUEUE_OPERATIONS
                || self.bytes.saturating_add(bytes) > limits::STORE_QUEUE_BYTES)
    }
}

impl<C: Committer> Shared<C> {
    /// The life of the writer thread.
    fn run(&self) {
        loop {
            let waiting = lock(&self.waiting);
            let waiting = self
                .work
                .wait_while(waiting, |waiting| waiting.queue.is_empty() && !waiting.stopping)
                .unwrap_or_else(PoisonError::into_inner);
            if waiting.queue.is_empty() {
                return;
            }
            drop(waiting);
            // The callers hear of an error by their `done`.
            let _ = self.drain();
        }
    }

    /// Commits everything that is queued at once.
    fn drain(&self) -> Result<(), StoreError> {
        let committing = lock(&self.committing);
        let taken = {
            let mut waiting = lock(&self.waiting);
            waiting.bytes = 0;
            mem::take(&mut waiting.queue)
        };
        self.room.notify_all();
        let (batch, dones): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let result = if batch.is_empty() { Ok(()) } else { self.commit(&batch) };
        drop(batch);
        drop(committing);
        if result.is_err() {
            self.room.notify_all();
        }
        for done in dones {
            // A panicking callback must neither end the thread nor keep the others from hearing.
            let result = result.clone();
            if catch_unwind(AssertUnwindSafe(move || done(result))).is_err() {
                tracing::error!("a callback of the store panicked");
            }
        }
        result
    }

    fn commit(&self, batch: &[Numbered<C::Operation>]) -> Result<(), StoreError> {
        self.committer.fence().check()?;
        self.committer.commit(batch)?;
        // Whoever gave up waiting was told of a failure, so nothing is acknowledged behind it.
        self.committer.fence().check()?;
        self.committer.settled(batch);
        Ok(())
    }
}

impl<C: Committer> Drop for Queue<C> {
    fn drop(&mut self) {
        lock(&self.shared.waiting).stopping = true;
        self.shared.work.notify_one();
        if let Some(writer) = self.writer.take() {
            // The last handle may be dropped by a `done`, on the writer thread itself, which then ends by itself.
            if writer.thread().id() != thread::current().id() && writer.join().is_err() {
                tracing::error!("the store's writer thread panicked");
            }
        }
        self.shared.committer.close();
    }
}

#[cfg(test)]
mod tests;
