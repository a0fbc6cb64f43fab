//! The authority's passphrase: from a file, or asked on the terminal without showing it.

use std::{
    fs::File,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::Path,
};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::errors::Failure;

/// The longest passphrase that is read; a longer file is another one given by mistake.
const BYTES_MAX: u64 = 1_024;

/// Reads the passphrase. `twice` asks again on a terminal, since a typo would be found out years later.
///
/// # Errors
/// When it is empty, differs the second time, or there is neither file nor terminal.
pub(super) fn read(file: Option<&Path>, twice: bool) -> Result<String, Failure> {
    let passphrase = if let Some(file) = file {
        from_file(file)?
    } else {
        let first = ask("Passphrase of the authority: ")?;
        if twice && !first.is_empty() && ask("The same again: ")? != first {
            return Err(Failure::refused("PASSPHRASE_DIFFERS", "the two passphrases differ, and nothing was changed"));
        }
        first
    };
    if passphrase.is_empty() {
        return Err(Failure::refused("PASSPHRASE_EMPTY", "the passphrase is empty, and nothing was changed")
            .hint("Whoever finds the authority file would own the cluster; some random words are good"));
    }
    Ok(passphrase)
}

fn from_file(path: &Path) -> Result<String, Failure> {
    let unreadable = |what: String| {
        Failure::failed("PASSPHRASE_UNREADABLE", format!("could not read passphrase file {}: {what}", path.display()))
    };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 > BYTES_MAX => Err(unreadable(format!("it has more than {BYTES_MAX} bytes"))),
        Ok(_) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// Whether somebody sits there to be asked.
pub(super) fn somebody_is_there() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn ask(prompt: &str) -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::failed("NO_TERMINAL", format!("could not ask on the terminal: {error}"));
    if !somebody_is_there() {
        return Err(Failure::wrong_use("the passphrase is asked on a terminal, and there is none")
            .hint("Give it by --passphrase-file FILE"));
    }
    let input = io::stdin();
    let before = tcgetattr(&input).map_err(|error| failed(error.into()))?;
    let mut hidden = before.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    write!(io::stderr(), "{prompt}").and_then(|()| io::stderr().flush()).map_err(failed)?;
    tcsetattr(&input, OptionalActions::Flush, &hidden).map_err(|error| failed(error.into()))?;
    let mut line = String::new();
    let read = input.lock().take(BYTES_MAX).read_line(&mut line);
    // The terminal is given back first, whatever was read.
    let restored = tcsetattr(&input, OptionalActions::Flush, &before);
    // The key that ended the line was not shown either.
    let _ = writeln!(io::stderr());
    read.map_err(failed)?;
    restored.map_err(|error| failed(error.into()))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_last_line_end_and_never_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passphrase");
        std::fs::write(&path, "four random words \n").unwrap();
        assert_eq!(read(Some(&path), true).unwrap(), "four random words ");
        std::fs::write(&path, "\n").unwrap();
        assert_eq!(read(Some(&path), true).unwrap_err().code, "PASSPHRASE_EMPTY");
        std::fs::write(&path, "x".repeat(2_000)).unwrap();
        assert_eq!(read(Some(&path), false).unwrap_err().code, "PASSPHRASE_UNREADABLE");
    }
}
