//! A world: hosts with disks, clocks and networks, and the nodes on them, started, crashed and started again.

use std::{collections::BTreeMap, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use postroad_actors::{
    balancer::Setup,
    ports::{Ports, Settings},
    root::{self, NodeHandle},
    setup::{Founded, Invitation, SetupError, enrol, found},
};
use postroad_cluster::{
    balancer::proxy_header::TrustedSources,
    command::{Action, LinkSpec, Outcome, Refusal, VerifierBytes},
    domain::FailureDomain,
    id::{LinkId, Name, NodeId, Role},
    limits::SPREAD_DEFAULT,
    time::{Clock as _, Span},
};
use postroad_raft::{AppliedEntry, Observer, Retention, Timing};
use postroad_store::{Databases, Writing};
use postroad_trust::{Authority, JoinSecret};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, time::Instant};

use crate::{
    clock::{SimClock, SimEntropy, Skew},
    disk::SimDisk,
    network::{Condition, Fabric, Host, SimNetwork},
};

/// The port of control nodes and relays.
pub const PORT: u16 = 9443;

/// One host of the world and the node on it.
pub struct Machine {
    /// The host.
    pub host: Host,
    /// The node's name.
    pub name: Name,
    /// The node's number, once it has joined.
    pub id: Option<NodeId>,
    /// Its roles, as its token gave them.
    pub role: Role,
    /// Its disk.
    pub disk: SimDisk,
    /// Its clock.
    pub clock: SimClock,
    /// The running node.
    pub node: Option<NodeHandle>,
    /// The network of applications on this host, which start and end with the host.
    pub applications: SimNetwork,
    settings: Settings,
    boots: u64,
    paused_until: Option<Instant>,
}

/// A world of one seed.
pub struct World {
    /// The seed.
    pub seed: u64,
    /// The network.
    pub fabric: Fabric,
    /// The hosts in order.
    pub machines: Vec<Machine>,
    /// The cluster's authority, as its operator keeps it.
    pub authority: Option<Authority>,
    /// The world's chance.
    pub rng: StdRng,
    began: Instant,
    observer: Option<Arc<dyn Observer>>,
}

/// What a host is to be.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The node's name.
    pub name: &'static str,
    /// Its role.
    pub role: Role,
}

/// An enrolment under way.
pub type Enrolment = Pin<Box<dyn Future<Output = Result<NodeId, SetupError>> + Send>>;

fn name(text: &str) -> Name {
    text.parse().expect("the world's names are good")
}

impl World {
    /// An empty world; the network runs in a task of its own. Call it inside a paused current-thread runtime.
    #[must_use]
    pub fn new(seed: u64, condition: Condition, observer: Option<Arc<dyn Observer>>) -> Self {
        postroad_raft::runtime::seed(seed);
        let fabric = Fabric::new(seed ^ 0x4e65_7477_6f72_6b00, condition);
        tokio::spawn(fabric.clone().run());
        Self {
            seed,
            fabric,
            machines: Vec::new(),
            authority: None,
            rng: StdRng::seed_from_u64(seed),
            began: Instant::now(),
            observer,
        }
    }

    /// How long the world has lasted.
    #[must_use]
    pub fn age(&self) -> Duration {
        Instant::now().duration_since(self.began)
    }

    /// Adds a host with an empty disk, each in failure domains of its own.
    pub fn add(&mut self, plan: Plan) -> usize {
        let number = self.machines.len() as u16 + 1;
        let host = Host(number);
        let skew = Skew {
            boot_offset_ns: self.rng.random_range(1..1_000_000_000_000),
            wall_offset_ms: self.rng.random_range(-500..=500),
            rate_ppm: self.rng.random_range(-200..=200),
        };
        let address = |port| SocketAddr::new(host.ip(), port);
        let mut settings = Settings::new(address(PORT), address(0));
        let part = |word: &str| Some(name(&format!("{word}-{number}")));
        settings.domain =
            FailureDomain { host: part("host"), power: part("power"), network: part("network"), zone: None };
        if plan.role != Role::Node {
            settings.advertised = Some(format!("{}:{PORT}", plan.name));
        }
        settings.timing = Timing {
            heartbeat: Duration::from_millis(150),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_secs(1),
        };
        settings.retention = Retention { snapshot_entries: 50, keep_entries: 10 };
        self.fabric.name(plan.name, host);
        let applications = self.fabric.boot(host);
        self.machines.push(Machine {
            host,
            name: name(plan.name),
            id: None,
            role: plan.role,
            disk: SimDisk::new(),
            clock: SimClock::new(self.began, skew),
            node: None,
            applications,
            settings,
            boots: 0,
            paused_until: None,
        });
        self.machines.len() - 1
    }

    /// Gives a host what it needs for a database balancer, as its configuration would; from its next start on.
    pub fn balances(&mut self, index: usize, text: &str, setup: Setup) {
        self.machines[index].settings.balancers.insert(name(text), setup);
    }

    /// Has a host's links take a PROXY header off connections from these addresses; from its next start on.
    pub fn trusts(&mut self, index: usize, sources: TrustedSources) {
        self.machines[index].settings.proxy_protocol_from = sources;
    }

