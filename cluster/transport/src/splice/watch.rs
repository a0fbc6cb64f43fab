//! The watch over paths that may have to be given up: one timer for all of them, and none while there are none.
//!
//! A timer for each connection would cost every short one its making. A path enters when it has sent bytes or is half
//! closed, is woken at each look, and leaves when all is answered.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use postroad_cluster::{
    limits::{SPLICE_LOOK_MAX, SPLICE_LOOK_MIN},
    time::{Clock, Span},
};

/// A path's place in the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(usize);

/// The watch.
#[derive(Debug)]
pub(super) struct Watch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Arc<dyn Clock>,
    every: Span,
    looks: AtomicU64,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// `None` where nobody waits for the next look.
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
    /// Whether somebody is there who counts the looks.
    running: bool,
}

impl Places {
    fn is_empty(&self) -> bool {
        self.wakers.len() == self.free.len()
    }
}

impl Watch {
    pub(super) fn new(clock: Arc<dyn Clock>, every: Span) -> Self {
        let every = every.clamp(SPLICE_LOOK_MIN, SPLICE_LOOK_MAX);
        Self(Arc::new(Inner { clock, every, looks: AtomicU64::new(0), places: Mutex::default() }))
    }

    /// How many looks there were.
    pub(super) fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// Takes a place; `waker` is woken at the next look. Returns how many looks there were.
    pub(super) fn enter(&self, waker: Waker) -> (Place, u64) {
        let mut places = self.0.lock();
        let place = places.free.pop().unwrap_or(places.wakers.len());
        if place == places.wakers.len() {
            places.wakers.push(Some(waker));
        } else {
            places.wakers[place] = Some(waker);
        }
        let idle = !std::mem::replace(&mut places.running, true);
        drop(places);
        if idle {
            tokio::spawn(run(Arc::downgrade(&self.0)));
        }
        (Place(place), self.looks())
    }

    /// Waits for the next look again.
    pub(super) fn stay(&self, place: Place, waker: Waker) {
        let replaced = self.0.lock().wakers[place.0].replace(waker);
        // A waker may own the last of a task, which would leave its own place.
        drop(replaced);
    }

    /// Gives the place up.
    pub(super) fn leave(&self, place: Place) {
        let mut places = self.0.lock();
        let removed = places.wakers[place.0].take();
        places.free.push(place.0);
        if places.is_empty() {
            // What a rush of connections has taken is given back.
            places.wakers = Vec::new();
            places.free = Vec::new();
        }
        drop(places);
        drop(removed);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks until nobody is there.
async fn run(watch: Weak<Inner>) {
    loop {
        let Some(timer) = watch.upgrade().map(|inner| inner.clock.sleep_until(inner.clock.now().after(inner.every)))
        else {
            return;
        };
        timer.await;
        let Some(inner) = watch.upgrade() else { return };
        let mut places = inner.lock();
        if places.is_empty() {
            places.running = false;
            return;
        }
        inner.looks.fetch_add(1, Ordering::Relaxed);
        let due: Vec<Waker> = places.wakers.iter_mut().filter_map(Option::take).collect();
        drop(places);
        due.into_iter().for_each(Waker::wake);
    }
}
