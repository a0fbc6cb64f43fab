//! Drains: flows move without a gap, nothing new comes, and what the cluster has agreed on outlives restarts and cuts.

use std::time::Duration;

use postroad_actors::status::relays::{Relay, Standing};
use postroad_cluster::{command::Action, drain::Phase};
use postroad_simulations::network::Condition;
use tokio::time::Instant;

use crate::support::{
    AMS, End, Fleet, Flow, NEAR_PORT, ended, half_close, ms, receive_some, run, seconds, send_some, until, within,
};

/// A fleet whose remote relay carries: the control node's own is farther.
async fn fleet(seed: u64, relays: usize) -> (Fleet, usize) {
    let fleet = Fleet::new(seed, Condition::default(), relays).await;
    for index in [fleet.web, fleet.db] {
        let (ams, host) = (fleet.world.machines[AMS].host, fleet.world.machines[index].host);
        let far = Condition { delay: ms(20), ..Condition::default() };
        fleet.world.fabric.set(ams, host, far);
        fleet.world.fabric.set(host, ams, far);
    }
    let far = || fleet.circuits(fleet.web).iter().any(|circuit| circuit.relay == Some(fleet.id(AMS)));
    until("near relays carry", seconds(60), || !far()).await;
    let carrier = fleet.carrier();
    (fleet, carrier)
}

impl Fleet {
    async fn drain(&self, relay: usize, draining: bool) {
        self.world.propose(Action::RelayDrain { relay: self.id(relay), draining }).await.unwrap();
    }

    /// How the leader sees a relay.
    fn relay(&self, relay: usize) -> Relay {
        let list = self.fleet_status().relays.list;
        list.into_iter().find(|it| it.id == self.id(relay)).expect("the relay is known")
    }

    fn phase(&self, relay: usize) -> Option<Phase> {
        Some(self.relay(relay).drain?.progress?.phase)
    }
}

/// Sends as fast as it goes and says the longest time in which nothing came.
async fn bulk(flow: &mut Flow, for_: Duration) -> Duration {
    let end = Instant::now() + for_;
    let (mut sent, mut got, mut gap) = (8, 8, Duration::ZERO);
    let sending = async {
        while Instant::now() < end {
            sent += send_some(&mut *flow.near.write, flow.number, sent, 32 << 10).await.unwrap();
        }
        sent
    };
    let receiving = async {
        let mut last = Instant::now();
        while Instant::now() < end {
            got += receive_some(&mut *flow.far.read, flow.number, got).await.unwrap();
            gap = gap.max(last.elapsed());
            last = Instant::now();
        }
        got
    };
    let (sent, got) = tokio::join!(sending, receiving);
    assert!(got > 1 << 20 && sent >= got, "{sent} bytes were sent and {got} came");
    gap
}

// R15, RP-40: a drain of nothing is over within 2 s.
#[test]
fn r15_a_drain_with_nothing_to_drain_is_over_at_once() {
    run(|| async {
        let (fleet, carrier) = fleet(15, 2).await;
        assert_eq!(fleet.relay(carrier).state, Standing::Ready);
        fleet.drain(carrier, true).await;
        let took = until("the drain is over", seconds(2), || fleet.phase(carrier) == Some(Phase::Over)).await;
        assert!(took < seconds(2), "{took:?}");
        assert_ne!(fleet.carrier(), carrier, "the empty circuit has moved too");
        let relay = fleet.relay(carrier);
        assert_eq!((relay.state_words().as_str(), relay.flows, relay.circuits), ("drained", Some(0), Some(0)));
        fleet.drain(carrier, false).await;
        until("it is ready again", seconds(2), || fleet.relay(carrier).state == Standing::Ready).await;
    });
}

// R15, RP-40: 100 idle flows move, and from the first moment on nothing new is assigned.
#[test]
fn r15_idle_flows_move_and_nothing_new_comes() {
    run(|| async {
        let (mut fleet, carrier) = fleet(16, 2).await;
        let mut flows = Vec::new();
        for _ in 0..100 {
            flows.push(fleet.open().await);
        }
        let carried = || fleet.relays.iter().filter_map(|relay| fleet.relay(*relay).flows).sum::<u64>();
        until("the leader knows what is there", seconds(8), || carried() == 100).await;
        assert!(fleet.relay(carrier).flows > Some(0));
        fleet.drain(carrier, true).await;
        until("the node has heard of it", seconds(1), || {
            fleet.node(fleet.web).fabric().drains(fleet.id(carrier)) && fleet.carrier() != carrier
        })
        .await;
        tokio::time::sleep(ms(200)).await;
        let admitted = fleet.service(carrier).counters.admitted;
        for _ in 0..5 {
            flows.push(fleet.open().await);
        }
        until("the drain is over", seconds(2), || fleet.phase(carrier) == Some(Phase::Over)).await;
        assert_eq!(fleet.service(carrier).counters.admitted, admitted);
        for flow in &mut flows {
            within("every flow goes on", seconds(1), flow.echo()).await;
        }
        // Cancelled, it takes new ones again, and carries again once it is the nearest by far.
        fleet.drain(carrier, false).await;
        until("the node has heard of it", seconds(1), || !fleet.node(fleet.web).fabric().drains(fleet.id(carrier)))
            .await;
        assert_eq!(fleet.relay(carrier).state, Standing::Ready);
        for flow in &mut flows {
            within("every flow goes on", seconds(1), flow.echo()).await;
        }
    });
}

