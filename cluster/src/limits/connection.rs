//! Connections and messages between two nodes.

use crate::time::Span;

/// Socket buffers asked for on UDP sockets; the usual 212 KiB halves throughput and loses packets in bursts.
pub const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The largest message between two nodes. A snapshot of a fleet of 500 nodes and some thousand links stays under it.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The largest UDP payload over IPv4; a larger send fails.
pub const UDP_PAYLOAD_BYTES_MAX: usize = 65_507;

/// How many payloads of that size quinn makes room for in each of the 32 buffers of an endpoint: a kernel joins segments up
/// to one such payload, however many they are. With room for each segment it would be 134 MB.
pub const RECEIVE_PAYLOADS: usize = 1;

/// Requests that one end of a connection may have open, and that the other answers at a time; a peer with more is stuck.
pub const CALLS_PER_PEER_MAX: usize = 64;

/// Bytes of a peer's requests that are held at a time: two of the largest messages, whatever their number.
pub const CALL_BYTES_PER_PEER_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// The longest that a request may wait for its answer at the peer, whatever its caller says.
pub const CALL_WAIT_MAX: Span = Span::from_mins(1);

/// How long a housekeeping message may take to arrive whole. Longer than a circuit waits for a path, since a stall is no
/// offence.
pub const HOUSEKEEPING_WAIT: Span = Span::from_mins(3);

/// Handshakes that an endpoint has half open; further ones are ignored, which costs nothing but their retry.
pub const HANDSHAKES_MAX: usize = 1_000;

/// Half-open handshakes past which a peer must first show that it receives at its address (QUIC Retry).
pub const HANDSHAKES_RETRY: usize = 100;

/// How long a handshake may take, at either end.
pub const HANDSHAKE_WAIT: Span = Span::from_secs(5);

/// Connections that wait to be taken from an endpoint; past it handshakes wait within [`HANDSHAKE_WAIT`].
pub const ACCEPT_QUEUE_MAX: usize = 64;

/// Stateless resets that an endpoint sends in a second: a restarted relay wakes all its peers in about that time.
pub const RESETS_PER_SECOND: u64 = 1_000;

/// Stateless resets that it sends at once.
pub const RESETS_BURST: u64 = 2_000;

/// How long a request to a relay or control node may take before its connection is in doubt.
pub const CALL_WAIT: Span = Span::from_secs(3);
