//! Applications: flows with content that each position determines, opened, half-closed and reset at both ends.
//!
//! - [`flow`]: what is known of one flow, and its plan
//! - `ends`: its two ends, which write, read and compare

pub mod flow;

mod ends;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use postroad_transport::network::Network;
use rand::{SeedableRng, rngs::StdRng};
use tokio::{sync::Notify, task::AbortHandle, time::Instant};

use self::flow::{Flow, Plan};
use crate::{faults::host, network::SimNetwork, trace::Trace};

/// A link of the world: who consumes and who serves it.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The link's name.
    pub name: &'static str,
    /// The consumer's host.
    pub consumer: usize,
    /// The target's host.
    pub target: usize,
    /// The consumer's port.
    pub listen: u16,
    /// The target's port.
    pub port: u16,
}

/// The links of every world: each kind of host is an end, and two lead from and to one pair of nodes.
pub const ROUTES: [Route; 5] = [
    Route { name: "sql", consumer: 4, target: 0, listen: 5_000, port: 6_000 },
    Route { name: "web", consumer: 4, target: 3, listen: 5_001, port: 6_001 },
    Route { name: "logs", consumer: 1, target: 4, listen: 5_002, port: 6_002 },
    Route { name: "mail", consumer: 3, target: 2, listen: 5_003, port: 6_003 },
    Route { name: "back", consumer: 3, target: 4, listen: 5_004, port: 6_004 },
];

/// How long an application waits before it connects again.
const AGAIN: Duration = Duration::from_millis(300);

struct Shared {
    seed: u64,
    trace: Trace,
    slots: usize,
    flows: Mutex<BTreeMap<u64, Arc<Flow>>>,
    opened: AtomicU64,
    stopping: AtomicBool,
    stopped: Notify,
}

/// The applications of a world.
pub struct Workload {
    shared: Arc<Shared>,
    tasks: BTreeMap<usize, Vec<AbortHandle>>,
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workload {
    /// Applications that keep `slots` flows open; they run on the hosts that [`Workload::host_up`] names.
    #[must_use]
    pub fn new(seed: u64, slots: usize, trace: Trace) -> Self {
        let shared = Shared {
            seed,
            trace,
            slots,
            flows: Mutex::default(),
            opened: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            stopped: Notify::new(),
        };
        Self { shared: Arc::new(shared), tasks: BTreeMap::new() }
    }

    /// A host runs: its applications begin.
    pub fn host_up(&mut self, index: usize, network: &SimNetwork) {
        let tasks = self.tasks.entry(index).or_default();
        for route in ROUTES.iter().filter(|route| route.target == index) {
            let address = SocketAddr::new(host(index).ip(), route.port);
            let listening = listen(Arc::clone(&self.shared), network.clone(), address);
            tasks.push(tokio::spawn(listening).abort_handle());
        }
        for slot in 0..self.shared.slots {
            let route = ROUTES[slot % ROUTES.len()];
            if route.consumer == index {
                let using = use_slot(Arc::clone(&self.shared), network.clone(), slot, route);
                tasks.push(tokio::spawn(using).abort_handle());
            }
        }
    }

    /// A host is down: its applications are gone, and their flows are broken.
    pub fn host_down(&mut self, index: usize) {
        for task in self.tasks.remove(&index).unwrap_or_default() {
            task.abort();
        }
        self.break_flows(index);
    }

    /// The node of a host stops, so that the flows that end or begin there are broken, though applications go on.
    pub fn break_flows(&self, index: usize) {
        for flow in lock(&self.shared.flows).values() {
            if flow.route.consumer == index || flow.route.target == index {
                flow.with(|state| {
                    state.broken.get_or_insert_with(Instant::now);
                    if flow.route.consumer == index {
                        state.client_gone = true;
                    } else {
                        state.server_gone = true;
                    }
                });
            }
        }
    }

    /// From now on every flow ends: each consumer closes its half.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.stopped.notify_waiters();
    }

    /// How many flows it keeps open.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.slots
    }

    /// Every flow so far.
    #[must_use]
    pub fn flows(&self) -> Vec<Arc<Flow>> {
        lock(&self.shared.flows).values().cloned().collect()
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Waits at most for `span`, and less when the workload stops.
    async fn wait(&self, until: Instant) {
        let stopped = self.stopped.notified();
        tokio::pin!(stopped);
        stopped.as_mut().enable();
        if self.is_stopping() {
            return;
        }
        tokio::select! {
            biased;
            () = stopped => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    fn flow(&self, number: u64) -> Option<Arc<Flow>> {
        lock(&self.flows).get(&number).cloned()
    }
}

/// Keeps one flow open, one after another.
async fn use_slot(shared: Arc<Shared>, network: SimNetwork, slot: usize, route: Route) {
    let address = SocketAddr::new(host(route.consumer).ip(), route.listen);
    while !shared.is_stopping() {
        if let Ok(stream) = network.tcp_connect(address).await {
            let number = shared.opened.fetch_add(1, Ordering::SeqCst) + 1;
            let seed = shared.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let plan = Plan::draw(slot, &mut StdRng::seed_from_u64(seed));
            let flow = Arc::new(Flow::new(number, slot, route, plan));
            lock(&shared.flows).insert(number, Arc::clone(&flow));
            shared.trace.note(format_args!("flow {number} of {} opens: {}", route.name, flow.plan.ending.word()));
            ends::client(&shared, &flow, stream).await;
            let [up, down] = flow.with(|state| state.got);
            shared.trace.note(format_args!("flow {number} is over for its consumer: {up} up, {down} down"));
        }
        shared.wait(Instant::now() + AGAIN).await;
    }
}

/// Takes the connections of one target.
async fn listen(shared: Arc<Shared>, network: SimNetwork, address: SocketAddr) {
    let Ok(listener) = network.tcp_listen(address) else {
        return shared.trace.note(format_args!("nobody can listen on {address}"));
    };
    let mut serving = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = serving.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => { serving.spawn(ends::server(Arc::clone(&shared), stream)); }
                Err(_) => return,
            },
        }
    }
}
