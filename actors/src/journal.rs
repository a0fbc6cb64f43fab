//! The last events of one actor with their turns and effects, and checkpoints of its state between them, so that the
//! state after any of these events can be computed again.

mod size;

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use postroad_cluster::{
    behavior::{Behavior, Event, Turn},
    limits::{JOURNAL_BYTES_MAX, JOURNAL_CHECKPOINT_EVERY, JOURNAL_ENTRIES_MAX},
    recording::{Recorded, Recording},
    time::{Moment, Span, WallTime},
    trace::TraceId,
};

use crate::mailbox::Over;

/// Bytes after which a checkpoint is due, so that the oldest events go and not all.
const SEGMENT_BYTES: usize = JOURNAL_BYTES_MAX / (JOURNAL_ENTRIES_MAX / JOURNAL_CHECKPOINT_EVERY);

/// What every entry costs beside its event and effects.
const ENTRY_BYTES: usize = 64;

/// One event that an actor took.
#[derive(Clone, Debug)]
pub struct Entry<B: Behavior> {
    /// Its number, from 1 for the first event of the actor; it goes on through restarts.
    pub number: u64,
    /// What the world gave with it.
    pub turn: Turn,
    /// How it came.
    pub arrival: Arrival,
    /// How long its turn took, with its effects; nothing while that is under way or if it failed.
    pub took: Option<Span>,
    /// The event.
    pub event: B::Event,
    /// The effects.
    pub effects: Vec<B::Effect>,
    /// The error, if the behavior failed in this turn.
    pub failure: Option<String>,
}

/// How an event came to its actor.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The path of the actor that sent it, or a word for somebody else.
    pub sender: Arc<str>,
    /// How long it waited in the mailbox.
    pub waited: Span,
    /// What it is part of.
    pub trace: TraceId,
    /// Whether both clocks were read for its turn at once, the wall's first. Else the turn's moment is where the one before
    /// ended, some time before the wall's was read.
    pub at_once: bool,
}

impl Arrival {
    /// Of an event that did not wait.
    #[cfg(test)]
    pub(crate) const fn unwaited(sender: Arc<str>) -> Self {
        Self { sender, waited: Span::ZERO, trace: TraceId::drawn(0), at_once: true }
    }
}

/// An entry as it is kept.
#[derive(Debug)]
struct Kept<B: Behavior> {
    number: u64,
    turn: Turn,
    arrival: Arrival,
    took: Option<Span>,
    event: B::Event,
    /// Where its effects end in those of its segment; they begin where the entry's before end.
    effects_end: usize,
    failure: Option<String>,
}

#[derive(Debug)]
struct Segment<B: Behavior> {
    /// The state before the first entry.
    base: Arc<B>,
    /// The number of the event before the first entry.
    after: u64,
    /// Whether an incarnation begins with it, so that its base does not follow from what was before.
    begins: bool,
    entries: Vec<Kept<B>>,
    /// The effects of all entries in one list: a list for each would be asked of the allocator with every message.
    effects: Vec<B::Effect>,
    bytes: usize,
}

impl<B: Behavior> Segment<B> {
    fn noted(&self, at: usize) -> Noted<'_, B> {
        let begin = at.checked_sub(1).map_or(0, |before| self.entries[before].effects_end);
        let kept = &self.entries[at];
        Noted { kept, effects: &self.effects[begin..kept.effects_end] }
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = Noted<'_, B>> {
        (0..self.entries.len()).map(|at| self.noted(at))
    }
}

/// An entry where it is kept.
pub(crate) struct Noted<'a, B: Behavior> {
    kept: &'a Kept<B>,
    effects: &'a [B::Effect],
}

