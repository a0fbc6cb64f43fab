//! Groups, order, bounds and failures of the queue, with a thread and a disk that is held up.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use postroad_cluster::limits;

use super::*;
use crate::{
    Databases, Put, Table,
    testing::{MemoryDisk, expect_ok},
};

fn put(key: u8, len: usize) -> Vec<Put> {
    vec![Put { table: Table::Promise, key: vec![key], value: Some(vec![key; len]) }]
}

#[test]
fn what_queues_during_a_sync_is_readable_at_once_and_becomes_one_commit() {
    let disk = MemoryDisk::default();
    let databases = Databases::open(&disk, Writing::Thread).unwrap();
    let log = &databases.log;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let append = |index: u64| {
        let heard = Arc::clone(&heard);
        let done: Done = Box::new(move |result| lock(&heard).push((index, result)));
        log.append(vec![(index, vec![index as u8])], done).unwrap();
    };
    let before = disk.syncs();
    disk.shut(true);
    (0..200).for_each(append);
    assert_eq!(log.entries(0, 200, usize::MAX).unwrap().len(), 200);
    assert_eq!(log.last().unwrap(), Some((199, vec![199])));
    assert!(lock(&heard).is_empty(), "nothing is acknowledged before it is synced");
    disk.shut(false);
    drop(databases);
    let heard = lock(&heard);
    assert_eq!(*heard, (0..200).map(|index| (index, Ok(()))).collect::<Vec<_>>());
    // At most what the thread took first and all the rest, two syncs each, and those of closing three databases.
    assert!(disk.syncs() - before <= 4 + 12, "{} syncs for 200 entries", disk.syncs() - before);
}

#[test]
fn a_full_queue_refuses_the_nodes_promises_and_holds_up_the_log() {
    let disk = MemoryDisk::default();
    let databases = Databases::open(&disk, Writing::Thread).unwrap();
    disk.shut(true);
    // Twice the bound is more than the queue and the commit under way hold together.
    let large = limits::STORE_VALUE_BYTES_MAX;
    let mut refused = 0;
    for key in 0..(2 * limits::STORE_QUEUE_BYTES / large + 4) as u8 {
        match databases.node.write_then(put(key, large), Box::new(drop)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.code(), "STORE_BUSY");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    let appended = Arc::new(AtomicUsize::new(0));
    let log = databases.log.clone();
    let counter = Arc::clone(&appended);
    let total = 2 * limits::STORE_QUEUE_BYTES / (4 << 20) + 4;
    let appending = thread::spawn(move || {
        for index in 0..total as u64 {
            log.append(vec![(index, vec![1; 4 << 20])], expect_ok()).unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    disk.shut(false);
    appending.join().unwrap();
    assert_eq!(appended.load(Ordering::SeqCst), total, "it waited and lost nothing");
    assert_eq!(databases.log.last().unwrap().map(|(index, _)| index), Some(total as u64 - 1));
    databases.node.write(put(1, 3)).unwrap();
    assert_eq!(databases.node.get(Table::Promise, &[1]).unwrap(), Some(vec![1; 3]));
}

#[test]
fn a_failed_sync_tells_everybody_who_waited() {
    let disk = MemoryDisk::default();
    let databases = Databases::open(&disk, Writing::Thread).unwrap();
    disk.fail_syncs(true);
    disk.shut(true);
    let heard = Arc::new(Mutex::new(Vec::new()));
    for index in 0..50 {
        let heard = Arc::clone(&heard);
        let done: Done = Box::new(move |result| lock(&heard).push(result.map_err(|error| error.code())));
        databases.log.append(vec![(index, vec![])], done).unwrap();
    }
    disk.shut(false);
    assert_eq!(databases.node.write(put(1, 1)).unwrap_err().code(), "STORE_DISK_FAILED");
    assert_eq!(databases.state.save_snapshot(vec![], vec![1]).unwrap_err().code(), "STORE_DISK_FAILED");
    assert_eq!(databases.state.snapshot().unwrap_err().code(), "STORE_FENCED");
    drop(databases);
    let heard = lock(&heard);
    assert_eq!(heard.len(), 50);
    assert!(heard.iter().all(|result| matches!(result, Err("STORE_DISK_FAILED" | "STORE_FENCED"))), "{heard:?}");
}

#[test]
fn callbacks_may_panic_call_back_and_drop_the_store() {
    for writing in [Writing::Thread, Writing::Inline] {
        let disk = MemoryDisk::default();
        let log = Databases::open(&disk, writing).unwrap().log;
        log.append(vec![(0, vec![0])], Box::new(|_| panic!("a test's panic"))).unwrap();
        let again = log.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        let first = sender.clone();
        log.append(
            vec![(1, vec![1])],
            Box::new(move |result| {
                first.send(result).unwrap();
                again.append(vec![(2, vec![2])], Box::new(move |result| sender.send(result).unwrap())).unwrap();
            }),
        )
        .unwrap();
        drop(log);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [Ok(()), Ok(())], "{writing:?}");
        // The thread that was the last to hold the store has closed it by the time its file opens in order.
        let copy = disk.copy();
        assert_eq!(Databases::open(&copy, Writing::Inline).unwrap().log.last().unwrap(), Some((2, vec![2])));
    }
}

#[test]
fn a_snapshot_of_many_chunks_replaces_the_one_before() {
    let disk = MemoryDisk::default();
    let databases = Databases::open(&disk, Writing::Inline).unwrap();
    assert_eq!(databases.state.snapshot().unwrap(), None);
    for len in [5 << 20, 0, limits::STORE_CHUNK_BYTES, limits::STORE_CHUNK_BYTES + 1] {
        let data: Vec<u8> = (0..len).map(|place| (place % 251) as u8).collect();
        databases.state.save_snapshot(vec![1, len as u8], data.clone()).unwrap();
        assert_eq!(databases.state.snapshot().unwrap(), Some((vec![1, len as u8], data)));
    }
    let error = databases.state.save_snapshot(vec![], vec![0; limits::STORE_SNAPSHOT_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error.code(), "STORE_TOO_LARGE");
}

#[test]
fn a_file_that_says_it_is_made_but_has_no_tables_is_told() {
    let disk = MemoryDisk::default();
    drop(Databases::open(&disk, Writing::Inline).unwrap());
    let mut bytes = disk.bytes("node.redb");
    bytes.truncate(crate::backend::HEADER_BYTES as usize);
    disk.set_bytes("node.redb", bytes);
    let error = Databases::open(&disk, Writing::Inline).unwrap_err();
    assert_eq!(error.to_string().split(';').next(), Some("node.redb: damaged: cut off after 4096 bytes"));
}
