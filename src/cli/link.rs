//! `postroad link add|list|show|set|retarget|remove|test`: private ways from a local address on some nodes to a target
//! beside another.

mod trial;

use std::collections::BTreeMap;

use axum::http::Method;
use clap::{Args, Subcommand};
use postroad_cluster::{id::Name, limits::SPREAD_DEFAULT};
use serde::Deserialize;
use serde_json::json;

use super::{Context, now, output::Output, read, relative, segment, status::plural, table::Table};
use crate::{api::view, errors::Failure};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad link list")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a link: what connects to an address on one node reaches a target beside another
    #[command(after_help = "Example: postroad link add db --from web-1=127.0.0.1:5432 --to db-1=127.0.0.1:5432")]
    Add {
        /// The link's name
        name: Name,
        /// A node and the address on which it listens; may be given for several nodes
        #[arg(long, value_name = "NODE=ADDRESS:PORT", required = true, value_parser = end)]
        from: Vec<End>,
        /// The node that connects to the target, and the target as that node resolves it
        #[arg(long, value_name = "NODE=HOST:PORT", value_parser = end)]
        to: End,
        /// Over how many relays new connections are spread, 1 to 8; each more is redundancy for more connections, at the
        /// price of a circuit
        #[arg(long, value_name = "RELAYS", default_value_t = SPREAD_DEFAULT)]
        spread: u8,
    },
    /// List the links
    #[command(after_help = "Example: postroad link list")]
    List,
    /// Show one link
    #[command(after_help = "Example: postroad link show db")]
    Show {
        /// Its name
        name: String,
    },
    /// Lead a link to another target beside the same node; connections to the old one end, new ones are held meanwhile
    #[command(after_help = "Example: postroad link retarget db --to 127.0.0.1:5433")]
    Retarget {
        /// Its name
        name: String,
        /// The new target, as the link's target node resolves it
        #[arg(long, value_name = "HOST:PORT", value_parser = super::host_port)]
        to: String,
    },
    /// Change how a link is carried; open connections go on as they are
    #[command(after_help = "Example: postroad link set db --spread 3\n\n\
                            Two nodes share their circuits among their links: where those differ, the largest spread \
                            counts for all of them.")]
    Set {
        /// Its name
        name: String,
        /// Over how many relays new connections are spread, 1 to 8
        #[arg(long, value_name = "RELAYS")]
        spread: u8,
    },
    /// Measure a link: latency, throughput, and on request how a flow bears its relay's death
    #[command(after_help = "Example: postroad link test db --kill-relay")]
    Test(trial::Trial),
    /// Remove a link, and end its open flows
    #[command(after_help = "Example: postroad link remove db")]
    Remove {
        /// Its name
        name: String,
    },
}

/// A node and an address, as `web-1=127.0.0.1:5432`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    node: String,
    address: String,
}

fn end(text: &str) -> Result<End, String> {
    let (node, address) = text.split_once('=').ok_or("write it as NODE=ADDRESS:PORT, as web-1=127.0.0.1:5432")?;
    node.parse::<Name>().map_err(|error| error.to_string())?;
    let port = address.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port));
    match port.map(str::parse::<u16>) {
        Some(Ok(1..)) => Ok(End { node: node.to_owned(), address: address.to_owned() }),
        _ => Err(format!("{address:?} is no address with a port, as 127.0.0.1:5432")),
    }
}

#[derive(Deserialize)]
struct Links {
    links: Vec<view::Link>,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the node does not answer or the cluster refuses.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::Add { name, from, to, spread } => add(context, name, from, to, *spread),
            Verb::List => list(context),
            Verb::Show { name } => show(context, name),
            Verb::Retarget { name, to } => retarget(context, name, to),
            Verb::Set { name, spread } => set(context, name, *spread),
            Verb::Test(trial) => trial.run(context),
            Verb::Remove { name } => remove(context, name),
        }
    }
}

fn add(context: &Context, name: &Name, from: &[End], to: &End, spread: u8) -> Result<Output, Failure> {
    let mut consumers = BTreeMap::new();
    for end in from {
        if consumers.insert(end.node.clone(), end.address.clone()).is_some() {
            return Err(Failure::wrong_use(format!("--from names {} twice, and a node listens once a link", end.node)));
        }
    }
    let wanted = view::LinkAdd {
        name: name.to_string(),
        from: consumers,
        to: to.node.clone(),
        address: to.address.clone(),
        spread: Some(spread),
    };
    let mut output = context.ask(Method::POST, "/api/links", Some(&json!(wanted)))?;
    let ways = from.iter().map(|end| format!("{} on {}", end.address, end.node)).collect::<Vec<_>>().join(", ");
    output.human = format!(
        "link {name}: {ways} now lead to {} beside {}\nTo undo: postroad link remove {name}",
        to.address, to.node
    );
    Ok(output)
}

