//! The simulated network: hosts with addresses, a fabric of conditions between them, UDP and TCP sockets over it.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postroad_transport::network::{Network, Pending, TcpListener, TcpStream, UdpSocket};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{sync::Notify, time::Instant};

pub mod tcp;
pub mod udp;

/// A host of the world: one node runs on it, once at a time. Its address is 10.0.x.y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host(pub u16);

impl Host {
    /// Its address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, (self.0 >> 8) as u8, self.0 as u8))
    }

    /// The host of an address, if it is one of the world.
    #[must_use]
    pub fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(v4) => match v4.octets() {
                [10, 0, high, low] => Some(Self(u16::from(high) << 8 | u16::from(low))),
                _ => None,
            },
            IpAddr::V6(v6) => v6.to_ipv4_mapped().and_then(|v4| Self::of(IpAddr::V4(v4))),
        }
    }
}

/// What happens to packets on the way from one host to another; each direction has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// The least delay.
    pub delay: Duration,
    /// What chance adds to it at the most; more than the gap between packets reorders them.
    pub jitter: Duration,
    /// The share of packets that is lost.
    pub loss: f64,
    /// The share that comes twice.
    pub duplicate: f64,
    /// Everything is swallowed.
    pub cut: bool,
    /// Bytes a second; 0 is no limit. What would wait over [`QUEUE_WAIT`] is lost.
    pub bytes_per_second: u64,
    /// The largest UDP payload in bytes; a larger one is swallowed, and nobody is told.
    pub payload_bytes_max: usize,
}

/// What frames of 1,500 bytes carry.
pub const ETHERNET_PAYLOAD_BYTES: usize = 1_472;

/// What frames of 9,000 bytes carry.
pub const JUMBO_PAYLOAD_BYTES: usize = 8_972;

/// How long packets may wait for a slow way: the buffer of an ordinary router.
pub const QUEUE_WAIT: Duration = Duration::from_millis(200);

impl Default for Condition {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(1),
            jitter: Duration::from_millis(1),
            loss: 0.0,
            duplicate: 0.0,
            cut: false,
            bytes_per_second: 0,
            payload_bytes_max: ETHERNET_PAYLOAD_BYTES,
        }
    }
}

impl Condition {
    /// Whether nothing of this length gets through.
    const fn swallows(&self, bytes: usize) -> bool {
        self.cut || bytes > self.payload_bytes_max
    }
}

/// One datagram buffer on its way: equal segments as one send made them.
struct Parcel {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
    stride: usize,
}

pub(crate) struct Inner {
    rng: StdRng,
    default: Condition,
    conditions: BTreeMap<(Host, Host), Condition>,
    way_free_at: BTreeMap<(Host, Host), Instant>,
    paused_until: BTreeMap<Host, Instant>,
    incarnations: BTreeMap<Host, u64>,
    post: BTreeMap<(Instant, u64), Parcel>,
    sent: u64,
    /// When the post looks again by itself.
    wakes_at: Option<Instant>,
    udp: BTreeMap<SocketAddr, udp::Port>,
    tcp: BTreeMap<SocketAddr, tcp::Door>,
    pipes: BTreeMap<Host, Vec<tcp::WeakPipe>>,
    next_port: BTreeMap<Host, u16>,
    names: BTreeMap<String, IpAddr>,
    observer: Option<Observer>,
    tamperer: Option<Tamperer>,
}

/// Sees every datagram that is sent: its ends, its length and whether it was lost.
pub type Observer = Box<dyn FnMut(Instant, SocketAddr, SocketAddr, usize, bool) + Send>;

/// One datagram, as whoever controls a host or a way sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where it says that it comes from.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// What it carries.
    pub bytes: Vec<u8>,
    /// How much later than usual it arrives.
    pub late: Duration,
}

/// Decides what becomes of a datagram: it may go on as it is, altered, late, elsewhere, several times or not at all.
pub type Tamperer = Box<dyn FnMut(Datagram) -> Vec<Datagram> + Send>;

