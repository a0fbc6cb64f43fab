//! The steps: every tool in turn, round by round, so that whatever else the machine does meets all of them.

use std::{collections::BTreeMap, io, path::PathBuf, time::Duration};

use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::{
    load,
    node::Node,
    postgres::Cluster,
    support::{
        cost,
        figures::median,
        process::program,
        report::{Report, Table},
        steady::steady,
    },
    tools::{self, Tool},
};

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    rounds: u32,
    connections: u32,
    transactions: Duration,
    bytes: u64,
    idle: usize,
    /// Changes of the primary of each kind.
    pub(crate) failovers: u32,
}

impl Size {
    pub(crate) const FULL: Self = Self {
        rounds: 7,
        connections: 2_000,
        transactions: Duration::from_secs(3),
        bytes: 2_000_000_000,
        idle: 10_000,
        failovers: 100,
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 3,
        connections: 500,
        transactions: Duration::from_secs(1),
        bytes: 500_000_000,
        idle: 1_000,
        failovers: 10,
    };
}

/// What is measured of each tool, in this order: the step, the figure and its unit.
const FIGURES: [(&str, &str, &str); 6] = [
    ("connections", "new connection", " µs"),
    ("connections", "new connection, 16 clients", " µs"),
    ("transactions", "pgbench transaction", " µs"),
    ("bulk", "10⁹ bytes", " s"),
    ("bulk", "throughput", " MB/s"),
    ("idle", "idle connection", " bytes"),
];

/// Figures by tool and by the place in [`FIGURES`].
type Found = BTreeMap<(&'static str, usize), Vec<f64>>;

/// Idle connections that the descriptors of the bench and of every tool allow: each takes two, and the balancer keeps a
/// tenth for its probes and pipes.
fn idle_connections(wanted: usize) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min((descriptors.saturating_sub(descriptors / 10) / 2) as usize)
}

/// Measures the chosen steps of every tool, and compares.
pub(crate) fn compare(chosen: &[&str], size: Size, report: &mut Report) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?;
    let node = Node::start("n1", true).map_err(|error| format!("no node: {error}"))?;
    let pgbench = if chosen.contains(&"transactions") { program("pgbench")? } else { None };
    let cluster = pgbench.as_ref().and_then(|_| Cluster::start(0, false));
    let postgres = cluster.as_ref().map(|cluster| ([127, 0, 0, 1], cluster.port(0)).into());
    if let (Some(pgbench), Some(cluster)) = (&pgbench, &cluster) {
        load::fill(pgbench, cluster.port(0))?;
    }
    let idle = idle_connections(size.idle);
    let mut all = Vec::new();
    all.extend(tools::haproxy(directory.path(), node.address, postgres, idle)?);
    all.extend(tools::nginx(directory.path(), node.address, postgres, idle)?);
    all.push(tools::postroad(&node, postgres));
    let mut found = Found::new();
    let mut stolen = Vec::new();
    for round in 1..=size.rounds {
        eprintln!("round {round} of {} …", size.rounds);
        for tool in &all {
            let step = steady(tool.name, || round_of(tool, chosen, size, pgbench.as_ref()))?;
            stolen.push(step.steal);
            for (place, figure) in step.value {
                found.entry((tool.name, place)).or_default().push(figure);
            }
        }
    }
    if chosen.contains(&"idle") {
        for tool in &all {
            let bytes = idle_memory(tool, idle).map_err(|error| format!("{}: {error}", tool.name))?;
            found.entry((tool.name, 5)).or_default().push(bytes);
        }
    }
    tell(&all, &found, idle, median(&stolen), report);
    Ok(())
}

/// Warms up and measures one tool once.
fn round_of(tool: &Tool, chosen: &[&str], size: Size, pgbench: Option<&PathBuf>) -> Result<Vec<(usize, f64)>, String> {
    let said = |error: io::Error| error.to_string();
    let mut figures = Vec::new();
    if chosen.contains(&"connections") {
        load::connections(tool.plain, 1, size.connections / 10).map_err(said)?;
        // One after the other, and as many at once as pgbench has.
        for (place, clients) in [(0, 1), (1, 16)] {
            let each = size.connections / clients;
            let (cpu, ()) = costing(tool.pids[0], || load::connections(tool.plain, clients, each).map_err(said))?;
            figures.push((place, cpu * 1e6 / f64::from(each * clients)));
        }
    }
    if let (Some(pgbench), Some(postgres)) = (pgbench, tool.postgres) {
        let (cpu, count) = costing(tool.pids[1], || load::transactions(pgbench, postgres.port(), size.transactions))?;
        figures.push((2, cpu * 1e6 / count));
    }
    if chosen.contains(&"bulk") {
        let (cpu, took) = costing(tool.pids[0], || load::bulk(tool.plain, size.bytes).map_err(said))?;
        figures.push((3, cpu * 1e9 / size.bytes as f64));
        figures.push((4, size.bytes as f64 / 1e6 / took.as_secs_f64()));
    }
    Ok(figures)
}

/// CPU seconds of the process and its children while `work` ran, and what that came to.
fn costing<T>(pid: u32, work: impl FnOnce() -> Result<T, String>) -> Result<(f64, T), String> {
    let before = cost::exact_cpu_seconds(&[pid]);
    let value = work()?;
    Ok((cost::exact_cpu_seconds(&[pid]) - before, value))
}

/// Bytes of resident memory for each of so many idle connections.
fn idle_memory(tool: &Tool, count: usize) -> io::Result<f64> {
    let before = cost::resident_bytes(&[tool.pids[0]]);
    let open = load::idle(tool.plain, count)?;
    let after = cost::resident_bytes(&[tool.pids[0]]);
    drop(open);
    Ok(after.saturating_sub(before) as f64 / count as f64)
}

fn tell(all: &[Tool], found: &Found, idle: usize, stolen: f64, report: &mut Report) {
    let of = |tool: &'static str, place: usize| found.get(&(tool, place)).map(|figures| median(figures));
    let mut table = Table::new(["", "haproxy", "nginx", "postroad", "to the better"]);
    let mut json = serde_json::Map::new();
    for (place, (_, figure, unit)) in FIGURES.iter().enumerate() {
        let Some(ours) = of("postroad", place) else { continue };
        let others: Vec<f64> = ["haproxy", "nginx"].iter().filter_map(|tool| of(tool, place)).collect();
        let throughput = place == 4;
        let better = others.iter().copied().reduce(if throughput { f64::max } else { f64::min });
        let cell = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.*}{unit}", if place == 3 { 3 } else { 1 }))
        };
        let ratio = better.map(|better| ours / better);
        let cells = [of("haproxy", place), of("nginx", place), Some(ours)].map(cell);
        let [haproxy, nginx, postroad] = cells;
        let shown = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        table.row([(*figure).to_owned(), haproxy, nginx, postroad, shown]);
        let tools = all.iter().map(|tool| (tool.name, found.get(&(tool.name, place))));
        json.insert((*figure).to_owned(), json!({ "unit": unit.trim(), "all": tools.collect::<BTreeMap<_, _>>() }));
        let goal = match place {
            3 => 0.6,
            4 => continue,
            _ => 1.0,
        };
        if let Some(ratio) = ratio {
            report.goal(&format!("{figure}, to the better of the others"), ratio, goal, "");
        }
    }
    json.insert("stolen".to_owned(), json!(stolen));
    json.insert("idle_connections".to_owned(), json!(idle));
    let title = format!("CPU time, throughput and memory ({} threads each, {idle} idle connections)", tools::threads());
    report.part("compare", &title, &table, json.into());
}
