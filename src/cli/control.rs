//! `postroad control list|promote|demote|remove|step-down`: the control nodes and their votes.

use std::path::PathBuf;

use axum::http::Method;
use clap::{Args, Subcommand};
use postroad_actors::status::control::{ControlView, Member};
use postroad_cluster::limits::AUTHORITY_FILE_BYTES_MAX;
use serde::Deserialize;
use serde_json::json;

use super::{Context, confirm, now, output::Output, passphrase, read, relative, segment, table::Table};
use crate::{api::view, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad control list")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the control nodes: who votes, who leads, who lags
    #[command(after_help = "Example: postroad control list")]
    List,
    /// Certify this control node and give it a vote; run it on the node itself
    #[command(after_help = "Example: postroad control promote ams-2 --authority harbour.authority\n\n\
                            It needs the cluster's authority, which is opened here and not kept. The node's own keys \
                            never leave its host, so it cannot be done from another.")]
    Promote {
        /// The control node, which is the one on this host
        name: String,
        /// The sealed authority, as init wrote it
        #[arg(long, value_name = "FILE")]
        authority: PathBuf,
        /// A file with the passphrase, instead of asking for it
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Take a control node's vote; it goes on learning
    #[command(after_help = "Example: postroad control demote ams-2")]
    Demote {
        /// The control node
        name: String,
    },
    /// Take a control node out of the group and the cluster for good
    #[command(after_help = "Example: postroad control remove ams-2 --yes")]
    Remove {
        /// The control node
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Let another control node lead
    #[command(after_help = "Example: postroad control step-down")]
    StepDown,
}

#[derive(Deserialize)]
struct Promoted {
    node: String,
    certified: bool,
    voted: bool,
}

#[derive(Deserialize)]
struct SteppedDown {
    before: Option<String>,
    leader: Option<String>,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the node does not answer, or the group refuses, since it would lose its majority for example.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::List => list(context),
            Verb::Promote { name, authority, passphrase_file } => {
                let passphrase = passphrase::read(passphrase_file.as_deref(), false)?;
                promote(context, &view::Promote { name: name.clone(), authority: sealed(authority)?, passphrase })
            }
            Verb::Demote { name } => {
                let mut output =
                    context.ask(Method::DELETE, &format!("/api/control/voters/{}", segment(name)?), None)?;
                output.human = format!(
                    "{name} does not vote any more and goes on learning\n\
                     To undo, on {name}: postroad control promote {name} --authority FILE"
                );
                Ok(output)
            }
            Verb::Remove { name, yes } => {
                confirm(*yes, &format!("{name} loses its vote, its relay and its place in the cluster for good"))?;
                let mut output = context.ask(Method::DELETE, &format!("/api/control/{}", segment(name)?), None)?;
                output.human = format!("{name} is removed; to return, it joins anew from an empty data directory");
                Ok(output)
            }
            Verb::StepDown => {
                let mut output = context.ask(Method::POST, "/api/control/step-down", Some(&json!({})))?;
                let SteppedDown { before, leader } = read(&output)?;
                let nobody = || "nobody".to_owned();
                output.human = format!(
                    "{} leads now, {} did before",
                    leader.unwrap_or_else(nobody),
                    before.unwrap_or_else(nobody)
                );
                Ok(output)
            }
        }
    }
}

fn sealed(path: &PathBuf) -> Result<String, Failure> {
    let unreadable = |what: String| {
        Failure::failed("AUTHORITY_UNREADABLE", format!("could not read the authority {}: {what}", path.display()))
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > AUTHORITY_FILE_BYTES_MAX as u64 {
        return Err(unreadable(format!("it has {length} bytes, so it is another file")));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))
}

fn promote(context: &Context, wanted: &view::Promote) -> Result<Output, Failure> {
    let mut output = context.ask(Method::POST, "/api/control/promote", Some(&json!(wanted)))?;
    let Promoted { node, certified, voted } = read(&output)?;
    output.human = match (certified, voted) {
        (false, false) => format!("{node} was certified and votes already"),
        (true, false) => format!("{node} is certified: it issues and signs"),
        (false, true) => format!("{node} votes\nTo undo: postroad control demote {node}"),
        (true, true) => format!(
            "{node} is certified and votes\nTo undo: postroad control demote {node}\n\
             Take the authority off this host again"
        ),
    };
    Ok(output)
}

fn role(member: &Member, view: &ControlView) -> &'static str {
    match (view.leader == Some(member.id), member.votes, member.learns) {
        (true, ..) => "leads",
        (_, true, _) => "votes",
        (_, _, true) => "learns",
        _ => "is not reached by the log yet",
    }
}

fn list(context: &Context) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, "/api/control", None)?;
    let view: ControlView = read(&output)?;
    let mut table = Table::new(["control node", "role", "signs", "address", "answered", ">behind"]);
    for member in &view.members {
        let answered = match (member.live, member.silent_ms) {
            (Some(true), None) => "leads".to_owned(),
            (_, Some(ms)) => format!("{ms} ms ago"),
            (Some(false), None) => "never".to_owned(),
            (None, None) => "-".to_owned(),
        };
        table.row([
            member.name.clone(),
            role(member, &view).to_owned(),
            if member.certified { "yes" } else { "no" }.to_owned(),
            member.address.clone().unwrap_or_default(),
            answered,
            member.lag_entries.map_or_else(|| "-".to_owned(), relative::count),
        ]);
    }
    let cause = view.cause.as_ref().map_or_else(String::new, |cause| format!(", since {cause}"));
    output.human = format!(
        "{}term {} for {}{cause}; log {}, committed {}",
        table.render(context.style),
        view.term,
        relative::span(now().since(view.leads_since)),
        relative::count(view.log),
        relative::count(view.committed)
    );
    Ok(output)
}
