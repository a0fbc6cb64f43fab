//! The place of one actor in its node: mailbox, published state, journal, work and history. It outlives incarnations.

mod occupant;

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use postroad_cluster::{
    behavior::{Behavior, Class, Event, ReplyId},
    limits::{ACTOR_ASKS_MAX, ACTOR_TASKS_MAX, ACTOR_TIMERS_MAX},
    recording::Recording,
    supervision::Exit,
    time::{Clock, Entropy, Moment, WallTime},
};
use ractor::ActorCell;
use tokio::{runtime, sync::oneshot};

use super::{SendError, work::Work};
use crate::{
    directory::{self, Context, lock},
    inspect::{RestartView, to_json},
    journal::{Journal, ReplayError, played},
    mailbox::{Bounds, Envelope, Fired, Letter, Mailbox, Over, Refusal, Taken},
};

/// What the shell gets through ractor: never an event itself, those wait in the mailbox.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// There are events.
    Wake,
    /// The published state has become too old.
    Publish,
    /// A child has ended in a way of which ractor may have told too early.
    Children,
}

/// The runs of children that have ended and their supervisor has not heard of, in the order of their ends.
#[derive(Debug, Default)]
pub(crate) struct Ended(Mutex<Vec<(u64, Exit)>>);

impl Ended {
    pub(crate) fn take(&self) -> Vec<(u64, Exit)> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Where the end of an incarnation is reported, and under which number. ractor says that *some* child has ended; its ids
/// are global to the process, so this says which.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) run: u64,
    pub(crate) ended: Arc<Ended>,
}

/// The mailbox and whoever reads it now.
struct Gate<B: Behavior> {
    mailbox: Mailbox<B::Event>,
    incarnation: u64,
    /// The running incarnation; none while the actor is down.
    cell: Option<ActorCell>,
    /// Where its end is reported.
    report: Option<Report>,
    /// A [`Message::Wake`] is on its way.
    woken: bool,
    /// Why the incarnation has to fail before its next event.
    failure: Option<String>,
    /// The last event of a graceful stop, if the behavior wants one.
    farewell: Option<B::Event>,
    /// Who waits for the incarnation to be ready.
    ready: Option<oneshot::Sender<()>>,
}

/// What befell the actor.
#[derive(Default)]
struct Life {
    exit: Option<Exit>,
    /// The failure of the last incarnation, until its restart is written down.
    failure: Option<Failure>,
    restarting_at: Option<Moment>,
    restarts: u64,
    history: VecDeque<RestartView>,
}

#[derive(Default)]
struct Failure {
    event: Option<(u64, &'static str)>,
    state_before: Option<String>,
}

/// An event that was taken, with the wall time of that if it was read.
type Next<E> = (Taken<E>, Option<WallTime>);

struct Published<B> {
    state: Arc<B>,
    /// The event that it is the state after; none if the incarnation had taken none.
    after: Option<u64>,
    figures: serde_json::Value,
    at: Moment,
}

pub(crate) struct Slot<B: Behavior, R> {
    pub(crate) path: Arc<str>,
    pub(crate) node: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) directory: Weak<directory::Inner>,
    fenced: Arc<AtomicBool>,
    /// Whether it has no instruments, for benchmarks.
    pub(crate) bare: bool,
    gate: Mutex<Gate<B>>,
    life: Mutex<Life>,
    work: Mutex<Work>,
    asks: Mutex<(u64, BTreeMap<u64, oneshot::Sender<R>>)>,
    published: Mutex<Option<Published<B>>>,
    journal: Mutex<Journal<B>>,
}

