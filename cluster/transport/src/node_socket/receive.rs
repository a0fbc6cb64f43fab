//! Receiving at a node's socket: strips headers in place, and untangles buffers that mix circuits and plain QUIC.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use postroad_cluster::{
    id::Challenge,
    limits::{SOCKET_QUEUE_DATAGRAMS, SOCKET_RETRY},
    time::Timer,
};
use quinn::udp::RecvMeta;

use super::{Incoming, NodeSocket, Table, cell::is_data};
use crate::{
    address::{canonical, mapped},
    packet::{self, HEADER_BYTES, Header, PacketType},
};

/// Buffers kept for the next mixed buffers.
const SPARE_BUFFERS_MAX: usize = 16;

/// Datagrams that did not fit where they were received.
#[derive(Debug)]
struct Waiting {
    data: Vec<u8>,
    meta: RecvMeta,
}

/// The state of receiving.
#[derive(Default)]
pub(super) struct Receiver {
    waiting: VecDeque<Waiting>,
    datagrams: usize,
    spare: Vec<Vec<u8>>,
    retry: Option<Timer>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("datagrams", &self.datagrams).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Queues one datagram behind others of the same kind; false if there is no room.
    fn queue(&mut self, datagram: &[u8], stride: usize, meta: &RecvMeta, address: SocketAddr) -> bool {
        if self.datagrams >= SOCKET_QUEUE_DATAGRAMS {
            return false;
        }
        self.datagrams += 1;
        if let Some(last) = self.waiting.back_mut()
            && last.meta.addr == address
            && last.meta.stride == stride
            && last.meta.ecn == meta.ecn
            && last.data.len().is_multiple_of(stride)
            && last.data.len() + datagram.len() <= meta.len
        {
            last.data.extend_from_slice(datagram);
            return true;
        }
        let mut data = self.spare.pop().unwrap_or_default();
        data.extend_from_slice(datagram);
        self.waiting.push_back(Waiting { data, meta: RecvMeta { addr: address, stride, ..*meta } });
        true
    }

    fn deliver(&mut self, buffers: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> usize {
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some(mut waiting) = self.waiting.pop_front() else { break };
            let length = waiting.data.len().min(buffer.len());
            self.datagrams -= waiting.data.len().div_ceil(waiting.meta.stride.max(1));
            buffer[..length].copy_from_slice(&waiting.data[..length]);
            *meta = RecvMeta { len: length, ..waiting.meta };
            count += 1;
            if self.spare.len() < SPARE_BUFFERS_MAX {
                waiting.data.clear();
                self.spare.push(waiting.data);
            }
        }
        count
    }
}

/// Who a segment is for: how much of it is header, and which address quinn sees it from.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    header_bytes: usize,
    address: SocketAddr,
}

/// The channel of the segments seen last, so that a run of them is looked up once.
struct Last {
    header: [u8; HEADER_BYTES],
    incoming: Incoming,
    packets: u64,
    bytes: u64,
}

impl Last {
    fn settle(self) {
        if self.packets > 0 {
            self.incoming.cell.count_received(self.packets, self.bytes);
        }
    }
}

impl NodeSocket {
    pub(super) fn receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut receiver = self.receiver();
        loop {
            let delivered = receiver.deliver(buffers, meta);
            if delivered > 0 {
                return Poll::Ready(Ok(delivered));
            }
            if let Some(retry) = &mut receiver.retry {
                ready!(retry.as_mut().poll(context));
                receiver.retry = None;
            }
            if let Ok(count) = ready!(self.common.socket.poll_receive(context, buffers, meta)) {
                let table = self.read();
                for (buffer, meta) in buffers.iter_mut().zip(meta.iter_mut()).take(count) {
                    self.sort(&table, &mut receiver, buffer, meta);
                }
                return Poll::Ready(Ok(count));
            }
            // An error would end quinn's driver; a rest keeps a failing socket from spinning.
            self.common.receive_errors.fetch_add(1, Ordering::Relaxed);
            let until = self.common.clock.now().after(SOCKET_RETRY);
            receiver.retry = Some(self.common.clock.sleep_until(until));
        }
    }

    /// Leaves in the buffer what the first segment's owner gets and queues the rest.
    fn sort(&self, table: &Table, receiver: &mut Receiver, buffer: &mut [u8], meta: &mut RecvMeta) {
        if self.common.is_deaf_to(meta.addr) {
            meta.len = 0;
            return;
        }
        let (length, stride) = (meta.len.min(buffer.len()), meta.stride.max(1));
        let original = RecvMeta { len: length, ..*meta };
        let mut last: Option<Last> = None;
        let mut first: Option<Owner> = None;
        let (mut read, mut write) = (0, 0);
        while read < length {
            let end = (read + stride).min(length);
            if let Some(owner) = self.owner(table, &mut last, &mut buffer[read..end], original.addr) {
                let start = read + owner.header_bytes;
                if *first.get_or_insert(owner) == owner {
                    if start != write {
                        buffer.copy_within(start..end, write);
                    }
                    write += end - start;
                } else {
                    let stripped = RecvMeta { dst_ip: original.dst_ip.filter(|_| owner.header_bytes == 0), ..original };
                    let stride = (stride - owner.header_bytes).max(1);
                    if !receiver.queue(&buffer[start..end], stride, &stripped, owner.address) {
                        self.common.queue_full.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            read = end;
        }
        if let Some(last) = last {
            last.settle();
        }
        meta.len = write;
        if let Some(owner) = first {
            meta.addr = owner.address;
            meta.stride = (stride - owner.header_bytes).max(1);
            if owner.header_bytes > 0 {
                meta.dst_ip = None;
            }
        }
    }

    /// Finds the owner of a segment. Probes and their echoes are dealt with here and have none.
    fn owner(&self, table: &Table, last: &mut Option<Last>, segment: &mut [u8], source: SocketAddr) -> Option<Owner> {
        if !segment.first().copied().is_some_and(packet::is_channel_packet) {
            return Some(Owner { header_bytes: 0, address: mapped(source) });
        }
        let known = last.as_ref().is_some_and(|last| segment.starts_with(&last.header));
        if !known {
            let header = Header::parse(segment);
            if let Some(Header { packet_type: PacketType::Challenge, token, .. }) = header {
                self.common.challenged(canonical(source), Challenge(token));
                return None;
            }
            let incoming = header
                .and_then(|header| table.by_token.get(&header.token))
                .filter(|incoming| incoming.source == canonical(source));
            let (Some(header), Some(incoming)) = (header, incoming) else {
                self.common.unknown.fetch_add(1, Ordering::Relaxed);
                return None;
            };
            incoming.cell.heard(incoming.relay, &header);
            if !is_data(&header) {
                match header.packet_type {
                    PacketType::Probe => incoming.cell.answer(incoming.relay, segment),
                    _ => incoming.cell.echoed(incoming.relay, segment),
                }
                return None;
            }
            let incoming = Incoming { cell: Arc::clone(&incoming.cell), ..incoming.clone() };
            let new = Last { header: header.encode(), incoming, packets: 0, bytes: 0 };
            if let Some(old) = last.replace(new) {
                old.settle();
            }
        }
        let last = last.as_mut()?;
        let payload = segment.len() - HEADER_BYTES;
        if payload == 0 {
            return None;
        }
        last.packets += 1;
        last.bytes += payload as u64;
        Some(Owner { header_bytes: HEADER_BYTES, address: last.incoming.cell.address() })
    }
}
