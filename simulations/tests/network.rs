//! The simulated network does what its conditions say, and its TCP ends as the system's does.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use postroad_simulations::network::{Condition, Fabric, Host, SimNetwork};
use postroad_transport::network::{Network, TcpStream, UdpSocket};
use quinn::udp::{RecvMeta, Transmit};
use tokio::time::Instant;

const ONE: Host = Host(1);
const TWO: Host = Host(2);

fn at(host: Host, port: u16) -> SocketAddr {
    SocketAddr::new(host.ip(), port)
}

/// Two hosts with a socket each.
fn pair(condition: Condition) -> (Fabric, Arc<dyn UdpSocket>, Arc<dyn UdpSocket>) {
    let fabric = Fabric::new(7, condition);
    tokio::spawn(fabric.clone().run());
    let bind = |host| fabric.boot(host).udp_bind(at(host, 9)).unwrap();
    let (one, two) = (bind(ONE), bind(TWO));
    (fabric, one, two)
}

fn send(socket: &dyn UdpSocket, to: SocketAddr, contents: &[u8], segment_size: Option<usize>) {
    socket.try_send(&Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None }).unwrap();
}

/// The next buffer and its stride, if one comes within a second.
async fn receive(socket: &dyn UdpSocket) -> Option<(Vec<u8>, usize)> {
    let mut buffer = [0; 4_096];
    let mut meta = [RecvMeta::default()];
    let received = tokio::time::timeout(
        Duration::from_secs(1),
        poll_fn(|context| socket.poll_receive(context, &mut [IoSliceMut::new(&mut buffer)], &mut meta)),
    );
    received.await.ok()?.unwrap();
    Some((buffer[..meta[0].len].to_vec(), meta[0].stride))
}

