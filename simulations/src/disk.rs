//! The simulated disk: files in memory that lose and tear, at a crash, whatever was not synced.

use std::{
    collections::BTreeMap,
    fmt, io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use postroad_store::{Disk, DiskFile};
use rand::{Rng, RngExt};

/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// How the disk fails until it is told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Whatever would make a file longer fails with `StorageFull`.
    Full,
    /// Every write fails with an input/output error.
    Writes,
    /// Every sync fails with an input/output error. As on Linux, what it should have written is not written by a
    /// later sync either, though that one succeeds.
    Syncs,
    /// Every read fails with an input/output error.
    Reads,
}

/// What happened to a disk since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes, changes of length and syncs: the points at which power can fail.
    pub operations: u64,
    /// Syncs alone.
    pub syncs: u64,
    /// Bytes written.
    pub bytes: u64,
    /// A hash over all operations and their content: the same in two runs of one seed.
    pub digest: u64,
}

/// A change that is not yet synced.
#[derive(Clone, Debug)]
enum Change {
    Length(u64),
    Write {
        offset: u64,
        data: Vec<u8>,
        /// Whether the file grew by it.
        grows: bool,
    },
}

/// A file: what its reader sees, what the disk surely holds, and the changes between the two.
#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    synced: Vec<u8>,
    changes: Vec<Change>,
    /// A sync failed: until the next crash, syncs of this file do nothing.
    sync_failed: bool,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Content>,
    incarnation: u64,
    failure: Option<Failure>,
    /// Operations left before power fails.
    left: Option<u64>,
    powerless: bool,
    counts: Counts,
}

/// The disk of one simulated node, as one incarnation of that node sees it. Clones are the same incarnation;
/// [`SimDisk::crash`] ends it, and [`SimDisk::restarted`] is the next one's.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    incarnation: u64,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk. All chance comes by the arguments of [`SimDisk::crash`].
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::default(), incarnation: 0 }
    }

    /// The disk for the incarnation that runs now.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self { state: Arc::clone(&self.state), incarnation: self.lock().incarnation }
    }

    /// Power fails and comes back: of the changes that were not synced, any subset survives, by sector and by change
    /// of length. The handles of this incarnation fail from here on. Failures that were ordered end.
    pub fn crash(&self, generator: &mut impl Rng) {
        let mut state = self.lock();
        // Any one rate would hardly ever draw the subsets that matter: all, none, all but one, one alone.
        let kept = [0.0, 0.05, 0.5, 0.95, 1.0][generator.random_range(0..5)];
        for content in state.files.values_mut() {
            let survived = content.survive(|| generator.random_bool(kept));
            *content = Content { seen: survived.clone(), synced: survived, ..Content::default() };
        }
        state.incarnation += 1;
        state.failure = None;
        state.left = None;
        state.powerless = false;
    }

    /// The process dies, but not the host: every write survives, and the handles of this incarnation fail.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.incarnation += 1;
        state.left = None;
        state.powerless = false;
    }

    /// The disk is replaced by an empty one; the handles of this incarnation fail from here on.
    pub fn replace(&self) {
        let mut state = self.lock();
        let incarnation = state.incarnation + 1;
        *state = State { incarnation, counts: state.counts, ..State::default() };
    }

    /// Power fails in the `operation`-th operation from now, counted from 1: it counts as tried, and its result is
    /// an error, as is that of everything after it. [`SimDisk::crash`] then decides what survived. `None` takes it
    /// back.
    pub fn stop_at(&self, operation: Option<u64>) {
        let mut state = self.lock();
        state.left = operation;
        state.powerless = false;
    }

    /// Has the disk fail in a way, or no more.
    pub fn fail(&self, failure: Option<Failure>) {
        self.lock().failure = failure;
    }

    /// What happened so far, over all incarnations.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// The content of a file as it is seen now.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.lock().files.get(name).map(|content| content.seen.clone())
    }

    /// Replaces the content of a file behind everybody's back, as synced: damage, a restored copy, another's file.
    pub fn overwrite(&self, name: &str, bytes: Vec<u8>) {
        let content = Content { seen: bytes.clone(), synced: bytes, ..Content::default() };
        self.lock().files.insert(name.to_owned(), content);
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) {
        self.lock().files.remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.incarnation != self.incarnation {
            return Err(io::Error::other("fenced: this incarnation of the node has crashed"));
        }
        if state.powerless {
            return Err(io::Error::other("power has failed"));
        }
        Ok(state)
    }
}

