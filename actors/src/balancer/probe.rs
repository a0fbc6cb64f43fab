//! The probe port: what asks one node of a database cluster who it is, over a connection that it keeps.

use std::{fmt, future::Future, net::SocketAddr, pin::Pin};

use postroad_cluster::balancer::database::evidence::Outcome;

/// A probe under way. It is dropped where it takes too long; whatever it was in the middle of is then given up.
pub type Probing<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// The probe of one node.
pub trait Probe: Send + 'static {
    /// Asks the node at `address` once. The connection is kept for the next time, so that a node without places left is
    /// still asked.
    fn probe(&mut self, address: SocketAddr) -> Probing<'_>;
}

/// Where probes come from.
pub trait Probes: Send + Sync + fmt::Debug + 'static {
    /// The probe of the node with this id, not connected yet.
    fn of(&self, node: &str) -> Box<dyn Probe>;
}
