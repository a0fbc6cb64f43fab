//! The shell that every actor runs in: mailbox, then behavior, then effects. It keeps the journal, publishes the state,
//! and turns a panic into a failure that the supervisor decides about.

use std::{
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use postroad_cluster::{
    behavior::{Behavior, Event as _, Turn},
    limits::{MAILBOX_BATCH, PUBLISH_EVERY},
    supervision::Exit,
    time::{Moment, Span, WallTime},
    trace::TraceId,
};
use postroad_transport::trace::{self, Doing, During};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::task::JoinHandle;

use crate::{
    handle::{Handle, Message, Report, Slot},
    inspect::{JournalView, variant_name},
    journal::{Arrival, panic_text},
    mailbox::{Bounds, Envelope, Letter, Over, Taken},
};

/// Performs the effects of one actor's behavior through the ports. It is synchronous and never waits: what takes time is
/// run beside it by [`Handle::run`], and its result comes back as an event.
pub trait Performer<B: Behavior>: Send + 'static {
    /// What the actor replies to those who ask it, by [`Handle::reply`].
    type Reply: Send + 'static;

    /// Performs one effect. A panic fails the actor, like one of the behavior.
    fn perform(&mut self, effect: B::Effect, me: &Handle<B, Self::Reply>);

    /// The first event of an incarnation, before all others.
    fn first(&mut self, _me: &Handle<B, Self::Reply>) -> Option<B::Event> {
        None
    }

    /// Whether the actor counts as started, so that the next child starts, only once it calls [`Handle::ready`].
    fn says_when_ready(&self) -> bool {
        false
    }

    /// The last event of an incarnation that is asked to stop; with it, the actor has to end by [`Handle::stop`], within
    /// the time of its rule. Without it, the actor ends after its present event.
    fn farewell(&self) -> Option<B::Event> {
        None
    }

    /// How much its mailbox holds.
    fn bounds(&self) -> Bounds {
        Bounds::default()
    }

    /// Figures that the console shows beside the behavior's state. Called about each 100 ms while events come, so cheap.
    fn snapshot(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Children of this actor have ended; the events that tell the behavior. Only supervisors have children.
    fn children_ended(&mut self) -> Vec<B::Event> {
        Vec::new()
    }

    /// The actor has failed: its children must end with it.
    fn abandon(&mut self) {}
}

/// What an incarnation starts with.
pub(crate) struct Launch<B: Behavior, P: Performer<B>> {
    pub(crate) slot: Arc<Slot<B, P::Reply>>,
    pub(crate) behavior: B,
    pub(crate) performer: P,
    pub(crate) report: Option<Report>,
    /// What its start is part of.
    pub(crate) trace: Option<TraceId>,
}

impl<B: Behavior, P: Performer<B>> Launch<B, P> {
    /// Starts the incarnation, linked to `supervisor` if there is one, and waits until it is ready. The actor is unnamed: names are global in ractor.
    pub(crate) async fn start(self, supervisor: Option<ActorCell>) -> Result<JoinHandle<()>, String> {
        let ready = self.slot.expect_ready(self.performer.says_when_ready());
        let shell = Shell(PhantomData);
        let arguments = (self, supervisor.clone());
        let started = match supervisor {
            Some(supervisor) => Actor::spawn_linked(None, shell, arguments, supervisor).await,
            None => Actor::spawn(None, shell, arguments).await,
        };
        let (_, task) = started.map_err(|error| error.to_string())?;
        if let Some(ready) = ready {
            // An error means that it ended before it was ready, which its exit tells.
            let _ = ready.await;
        }
        Ok(task)
    }
}

/// How an event comes to its turn.
struct Coming {
    /// Who sent it, and what it is part of; nothing where nobody counts.
    envelope: Option<Envelope>,
    /// Since when it waited, and when it was taken, if it was in the mailbox.
    waited: Option<(Moment, Moment)>,
    /// The wall time right before it was taken, unless that is where the turn before ended.
    wall: Option<WallTime>,
}

impl Coming {
    const fn at_once(envelope: Envelope) -> Self {
        Self { envelope: Some(envelope), waited: None, wall: None }
    }
}

/// The ractor actor around every behavior.
pub(crate) struct Shell<B, P>(PhantomData<fn() -> (B, P)>);

/// One incarnation of an actor.
pub(crate) struct Running<B: Behavior, P: Performer<B>> {
    behavior: B,
    performer: P,
    me: Handle<B, P::Reply>,
    supervisor: Option<ActorCell>,
    incarnation: u64,
    /// What its start is part of, until its first event.
    start: Option<TraceId>,
    effects: Vec<B::Effect>,
    /// The last turn, and whether the mailbox has still to be told of its end.
    over: Option<Over>,
    unsaid: bool,
    published_at: Option<Moment>,
    /// The behavior has had turns since it was published.
    unpublished: bool,
    publish_set: bool,
}

impl<B: Behavior, P: Performer<B>> Running<B, P> {
    fn slot(&self) -> &Slot<B, P::Reply> {
        self.me.slot()
    }

    /// Takes events until there are none or a batch is full; true if there may be more.
    fn batch(&mut self, myself: &ActorRef<Message>) -> Result<bool, String> {
        let _during = self.during(None);
        for _ in 0..MAILBOX_BATCH {
            let over = self.over.filter(|_| std::mem::take(&mut self.unsaid));
            let Some((Taken { letter, at }, wall)) = self.slot().next(self.incarnation, over)? else {
                self.publish_later(myself);
                return Ok(false);
            };
            let Letter { event, envelope, since, .. } = letter;
            self.turn(event, Coming { envelope, waited: at.map(|at| (since, at)), wall })?;
        }
        self.say_over();
        Ok(true)
    }

    /// While this lives, what runs on this thread is done by this actor.
    fn during(&self, trace: Option<TraceId>) -> Option<During> {
        (!self.slot().bare).then(|| During::new(Doing { trace, by: Some(self.slot().path.clone()) }))
    }

    /// Tells the mailbox that the last turn has ended, where no next event is taken at once.
    fn say_over(&mut self) {
        if let Some(over) = self.over.filter(|_| std::mem::take(&mut self.unsaid)) {
            self.slot().end_turn(over);
        }
    }

    /// Tells the behavior which children have ended. As reserved as events can be: there are at most as many as children,
    /// so they need no room in the mailbox.
    fn hear_of_children(&mut self, myself: &ActorRef<Message>) -> Result<(), String> {
        let _during = self.during(None);
        for event in self.performer.children_ended() {
            if !self.slot().may_act(self.incarnation) {
                break;
            }
            self.turn(event, Coming::at_once(Envelope { sender: "child".into(), trace: None }))?;
            self.say_over();
        }
        self.publish_later(myself);
        Ok(())
    }

    /// Handles an event. Whoever calls it has said by [`Running::during`] that this actor runs, and says afterwards that
    /// the turn is over. What is done here for people to look at is to cost a message less than 100 ns: each lock, each
    /// look at the clock and each allocation counts (`tests/benches/console.rs`).
    fn turn(&mut self, event: B::Event, coming: Coming) -> Result<(), String> {
        let slot = self.me.slot().clone();
        let Coming { envelope, waited, wall } = coming;
        // Whoever tells the two clocks from each other by turns needs the wall's time read first; see `Arrival::at_once`.
        let at_once = waited.is_none() || wall.is_some();
        let wall = wall.unwrap_or_else(|| slot.clock.wall());
        let now = waited.map_or_else(|| slot.clock.now(), |(_, taken)| taken);
        let turn = Turn { now, wall, chance: slot.entropy.next_u64() };
        let kind = event.kind();
        let Some(Envelope { sender, trace }) = envelope.filter(|_| !slot.bare) else {
            self.behavior.on(turn, event, &mut self.effects);
            let effects = std::mem::take(&mut self.effects);
            return self.perform(effects, kind);
        };
        // What is part of nothing begins a trace, drawn from the turn's own chance.
        let trace = trace.unwrap_or_else(|| TraceId::drawn(turn.chance));
        let span = tracing::debug_span!("turn", node = %slot.node, path = %slot.path, kind, sender = %sender, %trace);
        let _entered = span.enter();
        trace::go_on(Some(trace));
        if waited.is_none() {
            slot.begin_turn(kind, sender.clone(), turn.now);
        }
        let waited = waited.map_or(Span::ZERO, |(since, taken)| taken.since(since));
        let arrival = Arrival { sender, waited, trace, at_once };
        let begun = trace.is_begun().then(|| JournalView::brief(kind, turn, &arrival));

        let recorded = event.clone();
        let (behavior, effects) = (&mut self.behavior, &mut self.effects);
        let decided = catch_unwind(AssertUnwindSafe(|| behavior.on(turn, event, effects)));
        if let Err(panic) = decided {
            let error = panic_text(&*panic);
            let before = slot.with_journal(|journal| {
                journal.finished(self.over);
                journal.record_failure(turn, arrival, recorded, &error)
            });
            self.unpublished = false;
            let number = slot.last_event();
            slot.note_failure(kind, before, number.checked_sub(1));
            if let Some(begun) = begun {
                self.keep(JournalView { number, failure: Some(error.clone()), ..begun });
            }
            return Err(format!("on {kind}: {error}"));
        }
        let effects = std::mem::take(&mut self.effects);
        let begun = begun.map(|begun| JournalView {
            effects: effects.iter().map(|effect| variant_name(effect).into()).collect(),
            ..begun
        });
        let (number, checkpoint) = slot.with_journal(|journal| {
            journal.finished(self.over);
            let checkpoint = journal.record(turn, arrival, recorded, &effects, &self.behavior);
            (journal.last(), checkpoint)
        });
        tracing::trace!(effects = effects.len(), "decided");
        self.perform(effects, kind)?;
        let at = slot.clock.now();
        let over = Over { number, at, took: at.since(turn.now) };
        (self.over, self.unsaid) = (Some(over), true);
        if let Some(begun) = begun {
            self.keep(JournalView { number, took_ns: Some(over.took.as_nanos() as u64), ..begun });
        }
        self.unpublished = true;
        self.publish_if_due(checkpoint, at);
        Ok(())
    }

    /// Remembers a turn of what somebody has begun, for longer than the journal does.
    fn keep(&self, turn: JournalView) {
        if let Some(directory) = self.me.directory() {
            directory.keep_begun(self.me.path(), turn);
        }
    }

    fn perform(&mut self, mut effects: Vec<B::Effect>, kind: &'static str) -> Result<(), String> {
        let performed = catch_unwind(AssertUnwindSafe(|| {
            for effect in effects.drain(..) {
                // An effect may be the crash of the own node, after which nothing more happens.
                if self.me.slot().may_act(self.incarnation) {
                    self.performer.perform(effect, &self.me);
                }
            }
        }));
        // The room of the list serves the next turn.
        self.effects = effects;
        self.effects.clear();
        performed.map_err(|panic| {
            let error = panic_text(&*panic);
            let number = self.slot().last_event();
            self.slot().note_failure(kind, Some(Arc::new(self.behavior.clone())), Some(number));
            self.unpublished = false;
            format!("performing what {kind} led to: {error}")
        })
    }

    /// Publishes the state if the published one is old, or for nothing if there is a copy already.
    fn publish_if_due(&mut self, copy: Option<Arc<B>>, now: Moment) {
        let old = self.published_at.is_none_or(|at| now.since(at) >= PUBLISH_EVERY);
        if old || copy.is_some() {
            self.publish(copy, now);
        }
    }

    fn publish(&mut self, copy: Option<Arc<B>>, now: Moment) {
        let state = copy.unwrap_or_else(|| Arc::new(self.behavior.clone()));
        let figures = catch_unwind(AssertUnwindSafe(|| self.performer.snapshot())).unwrap_or(serde_json::Value::Null);
        let at = self.slot().publish(state, self.over.map(|over| over.number), figures);
        if let Some(over) = &mut self.over {
            // The next turn begins after this.
            over.at = at;
        }
        self.published_at = Some(now);
        self.unpublished = false;
    }

    /// An actor that falls idle right after a publication publishes once more, when that is due.
    fn publish_later(&mut self, myself: &ActorRef<Message>) {
        if !self.unpublished || self.publish_set {
            return;
        }
        let due = self.published_at.unwrap_or(Moment::ZERO).after(PUBLISH_EVERY);
        let (sleep, myself) = (self.slot().clock.sleep_until(due), myself.clone());
        self.slot().publish_later(async move {
            sleep.await;
            // Fails only for an actor that is ending, which publishes by itself.
            let _ = myself.send_message(Message::Publish);
        });
        self.publish_set = true;
    }

    fn publish_now(&mut self) {
        self.publish_set = false;
        if self.unpublished {
            let now = self.slot().clock.now();
            self.publish(None, now);
        }
    }

    /// Ends the incarnation with `result`, as ractor wants it.
    fn conclude(&mut self, result: Result<(), String>) -> Result<(), ActorProcessingErr> {
        result.map_err(|error| {
            if !self.slot().is_fenced() {
                tracing::error!(node = %self.slot().node, path = %self.me.path(), error, "actor failed");
            }
            self.performer.abandon();
            self.slot().close(self.incarnation, Exit::Failed(error.clone()));
            error.into()
        })
    }
}

impl<B: Behavior, P: Performer<B>> Drop for Running<B, P> {
    fn drop(&mut self) {
        if self.unpublished {
            let after = self.over.map(|over| over.number);
            self.slot().publish(Arc::new(self.behavior.clone()), after, serde_json::Value::Null);
        }
        self.performer.abandon();
        // Whoever ended normally or failed has been closed by now.
        let late = self.slot().close(self.incarnation, Exit::Killed);
        if let Some(supervisor) = self.supervisor.take().filter(|_| late) {
            // Fails only for a supervisor that is ending.
            let _ = supervisor.send_message(Message::Children);
        }
    }
}

impl<B: Behavior, P: Performer<B>> Actor for Shell<B, P> {
    type Msg = Message;
    type State = Running<B, P>;
    type Arguments = (Launch<B, P>, Option<ActorCell>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (launch, supervisor): (Launch<B, P>, Option<ActorCell>),
    ) -> Result<Running<B, P>, ActorProcessingErr> {
        let Launch { slot, behavior, performer, report, trace } = launch;
        if slot.is_fenced() {
            return Err("the node has crashed".into());
        }
        let (bounds, farewell) = (performer.bounds(), performer.farewell());
        let incarnation = slot.open(myself.get_cell(), report, bounds, farewell, &behavior);
        let me = Handle::bound(slot, incarnation);
        Ok(Running {
            behavior,
            performer,
            me,
            supervisor,
            incarnation,
            start: trace,
            effects: Vec::new(),
            over: None,
            unsaid: false,
            published_at: None,
            unpublished: true,
            publish_set: false,
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<Message>,
        running: &mut Running<B, P>,
    ) -> Result<(), ActorProcessingErr> {
        if !running.slot().may_act(running.incarnation) {
            return Ok(());
        }
        let (trace, path) = (running.start.take(), running.me.path().clone());
        let _during = running.during(trace);
        let first = catch_unwind(AssertUnwindSafe(|| running.performer.first(&running.me)));
        let result = match first {
            Ok(Some(event)) => running.turn(event, Coming::at_once(Envelope { sender: path, trace })),
            Ok(None) => Ok(()),
            Err(panic) => Err(format!("on its first event: {}", panic_text(&*panic))),
        };
        running.say_over();
        if result.is_ok() {
            let now = running.slot().clock.now();
            running.publish_if_due(None, now);
            running.publish_later(&myself);
        }
        running.conclude(result)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        running: &mut Running<B, P>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Wake => {
                let more = running.batch(&myself);
                if matches!(more, Ok(true)) {
                    // Others first, and a stop or a kill, which ractor looks for between two messages.
                    tokio::task::yield_now().await;
                    running.slot().wake_again();
                }
                running.conclude(more.map(|_| ()))
            }
            Message::Publish => {
                running.publish_now();
                Ok(())
            }
            Message::Children => {
                let result = running.hear_of_children(&myself);
                running.conclude(result)
            }
        }
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        running: &mut Running<B, P>,
    ) -> Result<(), ActorProcessingErr> {
        // A killed child's state ends its incarnation when it is dropped.
        drop(event);
        let result = running.hear_of_children(&myself);
        running.conclude(result)
    }

    async fn post_stop(&self, _: ActorRef<Message>, running: &mut Running<B, P>) -> Result<(), ActorProcessingErr> {
        running.publish_now();
        running.performer.abandon();
        running.slot().close(running.incarnation, Exit::Normal);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
