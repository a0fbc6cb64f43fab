//! How long flows stand still when the relay that carries them is drained: many drains on real processes, in figures.
//! The gap of a move is the longest that any message of a few flows that never rest took there and back while it went on.

use std::{sync::atomic::Ordering, time::Duration};

use postroad::demo::{
    fleet::Fleet,
    observe::Seen,
    setup::{self, CONSUMER},
};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    load,
    support::{
        figures::quantile,
        report::{Report, Table},
    },
    tools::{Tool, said},
};

/// Flows that never rest: with more of them than processors, they would wait for each other.
const FLOWS: usize = 2;

/// How long the flows are watched before a drain begins and after it has ended, so that their usual is known and a late
/// gap counts too.
const AROUND: Duration = Duration::from_millis(300);

/// How long until relays are warm again.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// Drains the relay in use so often, and stops the tool.
pub(crate) fn measure(runtime: &Runtime, mut tool: Tool, moves: u32, report: &mut Report) -> Result<(), String> {
    eprintln!("{moves} planned moves …");
    let measured = runtime.block_on(gaps(&mut tool, moves));
    runtime.block_on(tool.stop());
    let (usual, gaps) = measured?;
    let mut table = Table::new(["longest message there and back", "count", "p50 ms", "p99 ms", "max ms"]);
    let mut json = serde_json::Map::new();
    for (name, all) in [("nothing happens", &usual), ("relay in use drained", &gaps)] {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(all, share));
        let ms = |value: f64| format!("{value:.1}");
        table.row([name.to_owned(), all.len().to_string(), ms(p50), ms(p99), ms(max)]);
        json.insert(name.replace(' ', "_"), json!({ "p50_ms": p50, "p99_ms": p99, "max_ms": max, "all_ms": all }));
    }
    report.part("moves", "How long flows stand still in planned moves", &table, json.into());
    report.goal("planned move, p99", quantile(&gaps, 0.99), 20.0, " ms");
    println!();
    Ok(())
}

/// The longest pauses in milliseconds: of a moment before each drain, and of the drain.
async fn gaps(tool: &mut Tool, moves: u32) -> Result<(Vec<f64>, Vec<f64>), String> {
    let (mut flows, longest_us) = load::restless(tool.address, FLOWS);
    let fleet = tool.fleet().ok_or("nothing that could be drained")?;
    let (mut usual, mut gaps) = (Vec::new(), Vec::new());
    let take = || longest_us.swap(0, Ordering::Relaxed) as f64 / 1e3;
    for _ in 0..moves {
        let what = "a relay carries the flows, and another could";
        let ready = |seen: &Seen| seen.in_use().is_some() && seen.has_spares();
        let seen = fleet.until(CONSUMER, what, READY_WITHIN, ready).await.map_err(|error| said(&error))?;
        let relay = seen.in_use().unwrap_or_default().to_owned();
        take();
        tokio::time::sleep(AROUND).await;
        usual.push(take());
        command(fleet, &["relay", "drain", &relay]).await?;
        tokio::time::sleep(AROUND).await;
        gaps.push(take());
        let now = fleet.look(CONSUMER).await.map_err(|error| said(&error))?;
        if now.in_use() == Some(&relay) {
            return Err(format!("{relay} was drained and carries the flows still"));
        }
        command(fleet, &["relay", "resume", &relay]).await?;
        if let Some(ended) = flows.try_join_next() {
            return Err(format!("a flow has ended: {ended:?}"));
        }
    }
    flows.shutdown().await;
    Ok((usual, gaps))
}

async fn command(fleet: &Fleet, words: &[&str]) -> Result<(), String> {
    let step = fleet.step(setup::FIRST, words, None).map_err(|error| said(&error))?;
    step.run().await.map(drop).map_err(|error| said(&error))
}
