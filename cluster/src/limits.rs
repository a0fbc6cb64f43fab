//! Every bound of the system and its reason: queues, buffers, retries and waits.

use crate::time::Span;

/// Socket buffers asked for on UDP sockets; the usual 212 KiB halves throughput and loses packets in bursts.
pub const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The largest message between two nodes. A snapshot of a fleet of 500 nodes and some thousand links stays under it.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The largest UDP payload over IPv4; a larger send fails.
pub const UDP_PAYLOAD_BYTES_MAX: usize = 65_507;
