//! The mailbox in front of ractor's own: bounded and counted by class. Sends never wait; a newer state replaces an older
//! one of its key in place, a request is refused when it is crowded, and what an actor asked for itself has room.

pub(crate) mod pulse;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use postroad_cluster::{
    behavior::{Class, Event},
    limits::{MAILBOX_REQUESTS_MAX, MAILBOX_RESERVED_MAX, MAILBOX_STATES_MAX},
    time::{Moment, Span},
    trace::TraceId,
};

use self::pulse::Pulse;

/// How much of each class waits at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests; one more is refused as busy.
    pub requests: usize,
    /// States of different keys; one more is refused as busy.
    pub states: usize,
    /// Timers, exits and results; one more fails the actor.
    pub reserved: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: MAILBOX_REQUESTS_MAX, states: MAILBOX_STATES_MAX, reserved: MAILBOX_RESERVED_MAX }
    }
}

/// Why an event was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The class has no more room; so many of it wait.
    Busy(usize),
    /// The reserved room is full, which is a defect.
    Overflow(usize),
}

/// The timer that an event comes from: its key, and which setting of that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) key: u64,
    pub(crate) serial: u64,
}

/// What is written on an event: who sends it, and what it is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The path of the actor that sends it, or a word for somebody else.
    pub(crate) sender: Arc<str>,
    /// Its trace; nothing if it begins one.
    pub(crate) trace: Option<TraceId>,
}

/// An event that waits.
#[derive(Debug)]
pub(crate) struct Letter<E> {
    pub(crate) event: E,
    pub(crate) envelope: Envelope,
    pub(crate) since: Moment,
    pub(crate) fired: Option<Fired>,
}

/// The events that wait for one actor, in the order of arrival, and what is counted about them.
#[derive(Debug)]
pub(crate) struct Mailbox<E> {
    bounds: Bounds,
    letters: VecDeque<Letter<E>>,
    /// Where the state of a key waits, counted from the first letter ever.
    states: BTreeMap<u64, u64>,
    taken: u64,
    requests: usize,
    reserved: usize,
    counting: bool,
    counters: Counters,
}

