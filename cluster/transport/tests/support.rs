//! A small network in memory under tokio's paused clock, and two nodes with relays on it.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test program uses a part of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use postroad_cluster::{
    id::{CircuitId, NodeId},
    limits::CIRCUIT_PACKET_BYTES,
    time::{Clock, Moment, Timer, WallTime},
};
use postroad_transport::{
    network::UdpSocket,
    node_socket::{ChannelSpec, CircuitEvent, CircuitKey, CircuitSpec, CircuitStatus, NodeSocket},
    switch::{OpenChannel, Switch, SwitchSession},
};
use quinn::udp::{RecvMeta, Transmit};
use tokio::{sync::mpsc, time::Instant};

/// Tokio's clock as the clock port.
#[derive(Clone, Copy, Debug)]
pub struct TestClock(Instant);

impl TestClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment(1_000_000_000 + self.0.elapsed().as_nanos() as u64)
    }

    fn wall(&self) -> WallTime {
        WallTime(0)
    }

    fn sleep_until(&self, deadline: Moment) -> Timer {
        Box::pin(tokio::time::sleep(deadline.since(self.now())))
    }
}

/// One direction between two addresses.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub delay: Duration,
    pub jitter: Duration,
    /// Of 10,000 datagrams.
    pub loss: u64,
    pub dead: bool,
}

