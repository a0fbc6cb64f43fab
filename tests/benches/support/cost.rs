//! What processes cost: CPU time and memory, as the kernel counts them in `/proc`.

use std::{collections::BTreeMap, fs};

/// Linux tells programs hundredths of a second on every architecture that we build for, whatever its own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of one process in `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    parent: u32,
    /// User and system time, that of ended and reaped children included, in ticks.
    ticks: u64,
}

/// CPU seconds, user and system, that these processes, their descendants and those of them that have ended and were
/// reaped have used so far. A process that is gone counts as nothing, so compare only while all of them run.
pub(crate) fn cpu_seconds(pids: &[u32]) -> f64 {
    let all = all();
    let family: Vec<u32> = all.keys().copied().filter(|pid| descends(&all, *pid, pids)).collect();
    family.iter().map(|pid| all[pid].ticks as f64 / TICKS_PER_SECOND).sum()
}

/// The same by the scheduler's own count, which is exact; threads that have ended are left out of it.
pub(crate) fn exact_cpu_seconds(pids: &[u32]) -> f64 {
    let all = all();
    let family = all.keys().filter(|pid| descends(&all, **pid, pids));
    let tasks = family.filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok()).flatten().flatten();
    let nanoseconds = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    nanoseconds.sum::<u64>() as f64 / 1e9
}

/// Resident memory of these processes and their descendants, in bytes.
pub(crate) fn resident_bytes(pids: &[u32]) -> u64 {
    let all = all();
    all.keys().filter(|pid| descends(&all, **pid, pids)).filter_map(|pid| resident(*pid)).sum()
}

fn all() -> BTreeMap<u32, Stat> {
    let entries = fs::read_dir("/proc").expect("every Linux has /proc");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

/// Whether `pid` is one of `ancestors` or descends from one.
fn descends(all: &BTreeMap<u32, Stat>, mut pid: u32, ancestors: &[u32]) -> bool {
    // The chain of parents is read at different moments, so a bound keeps a torn one from going round.
    for _ in 0..64 {
        if ancestors.contains(&pid) {
            return true;
        }
        match all.get(&pid) {
            Some(stat) if stat.parent != 0 => pid = stat.parent,
            _ => return false,
        }
    }
    false
}

/// The line of `/proc/PID/stat`. The program's name is in parentheses and may hold anything.
fn parse(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.get(line.rfind(')')? + 1..)?.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Stat { parent: fields.get(1)?.parse().ok()?, ticks })
}

fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
