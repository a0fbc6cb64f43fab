//! The real ports on the loopback and on a real disk: what the simulated ones imitate.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use postroad::{
    clock::BootClock,
    disk::{DataDirectory, DiskError},
    net::SystemNetwork,
};
use postroad_cluster::time::{Clock, Moment};
use postroad_store::disk::Disk;
use postroad_transport::network::{Network, TcpStream, UdpSocket};
use quinn_udp::{RecvMeta, Transmit};

const LOOPBACK: &str = "127.0.0.1:0";
/// No assertion on time: only the end of a wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it never came")
}

// ---- clock ----

#[tokio::test]
async fn sleepers_wake_in_the_order_of_their_deadlines() {
    let clock = BootClock::start().unwrap();
    let start = clock.now();
    let woken = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for ms in [60, 20, 40, 0] {
        let (clock, woken) = (clock.clone(), Arc::clone(&woken));
        tasks.push(tokio::spawn(async move {
            let deadline = start.after(Duration::from_millis(ms));
            clock.sleep_until(deadline).await;
            assert!(clock.now() >= deadline, "woken too early");
            woken.lock().unwrap().push(ms);
        }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(*woken.lock().unwrap(), [0, 20, 40, 60]);
}

#[tokio::test]
async fn an_earlier_timer_and_a_dropped_one_do_not_disturb_the_others() {
    let clock = BootClock::start().unwrap();
    let far = clock.sleep_until(Moment::NEVER);
    let mut late = tokio::spawn(clock.sleep_until(clock.now().after(Duration::from_hours(1))));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut late).await.is_err());
    // The timerfd is now set to an hour from here; this one must come first all the same.
    soon(clock.sleep_until(clock.now().after(Duration::from_millis(5)))).await;
    let mut dropped = clock.sleep_until(clock.now().after(Duration::from_millis(10)));
    assert!(futures_poll(&mut dropped).is_pending());
    drop(dropped);
    soon(clock.sleep_until(clock.now().after(Duration::from_millis(20)))).await;
    late.abort();
    drop(far);
    assert!(late.await.unwrap_err().is_cancelled());
    assert_eq!(format!("{clock:?}"), "BootClock { sleepers: 0 }");
}

#[tokio::test]
async fn a_timer_outlives_its_clock() {
    let clock = BootClock::start().unwrap();
    let timer = clock.sleep_until(clock.now().after(Duration::from_millis(10)));
    drop(clock);
    soon(timer).await;
}

fn futures_poll(future: &mut (impl Future<Output = ()> + Unpin)) -> Poll<()> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

// ---- disk ----

#[test]
fn files_hold_what_was_written_and_are_closed_to_others() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("deep/data");
    let disk = DataDirectory::open(&path).unwrap();
    let file = disk.open("log").unwrap();
    file.write(3, b"promise").unwrap();
    file.sync().unwrap();
    assert_eq!(file.len().unwrap(), 10);
    let mut read = [9; 10];
    file.read(0, &mut read).unwrap();
    assert_eq!(&read, b"\0\0\0promise");
    assert_eq!(file.read(1, &mut read).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    file.set_len(4).unwrap();
    assert_eq!(disk.open("log").unwrap().len().unwrap(), 4, "the same file opens again with its content");
    for (name, wanted) in [("", 0o700), ("log", 0o600), ("lock", 0o600)] {
        let mode = std::fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, wanted, "{name}");
    }
    for bad in ["", "../log", "a/b", "lock", ".hidden"] {
        assert_eq!(disk.open(bad).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad:?}");
    }
}

