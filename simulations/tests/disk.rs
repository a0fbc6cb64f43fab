//! The store on the simulated disk: what was acknowledged outlives power failing at every point of every commit.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use postroad_simulations::disk::{Failure, SimDisk};
use postroad_store::{Databases, Done, LogStore, NodeStore, Put, StateStore, StoreError, Table, Writing};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// The log as a model: entries, vote and purge, but not the committed index, which may lag.
#[derive(Clone, Debug, Default, PartialEq)]
struct Log {
    entries: BTreeMap<u64, Vec<u8>>,
    vote: Option<Vec<u8>>,
    purged: Option<(u64, Vec<u8>)>,
}

type Snapshot = Option<(Vec<u8>, Vec<u8>)>;
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Every state that a database went through, in the order of the calls, and the last one that was acknowledged.
#[derive(Debug)]
struct History<T> {
    states: Vec<T>,
    acknowledged: Arc<AtomicUsize>,
}

impl<T: Clone + Debug + PartialEq> History<T> {
    fn from(state: T) -> Self {
        Self { states: vec![state], acknowledged: Arc::default() }
    }

    fn newest(&self) -> &T {
        self.states.last().unwrap()
    }

    /// The next state, and the `done` of the call that leads to it.
    fn push(&mut self, state: T) -> Done {
        let number = self.states.len();
        self.states.push(state);
        let acknowledged = Arc::clone(&self.acknowledged);
        Box::new(move |result| {
            if result.is_ok() {
                // Acknowledgements come in order: each covers all before it.
                assert_eq!(acknowledged.swap(number, Ordering::SeqCst) + 1, number);
            }
        })
    }

    fn check(&self, found: &T, context: &str) {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        assert!(
            self.states[acknowledged..].contains(found),
            "{context}: {acknowledged} of {} acknowledged; found {found:?}, expected {:?} or later",
            self.states.len() - 1,
            self.states[acknowledged],
        );
    }
}

#[derive(Debug)]
struct Histories {
    log: History<Log>,
    state: History<Snapshot>,
    node: History<Rows>,
    committed: Vec<Vec<u8>>,
}

impl Histories {
    fn new() -> Self {
        Self {
            log: History::from(Log::default()),
            state: History::from(None),
            node: History::from(Rows::default()),
            committed: Vec::new(),
        }
    }

    /// Opens the disk, compares everything, and begins new histories with what was found.
    fn check(&mut self, disk: &SimDisk, context: &str) {
        let databases = Databases::open(disk, Writing::Inline).unwrap_or_else(|error| panic!("{context}: {error}"));
        let (log, state, node) =
            (read_log(&databases.log), databases.state.snapshot().unwrap(), read_node(&databases.node));
        self.log.check(&log, context);
        self.state.check(&state, context);
        self.node.check(&node, context);
        let committed = databases.log.committed().unwrap();
        assert!(committed.as_ref().is_none_or(|committed| self.committed.contains(committed)), "{context}");
        self.log = History::from(log);
        self.state = History::from(state);
        self.node = History::from(node);
    }
}

fn read_log(log: &LogStore) -> Log {
    let entries: BTreeMap<u64, Vec<u8>> = log.entries(0, u64::MAX, usize::MAX).unwrap().into_iter().collect();
    assert_eq!(log.last().unwrap(), entries.last_key_value().map(|(index, bytes)| (*index, bytes.clone())));
    Log { entries, vote: log.vote().unwrap(), purged: log.purged().unwrap() }
}

fn read_node(node: &NodeStore) -> Rows {
    node.list(Table::Promise).unwrap().into_iter().collect()
}

fn bytes(generator: &mut StdRng, len_max: usize) -> Vec<u8> {
    let len = generator.random_range(0..=len_max);
    (0..len).map(|_| generator.random()).collect()
}

/// One call of the log, drawn.
fn step_log(log: &LogStore, history: &mut History<Log>, generator: &mut StdRng) -> Result<(), StoreError> {
    let mut next = history.newest().clone();
    let lowest = next.purged.as_ref().map_or(0, |(index, _)| index + 1);
    let end = next.entries.last_key_value().map_or(lowest, |(index, _)| index + 1);
    match generator.random_range(0..10) {
        0 => {
            let vote = bytes(generator, 40);
            next.vote = Some(vote.clone());
            log.save_vote(vote, history.push(next))
        }
        1 if end > lowest => {
            let from = generator.random_range(lowest..=end);
            next.entries.split_off(&from);
            log.truncate_from(from, history.push(next))
        }
        2 if end > lowest => {
            let through = generator.random_range(lowest..end + 2);
            let marker = bytes(generator, 20);
            next.entries = next.entries.split_off(&(through + 1));
            next.purged = Some((through, marker.clone()));
            log.purge_through(through, marker, history.push(next))
        }
        _ => {
            // Mostly small entries, at times some that need pages of their own and make the file grow.
            let len_max = if generator.random_bool(0.2) { 20_000 } else { 200 };
            let count = generator.random_range(1..6);
            let entries: Vec<(u64, Vec<u8>)> =
                (end..end + count).map(|index| (index, bytes(generator, len_max))).collect();
            next.entries.extend(entries.iter().cloned());
            log.append(entries, history.push(next))
        }
    }
}

