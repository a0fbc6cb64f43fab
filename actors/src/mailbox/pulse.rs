//! What an actor did in each of the last sixty seconds, counted where its turns end: nobody has to sample it.

use postroad_cluster::time::{Moment, Span};

/// How many seconds are kept.
pub(crate) const SECONDS: usize = 60;

/// The last [`SECONDS`] seconds of one actor: turns, and the time that they took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulse {
    /// The newest second that was counted in, since the host's boot.
    newest: u64,
    turns: [u32; SECONDS],
    busy_us: [u32; SECONDS],
}

impl Default for Pulse {
    fn default() -> Self {
        Self { newest: 0, turns: [0; SECONDS], busy_us: [0; SECONDS] }
    }
}

/// A second of the node's clock.
const fn second(at: Moment) -> u64 {
    at.0 / 1_000_000_000
}

impl Pulse {
    /// A turn has ended at `now` after `took`, which counts for the second of its end.
    pub(crate) fn add(&mut self, now: Moment, took: Span) {
        let now = second(now);
        if now > self.newest {
            // What lies between was quiet; after a minute of it, everything did.
            for gone in (self.newest + 1).max((now + 1).saturating_sub(SECONDS as u64))..=now {
                let place = (gone % SECONDS as u64) as usize;
                (self.turns[place], self.busy_us[place]) = (0, 0);
            }
            self.newest = now;
        }
        let place = (self.newest % SECONDS as u64) as usize;
        self.turns[place] = self.turns[place].saturating_add(1);
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        self.busy_us[place] = self.busy_us[place].saturating_add(took);
    }

    /// The turns of each of the last `seconds` whole seconds before `now`, oldest first.
    pub(crate) fn turns(&self, now: Moment, seconds: usize) -> Vec<u32> {
        self.read(&self.turns, now, seconds).collect()
    }

    /// Adds the turns of each of the last whole seconds before `now`, oldest first, to `sums`.
    pub(crate) fn add_to(&self, now: Moment, sums: &mut [u32]) {
        let seconds = sums.len();
        for (sum, turns) in sums.iter_mut().zip(self.read(&self.turns, now, seconds)) {
            *sum = sum.saturating_add(turns);
        }
    }

    /// Turns a second, and the share of the time that they took, over the last `seconds` whole seconds.
    pub(crate) fn load(&self, now: Moment, seconds: usize) -> (f64, f64) {
        let sum = |of| self.read(of, now, seconds).map(u64::from).sum::<u64>() as f64;
        let span = seconds.clamp(1, SECONDS - 1) as f64;
        (sum(&self.turns) / span, (sum(&self.busy_us) / (span * 1e6)).min(1.0))
    }

    fn read<'a>(&'a self, of: &'a [u32; SECONDS], now: Moment, seconds: usize) -> impl Iterator<Item = u32> + 'a {
        // The present second is not over, so the one before it is the newest that compares.
        let end = second(now);
        let first = end.saturating_sub(seconds.min(SECONDS - 1) as u64);
        (first..end).map(move |at| {
            let kept = at <= self.newest && at + SECONDS as u64 > self.newest;
            if kept { of[(at % SECONDS as u64) as usize] } else { 0 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    #[test]
    fn seconds_are_counted_and_quiet_ones_are_zero() {
        let mut pulse = Pulse::default();
        pulse.add(at(100), Span::from_millis(250));
        pulse.add(at(100), Span::from_millis(250));
        pulse.add(at(103), Span::from_secs(9));
        assert_eq!(pulse.turns(at(104), 5), [0, 2, 0, 0, 1]);
        assert_eq!(pulse.turns(at(101), 1), [2]);
        let mut sums = [1, u32::MAX, 1];
        pulse.add_to(at(103), &mut sums);
        assert_eq!(sums, [3, u32::MAX, 1]);
        let (rate, busy) = pulse.load(at(102), 2);
        assert!((rate - 1.0).abs() < 1e-9 && (busy - 0.25).abs() < 1e-9, "{rate} {busy}");
        assert!((pulse.load(at(104), 1).1 - 1.0).abs() < 1e-9, "more than all of the time is all of it");
    }

    #[test]
    fn what_is_older_than_a_minute_is_gone() {
        let mut pulse = Pulse::default();
        for second in 0..200 {
            pulse.add(at(second), Span::ZERO);
        }
        assert_eq!(pulse.turns(at(200), 60), [1; 59]);
        pulse.add(at(1_000), Span::ZERO);
        assert_eq!(pulse.turns(at(1_001), 59).iter().sum::<u32>(), 1);
        assert_eq!(pulse.turns(at(5_000), 59), [0; 59]);
    }
}
