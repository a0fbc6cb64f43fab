//! Where the actors of one node are found, by path, and the context that every one of them is given. Nothing here is
//! global to the process: a simulation has one directory for each node.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use postroad_cluster::{
    behavior::Behavior,
    limits::{POST_MORTEMS_MAX, TRACE_STEPS_MAX},
    recording::RecordingFile,
    supervision::Exit,
    time::{Clock, Entropy, Span},
    trace::TraceId,
};

use crate::{
    handle::{Handle, Slot},
    inspect::{ActorRow, ActorView, JournalView, StateView},
    journal::ReplayError,
    mailbox::pulse::SECONDS,
    trace::Times,
};

/// Locks `mutex`. Nothing that can panic runs under the locks of this crate, so a poisoned one is as good as any.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What every actor of a node gets: time, chance, and the other actors.
#[derive(Clone, Debug)]
pub struct Context {
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// The node's source of chance.
    pub entropy: Arc<dyn Entropy>,
    /// The node's actors.
    pub directory: Directory,
    /// The node's name, for logs.
    pub node: Arc<str>,
}

impl Context {
    /// The context of a node without actors yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, node: &str) -> Self {
        Self { clock, entropy, directory: Directory::default(), node: node.into() }
    }
}

/// What the directory and supervisors do with an actor of whatever behavior.
pub(crate) trait Occupant: Send + Sync {
    fn path(&self) -> &Arc<str>;
    fn view(&self, place: &Place) -> ActorView;
    fn row(&self, supervisor: Option<Arc<str>>, children: usize, seconds: usize) -> ActorRow;
    fn state(&self) -> Option<StateView>;
    fn state_at(&self, number: u64) -> Result<serde_json::Value, ReplayError>;
    fn journal(&self, most: usize) -> Vec<JournalView>;
    /// The events in its journal that are part of a trace, oldest first; `times` takes the times of all.
    fn traced(&self, trace: TraceId, most: usize, times: &mut Times) -> Vec<JournalView>;
    /// The events whose states can be computed again, first and last.
    fn known(&self) -> Option<(u64, u64)>;
    fn recording(&self, to: u64) -> Result<RecordingFile, ReplayError>;
    /// Adds the actor's turns of each of the last seconds.
    fn add_turns(&self, sums: &mut [u32]);
    /// How its last incarnation ended, if it did.
    fn exit(&self) -> Option<Exit>;
    fn ask_to_stop(&self);
    /// Lets it fail before its next event; false if it does not run.
    fn fail(&self, reason: &str) -> bool;
    /// Ends it at once: no further event, effect, timer or task of it runs.
    fn kill(&self);
    fn note_restart(&self, exit: &Exit, backoff: Span);
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What a supervisor keeps beside its slot; it must let go of everything when the supervisor leaves for good.
pub(crate) trait Annex: Any + Send + Sync {
    fn clear(&self);
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Where an actor stands in the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) supervisor: Option<Arc<str>>,
    pub(crate) order: u64,
    /// Its children in the order of starting.
    pub(crate) children: BTreeMap<u64, Arc<str>>,
}

struct Record {
    occupant: Arc<dyn Occupant>,
    place: Place,
    annex: Option<Arc<dyn Annex>>,
}

#[derive(Default)]
struct Table {
    records: BTreeMap<Arc<str>, Record>,
    /// Failed actors that will not come back, oldest first.
    post_mortems: VecDeque<Arc<str>>,
}

#[derive(Default)]
pub(crate) struct Inner {
    table: Mutex<Table>,
    fenced: Arc<AtomicBool>,
    bare: AtomicBool,
    /// The last turns of traces that somebody has begun, with the actors' paths, oldest first: journals forget within a
    /// minute what busy actors did.
    begun: Mutex<VecDeque<(Arc<str>, JournalView)>>,
}

/// The actors of one node by path. A path, such as `relay/session-3`, is the supervisor's path and the child's id, and
/// stays through restarts.
#[derive(Clone, Default)]
pub struct Directory(Arc<Inner>);

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.0.table).records.keys()).finish()
    }
}

