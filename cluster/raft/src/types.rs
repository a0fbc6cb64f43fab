//! The library's types and their conversion to and from ours. What comes from outside is checked here: numbers out of
//! bounds and sets that are no membership go no further.

use std::{collections::BTreeMap, fmt};

use openraft::{
    BasicNode, EntryPayload, Membership,
    alias::{EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf},
    vote::RaftLeaderId,
};
use postroad_cluster::{
    command::{Command, Outcome},
    id::NodeId,
    limits::RAFT_NUMBER_MAX,
    trace::TraceId,
    wire::{
        self, WireError,
        raft::{LogPayload, LogPlace, LogRecord, MembershipRecord, StateSnapshotMeta, VoteRecord},
    },
};

openraft::declare_raft_types!(
    /// What the library is built over. The leader's identity is that of plain Raft: one leader a term.
    pub(crate) Types:
        D = Proposal,
        R = Answer,
        NodeId = u64,
        Node = BasicNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = crate::runtime::Runtime,
);

pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type Entry = EntryOf<Types>;
pub(crate) type Meta = SnapshotMetaOf<Types>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type Members = Membership<u64, BasicNode>;

/// A command on its way into the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) command: Box<Command>,
    /// What it is part of.
    pub(crate) trace: Option<TraceId>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The library logs entries by this; a command may hold what checks a secret, so it is not printed.
        write!(f, "command of {}", self.command.by)
    }
}

/// What came of an applied entry; nothing for those that are no command.
#[derive(Clone, Debug)]
pub(crate) struct Answer(pub(crate) Option<Outcome>);

/// Why bytes or records of others are not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadRecord {
    Wire(WireError),
    Number { what: &'static str, found: u64 },
    Membership,
    Order { index: u64 },
}

impl From<WireError> for BadRecord {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(f),
            Self::Number { what, found } => {
                write!(f, "expected a {what} of at most {RAFT_NUMBER_MAX}, found {found}")
            }
            Self::Membership => {
                write!(f, "expected a membership of one or two sets of voters, each with an address; found another")
            }
            Self::Order { index } => write!(f, "entry {index} does not follow the one before it"),
        }
    }
}

impl std::error::Error for BadRecord {}

fn number(what: &'static str, found: u64) -> Result<u64, BadRecord> {
    if found <= RAFT_NUMBER_MAX { Ok(found) } else { Err(BadRecord::Number { what, found }) }
}

pub(crate) fn log_id(place: LogPlace) -> Result<LogId, BadRecord> {
    Ok(LogId::new_term_index(number("term", place.term)?, number("index", place.index)?))
}

pub(crate) fn log_id_of(place: Option<LogPlace>) -> Result<Option<LogId>, BadRecord> {
    place.map(log_id).transpose()
}

pub(crate) fn place(id: &LogId) -> LogPlace {
    LogPlace { term: id.committed_leader_id().term, index: id.index }
}

pub(crate) fn place_of(id: Option<&LogId>) -> Option<LogPlace> {
    id.map(place)
}

pub(crate) fn vote(record: VoteRecord) -> Result<Vote, BadRecord> {
    let leader = RaftLeaderId::new(number("term", record.term)?, record.node.0);
    Ok(openraft::vote::RaftVote::from_leader_id(leader, record.granted))
}

pub(crate) fn vote_record(vote: &Vote) -> VoteRecord {
    VoteRecord { term: vote.leader_id.term, node: NodeId(vote.leader_id.voted_for), granted: vote.committed }
}

pub(crate) fn membership(record: MembershipRecord) -> Result<Members, BadRecord> {
    if !(1..=2).contains(&record.voters.len()) {
        return Err(BadRecord::Membership);
    }
    let voters = record.voters.into_iter().map(|set| set.into_iter().map(|node| node.0).collect()).collect();
    let nodes: BTreeMap<u64, BasicNode> =
        record.nodes.into_iter().map(|(node, address)| (node.0, BasicNode::new(address))).collect();
    Membership::new(voters, nodes).map_err(|_| BadRecord::Membership)
}

pub(crate) fn membership_record(members: &Members) -> MembershipRecord {
    let voters = members.get_joint_config().iter().map(|set| set.iter().copied().map(NodeId).collect()).collect();
    let nodes = members.nodes().map(|(node, at)| (NodeId(*node), at.addr.clone())).collect();
    MembershipRecord { voters, nodes }
}

