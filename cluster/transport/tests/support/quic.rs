//! What the tests of connections share: a cluster with its authority, seeded entropy, a clock on tokio's paused time,
//! and sockets in memory whose packets are recorded.
// Each test file uses its own part of this.
#![allow(dead_code)]

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use postroad_cluster::{
    id::{Name, NodeId, Role},
    limits::CERTIFICATE_LIFETIME,
    time::{Clock, Entropy, Moment, Span, Timer, WallTime},
};
use postroad_transport::{
    endpoint::{Accepted, Endpoint, EndpointOptions, transport},
    tls::{Identity, Protocol, SharedIdentity, SharedTrust},
};
use postroad_trust::{Anchors, Authority, Issuer, SigningKey, Subject, sha256};
use quinn::{
    AsyncUdpSocket, TransportConfig, UdpPoller,
    udp::{RecvMeta, Transmit},
};

/// The time at which every test begins: 2026-01-01 00:00 UTC.
pub(crate) const WALL: WallTime = WallTime(1_767_225_600_000);

/// A clock on tokio's time; `skew_ms` is what its wall clock is off by.
pub(crate) struct TestClock {
    begin: tokio::time::Instant,
    skew_ms: AtomicI64,
}

impl TestClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { begin: tokio::time::Instant::now(), skew_ms: AtomicI64::new(0) })
    }

    pub(crate) fn jump(&self, ms: i64) {
        self.skew_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestClock")
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment(self.begin.elapsed().as_nanos() as u64)
    }

    fn wall(&self) -> WallTime {
        let wall = WALL.after(self.begin.elapsed());
        WallTime(wall.0.saturating_add_signed(self.skew_ms.load(Ordering::Relaxed)))
    }

    fn sleep_until(&self, deadline: Moment) -> Timer {
        Box::pin(tokio::time::sleep(deadline.since(self.now())))
    }
}

