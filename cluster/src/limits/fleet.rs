//! What the fleet agrees on, and what its nodes report.

use crate::time::Span;

/// Nodes of a cluster. With the bounds below, the whole state in its longest form stays under one message.
pub const NODES_MAX: usize = 4_000;

/// Control nodes: every one sees every entry of the log, and no cluster gets safer beyond 7.
pub const CONTROLS_MAX: usize = 15;

/// Links of a cluster; see [`NODES_MAX`].
pub const LINKS_MAX: usize = 4_000;

/// Consumers of all links together; see [`NODES_MAX`].
pub const LINK_CONSUMERS_MAX: usize = 40_000;

/// Tokens that wait for their joiner: more are made by mistake, and each is a way in.
pub const TOKENS_OPEN_MAX: usize = 1_000;

/// Tokens that are remembered, used and ended ones too, so that a joiner hears why it is refused; then the oldest go.
pub const TOKENS_REMEMBERED_MAX: usize = 2_000;

/// Lines of the audit in the state; older ones are in the logs.
pub const AUDIT_LINES_MAX: usize = 1_000;

/// Lines of the audit by one node that is no control node: what its operator did there, and too few to push out others'.
pub const AUDIT_LINES_OF_A_NODE_MAX: usize = 20;

/// Removed nodes that are remembered; certificates end by themselves long before so many nodes were removed.
pub const REVOKED_NODES_MAX: usize = 10_000;

/// A DNS name's 253 bytes, a colon and a port.
pub const ADDRESS_BYTES_MAX: usize = 259;

/// A reason for people that enters the log.
pub const REASON_BYTES_MAX: usize = 200;

/// Control nodes that a node is connected to.
pub const CONTROL_CONNECTIONS: usize = 2;

/// How long a leader must have led before the end of a drain to have heard what its relay carried: the reports of three
/// [`REPORT_INTERVAL_DRAINING`], and a way over another control node.
pub const DRAIN_SEEN: Span = Span::from_millis(1_500);

/// How often a node reports its facts.
pub const REPORT_INTERVAL: Span = Span::from_secs(5);

/// How often it does while a relay drains: people watch how far that is.
pub const REPORT_INTERVAL_DRAINING: Span = Span::from_millis(400);

/// A node that has not reported for this long is not there: three reports in a row are missing.
pub const REPORT_STALE: Span = Span::from_secs(15);

/// Circuits that a node reports one by one; more are only counted, so that a report stays small.
pub const REPORT_CIRCUITS_MAX: usize = 256;

/// Links with revoked routes that are remembered, the newest; each is some 30 bytes of every snapshot.
pub const REVOCATIONS_MAX: usize = 5_000;

/// How long a revocation is remembered: the longest grant and the longest policy lease, one after the other.
pub const REVOCATION_KEPT: Span = Span::from_hours(224 + 168);

/// A relay that has not applied a revocation for this long is stale for its routes (RP-35).
pub const REVOKED_WITHIN: Span = Span::from_secs(90);

/// A node leaves a relay this long to hear of revocations by itself before it passes them on.
pub const PASS_ON_MIN: Span = Span::from_secs(2);

/// Over how long nodes spread the passing on, so that the first one's is enough for the others.
pub const PASS_ON_SPREAD: Span = Span::from_secs(8);

/// How long what cannot move may go on over a draining relay (RP-40).
pub const DRAIN_WAIT: Span = Span::from_mins(10);

/// How often the leader renews every lease.
pub const LEASE_RENEW_INTERVAL: Span = Span::from_mins(1);

/// How long a control node may hold a question for the next snapshot before it answers that there is none.
pub const SNAPSHOT_POLL: Span = Span::from_secs(20);

/// Circuits that one rebalancing moves: what is left is planned anew from what came of it.
pub const REBALANCE_MOVES_MAX: usize = 32;
