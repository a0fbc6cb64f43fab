//! How long flows stood still while their circuit changed its relay: a histogram for each cause.

use std::collections::BTreeMap;

use crate::{circuit::MoveReason, limits::STALL_BOUNDS_MS, time::Span};

/// Stalls by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stalls(BTreeMap<MoveReason, Histogram>);

/// Stalls of one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many were within each bound and beyond the one before.
    counts: [u64; STALL_BOUNDS_MS.len()],
    /// How many were beyond every bound.
    beyond: u64,
    /// All of them together.
    sum: Span,
}

impl Stalls {
    /// One more stall.
    pub fn note(&mut self, cause: MoveReason, span: Span) {
        let histogram = self.0.entry(cause).or_default();
        let bounds = STALL_BOUNDS_MS.iter().position(|bound| span <= Span::from_millis(*bound));
        match bounds.and_then(|at| histogram.counts.get_mut(at)) {
            Some(count) => *count += 1,
            None => histogram.beyond += 1,
        }
        histogram.sum = histogram.sum.saturating_add(span);
    }

    /// The causes of which there were some, in order.
    pub fn causes(&self) -> impl Iterator<Item = (MoveReason, &Histogram)> {
        self.0.iter().map(|(cause, histogram)| (*cause, histogram))
    }
}

impl Histogram {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.beyond
    }

    /// How long all of them were together.
    #[must_use]
    pub const fn sum(&self) -> Span {
        self.sum
    }

    /// How many were within each bound, in milliseconds.
    #[must_use]
    pub fn within_ms(&self) -> BTreeMap<u64, u64> {
        let counts = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        STALL_BOUNDS_MS.iter().copied().zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RP-55
    #[test]
    fn stalls_are_counted_within_bounds_by_cause() {
        let mut stalls = Stalls::default();
        for ms in [10, 25, 26, 75, 140, 61_000] {
            stalls.note(MoveReason::Silence, Span::from_millis(ms));
        }
        stalls.note(MoveReason::SessionLost, Span::from_millis(1));
        let causes: Vec<_> = stalls.causes().map(|(cause, histogram)| (cause.word(), histogram.count())).collect();
        assert_eq!(causes, [("silence", 6), ("session-lost", 1)]);
        let (_, silences) = stalls.causes().next().unwrap();
        assert_eq!(silences.sum(), Span::from_millis(61_276));
        let within = silences.within_ms();
        let at = |ms: u64| within[&ms];
        assert_eq!((at(25), at(50), at(75), at(100), at(150), at(60_000)), (2, 3, 4, 4, 5, 5));
        assert!(within.values().is_sorted() && STALL_BOUNDS_MS.is_sorted());
    }
}