async fn count(socket: &dyn UdpSocket) -> usize {
    let mut count = 0;
    while receive(socket).await.is_some() {
        count += 1;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_cut_swallows_one_direction_alone() {
    let (fabric, one, two) = pair(Condition::default());
    fabric.set(ONE, TWO, Condition { cut: true, ..Condition::default() });
    send(&*one, at(TWO, 9), b"there", None);
    send(&*two, at(ONE, 9), b"back", None);
    assert_eq!(receive(&*one).await, Some((b"back".to_vec(), 4)));
    assert_eq!(receive(&*two).await, None);
}

#[tokio::test(start_paused = true)]
async fn delay_is_kept_and_jitter_reorders() {
    let delay = Duration::from_millis(20);
    let (_, one, two) = pair(Condition { delay, jitter: Duration::from_millis(50), ..Condition::default() });
    let begin = Instant::now();
    for number in 0..100_u8 {
        send(&*one, at(TWO, 9), &[number], None);
    }
    let mut order = Vec::new();
    while order.len() < 100 {
        order.push(receive(&*two).await.unwrap().0[0]);
        assert!(begin.elapsed() >= delay && begin.elapsed() <= Duration::from_millis(80));
    }
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert!(order.into_iter().eq(0..100));
}

#[tokio::test(start_paused = true)]
async fn loss_and_duplicates_come_at_their_rates() {
    for (loss, duplicate, least, most) in [(0.5, 0.0, 60, 140), (0.0, 0.5, 240, 360), (1.0, 0.0, 0, 0)] {
        let (_, one, two) = pair(Condition { loss, duplicate, ..Condition::default() });
        for _ in 0..200 {
            send(&*one, at(TWO, 9), b"x", None);
        }
        let got = count(&*two).await;
        assert!((least..=most).contains(&got), "{got} with loss {loss} and duplicates {duplicate}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_way_takes_its_time_and_loses_what_would_wait_too_long() {
    let (_, one, two) = pair(Condition { bytes_per_second: 10_000, ..Condition::default() });
    let begin = Instant::now();
    for _ in 0..100 {
        send(&*one, at(TWO, 9), &[0; 1_000], None);
    }
    // 200 ms of queue hold two or three packets of 100 ms each.
    let got = count(&*two).await;
    assert!((2..=4).contains(&got), "{got}");
    assert!(begin.elapsed() >= Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn segments_stay_together_unless_one_of_them_is_lost() {
    let (fabric, one, two) = pair(Condition::default());
    let contents: Vec<u8> = (0..25).collect();
    send(&*one, at(TWO, 9), &contents, Some(10));
    assert_eq!(receive(&*two).await, Some((contents.clone(), 10)));
    fabric.set(ONE, TWO, Condition { loss: 0.5, ..Condition::default() });
    for _ in 0..50 {
        send(&*one, at(TWO, 9), &contents, Some(10));
        while let Some((bytes, stride)) = receive(&*two).await {
            for segment in bytes.chunks(stride) {
                assert!(contents.chunks(10).any(|whole| whole == segment), "{segment:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_host_gets_everything_when_it_goes_on() {
    let (fabric, one, two) = pair(Condition::default());
    fabric.pause_until(TWO, Instant::now() + Duration::from_secs(5));
    send(&*one, at(TWO, 9), b"x", None);
    assert_eq!(receive(&*two).await, None);
    tokio::time::sleep(Duration::from_millis(3_900)).await;
    assert!(receive(&*two).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_crash_fails_every_socket_of_that_incarnation() {
    let (fabric, one, two) = pair(Condition::default());
    let old = fabric.boot(TWO);
    let listener = old.tcp_listen(at(TWO, 80)).unwrap();
    let mut near = old.tcp_connect(at(TWO, 80)).await.unwrap();
    let mut far = listener.accept().await.unwrap();
    fabric.crash(TWO);
    assert!(!old.is_current());
    assert!(old.udp_bind(at(TWO, 10)).is_err() && old.tcp_connect(at(TWO, 80)).await.is_err());
    for stream in [&mut near, &mut far] {
        assert_eq!(read(stream).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
    let contents = Transmit { destination: at(ONE, 9), ecn: None, contents: b"x", segment_size: None, src_ip: None };
    assert!(two.try_send(&contents).is_err());
    let new = fabric.boot(TWO).udp_bind(at(TWO, 9)).unwrap();
    send(&*one, at(TWO, 9), b"x", None);
    assert!(receive(&*new).await.is_some(), "the next incarnation has the address");
}

/// Reads what is there: nothing is an end of file.
async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 100];
    poll_fn(|context| stream.read.poll_readable(context)).await?;
    let count = stream.read.try_read(&mut buffer)?;
    Ok(buffer[..count].to_vec())
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|context| stream.write.poll_write(context, &[IoSlice::new(bytes)])).await
}

async fn connection() -> (SimNetwork, TcpStream, TcpStream) {
    let network = Fabric::new(7, Condition::default()).boot(ONE);
    let listener = network.tcp_listen(at(ONE, 80)).unwrap();
    let near = network.tcp_connect(at(ONE, 80)).await.unwrap();
    let far = listener.accept().await.unwrap();
    (network, near, far)
}

#[tokio::test(start_paused = true)]
async fn a_half_close_ends_one_direction_and_leaves_the_other() {
    let (_network, mut near, mut far) = connection().await;
    write(&mut near, b"last").await.unwrap();
    poll_fn(|context| near.write.poll_shutdown(context)).await.unwrap();
    assert_eq!(read(&mut far).await.unwrap(), b"last");
    assert_eq!(read(&mut far).await.unwrap(), b"");
    write(&mut far, b"answer").await.unwrap();
    assert_eq!(read(&mut near).await.unwrap(), b"answer");
    assert!(write(&mut near, b"more").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reset_fails_both_directions_and_is_no_end_of_file() {
    let (_network, mut near, mut far) = connection().await;
    write(&mut near, b"lost").await.unwrap();
    near.write.reset();
    poll_fn(|context| far.write.poll_closed(context)).await;
    assert_eq!(read(&mut far).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(write(&mut far, b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn a_full_pipe_makes_its_writer_wait_until_somebody_reads() {
    let (_network, mut near, mut far) = connection().await;
    let mut filled = 0;
    while let Ok(count) = tokio::time::timeout(Duration::from_millis(1), write(&mut near, &[7; 10_000])).await {
        filled += count.unwrap();
    }
    assert_eq!(filled, 256 << 10);
    assert_eq!(read(&mut far).await.unwrap().len(), 100);
    assert_eq!(write(&mut near, &[7; 10_000]).await.unwrap(), 100);
}

#[tokio::test(start_paused = true)]
async fn nobody_listens_is_a_refusal() {
    let network = Fabric::new(7, Condition::default()).boot(ONE);
    let error = network.tcp_connect(at(ONE, 81)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}