impl<B: Behavior> Noted<'_, B> {
    /// What both clocks said at once, if they were read so.
    pub(crate) fn clocks(&self) -> Option<(Moment, WallTime)> {
        self.kept.arrival.at_once.then_some((self.kept.turn.now, self.kept.turn.wall))
    }

    pub(crate) const fn trace(&self) -> TraceId {
        self.kept.arrival.trace
    }

    /// A copy of it. `last` is the last turn that has ended: how long that took is written down with the next one.
    pub(crate) fn entry(&self, last: Option<Over>) -> Entry<B> {
        let Kept { number, turn, arrival, took, event, failure, .. } = self.kept;
        let ended = last.filter(|last| last.number == *number && failure.is_none());
        Entry {
            number: *number,
            turn: *turn,
            arrival: arrival.clone(),
            took: took.or(ended.map(|last| last.took)),
            event: event.clone(),
            effects: self.effects.to_vec(),
            failure: failure.clone(),
        }
    }

    fn recorded(&self) -> Recorded<B> {
        Recorded {
            number: self.kept.number,
            turn: self.kept.turn,
            sender: self.kept.arrival.sender.to_string(),
            event: self.kept.event.clone(),
            effects: self.effects.to_vec(),
            failure: self.kept.failure.clone(),
        }
    }
}

/// Why the state after an event cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// The event is not in the journal.
    Unknown {
        /// The event that was asked for.
        number: u64,
        /// The first event whose state is known, and the last.
        known: Option<(u64, u64)>,
    },
    /// The behavior failed on it.
    Failed {
        /// The event.
        number: u64,
        /// The error.
        error: String,
    },
}

impl ReplayError {
    /// A stable name of the error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "JOURNAL_EVENT_UNKNOWN",
            Self::Failed { .. } => "JOURNAL_EVENT_FAILED",
        }
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { number, known: Some((first, last)) } => {
                write!(f, "event {number} is not in the journal, which has {first} to {last}: ask for one of these")
            }
            Self::Unknown { number, known: None } => {
                write!(f, "event {number} is not in the journal: the actor has not started yet")
            }
            Self::Failed { number, error } => {
                write!(f, "the behavior failed on event {number}: {error}. Ask for the event before it")
            }
        }
    }
}

impl std::error::Error for ReplayError {}

/// The journal of one actor, bounded in entries and bytes. It survives the actor and its restarts.
#[derive(Debug)]
pub struct Journal<B: Behavior> {
    segments: VecDeque<Segment<B>>,
    number: u64,
}

impl<B: Behavior> Default for Journal<B> {
    fn default() -> Self {
        Self { segments: VecDeque::new(), number: 0 }
    }
}

impl<B: Behavior> Journal<B> {
    /// An incarnation begins with `state`.
    pub(crate) fn begin(&mut self, state: Arc<B>) {
        self.open(state, true);
    }

    fn open(&mut self, base: Arc<B>, begins: bool) {
        let after = self.number;
        let (mut entries, mut effects) = (Vec::new(), Vec::new());
        while self.segments.len() >= JOURNAL_ENTRIES_MAX / JOURNAL_CHECKPOINT_EVERY {
            // The room of what is dropped serves what comes.
            if let Some(oldest) = self.segments.pop_front() {
                (entries, effects) = (oldest.entries, oldest.effects);
                entries.clear();
                effects.clear();
            }
        }
        self.segments.push_back(Segment { base, after, begins, entries, effects, bytes: 0 });
        self.drop_what_is_too_much();
    }

    /// Writes down an event that led to `state`. Returns the checkpoint if that was time for one.
    pub(crate) fn record(
        &mut self,
        turn: Turn,
        arrival: Arrival,
        event: B::Event,
        effects: &[B::Effect],
        state: &B,
    ) -> Option<Arc<B>> {
        self.push(turn, arrival, event, effects, None);
        // Large events get checkpoints more often: else all that is known of the past would be dropped at once.
        let full = self
            .segments
            .back()
            .is_none_or(|segment| segment.entries.len() >= JOURNAL_CHECKPOINT_EVERY || segment.bytes >= SEGMENT_BYTES);
        let crowded = self.drop_what_is_too_much();
        (full || crowded).then(|| {
            let checkpoint = Arc::new(state.clone());
            self.open(checkpoint.clone(), false);
            checkpoint
        })
    }

