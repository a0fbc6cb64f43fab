//! Every bound of the database balancer and its reason.

use core::ops::RangeInclusive;

use crate::time::Span;

/// Milliseconds between two probes of a node: shorter would be load for the databases, longer would make every failover
/// wait for a minute.
pub const PERIOD_MS: RangeInclusive<u64> = 100..=60_000;

/// The part of a period by which a probe begins early: timers are late by a millisecond or two and the probe itself takes
/// as long, and yet what a node says of itself is to be known within a period (DB-20).
pub const PROBE_EARLY_SHARE: u32 = 50;

/// Milliseconds that a whole probe may take: less than 50 is missed by a busy server, more than a minute says nothing.
pub const TIMEOUT_MS: RangeInclusive<u64> = 50..=60_000;

/// Failed probes in a row that take a node out: none would take out every node, more than a hundred none ever.
pub const UNHEALTHY_AFTER: RangeInclusive<u64> = 1..=100;

/// Bytes that a replica may be behind; 0 is no limit, and a pebibyte is more than any log holds.
pub const LAG_BYTES: RangeInclusive<u64> = 0..=1 << 50;

/// Seconds that a replica may be behind; 0 is no limit. The history of positions reaches as far back.
pub const LAG_SECONDS: RangeInclusive<u64> = 0..=86_400;

/// What an active session weighs against an open connection; above a thousand nothing else counts anyway.
pub const ACTIVE_WEIGHT: RangeInclusive<u64> = 0..=1_000;

/// Places of a node that reads leave free; above ten thousand no node is ever eligible.
pub const CONNECTION_RESERVE: RangeInclusive<u64> = 0..=10_000;

/// Nodes of one database cluster: each is a probe and a connection, and 64 are far more than replicate from one primary.
pub const NODES_MAX: usize = 64;

/// Balancers that a cluster agrees on: one for each database cluster of an owner.
pub const BALANCERS_MAX: usize = 64;

/// Database nodes of all balancers of a cluster together: they travel in the agreed state, which is one message.
pub const BALANCER_DATABASES_MAX: usize = 512;

/// Nodes that run one balancer: two are usual, one on each host of its applications at most.
pub const BALANCER_RUNNERS_MAX: usize = 32;

/// Balancers that one node runs: each has ports, probes and a share of the descriptors of its own.
pub const BALANCERS_PER_NODE_MAX: usize = 8;

/// Characters of a balancer's trouble in a node's report: one line.
pub const TROUBLE_CHARACTERS_MAX: usize = 300;

/// Characters of a node's id: PostgreSQL's `cluster_name` is cut at 63 bytes, and so is what is compared with it.
pub const NODE_ID_BYTES_MAX: usize = 63;

/// Characters of a probe's error that are kept: a server's own words, and no more of them than a line shows.
pub const PROBE_ERROR_CHARACTERS_MAX: usize = 300;

/// Replicas that a primary's list is read up to: the nodes of the balancer and as many strangers, such as backups.
pub const REPLICAS_MAX: usize = 2 * NODES_MAX;

/// Positions of a primary that are remembered. Beyond it every second one goes, so that the history grows coarser and
/// never longer.
pub const POSITIONS_MAX: usize = 1_024;

/// How long opening a connection to a node may take before the next node is tried, or the client is refused. On one
/// network a connection takes a millisecond; the system tries a lost packet again after one second.
pub const CONNECT_WAIT: Span = Span::from_millis(1_500);

/// Nodes that are tried for one connection: every one of a usual cluster, and no endless row of dead ones.
pub const CONNECT_TRIES_MAX: usize = 4;

/// The pause after an accept that failed: short enough that nobody waits for it, long enough that it is no spin.
pub const ACCEPT_PAUSE: Span = Span::from_millis(100);

/// How often the log tells of a shortage of room or descriptors: now and then, while it lasts.
pub const SHORTAGE_SAID_EVERY: Span = Span::from_secs(10);
