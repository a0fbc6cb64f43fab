//! `postroad leave`: takes this node out of its cluster for good.

use axum::http::Method;
use clap::Args;
use serde_json::json;
use tokio::runtime::Handle;

use super::{Context, confirm, output::Output};
use crate::{boot, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad leave --yes\n\n\
                        The node must run. Its links must be removed first: postroad link list. What it had is not \
                        given back: to return, it joins anew from an empty data directory.")]
pub struct Command {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Ask nobody, only mark the data directory: for a node that was removed already; it must not run
    #[arg(long)]
    forget: bool,
}

impl Command {
    /// Leaves.
    ///
    /// # Errors
    /// When the cluster refuses, or nobody answers.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        if self.forget {
            return forget(context);
        }
        confirm(self.yes, "this node leaves its cluster for good, its certificate is revoked and it stops")?;
        let mut output = context.ask(Method::POST, "/api/leave", Some(&json!({})))?;
        let (node, cluster) = (&output.data["node"], &output.data["cluster"]);
        output.human = format!(
            "{} has left {} and stops; to return, it joins anew from an empty data directory",
            node.as_str().unwrap_or_default(),
            cluster.as_str().unwrap_or_default()
        );
        Ok(output)
    }
}

fn forget(context: &Context) -> Result<Output, Failure> {
    let config = context.load_config()?.config;
    context.block_on(async {
        let opened = boot::open(&config, &Handle::current())?;
        boot::mark_left(&opened.databases)
    })?;
    let data = config.node.data.display();
    Ok(Output::new(json!({ "data": config.node.data }), format!("{data} is no node's any more; it can be removed")))
}
