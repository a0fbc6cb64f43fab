//! The steps: a transfer, exchanges, connections and idle ones, each with the CPU time of every process of a tool.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    load,
    support::{
        cost,
        figures::{median, quantile},
        report::{Report, Table},
        steady::steady,
    },
    tools::{self, LARGE, SMALL, Tool},
};

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Bytes of a transfer.
    bytes: u64,
    /// How often a transfer is measured; the median counts.
    repeats: u32,
    /// How long exchanges and connections go on.
    span: Duration,
    /// Idle connections of one lot.
    idle: usize,
    /// Kills of a relay.
    pub(crate) kills: u32,
    /// Drains of a relay.
    pub(crate) moves: u32,
}

impl Size {
    pub(crate) const FULL: Self =
        Self { bytes: 1_000_000_000, repeats: 3, span: Duration::from_secs(5), idle: 1_000, kills: 100, moves: 100 };
    pub(crate) const QUICK: Self =
        Self { bytes: 300_000_000, repeats: 1, span: Duration::from_secs(1), idle: 200, kills: 5, moves: 5 };
}

/// Lots of idle connections after the first, which fills what is kept for reuse.
const IDLE_LOTS: usize = 3;

/// What the first transfer leaves behind in round trips has gone after so long, so that flows go where they are to.
const REST: Duration = Duration::from_secs(3);

/// Connections are opened so many at a time.
const AT_A_TIME: usize = 8;

/// What a tool came to.
#[derive(Debug)]
pub(crate) struct Measured {
    name: &'static str,
    verifies: &'static str,
    parts: Vec<&'static str>,
    bulk: Option<Bulk>,
    exchange: Vec<Exchange>,
    connections: Option<Connections>,
    idle: Option<Vec<f64>>,
}

#[derive(Clone, Debug)]
struct Bulk {
    megabytes_per_second: f64,
    /// CPU seconds for 10⁹ bytes, of each part.
    seconds_per_gigabyte: Vec<f64>,
    steal: f64,
    others: f64,
}

