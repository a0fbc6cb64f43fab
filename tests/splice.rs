//! The byte path of the balancer on real sockets: ends, resets, pipes, and what is given up.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use postroad::{clock::BootClock, net::SystemNetwork};
use postroad_transport::{
    network::Network,
    splice::{Side, SpliceEnd, SpliceWaits, Spliced, Splicer},
};
use socket2::SockRef;
use tokio::task::JoinHandle;

/// No assertion on time: only the end of a wait for what must come.
const PATIENCE: Duration = Duration::from_mins(1);

/// A path between two sockets of the test.
struct Path {
    client: TcpStream,
    node: TcpStream,
    spliced: JoinHandle<Spliced>,
}

impl Path {
    /// A path whose first bytes to the node are `first`.
    async fn open(waits: SpliceWaits, first: &[u8]) -> Self {
        Self::between(waits, first, "127.0.0.1:0").await
    }

    /// The same to a node that listens there.
    async fn between(waits: SpliceWaits, first: &[u8], node: &str) -> Self {
        let network: Arc<dyn Network> = Arc::new(SystemNetwork::default());
        let splicer = Splicer::new(Arc::clone(&network), Arc::new(BootClock::start().unwrap()), waits);
        let door = network.tcp_listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let server = TcpListener::bind(node).unwrap();
        let client = TcpStream::connect(door.local_address().unwrap()).unwrap();
        let accepted = door.accept().await.unwrap();
        let connected = network.tcp_connect(server.local_addr().unwrap()).await.unwrap();
        let node = server.accept().unwrap().0;
        for socket in [&client, &node] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        let spliced = tokio::spawn(splicer.splice(accepted, connected, first.to_vec()));
        Self { client, node, spliced }
    }

    async fn usual() -> Self {
        Self::open(SpliceWaits::default(), b"").await
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it never came")
}

fn read_exact(mut socket: &TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

fn read_to_end(mut socket: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).map(|_| bytes)
}

/// The socket is reset, and nothing tells it apart from one that its peer has reset itself.
fn assert_reset(socket: &TcpStream) {
    assert_eq!(read_to_end(socket).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// The socket is reset, which a reader that was told of the end does not see, and a writer does.
fn assert_broken(mut socket: &TcpStream) {
    let until = Instant::now() + PATIENCE;
    while socket.write(b".").is_ok() {
        assert!(Instant::now() < until, "it still takes bytes");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The socket's close is a reset.
fn reset(socket: TcpStream) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

// DB-33, DB-30
#[tokio::test(flavor = "multi_thread")]
async fn bytes_and_ends_pass_both_ways_each_by_itself() {
    let mut path = Path::open(SpliceWaits::default(), b"header").await;
    path.client.write_all(b"question").unwrap();
    assert_eq!(read_exact(&path.node, 14), b"headerquestion");
    path.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&path.node).unwrap(), b"", "the client's end reaches the node");
    path.node.write_all(b"answer").unwrap();
    assert_eq!(read_exact(&path.client, 6), b"answer", "and the other direction goes on");
    assert!(!path.spliced.is_finished());
    path.node.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&path.client).unwrap(), b"");
    let spliced = soon(path.spliced).await.unwrap();
    assert_eq!(spliced, Spliced { client_bytes: 14, node_bytes: 6, end: SpliceEnd::Finished });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_end_alone_does_not_end_the_client() {
    let mut path = Path::usual().await;
    path.node.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&path.client).unwrap(), b"");
    path.client.write_all(b"still here").unwrap();
    assert_eq!(read_exact(&path.node, 10), b"still here");
    path.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(soon(path.spliced).await.unwrap().end, SpliceEnd::Finished);
}

// DB-33
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stays_a_reset_on_the_other_side() {
    let Path { client, node, spliced } = Path::usual().await;
    reset(client);
    assert_reset(&node);
    assert_eq!(soon(spliced).await.unwrap().end, SpliceEnd::Reset(Side::Client, ErrorKind::ConnectionReset));

    let Path { client, node, spliced } = Path::usual().await;
    reset(node);
    assert_reset(&client);
    assert_eq!(soon(spliced).await.unwrap().end, SpliceEnd::Reset(Side::Node, ErrorKind::ConnectionReset));

    // Nothing is read any more of a side that has ended, and yet its reset is noticed.
    let Path { client, node, spliced } = Path::usual().await;
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&node).unwrap(), b"");
    reset(client);
    assert_broken(&node);
    assert_eq!(soon(spliced).await.unwrap().end, SpliceEnd::Reset(Side::Client, ErrorKind::ConnectionReset));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_reset_while_the_node_takes_nothing_is_noticed() {
    let Path { mut client, node, spliced } = Path::usual().await;
    client.set_nonblocking(true).unwrap();
    fill(&mut client);
    reset(client);
    assert_eq!(soon(spliced).await.unwrap().end, SpliceEnd::Reset(Side::Client, ErrorKind::ConnectionReset));
    drop(node);
}

/// Writes until nothing was taken for a while.
fn fill(socket: &mut TcpStream) {
    let bytes = vec![7; 64 << 10];
    let mut refused = 0;
    while refused < 20 {
        if let Ok(count) = socket.write(&bytes) {
            assert!(count > 0);
            refused = 0;
        } else {
            refused += 1;
            thread::sleep(Duration::from_millis(10));
        }
    }
}

// DB-20
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_dropped_resets_both_sides() {
    let path = Path::usual().await;
    path.spliced.abort();
    assert!(soon(path.spliced).await.unwrap_err().is_cancelled());
    assert_reset(&path.client);
    assert_reset(&path.node);
}