impl<B: Behavior, R: Send + 'static> Slot<B, R> {
    pub(crate) fn new(context: &Context, path: Arc<str>) -> Self {
        let bare = context.directory.is_bare();
        let gate = Gate {
            mailbox: Mailbox::new(Bounds::default()).counting(!bare),
            incarnation: 0,
            cell: None,
            report: None,
            woken: false,
            failure: None,
            farewell: None,
            ready: None,
        };
        Self {
            path,
            node: context.node.clone(),
            clock: context.clock.clone(),
            entropy: context.entropy.clone(),
            directory: context.directory.downgrade(),
            fenced: context.directory.fence(),
            bare,
            gate: Mutex::new(gate),
            life: Mutex::default(),
            work: Mutex::default(),
            asks: Mutex::new((0, BTreeMap::new())),
            published: Mutex::new(None),
            journal: Mutex::default(),
        }
    }

    /// Whether the node has crashed.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// Begins an incarnation, which reads the mailbox from now on; its number.
    pub(crate) fn open(
        &self,
        cell: ActorCell,
        report: Option<Report>,
        bounds: Bounds,
        farewell: Option<B::Event>,
        state: &B,
    ) -> u64 {
        {
            let mut life = lock(&self.life);
            (life.exit, life.restarting_at) = (None, None);
        }
        let last = lock(&self.gate).mailbox.last_turn();
        {
            let mut journal = lock(&self.journal);
            journal.finished(last);
            journal.begin(Arc::new(state.clone()));
        }
        let mut gate = lock(&self.gate);
        gate.mailbox.set_bounds(bounds);
        gate.incarnation += 1;
        gate.cell = Some(cell);
        gate.report = report;
        gate.farewell = farewell;
        gate.failure = None;
        gate.woken = false;
        if !gate.mailbox.is_empty() {
            gate.wake();
        }
        gate.incarnation
    }

    /// Ends the incarnation: nothing reaches it any more, its tasks, timers and askers are ended with it. False if it had
    /// ended before.
    pub(crate) fn close(&self, incarnation: u64, exit: Exit) -> bool {
        let report = {
            let mut gate = lock(&self.gate);
            if gate.incarnation != incarnation || gate.cell.take().is_none() {
                return false;
            }
            gate.mailbox.keep_states();
            (gate.farewell, gate.ready) = (None, None);
            gate.report.take()
        };
        lock(&self.life).exit = Some(exit.clone());
        if let Some(Report { run, ended }) = report {
            lock(&ended.0).push((run, exit));
        }
        lock(&self.work).abort_all();
        // Dropping the senders tells the askers that the actor has ended.
        drop(std::mem::take(&mut lock(&self.asks).1));
        true
    }

    /// Completes when the next incarnation is ready, or has ended before; none if it is ready at once.
    pub(crate) fn expect_ready(&self, later: bool) -> Option<oneshot::Receiver<()>> {
        let (sender, receiver) = oneshot::channel();
        lock(&self.gate).ready = later.then_some(sender);
        later.then_some(receiver)
    }

    pub(crate) fn ready(&self, incarnation: Option<u64>) {
        let mut gate = lock(&self.gate);
        if gate.check(self, incarnation).is_ok()
            && let Some(ready) = gate.ready.take()
        {
            // Whoever waited may be gone.
            let _ = ready.send(());
        }
    }

    pub(crate) fn is_up(&self, incarnation: Option<u64>) -> bool {
        self.check(incarnation).is_ok()
    }

    /// Whether the actor runs, and in that incarnation.
    pub(crate) fn check(&self, incarnation: Option<u64>) -> Result<(), SendError> {
        lock(&self.gate).check(self, incarnation)
    }

    pub(crate) fn deliver(
        &self,
        incarnation: Option<u64>,
        event: B::Event,
        envelope: Option<Envelope>,
        fired: Option<Fired>,
    ) -> Result<(), SendError> {
        let since = if self.bare { Moment::ZERO } else { self.clock.now() };
        let mut gate = lock(&self.gate);
        let kept = incarnation.is_none() && matches!(event.class(), Class::State { .. }) && !self.is_fenced();
        if !kept {
            gate.check(self, incarnation)?;
        }
        match gate.mailbox.put(Letter { event, envelope, since, sent: since, fired }) {
            Ok(()) => {
                gate.wake();
                Ok(())
            }
            Err(Refusal::Busy(depth)) => Err(SendError::Busy { path: self.path.clone(), depth }),
            Err(Refusal::Overflow(depth)) => {
                let error = SendError::Overflow { path: self.path.clone(), depth };
                gate.fail(error.to_string());
                Err(error)
            }
        }
    }

    /// The next event of the incarnation, unless it has to fail; the shell asks until there is none. `over` is the turn
    /// before, if its end was not noted yet: the next one begins where it ended, which saves a look at the clock. Otherwise
    /// the wall time of its beginning is given too.
    pub(crate) fn next(&self, incarnation: u64, over: Option<Over>) -> Result<Option<Next<B::Event>>, String> {
        let (mut ended, mut wall) = (over, None);
        loop {
            let taken = {
                let mut gate = lock(&self.gate);
                if let Some(over) = ended.take().filter(|_| gate.incarnation == incarnation) {
                    gate.mailbox.done(over);
                }
                if gate.incarnation != incarnation || gate.cell.is_none() || self.is_fenced() {
                    return Ok(None);
                }
                if let Some(failure) = gate.failure.take() {
                    return Err(failure);
                }
                // Never before the event was sent: a timer that has fired must be over for the turn that hears of it.
                let now = |sent| {
                    if let Some(over) = over {
                        return over.at.max(sent);
                    }
                    wall = Some(self.clock.wall());
                    self.clock.now()
                };
                let taken = gate.mailbox.take(now);
                if taken.is_none() {
                    gate.woken = false;
                }
                taken
            };
            match &taken {
                Some(Taken { letter: Letter { fired: Some(fired), .. }, .. }) if !lock(&self.work).spend(*fired) => {
                    lock(&self.gate).mailbox.skip();
                }
                _ => return Ok(taken.map(|taken| (taken, wall))),
            }
        }
    }

    /// There may be more events: the shell comes back to them after ractor has looked for a stop.
    pub(crate) fn wake_again(&self) {
        let mut gate = lock(&self.gate);
        gate.woken = false;
        gate.wake();
    }

    pub(crate) fn begin_turn(&self, kind: &'static str, sender: Arc<str>, now: Moment) {
        lock(&self.gate).mailbox.begin(kind, sender, now);
    }

    /// The turn has ended.
    pub(crate) fn end_turn(&self, over: Over) {
        lock(&self.gate).mailbox.done(over);
    }

    /// Whether this incarnation may act.
    pub(crate) fn may_act(&self, incarnation: u64) -> bool {
        let gate = lock(&self.gate);
        gate.incarnation == incarnation && gate.cell.is_some() && !self.is_fenced()
    }

    pub(crate) fn cell(&self) -> Option<ActorCell> {
        lock(&self.gate).cell.clone()
    }

    pub(crate) fn stop(&self, incarnation: Option<u64>) {
        let gate = lock(&self.gate);
        if gate.check(self, incarnation).is_ok()
            && let Some(cell) = &gate.cell
        {
            cell.stop(None);
        }
    }

    pub(crate) fn fail(&self, incarnation: Option<u64>, reason: String) {
        let mut gate = lock(&self.gate);
        if gate.check(self, incarnation).is_ok() {
            gate.fail(reason);
        }
    }

    pub(crate) fn wait_for_reply(&self) -> Result<(ReplyId, oneshot::Receiver<R>), SendError> {
        let mut asks = lock(&self.asks);
        if asks.1.len() >= ACTOR_ASKS_MAX {
            return Err(SendError::TooMany { path: self.path.clone(), what: "askers", most: ACTOR_ASKS_MAX });
        }
        // Never used twice, so that an answer that comes after a restart finds nobody.
        asks.0 += 1;
        let (id, (sender, receiver)) = (asks.0, oneshot::channel());
        asks.1.insert(id, sender);
        Ok((ReplyId(id), receiver))
    }

    pub(crate) fn reply(&self, id: ReplyId, reply: R) -> bool {
        let asker = lock(&self.asks).1.remove(&id.0);
        asker.is_some_and(|asker| asker.send(reply).is_ok())
    }

    pub(crate) fn forget_asker(&self, id: ReplyId) {
        lock(&self.asks).1.remove(&id.0);
    }

    /// Starts a task on `runtime` that ends with the incarnation.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        runtime: &runtime::Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), SendError> {
        // The lock is held until the task is listed, so that it cannot end before.
        let mut work = lock(&self.work);
        if work.tasks.len() >= ACTOR_TASKS_MAX {
            return Err(SendError::TooMany { path: self.path.clone(), what: "tasks", most: ACTOR_TASKS_MAX });
        }
        let (number, slot) = (work.number(), Arc::downgrade(self));
        let task = runtime.spawn(async move {
            task.await;
            if let Some(slot) = slot.upgrade() {
                lock(&slot.work).tasks.remove(&number);
            }
        });
        work.tasks.insert(number, task.abort_handle());
        Ok(())
    }

    pub(crate) fn set_timer<F: Future<Output = ()> + Send + 'static>(
        &self,
        key: u64,
        timer: impl FnOnce(u64) -> F,
    ) -> Result<(), SendError> {
        let mut work = lock(&self.work);
        if work.timers.len() >= ACTOR_TIMERS_MAX && !work.timers.contains_key(&key) {
            return Err(SendError::TooMany { path: self.path.clone(), what: "timers", most: ACTOR_TIMERS_MAX });
        }
        let serial = work.number();
        let timer = tokio::spawn(timer(serial)).abort_handle();
        if let Some((_, old)) = work.timers.insert(key, (serial, timer)) {
            old.abort();
        }
        Ok(())
    }

    pub(crate) fn cancel_timer(&self, key: u64) {
        if let Some((_, timer)) = lock(&self.work).timers.remove(&key) {
            timer.abort();
        }
    }

    /// Runs the task that reminds the shell of publishing; it counts as none of the actor's.
    pub(crate) fn publish_later(&self, reminder: impl Future<Output = ()> + Send + 'static) {
        let mut work = lock(&self.work);
        if let Some(old) = work.reminder.replace(tokio::spawn(reminder).abort_handle()) {
            old.abort();
        }
    }

    /// Shows this state, the one after the event `after`, from now on.
    pub(crate) fn publish(&self, state: Arc<B>, after: Option<u64>, figures: serde_json::Value) -> Moment {
        let at = self.clock.now();
        *lock(&self.published) = Some(Published { state, after, figures, at });
        at
    }

    pub(crate) fn published(&self) -> Option<(Arc<B>, Moment)> {
        lock(&self.published).as_ref().map(|published| (published.state.clone(), published.at))
    }

    pub(crate) fn with_journal<T>(&self, look: impl FnOnce(&mut Journal<B>) -> T) -> T {
        look(&mut lock(&self.journal))
    }

    pub(crate) fn replay(&self, to: u64) -> Result<B, ReplayError> {
        // Played outside of the lock: the actor must not wait for somebody who looks.
        played(&self.recording(to)?)
    }

    pub(crate) fn recording(&self, to: u64) -> Result<Recording<B>, ReplayError> {
        lock(&self.journal).recording(to)
    }

    pub(crate) fn last_event(&self) -> u64 {
        lock(&self.journal).last()
    }

    /// Writes down on which event the incarnation failed and what its state was before, and publishes that state, which
    /// is the one after the event `after`.
    pub(crate) fn note_failure(&self, kind: &'static str, before: Option<Arc<B>>, after: Option<u64>) {
        let number = self.last_event();
        let state_before = before.as_ref().map(|state| occupant::cut(to_json(&**state).to_string()));
        lock(&self.life).failure = Some(Failure { event: Some((number, kind)), state_before });
        if let Some(state) = before {
            self.publish(state, after, serde_json::Value::Null);
        }
    }
}

impl<B: Behavior> Gate<B> {
    fn check<R>(&self, slot: &Slot<B, R>, incarnation: Option<u64>) -> Result<(), SendError> {
        if incarnation.is_some_and(|bound| bound != self.incarnation) {
            Err(SendError::Stale { path: slot.path.clone() })
        } else if self.cell.is_none() || slot.fenced.load(Ordering::SeqCst) {
            Err(SendError::Down { path: slot.path.clone() })
        } else {
            Ok(())
        }
    }

    fn wake(&mut self) {
        if let Some(cell) = &self.cell
            && !self.woken
        {
            // Fails only for an actor that is ending, which needs no waking.
            self.woken = cell.send_message(Message::Wake).is_ok();
        }
    }

    fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
        self.wake();
    }
}