/// Entropy that repeats.
#[derive(Debug)]
pub(crate) struct Seeded(u64, Mutex<u64>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(seed, Mutex::new(0)))
    }
}

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        let mut counter = self.1.lock().unwrap();
        for chunk in bytes.chunks_mut(32) {
            *counter += 1;
            let block = sha256(&[&self.0.to_be_bytes(), &counter.to_be_bytes()]);
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

/// One packet: microseconds since the fabric began, from, to, length.
pub(crate) type Packet = (u64, SocketAddr, SocketAddr, usize);

#[derive(Default)]
struct Inbox {
    packets: VecDeque<(SocketAddr, Vec<u8>)>,
    waker: Option<Waker>,
    /// Which socket of this address is the present one: an older one is a process that was killed.
    incarnation: u64,
}

struct State {
    begin: tokio::time::Instant,
    inboxes: BTreeMap<SocketAddr, Inbox>,
    packets: Vec<Packet>,
    /// Addresses whose packets vanish, both ways.
    cut: Vec<SocketAddr>,
}

/// A network in memory: 5 ms one way, no loss.
#[derive(Clone)]
pub(crate) struct Fabric(Arc<Mutex<State>>);

impl Fabric {
    pub(crate) fn new() -> Self {
        let begin = tokio::time::Instant::now();
        Self(Arc::new(Mutex::new(State { begin, inboxes: BTreeMap::new(), packets: Vec::new(), cut: Vec::new() })))
    }

    pub(crate) fn bind(&self, address: &str) -> Arc<MemorySocket> {
        let address = address.parse().unwrap();
        let mut state = self.0.lock().unwrap();
        let incarnation = state.inboxes.get(&address).map_or(0, |inbox| inbox.incarnation + 1);
        state.inboxes.insert(address, Inbox { incarnation, ..Inbox::default() });
        Arc::new(MemorySocket { fabric: self.clone(), address, incarnation })
    }

    pub(crate) fn cut(&self, address: SocketAddr) {
        self.0.lock().unwrap().cut.push(address);
    }

    pub(crate) fn heal(&self) {
        self.0.lock().unwrap().cut.clear();
    }

    pub(crate) fn packets(&self) -> Vec<Packet> {
        self.0.lock().unwrap().packets.clone()
    }

    fn deliver(&self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let mut state = self.0.lock().unwrap();
        if state.cut.contains(&from) || state.cut.contains(&to) {
            return;
        }
        let waker = state.inboxes.get_mut(&to).and_then(|inbox| {
            inbox.packets.push_back((from, bytes));
            inbox.waker.take()
        });
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub(crate) struct MemorySocket {
    fabric: Fabric,
    address: SocketAddr,
    incarnation: u64,
}

impl fmt::Debug for MemorySocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemorySocket({})", self.address)
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for MemorySocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (fabric, from, to) = (self.fabric.clone(), self.address, transmit.destination);
        let bytes = transmit.contents.to_vec();
        let mut state = fabric.0.lock().unwrap();
        if state.inboxes[&from].incarnation != self.incarnation {
            return Ok(());
        }
        let at = state.begin.elapsed().as_micros() as u64;
        state.packets.push((at, from, to, bytes.len()));
        drop(state);
        tokio::spawn(async move {
            tokio::time::sleep(Span::from_millis(5)).await;
            fabric.deliver(from, to, bytes);
        });
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.fabric.0.lock().unwrap();
        let inbox = state.inboxes.get_mut(&self.address).unwrap();
        if inbox.incarnation != self.incarnation {
            return Poll::Pending;
        }
        let Some((from, bytes)) = inbox.packets.pop_front() else {
            inbox.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        buffers[0][..bytes.len()].copy_from_slice(&bytes);
        let mut received = RecvMeta::default();
        (received.addr, received.len, received.stride) = (from, bytes.len(), bytes.len());
        meta[0] = received;
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// A cluster: its authority, one issuer, the fabric and the clock of every node.
pub(crate) struct World {
    pub(crate) authority: Authority,
    pub(crate) issuer: Issuer,
    pub(crate) entropy: Arc<Seeded>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) fabric: Fabric,
}

/// A node of the world with its endpoint.
pub(crate) struct Node {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) identity: SharedIdentity,
    pub(crate) trust: SharedTrust,
    pub(crate) address: SocketAddr,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self::named("prod", seed, Fabric::new())
    }

    pub(crate) fn named(cluster: &str, seed: u64, fabric: Fabric) -> Self {
        let entropy = Seeded::new(seed);
        let cluster: Name = cluster.parse().unwrap();
        let authority = Authority::create(&cluster, &*entropy, WALL).unwrap();
        let key = SigningKey::generate(&*entropy);
        let certificate = authority.certify_issuer(key.public(), NodeId(1), WALL, &*entropy).unwrap();
        let issuer = Issuer::new(cluster, key, certificate).unwrap();
        Self { authority, issuer, entropy, clock: TestClock::new(), fabric }
    }

    pub(crate) fn anchors(&self) -> Anchors {
        Anchors::of_authority(self.authority.cluster().clone(), self.authority.certificate().to_vec())
    }

    /// A certificate of `node` for a new key, from now on.
    pub(crate) fn identity(&self, node: u64, roles: &[Role], lifetime: Span) -> Identity {
        let key = SigningKey::generate(&*self.entropy);
        let subject = Subject { node: NodeId(node), roles: roles.iter().copied().collect(), lifetime };
        let chain = self.issuer.issue(&subject, key.public(), self.clock.wall(), &*self.entropy).unwrap();
        Identity::new(chain, key, &self.anchors()).unwrap()
    }

    /// A node with a certificate of the usual life.
    pub(crate) fn node(&self, node: u64, roles: &[Role], protocols: &[Protocol]) -> Node {
        let identity = self.identity(node, roles, CERTIFICATE_LIFETIME);
        self.node_with(node, identity, protocols, transport::listener())
    }

    pub(crate) fn node_with(
        &self,
        node: u64,
        identity: Identity,
        protocols: &[Protocol],
        transport: Arc<TransportConfig>,
    ) -> Node {
        let address = format!("10.0.0.{node}:9443");
        let (identity, trust) = (SharedIdentity::new(identity), SharedTrust::new(self.anchors()));
        let options = EndpointOptions {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Arc::clone(&self.entropy) as Arc<dyn Entropy>,
            identity: identity.clone(),
            trust: trust.clone(),
            protocols: protocols.to_vec(),
            transport,
            transport_of: None,
            secret: [node as u8; 32],
        };
        let endpoint = Arc::new(Endpoint::new(self.fabric.bind(&address), options).unwrap());
        Node { endpoint, identity, trust, address: address.parse().unwrap() }
    }
}

/// The next connection of a checked peer.
pub(crate) async fn accept(node: &Node) -> postroad_transport::connection::Connection {
    match node.endpoint.accept().await {
        Some(Accepted::Peer(connection)) => connection,
        other => panic!("expected a peer, found {other:?}"),
    }
}

/// Runs a test on a current-thread runtime whose time passes only while nothing is to be done.
pub(crate) fn paused<F: Future>(test: impl FnOnce() -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { test().await })
}
