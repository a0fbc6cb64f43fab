//! What one actor went through, as a value: a state, and the turns after it. Whoever has it plays it again, anywhere.

use serde::{Deserialize, Serialize};

use crate::behavior::{Behavior, Turn};

/// One turn of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "B: Behavior")]
pub struct Recorded<B: Behavior> {
    /// The number of the event, from 1 for the first one of the actor.
    pub number: u64,
    /// What the world gave with it.
    pub turn: Turn,
    /// Who sent it.
    pub sender: String,
    /// The event.
    pub event: B::Event,
    /// The effects that it had.
    pub effects: Vec<B::Effect>,
    /// The error, if the behavior failed on it.
    pub failure: Option<String>,
}

/// A state and the turns after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "B: Behavior")]
pub struct Recording<B: Behavior> {
    /// The state before the first turn.
    pub base: B,
    /// The turns, in order.
    pub turns: Vec<Recorded<B>>,
}

impl<B: Behavior> Recording<B> {
    /// Plays the turns and shows `look` each one with the state and the effects that it led to; `look` says whether to
    /// go on. Returns the last state. A turn on which the behavior failed fails again, by its panic.
    pub fn play(&self, mut look: impl FnMut(&Recorded<B>, &B, &[B::Effect]) -> bool) -> B {
        let mut state = self.base.clone();
        let mut effects = Vec::new();
        for recorded in &self.turns {
            effects.clear();
            state.on(recorded.turn, recorded.event.clone(), &mut effects);
            if !look(recorded, &state, &effects) {
                break;
            }
        }
        state
    }
}

/// A recording as a file: what it is of, for people, and itself, for `simulations replay`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingFile {
    /// The version of this file, 1.
    pub recording: u32,
    /// The noun of the behavior.
    pub noun: String,
    /// The node on which it was.
    pub node: String,
    /// The actor's path there.
    pub path: String,
    /// The first event in it.
    pub first: u64,
    /// The last event in it.
    pub last: u64,
    /// The [`Recording`] as a message of [`wire`](crate::wire), in hexadecimal digits.
    pub bytes: String,
}

impl RecordingFile {
    /// The version that is written.
    pub const VERSION: u32 = 1;

    /// The bytes of the recording; none if they are no hexadecimal digits.
    #[must_use]
    pub fn decoded(&self) -> Option<Vec<u8>> {
        let digits = self.bytes.as_bytes();
        let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        let pairs = digits.chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        pairs.collect()
    }

    /// `bytes` as hexadecimal digits.
    #[must_use]
    pub fn encoded(bytes: &[u8]) -> String {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_their_digits() {
        let file = |bytes: &str| RecordingFile {
            recording: 1,
            noun: "link".into(),
            node: "web".into(),
            path: "node/links/link-1".into(),
            first: 1,
            last: 2,
            bytes: bytes.into(),
        };
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(file(&RecordingFile::encoded(&all)).decoded(), Some(all));
        assert_eq!(file("0g").decoded(), None);
        assert_eq!(file("abc").decoded(), None);
    }
}
