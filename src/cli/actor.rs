//! `postroad actor`: what one actor does, its state, its last messages, and its past.

use std::path::PathBuf;

use axum::http::Method;
use clap::Args;
use postroad_cluster::recording::RecordingFile;

use super::{Context, output::Output, read};
use crate::{
    console::{grid, query::Query},
    errors::Failure,
};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad actor node/control\n\n\
                        The state is the published one, with what the last turn changed; it is there also while the \
                        actor is stuck or dead. --at shows the state after an event, computed again from the journal. \
                        --save writes what led there as a file for simulations replay.")]
pub struct Command {
    /// Its path, as postroad top shows it
    path: String,
    /// The node [default: the one on this host]
    #[arg(long, value_name = "NAME")]
    on: Option<String>,
    /// The state after this event, instead of the present one
    #[arg(long, value_name = "EVENT")]
    at: Option<u64>,
    /// How many messages
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=256))]
    messages: u64,
    /// Write what led to that state to a file, for simulations replay
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer or has no such actor, or the file cannot be written.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let query = Query::default()
            .with("node", self.on.as_deref().unwrap_or_default())
            .with("at", &self.at.map_or_else(String::new, |at| at.to_string()));
        if let Some(file) = &self.save {
            return self.save(context, &query, file);
        }
        let address =
            query.with("messages", &self.messages.to_string()).address(&format!("/api/console/actor/{}", self.path));
        let mut output = context.ask(Method::GET, &address, None)?;
        output.human = grid::text(&grid::actor(&read(&output)?), context.style);
        Ok(output)
    }

    fn save(&self, context: &Context, query: &Query, file: &PathBuf) -> Result<Output, Failure> {
        let address = query.address(&format!("/api/console/recording/{}", self.path));
        let mut output = context.ask(Method::GET, &address, None)?;
        let recording: RecordingFile = read(&output)?;
        std::fs::write(file, output.data.to_string()).map_err(|error| {
            Failure::failed("FILE_UNWRITABLE", format!("could not write {}: {error}", file.display()))
        })?;
        output.human = format!(
            "{} has events {} to {} of {} on {}; play them: simulations replay {}",
            file.display(),
            recording.first,
            recording.last,
            recording.path,
            recording.node,
            file.display()
        );
        Ok(output)
    }
}
