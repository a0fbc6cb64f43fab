//! The database balancer's actors: one decides, one a node probes. Connections are tasks that read what was decided.
//!
//! ```text
//! balancer
//! ├─ probers          ─ NODE-N     one a node
//! └─ database         decides; its tasks accept connections
//! ```

pub mod connections;
pub mod probe;
mod prober;
mod serve;
pub mod status;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use postroad_cluster::{
    balancer::{
        database::{
            Database, Effect, Event,
            prober::Prober,
            report::Report,
            settings::{Language, Port, Protocol, Settings},
        },
        proxy_header::TrustedSources,
    },
    limits::CALL_WAIT,
    supervision::{Exit, Restart},
    time::{Clock, Entropy, Moment},
};
use postroad_transport::{
    network::{Network, TcpListener},
    splice::{SpliceWaits, Splicer},
};

use self::{connections::Connections, probe::Probes, prober::ProberPerformer, status::Status};
use crate::{
    directory::{Context, Directory},
    handle::{AskError, Handle, SendError},
    shell::Performer,
    supervisor::{ChildSpec, Root, SupervisorHandle},
};

/// Where the actor that decides stands in the tree.
const DATABASE: &str = "balancer/database";
/// Where the supervisor of the probers stands.
const PROBERS: &str = "balancer/probers";

type Me = Handle<Database, Report>;

/// What a balancer is started with.
#[derive(Debug)]
pub struct Options {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// What asks the nodes.
    pub probes: Arc<dyn Probes>,
    /// What decides.
    pub settings: Settings,
    /// Addresses of the nodes by id.
    pub nodes: BTreeMap<String, String>,
    /// Where writes are taken.
    pub rw: SocketAddr,
    /// Where reads are taken.
    pub ro: Option<SocketAddr>,
    /// The local address of connections to the nodes.
    pub source: Option<IpAddr>,
    /// Whether a PROXY header tells the nodes who the client is.
    pub proxy_protocol: bool,
    /// From whom a PROXY header is read, and required.
    pub proxy_protocol_from: TrustedSources,
    /// What clients and nodes speak.
    pub protocol: Protocol,
    /// The language of what clients read.
    pub language: Language,
    /// Connections at once.
    pub capacity: usize,
}

/// What the actors and the connections of one balancer share.
#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    network: Arc<dyn Network>,
    probes: Arc<dyn Probes>,
    settings: Settings,
    connections: Arc<Connections>,
    splicer: Splicer,
    rw: SocketAddr,
    ro: Option<SocketAddr>,
    source: Option<IpAddr>,
    proxy_protocol: bool,
    proxy_protocol_from: TrustedSources,
    protocol: Protocol,
    language: Language,
    started: Moment,
    /// Probers so far, so that no two have one id.
    probers: AtomicU64,
}

/// A running balancer.
#[derive(Debug)]
pub struct BalancerHandle {
    shared: Arc<Shared>,
    directory: Directory,
    /// An async lock, so that whoever waits for the end may give up without taking the tree along.
    root: tokio::sync::Mutex<Option<Root>>,
}

type Listeners = Vec<(Port, Arc<dyn TcpListener>)>;

/// Starts a balancer.
///
/// # Errors
/// Which port could not be opened, or why the actors did not start.
pub async fn start(options: Options) -> Result<BalancerHandle, String> {
    let listen = |address| options.network.tcp_listen(address).map_err(|error| error.to_string());
    let mut listeners: Listeners = vec![(Port::Rw, listen(options.rw)?)];
    if let Some(ro) = options.ro {
        listeners.push((Port::Ro, listen(ro)?));
    }
    let local = |index: usize| {
        let listener = listeners.get(index).map(|(_, listener)| listener.local_address());
        listener.transpose().map_err(|error| error.to_string())
    };
    let shared = Arc::new(Shared {
        rw: local(0)?.unwrap_or(options.rw),
        ro: local(1)?,
        splicer: Splicer::new(Arc::clone(&options.network), Arc::clone(&options.clock), SpliceWaits::default()),
        connections: Arc::new(Connections::new(options.capacity)),
        started: options.clock.now(),
        clock: Arc::clone(&options.clock),
        network: options.network,
        probes: options.probes,
        settings: options.settings,
        source: options.source,
        proxy_protocol: options.proxy_protocol,
        proxy_protocol_from: options.proxy_protocol_from,
        protocol: options.protocol,
        language: options.language,
        probers: AtomicU64::new(0),
    });
    let context = Context::new(options.clock, options.entropy, "balancer");
    let directory = context.directory.clone();
    let root = tree(&shared, context, options.nodes, listeners).await?;
    Ok(BalancerHandle { shared, directory, root: tokio::sync::Mutex::new(Some(root)) })
}

async fn tree(
    shared: &Arc<Shared>,
    context: Context,
    nodes: BTreeMap<String, String>,
    listeners: Listeners,
) -> Result<Root, String> {
    let of = Arc::clone(shared);
    let listeners = Arc::new(listeners);
    // A restarted balancer begins with the list that it had last.
    let listed = Arc::new(std::sync::Mutex::new(nodes));
    let children = vec![
        ChildSpec::supervisor("probers", Restart::Permanent, |_| Vec::new()),
        ChildSpec::actor("database", Restart::Permanent, move |_| {
            let nodes = crate::directory::lock(&listed).clone();
            let performer = DatabasePerformer {
                shared: Arc::clone(&of),
                listeners: Arc::clone(&listeners),
                listed: Arc::clone(&listed),
                probers: BTreeMap::new(),
            };
            Ok((Database::new(of.settings.clone(), nodes), performer))
        }),
    ];
    let failed = |reason| tracing::error!(reason, "the balancer's root supervisor gave up");
    Root::start(context, "balancer", move |_| children, failed).await
}

