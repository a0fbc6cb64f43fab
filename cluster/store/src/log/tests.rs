//! The log against a model, over truncations, purges and reopening; and what it refuses.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    Databases,
    testing::{MemoryDisk, expect_ok, ignore},
};

#[derive(Clone, Debug)]
enum Step {
    Append { sizes: Vec<usize> },
    Vote(Vec<u8>),
    Committed(Vec<u8>),
    Truncate { back: u64 },
    Purge { ahead: u64, marker: Vec<u8> },
    Read { from: u64, until: u64, bytes_max: usize },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let small = || prop::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        4 => prop::collection::vec(0..2_000_usize, 0..6).prop_map(|sizes| Step::Append { sizes }),
        1 => small().prop_map(Step::Vote),
        1 => small().prop_map(Step::Committed),
        1 => (0..8_u64).prop_map(|back| Step::Truncate { back }),
        1 => (0..8_u64, small()).prop_map(|(ahead, marker)| Step::Purge { ahead, marker }),
        3 => (0..30_u64, 0..30_u64, 0..6_000_usize)
            .prop_map(|(from, until, bytes_max)| Step::Read { from, until, bytes_max }),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<u64, Vec<u8>>,
    purged: Option<(u64, Vec<u8>)>,
    vote: Option<Vec<u8>>,
    committed: Option<Vec<u8>>,
}

impl Model {
    fn lowest(&self) -> u64 {
        self.purged.as_ref().map_or(0, |(index, _)| index + 1)
    }

    fn end(&self) -> u64 {
        self.entries.last_key_value().map_or(self.lowest(), |(index, _)| index + 1)
    }

    fn read(&self, from: u64, until: u64, bytes_max: usize) -> Vec<(u64, Vec<u8>)> {
        let mut total = 0;
        let mut read = Vec::new();
        for (index, bytes) in self.entries.iter().filter(|(index, _)| (from..until).contains(*index)) {
            total += bytes.len();
            if !read.is_empty() && total > bytes_max {
                break;
            }
            read.push((*index, bytes.clone()));
        }
        read
    }

    fn apply(&mut self, log: &LogStore, step: Step, salt: u8) -> Result<(), StoreError> {
        match step {
            Step::Append { sizes } => {
                let entries: Vec<(u64, Vec<u8>)> =
                    (self.end()..).zip(sizes).map(|(index, size)| (index, vec![salt; size])).collect();
                self.entries.extend(entries.clone());
                log.append(entries, expect_ok())
            }
            Step::Vote(vote) => {
                self.vote = Some(vote.clone());
                log.save_vote(vote, expect_ok())
            }
            Step::Committed(committed) => {
                self.committed = Some(committed.clone());
                log.save_committed(committed)
            }
            Step::Truncate { back } => {
                let from = self.end().saturating_sub(back);
                self.entries.split_off(&from);
                log.truncate_from(from, expect_ok())
            }
            Step::Purge { ahead, marker } => {
                let through = self.lowest() + ahead;
                self.entries = self.entries.split_off(&(through + 1));
                self.purged = Some((through, marker.clone()));
                log.purge_through(through, marker, expect_ok())
            }
            Step::Read { from, until, bytes_max } => {
                assert_eq!(log.entries(from, until, bytes_max)?, self.read(from, until, bytes_max));
                Ok(())
            }
            Step::Reopen => Ok(()),
        }
    }

    fn check(&self, log: &LogStore) -> Result<(), StoreError> {
        assert_eq!(log.entries(0, u64::MAX, usize::MAX)?, self.read(0, u64::MAX, usize::MAX));
        assert_eq!(log.last()?, self.entries.last_key_value().map(|(index, bytes)| (*index, bytes.clone())));
        assert_eq!((log.vote()?, log.purged()?), (self.vote.clone(), self.purged.clone()));
        assert_eq!(log.committed()?, self.committed);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_log_is_a_map(steps in prop::collection::vec(step(), 1..40), threaded: bool) {
        let writing = if threaded { Writing::Thread } else { Writing::Inline };
        let disk = MemoryDisk::default();
        let mut log = Databases::open(&disk, writing).unwrap().log;
        let mut model = Model::default();
        for (salt, step) in (0..).zip(steps) {
            if matches!(step, Step::Reopen) {
                drop(log);
                log = Databases::open(&disk, writing).unwrap().log;
            }
            model.apply(&log, step, salt).unwrap();
            model.check(&log).unwrap();
        }
        drop(log);
        model.check(&Databases::open(&disk, writing).unwrap().log).unwrap();
    }
}

#[test]
fn what_does_not_continue_the_log_changes_nothing() {
    let disk = MemoryDisk::default();
    let log = Databases::open(&disk, Writing::Inline).unwrap().log;
    log.append(vec![(5, vec![5]), (6, vec![6])], expect_ok()).unwrap();
    let out_of_order = |expected, found| Err(StoreError::OutOfOrder { expected, found });
    let append = |indices: &[u64]| log.append(indices.iter().map(|index| (*index, vec![0])).collect(), ignore());
    assert_eq!(append(&[8]), out_of_order(7, 8));
    assert_eq!(append(&[6]), out_of_order(7, 6));
    assert_eq!(append(&[7, 9]), out_of_order(8, 9));
    log.purge_through(9, vec![], expect_ok()).unwrap();
    assert_eq!(append(&[9]), out_of_order(10, 9));
    assert_eq!(append(&[u64::MAX]), out_of_order(10, u64::MAX));
    let large = vec![0; limits::MESSAGE_BYTES_MAX + 1];
    assert_eq!(log.append(vec![(10, large)], ignore()).unwrap_err().code(), "STORE_TOO_LARGE");
    // An older purge is none.
    log.purge_through(3, vec![1], expect_ok()).unwrap();
    assert_eq!((log.last().unwrap(), log.purged().unwrap()), (None, Some((9, vec![]))));
    append(&[12]).unwrap();
    assert_eq!(log.last().unwrap(), Some((12, vec![0])));
}