    /// The ports of a new incarnation of a host.
    fn boot(&mut self, index: usize) -> (Ports, Settings) {
        let entropy_seed = self.rng.random::<u64>();
        let machine = &mut self.machines[index];
        machine.boots += 1;
        machine.disk = machine.disk.restarted();
        let network = self.fabric.boot(machine.host);
        machine.applications = network.clone();
        let mut settings = machine.settings.clone();
        settings.observer = self.observer.clone().map(|inner| {
            let network = network.clone();
            Arc::new(Fenced { inner, network }) as Arc<dyn Observer>
        });
        let ports = Ports {
            clock: Arc::new(machine.clock.clone()),
            entropy: Arc::new(SimEntropy::new(entropy_seed)),
            disk: Arc::new(machine.disk.clone()),
            writing: Writing::Inline,
            network: Arc::new(network),
            carriage: Handle::current(),
            boot_id: machine.boots,
        };
        (ports, settings)
    }

    /// Founds the cluster on a host and starts its node.
    ///
    /// # Errors
    /// Why it could not be founded.
    pub async fn found(&mut self, index: usize) -> Result<(), String> {
        let (ports, settings) = self.boot(index);
        let databases = open(&ports)?;
        let cluster = name("harbour");
        let own = self.machines[index].name.clone();
        let Founded { node, authority } =
            found(&ports, &settings, &databases, cluster, own).await.map_err(|error| error.to_string())?;
        self.authority = Some(authority);
        self.machines[index].id = Some(node);
        let node = root::start(ports, settings, databases).await.map_err(|error| error.to_string())?;
        self.machines[index].node = Some(node);
        Ok(())
    }

    /// A control node that runs.
    fn control(&self) -> Option<&NodeHandle> {
        let controls = self.machines.iter().filter(|machine| machine.role == Role::Control);
        controls.filter_map(|machine| machine.node.as_ref()).find(|node| node.service().is_some())
    }

    /// Proposes at any control node.
    ///
    /// # Errors
    /// The refusal, or that there is no control node.
    pub async fn propose(&self, action: Action) -> Result<Outcome, Refusal> {
        let nobody = || Refusal::new("NO_CONTROL", "no control node runs", "");
        let node = self.control().ok_or_else(nobody)?;
        node.service().ok_or_else(nobody)?.propose(action, None).await
    }

    /// Makes a one-time token.
    ///
    /// # Errors
    /// The refusal, or that no control node runs.
    pub async fn token(&mut self, role: Role, lifetime: Span) -> Result<JoinSecret, String> {
        let secret = JoinSecret::generate(&SimEntropy::new(self.rng.random()));
        let expires = self.control().ok_or("no control node runs")?.fabric().clock.wall().after(lifetime);
        let action = Action::TokenCreate {
            token: secret.id(),
            verifier: VerifierBytes(secret.verifier().to_bytes()),
            roles: [role].into(),
            expires,
        };
        self.propose(action).await.map_err(|refusal| refusal.to_string())?;
        Ok(secret)
    }

    /// Begins to enrol a host by a token over the seeds, the first of which is dead. It goes on by itself, so that
    /// several may be under way; [`World::enrolled`] tells the world of its end.
    ///
    /// # Errors
    /// If no cluster was founded.
    pub fn enrolment(&mut self, index: usize, secret: JoinSecret) -> Result<Enrolment, String> {
        let (ports, settings) = self.boot(index);
        let mut seeds = vec![format!("10.0.200.200:{PORT}")];
        let controls = self.machines.iter().filter(|machine| machine.role == Role::Control);
        let founded = controls.filter(|machine| machine.id.is_some());
        seeds.extend(founded.filter_map(|machine| machine.settings.advertised.clone()));
        let invitation = Invitation {
            seeds,
            fingerprint: self.authority.as_ref().ok_or("no cluster was founded")?.fingerprint(),
            secret,
            name: self.machines[index].name.clone(),
        };
        Ok(Box::pin(async move {
            let databases = Databases::open(&*ports.disk, ports.writing).map_err(SetupError::Store)?;
            enrol(&ports, &settings, &databases, invitation).await.map(|kept| kept.node)
        }))
    }

    /// Says who a host has become, so that it can be started.
    pub fn enrolled(&mut self, index: usize, node: NodeId) {
        self.machines[index].id = Some(node);
    }

    /// Joins a host by a new token and starts its node.
    ///
    /// # Errors
    /// Why it could not join.
    pub async fn join(&mut self, index: usize) -> Result<(), String> {
        let secret = self.token(self.machines[index].role, Span::from_hours(1)).await?;
        let node = self.enrolment(index, secret)?.await.map_err(|error| error.to_string())?;
        self.enrolled(index, node);
        self.start(index).await
    }

    /// Starts the node of a host from its disk.
    ///
    /// # Errors
    /// Why it does not start.
    pub async fn start(&mut self, index: usize) -> Result<(), String> {
        let (ports, settings) = self.boot(index);
        let databases = open(&ports)?;
        let node = root::start(ports, settings, databases).await.map_err(|error| error.to_string())?;
        self.machines[index].node = Some(node);
        Ok(())
    }

