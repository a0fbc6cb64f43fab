//! Supervision, mailboxes and journals.

use crate::time::Span;

/// Restarts of one supervisor's children within [`SUPERVISION_WINDOW`] before it fails upwards: what five restarts did
/// not mend, a sixth will not.
pub const SUPERVISION_RESTARTS_MAX: usize = 5;

/// The window in which restarts are counted, and the uptime after which a child's backoff starts anew.
pub const SUPERVISION_WINDOW: Span = Span::from_mins(1);

/// The least wait before a restart: a single failure is mended before anybody notices.
pub const SUPERVISION_BACKOFF_MIN: Span = Span::from_millis(100);

/// The longest wait before a restart: longer would be an outage by itself.
pub const SUPERVISION_BACKOFF_MAX: Span = Span::from_secs(10);

/// How long a killed actor may take to be gone. Killing takes microseconds, unless a turn does not return.
pub const SUPERVISION_KILL_WITHIN: Span = Span::from_secs(1);

/// How long an actor may take to stop before it is killed. Stops are turns, not I/O.
pub const ACTOR_STOP_WITHIN: Span = Span::from_secs(5);

/// How long a supervisor may take to stop all its children one by one.
pub const SUPERVISOR_STOP_WITHIN: Span = Span::from_mins(1);

/// Children of one supervisor: all sessions or links of one node, with room.
pub const SUPERVISOR_CHILDREN_MAX: usize = 16_384;

/// Requests that wait in one mailbox before the next is refused as busy: about a second's work of a slow behavior.
pub const MAILBOX_REQUESTS_MAX: usize = 1_024;

/// States with different keys that wait in one mailbox: one for each of some thousand nodes, links or sessions.
pub const MAILBOX_STATES_MAX: usize = 4_096;

/// Timers, exits and results that wait in one mailbox. They are bounded by what the actor itself asked for, so more is a
/// defect, and the actor is failed.
pub const MAILBOX_RESERVED_MAX: usize = 8_192;

/// Events that an actor takes in one go, before it looks for a stop or a kill and others get their turn.
pub const MAILBOX_BATCH: usize = 32;

/// Tasks that one actor has under way: an actor that awaits more results than this has lost count.
pub const ACTOR_TASKS_MAX: usize = 1_024;

/// Timers that one actor has set, by key.
pub const ACTOR_TIMERS_MAX: usize = 4_096;

/// Askers from outside that wait for one actor.
pub const ACTOR_ASKS_MAX: usize = 256;

/// Events that an actor's journal keeps; enough to see what led to a failure.
pub const JOURNAL_ENTRIES_MAX: usize = 256;

/// Events between two checkpoints of a journal: a replay takes at most so many turns.
pub const JOURNAL_CHECKPOINT_EVERY: usize = 64;

/// Bytes of events and effects in one journal: 10,000 sessions' journals stay under 1 GiB. Checkpoints come on top, at
/// most [`JOURNAL_ENTRIES_MAX`] / [`JOURNAL_CHECKPOINT_EVERY`].
pub const JOURNAL_BYTES_MAX: usize = 64 << 10;

/// How old a published state may be while the actor has newer: people do not see less, and copies cost.
pub const PUBLISH_EVERY: Span = Span::from_millis(100);

/// Restarts that are remembered for each actor.
pub const RESTART_HISTORY_MAX: usize = 16;

/// Bytes of the state before a failure that are kept as text with the restart; the journal has the whole.
pub const RESTART_STATE_BYTES_MAX: usize = 16 << 10;

/// Failed actors that will not come back whose state and journal stay readable.
pub const POST_MORTEMS_MAX: usize = 64;
