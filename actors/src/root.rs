//! The tree of one node: made from its ports and its identity, started as a whole, stopped in order, killed at once.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    id::Role,
    node::{Certificate, Node},
    supervision::{Exit, Restart},
    time::Span,
};
use postroad_raft::{Consensus, ConsensusError, Options};
use postroad_store::{Databases, StoreError};
use postroad_transport::{
    endpoint::{Accepted, Endpoint, EndpointOptions, transport},
    node_socket::{CircuitEvent, NodeSocket},
    switch::Switch,
    tls::{Protocol, SharedIdentity, SharedTrust},
};

use tokio::sync::mpsc;

use crate::{
    carrier::{ControlCarrier, RaftCarrier},
    control::ControlPerformer,
    directory::{Context, Directory, lock},
    fabric::{Fabric, Parts, STOPS},
    identity::{Kept, KeptError, count_boot},
    leader::LeaderPerformer,
    node::{self, NodePerformer, kept_snapshot},
    peer,
    ports::{FlooredClock, Ports, Settings},
    relay::{self, RelayPerformer},
    service::Service,
    supervisor::{ChildSpec, Root},
    trace,
};

/// What a connection's driver needs to have sent that it closes, with room.
const CLOSES_SENT: Span = Span::from_millis(20);

/// How long goodbyes may take: relays that do not answer hear nothing more anyway.
const GOODBYE_WAIT: Span = Span::from_millis(500);

/// Why a node did not start.
#[derive(Debug)]
pub enum StartError {
    /// What is on its disk does not let it.
    Kept(KeptError),
    /// The Raft group's member did not start.
    Consensus(ConsensusError),
    /// A socket could not be opened.
    Socket {
        /// Which, by its purpose and address.
        what: String,
        /// Why.
        reason: String,
    },
    /// The tree did not start.
    Tree(String),
}

impl StartError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Kept(error) => error.code(),
            Self::Consensus(error) => error.code(),
            Self::Socket { .. } => "SOCKET",
            Self::Tree(_) => "TREE",
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(error) => error.fmt(f),
            Self::Consensus(error) => error.fmt(f),
            Self::Socket { what, reason } => {
                write!(f, "cannot open {what}: {reason}. Free the address, or set another in the configuration")
            }
            Self::Tree(reason) => write!(f, "the node's actors did not start: {reason}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        Self::Kept(KeptError::Store(error))
    }
}

impl From<KeptError> for StartError {
    fn from(error: KeptError) -> Self {
        Self::Kept(error)
    }
}

/// A running node.
pub struct NodeHandle {
    fabric: Arc<Fabric>,
    service: Option<Arc<Service>>,
    carrier: Arc<ControlCarrier>,
    switch: Option<Arc<Switch>>,
    /// An async lock, so that whoever waits for the end of the tree may give up without taking the tree along.
    root: tokio::sync::Mutex<Option<Root>>,
    tasks: Tasks,
}

/// Tasks that are no actors: the accept loops. They end with the node.
#[derive(Debug, Default)]
struct Tasks(Mutex<Vec<tokio::task::AbortHandle>>);

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.0).push(tokio::spawn(task).abort_handle());
    }

    fn abort(&self) {
        for task in std::mem::take(&mut *lock(&self.0)) {
            task.abort();
        }
    }
}

