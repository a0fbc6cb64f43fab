//! Crashes, cuts and restarts lose nothing that was acknowledged.

use std::time::Duration;

use postroad_cluster::{
    command::{Action, Command},
    time::WallTime,
};
use postroad_raft::{ProposeError, TermCause};
use tokio::time::sleep;

use crate::support::{World, node, world};

#[test]
fn any_minority_may_crash() {
    for count in [3, 5, 7] {
        world(count, move |world| async move {
            let mut world = world.group(count).await;
            let minority = (count - 1) / 2;
            for first in 1..=count {
                let gone: Vec<_> = (0..minority).map(|step| node((first + step - 1) % count + 1)).collect();
                for one in &gone {
                    world.crash(*one).await;
                }
                world.propose_some(2).await;
                for one in gone {
                    world.start(one).await;
                }
                world.propose_some(1).await;
            }
            world.check().await;
        });
    }
}

#[test]
fn all_may_crash_at_once() {
    world(11, |world| async move {
        let mut world = world.group(3).await;
        for _ in 0..5 {
            world.propose_some(4).await;
            for one in world.running() {
                world.crash(one).await;
            }
            for number in [3, 1, 2] {
                world.start(node(number)).await;
            }
            world.propose_some(1).await;
            world.check().await;
        }
    });
}

#[test]
fn one_alone_keeps_everything_over_restarts() {
    world(12, |world| async move {
        let mut world = world.group(1).await;
        for _ in 0..10 {
            world.propose_some(3).await;
            world.restart(node(1)).await;
        }
        world.propose_some(1).await;
        world.check().await;
        assert!(matches!(world.status(node(1)).cause, TermCause::Election { silent: None, .. }));
    });
}

#[test]
fn crashes_cuts_and_losses_in_any_order_lose_nothing() {
    for seed in 20..26 {
        world(seed, move |world| async move {
            let mut world = world.group(3).await;
            world.lose(0.05);
            for round in 0..8 {
                let victim = node((seed + round) % 3 + 1);
                match round % 3 {
                    0 => world.isolate(victim),
                    1 => world.crash(victim).await,
                    _ => world.cut(victim, node(victim.0 % 3 + 1)),
                }
                world.propose_some(3).await;
                world.heal();
                if round % 3 == 1 {
                    world.start(victim).await;
                }
                world.propose_some(1).await;
            }
            world.lose(0.0);
            world.propose_some(1).await;
            world.check().await;
        });
    }
}

async fn alone(world: &World, number: u64) -> Result<(), ProposeError> {
    let command = Command { at: WallTime(5_000_000), by: node(1), expected: None, action: Action::LeaseRenew };
    world.member(node(number)).propose(command).await.map(drop)
}

#[test]
fn a_leader_without_a_majority_decides_nothing() {
    world(13, |world| async move {
        let mut world = world.group(3).await;
        world.isolate(node(1));
        // While its lease lasts it takes the proposal, and cannot say what will become of it.
        let first = alone(&world, 1).await;
        assert!(matches!(first, Err(ProposeError::Unknown { .. })), "{first:?}");
        // Later it says at once that it cannot.
        let later = alone(&world, 1).await;
        assert!(matches!(later, Err(ProposeError::NotLeader { leader: None })), "{later:?}");
        assert!(world.member(node(1)).read_index().await.is_err());
        world.propose_some(3).await;
        world.heal();
        world.propose_some(1).await;
        world.check().await;
        let status = world.status(node(2));
        assert!(matches!(status.cause, TermCause::Election { silent: Some(_), .. }), "{status:?}");
    });
}

#[test]
fn a_member_that_was_cut_off_disturbs_nobody() {
    world(14, |world| async move {
        let mut world = world.group(3).await;
        let before = world.status(node(1));
        world.isolate(node(3));
        sleep(Duration::from_secs(20)).await;
        world.heal();
        sleep(Duration::from_secs(5)).await;
        // Without the question before the vote its term would have grown with every election it stood for.
        let after = world.status(node(1));
        assert_eq!((after.leader, after.term), (before.leader, before.term));
        world.propose_some(1).await;
        world.check().await;
    });
}

#[test]
fn a_follower_reads_what_was_acknowledged_elsewhere() {
    world(15, |world| async move {
        let mut world = world.group(3).await;
        for _ in 0..10 {
            world.propose_some(1).await;
            let acknowledged = world.leader().await.state().version;
            for number in 1..=3 {
                let member = world.member(node(number));
                member.read_index().await.unwrap();
                assert!(member.state().version >= acknowledged);
            }
        }
    });
}

#[test]
fn a_state_that_was_taken_does_not_change() {
    world(16, |world| async move {
        let mut world = world.group(1).await;
        let taken = world.member(node(1)).state();
        let version = taken.version;
        let mut applied = world.member(node(1)).applied();
        world.propose_some(3).await;
        assert_eq!(taken.version, version);
        assert!(world.member(node(1)).state().version > version);
        assert_eq!(applied.get().version, world.member(node(1)).state().version);
    });
}

#[test]
fn a_member_says_why_it_has_stopped() {
    world(17, |world| async move {
        let mut world = world.group(3).await;
        let member = world.member(node(2));
        let waits = tokio::spawn({
            let member = member.clone();
            async move { member.stopped().await }
        });
        world.crash(node(2)).await;
        assert!(!waits.await.unwrap().is_empty());
        assert!(member.status().stopped.is_some());
        assert!(matches!(alone_of(&member).await, Err(ProposeError::Stopped { .. })));
        assert_eq!(member.leadership().get().leader, None);
    });
}

async fn alone_of(member: &postroad_raft::Consensus) -> Result<(), ProposeError> {
    let command = Command { at: WallTime(5_000_000), by: node(1), expected: None, action: Action::LeaseRenew };
    member.propose(command).await.map(drop)
}

#[test]
fn an_abandoned_member_leaves_no_task_behind() {
    world(18, |world| async move {
        let mut world = world.group(3).await;
        world.propose_some(3).await;
        assert!(world.is_haunted());
        for number in 1..=3 {
            world.abandon(node(number));
        }
        sleep(Duration::from_secs(30)).await;
        assert!(!world.is_haunted());
    });
}
