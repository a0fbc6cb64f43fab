//! From received buffers to sends: sorts segments by token, and lets what goes to one destination travel together.

use std::{io, net::SocketAddr};

use postroad_cluster::{limits::UDP_PAYLOAD_BYTES_MAX, time::Moment};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};

use super::{Shared, add, table::Table};
use crate::{
    network::UdpSocket,
    packet::{self, HEADER_BYTES},
};

/// Destinations whose packets are gathered at one time.
const ASSEMBLIES: usize = 8;

/// Neighbouring segments of one buffer that go the same way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    buffer: usize,
    start: usize,
    end: usize,
    /// Where to; none is the relay's own endpoint.
    destination: Option<SocketAddr>,
}

/// What kind of packet a segment is: of which channel, or QUIC.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quic,
    Channel(u64),
    Malformed,
}

fn kind(segment: &[u8]) -> Kind {
    match segment.first() {
        Some(first) if !packet::is_channel_packet(*first) => Kind::Quic,
        Some(first) if !packet::is_forwarded(*first) => Kind::Malformed,
        _ => packet::token(segment).map_or(Kind::Malformed, Kind::Channel),
    }
}

/// Sorts the segments of one received buffer into runs and rewrites their tokens.
pub(super) fn sort(
    table: &mut Table,
    now: Moment,
    buffer: usize,
    data: &mut [u8],
    meta: &RecvMeta,
    runs: &mut Vec<Run>,
) {
    let (length, stride) = (meta.len.min(data.len()), meta.stride.max(1));
    let mut start = 0;
    while start < length {
        let first = kind(&data[start..(start + stride).min(length)]);
        let mut end = start;
        let mut packets = 0;
        while end < length {
            let next = (end + stride).min(length);
            if kind(&data[end..next]) != first {
                break;
            }
            end = next;
            packets += 1;
        }
        let destination = match first {
            Kind::Quic => Some(None),
            Kind::Malformed => {
                table.drops.malformed += packets as u64;
                None
            }
            Kind::Channel(token) => table.admit(token, meta.addr, packets, end - start, now).map(|admitted| {
                for segment in data[start..end].chunks_mut(stride) {
                    packet::replace_token(segment, admitted.token_out);
                }
                Some(admitted.destination)
            }),
        };
        if let Some(destination) = destination {
            // Two channels with one destination are one run: their tokens are per segment.
            match runs.last_mut() {
                Some(last)
                    if last.buffer == buffer
                        && last.end == start
                        && last.destination == destination
                        && (last.end - last.start).is_multiple_of(stride) =>
                {
                    last.end = end;
                }
                _ => runs.push(Run { buffer, start, end, destination }),
            }
        }
        start = end;
    }
}

/// Packets of equal stride that are gathered for one destination.
#[derive(Debug)]
struct Assembly {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    stride: usize,
    data: Vec<u8>,
}

/// Gathers and sends. Its buffers are made once.
#[derive(Debug)]
pub(super) struct Assembler {
    open: Vec<Assembly>,
    spare: Vec<Vec<u8>>,
}

impl Assembler {
    pub(super) fn new() -> Self {
        let spare = (0..ASSEMBLIES).map(|_| Vec::with_capacity(UDP_PAYLOAD_BYTES_MAX)).collect();
        Self { open: Vec::with_capacity(ASSEMBLIES), spare }
    }

    /// Sends the runs of one batch, and hands the endpoint's over to it.
    pub(super) fn forward(
        &mut self,
        socket: &dyn UdpSocket,
        shared: &Shared,
        buffers: &[Box<[u8]>],
        meta: &[RecvMeta],
        runs: &[Run],
    ) {
        for run in runs {
            let (data, meta) = (&buffers[run.buffer][run.start..run.end], &meta[run.buffer]);
            match run.destination {
                None => shared.quic.queue(data, meta),
                Some(destination) => self.gather(socket, shared, destination, meta, data),
            }
        }
        shared.quic.wake();
        while let Some(assembly) = self.open.pop() {
            self.flush(socket, shared, assembly);
        }
    }

    fn gather(
        &mut self,
        socket: &dyn UdpSocket,
        shared: &Shared,
        destination: SocketAddr,
        meta: &RecvMeta,
        data: &[u8],
    ) {
        let stride = meta.stride.min(data.len()).max(1);
        let most = (UDP_PAYLOAD_BYTES_MAX / stride).min(socket.send_segments_max()).max(1) * stride;
        for piece in data.chunks(most) {
            let place = self.open.iter().position(|assembly| assembly.destination == destination);
            let fits = place.is_some_and(|place| {
                let assembly = &self.open[place];
                // Only the last of a send may be shorter than the others, so a short one ends it.
                let same = assembly.stride == stride || (piece.len() < assembly.stride && piece.len() == stride);
                let segments = assembly.data.len() / assembly.stride + piece.len().div_ceil(stride);
                let bytes = assembly.data.len() + piece.len();
                same && assembly.ecn == meta.ecn
                    && segments <= socket.send_segments_max()
                    && bytes <= UDP_PAYLOAD_BYTES_MAX
            });
            if let Some(place) = place.filter(|_| !fits) {
                let assembly = self.open.remove(place);
                self.flush(socket, shared, assembly);
            }
            // What nearly fills a send goes straight from the receive buffer.
            if !fits && piece.len() * 2 > most {
                send(socket, shared, destination, meta.ecn, stride, piece);
                continue;
            }
            let place = place.filter(|_| fits).unwrap_or_else(|| self.begin(socket, shared, destination, meta, stride));
            let assembly = &mut self.open[place];
            assembly.data.extend_from_slice(piece);
            if !piece.len().is_multiple_of(assembly.stride) {
                let assembly = self.open.remove(place);
                self.flush(socket, shared, assembly);
            }
        }
    }

    fn begin(
        &mut self,
        socket: &dyn UdpSocket,
        shared: &Shared,
        destination: SocketAddr,
        meta: &RecvMeta,
        stride: usize,
    ) -> usize {
        if self.open.len() == ASSEMBLIES {
            let oldest = self.open.remove(0);
            self.flush(socket, shared, oldest);
        }
        let data = self.spare.pop().unwrap_or_default();
        self.open.push(Assembly { destination, ecn: meta.ecn, stride, data });
        self.open.len() - 1
    }

    fn flush(&mut self, socket: &dyn UdpSocket, shared: &Shared, mut assembly: Assembly) {
        send(socket, shared, assembly.destination, assembly.ecn, assembly.stride, &assembly.data);
        assembly.data.clear();
        self.spare.push(assembly.data);
    }
}

/// Sends packets that fit one send. A full socket loses them.
fn send(
    socket: &dyn UdpSocket,
    shared: &Shared,
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    stride: usize,
    contents: &[u8],
) {
    debug_assert!(stride > 0 && contents.len() >= HEADER_BYTES, "only whole packets are gathered");
    let packets = contents.len().div_ceil(stride);
    let segment_size = (contents.len() > stride).then_some(stride);
    let totals = &shared.totals;
    match socket.try_send(&Transmit { destination, ecn, contents, segment_size, src_ip: None }) {
        Ok(()) => {
            add(&totals.packets, packets);
            add(&totals.bytes, contents.len());
            add(&totals.sends, 1);
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => add(&totals.socket_full, packets),
        Err(_) => add(&totals.socket_error, packets),
    }
}