impl<E: Event> Mailbox<E> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            letters: VecDeque::new(),
            states: BTreeMap::new(),
            taken: 0,
            requests: 0,
            reserved: 0,
            counting: true,
            counters: Counters::default(),
        }
    }

    /// Whether it counts what it gives.
    pub(crate) const fn counting(mut self, counting: bool) -> Self {
        self.counting = counting;
        self
    }

    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Takes `letter`, or says why not and counts that.
    pub(crate) fn put(&mut self, letter: Letter<E>) -> Result<(), Refusal> {
        let room = match letter.event.class() {
            Class::State { key } => return self.put_state(key, letter),
            Class::Request if self.requests >= self.bounds.requests => Err(Refusal::Busy(self.requests)),
            Class::Request => {
                self.requests += 1;
                Ok(())
            }
            Class::Reserved if self.reserved >= self.bounds.reserved => Err(Refusal::Overflow(self.reserved)),
            Class::Reserved => {
                self.reserved += 1;
                Ok(())
            }
        };
        self.counters.refused += u64::from(room.is_err());
        room?;
        self.push(letter);
        Ok(())
    }

    fn put_state(&mut self, key: u64, letter: Letter<E>) -> Result<(), Refusal> {
        if let Some(place) = self.states.get(&key)
            && let Some(waiting) = self.letters.get_mut((place - self.taken) as usize)
        {
            // The place and the wait are the older one's: a state that is renewed all the time is not starved.
            waiting.event = letter.event;
            waiting.envelope = letter.envelope;
            self.counters.replaced += 1;
            return Ok(());
        }
        if self.states.len() >= self.bounds.states {
            self.counters.refused += 1;
            return Err(Refusal::Busy(self.states.len()));
        }
        self.states.insert(key, self.taken + self.letters.len() as u64);
        self.push(letter);
        Ok(())
    }

    fn push(&mut self, letter: Letter<E>) {
        self.letters.push_back(letter);
        self.counters.depth_max = self.counters.depth_max.max(self.letters.len());
    }

    /// The next event. Until [`Mailbox::done`], the actor counts as busy with it.
    pub(crate) fn take(&mut self, now: Moment) -> Option<Letter<E>> {
        let letter = self.letters.pop_front()?;
        self.taken += 1;
        match letter.event.class() {
            Class::State { key } => {
                self.states.remove(&key);
            }
            Class::Request => self.requests -= 1,
            Class::Reserved => self.reserved -= 1,
        }
        if self.counting {
            self.counters.window(now).waits.add(now.since(letter.since));
            self.begin(letter.event.kind(), letter.envelope.sender.clone(), now);
        }
        Some(letter)
    }

    /// The actor begins a turn with an event of that kind.
    pub(crate) fn begin(&mut self, kind: &'static str, sender: Arc<str>, since: Moment) {
        self.counters.busy = Some(Busy { kind, sender, since });
    }

    /// The turn has ended; how long it took.
    pub(crate) fn done(&mut self, now: Moment) -> Span {
        let Some(Busy { kind, since, .. }) = self.counters.busy.take() else { return Span::ZERO };
        let took = now.since(since);
        self.counters.handled += 1;
        self.counters.last_kind = Some(kind);
        self.counters.window(now).handled += 1;
        self.counters.pulse.add(now, took);
        took
    }

    /// The event that was taken counts for nothing: its timer was set anew or cancelled in the meantime.
    pub(crate) fn skip(&mut self) {
        self.counters.busy = None;
    }

    /// What the next incarnation of the actor finds: the states, since nobody will send them again. Requests have been
    /// refused by then, and reserved events belong to the incarnation that has ended.
    pub(crate) fn keep_states(&mut self) {
        self.counters.busy = None;
        let letters = std::mem::take(&mut self.letters);
        self.taken += letters.len() as u64;
        self.states.clear();
        (self.requests, self.reserved) = (0, 0);
        for letter in letters {
            if let Class::State { key } = letter.event.class() {
                self.states.insert(key, self.taken + self.letters.len() as u64);
                self.letters.push_back(letter);
            }
        }
    }

    /// The figures at `now`.
    pub(crate) fn figures(&self, now: Moment) -> Figures {
        let counters = &self.counters;
        let mut waits = counters.present.waits;
        waits.merge(&counters.previous.waits);
        Figures {
            depth: self.letters.len(),
            depth_max: counters.depth_max,
            wait_p50_us: waits.quantile_us(50),
            wait_p99_us: waits.quantile_us(99),
            rate: counters.rate(now),
            handled: counters.handled,
            refused: counters.refused,
            replaced: counters.replaced,
            last_kind: counters.last_kind,
            busy: counters.busy.clone(),
        }
    }

    /// Turns a second and the busy share over the last `seconds`.
    pub(crate) fn load(&self, now: Moment, seconds: usize) -> (f64, f64) {
        self.counters.pulse.load(now, seconds)
    }

    /// Turns of each of the last `seconds`, oldest first.
    pub(crate) fn turns(&self, now: Moment, seconds: usize) -> Vec<u32> {
        self.counters.pulse.turns(now, seconds)
    }
}

/// The turn that an actor is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    /// The kind of its event.
    pub(crate) kind: &'static str,
    /// Who sent that.
    pub(crate) sender: Arc<str>,
    /// Since when.
    pub(crate) since: Moment,
}

/// What is known about a mailbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) depth: usize,
    pub(crate) depth_max: usize,
    pub(crate) wait_p50_us: u64,
    pub(crate) wait_p99_us: u64,
    pub(crate) rate: f64,
    pub(crate) handled: u64,
    pub(crate) refused: u64,
    pub(crate) replaced: u64,
    pub(crate) last_kind: Option<&'static str>,
    pub(crate) busy: Option<Busy>,
}

/// Rates and waits are those of the present window and the one before, so that they speak of the last 10 to 20 s.
const WINDOW: Span = Span::from_secs(10);