/// Starts the node that `databases` belong to.
///
/// # Errors
/// What kept it from starting; nothing of it runs then.
pub async fn start(ports: Ports, settings: Settings, databases: Databases) -> Result<NodeHandle, StartError> {
    let kept = Kept::load(&databases.node)?;
    let clock = Arc::new(FlooredClock::new(&ports, &databases.node)?);
    let boots = count_boot(&databases.node)?;
    let snapshot = kept_snapshot(&databases.node)?.map(Arc::new);
    let trust = SharedTrust::new(kept.anchors());
    let identity = SharedIdentity::new(kept.identity().map_err(KeptError::from)?);
    let context = Context::new(clock.clone(), Arc::clone(&ports.entropy), kept.name.as_str());

    let carrier = Arc::new(ControlCarrier::default());
    let consensus = if kept.roles.contains(&Role::Control) {
        Some(member(&ports, &settings, &kept, &databases, &carrier).await?)
    } else {
        None
    };
    let (socket, events, outbound) = outbound(&ports, &settings, &clock, &identity, &trust, &kept)?;
    let listening = listening(&ports, &settings, &clock, &identity, &trust, &kept)?;
    let fabric = Fabric::new(Parts {
        kept,
        clock,
        entropy: Arc::clone(&ports.entropy),
        network: Arc::clone(&ports.network),
        carriage: ports.carriage.clone(),
        store: databases.node,
        settings,
        boots,
        identity,
        trust,
        socket,
        outbound: Arc::new(outbound),
        consensus,
        directory: context.directory.clone(),
        snapshot,
    });
    if let Some(accepted) = fabric.snapshot() {
        fabric.trust.replace(fabric.anchors(&accepted));
    }
    if let Some(signed) = fabric.snapshot().and_then(|accepted| accepted.content.revocations.clone())
        && let Err(error) = fabric.take_revocations(&signed)
    {
        tracing::error!(%error, "the revocations of the snapshot on disk do not hold");
    }
    carrier.bind(&fabric);
    let service = fabric.consensus.as_ref().map(|_| Service::new(Arc::clone(&fabric), Arc::clone(&carrier)));
    let switch = listening.as_ref().map(|(_, switch)| Arc::clone(switch));
    let root = tree(&fabric, context, switch.clone()).await.map_err(StartError::Tree)?;

    let tasks = Tasks::default();
    tasks.spawn(peer::watch(Arc::clone(&fabric), events));
    tasks.spawn(accept_circuits(Arc::clone(&fabric)));
    tasks.spawn(keep_time(Arc::clone(&fabric)));
    if let Some(consensus) = fabric.consensus.clone() {
        tasks.spawn(trace::follow_log(Arc::clone(&fabric), consensus));
    }
    if let Some((endpoint, _)) = listening {
        tasks.spawn(accept(endpoint, Arc::clone(&fabric), switch.clone(), service.clone()));
    }
    Ok(NodeHandle { fabric, service, carrier, switch, root: tokio::sync::Mutex::new(Some(root)), tasks })
}

async fn member(
    ports: &Ports,
    settings: &Settings,
    kept: &Kept,
    databases: &Databases,
    carrier: &Arc<ControlCarrier>,
) -> Result<Consensus, StartError> {
    let options = Options {
        me: kept.node,
        log: databases.log.clone(),
        state: databases.state.clone(),
        carrier: Arc::new(RaftCarrier(Arc::clone(carrier))),
        entropy: Arc::clone(&ports.entropy),
        observer: settings.observer.clone(),
        timing: settings.timing,
        retention: settings.retention,
    };
    Consensus::start(options).await.map_err(StartError::Consensus)
}

fn outbound(
    ports: &Ports,
    settings: &Settings,
    clock: &Arc<FlooredClock>,
    identity: &SharedIdentity,
    trust: &SharedTrust,
    kept: &Kept,
) -> Result<(Arc<NodeSocket>, mpsc::Receiver<CircuitEvent>, Endpoint), StartError> {
    let failed = |error: std::io::Error| StartError::Socket {
        what: format!("the outbound UDP socket on {}", settings.outbound),
        reason: error.to_string(),
    };
    let _there = ports.carriage.enter();
    let udp = ports.network.udp_bind(settings.outbound).map_err(failed)?;
    let (socket, events) = NodeSocket::new(udp, clock.clone());
    let circuits = Arc::clone(&socket);
    let options = EndpointOptions {
        transport_of: Some(Arc::new(move |address| {
            let key = circuits.circuit_of(address)?;
            let wait = Span::from_secs(postroad_cluster::limits::FLOW_WAIT_SECONDS_MAX);
            circuits.transport_config(key, wait).ok()
        })),
        ..options(ports, clock, identity, trust, vec![Protocol::Flow], derive(kept.reset_secret(), b"outbound"))
    };
    let endpoint = Endpoint::new(socket.clone(), options).map_err(failed)?;
    Ok((socket, events, endpoint))
}

type Listening = Option<(Arc<Endpoint>, Arc<Switch>)>;