/// The network of the world; clones are the same network.
#[derive(Clone)]
pub struct Fabric {
    inner: Arc<Mutex<Inner>>,
    posted: Arc<Notify>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fabric")
    }
}

impl Fabric {
    /// A network whose chance comes from `seed`. [`Fabric::run`] must be polled for anything to arrive.
    #[must_use]
    pub fn new(seed: u64, default: Condition) -> Self {
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed),
            default,
            conditions: BTreeMap::new(),
            way_free_at: BTreeMap::new(),
            paused_until: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            post: BTreeMap::new(),
            sent: 0,
            wakes_at: None,
            udp: BTreeMap::new(),
            tcp: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next_port: BTreeMap::new(),
            names: BTreeMap::new(),
            observer: None,
            tamperer: None,
        };
        Self { inner: Arc::new(Mutex::new(inner)), posted: Arc::new(Notify::new()) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every datagram shown to `observer`.
    pub fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    /// Gives every datagram to `tamperer`, or with none to nobody any more. What it returns is subject to the conditions
    /// of its way as ever.
    pub fn tamper(&self, tamperer: Option<Tamperer>) {
        self.lock().tamperer = tamperer;
    }

    /// Puts a datagram on its way that nobody's socket has sent, with any sender's address.
    pub fn inject(&self, datagram: Datagram) {
        let mut inner = self.lock();
        inner.carry(datagram);
        drop(inner);
        self.posted.notify_one();
    }

    /// Gives a host a name that [`Network::resolve`] knows.
    pub fn name(&self, name: &str, host: Host) {
        self.lock().names.insert(name.to_owned(), host.ip());
    }

    /// Sets the condition from one host to another, in this direction only.
    pub fn set(&self, from: Host, to: Host, condition: Condition) {
        self.lock().conditions.insert((from, to), condition);
    }

    /// The condition from one host to another.
    #[must_use]
    pub fn condition(&self, from: Host, to: Host) -> Condition {
        self.lock().condition(from, to)
    }

    /// Back to the default, everywhere.
    pub fn heal(&self) {
        self.lock().conditions.clear();
    }

    /// Nothing goes out of or into the host until then; what came meanwhile arrives at the end, as after a SIGSTOP.
    pub fn pause_until(&self, host: Host, end: Instant) {
        self.lock().paused_until.insert(host, end);
    }

    /// The network as a new incarnation of the host sees it; every socket of an earlier one fails from now on.
    #[must_use]
    pub fn boot(&self, host: Host) -> SimNetwork {
        let incarnation = self.fence(host);
        SimNetwork { fabric: self.clone(), host, incarnation }
    }

    /// The host is gone: its sockets fail and are forgotten, its connections are reset.
    pub fn crash(&self, host: Host) {
        self.fence(host);
    }

    fn fence(&self, host: Host) -> u64 {
        let mut inner = self.lock();
        let incarnation = inner.incarnations.entry(host).or_default();
        *incarnation += 1;
        let incarnation = *incarnation;
        let ours = |address: &SocketAddr| Host::of(address.ip()) == Some(host);
        let ports: Vec<SocketAddr> = inner.udp.keys().filter(|address| ours(address)).copied().collect();
        let wakers: Vec<_> =
            ports.iter().filter_map(|address| inner.udp.remove(address)).filter_map(udp::Port::close).collect();
        inner.tcp.retain(|address, _| !ours(address));
        let pipes = inner.pipes.remove(&host).unwrap_or_default();
        drop(inner);
        for pipe in pipes {
            pipe.reset();
        }
        for waker in wakers {
            waker.wake();
        }
        incarnation
    }

    /// Carries packets for as long as it is polled.
    pub async fn run(self) {
        loop {
            let next = {
                let mut inner = self.lock();
                inner.wakes_at = inner.post.keys().next().map(|(due, _)| *due);
                inner.wakes_at
            };
            tokio::select! {
                biased;
                () = self.posted.notified() => {}
                () = sleep_until(next) => self.deliver(),
            }
        }
    }

    fn deliver(&self) {
        let now = Instant::now();
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        while let Some(entry) = inner.post.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let parcel = entry.remove();
            let held = Host::of(parcel.to.ip()).and_then(|host| inner.paused_until.get(&host).copied());
            if let Some(end) = held.filter(|end| *end > now) {
                inner.put(end, parcel);
            } else if let Some(port) = inner.udp.get_mut(&parcel.to) {
                wakers.extend(port.receive(parcel.from, parcel.bytes, parcel.stride));
            }
        }
        drop(inner);
        for waker in wakers {
            waker.wake();
        }
    }
}

