//! Who may speak: tokens, foreign clusters, and roles that a certificate does not name.

use postroad_actors::setup::SetupError;
use postroad_cluster::{
    command::Action,
    id::{NodeId, Role},
    limits::CALL_WAIT,
    time::Span,
    wire::control::{ControlRequest, ControlResponse},
};
use postroad_simulations::{
    network::Condition,
    world::{PORT, Plan},
};
use postroad_transport::{
    endpoint::{Expect, transport},
    tls::Protocol,
};

use crate::support::{AMS, Fleet, run, seconds, until, within};

fn code(result: Result<NodeId, SetupError>) -> String {
    result.err().map_or_else(|| "none".to_owned(), |error| error.code())
}

// R12: a token lets one host in. Used, too old by a second, used by two at once, or unknown: exactly one success, and
// the others hear why. A host that was refused may come again with another token.
#[test]
fn r12_a_token_lets_exactly_one_host_in() {
    run(|| async {
        let mut fleet = Fleet::new(12, Condition::default(), 0).await;
        let hosts: Vec<usize> = ["one", "two", "three", "four"]
            .into_iter()
            .map(|name| fleet.world.add(Plan { name, role: Role::Node }))
            .collect();
        let token = fleet.world.token(Role::Node, Span::from_hours(1)).await.unwrap();
        let first = fleet.world.enrolment(hosts[0], token.clone()).unwrap();
        let second = fleet.world.enrolment(hosts[1], token.clone()).unwrap();
        let (first, second) = within("both are answered", seconds(20), async { tokio::join!(first, second) }).await;
        let (winner, loser) = if first.is_ok() { (first, second) } else { (second, first) };
        assert!(winner.is_ok());
        assert_eq!(code(loser), "TOKEN_USED");
        let third = fleet.world.enrolment(hosts[2], token).unwrap();
        assert_eq!(code(third.await), "TOKEN_USED");

        let old = fleet.world.token(Role::Node, Span::from_secs(10)).await.unwrap();
        tokio::time::sleep(seconds(11)).await;
        let late = fleet.world.enrolment(hosts[2], old).unwrap();
        assert_eq!(code(late.await), "TOKEN_EXPIRED");
        let unknown = postroad_trust::JoinSecret::parse(
            &postroad_trust::JoinSecret::generate(&postroad_simulations::clock::SimEntropy::new(5)).reveal(),
        );
        let never = fleet.world.enrolment(hosts[2], unknown.unwrap()).unwrap();
        assert_eq!(code(never.await), "TOKEN_UNKNOWN");
        let nodes = fleet.node(AMS).fabric().consensus.as_ref().unwrap().state().nodes.len();
        assert_eq!(nodes, 4, "ams, web, db and one more");
        fleet.world.join(hosts[2]).await.unwrap();
    });
}

// RP-5: another cluster of the same name stands at a relay's address: the nodes do not take it for theirs, and flows
// stay on relays that they trust. Its nodes get no session here either.
#[test]
fn rp5_a_relay_of_another_cluster_carries_nothing() {
    run(|| async {
        let mut fleet = Fleet::new(51, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let (fra, own) = (fleet.relays[1], fleet.world.authority.take());
        let mole = fleet.world.add(Plan { name: "mole", role: Role::Control });
        fleet.world.found(mole).await.unwrap();
        fleet.world.authority = own;
        fleet.crash(fra);
        fleet.world.fabric.name("fra", fleet.world.machines[mole].host);
        within("the flow goes on", seconds(2), flow.echo()).await;
        let end = |fleet: &Fleet| fleet.session(fleet.web, fra).last_end.clone().unwrap_or_default();
        until("the dial is refused", seconds(20), || end(&fleet).contains("another cluster")).await;
        flow.busy(seconds(5)).await;
        assert!(!fleet.session_is_up(fleet.web, fra));
        let service = fleet.service(mole);
        assert!(service.sessions.keys().all(|node| *node == NodeId(1)), "only its own node has a session there");
        assert_eq!(fleet.carrier(), AMS);

        let sessions = fleet.service(AMS).sessions.clone();
        let address = (fleet.world.machines[AMS].host.ip(), PORT).into();
        for (protocol, role) in [(Protocol::Relay, Role::Relay), (Protocol::Control, Role::Control)] {
            let outbound = &fleet.node(mole).fabric().outbound;
            let foreign = outbound.connect(address, protocol, Expect { node: None, role }, transport::session()).await;
            assert!(foreign.is_err(), "{protocol}");
        }
        assert_eq!(fleet.service(AMS).sessions, sessions);
    });
}

// RP-5: a relay at a control node's address is not taken for one, and what only control nodes may ask is refused to a
// node and to a relay.
#[test]
fn rp5_a_certificate_is_good_for_its_roles_only() {
    run(|| async {
        let fleet = Fleet::new(52, Condition::default(), 1).await;
        let fra = fleet.relays[1];
        let address = |index: usize| (fleet.world.machines[index].host.ip(), PORT).into();
        for index in [fleet.web, fra] {
            let outbound = &fleet.node(index).fabric().outbound;
            let expect = Expect { node: None, role: Role::Control };
            let posing = outbound.connect(address(fra), Protocol::Control, expect, transport::control()).await;
            assert!(posing.is_err(), "a relay speaks no control protocol");

            let expect = Expect { node: Some(fleet.id(AMS)), role: Role::Control };
            let control = outbound.connect(address(AMS), Protocol::Control, expect, transport::control()).await;
            let control = control.expect("any node may ask a control node for its own");
            let raft = ControlRequest::Raft { message: vec![1, 2, 3] };
            let api = ControlRequest::Api { method: "GET".into(), path: "/api/status".into(), body: Vec::new() };
            let command = postroad_cluster::command::Command {
                at: postroad_simulations::clock::WORLD_BEGINS,
                by: fleet.id(index),
                expected: None,
                action: Action::LinkRemove { link: postroad_cluster::id::LinkId(1) },
            };
            let other = postroad_cluster::command::Command { by: fleet.id(AMS), ..command.clone() };
            let requests = [
                raft,
                api,
                ControlRequest::Propose { command: Box::new(command) },
                ControlRequest::Propose { command: Box::new(other) },
            ];
            for request in requests {
                let answer = control.call::<ControlRequest, ControlResponse>(&request, CALL_WAIT).await;
                assert!(matches!(answer, Ok(ControlResponse::Refused(_))), "{answer:?}");
            }
        }
        assert_eq!(fleet.node(AMS).fabric().consensus.as_ref().unwrap().state().links.len(), 1);
    });
}
