//! What the balancer says of itself: the decisions' report beside what is open and what has passed (DB-41, DB-46).

use std::net::SocketAddr;

use postroad_cluster::balancer::database::{
    report::{NodeReport, Report},
    settings::{Port, Protocol},
};
use serde::{Deserialize, Serialize};

use super::{
    Shared,
    connections::{Counts, Totals},
};

/// The state of a balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// The generation of the present choice of a primary.
    pub generation: u64,
    /// The node that takes writes.
    pub primary: Option<String>,
    /// Its epoch.
    pub epoch: Option<u64>,
    /// Why there is no primary.
    pub no_primary: Option<String>,
    /// Nodes that are primaries of one epoch, so that none is chosen.
    pub ambiguous: Vec<String>,
    /// Write connections that are still open to what is no longer the primary.
    pub old_write_connections: u64,
    /// Connections at once, at most.
    pub connections_max: u64,
    /// The ports.
    pub ports: Vec<PortStatus>,
    /// The nodes by id.
    pub nodes: Vec<NodeStatus>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Which.
    pub port: Port,
    /// Where it listens, or is to.
    pub address: SocketAddr,
    /// Why it does not listen, while it does not.
    #[serde(default)]
    pub failure: Option<String>,
    /// What has passed.
    #[serde(flatten)]
    pub totals: Totals,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// What is known of it.
    #[serde(flatten)]
    pub report: NodeReport,
    /// What this balancer has open to it.
    #[serde(flatten)]
    pub open: Counts,
    /// What is compared when a read is led somewhere: what is open, and what is active times its weight.
    pub score: u64,
}

impl Status {
    pub(super) fn new(shared: &Shared, report: Report) -> Self {
        let (rw, ro) = shared.connections.totals();
        let counts = shared.connections.counts();
        let ports = shared.doors.iter().map(|door| PortStatus {
            port: door.port,
            address: door.address(),
            failure: door.failure(),
            totals: if door.port == Port::Rw { rw } else { ro },
        });
        let nodes = report.nodes.into_iter().map(|report| {
            let open = counts.get(&report.node).copied().unwrap_or_default();
            let active = report.active.saturating_mul(shared.setup.settings.active_weight);
            NodeStatus { score: (open.rw + open.ro).saturating_add(active), open, report }
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: shared.clock.now().since(shared.started).as_millis() as u64,
            generation: report.generation,
            epoch: report.primary.as_ref().map(|primary| primary.epoch),
            primary: report.primary.map(|primary| primary.node),
            no_primary: report.no_primary,
            ambiguous: report.ambiguous,
            old_write_connections: shared.connections.old_writes() as u64,
            connections_max: shared.connections.capacity() as u64,
            ports: ports.collect(),
            nodes: nodes.collect(),
        }
    }

    /// What this balancer has refused through both ports.
    pub fn refused(&self) -> u64 {
        self.ports.iter().map(|port| port.totals.refused).sum()
    }
}

/// The word of a protocol in messages.
pub const fn protocol_word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Mysql => "MySQL",
        Protocol::Postgres => "PostgreSQL",
    }
}
