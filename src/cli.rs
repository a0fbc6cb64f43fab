//! The command line: `postroad NOUN VERB`, one file a command under `cli/`.
//!
//! A command is a clap type with `run(&self, &Context) -> Result<Output, Failure>`. It says what it has to say by its
//! [`Output`], never by printing, so that people and `--json` see the same facts.

pub mod actor;
pub mod audit;
pub mod balance;
pub mod completions;
pub mod config;
pub mod console;
pub mod control;
pub mod demo;
pub mod diagnose;
pub mod init;
pub mod join;
pub mod leave;
pub mod link;
pub mod man;
pub mod node;
pub mod output;
mod passphrase;
pub mod relative;
pub mod relay;
pub mod service;
pub mod setting;
pub mod status;
pub mod table;
pub mod tail;
pub mod token;
pub mod top;
pub mod trace;
pub mod why;

use std::{
    cell::Cell,
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use axum::http::Method;
use clap::{Args, Parser, Subcommand};
use postroad_cluster::{domain::FailureDomain, id::Name, time::WallTime, trace::TraceId};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    api::client::Client,
    boot,
    config::{Config, Loaded, Sources, keys::Kind},
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
    after_help = "Example: postroad init harbour --advertise ams-1.example.com:9443 --authority harbour.authority\n\n\
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
    /// The API's socket of the node to talk to [default: api.socket of the configuration, in the data directory]
    #[arg(long, global = true, value_name = "SOCKET", display_order = 903)]
    pub node: Option<PathBuf>,
}

/// Every noun.
#[derive(Debug, Subcommand)]
pub enum Noun {
    /// Show a cluster on this machine, and relays that die under load
    Demo(demo::Command),
    /// Say whether all is well, what is wrong and what to do
    Status(status::Command),
    /// Show the whole fleet in this terminal: nodes, actors, relays, and why
    Console(console::Command),
    /// Say why a link is on its relays, and what if a relay died
    Why(why::Command),
    /// Say everything about the fleet's health at once
    Diagnose(diagnose::Command),
    /// List a node's actors, the busiest first
    Top(top::Command),
    /// Show one actor: its state, its messages, its past
    Actor(actor::Command),
    /// Show an actor's last messages, and those that come
    Tail(tail::Command),
    /// Follow one request through actors and nodes
    Trace(trace::Command),
    /// Show what was changed in the cluster, and by whom
    Audit(audit::Command),
    /// Found a cluster with this node as its first
    Init(init::Command),
    /// Run this node; list, show and remove nodes
    Node(node::Command),
    /// Invite nodes by one-time tokens
    Token(token::Command),
    /// Make this host a node of a cluster
    Join(join::Command),
    /// Take this node out of its cluster
    Leave(leave::Command),
    /// Make, list, show, measure and remove links
    Link(link::Command),
    /// Invite, list and show relays
    Relay(relay::Command),
    /// List and change the control nodes
    Control(control::Command),
    /// List and set what concerns the whole cluster
    Setting(setting::Command),
    /// Run this node with the system, by systemd
    Service(service::Command),
    /// Run a database balancer, alone or for the cluster, and ask it
    #[command(alias = "balancer")]
    Balance(balance::Command),
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
            Self::Demo(command) => command.run(context),
            Self::Status(command) => command.run(context),
            Self::Console(command) => command.run(context),
            Self::Why(command) => command.run(context),
            Self::Diagnose(command) => command.run(context),
            Self::Top(command) => command.run(context),
            Self::Actor(command) => command.run(context),
            Self::Tail(command) => command.run(context),
            Self::Trace(command) => command.run(context),
            Self::Audit(command) => command.run(context),
            Self::Init(command) => command.run(context),
            Self::Node(command) => command.run(context),
            Self::Token(command) => command.run(context),
            Self::Join(command) => command.run(context),
            Self::Leave(command) => command.run(context),
            Self::Link(command) => command.run(context),
            Self::Relay(command) => command.run(context),
            Self::Control(command) => command.run(context),
            Self::Setting(command) => command.run(context),
            Self::Service(command) => command.run(context),
            Self::Balance(command) => command.run(context),
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
    /// The trace of the last change that the node was asked for.
    changed: Cell<Option<TraceId>>,
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

