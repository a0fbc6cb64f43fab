//! TCP connections of applications: halves that tell a reset from an end of file, in both directions.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use postroad_transport::network::{Pending, Pipe, TcpListener, TcpRead, TcpStream, TcpWrite};
use rustix::{buffer::spare_capacity, net::RecvFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{io::Interest, net::TcpSocket};

use super::{option, splice};

/// How many connections may wait to be accepted; the system caps it by `net.core.somaxconn`.
const BACKLOG: i32 = 1_024;

/// A peer whose host vanished without a word while the connection was idle is noticed after 30 + 3 · 10 s.
/// There is no `TCP_USER_TIMEOUT`: Linux would also apply it to a peer that answers but whose application reads
/// nothing, and a full buffer is not a dead peer. [`TcpWrite::unanswered`] tells them apart.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// A listening socket.
#[derive(Debug)]
pub(super) struct SystemListener(Arc<tokio::net::TcpListener>);

impl SystemListener {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        // Else a restart would have to wait out the connections of the last run.
        socket.set_reuse_address(true)?;
        // Accepted connections inherit these from Linux, which saves five calls for each.
        prepare(&socket)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self(Arc::new(tokio::net::TcpListener::from_std(socket.into())?)))
    }
}

impl TcpListener for SystemListener {
    fn accept(&self) -> Pending<TcpStream> {
        let listener = Arc::clone(&self.0);
        Box::pin(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => return Ok(halves(stream, peer)),
                    // The connection ended while it waited: that is no error of the listener.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Connects, however long the system takes.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    prepare(&SockRef::from(&stream))?;
    Ok(halves(stream, address))
}

/// Connects from a local address, without keepalives before the connection lasts: they are four calls.
pub(super) async fn connect_from(source: Option<IpAddr>, address: SocketAddr) -> io::Result<TcpStream> {
    let stream = match source {
        None => tokio::net::TcpStream::connect(address).await?,
        Some(source) => {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            option::bind_without_port(&socket)?;
            socket.bind(SocketAddr::new(source, 0))?;
            socket.connect(address).await?
        }
    };
    stream.set_nodelay(true)?;
    Ok(join(stream, address, false))
}

/// Sets what every connection has.
fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    keep_alive(socket)
}

fn keep_alive(socket: &Socket) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

fn halves(stream: tokio::net::TcpStream, peer: SocketAddr) -> TcpStream {
    join(stream, peer, true)
}

/// The halves of a connection, whose keepalives are set already or once it lasts.
fn join(stream: tokio::net::TcpStream, peer: SocketAddr, kept_alive: bool) -> TcpStream {
    let stream = Arc::new(stream);
    let read = Box::new(ReadHalf(Arc::clone(&stream)));
    let write = WriteHalf { stream, ended: false, kept_alive, failure: None, failed: false };
    TcpStream { peer, read, write: Box::new(write) }
}

struct ReadHalf(Arc<tokio::net::TcpStream>);

impl TcpRead for ReadHalf {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(context)
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut last = None;
        let read = self.0.try_io(Interest::READABLE, || {
            let count = rustix::net::recv(&*self.0, &mut *buffer, RecvFlags::empty())?.0;
            if count == 0 || count == buffer.len() {
                return Ok(count);
            }
            // A read that fills less has emptied the socket, so that the next is known to block without a call.
            last = Some(count);
            Err(io::ErrorKind::WouldBlock.into())
        });
        last.map_or(read, Ok)
    }

    fn try_read_behind(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let (room, mut last) = (buffer.capacity() - buffer.len(), None);
        let read = self.0.try_io(Interest::READABLE, || {
            let count = rustix::net::recv(&*self.0, spare_capacity(buffer), RecvFlags::empty())?.0;
            if count == 0 || count == room {
                return Ok(count);
            }
            last = Some(count);
            Err(io::ErrorKind::WouldBlock.into())
        });
        last.map_or(read, Ok)
    }

    fn try_fill(&mut self, pipe: &mut Pipe, bytes_max: usize) -> io::Result<usize> {
        self.0.try_io(Interest::READABLE, || splice::fill(&*self.0, pipe, bytes_max))
    }
}

struct WriteHalf {
    stream: Arc<tokio::net::TcpStream>,
    /// The end of file is on its way, or the connection is to end by a reset: its close needs nothing more.
    ended: bool,
    /// Keepalives are set.
    kept_alive: bool,
    /// Waits for the socket's error; made when somebody first asks.
    failure: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// It came.
    failed: bool,
}

impl TcpWrite for WriteHalf {
    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            let written = match slices {
                [slice] => self.stream.try_write(slice),
                slices => self.stream.try_write_vectored(slices),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_shutdown(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write);
        self.ended |= shut.is_ok();
        Poll::Ready(shut)
    }

    fn poll_finish(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The close says it: all that was written goes out before, and nothing is unread that would make it a reset.
        self.ended = true;
        Poll::Ready(Ok(()))
    }

    fn lasts(&mut self) {
        if !self.kept_alive {
            self.kept_alive = true;
            // A socket that is no longer connected needs none.
            let _ = keep_alive(&SockRef::from(&*self.stream));
        }
    }

    fn reset(&mut self) {
        // It fails only for a socket that is no longer connected, which needs no reset.
        let _ = SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO));
        self.ended = true;
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.failed {
            let failure = self.failure.get_or_insert_with(|| Box::pin(failed(Arc::clone(&self.stream))));
            ready!(failure.as_mut().poll(context));
            self.failure = None;
            self.failed = true;
        }
        Poll::Ready(())
    }

    fn poll_drain(&mut self, context: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_io(Interest::WRITABLE, || splice::drain(&*self.stream, pipe)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn unanswered(&self) -> Option<Duration> {
        option::unanswered(&*self.stream)
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // Whoever drops it halfway had more to say, or had lost the way: a clean end of file would be a lie.
        if !self.ended {
            self.reset();
        }
    }
}

/// Completes when the kernel holds an error for the socket: a reset, a peer that went, a host that cannot be reached.
/// A half-close is no error to it, and neither are two: those show as `EPOLLRDHUP` and `EPOLLHUP`, not `EPOLLERR`.
async fn failed(stream: Arc<tokio::net::TcpStream>) {
    // An error here means that the runtime is going, which ends the connection too.
    let _ = stream.ready(Interest::ERROR).await;
}
