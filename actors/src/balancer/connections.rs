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
    pub target: Target,
    /// The generation of that choice.
    pub generation: u64,
}

struct Open {
    bound: Bound,
    /// Bytes may flow: it counts as open to its node for good or bad.
    confirmed: bool,
    end: Arc<Notify>,
}

#[derive(Default)]
struct OfNode {
    counts: Counts,
    /// The node's last answer and how much was open when it came.
    answer: u64,
    counted: u64,
}

#[derive(Default)]
struct Inner {
    routing: Routing,
    open: BTreeMap<u64, Open>,
    nodes: BTreeMap<String, OfNode>,
    last_reader: Option<String>,
    rw: Totals,
    ro: Totals,
    next: u64,
    tasks: BTreeMap<u64, Option<AbortHandle>>,
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
        write!(f, "Connections({} open)", lock(&self.inner).tasks.len())
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
        inner.routing = routing;
    }

    /// Ends the write connections to all nodes but `but`; returns how many.
    pub(super) fn close_writes(&self, but: Option<&str>) -> usize {
        let inner = lock(&self.inner);
        let old = inner.open.values().filter(|open| {
            open.confirmed && open.bound.port == Port::Rw && Some(open.bound.target.node.as_str()) != but
        });
        old.inspect(|open| open.end.notify_one()).count()
    }

    /// Chooses a node that was not `tried`; the choice counts as open from now on, so that a burst spreads (DB-4).
    pub(super) fn choose(self: &Arc<Self>, port: Port, tried: &BTreeSet<String>) -> Result<Ticket, NoNode> {
        let mut inner = lock(&self.inner);
        let load = |node: &str| {
            let of = inner.nodes.get(node);
            let open = of.map_or(0, |of| of.counts.all());
            Load { open, since: open.saturating_sub(of.map_or(0, |of| of.counted)) }
        };
        let target = match port {
            Port::Rw => inner.routing.choose_write(tried)?.clone(),
            Port::Ro => inner.routing.choose_read(load, inner.last_reader.as_deref(), tried)?.clone(),
        };
        if port == Port::Ro {
            inner.last_reader = Some(target.node.clone());
        }
        *inner.nodes.entry(target.node.clone()).or_default().counts.of(port) += 1;
        let number = inner.next;
        inner.next += 1;
        let end = Arc::new(Notify::new());
        let bound = Bound { port, target: target.clone(), generation: inner.routing.generation };
        inner.open.insert(number, Open { bound, confirmed: false, end: Arc::clone(&end) });
        Ok(Ticket { table: Arc::clone(self), number, port, target, end })
    }

    /// Counts a connection for which there was no node.
    pub(super) fn refuse(&self, port: Port) {
        let mut inner = lock(&self.inner);
        match port {
            Port::Rw => inner.rw.refused += 1,
            Port::Ro => inner.ro.refused += 1,
        }
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
        let primary = inner.routing.write.as_ref().ok().map(|target| &target.node);
        let old =
            |open: &&Open| open.confirmed && open.bound.port == Port::Rw && Some(&open.bound.target.node) != primary;
        inner.open.values().filter(old).count()
    }

    /// The connections over which bytes may flow.
    pub fn bound(&self) -> Vec<Bound> {
        let inner = lock(&self.inner);
        inner.open.values().filter(|open| open.confirmed).map(|open| open.bound.clone()).collect()
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
        lock(&self.inner).tasks.len() < self.capacity
    }

    /// Runs the task of a connection; it takes room until it ends.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let number = {
            let mut inner = lock(&self.inner);
            let number = inner.next;
            inner.next += 1;
            inner.tasks.insert(number, None);
            number
        };
        let place = Place { table: Arc::clone(self), number };
        let task = tokio::spawn(async move {
            let _place = place;
            task.await;
        });
        // A task that has already ended has left.
        if let Some(listed) = lock(&self.inner).tasks.get_mut(&number) {
            *listed = Some(task.abort_handle());
        }
    }

    /// Ends every connection at once, with a reset: the balancer stops.
    pub(super) fn abort(&self) {
        let tasks: Vec<_> = lock(&self.inner).tasks.values().flatten().cloned().collect();
        for task in tasks {
            task.abort();
        }
    }
}

/// The room that a connection's task takes.
struct Place {
    table: Arc<Connections>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.table.inner).tasks.remove(&self.number);
        // Both ports may wait.
        self.table.freed.notify_waiters();
    }
}

/// A connection that was led to a node; it counts there until this is dropped.
pub(super) struct Ticket {
    table: Arc<Connections>,
    number: u64,
    port: Port,
    pub(super) target: Target,
    end: Arc<Notify>,
}

impl Ticket {
    /// Whether the choice still holds; from here on the connection is ended if it ceases to (DB-22).
    pub(super) fn confirm(&self) -> bool {
        let mut inner = lock(&self.table.inner);
        let generation = inner.routing.generation;
        let holds = inner.routing.still_holds(self.port, &self.target);
        let Some(open) = inner.open.get_mut(&self.number).filter(|_| holds) else { return false };
        open.confirmed = true;
        open.bound.generation = generation;
        match self.port {
            Port::Rw => inner.rw.passed += 1,
            Port::Ro => inner.ro.passed += 1,
        }
        true
    }

    /// Completes when the connection is to end.
    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut inner = lock(&self.table.inner);
        inner.open.remove(&self.number);
        let unused = inner.nodes.get_mut(&self.target.node).is_some_and(|of| {
            let count = of.counts.of(self.port);
            *count = count.saturating_sub(1);
            of.counted = of.counted.min(of.counts.all());
            of.counts.all() == 0
        });
        // Nodes that left the list are forgotten with their last connection.
        if unused && !inner.routing.readers.iter().any(|reader| reader.target.node == self.target.node) {
            inner.nodes.remove(&self.target.node);
        }
    }
}