#[derive(Debug, Default)]
struct Inbox {
    arriving: BTreeMap<(Instant, u64), (SocketAddr, Vec<u8>)>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Net {
    inboxes: BTreeMap<SocketAddr, Inbox>,
    ways: BTreeMap<(SocketAddr, SocketAddr), Way>,
    usual: Way,
    dead: BTreeSet<SocketAddr>,
    number: u64,
    random: u64,
    sends: u64,
    datagrams: u64,
}

impl Net {
    fn draw(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }
}

/// The network.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Mutex<Net>>);

impl Fabric {
    pub fn new(delay: Duration) -> Self {
        let usual = Way { delay, jitter: Duration::ZERO, loss: 0, dead: false };
        Self(Arc::new(Mutex::new(Net {
            inboxes: BTreeMap::new(),
            ways: BTreeMap::new(),
            usual,
            dead: BTreeSet::new(),
            number: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            sends: 0,
            datagrams: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap()
    }

    pub fn bind(&self, address: SocketAddr) -> Arc<FabricSocket> {
        self.lock().inboxes.insert(address, Inbox::default());
        let timer = Mutex::new(Box::pin(tokio::time::sleep(Duration::ZERO)));
        Arc::new(FabricSocket { fabric: self.clone(), address, timer })
    }

    /// All to and from this address vanishes.
    pub fn kill(&self, address: SocketAddr) {
        self.lock().dead.insert(address);
    }

    pub fn revive(&self, address: SocketAddr) {
        self.lock().dead.remove(&address);
    }

    pub fn change_all(&self, change: impl Fn(&mut Way)) {
        change(&mut self.lock().usual);
    }

    pub fn change(&self, from: SocketAddr, to: SocketAddr, change: impl Fn(&mut Way)) {
        let mut net = self.lock();
        let usual = net.usual;
        change(net.ways.entry((from, to)).or_insert(usual));
    }

    /// A datagram that somebody sends in the name of `from`.
    pub fn inject(&self, from: SocketAddr, to: SocketAddr, datagram: Vec<u8>) {
        let mut net = self.lock();
        net.number += 1;
        let key = (Instant::now(), net.number);
        let inbox = net.inboxes.get_mut(&to).unwrap();
        inbox.arriving.insert(key, (from, datagram));
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }

    /// Sends and the datagrams in them.
    pub fn sends(&self) -> (u64, u64) {
        let net = self.lock();
        (net.sends, net.datagrams)
    }
}

/// A socket on the network, which sends like GSO and receives like GRO.
#[derive(Debug)]
pub struct FabricSocket {
    fabric: Fabric,
    address: SocketAddr,
    timer: Mutex<Pin<Box<tokio::time::Sleep>>>,
}

impl UdpSocket for FabricSocket {
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        assert!(transmit.contents.len() <= 65_507, "a larger send fails");
        assert_eq!(transmit.destination.is_ipv4(), self.address.is_ipv4(), "the family must fit the socket");
        let mut net = self.fabric.lock();
        let way = net.ways.get(&(self.address, transmit.destination)).copied().unwrap_or(net.usual);
        net.sends += 1;
        let stride = transmit.segment_size.unwrap_or(transmit.contents.len());
        for datagram in transmit.contents.chunks(stride) {
            net.datagrams += 1;
            let lost = net.draw(10_000) < way.loss;
            let jitter = Duration::from_micros(net.draw(way.jitter.as_micros() as u64 + 1));
            if lost || way.dead || net.dead.contains(&self.address) || net.dead.contains(&transmit.destination) {
                continue;
            }
            net.number += 1;
            let key = (Instant::now() + way.delay + jitter, net.number);
            if let Some(inbox) = net.inboxes.get_mut(&transmit.destination) {
                inbox.arriving.insert(key, (self.address, datagram.to_vec()));
                if let Some(waker) = inbox.waker.take() {
                    waker.wake();
                }
            }
        }
        Ok(())
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut net = self.fabric.lock();
        let now = Instant::now();
        let dead = net.dead.contains(&self.address);
        let inbox = net.inboxes.get_mut(&self.address).unwrap();
        let mut count = 0;
        while count < buffers.len() {
            // Neighbours of one source and size come in one buffer.
            let (mut length, mut stride, mut source) = (0, 0, None);
            while let Some(next) = inbox.arriving.first_entry().filter(|next| next.key().0 <= now) {
                let (from, datagram) = next.get();
                let fits = source.is_none_or(|source| source == *from && datagram.len() <= stride)
                    && length + datagram.len() <= buffers[count].len();
                if source.is_some() && (!fits || length % stride != 0) {
                    break;
                }
                let (from, datagram) = next.remove();
                source = Some(from);
                stride = stride.max(datagram.len());
                let end = (length + datagram.len()).min(buffers[count].len());
                let fitting = end - length;
                buffers[count][length..end].copy_from_slice(&datagram[..fitting]);
                length = end;
            }
            let Some(source) = source else { break };
            if !dead {
                meta[count] = RecvMeta { addr: source, len: length, stride, ecn: None, dst_ip: None };
                count += 1;
            }
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        inbox.waker = Some(context.waker().clone());
        if let Some(((at, _), _)) = inbox.arriving.first_key_value() {
            let mut timer = self.timer.lock().unwrap();
            timer.as_mut().reset(*at);
            if timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn send_segments_max(&self) -> usize {
        64
    }
}

/// A relay: its switch, until it is killed.
pub struct Relay {
    pub id: NodeId,
    pub address: SocketAddr,
    pub switch: Option<Switch>,
}

/// One end of the circuits.
pub struct Node {
    pub id: NodeId,
    pub address: SocketAddr,
    pub socket: Arc<NodeSocket>,
    pub endpoint: quinn::Endpoint,
    pub events: mpsc::Receiver<CircuitEvent>,
}

/// Two nodes and relays between them.
pub struct World {
    pub fabric: Fabric,
    pub clock: Arc<TestClock>,
    pub nodes: [Node; 2],
    pub relays: Vec<Relay>,
    tls: (quinn::ServerConfig, Arc<quinn::crypto::rustls::QuicClientConfig>),
    next_token: u64,
    /// Every channel as an end was told of it.
    pub specs: Vec<(usize, ChannelSpec)>,
}

/// A circuit between both nodes.
pub struct TestCircuit {
    pub id: CircuitId,
    pub connections: [quinn::Connection; 2],
}

fn tls() -> (quinn::ServerConfig, Arc<quinn::crypto::rustls::QuicClientConfig>) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["node".into()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = quinn::crypto::rustls::QuicServerConfig::try_from(server).unwrap();
    let client = quinn::crypto::rustls::QuicClientConfig::try_from(client).unwrap();
    (quinn::ServerConfig::with_crypto(Arc::new(server)), Arc::new(client))
}

impl World {
    /// Nodes 1 and 2 and relays 11, 12, …, all `delay` apart.
    pub fn new(relays: u8, delay: Duration) -> Self {
        let fabric = Fabric::new(delay);
        let clock = TestClock::new();
        let tls = tls();
        let nodes = [1_u8, 2].map(|number| {
            let address = SocketAddr::from(([10, 0, 0, number], 4_000));
            let port: Arc<dyn Clock> = clock.clone();
            let (socket, events) = NodeSocket::new(fabric.bind(address), port);
            let mut config = quinn::EndpointConfig::default();
            config.grease_quic_bit(false);
            let runtime = Arc::new(quinn::TokioRuntime);
            let abstract_socket: Arc<dyn quinn::AsyncUdpSocket> = socket.clone();
            let endpoint =
                quinn::Endpoint::new_with_abstract_socket(config, Some(tls.0.clone()), abstract_socket, runtime)
                    .unwrap();
            Node { id: NodeId(number.into()), address, socket, endpoint, events }
        });
        let mut world = Self { fabric, clock, nodes, relays: Vec::new(), tls, next_token: 1_000, specs: Vec::new() };
        for number in 0..relays {
            let address = SocketAddr::from(([10, 0, 1, number], 9_443));
            world.relays.push(Relay { id: NodeId(11 + u64::from(number)), address, switch: None });
            world.start_relay(usize::from(number));
        }
        world
    }

    pub fn start_relay(&mut self, place: usize) {
        let relay = &mut self.relays[place];
        let port: Arc<dyn Clock> = self.clock.clone();
        let (switch, _) = Switch::start(self.fabric.bind(relay.address), port);
        for node in &self.nodes {
            switch.session_address(SwitchSession(node.id.0), node.address);
        }
        relay.switch = Some(switch);
        self.fabric.revive(relay.address);
    }

    /// The relay dies as by SIGKILL, with its table.
    pub fn kill_relay(&mut self, place: usize) {
        self.fabric.kill(self.relays[place].address);
        self.relays[place].switch = None;
    }

    pub fn place(&self, relay: NodeId) -> usize {
        self.relays.iter().position(|it| it.id == relay).unwrap()
    }

    pub fn key(&self, end: usize, id: CircuitId) -> CircuitKey {
        CircuitKey { peer: self.nodes[1 - end].id, circuit: id }
    }

    pub fn status(&self, end: usize, id: CircuitId) -> CircuitStatus {
        self.nodes[end].socket.status(self.key(end, id)).unwrap()
    }

    /// The relay that both ends use.
    pub fn relay(&self, id: CircuitId) -> NodeId {
        let relays = [0, 1].map(|end| self.status(end, id).relay.unwrap());
        assert_eq!(relays[0], relays[1], "both directions use one relay");
        relays[0]
    }

    /// Opens the channel of a circuit through a relay at all three.
    pub fn open_channel(&mut self, id: CircuitId, place: usize) {
        let token = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = self.next_token;
        self.next_token += 4;
        let relay = &self.relays[place];
        let session = |end: usize| SwitchSession(self.nodes[end].id.0);
        for end in [0_usize, 1] {
            let channel = OpenChannel {
                token: token(first + end as u64),
                from: session(end),
                token_out: token(first + 2 + end as u64),
                to: session(1 - end),
            };
            relay.switch.as_ref().unwrap().open(channel).unwrap();
            let spec = ChannelSpec {
                relay: relay.id,
                address: relay.address,
                token_out: token(first + end as u64),
                token_in: token(first + 2 + (1 - end) as u64),
                shares_domain_with: BTreeSet::new(),
            };
            self.specs.push((end, spec.clone()));
            self.nodes[end].socket.channel_add(self.key(end, id), spec).unwrap();
        }
    }

    /// A circuit with channels through all relays, and its connection.
    pub async fn connect(&mut self, number: u64) -> TestCircuit {
        let id = CircuitId(number);
        let mut addresses = Vec::new();
        for end in [0, 1] {
            let spec = CircuitSpec {
                key: self.key(end, id),
                me: self.nodes[end].id,
                packet_bytes: CIRCUIT_PACKET_BYTES,
                larger_bytes: 0,
                enlarges: false,
            };
            addresses.push(self.nodes[end].socket.circuit_add(spec).unwrap());
        }
        for place in 0..self.relays.len() {
            self.open_channel(id, place);
        }
        self.handshake(id, addresses[0]).await
    }

    async fn handshake(&self, id: CircuitId, address: SocketAddr) -> TestCircuit {
        let wait = Duration::from_mins(1);
        let transport = |end: usize| self.nodes[end].socket.transport_config(self.key(end, id), wait).unwrap();
        let mut client = quinn::ClientConfig::new(self.tls.1.clone());
        client.transport_config(transport(0));
        let dial = self.nodes[0].endpoint.connect_with(client, address, "node").unwrap();
        let accept = async {
            let incoming = self.nodes[1].endpoint.accept().await.unwrap();
            assert_eq!(self.nodes[1].socket.circuit_of(incoming.remote_address()), Some(self.key(1, id)));
            let mut server = self.tls.0.clone();
            server.transport_config(transport(1));
            incoming.accept_with(Arc::new(server)).unwrap().await.unwrap()
        };
        let (dialled, accepted) = tokio::join!(dial, accept);
        let connections = [dialled.unwrap(), accepted];
        for end in [0, 1] {
            let mut secret = [0; 32];
            connections[end].export_keying_material(&mut secret, b"postroad path", b"").unwrap();
            let figures = Arc::new(connections[end].clone());
            self.nodes[end].socket.circuit_connected(self.key(end, id), figures, &secret).unwrap();
        }
        TestCircuit { id, connections }
    }
}

/// Bytes that tell by themselves where they belong.
pub fn pattern(start: usize, length: usize) -> Vec<u8> {
    (start..start + length).map(|place| (place ^ (place >> 8) ^ (place >> 16).wrapping_mul(31)) as u8).collect()
}

/// When bytes arrived, and whether they were the right ones.
pub struct Arrivals {
    pub total: usize,
    pub times: Vec<Instant>,
}

impl Arrivals {
    /// The longest gap that ends after `since`.
    pub fn stall(&self, since: Instant) -> Duration {
        self.times.windows(2).filter(|pair| pair[1] >= since).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

/// Sends `total` bytes, `chunk` each 2 ms, over a new stream of `circuit` from `from` to the other end.
pub fn transfer(circuit: &TestCircuit, from: usize, total: usize, chunk: usize) -> tokio::task::JoinHandle<Arrivals> {
    let (sender, receiver) = (circuit.connections[from].clone(), circuit.connections[1 - from].clone());
    tokio::spawn(async move {
        let mut send = sender.open_uni().await.unwrap();
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            while sent < total {
                let next = pattern(sent, chunk.min(total - sent));
                send.write_all(&next).await.unwrap();
                sent += next.len();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            send.finish().unwrap();
            send.stopped().await.unwrap();
        });
        let mut recv = receiver.accept_uni().await.unwrap();
        let mut arrivals = Arrivals { total: 0, times: Vec::new() };
        while let Some(part) = recv.read_chunk(usize::MAX, true).await.unwrap() {
            assert_eq!(part.bytes[..], pattern(arrivals.total, part.bytes.len())[..], "bytes exact");
            arrivals.total += part.bytes.len();
            arrivals.times.push(Instant::now());
        }
        sending.await.unwrap();
        arrivals
    })
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
