//! Whether the machine was ours while a step was measured, and the step again where it was not.

use std::{fs, process};

use super::cost;

/// A step is repeated when the hypervisor took more than this share of the machine's time.
const STEAL_MAX: f64 = 0.05;

/// How often a step is tried before its last figures are taken with a remark.
const ATTEMPTS: u32 = 4;

/// What was measured, and how quiet the machine was meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steady<T> {
    /// The figures.
    pub(crate) value: T,
    /// The share of the machine's time that the hypervisor gave to others.
    pub(crate) steal: f64,
    /// The share of the machine's time that other processes of this machine used.
    pub(crate) others: f64,
}

/// CPU time of the whole machine in `/proc/stat`, in hundredths of a second.
#[derive(Clone, Copy)]
struct Machine {
    total: u64,
    idle: u64,
    steal: u64,
    ours_seconds: f64,
}

impl Machine {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("every Linux has /proc/stat");
        let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
        // Guests' time is in users' already.
        let fields: Vec<u64> = fields.take(8).map(|field| field.parse().unwrap_or(0)).collect();
        let at = |place: usize| fields.get(place).copied().unwrap_or(0);
        let total = fields.iter().sum();
        Self { total, idle: at(3) + at(4), steal: at(7), ours_seconds: cost::cpu_seconds(&[process::id()]) }
    }
}

/// Measures a step, and again while the hypervisor took too much of the machine.
pub(crate) fn steady<T>(what: &str, mut step: impl FnMut() -> Result<T, String>) -> Result<Steady<T>, String> {
    let mut attempt = 1;
    loop {
        let before = Machine::now();
        let value = step().map_err(|reason| format!("{what}: {reason}"))?;
        let after = Machine::now();
        let total = after.total.saturating_sub(before.total).max(1) as f64;
        let share = |ticks: u64| ticks as f64 / total;
        let steal = share(after.steal.saturating_sub(before.steal));
        let busy = total - (after.idle.saturating_sub(before.idle) + after.steal.saturating_sub(before.steal)) as f64;
        let others = ((busy - (after.ours_seconds - before.ours_seconds) * 100.0) / total).max(0.0);
        if steal <= STEAL_MAX || attempt == ATTEMPTS {
            if steal > STEAL_MAX {
                eprintln!("{what}: {:.0} % of the machine was stolen in every attempt; doubt it", steal * 100.0);
            }
            return Ok(Steady { value, steal, others });
        }
        attempt += 1;
    }
}
