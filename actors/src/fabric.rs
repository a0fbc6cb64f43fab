//! What the actors of one node share: its endpoints, its open connections, its circuits, and the snapshot it works by.

pub mod circuits;
pub mod figures;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use postroad_cluster::{
    drain::{self, Word},
    grant::SignedGrant,
    id::{Generation, LinkId, Name, NodeId, Version},
    revocation::{Revocations, SignedRevocations},
    snapshot::{Accepted, LinkView, RelayView},
    time::{Clock as _, Entropy, Span},
    verified::Verified,
};
use postroad_raft::Consensus;
use postroad_store::NodeStore;
use postroad_transport::{
    connection::{CloseCode, Connection},
    endpoint::Endpoint,
    network::Network,
    node_socket::NodeSocket,
    tls::{SharedIdentity, SharedTrust},
};
use postroad_trust::{Anchors, TrustError, verify_revocations};
use tokio::{runtime::Handle, sync::Notify};

use self::{circuits::Circuits, figures::StallCounts};
use crate::{
    balancer::role::Balancers,
    directory::{Directory, lock},
    flow::Flows,
    identity::Kept,
    ports::{FlooredClock, Settings},
    service::Api,
    snapshot::Opened,
    trace::Steps,
    vouch::Vouchers,
};

/// Why connections end when their node stops.
pub(crate) const STOPS: &str = "this node stops";

/// What the actors of one node share. Nothing in it decides.
pub struct Fabric {
    /// This node.
    pub me: NodeId,
    /// The cluster.
    pub cluster: Name,
    /// The node's name.
    pub name: Name,
    /// The clock over the time floor.
    pub clock: Arc<FlooredClock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Where packets and flows are carried.
    pub carriage: Handle,
    /// The node's own facts on disk.
    pub store: NodeStore,
    /// The node's settings.
    pub settings: Settings,
    /// How often the node has started.
    pub boots: u32,
    /// What it shows of itself.
    pub identity: SharedIdentity,
    /// Whom it trusts.
    pub trust: SharedTrust,
    /// The outbound socket, for circuits.
    pub socket: Arc<NodeSocket>,
    /// The outbound endpoint.
    pub outbound: Arc<Endpoint>,
    /// The member of the Raft group, on control nodes.
    pub consensus: Option<Consensus>,
    /// The actors.
    pub directory: Directory,
    /// Circuits that stand.
    pub circuits: Circuits,
    /// Open flows.
    pub flows: Flows,
    /// How long flows stood still when their circuits moved.
    pub stalls: StallCounts,
    /// Relays' words for tunnels.
    pub vouchers: Vouchers,
    /// The database balancers that the cluster has this node run.
    pub balancers: Balancers,
    /// What was done for requests outside of actors.
    pub steps: Steps,
    /// Grants whose signature was checked.
    pub(crate) opened: Mutex<Opened>,
    kept: Mutex<Kept>,
    snapshot: RwLock<Option<Arc<Accepted>>>,
    connections: Connections,
    sessions: RwLock<BTreeMap<NodeId, Standing>>,
    controls: RwLock<BTreeMap<NodeId, Connection>>,
    endpoints: RwLock<BTreeMap<LinkId, (Generation, SignedGrant)>>,
    served: Mutex<BTreeSet<u64>>,
    drains: RwLock<BTreeMap<NodeId, Word>>,
    revoked: RwLock<Option<Revoked>>,
    applied: RwLock<BTreeMap<NodeId, Version>>,
    /// What the control nodes should hear sooner than the next report.
    pub(crate) report_soon: Notify,
    stopping: AtomicBool,
    sequence: AtomicU32,
    api: OnceLock<Arc<dyn Api>>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric({} of {})", self.me, self.cluster)
    }
}

/// A session that stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its connection.
    pub connection: Connection,
    /// The relay's address.
    pub address: SocketAddr,
    /// The last round-trip time of its pings, in microseconds.
    pub round_trip_us: Option<u64>,
}

/// Revoked routes, as this node knows and passes them on.
struct Revoked {
    signed: SignedRevocations,
    all: Verified<Revocations>,
}

/// What a fabric is made of, beside what it begins empty with.
pub(crate) struct Parts {
    pub(crate) kept: Kept,
    pub(crate) clock: Arc<FlooredClock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) carriage: Handle,
    pub(crate) store: NodeStore,
    pub(crate) settings: Settings,
    pub(crate) boots: u32,
    pub(crate) identity: SharedIdentity,
    pub(crate) trust: SharedTrust,
    pub(crate) socket: Arc<NodeSocket>,
    pub(crate) outbound: Arc<Endpoint>,
    pub(crate) consensus: Option<Consensus>,
    pub(crate) directory: Directory,
    pub(crate) snapshot: Option<Arc<Accepted>>,
}

