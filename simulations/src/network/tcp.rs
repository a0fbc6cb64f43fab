//! TCP connections of the simulated network: two bounded pipes with ends of file and resets.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use postroad_transport::network::{Pending, TcpListener, TcpRead, TcpStream, TcpWrite};
use tokio::sync::Notify;

use super::SimNetwork;

/// Bytes in flight in one direction: the usual socket buffers of both ends.
const PIPE_BYTES: usize = 256 << 10;

/// Connections that wait to be accepted.
const BACKLOG: usize = 128;

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    ended: bool,
    reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    watcher: Option<Waker>,
}

/// One direction of a connection.
#[derive(Clone, Default)]
pub(crate) struct Pipe(Arc<Mutex<State>>);

/// A pipe that a host's crash resets if it still exists.
pub(crate) struct WeakPipe(Weak<Mutex<State>>);

impl WeakPipe {
    pub(crate) fn reset(&self) {
        if let Some(pipe) = self.0.upgrade() {
            Pipe(pipe).reset();
        }
    }

    fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let wakers = [state.reader.take(), state.writer.take(), state.watcher.take()];
        drop(state);
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    fn reset(&self) {
        self.change(|state| {
            state.reset = true;
            state.bytes.clear();
        });
    }
}

fn reset_error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the connection was reset")
}

/// Both ends share this, so that a reset or a drop reaches both directions.
struct End {
    incoming: Pipe,
    outgoing: Pipe,
}

impl End {
    fn reset(&self) {
        self.incoming.reset();
        self.outgoing.reset();
    }
}

struct ReadHalf(Arc<End>);
struct WriteHalf {
    end: Arc<End>,
    shut: bool,
}

impl TcpRead for ReadHalf {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.incoming.lock();
        if state.reset || state.ended || !state.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.incoming.lock();
        if state.reset {
            return Err(reset_error());
        }
        if state.bytes.is_empty() {
            return if state.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = buffer.len().min(state.bytes.len());
        let (first, second) = state.bytes.as_slices();
        let whole = count.min(first.len());
        buffer[..whole].copy_from_slice(&first[..whole]);
        buffer[whole..count].copy_from_slice(&second[..count - whole]);
        state.bytes.drain(..count);
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        Ok(count)
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        // As with a real socket, closing with bytes unread, or while more come, resets the connection.
        let state = self.0.incoming.lock();
        if !state.ended || !state.bytes.is_empty() {
            drop(state);
            self.0.incoming.reset();
        }
    }
}

impl TcpWrite for WriteHalf {
    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut state = self.end.outgoing.lock();
        if state.reset {
            return Poll::Ready(Err(reset_error()));
        }
        if state.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = PIPE_BYTES - state.bytes.len();
        if room == 0 {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut taken = 0;
        for slice in slices {
            let count = slice.len().min(room - taken);
            state.bytes.extend(&slice[..count]);
            taken += count;
        }
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_shutdown(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut = true;
        self.end.outgoing.change(|state| state.ended = true);
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self) {
        self.end.reset();
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for pipe in [&self.end.outgoing, &self.end.incoming] {
            let mut state = pipe.lock();
            if state.reset {
                return Poll::Ready(());
            }
            state.watcher = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.shut {
            // The system closes a dropped socket with an end of file after what was written.
            self.end.outgoing.change(|state| state.ended = true);
        }
    }
}

fn stream(peer: SocketAddr, incoming: Pipe, outgoing: Pipe) -> TcpStream {
    let end = Arc::new(End { incoming, outgoing });
    TcpStream { peer, read: Box::new(ReadHalf(Arc::clone(&end))), write: Box::new(WriteHalf { end, shut: false }) }
}

/// Connections that wait at a listening address.
#[derive(Clone, Default)]
pub(crate) struct Door {
    waiting: Arc<Mutex<VecDeque<TcpStream>>>,
    arrived: Arc<Notify>,
}

/// A listening socket.
pub struct SimTcpListener {
    network: SimNetwork,
    address: SocketAddr,
    door: Door,
}

impl std::fmt::Debug for SimTcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimTcpListener({})", self.address)
    }
}

impl SimTcpListener {
    pub(crate) fn new(network: SimNetwork, address: SocketAddr, door: Door) -> Self {
        Self { network, address, door }
    }
}

impl Drop for SimTcpListener {
    fn drop(&mut self) {
        let mut inner = self.network.fabric.lock();
        if self.network.check(&inner).is_ok() {
            inner.tcp.remove(&self.address);
        }
    }
}

impl TcpListener for SimTcpListener {
    fn accept(&self) -> Pending<TcpStream> {
        let door = self.door.clone();
        Box::pin(async move {
            loop {
                let arrived = door.arrived.notified();
                if let Some(stream) = door.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                    return Ok(stream);
                }
                arrived.await;
            }
        })
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Connects at once: the simulation's TCP ends stand on the hosts of their nodes.
pub(crate) fn connect(network: &SimNetwork, address: SocketAddr) -> io::Result<TcpStream> {
    let mut inner = network.fabric.lock();
    network.check(&inner)?;
    let target = if address.ip().is_loopback() { SocketAddr::new(network.host.ip(), address.port()) } else { address };
    let Some(door) = inner.tcp.get(&target).cloned() else {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("nothing listens on {address}")));
    };
    let from = SocketAddr::new(network.host.ip(), inner.free_port(network.host));
    let (there, back) = (Pipe::default(), Pipe::default());
    let hosts = [Some(network.host), super::Host::of(target.ip())];
    for host in hosts.into_iter().flatten() {
        let pipes = inner.pipes.entry(host).or_default();
        pipes.retain(|pipe| !pipe.is_gone());
        pipes.extend([&there, &back].map(|pipe| WeakPipe(Arc::downgrade(&pipe.0))));
    }
    drop(inner);
    let mut waiting = door.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if waiting.len() >= BACKLOG {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("{address} has too many waiting")));
    }
    waiting.push_back(stream(from, there.clone(), back.clone()));
    drop(waiting);
    door.arrived.notify_one();
    Ok(stream(address, back, there))
}
