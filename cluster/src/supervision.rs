//! Supervision as a decision: the order in which children start and stop, who is started again after an exit, how long
//! that waits, and when a supervisor gives up and fails upwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Class, Turn},
    limits::{
        SUPERVISION_BACKOFF_MAX, SUPERVISION_BACKOFF_MIN, SUPERVISION_KILL_WITHIN, SUPERVISION_RESTARTS_MAX,
        SUPERVISION_WINDOW,
    },
    time::{Moment, Span},
};

/// When a child that has ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Only after a failure; a child that ends normally leaves.
    Transient,
    /// Never; a child that ends leaves.
    Temporary,
}

/// Who is started again when a child has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Only the child.
    OneForOne,
    /// The child and every child that was started after it, since those rely on it.
    RestForOne,
}

/// How a child is supervised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// When it is started again.
    pub restart: Restart,
    /// Who is started again with it.
    pub strategy: Strategy,
    /// How long a stop may take before the child is killed.
    pub stop_within: Span,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By its own wish, or because it was asked to stop.
    Normal,
    /// It was killed.
    Killed,
    /// It failed, or did not start; the text is the error.
    Failed(String),
}

/// Where a child is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not running, and nothing is under way.
    Idle,
    /// Asked to start.
    Starting,
    /// Running.
    Up {
        /// Since when.
        since: Moment,
    },
    /// Asked to stop.
    Stopping {
        /// Whether the time for a stop was over and it has been killed.
        killed: bool,
    },
    /// Failed, and started again at that moment.
    Waiting {
        /// The end of the wait.
        until: Moment,
    },
}

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

/// What happens to a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Start the children that were there from the beginning.
    Begin,
    /// A new child, started after all others.
    Add {
        /// Its id, unique in this supervisor.
        id: String,
        /// How it is supervised.
        rule: Rule,
    },
    /// A child is no longer wanted.
    Remove {
        /// Its id.
        id: String,
    },
    /// A child runs.
    Started {
        /// Its id.
        id: String,
        /// The run that [`Effect::Start`] named.
        run: u64,
    },
    /// A child has ended, or could not start.
    Exited {
        /// Its id.
        id: String,
        /// The run that ended.
        run: u64,
        /// How.
        exit: Exit,
    },
    /// The wait before a restart is over.
    Due {
        /// The child's id.
        id: String,
        /// The run that had failed.
        run: u64,
    },
    /// A child took too long to stop, or to die.
    Overdue {
        /// Its id.
        id: String,
        /// The run.
        run: u64,
    },
    /// Stop all children in reverse order and end.
    Stop,
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Add { .. } => "add",
            Self::Remove { .. } => "remove",
            Self::Started { .. } => "started",
            Self::Exited { .. } => "exited",
            Self::Due { .. } => "due",
            Self::Overdue { .. } => "overdue",
            Self::Stop => "stop",
        }
    }

    fn class(&self) -> Class {
        if matches!(self, Self::Add { .. }) { Class::Request } else { Class::Reserved }
    }
}

/// What a supervisor asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Start the child; [`Event::Started`] or [`Event::Exited`] follows.
    Start {
        /// Its id.
        id: String,
        /// The number of this run.
        run: u64,
    },
    /// Ask the child to stop; [`Event::Exited`] follows.
    Stop {
        /// Its id.
        id: String,
        /// The run.
        run: u64,
    },
    /// Kill the child and everything under it.
    Kill {
        /// Its id.
        id: String,
        /// The run.
        run: u64,
    },
    /// Write down that the child has failed and will be started again; [`Event::Due`] at that moment.
    Restart {
        /// Its id.
        id: String,
        /// The run that failed.
        run: u64,
        /// How it ended.
        exit: Exit,
        /// How long the restart waits.
        backoff: Span,
        /// When [`Event::Due`] is to come.
        at: Moment,
    },
    /// [`Event::Overdue`] at that moment, unless the run has ended.
    OverdueAt {
        /// The child's id.
        id: String,
        /// The run.
        run: u64,
        /// When.
        at: Moment,
    },
    /// The child has left for good.
    Forget {
        /// Its id.
        id: String,
        /// How it ended.
        exit: Exit,
    },
    /// All children have ended after [`Event::Stop`]: end normally.
    Finish,
    /// All children have ended after too many restarts: fail, so that the next supervisor decides.
    FailUpwards {
        /// What was tried and what happened.
        reason: String,
    },
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
        let Some(&place) = self.to_start.first() else { return };
        if self.barriers.first().is_some_and(|barrier| *barrier < place) {
            return;
        }
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