// R15, RP-40: a bulk flow moves to a far relay and back with no gap over 200 ms, and so do chatty ones.
#[test]
fn r15_a_bulk_flow_moves_without_a_gap() {
    run(|| async {
        let (mut fleet, carrier) = fleet(17, 1).await;
        let (mut one, mut other) = (fleet.open().await, fleet.open().await);
        let replayed = || fleet.circuits(fleet.web).iter().map(|circuit| circuit.replayed).sum::<u64>();
        let before = replayed();
        let drains = async {
            for _ in 0..2 {
                tokio::time::sleep(ms(800)).await;
                fleet.drain(carrier, true).await;
                until("it has moved", seconds(1), || fleet.carrier() == AMS).await;
                tokio::time::sleep(ms(800)).await;
                fleet.drain(carrier, false).await;
                fleet.drain(AMS, true).await;
                until("it has moved back", seconds(1), || fleet.carrier() == carrier).await;
                fleet.drain(AMS, false).await;
            }
        };
        let (gap, slowest, ()) = tokio::join!(bulk(&mut one, seconds(5)), other.busy(seconds(5)), drains);
        assert!(gap < ms(200), "the bulk flow stood still for {gap:?}");
        assert!(slowest < ms(400), "an echo took {slowest:?}, two ways there and two back");
        assert_eq!(replayed(), before, "no move was a guess");
    });
}

// R3, RP-40: a half-close that begins before a drain ends one direction only, whoever closes first.
#[test]
fn r3_a_half_close_survives_a_drain() {
    run(|| async {
        let (mut fleet, carrier) = fleet(3, 1).await;
        for near_first in [true, false] {
            let flow = fleet.open().await;
            let drain = async {
                tokio::time::sleep(ms(2)).await;
                fleet.drain(carrier, true).await;
                until("it has moved", seconds(1), || fleet.carrier() == AMS).await;
            };
            tokio::join!(half_close(flow, near_first), drain);
            fleet.drain(carrier, false).await;
            fleet.drain(AMS, true).await;
            until("it is back", seconds(5), || fleet.carrier() == carrier).await;
            fleet.drain(AMS, false).await;
        }
        tokio::time::sleep(ms(200)).await;
        for index in [fleet.web, fleet.db] {
            assert_eq!(fleet.status(index).flows.open, 0, "nothing is left over");
        }
    });
}

// R15: the drain state of a relay after its restart is the cluster's, be it begun before or while the relay was away.
#[test]
fn r15_a_restarted_relay_drains_on() {
    run(|| async {
        let (mut fleet, carrier) = fleet(18, 1).await;
        let mut flow = fleet.open().await;
        fleet.drain(carrier, true).await;
        until("it has moved", seconds(1), || fleet.carrier() == AMS).await;
        fleet.crash(carrier);
        tokio::time::sleep(seconds(1)).await;
        fleet.start(carrier).await;
        until("it drains from its disk", seconds(3), || fleet.service(carrier).is_draining()).await;
        fleet.settled().await;
        assert_eq!(fleet.carrier(), AMS);
        fleet.crash(carrier);
        fleet.drain(carrier, false).await;
        tokio::time::sleep(seconds(1)).await;
        fleet.start(carrier).await;
        until("it is in service", seconds(5), || {
            !fleet.service(carrier).is_draining() && fleet.service(carrier).sessions.len() >= 2
        })
        .await;
        // RP-41: what is not connected drains on reconnecting.
        fleet.crash(carrier);
        until("the leader misses it", seconds(30), || fleet.relay(carrier).connected == Some(false)).await;
        fleet.drain(carrier, true).await;
        assert_eq!(fleet.phase(carrier), Some(Phase::Pending));
        fleet.start(carrier).await;
        until("it drains", seconds(5), || fleet.service(carrier).is_draining()).await;
        until("the drain is over", seconds(5), || fleet.phase(carrier) == Some(Phase::Over)).await;
        within("the flow goes on", seconds(1), flow.echo()).await;
    });
}

