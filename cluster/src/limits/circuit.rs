//! Circuits: silences, probes, the ring, and the socket under them.

use crate::time::Span;

/// A circuit's QUIC packet where nothing larger is proven: 1,500 bytes of Ethernet less 40 of IPv6, 8 of UDP and 16 of
/// our header. IPv4 would carry 20 more, but a path may change its family.
pub const CIRCUIT_PACKET_BYTES: u32 = 1_436;

/// A circuit's QUIC packet on networks with frames of 9,000 bytes, used where every candidate's probe has carried it.
pub const CIRCUIT_PACKET_BYTES_JUMBO: u32 = 8_936;

/// How often a circuit's driver may go on at once when it has more to send: quinn sends up to 20 datagrams a turn, and the
/// 40 of two turns leave as one send, which fits 45 full ones.
pub const DRIVER_TURNS: usize = 2;

/// How long a removed circuit may still send: its connection's last word, which leaves when everybody else has run.
pub const CIRCUIT_LINGER: Span = Span::from_millis(100);

/// The tick of a circuit's failover while data is in flight: a tenth of the shortest silence that counts.
pub const CIRCUIT_TICK: Span = Span::from_millis(5);

/// The shortest silence that makes a relay suspect. QUIC delays acknowledgements by up to 25 ms, so that less flaps.
pub const CIRCUIT_SILENCE_MIN: Span = Span::from_millis(50);

/// A relay is suspect after this many round trips of silence: 1.5 flaps, more only prolongs the stall.
pub const CIRCUIT_SILENCE_ROUND_TRIPS: u32 = 3;

/// The round trip assumed while none is measured.
pub const CIRCUIT_ROUND_TRIP_UNKNOWN: Span = Span::from_millis(100);

/// Probes that must have stayed unanswered over a silent relay before it is left, at least. Where every hundredth packet is
/// lost on each of two ways there and two back, so many get lost together once in 270 million silences, of which busy flows
/// have some each second. What was seen to get lost does not make it fewer: of so few probes it says too little. A relay
/// that loses more is asked more often.
pub const CIRCUIT_CHECKS_NEEDED: u8 = 6;

/// The most of them, where a tenth and more gets lost: every further one prolongs the stall after a real death.
pub const CIRCUIT_CHECKS_MOST: u8 = 8;

/// Of a billion silences, how many may accuse a relay by chance: lost probes are asked again until it is less than that.
pub const CIRCUIT_FALSE_SUSPICIONS: u64 = 10;

/// Probes over one relay in one silence, whatever it lasts.
pub const CIRCUIT_CHECKS_MAX: u8 = 32;

/// Other relays that are asked during a silence whether they could take over: more than one, since one may be dead too.
pub const CIRCUIT_CHECKED_OTHERS: usize = 2;

/// Over how many probes the share of lost ones is smoothed: about a minute of them.
pub const PROBE_LOSS_SAMPLES: u64 = 64;

/// How often a silence may be doubled that probes contradict: probes come back while acknowledgements do not.
pub const CIRCUIT_PATIENCE_MAX: u32 = 8;

/// How often in a row probes may contradict a silence before the relay is left that carries them alone: about 0.8 s with a
/// short round trip, in which QUIC has sent the same data again at least three times.
pub const CIRCUIT_CONTRADICTIONS_MAX: u32 = 5;

/// Frames that must have been sent during such a silence, so that it is one: whatever is under way is sent again.
pub const CIRCUIT_SENT_AGAIN_MIN: u64 = 2;

/// How long a relay is a last resort that has carried probes and no data, the first time; every further time twice as
/// long. It may have been mended, and may as well be in bad hands.
pub const BETRAYAL_MIN: Span = Span::from_mins(1);

/// The longest time that a relay is a last resort for that: an hour hurts nobody who has others.
pub const BETRAYAL_MAX: Span = Span::from_hours(1);

/// A move without need waits at least this long after the last move.
pub const CIRCUIT_DWELL: Span = Span::from_secs(10);

/// The longest wait that lets packets of a slower way arrive before those of a faster one: half the difference of
/// round trips around the earth.
pub const CIRCUIT_HOLD_MAX: Span = Span::from_millis(250);

/// After a silence both relays get every packet, at most this long.
pub const CIRCUIT_DOUBLE_MAX: Span = Span::from_secs(1);

/// Channels of one circuit: more relays than a link's spread (8) and their replacements are never in use at once.
pub const CIRCUIT_CHANNELS_MAX: usize = 16;

