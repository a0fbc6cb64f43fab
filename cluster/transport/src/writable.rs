//! Waiting until a shared socket may be written: many connections wait, the network port knows one waiter.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use postroad_cluster::limits::UDP_PAYLOAD_BYTES_MAX;
use quinn::{UdpPoller, udp::Transmit};

use crate::network::UdpSocket;

/// Everybody who waits for one socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Whether the last send found the socket full; while it is not, nobody need ask.
    full: AtomicBool,
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waker>>,
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.full.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_values().for_each(Waker::wake);
    }
}

impl Waiters {
    /// Notes whether a send found the socket full.
    pub(crate) fn note<T>(&self, sent: &io::Result<T>) {
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.full.store(true, Ordering::Release);
        }
    }

    fn poll(self: &Arc<Self>, socket: &dyn UdpSocket, number: u64, context: &mut Context<'_>) -> Poll<()> {
        if !self.full.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        // First the own waker, then the question, so that a wake between them is not lost.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, context.waker().clone());
        let all = Waker::from(Arc::clone(self));
        match socket.poll_writable(&mut Context::from_waker(&all)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) => {
                all.wake();
                Poll::Ready(())
            }
        }
    }
}

/// One waiter, as quinn asks for one per connection.
#[derive(Debug)]
pub(crate) struct Poller {
    socket: Arc<dyn UdpSocket>,
    waiters: Arc<Waiters>,
    number: u64,
}

impl Poller {
    pub(crate) fn new(socket: Arc<dyn UdpSocket>, waiters: Arc<Waiters>) -> Self {
        let number = waiters.next.fetch_add(1, Ordering::Relaxed);
        Self { socket, waiters, number }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.waiters.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An error would end quinn's driver; the next send meets it and counts it.
        self.waiters.poll(&*self.socket, self.number, context).map(Ok)
    }
}

/// Sends a transmit in as many pieces as the socket needs: at most its segments and 65,507 bytes each.
///
/// # Errors
/// Only if nothing was sent. What a full socket did not take after the first piece is lost, as on any network.
pub(crate) fn send_in_pieces(socket: &dyn UdpSocket, transmit: &Transmit<'_>) -> io::Result<()> {
    let stride = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
    let piece = (UDP_PAYLOAD_BYTES_MAX / stride).min(socket.send_segments_max()).max(1) * stride;
    for (place, contents) in transmit.contents.chunks(piece).enumerate() {
        let segment_size = (contents.len() > stride).then_some(stride);
        let sent = socket.try_send(&Transmit { contents, segment_size, ..transmit.clone() });
        match sent {
            Ok(()) => {}
            Err(_) if place > 0 => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