    /// Writes down an event on which the behavior failed, and returns the state before it.
    pub(crate) fn record_failure(
        &mut self,
        turn: Turn,
        arrival: Arrival,
        event: B::Event,
        error: &str,
    ) -> Option<Arc<B>> {
        let before = self.replay(self.number).ok().map(Arc::new);
        self.push(turn, arrival, event, &[], Some(error.to_owned()));
        before
    }

    fn push(&mut self, turn: Turn, arrival: Arrival, event: B::Event, effects: &[B::Effect], failure: Option<String>) {
        self.number += 1;
        let number = self.number;
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += ENTRY_BYTES + size::bytes_of(&event) + size::bytes_of(&effects);
            segment.effects.extend_from_slice(effects);
            let effects_end = segment.effects.len();
            segment.entries.push(Kept { number, turn, arrival, took: None, event, effects_end, failure });
        }
    }

    /// The turn of the last event has ended. It is told with the next event, so that both take the lock once.
    pub(crate) fn finished(&mut self, over: Option<Over>) {
        let Some(over) = over else { return };
        // A checkpoint may have opened a segment since.
        let last = self.segments.iter_mut().rev().find_map(|segment| segment.entries.last_mut());
        if let Some(entry) = last.filter(|entry| entry.number == over.number && entry.failure.is_none()) {
            entry.took = Some(over.took);
        }
    }

    /// Drops the oldest segments while there are too many bytes; true if the last alone has too many.
    fn drop_what_is_too_much(&mut self) -> bool {
        while self.bytes() > JOURNAL_BYTES_MAX {
            if self.segments.len() == 1 {
                return true;
            }
            self.segments.pop_front();
        }
        false
    }

    /// The bytes of all entries.
    fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// The number of the last event.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.number
    }

    /// The entries that are kept, oldest first.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = Noted<'_, B>> {
        self.segments.iter().flat_map(Segment::iter)
    }

    /// The first event whose state can be computed again, and the last; nothing before the actor's first start.
    #[must_use]
    pub fn known(&self) -> Option<(u64, u64)> {
        self.segments.front().map(|segment| (segment.after, self.number))
    }

    /// What led to the state after event `to`, from the checkpoint before it.
    pub fn recording(&self, to: u64) -> Result<Recording<B>, ReplayError> {
        // After the very last event the present incarnation's state is meant, even if it has taken no event yet.
        // A checkpoint that no event has followed is no news of what led to it.
        let starts = |segment: &&Segment<B>| segment.begins || !segment.entries.is_empty();
        let found = if to == self.number {
            self.segments.iter().rev().find(starts).or_else(|| self.segments.back())
        } else {
            let inside = self.segments.iter().rev().find(|segment| segment.after < to);
            inside.or_else(|| self.segments.front().filter(|segment| segment.after == to))
        };
        let unknown = || ReplayError::Unknown { number: to, known: self.known() };
        let segment = found.filter(|_| to <= self.number).ok_or_else(unknown)?;
        let entries = segment.iter().take_while(|noted| noted.kept.number <= to);
        Ok(Recording { base: B::clone(&segment.base), turns: entries.map(|noted| noted.recorded()).collect() })
    }

    /// The state after event `to`, computed again from the checkpoint before it.
    pub fn replay(&self, to: u64) -> Result<B, ReplayError> {
        played(&self.recording(to)?)
    }
}

/// The state at the end of a recording.
pub(crate) fn played<B: Behavior>(recording: &Recording<B>) -> Result<B, ReplayError> {
    if let Some((number, error)) = recording.turns.iter().find_map(|turn| Some((turn.number, turn.failure.clone()?))) {
        return Err(ReplayError::Failed { number, error });
    }
    let mut number = 0;
    let play = AssertUnwindSafe(|| {
        recording.play(|turn, _, _| {
            number = turn.number;
            true
        })
    });
    catch_unwind(play).map_err(|panic| ReplayError::Failed { number: number + 1, error: panic_text(&*panic) })
}

impl<B: Behavior> Entry<B> {
    /// The kind of the event.
    pub fn kind(&self) -> &'static str {
        self.event.kind()
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    }
}

#[cfg(test)]
mod tests;
