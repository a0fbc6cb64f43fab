//! What others hold of an actor: a handle that sends events, asks and gets replies, sets timers and runs tasks. It stays
//! good through restarts of the actor.

mod slot;
mod work;

use std::{
    fmt,
    future::Future,
    sync::{Arc, LazyLock},
};

use postroad_cluster::{
    behavior::{Behavior, ReplyId},
    time::{Clock, Entropy, Moment, Span},
    trace::TraceId,
};
use postroad_transport::trace::{self, Doing, carry};
use tokio::{runtime, sync::oneshot};

pub(crate) use self::slot::{Ended, Message, Report, Slot};
use crate::{
    directory::Directory,
    journal::ReplayError,
    mailbox::{Envelope, Fired},
};

/// Why an event was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The mailbox is full of such events.
    Busy {
        /// The actor.
        path: Arc<str>,
        /// How many wait.
        depth: usize,
    },
    /// The actor is not running: not started yet, restarting, stopped or failed.
    Down {
        /// The actor.
        path: Arc<str>,
    },
    /// The handle belongs to an incarnation of the actor that has ended.
    Stale {
        /// The actor.
        path: Arc<str>,
    },
    /// The actor has more timers, exits and results waiting than it can have asked for; it has been failed.
    Overflow {
        /// The actor.
        path: Arc<str>,
        /// How many wait.
        depth: usize,
    },
    /// The actor has too many tasks, timers or askers.
    TooMany {
        /// The actor.
        path: Arc<str>,
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
}

impl SendError {
    /// A stable name of the error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "ACTOR_BUSY",
            Self::Down { .. } => "ACTOR_DOWN",
            Self::Stale { .. } => "ACTOR_STALE",
            Self::Overflow { .. } => "ACTOR_OVERFLOW",
            Self::TooMany { .. } => "ACTOR_TOO_MANY",
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { path, depth } => write!(f, "{path} is busy: {depth} events wait. Try again later"),
            Self::Down { path } => write!(f, "{path} is not running. Try again once it is: postroad actor {path}"),
            Self::Stale { path } => write!(f, "{path} has been restarted since this was begun. Begin anew"),
            Self::Overflow { path, depth } => {
                write!(f, "{path} had {depth} timers and results waiting, which is a defect, and has been failed")
            }
            Self::TooMany { path, what, most } => write!(f, "{path} has {most} {what}, the most there may be"),
        }
    }
}

impl std::error::Error for SendError {}

/// Why an asker got no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskError {
    /// The question was not taken.
    Refused(SendError),
    /// The actor ended before it replied.
    Ended {
        /// The actor.
        path: Arc<str>,
    },
    /// The time was over; what was asked for may still happen.
    Expired {
        /// The actor.
        path: Arc<str>,
        /// How long was waited.
        within: Span,
    },
}

impl AskError {
    /// A stable name of the error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused(error) => error.code(),
            Self::Ended { .. } => "ACTOR_ENDED",
            Self::Expired { .. } => "ACTOR_EXPIRED",
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Ended { path } => {
                write!(f, "{path} ended before it answered; whether it acted is unknown. Look, then ask again")
            }
            Self::Expired { path, within } => {
                write!(
                    f,
                    "{path} did not answer within {} ms; it may still act. Look, then ask again",
                    within.as_millis()
                )
            }
        }
    }
}

impl std::error::Error for AskError {}

impl From<SendError> for AskError {
    fn from(error: SendError) -> Self {
        Self::Refused(error)
    }
}

/// Who sends from a thread that is no actor's.
static OUTSIDE: LazyLock<Arc<str>> = LazyLock::new(|| "outside".into());

/// Who sends an event from this thread, and what it is part of.
fn envelope() -> Envelope {
    let Doing { trace, by } = trace::doing();
    Envelope { sender: by.unwrap_or_else(|| OUTSIDE.clone()), trace }
}

