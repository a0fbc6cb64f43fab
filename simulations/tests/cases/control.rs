//! The control plane away: what goes on, what is refused and how, and for how long a policy holds.

use postroad_actors::setup::SetupError;
use postroad_cluster::{
    id::Role,
    time::{Clock as _, Span},
};
use postroad_simulations::{
    network::Condition,
    world::{Plan, World},
};
use tokio::time::Instant;

use crate::support::{AMS, End, Fleet, NEAR_PORT, ended, ms, run, seconds, send, until, within};

// R9, RP-25, RP-28: every control node is stopped, then relays are killed and restarted: flows go on, new ones of the
// existing link open, also when only a relay is there that started without control plane, by its stored policy.
// Nobody joins meanwhile, and the joiner hears why.
#[test]
fn r9_rp25_flows_old_and_new_need_no_control_plane() {
    run(|| async {
        let mut fleet = Fleet::new(9, Condition::default(), 2).await;
        let token = fleet.world.token(Role::Node, Span::from_hours(1)).await.unwrap();
        let late = fleet.world.add(Plan { name: "late", role: Role::Node });
        let mut flow = fleet.open().await;
        fleet.crash(AMS);
        within("the flow goes on", seconds(2), flow.echo()).await;
        let mut second = fleet.open().await;

        let joining = fleet.world.enrolment(late, token).unwrap();
        let began = Instant::now();
        let refused = joining.await.expect_err("nobody joins without a control node");
        assert!(began.elapsed() <= seconds(10), "{:?}", began.elapsed());
        assert!(matches!(&refused, SetupError::Join(_)) && refused.code() == "SEEDS_UNREACHABLE", "{refused}");

        let (fra, par) = (fleet.relays[1], fleet.relays[2]);
        fleet.crash(fra);
        within("the flow goes on", seconds(2), flow.echo()).await;
        fleet.start(fra).await;
        fleet.settled().await;
        fleet.crash(par);
        within("the flow goes on", seconds(2), flow.echo()).await;
        within("the flow goes on", seconds(2), second.echo()).await;
        assert_eq!(fleet.carrier(), fra);
        fleet.open().await.echo().await;
        tokio::time::sleep(ms(200)).await;
        assert!(fleet.service(fra).counters.admitted > 0, "its stored policy admits");

        fleet.start(AMS).await;
        fleet.start(par).await;
        fleet.settled().await;
        within("the flow goes on", seconds(2), flow.echo()).await;
        within("changes are taken again", seconds(10), async {
            while fleet.world.link("more", &[fleet.web], NEAR_PORT + 1, fleet.db, 7_000).await.is_err() {
                tokio::time::sleep(ms(200)).await;
            }
        })
        .await;
    });
}

// RP-28: a control node that is left alone, whether it led or followed, refuses a change at once with a clear error as
// soon as it has been alone for as long as an election takes, and takes it when the others are back.
#[test]
fn rp28_without_a_majority_a_change_is_refused_clearly() {
    for left in [0, 1] {
        run(move || async move {
            let mut world = World::new(28, Condition::default(), None);
            for name in ["ams", "ber", "cph"] {
                world.add(Plan { name, role: Role::Control });
            }
            world.found(0).await.unwrap();
            // Nobody else has to answer the only voter, however long it was idle.
            tokio::time::sleep(seconds(20)).await;
            for index in [1, 2] {
                world.join(index).await.unwrap();
                world.promote(index).await.unwrap();
            }
            tokio::time::sleep(seconds(20)).await;
            world.link("first", &[0], 5_000, 1, 5_001).await.unwrap();
            let others = [0, 1, 2].into_iter().filter(|other| *other != left);
            others.clone().for_each(|other| world.crash(other));
            tokio::time::sleep(seconds(10)).await;
            refused_at_once(&world).await;
            world.start(others.clone().next().unwrap()).await.unwrap();
            within("the change is taken", seconds(20), async {
                while world.link("second", &[0], 5_002, 1, 5_003).await.is_err() {
                    tokio::time::sleep(ms(200)).await;
                }
            })
            .await;
        });
    }
}

async fn refused_at_once(world: &World) {
    let began = Instant::now();
    let refused = world.link("second", &[0], 5_002, 1, 5_003).await.expect_err("there is no majority");
    assert!(began.elapsed() <= ms(10), "refused after {:?}: {refused}", began.elapsed());
    assert!(refused.contains("NO_LEADER"), "{refused}");
    assert!(refused.contains("no control node has led with a majority for"), "{refused}");
}

