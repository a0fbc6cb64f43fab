//! What a supervisor needs to know of a child: its id, its rule, and how an incarnation of it is made.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
};

use postroad_cluster::{
    behavior::Behavior,
    limits::{ACTOR_STOP_WITHIN, SUPERVISOR_STOP_WITHIN},
    supervision::{Restart, Rule, Strategy, Supervision},
    time::Span,
};
use postroad_transport::trace;
use ractor::ActorCell;

use super::{Children, SupervisorHandle};
use crate::{
    directory::{Context, Directory, Inner, Occupant},
    handle::{Handle, Report, Slot},
    shell::{Launch, Performer},
};

/// What the maker of an actor is given.
pub struct Seat<B: Behavior, R = ()> {
    /// The node's context.
    pub context: Context,
    /// A handle of the actor that is being made; it stays good through restarts.
    pub me: Handle<B, R>,
    /// The path of its supervisor.
    pub supervisor: Option<Arc<str>>,
}

/// An incarnation on its way: done once it runs, or an error with its text.
pub(super) type Launching = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A child's place, whatever its behavior.
pub(super) trait Child: Send + Sync {
    fn occupant(&self) -> Arc<dyn Occupant>;
    fn launch(&self, supervisor: ActorCell, report: Report) -> Result<Launching, String>;
}

type MakeSeat = dyn Fn(&Context, Arc<str>, Option<Arc<str>>, u64) -> Arc<dyn Child> + Send + Sync;

/// A child: its id, when it is restarted, and how it is made.
#[derive(Clone)]
pub struct ChildSpec {
    pub(super) id: String,
    pub(super) rule: Rule,
    pub(super) seat: Arc<MakeSeat>,
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec").field("id", &self.id).field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl ChildSpec {
    /// An actor. `make` is called for every incarnation; an error counts as a failure of the child.
    pub fn actor<B, P, F>(id: &str, restart: Restart, make: F) -> Self
    where
        B: Behavior,
        P: Performer<B>,
        F: Fn(&Seat<B, P::Reply>) -> Result<(B, P), String> + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let seat = move |context: &Context, path: Arc<str>, supervisor: Option<Arc<str>>, order: u64| {
            let new = || Slot::new(context, path.clone());
            let slot = context.directory.settle(&path, supervisor.clone(), order, new);
            let directory = context.directory.downgrade();
            let made: Arc<dyn Child> = Arc::new(ActorChild { slot, directory, supervisor, make: make.clone() });
            made
        };
        let rule = Rule { restart, strategy: Strategy::OneForOne, stop_within: ACTOR_STOP_WITHIN };
        Self { id: id.to_owned(), rule, seat: Arc::new(seat) }
    }

    /// A supervisor of its own with the children that `children` lists, called for every incarnation. Those that are added
    /// at run time are kept through its restarts by themselves.
    pub fn supervisor<F>(id: &str, restart: Restart, children: F) -> Self
    where
        F: Fn(&Seat<Supervision>) -> Vec<Self> + Send + Sync + 'static,
    {
        Self::actor(id, restart, move |seat: &Seat<Supervision>| assemble(seat, children(seat)))
            .stop_within(SUPERVISOR_STOP_WITHIN)
    }

    /// With it, every child that was started after it is restarted, since those rely on it.
    #[must_use]
    pub const fn rest_for_one(mut self) -> Self {
        self.rule.strategy = Strategy::RestForOne;
        self
    }

    /// How long a stop may take before the child is killed; 5 s if not said, 60 s for a supervisor.
    #[must_use]
    pub const fn stop_within(mut self, span: Span) -> Self {
        self.rule.stop_within = span;
        self
    }
}

/// The behavior and performer of the supervisor in `seat`.
pub(super) fn assemble(seat: &Seat<Supervision>, children: Vec<ChildSpec>) -> Result<(Supervision, Children), String> {
    let handle = SupervisorHandle::to(seat.me.clone(), &seat.context.directory);
    let roll = handle.ok_or_else(|| "it was removed".to_owned())?.roll;
    Children::assemble(&seat.context, seat.me.path(), roll, children)
}

struct ActorChild<B: Behavior, R, F> {
    slot: Arc<Slot<B, R>>,
    /// Weak, since the directory owns what owns this.
    directory: Weak<Inner>,
    supervisor: Option<Arc<str>>,
    make: Arc<F>,
}

impl<B, P, R, F> Child for ActorChild<B, R, F>
where
    B: Behavior,
    R: Send + 'static,
    P: Performer<B, Reply = R>,
    F: Fn(&Seat<B, R>) -> Result<(B, P), String> + Send + Sync + 'static,
{
    fn occupant(&self) -> Arc<dyn Occupant> {
        self.slot.clone()
    }

    fn launch(&self, supervisor: ActorCell, report: Report) -> Result<Launching, String> {
        let slot = self.slot.clone();
        let directory = Directory::upgrade(&self.directory).ok_or_else(|| "the node is gone".to_owned())?;
        let context =
            Context { clock: slot.clock.clone(), entropy: slot.entropy.clone(), directory, node: slot.node.clone() };
        let seat = Seat { context, me: Handle::to(slot.clone()), supervisor: self.supervisor.clone() };
        let (behavior, performer) = (self.make)(&seat)?;
        let launch = Launch { slot, behavior, performer, report: Some(report), trace: trace::current() };
        Ok(Box::pin(async move { launch.start(Some(supervisor)).await.map(|_| ()) }))
    }
}