pub(crate) fn entry(bytes: &[u8]) -> Result<Entry, BadRecord> {
    let record: LogRecord = wire::decode(bytes)?;
    let payload = match record.payload {
        LogPayload::Blank => EntryPayload::Blank,
        LogPayload::Command(command) => EntryPayload::Normal(Proposal { command, trace: None }),
        LogPayload::Traced { trace, command } => EntryPayload::Normal(Proposal { command, trace: Some(trace) }),
        LogPayload::Membership(members) => EntryPayload::Membership(membership(members)?),
    };
    Ok(Entry { log_id: log_id(record.place)?, payload })
}

pub(crate) fn entry_bytes(entry: &Entry) -> Vec<u8> {
    let payload = match &entry.payload {
        EntryPayload::Blank => LogPayload::Blank,
        EntryPayload::Normal(Proposal { command, trace: None }) => LogPayload::Command(command.clone()),
        EntryPayload::Normal(Proposal { command, trace: Some(trace) }) => {
            LogPayload::Traced { trace: *trace, command: command.clone() }
        }
        EntryPayload::Membership(members) => LogPayload::Membership(membership_record(members)),
    };
    wire::encode(&LogRecord { place: place(&entry.log_id), payload })
}

/// Entries that follow `previous` without a gap and with terms that never fall or pass `term`.
pub(crate) fn entries(term: u64, previous: Option<LogPlace>, bytes: &[Vec<u8>]) -> Result<Vec<Entry>, BadRecord> {
    let mut before = previous;
    let mut entries = Vec::with_capacity(bytes.len());
    for bytes in bytes {
        let entry = entry(bytes)?;
        let found = place(&entry.log_id);
        let (expected, least) = before.map_or((0, 0), |before| (before.index + 1, before.term));
        if found.index != expected || found.term < least || found.term > term {
            return Err(BadRecord::Order { index: found.index });
        }
        before = Some(found);
        entries.push(entry);
    }
    Ok(entries)
}

pub(crate) fn meta(record: StateSnapshotMeta) -> Result<Meta, BadRecord> {
    let at = log_id_of(record.membership_at)?;
    Ok(Meta {
        last_log_id: Some(log_id(record.last)?),
        last_membership: StoredMembership::new(at, membership(record.membership)?),
    })
}

/// `None` for a snapshot of nothing, which is never made.
pub(crate) fn meta_record(meta: &Meta) -> Option<StateSnapshotMeta> {
    Some(StateSnapshotMeta {
        last: place(meta.last_log_id.as_ref()?),
        membership_at: place_of(meta.last_membership.log_id().as_ref()),
        membership: membership_record(meta.last_membership.membership()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn record(term: u64, index: u64) -> Vec<u8> {
        wire::encode(&LogRecord { place: LogPlace { term, index }, payload: LogPayload::Blank })
    }

    #[test]
    fn entries_follow_each_other_or_are_refused() {
        let previous = Some(LogPlace { term: 2, index: 4 });
        assert_eq!(entries(3, previous, &[record(2, 5), record(3, 6)]).unwrap().len(), 2);
        assert_eq!(entries(3, None, &[record(0, 0)]).unwrap().len(), 1);
        for (bad, index) in [
            (vec![record(2, 6)], 6),
            (vec![record(1, 5)], 5),
            (vec![record(4, 5)], 5),
            (vec![record(3, 5), record(2, 6)], 6),
        ] {
            assert_eq!(entries(3, previous, &bad), Err(BadRecord::Order { index }));
        }
        assert!(matches!(entries(3, None, &[vec![1, 2]]), Err(BadRecord::Wire(_))));
    }

    #[test]
    fn numbers_out_of_bounds_and_impossible_memberships_are_refused() {
        let high = RAFT_NUMBER_MAX + 1;
        assert!(log_id(LogPlace { term: high, index: 0 }).is_err());
        assert!(log_id(LogPlace { term: 0, index: high }).is_err());
        assert!(vote(VoteRecord { term: u64::MAX, node: NodeId(1), granted: false }).is_err());
        let one = BTreeSet::from([NodeId(1)]);
        let nodes = BTreeMap::from([(NodeId(1), String::new())]);
        let good = MembershipRecord { voters: vec![one.clone()], nodes: nodes.clone() };
        assert_eq!(membership_record(&membership(good.clone()).unwrap()), good);
        for voters in [vec![], vec![BTreeSet::new()], vec![one.clone(); 3], vec![BTreeSet::from([NodeId(2)])]] {
            assert_eq!(membership(MembershipRecord { voters, nodes: nodes.clone() }), Err(BadRecord::Membership));
        }
    }
}
