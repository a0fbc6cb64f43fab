//! `postroad balance`: `database` runs a balancer that stands alone; `add`, `set`, `list`, `show` and `remove` are about
//! those that nodes run for the cluster; `status`, `check` and `example` serve both.

mod cluster;

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand};
use postroad_actors::balancer::status::{NodeStatus, Status};
use postroad_cluster::{balancer::database::settings::Port, id::Name};
use serde_json::json;

use super::{
    Context,
    output::{Output, Style},
    read, relative,
    table::Table,
};
use crate::{
    balancer::{self, admin, config::List},
    errors::Failure,
};

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad balance database --config proxy.toml\n\n\
                        A balancer that stands alone needs no cluster and no data directory; its configuration is a file \
                        of its own. Those of a cluster run on its nodes: add, set, list, show, remove.")]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lead connections to the primary and the replicas of a database cluster
    #[command(after_help = "Example: postroad balance database --config proxy.toml\n\n\
                            It runs in the foreground until SIGTERM or Ctrl-C; SIGHUP reads the list of nodes anew. \
                            systemd is told when it is ready. The monitoring account's password may come from \
                            $POSTROAD_PROXY_PASSWORD.\n\n\
                            Limits: mixed reads and writes of one connection belong on rw; a read on ro may miss a \
                            write that was just made; KILL, cancel requests and connection ids belong to the node \
                            that was reached.")]
    Database {
        /// A file that the log is appended to, whatever the configuration says
        #[arg(long, value_name = "FILE")]
        log: Option<PathBuf>,
    },
    /// Have nodes of the cluster run a balancer, whose list of database nodes the cluster keeps
    #[command(
        after_help = "Example: postroad balance add orders --to db-1=10.0.0.1:5432 --to db-2=10.0.0.2:5432 --on web-1\n\n\
                            Each node named by --on needs a file with its ports and monitoring account, before or \
                            after: postroad balance example, and [balancers] orders = FILE in its postroad.toml."
    )]
    Add(cluster::Add),
    /// Change which database nodes a balancer leads to, or which nodes run it; no connection is dropped for the list
    #[command(after_help = "Example: postroad balance set orders --to db-3=10.0.0.3:5432 --without db-1")]
    Set(cluster::Set),
    /// List the balancers of the cluster
    #[command(after_help = "Example: postroad balance list")]
    List,
    /// Show one balancer of the cluster; on a node that runs it, with where its connections go and why
    #[command(after_help = "Example: postroad balance show orders")]
    Show {
        /// Its name
        name: Name,
    },
    /// Take a balancer out of the cluster: its ports close and its connections end, on every node that runs it
    #[command(after_help = "Example: postroad balance remove orders --yes")]
    Remove {
        /// Its name
        name: Name,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Show where connections go and why, from a running balancer
    #[command(after_help = "Example: postroad balance status --admin 127.0.0.1:9444\n\n\
                            With --config it asks the admin port of that configuration.")]
    Status {
        /// The balancer's admin port [default: proxy.admin of --config, else 127.0.0.1:9444]
        #[arg(long, value_name = "ADDRESS")]
        admin: Option<SocketAddr>,
    },
    /// Say everything that is wrong with a balancer's configuration, at once
    #[command(after_help = "Example: postroad balance check proxy.toml")]
    Check {
        /// The file
        file: PathBuf,
        /// The file is of a balancer that a node runs for the cluster, which has its list of database nodes
        #[arg(long)]
        role: bool,
    },
    /// Print every key of a balancer's configuration with its default and its reason
    #[command(after_help = "Example: postroad balance example > proxy.toml")]
    Example,
}

