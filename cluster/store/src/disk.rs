//! The disk port: five methods over one file, and how a node opens its files.

use std::{fmt, io, sync::Arc};

/// One file of a node's data directory. Synchronous: a writer thread calls it in production, the simulation inline.
#[expect(clippy::len_without_is_empty, reason = "a length that can fail answers more than a question that can fail")]
pub trait DiskFile: Send + Sync + fmt::Debug + 'static {
    /// The length of the file in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `out` from `offset`; reading past the end is an error.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes `data` at `offset`. Nothing is promised about it until [`DiskFile::sync`] has returned.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Cuts the file, or extends it by zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns once everything written before is on stable storage.
    fn sync(&self) -> io::Result<()>;
}

/// The data directory of one node. The real one holds a lock for as long as it lives, so that a second process on the
/// same directory is refused before anything opens.
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Opens the file `name`, making an empty one (mode 0600) if there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
}
