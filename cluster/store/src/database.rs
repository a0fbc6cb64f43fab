//! One database file: how it is made, recognized and opened, and transactions whose failure or panic closes it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use postroad_cluster::limits;
use redb::{ReadTransaction, ReadableDatabase, WriteTransaction};

use crate::{
    backend::{Backend, Fence, HEADER_BYTES},
    disk::{Disk, DiskFile},
    error::StoreError,
};

/// The first bytes of every file of ours; the line ending shows a copy that went through a text mode.
const MAGIC: &[u8; 16] = b"postroad store\r\n";
/// The version of the header and of the tables behind it.
const FORMAT: u32 = 1;
/// The header is one sector, which a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Which of the databases a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Log,
    State,
    Node,
}

impl Kind {
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Log => "log.redb",
            Self::State => "state.redb",
            Self::Node => "node.redb",
        }
    }

    const fn cache_bytes(self) -> usize {
        match self {
            Self::Log => limits::STORE_LOG_CACHE_BYTES,
            Self::State | Self::Node => limits::STORE_CACHE_BYTES,
        }
    }
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    /// The file is new, or a crash interrupted its making: nothing in it was ever acknowledged.
    Begun,
    /// The file was made; redb's database follows.
    Made,
}

/// An open database.
pub(crate) struct Database {
    redb: redb::Database,
    fence: Arc<Fence>,
}

