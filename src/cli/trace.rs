//! `postroad trace`: one request through actors and nodes, step by step.

use axum::http::Method;
use clap::Args;
use postroad_cluster::trace::TraceId;

use super::{Context, output::Output, read};
use crate::{console::grid, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad trace 4f0c2a9be1d37765\n\n\
                        Whatever follows from one message carries its trace, from actor to actor and from node to node. \
                        A command that changes something says its trace (trace in --json); postroad actor shows that of \
                        each message. Nodes remember the last messages of each actor.")]
pub struct Command {
    /// The trace: 16 hexadecimal digits
    id: TraceId,
}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let mut output = context.ask(Method::GET, &format!("/api/console/trace/{}", self.id), None)?;
        output.human = grid::text(&[grid::trace(&read(&output)?)], context.style);
        Ok(output)
    }
}
