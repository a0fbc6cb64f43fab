//! How soon the write port leads to the new primary: after a change that the nodes announce, and after a loss.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    load,
    node::Node,
    support::{
        figures::quantile,
        report::{Report, Table},
    },
    tools,
};

const PERIOD_MS: u64 = 200;
/// Period × `unhealthy_after` + timeout, as `tools::monitor` sets them.
const BOUND_MS: f64 = 200.0 * 3.0 + 500.0;

/// How long an application waits for an answer before it tries again: many times what one takes, and little beside the
/// period, since an attempt that began before the change was seen waits in vain.
const ATTEMPT: Duration = Duration::from_millis(3);

/// How a primary goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The old one says that it is none any more, the new one that it is.
    Announced,
    /// The old one falls silent, and the new one has a higher epoch: that alone settles it.
    Lost,
    /// The old one falls silent, and the new one has the same epoch: the old one must be given up first.
    LostSilently,
}

impl Change {
    const ALL: [Self; 3] = [Self::Announced, Self::Lost, Self::LostSilently];

    const fn name(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Lost => "primary lost",
            Self::LostSilently => "primary lost, same epoch",
        }
    }
}

/// Measures so many changes of each kind.
pub(crate) fn measure(count: u32, report: &mut Report) -> Result<(), String> {
    let nodes = [Node::start("n1", true), Node::start("n2", false)];
    let nodes = nodes.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let balancer = tools::balance(&[&nodes[0], &nodes[1]], PERIOD_MS);
    let to = ([127, 0, 0, 1], balancer.rw).into();
    let mut epoch = 1;
    let mut old = 0;
    wait(to, "n1")?;
    let mut table = Table::new(["change", "p50 ms", "p90 ms", "p99 ms", "longest ms"]);
    let mut found = serde_json::Map::new();
    for change in Change::ALL {
        let mut took = Vec::new();
        for round in 0..count {
            // Anywhere within a period.
            thread::sleep(Duration::from_millis(PERIOD_MS + u64::from(round * 37) % PERIOD_MS));
            let new = 1 - old;
            epoch += u64::from(change != Change::LostSilently);
            let began = Instant::now();
            match change {
                Change::Announced => nodes[old].set(|says| says.primary = false),
                Change::Lost | Change::LostSilently => nodes[old].set(|says| says.silent = true),
            }
            nodes[new].set(|says| (says.primary, says.epoch) = (true, epoch));
            wait(to, &format!("n{}", new + 1))?;
            took.push(began.elapsed().as_secs_f64() * 1e3);
            nodes[old].set(|says| (says.primary, says.silent, says.epoch) = (false, false, epoch));
            old = new;
        }
        let name = change.name();
        let at = |share: f64| quantile(&took, share);
        let cells = [0.5, 0.9, 0.99, 1.0].map(|share| format!("{:.0}", at(share)));
        let [p50, p90, p99, longest] = cells;
        table.row([name.to_owned(), p50, p90, p99, longest]);
        let goal = if change == Change::Announced { PERIOD_MS as f64 } else { BOUND_MS };
        report.goal(&format!("failover, {name}, longest of {count}"), at(1.0), goal, " ms");
        found.insert(name.replace(", ", "_").replace(' ', "_"), json!({ "count": count, "ms": took }));
    }
    let title = format!("New primary on the write port (probes each {PERIOD_MS} ms)");
    report.part("failover", &title, &table, found.into());
    Ok(())
}

/// Waits until new connections reach that node.
fn wait(to: std::net::SocketAddr, node: &str) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(20);
    // Refused meanwhile, or led to one that is silent: it is tried again, as an application would.
    while load::who(to, ATTEMPT).ok().as_deref() != Some(node) {
        if Instant::now() > until {
            return Err(format!("{node} is not reached"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
