//! A way that takes its time: a port of loopback that carries packets to a relay and back, each some milliseconds late. For
//! measuring with a round trip where the kernel has no netem.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use postroad_transport::network::{Network, UdpSocket};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit};
use tokio::{
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::SystemNetwork;

/// The largest buffer that one receive fills.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes under way in one direction; more are lost, as in a router.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Nodes that one way carries at once. Each start of a node is another to it, so the one that was silent longest gives way.
const NODES_MAX: usize = 64;

type Socket = Arc<dyn UdpSocket>;

/// The way to one relay. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Delay {
    /// Where nodes reach the relay by it.
    pub(crate) address: SocketAddr,
    carrier: JoinHandle<()>,
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

impl Delay {
    /// A way to the relay at `to`, late by `span` in each direction.
    ///
    /// # Errors
    /// If the system gives no port.
    pub(crate) fn start(to: SocketAddr, span: Duration) -> io::Result<Self> {
        let network = SystemNetwork::default();
        let door = network.udp_bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = door.local_address()?;
        Ok(Self { address, carrier: tokio::spawn(carry(network, door, to, span)) })
    }
}

/// A node that sends by a way, and its answers' way back.
struct Node {
    socket: Socket,
    heard: Instant,
    back: AbortHandle,
}

/// Carries what nodes send to `door`, each by a socket of its own, so that answers find back.
async fn carry(network: SystemNetwork, door: Socket, to: SocketAddr, span: Duration) {
    let mut back = JoinSet::new();
    let mut known: BTreeMap<SocketAddr, Node> = BTreeMap::new();
    let there = |address: SocketAddr| {
        if !known.contains_key(&address) {
            if known.len() >= NODES_MAX {
                let silent = known.iter().min_by_key(|(_, node)| node.heard).map(|(address, _)| *address)?;
                known.remove(&silent)?.back.abort();
            }
            let socket = network.udp_bind((Ipv4Addr::LOCALHOST, 0).into()).ok()?;
            let (home, answers) = (Arc::clone(&door), Arc::clone(&socket));
            let back = back.spawn(async move { pass(&answers, span, |_| Some((Arc::clone(&home), address))).await });
            known.insert(address, Node { socket, heard: Instant::now(), back });
        }
        let node = known.get_mut(&address)?;
        node.heard = Instant::now();
        Some((Arc::clone(&node.socket), to))
    };
    pass(&door, span, there).await;
}

/// Datagrams of one receive, which leave together again.
struct Parcel {
    due: Instant,
    by: Socket,
    to: SocketAddr,
    bytes: Vec<u8>,
    meta: RecvMeta,
}

/// Sends everything that comes to `from` on by the socket and to the address that `route` says for its sender.
async fn pass(from: &Socket, span: Duration, mut route: impl FnMut(SocketAddr) -> Option<(Socket, SocketAddr)>) {
    let mut buffers: Vec<Vec<u8>> = vec![vec![0; BUFFER_BYTES]; BATCH_SIZE];
    let mut meta = [RecvMeta::default(); BATCH_SIZE];
    let (mut waiting, mut waiting_bytes) = (VecDeque::<Parcel>::new(), 0);
    loop {
        let due = waiting.front().map(|parcel| parcel.due);
        let count = tokio::select! {
            biased;
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => 0,
            // An error is some node's port that is closed by now.
            count = receive(from, &mut buffers, &mut meta) => count.unwrap_or(0),
        };
        let now = Instant::now();
        for (buffer, meta) in buffers.iter().zip(&meta).take(count) {
            let bytes = buffer[..meta.len].to_vec();
            if let Some((by, to)) = route(meta.addr).filter(|_| waiting_bytes + bytes.len() <= WAITING_BYTES_MAX) {
                waiting_bytes += bytes.len();
                waiting.push_back(Parcel { due: now + span, by, to, bytes, meta: *meta });
            }
        }
        while let Some(parcel) = waiting.pop_front_if(|parcel| parcel.due <= now) {
            waiting_bytes -= parcel.bytes.len();
            let segment_size = (parcel.bytes.len() > parcel.meta.stride).then_some(parcel.meta.stride);
            let (destination, contents, ecn) = (parcel.to, &parcel.bytes, parcel.meta.ecn);
            // What a full socket does not take is lost, as anywhere.
            let _ = parcel.by.try_send(&Transmit { destination, ecn, contents, segment_size, src_ip: None });
        }
    }
}

async fn receive(socket: &Socket, buffers: &mut [Vec<u8>], meta: &mut [RecvMeta]) -> io::Result<usize> {
    poll_fn(|context| {
        let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        socket.poll_receive(context, &mut slices, meta)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_goes_there_and_back_is_late_twice_and_whole() {
        let relay = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let way = Delay::start(relay.local_addr().unwrap(), Duration::from_millis(30)).unwrap();
        let nodes = [
            tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        ];
        let mut buffer = [0; 100];
        for node in &nodes {
            let began = Instant::now();
            node.send_to(b"there", way.address).await.unwrap();
            let (length, from) = relay.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], b"there");
            assert!(began.elapsed() >= Duration::from_millis(30));
            relay.send_to(b"back", from).await.unwrap();
            let (length, from) = node.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..length], from), (&b"back"[..], way.address));
            assert!(began.elapsed() >= Duration::from_millis(60));
        }
    }

    // A fleet whose nodes die and come back has more addresses in time than nodes.
    #[tokio::test]
    async fn a_node_that_comes_later_than_many_others_is_carried() {
        let relay = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let way = Delay::start(relay.local_addr().unwrap(), Duration::from_millis(1)).unwrap();
        let mut buffer = [0; 100];
        for _ in 0..=2 * NODES_MAX {
            let node = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            node.send_to(b"there", way.address).await.unwrap();
            let (_, from) = relay.recv_from(&mut buffer).await.unwrap();
            relay.send_to(b"back", from).await.unwrap();
            let (length, _) = node.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], b"back");
        }
    }
}
