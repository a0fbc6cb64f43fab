//! The simulated clock and entropy of one node: an offset, a rate and pauses of its own over the world's paused time.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use postroad_cluster::time::{Clock, Entropy, Moment, Timer, WallTime};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// The wall time at which every world begins: 2026-01-01 00:00 UTC, in milliseconds since 1970.
pub const WORLD_BEGINS: WallTime = WallTime(1_767_225_600_000);

/// How a node's clock differs from the world's.
#[derive(Clone, Copy, Debug)]
pub struct Skew {
    /// What the boot clock showed when the world began, in nanoseconds.
    pub boot_offset_ns: u64,
    /// How far the wall clock is off, in milliseconds.
    pub wall_offset_ms: i64,
    /// How much faster than the world it runs, in parts per million.
    pub rate_ppm: i64,
}

#[derive(Debug)]
struct Shared {
    world: Instant,
    skew: Skew,
    paused_until: Mutex<Option<Instant>>,
    suspended_ns: AtomicU64,
}

/// One node's clock; clones show the same time.
#[derive(Clone, Debug)]
pub struct SimClock(Arc<Shared>);

impl SimClock {
    /// A clock over a world that began at `world`.
    #[must_use]
    pub fn new(world: Instant, skew: Skew) -> Self {
        Self(Arc::new(Shared { world, skew, paused_until: Mutex::new(None), suspended_ns: AtomicU64::new(0) }))
    }

    /// The node stands still until then: its timers come late, as after a SIGSTOP.
    pub fn pause_until(&self, end: Instant) {
        *self.0.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// The node wakes from a suspend of this length, which took the world no time: its clock jumps. Timers that are set
    /// keep their instant of the world, as those of a socket's kernel and of QUIC do; the next ones go by the new time.
    pub fn suspend(&self, length: Duration) {
        self.0.suspended_ns.fetch_add(length.as_nanos() as u64, Ordering::Relaxed);
    }

    fn paused_until(&self) -> Option<Instant> {
        *self.0.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds on this clock for nanoseconds of the world.
    fn scale(&self, world_ns: u128) -> u128 {
        let rate = 1_000_000 + i128::from(self.0.skew.rate_ppm);
        (world_ns.cast_signed() * rate / 1_000_000).cast_unsigned()
    }

    fn elapsed_ns(&self) -> u128 {
        let suspended_ns = u128::from(self.0.suspended_ns.load(Ordering::Relaxed));
        self.scale(Instant::now().duration_since(self.0.world).as_nanos()) + suspended_ns
    }

    /// The first instant of the world at which this clock shows `moment`.
    fn world_instant(&self, moment: Moment) -> Instant {
        let suspended_ns = self.0.suspended_ns.load(Ordering::Relaxed);
        let here = u128::from(moment.0.saturating_sub(self.0.skew.boot_offset_ns).saturating_sub(suspended_ns));
        let rate = (1_000_000 + self.0.skew.rate_ppm).unsigned_abs();
        let world_ns = (here * 1_000_000).div_ceil(u128::from(rate));
        // Tokio's timers end within years; a moment that never comes is as good as one that far away.
        let far = Duration::from_hours(24 * 365);
        self.0.world + Duration::from_nanos(u64::try_from(world_ns).unwrap_or(u64::MAX)).min(far)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        Moment(self.0.skew.boot_offset_ns.saturating_add(self.elapsed_ns() as u64))
    }

    fn wall(&self) -> WallTime {
        let elapsed_ms = (self.elapsed_ns() / 1_000_000) as u64;
        WallTime((WORLD_BEGINS.0 + elapsed_ms).saturating_add_signed(self.0.skew.wall_offset_ms))
    }

    fn sleep_until(&self, deadline: Moment) -> Timer {
        let clock = self.clone();
        Box::pin(async move {
            while clock.now() < deadline {
                tokio::time::sleep_until(clock.world_instant(deadline)).await;
            }
            while let Some(end) = clock.paused_until().filter(|end| *end > Instant::now()) {
                tokio::time::sleep_until(end).await;
            }
        })
    }
}

/// One node's entropy: a seeded generator.
pub struct SimEntropy(Mutex<StdRng>);

impl SimEntropy {
    /// The generator of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl fmt::Debug for SimEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimEntropy")
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_ends_no_earlier_than_its_moment_on_a_fast_and_on_a_slow_clock() {
        let world = Instant::now();
        for rate_ppm in [-300, 0, 300] {
            let clock =
                SimClock::new(world, Skew { boot_offset_ns: 5_000_000_000, wall_offset_ms: -180_000, rate_ppm });
            let (moment, wall) = (clock.now(), clock.wall());
            clock.sleep_until(moment.after(Duration::from_secs(100))).await;
            let spent = clock.now().since(moment);
            assert!(spent >= Duration::from_secs(100) && spent < Duration::from_millis(100_010), "{spent:?}");
            assert!(clock.wall().since(wall) >= Duration::from_secs(99));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_node_wakes_later_by_its_own_clock() {
        let clock = SimClock::new(Instant::now(), Skew { boot_offset_ns: 7, wall_offset_ms: 0, rate_ppm: 100 });
        let (moment, wall, world) = (clock.now(), clock.wall(), Instant::now());
        clock.suspend(Duration::from_hours(70));
        assert!(clock.now().since(moment) >= Duration::from_hours(70));
        assert!(clock.wall().since(wall) >= Duration::from_hours(70));
        clock.sleep_until(moment.after(Duration::from_hours(70) + Duration::from_secs(10))).await;
        let spent = world.elapsed();
        assert!(spent > Duration::from_millis(9_990) && spent < Duration::from_millis(10_010), "{spent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_node_gets_its_timers_when_it_goes_on() {
        let clock = SimClock::new(Instant::now(), Skew { boot_offset_ns: 0, wall_offset_ms: 0, rate_ppm: 0 });
        clock.pause_until(Instant::now() + Duration::from_secs(5));
        clock.sleep_until(Moment(1_000_000_000)).await;
        assert!(clock.now() >= Moment(5_000_000_000));
    }
}