fn listening(
    ports: &Ports,
    settings: &Settings,
    clock: &Arc<FlooredClock>,
    identity: &SharedIdentity,
    trust: &SharedTrust,
    kept: &Kept,
) -> Result<Listening, StartError> {
    if !kept.roles.contains(&Role::Relay) {
        return Ok(None);
    }
    let failed = |error: std::io::Error| StartError::Socket {
        what: format!("the listening UDP socket on {}", settings.listen),
        reason: error.to_string(),
    };
    let _there = ports.carriage.enter();
    let udp = ports.network.udp_bind(settings.listen).map_err(failed)?;
    let (switch, socket) = Switch::start(udp, clock.clone());
    let protocols = if kept.roles.contains(&Role::Control) {
        vec![Protocol::Control, Protocol::Relay, Protocol::Join]
    } else {
        vec![Protocol::Relay]
    };
    let secret = derive(kept.reset_secret(), b"listening");
    let endpoint = Endpoint::new(socket, options(ports, clock, identity, trust, protocols, secret)).map_err(failed)?;
    Ok(Some((Arc::new(endpoint), Arc::new(switch))))
}

fn derive(secret: [u8; 32], purpose: &[u8]) -> [u8; 32] {
    postroad_trust::sha256(&[b"postroad endpoint secret", &secret, purpose])
}

fn options(
    ports: &Ports,
    clock: &Arc<FlooredClock>,
    identity: &SharedIdentity,
    trust: &SharedTrust,
    protocols: Vec<Protocol>,
    secret: [u8; 32],
) -> EndpointOptions {
    EndpointOptions {
        clock: clock.clone(),
        entropy: Arc::clone(&ports.entropy),
        identity: identity.clone(),
        trust: trust.clone(),
        protocols,
        transport: transport::listener(),
        transport_of: None,
        secret,
    }
}

/// The node's actors, from left to right as they start.
async fn tree(fabric: &Arc<Fabric>, context: Context, switch: Option<Arc<Switch>>) -> Result<Root, String> {
    let mut children = Vec::new();
    if let Some(switch) = switch {
        let of = Arc::clone(fabric);
        children.push(ChildSpec::actor("relay", Restart::Permanent, move |_| {
            Ok((postroad_cluster::relay::Relay::default(), RelayPerformer::new(Arc::clone(&of), Arc::clone(&switch))))
        }));
    }
    if let Some(consensus) = fabric.consensus.clone() {
        let of = Arc::clone(fabric);
        children.push(ChildSpec::actor("leader", Restart::Permanent, move |_| {
            let performer = LeaderPerformer::new(Arc::clone(&of), consensus.clone());
            Ok((postroad_cluster::leader::Leader::default(), performer))
        }));
    }
    for id in ["sessions", "peers", "links", "balancers"] {
        children.push(ChildSpec::supervisor(id, Restart::Permanent, |_| Vec::new()));
    }
    let of = Arc::clone(fabric);
    children.push(ChildSpec::actor("control", Restart::Permanent, move |_| {
        Ok((postroad_cluster::control::Control::new(of.me), ControlPerformer::new(Arc::clone(&of))))
    }));
    let of = Arc::clone(fabric);
    children.push(ChildSpec::actor("self", Restart::Permanent, move |_| {
        let identity = of.identity.current();
        let described = identity.described();
        let certificate = Certificate { starts: described.starts, expires: described.expires };
        let accepted = of.snapshot().map(|accepted| Box::new((*accepted).clone()));
        Ok((Node::new(of.me, accepted, certificate), NodePerformer::new(Arc::clone(&of))))
    }));
    let name = fabric.name.clone();
    Root::start(
        context,
        "node",
        move |_| children,
        move |reason| {
            tracing::error!(%name, reason, "the node's root supervisor gave up");
        },
    )
    .await
}

/// Takes circuits that peers dial.
async fn accept_circuits(fabric: Arc<Fabric>) {
    let outbound = Arc::clone(&fabric.outbound);
    while let Some(accepted) = outbound.accept().await {
        if let Accepted::Peer(connection) = accepted {
            peer::accepted(&fabric, connection);
        }
    }
}

