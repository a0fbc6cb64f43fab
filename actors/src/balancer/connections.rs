//! The open connections of the balancer: counted by node when they are led there, ended when their primary is none any
//! more. Connections read what was decided here, so that no actor stands in their way.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
};

use postroad_cluster::balancer::database::{
    choice::Target,
    routing::{Load, NoNode, Routing},
    settings::Port,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::Notify, task::AbortHandle};

use crate::directory::lock;

/// What passed a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Connections that were led to a node.
    pub passed: u64,
    /// Connections for which there was none.
    pub refused: u64,
}

/// What is open to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Through the write port.
    pub rw: u64,
    /// Through the read port.
    pub ro: u64,
}

impl Counts {
    const fn all(self) -> u64 {
        self.rw + self.ro
    }

    fn of(&mut self, port: Port) -> &mut u64 {
        match port {
            Port::Rw => &mut self.rw,
            Port::Ro => &mut self.ro,
        }
    }
}

/// An open connection as the simulation's checks and tests see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// By which port it came.
    pub port: Port,
    /// Where it was led.
    pub target: Arc<Target>,
    /// The generation of that choice.
    pub generation: u64,
}

/// A connection that was accepted.
#[derive(Default)]
struct Open {
    /// Tells it from others in the same place.
    serial: u64,
    /// Its task, once that is known here.
    task: Option<AbortHandle>,
    bound: Option<Bound>,
    /// Bytes may flow: it counts as open to its node for good or bad.
    confirmed: bool,
    /// It is to end as soon as its task is known.
    ending: bool,
}

impl Open {
    /// Where it was led, if bytes may flow there.
    const fn flows(&self) -> Option<&Bound> {
        if self.confirmed { self.bound.as_ref() } else { None }
    }

    /// Ends it, with a reset.
    fn end(&mut self) {
        self.ending = true;
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[derive(Default)]
struct OfNode {
    counts: Counts,
    /// The node's last answer and how much was open when it came.
    answer: u64,
    counted: u64,
}

/// Connections in places that are used again, so that thousands of short ones cost no more than a look each.
#[derive(Default)]
struct Slots {
    all: Vec<Option<Open>>,
    free: Vec<usize>,
    /// Connections so far.
    last: u64,
}

impl Slots {
    const fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    fn add(&mut self) -> (usize, u64) {
        self.last += 1;
        let open = Some(Open { serial: self.last, ..Open::default() });
        let number = self.free.pop().unwrap_or(self.all.len());
        match self.all.get_mut(number) {
            Some(slot) => *slot = open,
            None => self.all.push(open),
        }
        (number, self.last)
    }

    fn get(&mut self, number: usize) -> Option<&mut Open> {
        self.all.get_mut(number)?.as_mut()
    }

    fn remove(&mut self, number: usize) -> Option<Open> {
        let open = self.all.get_mut(number)?.take()?;
        self.free.push(number);
        if self.len() == 0 {
            // What a rush of connections has taken is given back.
            (self.all, self.free) = (Vec::new(), Vec::new());
        }
        Some(open)
    }

    fn iter(&self) -> impl Iterator<Item = &Open> {
        self.all.iter().flatten()
    }
}

/// Whether bytes of a write connection may flow to another node than `but`.
fn writes_elsewhere(open: &Open, but: Option<&str>) -> bool {
    open.flows().is_some_and(|bound| bound.port == Port::Rw && Some(bound.target.node.as_str()) != but)
}

#[derive(Default)]
struct Inner {
    routing: Routing,
    /// The targets of the routing, shared by all that are led there.
    targets: BTreeMap<String, Arc<Target>>,
    slots: Slots,
    nodes: BTreeMap<String, OfNode>,
    last_reader: Option<Arc<Target>>,
    rw: Totals,
    ro: Totals,
}

impl Inner {
    const fn totals(&mut self, port: Port) -> &mut Totals {
        match port {
            Port::Rw => &mut self.rw,
            Port::Ro => &mut self.ro,
        }
    }

    /// Shares a target with all that are led there.
    fn share(&mut self, target: Target) -> Arc<Target> {
        let shared = Arc::new(target);
        self.targets.insert(shared.node.clone(), Arc::clone(&shared));
        shared
    }

    /// A connection was led to the node, and counts there.
    fn count(&mut self, port: Port, target: &Target) {
        match self.nodes.get_mut(&target.node) {
            Some(of) => *of.counts.of(port) += 1,
            None => *self.nodes.entry(target.node.clone()).or_default().counts.of(port) += 1,
        }
    }

    /// It counts there no more.
    fn discount(&mut self, bound: &Bound) {
        let node = &bound.target.node;
        let unused = self.nodes.get_mut(node).is_some_and(|of| {
            let count = of.counts.of(bound.port);
            *count = count.saturating_sub(1);
            of.counted = of.counted.min(of.counts.all());
            of.counts.all() == 0
        });
        // Nodes that left the list are forgotten with their last connection.
        let led = |target: &Target| target.node == *node;
        let listed =
            self.routing.write.as_ref().is_ok_and(led) || self.routing.readers.iter().any(|reader| led(&reader.target));
        if unused && !listed {
            self.nodes.remove(node);
        }
    }
}

/// The open connections of one balancer.
#[derive(Default)]
pub struct Connections {
    inner: Mutex<Inner>,
    capacity: usize,
    freed: Notify,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connections({} open)", lock(&self.inner).slots.len())
    }
}

impl Connections {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// How many there may be.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// New connections go by this from now on.
    pub(super) fn route(&self, routing: Routing) {
        let mut inner = lock(&self.inner);
        for reader in &routing.readers {
            let of = inner.nodes.entry(reader.target.node.clone()).or_default();
            if of.answer != reader.answer {
                of.answer = reader.answer;
                of.counted = of.counts.all();
            }
        }
        inner.targets.clear();
        inner.routing = routing;
    }