/// Circuits of one node: 500 nodes with 8 circuits each, and some more.
pub const CIRCUITS_MAX: usize = 4_096;

/// A nearer relay must be nearer by this part of the present round trip, in percent (RP-12).
pub const NEARER_PERCENT: u32 = 30;

/// A nearer relay must be nearer by this much too (RP-12).
pub const NEARER_SPAN: Span = Span::from_millis(5);

/// Probes go over every channel this often.
pub const PROBE_INTERVAL: Span = Span::from_secs(1);

/// Quick probes on a channel that is new or has missed one.
pub const PROBE_BURST: u8 = 5;

/// The distance between quick probes.
pub const PROBE_BURST_INTERVAL: Span = Span::from_millis(100);

/// A probe is missing after three round trips, and not before this.
pub const PROBE_PATIENCE: Span = Span::from_millis(100);

/// A probe is missing after this while the round trip is unknown.
pub const PROBE_PATIENCE_UNKNOWN: Span = Span::from_secs(1);

/// What was proven longer ago than this is not believed: three rounds.
pub const PROBE_FRESH: Span = Span::from_secs(3);

/// Rounds of probes remembered to compare two relays by figures of the same moments.
pub const PROBE_ROUNDS_KEPT: usize = 16;

/// Rounds in which both relays answered that a comparison needs; the middle figure of each counts.
pub const PROBE_PAIRS: usize = 7;

/// The circuit's relay is given up after this many missing probes in a row, about 1.6 s after it died on an idle circuit.
pub const PROBE_MISSES_MAX: u32 = 5;

/// A larger packet size is probed for every this many rounds.
pub const PROBE_LARGER_ROUNDS: u64 = 30;

/// The size of probes where the circuit's own never comes back: what every QUIC path carries.
pub const PROBE_SMALL_BYTES: u32 = 1_200;

/// A relay is too small for a circuit's packets after this many probes of full size went missing beside small ones that
/// came back; one or two may just be lost.
pub const PROBE_FULL_MISSES: u8 = 3;

/// Probes of a peer answered over one channel in a second; its own rounds and bursts stay under it.
pub const PROBE_ANSWERS_PER_SECOND: u32 = 400;

/// Claims of a newer path checked in a second and circuit: each costs an HMAC, and a guess has 32 bits to hit.
pub const PATH_CHECKS_PER_SECOND: u32 = 1_000;

/// Datagrams that a circuit's ring keeps whatever their age.
pub const RING_DATAGRAMS_MIN: usize = 64;

/// Bytes that a circuit's ring keeps at most: what 1 Gbit/s sends in 60 ms of silence.
pub const RING_BYTES_MAX: usize = 8 << 20;

/// How long a circuit's ring keeps datagrams beyond four round trips.
pub const RING_AGE: Span = Span::from_millis(200);

/// Datagrams sent again in a millisecond, at least: about 190 Mbit/s, a burst that every network takes.
pub const RESEND_DATAGRAMS_PER_MS: usize = 16;

/// Datagrams that wait inside a node's socket since one received buffer mixed circuits.
pub const SOCKET_QUEUE_DATAGRAMS: usize = 1_024;

/// Events of circuits that wait for the actors.
pub const CIRCUIT_EVENTS: usize = 1_024;

/// How long a socket rests after an error of the network, so that a failing one does not spin.
pub const SOCKET_RETRY: Span = Span::from_millis(10);

/// Open application streams of one circuit.
pub const FLOWS_PER_CIRCUIT: u32 = 20_000;

/// Bytes that one circuit may have sent and not yet acknowledged, over all its flows.
pub const CIRCUIT_SEND_WINDOW_BYTES: u64 = 16 << 20;

/// The first congestion window of a circuit and after each move: some 45 packets, what large sites send at once.
pub const CIRCUIT_FIRST_WINDOW_BYTES: u64 = 64 << 10;

/// Sends beyond that window after a move, each for packets that came: acknowledgements of what is sent again, of which a
/// path of 100 ms needs a few for each round trip.
pub const CIRCUIT_BEYOND_WINDOW_MAX: u32 = 64;

/// A circuit says something this often, so that its idle limit never ends a living one.
pub const CIRCUIT_KEEPALIVE: Span = Span::from_secs(15);

/// A circuit's idle limit beyond the wait of its flows.
pub const CIRCUIT_IDLE_EXTRA: Span = Span::from_secs(30);