    /// Crashes a host: from this moment every port fails and unsynced writes are gone; then its actors are killed.
    pub fn crash(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        self.fabric.crash(machine.host);
        machine.disk.crash(&mut self.rng);
        if let Some(node) = machine.node.take() {
            node.kill();
        }
    }

    /// Kills the process of a node: what it has written stays, and its sockets are gone.
    pub fn kill(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        self.fabric.crash(machine.host);
        machine.disk.kill();
        if let Some(node) = machine.node.take() {
            node.kill();
        }
    }

    /// Has a host stand still for a while, as after a SIGSTOP: packets and timers wait.
    pub fn pause(&mut self, index: usize, span: Duration) {
        let end = Instant::now() + span;
        let machine = &mut self.machines[index];
        machine.paused_until = Some(end);
        machine.clock.pause_until(end);
        self.fabric.pause_until(machine.host, end);
    }

    /// Whether a host stands still.
    #[must_use]
    pub fn is_paused(&self, index: usize) -> bool {
        self.machines[index].paused_until.is_some_and(|end| end > Instant::now())
    }

    /// The host whose node leads the control group, as it believes itself.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        let leads = |machine: &Machine| {
            let consensus = machine.node.as_ref().and_then(|node| node.fabric().consensus.as_ref());
            consensus.is_some_and(postroad_raft::Consensus::leads)
        };
        self.machines.iter().position(leads)
    }

    /// The host of a node.
    #[must_use]
    pub fn index_of(&self, node: NodeId) -> Option<usize> {
        self.machines.iter().position(|machine| machine.id == Some(node))
    }

    /// Stops a node in order.
    pub async fn stop(&mut self, index: usize) {
        if let Some(node) = self.machines[index].node.take() {
            node.stop().await;
        }
    }

    /// Makes a control node a certified voter.
    ///
    /// # Errors
    /// Why it is none.
    pub async fn promote(&self, index: usize) -> Result<(), String> {
        let machine = &self.machines[index];
        let service = machine.node.as_ref().and_then(NodeHandle::service).ok_or("it is no running control node")?;
        let authority = self.authority.as_ref().ok_or("no cluster was founded")?;
        service.certify(authority).await.map_err(|refusal| refusal.to_string())?;
        let id = machine.id.ok_or("it has not joined")?;
        for _ in 0..50 {
            let leader = self
                .machines
                .iter()
                .filter_map(|machine| machine.node.as_ref())
                .find_map(|node| node.fabric().consensus.as_ref().filter(|consensus| consensus.leads()));
            if let Some(leader) = leader
                && leader.promote(id).await.is_ok()
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err("no leader made it a voter within 10 s".to_owned())
    }

    /// Adds a link from hosts, each listening on a port of its own address, to a port of another host.
    ///
    /// # Errors
    /// The refusal.
    pub async fn link(
        &self,
        text: &str,
        from: &[usize],
        listen: u16,
        to: usize,
        target: u16,
    ) -> Result<LinkId, String> {
        let id = |index: usize| self.machines[index].id.ok_or("the node has not joined");
        let mut consumers = BTreeMap::new();
        for index in from {
            consumers.insert(id(*index)?, SocketAddr::new(self.machines[*index].host.ip(), listen).to_string());
        }
        let target_address = SocketAddr::new(self.machines[to].host.ip(), target).to_string();
        let link = LinkSpec { consumers, target: id(to)?, target_address, spread: SPREAD_DEFAULT };
        match self.propose(Action::LinkAdd { name: name(text), link }).await {
            Ok(Outcome::LinkAdded { link, .. }) => Ok(link),
            Ok(other) => Err(format!("the link came to {other:?}")),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

/// Sees only what the present incarnation of a host does: what a crashed one still believes counts for nothing.
struct Fenced {
    inner: Arc<dyn Observer>,
    network: SimNetwork,
}

impl Observer for Fenced {
    fn on_apply(&self, node: NodeId, entry: &AppliedEntry) {
        if self.network.is_current() {
            self.inner.on_apply(node, entry);
        }
    }

    fn on_install(&self, node: NodeId, entry: &AppliedEntry) {
        if self.network.is_current() {
            self.inner.on_install(node, entry);
        }
    }

    fn on_leader(&self, node: NodeId, term: u64, leader: NodeId) {
        if self.network.is_current() {
            self.inner.on_leader(node, term, leader);
        }
    }

    fn on_vote(&self, node: NodeId, term: u64, candidate: NodeId) {
        if self.network.is_current() {
            self.inner.on_vote(node, term, candidate);
        }
    }

    fn on_start(&self, node: NodeId, vote: Option<(u64, NodeId)>) {
        if self.network.is_current() {
            self.inner.on_start(node, vote);
        }
    }
}

fn open(ports: &Ports) -> Result<Databases, String> {
    Databases::open(&*ports.disk, ports.writing).map_err(|error| error.to_string())
}
