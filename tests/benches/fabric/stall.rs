//! How long flows stand still when the relay that carries them is killed: many kills on real processes, in figures. The
//! stall of a kill is the longest pause of any flow from before it until the relay is ready again, the 20 ms between two
//! messages of a chatty flow included. Once as loopback is, and once with ways that take their time.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    figures::quantile,
    report::{Report, Table},
};

/// Round trips from node to node in milliseconds, and how long flows may stand still there.
const WAYS: [(u32, f64); 2] = [(0, 150.0), (20, 300.0)];

/// Kills the relay in use so often, over each of the ways.
pub(crate) fn measure(kills: u32, report: &mut Report) -> Result<(), String> {
    let mut table = Table::new(["relay in use killed", "count", "p50 ms", "p99 ms", "max ms"]);
    let (mut json, mut reached) = (Vec::new(), Vec::new());
    for (round_trip_ms, goal) in WAYS {
        eprintln!("{kills} kills with {round_trip_ms} ms of round trip …");
        let stalls = stalls(kills, round_trip_ms)?;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(&stalls, share));
        let ms = |value: f64| format!("{value:.0}");
        let name = format!("{round_trip_ms} ms of round trip");
        reached.push((format!("stall after a kill, p99, {name}"), p99, goal));
        table.row([name, stalls.len().to_string(), ms(p50), ms(p99), ms(max)]);
        json.push(json!({
            "round_trip_ms": round_trip_ms,
            "count": stalls.len(),
            "p50_ms": p50,
            "p99_ms": p99,
            "max_ms": max,
            "all_ms": stalls,
        }));
    }
    report.part("stall", "How long flows stand still", &table, json!({ "kills": json }));
    for (name, p99, goal) in reached {
        report.goal(&name, p99, goal, " ms");
    }
    println!();
    Ok(())
}

/// The longest stall of each kill in milliseconds, from the demonstration's own report.
fn stalls(kills: u32, round_trip_ms: u32) -> Result<Vec<f64>, String> {
    let program = env!("CARGO_BIN_EXE_postroad");
    let (kills, round_trip_ms) = (kills.to_string(), round_trip_ms.to_string());
    let output = Command::new(program)
        .args([
            "demo",
            "--once",
            "--json",
            "--transfer-mib",
            "64",
            "--deaths",
            &kills,
            "--round-trip-ms",
            &round_trip_ms,
        ])
        .output()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    let told: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("the demonstration told no JSON: {error}\n{}", String::from_utf8_lossy(&output.stderr))
    })?;
    if !output.status.success() {
        return Err(format!("the demonstration failed: {}", told["error"]));
    }
    let events = told["data"]["events"].as_array().ok_or("the demonstration told no events")?;
    Ok(events.iter().filter_map(|event| event["longest_stall_ms"].as_f64()).collect())
}
