//! Flows: blocked readers, half-closes, targets that refuse, and paths that are gone for a while or for good.

use postroad_cluster::limits::{FLOW_READ_BYTES, FLOW_WINDOW_BYTES};
use postroad_simulations::network::Condition;
use tokio::time::{Duration, Instant};

use crate::support::{
    AMS, End, FAR_PORT, Fleet, NEAR_PORT, ended, fill, half_close, ms, receive, run, seconds, send, shut, within,
};

/// What one direction of a flow may hold between two applications: the window of its stream, a read that waits for it,
/// what was taken from the window to be written, and both ends' socket buffers of 256 KiB.
const HELD_MAX: usize = FLOW_WINDOW_BYTES as usize + 4 * FLOW_READ_BYTES + 2 * (256 << 10) + (2 << 20);

/// What R1 carries one way, in bytes.
const BULK: usize = 64 << 20;

// R1, RP-1: bulk data over 100 ms and 10 Mbit/s arrives whole. A receiver that reads nothing for a minute blocks the
// sender; the flow is not closed, and what it holds is bounded.
#[test]
fn r1_a_slow_way_carries_everything_and_a_reader_that_rests_blocks_the_sender() {
    run(|| async {
        let slow = Condition { delay: ms(25), jitter: ms(0), bytes_per_second: 1_250_000, ..Condition::default() };
        let mut fleet = Fleet::new(1, slow, 1).await;
        let mut flow = fleet.open().await;
        let began = Instant::now();
        let (sent, got) = within("all arrives", seconds(100), async {
            tokio::join!(send(&mut *flow.near.write, 7, 0, BULK), receive(&mut *flow.far.read, 7, 0, BULK))
        })
        .await;
        assert!(sent.is_ok());
        assert_eq!(got, Ok(()));
        assert!(
            began.elapsed() > Duration::from_secs_f64(BULK as f64 / 1.25e6),
            "the way carries no more than 10 Mbit/s"
        );

        let held = fill(&mut *flow.near.write, 7, BULK).await;
        assert!(held > 256 << 10, "an application may write ahead: {held}");
        assert!(held < HELD_MAX, "{held} bytes are held for a reader that rests");
        tokio::time::sleep(seconds(60)).await;
        assert_eq!(fill(&mut *flow.near.write, 7, BULK + held).await, 0);
        assert_eq!((fleet.status(fleet.web).flows.open, fleet.status(fleet.db).flows.open), (1, 1));
        let got = within("the held bytes arrive", seconds(20), receive(&mut *flow.far.read, 7, BULK, held)).await;
        assert_eq!(got, Ok(()));
        within("the flow goes on", seconds(2), flow.echo()).await;
    });
}

