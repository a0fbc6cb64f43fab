//! When which circuit wants its next tick.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use postroad_cluster::time::{Clock, Moment};
use tokio::sync::Notify;

#[derive(Debug)]
struct Times {
    due: BTreeSet<(Moment, u64)>,
    of: BTreeMap<u64, Moment>,
    /// Until when the ticker sleeps.
    sleeps: Moment,
}

/// The next ticks of all circuits.
#[derive(Debug)]
pub(super) struct Schedule {
    times: Mutex<Times>,
    earlier: Notify,
}

impl Default for Schedule {
    fn default() -> Self {
        let times = Times { due: BTreeSet::new(), of: BTreeMap::new(), sleeps: Moment::NEVER };
        Self { times: Mutex::new(times), earlier: Notify::new() }
    }
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The circuit wants its next tick at `due`, or earlier if it has said so before and `only_earlier`.
    pub(super) fn set(&self, index: u64, due: Moment, only_earlier: bool) {
        let mut times = self.lock();
        if let Some(old) = times.of.get(&index).copied() {
            if only_earlier && old <= due {
                return;
            }
            times.due.remove(&(old, index));
        }
        times.of.insert(index, due);
        times.due.insert((due, index));
        if due < times.sleeps {
            self.earlier.notify_one();
        }
    }

    /// Sleeps until the first tick is due.
    pub(super) async fn wait(&self, clock: &dyn Clock) {
        loop {
            let first = {
                let mut times = self.lock();
                let first = times.due.first().map_or(Moment::NEVER, |(moment, _)| *moment);
                times.sleeps = first;
                first
            };
            if first <= clock.now() {
                return;
            }
            tokio::select! {
                biased;
                () = self.earlier.notified() => {}
                () = clock.sleep_until(first), if first != Moment::NEVER => {}
            }
        }
    }

    /// Takes out the circuits whose tick is due.
    pub(super) fn take_due(&self, now: Moment) -> Vec<u64> {
        let mut times = self.lock();
        let mut due = Vec::new();
        while let Some((moment, index)) = times.due.first().copied().filter(|(moment, _)| *moment <= now) {
            times.due.remove(&(moment, index));
            times.of.remove(&index);
            due.push(index);
        }
        due
    }
}