    /// Ends the write connections to all nodes but `but`, with a reset; returns how many.
    pub(super) fn close_writes(&self, but: Option<&str>) -> usize {
        let mut inner = lock(&self.inner);
        let old = inner.slots.all.iter_mut().flatten().filter(|open| writes_elsewhere(open, but));
        old.map(Open::end).count()
    }

    /// What passed each port: rw, ro.
    pub fn totals(&self) -> (Totals, Totals) {
        let inner = lock(&self.inner);
        (inner.rw, inner.ro)
    }

    /// What is open to each node.
    pub fn counts(&self) -> BTreeMap<String, Counts> {
        let inner = lock(&self.inner);
        inner.nodes.iter().map(|(node, of)| (node.clone(), of.counts)).filter(|(_, counts)| counts.all() > 0).collect()
    }

    /// Write connections that are still open to what is no longer the primary (DB-22).
    pub fn old_writes(&self) -> usize {
        let inner = lock(&self.inner);
        let primary = inner.routing.write.as_ref().ok().map(|target| target.node.as_str());
        inner.slots.iter().filter(|open| writes_elsewhere(open, primary)).count()
    }

    /// The connections over which bytes may flow.
    pub fn bound(&self) -> Vec<Bound> {
        lock(&self.inner).slots.iter().filter_map(Open::flows).cloned().collect()
    }

    /// The last decision.
    pub fn routing(&self) -> Routing {
        lock(&self.inner).routing.clone()
    }

    /// The wait for room for another connection; none where there is room.
    pub(super) fn room(&self) -> Option<impl Future<Output = ()> + '_> {
        if self.has_room() {
            return None;
        }
        Some(async {
            loop {
                let mut freed = pin!(self.freed.notified());
                // Before the look, so that what is freed right after it is heard of.
                freed.as_mut().enable();
                if self.has_room() {
                    return;
                }
                freed.await;
            }
        })
    }

