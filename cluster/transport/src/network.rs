//! The network port: UDP sockets for packets, TCP sockets at the two ends of a flow.

use std::{
    fmt,
    future::Future,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

mod pipe;

pub use pipe::{Pipe, PipeEnds, PipePool};
use quinn::udp::{RecvMeta, Transmit};

/// A future of the port.
pub type Pending<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// A UDP socket that sends with GSO and receives with GRO where the host can.
pub trait UdpSocket: Send + Sync + fmt::Debug + 'static {
    /// Sends one transmit, which may hold several segments of `segment_size`. `WouldBlock` when the socket is full.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()>;
    /// Ready when the socket may be written again.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Receives into `buffers`; each may hold several segments of `meta.stride`.
    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>>;
    /// The address that the socket is bound to.
    fn local_address(&self) -> io::Result<SocketAddr>;
    /// How many segments one send may hold; 1 without GSO.
    fn send_segments_max(&self) -> usize;
}

/// The reading half of a TCP connection.
pub trait TcpRead: Send + 'static {
    /// Ready when bytes, the end or an error can be read. No buffer need be held while waiting.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Reads what is there; 0 is the end of the stream. `WouldBlock` when nothing is.
    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// The same into the room that `buffer` has behind its bytes; there must be some. A port that can, does not fill it
    /// before.
    fn try_read_behind(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let (held, room) = (buffer.len(), buffer.capacity());
        buffer.resize(room, 0);
        let read = self.try_read(&mut buffer[held..]);
        buffer.truncate(held + read.as_ref().map_or(0, |count| *count));
        read
    }
    /// Moves up to `bytes_max` bytes that can be read into an empty pipe of the same network, without copying them;
    /// otherwise like [`TcpRead::try_read`]. `Unsupported` where the network has no pipes.
    fn try_fill(&mut self, _pipe: &mut Pipe, _bytes_max: usize) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The writing half of a TCP connection. Dropping both halves without [`TcpWrite::shutdown`] having completed, or
/// after [`TcpWrite::reset`], must not look like a clean end of file where bytes were still to come.
pub trait TcpWrite: Send + 'static {
    /// Writes from several slices; returns how many bytes were taken.
    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    /// Sends the end of file after what was written (half-close).
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// The same where the peer's end of file was read and the connection is dropped next: a port whose close says it
    /// saves itself a call.
    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_shutdown(context)
    }
    /// The connection has stood for some seconds: what only such ones need, keepalives, is seen to if it was not before.
    fn lasts(&mut self) {}
    /// Makes the close of this connection a reset (`SO_LINGER` 0).
    fn reset(&mut self);
    /// Ready when the peer has reset the connection or it failed otherwise; pending on a clean half-close. It lets
    /// the writing side notice a reset while it has nothing to write.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()>;
    /// Writes what the pipe holds, without copying it; otherwise like [`TcpWrite::poll_write`].
    fn poll_drain(&mut self, _context: &mut Context<'_>, _pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
    /// For how long the peer's host has left bytes unanswered. `None` where it has acknowledged all; zero while it
    /// answers, also if its application reads nothing: a full buffer is not a dead peer.
    fn unanswered(&self) -> Option<Duration> {
        None
    }
}

/// Both halves of a TCP connection and its addresses.
pub struct TcpStream {
    /// The peer's address.
    pub peer: SocketAddr,
    /// The reading half.
    pub read: Box<dyn TcpRead>,
    /// The writing half.
    pub write: Box<dyn TcpWrite>,
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A listening TCP socket.
pub trait TcpListener: Send + Sync + fmt::Debug + 'static {
    /// The next connection.
    fn accept(&self) -> Pending<TcpStream>;
    /// The address that the socket is bound to.
    fn local_address(&self) -> io::Result<SocketAddr>;
}

/// The network of one node.
pub trait Network: Send + Sync + fmt::Debug + 'static {
    /// Binds a UDP socket, with buffers of [`postroad_cluster::limits::UDP_BUFFER_BYTES`] where the host allows it.
    fn udp_bind(&self, address: SocketAddr) -> io::Result<Arc<dyn UdpSocket>>;
    /// Listens on a TCP address.
    fn tcp_listen(&self, address: SocketAddr) -> io::Result<Arc<dyn TcpListener>>;
    /// Connects to a TCP address. The caller bounds the wait.
    fn tcp_connect(&self, address: SocketAddr) -> Pending<TcpStream>;
    /// The same from a local address of the caller's choice, for connections that may be many and short: what only long
    /// ones need is left to [`TcpWrite::lasts`].
    fn tcp_connect_from(&self, source: Option<IpAddr>, address: SocketAddr) -> Pending<TcpStream>;
    /// A pipe that halves of this network fill and drain; `None` where bytes have to be copied, or while the pool has
    /// no more.
    fn pipe(&self) -> Option<Pipe> {
        None
    }
    /// The addresses of `host:port`, which may be a name or an address.
    fn resolve(&self, host_port: &str) -> Pending<Vec<SocketAddr>>;
}
