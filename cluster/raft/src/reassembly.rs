//! A snapshot that arrives in chunks: one at a time, bounded, and begun anew whenever another one comes.

use postroad_cluster::{
    id::NodeId,
    limits::{RAFT_CHUNK_BYTES, RAFT_SNAPSHOT_BYTES_MAX},
    wire::raft::StateSnapshotMeta,
};

/// The snapshot that is arriving.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    arriving: Option<Arriving>,
}

#[derive(Debug)]
struct Arriving {
    from: NodeId,
    term: u64,
    meta: StateSnapshotMeta,
    total: u64,
    data: Vec<u8>,
}

/// What a chunk led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The next chunk is expected from here.
    From(u64),
    /// The snapshot is whole.
    Whole(Vec<u8>),
    /// The chunk cannot be part of a snapshot, and why.
    Refused(String),
}

/// A chunk and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) from: NodeId,
    pub(crate) term: u64,
    pub(crate) meta: StateSnapshotMeta,
    pub(crate) offset: u64,
    pub(crate) total: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Reassembly {
    pub(crate) fn take(&mut self, chunk: Chunk) -> Taken {
        let Chunk { from, term, meta, offset, total, bytes } = chunk;
        let length = bytes.len() as u64;
        let fits = offset.checked_add(length).is_some_and(|end| end <= total);
        if total > RAFT_SNAPSHOT_BYTES_MAX as u64
            || bytes.len() > RAFT_CHUNK_BYTES
            || !fits
            || (length == 0 && total > 0)
        {
            return Taken::Refused(format!("a chunk of {length} bytes at {offset} of a snapshot of {total} bytes"));
        }
        if offset == 0 {
            self.arriving = Some(Arriving { from, term, meta, total, data: Vec::new() });
        } else if !self.arriving.as_ref().is_some_and(|arriving| arriving.is(from, term, &meta, total)) {
            return Taken::From(0);
        }
        let Some(arriving) = &mut self.arriving else { return Taken::From(0) };
        if arriving.data.len() as u64 != offset {
            return Taken::From(arriving.data.len() as u64);
        }
        arriving.data.extend_from_slice(&bytes);
        if (arriving.data.len() as u64) < total {
            return Taken::From(arriving.data.len() as u64);
        }
        self.arriving.take().map_or(Taken::From(0), |arriving| Taken::Whole(arriving.data))
    }
}

impl Arriving {
    fn is(&self, from: NodeId, term: u64, meta: &StateSnapshotMeta, total: u64) -> bool {
        self.from == from && self.term == term && self.meta == *meta && self.total == total
    }
}

#[cfg(test)]
mod tests {
    use postroad_cluster::wire::raft::{LogPlace, MembershipRecord};

    use super::*;

    fn chunk(from: u64, offset: u64, total: u64, bytes: &[u8]) -> Chunk {
        let meta = StateSnapshotMeta {
            last: LogPlace { term: 1, index: 9 },
            membership_at: None,
            membership: MembershipRecord::default(),
        };
        Chunk { from: NodeId(from), term: 1, meta, offset, total, bytes: bytes.to_vec() }
    }

    #[test]
    fn chunks_in_order_make_a_whole_and_repeats_are_told_where_to_go_on() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.take(chunk(1, 0, 5, b"ab")), Taken::From(2));
        assert_eq!(reassembly.take(chunk(1, 2, 5, b"cd")), Taken::From(4));
        assert_eq!(reassembly.take(chunk(1, 2, 5, b"cd")), Taken::From(4));
        assert_eq!(reassembly.take(chunk(1, 4, 5, b"e")), Taken::Whole(b"abcde".to_vec()));
        assert_eq!(reassembly.take(chunk(1, 4, 5, b"e")), Taken::From(0));
        assert_eq!(reassembly.take(chunk(1, 0, 0, b"")), Taken::Whole(Vec::new()));
    }

    #[test]
    fn another_snapshot_or_sender_begins_anew() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.take(chunk(1, 0, 5, b"ab")), Taken::From(2));
        assert_eq!(reassembly.take(chunk(2, 2, 5, b"cd")), Taken::From(0));
        assert_eq!(reassembly.take(chunk(1, 2, 6, b"cd")), Taken::From(0));
        let mut newer = chunk(1, 2, 5, b"cd");
        newer.term = 2;
        assert_eq!(reassembly.take(newer), Taken::From(0));
        assert_eq!(reassembly.take(chunk(2, 0, 2, b"xy")), Taken::Whole(b"xy".to_vec()));
    }

    #[test]
    fn what_is_too_large_or_impossible_is_refused() {
        let mut reassembly = Reassembly::default();
        for bad in [
            chunk(1, 0, RAFT_SNAPSHOT_BYTES_MAX as u64 + 1, b"a"),
            chunk(1, 0, RAFT_SNAPSHOT_BYTES_MAX as u64, &vec![0; RAFT_CHUNK_BYTES + 1]),
            chunk(1, 4, 5, b"ab"),
            chunk(1, u64::MAX, 5, b"ab"),
            chunk(1, 0, 5, b""),
        ] {
            assert!(matches!(reassembly.take(bad), Taken::Refused(_)));
        }
    }
}
