//! Datagrams at a relay's switch and at a node's socket, whatever buffers the kernel puts them in: what comes out came
//! in, goes to nobody but the ends of its channel, and is never more than it was.

use std::{
    collections::{BTreeSet, VecDeque},
    future::poll_fn,
    io::{self, IoSliceMut},
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use postroad_cluster::{
    id::{CircuitId, Generation, NodeId},
    limits::UDP_PAYLOAD_BYTES_MAX,
    time::{Clock, Moment, Timer, WallTime},
};
use postroad_transport::{
    network::UdpSocket,
    node_socket::{ChannelSpec, CircuitKey, CircuitSpec, NodeSocket},
    packet::{self, HEADER_BYTES, Header},
    switch::{OpenChannel, Switch, SwitchSession},
};
use quinn::{
    AsyncUdpSocket,
    udp::{RecvMeta, Transmit},
};

/// Time stands still.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment(1_000_000_000)
    }

    fn wall(&self) -> WallTime {
        WallTime(1_767_225_600_000)
    }

    fn sleep_until(&self, _deadline: Moment) -> Timer {
        Box::pin(std::future::pending())
    }
}

/// One buffer as the kernel hands it over: packets of one stride from one source.
struct Buffer {
    from: SocketAddr,
    stride: usize,
    bytes: Vec<u8>,
}

/// A socket that has received some buffers, and keeps what is sent.
#[derive(Default)]
struct Kernel {
    received: Mutex<VecDeque<Buffer>>,
    sent: Mutex<Vec<(SocketAddr, usize, Vec<u8>)>>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernel")
    }
}

impl UdpSocket for Kernel {
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        assert!(!transmit.contents.is_empty() && transmit.contents.len() <= UDP_PAYLOAD_BYTES_MAX);
        let stride = transmit.segment_size.unwrap_or(transmit.contents.len());
        assert!(stride > 0);
        self.sent.lock().unwrap().push((transmit.destination, stride, transmit.contents.to_vec()));
        Ok(())
    }

    fn poll_writable(&self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_receive(
        &self,
        _context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap();
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some(Buffer { from, stride, bytes }) = received.pop_front() else { break };
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (from, len, stride);
            count += 1;
        }
        if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(address(9))
    }

    fn send_segments_max(&self) -> usize {
        64
    }
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 1_000))
}

/// Tokens that are good for something somewhere.
const TOKENS: [u64; 4] = [12, 21, 77, u64::MAX];

/// Cuts the data into buffers. Without help hardly any packet would have a good token, so some get one.
fn buffers(data: &[u8]) -> VecDeque<Buffer> {
    let mut buffers = VecDeque::new();
    let mut rest = data;
    while let [low, high, source, length, more @ ..] = rest {
        let stride = usize::from(u16::from_le_bytes([*low, *high])) % 200 + 1;
        let (bytes, after) = more.split_at(more.len().min(usize::from(*length) * 4));
        let mut bytes = bytes.to_vec();
        for segment in bytes.chunks_mut(stride).filter(|segment| segment.len() >= HEADER_BYTES && segment[1] & 2 == 2) {
            let token = TOKENS[usize::from(segment[1] >> 2) % TOKENS.len()];
            packet::replace_token(segment, token);
        }
        if !bytes.is_empty() {
            buffers.push_back(Buffer { from: address(source % 4), stride, bytes });
        }
        rest = after;
    }
    buffers
}

/// How many packets and bytes there are.
fn extent(buffers: &VecDeque<Buffer>) -> (usize, usize) {
    buffers.iter().fold((0, 0), |(packets, bytes), buffer| {
        (packets + buffer.bytes.len().div_ceil(buffer.stride), bytes + buffer.bytes.len())
    })
}

fn headers(data: &[u8]) {
    if let Some(header) = Header::parse(data) {
        let again = Header::parse(&header.encode()).expect("what was written is read");
        assert_eq!(again, header);
        assert!(packet::is_channel_packet(data[0]));
        let present = Generation(u64::from(header.flags) << 40 | 0x8_0000);
        let expanded = packet::expand_generation(present, header.generation);
        assert_eq!(expanded.0 as u16, header.generation);
    }
}

