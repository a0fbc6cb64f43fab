//! The real disk: a data directory that one process owns, and its files.

use std::{
    fmt,
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use postroad_store::disk::{Disk, DiskFile};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, openat},
    io::Errno,
};

/// The file whose lock keeps a second process out.
const LOCK_FILE: &str = "lock";

/// A data directory, locked for as long as this lives.
pub struct DataDirectory {
    path: PathBuf,
    directory: File,
    /// The lock goes with this.
    _lock: Lock,
}

/// Why a data directory was not opened.
#[derive(Debug)]
pub enum DiskError {
    /// Another process holds the lock.
    InUse {
        /// The directory.
        path: PathBuf,
        /// Who holds it, where it has said so.
        pid: Option<u32>,
    },
    /// The directory, or a file in it, belongs to another user.
    OtherOwner {
        /// What belongs to another.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// Others may read or change the directory or a file in it.
    Exposed {
        /// What is exposed.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What they should be.
        wanted: u32,
    },
    /// The path is there but no directory.
    NoDirectory(PathBuf),
    /// The system refused.
    System {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl DiskError {
    /// A stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "DATA_IN_USE",
            Self::OtherOwner { .. } => "DATA_OTHER_OWNER",
            Self::Exposed { .. } => "DATA_EXPOSED",
            Self::NoDirectory(_) => "DATA_NO_DIRECTORY",
            Self::System { .. } => "DATA_UNAVAILABLE",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::InUse { pid: Some(pid), .. } => {
                format!("Stop that process ({pid}), or give another directory by --data")
            }
            Self::InUse { pid: None, .. } => "Stop that process, or give another directory by --data".to_owned(),
            Self::OtherOwner { path, user, .. } => {
                format!("Run as its owner, or: chown -R {user} {}", path.display())
            }
            Self::Exposed { path, wanted, .. } => {
                format!("chmod {wanted:o} {}; renew the keys if others may have read them", path.display())
            }
            Self::NoDirectory(_) => "Give another directory by --data".to_owned(),
            Self::System { .. } => {
                "Check that the disk is mounted, has room, and that this user may write there".to_owned()
            }
        }
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path, pid: Some(pid) } => {
                write!(f, "data directory {} is in use by process {pid}", path.display())
            }
            Self::InUse { path, pid: None } => {
                write!(f, "data directory {} is in use by another process", path.display())
            }
            Self::OtherOwner { path, owner, user } => {
                write!(f, "{} belongs to user {owner}, and this is user {user}", path.display())
            }
            Self::Exposed { path, mode, wanted } => {
                write!(
                    f,
                    "{} has mode {mode:04o}, at most {wanted:04o}: others may get at this node's keys",
                    path.display()
                )
            }
            Self::NoDirectory(path) => write!(f, "{} is there but no directory", path.display()),
            Self::System { tried, path, error } => write!(f, "could not {tried} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for DiskError {}

impl DataDirectory {
    /// Opens the data directory at `path`, making it (0700) if there is none, and takes its lock before anything else.
    ///
    /// # Errors
    /// When another process holds it, when it or a file in it is another user's or open to others, or when the system
    /// refuses.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        let failed = |tried, error| DiskError::System { tried, path: path.to_owned(), error };
        create(path).map_err(|error| failed("create data directory", error))?;
        let found = std::fs::metadata(path).map_err(|error| failed("look at data directory", error))?;
        if !found.is_dir() {
            return Err(DiskError::NoDirectory(path.to_owned()));
        }
        let directory = File::open(path).map_err(|error| failed("open data directory", error))?;
        check_owner(path, found.uid())?;
        adopt_if_empty(path, &directory)?;
        let mode = directory.metadata().map_err(|error| failed("look at data directory", error))?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(DiskError::Exposed { path: path.to_owned(), mode, wanted: 0o700 });
        }
        check_files(path)?;
        let lock = lock(path)?;
        Ok(Self { path: path.to_owned(), directory, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_existing_or_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::NOENT) => {
                let file =
                    openat(&self.directory, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)?;
                // The name must outlive a power cut as well as the content does.
                self.directory.sync_all()?;
                Ok(File::from(file))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Disk for DataDirectory {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if name.is_empty() || name == LOCK_FILE || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a data file")));
        }
        let file = self.open_existing_or_new(name).map_err(|error| {
            io::Error::new(error.kind(), format!("open {}: {error}", self.path.join(name).display()))
        })?;
        Ok(Arc::new(DataFile(file)))
    }
}

impl fmt::Debug for DataDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataDirectory").field(&self.path).finish()
    }
}

/// One open file of the data directory.
#[derive(Debug)]
struct DataFile(File);

impl DiskFile for DataFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        // fdatasync: it includes the length, and leaves out only times that nobody reads.
        self.0.sync_data()
    }
}

/// Makes the directory and its parents, and the new names durable.
fn create(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

/// Closes an empty directory to others: it has nothing yet that they could have read.
fn adopt_if_empty(path: &Path, directory: &File) -> Result<(), DiskError> {
    let failed = |tried, error| DiskError::System { tried, path: path.to_owned(), error };
    let empty = std::fs::read_dir(path).map_err(|error| failed("list data directory", error))?.next().is_none();
    if empty {
        directory
            .set_permissions(std::fs::Permissions::from_mode(0o700))
            .map_err(|error| failed("close to others data directory", error))?;
    }
    Ok(())
}

fn check_owner(path: &Path, owner: u32) -> Result<(), DiskError> {
    let user = rustix::process::geteuid().as_raw();
    if owner == user { Ok(()) } else { Err(DiskError::OtherOwner { path: path.to_owned(), owner, user }) }
}

/// Every file of the directory must be ours and closed to others.
fn check_files(directory: &Path) -> Result<(), DiskError> {
    let failed = |tried, path: &Path, error| DiskError::System { tried, path: path.to_owned(), error };
    for entry in std::fs::read_dir(directory).map_err(|error| failed("list data directory", directory, error))? {
        let path = entry.map_err(|error| failed("list data directory", directory, error))?.path();
        let found = match std::fs::symlink_metadata(&path) {
            Ok(found) => found,
            // A journal or a socket of the process that holds the lock may go at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("look at", &path, error)),
        };
        check_owner(&path, found.uid())?;
        let mode = found.mode() & 0o7777;
        if !found.is_symlink() && mode & 0o077 != 0 {
            let wanted = if found.is_dir() { 0o700 } else { 0o600 };
            return Err(DiskError::Exposed { path, mode, wanted });
        }
    }
    Ok(())
}

/// A held lock. It is let go of by name and not by closing: a process that is just being started shares the open file
/// until it runs its own program, and would hold the lock that long.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing does the same, a moment later.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes the lock and leaves our process id in it for whoever comes second.
fn lock(directory: &Path) -> Result<Lock, DiskError> {
    let path = directory.join(LOCK_FILE);
    let failed = |tried, error| DiskError::System { tried, path: path.clone(), error };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| failed("open lock file", error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let pid = (&file).take(20).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(DiskError::InUse { path: directory.to_owned(), pid });
        }
        Err(error) => return Err(failed("lock", error.into())),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(|error| failed("write lock file", error))?;
    Ok(Lock(file))
}
