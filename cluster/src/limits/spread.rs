//! The circuits of a pair, the relays that take its new connections, and those that refuse.

use crate::time::Span;

/// Relays that receive a link's new connections at most (RP-10): each costs its two nodes a circuit with channels.
pub const SPREAD_MAX: u8 = 8;

/// Circuits of a pair: one for each relay that takes their new connections.
pub const CIRCUITS_OF_A_PAIR_MAX: usize = SPREAD_MAX as usize;

/// Circuits of a pair at the end that takes them: those, and as many that a restarted dialler opens in their place.
pub const CIRCUITS_TAKEN_MAX: usize = 2 * CIRCUITS_OF_A_PAIR_MAX;

/// Channels that one circuit of a pair asks for: with 8 circuits they are the 64 that a pair may have.
pub const CHANNELS_OF_A_CIRCUIT_MAX: usize = 8;

/// Relays that receive a link's new connections where nothing else is said (RP-10).
pub const SPREAD_DEFAULT: u8 = 2;

/// Relays within this part of the closest one's round trip, in percent, share the primary role with it (RP-12).
pub const PRIMARY_PERCENT: u32 = 20;

/// Relays within this much of the closest one share it too (RP-12).
pub const PRIMARY_SPAN: Span = Span::from_millis(3);

/// How often the dialling end looks which relays take a pair's new connections.
pub const SPREAD_LOOK: Span = Span::from_secs(1);

/// Looks in a row that must find the same: a relay that flaps is no reason to dial.
pub const SPREAD_LOOKS: u32 = 3;

/// The first wait before a circuit is opened again for a relay that did not open its channel.
pub const SPREAD_RETRY_MIN: Span = Span::from_secs(2);

/// The longest such wait; until then another circuit of the pair takes what comes.
pub const SPREAD_RETRY_MAX: Span = Span::from_mins(1);

/// How long a circuit that no relay needs stays open without a flow: longer than most pauses between two flows.
pub const CIRCUIT_SURPLUS: Span = Span::from_mins(1);

/// How long the other end may take to agree to a close. Nothing of it is open then, so that a lost path need not be
/// waited for.
pub const CIRCUIT_CLOSE_WAIT: Span = Span::from_secs(10);

/// How long a relay that has refused a link's tunnel is asked last for that link, the first time (RP-21).
pub const REFUSING_MIN: Span = Span::from_secs(30);

/// The longest such time, while it goes on refusing (RP-21).
pub const REFUSING_MAX: Span = Span::from_mins(5);

/// How often a relay that refuses is asked all the same, for each link: as soon as it admits, service resumes within this
/// time and the pause between two rounds, and until then a node costs it one request a second (RP-21).
pub const REFUSING_ASK: Span = Span::from_secs(1);

/// How often the log is told that a relay still refuses (RP-22).
pub const REFUSING_REMINDER: Span = Span::from_mins(1);

/// Refusals that are remembered, by relay and link: 16 relays of 256 links.
pub const REFUSALS_MAX: usize = 4_096;

/// Circuits on which one flow is tried: as many as a pair has, each of which said that it has connected nothing.
pub const OPENINGS_MAX: usize = CIRCUITS_OF_A_PAIR_MAX;
