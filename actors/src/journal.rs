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
    time::Span,
    trace::TraceId,
};

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
}

impl Arrival {
    /// Of an event that did not wait.
    #[cfg(test)]
    pub(crate) const fn at_once(sender: Arc<str>) -> Self {
        Self { sender, waited: Span::ZERO, trace: TraceId::drawn(0) }
    }
}

#[derive(Debug)]
struct Segment<B: Behavior> {
    /// The state before the first entry.
    base: Arc<B>,
    /// The number of the event before the first entry.
    after: u64,
    entries: VecDeque<Entry<B>>,
    bytes: usize,
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
        self.open(state);
    }

    fn open(&mut self, base: Arc<B>) {
        let after = self.number;
        self.segments.push_back(Segment { base, after, entries: VecDeque::new(), bytes: 0 });
        while self.segments.len() > JOURNAL_ENTRIES_MAX / JOURNAL_CHECKPOINT_EVERY {
            self.segments.pop_front();
        }
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
        self.push(turn, arrival, event, effects.to_vec(), None);
        let full = self.segments.back().is_none_or(|segment| segment.entries.len() >= JOURNAL_CHECKPOINT_EVERY);
        let crowded = self.drop_what_is_too_much();
        (full || crowded).then(|| {
            let checkpoint = Arc::new(state.clone());
            self.open(checkpoint.clone());
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
        self.push(turn, arrival, event, Vec::new(), Some(error.to_owned()));
        before
    }

    fn push(
        &mut self,
        turn: Turn,
        arrival: Arrival,
        event: B::Event,
        effects: Vec<B::Effect>,
        failure: Option<String>,
    ) {
        self.number += 1;
        let number = self.number;
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += ENTRY_BYTES + size::bytes_of(&event) + size::bytes_of(&effects);
            segment.entries.push_back(Entry { number, turn, arrival, took: None, event, effects, failure });
        }
    }

    /// The turn of the last event has ended.
    pub(crate) fn finished(&mut self, took: Span) {
        // A checkpoint may have opened a segment since.
        let last = self.segments.iter_mut().rev().find_map(|segment| segment.entries.back_mut());
        if let Some(entry) = last.filter(|entry| entry.number == self.number && entry.failure.is_none()) {
            entry.took = Some(took);
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
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry<B>> {
        self.segments.iter().flat_map(|segment| segment.entries.iter())
    }

    /// The first event whose state can be computed again, and the last; nothing before the actor's first start.
    #[must_use]
    pub fn known(&self) -> Option<(u64, u64)> {
        self.segments.front().map(|segment| (segment.after, self.number))
    }

    /// What led to the state after event `to`, from the checkpoint before it.
    pub fn recording(&self, to: u64) -> Result<Recording<B>, ReplayError> {
        // After the very last event the present incarnation's state is meant, even if it has taken no event yet.
        let found = if to == self.number {
            self.segments.back()
        } else {
            let inside = self.segments.iter().rev().find(|segment| segment.after < to);
            inside.or_else(|| self.segments.front().filter(|segment| segment.after == to))
        };
        let unknown = || ReplayError::Unknown { number: to, known: self.known() };
        let segment = found.filter(|_| to <= self.number).ok_or_else(unknown)?;
        let entries = segment.entries.iter().take_while(|entry| entry.number <= to);
        Ok(Recording { base: B::clone(&segment.base), turns: entries.map(Entry::recorded).collect() })
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
    fn recorded(&self) -> Recorded<B> {
        Recorded {
            number: self.number,
            turn: self.turn,
            sender: self.arrival.sender.to_string(),
            event: self.event.clone(),
            effects: self.effects.clone(),
            failure: self.failure.clone(),
        }
    }

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
mod tests {
    use postroad_cluster::behavior::Class;
    use proptest::{collection::vec, proptest};
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Sum {
        total: u64,
        chances: u64,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Add {
        Number(u64),
        Text(String),
        Poison,
    }

    impl Event for Add {
        fn kind(&self) -> &'static str {
            "add"
        }

        fn class(&self) -> Class {
            Class::Request
        }
    }

    impl Behavior for Sum {
        const NOUN: &'static str = "sum";
        type Event = Add;
        type Effect = u64;

        fn on(&mut self, turn: Turn, event: Add, effects: &mut Vec<u64>) {
            self.chances ^= turn.chance.rotate_left(7).wrapping_add(turn.now.0);
            match event {
                Add::Number(number) => self.total = self.total.wrapping_mul(31).wrapping_add(number),
                Add::Text(text) => self.total += text.len() as u64,
                Add::Poison => panic!("poison"),
            }
            effects.push(self.total);
        }
    }

    struct Actor {
        state: Sum,
        journal: Journal<Sum>,
        /// The state after each event, by number.
        states: Vec<Sum>,
    }

    impl Actor {
        fn new() -> Self {
            let mut actor = Self { state: Sum::default(), journal: Journal::default(), states: vec![Sum::default()] };
            actor.journal.begin(Arc::new(Sum::default()));
            actor
        }

        fn take(&mut self, event: Add) {
            let chance = self.journal.last().wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let turn = Turn { chance, ..Turn::default() };
            let mut effects = Vec::new();
            self.state.on(turn, event.clone(), &mut effects);
            self.journal.record(turn, Arrival::at_once("test".into()), event, &effects, &self.state);
            self.states.push(self.state.clone());
        }
    }

    #[test]
    fn a_replay_ends_in_the_state_that_was() {
        let mut actor = Actor::new();
        for number in 0..1_000 {
            actor.take(Add::Number(number));
        }
        let kept: Vec<u64> = actor.journal.entries().map(|entry| entry.number).collect();
        assert!(kept.len() <= JOURNAL_ENTRIES_MAX && kept.len() > JOURNAL_ENTRIES_MAX - 2 * JOURNAL_CHECKPOINT_EVERY);
        for number in &kept {
            assert_eq!(actor.journal.replay(*number).unwrap(), actor.states[*number as usize]);
        }
        assert_eq!(actor.journal.replay(1_000).unwrap(), actor.state);
        let error = actor.journal.replay(1).unwrap_err();
        assert_eq!(error.code(), "JOURNAL_EVENT_UNKNOWN");
        assert!(actor.journal.replay(1_001).is_err());
    }

    #[test]
    fn an_actor_that_begins_anew_keeps_its_past() {
        let mut actor = Actor::new();
        actor.take(Add::Number(1));
        actor.take(Add::Number(2));
        let before = actor
            .journal
            .record_failure(Turn::default(), Arrival::at_once("test".into()), Add::Poison, "poison")
            .unwrap();
        assert_eq!(*before, actor.state);
        actor.states.push(actor.state.clone());
        actor.state = Sum { total: 100, chances: 0 };
        actor.journal.begin(Arc::new(actor.state.clone()));
        assert_eq!(actor.journal.replay(3).unwrap(), actor.state);
        actor.take(Add::Number(4));
        assert_eq!(actor.journal.replay(2).unwrap(), actor.states[2]);
        assert_eq!(actor.journal.replay(3), Err(ReplayError::Failed { number: 3, error: "poison".to_owned() }));
        assert_eq!(actor.journal.replay(4).unwrap(), actor.state);
    }

    proptest! {
        /// Whatever the sizes of events are, the journal keeps its bounds and the last state can be replayed.
        #[test]
        fn bytes_are_bounded(lengths in vec(0_usize..20_000, 1..300)) {
            let mut actor = Actor::new();
            for length in lengths {
                // Now and then an event that is larger than the whole journal may be.
                let length = if length % 97 == 0 { JOURNAL_BYTES_MAX + length } else { length };
                actor.take(Add::Text("x".repeat(length)));
                assert!(actor.journal.bytes() <= JOURNAL_BYTES_MAX);
                assert!(actor.journal.entries().count() <= JOURNAL_ENTRIES_MAX);
                let last = actor.journal.last();
                assert_eq!(&actor.journal.replay(last).unwrap(), &actor.state);
            }
            for entry in actor.journal.entries() {
                assert_eq!(actor.journal.replay(entry.number).unwrap(), actor.states[entry.number as usize]);
            }
        }
    }
}
