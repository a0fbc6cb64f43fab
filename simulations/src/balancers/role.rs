//! A database cluster beside a fleet, whose nodes run balancers before it.

use std::{collections::BTreeMap, net::SocketAddr};

use postroad_actors::balancer::Setup;
use postroad_cluster::balancer::database::settings::Settings;
use postroad_transport::network::{Network, TcpStream};

use super::{
    RO_PORT, RW_PORT,
    databases::{Cluster, NODES, SimProbes, host, listed, name, serve},
    greeting,
};
use crate::{
    checks::{Findings, balancer::BalancerCheck},
    network::{Fabric, Host, SimNetwork},
    trace::Trace,
};

/// The database cluster.
#[derive(Debug)]
pub struct Beside {
    fabric: Fabric,
    cluster: Cluster,
    check: BalancerCheck,
}

impl Beside {
    /// A primary `db-0` and its followers on hosts of `fabric`.
    #[must_use]
    pub fn new(seed: u64, fabric: &Fabric) -> Self {
        let cluster = Cluster::new(seed);
        for node in 0..NODES {
            serve(fabric, &cluster, node);
        }
        let check = BalancerCheck::new(1, Findings::new(Trace::new(false)));
        Self { fabric: fabric.clone(), cluster, check }
    }

    /// The first of its nodes, as a list has them.
    #[must_use]
    pub fn listed(count: usize) -> BTreeMap<String, String> {
        listed(count)
    }

    /// A node's name.
    #[must_use]
    pub fn name(node: usize) -> String {
        name(node)
    }

    /// What a host has for a balancer before it.
    #[must_use]
    pub fn setup(&self, host: Host) -> Setup {
        let probes = SimProbes { balancer: 0, cluster: self.cluster.clone(), check: self.check.clone() };
        super::setup(host, probes, Settings::default())
    }

    /// The primary dies, and `chosen` is elected.
    pub fn fail_over(&self, chosen: usize) {
        let primaries = self.cluster.lock().primaries();
        for node in primaries {
            self.fabric.crash(host(node));
            self.cluster.lock().nodes[node].up = false;
        }
        self.cluster.elect(chosen);
    }
}

/// A client of a balancer.
pub struct Client {
    /// Its connection.
    pub stream: TcpStream,
    /// The epoch of the node that was reached.
    pub epoch: u64,
}

/// Connects to the write port of a balancer on `host`, or to its read port; nothing if nobody listens, or if it refuses.
pub async fn connect(network: &SimNetwork, host: Host, reads: bool) -> Option<Client> {
    let address = SocketAddr::new(host.ip(), if reads { RO_PORT } else { RW_PORT });
    let mut stream = network.tcp_connect(address).await.ok()?;
    let epoch = greeting(&mut stream).await?;
    Some(Client { stream, epoch })
}

impl Client {
    /// Whether the connection still stands.
    pub async fn is_open(&mut self) -> bool {
        let closed = std::future::poll_fn(|context| self.stream.write.poll_closed(context));
        tokio::select! {
            biased;
            () = closed => false,
            () = tokio::time::sleep(std::time::Duration::from_millis(1)) => true,
        }
    }
}
