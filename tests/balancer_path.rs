//! The database balancer before a custom engine of the tests: PROXY headers from and to HAProxy, bytes by the gigabyte,
//! nodes that refuse or swallow connections, and descriptors that run short.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/balancer.rs"]
mod balancer;
#[path = "support/mysql_node.rs"]
mod mysql_node;
#[path = "support/programs.rs"]
mod programs;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/servers.rs"]
mod servers;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use balancer::Balancer;
use mysql_node::{CUSTOM, MysqlNode, PROBES_FROM};
use postroad_cluster::balancer::proxy_header::Header;
use ring::{
    digest::{Context, SHA256},
    rand::{SecureRandom, SystemRandom},
};
use servers::{PATIENCE, free_ports, until};
use socket2::{Domain, Socket, Type};

const MONITOR: &str =
    "user = \"monitor\"\npassword = \"watching\"\ntls = \"disabled\"\nperiod_ms = 300\ntimeout_ms = 2000";

/// A balancer of custom nodes; `proxy` are more lines of `[proxy]`.
fn balance(proxy: &str, nodes: &str) -> Balancer {
    let proxy = format!("engine = \"custom\"\n{proxy}");
    let routing = format!("proxy_protocol = true\nmax_lag_seconds = 0\n{CUSTOM}");
    Balancer::start(&proxy, nodes, MONITOR, &routing)
}

fn leads(balancer: &Balancer, primary: &str) {
    until("the primary", || (balancer.primary().as_deref() == Some(primary)).then_some(()));
}

/// Connects from a local address.
fn connect_from(source: &str, port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let source: IpAddr = source.parse().unwrap();
    socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What the node says first: its id, and who it takes the client for.
fn greeting(mut stream: &TcpStream) -> std::io::Result<String> {
    let mut line = String::new();
    // Byte by byte, so that nothing of what follows is taken.
    let mut byte = [0; 1];
    loop {
        stream.read_exact(&mut byte)?;
        match byte[0] {
            b'\n' => return Ok(line),
            other => line.push(char::from(other)),
        }
    }
}

fn address(stream: &TcpStream) -> String {
    stream.local_addr().unwrap().to_string()
}

// DB-2: a single server outside any cluster is its own primary, and serves reads; DB-30: custom engines say who is who
// by variables.
#[test]
fn a_custom_engine_is_led_by_its_epoch_and_sees_the_clients() {
    let first = MysqlNode::start("n1", "PRIMARY", "n2");
    let second = MysqlNode::start("n2", "SECONDARY", "");
    let balancer = balance("", &format!("{}{}", first.line(), second.line()));
    leads(&balancer, "n1");
    until("a reader", || (balancer.readers() == ["n2"]).then_some(()));
    for (port, node) in [(balancer.rw, "n1"), (balancer.ro, "n2")] {
        let client = connect_from("127.0.0.5", port);
        assert_eq!(greeting(&client).unwrap(), format!("{node} {}", address(&client)));
    }
    // The second is elected; the first does not know it yet, and its epoch tells.
    let mut open = connect_from("127.0.0.5", balancer.rw);
    greeting(&open).unwrap();
    {
        let mut says = second.says.lock().unwrap();
        says.role = "PRIMARY".to_owned();
        says.epoch = 2;
    }
    leads(&balancer, "n2");
    let mut byte = [0; 1];
    until("the end of the old write connection", || {
        let lost = open.write_all(b"e").is_err() || open.read(&mut byte).is_err();
        lost.then_some(())
    });
    assert!(greeting(&connect_from("127.0.0.5", balancer.rw)).unwrap().starts_with("n2 "));
}

/// Whether the balancer resets a client that begins with `bytes`.
#[track_caller]
fn assert_refused(port: u16, bytes: &[u8]) {
    let mut client = connect_from("127.0.0.1", port);
    client.write_all(bytes).unwrap();
    let refused = greeting(&client).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof), "{bytes:?}: {refused}");
}

