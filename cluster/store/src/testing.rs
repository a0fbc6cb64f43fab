//! A disk in memory for this crate's tests; the simulated one, which crashes, is above this crate.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Condvar, Mutex},
};

use crate::{
    disk::{Disk, DiskFile},
    queue::{Done, lock},
};

/// Files in memory, whose syncs can be held up or made to fail. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_shut: bool,
    fails: bool,
    syncs: u64,
}

#[derive(Debug, Default)]
struct MemoryFile {
    bytes: Mutex<Vec<u8>>,
    gate: Arc<Gate>,
}

impl MemoryDisk {
    /// Syncs wait until the gate opens again.
    pub(crate) fn shut(&self, is_shut: bool) {
        lock(&self.gate.state).is_shut = is_shut;
        self.gate.changed.notify_all();
    }

    pub(crate) fn fail_syncs(&self, fails: bool) {
        lock(&self.gate.state).fails = fails;
    }

    pub(crate) fn syncs(&self) -> u64 {
        lock(&self.gate.state).syncs
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        lock(&lock(&self.files)[name].bytes).clone()
    }

    pub(crate) fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let file = MemoryFile { bytes: Mutex::new(bytes), gate: Arc::clone(&self.gate) };
        lock(&self.files).insert(name.to_owned(), Arc::new(file));
    }

    /// A disk with the same files, apart from this one.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::default();
        for (name, file) in &*lock(&self.files) {
            copy.set_bytes(name, lock(&file.bytes).clone());
        }
        copy
    }
}

impl Disk for MemoryDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = lock(&self.files);
        let new = || Arc::new(MemoryFile { bytes: Mutex::default(), gate: Arc::clone(&self.gate) });
        Ok(Arc::clone(files.entry(name.to_owned()).or_insert_with(new)) as Arc<dyn DiskFile>)
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.bytes).len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = lock(&self.bytes);
        let from = offset as usize;
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = lock(&self.bytes);
        let (from, end) = (offset as usize, offset as usize + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[from..end].copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        lock(&self.bytes).resize(len as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let state = lock(&self.gate.state);
        let mut state = self.gate.changed.wait_while(state, |state| state.is_shut).unwrap();
        state.syncs += 1;
        if state.fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// A `done` for calls whose error is asserted by their result.
pub(crate) fn ignore() -> Done {
    Box::new(drop)
}

/// A `done` that must hear `Ok`.
pub(crate) fn expect_ok() -> Done {
    Box::new(|result| result.unwrap())
}
