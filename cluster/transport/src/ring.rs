//! The newest datagrams of a circuit, already encrypted, to be sent again after a silence and before anything new.

use std::collections::VecDeque;

use postroad_cluster::{
    limits::{RING_BYTES_MAX, RING_DATAGRAMS_MIN, UDP_PAYLOAD_BYTES_MAX},
    time::{Moment, Span},
};
use quinn::udp::{EcnCodepoint, Transmit};

use crate::packet::HEADER_BYTES;

/// Buffers kept for the next sends of a circuit: what one acknowledgement frees, some 500 KiB.
const SPARE_BUFFERS_MAX: usize = 8;

/// Datagrams of one send, each with room for the header in front.
#[derive(Debug)]
pub struct Entry {
    /// The datagrams, `stride` apart, the last may be shorter.
    pub data: Vec<u8>,
    /// The distance of datagrams.
    pub stride: usize,
    /// Congestion marks.
    pub ecn: Option<EcnCodepoint>,
    /// The number of the last QUIC packet in it.
    pub number: u64,
    /// When it was first sent.
    pub at: Moment,
}

impl Entry {
    /// One for datagrams such as quinn sends in `transmit`, to be filled. `data` is empty.
    #[must_use]
    pub fn like(transmit: &Transmit<'_>, at: Moment, data: Vec<u8>) -> Self {
        Self { data, stride: datagram_bytes(transmit) + HEADER_BYTES, ecn: transmit.ecn, number: 0, at }
    }

    /// How many datagrams of `transmit`, from its first, may go in the same send, of which only the last datagram may be
    /// shorter than the others.
    fn room(&self, transmit: &Transmit<'_>, segments_max: usize) -> usize {
        let bytes = datagram_bytes(transmit);
        let more = transmit.contents.len().div_ceil(bytes);
        let fits = bytes + HEADER_BYTES == self.stride || (more == 1 && bytes + HEADER_BYTES < self.stride);
        if !fits || self.ecn != transmit.ecn || !self.data.len().is_multiple_of(self.stride) {
            return 0;
        }
        let segments = segments_max.saturating_sub(self.datagrams());
        let room = more.min(segments).min((UDP_PAYLOAD_BYTES_MAX - self.data.len()) / (bytes + HEADER_BYTES));
        // The first always goes, so that whoever fills one after the other ends: what is too large is refused by the socket.
        room.max(usize::from(self.data.is_empty()))
    }

    /// Adds of what quinn sends as many datagrams as one send takes, each behind room for its header. `number` is that of
    /// the last packet in `transmit`. Returns the contents that have no room.
    pub fn fill<'a>(&mut self, transmit: &Transmit<'a>, number: u64, segments_max: usize) -> &'a [u8] {
        let (bytes, room) = (datagram_bytes(transmit), self.room(transmit, segments_max));
        if room == 0 {
            return transmit.contents;
        }
        let (taken, rest) = transmit.contents.split_at(transmit.contents.len().min(room * bytes));
        self.data.reserve(taken.len() + room * HEADER_BYTES);
        for packet in taken.chunks(bytes) {
            self.data.extend_from_slice(&[0; HEADER_BYTES]);
            self.data.extend_from_slice(packet);
        }
        // quinn skips a number now and then: this one is that of the last packet taken, or of one soon after.
        self.number = number.saturating_sub(rest.len().div_ceil(bytes) as u64);
        rest
    }

    /// How full it is, for [`Entry::empty_to`].
    #[must_use]
    pub const fn level(&self) -> (usize, u64) {
        (self.data.len(), self.number)
    }

    /// Takes back what was added since.
    pub fn empty_to(&mut self, (length, number): (usize, u64)) {
        self.data.truncate(length);
        self.number = number;
    }

    /// How many datagrams it holds.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.data.len().div_ceil(self.stride.max(1))
    }

    /// Puts `header` in front of every datagram.
    pub fn set_header(&mut self, header: &[u8; HEADER_BYTES]) {
        for datagram in self.data.chunks_mut(self.stride.max(1)) {
            if let Some(room) = datagram.first_chunk_mut() {
                *room = *header;
            }
        }
    }
}

/// The size of all datagrams but the last.
fn datagram_bytes(transmit: &Transmit<'_>) -> usize {
    transmit.segment_size.unwrap_or(transmit.contents.len()).max(1)
}

/// The ring of one circuit.
#[derive(Debug, Default)]
pub struct Ring {
    entries: VecDeque<Entry>,
    /// How many entries at the end are still to be sent, or sent again.
    pending: usize,
    bytes: usize,
    datagrams: usize,
    spare: Vec<Vec<u8>>,
}