    fn has_room(&self) -> bool {
        lock(&self.inner).slots.len() < self.capacity
    }

    /// Runs the task of a connection, which is given its place and takes room until it gives that back.
    pub(super) fn spawn<T>(self: &Arc<Self>, task: impl FnOnce(Place) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let (number, serial) = lock(&self.inner).slots.add();
        let running = tokio::spawn(task(Place { table: Arc::clone(self), number }));
        // One that has already ended has given its place back, and another may have it.
        if let Some(open) = lock(&self.inner).slots.get(number).filter(|open| open.serial == serial) {
            open.task = Some(running.abort_handle());
            if open.ending {
                running.abort();
            }
        }
    }

    /// Ends every connection at once, with a reset: the balancer stops.
    pub(super) fn abort(&self) {
        lock(&self.inner).slots.all.iter_mut().flatten().for_each(Open::end);
    }
}

/// The place that a connection has until this is dropped.
pub(super) struct Place {
    table: Arc<Connections>,
    number: usize,
}

impl Place {
    /// Chooses a node that was not `tried`; the choice counts as open from now on, so that a burst spreads (DB-4). One
    /// that was made before counts no more.
    pub(super) fn choose(&self, port: Port, tried: &BTreeSet<String>) -> Result<Arc<Target>, NoNode> {
        let mut guard = lock(&self.table.inner);
        let inner = &mut *guard;
        if let Some(before) = inner.slots.get(self.number).and_then(|open| open.bound.take()) {
            inner.discount(&before);
        }
        let nodes = &inner.nodes;
        let load = |node: &str| {
            let of = nodes.get(node);
            let open = of.map_or(0, |of| of.counts.all());
            Load { open, since: open.saturating_sub(of.map_or(0, |of| of.counted)) }
        };
        let last = inner.last_reader.as_ref().map(|target| target.node.as_str());
        let target = match port {
            Port::Rw => inner.routing.choose_write(tried)?,
            Port::Ro => inner.routing.choose_read(load, last, tried)?,
        };
        let target = match inner.targets.get(&target.node) {
            Some(known) if **known == *target => Arc::clone(known),
            _ => {
                let target = target.clone();
                inner.share(target)
            }
        };
        if port == Port::Ro {
            inner.last_reader = Some(Arc::clone(&target));
        }
        inner.count(port, &target);
        let generation = inner.routing.generation;
        if let Some(open) = inner.slots.get(self.number) {
            open.bound = Some(Bound { port, target: Arc::clone(&target), generation });
        }
        Ok(target)
    }

    /// Whether the last choice still holds; from here on the connection is ended if it ceases to (DB-22).
    pub(super) fn confirm(&self) -> bool {
        let mut guard = lock(&self.table.inner);
        let inner = &mut *guard;
        let generation = inner.routing.generation;
        let Some(open) = inner.slots.get(self.number) else { return false };
        let Some(bound) = open.bound.as_mut() else { return false };
        if !inner.routing.still_holds(bound.port, &bound.target) {
            return false;
        }
        bound.generation = generation;
        open.confirmed = true;
        let port = bound.port;
        inner.totals(port).passed += 1;
        true
    }

    /// Counts a connection for which there was no node.
    pub(super) fn refuse(&self, port: Port) {
        let mut inner = lock(&self.table.inner);
        inner.totals(port).refused += 1;
        if let Some(bound) = inner.slots.get(self.number).and_then(|open| open.bound.take()) {
            inner.discount(&bound);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let full = {
            let mut inner = lock(&self.table.inner);
            let full = inner.slots.len() >= self.table.capacity;
            if let Some(bound) = inner.slots.remove(self.number).and_then(|open| open.bound) {
                inner.discount(&bound);
            }
            full
        };
        if full {
            // Both ports may wait.
            self.table.freed.notify_waiters();
        }
    }
}
