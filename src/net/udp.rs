//! One UDP socket with GSO, GRO and large buffers.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, Mutex, Once, PoisonError},
    task::{Context, Poll, Wake, Waker, ready},
};

use postroad_cluster::limits::{UDP_BUFFER_BYTES, UDP_PAYLOAD_BYTES_MAX};
use postroad_transport::network::UdpSocket;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;

/// A bound UDP socket.
#[derive(Debug)]
pub(super) struct SystemUdp {
    socket: tokio::net::UdpSocket,
    state: UdpSocketState,
    writers: Arc<Writers>,
}

impl SystemUdp {
    /// Binds. An unspecified IPv6 address takes IPv4 too. Small buffers are warned about once for `small_buffers`.
    pub(super) fn bind(address: SocketAddr, small_buffers: &Once) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        grow_buffers(&socket, small_buffers);
        socket.bind(&address.into())?;
        let socket = std::net::UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        Ok(Self { socket, state, writers: Arc::default() })
    }

    /// Sends `transmit` in as few parts as the kernel takes: none is over [`UDP_PAYLOAD_BYTES_MAX`], and each but the
    /// last ends with a whole segment.
    fn send_parts(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(segment) = transmit.segment_size.filter(|segment| *segment < transmit.contents.len()) else {
            return self.send_one(&Transmit { segment_size: None, ..transmit.clone() });
        };
        if segment == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a UDP segment of no bytes"));
        }
        let mut rest = transmit.contents;
        while !rest.is_empty() {
            let segments = self.state.max_gso_segments().min(UDP_PAYLOAD_BYTES_MAX / segment).max(1);
            let (part, after) = rest.split_at(rest.len().min(segments * segment));
            let several = (part.len() > segment).then_some(segment);
            let sent = self.send_one(&Transmit { contents: part, segment_size: several, ..transmit.clone() });
            match sent {
                Ok(()) => rest = after,
                // The first refusal of GSO by this interface turned it off: the same part goes again, one by one.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && several.is_some() && self.is_plain() => {}
                // After a first part was sent, the caller sends that one again: QUIC drops packets that come twice,
                // while one that was reported sent and was not would have to be found missing.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_plain(&self) -> bool {
        self.state.max_gso_segments() == 1
    }

    fn send_one(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if transmit.contents.len() > UDP_PAYLOAD_BYTES_MAX {
            let length = transmit.contents.len();
            let said = format!("a UDP packet of {length} bytes, at most {UDP_PAYLOAD_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        self.state.try_send(UdpSockRef::from(&self.socket), transmit)
    }
}

impl UdpSocket for SystemUdp {
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_io(Interest::WRITABLE, || self.send_parts(transmit))
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writers.add(context.waker());
        let waker = Waker::from(Arc::clone(&self.writers));
        let writable = ready!(self.socket.poll_send_ready(&mut Context::from_waker(&waker)));
        self.writers.remove(context.waker());
        Poll::Ready(writable)
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_recv_ready(context))?;
            let mut last = None;
            let received = self.socket.try_io(Interest::READABLE, || {
                let count = self.state.recv(UdpSockRef::from(&self.socket), buffers, meta)?;
                if count == buffers.len().min(BATCH_SIZE) {
                    return Ok(count);
                }
                // Less than there was room for has emptied the socket, so that the next call is known to block.
                last = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            });
            if let Some(count) = last {
                return Poll::Ready(Ok(count));
            }
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn send_segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }
}

/// Who waits to write: tokio remembers one waker a direction, and every connection of an endpoint has its own.
#[derive(Debug, Default)]
struct Writers(Mutex<Vec<Waker>>);

impl Writers {
    fn add(&self, waker: &Waker) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    fn remove(&self, waker: &Waker) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = waiting.iter().position(|known| known.will_wake(waker)).map(|place| waiting.swap_remove(place));
        drop(waiting);
        drop(removed);
    }
}

impl Wake for Writers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Asks for [`UDP_BUFFER_BYTES`] both ways: past the system's limit where this process may, else up to it.
fn grow_buffers(socket: &Socket, small_buffers: &Once) {
    let fd = socket.as_fd();
    // What cannot be set shows in the figures read back.
    let _ = sockopt::set_socket_recv_buffer_size_force(fd, UDP_BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, UDP_BUFFER_BYTES));
    let _ = sockopt::set_socket_send_buffer_size_force(fd, UDP_BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(fd, UDP_BUFFER_BYTES));
    // Linux doubles what it is asked for, to account for its own overhead, and reports the double.
    let receive = sockopt::socket_recv_buffer_size(fd).unwrap_or(0) / 2;
    let send = sockopt::socket_send_buffer_size(fd).unwrap_or(0) / 2;
    if receive < UDP_BUFFER_BYTES || send < UDP_BUFFER_BYTES {
        small_buffers.call_once(|| {
            tracing::warn!(
                receive_bytes = receive,
                send_bytes = send,
                wanted_bytes = UDP_BUFFER_BYTES,
                "UDP buffers are smaller than wanted, so bursts lose packets: sysctl -w net.core.rmem_max={UDP_BUFFER_BYTES} \
                 net.core.wmem_max={UDP_BUFFER_BYTES}, or give the process CAP_NET_ADMIN"
            );
        });
    }
}
