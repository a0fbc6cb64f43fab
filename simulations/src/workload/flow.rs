//! One flow as its world sees it: its plan, its content, and how far each end is.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::{RngExt, rngs::StdRng};
use tokio::time::Instant;

use super::Route;

/// The two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the consumer to the target.
    Up,
    /// From the target to the consumer.
    Down,
}

/// How one direction is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes at a time.
    pub bytes: usize,
    /// How often.
    pub every: Duration,
}

/// How a flow ends, if nothing breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The consumer closes its half when the world stops; the target then sends a rest and closes too.
    AtTheEnd,
    /// The same after a while.
    ClientFirst(Duration),
    /// The target closes its half after a while; the consumer goes on, then closes too.
    ServerFirst(Duration),
    /// The consumer resets after a while.
    ClientReset(Duration),
    /// The target resets after a while.
    ServerReset(Duration),
}

impl Ending {
    /// The ending in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::AtTheEnd => "stays open",
            Self::ClientFirst(_) => "the consumer closes first",
            Self::ServerFirst(_) => "the target closes first",
            Self::ClientReset(_) => "the consumer resets",
            Self::ServerReset(_) => "the target resets",
        }
    }
}

/// What a flow is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// From the consumer.
    pub up: Pace,
    /// From the target.
    pub down: Pace,
    /// Its end.
    pub ending: Ending,
    /// Bytes that the end which closes last sends after it has read the other's end of file.
    pub rest_bytes: usize,
}

/// 64 kbit/s a little at a time.
const STEADY: Pace = Pace { bytes: 1_600, every: Duration::from_millis(200) };
/// 64 kbit/s in bursts of some twenty packets and more.
const BURSTS: Pace = Pace { bytes: 40_000, every: Duration::from_secs(5) };
/// What goes the other way: questions and confirmations.
const LITTLE: Pace = Pace { bytes: 100, every: Duration::from_secs(1) };

impl Plan {
    /// A plan by chance; every second slot keeps its flow open for as long as the world lasts.
    pub fn draw(slot: usize, rng: &mut StdRng) -> Self {
        let main = if rng.random_bool(0.7) { STEADY } else { BURSTS };
        let (up, down) = if rng.random_bool(0.5) { (main, LITTLE) } else { (LITTLE, main) };
        let after = Duration::from_millis(rng.random_range(1_000..25_000));
        let ending = match rng.random_range(0..4) {
            _ if slot.is_multiple_of(2) => Ending::AtTheEnd,
            0 => Ending::ClientFirst(after),
            1 => Ending::ServerFirst(after),
            2 => Ending::ClientReset(after),
            _ => Ending::ServerReset(after),
        };
        Self { up, down, ending, rest_bytes: rng.random_range(0..20_000) }
    }

    /// How a direction is filled.
    #[must_use]
    pub const fn pace(&self, direction: Direction) -> Pace {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }
}

/// How one end of a flow saw its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Both halves ended cleanly.
    Whole,
    /// It was reset, or failed, with this error.
    Failed(String),
}

/// How far a flow is.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Bytes written, by direction.
    pub sent: [u64; 2],
    /// Bytes read and found right, by direction.
    pub got: [u64; 2],
    /// Whether the writer has closed its half, by direction.
    pub closed: [bool; 2],
    /// Whether the reader has seen the end of file, by direction.
    pub ended: [bool; 2],
    /// When an end has reset it on purpose.
    pub reset: Option<Instant>,
    /// When the node or host of an end went down.
    pub broken: Option<Instant>,
    /// The consumer's host or node is gone, so that nobody sees its end there.
    pub client_gone: bool,
    /// The target's.
    pub server_gone: bool,
    /// When the target accepted it.
    pub accepted: Option<Instant>,
    /// How the consumer saw its end, and when.
    pub client: Option<(Seen, Instant)>,
    /// How the target saw its end, and when.
    pub server: Option<(Seen, Instant)>,
    /// When a byte was read last, by direction.
    pub last: [Option<Instant>; 2],
    /// The longest that a byte was under way beyond its pace.
    pub longest_stall: Duration,
    /// The first thing that was wrong with its content.
    pub wrong: Option<String>,
}

/// One flow.
#[derive(Debug)]
pub struct Flow {
    /// Its number; its content depends on it.
    pub number: u64,
    /// Its slot.
    pub slot: usize,
    /// Its link.
    pub route: Route,
    /// What it is to do.
    pub plan: Plan,
    /// When the consumer connected.
    pub began: Instant,
    state: Mutex<State>,
}

impl Flow {
    pub(super) fn new(number: u64, slot: usize, route: Route, plan: Plan) -> Self {
        Self { number, slot, route, plan, began: Instant::now(), state: Mutex::default() }
    }

    /// Looks at or changes how far it is.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether both ends are over, or gone with their host.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.with(|state| {
            let server_open = state.accepted.is_some() && state.server.is_none() && !state.server_gone;
            (state.client.is_some() || state.client_gone) && !server_open
        })
    }

    /// Fills `bytes` with the content from `position` on.
    pub fn fill(&self, direction: Direction, position: u64, bytes: &mut [u8]) {
        let mut at = position;
        let mut rest = bytes;
        while !rest.is_empty() {
            let word = self.word(direction, at / 8).to_le_bytes();
            let skip = (at % 8) as usize;
            let count = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&word[skip..skip + count]);
            at += count as u64;
            rest = later;
        }
    }

    /// `SplitMix64` of the flow, the direction and the place: any byte that is lost, repeated or moved shows.
    fn word(&self, direction: Direction, place: u64) -> u64 {
        let mut bits = (self.number << 1 | direction as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ place;
        bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn content_is_the_same_in_any_pieces_and_differs_by_place_flow_and_direction() {
        let plan = Plan::draw(1, &mut StdRng::seed_from_u64(1));
        let (one, two) =
            (Flow::new(1, 0, super::super::ROUTES[0], plan), Flow::new(2, 0, super::super::ROUTES[0], plan));
        let mut whole = [0; 100];
        one.fill(Direction::Up, 0, &mut whole);
        for cut in 1..100 {
            let mut pieces = [0; 100];
            let (left, right) = pieces.split_at_mut(cut);
            one.fill(Direction::Up, 0, left);
            one.fill(Direction::Up, cut as u64, right);
            assert_eq!(pieces, whole);
        }
        let mut other = [0; 100];
        for (flow, direction, position) in
            [(&two, Direction::Up, 0), (&one, Direction::Down, 0), (&one, Direction::Up, 8), (&one, Direction::Up, 1)]
        {
            flow.fill(direction, position, &mut other);
            assert_ne!(other, whole);
        }
    }
}
