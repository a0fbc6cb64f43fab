//! The tasks and timers of one incarnation of an actor: counted, and ended with it.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

use tokio::task::AbortHandle;

use crate::{journal::panic_text, mailbox::Fired};

/// Runs `work` to its end; an error is the text of its panic.
pub(super) async fn catch<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic_text(&*panic))),
    })
    .await
}

#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) tasks: BTreeMap<u64, AbortHandle>,
    pub(super) timers: BTreeMap<u64, (u64, AbortHandle)>,
    pub(super) reminder: Option<AbortHandle>,
    next: u64,
}

impl Work {
    /// A number that no task or timer of this actor has had.
    pub(super) const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether `fired` is what its key was last set to, and if so, it is spent.
    pub(super) fn spend(&mut self, fired: Fired) -> bool {
        let holds = self.timers.get(&fired.key).is_some_and(|(serial, _)| *serial == fired.serial);
        if holds {
            self.timers.remove(&fired.key);
        }
        holds
    }

    pub(super) fn abort_all(&mut self) {
        for (_, task) in std::mem::take(&mut self.tasks) {
            task.abort();
        }
        for (_, (_, timer)) in std::mem::take(&mut self.timers) {
            timer.abort();
        }
        if let Some(reminder) = self.reminder.take() {
            reminder.abort();
        }
    }
}
