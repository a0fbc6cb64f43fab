//! The database balancer's actors: one decides, one a node probes. Connections are tasks that read what was decided.
//!
//! ```text
//! balancer              alone, or in a node's tree as `balancers/NAME-N`
//! ├─ probers          ─ NODE-N     one a node
//! └─ database         decides; its tasks accept connections
//! ```

pub mod connections;
mod door;
pub mod probe;
mod prober;
pub mod role;
mod serve;
pub mod status;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
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
    network::Network,
    splice::{SpliceWaits, Splicer},
};

use self::{connections::Connections, door::Door, probe::Probes, prober::ProberPerformer, status::Status};
use crate::{
    directory::{Context, Directory, lock},
    handle::{AskError, Handle, SendError},
    shell::Performer,
    supervisor::{ChildSpec, Root, SupervisorHandle},
};

type Me = Handle<Database, Report>;

/// The nodes of a database cluster: addresses by id.
pub type Nodes = BTreeMap<String, String>;

/// What a balancer is on its host, whoever lists its nodes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What asks the nodes.
    pub probes: Arc<dyn Probes>,
    /// What decides.
    pub settings: Settings,
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

/// What a balancer is started with that stands alone.
#[derive(Debug)]
pub struct Options {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Its ports and how it decides.
    pub setup: Setup,
    /// The nodes.
    pub nodes: Nodes,
}

/// What the actors and the connections of one balancer share.
#[derive(Debug)]
struct Shared {
    /// Where its supervisor stands in the tree.
    place: String,
    clock: Arc<dyn Clock>,
    network: Arc<dyn Network>,
    setup: Setup,
    connections: Arc<Connections>,
    splicer: Splicer,
    doors: Vec<Arc<Door>>,
    started: Moment,
    /// Probers so far, so that no two have one id.
    probers: AtomicU64,
}

impl Shared {
    fn new(place: String, clock: Arc<dyn Clock>, network: Arc<dyn Network>, setup: Setup) -> Arc<Self> {
        let wanted = [(Port::Rw, Some(setup.rw)), (Port::Ro, setup.ro)];
        let doors = wanted.into_iter().filter_map(|(port, address)| Some(Arc::new(Door::new(port, address?))));
        Arc::new(Self {
            place,
            splicer: Splicer::new(Arc::clone(&network), Arc::clone(&clock), SpliceWaits::default()),
            connections: Arc::new(Connections::new(setup.capacity)),
            doors: doors.collect(),
            started: clock.now(),
            clock,
            network,
            setup,
            probers: AtomicU64::new(0),
        })
    }

    /// Where the actor that decides stands in the tree.
    fn database(&self) -> String {
        format!("{}/database", self.place)
    }

    fn door(&self, port: Port) -> Option<&Arc<Door>> {
        self.doors.iter().find(|door| door.port == port)
    }
}

/// A running balancer, alone or as a role of a node.
#[derive(Debug)]
pub struct BalancerHandle {
    shared: Arc<Shared>,
    directory: Directory,
    /// The tree of one that stands alone. An async lock, so that whoever waits for the end may give up without taking
    /// the tree along.
    root: tokio::sync::Mutex<Option<Root>>,
}

/// Starts a balancer that stands alone.
///
/// # Errors
/// Which port could not be opened, or why the actors did not start.
pub async fn start(options: Options) -> Result<BalancerHandle, String> {
    let shared =
        Shared::new("balancer".to_owned(), Arc::clone(&options.clock), Arc::clone(&options.network), options.setup);
    for door in &shared.doors {
        door.open(&*options.network).map_err(|error| format!("{} on {}: {error}", door.port.word(), door.address()))?;
    }
    let context = Context::new(options.clock, options.entropy, "balancer");
    let directory = context.directory.clone();
    let children = children(&shared, options.nodes);
    let failed = |reason| tracing::error!(reason, "the balancer's root supervisor gave up");
    let root = Root::start(context, "balancer", move |_| children, failed).await?;
    Ok(BalancerHandle { shared, directory, root: tokio::sync::Mutex::new(Some(root)) })
}

