//! Relays that die, fall silent in one direction, or lose their control nodes.

use std::time::Duration;

use postroad_actors::flow::trial;
use postroad_simulations::network::Condition;
use tokio::time::Instant;

use crate::support::{AMS, Fleet, ms, receive, run, seconds, send, until, within};

/// One direction between `web` and the relay that carries swallows everything.
async fn swallow(fleet: &mut Fleet, to_relay: bool) {
    let mut flow = fleet.open().await;
    let carrier = fleet.carrier();
    let (from, to) = if to_relay { (fleet.web, carrier) } else { (carrier, fleet.web) };
    let web = fleet.id(fleet.web);
    fleet.cut(from, to, true);
    let began = Instant::now();
    let (mut node_noticed, mut relay_noticed, mut slowest) = (None, None, Duration::ZERO);
    while began.elapsed() < seconds(5) {
        slowest = slowest.max(within("an echo comes back", seconds(5), flow.echo()).await);
        if node_noticed.is_none() && !fleet.session_is_up(fleet.web, carrier) {
            node_noticed = Some(began.elapsed());
        }
        if relay_noticed.is_none() && !fleet.service(carrier).sessions.contains_key(&web) {
            relay_noticed = Some(began.elapsed());
        }
        tokio::time::sleep(ms(20)).await;
    }
    assert!(slowest < ms(1_000), "the flow stalled for {slowest:?}");
    assert!(node_noticed.is_some(), "the node still says that its session is up");
    assert!(relay_noticed.is_some(), "the relay still says that the node has a session");
    assert_ne!(fleet.carrier(), carrier);
    fleet.world.fabric.heal();
    fleet.settled().await;
    within("the flow goes on", seconds(2), flow.echo()).await;
}

// R6, R16: packets between node and relay are swallowed in one direction, after the handshake: both ends notice within
// 5 s, `status` does not say "up", and the flow goes on elsewhere.
#[test]
fn r6_r16_half_a_way_is_no_way() {
    run(|| async {
        let mut fleet = Fleet::new(16, Condition::default(), 1).await;
        swallow(&mut fleet, true).await;
        swallow(&mut fleet, false).await;
    });
}

/// The carrying relay vanishes under a busy flow; the longest wait of the application.
async fn stall(fleet: &mut Fleet, killed: bool) -> Duration {
    let mut flow = fleet.open().await;
    let carrier = fleet.carrier();
    let vanish = async {
        tokio::time::sleep(ms(200)).await;
        if killed {
            fleet.crash(carrier);
        } else {
            for node in [fleet.web, fleet.db] {
                fleet.cut_both(node, carrier, true);
            }
        }
    };
    let (slowest, ()) = tokio::join!(flow.busy(seconds(1)), vanish);
    fleet.open().await.echo().await;
    if killed {
        fleet.start(carrier).await;
    } else {
        fleet.world.fabric.heal();
    }
    fleet.settled().await;
    slowest
}

// R10: with three relays the nearest is killed, then black-holed: open flows stall under 150 and 300 ms, and a new flow
// opens within 2 s.
#[test]
fn r10_a_relay_that_vanishes_is_hardly_felt() {
    run(|| async {
        let mut fleet = Fleet::new(10, Condition::default(), 2).await;
        for round in 0..4 {
            let slowest = stall(&mut fleet, true).await;
            assert!(slowest < ms(150), "killed, round {round}: {slowest:?}");
            let slowest = stall(&mut fleet, false).await;
            assert!(slowest < ms(300), "black-holed, round {round}: {slowest:?}");
        }
        // RP-55: the node has seen the same.
        let stalls = fleet.status(fleet.web).flows.stalls;
        assert!(stalls.iter().map(|stall| stall.count).sum::<u64>() >= 8, "{stalls:?}");
        assert!(stalls.iter().all(|stall| stall.within_ms[&300] == stall.count && stall.sum_us > 0), "{stalls:?}");
    });
}

