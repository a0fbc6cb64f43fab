//! UDP sockets of the simulated network.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    net::SocketAddr,
    task::{Context, Poll, Waker},
};

use postroad_transport::network::UdpSocket;
use quinn::udp::{RecvMeta, Transmit};

use super::SimNetwork;

/// Buffers that wait at one port; a real socket's 4 MiB hold about as many full sends.
const WAITING_MAX: usize = 512;

/// What waits at a bound address.
#[derive(Default)]
pub(crate) struct Port {
    waiting: VecDeque<(SocketAddr, Vec<u8>, usize)>,
    reader: Option<Waker>,
}

impl Port {
    /// Takes a buffer, or loses it when the port is full.
    pub(crate) fn receive(&mut self, from: SocketAddr, bytes: Vec<u8>, stride: usize) -> Option<Waker> {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((from, bytes, stride));
        }
        self.reader.take()
    }

    pub(crate) fn close(self) -> Option<Waker> {
        self.reader
    }
}

/// A bound UDP socket.
#[derive(Debug)]
pub struct SimUdpSocket {
    network: SimNetwork,
    address: SocketAddr,
}

impl SimUdpSocket {
    pub(crate) fn new(network: SimNetwork, address: SocketAddr) -> Self {
        Self { network, address }
    }
}

impl Drop for SimUdpSocket {
    fn drop(&mut self) {
        let mut inner = self.network.fabric.lock();
        if self.network.check(&inner).is_ok() {
            inner.udp.remove(&self.address);
        }
    }
}

impl UdpSocket for SimUdpSocket {
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut inner = self.network.fabric.lock();
        self.network.check(&inner)?;
        let stride = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let to = SocketAddr::new(transmit.destination.ip().to_canonical(), transmit.destination.port());
        let earlier = inner.send(self.address, to, transmit.contents, stride);
        drop(inner);
        if earlier {
            self.network.fabric.posted.notify_one();
        }
        Ok(())
    }

    fn poll_writable(&self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.network.fabric.lock();
        if let Err(error) = self.network.check(&inner) {
            return Poll::Ready(Err(error));
        }
        let Some(port) = inner.udp.get_mut(&self.address) else {
            return Poll::Ready(Err(io::Error::other("the socket is closed")));
        };
        let mut count = 0;
        while count < buffers.len().min(meta.len()) {
            let Some((from, bytes, stride)) = port.waiting.pop_front() else { break };
            let length = bytes.len().min(buffers[count].len());
            buffers[count][..length].copy_from_slice(&bytes[..length]);
            let received = &mut meta[count];
            *received = RecvMeta::default();
            (received.addr, received.len, received.stride) = (from, length, stride.min(length));
            count += 1;
        }
        if count == 0 {
            port.reader = Some(context.waker().clone());
            Poll::Pending
        } else {
            Poll::Ready(Ok(count))
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn send_segments_max(&self) -> usize {
        64
    }
}