/// The balancer's actors, from left to right as they start.
fn children(shared: &Arc<Shared>, nodes: Nodes) -> Vec<ChildSpec> {
    let of = Arc::clone(shared);
    // A restarted balancer begins with the list that it had last.
    let listed = Arc::new(Mutex::new(nodes));
    vec![
        ChildSpec::supervisor("probers", Restart::Permanent, |_| Vec::new()),
        ChildSpec::actor("database", Restart::Permanent, move |_| {
            let nodes = lock(&listed).clone();
            let performer =
                DatabasePerformer { shared: Arc::clone(&of), listed: Arc::clone(&listed), probers: BTreeMap::new() };
            Ok((Database::new(of.setup.settings.clone(), nodes), performer))
        }),
    ]
}

/// Performs what the balancer decides.
struct DatabasePerformer {
    shared: Arc<Shared>,
    listed: Arc<Mutex<Nodes>>,
    /// The address and the child of each node's prober.
    probers: BTreeMap<String, (String, String)>,
}

impl DatabasePerformer {
    /// Adds and removes probers until they are those of `nodes`.
    fn watch(&mut self, nodes: Nodes, me: &Me) -> Result<(), String> {
        lock(&self.listed).clone_from(&nodes);
        let place = format!("{}/probers", self.shared.place);
        let supervisor = me.directory().and_then(|directory| SupervisorHandle::find(&directory, &place));
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
                let settings = &shared.setup.settings;
                let prober = Prober::new(of.clone(), at.clone(), settings.period_ms, settings.timeout_ms);
                Ok((prober, ProberPerformer::new(&shared, of.clone(), at.clone())))
            });
            added.map_err(|error| error.to_string())?;
            self.probers.insert(node, (address, child));
        }
        Ok(())
    }

    fn close_writes(&self, but: Option<&str>, why: &str) {
        let closed = self.shared.connections.close_writes(but);
        if closed > 0 {
            tracing::info!("{closed} write connections were closed: {why}");
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
        for door in &self.shared.doors {
            let accepting = serve::accept(Arc::clone(&self.shared), Arc::clone(door));
            if let Err(error) = me.attend(accepting) {
                me.fail(error.to_string());
            }
        }
        Some(Event::Started)
    }
}

impl BalancerHandle {
    fn database(&self) -> Option<Me> {
        self.directory.find(&self.shared.database())
    }

    fn down(&self) -> SendError {
        SendError::Down { path: self.shared.database().into() }
    }

    /// Where writes are taken.
    pub fn rw(&self) -> SocketAddr {
        self.shared.door(Port::Rw).map_or(self.shared.setup.rw, |door| door.address())
    }

    /// Where reads are taken.
    pub fn ro(&self) -> Option<SocketAddr> {
        self.shared.door(Port::Ro).map(|door| door.address())
    }

    /// The open connections.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
    }

    /// The actors among which the balancer's are.
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Takes another list of nodes; no connection is dropped for it (DB-44).
    ///
    /// # Errors
    /// When the balancer has stopped.
    pub fn relist(&self, nodes: Nodes) -> Result<(), SendError> {
        self.database().ok_or_else(|| self.down())?.send(Event::Nodes { nodes })
    }

    /// The state of the balancer.
    ///
    /// # Errors
    /// When the actor that decides does not answer.
    pub async fn status(&self) -> Result<Status, AskError> {
        let database = self.database().ok_or_else(|| self.down())?;
        let report = database.ask(CALL_WAIT, |reply| Event::Asked { reply }).await?;
        Ok(Status::new(&self.shared, report))
    }

    /// The same by what was published last, also while the actor is stuck; nothing before its first turn.
    pub fn published(&self) -> Option<Status> {
        let (database, _) = self.database()?.published()?;
        Some(Status::new(&self.shared, database.report(self.shared.clock.now())))
    }

    /// Waits until a balancer that stands alone has ended by itself, and says how.
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
        self.end();
    }

    /// Closes the ports for good and ends every connection.
    fn end(&self) {
        for door in &self.shared.doors {
            door.close();
        }
        self.shared.connections.abort();
    }

    /// Ends a balancer that stands alone at once, as a crash would.
    pub fn kill(&self) {
        self.directory.kill_all();
        self.end();
    }
}
