//! Snapshots, purged logs, members that were away long, and the sizes of messages.

use postroad_cluster::{
    command::{Action, Command},
    id::LinkId,
    limits::RAFT_COMMAND_BYTES_MAX,
    time::WallTime,
};
use postroad_raft::{ProposeError, Retention};

use crate::support::{node, world};

const SMALL: Retention = Retention { snapshot_entries: 20, keep_entries: 5 };

#[test]
fn a_member_that_was_away_long_gets_a_snapshot() {
    world(31, |mut world| async move {
        world.retention = SMALL;
        let mut world = world.group(3).await;
        world.crash(node(3)).await;
        world.propose_some(100).await;
        let leader = world.leader().await.status();
        assert!(leader.snapshot >= Some(80), "{leader:?}");
        assert!(leader.purged >= Some(60), "{leader:?}");
        let before = world.installs();
        world.start(node(3)).await;
        world.propose_some(1).await;
        world.check().await;
        assert!(world.installs() > before);
        // It can lead with what it got, also after a restart of all.
        for one in world.running() {
            world.crash(one).await;
        }
        for number in 1..=3 {
            world.start(node(number)).await;
        }
        world.propose_some(30).await;
        world.check().await;
        assert_eq!(world.status(node(3)).voters.len(), 3);
    });
}

#[test]
fn a_learner_joins_a_group_whose_log_is_gone() {
    world(32, |mut world| async move {
        world.retention = SMALL;
        let mut world = world.group(1).await;
        world.propose_some(100).await;
        world.start(node(2)).await;
        world.join(node(2)).await;
        world.crash(node(1)).await;
        world.start(node(1)).await;
        world.propose_some(1).await;
        world.check().await;
    });
}

#[test]
fn snapshots_under_crashes_lose_nothing() {
    for seed in 40..44 {
        world(seed, move |mut world| async move {
            world.retention = Retention { snapshot_entries: 7, keep_entries: 2 };
            let mut world = world.group(3).await;
            for round in 0..9 {
                let victim = node((seed + round) % 3 + 1);
                world.crash(victim).await;
                world.propose_some(12).await;
                world.start(victim).await;
                world.propose_some(2).await;
            }
            world.check().await;
        });
    }
}

fn long(bytes: usize) -> Action {
    Action::LinkRetarget { link: LinkId(1), target_address: "x".repeat(bytes) }
}

#[test]
fn messages_stay_small_whatever_a_member_has_missed() {
    world(33, |world| async move {
        let mut world = world.group(3).await;
        world.crash(node(3)).await;
        for _ in 0..12 {
            // Refused by the state, but entries all the same.
            assert!(world.propose(long(RAFT_COMMAND_BYTES_MAX - 100)).await.refusal().is_some());
        }
        world.start(node(3)).await;
        world.check().await;
        let leader = world.leader().await;
        let at = WallTime(9_000_000);
        let command = Command { at, by: node(1), expected: None, action: long(RAFT_COMMAND_BYTES_MAX) };
        assert!(matches!(leader.propose(command).await, Err(ProposeError::TooLarge { .. })));
    });
}
