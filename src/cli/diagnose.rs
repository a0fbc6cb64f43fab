//! `postroad diagnose`: everything that the console knows of the fleet's health, at once, to read or to send.

use axum::http::Method;
use clap::Args;
use serde_json::json;

use super::{Context, output::Output, read};
use crate::{console::grid, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad diagnose\n\n\
                        How the fleet stands and what is wrong with since when, cause and next command; nodes, relays, \
                        the control group, policies and leases, and what would happen if a relay died. It holds names \
                        and addresses and no secrets.")]
pub struct Command {}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let ask = |page: &str| context.ask(Method::GET, &format!("/api/console/{page}"), None);
        let (overview, control, why, actors) =
            (ask("overview")?, ask("control")?, ask("why")?, ask("actors?limit=10")?);
        let mut grids = grid::overview(&read(&overview)?);
        grids.extend(grid::control(&read(&control)?));
        grids.extend(grid::why(&read(&why)?));
        grids.push(grid::actors(&read(&actors)?));
        let data =
            json!({ "overview": overview.data, "control": control.data, "why": why.data, "actors": actors.data });
        let mut warnings = overview.warnings;
        for warning in control.warnings.into_iter().chain(why.warnings) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        Ok(Output::new(data, grid::text(&grids, context.style)).warn(warnings))
    }
}