/// Flows over ways that lose 1 % and let packets overtake each other: one that is idle most of the time, two that talk all
/// along, and one that sends much now and then. Says how often a circuit moved meanwhile and what for.
async fn rough(seed: u64, span: Duration) -> Vec<String> {
    let lossy = Condition { delay: ms(2), jitter: ms(4), loss: 0.01, ..Condition::default() };
    let mut fleet = Fleet::new(seed, lossy, 2).await;
    let mut flows = Vec::new();
    for _ in 0..4 {
        flows.push(within("a flow opens", seconds(10), fleet.open()).await);
    }
    let moves = |fleet: &Fleet| -> u64 {
        let circuits = |index| fleet.status(index).circuits.into_iter().map(|circuit| circuit.moves);
        [fleet.web, fleet.db].into_iter().flat_map(circuits).sum()
    };
    let before = moves(&fleet);
    let end = Instant::now() + span;
    let [idle, busy, chatty, bulk] = &mut flows[..] else { unreachable!() };
    let idle = async {
        while Instant::now() < end {
            idle.echo().await;
            tokio::time::sleep(ms(1_700)).await;
        }
    };
    let chatty = async {
        while Instant::now() < end {
            chatty.echo().await;
            tokio::time::sleep(ms(130)).await;
        }
    };
    let bulk = async {
        let mut sent = 8;
        while Instant::now() < end {
            let (number, length) = (bulk.number, 200_000);
            let (write, read) = (&mut *bulk.near.write, &mut *bulk.far.read);
            let (out, came) = tokio::join!(send(write, number, sent, length), receive(read, number, sent, length));
            assert_eq!((out.is_ok(), came), (true, Ok(())));
            sent += length;
            tokio::time::sleep(seconds(4)).await;
        }
    };
    let ((), slowest, (), ()) = tokio::join!(idle, busy.busy(span), chatty, bulk);
    println!("seed {seed}: the slowest echo took {slowest:?}");
    let why = |index| {
        let circuits = fleet.status(index).circuits.into_iter();
        let told =
            circuits.map(|circuit| format!("{} moves, the last because {:?}", circuit.moves, circuit.move_reason));
        told.collect::<Vec<_>>().join("; ")
    };
    if moves(&fleet) == before { vec![] } else { [fleet.web, fleet.db].into_iter().map(why).collect() }
}

// RP-12: lost and late packets are no reason to move.
#[test]
fn loss_and_jitter_move_nothing() {
    for seed in [70, 170] {
        run(move || async move { assert_eq!(rough(seed, seconds(240)).await, Vec::<String>::new(), "seed {seed}") });
    }
}

// R7, RP-1: relay 1 of 3 is killed under 200 flows. All go on; nothing new goes to it until it has proven itself.
#[test]
fn r7_a_dead_relay_is_not_chosen_until_it_has_proven_itself() {
    run(|| async {
        let mut fleet = Fleet::new(7, Condition::default(), 2).await;
        let mut flows = Vec::new();
        for _ in 0..200 {
            flows.push(fleet.open().await);
        }
        let dead = fleet.carrier();
        let dead_id = fleet.id(dead);
        fleet.crash(dead);
        for flow in &mut flows {
            within("every flow goes on", seconds(1), flow.echo()).await;
        }
        for _ in 0..20 {
            flows.push(fleet.open().await);
            let circuit = fleet.circuit().expect("the circuit stands");
            assert_ne!(circuit.relay, Some(dead_id));
            let channel = circuit.channels.iter().find(|channel| channel.relay == dead_id);
            assert!(channel.is_none_or(|channel| !channel.candidate), "a dead relay is no candidate");
            tokio::time::sleep(ms(200)).await;
        }
        fleet.start(dead).await;
        fleet.settled().await;
        for flow in &mut flows {
            flow.echo().await;
        }
        assert_eq!(fleet.status(fleet.web).flows.open, 220);
    });
}

