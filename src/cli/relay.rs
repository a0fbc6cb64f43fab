//! `postroad relay add|list|show|drain|resume|rebalance|force-disconnect`: the relays that carry everything.

mod drain;

use std::time::Duration;

use axum::http::Method;
use clap::{Args, Subcommand};
use postroad_actors::status::{
    local::Session,
    relays::{Carried, Relay, Relays, Shared},
};
use postroad_cluster::id::{Name, Role};
use serde::Deserialize;

use super::{
    Context, domain_words, host_port, milliseconds, now, output::Output, read, relative, segment, table::Table, token,
};
use crate::{api::view, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad relay list")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Invite a relay: print the one command that makes a host one
    #[command(after_help = "Example: postroad relay add fra-1 --advertise fra-1.example.com:9443\n\n\
                            The printed command enrols the host and goes on as its node. The relay counts once other \
                            nodes have reached its address.")]
    Add {
        /// The relay's name
        name: Name,
        /// Where nodes reach it over UDP
        #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
        advertise: String,
        /// How long the invitation waits, at most 7d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = token::lifetime)]
        valid_for: Duration,
    },
    /// List the relays
    #[command(after_help = "Example: postroad relay list")]
    List,
    /// Show one relay: its state with the reason, who reaches it, what it shares with others
    #[command(after_help = "Example: postroad relay show fra-1")]
    Show {
        /// Its name
        name: String,
    },
    /// Take a relay out of service: new connections go elsewhere, open ones move without a gap
    #[command(after_help = "Example: postroad relay drain fra-1\n\n\
                            The command shows what is left until nothing is; ending it does not end the drain. What \
                            cannot move may go on for 10 min and is then disconnected. A relay that is not connected \
                            drains as soon as it is.")]
    Drain(drain::Drain),
    /// Return a drained or draining relay to service
    #[command(after_help = "Example: postroad relay resume fra-1")]
    Resume {
        /// Its name
        name: String,
    },
    /// Spread flows over the relays by moving circuits, without a gap
    #[command(after_help = "Example: postroad relay rebalance --dry-run\n\n\
                            By itself a circuit leaves a relay that is silent, drains, or is much farther than another; \
                            so flows may pile up on one. This moves circuits from the relay with most flows to others \
                            that both ends reach and where they would stay, while that makes the larger load smaller.")]
    Rebalance {
        /// Only say what would be moved, and why
        #[arg(long)]
        dry_run: bool,
    },
    /// End the wait of a drain: disconnect what could not move
    #[command(after_help = "Example: postroad relay force-disconnect fra-1 --yes\n\n\
                            Flows that no other relay reaches wait for one as long as flow_wait_seconds says, and are \
                            then reset.")]
    ForceDisconnect {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Circuits that `relay show` names, the busiest first.
const CARRIED_SHOWN: usize = 10;

#[derive(Deserialize)]
struct Shown {
    relay: Relay,
    shares: Vec<Shared>,
    session: Option<Session>,
    carries: Vec<Carried>,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the node does not answer or the cluster refuses.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::Add { name, advertise, valid_for } => add(context, name, advertise, *valid_for),
            Verb::List => list(context),
            Verb::Show { name } => show(context, name),
            Verb::Drain(drain) => drain.run(context),
            Verb::Resume { name } => drain::resume(context, name),
            Verb::Rebalance { dry_run } => rebalance(context, *dry_run),
            Verb::ForceDisconnect { name, yes } => drain::disconnect(context, name, *yes),
        }
    }
}

fn rebalance(context: &Context, dry_run: bool) -> Result<Output, Failure> {
    let body = serde_json::to_value(view::Rebalance { dry_run }).unwrap_or_default();
    let mut output = context.ask(Method::POST, "/api/relays/rebalance", Some(&body))?;
    let page: view::Rebalanced = read(&output)?;
    if page.moves.is_empty() {
        "Nothing to move: flows are spread as well as circuits allow.".clone_into(&mut output.human);
        return Ok(output);
    }
    let mut table = Table::new(["circuit", ">flows", "from", "to", "", "why"]);
    for moved in &page.moves {
        let done = if moved.done {
            "moved"
        } else if dry_run {
            "planned"
        } else {
            "stayed"
        };
        let between = format!("{} ⇄ {}", moved.node, moved.peer);
        table.row([
            between,
            moved.flows.to_string(),
            moved.from.clone(),
            moved.to.clone(),
            done.into(),
            moved.why.clone(),
        ]);
    }
    let what =
        if dry_run { "Nothing was moved yet: postroad relay rebalance" } else { "See where they are: postroad why" };
    output.human = format!("{}{what}", table.render(context.style));
    Ok(output)
}

