//! What the API says of nodes, links, tokens and settings: the same types write it and read it in commands.

use std::collections::BTreeMap;

use postroad_actors::balancer::role::RoleView;
use postroad_cluster::{
    domain::FailureDomain,
    id::{LinkId, NodeId, Role},
    time::WallTime,
};
use serde::{Deserialize, Serialize};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<Role>,
    /// Where others reach it.
    pub advertised: Option<String>,
    /// Where it stands.
    pub domain: FailureDomain,
    /// When it joined.
    pub joined: WallTime,
    /// Links that it consumes.
    pub consumes: Vec<String>,
    /// Links that it serves.
    pub serves: Vec<String>,
}

/// A consumer of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    /// The node's name.
    pub node: String,
    /// Where it listens.
    pub listen: String,
}

/// The end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The node's name.
    pub node: String,
    /// `host:port` as that node resolves it; nothing on a node that need not know.
    pub address: Option<String>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number.
    pub id: LinkId,
    /// Its name.
    pub name: String,
    /// The generation of its route.
    pub generation: u64,
    /// Who listens; on a node that is no control node, this one.
    pub from: Vec<Consumer>,
    /// Where it leads.
    pub to: Target,
    /// How many relays receive its new connections.
    pub spread: u8,
    /// When it was made; known on control nodes.
    pub made: Option<WallTime>,
}

/// What `link add` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkAdd {
    /// The link's name.
    pub name: String,
    /// The address on which each node listens, by the node's name.
    pub from: BTreeMap<String, String>,
    /// The node at the end.
    pub to: String,
    /// `host:port` of the target, as that node resolves it.
    pub address: String,
    /// How many relays receive its new connections; 2 where nothing is said.
    #[serde(default)]
    pub spread: Option<u8>,
}

/// What `link set` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSet {
    /// How many relays receive its new connections.
    pub spread: u8,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSetDone {
    /// The link as it is now.
    pub link: Link,
    /// The spread before.
    pub before: u8,
}

/// What `link retarget` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRetarget {
    /// `host:port` of the new target, as the link's target node resolves it.
    pub address: String,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRetargeted {
    /// The link as it is now.
    pub link: Link,
    /// The target before.
    pub before: String,
    /// Whether it was another one.
    pub changed: bool,
}

/// A database balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balancer {
    /// Its name.
    pub name: String,
    /// The nodes of the database cluster: `host:port` by the id that each announces.
    pub databases: BTreeMap<String, String>,
    /// Who runs it; on a node that is no control node, this one.
    pub on: Vec<Runner>,
    /// When it was made; known on control nodes.
    pub made: Option<WallTime>,
    /// The entry of the log that made or changed it last.
    pub changed: Option<u64>,
}

/// A node that runs a database balancer, by its last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// The node's name.
    pub node: String,
    /// Whether it runs there; nothing where that node has not reported.
    pub runs: Option<bool>,
    /// Whether it has the present list of database nodes.
    pub current: Option<bool>,
    /// The database node that takes writes, as it sees it.
    pub primary: Option<String>,
    /// What is wrong there.
    pub trouble: Option<String>,
}

/// What `balance show` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BalancerShown {
    /// The balancer.
    pub balancer: Balancer,
    /// How it stands on the node that was asked, if that has to do with it.
    pub here: Option<RoleView>,
}

/// What `balance add` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancerAdd {
    /// The balancer's name.
    pub name: String,
    /// The database nodes: `host:port` by id.
    pub to: BTreeMap<String, String>,
    /// The nodes that run it, by name.
    pub on: Vec<String>,
}

/// What `balance set` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancerSet {
    /// Database nodes that are added or get another address.
    pub to: BTreeMap<String, String>,
    /// Database nodes that are taken out.
    pub without: Vec<String>,
    /// Nodes that run it from now on.
    pub on: Vec<String>,
    /// Nodes that run it no more.
    pub off: Vec<String>,
}

/// What that came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerChanged {
    /// The balancer as it is now.
    pub balancer: Balancer,
    /// As it was before.
    pub before: Balancer,
    /// Whether anything is other than before.
    pub changed: bool,
}

/// What `token create` and `relay add` ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    /// What the joiner becomes.
    pub role: Role,
    /// How long the token waits for its joiner, in seconds.
    pub valid_seconds: u64,
    /// The name that the joiner is to have, if it is decided.
    pub name: Option<String>,
    /// The address that others are to reach it by, if it is decided.
    pub advertise: Option<String>,
    /// Whether the printed command goes on as the node.
    pub run: bool,
}

/// A new token with the command that uses it. It holds the secret, and is shown once.
#[derive(Clone, Serialize, Deserialize)]
pub struct Token {
    /// The secret itself.
    pub token: String,
    /// What it is called, no secret.
    pub id: String,
    /// What the joiner becomes.
    pub role: Role,
    /// When it ends unused, in milliseconds since 1970.
    pub expires: WallTime,
    /// Control nodes that take the joiner.
    pub seeds: Vec<String>,
    /// The fingerprint of the cluster's authority.
    pub fingerprint: String,
    /// The command for the joiner's host.
    pub command: String,
}

/// A token as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// What it is called.
    pub id: String,
    /// What the joiner becomes.
    pub roles: Vec<Role>,
    /// When it ends unused.
    pub expires: WallTime,
    /// `open`, `used`, `expired` or `revoked`.
    pub state: String,
    /// Who used it.
    pub used_by: Option<String>,
    /// When.
    pub used: Option<WallTime>,
}

/// What a change of a relay's service came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayDrained {
    /// The relay.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Whether it was not so already.
    pub changed: bool,
    /// Whether it is connected to the control nodes; nothing where the leader did not say.
    pub connected: Option<bool>,
}

/// What `link test` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// `latency`, `throughput` or `death`.
    pub kind: String,
    /// How long it is measured: 1 to 30.
    pub seconds: u32,
}

/// A setting of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// The value where none was set.
    pub default: u64,
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// What it means, and why within these bounds.
    pub why: String,
}

/// What `setting set` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingSet {
    /// The value as it was written.
    pub value: String,
}

/// What `control promote` asks for. It holds secrets: it goes over the Unix socket of this host and nowhere else.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promote {
    /// The node to promote; the one that is asked.
    pub name: String,
    /// The sealed authority.
    pub authority: String,
    /// What opens it.
    pub passphrase: String,
}

/// The audit, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// When this was told.
    pub now: WallTime,
    /// Its last lines.
    pub lines: Vec<AuditLine>,
}

/// A line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// The entry of the log that made it.
    pub version: u64,
    /// When.
    pub at: WallTime,
    /// The node that proposed it.
    pub by: String,
    /// What was done.
    pub what: String,
}

/// What `relay rebalance` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rebalance {
    /// Whether only the plan is wanted.
    pub dry_run: bool,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalanced {
    /// Whether only the plan was wanted.
    pub dry_run: bool,
    /// The moves, in order.
    pub moves: Vec<Moved>,
}

/// A circuit that was moved, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The node that chooses its relay.
    pub node: String,
    /// The node at the other end.
    pub peer: String,
    /// Its number, as text since it takes all 64 bits.
    pub circuit: String,
    /// The relay that it leaves.
    pub from: String,
    /// The relay that it goes to.
    pub to: String,
    /// Flows on it.
    pub flows: u64,
    /// What speaks for it.
    pub why: String,
    /// Whether it was done.
    pub done: bool,
}