/// A handle of an actor with the behavior `B` that replies with `R`. What an actor's performer is given is bound to the
/// present incarnation and good for nothing after it; [`Handle::address`] and [`Directory::find`] give lasting ones.
pub struct Handle<B: Behavior, R = ()> {
    slot: Arc<Slot<B, R>>,
    /// The incarnation that it is bound to.
    incarnation: Option<u64>,
}

impl<B: Behavior, R> Clone for Handle<B, R> {
    fn clone(&self) -> Self {
        Self { slot: self.slot.clone(), incarnation: self.incarnation }
    }
}

impl<B: Behavior, R> fmt::Debug for Handle<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.slot.path)
    }
}

impl<B: Behavior, R: Send + 'static> Handle<B, R> {
    pub(crate) const fn to(slot: Arc<Slot<B, R>>) -> Self {
        Self { slot, incarnation: None }
    }

    pub(crate) const fn bound(slot: Arc<Slot<B, R>>, incarnation: u64) -> Self {
        Self { slot, incarnation: Some(incarnation) }
    }

    pub(crate) const fn slot(&self) -> &Arc<Slot<B, R>> {
        &self.slot
    }

    /// A handle that follows the actor through its restarts.
    #[must_use]
    pub fn address(&self) -> Self {
        Self::to(self.slot.clone())
    }

    /// The actor's path.
    #[must_use]
    pub fn path(&self) -> &Arc<str> {
        &self.slot.path
    }

    /// The node's clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.slot.clock
    }

    /// The node's source of chance.
    #[must_use]
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.slot.entropy
    }

    /// The present moment of the node's clock.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.slot.clock.now()
    }

    /// The node's actors; none once the node is gone.
    #[must_use]
    pub fn directory(&self) -> Option<Directory> {
        Directory::upgrade(&self.slot.directory)
    }

    /// Whether the actor takes events.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.slot.is_up(self.incarnation)
    }

    /// Sends `event`, without waiting. A state is kept for an actor that is down; anything else is refused then.
    pub fn send(&self, event: B::Event) -> Result<(), SendError> {
        self.slot.deliver(self.incarnation, event, (!self.slot.bare).then(envelope), None)
    }

    fn fire(&self, event: B::Event, fired: Option<Fired>) {
        // What the actor asked for itself comes back from itself. An actor that is gone by then needs no answer, and an
        // overflow has failed it already.
        let envelope = Envelope { sender: self.slot.path.clone(), trace: trace::current() };
        let _ = self.slot.deliver(self.incarnation, event, Some(envelope), fired);
    }

    /// Sends the event that `event` makes of a reply id, and waits for the reply, at most for `within`. For callers
    /// outside of actors: an actor gets its answers as events.
    pub async fn ask(&self, within: Span, event: impl FnOnce(ReplyId) -> B::Event) -> Result<R, AskError> {
        let deadline = self.now().after(within);
        let mut asking = Asking::new(&self.slot)?;
        self.send(event(asking.id))?;
        let path = self.slot.path.clone();
        tokio::select! {
            biased;
            reply = &mut asking.reply => reply.map_err(|_| AskError::Ended { path }),
            () = self.slot.clock.sleep_until(deadline) => Err(AskError::Expired { path, within }),
        }
    }

    /// Gives `reply` to the asker `id`; false if it no longer waits.
    pub fn reply(&self, id: ReplyId, reply: R) -> bool {
        self.slot.reply(id, reply)
    }

    /// Sends `event` to the actor itself at `moment`. A timer of the same `key` replaces the older one, which then does
    /// not come, even if it has already fired and waits. Ends with the incarnation. What a timer leads to is part of no
    /// trace from before, else whatever sets the next one would never end.
    pub fn after(&self, moment: Moment, key: u64, event: B::Event) -> Result<(), SendError> {
        self.slot.check(self.incarnation)?;
        self.slot.set_timer(key, |serial| {
            let (me, sleep) = (self.clone(), self.slot.clock.sleep_until(moment));
            async move {
                sleep.await;
                me.fire(event, Some(Fired { key, serial }));
            }
        })
    }

    /// The timer `key` does not come, even if it has already fired and waits.
    pub fn cancel(&self, key: u64) {
        if self.slot.check(self.incarnation).is_ok() {
            self.slot.cancel_timer(key);
        }
    }

    /// Runs `work` beside the actor, and sends it the resulting event, or `expired` if that took longer than `within`.
    /// Ends with the incarnation; if it panics, so does the actor. The work is part of the trace of the present turn.
    pub fn run(
        &self,
        within: Span,
        expired: B::Event,
        work: impl Future<Output = B::Event> + Send + 'static,
    ) -> Result<(), SendError> {
        let (me, limit) = (self.clone(), self.slot.clock.sleep_until(self.now().after(within)));
        self.attend_traced(&runtime::Handle::current(), trace::current(), async move {
            let event = tokio::select! {
                biased;
                event = work => event,
                () = limit => expired,
            };
            me.fire(event, None);
        })
    }

    /// Runs `work`, such as reading a stream of things, beside the actor for as long as its incarnation lives. If it
    /// panics, so does the actor. It is part of no trace; work that has an end is, by [`Handle::attend_briefly`].
    pub fn attend(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), SendError> {
        self.attend_on(&runtime::Handle::current(), work)
    }

    /// The same on another runtime than the actor's.
    pub(crate) fn attend_on(
        &self,
        runtime: &runtime::Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), SendError> {
        self.attend_traced(runtime, None, work)
    }

    /// Runs `work` that ends soon, such as telling somebody something, beside the actor. It is part of the trace of the
    /// present turn. Ends with the incarnation; if it panics, so does the actor.
    pub fn attend_briefly(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), SendError> {
        self.attend_traced(&runtime::Handle::current(), trace::current(), work)
    }

    fn attend_traced(
        &self,
        runtime: &runtime::Handle,
        trace: Option<TraceId>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), SendError> {
        self.slot.check(self.incarnation)?;
        let me = self.clone();
        let doing = Doing { trace, by: Some(self.slot.path.clone()) };
        let watched = carry(doing, async move {
            if let Err(error) = work::catch(work).await {
                me.fail(format!("a task of it failed: {error}"));
            }
        });
        self.slot.spawn(runtime, watched)
    }

    /// The actor counts as started from now on; see [`Performer::says_when_ready`](crate::shell::Performer::says_when_ready).
    pub fn ready(&self) {
        self.slot.ready(self.incarnation);
    }

    /// Lets the actor end normally after the present event.
    pub fn stop(&self) {
        self.slot.stop(self.incarnation);
    }

    /// Lets the actor fail with `reason` before its next event; its supervisor decides what follows.
    pub fn fail(&self, reason: String) {
        self.slot.fail(self.incarnation, reason);
    }

    /// The last published state and when it was published. It is there also while the actor is stuck or dead.
    #[must_use]
    pub fn published(&self) -> Option<(Arc<B>, Moment)> {
        self.slot.published()
    }

    /// The state after event `to`, computed again from the journal.
    pub fn replay(&self, to: u64) -> Result<B, ReplayError> {
        self.slot.replay(to)
    }

    /// The number of the last event.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.slot.last_event()
    }
}

/// An asker that waits; it gives its place back however the wait ends.
struct Asking<'a, B: Behavior, R: Send + 'static> {
    slot: &'a Slot<B, R>,
    id: ReplyId,
    reply: oneshot::Receiver<R>,
}

impl<'a, B: Behavior, R: Send + 'static> Asking<'a, B, R> {
    fn new(slot: &'a Slot<B, R>) -> Result<Self, SendError> {
        let (id, reply) = slot.wait_for_reply()?;
        Ok(Self { slot, id, reply })
    }
}

impl<B: Behavior, R: Send + 'static> Drop for Asking<'_, B, R> {
    fn drop(&mut self) {
        self.slot.forget_asker(self.id);
    }
}