/// Performs what the balancer decides.
struct DatabasePerformer {
    shared: Arc<Shared>,
    listeners: Arc<Listeners>,
    listed: Arc<std::sync::Mutex<BTreeMap<String, String>>>,
    /// The address and the child of each node's prober.
    probers: BTreeMap<String, (String, String)>,
}

impl DatabasePerformer {
    /// Adds and removes probers until they are those of `nodes`.
    fn watch(&mut self, nodes: BTreeMap<String, String>, me: &Me) -> Result<(), String> {
        crate::directory::lock(&self.listed).clone_from(&nodes);
        let supervisor = me.directory().and_then(|directory| SupervisorHandle::find(&directory, PROBERS));
        let supervisor = supervisor.ok_or("there is no supervisor of probers")?;
        self.probers.retain(|node, (address, _)| nodes.get(node) == Some(address));
        // Those of an earlier incarnation go as well.
        let stay: Vec<&String> = self.probers.values().map(|(_, child)| child).collect();
        for child in supervisor.children().iter().filter(|child| !stay.contains(child)) {
            supervisor.remove(child).map_err(|error| error.to_string())?;
        }
        for (node, address) in nodes {
            if self.probers.contains_key(&node) {
                continue;
            }
            let child = format!("{node}-{}", self.shared.probers.fetch_add(1, Ordering::Relaxed));
            let (shared, of, at) = (Arc::clone(&self.shared), node.clone(), address.clone());
            let added = supervisor.add_actor(&child, Restart::Permanent, move |_| {
                let settings = &shared.settings;
                let prober = Prober::new(of.clone(), at.clone(), settings.period_ms, settings.timeout_ms);
                let probe = shared.probes.of(&of);
                Ok((prober, ProberPerformer::new(of.clone(), at.clone(), Arc::clone(&shared.network), probe)))
            });
            added.map_err(|error| error.to_string())?;
            self.probers.insert(node, (address, child));
        }
        Ok(())
    }

    fn close_writes(&self, but: Option<&str>, why: &str) {
        let closed = self.shared.connections.close_writes(but);
        if closed > 0 {
            tracing::info!(closed, why, "write connections were closed");
        }
    }
}

impl Performer<Database> for DatabasePerformer {
    type Reply = Report;

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::Watch { nodes } => {
                if let Err(error) = self.watch(nodes, me) {
                    me.fail(error);
                }
            }
            Effect::Route { routing } => self.shared.connections.route(*routing),
            Effect::CloseWrites { but, why } => self.close_writes(but.as_deref(), &why),
            Effect::AgedAt { at } => {
                if let Err(error) = me.after(at, 0, Event::Aged) {
                    me.fail(error.to_string());
                }
            }
            Effect::Say { line } if line.is_warning() => tracing::warn!("{line}"),
            Effect::Say { line } => tracing::info!("{line}"),
            Effect::Reply { reply, report } => {
                // Whoever asked may have gone.
                me.reply(reply, *report);
            }
        }
    }

    fn first(&mut self, me: &Me) -> Option<Event> {
        for (port, listener) in self.listeners.iter() {
            let accepting = serve::accept(Arc::clone(&self.shared), *port, Arc::clone(listener));
            if let Err(error) = me.attend(accepting) {
                me.fail(error.to_string());
            }
        }
        Some(Event::Started)
    }
}

impl BalancerHandle {
    fn database(&self) -> Option<Me> {
        self.directory.find(DATABASE)
    }

    /// Where writes are taken.
    pub fn rw(&self) -> SocketAddr {
        self.shared.rw
    }

    /// Where reads are taken.
    pub fn ro(&self) -> Option<SocketAddr> {
        self.shared.ro
    }

    /// The open connections.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
    }

    /// The balancer's actors.
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Takes another list of nodes; no connection is dropped for it (DB-44).
    ///
    /// # Errors
    /// When the balancer has stopped.
    pub fn relist(&self, nodes: BTreeMap<String, String>) -> Result<(), SendError> {
        let down = || SendError::Down { path: DATABASE.into() };
        self.database().ok_or_else(down)?.send(Event::Nodes { nodes })
    }

    /// The state of the balancer.
    ///
    /// # Errors
    /// When the actor that decides does not answer.
    pub async fn status(&self) -> Result<Status, AskError> {
        let down = || SendError::Down { path: DATABASE.into() };
        let database = self.database().ok_or_else(down)?;
        let report = database.ask(CALL_WAIT, |reply| Event::Asked { reply }).await?;
        Ok(Status::new(&self.shared, report))
    }

    /// Waits until the balancer has ended by itself, and says how.
    pub async fn ended(&self) -> Exit {
        match self.root.lock().await.as_mut() {
            Some(root) => root.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Stops accepting, then ends every connection.
    pub async fn stop(&self) {
        let root = self.root.lock().await.take();
        if let Some(mut root) = root {
            root.stop().await;
        }
        self.shared.connections.abort();
    }

    /// Ends the balancer at once, as a crash would.
    pub fn kill(&self) {
        self.directory.kill_all();
        self.shared.connections.abort();
    }
}
