//! How long a flow stood still: the longest time between two arrivals, in a window and ever.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The gauge of one flow. Arrivals are counted where they arrive; anybody may read.
#[derive(Debug)]
pub struct Gauge {
    born: Instant,
    last_us: AtomicU64,
    window_us: AtomicU64,
    ever_us: AtomicU64,
    ended: AtomicBool,
}

impl Gauge {
    /// A flow that begins now: what it takes until its first byte counts.
    pub fn new() -> Self {
        Self {
            born: Instant::now(),
            last_us: AtomicU64::new(0),
            window_us: AtomicU64::new(0),
            ever_us: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Something has arrived.
    pub fn progress(&self) {
        self.progress_at(self.now());
    }

    /// The flow has ended: it no longer stands still.
    pub fn end(&self) {
        self.progress();
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Begins a new window. A pause under way counts as a whole for the new one.
    pub fn begin_window(&self) {
        self.window_us.store(0, Ordering::Relaxed);
    }

    /// The longest pause that ended in this window or is under way.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.longest(&self.window_us, self.now()))
    }

    /// The longest pause since the flow began.
    pub fn ever(&self) -> Duration {
        Duration::from_micros(self.longest(&self.ever_us, self.now()))
    }

    fn now(&self) -> u64 {
        self.born.elapsed().as_micros() as u64
    }

    fn progress_at(&self, now_us: u64) {
        let pause = now_us.saturating_sub(self.last_us.swap(now_us, Ordering::Relaxed));
        self.window_us.fetch_max(pause, Ordering::Relaxed);
        self.ever_us.fetch_max(pause, Ordering::Relaxed);
    }

    fn longest(&self, ended_us: &AtomicU64, now_us: u64) -> u64 {
        let under_way = now_us.saturating_sub(self.last_us.load(Ordering::Relaxed));
        let ended = ended_us.load(Ordering::Relaxed);
        if self.ended.load(Ordering::Relaxed) { ended } else { ended.max(under_way) }
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_counts_be_it_over_or_under_way() {
        let gauge = Gauge::new();
        for now_us in [10, 500, 510] {
            gauge.progress_at(now_us);
        }
        assert_eq!(gauge.longest(&gauge.window_us, 520), 490);
        assert_eq!(gauge.longest(&gauge.window_us, 2_510), 2_000, "it stands still");
    }

    #[test]
    fn a_window_forgets_earlier_pauses_and_an_ended_flow_has_none() {
        let gauge = Gauge::new();
        gauge.progress_at(900);
        gauge.begin_window();
        gauge.progress_at(905);
        assert_eq!(gauge.longest(&gauge.window_us, 906), 5);
        assert_eq!(gauge.longest(&gauge.ever_us, 906), 900);
        gauge.ended.store(true, Ordering::Relaxed);
        assert_eq!(gauge.longest(&gauge.window_us, 99_999), 5);
    }
}