/// Takes all that an endpoint gets from a socket; returns packets and bytes.
async fn drain(socket: &dyn AsyncUdpSocket, known: &BTreeSet<SocketAddr>) -> (usize, usize) {
    let (mut packets, mut bytes) = (0, 0);
    for _ in 0..1_000 {
        let mut data = vec![vec![0; 65_536]; 2];
        let mut meta = [RecvMeta::default(); 2];
        let received = poll_fn(|context| {
            let mut slices: Vec<IoSliceMut<'_>> = data.iter_mut().map(|it| IoSliceMut::new(it)).collect();
            Poll::Ready(match socket.poll_recv(context, &mut slices, &mut meta) {
                Poll::Ready(received) => received.expect("a socket returns no error"),
                Poll::Pending => 0,
            })
        })
        .await;
        if received == 0 {
            return (packets, bytes);
        }
        for meta in &meta[..received] {
            assert!(meta.stride > 0 && meta.len <= 65_536);
            if meta.len > 0 {
                let plain = SocketAddr::new(meta.addr.ip().to_canonical(), meta.addr.port());
                assert!(known.contains(&plain), "{plain}");
                packets += meta.len.div_ceil(meta.stride);
                bytes += meta.len;
            }
        }
    }
    panic!("a socket never stops delivering");
}

async fn at_a_relay(data: &[u8]) {
    let kernel = Arc::new(Kernel::default());
    let (switch, quic) = Switch::start(kernel.clone(), Arc::new(Still));
    for (number, last) in [(1, 1), (2, 2)] {
        switch.session_address(SwitchSession(number), address(last));
    }
    for (token, from, to) in [(12, 1, 2), (21, 2, 1)] {
        let channel = OpenChannel { token, from: SwitchSession(from), token_out: token + 100, to: SwitchSession(to) };
        switch.open(channel).expect("the table is empty");
    }
    let buffers = buffers(data);
    let (packets, bytes) = extent(&buffers);
    *kernel.received.lock().unwrap() = buffers;
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    let known = (0..4).map(address).collect();
    let (quic_packets, quic_bytes) = drain(&*quic, &known).await;
    let (mut sent_packets, mut sent_bytes) = (0, 0);
    for (to, stride, contents) in &*kernel.sent.lock().unwrap() {
        for segment in contents.chunks(*stride) {
            let token = packet::token(segment).expect("only whole headers are forwarded");
            assert!(matches!((token, *to), (112, to) if to == address(2)) || (token == 121 && *to == address(1)));
            sent_packets += 1;
            sent_bytes += segment.len();
        }
    }
    let counters = switch.counters();
    let drops = counters.drops;
    let dropped = drops.unknown_token + drops.wrong_source + drops.malformed + drops.endpoint_full;
    assert_eq!(sent_packets + quic_packets + dropped as usize, packets, "{counters:?}");
    assert!(sent_bytes + quic_bytes <= bytes);
}

async fn at_a_node(data: &[u8]) {
    let kernel = Arc::new(Kernel::default());
    let (socket, _events) = NodeSocket::new(kernel.clone(), Arc::new(Still));
    let key = CircuitKey { peer: NodeId(2), circuit: CircuitId(5) };
    let spec = CircuitSpec { key, me: NodeId(1), packet_bytes: 1_436, larger_bytes: 1_436, enlarges: false };
    let constant = socket.circuit_add(spec).expect("there is room");
    for (relay, token) in [(10, 12), (11, 21)] {
        let spec = ChannelSpec {
            relay: NodeId(relay),
            address: address(relay as u8 - 9),
            token_out: token + 100,
            token_in: token,
            shares_domain_with: BTreeSet::new(),
        };
        socket.channel_add(key, spec).expect("there is room");
    }
    kernel.sent.lock().unwrap().clear();
    let buffers = buffers(data);
    let (packets, bytes) = extent(&buffers);
    *kernel.received.lock().unwrap() = buffers;
    let known = (0..4).map(address).chain([constant]).collect();
    let (got_packets, got_bytes) = drain(&*socket, &known).await;
    // Answers to probes go back where they came from, and are as large.
    let sent = kernel.sent.lock().unwrap();
    let (answers, answer_bytes) = sent.iter().fold((0, 0), |(count, sum), (to, _, it)| {
        assert!(*to == address(1) || *to == address(2));
        (count + 1, sum + it.len())
    });
    assert!(got_packets + answers <= packets && got_bytes + answer_bytes <= bytes);
}

/// The data as one packet, and as what a kernel has received.
pub(crate) fn run(data: &[u8]) {
    headers(data);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        at_a_relay(data).await;
        at_a_node(data).await;
    });
}