// RP-2, RP-39: a relay that was away for a second resets the sessions of its former life, so that its nodes are back
// within a fraction of a second, registrations and channels included.
#[test]
fn rp2_nodes_of_a_restarted_relay_are_back_at_once() {
    run(|| async {
        let mut fleet = Fleet::new(22, Condition::default(), 1).await;
        let fra = fleet.relays[1];
        fleet.crash(fra);
        tokio::time::sleep(ms(1_000)).await;
        fleet.start(fra).await;
        let (web, db) = (fleet.id(fleet.web), fleet.id(fleet.db));
        let back = until("both have a session and the endpoint is registered", seconds(3), || {
            let service = fleet.service(fra);
            let sessions = service.sessions.contains_key(&web) && service.sessions.contains_key(&db);
            sessions && service.registrations.len() == 1
        })
        .await;
        assert!(back < ms(1_500), "it took {back:?}");
        for node in [fleet.web, fleet.db] {
            let end = fleet.session(node, fra).last_end.clone().expect("the former session has ended");
            assert!(end.contains("PEER_RESTARTED"), "{end}");
        }
        let settled = until("the relay is a proven path", seconds(3), || {
            let circuit = fleet.circuit();
            circuit.is_some_and(|circuit| circuit.channels.iter().filter(|channel| channel.candidate).count() == 2)
        })
        .await;
        assert!(settled < ms(1_500), "it took {settled:?}");
    });
}

// R8: the way between a relay and the control nodes is cut for ten minutes: no flow moves or ends, new ones are
// admitted there.
#[test]
fn r8_a_relay_without_control_nodes_goes_on() {
    run(|| async {
        let mut fleet = Fleet::new(8, Condition::default(), 1).await;
        let fra = fleet.relays[1];
        // The relay of the control node is far, so that the other one carries.
        for index in [fleet.web, fleet.db] {
            let (ams, host) = (fleet.world.machines[AMS].host, fleet.world.machines[index].host);
            let far = Condition { delay: ms(30), ..Condition::default() };
            fleet.world.fabric.set(ams, host, far);
            fleet.world.fabric.set(host, ams, far);
        }
        until("the near relay carries", seconds(40), || fleet.carrier() == fra).await;
        let mut flows = vec![fleet.open().await];
        // What an actor shows of itself may be a tenth of a second old.
        tokio::time::sleep(ms(200)).await;
        let (moves, admitted) = (fleet.circuit().map(|circuit| circuit.moves), fleet.service(fra).counters.admitted);
        fleet.cut_both(AMS, fra, true);
        for round in 1..=6 {
            for flow in &mut flows {
                flow.busy(seconds(1)).await;
            }
            tokio::time::sleep(seconds(100 - flows.len() as u64)).await;
            flows.push(fleet.open().await);
            assert_eq!(fleet.circuit().map(|circuit| circuit.moves), moves, "round {round}");
            assert_eq!(fleet.carrier(), fra);
        }
        assert!(!fleet.status(fra).controls.iter().any(|control| control.up), "the cut holds");
        assert_eq!(fleet.status(fleet.web).flows.open, 7);
        tokio::time::sleep(ms(200)).await;
        assert_eq!(fleet.service(fra).counters.admitted, admitted + 6, "the cut relay itself admitted the new ones");
    });
}

// A link is measured on its nodes alone: what its way takes and carries, and how a flow bears the death of its relay, which
// only the measuring node plays. Whoever may not open tunnels may not measure either.
#[test]
fn a_trial_of_a_link_shows_a_stall_and_loses_nothing() {
    run(|| async {
        let fleet = Fleet::new(71, Condition::default(), 2).await;
        let (web, link) = (fleet.node(fleet.web).fabric(), postroad_cluster::id::LinkId(1));
        let latency = trial::latency(web, link, seconds(1)).await.unwrap();
        assert!(latency.exchanges > 50 && latency.p50_us > 1_000 && latency.max_us < 50_000, "{latency:?}");
        let throughput = trial::throughput(web, link, ms(200)).await.unwrap();
        assert!(throughput.bytes > 1 << 20 && throughput.took_us > 200_000, "{throughput:?}");
        let before = fleet.carrier();
        let death = trial::death(web, link).await.unwrap();
        assert!(death.stall_us > 40_000 && death.stall_us < 150_000, "{} µs", death.stall_us);
        assert_eq!((death.messages, death.round_trips_us.len()), (1_000, 1_000));
        assert_ne!(fleet.carrier(), before);
        assert!(death.to.is_some_and(|to| to != death.relay));
        let db = fleet.node(fleet.db).fabric();
        assert!(trial::latency(db, link, seconds(1)).await.is_err(), "the target's node is no consumer");
        assert!(fleet.session_is_up(fleet.web, before), "the session outlives the trial");
    });
}