impl Ring {
    /// An empty buffer, if possible a used one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Returns a buffer that was not needed.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Whether something waits to be sent.
    #[must_use]
    pub const fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Datagrams and bytes that wait to be sent.
    #[must_use]
    pub fn pending(&self) -> (usize, usize) {
        let waiting = self.entries.iter().skip(self.entries.len() - self.pending);
        waiting.fold((0, 0), |(datagrams, bytes), entry| (datagrams + entry.datagrams(), bytes + entry.data.len()))
    }

    /// Bytes held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what was just sent, or with `pending` what is still to be sent. Returns how many datagrams that were
    /// never sent had to be forgotten, since the ring is full.
    pub fn push(&mut self, entry: Entry, pending: bool) -> usize {
        self.bytes += entry.data.len();
        self.datagrams += entry.datagrams();
        self.entries.push_back(entry);
        self.pending += usize::from(pending);
        let mut forgotten = 0;
        while self.bytes > RING_BYTES_MAX && self.entries.len() > 1 {
            if self.pending == self.entries.len() {
                self.pending -= 1;
                forgotten += self.entries.front().map_or(0, Entry::datagrams);
            }
            self.forget_oldest();
        }
        forgotten
    }

    fn forget_oldest(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.data.len();
            self.datagrams -= entry.datagrams();
            self.give_back(entry.data);
        }
    }

    /// Forgets what is older than `age` or acknowledged, but keeps the newest 64 datagrams whatever their age.
    pub fn prune(&mut self, now: Moment, age: Span, acknowledged: Option<u64>) {
        while let Some(oldest) = self.entries.front() {
            let done = now.since(oldest.at) > age || acknowledged.is_some_and(|number| oldest.number <= number);
            let kept = self.datagrams - oldest.datagrams();
            if !done || kept < RING_DATAGRAMS_MIN || self.pending == self.entries.len() {
                return;
            }
            self.forget_oldest();
        }
    }

    /// Makes everything that is not acknowledged pending again, in its order. Returns how many datagrams that is.
    pub fn rewind(&mut self, acknowledged: Option<u64>) -> usize {
        let open = |entry: &Entry| acknowledged.is_none_or(|number| entry.number > number);
        let first = self.entries.iter().position(open).unwrap_or(self.entries.len());
        self.pending = self.pending.max(self.entries.len() - first);
        self.pending().0
    }

    /// What is to be sent next. What was acknowledged meanwhile is passed over.
    pub fn next_pending(&mut self, acknowledged: Option<u64>) -> Option<&mut Entry> {
        while self.pending > 0 {
            let place = self.entries.len() - self.pending;
            if acknowledged.is_none_or(|number| self.entries[place].number > number) {
                return self.entries.get_mut(place);
            }
            self.pending -= 1;
        }
        None
    }

    /// The newest datagram, without the room for its header.
    #[must_use]
    pub fn newest(&self) -> Option<&[u8]> {
        let entry = self.entries.back()?;
        entry.data.chunks(entry.stride.max(1)).next_back()?.get(HEADER_BYTES..)
    }

    /// What [`Ring::next_pending`] returned has been sent.
    pub const fn advance(&mut self) {
        self.pending = self.pending.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, at_ms: u64, datagrams: usize) -> Entry {
        let stride = HEADER_BYTES + 100;
        let at = Moment::ZERO.after(Span::from_millis(at_ms));
        Entry { data: vec![number as u8; stride * datagrams], stride, ecn: None, number, at }
    }

    fn drain(ring: &mut Ring, acknowledged: Option<u64>) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(entry) = ring.next_pending(acknowledged) {
            numbers.push(entry.number);
            ring.advance();
        }
        numbers
    }

    #[test]
    fn what_is_not_acknowledged_goes_again_in_order_before_anything_new() {
        let mut ring = Ring::default();
        for number in 1..=5 {
            assert_eq!(ring.push(entry(number, number, 1), false), 0);
        }
        assert_eq!(ring.rewind(Some(2)), 3);
        ring.push(entry(6, 6, 1), true);
        assert_eq!(drain(&mut ring, Some(2)), [3, 4, 5, 6]);
        assert!(!ring.has_pending());
        // What is acknowledged while it waits is passed over.
        ring.rewind(Some(2));
        assert_eq!(drain(&mut ring, Some(4)), [5, 6]);
    }

    #[test]
    fn the_newest_64_datagrams_stay_whatever_their_age() {
        let mut ring = Ring::default();
        for number in 0..200 {
            ring.push(entry(number, 0, 1), false);
        }
        ring.prune(Moment::ZERO.after(Span::from_mins(1)), Span::from_secs(1), None);
        assert_eq!(ring.rewind(None), RING_DATAGRAMS_MIN);
        assert_eq!(drain(&mut ring, None).first(), Some(&136));
    }

    #[test]
    fn bytes_are_bounded_and_what_was_never_sent_is_counted_when_forgotten() {
        let mut ring = Ring::default();
        let mut forgotten = 0;
        for number in 0..10_000 {
            forgotten += ring.push(entry(number, 0, 10), true);
            assert!(ring.bytes() <= RING_BYTES_MAX);
        }
        assert_eq!(forgotten + ring.pending().0, 100_000);
    }

    #[test]
    fn the_newest_datagram_comes_without_its_header() {
        let mut ring = Ring::default();
        assert_eq!(ring.newest(), None);
        ring.push(entry(1, 0, 1), false);
        let mut last = entry(2, 0, 3);
        last.data.truncate(2 * last.stride + HEADER_BYTES + 7);
        ring.push(last, false);
        assert_eq!(ring.newest(), Some(&[2; 7][..]));
    }

    fn transmit(contents: &[u8], segment_size: Option<usize>) -> Transmit<'_> {
        Transmit { destination: "192.0.2.1:1".parse().unwrap(), ecn: None, contents, segment_size, src_ip: None }
    }

    #[test]
    fn datagrams_of_one_size_go_in_one_send_and_a_shorter_one_ends_it() {
        let bytes = [5; 300];
        let of = |count: usize| transmit(&bytes[..count], (count > 100).then_some(100));
        let filled = |transmit: &Transmit<'_>, segments_max| {
            let mut entry = Entry::like(transmit, Moment::ZERO, Vec::new());
            entry.fill(transmit, 7, segments_max);
            entry
        };
        let begun = || filled(&of(200), 64);
        for (name, more, rest) in [
            ("as long", of(200), 0),
            ("as long, and one shorter", of(250), 0),
            ("one shorter", of(60), 0),
            ("several shorter", transmit(&bytes[..100], Some(50)), 100),
            ("longer", transmit(&bytes[..150], None), 150),
            ("marked otherwise", Transmit { ecn: Some(EcnCodepoint::Ce), ..of(100) }, 100),
        ] {
            assert_eq!(begun().fill(&more, 9, 64).len(), rest, "{name}");
        }
        let mut entry = begun();
        assert_eq!(entry.fill(&of(100), 8, 2).len(), 100, "the host takes two segments at once");
        assert_eq!(entry.number, 7);
        let level = entry.level();
        assert!(entry.fill(&of(60), 8, 64).is_empty());
        assert_eq!((entry.datagrams(), entry.data.len(), entry.number), (3, 260 + 3 * HEADER_BYTES, 8));
        assert_eq!(entry.fill(&of(60), 9, 64).len(), 60, "it ends with a shorter one");
        entry.empty_to(level);
        assert_eq!((entry.datagrams(), entry.number), (2, 7));
        // Of three more one fits: its packet's number is two less than the last one's.
        assert_eq!(entry.fill(&of(300), 10, 3).len(), 200);
        assert_eq!((entry.datagrams(), entry.number), (3, 8));
        let (large, mut full) = (vec![5; 10 * 8_936], 0);
        let all = transmit(&large, Some(8_936));
        let mut rest = all.clone();
        while !rest.contents.is_empty() {
            let mut entry = Entry::like(&rest, Moment::ZERO, Vec::new());
            rest.contents = entry.fill(&rest, 10, usize::MAX);
            assert!(entry.data.len() <= UDP_PAYLOAD_BYTES_MAX);
            full += usize::from(entry.data.len() + entry.stride > UDP_PAYLOAD_BYTES_MAX);
        }
        assert_eq!(full, 1, "seven large ones fill a send, three are left");
        let too_large = vec![5; UDP_PAYLOAD_BYTES_MAX];
        let mut entry = Entry::like(&transmit(&too_large, None), Moment::ZERO, Vec::new());
        assert!(entry.fill(&transmit(&too_large, None), 1, 0).is_empty(), "what no socket takes ends as well");
    }

    #[test]
    fn headers_go_before_every_datagram() {
        let mut entry = entry(1, 0, 3);
        entry.data.truncate(2 * entry.stride + HEADER_BYTES + 3);
        entry.set_header(&[9; HEADER_BYTES]);
        for datagram in entry.data.chunks(entry.stride) {
            assert!(datagram[..HEADER_BYTES].iter().all(|byte| *byte == 9));
            assert!(datagram[HEADER_BYTES..].iter().all(|byte| *byte == 1));
        }
    }
}
