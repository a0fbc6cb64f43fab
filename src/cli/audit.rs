//! `postroad audit`: what was changed in the cluster, when, and by which node.

use axum::http::Method;
use clap::Args;

use super::{Context, output::Output, read, relative, table::Table};
use crate::{api::view::Audit, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad audit\n\n\
                        The control nodes agree on each line with the change that it is of. What somebody does from a \
                        console has a line before it is done, with who and why.")]
pub struct Command {
    /// How many lines, the newest first
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=200))]
    limit: u64,
}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When no control node answers.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let mut output = context.ask(Method::GET, "/api/audit", None)?;
        let mut audit: Audit = read(&output)?;
        audit.lines.truncate(self.limit as usize);
        let mut table = Table::new([">entry", "when", "by", "what"]);
        for line in &audit.lines {
            let when = relative::moment(line.at, audit.now);
            table.row([relative::count(line.version), when, line.by.clone(), line.what.clone()]);
        }
        output.human =
            if table.is_empty() { "Nothing was changed yet.".to_owned() } else { table.render(context.style) };
        output.data = serde_json::to_value(audit).unwrap_or_default();
        Ok(output)
    }
}
