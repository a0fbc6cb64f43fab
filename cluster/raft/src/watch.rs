//! A value that others wait on. Waiters wake in the order in which they came: tokio's own channel of this kind wakes
//! in random order, which no seed repeats.

use std::{
    fmt,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
    task::{Poll, Waker},
};

use openraft_rt::{
    OptionalSend, OptionalSync,
    watch::{self, RecvError, SendError},
};

/// The kind of channel, for the library.
pub(crate) struct Watch;

/// The end that sets the value.
pub(crate) struct Sender<T>(Arc<Channel<T>>);

/// The end that reads the value and waits for newer ones. Values in between may be missed, the last one never.
pub struct Subscription<T> {
    channel: Arc<Channel<T>>,
    number: u64,
    seen: u64,
}

struct Channel<T> {
    value: RwLock<T>,
    ends: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    version: u64,
    senders: usize,
    subscriptions: usize,
    last_number: u64,
    /// At most one for each subscription.
    waiting: Vec<(u64, Waker)>,
}

impl<T> Channel<T> {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(channel: &Arc<Self>, seen: Option<u64>) -> Subscription<T> {
        let mut ends = channel.ends();
        ends.subscriptions += 1;
        ends.last_number += 1;
        let (number, seen) = (ends.last_number, seen.unwrap_or(ends.version));
        drop(ends);
        Subscription { channel: Arc::clone(channel), number, seen }
    }

    /// Wakes everybody who waits, after `change`; outside the lock, since waking may run whatever the waiter is.
    fn wake(&self, change: impl FnOnce(&mut Ends) -> bool) {
        let mut ends = self.ends();
        let waiting = if change(&mut ends) { mem::take(&mut ends.waiting) } else { Vec::new() };
        drop(ends);
        for (_, waker) in waiting {
            waker.wake();
        }
    }
}

/// A channel with its first value, which counts as seen.
pub(crate) fn channel<T>(value: T) -> (Sender<T>, Subscription<T>) {
    let ends = Ends { senders: 1, ..Ends::default() };
    let channel = Arc::new(Channel { value: RwLock::new(value), ends: Mutex::new(ends) });
    let subscription = Channel::subscribe(&channel, None);
    (Sender(channel), subscription)
}

impl<T> Sender<T> {
    /// Changes the value, and wakes who waits if `change` says that it did.
    pub(crate) fn modify(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let changed = change(&mut self.0.value.write().unwrap_or_else(PoisonError::into_inner));
        if changed {
            self.0.wake(|ends| {
                ends.version += 1;
                true
            });
        }
        changed
    }

    /// One more end that reads; the present value counts as seen.
    pub(crate) fn subscription(&self) -> Subscription<T> {
        Channel::subscribe(&self.0, None)
    }
}

impl<T> Subscription<T> {
    /// The present value, which counts as seen from now on.
    pub fn get(&mut self) -> T
    where
        T: Clone,
    {
        self.seen = self.channel.ends().version;
        self.channel.read().clone()
    }

    /// Waits for a value that was not seen yet; `false` if there will be none.
    pub async fn changed(&mut self) -> bool {
        let Self { channel, number, seen } = self;
        poll_fn(|context| {
            let mut ends = channel.ends();
            if ends.version != *seen {
                *seen = ends.version;
                return Poll::Ready(true);
            }
            if ends.senders == 0 {
                return Poll::Ready(false);
            }
            match ends.waiting.iter_mut().find(|(waiting, _)| waiting == number) {
                Some((_, waker)) => waker.clone_from(context.waker()),
                None => ends.waiting.push((*number, context.waker().clone())),
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until a value meets `condition` and returns it; `None` if none will.
    pub async fn until(&mut self, mut condition: impl FnMut(&T) -> bool) -> Option<T>
    where
        T: Clone,
    {
        loop {
            let value = self.get();
            if condition(&value) {
                return Some(value);
            }
            if !self.changed().await {
                return None;
            }
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.ends().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.wake(|ends| {
            ends.senders -= 1;
            ends.senders == 0
        });
    }
}

impl<T> Clone for Subscription<T> {
    fn clone(&self) -> Self {
        Channel::subscribe(&self.channel, Some(self.seen))
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        let mut ends = self.channel.ends();
        ends.subscriptions -= 1;
        ends.waiting.retain(|(number, _)| *number != self.number);
    }
}

impl<T: fmt::Debug> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&*self.channel.read()).finish()
    }
}

impl watch::Watch for Watch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Subscription<T>;
    type Ref<'a, T: OptionalSend + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(value: T) -> (Sender<T>, Subscription<T>) {
        channel(value)
    }
}

impl<T: OptionalSend + OptionalSync> watch::WatchSender<Watch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.ends().subscriptions == 0 {
            return Err(SendError(value));
        }
        self.modify(|present| {
            *present = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        self.modify(modify)
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> Subscription<T> {
        self.subscription()
    }
}

impl<T: OptionalSend + OptionalSync> watch::WatchReceiver<Watch, T> for Subscription<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        if Self::changed(self).await { Ok(()) } else { Err(RecvError(())) }
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.channel.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        self.seen = self.channel.ends().version;
        self.channel.read()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn waiters_wake_in_the_order_in_which_they_came() {
        block_on(async {
            let (sender, _first) = channel(0);
            let (woken, order) = mpsc::channel();
            let tasks: Vec<_> = (0..20)
                .map(|number| {
                    let (mut subscription, woken) = (sender.subscription(), woken.clone());
                    tokio::spawn(async move {
                        assert!(subscription.changed().await);
                        woken.send(number).unwrap();
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            assert!(sender.modify(|value| {
                *value = 1;
                true
            }));
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        });
    }

    #[test]
    fn the_last_value_is_never_missed_and_the_end_is_told() {
        block_on(async {
            let (sender, mut subscription) = channel(0);
            for value in 1..=3 {
                sender.modify(|present| {
                    *present = value;
                    true
                });
            }
            assert!(!sender.modify(|_| false));
            assert!(subscription.changed().await);
            assert_eq!(subscription.get(), 3);
            let other = sender.clone();
            drop(sender);
            let waits = tokio::spawn(async move { subscription.until(|value| *value == 9).await });
            tokio::task::yield_now().await;
            drop(other);
            assert_eq!(waits.await.unwrap(), None);
        });
    }

    #[test]
    fn an_abandoned_wait_leaves_nothing_behind() {
        let (sender, mut subscription) = channel(());
        block_on(async {
            for _ in 0..10 {
                tokio::select! {
                    biased;
                    _ = subscription.changed() => unreachable!(),
                    () = tokio::task::yield_now() => {}
                }
            }
        });
        assert_eq!(sender.0.ends().waiting.len(), 1);
        drop(subscription);
        assert!(sender.0.ends().waiting.is_empty());
    }
}