impl Directory {
    /// The handle of the actor at `path`, whichever incarnation it is in; none if nobody of that behavior and those
    /// replies is there.
    #[must_use]
    pub fn find<B: Behavior, R: Send + 'static>(&self, path: &str) -> Option<Handle<B, R>> {
        let occupant = lock(&self.0.table).records.get(path)?.occupant.clone();
        occupant.as_any().downcast::<Slot<B, R>>().ok().map(Handle::to)
    }

    /// Every actor, by path.
    #[must_use]
    pub fn inspect(&self) -> Vec<ActorView> {
        let records: Vec<_> = {
            let table = lock(&self.0.table);
            table.records.values().map(|record| (record.occupant.clone(), record.place.clone())).collect()
        };
        records.into_iter().map(|(occupant, place)| occupant.view(&place)).collect()
    }

    /// Every actor as a row, by path, with rates over the last `seconds`, 1 to 59.
    #[must_use]
    pub fn rows(&self, seconds: usize) -> Vec<ActorRow> {
        let look = |record: &Record| {
            let place = &record.place;
            (record.occupant.clone(), place.supervisor.clone(), place.children.len())
        };
        let records: Vec<_> = lock(&self.0.table).records.values().map(look).collect();
        records.into_iter().map(|(occupant, above, children)| occupant.row(above, children, seconds)).collect()
    }

    /// One actor.
    #[must_use]
    pub fn view(&self, path: &str) -> Option<ActorView> {
        let (occupant, place) = {
            let table = lock(&self.0.table);
            let record = table.records.get(path)?;
            (record.occupant.clone(), record.place.clone())
        };
        Some(occupant.view(&place))
    }

    /// The last published state of the actor at `path`; it is there also while the actor is stuck or dead.
    #[must_use]
    pub fn state(&self, path: &str) -> Option<StateView> {
        self.occupant(path)?.state()
    }

    /// The state of the actor at `path` after its event `number`, computed again from its journal.
    #[must_use]
    pub fn state_at(&self, path: &str, number: u64) -> Option<Result<serde_json::Value, ReplayError>> {
        Some(self.occupant(path)?.state_at(number))
    }

    /// The newest `most` events of the actor at `path`, oldest first.
    #[must_use]
    pub fn journal(&self, path: &str, most: usize) -> Option<Vec<JournalView>> {
        Some(self.occupant(path)?.journal(most))
    }

    /// The events of all actors that are part of a trace, with the actors' paths, at most `most`; and how the node's two
    /// clocks stood to each other meanwhile.
    #[must_use]
    pub fn traced(&self, trace: TraceId, most: usize) -> (Vec<(Arc<str>, JournalView)>, Times) {
        let occupants: Vec<_> = lock(&self.0.table).records.values().map(|record| record.occupant.clone()).collect();
        let (mut found, mut times) = (Vec::new(), Times::default());
        for occupant in occupants {
            let events = occupant.traced(trace, most.saturating_sub(found.len()), &mut times);
            found.extend(events.into_iter().map(|event| (occupant.path().clone(), event)));
        }
        let begun = lock(&self.0.begun);
        for (path, event) in begun.iter().filter(|(_, event)| event.trace == trace) {
            let known = found.iter().any(|(of, at)| of == path && at.number == event.number);
            if !known && found.len() < most {
                found.push((path.clone(), event.clone()));
            }
        }
        drop(begun);
        (found, times)
    }

    /// The events of the actor at `path` whose states can be computed again, first and last.
    #[must_use]
    pub fn known(&self, path: &str) -> Option<(u64, u64)> {
        self.occupant(path)?.known()
    }

    /// What led the actor at `path` to its state after event `to`, for `simulations replay`.
    #[must_use]
    pub fn recording(&self, path: &str, to: u64) -> Option<Result<RecordingFile, ReplayError>> {
        Some(self.occupant(path)?.recording(to))
    }

    /// Turns of all actors together in each of the last seconds, oldest first.
    #[must_use]
    pub fn turns(&self) -> Vec<u32> {
        let occupants: Vec<_> = lock(&self.0.table).records.values().map(|record| record.occupant.clone()).collect();
        let mut sums = vec![0; SECONDS - 1];
        for occupant in occupants {
            occupant.add_turns(&mut sums);
        }
        sums
    }

    /// Lets the actor at `path` fail with `reason`, so that its supervisor decides what follows; false if it does not run.
    #[must_use]
    pub fn fail(&self, path: &str, reason: &str) -> Option<bool> {
        Some(self.occupant(path)?.fail(reason))
    }

    /// A crash: from now on no actor of this node takes an event, performs an effect, sends, starts or is started. All
    /// are ended at once, and what they published stays readable.
    pub fn kill_all(&self) {
        self.0.fenced.store(true, Ordering::SeqCst);
        let (occupants, annexes): (Vec<_>, Vec<_>) = {
            let table = lock(&self.0.table);
            let annexes = table.records.values().filter_map(|record| record.annex.clone()).collect();
            (table.records.values().map(|record| record.occupant.clone()).collect(), annexes)
        };
        for occupant in occupants {
            occupant.kill();
        }
        for annex in annexes {
            annex.clear();
        }
    }

    /// Whether [`Directory::kill_all`] has been called.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.0.fenced.load(Ordering::SeqCst)
    }

    /// Actors that are made from now on count nothing, keep no journal and publish no state: what a benchmark compares
    /// with.
    pub fn leave_instruments_out(&self) {
        self.0.bare.store(true, Ordering::Relaxed);
    }

    /// Remembers a turn of a trace that somebody has begun.
    pub(crate) fn keep_begun(&self, path: &Arc<str>, turn: JournalView) {
        let mut begun = lock(&self.0.begun);
        if begun.len() >= TRACE_STEPS_MAX {
            begun.pop_front();
        }
        begun.push_back((path.clone(), turn));
    }

    pub(crate) fn is_bare(&self) -> bool {
        self.0.bare.load(Ordering::Relaxed)
    }

    pub(crate) fn fence(&self) -> Arc<AtomicBool> {
        self.0.fenced.clone()
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn upgrade(inner: &Weak<Inner>) -> Option<Self> {
        inner.upgrade().map(Self)
    }

    pub(crate) fn occupant(&self, path: &str) -> Option<Arc<dyn Occupant>> {
        lock(&self.0.table).records.get(path).map(|record| record.occupant.clone())
    }

    /// The slot at `path`, taken over from an actor of the same behavior that was there before, or `new`.
    pub(crate) fn settle<B: Behavior, R: Send + 'static>(
        &self,
        path: &Arc<str>,
        supervisor: Option<Arc<str>>,
        order: u64,
        new: impl FnOnce() -> Slot<B, R>,
    ) -> Arc<Slot<B, R>> {
        let mut table = lock(&self.0.table);
        table.post_mortems.retain(|dead| dead != path);
        let known = table.records.remove(path);
        let slot = known
            .as_ref()
            .and_then(|record| record.occupant.clone().as_any().downcast::<Slot<B, R>>().ok())
            .unwrap_or_else(|| Arc::new(new()));
        let last = known.as_ref().map(|record| record.place.clone()).unwrap_or_default();
        if let Some(parent) = supervisor.as_ref().and_then(|supervisor| table.records.get_mut(supervisor)) {
            if parent.place.children.get(&last.order).is_some_and(|child| child == path) {
                parent.place.children.remove(&last.order);
            }
            parent.place.children.insert(order, path.clone());
        }
        let annex = known.and_then(|record| record.annex);
        let place = Place { supervisor, order, children: last.children };
        table.records.insert(path.clone(), Record { occupant: slot.clone(), place, annex });
        slot
    }

    /// The annex of the actor at `path`, or `new`.
    pub(crate) fn annex<A: Annex>(&self, path: &str, new: impl FnOnce() -> Arc<A>) -> Option<Arc<A>> {
        let mut table = lock(&self.0.table);
        let record = table.records.get_mut(path)?;
        let known = record.annex.clone().and_then(|annex| annex.as_any().downcast::<A>().ok());
        Some(known.unwrap_or_else(|| {
            let annex = new();
            record.annex = Some(annex.clone());
            annex
        }))
    }

    /// Forgets the actor at `path` and all under it. A failed one stays readable for a while.
    pub(crate) fn leave(&self, path: &str, failed: bool) {
        let mut gone = Vec::new();
        let mut table = lock(&self.0.table);
        let under = format!("{path}/");
        let below: Vec<Arc<str>> = table
            .records
            .range::<str, _>((Bound::Included(under.as_str()), Bound::Unbounded))
            .map(|(path, _)| path.clone())
            .collect();
        for path in below.into_iter().take_while(|path| path.starts_with(&under)) {
            table.post_mortems.retain(|dead| *dead != path);
            gone.extend(table.records.remove(&path));
        }
        if let Some(record) = table.records.get_mut(path) {
            record.place.children.clear();
            let (supervisor, order) = (record.place.supervisor.clone(), record.place.order);
            if failed {
                let (path, annex) = (record.occupant.path().clone(), record.annex.take());
                annex.inspect(|annex| annex.clear());
                table.post_mortems.push_back(path);
            } else {
                gone.extend(table.records.remove(path));
            }
            if let Some(parent) = supervisor.and_then(|supervisor| table.records.get_mut(&supervisor)) {
                parent.place.children.remove(&order);
            }
        }
        while table.post_mortems.len() > POST_MORTEMS_MAX {
            if let Some(oldest) = table.post_mortems.pop_front() {
                gone.extend(table.records.remove(&oldest));
            }
        }
        drop(table);
        for annex in gone.into_iter().filter_map(|record| record.annex) {
            annex.clear();
        }
    }

    /// Kills the actor at `path` and all under it, the last started first.
    pub(crate) fn kill_under(&self, path: &str) {
        let (occupant, children) = {
            let table = lock(&self.0.table);
            let Some(record) = table.records.get(path) else { return };
            (record.occupant.clone(), record.place.children.values().rev().cloned().collect::<Vec<_>>())
        };
        for child in children {
            self.kill_under(&child);
        }
        occupant.kill();
    }
}
