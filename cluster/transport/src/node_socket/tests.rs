//! Circuits' addresses, and what a circuit does with what its driver sends while the socket is full.

use std::{io::IoSliceMut, time::Duration};

use postroad_cluster::{
    id::CircuitId,
    limits::{CIRCUIT_PACKET_BYTES_JUMBO, UDP_PAYLOAD_BYTES_MAX},
    time::{Entropy, Timer, WallTime},
};

use super::*;
use crate::{
    endpoint::endpoint_config,
    packet::{FLAG_LARGE, HEADER_BYTES, Header, PacketType},
    switch::SwitchSocket,
};

const RELAY: NodeId = NodeId(7);
const KEY: CircuitKey = CircuitKey { peer: NodeId(2), circuit: CircuitId(1) };
const PACKET_BYTES: usize = 1_200;

#[derive(Debug)]
struct TestClock(tokio::time::Instant);

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

/// A socket with room for so many sends, which keeps every datagram.
#[derive(Debug, Default)]
struct Narrow {
    room: AtomicU64,
    sends: AtomicU64,
    sent: Mutex<Vec<Vec<u8>>>,
}

impl Narrow {
    fn sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().clone()
    }

    /// The numbers of the data packets that left, in order.
    fn numbers(&self) -> Vec<u64> {
        let sent = self.sent();
        let data = sent.iter().filter(|packet| Header::parse(packet).is_some_and(|header| cell::is_data(&header)));
        data.map(|packet| u64::from_le_bytes(*packet[HEADER_BYTES..].first_chunk().unwrap())).collect()
    }
}

impl UdpSocket for Narrow {
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let take = |room: u64| room.checked_sub(1);
        if self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.sends.fetch_add(1, Ordering::AcqRel);
        let stride = transmit.segment_size.unwrap_or(transmit.contents.len());
        self.sent.lock().unwrap().extend(transmit.contents.chunks(stride).map(<[u8]>::to_vec));
        Ok(())
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.room.load(Ordering::Acquire) > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_receive(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        _: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok("127.0.0.1:1".parse().unwrap())
    }

    fn send_segments_max(&self) -> usize {
        64
    }
}

/// A circuit over one relay that has proven itself, on a socket that is full from now on.
struct Bench {
    narrow: Arc<Narrow>,
    socket: Arc<NodeSocket>,
    cell: Arc<Cell>,
    _events: mpsc::Receiver<CircuitEvent>,
}

impl Bench {
    async fn new() -> Self {
        let bench = Self::with(PACKET_BYTES as u32, false).await;
        bench.fill();
        bench
    }

    async fn with(packet_bytes: u32, enlarges: bool) -> Self {
        let narrow = Arc::new(Narrow { room: AtomicU64::new(u64::MAX), ..Narrow::default() });
        let clock = Arc::new(TestClock(tokio::time::Instant::now()));
        let (socket, events) = NodeSocket::new(Arc::clone(&narrow) as Arc<dyn UdpSocket>, clock);
        let larger_bytes = CIRCUIT_PACKET_BYTES_JUMBO;
        let spec = CircuitSpec { key: KEY, me: NodeId(1), packet_bytes, larger_bytes, enlarges };
        socket.circuit_add(spec).unwrap();
        let bench = Self { cell: socket.cell(KEY).unwrap(), narrow, socket, _events: events };
        bench.channel(RELAY);
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.echo(RELAY);
        assert_eq!(bench.socket.status(KEY).unwrap().relay, Some(RELAY));
        bench
    }

    fn channel(&self, relay: NodeId) {
        let address = SocketAddr::from(([192, 0, 2, relay.0 as u8], 9443));
        let (token_out, token_in) = (relay.0 * 10, relay.0 * 10 + 1);
        let spec =
            ChannelSpec { relay, address, token_out, token_in, shares_domain_with: std::iter::empty().collect() };
        self.socket.channel_add(KEY, spec).unwrap();
    }

    /// Lets every probe over `relay` come back.
    fn echo(&self, relay: NodeId) {
        for packet in self.narrow.sent() {
            let header = Header::parse(&packet).unwrap();
            if matches!(header.packet_type, PacketType::Probe) && header.token == relay.0 * 10 {
                self.cell.echoed(relay, &packet);
            }
        }
    }

    fn fill(&self) {
        self.narrow.room.store(0, Ordering::Release);
        self.narrow.sent.lock().unwrap().clear();
        self.narrow.sends.store(0, Ordering::Release);
    }

    fn drain(&self) {
        self.narrow.room.store(u64::MAX, Ordering::Release);
    }

