//! What a client waits for whose first node does not take it: one that refuses, and one that swallows the connection (D9).

use std::{
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use postroad_cluster::balancer::limits::CONNECT_WAIT;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::{
    load,
    node::Node,
    support::{
        figures::quantile,
        report::{Report, Table},
    },
    tools,
};

/// What the next node's turn may add.
const MOST_MS: f64 = 50.0;

/// Measures so many connections that meet a node which refuses, and a tenth of it with one that swallows.
pub(crate) fn measure(count: u32, report: &mut Report) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    let nodes = [("n1", true), ("n2", false), ("n3", false)].map(|(id, primary)| Node::start(id, primary));
    let nodes = nodes.into_iter().collect::<Result<Vec<_>, _>>().map_err(said)?;
    nodes[0].set(|says| "n2,n3".clone_into(&mut says.replicas));
    let balancer = tools::balance(&nodes.iter().collect::<Vec<_>>(), 200);
    let until = Instant::now() + Duration::from_secs(20);
    while balancer.readers() != ["n2", "n3"] {
        if Instant::now() > until {
            return Err("n2 and n3 do not take reads".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let to = SocketAddr::from(([127, 0, 0, 1], balancer.ro));
    // Ties go in turn, so that every second connection is led to n2 first.
    let times = |count: u32| -> Result<Vec<f64>, String> {
        (0..2 * count)
            .map(|_| {
                let began = Instant::now();
                let node = load::who(to, Duration::from_secs(5)).map_err(said)?;
                if node == "n3" { Ok(began.elapsed().as_secs_f64() * 1e3) } else { Err(format!("{node} answered")) }
            })
            .collect()
    };
    // Its probe's connection stays open, so it is still believed to be well; new ones are refused.
    nodes[1].close_door();
    let refused = times(count)?;
    // Nobody takes what waits at its door, which has no more room: the next one is swallowed.
    let door = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(said)?;
    door.set_reuse_address(true).map_err(said)?;
    door.bind(&nodes[1].address.into()).map_err(said)?;
    door.listen(0).map_err(said)?;
    let _waits = TcpStream::connect(nodes[1].address).map_err(said)?;
    let swallowed = times(count.div_ceil(10))?;
    let mut table = Table::new(["the first node", "p50 ms", "p99 ms", "longest ms"]);
    let limit_ms = CONNECT_WAIT.as_millis() as f64;
    for (name, found, goal) in [("refuses", &refused, MOST_MS), ("swallows", &swallowed, limit_ms + MOST_MS)] {
        let cells = [0.5, 0.99, 1.0].map(|share| format!("{:.1}", quantile(found, share)));
        let [p50, p99, longest] = cells;
        table.row([name.to_owned(), p50, p99, longest]);
        report.goal(&format!("served though the first node {name}, longest"), quantile(found, 1.0), goal, " ms");
    }
    report.part(
        "retries",
        "Reads whose first node does not take them",
        &table,
        json!({ "refused": refused, "swallowed": swallowed }),
    );
    Ok(())
}