impl Content {
    fn apply(bytes: &mut Vec<u8>, change: &Change) {
        match change {
            Change::Length(len) => bytes.resize(*len as usize, 0),
            Change::Write { offset, data, .. } => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(data);
            }
        }
    }

    fn change(&mut self, change: Change) {
        Self::apply(&mut self.seen, &change);
        self.changes.push(change);
    }

    fn sync(&mut self) {
        for change in mem::take(&mut self.changes) {
            Self::apply(&mut self.synced, &change);
        }
    }

    /// What the disk holds after a crash: the synced content, and of the changes those sectors and lengths that are
    /// kept, in their order.
    fn survive(&self, mut is_kept: impl FnMut() -> bool) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        for change in &self.changes {
            match change {
                Change::Length(len) => {
                    if is_kept() {
                        bytes.resize(*len as usize, 0);
                    }
                }
                Change::Write { offset, data, grows } => {
                    let end = *offset + data.len() as u64;
                    if *grows && is_kept() && (bytes.len() as u64) < end {
                        bytes.resize(end as usize, 0);
                    }
                    let mut start = *offset;
                    while start < end {
                        let sector_end = ((start / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
                        // Behind the end of the file that survived there is nothing.
                        if is_kept() && sector_end <= bytes.len() as u64 {
                            let piece = &data[(start - offset) as usize..(sector_end - offset) as usize];
                            bytes[start as usize..sector_end as usize].copy_from_slice(piece);
                        }
                        start = sector_end;
                    }
                }
            }
        }
        bytes
    }
}

impl State {
    /// Counts an operation; whether power fails in it.
    fn count(&mut self, kind: u8, place: u64, data: &[u8]) -> bool {
        self.counts.operations += 1;
        self.counts.bytes += data.len() as u64;
        let mut digest = self.counts.digest;
        for byte in [kind].iter().chain(&place.to_le_bytes()).chain(data) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(5);
        }
        self.counts.digest = digest;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            self.powerless = *left == 0;
        }
        self.powerless
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        // A new file's name is durable at once: to a store an empty file and none are the same.
        self.enter()?.files.entry(name.to_owned()).or_default();
        Ok(Arc::new(SimFile { disk: self.clone(), name: name.to_owned() }))
    }
}

/// A file of a [`SimDisk`], opened by one incarnation.
#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    name: String,
}

/// `EIO`, as the kernel words it.
fn broken() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Content) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.enter()?;
        let mut content = state
            .files
            .remove(&self.name)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the file was removed"))?;
        let result = act(&mut state, &mut content);
        state.files.insert(self.name.clone(), content);
        result
    }

    fn change(&self, kind: u8, place: u64, data: &[u8], len: u64, change: Change) -> io::Result<()> {
        self.with(|state, content| {
            match state.failure {
                Some(Failure::Full) if len > content.seen.len() as u64 => {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                Some(Failure::Writes) => return Err(broken()),
                _ => {}
            }
            let stops = state.count(kind, place, data);
            content.change(change);
            if stops { Err(io::Error::other("power has failed")) } else { Ok(()) }
        })
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|_, content| Ok(content.seen.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|state, content| {
            if state.failure == Some(Failure::Reads) {
                return Err(broken());
            }
            let from = usize::try_from(offset).map_err(io::Error::other)?;
            let piece = from.checked_add(out.len()).and_then(|end| content.seen.get(from..end));
            out.copy_from_slice(piece.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let grows = self.len()? < end;
        self.change(1, offset, data, end, Change::Write { offset, data: data.to_vec(), grows })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(2, len, &[], len, Change::Length(len))
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, content| {
            state.counts.syncs += 1;
            if state.count(3, 0, &[]) {
                return Err(io::Error::other("power has failed"));
            }
            if state.failure == Some(Failure::Syncs) {
                content.sync_failed = true;
                return Err(broken());
            }
            if !content.sync_failed {
                content.sync();
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_any_sectors_of_the_rest() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let disk = SimDisk::new();
            let file = disk.open("a").unwrap();
            file.write(0, &[1; 1_024]).unwrap();
            file.sync().unwrap();
            file.write(0, &[2; 1_024]).unwrap();
            file.set_len(1_536).unwrap();
            disk.crash(&mut StdRng::seed_from_u64(seed));
            assert_eq!(file.len().unwrap_err().to_string(), "fenced: this incarnation of the node has crashed");
            let content = disk.restarted().content("a").unwrap();
            assert!(content.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            outcomes.insert((content.len(), content[0], content[512]));
        }
        assert_eq!(outcomes.len(), 8, "two lengths, and each sector old or new: {outcomes:?}");
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_a_later_one() {
        let disk = SimDisk::new();
        let file = disk.open("a").unwrap();
        file.write(0, &[1; 512]).unwrap();
        disk.fail(Some(Failure::Syncs));
        assert!(file.sync().is_err());
        disk.fail(None);
        file.sync().unwrap();
        let lost = (0..50).any(|seed| {
            let copy = SimDisk::new();
            copy.lock().files = disk.lock().files.clone();
            copy.crash(&mut StdRng::seed_from_u64(seed));
            copy.content("a").unwrap().is_empty()
        });
        assert!(lost);
    }

    #[test]
    fn power_fails_in_the_nth_operation_and_stays_off() {
        let disk = SimDisk::new();
        let file = disk.open("a").unwrap();
        disk.stop_at(Some(2));
        file.write(0, &[1]).unwrap();
        assert!(file.sync().is_err());
        assert!(file.len().is_err() && file.write(0, &[1]).is_err());
        assert_eq!(disk.counts().operations, 2);
    }
}
