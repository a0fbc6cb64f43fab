//! Several circuits of a pair: one for each relay that takes their new connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use postroad_actors::status::local::Circuit;
use postroad_cluster::{
    command::Action,
    id::{Generation, LinkId, NodeId},
    limits::{CALL_WAIT, CIRCUIT_SURPLUS, SPREAD_DEFAULT},
    wire::session::{NodeRequest, NodeResponse},
};
use postroad_simulations::network::Condition;
use postroad_transport::network::Network as _;

use crate::support::{End, Fleet, Flow, NEAR_PORT, ended, listen, ms, receive, run, seconds, send, until, within};

/// The consumer's port of a link in the other direction; the target's is the next.
const BACK: u16 = NEAR_PORT + 10;

/// The relays of the pair's circuits, in order; none while one end knows of a circuit that the other does not.
fn lie(fleet: &Fleet) -> Vec<NodeId> {
    let of = |node: usize| -> BTreeMap<u64, Option<NodeId>> {
        let stand = fleet.circuits(node).into_iter().filter(|it| it.connected);
        stand.map(|it| (it.circuit, it.relay)).collect()
    };
    let (web, db) = (of(fleet.web), of(fleet.db));
    if !web.keys().eq(db.keys()) {
        return Vec::new();
    }
    let mut relays: Vec<NodeId> = web.into_values().flatten().collect();
    relays.sort_unstable();
    relays
}

fn flows(fleet: &Fleet) -> BTreeMap<u64, u64> {
    fleet.circuits(fleet.web).into_iter().map(|circuit| (circuit.circuit, circuit.flows)).collect()
}

fn admitted(fleet: &Fleet) -> BTreeMap<NodeId, u64> {
    let count = |relay: &usize| (fleet.id(*relay), fleet.service(*relay).counters.admitted);
    fleet.relays.iter().map(count).collect()
}

async fn go_on(flows: &mut [Flow]) {
    for flow in flows {
        within("every flow goes on", seconds(1), flow.echo()).await;
    }
}

// RP-10, RP-11: the closest relays take new connections, each on a circuit of its own; a flow is carried by the relay that
// admitted it. When one dies its circuit moves as a whole, and another relay takes new connections.
#[test]
fn rp10_each_relay_that_takes_new_connections_has_a_circuit() {
    run(|| async {
        let mut fleet = Fleet::new(110, Condition::default(), 2).await;
        assert_eq!(lie(&fleet), fleet.takers());
        assert_eq!(fleet.takers().len(), usize::from(SPREAD_DEFAULT));
        let before = admitted(&fleet);
        let mut open = Vec::new();
        for _ in 0..10 {
            open.push(fleet.open().await);
        }
        assert_eq!(flows(&fleet).into_values().collect::<Vec<_>>(), [5, 5]);
        tokio::time::sleep(ms(200)).await;
        for (relay, admitted) in admitted(&fleet) {
            let carried: u64 =
                fleet.circuits(fleet.web).iter().filter(|it| it.relay == Some(relay)).map(|it| it.flows).sum();
            let admitted = admitted - before[&relay];
            assert!(admitted >= carried, "{relay} carries {carried} and has admitted {admitted}, those ahead too");
            assert_eq!(admitted > 0, carried > 0, "{relay} carries what it has admitted");
        }
        let link = fleet.status(fleet.web).links.into_iter().next().expect("the link is there");
        assert_eq!(link.flows_by_circuit.len(), 2);
        assert!(link.flows_by_circuit.values().all(|on| on.flows == 5 && on.relay.is_some() && on.why.is_some()));

        let dead = fleet.carrier();
        fleet.crash(dead);
        go_on(&mut open).await;
        until("another relay takes new connections", seconds(15), || {
            let takers = fleet.takers();
            takers.len() == usize::from(SPREAD_DEFAULT) && !takers.contains(&fleet.id(dead))
        })
        .await;
        until("each taker has a circuit", seconds(15), || {
            let there: BTreeSet<NodeId> =
                fleet.circuits(fleet.web).iter().filter(|it| it.connected).filter_map(|it| it.relay).collect();
            fleet.takers().iter().all(|taker| there.contains(taker))
        })
        .await;
        go_on(&mut open).await;
        fleet.open().await.echo().await;
    });
}

