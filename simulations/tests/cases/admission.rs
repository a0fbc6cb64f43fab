//! Tunnels that relays admit ahead of need: a busy link asks seldom, and an idle one not at all.

use postroad_cluster::limits::AHEAD_LOT_MAX;
use postroad_simulations::network::Condition;

use crate::support::{Fleet, half_close, ms, run, seconds};

/// Flows that open one after the other.
const FLOWS: u64 = 200;

/// What the consumer has asked of its relays.
fn asked(fleet: &Fleet) -> u64 {
    let fabric = fleet.node(fleet.web).fabric();
    let sessions = fleet.relays.iter().filter_map(|relay| fabric.session(fleet.id(*relay)));
    sessions.map(|session| session.connection.counts().calls).sum()
}

#[test]
fn a_busy_link_asks_its_relays_for_many_tunnels_at_a_time() {
    run(|| async {
        let mut fleet = Fleet::new(150, Condition::default(), 1).await;
        let before = asked(&fleet);
        for flow in 0..FLOWS {
            half_close(fleet.open().await, flow % 2 == 0).await;
        }
        let asked = asked(&fleet) - before;
        assert!(asked < FLOWS / 2, "{asked} requests for {FLOWS} flows");
        // An idle link asks for nothing, and then begins with one.
        tokio::time::sleep(seconds(5)).await;
        let admitted = |fleet: &Fleet| fleet.relays.iter().map(|relay| fleet.service(*relay).counters.admitted).sum();
        let before: u64 = admitted(&fleet);
        half_close(fleet.open().await, true).await;
        // What a relay shows of itself may be a tenth of a second old.
        tokio::time::sleep(ms(200)).await;
        let after: u64 = admitted(&fleet);
        assert_eq!(after, before + 1);
        assert!(before <= FLOWS + 4 * AHEAD_LOT_MAX as u64, "{before} tunnels were admitted");
    });
}
