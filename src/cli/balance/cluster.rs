//! `postroad balance add|set|list|show|remove`: the balancers that nodes run for the cluster (DB-43).

use std::collections::BTreeMap;

use axum::http::Method;
use clap::Args;
use postroad_cluster::{balancer::database::settings::check_node_id, id::Name};
use serde::Deserialize;
use serde_json::json;

use super::{
    super::{Context, confirm, host_port, now, output::Output, read, relative, table::Table},
    text,
};
use crate::{
    api::view::{Balancer, BalancerAdd, BalancerChanged, BalancerSet, BalancerShown, Runner},
    errors::Failure,
};

/// A database node and its address, as `db-1=10.0.0.1:5432`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Database {
    id: String,
    address: String,
}

fn database(text: &str) -> Result<Database, String> {
    let (id, address) = text.split_once('=').ok_or("write it as ID=HOST:PORT, as db-1=10.0.0.1:5432")?;
    check_node_id(id).map_err(|wrong| format!("{id:?} {wrong}"))?;
    Ok(Database { id: id.to_owned(), address: host_port(address)? })
}

/// `add`
#[derive(Debug, Args)]
pub(super) struct Add {
    /// The balancer's name
    name: Name,
    /// A database node by the id that it announces, and its address; one for each node of the database cluster
    #[arg(long, value_name = "ID=HOST:PORT", required = true, value_parser = database)]
    to: Vec<Database>,
    /// A node that runs it; may be given for several
    #[arg(long, value_name = "NODE", required = true)]
    on: Vec<Name>,
}

/// `set`
#[derive(Debug, Args)]
pub(super) struct Set {
    /// The balancer's name
    name: Name,
    /// A database node that is added, or gets another address
    #[arg(long, value_name = "ID=HOST:PORT", value_parser = database)]
    to: Vec<Database>,
    /// A database node that is taken out
    #[arg(long, value_name = "ID")]
    without: Vec<String>,
    /// A node that runs it from now on
    #[arg(long, value_name = "NODE")]
    on: Vec<Name>,
    /// A node that runs it no more: its ports there close and its connections end
    #[arg(long, value_name = "NODE")]
    off: Vec<Name>,
}

fn names(names: &[Name]) -> Vec<String> {
    names.iter().map(Name::to_string).collect()
}

fn addresses(databases: &[Database]) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    for database in databases {
        if found.insert(database.id.clone(), database.address.clone()).is_some() {
            return Err(Failure::wrong_use(format!("--to names {} twice", database.id)));
        }
    }
    Ok(found)
}

fn led(databases: &BTreeMap<String, String>) -> String {
    databases.iter().map(|(id, address)| format!("{id}={address}")).collect::<Vec<_>>().join(", ")
}

fn runners(on: &[Runner]) -> String {
    on.iter().map(|runner| runner.node.as_str()).collect::<Vec<_>>().join(", ")
}

/// `--FLAG VALUE` for each.
fn flags<T: std::fmt::Display>(flag: &str, values: impl IntoIterator<Item = T>) -> String {
    values
        .into_iter()
        .flat_map(|value| [" --".to_owned(), flag.to_owned(), " ".to_owned(), value.to_string()])
        .collect()
}

impl Add {
    pub(super) fn run(&self, context: &Context) -> Result<Output, Failure> {
        let name = &self.name;
        let wanted = BalancerAdd { name: name.to_string(), to: addresses(&self.to)?, on: names(&self.on) };
        let mut output = context.ask(Method::POST, "/api/balancers", Some(&json!(wanted)))?;
        let balancer: Balancer = read(&output)?;
        output.human = format!(
            "balancer {name} runs on {} and leads to {}\n\
             Each needs its ports and monitoring account in a file: [balancers] {name} = FILE in its postroad.toml, and \
             a restart; see postroad balance example\nTo undo: postroad balance remove {name}",
            runners(&balancer.on),
            led(&balancer.databases)
        );
        Ok(output)
    }
}

impl Set {
    pub(super) fn run(&self, context: &Context) -> Result<Output, Failure> {
        let name = &self.name;
        let wanted = BalancerSet {
            to: addresses(&self.to)?,
            without: self.without.clone(),
            on: names(&self.on),
            off: names(&self.off),
        };
        if wanted == BalancerSet::default() {
            return Err(Failure::wrong_use(format!("nothing of {name} was to be changed"))
                .hint("Say what: --to ID=HOST:PORT, --without ID, --on NODE or --off NODE"));
        }
        let mut output = context.ask(Method::POST, &format!("/api/balancers/{name}"), Some(&json!(wanted)))?;
        let BalancerChanged { balancer, before, changed } = read(&output)?;
        output.human = if changed {
            format!(
                "balancer {name} runs on {} and leads to {}; open connections stay\nTo undo: postroad balance set {name}{}",
                runners(&balancer.on),
                led(&balancer.databases),
                back(&balancer, &before)
            )
        } else {
            format!("balancer {name} was so already: {} on {}", led(&balancer.databases), runners(&balancer.on))
        };
        Ok(output)
    }
}

