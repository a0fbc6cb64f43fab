//! `postroad tail`: the last messages of an actor, and those that come.

use std::{
    io::{self, Write as _},
    thread::sleep,
    time::Duration,
};

use axum::http::Method;
use clap::Args;
use postroad_actors::inspect::JournalView;

use super::{Context, output::Output, read};
use crate::{
    console::{
        figures::nanoseconds,
        grid,
        model::actor::{Actor, name},
        query::Query,
    },
    errors::Failure,
};

/// How often new messages are asked for.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad tail node/control\n\n\
                        With --follow it goes on until Ctrl-C, one line a message; with --json too, one JSON object a \
                        line. An actor that takes more than 256 messages in half a second shows its newest ones.")]
pub struct Command {
    /// Its path, as postroad top shows it
    path: String,
    /// Go on with what comes
    #[arg(short, long)]
    follow: bool,
    /// The node [default: the one on this host]
    #[arg(long, value_name = "NAME")]
    on: Option<String>,
    /// How many messages
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=256))]
    messages: u64,
}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer or has no such actor.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let mut output = self.ask(context, self.messages)?;
        let page: Actor = read(&output)?;
        if !self.follow {
            output.human = grid::text(&[grid::messages(&page)], context.style);
            return Ok(output);
        }
        let mut last = 0;
        let mut page = page;
        loop {
            // Newest first on the page, oldest first in a log.
            for message in page.messages.iter().rev().filter(|message| message.number > last) {
                if say(message, context.global.json).is_err() {
                    // Whoever reads us has read enough, as `head` does.
                    return Ok(Output::default());
                }
            }
            last = page.messages.first().map_or(last, |message| message.number.max(last));
            sleep(ASK_EVERY);
            page = read(&self.ask(context, 256)?)?;
        }
    }

    fn ask(&self, context: &Context, messages: u64) -> Result<Output, Failure> {
        let query = Query::default()
            .with("node", self.on.as_deref().unwrap_or_default())
            .with("messages", &messages.to_string());
        context.ask(Method::GET, &query.address(&format!("/api/console/actor/{}", self.path)), None)
    }
}

fn say(message: &JournalView, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(message).unwrap_or_default())
    } else {
        let effects: Vec<String> = message.effects.iter().map(name).collect();
        let effects = message.failure.clone().unwrap_or_else(|| effects.join(", "));
        let took = message.took_ns.map_or_else(String::new, nanoseconds);
        let (number, kind, sender, trace) = (message.number, &message.kind, &message.sender, message.trace);
        let waited = nanoseconds(message.waited_ns);
        writeln!(out, "{number:>8}  {kind:<18} {sender:<28} waited {waited:>8}  took {took:>8}  {trace}  {effects}")
    }
}
