//! What a relay serves and forwards.

use crate::time::Span;

/// QUIC bytes that wait between a relay's switch and its endpoint.
pub const SWITCH_QUEUE_BYTES: usize = 4 << 20;

/// QUIC buffers that wait between a relay's switch and its endpoint.
pub const SWITCH_QUEUE_BUFFERS: usize = 4_096;

/// An address or session that was replaced stays valid this long for packets under way.
pub const SWITCH_LINGER: Span = Span::from_secs(5);

/// The least time between two challenges to new addresses of one session: 16 bytes each, so that nobody is flooded by
/// them, and a node whose address has changed is back within a second.
pub const CHALLENGE_INTERVAL: Span = Span::from_millis(500);

/// How long a challenge may be named.
pub const CHALLENGE_WAIT: Span = Span::from_secs(5);

/// Challenges in a second that a node answers: its relays send two each at the most, so that more are somebody else's.
pub const CHALLENGE_ANSWERS_PER_SECOND: u32 = 32;

/// Channels of one session at a relay.
pub const SESSION_CHANNELS_MAX: usize = 4_096;

/// Bytes a second that one channel, and one session, may send through a relay: 10 Gbit/s.
pub const CHANNEL_BYTES_PER_SECOND: u64 = 1_250_000_000;

/// Bytes that a channel may send at once beyond its rate.
pub const CHANNEL_BURST_BYTES: u64 = 32 << 20;

/// Connections that a relay keeps; each costs it some 60 KiB, so this many stay under 1 GiB.
pub const RELAY_SESSIONS_MAX: usize = 10_000;

/// Connections of one node at a relay, old and new together: a node that restarts often leaves some behind until they
/// fall silent.
pub const RELAY_CONNECTIONS_PER_NODE_MAX: usize = 8;

/// Endpoints that one node registers at a relay: as many as a cluster has links, and some.
pub const REGISTRATIONS_PER_SESSION_MAX: usize = 4_096;

/// Channels of one pair of nodes at a relay: 8 circuits, and room for those that come while others go.
pub const CHANNELS_PER_PAIR_MAX: usize = 64;

/// Requests for one and the same channel that wait for its peer; two ends ask at once at most, and a repeat of each.
pub const CHANNEL_WAITERS_MAX: usize = 4;

/// Requests that wait at a relay for a policy or a registration; more would only hide that none comes.
pub const RELAY_WAITING_MAX: usize = 1_024;

/// Requests to nodes that a relay awaits the answers of.
pub const RELAY_ASKS_MAX: usize = 8_192;

/// Requests of one session that a relay has not answered yet, so that one node cannot take the room of all.
pub const RELAY_OWED_PER_SESSION_MAX: u32 = 256;

/// How long a grant, or a node, waits for the policy that covers it (RP-32).
pub const POLICY_WAIT: Span = Span::from_secs(10);

/// How long a tunnel waits for its endpoint to be registered: longer than a reconnect takes, and short enough that
/// another relay is asked within 2 s.
pub const ENDPOINT_WAIT: Span = Span::from_secs(1);

/// How long the registrations of a node stay that said goodbye (RP-34).
pub const RESTART_KEPT: Span = Span::from_secs(15);

/// After how much silence a relay drops a session (RP-33).
pub const SESSION_SILENCE_MAX: Span = Span::from_millis(3_500);

/// How often a relay looks at its sessions and at what waits: all its waits are as much too long at most.
pub const RELAY_SWEEP_INTERVAL: Span = Span::from_millis(250);
