//! Sessions: older ones that speak late, nodes that die and come again, hosts that are gone or only stand still.

use postroad_cluster::{
    id::Role,
    limits::{CALL_WAIT, RELAY_CONNECTIONS_PER_NODE_MAX},
    wire::session::{NodeRequest, NodeResponse},
};
use postroad_simulations::{network::Condition, world::PORT};
use postroad_transport::{
    connection::Connection,
    endpoint::{Expect, transport},
    tls::Protocol,
};
use tokio::time::Instant;

use crate::support::{End, Fleet, NEAR_PORT, ended, ms, receive, run, seconds, send, until, within};

/// Another connection of a node to a relay, with the node's own certificate.
async fn another(fleet: &Fleet, node: usize, relay: usize) -> Connection {
    let address = (fleet.world.machines[relay].host.ip(), PORT).into();
    let expect = Expect { node: Some(fleet.id(relay)), role: Role::Relay };
    let outbound = &fleet.node(node).fabric().outbound;
    outbound.connect(address, Protocol::Relay, expect, transport::session()).await.expect("it is the node itself")
}

// R5: a session freezes, the node registers again with a newer one, then the old one's goodbye arrives, at once and 30
// s late: the newer registration serves all along. An older session is not welcome at all.
#[test]
fn r5_a_late_goodbye_ends_nothing() {
    run(|| async {
        let mut fleet = Fleet::new(55, Condition::default(), 1).await;
        let (fra, db) = (fleet.relays[1], fleet.db);
        let frozen = fleet.session(db, fra).generation;
        fleet.cut_both(db, fra, true);
        until("the session is given up", seconds(6), || !fleet.session_is_up(db, fra)).await;
        fleet.cut_both(db, fra, false);
        fleet.settled().await;
        let serves = |fleet: &Fleet| {
            let service = fleet.service(fra);
            let session = service.sessions.get(&fleet.id(db)).and_then(|number| service.connections.get(number));
            let generation = session.and_then(|session| session.session);
            generation.is_some_and(|generation| generation > frozen) && service.registrations.len() == 1
        };
        assert!(serves(&fleet));
        for wait in [seconds(0), seconds(30)] {
            tokio::time::sleep(wait).await;
            let late = another(&fleet, db, fra).await;
            let goodbye = NodeRequest::Goodbye { session: frozen };
            let answer = late.call::<NodeRequest, NodeResponse>(&goodbye, CALL_WAIT).await;
            assert_eq!(answer.ok(), Some(NodeResponse::Done));
            tokio::time::sleep(ms(300)).await;
            assert!(serves(&fleet));
            fleet.open().await.echo().await;
            let hello =
                late.call::<NodeRequest, NodeResponse>(&NodeRequest::Hello { session: frozen }, CALL_WAIT).await;
            assert!(!matches!(hello, Ok(NodeResponse::Welcome { .. })), "{hello:?}");
            tokio::time::sleep(ms(300)).await;
            assert!(serves(&fleet));
        }
    });
}

// R17: a node is killed and started 100 times in 60 s: it is admitted each time within 2 s and uses one slot.
#[test]
fn r17_a_node_that_dies_100_times_uses_one_slot() {
    run(|| async {
        let mut fleet = Fleet::new(17, Condition::default(), 1).await;
        let (web, fra) = (fleet.web, fleet.relays[1]);
        let id = fleet.id(web);
        let (sessions, began) = (fleet.service(fra).sessions.len(), Instant::now());
        for round in 1..=100_u32 {
            let boots = u64::from(fleet.node(web).fabric().boots);
            fleet.crash(web);
            fleet.start(web).await;
            until("the node is admitted", seconds(2), || {
                let service = fleet.service(fra);
                let session = service.sessions.get(&id).and_then(|number| service.connections.get(number));
                session.and_then(|session| session.session).is_some_and(|session| session.0 >> 32 > boots)
            })
            .await;
            let service = fleet.service(fra);
            let slots = service.connections.values().filter(|connection| connection.node == id).count();
            assert!(slots <= RELAY_CONNECTIONS_PER_NODE_MAX, "{slots} connections");
            assert_eq!(service.sessions.len(), sessions);
            let next = ms(600) * round;
            tokio::time::sleep(next.saturating_sub(began.elapsed())).await;
        }
        fleet.settled().await;
        fleet.open().await.echo().await;
        tokio::time::sleep(seconds(5)).await;
        let service = fleet.service(fra);
        assert_eq!(service.connections.values().filter(|connection| connection.node == id).count(), 1);
    });
}