fn consumers(link: &view::Link) -> String {
    link.from.iter().map(|end| format!("{}={}", end.node, end.listen)).collect::<Vec<_>>().join(", ")
}

fn target(link: &view::Link) -> String {
    match &link.to.address {
        Some(address) => format!("{}={address}", link.to.node),
        None => link.to.node.clone(),
    }
}

fn list(context: &Context) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, "/api/links", None)?;
    let Links { links } = read(&output)?;
    let mut table = Table::new(["link", "from", "to", ">spread", "made"]);
    for link in &links {
        let made = link.made.map_or_else(|| "-".to_owned(), |made| relative::moment(made, now()));
        table.row([link.name.clone(), consumers(link), target(link), link.spread.to_string(), made]);
    }
    output.human = if table.is_empty() {
        "there is no link yet; make one: postroad link add NAME --from NODE=ADDRESS:PORT --to NODE=HOST:PORT".to_owned()
    } else {
        table.render(context.style)
    };
    Ok(output)
}

fn show(context: &Context, name: &str) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, &format!("/api/links/{}", segment(name)?), None)?;
    let link: view::Link = read(&output)?;
    let made = link.made.map_or_else(|| "not known on this node".to_owned(), |made| relative::moment(made, now()));
    output.human = format!(
        "{} ({}, route generation {})\n  from   {}\n  to     {}\n  spread {} of new connections\n  made   {made}\n\
         Flows and relays of it: postroad status, on its nodes",
        context.style.heading(&link.name),
        link.id,
        link.generation,
        consumers(&link),
        target(&link),
        plural(link.spread.into(), "relay")
    );
    Ok(output)
}

fn set(context: &Context, name: &str, spread: u8) -> Result<Output, Failure> {
    let wanted = view::LinkSet { spread };
    let mut output = context.ask(Method::POST, &format!("/api/links/{}", segment(name)?), Some(&json!(wanted)))?;
    let view::LinkSetDone { link, before } = read(&output)?;
    let relays = plural(link.spread.into(), "relay");
    output.human = if before == link.spread {
        format!("new connections of link {} were spread over {relays} already", link.name)
    } else {
        format!(
            "new connections of link {} are spread over {relays}, with a circuit for each between every two of its \
             nodes\nTo undo: postroad link set {} --spread {before}",
            link.name, link.name
        )
    };
    Ok(output)
}

fn retarget(context: &Context, name: &str, to: &str) -> Result<Output, Failure> {
    let wanted = view::LinkRetarget { address: to.to_owned() };
    let mut output =
        context.ask(Method::POST, &format!("/api/links/{}/target", segment(name)?), Some(&json!(wanted)))?;
    let view::LinkRetargeted { link, before, changed } = read(&output)?;
    output.human = if changed {
        format!(
            "link {} leads to {to} beside {} now; connections to {before} are ended\n\
             To undo: postroad link retarget {} --to {before}",
            link.name, link.to.node, link.name
        )
    } else {
        format!("link {} led to {to} already", link.name)
    };
    Ok(output)
}

fn remove(context: &Context, name: &str) -> Result<Output, Failure> {
    let mut output = context.ask(Method::DELETE, &format!("/api/links/{}", segment(name)?), None)?;
    let link: view::Link = read(&output)?;
    let from = link.from.iter().map(|end| format!("--from {}={}", end.node, end.listen)).collect::<Vec<_>>().join(" ");
    let spread = if link.spread == SPREAD_DEFAULT { String::new() } else { format!(" --spread {}", link.spread) };
    output.human = format!(
        "link {} is removed and its open flows are ended\nTo make it again: postroad link add {} {from} --to {}{spread}",
        link.name,
        link.name,
        target(&link)
    );
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_a_node_and_an_address() {
        let made = |node: &str, address: &str| End { node: node.into(), address: address.into() };
        assert_eq!(end("web-1=127.0.0.1:5432"), Ok(made("web-1", "127.0.0.1:5432")));
        assert_eq!(end("db=[::1]:5432"), Ok(made("db", "[::1]:5432")));
        for bad in ["web-1", "web-1=", "web-1=5432", "web-1=:5432", "web-1=a:0", "web-1=a:70000", "Web=a:1", "=a:1"] {
            assert!(end(bad).is_err(), "{bad}");
        }
    }
}
