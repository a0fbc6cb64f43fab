//! The console, traces and configuration.

use crate::time::Span;

/// The largest configuration file. A full one has some 3 KiB; a larger one is another file given by mistake.
pub const CONFIG_BYTES_MAX: u64 = 256 << 10;

/// How many errors of a configuration are shown at once: more than a screen of them is one mistake repeated.
pub const CONFIG_ERRORS_MAX: usize = 20;

/// How long a node may take to show a page of its console to another. Pages are made within milliseconds, and whoever
/// looks at a fleet must not wait for its dead.
pub const LOOK_WAIT: Span = Span::from_secs(1);

/// Looks at other nodes that are under way at one control node: a few browsers with a fleet of some tens.
pub const LOOKS_MAX: usize = 32;

/// Entries of the log whose traces a control node remembers, for the snapshots that they lead to: those are fetched within
/// seconds, by nodes that are there.
pub const TRACED_ENTRIES_MAX: usize = 256;

/// Steps of traces that a node remembers beside its journals: turns of what somebody has begun, and what was done outside of
/// actors, such as requests of the API; some minutes of a busy operator. So many of each.
pub const TRACE_STEPS_MAX: usize = 1_024;

/// Steps of one trace that a node tells of: what is longer is a storm, whose beginning says what it is.
pub const TRACE_SHOWN_MAX: usize = 500;

/// How long a node may take to do what another's console asked of it.
pub const ACT_WAIT: Span = Span::from_secs(3);
