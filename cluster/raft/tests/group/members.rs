//! Who belongs to the group, and that no change loses the majority.

use std::time::Duration;

use postroad_raft::{ChangeError, MemberRole, TermCause};
use tokio::time::sleep;

use crate::support::{node, world};

fn code(result: Result<(), ChangeError>) -> String {
    result.map_or_else(|error| error.code().to_owned(), |()| "ok".to_owned())
}

#[test]
fn one_to_seven_vote_and_no_more() {
    world(1, |world| async move {
        let mut world = world.group(1).await;
        for count in 1..=7 {
            if count > 1 {
                world.start(node(count)).await;
                world.join(node(count)).await;
            }
            world.propose_some(3).await;
            world.check().await;
            assert_eq!(world.leader().await.status().voters.len() as u64, count);
        }
        world.start(node(8)).await;
        let leader = world.leader().await;
        leader.add_learner(node(8), "n8:9443".to_owned()).await.unwrap();
        assert_eq!(code(leader.promote(node(8)).await), "CONTROL_TOO_MANY_VOTERS");
        world.propose_some(1).await;
        // A learner learns all the same.
        world.check().await;
        let status = world.status(node(8));
        assert_eq!((status.role, status.learners.len()), (MemberRole::Learner, 1));
    });
}

#[test]
fn status_says_who_leads_since_when_and_who_lags() {
    world(2, |world| async move {
        let mut world = world.group(3).await;
        let first = world.status(node(1));
        assert_eq!((first.role, first.cause, first.term), (MemberRole::Leader, TermCause::Founded, 1));
        assert_eq!(first.voters[&node(2)], "n2:9443");
        world.crash(node(3)).await;
        world.propose_some(5).await;
        sleep(Duration::from_secs(2)).await;
        let status = world.status(node(1));
        assert_eq!(status.followers[&node(2)].lag_entries, 0);
        assert_eq!(status.followers[&node(3)].lag_entries, 5);
        assert!(status.followers[&node(3)].silent_ms >= Some(1_900), "{status:?}");
        assert!(status.followers[&node(2)].silent_ms <= Some(200), "{status:?}");
        assert_eq!(status.applied, status.last_log);
        world.start(node(3)).await;
        world.check().await;
    });
}

#[test]
fn leadership_is_handed_over_without_loss() {
    world(3, |world| async move {
        let mut world = world.group(3).await;
        world.propose_some(5).await;
        let mut leadership = world.member(node(3)).leadership();
        let before = leadership.get();
        let heir = world.member(node(1)).step_down().await.unwrap();
        assert_ne!(heir, node(1));
        let after = leadership.until(|now| now.leader == Some(heir)).await.unwrap();
        assert!(after.term > before.term);
        world.propose_some(5).await;
        world.check().await;
        let cause = world.status(heir).cause;
        assert_eq!(cause, TermCause::HandedOver { from: Some(node(1)) });
        // Only the leader can.
        let refused = world.member(node(1)).step_down().await;
        assert_eq!(refused, Err(ChangeError::NotLeader { leader: Some(heir) }));
    });
}

#[test]
fn nobody_hands_over_to_the_silent() {
    world(4, |world| async move {
        let mut world = world.group(1).await;
        let alone = world.member(node(1)).step_down().await;
        assert_eq!(code(alone.map(drop)), "CONTROL_NO_SUCCESSOR");
        world.propose_some(1).await;
        world.check().await;
    });
}

#[test]
fn no_removal_loses_the_majority() {
    world(5, |world| async move {
        let mut world = world.group(3).await;
        world.crash(node(3)).await;
        sleep(Duration::from_secs(1)).await;
        let leader = world.leader().await;
        let other = node(3 - leader.me().0);
        assert_eq!(code(leader.remove(other).await), "QUORUM_WOULD_BE_LOST");
        assert_eq!(code(leader.demote(other).await), "QUORUM_WOULD_BE_LOST");
        assert_eq!(code(leader.remove(node(9)).await), "CONTROL_NOT_A_MEMBER");
        // The dead one may go, and then one of two, and never the last.
        leader.remove(node(3)).await.unwrap();
        world.propose_some(2).await;
        leader.demote(other).await.unwrap();
        world.propose_some(2).await;
        assert_eq!(leader.status().learners.len(), 1);
        leader.remove(other).await.unwrap();
        assert_eq!(code(leader.remove(leader.me()).await), "CONTROL_LAST_VOTER");
        world.propose_some(2).await;
        assert_eq!(leader.status().voters.len(), 1);
        assert!(leader.status().learners.is_empty());
    });
}

#[test]
fn a_leader_that_is_to_go_hands_over_first() {
    world(6, |world| async move {
        let mut world = world.group(3).await;
        world.propose_some(3).await;
        let Err(ChangeError::NotLeader { leader: Some(heir) }) = world.member(node(1)).remove(node(1)).await else {
            panic!("the leader removed itself");
        };
        world.member(heir).remove(node(1)).await.unwrap();
        world.crash(node(1)).await;
        world.propose_some(3).await;
        world.check().await;
        assert_eq!(world.status(heir).voters.len(), 2);
    });
}

#[test]
fn a_learner_that_is_silent_or_behind_gets_no_vote() {
    world(7, |world| async move {
        let world = world.group(1).await;
        let leader = world.leader().await;
        leader.add_learner(node(2), "n2:9443".to_owned()).await.unwrap();
        assert_eq!(code(leader.promote(node(2)).await), "CONTROL_LEARNER_BEHIND");
        assert_eq!(code(leader.promote(node(3)).await), "CONTROL_NOT_A_MEMBER");
        assert_eq!(code(leader.add_learner(node(2), "n2:9443".to_owned()).await), "ok");
        assert!(leader.found("again:1".to_owned()).await.is_err());
    });
}
