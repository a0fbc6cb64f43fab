//! The Unix socket of the API: its owner's alone, replaced when stale, reached also where its path is too long.

use std::{
    fs::{File, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

use crate::errors::Failure;

/// What a socket's path may have: the system takes 107 bytes, and the name while it is made is longer by four.
const PATH_BYTES_MAX: usize = 100;

/// A path that the system takes for `path`: the same, or one by way of the open directory. The file keeps that open.
fn short(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok((path.to_owned(), None));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no path of a file"));
    };
    let directory = File::open(parent)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((short, Some(directory)))
}

/// Connects to the socket at `path`.
///
/// # Errors
/// Those of the system: nothing is there, nobody listens, or it is another user's.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (short, _directory) = short(path)?;
    UnixStream::connect(short).await
}

/// Listens at `path`, open to its owner alone. What a dead process left there is replaced.
///
/// # Errors
/// When a process serves there, something else is there, or the system refuses.
pub(super) fn bind(path: &Path) -> Result<UnixListener, Failure> {
    let shown = path.display();
    let failed = |error: io::Error| {
        Failure::failed("SOCKET", format!("could not listen on {shown}: {error}"))
            .hint("The key is api.socket: postroad config show")
    };
    let (short, _directory) = short(path).map_err(failed)?;
    match std::fs::symlink_metadata(&short) {
        Ok(found) if !found.file_type().is_socket() => {
            let message = format!("{shown} is there and no socket, so the API does not replace it");
            return Err(Failure::refused("SOCKET_FOREIGN", message).hint("Give another by api.socket"));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(&short).is_ok() => {
            let message = format!("another process serves on {shown}");
            return Err(Failure::refused("SOCKET_IN_USE", message).hint("Stop it, or give another by api.socket"));
        }
        Ok(_) | Err(_) => {}
    }
    // Made aside, closed to others, then put in place: nobody ever finds it open to others or half made.
    let mut aside = short.clone().into_os_string();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    let _ = std::fs::remove_file(&aside);
    let listener = UnixListener::bind(&aside).map_err(failed)?;
    std::fs::set_permissions(&aside, Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&aside, &short).map_err(failed)?;
    Ok(listener)
}

/// Removes the socket of a node that stops.
pub(super) fn remove(path: &Path) {
    let removed = short(path).and_then(|(short, _directory)| std::fs::remove_file(short));
    if let Err(error) = removed {
        tracing::warn!(%error, socket = %path.display(), "the API's socket was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(result: Result<UnixListener, Failure>) -> String {
        result.map_or_else(|failure| failure.code.into_owned(), |_| "ok".to_owned())
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["api.sock".to_owned(), format!("{}/api.sock", "long".repeat(40))] {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let first = bind(&path).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            connect(&path).await.unwrap();
            assert_eq!(code(bind(&path)), "SOCKET_IN_USE");
            drop(first);
            assert_eq!(connect(&path).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let _second = bind(&path).unwrap();
            connect(&path).await.unwrap();
            remove(&path);
            assert_eq!(connect(&path).await.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }

    #[tokio::test]
    async fn what_is_no_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(code(bind(&path)), "SOCKET_FOREIGN");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