async fn sleep_until(next: Option<Instant>) {
    match next {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl Inner {
    fn condition(&self, from: Host, to: Host) -> Condition {
        self.conditions.get(&(from, to)).copied().unwrap_or(if from == to {
            Condition { delay: Duration::ZERO, jitter: Duration::ZERO, ..Condition::default() }
        } else {
            self.default
        })
    }

    fn put(&mut self, due: Instant, parcel: Parcel) {
        self.sent += 1;
        self.post.insert((due, self.sent), parcel);
    }

    /// One datagram by itself, by the conditions of its way.
    fn carry(&mut self, datagram: Datagram) {
        let Datagram { from, to, bytes, late } = datagram;
        let (Some(source), Some(target)) = (Host::of(from.ip()), Host::of(to.ip())) else { return };
        let condition = self.condition(source, target);
        let swallowed = condition.swallows(bytes.len());
        let lost = swallowed || (condition.loss > 0.0 && self.rng.random_bool(condition.loss));
        if !lost {
            let stride = bytes.len().max(1);
            self.dispatch(Instant::now() + late, &condition, (source, target), from, to, &bytes, stride);
        }
    }

    /// Sends equal segments; those that survive go on together. Returns whether the post must look earlier than it
    /// would by itself.
    fn send(&mut self, from: SocketAddr, to: SocketAddr, contents: &[u8], stride: usize) -> bool {
        if let Some(mut tamperer) = self.tamperer.take() {
            for segment in contents.chunks(stride) {
                let datagram = Datagram { from, to, bytes: segment.to_vec(), late: Duration::ZERO };
                for changed in tamperer(datagram) {
                    self.carry(changed);
                }
            }
            self.tamperer = Some(tamperer);
            return true;
        }
        let (Some(source), Some(target)) = (Host::of(from.ip()), Host::of(to.ip())) else { return false };
        let condition = self.condition(source, target);
        let now = Instant::now();
        let begin = self.paused_until.get(&source).copied().filter(|end| *end > now).unwrap_or(now);
        let mut survivors: Vec<u8> = Vec::with_capacity(contents.len());
        for segment in contents.chunks(stride) {
            let swallowed = condition.swallows(segment.len());
            let lost = swallowed || (condition.loss > 0.0 && self.rng.random_bool(condition.loss));
            if let Some(observer) = &mut self.observer {
                observer(now, from, to, segment.len(), lost);
            }
            if lost {
                // Only the last segment of a buffer may be short, so a buffer ends where one is missing.
                self.dispatch(begin, &condition, (source, target), from, to, &survivors, stride);
                survivors.clear();
            } else {
                survivors.extend_from_slice(segment);
            }
        }
        self.dispatch(begin, &condition, (source, target), from, to, &survivors, stride);
        let first = self.post.keys().next().map(|(due, _)| *due);
        first.is_some_and(|first| self.wakes_at.is_none_or(|wakes| first < wakes))
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one packet, used once")]
    fn dispatch(
        &mut self,
        begin: Instant,
        condition: &Condition,
        way: (Host, Host),
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
        stride: usize,
    ) {
        if bytes.is_empty() {
            return;
        }
        let mut leaves = begin;
        let nanos = (bytes.len() as u64 * 1_000_000_000).checked_div(condition.bytes_per_second);
        if let Some(nanos) = nanos {
            let free_at = self.way_free_at.get(&way).copied().unwrap_or(begin).max(begin);
            if free_at.duration_since(begin) > QUEUE_WAIT {
                return;
            }
            leaves = free_at + Duration::from_nanos(nanos);
            self.way_free_at.insert(way, leaves);
        }
        let copies = if condition.duplicate > 0.0 && self.rng.random_bool(condition.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let jitter_us = condition.jitter.as_micros() as u64;
            let extra = if jitter_us == 0 { 0 } else { self.rng.random_range(0..=jitter_us) };
            let due = leaves + condition.delay + Duration::from_micros(extra);
            self.put(due, Parcel { from, to, bytes: bytes.to_vec(), stride });
        }
    }

    fn free_port(&mut self, host: Host) -> u16 {
        let next = self.next_port.entry(host).or_insert(40_000);
        *next = if *next == u16::MAX { 40_001 } else { *next + 1 };
        *next
    }

    /// The address that a bind to `asked` on `host` gives.
    fn place(&mut self, host: Host, asked: SocketAddr) -> SocketAddr {
        let port = if asked.port() == 0 { self.free_port(host) } else { asked.port() };
        SocketAddr::new(host.ip(), port)
    }
}

/// The network port of one incarnation of one host.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    pub(crate) fabric: Fabric,
    pub(crate) host: Host,
    pub(crate) incarnation: u64,
}

impl SimNetwork {
    /// Whether this incarnation of the host still runs.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.check(&self.fabric.lock()).is_ok()
    }

    pub(crate) fn check(&self, inner: &Inner) -> io::Result<()> {
        if inner.incarnations.get(&self.host) == Some(&self.incarnation) {
            Ok(())
        } else {
            Err(io::Error::other("this incarnation of the host has crashed"))
        }
    }
}

fn in_use(address: SocketAddr) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, format!("{address} is in use"))
}

