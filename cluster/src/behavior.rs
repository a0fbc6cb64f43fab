//! What a behavior is: a plain struct that turns an event into a new state and effects, and does nothing else.

use core::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use crate::time::{Moment, WallTime};

/// What the world gives a behavior with each event. It is written to the journal beside the event, so that a turn
/// replays exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Turn {
    /// The node's clock.
    pub now: Moment,
    /// The node's wall clock, after the time floor.
    pub wall: WallTime,
    /// 64 bits of chance; [`Turn::draw`] spreads them over a range.
    pub chance: u64,
}

impl Turn {
    /// A number below `bound` (which must not be 0) drawn from the chance; `salt` makes several draws of one turn differ.
    #[must_use]
    pub const fn draw(&self, salt: u64, bound: u64) -> u64 {
        // SplitMix64's finalizer (Steele, Lea, Flood 2014): one turn may need more than one draw.
        let mut bits = self.chance ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        ((bits as u128 * bound as u128) >> 64) as u64
    }
}

/// How a mailbox treats an event when it is crowded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Class {
    /// A state that a newer one of the same key replaces in the queue.
    State {
        /// What the state is of.
        key: u64,
    },
    /// A request, refused with `Busy` when the mailbox is full.
    Request,
    /// A timer, an exit or the result of an effect: it has reserved room and is never refused.
    Reserved,
}

/// Names a waiting asker. An event that asks carries it, and the effect that answers carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
pub struct ReplyId(pub u64);

/// An event of a behavior.
pub trait Event: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + 'static {
    /// The kind of the event in one word, for counters and the console.
    fn kind(&self) -> &'static str;
    /// How a crowded mailbox treats it.
    fn class(&self) -> Class;
}

/// A behavior: state and the pure function over it. No async, clock, socket, randomness, future or closure.
pub trait Behavior: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The behavior's noun, the same in every layer.
    const NOUN: &'static str;
    /// What happens to it.
    type Event: Event;
    /// What it asks of the world.
    type Effect: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + 'static;

    /// Takes one event and appends what is to be done to `effects`.
    fn on(&mut self, turn: Turn, event: Self::Event, effects: &mut Vec<Self::Effect>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_below_their_bound_and_differ_by_salt() {
        let turn = Turn { chance: 7, ..Turn::default() };
        let draws: Vec<u64> = (0..1_000).map(|salt| turn.draw(salt, 10)).collect();
        assert!(draws.iter().all(|draw| *draw < 10));
        assert!((0..10).all(|value| draws.contains(&value)));
        assert_eq!(turn.draw(3, 10), turn.draw(3, 10));
    }
}