impl Fabric {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            me: parts.kept.node,
            cluster: parts.kept.cluster.clone(),
            name: parts.kept.name.clone(),
            clock: parts.clock,
            entropy: parts.entropy,
            network: parts.network,
            carriage: parts.carriage,
            store: parts.store,
            balancers: Balancers::new(parts.settings.balancers.clone()),
            settings: parts.settings,
            boots: parts.boots,
            identity: parts.identity,
            trust: parts.trust,
            socket: parts.socket,
            outbound: parts.outbound,
            consensus: parts.consensus,
            directory: parts.directory,
            circuits: Circuits::default(),
            flows: Flows::default(),
            stalls: StallCounts::default(),
            vouchers: Vouchers::default(),
            steps: Steps::default(),
            opened: Mutex::default(),
            kept: Mutex::new(parts.kept),
            snapshot: RwLock::new(parts.snapshot),
            connections: Connections::default(),
            sessions: RwLock::default(),
            controls: RwLock::default(),
            endpoints: RwLock::default(),
            served: Mutex::default(),
            drains: RwLock::default(),
            revoked: RwLock::default(),
            applied: RwLock::default(),
            report_soon: Notify::new(),
            stopping: AtomicBool::new(false),
            sequence: AtomicU32::new(0),
            api: OnceLock::new(),
        })
    }

    /// What the node keeps of itself.
    pub fn kept(&self) -> Kept {
        lock(&self.kept).clone()
    }

    /// Changes what the node keeps of itself and stores it.
    pub fn keep(&self, change: impl FnOnce(&mut Kept)) -> Result<(), postroad_store::StoreError> {
        let mut kept = lock(&self.kept);
        change(&mut kept);
        kept.save(&self.store)
    }

    /// The snapshot that the node works by.
    pub fn snapshot(&self) -> Option<Arc<Accepted>> {
        read(&self.snapshot).clone()
    }

    /// Sets the snapshot unless a newer one is there.
    pub(crate) fn set_snapshot_if_newer(&self, accepted: &Accepted) {
        let mut present = write(&self.snapshot);
        if present.as_ref().is_none_or(|present| present.header.version < accepted.header.version) {
            *present = Some(Arc::new(accepted.clone()));
        }
    }

    /// A link of this node.
    pub fn link(&self, link: LinkId) -> Option<LinkView> {
        self.snapshot()?.content.links.get(&link).cloned()
    }

    /// A relay that the node knows.
    pub fn relay(&self, relay: NodeId) -> Option<RelayView> {
        self.snapshot()?.content.relays.get(&relay).cloned()
    }

    /// Whom a snapshot says to trust.
    pub(crate) fn anchors(&self, accepted: &Accepted) -> Anchors {
        Anchors {
            cluster: self.cluster.clone(),
            authorities: accepted.content.authorities.clone(),
            revoked_serials: BTreeSet::new(),
            revoked_nodes: accepted.content.revoked_nodes.clone(),
            revoked_issuers: BTreeSet::new(),
        }
    }

    /// How long a flow waits for a path: the node's own configuration is the cluster's, by the snapshot.
    pub fn flow_wait(&self) -> Span {
        Span::from_secs(
            self.snapshot().map_or(postroad_cluster::limits::FLOW_WAIT_DEFAULT_SECONDS, |accepted| {
                accepted.content.flow_wait_seconds
            }),
        )
    }

    /// Open connections by number.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The standing sessions by relay.
    pub fn sessions(&self) -> BTreeMap<NodeId, Standing> {
        read(&self.sessions).clone()
    }

    /// The session with one relay.
    pub fn session(&self, relay: NodeId) -> Option<Standing> {
        read(&self.sessions).get(&relay).cloned()
    }

    pub(crate) fn session_up(&self, relay: NodeId, standing: Standing) {
        write(&self.sessions).insert(relay, standing);
    }

    pub(crate) fn session_down(&self, relay: NodeId) {
        write(&self.sessions).remove(&relay);
        write(&self.drains).remove(&relay);
        write(&self.applied).remove(&relay);
    }

    pub(crate) fn session_measured(&self, relay: NodeId, round_trip_us: u64) {
        if let Some(standing) = write(&self.sessions).get_mut(&relay) {
            standing.round_trip_us = Some(round_trip_us);
        }
    }

    /// Takes revocations if they are newer than those that are there, and returns them then.
    pub(crate) fn take_revocations(
        &self,
        signed: &SignedRevocations,
    ) -> Result<Option<Verified<Revocations>>, TrustError> {
        let revocations = verify_revocations(signed, &self.trust.current())?;
        let mut present = write(&self.revoked);
        let version = revocations.get().version;
        if present.as_ref().is_some_and(|present| present.all.get().version >= version) {
            return Ok(None);
        }
        *present = Some(Revoked { signed: signed.clone(), all: revocations.clone() });
        Ok(Some(revocations))
    }

    /// The newest revocations, as they are passed on.
    pub(crate) fn signed_revocations(&self) -> Option<SignedRevocations> {
        read(&self.revoked).as_ref().map(|revoked| revoked.signed.clone())
    }

    /// The newest revocations.
    pub(crate) fn revocations(&self) -> Option<Verified<Revocations>> {
        read(&self.revoked).as_ref().map(|revoked| revoked.all.clone())
    }

    /// A relay has said what it has applied.
    pub(crate) fn relay_applied(&self, relay: NodeId, version: Version) {
        write(&self.applied).insert(relay, version);
    }

    /// What each relay with a session has applied.
    pub(crate) fn applied(&self) -> BTreeMap<NodeId, Version> {
        read(&self.applied).clone()
    }

    /// Whether this route was revoked, whatever this node's snapshot still says.
    pub fn is_revoked(&self, link: LinkId, generation: Generation) -> bool {
        read(&self.revoked).as_ref().is_some_and(|revoked| revoked.all.get().is_revoked(link, generation))
    }

    /// Whether a relay is stale for a link, so that nothing new of it goes through that relay (RP-35).
    pub fn is_stale(&self, relay: NodeId, link: LinkId) -> bool {
        let applied = read(&self.applied).get(&relay).copied().unwrap_or_default();
        let now = self.clock.wall();
        read(&self.revoked).as_ref().is_some_and(|revoked| revoked.all.get().is_stale(link, applied, now))
    }

    /// The node stops: its circuits are closed, so that its peers know at once, and none is taken or dialled any more.
    pub(crate) fn close_circuits(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for circuit in self.circuits.all() {
            circuit.connection.close(CloseCode::Stopping, STOPS);
        }
    }

    /// Whether the node stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// A relay has said on its session whether it drains.
    pub(crate) fn told_of_drain(&self, relay: NodeId, word: Word) {
        write(&self.drains).insert(relay, word);
    }

    /// Whether a relay drains, as far as this node knows.
    pub fn drains(&self, relay: NodeId) -> bool {
        let agreed = self.snapshot().and_then(|accepted| {
            let draining = accepted.content.relays.get(&relay)?.draining;
            Some(Word { version: accepted.header.version, draining })
        });
        drain::draining(agreed, read(&self.drains).get(&relay).copied())
    }

    /// Has every circuit leave a relay that drains, or use it again; make-before-break, by the circuits themselves.
    pub(crate) fn apply_drain(&self, relay: NodeId) {
        let draining = self.drains(relay);
        for key in self.socket.circuits() {
            // One that was removed meanwhile has nothing to move.
            let _ = self.socket.channel_avoid(key, relay, draining);
        }
        self.report_soon.notify_waiters();
    }

    /// Connections to control nodes.
    pub fn controls(&self) -> BTreeMap<NodeId, Connection> {
        read(&self.controls).clone()
    }

    pub(crate) fn control_up(&self, node: NodeId, connection: Connection) {
        write(&self.controls).insert(node, connection);
    }

    pub(crate) fn control_down(&self, node: NodeId) {
        write(&self.controls).remove(&node);
    }

    pub(crate) fn set_endpoints(&self, wanted: BTreeMap<LinkId, (Generation, SignedGrant)>) {
        *write(&self.endpoints) = wanted;
    }

    pub(crate) fn endpoints(&self) -> BTreeMap<LinkId, (Generation, SignedGrant)> {
        read(&self.endpoints).clone()
    }

    /// The connections that the relay service serves.
    pub(crate) fn served<T>(&self, look: impl FnOnce(&mut BTreeSet<u64>) -> T) -> T {
        look(&mut lock(&self.served))
    }

    /// A number that this start of the node has not used yet.
    pub(crate) fn sequence(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// The present wall time, after the time floor.
    pub fn wall(&self) -> postroad_cluster::time::WallTime {
        self.clock.wall()
    }

    /// Gives the node what answers requests of the HTTP API that come over the control protocol; the first one stays.
    pub fn serve_api(&self, api: Arc<dyn Api>) {
        let _ = self.api.set(api);
    }

    pub(crate) fn api(&self) -> Option<&Arc<dyn Api>> {
        self.api.get()
    }

    /// The present moment of the node's clock.
    pub fn now(&self) -> postroad_cluster::time::Moment {
        self.clock.now()
    }
}

fn read<T>(value: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    value.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn write<T>(value: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    value.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Open connections by number, so that behaviors can name them. A number is never used twice.
#[derive(Debug, Default)]
pub struct Connections {
    last: AtomicU64,
    open: Mutex<BTreeMap<u64, Connection>>,
}

impl Connections {
    /// Gives a connection its number.
    pub fn add(&self, connection: Connection) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.open).insert(number, connection);
        number
    }

    /// The connection of a number.
    pub fn get(&self, number: u64) -> Option<Connection> {
        lock(&self.open).get(&number).cloned()
    }

    /// Takes it out; it closes when nobody else holds it.
    pub fn remove(&self, number: u64) -> Option<Connection> {
        lock(&self.open).remove(&number)
    }

    /// Forgets every connection.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.open));
        drop(all);
    }
}
