//! A clock and a source of chance for tests that run on tokio's paused time: equal seeds give equal runs.

use std::sync::Mutex;

use postroad_cluster::time::{Clock, Entropy, Moment, Span, Timer, WallTime};
use tokio::time::{Instant, sleep_until};

use crate::directory::lock;

/// A clock that follows tokio's (paused) time from 1 s after the host's boot.
#[derive(Debug)]
pub struct TestClock {
    start: Instant,
}

/// Where the test clock starts: 1 s after boot.
const BOOTED: Moment = Moment(1_000_000_000);
/// The wall time at its start.
const WALL: WallTime = WallTime(1_800_000_000_000);

impl Default for TestClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl TestClock {
    fn elapsed(&self) -> Span {
        self.start.elapsed()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        BOOTED.after(self.elapsed())
    }

    fn wall(&self) -> WallTime {
        WALL.after(self.elapsed())
    }

    fn sleep_until(&self, deadline: Moment) -> Timer {
        Box::pin(sleep_until(self.start + deadline.since(BOOTED)))
    }
}

/// Chance from a seed.
#[derive(Debug)]
pub struct TestEntropy(Mutex<u64>);

impl TestEntropy {
    /// The chance of that seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Entropy for TestEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = lock(&self.0);
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64 (Steele, Lea, Flood 2014).
            *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut bits = *state;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            bits ^= bits >> 31;
            chunk.copy_from_slice(&bits.to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
pub(crate) mod probe;