// D6, DB-32, DB-34
#[test]
fn headers_are_required_from_trusted_addresses_and_passed_on_unread_from_others() {
    let node = MysqlNode::start("n1", "NONE", "");
    let balancer = balance("proxy_protocol_from = \"127.0.0.1, 10.0.0.0/8\"", &node.line());
    leads(&balancer, "n1");
    let told = Header::Proxied {
        source: "203.0.113.9:51000".parse().unwrap(),
        destination: "198.51.100.1:3306".parse().unwrap(),
    };
    // A byte at a time.
    let mut client = connect_from("127.0.0.1", balancer.rw);
    client.set_nodelay(true).unwrap();
    for byte in told.encode() {
        client.write_all(&[byte]).unwrap();
    }
    assert_eq!(greeting(&client).unwrap(), "n1 203.0.113.9:51000");
    // LOCAL, also with an address block; UNSPEC: the real peer.
    let mut local_with_block = told.encode();
    local_with_block[12] = 0x20;
    let mut unspecified = told.encode();
    unspecified[13] = 0;
    for header in [Header::Local.encode(), local_with_block, unspecified] {
        let mut client = connect_from("127.0.0.1", balancer.rw);
        client.write_all(&header).unwrap();
        assert_eq!(greeting(&client).unwrap(), format!("n1 {}", address(&client)));
    }
    // The greatest length, and what comes right behind it is the client's.
    let mut long = told.encode();
    long[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    let filling = usize::from(u16::MAX) - 12 - 3;
    long.push(0x04);
    long.extend((filling as u16).to_be_bytes());
    long.resize(16 + usize::from(u16::MAX), 0);
    long.extend(b"ehello");
    let mut client = connect_from("127.0.0.1", balancer.rw);
    client.write_all(&long).unwrap();
    assert_eq!(greeting(&client).unwrap(), "n1 203.0.113.9:51000");
    let mut hello = [0; 5];
    client.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    // Unknown command, family and version; version 1 text; none at all.
    for (at, value) in [(12, 0x22), (12, 0x11), (13, 0x41)] {
        let mut bytes = told.encode();
        bytes[at] = value;
        assert_refused(balancer.rw, &bytes);
    }
    assert_refused(balancer.rw, b"PROXY TCP4 203.0.113.9 198.51.100.1 51000 3306\r\n");
    assert_refused(balancer.rw, b"\x0a\0\0\x01nothing of the kind");
    // Nothing at all: at the deadline.
    assert_refused(balancer.rw, b"");
    // From others nothing is interpreted: the header is the client's word, and comes back as such.
    let mut stranger = connect_from("127.0.0.5", balancer.rw);
    let claim = told.encode();
    stranger.write_all(b"e").unwrap();
    stranger.write_all(&claim).unwrap();
    assert_eq!(greeting(&stranger).unwrap(), format!("n1 {}", address(&stranger)));
    let mut back = vec![0; claim.len()];
    stranger.read_exact(&mut back).unwrap();
    assert_eq!(back, claim);
}

/// A HAProxy; it ends with this.
struct Haproxy {
    process: Child,
    _directory: tempfile::TempDir,
    port: u16,
}

impl Haproxy {
    /// One that leads to `to`; `bind` and `server` are more words of these lines.
    fn start(bind: &str, server: &str, to: SocketAddr) -> Option<Self> {
        let program = programs::find(&["haproxy"])?.remove(0);
        let directory = tempfile::tempdir().unwrap();
        let port = free_ports(1)[0];
        let text = format!(
            "global\n  maxconn 100\ndefaults\n  mode tcp\n  timeout connect 10s\n  timeout client 60s\n  \
             timeout server 60s\nlisten all\n  bind 127.0.0.1:{port} {bind}\n  server node {to} {server}\n"
        );
        let file = directory.path().join("haproxy.cfg");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.arg("-f").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let haproxy = Self { process: command.spawn().unwrap(), _directory: directory, port };
        until("HAProxy's start", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(haproxy)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// DB-30, DB-32: HAProxy as the sender of headers
#[test]
fn haproxy_in_front_tells_who_the_client_is() {
    let node = MysqlNode::start("n1", "NONE", "");
    let balancer = balance("proxy_protocol_from = \"127.0.0.1\"", &node.line());
    leads(&balancer, "n1");
    let to = SocketAddr::from(([127, 0, 0, 1], balancer.rw));
    let Some(haproxy) = Haproxy::start("", "send-proxy-v2", to) else { return };
    let client = connect_from("127.0.0.5", haproxy.port);
    assert_eq!(greeting(&client).unwrap(), format!("n1 {}", address(&client)));
    drop(haproxy);
    // With extensions and a checksum over all.
    let Some(haproxy) = Haproxy::start("", "send-proxy-v2 proxy-v2-options crc32c,unique-id", to) else { return };
    let client = connect_from("127.0.0.5", haproxy.port);
    assert_eq!(greeting(&client).unwrap(), format!("n1 {}", address(&client)));
}

// DB-30, DB-31: HAProxy as the reader of ours
#[test]
fn haproxy_before_the_node_reads_our_header() {
    let node = MysqlNode::start("n1", "NONE", "");
    let Some(haproxy) = Haproxy::start("accept-proxy", "send-proxy", node.address) else { return };
    let line = format!("n1 = \"127.0.0.1:{}\"\n", haproxy.port);
    let balancer = balance(&format!("source = \"{PROBES_FROM}\""), &line);
    leads(&balancer, "n1");
    let client = connect_from("127.0.0.5", balancer.rw);
    assert_eq!(greeting(&client).unwrap(), format!("n1 {}", address(&client)));
}

/// CPU time that the balancer has used, in hundredths of a second.
fn cpu_ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Nothing to do costs nothing but the probes: under a tenth of a core, where a spin takes a whole one.
fn assert_rests(balancer: &Balancer) {
    let before = cpu_ticks(balancer.pid());
    thread::sleep(Duration::from_secs(3));
    let used = cpu_ticks(balancer.pid()) - before;
    assert!(used < 30, "{used} hundredths of a second in 3 s of rest");
}

/// Sends `bytes` of what is random in `block`, in chunks of chance; returns the hash.
fn send(mut stream: &TcpStream, block: &[u8], bytes: u64) -> Vec<u8> {
    let chance = SystemRandom::new();
    let mut hash = Context::new(&SHA256);
    let (mut left, mut at) = (bytes, 0);
    while left > 0 {
        let mut drawn = [0; 8];
        chance.fill(&mut drawn).unwrap();
        let greatest = 1 << (drawn[0] % 20);
        let wanted = 1 + u64::from_le_bytes(drawn) / 256 % greatest;
        let count = wanted.min(left).min((block.len() - at) as u64) as usize;
        hash.update(&block[at..at + count]);
        stream.write_all(&block[at..at + count]).unwrap();
        left -= count as u64;
        at = (at + count) % block.len();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    hash.finish().as_ref().to_vec()
}

/// Reads to the end; returns the hash and how many bytes there were.
fn receive(mut stream: &TcpStream) -> (Vec<u8>, u64) {
    let mut hash = Context::new(&SHA256);
    let mut bytes = vec![0; 1 << 20];
    let mut received = 0;
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => return (hash.finish().as_ref().to_vec(), received),
            count => {
                hash.update(&bytes[..count]);
                received += count as u64;
            }
        }
    }
}

// D7
#[test]
fn a_gigabyte_of_chance_comes_back_unchanged_and_leaves_no_work_behind() {
    let node = MysqlNode::start("n1", "NONE", "");
    let balancer = balance("", &node.line());
    leads(&balancer, "n1");
    // Its length shares no factor with any chunk's.
    let mut block = vec![0; (8 << 20) + 13];
    SystemRandom::new().fill(&mut block).unwrap();
    let sizes = [0, 1, 4_095, 16_384, 16_385, 65_536, 262_143, 1_048_577, 1 << 30];
    for size in sizes {
        let mut client = connect_from("127.0.0.5", balancer.rw);
        client.write_all(b"e").unwrap();
        greeting(&client).unwrap();
        let (sent, received) = thread::scope(|scope| {
            let sender = scope.spawn(|| send(&client, &block, size));
            let received = receive(&client);
            (sender.join().unwrap(), received)
        });
        assert_eq!(received, (sent, size), "{size} bytes");
    }
    assert_rests(&balancer);
}

// D9, DB-6
#[test]
fn a_replica_that_refuses_or_swallows_a_connection_costs_the_client_nothing_but_time() {
    let primary = MysqlNode::start("n1", "PRIMARY", "n2,n3");
    let second = MysqlNode::start("n2", "SECONDARY", "");
    let third = MysqlNode::start("n3", "SECONDARY", "");
    let balancer = balance("", &[primary.line(), second.line(), third.line()].concat());
    leads(&balancer, "n1");
    let both = || until("both readers", || (balancer.readers() == ["n2", "n3"]).then_some(()));
    both();
    // Its probe's connection stays open, so it is still believed to be well; new ones are refused.
    second.close_door();
    let longest = |rounds: u32| {
        let mut longest = Duration::ZERO;
        for _ in 0..rounds {
            let began = Instant::now();
            let client = connect_from("127.0.0.5", balancer.ro);
            assert!(greeting(&client).unwrap().starts_with("n3 "));
            longest = longest.max(began.elapsed());
        }
        longest
    };
    println!("refused: served within {:?}", longest(6));
    both();
    // Nobody takes what waits at its door, which has no more room: the next one is swallowed.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&second.address.into()).unwrap();
    socket.listen(0).unwrap();
    let waiting = TcpStream::connect(second.address).unwrap();
    let swallowed = longest(4);
    println!("swallowed: served within {swallowed:?}");
    both();
    assert!(swallowed >= Duration::from_secs(1), "it was not tried: {swallowed:?}");
    drop(waiting);
}

// DB-44: a reload takes the list, and names what needs a restart; a file that is wrong changes nothing.
#[test]
fn a_reload_takes_the_list_and_names_what_needs_a_restart() {
    let node = MysqlNode::start("n1", "PRIMARY", "n2");
    let balancer = balance("language = \"en\"", &node.line());
    leads(&balancer, "n1");
    let open = connect_from("127.0.0.5", balancer.rw);
    greeting(&open).unwrap();
    balancer.edit("language = \"en\"", "language = \"fr\"");
    until("the word on what was not taken", || {
        balancer.log().contains("these keys stay as they were: proxy.language").then_some(())
    });
    balancer.edit("language = \"fr\"", "language = \"xx\"");
    until("the complaint", || balancer.log().contains("proxy.language is \"xx\"").then_some(()));
    let second = MysqlNode::start("n2", "SECONDARY", "");
    balancer.edit("language = \"xx\"", "language = \"en\"");
    balancer.relist(&format!("{}{}", node.line(), second.line()));
    until("the new reader", || (balancer.readers() == ["n2"]).then_some(()));
    let mut byte = [0; 1];
    open.set_nonblocking(true).unwrap();
    let quiet = (&open).read(&mut byte).unwrap_err();
    assert_eq!(quiet.kind(), ErrorKind::WouldBlock, "no connection is dropped");
}

// D10, DB-33
#[test]
fn with_descriptors_short_accepting_pauses_and_probes_go_on() {
    let Some(_) = programs::find(&["prlimit"]) else { return };
    let node = MysqlNode::start("n1", "NONE", "");
    let proxy = "engine = \"custom\"";
    let routing = format!("proxy_protocol = true\nmax_lag_seconds = 0\n{CUSTOM}");
    let balancer = Balancer::start_under(&["prlimit", "--nofile=128:128"], proxy, &node.line(), MONITOR, &routing);
    leads(&balancer, "n1");
    let clients: Vec<TcpStream> = (0..300).map(|_| connect_from("127.0.0.5", balancer.rw)).collect();
    // Some are served; the others wait in the kernel.
    let served = until("some that are served", || {
        let open = balancer.node("n1")["rw"].as_u64()?;
        (open >= 20).then_some(open)
    });
    assert!(served < 64, "{served} connections take two descriptors each");
    assert_rests(&balancer);
    assert_eq!(balancer.node("n1")["healthy"], true, "{}", balancer.node("n1"));
    assert_eq!(balancer.primary().as_deref(), Some("n1"));
    let said = balancer.log().lines().filter(|line| line.contains("accepting pauses")).count();
    assert!((1..=5).contains(&said), "{said} lines:\n{}", balancer.log());
    drop(clients);
    let client = connect_from("127.0.0.5", balancer.rw);
    assert!(greeting(&client).unwrap().starts_with("n1 "));
}

// DB-6
#[test]
fn without_a_node_the_client_is_told_at_once() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let balancer = balance("", &format!("n1 = \"{closed}\"\n"));
    let mut all = Vec::new();
    connect_from("127.0.0.5", balancer.rw).read_to_end(&mut all).unwrap();
    assert_eq!(&all[4..7], b"\xff\x53\x23");
    assert_eq!(&all[7..], b"no node available for RW connections");
}
