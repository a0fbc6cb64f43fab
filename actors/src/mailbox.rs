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
    /// Nothing where nobody counts.
    pub(crate) envelope: Option<Envelope>,
    /// When it came; of a state that replaced another, when the first of them did.
    pub(crate) since: Moment,
    /// When the event itself came.
    pub(crate) sent: Moment,
    pub(crate) fired: Option<Fired>,
}

/// An event that was taken.
#[derive(Debug)]
pub(crate) struct Taken<E> {
    pub(crate) letter: Letter<E>,
    /// When; nothing where nobody counts.
    pub(crate) at: Option<Moment>,
}

/// A turn that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// The number of its event.
    pub(crate) number: u64,
    /// When it ended.
    pub(crate) at: Moment,
    /// How long it took.
    pub(crate) took: Span,
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
            waiting.sent = letter.sent;
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

    /// The next event. Until [`Mailbox::done`], the actor counts as busy with it. `now` gives the present moment, or an
    /// earlier one that is not before the event was sent.
    pub(crate) fn take(&mut self, now: impl FnOnce(Moment) -> Moment) -> Option<Taken<E>> {
        let letter = self.letters.pop_front()?;
        self.taken += 1;
        match letter.event.class() {
            Class::State { key } => {
                self.states.remove(&key);
            }
            Class::Request => self.requests -= 1,
            Class::Reserved => self.reserved -= 1,
        }
        let at = self.counting.then(|| now(letter.sent));
        if let (Some(now), Some(envelope)) = (at, &letter.envelope) {
            self.counters.waits.add(now, now.since(letter.since));
            let sender = envelope.sender.clone();
            self.begin(letter.event.kind(), sender, now);
        }
        Some(Taken { letter, at })
    }

    /// The actor begins a turn with an event of that kind.
    pub(crate) fn begin(&mut self, kind: &'static str, sender: Arc<str>, since: Moment) {
        self.counters.busy = Some(Busy { kind, sender, since });
    }

    /// The turn has ended.
    pub(crate) fn done(&mut self, over: Over) {
        let Some(Busy { kind, .. }) = self.counters.busy.take() else { return };
        self.counters.handled += 1;
        self.counters.last_kind = Some(kind);
        self.counters.last_turn = Some(over);
        self.counters.pulse.add(over.at, over.took);
    }

    /// The last turn that has ended.
    pub(crate) const fn last_turn(&self) -> Option<Over> {
        self.counters.last_turn
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

    /// The figures at `now`, with the waits of the last `seconds`.
    pub(crate) fn figures(&self, now: Moment, seconds: usize) -> Figures {
        let counters = &self.counters;
        let waits = counters.waits.over(now, seconds);
        Figures {
            depth: self.letters.len(),
            depth_max: counters.depth_max,
            wait_p50_us: waits.quantile_us(50),
            wait_p99_us: waits.quantile_us(99),
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

    /// Adds the turns of each of the last seconds, oldest first.
    pub(crate) fn add_turns(&self, now: Moment, sums: &mut [u32]) {
        self.counters.pulse.add_to(now, sums);
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
    pub(crate) handled: u64,
    pub(crate) refused: u64,
    pub(crate) replaced: u64,
    pub(crate) last_kind: Option<&'static str>,
    pub(crate) busy: Option<Busy>,
}

/// Waits are counted in spans of so many seconds, the last [`SLICES`] of which are kept: a minute.
const SLICE_SECONDS: u64 = 5;
const SLICES: usize = 12;

#[derive(Clone, Debug, Default)]
struct Counters {
    depth_max: usize,
    handled: u64,
    refused: u64,
    replaced: u64,
    last_kind: Option<&'static str>,
    last_turn: Option<Over>,
    busy: Option<Busy>,
    pulse: Pulse,
    waits: Waits,
}

/// How long events waited in the last minute.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    /// The newest slice that was counted in, since the host's boot.
    newest: u64,
    slices: [Histogram; SLICES],
}

const fn slice(at: Moment) -> u64 {
    at.0 / (SLICE_SECONDS * 1_000_000_000)
}

impl Waits {
    fn add(&mut self, now: Moment, wait: Span) {
        let now = slice(now);
        if now > self.newest {
            for gone in (self.newest + 1).max((now + 1).saturating_sub(SLICES as u64))..=now {
                self.slices[(gone % SLICES as u64) as usize] = Histogram::default();
            }
            self.newest = now;
        }
        self.slices[(self.newest % SLICES as u64) as usize].add(wait);
    }

    /// Those of the last `seconds`, and of up to a slice before them.
    fn over(&self, now: Moment, seconds: usize) -> Histogram {
        let now = slice(now);
        let before = (seconds as u64).div_ceil(SLICE_SECONDS).min(SLICES as u64 - 1);
        let mut waits = Histogram::default();
        for at in now.saturating_sub(before)..=now.min(self.newest) {
            if at + SLICES as u64 > self.newest {
                waits.merge(&self.slices[(at % SLICES as u64) as usize]);
            }
        }
        waits
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
mod tests;
