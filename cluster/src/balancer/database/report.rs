//! What the balancer says of itself to people, scripts and metrics (DB-41).

use serde::{Deserialize, Serialize};

use super::{
    choice::{Facts, Target},
    evidence::Role,
};

/// The state of the balancer's decisions at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The generation of the present choice of a primary.
    pub generation: u64,
    /// Where writes go.
    pub primary: Option<Target>,
    /// Why there is no primary.
    pub no_primary: Option<String>,
    /// The nodes that are primaries of one epoch, so that none is chosen.
    pub ambiguous: Vec<String>,
    /// Each node of the list, by id.
    pub nodes: Vec<NodeReport>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its id.
    pub node: String,
    /// Its address in the list.
    pub address: String,
    /// What it says that it is; none while its state is unknown.
    pub role: Option<Role>,
    /// Whether it takes writes.
    pub writable: bool,
    /// Its epoch.
    pub epoch: u64,
    /// Whether it counts.
    pub healthy: bool,
    /// Why it does not.
    pub aside: Option<String>,
    /// Connections that are open to it.
    pub connections: u64,
    /// Connections that it takes at most.
    pub connections_max: u64,
    /// Sessions that run a command.
    pub active: u64,
    /// Bytes that it is behind, if it is a secondary that says how far it is.
    pub lag_bytes: Option<u64>,
    /// Milliseconds that it is behind.
    pub lag_ms: Option<u64>,
    /// Whether it gets reads.
    pub reads: bool,
    /// Why it does not.
    pub no_reads: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Failed probes in a row.
    pub failures: u64,
    /// The last probe's error.
    pub probe_error: Option<String>,
    /// The stable name of that error's cause.
    pub probe_error_code: Option<String>,
    /// Milliseconds since its last answer.
    pub answered_ms_ago: Option<u64>,
}

impl NodeReport {
    /// The node as `facts` have it, beside the chosen primary.
    #[must_use]
    pub fn new(facts: &Facts<'_>, node: &str, address: &str, primary: Option<&Target>) -> Self {
        let evidence = facts.nodes.get(node);
        let healthy = facts.healthy(node);
        let answered = evidence.and_then(|evidence| evidence.answer.as_ref());
        let answer = answered.map(|(_, answer)| answer);
        let lag = facts.lag(node, primary);
        let reads = facts.reads(node, primary);
        let failure = evidence.and_then(|evidence| evidence.failure.as_ref());
        Self {
            node: node.to_owned(),
            address: address.to_owned(),
            role: healthy.as_ref().ok().map(|answer| answer.role),
            writable: healthy.as_ref().is_ok_and(|answer| answer.writable),
            epoch: answer.map_or(0, |answer| answer.epoch),
            healthy: healthy.is_ok(),
            aside: healthy.as_ref().err().map(ToString::to_string),
            connections: answer.map_or(0, |answer| answer.connections),
            connections_max: answer.map_or(0, |answer| answer.connections_max),
            active: answer.map_or(0, |answer| answer.active),
            lag_bytes: lag.map(|lag| lag.bytes),
            lag_ms: lag.map(|lag| lag.span.as_millis() as u64),
            reads: reads.is_ok(),
            no_reads: reads.err().map(|why| why.to_string()),
            version: answer.map(|answer| answer.version.clone()),
            failures: evidence.map_or(0, |evidence| evidence.failures),
            probe_error: failure.map(ToString::to_string),
            probe_error_code: failure.map(|failure| failure.cause.code().to_owned()),
            answered_ms_ago: answered.map(|(at, _)| facts.now.since(*at).as_millis() as u64),
        }
    }
}
