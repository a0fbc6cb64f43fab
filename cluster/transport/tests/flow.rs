//! Flows: TCP connections in memory, pumped over a circuit whose relays die.

mod support;

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use postroad_cluster::time::Clock;
use postroad_transport::{
    flow::{Ahead, FlowCounters, FlowEnd, RESET_BY_APPLICATION, pump, pump_after},
    network::{TcpRead, TcpStream, TcpWrite},
};
use support::{TestCircuit, World, pattern, pause};
use tokio::{task::JoinHandle, time::Instant};

const MIB: usize = 1 << 20;
const PIPE_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    ended: bool,
    reset: bool,
    wakers: Vec<Waker>,
}

impl Pipe {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// One end of a TCP connection: the pipe that it reads and the one that it writes.
#[derive(Clone, Default)]
struct Tcp {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
}

fn connection() -> (Tcp, Tcp) {
    let one = Tcp::default();
    let other = Tcp { incoming: Arc::clone(&one.outgoing), outgoing: Arc::clone(&one.incoming) };
    (one, other)
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap()
}

fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl Tcp {
    fn reset_both(&self) {
        for pipe in [&self.incoming, &self.outgoing] {
            let mut pipe = lock(pipe);
            if !(pipe.ended && pipe.bytes.is_empty()) {
                pipe.reset = true;
            }
            pipe.wake();
        }
    }

    fn stream(self) -> TcpStream {
        let write = Writer { tcp: self.clone(), ended: false };
        let peer = "127.0.0.1:1".parse().unwrap();
        TcpStream { peer, read: Box::new(Reader(self)), write: Box::new(write) }
    }

    /// Reads to the end as an application does.
    async fn read_all(&self) -> Result<Vec<u8>, io::Error> {
        let mut reader = Reader(self.clone());
        let mut all = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            std::future::poll_fn(|context| reader.poll_readable(context)).await?;
            match reader.try_read(&mut buffer)? {
                0 => return Ok(all),
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
    }

    async fn write_all(&self, bytes: &[u8]) -> Result<(), io::Error> {
        let mut writer = Writer { tcp: self.clone(), ended: true };
        let mut done = 0;
        while done < bytes.len() {
            done += std::future::poll_fn(|context| writer.poll_write(context, &[IoSlice::new(&bytes[done..])])).await?;
        }
        Ok(())
    }

    fn end(&self) {
        let mut pipe = lock(&self.outgoing);
        pipe.ended = true;
        pipe.wake();
    }
}

struct Reader(Tcp);

impl TcpRead for Reader {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.0.incoming);
        if pipe.reset {
            return Poll::Ready(Err(broken()));
        }
        if pipe.bytes.is_empty() && !pipe.ended {
            pipe.wakers.push(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = lock(&self.0.incoming);
        if pipe.reset {
            return Err(broken());
        }
        if pipe.bytes.is_empty() && !pipe.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = buffer.len().min(pipe.bytes.len());
        for (place, byte) in buffer.iter_mut().zip(pipe.bytes.drain(..count)) {
            *place = byte;
        }
        pipe.wake();
        Ok(count)
    }
}

struct Writer {
    tcp: Tcp,
    ended: bool,
}

impl TcpWrite for Writer {
    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut pipe = lock(&self.tcp.outgoing);
        if pipe.reset {
            return Poll::Ready(Err(broken()));
        }
        let room = PIPE_BYTES - pipe.bytes.len();
        if room == 0 {
            pipe.wakers.push(context.waker().clone());
            return Poll::Pending;
        }
        let mut written = 0;
        for slice in slices {
            let part = slice.len().min(room - written);
            pipe.bytes.extend(&slice[..part]);
            written += part;
        }
        pipe.wake();
        Poll::Ready(Ok(written))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ended = true;
        self.tcp.end();
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self) {
        self.ended = true;
        self.tcp.reset_both();
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut pipe = lock(&self.tcp.outgoing);
        if pipe.reset {
            return Poll::Ready(());
        }
        pipe.wakers.push(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.ended {
            self.tcp.reset_both();
        }
    }
}

struct Flow {
    /// The applications at both ends.
    ends: [Tcp; 2],
    pumps: [JoinHandle<FlowEnd>; 2],
    counters: [Arc<FlowCounters>; 2],
}

async fn open(world: &World, circuit: &TestCircuit) -> Flow {
    let (mut send, recv) = circuit.connections[0].open_bi().await.unwrap();
    send.write_all(b"!").await.unwrap();
    let (other_send, mut other_recv) = circuit.connections[1].accept_bi().await.unwrap();
    other_recv.read_exact(&mut [0]).await.unwrap();
    let clock: Arc<dyn Clock> = world.clock.clone();
    let counters = [0, 1].map(|_| Arc::new(FlowCounters::new(Arc::clone(&clock))));
    let (one, inner) = connection();
    let (other, other_inner) = connection();
    let pumps = [
        tokio::spawn(pump(inner.stream(), send, recv, Arc::clone(&counters[0]))),
        tokio::spawn(pump(other_inner.stream(), other_send, other_recv, Arc::clone(&counters[1]))),
    ];
    Flow { ends: [one, other], pumps, counters }
}

async fn world() -> (World, TestCircuit) {
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    (world, circuit)
}

fn kill_relay_in_use(world: &mut World, circuit: &TestCircuit) {
    let place = world.place(world.relay(circuit.id));
    world.kill_relay(place);
}

#[tokio::test(start_paused = true)]
async fn half_closes_carry_the_other_direction_whole() {
    // R3: who closes first, with and without a relay that dies.
    for first in [0, 1] {
        for kill in [false, true] {
            let (mut world, circuit) = world().await;
            let Flow { ends, pumps, counters } = open(&world, &circuit).await;
            ends[first].write_all(&pattern(0, 100_000)).await.unwrap();
            ends[first].end();
            assert_eq!(ends[1 - first].read_all().await.unwrap(), pattern(0, 100_000));
            if kill {
                kill_relay_in_use(&mut world, &circuit);
            }
            let writer = ends[1 - first].clone();
            let writing = tokio::spawn(async move {
                writer.write_all(&pattern(7, MIB)).await.unwrap();
                writer.end();
            });
            let started = Instant::now();
            assert_eq!(ends[first].read_all().await.unwrap(), pattern(7, MIB));
            assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
            writing.await.unwrap();
            for pump in pumps {
                assert_eq!(pump.await.unwrap(), FlowEnd::Finished, "first {first}, kill {kill}");
            }
            assert_eq!(counters[first].sent_bytes(), 100_000);
            assert_eq!(counters[first].received_bytes(), MIB as u64);
            assert_eq!(counters[1 - first].sent_bytes(), MIB as u64);
            assert!(counters[first].last_activity() > counters[first].began());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn both_directions_at_once_over_a_dying_relay() {
    // RP-1
    let (mut world, circuit) = world().await;
    let Flow { ends, pumps, .. } = open(&world, &circuit).await;
    let mut tasks = Vec::new();
    for end in &ends {
        let (reader, writer) = (end.clone(), end.clone());
        tasks.push(tokio::spawn(async move {
            assert_eq!(reader.read_all().await.unwrap(), pattern(0, 3 * MIB));
        }));
        tasks.push(tokio::spawn(async move {
            for start in (0..3 * MIB).step_by(16 << 10) {
                writer.write_all(&pattern(start, 16 << 10)).await.unwrap();
                pause(1).await;
            }
            writer.end();
        }));
    }
    pause(100).await;
    kill_relay_in_use(&mut world, &circuit);
    for task in tasks {
        task.await.unwrap();
    }
    for pump in pumps {
        assert_eq!(pump.await.unwrap(), FlowEnd::Finished);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_arrives_as_a_reset() {
    for end in [0, 1] {
        for busy in [false, true] {
            let (world, circuit) = world().await;
            let Flow { ends, pumps, .. } = open(&world, &circuit).await;
            if busy {
                ends[end].write_all(&pattern(0, 100_000)).await.unwrap();
            }
            pause(50).await;
            ends[end].reset_both();
            pause(50).await;
            let got = ends[1 - end].read_all().await;
            assert_eq!(got.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "never a clean end");
            let mut results = Vec::new();
            for pump in pumps {
                results.push(pump.await.unwrap());
            }
            assert_eq!(results[end].kind(), "tcp_reset");
            assert_eq!(results[1 - end], FlowEnd::PeerReset(RESET_BY_APPLICATION.into()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_ends_resets_both_sockets() {
    // RP-1: give up with a reset, never a clean close.
    let (world, circuit) = world().await;
    let Flow { ends, pumps, .. } = open(&world, &circuit).await;
    ends[0].write_all(b"half a message").await.unwrap();
    pause(20).await;
    circuit.connections[0].close(1_u32.into(), b"gone");
    for pump in pumps {
        assert_eq!(pump.await.unwrap().kind(), "circuit_lost");
    }
    for end in &ends {
        assert!(end.read_all().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pump_that_is_given_up_resets_both_sockets() {
    let (world, circuit) = world().await;
    let Flow { ends, pumps, .. } = open(&world, &circuit).await;
    ends[0].write_all(b"half a message").await.unwrap();
    pause(20).await;
    pumps[0].abort();
    pause(20).await;
    for end in &ends {
        assert!(end.read_all().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_disturbs_nobody_else() {
    let (world, circuit) = world().await;
    let slow = open(&world, &circuit).await;
    let writer = slow.ends[0].clone();
    let blocked = tokio::spawn(async move { writer.write_all(&pattern(0, 16 * MIB)).await });
    pause(2_000).await;
    assert!(!blocked.is_finished(), "the sender blocks");
    let quick = open(&world, &circuit).await;
    let writer = quick.ends[0].clone();
    tokio::spawn(async move {
        writer.write_all(&pattern(0, 2 * MIB)).await.unwrap();
        writer.end();
    });
    let started = Instant::now();
    assert_eq!(quick.ends[1].read_all().await.unwrap(), pattern(0, 2 * MIB));
    assert!(started.elapsed() < Duration::from_secs(2));
    pause(60_000).await;
    assert!(!blocked.is_finished(), "R1: never closed");
    blocked.abort();
}

// RP-1, RP-21: what an application says before its flow is admitted travels at once; where that came to nothing it travels
// again, whole and once, also after its end.
#[tokio::test(start_paused = true)]
async fn what_was_said_ahead_travels_again_whole() {
    for (length, ends) in [(0, false), (100, true), (16 << 10, false), (300_000, true)] {
        let (world, circuit) = world().await;
        let clock: Arc<dyn Clock> = world.clock.clone();
        let counters = Arc::new(FlowCounters::new(clock));
        let (application, inner) = connection();
        let (mut tcp, mut ahead) = (inner.stream(), Ahead::default());
        let writing = tokio::spawn(async move {
            application.write_all(&pattern(3, length)).await.unwrap();
            if ends {
                application.end();
            }
            application
        });
        for _ in 0..2 {
            ahead.again();
            let (mut send, _recv) = circuit.connections[0].open_bi().await.unwrap();
            let run = tokio::time::timeout(Duration::from_millis(50), ahead.run(&mut tcp, &mut send, &counters));
            assert!(run.await.is_err(), "it goes on until it is given up");
            let _ = send.reset(9_u32.into());
        }
        ahead.again();
        let (mut send, recv) = circuit.connections[0].open_bi().await.unwrap();
        send.write_all(b"!").await.unwrap();
        let run = tokio::time::timeout(Duration::from_micros(100), ahead.run(&mut tcp, &mut send, &counters));
        assert!(run.await.is_err());
        let pumping = tokio::spawn(pump_after(tcp, send, recv, ahead.rest(), Arc::clone(&counters)));
        let mut came = Vec::new();
        while came.len() < length + 1 {
            let (_, mut recv) = circuit.connections[1].accept_bi().await.unwrap();
            came.clear();
            let mut buffer = vec![0; 64 << 10];
            while came.len() < length + 1 {
                let Ok(Some(count)) = recv.read(&mut buffer).await else { break };
                came.extend_from_slice(&buffer[..count]);
            }
        }
        assert!(came[0] == b'!' && came[1..] == pattern(3, length)[..]);
        assert_eq!(counters.sent_bytes(), length as u64, "counted once");
        drop(writing.await.unwrap());
        pumping.abort();
    }
}
