//! Whatever arrives is answered, and changes nothing it must not.

use postroad_cluster::{
    id::NodeId,
    wire::{
        self,
        raft::{LogPayload, LogPlace, LogRecord, RaftAnswer, RaftMessage, StateSnapshotMeta, VoteRecord},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::support::{World, node, world};

async fn ask(world: &World, from: NodeId, message: &RaftMessage) -> RaftAnswer {
    let bytes = world.member(node(1)).handle(from, wire::encode(message)).await;
    wire::decode(&bytes).unwrap()
}

fn is_refused(answer: &RaftAnswer) -> bool {
    matches!(answer, RaftAnswer::Failed { .. })
}

fn leads(term: u64, number: u64) -> VoteRecord {
    VoteRecord { term, node: node(number), granted: true }
}

fn record(term: u64, index: u64) -> Vec<u8> {
    wire::encode(&LogRecord { place: LogPlace { term, index }, payload: LogPayload::Blank })
}

fn append(vote: VoteRecord, previous: Option<LogPlace>, entries: Vec<Vec<u8>>) -> RaftMessage {
    RaftMessage::Append { vote, previous, entries, committed: None }
}

/// One message of each kind, as a sound member could send it to a group of term 1.
fn sound() -> Vec<RaftMessage> {
    let place = LogPlace { term: 1, index: 3 };
    let stands = VoteRecord { term: 2, node: node(2), granted: false };
    let membership = wire::raft::MembershipRecord {
        voters: vec![[node(1), node(2)].into()],
        nodes: [(node(1), "n1:1".to_owned()), (node(2), "n2:1".to_owned())].into(),
    };
    let meta = StateSnapshotMeta { last: place, membership_at: None, membership };
    vec![
        append(leads(1, 2), Some(place), vec![record(1, 4), record(1, 5)]),
        RaftMessage::Vote { vote: stands, last: Some(place), handed_over: false },
        RaftMessage::PreVote { vote: stands, last: Some(place) },
        RaftMessage::HandOver { vote: leads(1, 2), to: node(1), last: Some(place) },
        RaftMessage::Snapshot { vote: leads(1, 2), meta, offset: 0, total: 4, chunk: vec![9; 4] },
        RaftMessage::ReadIndex,
    ]
}

#[test]
fn what_no_sound_member_sends_is_refused() {
    world(51, |world| async move {
        let mut world = world.group(1).await;
        world.propose_some(5).await;
        let last = world.status(node(1));
        let high = u64::MAX;
        let far = LogPlace { term: 9, index: 3 };
        let placed = |message: &RaftMessage| wire::encode(message);
        for bad in [
            // In another's name, or of a candidate as leader and the other way round.
            append(leads(9, 3), None, vec![]),
            append(VoteRecord { granted: false, ..leads(9, 2) }, None, vec![]),
            RaftMessage::Vote { vote: leads(9, 2), last: None, handed_over: true },
            RaftMessage::PreVote { vote: VoteRecord { term: 9, node: node(3), granted: false }, last: None },
            RaftMessage::HandOver { vote: leads(9, 3), to: node(1), last: None },
            // Numbers that overflow.
            append(leads(high, 2), None, vec![]),
            append(leads(9, 2), Some(LogPlace { term: 1, index: high }), vec![]),
            RaftMessage::Vote {
                vote: VoteRecord { term: high, node: node(2), granted: false },
                last: None,
                handed_over: true,
            },
            // Entries with gaps, of terms to come, or that are none.
            append(leads(9, 2), None, vec![record(1, 1)]),
            append(leads(9, 2), None, vec![record(10, 0)]),
            append(leads(9, 2), None, vec![vec![1, 2, 3]]),
            // Another history than the one that was applied.
            append(leads(9, 2), None, vec![record(9, 0)]),
            append(leads(9, 2), Some(far), vec![record(9, 4)]),
        ] {
            let answer = ask(&world, node(2), &bad).await;
            assert!(is_refused(&answer), "{bad:?} was answered by {answer:?}");
            // Nor does a member ask itself.
            assert!(is_refused(&ask(&world, node(1), &bad).await), "{:?}", placed(&bad));
        }
        let status = world.status(node(1));
        assert_eq!((status.term, status.leader, status.last_log), (last.term, last.leader, last.last_log));
        world.propose_some(1).await;
        world.check().await;
    });
}

#[test]
fn a_snapshot_that_cannot_be_read_is_refused() {
    world(52, |mut world| async move {
        world.start(node(1)).await;
        let snapshot = sound().remove(4);
        let answer = ask(&world, node(2), &snapshot).await;
        assert!(is_refused(&answer), "{answer:?}");
        assert_eq!(world.status(node(1)).stopped, None);
    });
}

#[test]
fn garbage_is_answered_and_harms_nobody() {
    for seed in 60..64 {
        world(seed, move |world| async move {
            let mut world = world.group(1).await;
            world.propose_some(8).await;
            let mut generator = StdRng::seed_from_u64(seed);
            for round in 0..2_000 {
                let mut bytes = wire::encode(&sound()[round % 6]);
                for _ in 0..generator.random_range(1..6) {
                    let at = generator.random_range(0..bytes.len());
                    match generator.random_range(0..3) {
                        0 => bytes[at] = generator.random(),
                        1 => bytes.truncate(at.max(1)),
                        _ => bytes.insert(at, generator.random()),
                    }
                }
                let from = node(generator.random_range(0..4));
                let answer = world.member(node(1)).handle(from, bytes).await;
                wire::decode::<RaftAnswer>(&answer).unwrap();
            }
            let status = world.status(node(1));
            assert_eq!(status.stopped, None);
            assert_eq!(world.contradictions(), Vec::<String>::new());
        });
    }
}

async fn vote(world: &World, candidate: u64) -> bool {
    let vote = VoteRecord { term: 10, node: node(candidate), granted: false };
    let message = RaftMessage::Vote { vote, last: None, handed_over: false };
    match ask(world, node(candidate), &message).await {
        RaftAnswer::Voted { vote: counts, .. } => counts == vote,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_vote_is_given_once_also_after_a_crash() {
    world(53, |mut world| async move {
        world.start(node(1)).await;
        assert!(vote(&world, 2).await);
        world.restart(node(1)).await;
        assert!(!vote(&world, 3).await);
        assert!(vote(&world, 2).await);
    });
}

#[cfg(feature = "planted")]
#[test]
fn a_vote_that_is_not_synced_is_given_twice() {
    world(54, |mut world| async move {
        postroad_raft::planted::leave_votes_unsynced(true);
        world.start(node(1)).await;
        assert!(vote(&world, 2).await);
        assert!(!vote(&world, 3).await);
        world.restart(node(1)).await;
        assert!(vote(&world, 3).await, "the planted fault shows");
    });
}
