//! redb's storage on a file of the disk port, and the fence that closes a database after its first failure.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use redb::StorageBackend;

use crate::{disk::DiskFile, error::StoreError};

/// The bytes before redb's own first page: our header, padded to a page so that redb's pages stay aligned.
pub(crate) const HEADER_BYTES: u64 = 4_096;

/// Remembers the first failure of a database. After a failed write or sync nobody knows what is on the disk, and a
/// later sync that succeeds proves nothing (Linux drops the pages that it could not write), so nothing is tried again.
#[derive(Debug)]
pub(crate) struct Fence {
    file: &'static str,
    first: OnceLock<StoreError>,
}

impl Fence {
    pub(crate) fn new(file: &'static str) -> Arc<Self> {
        Arc::new(Self { file, first: OnceLock::new() })
    }

    /// An error if the database is closed.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.first.get() {
            None => Ok(()),
            Some(first) => {
                Err(StoreError::Fenced { file: self.file, reason: first.code().to_owned() + ": " + &tail(first) })
            }
        }
    }

    /// Closes the database; returns the first failure, which may be an earlier one than `error`.
    pub(crate) fn close(&self, error: StoreError) -> StoreError {
        let first = self.first.get_or_init(|| {
            tracing::error!(file = self.file, code = error.code(), %error, "the store is closed after a failure");
            error
        });
        first.clone()
    }

    pub(crate) fn file(&self) -> &'static str {
        self.file
    }
}

/// The cause alone: the advice is said once, by the error around it.
fn tail(error: &StoreError) -> String {
    match error {
        StoreError::Disk { tried, found, .. } => format!("tried to {tried}, but: {found}"),
        StoreError::Corrupt { found, .. } => found.clone(),
        other => other.to_string(),
    }
}

/// A file of the port as redb's storage, from [`HEADER_BYTES`] on.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) fence: Arc<Fence>,
}

impl Backend {
    fn run<T>(&self, tried: &'static str, act: impl FnOnce(&dyn DiskFile) -> io::Result<T>) -> io::Result<T> {
        self.fence.check().map_err(io::Error::other)?;
        act(&*self.file).inspect_err(|error| drop(self.fence.close(StoreError::disk(self.fence.file(), tried, error))))
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.run("read the length", |file| Ok(file.len()?.saturating_sub(HEADER_BYTES)))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.run("read", |file| file.read(offset + HEADER_BYTES, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.run("change the length", |file| file.set_len(len + HEADER_BYTES))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.run("sync", DiskFile::sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.run("write", |file| file.write(offset + HEADER_BYTES, data))
    }
}
