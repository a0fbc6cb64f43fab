//! Large packets: used where every relay carries them, and never at the price of a flow.

use postroad_actors::status::local::Circuit;
use postroad_cluster::limits::{CIRCUIT_PACKET_BYTES, CIRCUIT_PACKET_BYTES_JUMBO};
use postroad_simulations::network::{Condition, ETHERNET_PAYLOAD_BYTES, JUMBO_PAYLOAD_BYTES};

use crate::support::{Fleet, Flow, ms, receive, run, seconds, send, until, within};

const WIDE: Condition = Condition {
    delay: ms(1),
    jitter: ms(1),
    loss: 0.0,
    duplicate: 0.0,
    cut: false,
    bytes_per_second: 0,
    payload_bytes_max: JUMBO_PAYLOAD_BYTES,
};

/// The packet sizes of the circuits that stand, as both ends see them.
fn sizes(fleet: &Fleet) -> Vec<(u32, u32)> {
    let of = |node: usize| {
        let stand = fleet.circuits(node).into_iter().filter(|circuit| circuit.connected);
        stand.map(|circuit| (circuit.circuit, circuit.packet_bytes)).collect::<Vec<_>>()
    };
    let both = of(fleet.web).into_iter().zip(of(fleet.db));
    both.map(|((one, here), (other, there))| (if one == other { here } else { 0 }, there)).collect()
}

async fn all_have(fleet: &Fleet, bytes: u32, limit: u64) {
    until("every circuit has packets of this size, at both ends", seconds(limit), || {
        let sizes = sizes(fleet);
        sizes.len() >= fleet.takers().len() && sizes.iter().all(|it| *it == (bytes, bytes))
    })
    .await;
}

/// The circuit of the newest flow, as the node that opened it sees it.
fn carrier(fleet: &Fleet) -> Circuit {
    fleet.circuit().expect("a circuit carries it")
}

/// Sends so much over a flow, and gets it whole.
async fn transfer(flow: &mut Flow, bytes: usize) {
    let number = flow.number;
    let both = async {
        tokio::join!(send(&mut *flow.near.write, number, 8, bytes), receive(&mut *flow.far.read, number, 8, bytes))
    };
    let (sent, got) = within("a transfer ends", seconds(30), both).await;
    assert_eq!((sent.map_err(|error| error.kind()), got), (Ok(()), Ok(())));
}

// Large packets come with further circuits, on which new flows open; the small ones close after a minute. Status says why.
#[test]
fn large_packets_are_used_where_every_relay_carries_them() {
    run(|| async {
        let mut fleet = Fleet::new(120, WIDE, 2).await;
        all_have(&fleet, CIRCUIT_PACKET_BYTES_JUMBO, 100).await;
        let mut flow = fleet.open().await;
        let circuit = carrier(&fleet);
        assert_eq!(circuit.packet_words, "every relay in reach has carried such large ones");
        assert_eq!(circuit.opens, "its relay takes new connections");
        transfer(&mut flow, 3_000_000).await;
        within("it goes on", seconds(1), flow.echo()).await;
    });
}

#[test]
fn small_packets_are_used_where_frames_are_small() {
    run(|| async {
        let mut fleet = Fleet::new(121, Condition::default(), 2).await;
        tokio::time::sleep(seconds(40)).await;
        all_have(&fleet, CIRCUIT_PACKET_BYTES, 1).await;
        fleet.open().await.echo().await;
        let words = carrier(&fleet).packet_words;
        assert_eq!(words, format!("{} carries no larger ones", fleet.world.machines[fleet.relays[0]].name));
    });
}

// A relay that begins to lose large packets: whoever it carries goes elsewhere, though the other relays carry them still; new
// flows open on circuits with small ones, and on large ones again once it is mended.
#[test]
fn a_relay_that_begins_to_lose_large_packets_costs_no_flow() {
    run(|| async {
        let mut fleet = Fleet::new(122, WIDE, 2).await;
        all_have(&fleet, CIRCUIT_PACKET_BYTES_JUMBO, 100).await;
        let mut flow = fleet.open().await;
        let narrow = fleet.carrier();
        transfer(&mut flow, 200_000).await;
        fleet.narrow(narrow, ETHERNET_PAYLOAD_BYTES);
        let began = tokio::time::Instant::now();
        transfer(&mut flow, 3_000_000).await;
        assert!(began.elapsed() < seconds(2), "{:?}", began.elapsed());
        assert_ne!(fleet.carrier(), narrow);
        assert_eq!(carrier(&fleet).packet_bytes, CIRCUIT_PACKET_BYTES_JUMBO, "the flow stays on its circuit");

        until("new flows open on small packets", seconds(60), || {
            let fits = |it: &&Circuit| it.packet_bytes == CIRCUIT_PACKET_BYTES && it.connected;
            fleet.circuits(fleet.web).iter().filter(fits).count() == fleet.takers().len()
        })
        .await;
        let words = carrier(&fleet).packet_words;
        assert_eq!(words, format!("{} has ceased to carry them", fleet.world.machines[narrow].name));
        let mut small = fleet.open().await;
        assert_eq!(carrier(&fleet).packet_bytes, CIRCUIT_PACKET_BYTES);
        until("a relay that is too small for a circuit is warned about", seconds(60), || {
            fleet.status(fleet.web).problems.iter().any(|problem| problem.code == "PACKETS_TOO_LARGE")
        })
        .await;

        fleet.narrow(narrow, JUMBO_PAYLOAD_BYTES);
        until("new flows open on large packets", seconds(60), || {
            let of = fleet.circuits(fleet.web).into_iter().filter(|it| it.opens == "its relay takes new connections");
            let sizes: Vec<u32> = of.map(|it| it.packet_bytes).collect();
            !sizes.is_empty() && sizes.iter().all(|bytes| *bytes == CIRCUIT_PACKET_BYTES_JUMBO)
        })
        .await;
        for flow in [&mut flow, &mut small] {
            within("each goes on", seconds(1), flow.echo()).await;
        }
    });
}

// With no other relay QUIC falls back to small packets inside the circuit.
#[test]
fn the_only_relay_that_begins_to_lose_large_packets_costs_no_flow() {
    run(|| async {
        let mut fleet = Fleet::new(123, WIDE, 0).await;
        all_have(&fleet, CIRCUIT_PACKET_BYTES_JUMBO, 100).await;
        let mut flow = fleet.open().await;
        assert_eq!(carrier(&fleet).packet_bytes, CIRCUIT_PACKET_BYTES_JUMBO);
        transfer(&mut flow, 200_000).await;
        fleet.narrow(fleet.relays[0], ETHERNET_PAYLOAD_BYTES);
        let began = tokio::time::Instant::now();
        transfer(&mut flow, 1_000_000).await;
        assert!(began.elapsed() < seconds(15), "{:?}", began.elapsed());
        within("it goes on", seconds(2), flow.echo()).await;
        let mut new = fleet.open().await;
        transfer(&mut new, 1_000_000).await;
    });
}
