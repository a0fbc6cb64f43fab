//! The simulated database cluster: what its nodes are, what they answer to probes, and whom they greet.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    io::{self, IoSlice},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postroad_actors::balancer::probe;
use postroad_cluster::balancer::database::evidence::{Answer, Cause, Failure, Outcome, Position, Replica, Role};
use postroad_transport::network::{Network, TcpListener};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep};

use crate::{
    checks::balancer::BalancerCheck,
    network::{Fabric, Host},
};

/// Nodes of the database cluster.
pub(super) const NODES: usize = 5;
/// Where each of them listens.
pub(super) const NODE_PORT: u16 = 5432;
/// The largest delay of a probe's answer, which is of the moment before it.
const ANSWER_DELAY_MS: u64 = 400;

/// One node as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) up: bool,
    pub(super) role: Role,
    pub(super) epoch: u64,
    pub(super) position: u64,
}

/// The database cluster as it is, and what a balancer cannot reach of it.
#[derive(Debug)]
pub(super) struct Databases {
    pub(super) nodes: [Node; NODES],
    pub(super) epoch: u64,
    pub(super) cut: BTreeMap<(usize, usize), Instant>,
    rng: StdRng,
}

/// The database cluster; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Cluster(Arc<Mutex<Databases>>);

impl Cluster {
    /// A primary `db-0` of epoch 1, and its followers.
    pub(super) fn new(seed: u64) -> Self {
        let follower = Node { up: true, role: Role::Secondary, epoch: 1, position: 1_000 };
        let mut nodes = [follower; NODES];
        nodes[0].role = Role::Primary;
        let rng = StdRng::seed_from_u64(seed ^ 1);
        Self(Arc::new(Mutex::new(Databases { nodes, epoch: 1, cut: BTreeMap::new(), rng })))
    }

    /// Another node leads from now on, and those that follow hear of it; the old primary does not.
    pub(super) fn elect(&self, chosen: usize) {
        let mut cluster = self.lock();
        cluster.epoch += 1;
        let epoch = cluster.epoch;
        cluster.nodes[chosen] = Node { role: Role::Primary, epoch, ..cluster.nodes[chosen] };
        for node in cluster.nodes.iter_mut().filter(|node| node.up && node.role == Role::Secondary) {
            node.epoch = epoch;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Databases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn name(node: usize) -> String {
    format!("db-{node}")
}

/// The hosts of the nodes come after those of a fleet.
pub(super) fn host(node: usize) -> Host {
    Host(node as u16 + 101)
}

/// The first nodes as a balancer's list has them.
pub(super) fn listed(count: usize) -> BTreeMap<String, String> {
    (0..count).map(|node| (name(node), format!("{}:{NODE_PORT}", host(node).ip()))).collect()
}

impl Databases {
    fn answer(&self, node: usize) -> Answer {
        let of = self.nodes[node];
        // A primary lists those that follow its epoch; an isolated one has nobody.
        let follows = |other: &usize| {
            let other = &self.nodes[*other];
            other.up && other.role == Role::Secondary && other.epoch == of.epoch
        };
        let replicas = (0..NODES).filter(follows).map(|other| Replica::Identity(name(other)));
        Answer {
            address: SocketAddr::new(host(node).ip(), NODE_PORT),
            identity: name(node),
            cluster: Some("7".to_owned()),
            role: of.role,
            writable: of.role == Role::Primary,
            epoch: of.epoch,
            connections: 10,
            connections_max: 100,
            active: 0,
            position: Some(Position::bytes(of.position)),
            replicas: if of.role == Role::Primary { replicas.collect() } else { Vec::new() },
            version: "sim".to_owned(),
        }
    }

    pub(super) fn primaries(&self) -> Vec<usize> {
        (0..NODES).filter(|node| self.nodes[*node].up && self.nodes[*node].role == Role::Primary).collect()
    }
}

/// The probes of one balancer.
#[derive(Debug)]
pub(super) struct SimProbes {
    pub(super) balancer: usize,
    pub(super) cluster: Cluster,
    pub(super) check: BalancerCheck,
}

struct SimProbe {
    balancer: usize,
    node: usize,
    cluster: Cluster,
    check: BalancerCheck,
}

impl probe::Probes for SimProbes {
    fn of(&self, node: &str) -> Box<dyn probe::Probe> {
        let node = (0..NODES).find(|index| name(*index) == node).unwrap_or_default();
        Box::new(SimProbe { balancer: self.balancer, node, cluster: self.cluster.clone(), check: self.check.clone() })
    }
}

impl probe::Probe for SimProbe {
    fn probe(&mut self, _address: SocketAddr) -> probe::Probing<'_> {
        Box::pin(async move {
            let (outcome, delay_ms): (Option<Outcome>, u64) = {
                let mut cluster = self.cluster.lock();
                let delay_ms = cluster.rng.random_range(0..ANSWER_DELAY_MS);
                let cut = cluster.cut.get(&(self.balancer, self.node)).is_some_and(|until| *until > Instant::now());
                let outcome = match cluster.nodes[self.node].up {
                    _ if cut => None,
                    true => Some(Ok(cluster.answer(self.node))),
                    false => Some(Err(Failure::new(Cause::Refused, "nothing listens"))),
                };
                (outcome, delay_ms)
            };
            let Some(outcome) = outcome else { return std::future::pending().await };
            sleep(Duration::from_millis(delay_ms)).await;
            if let Ok(answer) = &outcome {
                self.check.saw(self.balancer, answer.epoch);
            }
            outcome
        })
    }
}

/// The node accepts, says who it is and of which epoch, and holds the connection until it goes down.
pub(super) fn serve(fabric: &Fabric, cluster: &Cluster, node: usize) {
    let network = fabric.boot(host(node));
    let cluster = cluster.clone();
    tokio::spawn(async move {
        let listening: io::Result<Arc<dyn TcpListener>> =
            network.tcp_listen(SocketAddr::new(host(node).ip(), NODE_PORT));
        let Ok(listener) = listening else { return };
        while network.is_current() {
            let Ok(stream) = listener.accept().await else { return };
            let cluster = cluster.clone();
            tokio::spawn(async move {
                // As a whole: a half that stays behind would be dropped, which is a reset.
                let mut stream = stream;
                let epoch = cluster.lock().nodes[node].epoch;
                let greeting = epoch.to_be_bytes();
                // Whoever has gone needs no greeting.
                let _ = poll_fn(|context| stream.write.poll_write(context, &[IoSlice::new(&greeting)])).await;
                poll_fn(|context| stream.write.poll_closed(context)).await;
            });
        }
    });
}
