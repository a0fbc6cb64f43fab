//! How long flows stand still when the relay that carries them is killed: many kills on real processes, in figures.
//!
//! `cargo bench --bench stall` kills 100 times; `cargo bench --bench stall -- 20` as often as it says. The stall of a
//! kill is the longest pause of any flow from before it until the relay is ready again, the 20 ms between two messages
//! of a chatty flow included.

use std::process::{Command, ExitCode};

use serde_json::{Value, json};

fn main() -> ExitCode {
    // `cargo bench` adds flags of its own; the first number is ours.
    let kills = std::env::args().skip(1).find_map(|argument| argument.parse::<u32>().ok()).unwrap_or(100);
    match stalls(kills) {
        Ok(stalls) => {
            report(kills, stalls);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// The longest stall of each kill in milliseconds, from the demonstration's own report.
fn stalls(kills: u32) -> Result<Vec<u64>, String> {
    let program = env!("CARGO_BIN_EXE_postroad");
    let kills = kills.to_string();
    let output = Command::new(program)
        .args(["demo", "--once", "--json", "--transfer-mib", "64", "--deaths", &kills])
        .output()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    let told: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("the demonstration told no JSON: {error}\n{}", String::from_utf8_lossy(&output.stderr))
    })?;
    if !output.status.success() {
        return Err(format!("the demonstration failed: {}", told["error"]));
    }
    let events = told["data"]["events"].as_array().ok_or("the demonstration told no events")?;
    Ok(events.iter().filter_map(|event| event["longest_stall_ms"].as_u64()).collect())
}

fn report(kills: u32, mut stalls: Vec<u64>) {
    stalls.sort_unstable();
    let at = |share: usize| stalls[(stalls.len() - 1) * share / 100];
    let (p50, p99, max) = (at(50), at(99), at(100));
    println!("kills  p50    p99    max");
    println!("{kills:<6} {:<6} {:<6} {max} ms", format!("{p50} ms"), format!("{p99} ms"));
    println!("{}", json!({ "kills": kills, "stall_ms": { "p50": p50, "p99": p99, "max": max, "all": stalls } }));
}