// RP-10, RP-16: a link's spread says how many relays receive its new connections, from within seconds after it was set; open
// flows go on. Of several links of a pair the largest counts.
#[test]
fn rp10_a_link_says_over_how_many_relays_it_is_spread() {
    run(|| async {
        let mut fleet = Fleet::new(115, Condition::default(), 2).await;
        let spread = |link, spread| Action::LinkSpread { link, spread };
        fleet.world.propose(spread(LinkId(1), 3)).await.unwrap();
        until("three take new connections", seconds(15), || fleet.takers().len() == 3).await;
        fleet.settled().await;
        let mut open = Vec::new();
        for _ in 0..9 {
            open.push(fleet.open().await);
        }
        assert_eq!(flows(&fleet).into_values().collect::<Vec<_>>(), [3, 3, 3]);
        let carry: BTreeSet<Option<NodeId>> = fleet.circuits(fleet.web).into_iter().map(|it| it.relay).collect();
        assert_eq!(carry.len(), 3, "each on a relay of its own");
        assert_eq!(fleet.status(fleet.web).links[0].spread, 3);

        fleet.world.propose(spread(LinkId(1), 1)).await.unwrap();
        until("one takes them", seconds(15), || fleet.takers().len() == 1).await;
        go_on(&mut open).await;
        drop(open);
        until("one circuit is left", seconds(90), || lie(&fleet) == fleet.takers()).await;
        let mut open = vec![fleet.open().await, fleet.open().await];

        let (web, db) = (fleet.web, fleet.db);
        let back = fleet.world.link("back", &[db], BACK, web, BACK + 1).await.unwrap();
        until("the other link's spread counts", seconds(15), || fleet.takers().len() == 2).await;
        fleet.world.propose(Action::LinkRemove { link: back }).await.unwrap();
        until("and counts no more", seconds(15), || fleet.takers().len() == 1).await;
        go_on(&mut open).await;
    });
}

// RP-40: a drain moves each circuit of the relay, none of whose flows notices. What is surplus then closes after 60 s
// without a flow, at both ends; one circuit stays. Back in service, the relay gets a circuit again.
#[test]
fn a_surplus_circuit_closes_after_a_minute_without_a_flow() {
    run(|| async {
        let mut fleet = Fleet::new(111, Condition::default(), 1).await;
        let mut open = vec![fleet.open().await, fleet.open().await];
        let drained = fleet.carrier();
        let id = fleet.id(drained);
        let drain = |draining| Action::RelayDrain { relay: id, draining };
        fleet.world.propose(drain(true)).await.unwrap();
        until("each circuit has left it", seconds(2), || !lie(&fleet).contains(&id)).await;
        go_on(&mut open).await;
        tokio::time::sleep(seconds(100)).await;
        assert_eq!(fleet.circuits(fleet.web).len(), 2, "both carry flows");
        go_on(&mut open).await;

        drop(open.pop());
        tokio::time::sleep(seconds(55)).await;
        assert_eq!(lie(&fleet).len(), 2);
        until("the empty one is closed", seconds(12), || fleet.circuits(fleet.web).len() == 1).await;
        until("at both ends", seconds(2), || fleet.circuits(fleet.db).len() == 1).await;
        go_on(&mut open).await;
        drop(open.pop());
        tokio::time::sleep(seconds(120)).await;
        assert_eq!(lie(&fleet).len(), 1, "one stays open");

        fleet.world.propose(drain(false)).await.unwrap();
        until("it has a circuit again", seconds(20), || lie(&fleet).contains(&id)).await;
        fleet.settled().await;
        for _ in 0..4 {
            open.push(fleet.open().await);
        }
        assert_eq!(flows(&fleet).into_values().collect::<Vec<_>>(), [2, 2]);
        go_on(&mut open).await;
    });
}

// RP-21: a relay that refuses is passed over at once: the target says that it has connected nothing, and the flow opens on
// another circuit, once. What the application said meanwhile arrives, once and whole.
#[test]
fn rp21_a_refused_flow_opens_on_another_circuit_once() {
    run(|| async {
        let fleet = Fleet::new(112, Condition::default(), 1).await;
        let circuits: Vec<Circuit> = fleet.circuits(fleet.web);
        let refusing = circuits[0].relay.expect("a relay carries it");
        let session = fleet.node(fleet.db).fabric().session(refusing).expect("the session stands").connection;
        let gone = NodeRequest::Unregister { link: LinkId(1), generation: Generation(u64::MAX) };
        let mut held = Vec::new();
        for number in 0..6_u64 {
            let done = session.call::<NodeRequest, NodeResponse>(&gone, CALL_WAIT).await;
            assert_eq!(done.ok(), Some(NodeResponse::Done));
            let mut near = fleet.connect(NEAR_PORT).await;
            send(&mut *near.write, number, 0, 60_000).await.unwrap();
            let mut far = within("the target gets it", seconds(5), fleet.accept()).await;
            assert_eq!(receive(&mut *far.read, number, 0, 60_000).await, Ok(()));
            assert_eq!(fleet.circuit().and_then(|circuit| circuit.relay), circuits[1].relay);
            let second = tokio::time::timeout(seconds(15), fleet.accept()).await;
            assert!(second.is_err(), "it was connected twice");
            send(&mut *far.write, number, 0, 100).await.unwrap();
            assert_eq!(receive(&mut *near.read, number, 0, 100).await, Ok(()));
            // The circuit of the relay that refuses has the fewest flows, so that it is tried first each time.
            held.push((near, far));
        }
    });
}

