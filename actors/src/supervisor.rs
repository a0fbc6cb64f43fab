//! The one supervisor: starts children in order, stops them in reverse, starts the failed again as the behavior
//! `supervision` decides, and fails upwards. Children come and go at run time by id.

mod child;
mod root;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    behavior::Behavior,
    limits::SUPERVISOR_CHILDREN_MAX,
    supervision::{Effect, Event, Exit, Restart, Supervision},
    time::Moment,
};

use self::child::Child;
pub use self::{
    child::{ChildSpec, Seat},
    root::Root,
};
use crate::{
    directory::{Annex, Context, Directory, lock},
    handle::{Ended, Handle, Report, SendError},
    journal::panic_text,
    shell::Performer,
};

/// Why a child was not added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddError {
    /// There is one of that id; it may be on its way out.
    Taken {
        /// The path of the child that is there.
        path: Arc<str>,
    },
    /// An id is part of a path: it has 1 to 100 characters, none of them `/`.
    BadId {
        /// The id, cut to 100 characters.
        id: String,
    },
    /// The supervisor has as many children as it may have.
    Full {
        /// The supervisor.
        path: Arc<str>,
        /// How many.
        most: usize,
    },
    /// The supervisor did not take the event.
    Refused(SendError),
}

impl AddError {
    /// A stable name of the error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "CHILD_TAKEN",
            Self::BadId { .. } => "CHILD_BAD_ID",
            Self::Full { .. } => "CHILD_FULL",
            Self::Refused(error) => error.code(),
        }
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { path } => write!(f, "{path} exists already. Remove it and wait until it has left"),
            Self::BadId { id } => write!(f, "{id:?} is no id of a child: 1 to 100 characters without /"),
            Self::Full { path, most } => write!(f, "{path} has {most} children, the most there may be. Remove one"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AddError {}

/// The children's specifications, kept beside the supervisor so that children added at run time survive its restart.
#[derive(Default)]
struct Roll {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_order: BTreeMap<u64, Entry>,
    orders: BTreeMap<String, u64>,
    next: u64,
}

#[derive(Clone)]
struct Entry {
    spec: Arc<ChildSpec>,
    child: Arc<dyn Child>,
    added_at_run_time: bool,
}

impl Roll {
    fn get(&self, id: &str) -> Option<Entry> {
        let entries = lock(&self.entries);
        entries.by_order.get(entries.orders.get(id)?).cloned()
    }

    fn remove(&self, id: &str) -> Option<Entry> {
        let mut entries = lock(&self.entries);
        let order = entries.orders.remove(id)?;
        entries.by_order.remove(&order)
    }

    fn ids(&self) -> Vec<String> {
        lock(&self.entries).by_order.values().map(|entry| entry.spec.id.clone()).collect()
    }

    fn add(
        &self,
        context: &Context,
        supervisor: &Arc<str>,
        spec: ChildSpec,
        added_at_run_time: bool,
    ) -> Result<Entry, AddError> {
        let path: Arc<str> = format!("{supervisor}/{}", spec.id).into();
        if spec.id.is_empty() || spec.id.chars().count() > 100 || spec.id.contains('/') {
            return Err(AddError::BadId { id: spec.id.chars().take(100).collect() });
        }
        let mut entries = lock(&self.entries);
        if entries.orders.contains_key(&spec.id) {
            return Err(AddError::Taken { path });
        }
        if entries.by_order.len() >= SUPERVISOR_CHILDREN_MAX {
            return Err(AddError::Full { path: supervisor.clone(), most: SUPERVISOR_CHILDREN_MAX });
        }
        let order = entries.next;
        entries.next += 1;
        let child = (spec.seat)(context, path, Some(supervisor.clone()), order);
        let entry = Entry { spec: Arc::new(spec), child, added_at_run_time };
        entries.orders.insert(entry.spec.id.clone(), order);
        entries.by_order.insert(order, entry.clone());
        Ok(entry)
    }
}

impl Annex for Roll {
    fn clear(&self) {
        // Dropped outside of the lock: a child's factory may own anything.
        let entries = std::mem::take(&mut *lock(&self.entries));
        drop(entries);
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A handle of a supervisor, through which children come and go.
#[derive(Clone)]
pub struct SupervisorHandle {
    handle: Handle<Supervision>,
    roll: Arc<Roll>,
}

impl fmt::Debug for SupervisorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SupervisorHandle({})", self.handle.path())
    }
}

impl SupervisorHandle {
    fn to(handle: Handle<Supervision>, directory: &Directory) -> Option<Self> {
        let roll = directory.annex(handle.path(), Arc::<Roll>::default)?;
        Some(Self { handle, roll })
    }

    /// The supervisor at `path`.
    #[must_use]
    pub fn find(directory: &Directory, path: &str) -> Option<Self> {
        Self::to(directory.find(path)?, directory)
    }

    /// The supervisor's path.
    #[must_use]
    pub fn path(&self) -> &Arc<str> {
        self.handle.path()
    }

    /// The ids of its children in the order of starting, with those that are on their way in or out.
    #[must_use]
    pub fn children(&self) -> Vec<String> {
        self.roll.ids()
    }

    /// Adds a child, which starts after all others. Its handle is found in the directory from now on.
    pub fn add(&self, spec: ChildSpec) -> Result<(), AddError> {
        let handle = &self.handle;
        let down = || AddError::Refused(SendError::Down { path: handle.path().clone() });
        let directory = handle.directory().ok_or_else(down)?;
        if !handle.is_up() {
            return Err(down());
        }
        let context = Context {
            clock: handle.clock().clone(),
            entropy: handle.entropy().clone(),
            directory,
            node: handle.slot().node.clone(),
        };
        let entry = self.roll.add(&context, handle.path(), spec, true)?;
        let (id, rule) = (entry.spec.id.clone(), entry.spec.rule);
        handle.send(Event::Add { id: id.clone(), rule }).map_err(|error| {
            self.roll.remove(&id);
            context.directory.leave(entry.child.occupant().path(), false);
            AddError::Refused(error)
        })
    }

    /// Adds an actor and returns its handle. States that are sent before it runs wait for it.
    pub fn add_actor<B, P, F>(&self, id: &str, restart: Restart, make: F) -> Result<Handle<B, P::Reply>, AddError>
    where
        B: Behavior,
        P: Performer<B>,
        F: Fn(&Seat<B, P::Reply>) -> Result<(B, P), String> + Send + Sync + 'static,
    {
        self.add(ChildSpec::actor(id, restart, make))?;
        let path = format!("{}/{id}", self.path());
        let found = self.handle.directory().and_then(|directory| directory.find(&path));
        found.ok_or(AddError::Refused(SendError::Down { path: path.into() }))
    }

    /// Removes the child `id`, which is stopped first; without one of that id, nothing happens.
    pub fn remove(&self, id: &str) -> Result<(), SendError> {
        self.handle.send(Event::Remove { id: id.to_owned() })
    }
}

/// Performs what the behavior `supervision` decides.
pub(crate) struct Children {
    context: Context,
    roll: Arc<Roll>,
    /// The runs of children that have been asked to start and have not ended, with the child's id.
    running: BTreeMap<u64, String>,
    /// The runs that have ended, as the children's slots report.
    ended: Arc<Ended>,
}

impl Children {
    /// The behavior and performer of a supervisor with `initial` children, and those that its last incarnation was given.
    fn assemble(
        context: &Context,
        path: &Arc<str>,
        roll: Arc<Roll>,
        initial: Vec<ChildSpec>,
    ) -> Result<(Supervision, Self), String> {
        let last = std::mem::take(&mut *lock(&roll.entries)).by_order;
        let taken: BTreeSet<String> = initial.iter().map(|spec| spec.id.clone()).collect();
        let added = last.values().filter(|entry| entry.added_at_run_time && !taken.contains(&entry.spec.id));
        let added: Vec<ChildSpec> = added.map(|entry| ChildSpec::clone(&entry.spec)).collect();
        let mut seats = Vec::new();
        for (specs, added_at_run_time) in [(initial, false), (added, true)] {
            for spec in specs {
                let entry = roll.add(context, path, spec, added_at_run_time).map_err(|error| error.to_string())?;
                seats.push((entry.spec.id.clone(), entry.spec.rule));
            }
        }
        for gone in last.into_values().filter(|entry| roll.get(&entry.spec.id).is_none()) {
            context.directory.leave(gone.child.occupant().path(), false);
        }
        let children = Self { context: context.clone(), roll, running: BTreeMap::new(), ended: Arc::default() };
        Ok((Supervision::new(seats), children))
    }

    fn start(&mut self, id: String, run: u64, me: &Handle<Supervision>) {
        self.running.insert(run, id.clone());
        let Some(cell) = me.slot().cell() else { return };
        let launching = self.roll.get(&id).ok_or_else(|| "it was removed".to_owned()).and_then(|entry| {
            catch_unwind(AssertUnwindSafe(|| entry.child.launch(cell, Report { run, ended: self.ended.clone() })))
                .unwrap_or_else(|panic| Err(format!("making it: {}", panic_text(&*panic))))
        });
        let back = me.clone();
        let outcome = launching.and_then(|launching| {
            let (id, back) = (id.clone(), back.clone());
            let started = async move {
                let event = match launching.await {
                    Ok(()) => Event::Started { id, run },
                    Err(error) => Event::Exited { id, run, exit: Exit::Failed(error) },
                };
                // A supervisor that is gone needs no answer; its child has ended with it.
                let _ = back.send(event);
            };
            me.attend_briefly(started).map_err(|error| error.to_string())
        });
        if let Err(error) = outcome {
            self.running.remove(&run);
            let _ = back.send(Event::Exited { id, run, exit: Exit::Failed(error) });
        }
    }

    fn forget(&mut self, id: &str, exit: &Exit) {
        if let Some(entry) = self.roll.remove(id) {
            let failed = !matches!(exit, Exit::Normal);
            self.context.directory.leave(entry.child.occupant().path(), failed);
        }
    }

    fn path_of(&self, id: &str) -> Option<Arc<str>> {
        self.roll.get(id).map(|entry| entry.child.occupant().path().clone())
    }
}

/// The key of the one timer for the child that is stopping; only one is at a time.
const OVERDUE: u64 = 0;

fn set(me: &Handle<Supervision>, at: Moment, key: u64, event: Event) {
    if let Err(error) = me.after(at, key, event) {
        me.fail(error.to_string());
    }
}

impl Performer<Supervision> for Children {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Handle<Supervision>) {
        match effect {
            Effect::Start { id, run } => self.start(id, run, me),
            Effect::Stop { id, .. } => {
                if let Some(entry) = self.roll.get(&id) {
                    entry.child.occupant().ask_to_stop();
                }
            }
            Effect::Kill { id, .. } => {
                if let Some(path) = self.path_of(&id) {
                    tracing::warn!(node = %self.context.node, path = %path, "actor did not stop in time, killed");
                    self.context.directory.kill_under(&path);
                }
            }
            Effect::Restart { id, run, exit, backoff, at } => {
                self.running.remove(&run);
                if let Some(entry) = self.roll.get(&id) {
                    let child = entry.child.occupant();
                    tracing::warn!(node = %self.context.node, path = %child.path(), ?exit, ?backoff, "actor restarts");
                    child.note_restart(&exit, backoff);
                }
                set(me, at, run, Event::Due { id, run });
            }
            Effect::OverdueAt { id, run, at } => set(me, at, OVERDUE, Event::Overdue { id, run }),
            Effect::Forget { id, exit } => self.forget(&id, &exit),
            Effect::Ready => me.ready(),
            Effect::Finish => me.stop(),
            Effect::FailUpwards { reason } => me.fail(reason),
        }
    }

    fn first(&mut self, _: &Handle<Supervision>) -> Option<Event> {
        Some(Event::Begin)
    }

    fn says_when_ready(&self) -> bool {
        true
    }

    fn farewell(&self) -> Option<Event> {
        Some(Event::Stop)
    }

    fn children_ended(&mut self) -> Vec<Event> {
        let ended = self.ended.take().into_iter();
        let known = ended.filter_map(|(run, exit)| Some((self.running.remove(&run)?, run, exit)));
        known.map(|(id, run, exit)| Event::Exited { id, run, exit }).collect()
    }

    fn abandon(&mut self) {
        // Where supervision did its work, nobody is left. ractor would kill the rest in the order of a hash map.
        if std::mem::take(&mut self.running).is_empty() {
            return;
        }
        let entries: Vec<Entry> = lock(&self.roll.entries).by_order.values().rev().cloned().collect();
        for entry in entries {
            self.context.directory.kill_under(entry.child.occupant().path());
        }
    }
}

#[cfg(test)]
mod tests;