impl Command {
    /// Runs the verb.
    ///
    /// # Errors
    /// What kept the balancer from running, or that it does not answer.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        match &self.verb {
            Verb::Database { log } => {
                let missing = || {
                    Failure::wrong_use("a balancer is told everything by its configuration, and none was given")
                        .hint("postroad balance example > proxy.toml; then --config proxy.toml")
                };
                let file = context.global.config.as_ref().ok_or_else(missing)?;
                balancer::run(file, log.as_ref())?;
                Ok(Output::new(json!({ "stopped": true }), ""))
            }
            Verb::Status { admin } => {
                let address = match (admin, &context.global.config) {
                    (Some(address), _) => *address,
                    (None, Some(file)) => balancer::load_with(file, List::Either)?.admin,
                    (None, None) => default_admin(),
                };
                let mut output = context.block_on(admin::ask(address))?;
                let status: Status = read(&output)?;
                output.human = text(&status, context.style);
                Ok(output)
            }
            Verb::Add(add) => add.run(context),
            Verb::Set(set) => set.run(context),
            Verb::List => cluster::list(context),
            Verb::Show { name } => cluster::show(context, name),
            Verb::Remove { name, yes } => cluster::remove(context, name, *yes),
            Verb::Check { file, role } => {
                let config = balancer::load_with(file, if *role { List::Cluster } else { List::Own })?;
                let nodes: Vec<&String> = config.nodes.keys().collect();
                let has = if *role { "the cluster has its nodes".to_owned() } else { format!("{} nodes", nodes.len()) };
                let human = format!("{}: nothing is wrong; {has}", file.display());
                Ok(Output::new(json!({ "file": file, "nodes": nodes }), human).warn(config.warnings))
            }
            Verb::Example => {
                let example = balancer::SCHEMA.example();
                Ok(Output::new(json!({ "example": example }), example))
            }
        }
    }
}

/// Where a balancer's admin port is when nobody says.
fn default_admin() -> SocketAddr {
    let key = balancer::SCHEMA.find("proxy", "admin").and_then(|key| key.default);
    key.and_then(|text| text.parse().ok()).expect("a test checks every default")
}

fn text(status: &Status, style: Style) -> String {
    let uptime = relative::span(std::time::Duration::from_millis(status.uptime_ms));
    let primary = match (&status.primary, &status.no_primary) {
        (Some(primary), _) => {
            format!("writes go to {primary}, epoch {}", status.epoch.unwrap_or_default())
        }
        (None, Some(why)) => style.bad(format_args!("writes are refused: {why}")),
        (None, None) => style.bad("writes are refused"),
    };
    let mut lines =
        vec![format!("postroad {} · up {uptime} · generation {} · {primary}", status.version, status.generation)];
    if status.old_write_connections > 0 {
        let open = status.old_write_connections;
        lines.push(
            style.warning(format_args!("{open} write connections are still open to what is no longer the primary")),
        );
    }
    for port in &status.ports {
        let totals = port.totals;
        let word = port.port.word();
        let shut = port.failure.as_ref().map(|why| style.bad(format_args!(" · not open: {why}"))).unwrap_or_default();
        lines.push(format!("  {word}  {} · {} passed, {} refused{shut}", port.address, totals.passed, totals.refused));
    }
    if let Some(primary) = &status.primary
        && status.ports.iter().any(|port| port.port == Port::Ro)
        && !status.nodes.iter().any(|node| node.report.reads)
    {
        lines.push(style.warning(format_args!("no node is fit for reads, so they go to {primary} too")));
    }
    let mut table = Table::new([
        "node", "address", "role", "epoch", "health", "conn/max", "active", "lag", "rw", "ro", "score", "reads",
    ]);
    for node in &status.nodes {
        table.row(row(node));
    }
    lines.push(table.render(style).trim_end().to_owned());
    for node in &status.nodes {
        let report = &node.report;
        let say = |what: &str, why: &Option<String>| why.as_ref().map(|why| format!("  {} {what}: {why}", report.node));
        lines.extend(say("is set aside", &report.aside));
        lines.extend(say("gets no reads", &report.no_reads).filter(|_| report.healthy));
        // A node that is set aside for its failures has said so already.
        lines.extend(say("last probe", &report.probe_error).filter(|_| report.healthy));
    }
    lines.join("\n")
}

fn row(node: &NodeStatus) -> [String; 12] {
    let report = &node.report;
    // What it bore last is in --json.
    let known = report.role.is_some();
    let lag = match (report.lag_bytes, report.lag_ms) {
        (Some(bytes), Some(ms)) => format!("{} {:.1} s", relative::bytes(bytes), ms as f64 / 1e3),
        _ => "-".to_owned(),
    };
    [
        report.node.clone(),
        report.address.clone(),
        report.role.map_or("unknown", postroad_cluster::balancer::database::evidence::Role::word).to_owned(),
        if known { report.epoch.to_string() } else { "-".to_owned() },
        if report.healthy { "ok" } else { "aside" }.to_owned(),
        if known { format!("{}/{}", report.connections, report.connections_max) } else { "-".to_owned() },
        report.active.to_string(),
        lag,
        node.open.rw.to_string(),
        node.open.ro.to_string(),
        node.score.to_string(),
        if report.reads { "yes" } else { "no" }.to_owned(),
    ]
}