#[derive(Clone, Debug)]
struct Exchange {
    flows: usize,
    p50_us: f64,
    p99_us: f64,
    /// CPU microseconds for one exchange, of each part.
    cpu_us: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Connections {
    per_second: f64,
    /// CPU microseconds for one connection, of each part.
    cpu_us: Vec<f64>,
}

/// CPU seconds of each part while `work` ran, and what that came to.
fn costing<T>(tool: &Tool, work: impl FnOnce() -> Result<T, String>) -> Result<(T, Vec<f64>), String> {
    let look = || tool.parts.iter().map(|(_, pids)| cost::cpu_seconds(pids)).collect::<Vec<f64>>();
    let before = look();
    let value = work()?;
    Ok((value, look().iter().zip(&before).map(|(after, before)| after - before).collect()))
}

/// Measures a tool and stops it.
pub(crate) fn of(runtime: &Runtime, tool: Tool, chosen: &[&str], size: Size) -> Result<Measured, String> {
    let named = |step: &str| chosen.contains(&step);
    let to = tool.address;
    let warm = async {
        load::bulk(to, 20_000_000).await?;
        load::exchange(to, 4, Duration::from_millis(200)).await
    };
    runtime.block_on(warm).map_err(|error| format!("it carries nothing: {error}"))?;
    std::thread::sleep(REST);
    let mut measured = Measured {
        name: tool.name,
        verifies: tool.verifies,
        parts: tool.parts.iter().map(|(part, _)| *part).collect(),
        bulk: None,
        exchange: Vec::new(),
        connections: None,
        idle: None,
    };
    eprintln!("{} …", tool.name);
    if named("bulk") {
        measured.bulk = Some(bulk(runtime, &tool, size)?);
    }
    if named("exchange") {
        for flows in [1, 64] {
            measured.exchange.push(exchange(runtime, &tool, flows, size.span)?);
        }
    }
    if named("connections") {
        measured.connections = Some(connections(runtime, &tool, size.span)?);
    }
    if named("idle") {
        measured.idle = Some(idle(runtime, &tool, size.idle)?);
    }
    runtime.block_on(tool.stop());
    Ok(measured)
}

fn bulk(runtime: &Runtime, tool: &Tool, size: Size) -> Result<Bulk, String> {
    let mut all = Vec::new();
    for _ in 0..size.repeats {
        let step = steady("bulk", || {
            costing(tool, || runtime.block_on(load::bulk(tool.address, size.bytes)).map_err(|error| error.to_string()))
        })?;
        let (took, cpu) = step.value;
        let gigabytes = size.bytes as f64 / 1e9;
        all.push(Bulk {
            megabytes_per_second: size.bytes as f64 / 1e6 / took.as_secs_f64(),
            seconds_per_gigabyte: cpu.iter().map(|seconds| seconds / gigabytes).collect(),
            steal: step.steal,
            others: step.others,
        });
    }
    let of = |figure: &dyn Fn(&Bulk) -> f64| median(&all.iter().map(figure).collect::<Vec<f64>>());
    Ok(Bulk {
        megabytes_per_second: of(&|it| it.megabytes_per_second),
        seconds_per_gigabyte: (0..tool.parts.len()).map(|part| of(&|it| it.seconds_per_gigabyte[part])).collect(),
        steal: of(&|it| it.steal),
        others: of(&|it| it.others),
    })
}

fn exchange(runtime: &Runtime, tool: &Tool, flows: usize, span: Duration) -> Result<Exchange, String> {
    let step = steady("exchange", || {
        costing(tool, || {
            let all = load::exchange(tool.address, flows, span);
            runtime.block_on(all).map_err(|error| error.to_string())
        })
    })?;
    let (round_trips, cpu) = step.value;
    let count = round_trips.len().max(1) as f64;
    Ok(Exchange {
        flows,
        p50_us: quantile(&round_trips, 0.5),
        p99_us: quantile(&round_trips, 0.99),
        cpu_us: cpu.iter().map(|seconds| seconds * 1e6 / count).collect(),
    })
}

fn connections(runtime: &Runtime, tool: &Tool, span: Duration) -> Result<Connections, String> {
    let step = steady("connections", || {
        costing(tool, || {
            let all = load::connections(tool.address, AT_A_TIME, span);
            runtime.block_on(all).map_err(|error| error.to_string())
        })
    })?;
    let (count, cpu) = step.value;
    Ok(Connections {
        per_second: count as f64 / span.as_secs_f64(),
        cpu_us: cpu.iter().map(|seconds| seconds * 1e6 / count.max(1) as f64).collect(),
    })
}

/// Bytes of memory for one more idle connection, of each part, over several lots of them after the first: a heap grows in
/// steps and keeps what an earlier one has left.
fn idle(runtime: &Runtime, tool: &Tool, count: usize) -> Result<Vec<f64>, String> {
    let look = || tool.parts.iter().map(|(_, pids)| cost::resident_bytes(pids)).collect::<Vec<u64>>();
    let mut open = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..=IDLE_LOTS {
        let lot = runtime.block_on(load::idle(tool.address, count));
        open.extend(lot.map_err(|error| error.to_string())?);
        std::thread::sleep(Duration::from_secs(1));
        seen.push(look());
    }
    let each = |part: usize| (seen[IDLE_LOTS][part] as f64 - seen[0][part] as f64) / (IDLE_LOTS * count) as f64;
    let bytes = (0..tool.parts.len()).map(each).collect();
    drop(open);
    // Resets of so many reach every process before the tool is stopped.
    std::thread::sleep(Duration::from_millis(500));
    Ok(bytes)
}

fn sum(values: &[f64]) -> f64 {
    values.iter().sum()
}

/// Tells of one step.
type Teller = fn(&[Measured], &mut Report);

/// One table a step, the goals, and everything as JSON.
pub(crate) fn tell(measured: &[Measured], chosen: &[&str], report: &mut Report) {
    let checks: Vec<String> = measured.iter().map(|it| format!("{}: {}", it.name, it.verifies)).collect();
    println!("What ends check of each other: {}\n", checks.join("; "));
    let told: [(&str, Teller); 4] =
        [("bulk", tell_bulk), ("exchange", tell_exchange), ("connections", tell_connections), ("idle", tell_idle)];
    for (step, tell) in told {
        if chosen.contains(&step) {
            tell(measured, report);
        }
    }
}

fn find<'a>(measured: &'a [Measured], name: &str) -> Option<&'a Measured> {
    measured.iter().find(|it| it.name == name)
}

/// A figure of each part, as `consumer 1.2 + relay 0.5 + target 1.3`.
fn by_part(it: &Measured, values: &[f64], digits: usize) -> String {
    let parts = it.parts.iter().zip(values).map(|(part, value)| format!("{part} {value:.digits$}"));
    parts.collect::<Vec<_>>().join(" + ")
}

fn parts_json(it: &Measured, values: &[f64]) -> Value {
    it.parts.iter().zip(values).map(|(part, value)| ((*part).to_owned(), json!(value))).collect()
}

/// At most so many times HAProxy's figure, and less than that of the tools that encrypt as well, as far as each was
/// measured.
fn goals(
    measured: &[Measured],
    figure: impl Fn(&Measured) -> Option<f64>,
    what: &str,
    factor: f64,
    report: &mut Report,
) {
    let of = |name: &str| find(measured, name).and_then(&figure);
    let Some(ours) = of(SMALL.0) else { return };
    if let Some(haproxy) = of(tools::HAPROXY) {
        report.goal(&format!("{what}, as a multiple of HAProxy's"), ours / haproxy, factor, " ×");
    }
    if let Some(theirs) = of(tools::STUNNEL) {
        println!("  {what}: {:.2} × stunnel's", ours / theirs);
    }
    for other in tools::TO_BE_AHEAD_OF {
        if let Some(theirs) = of(other) {
            report.goal(&format!("{what}, as a multiple of that of {other}"), ours / theirs, 1.0, " ×");
        }
    }
}