fn step_state(state: &StateStore, history: &mut History<Snapshot>, generator: &mut StdRng) -> Result<(), StoreError> {
    let (meta, data) = (bytes(generator, 30), bytes(generator, 40_000));
    let done = history.push(Some((meta.clone(), data.clone())));
    let result = state.save_snapshot(meta, data);
    done(result.clone());
    result
}

fn step_node(node: &NodeStore, history: &mut History<Rows>, generator: &mut StdRng) -> Result<(), StoreError> {
    let mut next = history.newest().clone();
    let puts: Vec<Put> = (0..generator.random_range(1..4))
        .map(|_| {
            let key = vec![generator.random_range(0..8)];
            let value = generator.random_bool(0.8).then(|| bytes(generator, 300));
            match &value {
                Some(value) => drop(next.insert(key.clone(), value.clone())),
                None => drop(next.remove(&key)),
            }
            Put { table: Table::Promise, key, value }
        })
        .collect();
    node.write_then(puts, history.push(next))
}

/// One life of a node: opens the disk and makes up to `steps` calls, until one fails.
fn live(
    disk: &SimDisk,
    writing: Writing,
    steps: usize,
    histories: &mut Histories,
    generator: &mut StdRng,
) -> Result<(), StoreError> {
    let databases = Databases::open(disk, writing)?;
    for _ in 0..steps {
        match generator.random_range(0..8) {
            0 => step_state(&databases.state, &mut histories.state, generator)?,
            1 | 2 => step_node(&databases.node, &mut histories.node, generator)?,
            3 => {
                histories.committed.push(bytes(generator, 9));
                databases.log.save_committed(histories.committed.last().unwrap().clone())?;
            }
            _ => step_log(&databases.log, &mut histories.log, generator)?,
        }
    }
    Ok(())
}

const STEPS: usize = 14;

/// A run with power failing in operation `point`, then a second life on what is left, with more failures.
fn crash_at(seed: u64, point: u64) {
    let disk = SimDisk::new();
    let mut chance = StdRng::seed_from_u64(seed ^ (point << 32));
    let mut histories = Histories::new();
    disk.stop_at(Some(point));
    let _ = live(&disk, Writing::Inline, STEPS, &mut histories, &mut StdRng::seed_from_u64(seed));
    disk.crash(&mut chance);
    // Recovery itself is cut short, too, once or twice.
    for _ in 0..chance.random_range(0..3) {
        let disk = disk.restarted();
        disk.stop_at(Some(chance.random_range(1..30)));
        drop(Databases::open(&disk, Writing::Inline));
        disk.crash(&mut chance);
    }
    histories.check(&disk.restarted(), &format!("seed {seed}, power failed in operation {point}"));
    // And what is left is a store like any other.
    disk.stop_at(Some(chance.random_range(1..200)));
    let _ = live(&disk.restarted(), Writing::Inline, STEPS, &mut histories, &mut chance);
    disk.crash(&mut chance);
    histories.check(&disk.restarted(), &format!("seed {seed}, operation {point}, second life"));
}

/// The number of operations of a run without failures.
fn operations(seed: u64) -> u64 {
    let disk = SimDisk::new();
    live(&disk, Writing::Inline, STEPS, &mut Histories::new(), &mut StdRng::seed_from_u64(seed)).unwrap();
    disk.counts().operations
}

#[test]
fn power_may_fail_in_every_operation_of_every_commit() {
    let seeds = std::env::var("POSTROAD_DISK_SEEDS").map_or(6, |text| text.parse().expect("a number of seeds"));
    for seed in 0..seeds {
        let operations = operations(seed);
        assert!(operations > 100, "the run is long enough to mean something");
        for point in 1..=operations {
            crash_at(seed, point);
        }
    }
}

