//! `postroad node`: runs this node; `postroad node list|show|remove` look at all of them.

use axum::http::Method;
use clap::{Args, Subcommand};
use serde::Deserialize;

use super::{Context, confirm, domain_words, now, output::Output, read, relative, segment, table::Table};
use crate::{api::view, boot, errors::Failure, telemetry};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad node\n\n\
                        Without a verb it runs this node in the foreground until SIGTERM or Ctrl-C, and stops it in \
                        order. systemd is told when it is ready.")]
pub struct Command {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the nodes of the cluster
    #[command(after_help = "Example: postroad node list")]
    List,
    /// Show one node
    #[command(after_help = "Example: postroad node show web-1")]
    Show {
        /// Its name
        name: String,
    },
    /// Take a node out of the cluster for good, and revoke its certificates
    #[command(after_help = "Example: postroad node remove web-1 --yes\n\n\
                            For hosts that are gone. A host that is there leaves by itself: postroad leave, on it.")]
    Remove {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<view::Node>,
}

impl Command {
    /// Runs the node, or the verb.
    ///
    /// # Errors
    /// What kept the node from running, or that the node on this host does not answer or refuses.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            None => {
                let loaded = context.load_config()?;
                telemetry::start(&loaded.config.log)?;
                for warning in &loaded.warnings {
                    tracing::warn!("{warning}");
                }
                boot::run(&loaded.config).map(|()| Output::default())
            }
            Some(Verb::List) => list(context),
            Some(Verb::Show { name }) => show(context, name),
            Some(Verb::Remove { name, yes }) => {
                confirm(
                    *yes,
                    &format!("{name} is taken out of the cluster for good and its certificates are revoked"),
                )?;
                let mut output = context.ask(Method::DELETE, &format!("/api/nodes/{}", segment(name)?), None)?;
                output.human = format!("{name} is removed; to return, it joins anew from an empty data directory");
                Ok(output)
            }
        }
    }
}

fn roles(node: &view::Node) -> String {
    node.roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(", ")
}

fn list(context: &Context) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, "/api/nodes", None)?;
    let Nodes { nodes } = read(&output)?;
    let mut table = Table::new(["node", "id", "roles", "address", ">links", "joined"]);
    for node in &nodes {
        table.row([
            node.name.clone(),
            node.id.to_string(),
            roles(node),
            node.advertised.clone().unwrap_or_else(|| "-".to_owned()),
            (node.consumes.len() + node.serves.len()).to_string(),
            relative::moment(node.joined, now()),
        ]);
    }
    output.human = table.render(context.style);
    Ok(output)
}

fn show(context: &Context, name: &str) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, &format!("/api/nodes/{}", segment(name)?), None)?;
    let node: view::Node = read(&output)?;
    let or_none = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    output.human = format!(
        "{} ({})\n  roles      {}\n  address    {}\n  stands     {}\n  joined     {}\n  consumes   {}\n  serves     {}",
        context.style.heading(&node.name),
        node.id,
        roles(&node),
        node.advertised.as_deref().unwrap_or("none; it only dials out"),
        domain_words(&node.domain),
        relative::moment(node.joined, now()),
        or_none(&node.consumes),
        or_none(&node.serves)
    );
    Ok(output)
}
