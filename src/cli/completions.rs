//! `postroad completions SHELL`.

use clap::{Args, CommandFactory};
use serde_json::json;

use super::{Cli, output::Output};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad completions bash > /usr/share/bash-completion/completions/postroad")]
pub struct Command {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,
}

impl Command {
    /// The completions as text.
    pub fn run(&self) -> Output {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "postroad", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        Output::new(json!({ "shell": self.shell.to_string(), "script": script }), script)
    }
}
