//! Programs that tests need from the machine: found, or the test is skipped with a printed reason.

use std::path::PathBuf;

/// Where each of `wanted` is, or `None` with a printed reason. With `POSTROAD_REQUIRE_ALL=1` a missing one fails.
#[track_caller]
pub(crate) fn find(wanted: &[&str]) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in wanted {
        match locate(name) {
            Some(path) => found.push(path),
            None if std::env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1") => {
                panic!("{name} is not on this machine, and POSTROAD_REQUIRE_ALL is set")
            }
            None => {
                eprintln!("skipped: {name} is not on this machine");
                return None;
            }
        }
    }
    Some(found)
}

fn locate(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps the server's own programs out of the path.
    let extra = ["/usr/lib/postgresql/15/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|directory| directory.join(name)).find(|path| path.is_file())
}