    /// What quinn does in one go: packets with these numbers, ten a transmit; what was refused it offers again later.
    /// Returns the number of the first packet that was not taken.
    fn drive(&self, numbers: std::ops::Range<u64>) -> u64 {
        held::together(|| {
            let mut next = numbers.start;
            while next < numbers.end {
                let end = numbers.end.min(next + 10);
                let contents: Vec<u8> = (next..end)
                    .flat_map(|number| {
                        let mut packet = vec![0; PACKET_BYTES];
                        packet[..8].copy_from_slice(&number.to_le_bytes());
                        packet
                    })
                    .collect();
                let transmit = Transmit {
                    destination: self.cell.address(),
                    ecn: None,
                    contents: &contents,
                    segment_size: Some(PACKET_BYTES),
                    src_ip: None,
                };
                match self.socket.try_send(&transmit) {
                    Ok(()) => next = end,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            next
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_sends_at_once_leaves_in_few_sends() {
    let bench = Bench::new().await;
    bench.drain();
    assert_eq!(bench.drive(0..100), 100);
    assert_eq!(bench.narrow.numbers(), (0..100).collect::<Vec<_>>());
    // 50 packets of 1,216 bytes are the most whole tens that fit into 65,507.
    assert_eq!(bench.narrow.sends.load(Ordering::Acquire), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_full_socket_did_not_take_goes_at_once_when_it_has_room() {
    let bench = Bench::new().await;
    let refused = bench.drive(0..200);
    assert_eq!(refused, 50, "one send's worth is kept and no more");
    assert_eq!(bench.drive(refused..200), refused, "quinn is told to wait as long as the socket is full");
    assert_eq!(bench.narrow.numbers(), []);
    bench.drain();
    // No time passes: what was kept does not go at the pace of what goes again after a silence.
    assert_eq!(bench.drive(refused..200), 200);
    assert_eq!(bench.narrow.numbers(), (0..200).collect::<Vec<_>>(), "in order, nothing lost and nothing twice");
    let status = bench.socket.status(KEY).unwrap();
    assert_eq!((status.counters.sent, status.counters.dropped, status.counters.replayed), (200, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_leaves_by_the_tick_though_nothing_more_is_sent() {
    let bench = Bench::new().await;
    assert_eq!(bench.drive(0..30), 30);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(bench.narrow.numbers(), []);
    bench.drain();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(bench.narrow.numbers(), (0..30).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_goes_over_the_new_relay_when_the_old_one_is_lost() {
    let other = NodeId(8);
    let bench = Bench::new().await;
    bench.drain();
    bench.channel(other);
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.echo(other);
    bench.fill();
    assert_eq!(bench.drive(0..30), 30);
    bench.socket.session_lost(RELAY);
    assert_eq!(bench.socket.status(KEY).unwrap().relay, Some(other));
    bench.drain();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(bench.narrow.numbers(), (0..30).collect::<Vec<_>>());
    let tokens = bench.narrow.sent().iter().map(|packet| Header::parse(packet).unwrap()).collect::<Vec<_>>();
    assert!(tokens.iter().filter(|header| cell::is_data(header)).all(|header| header.token == other.0 * 10));
}

// The end that is dialled learns the size from the header of the first packet, and takes it where it may.
#[tokio::test(start_paused = true)]
async fn a_circuit_has_large_packets_when_its_dialler_says_so_before_the_connection() {
    let (small, large) = (CIRCUIT_PACKET_BYTES, CIRCUIT_PACKET_BYTES_JUMBO);
    let size = |bench: &Bench| bench.socket.status(KEY).unwrap().packet_bytes;
    let dialler = Bench::with(large, false).await;
    let header = Header::parse(&dialler.narrow.sent()[0]).unwrap();
    let plain = Header::parse(&Bench::with(small, false).await.narrow.sent()[0]).unwrap();
    assert_eq!((header.flags, plain.flags), (FLAG_LARGE, 0));
    for (enlarges, said, expected) in [(true, header, large), (true, plain, small), (false, header, small)] {
        let bench = Bench::with(small, enlarges).await;
        bench.cell.heard(RELAY, &said);
        assert_eq!(size(&bench), expected, "{enlarges} {said:?}");
    }
}

#[test]
fn circuits_have_addresses_of_their_own() {
    for index in [1, 7, u64::MAX] {
        assert_eq!(circuit_index(circuit_address(index)), Some(index));
    }
    assert_eq!(circuit_address(1), "[100::1]:9443".parse().unwrap());
    for real in ["192.0.2.1:1", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1", "[101::1]:1", "[100:0:0:1::1]:1"] {
        assert_eq!(circuit_index(real.parse().unwrap()), None, "{real}");
    }
}

/// Enough for what makes no key.
#[derive(Debug)]
struct NoEntropy;

impl Entropy for NoEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

// What a kernel joins is one payload at most: with room for every segment of it, an endpoint had 134 MB of buffers, and the
// first full batch waited until the kernel had cleared them. With less, joined packets are cut off.
#[tokio::test]
async fn an_endpoint_has_room_for_one_payload_in_each_receive_buffer() {
    let bench = Bench::new().await;
    let relay = SwitchSocket::new(Arc::clone(&bench.narrow) as Arc<dyn UdpSocket>);
    let payload_bytes = endpoint_config(&NoEntropy, &[0; 32]).get_max_udp_payload_size() as usize;
    for payloads in [bench.socket.max_receive_segments(), relay.max_receive_segments()] {
        assert_eq!(payloads * payload_bytes, UDP_PAYLOAD_BYTES_MAX);
    }
}