// R2, RP-1: both directions are full when the relay dies; when both ends read, everything comes, and in order.
#[test]
fn r2_full_windows_in_both_directions_survive_the_relay() {
    run(|| async {
        let mut fleet = Fleet::new(2, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let (mut up, mut down) = (0, 0);
        for round in 0..50 {
            let (more_up, more_down) =
                tokio::join!(fill(&mut *flow.near.write, 5, up), fill(&mut *flow.far.write, 6, down));
            assert!(more_up < HELD_MAX && more_down < HELD_MAX, "{more_up} and {more_down} bytes are held");
            let carrier = fleet.carrier();
            fleet.crash(carrier);
            let moved = within("data moves again", seconds(10), async {
                tokio::join!(
                    receive(&mut *flow.far.read, 5, up, more_up),
                    receive(&mut *flow.near.read, 6, down, more_down)
                )
            })
            .await;
            assert_eq!(moved, (Ok(()), Ok(())), "round {round}");
            (up, down) = (up + more_up, down + more_down);
            fleet.start(carrier).await;
            fleet.settled().await;
        }
        assert!(up > 50 << 20 && down > 50 << 20);
    });
}

// R3: whoever closes first, the other direction stays whole; so it does when the relay dies between the two ends.
#[test]
fn r3_a_half_close_ends_one_direction_only() {
    run(|| async {
        let mut fleet = Fleet::new(3, Condition::default(), 1).await;
        for near_first in [true, false] {
            half_close(fleet.open().await, near_first).await;
        }
        for near_first in [true, false] {
            let mut flow = fleet.open().await;
            let carrier = fleet.carrier();
            fleet.crash(carrier);
            within("the flow moves", seconds(2), flow.echo()).await;
            half_close(flow, near_first).await;
            fleet.start(carrier).await;
            fleet.settled().await;
        }
        for index in [fleet.web, fleet.db] {
            assert_eq!(fleet.status(index).flows.open, 0, "nothing is left over");
        }
    });
}

// A target that refuses is a reset at the consumer, never an empty success; the next flow works.
#[test]
fn a_refused_target_resets_the_application() {
    run(|| async {
        let mut fleet = Fleet::new(4, Condition::default(), 0).await;
        fleet.target_stops();
        let mut near = fleet.connect(NEAR_PORT).await;
        send(&mut *near.write, 1, 0, 100).await.unwrap();
        assert_eq!(within("the refusal", seconds(2), ended(&mut *near.read)).await, End::Reset);
        assert!(fleet.status(fleet.db).flows.refused > 0);
        let again = crate::support::listen(&fleet.world, fleet.db, FAR_PORT);
        let mut near = fleet.connect(NEAR_PORT).await;
        send(&mut *near.write, 1, 0, 100).await.unwrap();
        let mut far = within("the target accepts", seconds(2), again.accept()).await.unwrap();
        assert_eq!(receive(&mut *far.read, 1, 0, 100).await, Ok(()));
        // Either application's reset is the other's.
        far.write.reset();
        assert_eq!(within("the reset", seconds(1), ended(&mut *near.read)).await, End::Reset);
    });
}

// RP-1: with no relay to be reached flows wait, 60 s and no less, and then both sockets are reset, which no application
// takes for an end.
#[test]
fn rp1_without_a_relay_flows_wait_a_minute_and_are_then_reset() {
    run(|| async {
        let mut fleet = Fleet::new(5, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let began = Instant::now();
        fleet.crash(fleet.relays[1]);
        fleet.crash(AMS);
        send(&mut *flow.near.write, 1, 0, 1_000).await.unwrap();
        tokio::time::sleep(seconds(5)).await;
        let mut late = fleet.connect(NEAR_PORT).await;
        let (near, far, late) = within("all are reset", seconds(70), async {
            tokio::join!(
                async { (ended(&mut *flow.near.read).await, began.elapsed()) },
                async { (ended(&mut *flow.far.read).await, began.elapsed()) },
                async { (ended(&mut *late.read).await, began.elapsed()) }
            )
        })
        .await;
        for (end, after) in [near, far] {
            assert_eq!(end, End::Reset);
            assert!(after >= seconds(60) && after < seconds(65), "{after:?}");
        }
        // Who connects meanwhile waits too, on the same circuit.
        assert_eq!(late.0, End::Reset);
        assert!(late.1 >= seconds(60) && late.1 < seconds(70), "{:?}", late.1);
    });
}

// RP-1, RP-2: a relay that comes back within the wait is found by itself, and the flows go on where they were.
#[test]
fn rp1_a_relay_that_comes_back_in_time_carries_the_flows_on() {
    run(|| async {
        let mut fleet = Fleet::new(6, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let fra = fleet.relays[1];
        fleet.crash(AMS);
        fleet.crash(fra);
        send(&mut *flow.near.write, 1, 0, 300_000).await.unwrap();
        tokio::time::sleep(seconds(35)).await;
        fleet.start(fra).await;
        let got = within("what was written comes", seconds(20), receive(&mut *flow.far.read, 1, 0, 300_000)).await;
        assert_eq!(got, Ok(()));
        within("the flow goes on", seconds(2), flow.echo()).await;
    });
}

// R4: short flows, of which a tenth vanish without an end of file (a host that is gone: the system's keepalive resets the
// connection a minute later), leave no flow and no task behind.
#[test]
fn r4_short_flows_leave_nothing_behind() {
    run(|| async {
        let mut fleet = Fleet::new(44, Condition::default(), 1).await;
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let mut before = 0;
        for round in 0..11 {
            let mut vanished = Vec::new();
            for number in 0..200 {
                let mut flow = fleet.open().await;
                if number % 10 == 0 {
                    vanished.push(flow);
                    continue;
                }
                shut(&mut *flow.near.write).await;
                assert_eq!(ended(&mut *flow.far.read).await, End::File);
                shut(&mut *flow.far.write).await;
                assert_eq!(ended(&mut *flow.near.read).await, End::File);
            }
            assert_eq!(fleet.status(fleet.web).flows.open, 20, "who is silent is not gone");
            tokio::time::sleep(seconds(60)).await;
            for flow in &mut vanished {
                flow.near.write.reset();
                assert_eq!(within("the target hears of it", seconds(1), ended(&mut *flow.far.read)).await, End::Reset);
            }
            drop(vanished);
            tokio::time::sleep(seconds(1)).await;
            for index in [fleet.web, fleet.db] {
                assert_eq!(fleet.status(index).flows.open, 0, "round {round}");
            }
            // The first round fills what is kept for the next ones.
            if round == 0 {
                before = tasks();
            }
        }
        assert!(tasks() * 10 <= before * 11, "{} tasks, {before} before", tasks());
        assert_eq!(fleet.status(fleet.web).flows.ended, 2_200);
    });
}