#[test]
fn power_may_fail_while_a_thread_commits_groups() {
    for seed in 0..60 {
        let disk = SimDisk::new();
        let mut chance = StdRng::seed_from_u64(seed);
        let mut histories = Histories::new();
        disk.stop_at(Some(chance.random_range(1..400)));
        let _ = live(&disk, Writing::Thread, 100, &mut histories, &mut StdRng::seed_from_u64(seed));
        disk.crash(&mut chance);
        histories.check(&disk.restarted(), &format!("seed {seed}"));
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    for seed in 0..40 {
        let disk = SimDisk::new();
        let mut histories = Histories::new();
        disk.stop_at(Some(20 + 7 * seed));
        let _ = live(&disk, Writing::Inline, STEPS, &mut histories, &mut StdRng::seed_from_u64(seed));
        disk.kill();
        histories.check(&disk.restarted(), &format!("seed {seed}"));
    }
}

#[test]
fn a_failing_disk_closes_the_store_and_acknowledges_nothing_more() {
    for failure in [Failure::Full, Failure::Writes, Failure::Syncs] {
        for seed in 0..20 {
            let disk = SimDisk::new();
            let mut generator = StdRng::seed_from_u64(seed);
            let mut histories = Histories::new();
            let databases = Databases::open(&disk, Writing::Inline).unwrap();
            let log = &databases.log;
            for _ in 0..seed {
                step_log(log, &mut histories.log, &mut generator).unwrap();
            }
            disk.fail(Some(failure));
            // Large enough to make the file grow, so that a full disk shows.
            let end = log.last().unwrap().map_or(1_000, |(index, _)| index + 1);
            let mut next = histories.log.newest().clone();
            next.entries.insert(end, vec![7; 1 << 20]);
            let error = log.append(vec![(end, vec![7; 1 << 20])], histories.log.push(next)).unwrap_err();
            assert_eq!(error.code(), "STORE_DISK_FAILED", "{failure:?}: {error}");
            assert!(error.to_string().starts_with("log.redb: tried to "), "{error}");
            // The disk is well again, but nobody knows what is on it: nothing is tried before the next start.
            disk.fail(None);
            let writes = disk.counts().operations;
            let refused = |result: Result<(), StoreError>| assert_eq!(result.unwrap_err().code(), "STORE_FENCED");
            refused(log.append(vec![(end, vec![8])], Box::new(|result| assert!(result.is_err()))));
            refused(log.save_vote(vec![8], Box::new(|result| assert!(result.is_err()))));
            refused(log.truncate_from(0, Box::new(|result| assert!(result.is_err()))));
            refused(log.purge_through(end, vec![], Box::new(|result| assert!(result.is_err()))));
            refused(log.save_committed(vec![8]));
            refused(log.entries(0, 9, 9).map(drop));
            refused(log.last().map(drop));
            refused(log.vote().map(drop));
            assert_eq!(disk.counts().operations, writes);
            // The other databases have failures of their own.
            databases.node.write(vec![]).unwrap();
            drop(databases);
            disk.crash(&mut generator);
            histories.check(&disk.restarted(), &format!("{failure:?}, seed {seed}"));
        }
    }
}

#[test]
fn reads_that_fail_close_the_store() {
    let disk = SimDisk::new();
    let databases = Databases::open(&disk, Writing::Inline).unwrap();
    databases.node.write(vec![Put { table: Table::Setting, key: vec![1], value: Some(vec![2]) }]).unwrap();
    drop(databases);
    let databases = Databases::open(&disk, Writing::Inline).unwrap();
    disk.crash(&mut StdRng::seed_from_u64(1));
    // An incarnation that crashed reads and writes nothing of the next one's.
    let error = databases.node.write(vec![Put { table: Table::Setting, key: vec![1], value: None }]).unwrap_err();
    assert!(error.to_string().contains("this incarnation of the node has crashed"), "{error}");
    let next = Databases::open(&disk.restarted(), Writing::Inline).unwrap();
    assert_eq!(next.node.get(Table::Setting, &[1]).unwrap(), Some(vec![2]));
    disk.fail(Some(Failure::Reads));
    let error = Databases::open(&disk.restarted(), Writing::Inline).unwrap_err();
    assert_eq!(error.code(), "STORE_DISK_FAILED", "{error}");
}

#[test]
fn one_seed_writes_the_same_bytes_in_the_same_order() {
    let run = |seed| {
        std::thread::spawn(move || {
            let disk = SimDisk::new();
            let mut generator = StdRng::seed_from_u64(seed);
            for _ in 0..3 {
                live(&disk.restarted(), Writing::Inline, 40, &mut Histories::new(), &mut generator)?;
                disk.replace();
            }
            Ok::<_, StoreError>(disk.counts())
        })
        .join()
        .unwrap()
        .unwrap()
    };
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1).digest, run(2).digest);
}

