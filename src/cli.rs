//! The command line: `postroad NOUN VERB`, one file a command under `cli/`.
//!
//! A command is a clap type with `run(&self, &Context) -> Result<Output, Failure>`. It says what it has to say by its
//! [`Output`], never by printing, so that people and `--json` see the same facts.

pub mod completions;
pub mod config;
pub mod man;
pub mod output;
pub mod relative;
pub mod table;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{Loaded, Sources},
    errors::Failure,
};
use output::{Output, Style};

/// A private transport between your servers, whose open connections outlive the relay that carries them
#[derive(Debug, Parser)]
#[command(
    name = "postroad",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    propagate_version = false,
    max_term_width = 100,
    after_help = "Example: postroad config example > postroad.toml\n\n\
                  Exit status: 0 done, 1 failed, 2 wrong use, 3 refused by a rule, 4 not reachable, 5 timed out."
)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub noun: Noun,
}

/// Flags of every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Flags of every command")]
#[allow(clippy::doc_markdown, reason = "people read these as help, where backticks are noise")]
pub struct Global {
    /// Answer in JSON, for scripts
    #[arg(long, global = true, display_order = 900)]
    pub json: bool,
    /// The configuration file [default: /etc/postroad/postroad.toml as root, else in the user's configuration]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "POSTROAD_CONFIG",
        hide_env_values = true,
        display_order = 901
    )]
    pub config: Option<PathBuf>,
    /// The data directory [default: $STATE_DIRECTORY, /var/lib/postroad as root, else in the user's state]
    #[arg(long, global = true, value_name = "DIR", display_order = 902)]
    pub data: Option<PathBuf>,
    /// The node to talk to [default: the one on this host]
    #[arg(long, global = true, value_name = "ADDRESS", display_order = 903)]
    pub node: Option<String>,
}

/// Every noun.
#[derive(Debug, Subcommand)]
pub enum Noun {
    /// Check and show this node's configuration
    Config(config::Command),
    /// Print completions for a shell
    Completions(completions::Command),
    /// Print the manual page
    Man(man::Command),
}

impl Noun {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever kept it from being done.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match self {
            Self::Config(command) => command.run(context),
            Self::Completions(command) => Ok(command.run()),
            Self::Man(command) => command.run(),
        }
    }
}

/// What a command may use.
#[derive(Clone, Debug)]
pub struct Context {
    /// The flags of every command.
    pub global: Global,
    /// How to write for people.
    pub style: Style,
}

impl Context {
    /// The configuration, from `--config`, `--data`, the environment and the file.
    ///
    /// # Errors
    /// When it cannot be read or is wrong.
    pub fn load_config(&self) -> Result<Loaded, Failure> {
        crate::config::load(&Sources::of_process(self.global.config.clone(), self.global.data.clone()))
    }

    /// Runs a future on this thread: what a command needs that asks a node and ends. A node's own runtime is `boot`'s.
    ///
    /// # Errors
    /// Those of the future, or that the system gives no runtime.
    pub fn block_on<T>(&self, future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            Failure::failed("NO_RUNTIME", format!("could not start the command's runtime: {error}"))
        })?;
        runtime.block_on(future)
    }
}

/// The whole life of a command: read the line, run, say what came of it.
pub fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&line) {
        Ok(cli) => cli,
        Err(error) => return output::wrong_line(&error, line.iter().any(|word| word == "--json")),
    };
    let context = Context { style: Style::of_terminal(), global: cli.global };
    output::say(&cli.noun.run(&context), context.global.json)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Every command, with the words that lead to it.
    fn commands(command: &clap::Command, words: &[String], found: &mut Vec<(String, clap::Command)>) {
        for child in command.get_subcommands() {
            let words = [words, &[child.get_name().to_owned()]].concat();
            found.push((words.join(" "), child.clone()));
            commands(child, &words, found);
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_teaches_by_one_sentence_and_an_example_that_parses() {
        let mut found = Vec::new();
        commands(&Cli::command(), &[], &mut found);
        assert!(found.iter().any(|(words, _)| words == "config check"));
        for (words, command) in found {
            assert!(command.get_about().is_some(), "{words} says nothing");
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            if command.has_subcommands() {
                continue;
            }
            let example = help.lines().find_map(|line| line.strip_prefix("Example: ")).unwrap_or_default();
            assert!(example.starts_with(&format!("postroad {words}")), "{words} has no example: {help:?}");
            let line = example.split(['>', '|']).next().unwrap_or_default();
            let parsed = Cli::try_parse_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{example}: {}", parsed.err().map(|error| error.to_string()).unwrap_or_default());
        }
    }
}
