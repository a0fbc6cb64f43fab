//! What the fabric costs and how fast it is, beside the tools that people use instead, in one run on one machine.
//!
//! `cargo bench --bench fabric` measures everything; `cargo bench --bench fabric -- bulk exchange` only what it names of
//! `bulk`, `exchange`, `connections`, `idle`, `stall` and `moves`; `quick` among them makes each step short. Figures are CPU
//! seconds of each tool's processes and ratios to HAProxy's in the same run: times alone say more about the machine's
//! other guests.

#[path = "fabric/load.rs"]
mod load;
#[path = "fabric/moves.rs"]
mod moves;
#[path = "fabric/stall.rs"]
mod stall;
#[path = "fabric/steps.rs"]
mod steps;
#[allow(dead_code, reason = "several benches share it, and none needs all of it")]
mod support;
#[path = "fabric/tools.rs"]
mod tools;

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use tokio::{net::TcpListener, runtime::Runtime};

use steps::{Measured, Size};
use support::report::Report;
use tools::{Starter, Tool};

/// Everything that can be measured.
const STEPS: [&str; 6] = ["bulk", "exchange", "connections", "idle", "stall", "moves"];

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(unknown) = words.iter().find(|word| *word != "quick" && !STEPS.contains(&word.as_str())) {
        eprintln!("{unknown} is nothing that is measured; there are {} and quick", STEPS.join(", "));
        return ExitCode::from(2);
    }
    let size = if words.iter().any(|word| word == "quick") { Size::QUICK } else { Size::FULL };
    let named = |step: &&str| words.iter().any(|word| word == step);
    let chosen: Vec<&str> = STEPS.into_iter().filter(named).collect();
    let chosen = if chosen.is_empty() { STEPS.to_vec() } else { chosen };
    match run(&chosen, size) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(chosen: &[&str], size: Size) -> Result<(), String> {
    let mut report = Report::default();
    if chosen.iter().any(|step| !["stall", "moves"].contains(step)) {
        compare(chosen, size, &mut report)?;
    }
    if chosen.contains(&"stall") {
        stall::measure(size.kills, &mut report)?;
    }
    if chosen.contains(&"moves") {
        let (runtime, target) = begin()?;
        let tool = runtime.block_on(tools::postroad(tools::SMALL, target))?;
        moves::measure(&runtime, tool, size.moves, &mut report)?;
    }
    report.finish();
    Ok(())
}

/// What applications run on, and the target that they talk to.
fn begin() -> Result<(Runtime, SocketAddr), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(|error| format!("no port: {error}"))?;
    let target = listener.local_addr().map_err(|error| error.to_string())?;
    runtime.spawn(load::serve(Arc::new(listener)));
    Ok((runtime, target))
}

/// Every tool by itself, one after the other: two at a time would share caches and the scheduler.
fn compare(chosen: &[&str], size: Size, report: &mut Report) -> Result<(), String> {
    let (runtime, target) = begin()?;
    let directory = tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?;
    let mut measured = vec![steps::of(&runtime, tools::raw(target), chosen, size)?];
    let starters: [Starter; 5] = [tools::haproxy, tools::stunnel, tools::rathole, tools::ssh, tools::iroh];
    for start in starters {
        if let Some(tool) = start(directory.path(), target)? {
            measured.push(measure(&runtime, tool, chosen, size)?);
        }
    }
    let tool = runtime.block_on(tools::postroad(tools::SMALL, target))?;
    measured.push(measure(&runtime, tool, chosen, size)?);
    if chosen.contains(&"bulk") {
        // Only bulk fills packets.
        let tool = runtime.block_on(tools::postroad(tools::LARGE, target))?;
        measured.push(measure(&runtime, tool, &["bulk"], size)?);
    }
    steps::tell(&measured, chosen, report);
    Ok(())
}

fn measure(runtime: &Runtime, tool: Tool, chosen: &[&str], size: Size) -> Result<Measured, String> {
    let name = tool.name;
    steps::of(runtime, tool, chosen, size).map_err(|reason| format!("{name}: {reason}"))
}
