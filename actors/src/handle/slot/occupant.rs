//! What the directory, supervisors and people see of a slot, whatever its behavior.

use std::{any::Any, sync::Arc};

use postroad_cluster::{
    behavior::Behavior,
    limits::{RESTART_HISTORY_MAX, RESTART_STATE_BYTES_MAX},
    recording::{Recorded, RecordingFile},
    supervision::Exit,
    time::{Moment, Span, WallTime},
    trace::TraceId,
    wire,
};
use postroad_transport::trace;

use super::{Life, Slot};
use crate::{
    directory::{Occupant, Place, lock},
    inspect::{ActorRow, ActorView, JournalView, RestartView, StateView, Status, to_json},
    journal::{Entry, ReplayError},
    mailbox::{Envelope, pulse::SECONDS},
    status::ROWS_SECONDS,
    trace::Times,
};

/// `text`, cut to what is kept of a state before a failure.
pub(super) fn cut(mut text: String) -> String {
    if text.len() > RESTART_STATE_BYTES_MAX {
        let end = (0..=RESTART_STATE_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

impl<B: Behavior, R: Send + 'static> Slot<B, R> {
    fn status(&self, life: &Life, busy: bool) -> Status {
        let up = lock(&self.gate).cell.is_some();
        match &life.exit {
            _ if up && busy => Status::Busy,
            _ if up => Status::Alive,
            _ if life.restarting_at.is_some() && !self.is_fenced() => Status::Restarting,
            None => Status::Starting,
            Some(Exit::Normal) => Status::Stopped,
            Some(Exit::Killed) => Status::Killed,
            Some(Exit::Failed(_)) => Status::Failed,
        }
    }
}

impl<B: Behavior, R: Send + 'static> Occupant for Slot<B, R> {
    fn path(&self) -> &Arc<str> {
        &self.path
    }

    fn view(&self, place: &Place) -> ActorView {
        let now = self.clock.now();
        let (figures, (_, busy_share), (rate, _), seconds) = {
            let gate = lock(&self.gate);
            let mailbox = &gate.mailbox;
            let figures = mailbox.figures(now, ROWS_SECONDS);
            (figures, mailbox.load(now, SECONDS), mailbox.load(now, ROWS_SECONDS), mailbox.turns(now, SECONDS))
        };
        let published = lock(&self.published).as_ref().map(|published| now.since(published.at));
        let (tasks, timers) = {
            let work = lock(&self.work);
            (work.tasks.len(), work.timers.len())
        };
        let askers = lock(&self.asks).1.len();
        let events = self.last_event();
        let life = lock(&self.life);
        ActorView {
            path: self.path.to_string(),
            kind: B::NOUN.to_owned(),
            status: self.status(&life, figures.busy.is_some()),
            supervisor: place.supervisor.as_ref().map(ToString::to_string),
            children: place.children.values().map(ToString::to_string).collect(),
            depth: figures.depth,
            depth_max: figures.depth_max,
            wait_p50_us: figures.wait_p50_us,
            wait_p99_us: figures.wait_p99_us,
            events_per_second: rate,
            handled: figures.handled,
            refused: figures.refused,
            replaced: figures.replaced,
            last_kind: figures.last_kind.map(str::to_owned),
            busy_kind: figures.busy.as_ref().map(|busy| busy.kind.to_owned()),
            busy_from: figures.busy.as_ref().map(|busy| busy.sender.to_string()),
            busy_for_ms: figures.busy.map(|busy| now.since(busy.since).as_millis() as u64),
            busy_share,
            seconds,
            events,
            tasks,
            timers,
            askers,
            state_age_ms: published.map(|age| age.as_millis() as u64),
            restarts: life.restarts,
            restart_in_ms: life.restarting_at.map(|at| at.since(now).as_millis() as u64),
            error: match &life.exit {
                Some(Exit::Failed(error)) => Some(error.clone()),
                _ => None,
            },
            history: life.history.iter().cloned().collect(),
        }
    }

    fn row(&self, supervisor: Option<Arc<str>>, children: usize, seconds: usize) -> ActorRow {
        let now = self.clock.now();
        let (figures, (rate, busy_share)) = {
            let gate = lock(&self.gate);
            (gate.mailbox.figures(now, seconds), gate.mailbox.load(now, seconds))
        };
        let life = lock(&self.life);
        ActorRow {
            path: self.path.clone(),
            kind: B::NOUN.into(),
            status: self.status(&life, figures.busy.is_some()),
            supervisor,
            children,
            depth: figures.depth,
            wait_p99_us: figures.wait_p99_us,
            rate,
            busy_share,
            busy_for_ms: figures.busy.map(|busy| now.since(busy.since).as_millis() as u64),
            restarts: life.restarts,
            refused: figures.refused,
            handled: figures.handled,
        }
    }

    fn state(&self) -> Option<StateView> {
        // Serialized outside of the lock: states can be large, and actors must not wait for somebody who looks.
        let (state, after, figures, at) = {
            let published = lock(&self.published);
            let published = published.as_ref()?;
            (published.state.clone(), published.after, published.figures.clone(), published.at)
        };
        let age_ms = self.clock.now().since(at).as_millis() as u64;
        Some(StateView { path: self.path.to_string(), age_ms, after, state: to_json(&*state), figures })
    }

    fn state_at(&self, number: u64) -> Result<serde_json::Value, ReplayError> {
        self.replay(number).map(|state| to_json(&state))
    }

    fn journal(&self, most: usize) -> Vec<JournalView> {
        // The gate first: a turn that ends in between is noted in the journal by then.
        let last = lock(&self.gate).mailbox.last_turn();
        // Turned into JSON outside of the lock: the actor must not wait for somebody who looks.
        let entries: Vec<Entry<B>> = lock(&self.journal).entries().rev().take(most).map(|it| it.entry(last)).collect();
        entries.iter().rev().map(JournalView::of).collect()
    }

    fn traced(&self, trace: TraceId, most: usize, times: &mut Times) -> Vec<JournalView> {
        let last = lock(&self.gate).mailbox.last_turn();
        let entries: Vec<Entry<B>> = {
            let journal = lock(&self.journal);
            for (now, wall) in journal.entries().filter_map(|noted| noted.clocks()) {
                times.note(now, wall);
            }
            let of = journal.entries().filter(|noted| noted.trace() == trace);
            of.take(most).map(|noted| noted.entry(last)).collect()
        };
        entries.iter().map(JournalView::of).collect()
    }

    fn known(&self) -> Option<(u64, u64)> {
        lock(&self.journal).known()
    }

    fn recording(&self, to: u64) -> Result<RecordingFile, ReplayError> {
        let recording = Slot::recording(self, to)?;
        let number = |turn: Option<&Recorded<B>>| turn.map_or(to, |turn| turn.number);
        Ok(RecordingFile {
            recording: RecordingFile::VERSION,
            noun: B::NOUN.to_owned(),
            node: self.node.to_string(),
            path: self.path.to_string(),
            first: number(recording.turns.first()),
            last: number(recording.turns.last()),
            bytes: RecordingFile::encoded(&wire::encode(&recording)),
        })
    }

    fn add_turns(&self, sums: &mut [u32]) {
        lock(&self.gate).mailbox.add_turns(self.clock.now(), sums);
    }

    fn exit(&self) -> Option<Exit> {
        lock(&self.life).exit.clone()
    }

    fn ask_to_stop(&self) {
        let farewell = lock(&self.gate).farewell.take();
        let envelope = Envelope { sender: "supervisor".into(), trace: trace::current() };
        let told = farewell.is_some_and(|event| self.deliver(None, event, Some(envelope), None).is_ok());
        if !told {
            self.stop(None);
        }
    }

    fn fail(&self, reason: &str) -> bool {
        let up = self.is_up(None);
        Slot::fail(self, None, reason.to_owned());
        up
    }

    fn kill(&self) {
        let (incarnation, cell) = {
            let gate = lock(&self.gate);
            (gate.incarnation, gate.cell.clone())
        };
        self.close(incarnation, Exit::Killed);
        if let Some(cell) = cell {
            cell.kill();
        }
    }

    fn note_restart(&self, exit: &Exit, backoff: Span) {
        let (now, wall): (Moment, WallTime) = (self.clock.now(), self.clock.wall());
        let failure = lock(&self.life).failure.take().unwrap_or_default();
        // Who failed in no turn, such as by an operator's hand, had the state that it published last.
        let published = || lock(&self.published).as_ref().map(|published| published.state.clone());
        let of_published = || Some(cut(to_json(&*published()?).to_string()));
        let state_before = failure.state_before.or_else(of_published);
        let mut life = lock(&self.life);
        life.restarts += 1;
        life.restarting_at = Some(now.after(backoff));
        if life.history.len() >= RESTART_HISTORY_MAX {
            life.history.pop_front();
        }
        life.history.push_back(RestartView {
            wall_ms: wall.0,
            error: match exit {
                Exit::Normal => "ended, though it must always run".to_owned(),
                Exit::Killed => "was killed".to_owned(),
                Exit::Failed(error) => error.clone(),
            },
            event: failure.event.map(|(number, _)| number),
            kind: failure.event.map(|(_, kind)| kind.to_owned()),
            state_before,
            backoff_ms: backoff.as_millis() as u64,
        });
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
