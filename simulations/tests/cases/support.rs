//! What the cases share: a fleet with one link, flows over it, and what its nodes say of themselves.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use postroad_actors::{
    root::NodeHandle,
    status::{ROWS_SECONDS, Sightings, Status, leader_facts, local::Circuit, status},
};
use postroad_cluster::{
    id::{NodeId, Role},
    peer::Peer,
    relay::Relay,
    session::Session,
    wire::session::NodeResponse,
};
use postroad_simulations::{
    network::Condition,
    world::{Plan, World},
};
use postroad_transport::network::{Network, TcpListener, TcpRead, TcpStream, TcpWrite};
use tokio::time::Instant;

/// The host of the founding control node and its local relay.
pub(crate) const AMS: usize = 0;

/// The consumers' port of the link.
pub(crate) const NEAR_PORT: u16 = 5432;

/// The target's port of the link.
pub(crate) const FAR_PORT: u16 = 6432;

/// The content of flows repeats after a prime number of bytes, so that nothing lost, repeated or reordered fits.
const PERIOD: usize = 65_521;

/// What one write or read takes.
const CHUNK: usize = 32 << 10;

/// Runs a case in a world of its own: the Raft group's runtime is one for each thread.
pub(crate) fn run<F: Future<Output = ()>>(case: impl FnOnce() -> F + Send + 'static) {
    let world = std::thread::spawn(|| {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let builder = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        builder.unwrap().block_on(case());
    });
    if let Err(panic) = world.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A cluster of one control node with its local relay, some more relays, and a link from `web` to `db`.
pub(crate) struct Fleet {
    pub(crate) world: World,
    pub(crate) relays: Vec<usize>,
    pub(crate) web: usize,
    pub(crate) db: usize,
    target: Arc<dyn TcpListener>,
    seen: Sightings,
    flows: u64,
}

/// An application's connection through the link, both ends.
pub(crate) struct Flow {
    pub(crate) near: TcpStream,
    pub(crate) far: TcpStream,
    pub(crate) number: u64,
}

/// How one direction of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    File,
    Reset,
}

