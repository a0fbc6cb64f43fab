//! Logs: lines for people or JSON for machines, on standard error, so that standard output stays the command's.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    config::{Log, LogFormat},
    errors::Failure,
};

/// Starts logging as the configuration says. Once a process.
///
/// # Errors
/// When it was started before.
pub fn start(log: &Log) -> Result<(), Failure> {
    // Info is a quiet day, and the Raft library tells each step of its own; what matters of it, status says.
    let library = match log.level.as_str() {
        "info" => ",openraft=warn",
        "debug" => ",openraft=info",
        _ => "",
    };
    let layers = tracing_subscriber::registry().with(EnvFilter::new(format!("{}{library}", log.level)));
    let started = match log.format {
        LogFormat::Json => layers.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init(),
        LogFormat::Human => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
            layers.with(fmt::layer().with_ansi(colour).with_target(false).with_writer(std::io::stderr)).try_init()
        }
    };
    started.map_err(|error| Failure::failed("LOG_STARTED_TWICE", format!("could not start logging: {error}")))
}