impl Network for SimNetwork {
    fn udp_bind(&self, address: SocketAddr) -> io::Result<Arc<dyn UdpSocket>> {
        let mut inner = self.fabric.lock();
        self.check(&inner)?;
        let place = inner.place(self.host, address);
        if inner.udp.contains_key(&place) {
            return Err(in_use(place));
        }
        inner.udp.insert(place, udp::Port::default());
        drop(inner);
        Ok(Arc::new(udp::SimUdpSocket::new(self.clone(), place)))
    }

    fn tcp_listen(&self, address: SocketAddr) -> io::Result<Arc<dyn TcpListener>> {
        let mut inner = self.fabric.lock();
        self.check(&inner)?;
        let place = inner.place(self.host, address);
        if inner.tcp.contains_key(&place) {
            return Err(in_use(place));
        }
        let door = tcp::Door::default();
        inner.tcp.insert(place, door.clone());
        drop(inner);
        Ok(Arc::new(tcp::SimTcpListener::new(self.clone(), place, door)))
    }

    fn tcp_connect(&self, address: SocketAddr) -> Pending<TcpStream> {
        let network = self.clone();
        Box::pin(async move { tcp::connect(&network, address) })
    }

    fn tcp_connect_from(&self, source: Option<IpAddr>, address: SocketAddr) -> Pending<TcpStream> {
        let Some(source) = source.filter(|source| !source.is_loopback() && *source != self.host.ip()) else {
            return self.tcp_connect(address);
        };
        let foreign = io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{source} is no address of this host"));
        Box::pin(std::future::ready(Err(foreign)))
    }

    fn resolve(&self, host_port: &str) -> Pending<Vec<SocketAddr>> {
        let inner = self.fabric.lock();
        let answer = match host_port.parse::<SocketAddr>() {
            Ok(address) => Ok(vec![address]),
            Err(_) => host_port
                .rsplit_once(':')
                .and_then(|(name, port)| Some(SocketAddr::new(*inner.names.get(name)?, port.parse().ok()?)))
                .map(|address| vec![address])
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no host is named {host_port}"))),
        };
        Box::pin(std::future::ready(answer))
    }
}
