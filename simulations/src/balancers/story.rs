//! What happens to the simulated nodes: elections, deaths, isolation, promotions by mistake, and recovery.

use std::time::Duration;

use postroad_cluster::balancer::database::evidence::Role;
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use tokio::time::Instant;

use super::{
    BALANCERS,
    databases::{Cluster, NODES, Node, host, serve},
};
use crate::{network::Fabric, trace::Trace};

/// What happens to the nodes.
pub(super) struct Story {
    pub(super) fabric: Fabric,
    pub(super) cluster: Cluster,
    pub(super) trace: Trace,
    pub(super) rng: StdRng,
    pub(super) failovers: u64,
}

impl Story {
    /// Something happens; returns how many milliseconds pass until the next.
    pub(super) fn happen(&mut self) -> u64 {
        match self.rng.random_range(0..10) {
            0..=4 => self.fail_over(),
            5 => self.promote_twice(),
            6 => self.crash(),
            7 | 8 => self.cut(),
            _ => self.restore(),
        }
        self.write();
        self.rng.random_range(200..4_000)
    }

    /// Every node that follows goes on with its primary's log.
    fn write(&self) {
        let mut cluster = self.cluster.lock();
        let newest = cluster.epoch;
        for node in cluster.nodes.iter_mut().filter(|node| node.up && node.epoch == newest) {
            node.position += 100;
        }
    }

    /// Another node is elected. The old primary is told, is dead, or hears nothing of it and goes on.
    fn fail_over(&mut self) {
        let chosen = {
            let cluster = self.cluster.lock();
            let secondary = |node: &usize| cluster.nodes[*node].up && cluster.nodes[*node].role == Role::Secondary;
            let candidates: Vec<usize> = (0..NODES).filter(secondary).collect();
            candidates.choose(&mut self.rng).copied()
        };
        let Some(chosen) = chosen else { return self.restore() };
        let old = self.cluster.lock().primaries();
        self.failovers += 1;
        let fate = self.rng.random_range(0..3);
        self.trace.note(format_args!("db-{chosen} is elected, {old:?} have fate {fate}"));
        for node in old {
            match fate {
                0 => self.demote(node),
                1 => self.stop(node),
                _ => {}
            }
        }
        self.cluster.elect(chosen);
    }

    /// Somebody promotes two nodes in one epoch.
    fn promote_twice(&mut self) {
        self.fail_over();
        let mut cluster = self.cluster.lock();
        let epoch = cluster.epoch;
        if let Some(node) = cluster.nodes.iter_mut().find(|node| node.up && node.role == Role::Secondary) {
            *node = Node { role: Role::Primary, epoch, ..*node };
        }
        drop(cluster);
        self.trace.note(format_args!("and another of the same epoch"));
    }

    /// A demotion restarts the server, so its connections end.
    fn demote(&self, node: usize) {
        serve(&self.fabric, &self.cluster, node);
        let mut cluster = self.cluster.lock();
        let epoch = cluster.epoch;
        cluster.nodes[node] = Node { up: true, role: Role::Secondary, epoch, ..cluster.nodes[node] };
    }

    fn stop(&self, node: usize) {
        self.fabric.crash(host(node));
        self.cluster.lock().nodes[node].up = false;
    }

    fn crash(&mut self) {
        let node = self.rng.random_range(0..NODES);
        self.trace.note(format_args!("db-{node} dies"));
        self.stop(node);
    }

    /// A balancer's probes of a node are swallowed for a while; connections to it are not.
    fn cut(&mut self) {
        let way = (self.rng.random_range(0..BALANCERS), self.rng.random_range(0..NODES));
        let until = Instant::now() + Duration::from_millis(self.rng.random_range(500..8_000));
        self.trace.note(format_args!("probes of balancer and node {way:?} are swallowed"));
        self.cluster.lock().cut.insert(way, until);
    }

    /// Dead nodes and primaries of old epochs come back as followers.
    fn restore(&mut self) {
        self.trace.note(format_args!("what was lost comes back"));
        let epoch = self.cluster.lock().epoch;
        for node in 0..NODES {
            let of = self.cluster.lock().nodes[node];
            if !of.up || of.epoch < epoch {
                self.demote(node);
            }
        }
    }

    /// One primary, four followers, nothing cut.
    pub(super) fn heal(&mut self) {
        self.cluster.lock().cut.clear();
        self.restore();
        let primaries = self.cluster.lock().primaries();
        match primaries[..] {
            [] => self.fail_over(),
            [_, ref others @ ..] => others.iter().for_each(|node| self.demote(*node)),
        }
        let mut cluster = self.cluster.lock();
        let foremost = cluster.nodes.iter().map(|node| node.position).max().unwrap_or_default();
        for node in &mut cluster.nodes {
            node.position = foremost;
        }
    }
}