// RP-6: one command with a one-time token, the cluster's address and the fingerprint of its authority.
fn add(context: &Context, name: &Name, advertise: &str, valid_for: Duration) -> Result<Output, Failure> {
    let wanted = view::TokenCreate {
        role: Role::Relay,
        valid_seconds: valid_for.as_secs(),
        name: Some(name.to_string()),
        advertise: Some(advertise.to_owned()),
        run: true,
    };
    let (mut output, token) = token::invite(context, &wanted)?;
    output.human = format!(
        "on the host of {name}, before this ends {}:\n\n{}\n\n\
         UDP must reach it at {advertise}; it counts once others have: postroad relay show {name}\n\
         To take it back: postroad token revoke {}",
        relative::moment(token.expires, now()),
        token.command,
        token.id
    );
    Ok(output)
}

fn list(context: &Context) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, "/api/relays", None)?;
    let relays: Relays = read(&output)?;
    let mut table = Table::new(["relay", "state", "address", "on control", "reached by", ">flows", "stands"]);
    for relay in &relays.list {
        let measured = relay.reached_by.len() + relay.missed_by.len();
        let reached = if measured == 0 { "-".to_owned() } else { format!("{} of {measured}", relay.reached_by.len()) };
        table.row([
            relay.name.clone(),
            relay.state_words(),
            relay.address.clone(),
            if relay.local { "yes" } else { "no" }.to_owned(),
            reached,
            relay.flows.map_or_else(|| "-".to_owned(), relative::count),
            domain_words(&relay.domain),
        ]);
    }
    output.human = if table.is_empty() {
        "there is no relay yet; invite one: postroad relay add NAME --advertise HOST:PORT".to_owned()
    } else {
        format!(
            "{}{} ready, {} of them independent, {} off the control nodes",
            table.render(context.style),
            relays.ready,
            relays.independent,
            relays.off_control
        )
    };
    Ok(output)
}

fn show(context: &Context, name: &str) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, &format!("/api/relays/{}", segment(name)?), None)?;
    let Shown { relay, shares, session, carries } = read(&output)?;
    let place = if relay.local { "on a control node" } else { "off the control nodes" };
    let reason = if relay.reason.is_empty() { String::new() } else { format!(", {}", relay.reason) };
    let mut lines = vec![
        format!("{} ({}) {place}", context.style.heading(&relay.name), relay.id),
        format!("  state    {}{reason}", relay.state_words()),
        format!("  address  {}", relay.address),
        format!("  stands   {}", domain_words(&relay.domain)),
    ];
    if let Some(drain) = &relay.drain {
        lines.push(drain::words(drain, now()));
    }
    if let (Some(circuits), Some(flows)) = (relay.circuits, relay.flows) {
        lines.push(format!("  carries  {circuits} circuits with {} flows", relative::count(flows)));
    }
    for circuit in carries.iter().take(CARRIED_SHOWN) {
        lines.push(format!("           {}", drain::pair(circuit)));
    }
    for pair in &shares {
        let other = if pair.one == relay.name { &pair.other } else { &pair.one };
        lines.push(format!("  with     {other}: {}", pair.what));
    }
    for (node, round_trip_us) in &relay.reached_by {
        lines.push(format!("  reached  by {node} in {}", milliseconds(*round_trip_us)));
    }
    for (node, why) in &relay.missed_by {
        lines.push(format!("  missed   by {node}: {why}"));
    }
    if let Some(session) = session {
        let how = match (session.up, session.round_trip_us) {
            (true, Some(us)) => format!("up, {}", milliseconds(us)),
            (true, None) => "up".to_owned(),
            (false, _) => format!("{}: {}", session.phase, session.last_end.as_deref().unwrap_or("being dialled")),
        };
        lines.push(format!("  session  of this node: {how}"));
    }
    output.human = lines.join("\n");
    Ok(output)
}
