//! The configuration file: whatever is in it is taken or refused with a place in it.

use std::fs;

use postroad::config::{self, Sources};

/// The data as a configuration file.
pub(crate) fn run(data: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let file = directory.path().join("postroad.toml");
    fs::write(&file, data).expect("a file in it");
    let sources = Sources { file: Some(file), root: true, ..Sources::default() };
    match config::load(&sources) {
        Ok(loaded) => assert!(loaded.settings.iter().all(|setting| !setting.origin.to_string().is_empty())),
        Err(failure) => assert!(!failure.message.is_empty() && failure.code.starts_with("CONFIG_")),
    }
}
