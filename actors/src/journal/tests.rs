//! What a journal keeps and what it drops.

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
        self.journal.record(turn, Arrival::unwaited("test".into()), event, &effects, &self.state);
        self.states.push(self.state.clone());
    }
}

#[test]
fn a_replay_ends_in_the_state_that_was() {
    let mut actor = Actor::new();
    for number in 0..1_000 {
        actor.take(Add::Number(number));
    }
    let kept: Vec<u64> = actor.journal.entries().map(|noted| noted.kept.number).collect();
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
fn a_recording_has_what_led_to_the_last_state_right_after_a_checkpoint_too() {
    let mut actor = Actor::new();
    for number in 1..=3 * JOURNAL_CHECKPOINT_EVERY as u64 {
        actor.take(Add::Number(number));
        let recording = actor.journal.recording(number).unwrap();
        assert_eq!(recording.turns.last().map(|turn| turn.number), Some(number));
        assert_eq!(played(&recording).unwrap(), actor.state);
    }
    // An incarnation that has taken no event has nothing that led to it.
    actor.journal.begin(Arc::new(Sum::default()));
    let recording = actor.journal.recording(actor.journal.last()).unwrap();
    assert!(recording.turns.is_empty());
    assert_eq!(played(&recording).unwrap(), Sum::default());
}

#[test]
fn only_clocks_that_were_read_at_once_are_compared() {
    let mut actor = Actor::new();
    actor.take(Add::Number(1));
    let later = Arrival { at_once: false, ..Arrival::unwaited("test".into()) };
    actor.journal.record(Turn::default(), later, Add::Number(2), &[], &Sum::default());
    let compared: Vec<bool> = actor.journal.entries().map(|noted| noted.clocks().is_some()).collect();
    assert_eq!(compared, [true, false]);
}

#[test]
fn of_large_events_the_last_ones_are_known() {
    let mut actor = Actor::new();
    for number in 1..=100_u64 {
        actor.take(Add::Text("x".repeat(JOURNAL_BYTES_MAX / 6)));
        let (first, last) = actor.journal.known().unwrap();
        assert!(last == number && last - first >= number.min(3), "{first} to {last}");
        assert!(actor.journal.bytes() <= JOURNAL_BYTES_MAX);
    }
}

#[test]
fn how_long_the_last_turn_took_is_known_before_it_is_written_down() {
    let mut actor = Actor::new();
    actor.take(Add::Number(1));
    let over = Over { number: 1, at: Moment(9), took: Span::from_micros(3) };
    let took = |journal: &Journal<Sum>, last| journal.entries().map(|it| it.entry(last).took).collect::<Vec<_>>();
    assert_eq!(took(&actor.journal, None), [None], "its turn is under way");
    assert_eq!(took(&actor.journal, Some(over)), [Some(over.took)]);
    actor.journal.finished(Some(over));
    actor.take(Add::Number(2));
    assert_eq!(took(&actor.journal, Some(over)), [Some(over.took), None]);
    // What failed has no such time, and an older turn's is not the last one's.
    actor.journal.record_failure(Turn::default(), Arrival::unwaited("test".into()), Add::Poison, "poison");
    actor.journal.finished(Some(Over { number: 3, ..over }));
    assert_eq!(took(&actor.journal, Some(Over { number: 3, ..over })), [Some(over.took), None, None]);
}

#[test]
fn an_actor_that_begins_anew_keeps_its_past() {
    let mut actor = Actor::new();
    actor.take(Add::Number(1));
    actor.take(Add::Number(2));
    let before =
        actor.journal.record_failure(Turn::default(), Arrival::unwaited("test".into()), Add::Poison, "poison").unwrap();
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
        for entry in actor.journal.entries().map(|noted| noted.entry(None)) {
            assert_eq!(actor.journal.replay(entry.number).unwrap(), actor.states[entry.number as usize]);
            // Each has its own effects: what the state came to.
            assert_eq!(entry.effects, [actor.states[entry.number as usize].total]);
        }
    }
}