    /// Asks the node on this host. The output has no text for people yet.
    ///
    /// # Errors
    /// That the node does not run, or what it answered.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Output, Failure> {
        let client = self.client()?;
        let output = self.block_on(async { client.ask(method, path, body).await })?;
        if output.trace.is_some() {
            self.changed.set(output.trace);
        }
        Ok(output)
    }

    /// The way to the node on this host.
    ///
    /// # Errors
    /// When the configuration cannot be read or is wrong.
    pub fn client(&self) -> Result<Client, Failure> {
        let socket = match &self.global.node {
            Some(socket) => socket.clone(),
            None => self.load_config()?.config.api.socket,
        };
        Ok(Client::new(socket, format!("postroad{} node", boot::data_flag(self.global.data.as_ref()))))
    }
}

/// What an answer says, as a type.
fn read<T: DeserializeOwned>(output: &Output) -> Result<T, Failure> {
    serde_json::from_value(output.data.clone()).map_err(|error| {
        Failure::failed("ANSWER_MALFORMED", format!("the node's answer is not what this command knows: {error}"))
            .hint("Are the command and the node of one release? --json shows the answer as it is")
    })
}

/// A name as a part of a path.
fn segment(name: &str) -> Result<&str, Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.len() <= 100 && name.bytes().all(plain) {
        return Ok(name);
    }
    let shown: String = name.chars().take(80).collect();
    Err(Failure::wrong_use(format!("{shown:?} is no name: those have a-z, 0-9, - and _")))
}

/// An address that others dial, for clap.
fn host_port(text: &str) -> Result<String, String> {
    Kind::HostPort.check_text(text).map(|_| text.to_owned())
}

/// The name that a node is to have: by flag, by configuration, else the host's.
fn name_or_host(given: Option<&Name>, config: &Config) -> Result<Name, Failure> {
    given.cloned().or_else(|| config.node.name.clone()).or_else(boot::host_name).ok_or_else(|| {
        Failure::wrong_use("this host's name is none for a node: 1 to 63 of a-z, 0-9 and -").hint("Give one by --name")
    })
}

/// Asks before something that cannot be undone.
fn confirm(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    let refused = || Failure::refused("NOT_CONFIRMED", format!("not done: {what}")).hint("To do it: --yes");
    if !passphrase::somebody_is_there() {
        return Err(refused());
    }
    let mut line = String::new();
    // A terminal that is gone has not agreed.
    let asked = write!(io::stderr(), "{what}. Type yes to go on: ").and_then(|()| io::stdin().read_line(&mut line));
    if asked.is_ok() && line.trim() == "yes" { Ok(()) } else { Err(refused()) }
}

/// The present time, for spans that people read.
pub(crate) fn now() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    WallTime(since.as_millis() as u64)
}

/// Where a node stands, in words.
fn domain_words(domain: &FailureDomain) -> String {
    let parts =
        [("host", &domain.host), ("power", &domain.power), ("network", &domain.network), ("zone", &domain.zone)];
    let said = parts.iter().filter_map(|(word, name)| Some(format!("{word} {}", name.as_ref()?)));
    let said = said.collect::<Vec<_>>().join(", ");
    if said.is_empty() { "not said".to_owned() } else { said }
}

/// A span of microseconds as people read it: `4.1 ms`.
fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1_000, us % 1_000 / 100)
}

/// The whole life of a command: read the line, run, say what came of it.
pub fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&line) {
        Ok(cli) => cli,
        Err(error) => return output::wrong_line(&error, line.iter().any(|word| word == "--json")),
    };
    let context = Context { style: Style::of_terminal(), global: cli.global, changed: Cell::new(None) };
    let mut result = cli.noun.run(&context);
    if let Ok(output) = &mut result {
        output.trace = output.trace.or(context.changed.get());
    }
    output::say(&result, context.global.json)
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
