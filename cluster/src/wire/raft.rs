//! Messages of the Raft group, and what it keeps on disk: our own words for what agreement needs, so that the library
//! behind it can change while logs and peers stay.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{command::Command, id::NodeId, trace::TraceId};

/// The place of an entry: indexes have no gaps, and of two logs the one with the higher last term is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPlace {
    /// The term of the leader that proposed it.
    pub term: u64,
    /// Its index, from 0.
    pub index: u64,
}

/// Whom a node votes for in a term, or whom it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteRecord {
    /// The term.
    pub term: u64,
    /// The candidate or leader.
    pub node: NodeId,
    /// Whether a majority has granted it: the node leads the term.
    pub granted: bool,
}

/// Who belongs to the group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipRecord {
    /// One set of voters, two while the set changes; a decision then needs a majority of both.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// Every member with its address; who is in no set of voters learns only.
    pub nodes: BTreeMap<NodeId, String>,
}

/// An entry of the log, as it is stored and sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// Where it is.
    pub place: LogPlace,
    /// What it holds.
    pub payload: LogPayload,
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogPayload {
    /// Nothing: a new leader begins its term with it.
    Blank,
    /// A command for the state machine.
    Command(Box<Command>),
    /// A new membership, which counts as soon as it is in the log.
    Membership(MembershipRecord),
    /// A command for the state machine that is part of a trace.
    Traced {
        /// The trace.
        trace: TraceId,
        /// The command.
        command: Box<Command>,
    },
}

/// What a snapshot of the state machine holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSnapshotMeta {
    /// The last entry in it.
    pub last: LogPlace,
    /// The entry of the last membership in it.
    pub membership_at: Option<LogPlace>,
    /// That membership.
    pub membership: MembershipRecord,
}

/// What one member asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RaftMessage {
    /// The leader brings entries, or none as a sign of life.
    Append {
        /// Its term.
        vote: VoteRecord,
        /// The entry before the first one.
        previous: Option<LogPlace>,
        /// Encoded [`LogRecord`]s. Each is bounded by itself, so that numbers, which are shorter as bytes than in
        /// memory, cannot add up to more than a reader allows.
        entries: Vec<Vec<u8>>,
        /// How far the log is committed.
        committed: Option<LogPlace>,
    },
    /// A candidate asks for a vote.
    Vote {
        /// Its term.
        vote: VoteRecord,
        /// The end of its log.
        last: Option<LogPlace>,
        /// Whether the leader itself asked it to stand, so that its lease does not count.
        handed_over: bool,
    },
    /// A candidate asks whether it would get a vote; nothing is promised.
    PreVote {
        /// The term that it would have.
        vote: VoteRecord,
        /// The end of its log.
        last: Option<LogPlace>,
    },
    /// The leader hands its leadership over.
    HandOver {
        /// Its term.
        vote: VoteRecord,
        /// The heir; everybody else only learns that the lease is over.
        to: NodeId,
        /// The end of the leader's log, which the heir must have.
        last: Option<LogPlace>,
    },
    /// The leader brings one chunk of a snapshot to a member that is behind its log.
    Snapshot {
        /// Its term.
        vote: VoteRecord,
        /// What the snapshot holds.
        meta: StateSnapshotMeta,
        /// The place of this chunk, in bytes. A chunk at 0 begins anew.
        offset: u64,
        /// The whole length, in bytes.
        total: u64,
        /// The chunk.
        chunk: Vec<u8>,
    },
    /// A follower asks how far it must have applied before a read sees everything that was acknowledged.
    ReadIndex,
}

/// The answer to a [`RaftMessage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RaftAnswer {
    /// All entries are on disk.
    Appended,
    /// The entry before the first one is not in the log.
    Conflict,
    /// A newer term, or a newer leader, is known.
    Newer {
        /// It.
        vote: VoteRecord,
    },
    /// The answer to a vote or the question before it.
    Voted {
        /// The vote that counts here now.
        vote: VoteRecord,
        /// Whether the candidate got it.
        granted: bool,
        /// The end of the log here.
        last: Option<LogPlace>,
    },
    /// The handover was taken.
    HandOverTaken,
    /// The heir has another term by now.
    HandOverOutdated {
        /// Its vote.
        vote: VoteRecord,
    },
    /// The heir's disk does not hold the leader's whole log.
    HandOverBehind {
        /// What it holds.
        last: Option<LogPlace>,
    },
    /// The next chunk is expected from here.
    SnapshotFrom {
        /// The place, in bytes.
        offset: u64,
    },
    /// The snapshot is complete and installed, or an own one is newer.
    SnapshotTaken {
        /// The vote that counts here now.
        vote: VoteRecord,
    },
    /// Everything acknowledged is at or before this index.
    ReadIndex {
        /// The index.
        index: u64,
    },
    /// Not done, and why.
    Failed {
        /// A stable code.
        code: String,
        /// What was found.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::Action,
        time::WallTime,
        wire::{decode, encode},
    };

    #[test]
    fn stored_bytes_are_those_of_the_first_release() {
        let vote = VoteRecord { term: 300, node: NodeId(2), granted: true };
        assert_eq!(encode(&vote), [1, 251, 44, 1, 2, 1]);
        let place = LogPlace { term: 3, index: 9 };
        assert_eq!(encode(&place), [1, 3, 9]);
        let command = Command { at: WallTime(7), by: NodeId(1), expected: None, action: Action::LeaseRenew };
        let record = LogRecord { place, payload: LogPayload::Command(Box::new(command)) };
        assert_eq!(encode(&record), [1, 3, 9, 1, 7, 1, 0, 13]);
        assert_eq!(encode(&LogRecord { place, payload: LogPayload::Blank }), [1, 3, 9, 0]);
        let command = Command { at: WallTime(7), by: NodeId(1), expected: None, action: Action::LeaseRenew };
        let payload = LogPayload::Traced { trace: TraceId::drawn(7), command: Box::new(command) };
        let bytes = encode(&LogRecord { place, payload });
        assert_eq!((&bytes[..5], &bytes[13..]), (&[1, 3, 9, 3, 253][..], &[7, 1, 0, 13][..]));
        let membership = MembershipRecord {
            voters: vec![BTreeSet::from([NodeId(1)])],
            nodes: BTreeMap::from([(NodeId(1), "a:1".to_owned())]),
        };
        let meta = StateSnapshotMeta { last: place, membership_at: Some(place), membership };
        assert_eq!(encode(&meta), [1, 3, 9, 1, 3, 9, 1, 1, 1, 1, 1, 3, b'a', b':', b'1']);
        assert_eq!(decode::<StateSnapshotMeta>(&encode(&meta)), Ok(meta));
    }

    #[test]
    fn sent_bytes_are_those_of_the_first_release() {
        let vote = VoteRecord { term: 1, node: NodeId(2), granted: true };
        let append = RaftMessage::Append { vote, previous: None, entries: vec![vec![9]], committed: None };
        assert_eq!(encode(&append), [1, 0, 1, 2, 1, 0, 1, 1, 9, 0]);
        assert_eq!(encode(&RaftMessage::ReadIndex), [1, 5]);
        assert_eq!(encode(&RaftAnswer::Appended), [1, 0]);
        assert_eq!(encode(&RaftAnswer::ReadIndex { index: 4 }), [1, 9, 4]);
    }
}