// RP-40: what cannot move goes on over the draining relay until it is disconnected, and then waits like any flow without
// a path. The nodes are cut off from the control node: they hear of the drain from the relay itself.
#[test]
fn rp40_what_cannot_move_is_disconnected_in_the_end() {
    run(|| async {
        let (mut fleet, carrier) = fleet(19, 1).await;
        let mut flow = fleet.open().await;
        fleet.cut_both(fleet.web, AMS, true);
        tokio::time::sleep(seconds(10)).await;
        fleet.drain(carrier, true).await;
        let heard = || fleet.node(fleet.web).fabric().drains(fleet.id(carrier));
        until("the relay has told its nodes", seconds(2), heard).await;
        for _ in 0..5 {
            flow.busy(seconds(1)).await;
            assert_eq!(fleet.carrier(), carrier, "there is no other");
        }
        let late = fleet.connect(NEAR_PORT).await;
        tokio::time::sleep(ms(500)).await;
        assert!(fleet.service(carrier).counters.refused.contains_key("RELAY_DRAINING"));
        drop(late);
        fleet.world.propose(Action::RelayDisconnect { relay: fleet.id(carrier) }).await.unwrap();
        let stranded = || fleet.circuit().is_none_or(|circuit| circuit.relay.is_none());
        until("nothing carries any more", seconds(2), stranded).await;
        let began = Instant::now();
        let near = within("the flow is reset", seconds(70), ended(&mut *flow.near.read)).await;
        assert_eq!(near, End::Reset);
        assert!(began.elapsed() >= seconds(55), "{:?}", began.elapsed());
    });
}

// RP-40: what cannot move goes on for ten minutes and is cut then; the audit says what that cut.
#[test]
fn rp40_the_limit_of_ten_minutes_cuts_what_could_not_move() {
    run(|| async {
        let (mut fleet, carrier) = fleet(20, 1).await;
        let mut flow = fleet.open().await;
        tokio::time::sleep(seconds(8)).await;
        fleet.cut_both(fleet.web, AMS, true);
        tokio::time::sleep(seconds(10)).await;
        fleet.drain(carrier, true).await;
        let began = Instant::now();
        while began.elapsed() < seconds(595) {
            tokio::time::sleep(seconds(17)).await;
            within("the flow goes on", seconds(1), flow.echo()).await;
            assert_eq!(fleet.carrier(), carrier, "there is no other");
        }
        let stranded = || fleet.circuit().is_none_or(|circuit| circuit.relay.is_none());
        until("nothing carries any more", seconds(30), stranded).await;
        assert!((seconds(598)..seconds(604)).contains(&began.elapsed()), "{:?}", began.elapsed());
        let cut = || -> Vec<String> {
            let state = fleet.node(AMS).fabric().consensus.as_ref().expect("it is a control node").state();
            state.audit.iter().map(|line| line.what.clone()).filter(|what| what.contains("it cuts")).collect()
        };
        until("the audit says what was cut", seconds(2), || !cut().is_empty()).await;
        let said = "relay fra was drained and its time has run out: it cuts 1 flow on";
        assert!(matches!(&cut()[..], [line] if line.starts_with(said)), "{:?}", cut());
        let near = within("the flow is reset", seconds(70), ended(&mut *flow.near.read)).await;
        assert_eq!(near, End::Reset);
        assert!(began.elapsed() >= seconds(655), "it waits like any flow without a path: {:?}", began.elapsed());
    });
}

// RP-40: a leader that was elected only when the ten minutes were over has not heard what they cut, and the audit says so,
// once.
#[test]
fn rp40_a_late_leader_says_that_it_has_not_seen_the_cut() {
    run(|| async {
        let (mut fleet, carrier) = fleet(21, 1).await;
        let mut flow = fleet.open().await;
        fleet.cut_both(fleet.web, AMS, true);
        tokio::time::sleep(seconds(10)).await;
        fleet.drain(carrier, true).await;
        tokio::time::sleep(seconds(598)).await;
        fleet.crash(AMS);
        let stranded = || fleet.circuit().is_none_or(|circuit| circuit.relay.is_none());
        until("the relay cuts by itself", seconds(10), stranded).await;
        fleet.start(AMS).await;
        let said = |fleet: &Fleet| -> Vec<String> {
            let state = fleet.node(AMS).fabric().consensus.as_ref().expect("it is a control node").state();
            state.audit.iter().map(|line| line.what.clone()).filter(|what| what.contains("time has run out")).collect()
        };
        until("the audit says so", seconds(20), || !said(&fleet).is_empty()).await;
        fleet.crash(AMS);
        fleet.start(AMS).await;
        tokio::time::sleep(seconds(20)).await;
        let line =
            "relay fra was drained and its time has run out while the leader changed: what that cut was not seen";
        assert_eq!(said(&fleet), [line]);
        let near = within("the flow is reset", seconds(70), ended(&mut *flow.near.read)).await;
        assert_eq!(near, End::Reset);
    });
}