/// The flags that lead from a balancer back to how it was.
fn back(now: &Balancer, before: &Balancer) -> String {
    let lost = before.databases.iter().filter(|(id, address)| now.databases.get(*id) != Some(*address));
    let new = now.databases.keys().filter(|id| !before.databases.contains_key(*id));
    let has = |on: &[Runner], runner: &Runner| on.iter().any(|other| other.node == runner.node);
    let off = now.on.iter().filter(|runner| !has(&before.on, runner)).map(|runner| &runner.node);
    let on = before.on.iter().filter(|runner| !has(&now.on, runner)).map(|runner| &runner.node);
    [
        flags("to", lost.map(|(id, address)| format!("{id}={address}"))),
        flags("without", new),
        flags("on", on),
        flags("off", off),
    ]
    .concat()
}

#[derive(Deserialize)]
struct Balancers {
    balancers: Vec<Balancer>,
}

/// How a balancer does on one of its nodes, in a few words.
fn does(runner: &Runner) -> String {
    match (runner.runs, &runner.primary, &runner.trouble) {
        (None, ..) => "not heard of yet".to_owned(),
        (Some(_), _, Some(trouble)) => trouble.clone(),
        (Some(false), ..) => "does not run".to_owned(),
        (Some(true), primary, None) => {
            let list = if runner.current == Some(false) { ", by an older list" } else { "" };
            format!("writes go to {}{list}", primary.as_deref().unwrap_or("nobody"))
        }
    }
}

pub(super) fn list(context: &Context) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, "/api/balancers", None)?;
    let Balancers { balancers } = read(&output)?;
    let mut table = Table::new(["balancer", "leads to", "on", "how it does there"]);
    for balancer in &balancers {
        let ids = balancer.databases.keys().cloned().collect::<Vec<_>>().join(", ");
        let mut first = [balancer.name.clone(), ids];
        if balancer.on.is_empty() {
            table.row(first.iter().cloned().chain(["-".to_owned(), "no node is to run it".to_owned()]));
        }
        for runner in &balancer.on {
            table.row(std::mem::take(&mut first).into_iter().chain([runner.node.clone(), does(runner)]));
        }
    }
    output.human = if table.is_empty() {
        "the cluster has no balancer; make one: postroad balance add NAME --to ID=HOST:PORT --on NODE".to_owned()
    } else {
        table.render(context.style)
    };
    Ok(output)
}

pub(super) fn show(context: &Context, name: &Name) -> Result<Output, Failure> {
    let mut output = context.ask(Method::GET, &format!("/api/balancers/{name}"), None)?;
    let BalancerShown { balancer, here } = read(&output)?;
    let made = balancer.made.map_or_else(|| "not known on this node".to_owned(), |made| relative::moment(made, now()));
    let mut lines = vec![context.style.heading(&balancer.name), format!("  made   {made}")];
    let mut word = "leads to";
    for (id, address) in &balancer.databases {
        lines.push(format!("  {word:<8} {id}={address}"));
        word = "";
    }
    for runner in &balancer.on {
        lines.push(format!("  on       {}: {}", runner.node, does(runner)));
    }
    match here.as_ref().map(|here| (&here.status, &here.trouble)) {
        Some((Some(status), _)) => lines.extend(["here:".to_owned(), text(status, context.style)]),
        Some((None, Some(trouble))) => lines.push(context.style.bad(format_args!("here: {trouble}"))),
        Some((None, None)) | None => {}
    }
    output.human = lines.join("\n");
    Ok(output)
}

pub(super) fn remove(context: &Context, name: &Name, yes: bool) -> Result<Output, Failure> {
    confirm(
        yes,
        &format!("{name} is taken out: its ports close and its open connections end, on every node that runs it"),
    )?;
    let mut output = context.ask(Method::DELETE, &format!("/api/balancers/{name}"), None)?;
    let balancer: Balancer = read(&output)?;
    let to = balancer.databases.iter().map(|(id, address)| format!("{id}={address}"));
    let on = balancer.on.iter().map(|runner| &runner.node);
    output.human = format!(
        "balancer {name} is removed\nTo make it again: postroad balance add {name}{}{}",
        flags("to", to),
        flags("on", on)
    );
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balancer(databases: &[(&str, &str)], on: &[&str]) -> Balancer {
        let runner =
            |node: &&str| Runner { node: (*node).to_owned(), runs: None, current: None, primary: None, trouble: None };
        Balancer {
            name: "orders".to_owned(),
            databases: databases.iter().map(|(id, at)| ((*id).to_owned(), (*at).to_owned())).collect(),
            on: on.iter().map(runner).collect(),
            made: None,
            changed: None,
        }
    }

    #[test]
    fn a_change_is_undone_by_the_flags_that_are_shown() {
        let before = balancer(&[("a", "a:1"), ("b", "b:1")], &["web-1"]);
        let now = balancer(&[("a", "a:2"), ("c", "c:1")], &["web-2"]);
        assert_eq!(back(&now, &before), " --to a=a:1 --to b=b:1 --without c --on web-1 --off web-2");
        assert_eq!(back(&before, &before), "");
    }

    #[test]
    fn a_database_node_is_an_id_and_an_address() {
        let made = Database { id: "db-1".into(), address: "10.0.0.1:5432".into() };
        assert_eq!(database("db-1=10.0.0.1:5432"), Ok(made));
        for bad in ["db-1", "db-1=", "db-1=10.0.0.1", "=a:1", "a/b=c:1"] {
            assert!(database(bad).is_err(), "{bad}");
        }
    }
}
