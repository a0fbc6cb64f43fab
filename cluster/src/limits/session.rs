//! A node's sessions, and how it dials.

use crate::time::Span;

/// How often each end of a session proves that it is alive (RP-33).
pub const SESSION_PING_INTERVAL: Span = Span::from_secs(1);

/// The first wait before a relay is dialled again: one that restarted listens within a fraction of a second.
pub const SESSION_RETRY_MIN: Span = Span::from_millis(200);

/// The longest such wait (RP-54): a relay that is back is used within it.
pub const SESSION_RETRY_MAX: Span = Span::from_secs(15);

/// The first wait before a refused registration is tried again (RP-32: 0.2 to 0.4 s).
pub const REGISTER_RETRY_MIN: Span = Span::from_millis(400);

/// The longest such wait.
pub const REGISTER_RETRY_MAX: Span = Span::from_secs(15);

/// The first wait before a channel is asked for again that a relay refused: the peer's session is usually a moment late.
pub const CHANNEL_RETRY_MIN: Span = Span::from_millis(200);

/// The longest such wait; a channel that is missing is a lost spare, and a peer that restarts is to be met again well
/// within what its consumers hold (RP-34).
pub const CHANNEL_RETRY_MAX: Span = Span::from_secs(2);

/// The first wait before a circuit or a control node is dialled again.
pub const DIAL_RETRY_MIN: Span = Span::from_millis(200);

/// The longest such wait.
pub const DIAL_RETRY_MAX: Span = Span::from_secs(10);

/// Relays that one node holds sessions with; more spares than this cost pings and buy nothing.
pub const SESSIONS_MAX: usize = 16;

/// How long a dial may take with resolving the name.
pub const DIAL_WAIT: Span = Span::from_secs(8);
