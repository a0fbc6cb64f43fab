//! Moments and spans, and the two ports through which time and chance enter: nothing in this crate reads a clock.

use core::{fmt, future::Future, pin::Pin};

use serde::{Deserialize, Serialize};

pub use core::time::Duration as Span;

/// A moment on one node's own clock, in nanoseconds since that host booted. The clock runs while the host is
/// suspended and never goes back; moments of two nodes must not be compared.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Moment(pub u64);

impl Moment {
    /// The boot of the host.
    pub const ZERO: Self = Self(0);
    /// Later than every moment that a clock returns.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `span` after this one; stops at [`Moment::NEVER`].
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        let nanos = span.as_nanos();
        if nanos > u64::MAX as u128 { Self::NEVER } else { Self(self.0.saturating_add(nanos as u64)) }
    }

    /// The span from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A wall-clock time in milliseconds since 1970-01-01 00:00 UTC. Only expiries and people use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WallTime(pub u64);

impl WallTime {
    /// The wall time `span` after this one.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.as_millis() as u64))
    }

    /// The wall time `span` before this one, at the earliest 1970.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.as_millis() as u64))
    }

    /// The span from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A timer of the clock port.
pub type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clock port: the only source of time. The real one reads `CLOCK_BOOTTIME`, the simulated one has an offset, a
/// rate and suspends of its own.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The present moment.
    fn now(&self) -> Moment;
    /// The present wall time; it may jump either way.
    fn wall(&self) -> WallTime;
    /// Completes at `deadline`, at once if that has passed.
    fn sleep_until(&self, deadline: Moment) -> Timer;
}

/// The entropy port: the only source of chance. The real one asks the system, the simulated one a seeded generator.
pub trait Entropy: Send + Sync + fmt::Debug + 'static {
    /// Fills `bytes` with unpredictable bytes.
    fn fill(&self, bytes: &mut [u8]);

    /// 64 unpredictable bits.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_at_both_ends() {
        assert_eq!(Moment::NEVER.after(Span::from_secs(1)), Moment::NEVER);
        assert_eq!(Moment(1).after(Span::MAX), Moment::NEVER);
        assert_eq!(Moment(1).since(Moment(2)), Span::ZERO);
        assert_eq!(WallTime(5).before(Span::from_secs(1)), WallTime(0));
    }
}
