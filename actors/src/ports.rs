//! What a node is started with: its ports, its settings, and the clock that never goes below the time floor.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    balancer::proxy_header::TrustedSources,
    domain::FailureDomain,
    id::Name,
    limits::CIRCUIT_PACKET_BYTES_JUMBO,
    time::{Clock, Entropy, Moment, Span, Timer, WallTime},
};
use postroad_raft::{Observer, Retention, Timing};
use postroad_store::{Disk, NodeStore, StoreError, TimeFloor, Writing};
use postroad_transport::network::Network;
use tokio::runtime::Handle;

use crate::{balancer::Setup, directory::lock};

/// The ports of one node.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// The data directory.
    pub disk: Arc<dyn Disk>,
    /// How the databases are written.
    pub writing: Writing,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Where packets and flows are carried. Apart from the actors, so that a long turn holds up none of them.
    pub carriage: Handle,
    /// Differs for each boot of the host, so that moments of two boots are not compared.
    pub boot_id: u64,
}

/// What is this node's own, from its configuration.
#[derive(Clone)]
pub struct Settings {
    /// Where control nodes and relays listen.
    pub listen: SocketAddr,
    /// From where the node dials.
    pub outbound: SocketAddr,
    /// What the node says of where it stands.
    pub domain: FailureDomain,
    /// `host:port` that participants reach; needed by control nodes and relays.
    pub advertised: Option<String>,
    /// How patient the Raft group is.
    pub timing: Timing,
    /// How much of the log is kept.
    pub retention: Retention,
    /// Who watches the Raft group; the simulation's checks.
    pub observer: Option<Arc<dyn Observer>>,
    /// Relays that this node never dials; tests take paths away with it.
    pub shunned: BTreeSet<String>,
    /// The largest QUIC packet that this node's circuits send, in bytes without our header.
    pub packet_bytes_max: u32,
    /// Whose connections to a link's listener begin with a PROXY header; from them one is required (DB-30).
    pub proxy_protocol_from: TrustedSources,
    /// What this host has for the database balancers that the cluster may have it run.
    pub balancers: BTreeMap<Name, Setup>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("listen", &self.listen)
            .field("outbound", &self.outbound)
            .field("advertised", &self.advertised)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The settings of a node that says nothing of itself.
    #[must_use]
    pub fn new(listen: SocketAddr, outbound: SocketAddr) -> Self {
        Self {
            listen,
            outbound,
            domain: FailureDomain::default(),
            advertised: None,
            timing: Timing::default(),
            retention: Retention::default(),
            observer: None,
            shunned: BTreeSet::new(),
            packet_bytes_max: CIRCUIT_PACKET_BYTES_JUMBO,
            proxy_protocol_from: TrustedSources::default(),
            balancers: BTreeMap::new(),
        }
    }
}

/// The clock port over the time floor: the wall time of this clock never goes below what was once known to have passed.
pub struct FlooredClock {
    inner: Arc<dyn Clock>,
    boot_id: u64,
    floor: Mutex<TimeFloor>,
}

impl fmt::Debug for FlooredClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlooredClock({:?})", self.inner)
    }
}

impl FlooredClock {
    /// The clock of `ports` over the floor that `store` holds.
    pub fn new(ports: &Ports, store: &NodeStore) -> Result<Self, StoreError> {
        let floor = Mutex::new(TimeFloor::load(store)?);
        Ok(Self { inner: Arc::clone(&ports.clock), boot_id: ports.boot_id, floor })
    }

    /// Takes the issue time of something signed and verified.
    pub fn accept_issue_time(&self, issued: WallTime) {
        lock(&self.floor).accept_issue_time(issued);
    }

    /// Stores the floor; once a minute.
    pub fn save(&self, store: &NodeStore) -> Result<(), StoreError> {
        // The time now becomes part of the floor.
        let _ = self.wall();
        let floor = lock(&self.floor).put();
        store.write(vec![floor])
    }
}

impl Clock for FlooredClock {
    fn now(&self) -> Moment {
        self.inner.now()
    }

    fn wall(&self) -> WallTime {
        lock(&self.floor).believe(self.boot_id, self.inner.now(), self.inner.wall())
    }

    fn sleep_until(&self, deadline: Moment) -> Timer {
        self.inner.sleep_until(deadline)
    }
}

/// Sleeps on `clock`.
pub(crate) fn sleep(clock: &dyn Clock, span: Span) -> Timer {
    clock.sleep_until(clock.now().after(span))
}