/// A disk whose three files hold something, and what that is.
fn filled() -> (SimDisk, Log, Snapshot, Rows) {
    let disk = SimDisk::new();
    let mut histories = Histories::new();
    live(&disk, Writing::Inline, 60, &mut histories, &mut StdRng::seed_from_u64(7)).unwrap();
    let newest = (histories.log.newest().clone(), histories.state.newest().clone(), histories.node.newest().clone());
    assert!(!newest.0.entries.is_empty() && newest.1.is_some() && !newest.2.is_empty());
    (disk, newest.0, newest.1, newest.2)
}

#[test]
fn damage_is_told_and_never_read_as_an_older_state() {
    let (disk, log, state, node) = filled();
    let mut chance = StdRng::seed_from_u64(3);
    let mut told = 0;
    for round in 0..600 {
        let name = ["log.redb", "state.redb", "node.redb"][round % 3];
        let whole = disk.content(name).unwrap();
        let mut bytes = whole.clone();
        let at = chance.random_range(0..bytes.len());
        match round / 3 % 5 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << chance.random_range(0..8),
            2 => {
                let end = (at + chance.random_range(1..9_000)).min(bytes.len());
                bytes[at..end].fill(0);
            }
            3 => {
                let end = (at + chance.random_range(1..9_000)).min(bytes.len());
                bytes[at..end].iter_mut().for_each(|byte| *byte = chance.random());
            }
            // The headers of ours and of redb.
            _ => {
                let at = chance.random_range(0..32) + 4_096 * (at % 2);
                bytes[at] = chance.random();
            }
        }
        disk.overwrite(name, bytes.clone());
        match Databases::open(&disk.restarted(), Writing::Inline) {
            Err(error) => {
                assert!(error.to_string().starts_with(name), "{error}");
                told += 1;
            }
            // The damage lies where nothing is kept.
            Ok(databases) => {
                let found = (read_log(&databases.log), databases.state.snapshot().unwrap(), read_node(&databases.node));
                assert!(found == (log.clone(), state.clone(), node.clone()), "round {round} in {name}");
            }
        }
        // The other files may have been written by the open; only their content matters.
        disk.overwrite(name, whole);
    }
    assert!(told > 250, "{told} told");
}

#[test]
fn zeroed_foreign_swapped_and_lost_files_are_named() {
    let (disk, ..) = filled();
    let code =
        |disk: &SimDisk| Databases::open(&disk.restarted(), Writing::Inline).map(drop).map_err(|error| error.code());
    for name in ["log.redb", "state.redb", "node.redb"] {
        let whole = disk.content(name).unwrap();
        let garbage: Vec<u8> = (0..whole.len()).map(|place| (place * 31 % 251) as u8).collect();
        let other = disk.content(if name == "log.redb" { "state.redb" } else { "log.redb" }).unwrap();
        for (damaged, expected) in [
            (vec![0; whole.len()], "STORE_CORRUPT"),
            (garbage, "STORE_FOREIGN_FILE"),
            (b"SQLite format 3\0".repeat(99), "STORE_FOREIGN_FILE"),
            (whole[4_096..].to_vec(), "STORE_FOREIGN_FILE"),
            (other, "STORE_FOREIGN_FILE"),
            (whole[..4_096].to_vec(), "STORE_CORRUPT"),
            (whole[..whole.len() - 1].to_vec(), "STORE_CORRUPT"),
            (b"x".to_vec(), "STORE_FOREIGN_FILE"),
        ] {
            disk.overwrite(name, damaged.clone());
            assert_eq!(code(&disk), Err(expected), "{name}");
            assert_eq!(disk.content(name).unwrap(), damaged, "{name} was changed");
        }
        disk.overwrite(name, whole);
    }
    for name in ["log.redb", "state.redb"] {
        let whole = disk.content(name).unwrap();
        for empty in [None, Some(vec![])] {
            disk.remove(name);
            if let Some(bytes) = empty {
                disk.overwrite(name, bytes);
            }
            assert_eq!(code(&disk), Err("STORE_FILE_MISSING"));
            assert_eq!(code(&disk), Err("STORE_FILE_MISSING"), "and is not made by the attempt");
        }
        disk.overwrite(name, whole);
    }
    assert_eq!(code(&disk), Ok(()));
}

#[test]
fn a_commit_costs_two_syncs() {
    let disk = SimDisk::new();
    let databases = Databases::open(&disk, Writing::Inline).unwrap();
    for index in 0..20 {
        let before = disk.counts().syncs;
        databases.log.append(vec![(index, vec![1; 100])], Box::new(|result| result.unwrap())).unwrap();
        assert_eq!(disk.counts().syncs - before, 2);
    }
}
