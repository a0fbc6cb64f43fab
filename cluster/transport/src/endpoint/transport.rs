//! Timeouts and windows of each kind of connection but circuits, which have their own.

use std::sync::Arc;

use postroad_cluster::{limits::CALLS_PER_PEER_MAX, time::Span};
use quinn::{TransportConfig, VarInt};

/// What one stream may have on its way: a snapshot of some MiB takes a few round trips, a slow reader holds no more.
const STREAM_WINDOW_BYTES: u32 = 512 << 10;

/// Requests that may be open towards this end: those that are answered, and as many whose end has not arrived yet.
const STREAMS: u32 = 2 * CALLS_PER_PEER_MAX as u32;

/// One-way streams for housekeeping: a few, since each is one message.
const ONE_WAY_STREAMS: u32 = 8;

/// How often either end shows that it is alive when nothing else does.
const KEEP_ALIVE: Span = Span::from_secs(1);

/// The idle timeout of sessions (RP-33): a host that is gone is dropped after about 3.5 s. A host whose process is slow
/// keeps its session, since the transport acknowledges.
const SESSION_IDLE_MS: u32 = 3_500;

/// The idle timeout of the other connections: nothing moves when one ends, so that it may be more patient.
const CONTROL_IDLE_MS: u32 = 5_000;

/// The timeouts and windows of a connection, for those who name no library.
pub type Transport = TransportConfig;

fn with_idle(idle_ms: u32) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let window = (STREAMS + ONE_WAY_STREAMS) * STREAM_WINDOW_BYTES;
    config
        .max_idle_timeout(Some(VarInt::from_u32(idle_ms).into()))
        .keep_alive_interval(Some(KEEP_ALIVE))
        // A lost first packet is sent again after about 0.3 s, not 1 s.
        .initial_rtt(Span::from_millis(100))
        // 1,200 bytes pass everywhere; messages gain nothing from more, and the packets' lengths stay known.
        .initial_mtu(1_200)
        .mtu_discovery_config(None)
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(ONE_WAY_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        // The connection's window covers what its streams were promised, so that one unread stream stops no other.
        .receive_window(VarInt::from_u32(window))
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// For a session that this node dials (`postroad-relay/1`).
pub fn session() -> Arc<TransportConfig> {
    with_idle(SESSION_IDLE_MS)
}

/// For a connection to a control node that this node dials (`postroad-control/1`), and for joining.
pub fn control() -> Arc<TransportConfig> {
    with_idle(CONTROL_IDLE_MS)
}

/// For the connections that a listening endpoint takes, whatever they speak: the dialler's idle timeout counts where it
/// is shorter.
pub fn listener() -> Arc<TransportConfig> {
    with_idle(CONTROL_IDLE_MS)
}
