//! `postroad man`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use serde_json::json;

use super::{Cli, output::Output};
use crate::errors::Failure;

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad man | man -l -")]
pub struct Command {
    /// Write one page a command into this directory instead
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Command {
    /// The page as roff text, or the pages written.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn run(&self) -> Result<Output, Failure> {
        let Some(directory) = &self.directory else {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|error| Failure::failed("NO_MAN_PAGE", format!("could not write the manual page: {error}")))?;
            let page = String::from_utf8_lossy(&page).into_owned();
            return Ok(Output::new(json!({ "page": page }), page));
        };
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory)).map_err(
            |error| {
                let directory = directory.display();
                Failure::failed("NO_MAN_PAGE", format!("could not write manual pages to {directory}: {error}"))
            },
        )?;
        let directory = directory.display().to_string();
        Ok(Output::new(json!({ "directory": directory }), format!("wrote the manual pages to {directory}")))
    }
}