#[derive(Clone, Debug, Default)]
struct Counters {
    depth_max: usize,
    handled: u64,
    refused: u64,
    replaced: u64,
    last_kind: Option<&'static str>,
    busy: Option<Busy>,
    pulse: Pulse,
    present: Window,
    previous: Window,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Moment,
    handled: u64,
    waits: Histogram,
}

impl Counters {
    /// The window that `now` lies in.
    fn window(&mut self, now: Moment) -> &mut Window {
        let age = now.since(self.present.began);
        if age >= WINDOW {
            let fresh = Window { began: now, ..Window::default() };
            let last = std::mem::replace(&mut self.present, fresh);
            self.previous = if age >= 2 * WINDOW { Window { began: now, ..Window::default() } } else { last };
        }
        &mut self.present
    }

    /// Events a second, over the present window and the one before.
    fn rate(&self, now: Moment) -> f64 {
        let age = now.since(self.present.began);
        if age >= 2 * WINDOW {
            return 0.0;
        }
        let seconds = now.since(self.previous.began).max(Span::from_secs(1)).as_secs_f64();
        (self.present.handled + self.previous.handled) as f64 / seconds
    }
}

/// Counts of spans by powers of two of a microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram([u32; 32]);

impl Histogram {
    fn add(&mut self, span: Span) {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - us.leading_zeros()).min(31) as usize;
        self.0[bucket] = self.0[bucket].saturating_add(1);
    }

    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// The least power of two, in microseconds, that `percent` of the spans stay under; 0 if all were shorter than 1 µs.
    fn quantile_us(&self, percent: u64) -> u64 {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let wanted = (total * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return if bucket == 0 { 0 } else { 1 << bucket };
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, proptest};
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Mail {
        Load(u64, u32),
        Ask(u32),
        Timer(u32),
    }

    impl Event for Mail {
        fn kind(&self) -> &'static str {
            match self {
                Self::Load(..) => "load",
                Self::Ask(_) => "ask",
                Self::Timer(_) => "timer",
            }
        }

        fn class(&self) -> Class {
            match self {
                Self::Load(key, _) => Class::State { key: *key },
                Self::Ask(_) => Class::Request,
                Self::Timer(_) => Class::Reserved,
            }
        }
    }

    fn put(mailbox: &mut Mailbox<Mail>, event: Mail, now_ms: u64) -> Result<(), Refusal> {
        let since = Moment(now_ms * 1_000_000);
        let envelope = Envelope { sender: "test".into(), trace: None };
        mailbox.put(Letter { event, envelope, since, fired: None })
    }

    fn drain(mailbox: &mut Mailbox<Mail>) -> Vec<Mail> {
        std::iter::from_fn(|| mailbox.take(Moment::ZERO).map(|letter| letter.event)).collect()
    }

    fn small() -> Mailbox<Mail> {
        Mailbox::new(Bounds { requests: 2, states: 2, reserved: 2 })
    }

    #[test]
    fn a_newer_state_takes_the_place_of_the_older() {
        let mut mailbox = small();
        for event in [Mail::Load(1, 10), Mail::Ask(0), Mail::Load(2, 20), Mail::Load(1, 11), Mail::Load(2, 21)] {
            put(&mut mailbox, event, 0).unwrap();
        }
        assert_eq!(mailbox.figures(Moment::ZERO).replaced, 2);
        assert_eq!(put(&mut mailbox, Mail::Load(3, 30), 0), Err(Refusal::Busy(2)));
        assert_eq!(drain(&mut mailbox), [Mail::Load(1, 11), Mail::Ask(0), Mail::Load(2, 21)]);
        put(&mut mailbox, Mail::Load(3, 30), 0).unwrap();
        put(&mut mailbox, Mail::Load(1, 12), 0).unwrap();
        put(&mut mailbox, Mail::Load(3, 31), 0).unwrap();
        assert_eq!(drain(&mut mailbox), [Mail::Load(3, 31), Mail::Load(1, 12)]);
    }

    #[test]
    fn each_class_has_its_own_room() {
        let mut mailbox = small();
        for number in 0..2 {
            put(&mut mailbox, Mail::Ask(number), 0).unwrap();
        }
        assert_eq!(put(&mut mailbox, Mail::Ask(2), 0), Err(Refusal::Busy(2)));
        put(&mut mailbox, Mail::Timer(0), 0).unwrap();
        put(&mut mailbox, Mail::Timer(1), 0).unwrap();
        assert_eq!(put(&mut mailbox, Mail::Timer(2), 0), Err(Refusal::Overflow(2)));
        assert_eq!(mailbox.figures(Moment::ZERO).refused, 2);
        assert_eq!(drain(&mut mailbox), [Mail::Ask(0), Mail::Ask(1), Mail::Timer(0), Mail::Timer(1)]);
        put(&mut mailbox, Mail::Ask(3), 0).unwrap();
    }

    #[test]
    fn a_new_incarnation_finds_the_states() {
        let mut mailbox = small();
        for event in [Mail::Ask(0), Mail::Load(7, 1), Mail::Timer(0), Mail::Load(8, 1)] {
            put(&mut mailbox, event, 0).unwrap();
        }
        mailbox.keep_states();
        put(&mut mailbox, Mail::Load(8, 2), 0).unwrap();
        put(&mut mailbox, Mail::Ask(1), 0).unwrap();
        assert_eq!(drain(&mut mailbox), [Mail::Load(7, 1), Mail::Load(8, 2), Mail::Ask(1)]);
    }

    #[test]
    fn waits_and_rates_are_those_of_the_last_seconds() {
        let mut mailbox = Mailbox::new(Bounds::default());
        for number in 0..100 {
            put(&mut mailbox, Mail::Ask(number), 1_000).unwrap();
        }
        assert_eq!(mailbox.figures(Moment::ZERO).depth_max, 100);
        for number in 0..100 {
            // One of a hundred waits for 3 s.
            let wait_ms = if number == 99 { 3_000 } else { 1 };
            let now = Moment((1_000 + wait_ms) * 1_000_000);
            mailbox.take(now).unwrap();
            let busy = Busy { kind: "ask", sender: "test".into(), since: now };
            assert_eq!(mailbox.figures(now).busy, Some(busy));
            mailbox.done(now);
        }
        let figures = mailbox.figures(Moment(5_000_000_000));
        assert_eq!((figures.wait_p50_us, figures.wait_p99_us), (1_024, 1_024));
        assert_eq!((figures.handled, figures.last_kind, figures.busy), (100, Some("ask"), None));
        assert!((figures.rate - 20.0).abs() < 0.01, "{}", figures.rate);
        assert!(mailbox.figures(Moment(60_000_000_000)).rate.abs() < f64::EPSILON);
    }

    proptest! {
        /// Whatever comes and goes, a mailbox gives events in the order of arrival and keeps its bounds.
        #[test]
        fn order_and_bounds_hold(steps in vec((0_u8..4, 0_u64..4), 0..200)) {
            let mut mailbox = Mailbox::new(Bounds { requests: 3, states: 3, reserved: 3 });
            let mut model: Vec<Mail> = Vec::new();
            for (number, (action, key)) in steps.into_iter().enumerate() {
                let number = number as u32;
                let event = match action {
                    0 => Mail::Load(key, number),
                    1 => Mail::Ask(number),
                    2 => Mail::Timer(number),
                    _ => {
                        let expected = if model.is_empty() { None } else { Some(model.remove(0)) };
                        assert_eq!(mailbox.take(Moment::ZERO).map(|letter| letter.event), expected);
                        continue;
                    }
                };
                let same_class = model.iter().filter(|other| other.kind() == event.kind()).count();
                let older = model.iter_mut().find(|other| matches!(other, Mail::Load(old, _) if action == 0 && *old == key));
                let taken = put(&mut mailbox, event.clone(), 0);
                if let Some(older) = older {
                    assert_eq!(taken, Ok(()));
                    *older = event;
                } else if same_class < 3 {
                    assert_eq!(taken, Ok(()));
                    model.push(event);
                } else {
                    assert!(taken.is_err());
                }
            }
        }
    }
}