/// Takes sessions, control connections and joins.
async fn accept(
    endpoint: Arc<Endpoint>,
    fabric: Arc<Fabric>,
    switch: Option<Arc<Switch>>,
    service: Option<Arc<Service>>,
) {
    let mut serving = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            Some(_) = serving.join_next() => continue,
            accepted = endpoint.accept() => accepted,
        };
        let Some(accepted) = accepted else { return };
        match (accepted, &switch, &service) {
            (Accepted::Peer(connection), Some(switch), _) if connection.protocol() == Protocol::Relay => {
                serving.spawn(relay::serve(Arc::clone(&fabric), Arc::clone(switch), connection));
            }
            (Accepted::Peer(connection), _, Some(service)) if connection.protocol() == Protocol::Control => {
                serving.spawn(Arc::clone(service).serve(connection));
            }
            (Accepted::Joiner(joiner), _, Some(service)) => {
                serving.spawn(Arc::clone(service).join(joiner));
            }
            // The endpoint takes no protocol that the node's roles do not serve.
            _ => {}
        }
    }
}

/// Stores the time floor each minute.
async fn keep_time(fabric: Arc<Fabric>) {
    loop {
        if let Err(error) = fabric.clock.save(&fabric.store) {
            tracing::error!(%error, "the time floor was not stored");
        }
        crate::ports::sleep(&*fabric.clock, Span::from_mins(1)).await;
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeHandle({:?})", self.fabric)
    }
}

impl NodeHandle {
    /// What the node's actors share.
    pub const fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// The control node's service, on control nodes.
    pub const fn service(&self) -> Option<&Arc<Service>> {
        self.service.as_ref()
    }

    /// The way to other control nodes.
    pub const fn carrier(&self) -> &Arc<ControlCarrier> {
        &self.carrier
    }

    /// The packet switch, on relays.
    pub const fn switch(&self) -> Option<&Arc<Switch>> {
        self.switch.as_ref()
    }

    /// The node's actors.
    pub fn directory(&self) -> &Directory {
        &self.fabric.directory
    }

    /// Waits until the tree has ended by itself, and says how. [`NodeHandle::stop`] waits until this future is dropped.
    pub async fn ended(&self) -> Exit {
        match self.root.lock().await.as_mut() {
            Some(root) => root.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Tells whom it concerns that the node stops: flows are reset, peers hear that their circuits end while there is
    /// still a way to them, and relays keep its registrations for a while (RP-34).
    async fn say_goodbye(&self) {
        self.fabric.flows.abort();
        self.fabric.close_circuits();
        crate::ports::sleep(&*self.fabric.clock, CLOSES_SENT).await;
        node::leave(&self.fabric);
        let until = self.fabric.now().after(GOODBYE_WAIT);
        while !self.fabric.sessions().is_empty() && self.fabric.now() < until {
            crate::ports::sleep(&*self.fabric.clock, CLOSES_SENT).await;
        }
        crate::ports::sleep(&*self.fabric.clock, CLOSES_SENT).await;
    }

    /// Stops the node in order: it says goodbye, then actors stop, then the group's member, then the sockets.
    pub async fn stop(&self) {
        self.say_goodbye().await;
        let root = self.root.lock().await.take();
        if let Some(mut root) = root {
            root.stop().await;
        }
        self.fabric.balancers.end();
        if let Some(consensus) = &self.fabric.consensus {
            consensus.shutdown().await;
        }
        self.release();
        self.fabric.outbound.close(postroad_transport::connection::CloseCode::Stopping, STOPS);
        // Peers that hear the goodbye need not wait for a timeout; a second is enough for that.
        tokio::select! {
            biased;
            () = self.fabric.outbound.idle() => {}
            () = crate::ports::sleep(&*self.fabric.clock, Span::from_secs(1)) => {}
        }
        if let Err(error) = self.fabric.clock.save(&self.fabric.store) {
            tracing::error!(%error, "the time floor was not stored");
        }
    }

    /// Ends the node at once, as a crash would: nothing more is said or stored.
    pub fn kill(&self) {
        self.fabric.directory.kill_all();
        self.release();
    }

    fn release(&self) {
        self.tasks.abort();
        self.fabric.flows.abort();
        self.fabric.balancers.end();
        self.fabric.connections().clear();
        self.carrier.clear();
    }
}