// RP-33: a relay drops a node whose host is gone after about 3.5 s, and its registrations with it; the consumer's end
// of its flows is not ended as if all had been sent. A host that stands still for a second keeps its session.
#[test]
fn rp33_a_host_that_is_gone_is_dropped_and_one_that_stands_still_is_not() {
    run(|| async {
        let mut fleet = Fleet::new(33, Condition::default(), 1).await;
        let (db, fra) = (fleet.db, fleet.relays[1]);
        let id = fleet.id(db);
        let flow = fleet.open().await;
        let before = fleet.session(db, fra).generation;
        let rest = Instant::now() + ms(1_200);
        fleet.world.fabric.pause_until(fleet.world.machines[db].host, rest);
        fleet.world.machines[db].clock.pause_until(rest);
        tokio::time::sleep(seconds(4)).await;
        assert_eq!(fleet.session(db, fra).generation, before, "the session is the same");
        assert!(fleet.session_is_up(db, fra));

        fleet.crash(db);
        let gone = until("the relay drops the node", seconds(5), || {
            let service = fleet.service(fra);
            !service.sessions.contains_key(&id) && service.registrations.is_empty()
        })
        .await;
        assert!(gone > seconds(2) && gone < ms(4_300), "after {gone:?}");
        drop(flow.far);
        let mut near = flow.near;
        let early = tokio::time::timeout(seconds(20), crate::support::ended(&mut *near.read)).await;
        assert!(early.is_err(), "a plain link's flow waits: {early:?}");
        fleet.start(db).await;
        fleet.settled().await;
        within("a new flow", seconds(3), fleet.open()).await.echo().await;
    });
}

// RP-34, RP-62: a node that stops in order says so. Its flows are reset at once; relays keep its registrations for 15 s
// and answer that it restarts; a connection that comes meanwhile is held until it is back.
#[test]
fn rp34_a_restart_in_order_holds_new_connections() {
    run(|| async {
        let mut fleet = Fleet::new(34, Condition::default(), 1).await;
        let db = fleet.db;
        let mut flow = fleet.open().await;
        fleet.world.stop(db).await;
        assert_eq!(within("the flow is reset", seconds(1), ended(&mut *flow.near.read)).await, End::Reset);
        tokio::time::sleep(ms(200)).await;
        let gone = |fleet: &Fleet| {
            fleet
                .relays
                .iter()
                .filter(|relay| fleet.service(**relay).registrations.values().any(|known| known.gone_until.is_some()))
                .count()
        };
        assert_eq!(gone(&fleet), 2, "both relays know that it comes again");
        let mut held = fleet.connect(NEAR_PORT).await;
        send(&mut *held.write, 5, 0, 100).await.unwrap();
        tokio::time::sleep(seconds(7)).await;
        fleet.start(db).await;
        let mut far = within("the held connection goes through", seconds(4), fleet.accept()).await;
        assert_eq!(receive(&mut *far.read, 5, 0, 100).await, Ok(()));
        fleet.settled().await;
        assert_eq!(gone(&fleet), 0);

        fleet.world.stop(db).await;
        tokio::time::sleep(seconds(14)).await;
        assert_eq!(gone(&fleet), 2);
        tokio::time::sleep(seconds(2)).await;
        assert_eq!(gone(&fleet), 0, "who does not come back is forgotten");
    });
}