impl Database {
    /// Opens the file of `kind`, making it by `tables` if it is new and `may_make`.
    pub(crate) fn open(
        disk: &dyn Disk,
        kind: Kind,
        may_make: bool,
        tables: impl Fn(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, StoreError> {
        let name = kind.file();
        let file = disk.open(name).map_err(|error| StoreError::disk(name, "open the file", &error))?;
        match read_header(&*file, kind)? {
            Header::Made => Self::attach(&file, kind),
            Header::Begun if may_make => Self::make(&file, kind, tables),
            Header::Begun => Err(StoreError::Missing { file: name }),
        }
    }

    /// redb's own making does not survive a crash: a file without redb's magic, though never used, is refused for
    /// good. So ours says that it begins, makes the rest, and says last that it is made.
    fn make(
        file: &Arc<dyn DiskFile>,
        kind: Kind,
        tables: impl Fn(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, StoreError> {
        let name = kind.file();
        let failed = |tried| move |error| StoreError::disk(name, tried, &error);
        file.set_len(SECTOR_BYTES as u64).map_err(failed("cut the new file"))?;
        file.write(0, &header(kind, Header::Begun)).map_err(failed("write the header"))?;
        file.sync().map_err(failed("sync the header"))?;
        let database = Self::attach_redb(file, kind, false)?;
        database.write(tables)?;
        file.write(0, &header(kind, Header::Made)).map_err(failed("write the header"))?;
        file.sync().map_err(failed("sync the header"))?;
        Ok(database)
    }

    fn attach(file: &Arc<dyn DiskFile>, kind: Kind) -> Result<Self, StoreError> {
        let name = kind.file();
        let len = file.len().map_err(|error| StoreError::disk(name, "read the length", &error))?;
        // redb would take the empty rest for a new database.
        if len <= HEADER_BYTES {
            return Err(StoreError::Corrupt { file: name, found: format!("cut off after {len} bytes") });
        }
        Self::attach_redb(file, kind, true)
    }

    fn attach_redb(file: &Arc<dyn DiskFile>, kind: Kind, check: bool) -> Result<Self, StoreError> {
        let fence = Fence::new(kind.file());
        let backend = Backend { file: Arc::clone(file), fence: Arc::clone(&fence) };
        // Without the check redb trusts a file that was closed in order, and may panic over a damaged one. It reads
        // the whole file, which a node's databases are small enough for.
        let redb = guard(&fence, "open the database", || {
            redb::Builder::new()
                .set_cache_size(kind.cache_bytes())
                .set_check_integrity_on_open(check)
                .create_with_backend(backend)
                .map_err(redb::Error::from)
        })?;
        Ok(Self { redb, fence })
    }

    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// An error that names this file and closes it: what was read cannot be.
    pub(crate) fn corrupt(&self, found: String) -> StoreError {
        self.fence.close(StoreError::Corrupt { file: self.fence.file(), found })
    }

    /// One durable transaction, in two phases: all of `act`, or nothing.
    ///
    /// One phase survives lost sectors too, by checksums alone, and would save one of the two syncs. But its
    /// checksum is not cryptographic, and entries hold what users write.
    pub(crate) fn write<T>(
        &self,
        act: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        guard(&self.fence, "commit", || {
            let mut transaction = self.redb.begin_write()?;
            transaction.set_two_phase_commit(true);
            let result = act(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })
    }

    /// A view of what is committed now, to be read from by [`Database::look`].
    pub(crate) fn view(&self) -> Result<ReadTransaction, StoreError> {
        guard(&self.fence, "begin to read", || Ok(self.redb.begin_read()?))
    }

    /// Reads from a view.
    pub(crate) fn look<T>(
        &self,
        view: &ReadTransaction,
        act: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        guard(&self.fence, "read", || act(view))
    }
}

/// Whether the file of `kind` was made; a look that changes nothing.
pub(crate) fn is_made(disk: &dyn Disk, kind: Kind) -> Result<bool, StoreError> {
    let name = kind.file();
    let file = disk.open(name).map_err(|error| StoreError::disk(name, "open the file", &error))?;
    Ok(read_header(&*file, kind)? == Header::Made)
}

/// Runs `act` unless the fence is closed, and closes it if `act` fails or panics: after either, what redb holds in
/// memory is not to be trusted.
fn guard<T>(fence: &Fence, tried: &'static str, act: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StoreError> {
    fence.check()?;
    let file = fence.file();
    let error = match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(result)) => return Ok(result),
        Ok(Err(redb::Error::Io(error))) if error.kind() != std::io::ErrorKind::InvalidData => {
            StoreError::disk(file, tried, &error)
        }
        Ok(Err(error)) => StoreError::Corrupt { file, found: error.to_string() },
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            StoreError::Corrupt { file, found: format!("tried to {tried}, and the database gave up: {text}") }
        }
    };
    Err(fence.close(error))
}

fn header(kind: Kind, state: Header) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    sector[..16].copy_from_slice(MAGIC);
    sector[16..20].copy_from_slice(&FORMAT.to_le_bytes());
    sector[20] = kind as u8;
    sector[21] = u8::from(state == Header::Made);
    let checksum = checksum(&sector[..24]);
    sector[24..32].copy_from_slice(&checksum.to_le_bytes());
    sector
}

fn read_header(file: &dyn DiskFile, kind: Kind) -> Result<Header, StoreError> {
    let name = kind.file();
    let failed = |error| StoreError::disk(name, "read the header", &error);
    let foreign = |found| Err(StoreError::Foreign { file: name, found });
    let len = file.len().map_err(failed)?;
    let mut sector = [0; SECTOR_BYTES];
    file.read(0, &mut sector[..len.min(SECTOR_BYTES as u64) as usize]).map_err(failed)?;
    if sector == [0; SECTOR_BYTES] {
        // Only a file as short as this can be one whose first write a crash swallowed.
        return if len <= SECTOR_BYTES as u64 {
            Ok(Header::Begun)
        } else {
            Err(StoreError::Corrupt { file: name, found: "its first bytes are zero".to_owned() })
        };
    }
    if sector[..16] != *MAGIC {
        return foreign(format!("it begins with \"{}\"", sector[..16].escape_ascii()));
    }
    if sector[24..32] != checksum(&sector[..24]).to_le_bytes() {
        return Err(StoreError::Corrupt { file: name, found: "the checksum of its header does not match".to_owned() });
    }
    if sector[16..20] != FORMAT.to_le_bytes() {
        let format = u32::from_le_bytes([sector[16], sector[17], sector[18], sector[19]]);
        return foreign(format!("its format is {format}, and this release reads {FORMAT}"));
    }
    if sector[20] != kind as u8 {
        return foreign("it is another database of a node".to_owned());
    }
    Ok(if sector[21] == 1 { Header::Made } else { Header::Begun })
}

/// FNV-1a, 64 bits: enough against accidents in 24 bytes.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}