fn tell_bulk(measured: &[Measured], report: &mut Report) {
    let mut table = Table::new(["one flow", "MB/s", "CPU s/GB", "of which", "steal", "others"]);
    let mut json = Vec::new();
    for it in measured {
        let Some(bulk) = &it.bulk else { continue };
        let all = sum(&bulk.seconds_per_gigabyte);
        table.row([
            it.name.to_owned(),
            format!("{:.0}", bulk.megabytes_per_second),
            format!("{all:.2}"),
            by_part(it, &bulk.seconds_per_gigabyte, 2),
            format!("{:.0} %", bulk.steal * 100.0),
            format!("{:.0} %", bulk.others * 100.0),
        ]);
        json.push(json!({
            "tool": it.name,
            "verifies": it.verifies,
            "megabytes_per_second": bulk.megabytes_per_second,
            "cpu_seconds_per_gigabyte": all,
            "parts": parts_json(it, &bulk.seconds_per_gigabyte),
            "steal": bulk.steal,
            "others": bulk.others,
        }));
    }
    report.part("bulk", "A transfer over one flow", &table, json!(json));
    let all = |it: &Measured| it.bulk.as_ref().map(|bulk| sum(&bulk.seconds_per_gigabyte));
    goals(measured, all, "CPU for a byte of a transfer", 4.1, report);
    let of = |name: &str| find(measured, name).and_then(all);
    if let (Some(large), Some(haproxy)) = (of(LARGE.0), of(tools::HAPROXY)) {
        report.goal("the same with jumbo packets, as a multiple of HAProxy's", large / haproxy, 2.3, " ×");
    }
    let relay = |it: &Measured| {
        let place = it.parts.iter().position(|part| ["relay", "proxy"].contains(part))?;
        it.bulk.as_ref()?.seconds_per_gigabyte.get(place).copied()
    };
    goals(measured, relay, "CPU of the relay alone for a byte", 0.52, report);
    println!();
}

fn tell_exchange(measured: &[Measured], report: &mut Report) {
    let mut table = Table::new(["100-byte messages", "flows", "p50 µs", "p99 µs", "CPU µs", "of which"]);
    let mut json = Vec::new();
    for (it, exchange) in measured.iter().flat_map(|it| it.exchange.iter().map(move |exchange| (it, exchange))) {
        let all = sum(&exchange.cpu_us);
        table.row([
            it.name.to_owned(),
            exchange.flows.to_string(),
            format!("{:.0}", exchange.p50_us),
            format!("{:.0}", exchange.p99_us),
            format!("{all:.1}"),
            by_part(it, &exchange.cpu_us, 1),
        ]);
        json.push(json!({
            "tool": it.name,
            "flows": exchange.flows,
            "p50_us": exchange.p50_us,
            "p99_us": exchange.p99_us,
            "cpu_us": all,
            "parts": parts_json(it, &exchange.cpu_us),
        }));
    }
    report.part("exchange", "Messages there and back", &table, json!(json));
    let many = |it: &Measured| it.exchange.iter().find(|it| it.flows == 64).map(|it| sum(&it.cpu_us));
    goals(measured, many, "CPU for an exchange of 64 flows", 2.2, report);
    println!();
}

fn tell_connections(measured: &[Measured], report: &mut Report) {
    let mut table = Table::new(["new connections", "a second", "CPU µs", "of which"]);
    let mut json = Vec::new();
    for it in measured {
        let Some(connections) = &it.connections else { continue };
        let all = sum(&connections.cpu_us);
        let parts = by_part(it, &connections.cpu_us, 0);
        table.row([it.name.to_owned(), format!("{:.0}", connections.per_second), format!("{all:.0}"), parts]);
        json.push(json!({
            "tool": it.name,
            "per_second": connections.per_second,
            "cpu_us": all,
            "parts": parts_json(it, &connections.cpu_us),
        }));
    }
    report.part("connections", "Connections opened, used once and closed", &table, json!(json));
    let all = |it: &Measured| it.connections.as_ref().map(|it| sum(&it.cpu_us));
    goals(measured, all, "CPU for a connection", 2.1, report);
    println!();
}

fn tell_idle(measured: &[Measured], report: &mut Report) {
    let mut table = Table::new(["idle connections", "KiB each", "of which"]);
    let mut json = Vec::new();
    for it in measured.iter().filter(|it| !it.parts.is_empty()) {
        let Some(bytes) = &it.idle else { continue };
        let kib: Vec<f64> = bytes.iter().map(|bytes| bytes / 1024.0).collect();
        table.row([it.name.to_owned(), format!("{:.1}", sum(&kib)), by_part(it, &kib, 1)]);
        json.push(json!({ "tool": it.name, "bytes": sum(bytes), "parts": parts_json(it, bytes) }));
    }
    report.part("idle", "Memory of one more idle connection", &table, json!(json));
    if let Some((it, bytes)) = find(measured, SMALL.0).and_then(|it| Some((it, it.idle.as_ref()?))) {
        for (part, bytes) in it.parts.iter().zip(bytes) {
            report.goal(&format!("memory of an idle flow, {part}"), bytes / 1024.0, 8.0, " KiB");
        }
    }
    println!();
}
