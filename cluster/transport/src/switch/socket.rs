//! The socket that a relay's own endpoint sees: QUIC packets that the switch read, and the way out.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use postroad_cluster::limits::{RECEIVE_PAYLOADS, SWITCH_QUEUE_BUFFERS, SWITCH_QUEUE_BYTES};
use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};

use crate::{
    network::UdpSocket,
    writable::{Poller, Waiters, send_in_pieces},
};

/// Buffers kept for the next packets.
const SPARE_BUFFERS_MAX: usize = 64;

#[derive(Debug)]
struct Waiting {
    data: Vec<u8>,
    /// How much of it was delivered.
    done: usize,
    meta: RecvMeta,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    waker: Option<Waker>,
    packets: u64,
    dropped: u64,
}

/// What the endpoint of a relay reads from and writes to.
#[derive(Debug)]
pub struct SwitchSocket {
    socket: Arc<dyn UdpSocket>,
    waiters: Arc<Waiters>,
    queue: Mutex<Queue>,
}

impl SwitchSocket {
    pub(crate) fn new(socket: Arc<dyn UdpSocket>) -> Self {
        Self { socket, waiters: Arc::default(), queue: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packets handed to the endpoint, and those lost since it did not read.
    pub(super) fn counters(&self) -> (u64, u64) {
        let queue = self.lock();
        (queue.packets, queue.dropped)
    }

    /// Queues packets for the endpoint, or drops them if it is behind.
    pub(super) fn queue(&self, data: &[u8], meta: &RecvMeta) {
        let mut queue = self.lock();
        let packets = data.len().div_ceil(meta.stride.max(1)) as u64;
        if queue.waiting.len() >= SWITCH_QUEUE_BUFFERS || queue.bytes + data.len() > SWITCH_QUEUE_BYTES {
            queue.dropped += packets;
            return;
        }
        queue.packets += packets;
        queue.bytes += data.len();
        let mut copy = queue.spare.pop().unwrap_or_default();
        copy.extend_from_slice(data);
        queue.waiting.push_back(Waiting { data: copy, done: 0, meta: *meta });
    }

    /// Wakes the endpoint if something waits for it.
    pub(super) fn wake(&self) {
        let waker = {
            let mut queue = self.lock();
            if queue.waiting.is_empty() { None } else { queue.waker.take() }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Queue {
    /// Moves whole packets into `buffer`. Returns whether there was something to move.
    fn deliver(&mut self, buffer: &mut [u8], meta: &mut RecvMeta) -> bool {
        let Some(waiting) = self.waiting.front_mut() else { return false };
        let rest = &waiting.data[waiting.done..];
        let stride = waiting.meta.stride.clamp(1, rest.len().max(1));
        let fitting = if rest.len() <= buffer.len() { rest.len() } else { buffer.len() / stride * stride };
        *meta = RecvMeta { len: fitting, stride, ..waiting.meta };
        buffer[..fitting].copy_from_slice(&rest[..fitting]);
        waiting.done += fitting;
        if fitting == 0 || waiting.done == waiting.data.len() {
            // A packet larger than the endpoint's buffer is none that it could take.
            self.dropped += u64::from(fitting == 0);
            if let Some(mut waiting) = self.waiting.pop_front() {
                self.bytes -= waiting.data.len();
                if self.spare.len() < SPARE_BUFFERS_MAX {
                    waiting.data.clear();
                    self.spare.push(waiting.data);
                }
            }
        }
        true
    }
}

impl AsyncUdpSocket for SwitchSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller::new(Arc::clone(&self.socket), Arc::clone(&self.waiters)))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = send_in_pieces(&*self.socket, transmit);
        self.waiters.note(&sent);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // Any other error would end quinn's driver; QUIC treats what is lost as lost.
            _ => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut queue = self.lock();
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            if !queue.deliver(buffer, meta) {
                break;
            }
            count += 1;
        }
        if count == 0 {
            queue.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_address()
    }

    fn may_fragment(&self) -> bool {
        false
    }

    fn max_transmit_segments(&self) -> usize {
        // More than quinn ever uses; the send splits what the host cannot take at once.
        10
    }

    fn max_receive_segments(&self) -> usize {
        RECEIVE_PAYLOADS
    }
}
