//! `postroad top`: the actors of a node, the busiest first.

use axum::http::Method;
use clap::{Args, ValueEnum};

use super::{Context, output::Output, read};
use crate::{
    console::{grid, query::Query},
    errors::Failure,
};

/// What actors are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Busy,
    Depth,
    Wait,
    Rate,
    Restarts,
    Handled,
    Path,
}

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad top --sort depth\n\n\
                        One look, for scripts and for whoever is in a hurry; postroad console follows. Waits are those \
                        that 99 of 100 events of the window stayed under.")]
pub struct Command {
    /// The node [default: the one on this host]
    #[arg(long, value_name = "NAME")]
    on: Option<String>,
    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Busy)]
    sort: Sort,
    /// Only actors whose path or behavior has these words
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// How many
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    limit: u64,
    /// The window of waits, rates and shares, in seconds: 5, 20 or 59
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=59))]
    window: u64,
}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let sort = self.sort.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let query = Query::default()
            .with("node", self.on.as_deref().unwrap_or_default())
            .with("sort", &sort)
            .with("q", self.search.as_deref().unwrap_or_default())
            .with("limit", &self.limit.to_string())
            .with("window", &self.window.to_string());
        let mut output = context.ask(Method::GET, &query.address("/api/console/actors"), None)?;
        output.human = grid::text(&[grid::actors(&read(&output)?)], context.style);
        Ok(output)
    }
}
