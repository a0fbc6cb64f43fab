//! What can go wrong with the store: each error says what was tried, what was found and what to do.

use std::{fmt, io};

/// Why the store refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The disk failed. The database is fenced: see [`StoreError::Fenced`].
    Disk {
        /// The file.
        file: &'static str,
        /// What was tried.
        tried: &'static str,
        /// What the system answered.
        found: String,
    },
    /// An earlier failure closed this database for the rest of the process, since nobody knows what of the failed
    /// write is on the disk. Starting again reads what is.
    Fenced {
        /// The file.
        file: &'static str,
        /// The first failure.
        reason: String,
    },
    /// The file is one of ours, but what it holds is damaged.
    Corrupt {
        /// The file.
        file: &'static str,
        /// What was found.
        found: String,
    },
    /// The file is none of ours, or another one of ours.
    Foreign {
        /// The file.
        file: &'static str,
        /// What was found.
        found: String,
    },
    /// The file is gone, while others of this node are there.
    Missing {
        /// The file.
        file: &'static str,
    },
    /// The queue of the writer thread is full; nothing was written. To be tried again after a while.
    Busy {
        /// The file.
        file: &'static str,
    },
    /// A key, value, entry or snapshot exceeds its bound; nothing was written.
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        bytes_max: usize,
    },
    /// Entries do not continue the log; nothing was written.
    OutOfOrder {
        /// The index that the log could take next.
        expected: u64,
        /// The index that came.
        found: u64,
    },
}

impl StoreError {
    /// The stable code of the error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Disk { .. } => "STORE_DISK_FAILED",
            Self::Fenced { .. } => "STORE_FENCED",
            Self::Corrupt { .. } => "STORE_CORRUPT",
            Self::Foreign { .. } => "STORE_FOREIGN_FILE",
            Self::Missing { .. } => "STORE_FILE_MISSING",
            Self::Busy { .. } => "STORE_BUSY",
            Self::TooLarge { .. } => "STORE_TOO_LARGE",
            Self::OutOfOrder { .. } => "STORE_OUT_OF_ORDER",
        }
    }

    pub(crate) fn disk(file: &'static str, tried: &'static str, error: &io::Error) -> Self {
        Self::Disk { file, tried, found: error.to_string() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { file, tried, found } => write!(
                f,
                "{file}: tried to {tried}, but: {found}; check that the disk of the data directory is healthy and has \
                 room, then start the node again"
            ),
            Self::Fenced { file, reason } => write!(
                f,
                "{file}: closed after a failure ({reason}), so nothing more is written or read; mend the cause, then \
                 start the node again"
            ),
            Self::Corrupt { file, found } => write!(
                f,
                "{file}: damaged: {found}; keep a copy of the data directory, then remove the node from the cluster \
                 and join it again with an empty one"
            ),
            Self::Foreign { file, found } => write!(
                f,
                "{file}: not this node's database: {found}; give the node its own data directory (--data), or move \
                 this file away if the node is new"
            ),
            Self::Missing { file } => write!(
                f,
                "{file}: gone, while the node's other files are there; put it back, or remove the node from the \
                 cluster and join it again with an empty data directory"
            ),
            Self::Busy { file } => {
                write!(f, "{file}: the disk does not keep up and the queue is full; try again in a second")
            }
            Self::TooLarge { what, bytes, bytes_max } => {
                write!(f, "a {what} of {bytes} bytes is larger than the bound of {bytes_max}; make it smaller")
            }
            Self::OutOfOrder { expected, found } => write!(
                f,
                "the log can take entry {expected} next, but entry {found} came; entries are appended without gaps, \
                 after those in their place were truncated"
            ),
        }
    }
}

impl std::error::Error for StoreError {}