// RP-21, RP-22: a relay that refuses and is the only one is asked by one tunnel a second, however many come; those wait,
// and all of them open as soon as it admits. What is held for too long ends with the relay's reason.
#[test]
fn rp21_the_only_relay_is_asked_at_a_limited_rate() {
    run(|| async {
        let fleet = Fleet::new(114, Condition::default(), 0).await;
        let only = fleet.relays[0];
        let id = fleet.id(only);
        let drain = |draining| Action::RelayDrain { relay: id, draining };
        let refused = || fleet.service(only).counters.refused.get("RELAY_DRAINING").copied().unwrap_or_default();
        fleet.world.propose(drain(true)).await.unwrap();
        until("the nodes know", seconds(2), || fleet.node(fleet.web).fabric().drains(id)).await;

        let mut late = fleet.connect(NEAR_PORT).await;
        assert_eq!(within("it is reset", seconds(9), ended(&mut *late.read)).await, End::Reset);
        tokio::time::sleep(ms(200)).await;
        let counted = fleet.status(fleet.web).flows.refused_by_reason;
        assert_eq!(counted["consumer"]["RELAY_DRAINING"], 1, "{counted:?}");
        let before = refused();
        assert!((5..=9).contains(&before), "{before} in the 8 s that it waited");
        let status = fleet.status(fleet.web);
        assert!(status.circuits.iter().all(|circuit| circuit.opens.contains("drains")), "{:?}", status.circuits);

        let mut waiting = Vec::new();
        for number in 0..40_u64 {
            let mut near = fleet.connect(NEAR_PORT).await;
            send(&mut *near.write, number, 0, 100).await.unwrap();
            waiting.push(near);
        }
        tokio::time::sleep(seconds(5)).await;
        let asked = refused() - before;
        assert!((3..=6).contains(&asked), "{asked} times in 5 s by 40 tunnels");
        fleet.world.propose(drain(false)).await.unwrap();
        let began = tokio::time::Instant::now();
        until("status says why flows wait", seconds(1), || {
            let status = fleet.status(fleet.web);
            let says = |circuit: &Circuit| circuit.opens.contains("refused lately (RELAY_DRAINING)");
            status.circuits.iter().any(says)
        })
        .await;
        let mut held = Vec::new();
        for _ in &waiting {
            held.push(within("each opens", seconds(2), fleet.accept()).await);
        }
        println!("all open {:?} after the relay's return was agreed", began.elapsed());
        assert!(began.elapsed() < seconds(2));
    });
}

// A flow that the other end opens while a circuit is being closed is told so before anything is connected, and opens on
// another circuit, once.
#[test]
fn a_flow_that_meets_a_closing_circuit_opens_on_another() {
    run(|| async {
        let slow = Condition { delay: ms(100), ..Condition::default() };
        let fleet = Fleet::new(113, slow, 1).await;
        let (web, db) = (fleet.web, fleet.db);
        let target = listen(&fleet.world, web, BACK + 1);
        fleet.world.link("back", &[db], BACK, web, BACK + 1).await.unwrap();
        let drained = fleet.takers()[0];
        fleet.world.propose(Action::RelayDrain { relay: drained, draining: true }).await.unwrap();
        let surplus = || fleet.pair().is_some_and(|pair| pair.circuits.values().any(|known| known.surplus));
        until("a circuit is surplus", seconds(20), surplus).await;
        // The word that it is closing takes 200 ms to the other end, so does what that opens meanwhile.
        tokio::time::sleep(CIRCUIT_SURPLUS.saturating_sub(ms(60))).await;
        assert_eq!(fleet.circuits(db).len(), 2);
        let machine = &fleet.world.machines[db];
        let address = SocketAddr::new(machine.host.ip(), BACK);
        let mut near = Vec::new();
        for _ in 0..2 {
            let mut tcp = machine.applications.tcp_connect(address).await.unwrap();
            send(&mut *tcp.write, 7, 0, 30_000).await.unwrap();
            near.push(tcp);
        }
        tokio::time::sleep(ms(150)).await;
        assert!(fleet.pair().is_some_and(|pair| pair.circuits.values().any(|known| known.closing)), "it was met");
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut far = within("the target gets it", seconds(5), target.accept()).await.unwrap();
            assert_eq!(receive(&mut *far.read, 7, 0, 30_000).await, Ok(()));
            send(&mut *far.write, 8, 0, 100).await.unwrap();
            held.push(far);
        }
        for near in &mut near {
            let answer = receive(&mut *near.read, 8, 0, 100);
            assert_eq!(within("the answer comes", seconds(5), answer).await, Ok(()));
        }
        let third = tokio::time::timeout(seconds(15), target.accept()).await;
        assert!(third.is_err(), "one was connected twice");
        until("the surplus circuit is closed", seconds(5), || fleet.circuits(web).len() == 1).await;
        assert!(fleet.circuits(db).iter().all(|circuit| circuit.flows == 2), "both are on the one that stays");
    });
}
