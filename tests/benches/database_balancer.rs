//! What the database balancer costs beside HAProxy (TCP mode) and nginx (stream), interleaved in one run on one machine
//! with as many threads each, and how soon its write port follows a change of the primary.
//!
//! `cargo bench --bench database_balancer` measures everything; words choose of `connections`, `transactions`, `bulk`,
//! `idle`, `failover` and `retries`, and `quick` makes each step short. Figures are CPU time of each tool's processes, medians over
//! the rounds, and their ratios to the better of the two others in the same run.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "../support/balancer.rs"]
mod balancer;
#[path = "database_balancer/failover.rs"]
mod failover;
#[path = "database_balancer/load.rs"]
mod load;
#[path = "database_balancer/node.rs"]
mod node;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/programs.rs"]
mod programs;
#[path = "database_balancer/retries.rs"]
mod retries;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "../support/servers.rs"]
mod servers;
#[path = "database_balancer/steps.rs"]
mod steps;
#[allow(dead_code, reason = "several benches share it, and none needs all of it")]
mod support;
#[path = "database_balancer/tools.rs"]
mod tools;

use std::process::ExitCode;

use steps::Size;
use support::report::Report;

/// Everything that can be measured.
const STEPS: [&str; 6] = ["connections", "transactions", "bulk", "idle", "failover", "retries"];
/// What concerns the balancer alone.
const OWN_STEPS: [&str; 2] = ["failover", "retries"];

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(unknown) = words.iter().find(|word| *word != "quick" && !STEPS.contains(&word.as_str())) {
        eprintln!("{unknown} is nothing that is measured; there are {} and quick", STEPS.join(", "));
        return ExitCode::from(2);
    }
    let size = if words.iter().any(|word| word == "quick") { Size::QUICK } else { Size::FULL };
    let chosen: Vec<&str> = STEPS.into_iter().filter(|step| words.iter().any(|word| word == step)).collect();
    let chosen = if chosen.is_empty() { STEPS.to_vec() } else { chosen };
    let mut report = Report::default();
    match measure(&chosen, size, &mut report) {
        Ok(()) => {
            report.finish();
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn measure(chosen: &[&str], size: Size, report: &mut Report) -> Result<(), String> {
    if chosen.iter().any(|step| !OWN_STEPS.contains(step)) {
        steps::compare(chosen, size, report)?;
    }
    if chosen.contains(&"failover") {
        failover::measure(size.failovers, report)?;
    }
    if chosen.contains(&"retries") {
        retries::measure(size.failovers, report)?;
    }
    Ok(())
}
