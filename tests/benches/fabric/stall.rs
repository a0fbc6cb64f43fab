//! How long flows stand still when the relay that carries them is killed: many kills on real processes, in figures. The
//! stall of a kill is the longest pause of any flow from before it until the relay is ready again, the 20 ms between two
//! messages of a chatty flow included.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    figures::quantile,
    report::{Report, Table},
};

/// Kills the relay in use so often.
pub(crate) fn measure(kills: u32, report: &mut Report) -> Result<(), String> {
    let stalls = stalls(kills)?;
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(&stalls, share));
    let mut table = Table::new(["stall of open flows", "count", "p50 ms", "p99 ms", "max ms"]);
    let ms = |value: f64| format!("{value:.0}");
    table.row(["relay in use killed".to_owned(), kills.to_string(), ms(p50), ms(p99), ms(max)]);
    let json = json!({ "kills": { "count": kills, "p50_ms": p50, "p99_ms": p99, "max_ms": max, "all_ms": stalls } });
    report.part("stall", "How long flows stand still", &table, json);
    report.goal("stall after a kill, p99", p99, 150.0, " ms");
    println!();
    Ok(())
}

/// The longest stall of each kill in milliseconds, from the demonstration's own report.
fn stalls(kills: u32) -> Result<Vec<f64>, String> {
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
    Ok(events.iter().filter_map(|event| event["longest_stall_ms"].as_f64()).collect())
}
