//! Flows: how they open, what they hold, and how they are measured.

use super::CIRCUITS_OF_A_PAIR_MAX;
use crate::time::Span;

/// How long a flow waits when no relay can be reached, unless its node's configuration says otherwise (RP-1).
pub const FLOW_WAIT_DEFAULT_SECONDS: u64 = 60;

/// The longest such wait: a flow that waits longer than an hour holds its buffers for nothing.
pub const FLOW_WAIT_SECONDS_MAX: u64 = 3_600;

/// Bytes of an application that travel before its flow is admitted, and are kept until then: a request's usual size.
pub const FLOW_AHEAD_BYTES: usize = 16 << 10;

/// Bytes that one flow may have under way: 100 ms of round trip at 320 Mbit/s.
pub const FLOW_WINDOW_BYTES: u32 = 4 << 20;

/// Bytes that one read of a flow's socket takes at most; the buffer exists only while there is something to read. It
/// fills the 40 packets that a circuit's driver sends at once on most networks, or seven large ones.
pub const FLOW_READ_BYTES: usize = 55_808;

/// Reads smaller than this are copied, so that a small message does not hold a large buffer until it is acknowledged.
pub const FLOW_COPY_BYTES: usize = 16 << 10;

/// Grants that a node remembers to have checked, about 1 MiB of them: then it begins anew.
pub const GRANTS_REMEMBERED_MAX: usize = 4_096;

/// The length of a message of a link's trial: that of a small request.
pub const TRIAL_MESSAGE_BYTES: usize = 100;

/// Messages of one trial: figures of more are no better.
pub const TRIAL_MESSAGES_MAX: usize = 200_000;

/// How long one part of a trial may take: long enough to be believed, short enough for whoever shares the way.
pub const TRIAL_SPAN_MAX: Span = Span::from_secs(30);

/// How long a trial drops a relay's packets: every failover has happened, and the session, which is given up after 3 s,
/// has not.
pub const TRIAL_DEAF: Span = Span::from_millis(2_500);

/// Chunks that a flow writes to its socket in one call: a chunk is a packet's, and a send brings 45 at most.
pub const FLOW_CHUNKS: usize = 48;

/// Bounds of the histogram of stalls, in milliseconds: around the goals of 150 and 300 ms after a relay's death, then up to
/// the time that flows wait by default.
pub const STALL_BOUNDS_MS: [u64; 12] = [25, 50, 75, 100, 150, 200, 300, 500, 1_000, 3_000, 10_000, 60_000];

/// How often a consumer tries again to listen on an address that it could not bind.
pub const LISTEN_RETRY: Span = Span::from_secs(5);

/// Tunnels of one circuit that were admitted ahead of need and wait for their flows: some busy links' lots.
pub const AHEAD_MAX: usize = 256;

/// Tunnels that one request may ask for ahead: a word to the relay for every sixteen flows or so costs little more than
/// none, and a lot that is lost with its relay is small.
pub const AHEAD_LOT_MAX: usize = 32;

/// How long a tunnel that was admitted ahead may be opened: the time for which a relay's refusals come late.
pub const AHEAD_LIFE: Span = Span::from_secs(1);

/// Relays' words for tunnels whose streams have not come, of one consumer: what all of its circuits may have ahead.
pub const VOUCHERS_OF_A_CONSUMER_MAX: usize = CIRCUITS_OF_A_PAIR_MAX * (AHEAD_MAX + TUNNELS_WAITING_MAX);

/// The same of all consumers: some busy ones.
pub const VOUCHERS_MAX: usize = 8 * VOUCHERS_OF_A_CONSUMER_MAX;

/// How long a relay's word is kept: longer than a flow waits for a path to send its stream over.
pub const VOUCHED_LIFE: Span = Span::from_mins(2);

/// How long after a relay's word the stream is likely to be on its way. So long no circuit of its consumer is closed: a
/// flow that was admitted ahead would be opened on it and lost.
pub const VOUCHED_FRESH: Span = Span::from_secs(AHEAD_LIFE.as_secs() + TUNNEL_WAIT.as_secs());

/// Streams of one circuit that wait for a relay's word; more are reset, since each holds a window of unread bytes.
pub const TUNNELS_WAITING_MAX: usize = 64;

/// How long a stream waits for its first frame and for a relay's word.
pub const TUNNEL_WAIT: Span = Span::from_secs(10);

/// How long a tunnel asks relays that answer and refuse, or that say that the target restarts (RP-34). The target waits for
/// longer, so that the flow ends with the relays' reason and not with the target's, that nobody vouched for it.
pub const ASKING_WAIT: Span = Span::from_secs(8);

/// How long one relay may take to admit a tunnel before the next is asked.
pub const ADMIT_WAIT: Span = Span::from_secs(2);

/// The pause between two rounds over all relays for one tunnel.
pub const ADMIT_PAUSE: Span = Span::from_millis(250);

/// The largest first frame of a stream: a grant and four numbers.
pub const OPEN_FRAME_BYTES_MAX: usize = 4 << 10;

/// How long a target may take to accept a connection.
pub const TARGET_CONNECT_WAIT: Span = Span::from_secs(10);

/// Flows of one node; each holds a task and two sockets.
pub const FLOWS_MAX: usize = 100_000;
