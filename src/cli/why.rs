//! `postroad why`: why a link's circuits are on their relays, what a relay carries, one placement of a link on a relay,
//! and what if it died.

use axum::http::Method;
use clap::Args;

use super::{Context, output::Output, read, segment};
use crate::{
    console::{grid, query::Query},
    errors::Failure,
};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad why db\n\n\
                        For a link: each circuit that carries it, with every relay as the decision sees it. For a relay: \
                        what it carries. For a link and a relay: why the link is there, or why it is elsewhere. All say \
                        what would happen if a relay died now, by the function that would decide it, on a copy. Without \
                        a name, everything.")]
pub struct Command {
    /// A link or a relay
    name: Option<String>,
    /// The relay, for one placement of a link
    relay: Option<String>,
}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer, or nothing has that name.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let ask = |key: &str, name: &str| {
            context.ask(Method::GET, &Query::default().with(key, name).address("/api/console/why"), None)
        };
        let relay = self.relay.as_deref().map(segment).transpose()?;
        let mut output = match (self.name.as_deref().map(segment).transpose()?, relay) {
            (None, _) => ask("link", ""),
            (Some(link), Some(relay)) => {
                let query = Query::default().with("link", link).with("relay", relay);
                context.ask(Method::GET, &query.address("/api/console/why"), None)
            }
            // A name of both is the link's, since that is asked for more often.
            (Some(name), None) => match ask("link", name) {
                Err(failure) if failure.code == "LINK_UNKNOWN" => ask("relay", name).map_err(|other| {
                    if other.code == "RELAY_UNKNOWN" {
                        Failure::refused("NAME_UNKNOWN", format!("there is no link and no relay {name:?}"))
                            .hint("See them: postroad link list, postroad relay list")
                    } else {
                        other
                    }
                }),
                answer => answer,
            },
        }?;
        output.human = grid::text(&grid::why(&read(&output)?), context.style);
        Ok(output)
    }
}
