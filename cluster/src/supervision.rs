//! Supervision as a decision: the order in which children start and stop, who is started again after an exit, how long
//! that waits, and when a supervisor gives up and fails upwards.

mod event;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

pub use self::event::{Effect, Event, Exit, Phase, Restart, Rule, Strategy};
use crate::{
    behavior::{Behavior, Turn},
    limits::{
        SUPERVISION_BACKOFF_MAX, SUPERVISION_BACKOFF_MIN, SUPERVISION_KILL_WITHIN, SUPERVISION_RESTARTS_MAX,
        SUPERVISION_WINDOW,
    },
    time::{Moment, Span},
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Child {
    id: String,
    rule: Rule,
    phase: Phase,
    /// The number of its present run, unique in this supervisor, so that a late message of an old run is told apart.
    run: u64,
    failures_in_a_row: u32,
    wanted: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Ending {
    Stop,
    Fail(String),
}

/// The state of one supervisor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Supervision {
    /// Children by their place, which is the order of starting.
    children: BTreeMap<u64, Child>,
    places: BTreeMap<String, u64>,
    next_place: u64,
    next_run: u64,
    /// The restarts of the last [`SUPERVISION_WINDOW`], oldest first.
    restarts: VecDeque<Moment>,
    to_start: BTreeSet<u64>,
    to_stop: BTreeSet<u64>,
    /// Rest-for-one children that wait for their restart; nobody after them starts before.
    barriers: BTreeSet<u64>,
    /// The one child that is starting or stopping.
    busy: Option<u64>,
    ready: bool,
    ending: Option<Ending>,
    ended: bool,
}

impl Supervision {
    /// A supervisor with `children`, in the order of starting. [`Event::Begin`] starts them.
    #[must_use]
    pub fn new(children: impl IntoIterator<Item = (String, Rule)>) -> Self {
        let mut supervision = Self::default();
        for (id, rule) in children {
            supervision.seat(id, rule);
        }
        supervision
    }

    /// The children's ids and phases, in the order of starting.
    pub fn children(&self) -> impl Iterator<Item = (&str, Phase)> {
        self.children.values().map(|child| (child.id.as_str(), child.phase))
    }

    fn seat(&mut self, id: String, rule: Rule) {
        if self.places.contains_key(&id) {
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(id.clone(), place);
        self.to_start.insert(place);
        let child = Child { id, rule, phase: Phase::Idle, run: 0, failures_in_a_row: 0, wanted: true };
        self.children.insert(place, child);
    }

    /// The place of the child `id` if its present run is `run`.
    fn place_of(&self, id: &str, run: u64) -> Option<u64> {
        let place = *self.places.get(id)?;
        (self.children.get(&place)?.run == run).then_some(place)
    }

    fn remove(&mut self, id: &str, effects: &mut Vec<Effect>) {
        let Some(&place) = self.places.get(id) else { return };
        let Some(child) = self.children.get_mut(&place) else { return };
        child.wanted = false;
        match child.phase {
            Phase::Idle | Phase::Waiting { .. } => self.forget(place, Exit::Normal, effects),
            Phase::Starting | Phase::Up { .. } => {
                self.to_stop.insert(place);
            }
            Phase::Stopping { .. } => {}
        }
    }

    fn forget(&mut self, place: u64, exit: Exit, effects: &mut Vec<Effect>) {
        self.to_start.remove(&place);
        self.to_stop.remove(&place);
        self.barriers.remove(&place);
        if let Some(child) = self.children.remove(&place) {
            self.places.remove(&child.id);
            effects.push(Effect::Forget { id: child.id, exit });
        }
    }

    fn started(&mut self, place: u64, now: Moment) {
        let Some(child) = self.children.get_mut(&place) else { return };
        if child.phase == Phase::Starting {
            child.phase = Phase::Up { since: now };
            self.busy = None;
        }
    }

    fn exited(&mut self, turn: Turn, place: u64, exit: Exit, effects: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(&place) else { return };
        let phase = child.phase;
        if matches!(phase, Phase::Idle | Phase::Waiting { .. }) {
            return;
        }
        child.phase = Phase::Idle;
        if self.busy == Some(place) {
            self.busy = None;
        }
        let asked = self.to_stop.remove(&place) || matches!(phase, Phase::Stopping { .. });
        if !child.wanted {
            self.forget(place, exit, effects);
        } else if self.ending.is_some() {
            // Whatever ends while all end stays down.
        } else if asked {
            self.to_start.insert(place);
        } else {
            if let Phase::Up { since } = phase
                && turn.now.since(since) >= SUPERVISION_WINDOW
            {
                child.failures_in_a_row = 0;
            }
            match (child.rule.restart, &exit) {
                (Restart::Temporary, _) | (Restart::Transient, Exit::Normal) => self.forget(place, exit, effects),
                (Restart::Permanent | Restart::Transient, _) => self.restart(turn, place, exit, effects),
            }
        }
    }

    fn restart(&mut self, turn: Turn, place: u64, exit: Exit, effects: &mut Vec<Effect>) {
        while self.restarts.front().is_some_and(|at| turn.now.since(*at) >= SUPERVISION_WINDOW) {
            self.restarts.pop_front();
        }
        let Some(child) = self.children.get_mut(&place) else { return };
        if self.restarts.len() >= SUPERVISION_RESTARTS_MAX {
            let reason = format!(
                "gave up after {SUPERVISION_RESTARTS_MAX} restarts in {} s: {} {}",
                SUPERVISION_WINDOW.as_secs(),
                child.id,
                match &exit {
                    Exit::Normal => "ended again".to_owned(),
                    Exit::Killed => "was killed again".to_owned(),
                    Exit::Failed(error) => format!("failed again: {error}"),
                }
            );
            self.end(Ending::Fail(reason));
            return;
        }
        self.restarts.push_back(turn.now);
        child.failures_in_a_row = child.failures_in_a_row.saturating_add(1);
        let backoff = backoff(turn, child.failures_in_a_row, child.run);
        let at = turn.now.after(backoff);
        child.phase = Phase::Waiting { until: at };
        effects.push(Effect::Restart { id: child.id.clone(), run: child.run, exit, backoff, at });
        if child.rule.strategy == Strategy::RestForOne {
            self.barriers.insert(place);
            let later = self.children.range(place + 1..);
            let running = later.filter(|(_, child)| matches!(child.phase, Phase::Starting | Phase::Up { .. }));
            self.to_stop.extend(running.map(|(place, _)| *place));
        }
    }

    fn due(&mut self, place: u64) {
        if let Some(child) = self.children.get_mut(&place)
            && matches!(child.phase, Phase::Waiting { .. })
        {
            child.phase = Phase::Idle;
            self.barriers.remove(&place);
            self.to_start.insert(place);
        }
    }

    fn overdue(&mut self, turn: Turn, place: u64, effects: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(&place) else { return };
        match child.phase {
            Phase::Stopping { killed: false } => {
                child.phase = Phase::Stopping { killed: true };
                let (id, run) = (child.id.clone(), child.run);
                effects.push(Effect::Kill { id: id.clone(), run });
                effects.push(Effect::OverdueAt { id, run, at: turn.now.after(SUPERVISION_KILL_WITHIN) });
            }
            // It sits in a turn that does not return. Its gate is shut, so it can do nothing more than end.
            Phase::Stopping { killed: true } => self.exited(turn, place, Exit::Killed, effects),
            _ => {}
        }
    }

    fn end(&mut self, ending: Ending) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(ending);
        self.to_start.clear();
        self.barriers.clear();
        for (place, child) in &mut self.children {
            match child.phase {
                Phase::Starting | Phase::Up { .. } => {
                    self.to_stop.insert(*place);
                }
                Phase::Waiting { .. } => child.phase = Phase::Idle,
                Phase::Idle | Phase::Stopping { .. } => {}
            }
        }
    }

    /// Begins the next start or stop, if none is under way: stops first, last place first; then starts, first place first.
    fn proceed(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        if self.busy.is_some() {
            return;
        }
        while let Some(place) = self.to_stop.pop_last() {
            if let Some(child) = self.children.get_mut(&place)
                && matches!(child.phase, Phase::Up { .. })
            {
                child.phase = Phase::Stopping { killed: false };
                self.busy = Some(place);
                let (id, run) = (child.id.clone(), child.run);
                effects.push(Effect::Stop { id: id.clone(), run });
                effects.push(Effect::OverdueAt { id, run, at: turn.now.after(child.rule.stop_within) });
                return;
            }
        }
        if let Some(ending) = &self.ending {
            if !self.ended {
                self.ended = true;
                effects.push(match ending {
                    Ending::Stop => Effect::Finish,
                    Ending::Fail(reason) => Effect::FailUpwards { reason: reason.clone() },
                });
            }
            return;
        }
        let barrier = self.barriers.first().copied().unwrap_or(u64::MAX);
        let Some(place) = self.to_start.first().copied().filter(|place| *place < barrier) else {
            if !self.ready {
                self.ready = true;
                effects.push(Effect::Ready);
            }
            return;
        };
        self.to_start.remove(&place);
        if let Some(child) = self.children.get_mut(&place) {
            self.next_run += 1;
            child.run = self.next_run;
            child.phase = Phase::Starting;
            self.busy = Some(place);
            effects.push(Effect::Start { id: child.id.clone(), run: child.run });
        }
    }
}

/// The wait before the restart after that many failures in a row: doubling from the least to the most, of which a
/// random half, so that children that failed together do not come back together.
fn backoff(turn: Turn, failures_in_a_row: u32, salt: u64) -> Span {
    let doublings = failures_in_a_row.saturating_sub(1).min(16);
    let full = SUPERVISION_BACKOFF_MIN.saturating_mul(1 << doublings).min(SUPERVISION_BACKOFF_MAX);
    let half_ms = full.as_millis() as u64 / 2;
    Span::from_millis(half_ms + turn.draw(salt, half_ms + 1))
}

impl Behavior for Supervision {
    const NOUN: &'static str = "supervision";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Begin => {}
            Event::Add { id, .. } if self.ending.is_some() => effects.push(Effect::Forget { id, exit: Exit::Normal }),
            Event::Add { id, rule } => self.seat(id, rule),
            Event::Remove { id } => self.remove(&id, effects),
            Event::Started { id, run } => {
                if let Some(place) = self.place_of(&id, run) {
                    self.started(place, turn.now);
                }
            }
            Event::Exited { id, run, exit } => {
                if let Some(place) = self.place_of(&id, run) {
                    self.exited(turn, place, exit, effects);
                }
            }
            Event::Due { id, run } => {
                if let Some(place) = self.place_of(&id, run) {
                    self.due(place);
                }
            }
            Event::Overdue { id, run } => {
                if let Some(place) = self.place_of(&id, run) {
                    self.overdue(turn, place, effects);
                }
            }
            Event::Stop => self.end(Ending::Stop),
        }
        self.proceed(turn, effects);
    }
}

#[cfg(test)]
mod tests;