/// Waits in virtual time until something is so, and says how long that took.
pub(crate) async fn until(what: &str, limit: Duration, mut is: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// Completes within so much virtual time.
pub(crate) async fn within<T>(what: &str, limit: Duration, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Fleet {
    /// Founds it with the relays `fra` and `par`, as many as are asked for, and waits until every path is proven.
    pub(crate) async fn new(seed: u64, condition: Condition, relays: usize) -> Self {
        let mut world = World::new(seed, condition, None);
        world.add(Plan { name: "ams", role: Role::Control });
        let more = ["fra", "par"].into_iter().take(relays);
        let mut all = vec![AMS];
        all.extend(more.map(|name| world.add(Plan { name, role: Role::Relay })));
        let web = world.add(Plan { name: "web", role: Role::Node });
        let db = world.add(Plan { name: "db", role: Role::Node });
        world.found(AMS).await.unwrap();
        for index in 1..world.machines.len() {
            world.join(index).await.unwrap();
        }
        world.link("sql", &[web], NEAR_PORT, db, FAR_PORT).await.unwrap();
        let target = listen(&world, db, FAR_PORT);
        let fleet = Self { world, relays: all, web, db, target, seen: Sightings::default(), flows: 0 };
        fleet.settled().await;
        fleet
    }

    pub(crate) fn node(&self, index: usize) -> &NodeHandle {
        self.world.machines[index].node.as_ref().expect("the node runs")
    }

    pub(crate) fn id(&self, index: usize) -> NodeId {
        self.world.machines[index].id.expect("the node has joined")
    }

    /// What `postroad status` says on that host.
    pub(crate) fn status(&self, index: usize) -> Status {
        let node = self.node(index);
        let rows = node.directory().rows(ROWS_SECONDS);
        status(node.fabric(), node.switch().map(AsRef::as_ref), None, &rows, &self.seen)
    }

    /// What it says on the control node, with what nodes have reported to it.
    pub(crate) fn fleet_status(&self) -> Status {
        let node = self.node(AMS);
        let facts = leader_facts(node.fabric(), &self.seen);
        let rows = node.directory().rows(ROWS_SECONDS);
        status(node.fabric(), node.switch().map(AsRef::as_ref), facts, &rows, &self.seen)
    }

    /// The circuits between the link's two nodes, as one of them sees them.
    pub(crate) fn circuits(&self, index: usize) -> Vec<Circuit> {
        let peer = self.id(if index == self.db { self.web } else { self.db });
        self.status(index).circuits.into_iter().filter(|circuit| circuit.peer == peer).collect()
    }

    /// The one that carries the newest flow, else the first, as one of them sees it.
    pub(crate) fn circuit_at(&self, index: usize) -> Option<Circuit> {
        let (web, db) = (self.node(self.web).fabric(), self.id(self.db));
        let newest = web.flows.views().into_iter().rev().filter(|flow| flow.peer == db).find_map(|flow| flow.circuit);
        let circuits = self.circuits(index);
        let carries = |circuit: &&Circuit| newest.is_some_and(|newest| newest.circuit.0 == circuit.circuit);
        circuits.iter().find(carries).or_else(|| circuits.first()).cloned()
    }

    /// The same as `web` sees it.
    pub(crate) fn circuit(&self) -> Option<Circuit> {
        self.circuit_at(self.web)
    }

    /// The pair of the link's two nodes at its dialling end.
    pub(crate) fn pair(&self) -> Option<Arc<Peer>> {
        let (web, db) = (self.id(self.web), self.id(self.db));
        let dials = if web < db { self.web } else { self.db };
        let path = format!("node/peers/peer-{}", web.max(db).0);
        Some(self.node(dials).directory().find::<Peer, ()>(&path)?.published()?.0)
    }

    /// The relays that take new connections of the pair, as that has decided.
    pub(crate) fn takers(&self) -> Vec<NodeId> {
        self.pair().map(|pair| pair.takers.clone()).unwrap_or_default()
    }

    /// The host of the relay that carries the newest flow.
    pub(crate) fn carrier(&self) -> usize {
        let relay = self.circuit().and_then(|circuit| circuit.relay).expect("a relay carries the circuit");
        self.relays.iter().copied().find(|index| self.id(*index) == relay).expect("it is one of the fleet")
    }

    /// Whether a host's session with a relay stands.
    pub(crate) fn session_is_up(&self, node: usize, relay: usize) -> bool {
        let relay = self.id(relay);
        self.status(node).sessions.iter().any(|session| session.relay == relay && session.up)
    }

    /// The session of a host with a relay.
    pub(crate) fn session(&self, node: usize, relay: usize) -> Arc<Session> {
        let path = format!("node/sessions/relay-{}", self.id(relay).0);
        let handle = self.node(node).directory().find::<Session, ()>(&path).expect("the session's actor is there");
        handle.published().expect("it has a state").0
    }

    /// The relay service of a host.
    pub(crate) fn service(&self, relay: usize) -> Arc<Relay> {
        let handle = self.node(relay).directory().find::<Relay, NodeResponse>("node/relay");
        handle.and_then(|handle| handle.published()).expect("the relay service has a state").0
    }

    fn is_settled(&self) -> bool {
        let running = self.relays.iter().filter(|relay| self.world.machines[**relay].node.is_some()).count();
        let takers = self.takers();
        let proven = |index: usize| {
            // One that its dialler gave up may be left for a minute.
            let mut circuits = self.circuits(index);
            circuits.retain(|circuit| circuit.connected);
            let lies = |relay: &NodeId| circuits.iter().any(|circuit| circuit.relay == Some(*relay));
            let candidates = |circuit: &Circuit| circuit.channels.iter().filter(|channel| channel.candidate).count();
            let all = circuits.iter().all(|circuit| candidates(circuit) == running);
            !takers.is_empty() && takers.iter().all(lies) && all
        };
        let registered = self.status(self.db).links.first().map_or(0, |link| link.registered_at.len());
        let open = self.status(self.web).links.first().is_some_and(|link| link.listener.as_deref() == Some("open"));
        proven(self.web) && proven(self.db) && registered == running && open
    }

    /// Waits until every relay that runs is registered at and is a proven path.
    pub(crate) async fn settled(&self) {
        within("every relay is a proven path", seconds(40), async {
            // The whole status costs more than the other looks.
            while !self.is_settled() {
                tokio::time::sleep(ms(100)).await;
            }
        })
        .await;
    }

    pub(crate) fn crash(&mut self, index: usize) {
        self.world.crash(index);
    }

    /// Starts a host from its disk; the target listens again on its own.
    pub(crate) async fn start(&mut self, index: usize) {
        self.world.start(index).await.unwrap();
        if index == self.db {
            self.target = listen(&self.world, self.db, FAR_PORT);
        }
    }

    /// Nobody listens at the target any more.
    pub(crate) fn target_stops(&mut self) {
        self.target = listen(&self.world, self.db, FAR_PORT + 1);
    }

    /// One direction between two hosts, or both, is cut or mended.
    pub(crate) fn cut(&self, from: usize, to: usize, cut: bool) {
        let (from, to) = (self.world.machines[from].host, self.world.machines[to].host);
        let condition = self.world.fabric.condition(from, to);
        self.world.fabric.set(from, to, Condition { cut, ..condition });
    }

    /// Ways to and from a host take datagrams of at most so many bytes.
    pub(crate) fn narrow(&self, index: usize, payload_bytes_max: usize) {
        let host = self.world.machines[index].host;
        for other in self.world.machines.iter().map(|machine| machine.host).filter(|other| *other != host) {
            for (from, to) in [(host, other), (other, host)] {
                let condition = self.world.fabric.condition(from, to);
                self.world.fabric.set(from, to, Condition { payload_bytes_max, ..condition });
            }
        }
    }

    pub(crate) fn cut_both(&self, one: usize, other: usize, cut: bool) {
        self.cut(one, other, cut);
        self.cut(other, one, cut);
    }

    /// What an application on `web` gets that connects to the link.
    pub(crate) async fn connect(&self, port: u16) -> TcpStream {
        let web = &self.world.machines[self.web];
        web.applications.tcp_connect(SocketAddr::new(web.host.ip(), port)).await.expect("the link listens")
    }

    /// Opens a flow and proves it in both directions.
    pub(crate) async fn open(&mut self) -> Flow {
        within("a new flow opens", seconds(2), self.open_somehow()).await
    }

    /// The next connection that the target gets.
    pub(crate) async fn accept(&self) -> TcpStream {
        self.target.accept().await.expect("the target listens")
    }

    async fn open_somehow(&mut self) -> Flow {
        self.flows += 1;
        let number = self.flows;
        let mut near = self.connect(NEAR_PORT).await;
        send(&mut *near.write, number, 0, 8).await.unwrap();
        loop {
            let mut far = self.target.accept().await.unwrap();
            // An earlier attempt may have reached the target before it was given up.
            if receive(&mut *far.read, number, 0, 8).await.is_ok() {
                send(&mut *far.write, number, 0, 8).await.unwrap();
                receive(&mut *near.read, number, 0, 8).await.unwrap();
                return Flow { near, far, number };
            }
        }
    }
}

/// Listens on a port of a host, as an application there.
pub(crate) fn listen(world: &World, index: usize, port: u16) -> Arc<dyn TcpListener> {
    let machine = &world.machines[index];
    machine.applications.tcp_listen(SocketAddr::new(machine.host.ip(), port)).expect("the port is free")
}

impl Flow {
    /// Sends something there and back, and says how long that took.
    pub(crate) async fn echo(&mut self) -> Duration {
        let began = Instant::now();
        let number = self.number;
        let (sent, got) =
            tokio::join!(send(&mut *self.near.write, number, 8, 100), receive(&mut *self.far.read, number, 8, 100));
        assert_eq!((sent.map_err(|error| error.kind()), got), (Ok(()), Ok(())));
        let (sent, got) =
            tokio::join!(send(&mut *self.far.write, number, 8, 100), receive(&mut *self.near.read, number, 8, 100));
        assert_eq!((sent.map_err(|error| error.kind()), got), (Ok(()), Ok(())));
        began.elapsed()
    }

    /// Echoes all along for so long, and says how long the slowest took.
    pub(crate) async fn busy(&mut self, for_: Duration) -> Duration {
        let began = Instant::now();
        let mut slowest = Duration::ZERO;
        while began.elapsed() < for_ {
            slowest = slowest.max(within("an echo comes back", seconds(20), self.echo()).await);
            tokio::time::sleep(ms(10)).await;
        }
        slowest
    }
}

/// The bytes of a stream from an offset on, one chunk at most.
fn content(seed: u64, offset: usize, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let pattern = PATTERNS.with_borrow_mut(|patterns| {
        let made = patterns.entry(seed).or_insert_with(|| {
            let next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            };
            let once: Vec<u8> = std::iter::repeat_with(next).take(PERIOD).collect();
            // Long enough that a chunk from any place in the period is one slice.
            Arc::new([&once[..], &once[..CHUNK]].concat())
        });
        Arc::clone(made)
    });
    pattern[offset % PERIOD..][..length.min(CHUNK)].to_vec()
}

thread_local! {
    static PATTERNS: std::cell::RefCell<std::collections::BTreeMap<u64, Arc<Vec<u8>>>> = std::cell::RefCell::default();
}

/// Writes one piece of a stream's content and says how much was taken.
pub(crate) async fn send_some(write: &mut dyn TcpWrite, seed: u64, offset: usize, length: usize) -> io::Result<usize> {
    let bytes = content(seed, offset, length);
    poll_fn(|context| write.poll_write(context, &[IoSlice::new(&bytes)])).await
}

/// Writes a stream's content.
pub(crate) async fn send(write: &mut dyn TcpWrite, seed: u64, offset: usize, length: usize) -> io::Result<()> {
    let mut sent = 0;
    while sent < length {
        sent += send_some(write, seed, offset + sent, length - sent).await?;
    }
    Ok(())
}

/// Writes until nothing more was taken for a second, and says how much was.
pub(crate) async fn fill(write: &mut dyn TcpWrite, seed: u64, offset: usize) -> usize {
    let mut sent = 0;
    while let Ok(taken) = tokio::time::timeout(seconds(1), send_some(write, seed, offset + sent, CHUNK)).await {
        sent += taken.expect("the connection stands");
    }
    sent
}

pub(crate) async fn shut(write: &mut dyn TcpWrite) {
    poll_fn(|context| write.poll_shutdown(context)).await.expect("the connection stands");
}

async fn read_some(read: &mut dyn TcpRead, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        poll_fn(|context| read.poll_readable(context)).await?;
        match read.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// Reads a stream's content and compares every byte.
pub(crate) async fn receive(read: &mut dyn TcpRead, seed: u64, offset: usize, length: usize) -> Result<(), String> {
    let mut buffer = vec![0; CHUNK];
    let mut got = 0;
    while got < length {
        let room = (length - got).min(CHUNK);
        match read_some(read, &mut buffer[..room]).await {
            Ok(0) => return Err(format!("ended after {got} of {length} bytes")),
            Ok(more) => {
                if buffer[..more] != content(seed, offset + got, more)[..] {
                    return Err(format!("wrong bytes within {more} after {got} of {length}"));
                }
                got += more;
            }
            Err(error) => return Err(format!("{error} after {got} of {length} bytes")),
        }
    }
    Ok(())
}

/// Reads what is there of a stream's content, compares it, and says how much it was.
pub(crate) async fn receive_some(read: &mut dyn TcpRead, seed: u64, offset: usize) -> Result<usize, String> {
    let mut buffer = vec![0; CHUNK];
    match read_some(read, &mut buffer).await {
        Ok(0) => Err(format!("ended at {offset}")),
        Ok(more) if buffer[..more] == content(seed, offset, more)[..] => Ok(more),
        Ok(more) => Err(format!("wrong bytes within {more} at {offset}")),
        Err(error) => Err(format!("{error} at {offset}")),
    }
}

/// One end says all it has to say and closes; the other hears that, answers with 1 MiB and closes.
pub(crate) async fn half_close(mut flow: Flow, near_first: bool) {
    if !near_first {
        std::mem::swap(&mut flow.near, &mut flow.far);
    }
    send(&mut *flow.near.write, 3, 0, 100_000).await.unwrap();
    shut(&mut *flow.near.write).await;
    assert_eq!(receive(&mut *flow.far.read, 3, 0, 100_000).await, Ok(()));
    assert_eq!(within("end of file", seconds(1), ended(&mut *flow.far.read)).await, End::File);
    let answer = async {
        send(&mut *flow.far.write, 4, 0, 1 << 20).await.unwrap();
        shut(&mut *flow.far.write).await;
    };
    let ((), got) = tokio::join!(answer, receive(&mut *flow.near.read, 4, 0, 1 << 20));
    assert_eq!(got, Ok(()), "the other direction is whole");
    assert_eq!(within("end of file", seconds(1), ended(&mut *flow.near.read)).await, End::File);
}

/// How a connection ends from which nothing more is to come.
pub(crate) async fn ended(read: &mut dyn TcpRead) -> End {
    let mut buffer = [0; 64];
    match read_some(read, &mut buffer).await {
        Ok(0) => End::File,
        Ok(more) => panic!("{more} bytes came that nobody sent"),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            End::Reset
        }
    }
}
