//! How far replicas are behind, from a history of the primary's positions that the balancer keeps itself (DB-15).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::evidence::Position;
use crate::{
    balancer::limits::POSITIONS_MAX,
    time::{Moment, Span},
};

/// A position of the primary and when it was first seen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    at: Moment,
    sequence: u64,
    /// Bytes of the log up to it, counted from wherever the history began.
    bytes: u64,
}

/// Where the primary's log has been, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// By rising moment and sequence.
    seen: VecDeque<Seen>,
    /// The file that the last position lay in, and whose it is: the files of two nodes have nothing in common.
    file: Option<(u64, u64)>,
    node: String,
}

/// How far a replica is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Bytes of the log that it has not replayed.
    pub bytes: u64,
    /// For how long the primary has been beyond what it has replayed.
    pub span: Span,
}

impl History {
    /// The primary `node` was seen at `position`. A position below the last one means another line of history: what lies
    /// beyond it never happened there.
    pub fn saw(&mut self, now: Moment, node: &str, position: Position) {
        if self.node != node {
            node.clone_into(&mut self.node);
            self.file = None;
        }
        while self.seen.back().is_some_and(|last| last.sequence > position.sequence) {
            self.seen.pop_back();
            self.file = None;
        }
        let last = self.seen.back().copied();
        let bytes = match (position.file, self.file) {
            (None, _) => position.sequence,
            (Some((file, offset)), Some((last_file, last_offset))) => {
                // Of a file that was left in between, the rest is unknown; it is less than one probe wrote.
                let from = if file == last_file { last_offset } else { 0 };
                last.map_or(0, |last| last.bytes).saturating_add(offset.saturating_sub(from))
            }
            (Some(_), None) => last.map_or(0, |last| last.bytes),
        };
        self.file = position.file;
        if last.is_none_or(|last| last.sequence < position.sequence) {
            self.seen.push_back(Seen { at: now, sequence: position.sequence, bytes });
        }
        if self.seen.len() > POSITIONS_MAX {
            self.thin();
        }
    }

    /// Every second position of the older half goes.
    fn thin(&mut self) {
        let half = self.seen.len() / 2;
        let mut index = 0;
        self.seen.retain(|_| {
            index += 1;
            index > half || index % 2 == 1
        });
    }

    /// How far whoever has replayed up to `replayed` is behind. Positions beyond `ceiling` do not count: without a
    /// primary, nobody can replay what only the lost one had written.
    #[must_use]
    pub fn lag(&self, now: Moment, replayed: Position, ceiling: u64) -> Lag {
        let counted = || self.seen.iter().filter(|seen| seen.sequence <= ceiling);
        let beyond = counted().find(|seen| seen.sequence > replayed.sequence);
        let span = beyond.map_or(Span::ZERO, |seen| now.since(seen.at));
        let Some(last) = counted().next_back() else { return Lag::default() };
        let reached = if replayed.file.is_none() && self.file.is_none() {
            replayed.sequence
        } else {
            let upto = counted().rev().find(|seen| seen.sequence <= replayed.sequence);
            upto.or_else(|| counted().next()).map_or(last.bytes, |seen| seen.bytes)
        };
        Lag { bytes: last.bytes.saturating_sub(reached), span }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO.after(Span::from_secs(seconds))
    }

    fn history(of: &[(u64, u64)]) -> History {
        let mut history = History::default();
        for (seconds, sequence) in of {
            history.saw(at(*seconds), "a", Position::bytes(*sequence));
        }
        history
    }

    // DB-15, D3: an idle primary leaves nobody behind, however long it idles.
    #[test]
    fn lag_grows_from_when_the_primary_was_first_beyond() {
        let history = history(&[(1, 100), (2, 200), (3, 200), (4, 200), (5, 300)]);
        let table = [(300, 0, 0), (250, 50, 25), (200, 100, 25), (150, 150, 28), (100, 200, 28), (50, 250, 29)];
        for (replayed, bytes, seconds) in table {
            let lag = history.lag(at(30), Position::bytes(replayed), u64::MAX);
            assert_eq!(lag, Lag { bytes, span: Span::from_secs(seconds) }, "replayed {replayed}");
        }
        // D2: never negative, also when the replica was asked after the primary.
        assert_eq!(history.lag(at(30), Position::bytes(999), u64::MAX), Lag::default());
        assert_eq!(History::default().lag(at(30), Position::bytes(1), u64::MAX), Lag::default());
    }

    #[test]
    fn what_only_a_lost_primary_had_written_holds_nobody_back() {
        let history = history(&[(1, 100), (2, 200)]);
        assert_eq!(history.lag(at(30), Position::bytes(150), 150).span, Span::ZERO);
        assert_eq!(history.lag(at(30), Position::bytes(50), 150).span, Span::from_secs(29));
    }

    #[test]
    fn a_new_line_of_history_forgets_what_was_beyond_it() {
        let mut history = history(&[(1, 100), (2, 200), (3, 300)]);
        history.saw(at(4), "a", Position::bytes(150));
        assert_eq!(history.lag(at(9), Position::bytes(150), u64::MAX), Lag::default());
        assert_eq!(history.lag(at(9), Position::bytes(120), u64::MAX).span, Span::from_secs(5));
    }

    // Transactions are no bytes: those come from the primary's files.
    #[test]
    fn bytes_of_files_are_added_up_over_rotations() {
        let mut history = History::default();
        for (seconds, sequence, file) in [(1, 10, (1, 1_000)), (2, 11, (1, 1_500)), (3, 12, (2, 300))] {
            history.saw(at(seconds), "a", Position { sequence, file: Some(file) });
        }
        let lag = |sequence| history.lag(at(10), Position { sequence, file: None }, u64::MAX);
        assert_eq!(lag(12), Lag::default());
        assert_eq!(lag(11), Lag { bytes: 300, span: Span::from_secs(7) });
        assert_eq!(lag(10), Lag { bytes: 800, span: Span::from_secs(8) });
    }

    #[test]
    fn the_history_is_bounded_and_keeps_both_ends() {
        let mut history = History::default();
        for step in 0..10 * POSITIONS_MAX as u64 {
            history.saw(at(step), "a", Position::bytes(step));
            assert!(history.seen.len() <= POSITIONS_MAX);
        }
        assert_eq!(history.seen.front().map(|seen| seen.sequence), Some(0));
        assert_eq!(history.seen.back().map(|seen| seen.sequence), Some(10 * POSITIONS_MAX as u64 - 1));
    }
}
