//! No connection is bound to an older epoch once a newer one was seen: neither an open one nor one that is made.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postroad_actors::balancer::connections::{Bound, Connections};
use postroad_cluster::balancer::database::{choice::Target, settings::Port};
use tokio::time::Instant;

use super::Findings;

const CHECK: &str = "balancer";

/// The epochs that one balancer's probes have told it, each with when the first answer of it came.
#[derive(Debug, Default)]
struct Seen {
    epochs: Vec<(Instant, u64)>,
}

impl Seen {
    /// The newest that was seen before now: what comes at this very moment is being decided about.
    fn newest(&self) -> u64 {
        let now = Instant::now();
        self.epochs.iter().rev().find(|(at, _)| *at < now).map_or(0, |(_, epoch)| *epoch)
    }
}

/// The check; clones are the same.
#[derive(Clone, Debug)]
pub struct BalancerCheck {
    seen: Arc<Vec<Mutex<Seen>>>,
    findings: Findings,
}

impl BalancerCheck {
    /// A check of so many balancers.
    #[must_use]
    pub fn new(balancers: usize, findings: Findings) -> Self {
        Self { seen: Arc::new((0..balancers).map(|_| Mutex::default()).collect()), findings }
    }

    fn of(&self, balancer: usize) -> MutexGuard<'_, Seen> {
        self.seen[balancer].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A probe of `balancer` has come back with that epoch.
    pub fn saw(&self, balancer: usize, epoch: u64) {
        let mut seen = self.of(balancer);
        if seen.epochs.last().is_none_or(|(_, newest)| *newest < epoch) {
            seen.epochs.push((Instant::now(), epoch));
        }
    }

    /// The newest epoch that `balancer` has seen.
    #[must_use]
    pub fn newest(&self, balancer: usize) -> u64 {
        self.of(balancer).newest()
    }

    /// Looks at what is open. A node that is the primary again bears the newest epoch, whatever it bore when the
    /// connection was led there.
    pub fn look(&self, balancer: usize, connections: &Connections) {
        let newest = self.newest(balancer);
        let primary = connections.routing().write.ok().filter(|target| target.epoch >= newest);
        let is_primary = |target: &Target| primary.as_ref().is_some_and(|primary| primary.node == target.node);
        let bound = connections.bound();
        let writes = bound.iter().filter(|bound| bound.port == Port::Rw);
        for old in writes.filter(|bound| bound.target.epoch < newest && !is_primary(&bound.target)) {
            let Bound { target, generation, .. } = old;
            let (node, epoch) = (&target.node, target.epoch);
            self.found(format!(
                "balancer {balancer} holds a write connection to {node} of epoch {epoch}, \
                 generation {generation}, and has seen {newest}"
            ));
        }
    }

    /// A writer that began to connect when `balancer` had seen the epoch `seen` reached a node of `epoch`.
    pub fn reached(&self, balancer: usize, seen: u64, epoch: u64) {
        if epoch < seen {
            self.found(format!("balancer {balancer} had seen epoch {seen} and led a writer to epoch {epoch}"));
        }
    }

    /// Something that must not be.
    pub fn found(&self, what: String) {
        self.findings.add(CHECK, what);
    }
}