// DB-33
#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_path_is_reaped_after_a_silence_that_any_byte_ends() {
    let waits = SpliceWaits { silent: Duration::from_millis(1_500), ..SpliceWaits::default() };
    let mut path = Path::open(waits, b"").await;
    path.client.shutdown(Shutdown::Write).unwrap();
    let began = Instant::now();
    for _ in 0..8 {
        thread::sleep(Duration::from_millis(400));
        path.node.write_all(b".").unwrap();
        assert_eq!(read_exact(&path.client, 1), b".");
    }
    assert!(began.elapsed() > 2 * waits.silent, "it would have been reaped twice");
    let spliced = soon(path.spliced).await.unwrap();
    assert!(matches!(spliced.end, SpliceEnd::Silent(Side::Node, span) if span >= waits.silent), "{spliced:?}");
    assert_reset(&path.client);
    assert_broken(&path.node);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_path_may_be_silent_for_as_long_as_it_likes() {
    let short = Duration::from_millis(100);
    let mut path = Path::open(SpliceWaits { silent: short, unanswered: short }, b"").await;
    path.client.write_all(b"once").unwrap();
    assert_eq!(read_exact(&path.node, 4), b"once");
    tokio::time::sleep(10 * short).await;
    path.client.write_all(b"again").unwrap();
    assert_eq!(read_exact(&path.node, 5), b"again");
    assert!(!path.spliced.is_finished());
}

// DB-33: a full buffer is not a dead peer
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_for_long_is_waited_for() {
    const BYTES: usize = 64 << 20;
    let waits = SpliceWaits { unanswered: Duration::from_millis(200), ..SpliceWaits::default() };
    let Path { client, mut node, spliced } = Path::open(waits, b"").await;
    let writer = thread::spawn(move || {
        let row: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
        node.write_all(&row).unwrap();
        (node, row)
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!writer.is_finished() && !spliced.is_finished(), "both ends' buffers are full, and it lives");
    let got = tokio::task::spawn_blocking(move || (read_exact(&client, BYTES), client));
    let (got, client) = soon(got).await.unwrap();
    let (node, row) = writer.join().unwrap();
    assert!(got == row, "every byte, in order");
    client.shutdown(Shutdown::Write).unwrap();
    drop(node);
    assert_eq!(soon(spliced).await.unwrap().node_bytes, BYTES as u64);
    drop(client);
}

/// A cheap generator of chunks and bytes: xorshift64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes `data` in chunks of chance, sometimes with a pause, and ends.
fn write_in_chunks(mut socket: &TcpStream, mut data: &[u8], chance: &mut Chance) {
    while !data.is_empty() {
        let greatest = 1 << (chance.next() % 19);
        let (chunk, rest) = data.split_at(data.len().min(1 + (chance.next() % greatest) as usize));
        socket.write_all(chunk).unwrap();
        data = rest;
        if chance.next().is_multiple_of(512) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    socket.shutdown(Shutdown::Write).unwrap();
}

// D7, on the path alone: the end at every class of offset around the copied buffer, a page and a pipe
#[tokio::test(flavor = "multi_thread")]
async fn random_chunks_arrive_unchanged_wherever_they_end() {
    let mut chance = Chance(0x5EED);
    let mut sizes = vec![0, 1, 3 << 20];
    for boundary in [4_096_usize, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20] {
        sizes.extend([boundary - 1, boundary, boundary + 1]);
    }
    for size in sizes {
        let words = (0..size.div_ceil(8)).flat_map(|_| chance.next().to_le_bytes());
        let data: Vec<u8> = words.take(size).collect();
        let Path { client, node, spliced } = Path::usual().await;
        let mut chances = [Chance(chance.next() | 1), Chance(chance.next() | 1)];
        let (got_up, got_down) = thread::scope(|scope| {
            let [up, down] = &mut chances;
            scope.spawn(|| write_in_chunks(&client, &data, up));
            scope.spawn(|| write_in_chunks(&node, &data, down));
            let at_node = scope.spawn(|| read_to_end(&node).unwrap());
            let got_down = read_to_end(&client).unwrap();
            (at_node.join().unwrap(), got_down)
        });
        assert!(got_up == data && got_down == data, "{size} bytes");
        let wanted = Spliced { client_bytes: size as u64, node_bytes: size as u64, end: SpliceEnd::Finished };
        assert_eq!(soon(spliced).await.unwrap(), wanted);
    }
}

/// Tells this test that it runs in a network namespace of its own.
const NAMESPACE: &str = "POSTROAD_TEST_NAMESPACE";

/// Runs a program of the system.
fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    assert!(command.args(words).status().unwrap().success(), "{command:?}");
}

/// Runs the test of this name again in a network namespace of its own; false where this process may make none.
fn in_namespace(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("POSTROAD_REQUIRE_ALL").is_none(), "network namespaces are root's");
        eprintln!("skipped: network namespaces are root's");
        return false;
    }
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = command.env(NAMESPACE, "1").output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    true
}

// DB-33: user timeouts on both legs
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_answers_nothing_any_more_is_given_up() {
    if std::env::var_os(NAMESPACE).is_none() {
        in_namespace("a_host_that_answers_nothing_any_more_is_given_up");
        return;
    }
    run("ip link set lo up");
    let waits = SpliceWaits { unanswered: Duration::from_secs(2), ..SpliceWaits::default() };
    let mut path = Path::between(waits, b"", "127.0.0.77:0").await;
    path.client.write_all(b"before").unwrap();
    assert_eq!(read_exact(&path.node, 6), b"before");
    run("ip route add blackhole 127.0.0.77/32 table local");
    path.client.write_all(b"after").unwrap();
    let spliced = soon(path.spliced).await.unwrap();
    assert!(matches!(spliced.end, SpliceEnd::Unanswered(Side::Node, span) if span >= waits.unanswered), "{spliced:?}");
    assert_reset(&path.client);
}
