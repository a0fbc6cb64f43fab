//! Open flows: each a task with counters, listed here so that people see them and revocations end them.
//!
//! - [`consumer`]: from an application's connection into a circuit
//! - [`target`]: from a circuit to the target
//! - `admission`: tunnels that relays admit ahead of need
//! - `opening`: which circuit takes a flow, and that it is connected once at most
//! - `closing`: how both ends of a circuit agree that it is empty
//! - `stream`: both halves of a stream, and its first frame
//! - [`trial`]: what the way between them carries, measured without the target

mod admission;
pub(crate) mod closing;
pub mod consumer;
mod opening;
mod stream;
pub mod target;
pub mod trial;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use postroad_cluster::{
    command::code,
    id::{Generation, LinkId, NodeId, TunnelId},
    limits::FLOWS_MAX,
    spread::Why,
};
use postroad_transport::{flow::FlowCounters, node_socket::CircuitKey};
use tokio::sync::Notify;

use crate::{
    directory::lock,
    fabric::{
        Fabric,
        figures::{End, RefusalCounts},
    },
};

/// What is known of an open flow.
#[derive(Clone, Debug)]
pub struct FlowView {
    /// Its tunnel; none at the consumer's end until a circuit serves it.
    pub tunnel: Option<TunnelId>,
    /// Its link.
    pub link: LinkId,
    /// The generation of the route that it was admitted for.
    pub generation: Generation,
    /// The node at the other end.
    pub peer: NodeId,
    /// Whether this node is the consumer's end.
    pub consumer: bool,
    /// The circuit that carries it; none until one serves it.
    pub circuit: Option<CircuitKey>,
    /// Why that one, at the consumer's end.
    pub why: Option<Why>,
    /// What it has carried.
    pub counters: Arc<FlowCounters>,
}

struct Open {
    view: FlowView,
    revoked: Arc<Notify>,
    task: Option<tokio::task::AbortHandle>,
}

/// The open flows of a node.
#[derive(Default)]
pub struct Flows {
    open: Mutex<BTreeMap<u64, Open>>,
    last: AtomicU64,
    ended: AtomicU64,
    /// Tunnels that were refused, here or by the other end.
    pub refusals: RefusalCounts,
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flows({} open)", self.len())
    }
}

/// A flow's place in the list; it leaves when this is dropped.
pub struct Listed {
    fabric: Arc<Fabric>,
    number: u64,
    revoked: Arc<Notify>,
}

impl Listed {
    /// A circuit serves the flow.
    pub(crate) fn served(&self, tunnel: TunnelId, circuit: CircuitKey, why: Why) {
        if let Some(open) = lock(&self.fabric.flows.open).get_mut(&self.number) {
            open.view = FlowView { tunnel: Some(tunnel), circuit: Some(circuit), why: Some(why), ..open.view.clone() };
        }
    }

    /// Completes when the flow's route was revoked.
    pub async fn revoked(&self) {
        self.revoked.notified().await;
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.fabric.flows.leave(self.number);
    }
}

impl Flows {
    /// How many are open.
    pub fn len(&self) -> usize {
        lock(&self.open).len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Flows that have ended.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// The open flows.
    pub fn views(&self) -> Vec<FlowView> {
        lock(&self.open).values().map(|open| open.view.clone()).collect()
    }

    /// How many are open on each circuit.
    pub fn by_circuit(&self) -> BTreeMap<CircuitKey, u64> {
        let mut count = BTreeMap::new();
        for circuit in lock(&self.open).values().filter_map(|flow| flow.view.circuit) {
            *count.entry(circuit).or_default() += 1;
        }
        count
    }

    /// Runs a flow's task and lists it for as long as the task holds its place. With [`FLOWS_MAX`] open it is not run:
    /// what it holds is dropped, and so reset.
    pub(crate) fn spawn<F, T>(fabric: &Arc<Fabric>, view: FlowView, task: F) -> bool
    where
        F: FnOnce(Listed) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        let flows = &fabric.flows;
        let revoked = Arc::new(Notify::new());
        let number = flows.last.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&flows.open);
        if open.len() >= FLOWS_MAX {
            flows.refusals.count(if view.consumer { End::Consumer } else { End::Target }, code::TOO_MANY);
            return false;
        }
        open.insert(number, Open { view, revoked: Arc::clone(&revoked), task: None });
        drop(open);
        let listed = Listed { fabric: Arc::clone(fabric), number, revoked };
        let handle = fabric.carriage.spawn(task(listed)).abort_handle();
        // A task that has already ended left the list.
        if let Some(listed) = lock(&flows.open).get_mut(&number) {
            listed.task = Some(handle);
        }
        true
    }

    /// Ends the flows of a link whose generation is below `live`; all of them without one.
    pub(crate) fn revoke(&self, link: LinkId, live: Option<Generation>) -> usize {
        let open = lock(&self.open);
        let revoked = open
            .values()
            .filter(|flow| flow.view.link == link && live.is_none_or(|live| flow.view.generation < live))
            .inspect(|flow| flow.revoked.notify_one());
        revoked.count()
    }

    /// Ends every flow at once, with a reset: the node stops.
    pub(crate) fn abort(&self) {
        let open = std::mem::take(&mut *lock(&self.open));
        for task in open.into_values().filter_map(|open| open.task) {
            task.abort();
        }
    }

    fn leave(&self, number: u64) {
        if lock(&self.open).remove(&number).is_some() {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}