// RP-32: the endpoint's grant arrives before the policy that covers it: the relay waits for that instead of refusing.
#[test]
fn rp32_a_grant_may_come_before_its_policy() {
    run(|| async {
        let fleet = Fleet::new(32, Condition::default(), 1).await;
        let fra = fleet.relays[1];
        fleet.cut_both(AMS, fra, true);
        let link = fleet.world.link("more", &[fleet.web], NEAR_PORT + 1, fleet.db, 7_000).await.unwrap();
        tokio::time::sleep(seconds(3)).await;
        let fra_id = fleet.id(fra);
        let session = |fleet: &Fleet| {
            let sessions = fleet.status(fleet.db).sessions;
            sessions.into_iter().find(|session| session.relay == fra_id).expect("there is a session")
        };
        assert_eq!(
            (session(&fleet).endpoints, session(&fleet).registered),
            (2, 1),
            "the grant is there, the policy not"
        );
        assert!(session(&fleet).refused.is_empty(), "it waits");
        fleet.cut_both(AMS, fra, false);
        // Well before the relay would refuse what has waited for 10 s.
        until("it is registered", seconds(6), || fleet.service(fra).registrations.contains_key(&link)).await;
        assert_eq!(fleet.service(fra).counters.refused.get("POLICY_MISMATCH"), None);
    });
}

/// Every host is suspended for the same time: the world needs none for it.
fn pass(fleet: &Fleet, time: Span) {
    for machine in &fleet.world.machines {
        machine.clock.suspend(time);
    }
}

/// A new connection to the link is reset in the end.
async fn is_refused(fleet: &Fleet) {
    let mut near = fleet.connect(NEAR_PORT).await;
    send(&mut *near.write, 1, 0, 10).await.unwrap();
    assert_eq!(within("the refusal", seconds(70), ended(&mut *near.read)).await, End::Reset);
}

// R18, RP-25, RP-26: a lease of 72 h without control plane: the relay is restarted from its disk after 70 h, still
// admits after 71 h and to the second, and no more after it. Open flows live on past 73 h. At 80 h the control node is
// back, and nothing needs a restart.
#[test]
fn r18_a_lease_holds_for_72_hours_and_not_longer() {
    run(|| async {
        let mut fleet = Fleet::new(18, Condition::default(), 1).await;
        let fra = fleet.relays[1];
        let mut flow = fleet.open().await;
        fleet.crash(AMS);
        within("the flow goes on", seconds(2), flow.echo()).await;
        let ends = fleet.status(fra).watch.lease_ends.expect("the relay has a policy");
        let left = |fleet: &Fleet| ends.since(fleet.world.machines[fra].clock.wall());
        // Its clock and the control node's may be a second apart.
        let (least, most) = (Span::from_hours(71), Span::from_hours(72) + seconds(2));
        assert!(left(&fleet) > least && left(&fleet) < most, "{:?}", left(&fleet));

        pass(&fleet, Span::from_hours(70));
        within("the flow goes on", seconds(10), flow.echo()).await;
        fleet.crash(fra);
        fleet.start(fra).await;
        fleet.settled().await;
        within("the flow goes on", seconds(5), flow.echo()).await;
        fleet.open().await.echo().await;

        // 15 s before the end, with the sessions back that the relay dropped for their long silence.
        pass(&fleet, left(&fleet).saturating_sub(seconds(15)));
        tokio::time::sleep(seconds(1)).await;
        until("the relay is back", seconds(10), || fleet.session_is_up(fleet.web, fra)).await;
        fleet.settled().await;
        assert!(left(&fleet) > Span::from_secs(2), "{:?}", left(&fleet));
        tokio::time::sleep(left(&fleet).saturating_sub(seconds(2))).await;
        let mut last = fleet.open().await;
        tokio::time::sleep(seconds(4)).await;
        is_refused(&fleet).await;
        within("the flow goes on", seconds(2), flow.echo()).await;

        pass(&fleet, Span::from_hours(1));
        within("the flow goes on", seconds(10), flow.echo()).await;
        within("the flow goes on", seconds(10), last.echo()).await;
        is_refused(&fleet).await;
        pass(&fleet, Span::from_hours(7));
        fleet.start(AMS).await;
        fleet.settled().await;
        within("the flow goes on", seconds(2), flow.echo()).await;
        let admitted = fleet.service(fra).counters.admitted + fleet.service(AMS).counters.admitted;
        fleet.open().await.echo().await;
        tokio::time::sleep(ms(200)).await;
        assert_eq!(fleet.service(fra).counters.admitted + fleet.service(AMS).counters.admitted, admitted + 1);
    });
}