#[test]
fn a_second_handle_is_refused_by_name_of_the_first_until_that_one_ends() {
    let place = tempfile::tempdir().unwrap();
    let first = DataDirectory::open(place.path()).unwrap();
    let refused = DataDirectory::open(place.path()).unwrap_err();
    assert!(matches!(refused, DiskError::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{refused}");
    assert!(refused.to_string().contains("is in use by process"), "{refused}");
    drop(first);
    DataDirectory::open(place.path()).unwrap();
}

#[test]
fn a_second_process_is_refused() {
    const DIRECTORY: &str = "POSTROAD_TEST_DIRECTORY";
    if let Some(path) = std::env::var_os(DIRECTORY) {
        // This is the second process: the same test, started by the first.
        let refused = DataDirectory::open(path.as_ref()).unwrap_err();
        println!("second process: {refused}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let _first = DataDirectory::open(place.path()).unwrap();
    let second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_second_process_is_refused", "--nocapture"])
        .env(DIRECTORY, place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stdout);
    let expected = format!("is in use by process {}", std::process::id());
    assert!(second.status.success() && said.contains(&expected), "{said}");
}

#[test]
fn what_others_may_read_is_refused_with_the_way_out() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("data");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    // An empty directory held no secret yet, so it is just closed.
    drop(DataDirectory::open(&path).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);

    std::fs::write(path.join("node"), b"keys").unwrap();
    std::fs::set_permissions(path.join("node"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let exposed = DataDirectory::open(&path).unwrap_err();
    assert!(matches!(&exposed, DiskError::Exposed { mode: 0o640, wanted: 0o600, .. }), "{exposed}");
    assert!(exposed.hint().starts_with("chmod 600 "), "{}", exposed.hint());

    std::fs::set_permissions(path.join("node"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    assert!(matches!(DataDirectory::open(&path).unwrap_err(), DiskError::Exposed { mode: 0o750, .. }));

    let file = place.path().join("file");
    std::fs::write(&file, b"").unwrap();
    assert!(matches!(DataDirectory::open(&file).unwrap_err(), DiskError::NoDirectory(_)));
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let place = tempfile::tempdir().unwrap();
    // Only root can give a directory away; any other user meets one in the root directory.
    let root = std::os::unix::fs::chown(place.path(), Some(65_534), None).is_ok();
    let path = if root { place.path() } else { std::path::Path::new("/") };
    let refused = DataDirectory::open(path).unwrap_err();
    assert!(matches!(&refused, DiskError::OtherOwner { .. }), "{refused}");
    assert!(refused.hint().contains("chown"), "{}", refused.hint());
}

// ---- UDP ----

async fn send(socket: &dyn UdpSocket, transmit: &Transmit<'_>) -> io::Result<()> {
    loop {
        match socket.try_send(transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|context| socket.poll_writable(context)).await?;
            }
            sent => return sent,
        }
    }
}

/// The datagrams that came, until there are `count`.
async fn receive(socket: &dyn UdpSocket, count: usize) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    let mut buffer = vec![0; 65_536];
    while datagrams.len() < count {
        let mut meta = [RecvMeta::default()];
        let received =
            poll_fn(|context| socket.poll_receive(context, &mut [IoSliceMut::new(&mut buffer)], &mut meta)).await;
        assert_eq!(received.unwrap(), 1);
        datagrams.extend(buffer[..meta[0].len].chunks(meta[0].stride.max(1)).map(<[u8]>::to_vec));
    }
    datagrams
}

#[tokio::test]
async fn one_large_send_arrives_as_its_segments() {
    let network = SystemNetwork::default();
    let from = network.udp_bind(LOOPBACK.parse().unwrap()).unwrap();
    let to = network.udp_bind(LOOPBACK.parse().unwrap()).unwrap();
    let destination = to.local_address().unwrap();
    // 70 segments of 1,200 bytes are 84,000: more than a UDP packet holds and more than GSO takes at once.
    let contents: Vec<u8> = (0..70_u8).flat_map(|number| vec![number; 1_200]).chain([70; 17]).collect();
    let transmit = Transmit { destination, ecn: None, contents: &contents, segment_size: Some(1_200), src_ip: None };
    soon(send(&*from, &transmit)).await.unwrap();
    let datagrams = soon(receive(&*to, 71)).await;
    assert!(datagrams[..70].iter().enumerate().all(|(number, data)| *data == vec![number as u8; 1_200]));
    assert_eq!(datagrams[70], [70; 17]);
    assert!(from.send_segments_max() >= 1);
}

// Fewer datagrams than there was room for say that the socket is empty: it is not asked again before it wakes.
#[tokio::test]
async fn what_comes_after_a_socket_was_emptied_is_received() {
    // So few that the smallest buffer holds all of them.
    const DATAGRAMS: u32 = 250;
    let to = SystemNetwork::default().udp_bind(LOOPBACK.parse().unwrap()).unwrap();
    let destination = to.local_address().unwrap();
    let sender = thread::spawn(move || {
        let socket = std::net::UdpSocket::bind(LOOPBACK).unwrap();
        for number in 0..DATAGRAMS {
            socket.send_to(&number.to_be_bytes(), destination).unwrap();
            // Now the receiver sleeps before the next, and now it does not.
            if number % 3 == 0 {
                thread::sleep(Duration::from_micros(u64::from(number % 90)));
            }
        }
    });
    let mut numbers = Vec::new();
    let (mut room, mut meta) = ([[0; 64]; 4], [RecvMeta::default(); 4]);
    while numbers.len() < DATAGRAMS as usize {
        let count = soon(poll_fn(|context| {
            let mut buffers = room.each_mut().map(|buffer| IoSliceMut::new(buffer));
            to.poll_receive(context, &mut buffers, &mut meta)
        }));
        let count = count.await.unwrap();
        for (buffer, meta) in room.iter().zip(&meta).take(count) {
            // The system may have put several into one buffer.
            let datagrams = buffer[..meta.len].chunks(meta.stride.max(1));
            numbers.extend(datagrams.map(|datagram| u32::from_be_bytes(datagram.try_into().unwrap())));
        }
    }
    sender.join().unwrap();
    assert_eq!(numbers, (0..DATAGRAMS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_packet_that_no_kernel_takes_is_refused_before_it() {
    let network = SystemNetwork::default();
    let socket = network.udp_bind(LOOPBACK.parse().unwrap()).unwrap();
    let destination = socket.local_address().unwrap();
    let segments = socket.send_segments_max();
    let contents = vec![0; 65_508];
    for segment_size in [None, Some(65_508), Some(0)] {
        let transmit = Transmit { destination, ecn: None, contents: &contents, segment_size, src_ip: None };
        assert_eq!(soon(send(&*socket, &transmit)).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(socket.send_segments_max(), segments, "the refusal did not cost the segmentation offload");
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn everybody_who_waits_to_write_is_woken() {
    let network = SystemNetwork::default();
    let socket = network.udp_bind(LOOPBACK.parse().unwrap()).unwrap();
    let waiting: Vec<_> = (0..3).map(|_| Arc::new(Count(AtomicUsize::new(0)))).collect();
    // Before the runtime has looked at the socket for the first time, nobody may write.
    for count in &waiting {
        let waker = Waker::from(Arc::clone(count));
        assert!(socket.poll_writable(&mut Context::from_waker(&waker)).is_pending());
    }
    soon(poll_fn(|context| socket.poll_writable(context))).await.unwrap();
    assert!(waiting.iter().all(|count| count.0.load(Ordering::SeqCst) == 1));
}

// ---- TCP ----

/// A connection of ours to a plain socket of the standard library.
async fn pair() -> (TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let ours = soon(SystemNetwork::default().tcp_connect(listener.local_addr().unwrap())).await.unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (ours, peer)
}

async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 1_024];
    loop {
        poll_fn(|context| stream.read.poll_readable(context)).await?;
        match stream.read.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read.map(|length| buffer[..length].to_vec()),
        }
    }
}

async fn shutdown(stream: &mut TcpStream) {
    poll_fn(|context| stream.write.poll_shutdown(context)).await.unwrap();
}

fn closed_now(stream: &mut TcpStream) -> bool {
    stream.write.poll_closed(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn reset(peer: std::net::TcpStream) {
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
}

#[tokio::test]
async fn a_half_close_leaves_the_other_direction_whole() {
    let (mut ours, mut peer) = pair().await;
    let slices = [IoSlice::new(b"to "), IoSlice::new(b"the peer")];
    let written = soon(poll_fn(|context| ours.write.poll_write(context, &slices))).await.unwrap();
    assert_eq!(written, 11);
    shutdown(&mut ours).await;
    let mut said = String::new();
    peer.read_to_string(&mut said).unwrap();
    assert_eq!(said, "to the peer");
    peer.write_all(b"answer").unwrap();
    assert_eq!(soon(read(&mut ours)).await.unwrap(), b"answer");
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(soon(read(&mut ours)).await.unwrap().is_empty());
    assert!(!closed_now(&mut ours), "two clean ends are no reset");
    drop(ours);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "nor is the close after them");
}

#[tokio::test]
async fn the_end_of_the_peer_alone_is_not_a_close() {
    let (mut ours, peer) = pair().await;
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(soon(read(&mut ours)).await.unwrap().is_empty());
    assert!(!closed_now(&mut ours));
    // The same peer then resets: that is one, though the end of file was read before.
    reset(peer);
    soon(poll_fn(|context| ours.write.poll_closed(context))).await;
    assert!(closed_now(&mut ours), "it stays closed when asked again");
}

#[tokio::test]
async fn a_reset_of_the_peer_is_noticed_without_reading_or_writing() {
    let (mut ours, mut peer) = pair().await;
    peer.write_all(b"unread").unwrap();
    assert!(!closed_now(&mut ours));
    reset(peer);
    soon(poll_fn(|context| ours.write.poll_closed(context))).await;
}

#[tokio::test]
async fn a_reset_of_ours_is_seen_as_one() {
    let (mut ours, mut peer) = pair().await;
    ours.write.reset();
    drop(ours);
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn halves_dropped_without_an_end_are_a_reset() {
    let (mut ours, mut peer) = pair().await;
    soon(poll_fn(|context| ours.write.poll_write(context, &[IoSlice::new(b"half of it")]))).await.unwrap();
    let mut said = [0; 10];
    peer.read_exact(&mut said).unwrap();
    drop(ours);
    assert_eq!(peer.read(&mut said).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_full_peer_is_waited_for() {
    let (mut ours, mut peer) = pair().await;
    let chunk = vec![7; 1 << 20];
    let mut sent = 0;
    let full = loop {
        match ours.write.poll_write(&mut Context::from_waker(Waker::noop()), &[IoSlice::new(&chunk)]) {
            Poll::Ready(written) => sent += written.unwrap(),
            Poll::Pending if sent == 0 => tokio::task::yield_now().await,
            Poll::Pending => break sent,
        }
    };
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).map(|_| received.len())
    });
    let more = soon(poll_fn(|context| ours.write.poll_write(context, &[IoSlice::new(&chunk)]))).await.unwrap();
    assert!(more > 0);
    shutdown(&mut ours).await;
    assert_eq!(reader.join().unwrap().unwrap(), full + more);
}

#[tokio::test]
async fn a_listener_takes_connections_and_says_where_it_is() {
    let network = SystemNetwork::default();
    let listener = network.tcp_listen(LOOPBACK.parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    assert_ne!(address.port(), 0);
    let (accepted, connected) = soon(async { tokio::join!(listener.accept(), network.tcp_connect(address)) }).await;
    let (mut accepted, mut connected) = (accepted.unwrap(), connected.unwrap());
    soon(poll_fn(|context| connected.write.poll_write(context, &[IoSlice::new(b"hello")]))).await.unwrap();
    assert_eq!(soon(read(&mut accepted)).await.unwrap(), b"hello");
    assert_eq!(connected.peer, address);
    let taken = network.tcp_listen(address).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    assert!(taken.to_string().starts_with(&format!("listen on TCP {address}: ")), "{taken}");
}

#[tokio::test]
async fn errors_say_what_was_tried() {
    let network = SystemNetwork::default();
    let closed = std::net::TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let refused = soon(network.tcp_connect(closed)).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert!(refused.to_string().contains(&closed.to_string()), "{refused}");
    let addresses = soon(network.resolve("127.0.0.1:9443")).await.unwrap();
    assert_eq!(addresses, ["127.0.0.1:9443".parse::<SocketAddr>().unwrap()]);
    assert!(soon(network.resolve("no port")).await.unwrap_err().to_string().starts_with("look up no port: "));
}
