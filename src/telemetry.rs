//! Logs: lines for people or JSON for machines, on standard error, so that standard output stays the command's.

use std::{fs::OpenOptions, io::IsTerminal, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc};

use tracing_subscriber::{EnvFilter, fmt, fmt::writer::BoxMakeWriter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    config::{Log, LogFormat},
    errors::Failure,
};

/// Starts logging as the configuration says. Once a process.
///
/// # Errors
/// When it was started before.
pub fn start(log: &Log) -> Result<(), Failure> {
    start_in(log, None)
}

/// The same, appended to a file instead of standard error.
///
/// # Errors
/// When it was started before, or the file cannot be opened.
pub fn start_in(log: &Log, file: Option<&Path>) -> Result<(), Failure> {
    let (writer, terminal) = match file {
        Some(path) => {
            let opened = OpenOptions::new().create(true).append(true).mode(0o640).open(path);
            let unwritable = |error| {
                Failure::failed("LOG_UNWRITABLE", format!("could not open the log {}: {error}", path.display()))
            };
            (BoxMakeWriter::new(Arc::new(opened.map_err(unwritable)?)), false)
        }
        None => (BoxMakeWriter::new(std::io::stderr), std::io::stderr().is_terminal()),
    };
    // Info is a quiet day, and the Raft library tells each step of its own; what matters of it, status says. The actors'
    // library puts its own numbers before every line, which mean nothing to anybody.
    let library = match log.level.as_str() {
        "info" => ",openraft=warn,ractor=warn",
        "debug" => ",openraft=info,ractor=warn",
        _ => "",
    };
    let layers = tracing_subscriber::registry().with(EnvFilter::new(format!("{}{library}", log.level)));
    let started = match log.format {
        LogFormat::Json => layers.with(fmt::layer().json().flatten_event(true).with_writer(writer)).try_init(),
        LogFormat::Human => {
            let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
            layers.with(fmt::layer().with_ansi(colour).with_target(false).with_writer(writer)).try_init()
        }
    };
    started.map_err(|error| Failure::failed("LOG_STARTED_TWICE", format!("could not start logging: {error}")))
}
