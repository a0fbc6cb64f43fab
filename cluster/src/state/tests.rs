//! What `apply` must hold: every refusal by its code, and that refusals change nothing.

use proptest::prelude::*;

use super::{view::Sign, *};
use crate::{
    command::Enrolment,
    grant::{Grant, Right, SignedGrant},
    invariant::state_consistent,
    limits::{
        CONTROLS_MAX, DRAIN_WAIT, MESSAGE_BYTES_MAX, REVOCATION_KEPT, REVOCATIONS_MAX, SPREAD_DEFAULT, SPREAD_MAX,
        TOKENS_OPEN_MAX, TOKENS_REMEMBERED_MAX,
    },
    revocation::{Revocation, RevocationList, SignedRevocations},
    wire,
};

const HOUR: u64 = 3_600_000;
const START: u64 = 1_000 * HOUR;
const FIRST: NodeId = NodeId(1);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn enrolment(text: &str, key: u8, advertised: Option<&str>) -> Enrolment {
    let advertised = advertised.map(str::to_owned);
    Enrolment { name: name(text), public: [key; 32], advertised, domain: FailureDomain::default() }
}

fn issuer(key: u8) -> IssuerRecord {
    IssuerRecord { certificate: vec![1; 300], snapshot_key: [key; 32], snapshot_key_signature: vec![2; 64] }
}

fn found() -> Action {
    let first = enrolment("ams-1", 1, Some("192.0.2.1:9443"));
    Action::Found { cluster: name("harbour"), authority: vec![1; 300], first, issuer: issuer(101) }
}

fn create(token: u64, roles: &[Role]) -> Action {
    Action::TokenCreate {
        token: TokenId(token),
        verifier: VerifierBytes([token as u8; 32]),
        roles: roles.iter().copied().collect(),
        expires: WallTime(START + 24 * HOUR),
    }
}

fn enrol(token: u64, enrolment: Enrolment) -> Action {
    Action::Enrol { token: TokenId(token), enrolment }
}

fn spec(consumers: &[(u64, &str)], target: u64) -> LinkSpec {
    LinkSpec {
        consumers: consumers.iter().map(|(node, listen)| (NodeId(*node), (*listen).to_owned())).collect(),
        target: NodeId(target),
        target_address: "127.0.0.1:5432".to_owned(),
        spread: SPREAD_DEFAULT,
    }
}

fn link(text: &str, spec: LinkSpec) -> Action {
    Action::LinkAdd { name: name(text), link: spec }
}

/// A state with the entries that it was given, one after another.
struct Fleet {
    state: State,
    index: u64,
    at: u64,
}

impl Fleet {
    /// Control node 1, relay 2, nodes 3 and 4, operator 5.
    fn new() -> Self {
        let mut fleet = Self { state: State::default(), index: 0, at: START };
        fleet.done(found());
        let joins: [(&str, Role, Option<&str>); 4] = [
            ("fra-1", Role::Relay, Some("192.0.2.2:9443")),
            ("web-1", Role::Node, None),
            ("db-1", Role::Node, None),
            ("ann", Role::Operator, None),
        ];
        for (number, (text, role, advertised)) in joins.into_iter().enumerate() {
            let number = number as u8 + 2;
            fleet.done(create(u64::from(number), &[role]));
            fleet.done(enrol(u64::from(number), enrolment(text, number, advertised)));
        }
        fleet
    }

    fn apply(&mut self, by: NodeId, action: Action) -> Outcome {
        self.index += 1;
        let command = Command { at: WallTime(self.at), by, expected: None, action };
        let before = self.state.clone();
        let outcome = self.state.apply(self.index, command);
        if outcome.refusal().is_some() {
            assert_eq!(self.state, before, "a refused command changed something");
        }
        state_consistent(&self.state).unwrap();
        outcome
    }

    /// Applies without looking, where thousands come.
    fn quick(&mut self, action: Action) {
        self.index += 1;
        let outcome =
            self.state.apply(self.index, Command { at: WallTime(self.at), by: FIRST, expected: None, action });
        assert_eq!(outcome.refusal(), None);
    }

    fn done(&mut self, action: Action) -> Outcome {
        let outcome = self.apply(FIRST, action);
        assert_eq!(outcome.refusal(), None);
        outcome
    }

    fn code(&mut self, action: Action) -> String {
        self.apply(FIRST, action).refusal().expect("it must be refused").code.clone()
    }
}

#[test]
fn a_founded_cluster_has_its_first_control_node() {
    let fleet = Fleet::new();
    let first = &fleet.state.nodes[&FIRST];
    // RP-59: its host runs a local relay.
    assert_eq!(first.roles, BTreeSet::from([Role::Control, Role::Relay, Role::Node]));
    // RP-7: pending until its address was reached.
    assert!(!first.ready);
    assert_eq!(fleet.state.nodes[&NodeId(2)].roles, BTreeSet::from([Role::Relay, Role::Node]));
    assert_eq!(fleet.state.grants_issued, WallTime(START));
    assert_eq!(fleet.state.version, Version(9));
}

#[test]
fn nothing_happens_before_the_cluster_is_founded_and_it_is_founded_once() {
    let mut fleet = Fleet { state: State::default(), index: 0, at: START };
    assert_eq!(fleet.code(Action::LeaseRenew), code::NOT_FOUNDED);
    let mut fleet = Fleet::new();
    assert_eq!(fleet.code(found()), code::ALREADY_FOUNDED);
}

#[test]
fn an_entry_is_newer_than_the_state_and_meant_for_its_version() {
    let mut fleet = Fleet::new();
    let version = fleet.state.version;
    let renew = |expected| Command { at: WallTime(START), by: FIRST, expected, action: Action::LeaseRenew };
    let refused = |outcome: Outcome| outcome.refusal().map(|refusal| refusal.code.clone());
    assert_eq!(refused(fleet.state.apply(version.0, renew(None))).as_deref(), Some(code::ENTRY_OLD));
    let other = Some(Version(version.0 - 1));
    assert_eq!(refused(fleet.state.apply(50, renew(other))).as_deref(), Some(code::VERSION_CHANGED));
    assert_eq!(fleet.state.apply(50, renew(Some(version))), Outcome::Done { version: Version(50) });
}

#[test]
fn time_never_goes_back() {
    let mut fleet = Fleet::new();
    fleet.at = START + HOUR;
    fleet.done(Action::LeaseRenew);
    fleet.at = START;
    fleet.done(Action::LeaseRenew);
    assert_eq!(fleet.state.time, WallTime(START + HOUR));
}

#[test]
fn others_change_only_themselves() {
    let mut fleet = Fleet::new();
    let describe = |node| Action::Describe {
        node: NodeId(node),
        advertised: None,
        domain: FailureDomain { zone: Some(name("eu")), ..FailureDomain::default() },
    };
    let mut code = |by, action| fleet.apply(NodeId(by), action).refusal().map(|refusal| refusal.code.clone());
    assert_eq!(code(3, describe(3)), None);
    assert_eq!(code(3, describe(4)).as_deref(), Some(code::NOT_ALLOWED));
    assert_eq!(code(2, create(9, &[Role::Node])).as_deref(), Some(code::NOT_ALLOWED));
    assert_eq!(code(5, create(9, &[Role::Node])), None);
    assert_eq!(code(77, Action::LeaseRenew).as_deref(), Some(code::NOT_ALLOWED));
    // A node may leave, and has no say afterwards.
    assert_eq!(code(3, Action::NodeRemove { node: NodeId(3) }), None);
    assert_eq!(code(3, describe(3)).as_deref(), Some(code::NOT_ALLOWED));
}

// R12
#[test]
fn a_token_admits_exactly_one() {
    let mut fleet = Fleet::new();
    fleet.done(create(9, &[Role::Node]));
    let joined = fleet.done(enrol(9, enrolment("web-2", 9, None)));
    assert_eq!(joined, Outcome::Enrolled { node: NodeId(6), roles: BTreeSet::from([Role::Node]) });
    let before = fleet.state.clone();
    // The same token, key and name: the same answer, and no change.
    assert_eq!(fleet.done(enrol(9, enrolment("web-2", 9, None))), joined);
    assert_eq!(fleet.state, before);
    assert_eq!(fleet.code(enrol(9, enrolment("web-3", 9, None))), code::TOKEN_USED);
    fleet.at += 180_000;
    let refused = fleet.apply(FIRST, enrol(9, enrolment("web-2", 10, None)));
    let refusal = refused.refusal().unwrap();
    assert_eq!(refusal.code, code::TOKEN_USED);
    assert_eq!(refusal.message, "this token was used 3 min ago by host web-2");
    assert_eq!(refusal.hint, "Make another: postroad token create --role node");
    assert_eq!(fleet.code(Action::TokenRevoke { token: TokenId(9) }), code::TOKEN_USED);
    // A removed node does not come back by its old token.
    fleet.done(Action::NodeRemove { node: NodeId(6) });
    assert_eq!(fleet.code(enrol(9, enrolment("web-2", 9, None))), code::TOKEN_USED);
}

#[test]
fn tokens_end() {
    let mut fleet = Fleet::new();
    assert_eq!(fleet.code(enrol(9, enrolment("web-2", 9, None))), code::TOKEN_UNKNOWN);
    fleet.done(create(9, &[Role::Node]));
    // R12: to the millisecond.
    fleet.at = START + 24 * HOUR;
    assert_eq!(fleet.code(enrol(9, enrolment("web-2", 9, None))), code::TOKEN_EXPIRED);
    fleet.at -= 1;
    fleet.done(enrol(9, enrolment("web-2", 9, None)));
    fleet.done(create(10, &[Role::Node]));
    fleet.done(Action::TokenRevoke { token: TokenId(10) });
    fleet.done(Action::TokenRevoke { token: TokenId(10) });
    assert_eq!(fleet.code(enrol(10, enrolment("web-3", 10, None))), code::TOKEN_REVOKED);
    assert_eq!(fleet.code(Action::TokenRevoke { token: TokenId(11) }), code::TOKEN_UNKNOWN);
}

#[test]
fn tokens_have_bounds() {
    let mut fleet = Fleet::new();
    let token = |expires, roles: &[Role]| Action::TokenCreate {
        token: TokenId(9),
        verifier: VerifierBytes([9; 32]),
        roles: roles.iter().copied().collect(),
        expires: WallTime(expires),
    };
    assert_eq!(fleet.code(token(START, &[Role::Node])), code::TOKEN_LIFETIME);
    assert_eq!(fleet.code(token(START + 7 * 24 * HOUR + 1, &[Role::Node])), code::TOKEN_LIFETIME);
    assert_eq!(fleet.code(token(START + HOUR, &[])), code::ROLES_INVALID);
    assert_eq!(fleet.code(token(START + HOUR, &[Role::Node, Role::Operator])), code::ROLES_INVALID);
    fleet.done(token(START + 7 * 24 * HOUR, &[Role::Node]));
    assert_eq!(fleet.code(token(START + HOUR, &[Role::Node])), code::TOKEN_EXISTS);
}

#[test]
fn open_tokens_are_bounded_and_ended_ones_forgotten() {
    let mut fleet = Fleet::new();
    for token in 0..TOKENS_OPEN_MAX as u64 {
        fleet.quick(create(1_000 + token, &[Role::Node]));
    }
    assert_eq!(fleet.code(create(10, &[Role::Node])), code::TOO_MANY);
    for token in 0..TOKENS_OPEN_MAX as u64 {
        fleet.quick(Action::TokenRevoke { token: TokenId(1_000 + token) });
    }
    for token in 0..TOKENS_OPEN_MAX as u64 {
        fleet.quick(create(9_000 + token, &[Role::Node]));
    }
    state_consistent(&fleet.state).unwrap();
    assert_eq!(fleet.state.tokens.len(), TOKENS_REMEMBERED_MAX);
    assert!(fleet.state.tokens.values().filter(|token| token.is_open(fleet.state.time)).count() <= TOKENS_OPEN_MAX);
}

#[test]
fn newcomers_bring_a_name_a_key_and_an_address_of_their_own() {
    let mut fleet = Fleet::new();
    fleet.done(create(9, &[Role::Relay]));
    let mut code = |text, key, advertised| fleet.code(enrol(9, enrolment(text, key, advertised)));
    assert_eq!(code("web-1", 9, Some("192.0.2.9:9443")), code::NAME_TAKEN);
    assert_eq!(code("fra-2", 3, Some("192.0.2.9:9443")), code::KEY_TAKEN);
    assert_eq!(code("fra-2", 9, None), code::ADDRESS_MISSING);
    assert_eq!(code("fra-2", 9, Some("192.0.2.9")), code::ADDRESS_INVALID);
    assert_eq!(code("fra-2", 9, Some("192.0.2.2:9443")), code::ADDRESS_TAKEN);
    // RP-8: the first one's name and the ways out.
    assert_eq!(code("fra-2", 9, Some("192.0.2.2:9444")), code::RELAY_EXISTS);
    let refused = fleet.apply(FIRST, enrol(9, enrolment("fra-2", 9, Some("192.0.2.2:9444"))));
    let refusal = refused.refusal().unwrap();
    assert!(refusal.message.contains("fra-1") && refusal.hint.contains("postroad relay remove fra-1"), "{refusal}");
    fleet.done(enrol(9, enrolment("fra-2", 9, Some("192.0.2.9:9443"))));
}

// RP-8: the operator's word on hosts goes before addresses.
#[test]
fn hosts_behind_one_address_are_told_apart_by_name() {
    let mut fleet = Fleet::new();
    let at = |host: &str| FailureDomain { host: Some(name(host)), ..FailureDomain::default() };
    let describe = |node, address: &str, host| Action::Describe {
        node: NodeId(node),
        advertised: Some(address.to_owned()),
        domain: at(host),
    };
    fleet.done(describe(2, "192.0.2.2:9443", "h2"));
    fleet.done(create(9, &[Role::Relay]));
    let newcomer = |address, host| enrol(9, Enrolment { domain: at(host), ..enrolment("fra-2", 9, Some(address)) });
    assert_eq!(fleet.code(newcomer("192.0.2.9:9443", "h2")), code::RELAY_EXISTS);
    fleet.done(newcomer("192.0.2.2:9444", "h9"));
    assert_eq!(fleet.code(describe(6, "192.0.2.2:9444", "h2")), code::RELAY_EXISTS);
}

#[test]
fn a_new_address_is_pending_again() {
    let mut fleet = Fleet::new();
    let verified = |ready| Action::RelayVerified { relay: NodeId(2), ready, reason: "2 of 2 nodes".to_owned() };
    fleet.done(verified(true));
    assert!(fleet.state.nodes[&NodeId(2)].ready);
    let version = fleet.state.version;
    assert_eq!(fleet.done(verified(true)), Outcome::Done { version });
    let describe = |advertised: Option<&str>| Action::Describe {
        node: NodeId(2),
        advertised: advertised.map(str::to_owned),
        domain: FailureDomain::default(),
    };
    assert_eq!(fleet.code(describe(None)), code::ADDRESS_MISSING);
    fleet.done(describe(Some("relay.example.org:9443")));
    // RP-7
    assert!(!fleet.state.nodes[&NodeId(2)].ready);
    assert_eq!(
        fleet.code(Action::RelayVerified { relay: NodeId(3), ready: true, reason: String::new() }),
        code::ROLE_MISSING
    );
    let long = "x".repeat(201);
    assert_eq!(fleet.code(Action::RelayVerified { relay: NodeId(2), ready: true, reason: long }), code::TEXT_INVALID);
    fleet.done(Action::RelayDrain { relay: NodeId(2), draining: true });
    let drain = fleet.state.nodes[&NodeId(2)].drain.unwrap();
    assert_eq!((drain.version, drain.ends.since(drain.since)), (fleet.state.version, DRAIN_WAIT));
    assert_eq!(fleet.state.policy(NodeId(2)).drain, Some(drain), "the relay itself hears of it");
    assert_eq!(fleet.state.policy(FIRST).drain, None);
    fleet.done(Action::RelayDrain { relay: NodeId(2), draining: true });
    assert_eq!(fleet.state.nodes[&NodeId(2)].drain, Some(drain), "the same again begins nothing anew");
    fleet.done(Action::RelayDisconnect { relay: NodeId(2) });
    assert!(fleet.state.nodes[&NodeId(2)].drain.is_some_and(|forced| forced.ends <= fleet.state.time));
    let cut = |flows| Action::DrainCut { relay: NodeId(2), began: drain.version, circuits: 2, flows };
    let lines = fleet.state.audit.len();
    for flows in [4, 9, 0] {
        fleet.done(cut(flows));
        assert_eq!(fleet.state.audit.len(), lines + 1, "what is cut is said once");
    }
    assert_eq!(fleet.state.nodes[&NodeId(2)].drain.map(|drain| drain.settled), Some(true));
    let said = "relay fra-1 was drained and its time has run out: it cuts 4 flows on 2 circuits that could not move";
    assert_eq!(fleet.state.audit.last().unwrap().what, said);
    fleet.done(Action::RelayDrain { relay: NodeId(2), draining: false });
    assert_eq!(fleet.state.nodes[&NodeId(2)].drain, None);
    assert_eq!(fleet.code(Action::RelayDisconnect { relay: NodeId(2) }), code::RELAY_NOT_DRAINING);
    assert_eq!(fleet.code(Action::RelayDisconnect { relay: NodeId(4) }), code::ROLE_MISSING);
    assert_eq!(fleet.code(Action::RelayDrain { relay: NodeId(4), draining: true }), code::ROLE_MISSING);
}

// RP-40: each drain's end is settled once, with a line unless it is known that nothing was cut.
#[test]
fn the_end_of_a_drain_is_settled_once() {
    let mut fleet = Fleet::new();
    let relay = NodeId(2);
    for (flows, line) in [(Some(0), None), (Some(1), Some("it cuts 1 flow on 1 circuit")), (None, Some("was not seen"))]
    {
        fleet.done(Action::RelayDrain { relay, draining: true });
        let began = fleet.state.version;
        let said = || match flows {
            Some(flows) => Action::DrainCut { relay, began, circuits: 1, flows },
            None => Action::DrainUnseen { relay, began },
        };
        fleet.done(said());
        assert!(fleet.state.nodes[&relay].drain.is_some_and(|drain| !drain.settled), "its time has not run out");
        fleet.done(Action::RelayDisconnect { relay });
        fleet.done(Action::DrainUnseen { relay, began: Version(1) });
        let lines = fleet.state.audit.len();
        for _ in 0..2 {
            fleet.done(said());
            assert!(fleet.state.nodes[&relay].drain.is_some_and(|drain| drain.settled));
            assert_eq!(fleet.state.audit.len(), lines + usize::from(line.is_some()));
        }
        assert!(line.is_none_or(|line| fleet.state.audit.last().unwrap().what.contains(line)), "{flows:?}");
        fleet.done(Action::RelayDrain { relay, draining: false });
    }
}

#[test]
fn links_join_nodes_that_are_there() {
    let mut fleet = Fleet::new();
    let mut code = |spec| fleet.code(link("db", spec));
    let listen = "127.0.0.1:5432";
    assert_eq!(code(spec(&[], 4)), code::LINK_INVALID);
    assert_eq!(code(spec(&[(4, listen)], 4)), code::LINK_INVALID);
    assert_eq!(code(spec(&[(3, listen)], 77)), code::NODE_UNKNOWN);
    assert_eq!(code(spec(&[(77, listen)], 4)), code::NODE_UNKNOWN);
    assert_eq!(code(spec(&[(5, listen)], 4)), code::ROLE_MISSING);
    assert_eq!(code(spec(&[(3, listen)], 5)), code::ROLE_MISSING);
    assert_eq!(code(spec(&[(3, "localhost:5432")], 4)), code::ADDRESS_INVALID);
    let nowhere = LinkSpec { target_address: "nowhere".to_owned(), ..spec(&[(3, listen)], 4) };
    assert_eq!(code(nowhere), code::ADDRESS_INVALID);
    let made = fleet.done(link("db", spec(&[(3, listen)], 4)));
    assert_eq!(made, Outcome::LinkAdded { link: LinkId(1), generation: Generation(1) });
    assert_eq!(fleet.done(link("db", spec(&[(3, listen)], 4))), made);
    assert_eq!(fleet.code(link("db", spec(&[(3, "127.0.0.1:1")], 4))), code::NAME_TAKEN);
    assert_eq!(fleet.code(link("db-2", spec(&[(3, "0.0.0.0:5432")], 4))), code::LISTEN_TAKEN);
    fleet.done(link("db-2", spec(&[(1, listen)], 4)));
}

#[test]
fn a_node_with_links_stays() {
    let mut fleet = Fleet::new();
    fleet.done(link("db", spec(&[(3, "127.0.0.1:5432")], 4)));
    for node in [3, 4] {
        let refused = fleet.apply(FIRST, Action::NodeRemove { node: NodeId(node) });
        let refusal = refused.refusal().unwrap();
        assert_eq!(refusal.code, code::NODE_HAS_LINKS);
        assert!(refusal.message.contains("db") && refusal.hint.contains("postroad link remove db"));
    }
    let remove = Action::LinkRemove { link: LinkId(1) };
    fleet.done(remove.clone());
    assert_eq!(fleet.code(remove), code::LINK_UNKNOWN);
    fleet.done(Action::NodeRemove { node: NodeId(3) });
    assert!(fleet.state.revoked_nodes.contains(&NodeId(3)));
    assert_eq!(fleet.code(Action::NodeRemove { node: NodeId(3) }), code::NODE_UNKNOWN);
    // Numbers are never given again.
    fleet.done(create(9, &[Role::Node]));
    let joined = fleet.done(enrol(9, enrolment("web-1", 3, None)));
    assert!(matches!(joined, Outcome::Enrolled { node: NodeId(6), .. }));
    fleet.done(link("db", spec(&[(6, "127.0.0.1:5432")], 4)));
    assert!(fleet.state.links.contains_key(&LinkId(2)));
}

fn balanced(databases: &[(&str, &str)], on: &[u64]) -> BalancerSpec {
    let databases = databases.iter().map(|(id, address)| ((*id).to_owned(), (*address).to_owned()));
    BalancerSpec { databases: databases.collect(), on: on.iter().map(|node| NodeId(*node)).collect() }
}

fn balancer_add(text: &str, spec: BalancerSpec) -> Action {
    Action::BalancerAdd { name: name(text), spec }
}

// DB-43: what the cluster agrees on of a database balancer, each refusal by its code.
#[test]
fn balancers_lead_to_databases_and_run_on_nodes_that_are_there() {
    let mut fleet = Fleet::new();
    let good = || balanced(&[("db-1", "10.0.0.1:5432"), ("db-2", "10.0.0.2:5432")], &[3]);
    let many = |count: usize| BalancerSpec {
        databases: (0..count).map(|at| (format!("db-{at}"), format!("10.0.{}.{}:1", at / 250, at % 250))).collect(),
        ..good()
    };
    let table = [
        (balanced(&[], &[3]), code::BALANCER_INVALID),
        (balanced(&[("db-1", "10.0.0.1:5432")], &[]), code::BALANCER_INVALID),
        (balanced(&[("a/b", "10.0.0.1:5432")], &[3]), code::BALANCER_INVALID),
        (balanced(&[("a", "Db.example:1"), ("b", "db.example:1")], &[3]), code::BALANCER_INVALID),
        (balanced(&[("db-1", "10.0.0.1")], &[3]), code::ADDRESS_INVALID),
        (balanced(&[("db-1", "10.0.0.1:5432")], &[5]), code::ROLE_MISSING),
        (balanced(&[("db-1", "10.0.0.1:5432")], &[77]), code::NODE_UNKNOWN),
        (many(65), code::TOO_MANY),
    ];
    for (spec, expected) in table {
        assert_eq!(fleet.code(balancer_add("orders", spec.clone())), expected, "{spec:?}");
    }
    fleet.done(balancer_add("orders", good()));
    let first = fleet.state.balancers[&name("orders")].changed;
    fleet.done(balancer_add("orders", good()));
    assert_eq!(fleet.state.balancers[&name("orders")].changed, first, "the same again changes nothing");
    assert_eq!(fleet.code(balancer_add("orders", many(3))), code::NAME_TAKEN);
    let set = |spec, changed| Action::BalancerSet { name: name("orders"), spec, changed };
    fleet.done(set(many(3), first));
    assert_eq!(fleet.code(set(good(), first)), code::BALANCER_CHANGED, "what came between would be lost");
    fleet.done(set(many(3), first));
    let refused = fleet.apply(FIRST, Action::NodeRemove { node: NodeId(3) });
    assert_eq!(refused.refusal().map(|refusal| refusal.code.as_str()), Some(code::NODE_HAS_BALANCERS));
    // Who runs it sees it, and nobody else.
    let sees = |fleet: &Fleet, node| {
        let content = fleet.state.snapshot_for(NodeId(node), &mut unsigned(&mut Vec::new())).unwrap();
        content.balancers.values().map(|view| view.databases.len()).sum::<usize>()
    };
    assert_eq!([sees(&fleet, 3), sees(&fleet, 4), sees(&fleet, 1)], [3, 0, 0]);
    fleet.done(Action::BalancerRemove { name: name("orders") });
    assert_eq!(fleet.code(Action::BalancerRemove { name: name("orders") }), code::BALANCER_UNKNOWN);
    assert_eq!(fleet.code(set(good(), first)), code::BALANCER_UNKNOWN);
    assert_eq!(sees(&fleet, 3), 0);
    fleet.done(Action::NodeRemove { node: NodeId(3) });
    assert_eq!(fleet.apply(NodeId(4), balancer_add("x", good())).refusal().unwrap().code, code::NOT_ALLOWED);
}

#[test]
fn balancers_are_bounded() {
    use crate::balancer::limits::{BALANCER_DATABASES_MAX, BALANCERS_MAX, BALANCERS_PER_NODE_MAX};
    let mut fleet = Fleet::new();
    for number in 0..BALANCERS_PER_NODE_MAX {
        fleet.done(balancer_add(&format!("of-{number}"), balanced(&[("a", "a:1")], &[3])));
    }
    assert_eq!(fleet.code(balancer_add("one-more", balanced(&[("a", "a:1")], &[3, 4]))), code::TOO_MANY);
    let wide = |number: usize| balanced(&[("a", &format!("a-{number}:1"))], &[4]);
    let mut state = fleet.state.clone();
    let of = |spec: BalancerSpec| BalancerRecord { spec, made: WallTime(1), changed: Version(1) };
    state.balancers = (0..BALANCERS_MAX).map(|at| (name(&format!("b-{at}")), of(wide(at)))).collect();
    fleet.state = state;
    assert_eq!(fleet.code(balancer_add("one-more", balanced(&[("a", "a:1")], &[3]))), code::TOO_MANY);
    let databases = |count: usize| (0..count).map(|at| (format!("d-{at}"), format!("d-{at}:1"))).collect();
    let full = |count| of(BalancerSpec { databases: databases(count), on: BTreeSet::from([NodeId(4)]) });
    fleet.state.balancers = (0..BALANCER_DATABASES_MAX / 64).map(|at| (name(&format!("b-{at}")), full(64))).collect();
    assert_eq!(fleet.code(balancer_add("one-more", balanced(&[("a", "a:1")], &[3]))), code::TOO_MANY);
}

// RP-35
#[test]
fn a_retargeted_link_has_a_new_generation() {
    let mut fleet = Fleet::new();
    fleet.done(link("db", spec(&[(3, "127.0.0.1:5432")], 4)));
    let retarget = |text: &str| Action::LinkRetarget { link: LinkId(1), target_address: text.to_owned() };
    fleet.done(retarget("db.local:5433"));
    assert_eq!(fleet.state.links[&LinkId(1)].generation, Generation(2));
    fleet.done(retarget("db.local:5433"));
    assert_eq!(fleet.state.links[&LinkId(1)].generation, Generation(2));
    assert_eq!(fleet.code(retarget("db.local")), code::ADDRESS_INVALID);
    let other = Action::LinkRetarget { link: LinkId(7), target_address: "db.local:1".to_owned() };
    assert_eq!(fleet.code(other), code::LINK_UNKNOWN);
}

// RP-10: 1 to 8; a new spread leaves route and grants as they are.
#[test]
fn a_link_has_a_spread_within_its_bounds() {
    let mut fleet = Fleet::new();
    let add = |name: &str, spread| link(name, LinkSpec { spread, ..spec(&[(3, "127.0.0.1:5432")], 4) });
    for spread in [0, 9, 255] {
        assert_eq!(fleet.code(add("db", spread)), code::SETTING_OUT_OF_BOUNDS);
    }
    fleet.done(add("db", 1));
    let set = |link, spread| Action::LinkSpread { link: LinkId(link), spread };
    let before = fleet.state.links[&LinkId(1)].clone();
    for spread in [0, 9] {
        assert_eq!(fleet.code(set(1, spread)), code::SETTING_OUT_OF_BOUNDS);
    }
    assert_eq!(fleet.code(set(7, 3)), code::LINK_UNKNOWN);
    fleet.done(set(1, 8));
    let spec = LinkSpec { spread: 8, ..before.spec.clone() };
    assert_eq!(fleet.state.links[&LinkId(1)], LinkRecord { spec, ..before });
    assert_eq!(fleet.state.audit.last().unwrap().what, "new connections of link db are spread over 8 relays");
    let version = fleet.state.version;
    assert_eq!(fleet.done(set(1, 8)), Outcome::Done { version }, "the same again changes nothing");
    for node in [3, 4] {
        let view =
            fleet.state.snapshot_for(NodeId(node), &mut unsigned(&mut Vec::new())).unwrap().links[&LinkId(1)].clone();
        assert_eq!((view.spread, view.generation), (8, Generation(1)), "both ends hear of it");
    }
}

// RP-35: a retargeted link revokes its older routes, a deleted one all; nodes get them signed, and they are forgotten
// when no grant can be left.
#[test]
fn revocations_are_cumulative() {
    let mut fleet = Fleet::new();
    fleet.done(link("db", spec(&[(3, "127.0.0.1:5432")], 4)));
    fleet.done(link("other", spec(&[(1, "127.0.0.1:80")], 2)));
    assert_eq!(fleet.state.revocation_list(), None);
    fleet.done(Action::LinkRetarget { link: LinkId(1), target_address: "db.local:1".to_owned() });
    let retargeted = fleet.state.version;
    assert!(fleet.state.revocations.is_revoked(LinkId(1), Generation(1)));
    assert!(!fleet.state.revocations.is_revoked(LinkId(1), Generation(2)), "the new grant works");
    fleet.done(Action::LinkRemove { link: LinkId(2) });
    assert!(fleet.state.revocations.is_revoked(LinkId(2), Generation(99)));
    assert_eq!(fleet.state.revocations.version, fleet.state.version);
    assert_eq!(fleet.state.revocations.routes[&LinkId(1)].version, retargeted);
    let content = fleet.state.snapshot_for(NodeId(3), &mut unsigned(&mut Vec::new())).unwrap();
    let list: RevocationList = wire::decode(&content.revocations.unwrap().list).unwrap();
    assert_eq!(Some(list), fleet.state.revocation_list());
    fleet.at += REVOCATION_KEPT.as_millis() as u64 + 1;
    fleet.done(Action::LeaseRenew);
    assert_eq!(fleet.state.revocation_list(), None);
    assert_eq!(fleet.state.revocations.version, Version(fleet.index - 1), "its version never goes back");
}

#[test]
fn the_last_right_to_sign_stays() {
    let mut fleet = Fleet::new();
    assert_eq!(fleet.code(Action::Decertify { node: FIRST }), code::LAST_CONTROL);
    assert_eq!(fleet.code(Action::NodeRemove { node: FIRST }), code::LAST_CONTROL);
    let certify = |node, key| Action::Certify { node: NodeId(node), issuer: issuer(key) };
    assert_eq!(fleet.code(certify(2, 102)), code::ROLE_MISSING);
    fleet.done(create(9, &[Role::Control]));
    fleet.done(enrol(9, enrolment("ams-2", 9, Some("192.0.2.6:9443"))));
    assert_eq!(fleet.code(certify(6, 101)), code::KEY_TAKEN);
    let broken = IssuerRecord { snapshot_key_signature: vec![1; 63], ..issuer(102) };
    assert_eq!(fleet.code(Action::Certify { node: NodeId(6), issuer: broken }), code::CERTIFICATE_INVALID);
    let broken = IssuerRecord { certificate: vec![1; 5_000], ..issuer(102) };
    assert_eq!(fleet.code(Action::Certify { node: NodeId(6), issuer: broken }), code::CERTIFICATE_INVALID);
    fleet.done(certify(6, 102));
    fleet.done(Action::Decertify { node: FIRST });
    fleet.done(Action::Decertify { node: FIRST });
    assert!(fleet.state.issuers.contains_key(&NodeId(6)));
}

#[test]
fn control_nodes_are_bounded() {
    let mut fleet = Fleet::new();
    for number in 1..=CONTROLS_MAX as u64 {
        fleet.done(create(100 + number, &[Role::Control]));
        let address = format!("192.0.2.{}:9443", 100 + number);
        let joiner = enrolment(&format!("c-{number}"), 100 + number as u8, Some(&address));
        let outcome = fleet.apply(FIRST, enrol(100 + number, joiner));
        let refused = outcome.refusal().map(|refusal| refusal.code.as_str());
        assert_eq!(refused, (number == CONTROLS_MAX as u64).then_some(code::TOO_MANY), "{number}");
    }
}

#[test]
fn settings_stay_in_bounds_and_defaults_are_not_kept() {
    let mut fleet = Fleet::new();
    fleet.at = START + HOUR;
    let set = |setting| Action::SettingSet { setting };
    assert_eq!(fleet.code(set(Setting::PolicyLeaseHours(169))), code::SETTING_OUT_OF_BOUNDS);
    fleet.done(set(Setting::FlowWaitSeconds(90)));
    assert_eq!(fleet.state.flow_wait_seconds(), 90);
    assert_eq!(fleet.state.grants_issued, WallTime(START));
    fleet.done(set(Setting::FlowWaitSeconds(60)));
    assert!(fleet.state.settings.is_empty());
    // A shorter lifetime ends no grant that was given for a longer one.
    fleet.done(set(Setting::PolicyLeaseHours(1)));
    assert_eq!(fleet.state.grants_issued, WallTime(START + HOUR));
}

// RP-24, RP-26: 96 h for the defaults, renewed at an age of 6 h.
#[test]
fn a_lease_renewal_renews_grants_only_when_they_are_old() {
    let mut fleet = Fleet::new();
    fleet.at = START + 6 * HOUR - 1;
    fleet.done(Action::LeaseRenew);
    assert_eq!(fleet.state.grants_issued, WallTime(START));
    let lines = fleet.state.audit.len();
    fleet.at = START + 6 * HOUR;
    let outcome = fleet.done(Action::LeaseRenew);
    assert_eq!(outcome, Outcome::Done { version: Version(fleet.index) });
    assert_eq!(fleet.state.grants_issued, WallTime(START + 6 * HOUR));
    assert_eq!(fleet.state.audit.len(), lines);
}

#[test]
fn the_audit_is_bounded() {
    let mut fleet = Fleet::new();
    for number in 0..AUDIT_LINES_MAX as u64 + 5 {
        let draining = number % 2 == 0;
        fleet.quick(Action::RelayDrain { relay: NodeId(2), draining });
    }
    assert_eq!(fleet.state.audit.len(), AUDIT_LINES_MAX);
    assert_eq!(fleet.state.audit.last().unwrap().what, "relay fra-1 is taken out of service");
    assert_eq!(fleet.state.audit.last().unwrap().by, FIRST);
}

#[test]
fn what_is_done_by_hand_is_noted_with_its_author_and_bounded_for_others() {
    let mut fleet = Fleet::new();
    let note = |what: &str, reason: &str| Action::Note { who: name("ann"), what: what.into(), reason: reason.into() };
    fleet.done(note("drain relay fra-1", "new disk"));
    let line = fleet.state.audit.last().unwrap();
    assert_eq!(line.what, "ann by the console of ams-1: drain relay fra-1, since new disk");
    assert_eq!((line.by, line.version), (FIRST, fleet.state.version));
    for bad in [note("", "new disk"), note("x", ""), note("x", &"r".repeat(201)), note("x", "two\nlines")] {
        assert_eq!(fleet.code(bad), code::TEXT_INVALID);
    }
    let others = fleet.state.audit.len();
    for number in 0..50 {
        let outcome = fleet.apply(NodeId(3), note(&format!("restart {number}"), "stuck"));
        assert_eq!(outcome.refusal(), None, "a node notes what is done at its own console");
    }
    let own: Vec<&AuditLine> = fleet.state.audit.iter().filter(|line| line.by == NodeId(3)).collect();
    assert_eq!((own.len(), fleet.state.audit.len()), (AUDIT_LINES_OF_A_NODE_MAX, others + AUDIT_LINES_OF_A_NODE_MAX));
    assert!(own.last().unwrap().what.contains("restart 49"));
    let stranger = fleet.apply(NodeId(99), note("restart", "stuck"));
    assert_eq!(stranger.refusal().unwrap().code, code::NOT_ALLOWED);
}

/// Keeps what it is to sign.
struct Unsigned<'a>(&'a mut Vec<Grant>);

impl Sign for Unsigned<'_> {
    fn grant(&mut self, grant: &Grant) -> SignedGrant {
        self.0.push(grant.clone());
        SignedGrant { grant: wire::encode(grant), signer: FIRST, key: [101; 32], signature: vec![0; 64] }
    }

    fn revocations(&mut self, list: &RevocationList) -> SignedRevocations {
        let list = wire::encode(list);
        SignedRevocations { list, signer: FIRST, key: [0; 32], key_signature: Vec::new(), signature: Vec::new() }
    }
}

const fn unsigned(grants: &mut Vec<Grant>) -> Unsigned<'_> {
    Unsigned(grants)
}

#[test]
fn a_snapshot_has_what_its_recipient_needs() {
    let mut fleet = Fleet::new();
    fleet.at = START + HOUR;
    fleet.done(link("db", spec(&[(3, "127.0.0.1:5432"), (1, "127.0.0.1:5432")], 4)));
    fleet.done(link("other", spec(&[(1, "127.0.0.1:80")], 2)));
    let state = &fleet.state;
    let mut grants = Vec::new();
    let consumer = state.snapshot_for(NodeId(3), &mut unsigned(&mut grants)).unwrap();
    assert_eq!(consumer.links.keys().collect::<Vec<_>>(), [&LinkId(1)]);
    let view = &consumer.links[&LinkId(1)];
    assert_eq!((view.listen.as_deref(), view.target_address.as_deref()), (Some("127.0.0.1:5432"), None));
    assert_eq!(consumer.peers.keys().collect::<Vec<_>>(), [&NodeId(4)]);
    assert_eq!(consumer.controls, BTreeMap::from([(FIRST, "192.0.2.1:9443".to_owned())]));
    // Relays: pending ones too, and the control node's is local.
    let relays: Vec<_> = consumer.relays.iter().map(|(node, relay)| (*node, relay.local, relay.ready)).collect();
    assert_eq!(relays, [(FIRST, true, false), (NodeId(2), false, false)]);
    assert_eq!(consumer.policy, None);
    // The link is younger than the grants of the rest.
    let issued = WallTime(START + HOUR);
    let expected = Grant {
        cluster: name("harbour"),
        link: LinkId(1),
        generation: Generation(1),
        holder: NodeId(3),
        target: NodeId(4),
        right: Right::Open,
        issued,
        expires: issued.after(Span::from_hours(96)),
    };
    assert_eq!(grants, std::slice::from_ref(&expected));

    let mut grants = Vec::new();
    let target = state.snapshot_for(NodeId(4), &mut unsigned(&mut grants)).unwrap();
    assert_eq!(target.links[&LinkId(1)].target_address.as_deref(), Some("127.0.0.1:5432"));
    assert_eq!(target.peers.keys().collect::<Vec<_>>(), [&FIRST, &NodeId(3)]);
    assert_eq!(grants, [Grant { holder: NodeId(4), right: Right::Register, ..expected }]);

    let relay = state.snapshot_for(NodeId(2), &mut unsigned(&mut Vec::new())).unwrap();
    let policy = relay.policy.unwrap();
    assert!(policy.joins(NodeId(3), NodeId(4)) && policy.joins(FIRST, NodeId(2)) && !policy.joins(FIRST, NodeId(3)));
    // Operators hold no sessions.
    assert_eq!(policy.nodes.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4].map(NodeId));
    assert!(state.snapshot_for(NodeId(77), &mut unsigned(&mut Vec::new())).is_none());
    let header = state.header_for(NodeId(3), [7; 32]).unwrap();
    assert_eq!((header.version, header.issued, header.lease), (state.version, state.time, Span::from_hours(72)));
}

#[test]
fn renewing_a_lease_leaves_the_content_alone() {
    let mut fleet = Fleet::new();
    fleet.done(link("db", spec(&[(3, "127.0.0.1:5432")], 4)));
    let bytes = |state: &State| {
        let content = |node| state.snapshot_for(NodeId(node), &mut unsigned(&mut Vec::new())).unwrap();
        [1, 2, 3, 4].map(|node| wire::encode(&content(node)))
    };
    let before = bytes(&fleet.state);
    fleet.at += 60_000;
    fleet.done(Action::LeaseRenew);
    assert_eq!(bytes(&fleet.state), before);
    fleet.at += 6 * HOUR;
    fleet.done(Action::LeaseRenew);
    assert_ne!(bytes(&fleet.state), before);
}

// The whole state travels and is kept as one message, whatever people fill it with.
#[test]
fn the_largest_state_fits_one_message() {
    use crate::balancer::limits::{BALANCER_DATABASES_MAX, BALANCER_RUNNERS_MAX, BALANCERS_MAX};
    use crate::limits::{ADDRESS_BYTES_MAX, LINK_CONSUMERS_MAX, LINKS_MAX, NODES_MAX, REASON_BYTES_MAX};
    let long = |number: usize| name(&format!("{number:0>63}"));
    let domain =
        FailureDomain { host: Some(long(1)), power: Some(long(2)), network: Some(long(3)), zone: Some(long(4)) };
    let far = WallTime(1 << 42);
    let record = NodeRecord {
        name: long(1),
        public: [7; 32],
        roles: BTreeSet::from([Role::Control, Role::Relay, Role::Node]),
        advertised: Some("x".repeat(ADDRESS_BYTES_MAX)),
        domain,
        joined: far,
        ready: true,
        ready_reason: "x".repeat(REASON_BYTES_MAX),
        drain: Some(Drain::new(Version(1 << 42), far)),
    };
    let listen = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".to_owned();
    let consumers = |link: usize| (0..LINK_CONSUMERS_MAX / LINKS_MAX).map(move |node| NodeId((link + node) as u64));
    let link = |link: usize| LinkRecord {
        name: long(link),
        spec: LinkSpec {
            consumers: consumers(link).map(|node| (node, listen.clone())).collect(),
            target: NodeId(NODES_MAX as u64),
            target_address: "x".repeat(ADDRESS_BYTES_MAX),
            spread: SPREAD_MAX,
        },
        generation: Generation(9),
        made: far,
    };
    let used = Some(TokenUse { node: NodeId(9_999), public: [1; 32], at: far });
    let roles = record.roles.clone();
    let token = TokenRecord { verifier: VerifierBytes([1; 32]), roles, expires: far, used, revoked: Some(far) };
    let line = AuditLine { version: Version(1 << 40), at: far, by: NodeId(9_999), what: "x".repeat(500) };
    let mut state = State { cluster: Some(long(0)), authorities: vec![vec![1; 4_096]; 2], ..State::default() };
    state.nodes = (1..=NODES_MAX as u64).map(|node| (NodeId(node), record.clone())).collect();
    state.links = (1..=LINKS_MAX).map(|number| (LinkId(number as u64), link(number))).collect();
    state.tokens =
        (0..TOKENS_REMEMBERED_MAX as u64).map(|number| (TokenId(u64::MAX - number), token.clone())).collect();
    let issuer = IssuerRecord { certificate: vec![1; 4_096], ..issuer(1) };
    state.issuers = (1..=CONTROLS_MAX as u64).map(|node| (NodeId(node), issuer.clone())).collect();
    state.revoked_nodes = (0..crate::limits::REVOKED_NODES_MAX as u64).map(NodeId).collect();
    state.audit = vec![line; AUDIT_LINES_MAX];
    for link in 0..REVOCATIONS_MAX as u64 {
        let revocation = Revocation { below: Generation(u64::MAX), version: Version(1 << 42), at: far };
        state.revocations.revoke(LinkId(1 << 40 | link), revocation);
    }
    let databases = |balancer: usize| {
        let each = BALANCER_DATABASES_MAX / BALANCERS_MAX;
        (0..each).map(move |at| (format!("{balancer:0>30}{at:0>33}"), "x".repeat(ADDRESS_BYTES_MAX))).collect()
    };
    let on: BTreeSet<NodeId> = (0..BALANCER_RUNNERS_MAX as u64).map(|at| NodeId(NODES_MAX as u64 - at)).collect();
    let balancer = |number: usize| BalancerRecord {
        spec: BalancerSpec { databases: databases(number), on: on.clone() },
        made: far,
        changed: Version(1 << 42),
    };
    state.balancers = (0..BALANCERS_MAX).map(|number| (long(number), balancer(number))).collect();
    let bytes = wire::encode(&state);
    assert!(bytes.len() < MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
    assert!(wire::decode::<State>(&bytes) == Ok(state), "the state must be read as it was written");
}

fn any_name() -> impl Strategy<Value = Name> {
    (0_u8..6).prop_map(|number| name(&format!("x-{number}")))
}

fn any_node() -> impl Strategy<Value = NodeId> {
    (0_u64..9).prop_map(NodeId)
}

fn any_enrolment() -> impl Strategy<Value = Enrolment> {
    let address = prop_oneof![Just(None), (0_u8..12).prop_map(|number| Some(format!("192.0.2.{number}:9443")))];
    let host = prop::option::of(any_name());
    (any_name(), 0_u8..9, address, host).prop_map(|(name, key, advertised, host)| Enrolment {
        name,
        public: [key; 32],
        advertised,
        domain: FailureDomain { host, ..FailureDomain::default() },
    })
}

fn any_roles() -> impl Strategy<Value = BTreeSet<Role>> {
    prop::collection::btree_set(prop::sample::select(Role::ALL.to_vec()), 0..3)
}

fn any_link() -> impl Strategy<Value = LinkSpec> {
    let consumers =
        prop::collection::btree_map(any_node(), (0_u8..4).prop_map(|port| format!("127.0.0.1:{port}")), 0..3);
    let address = prop_oneof![Just("db:1".to_owned()), Just("db".to_owned())];
    (consumers, any_node(), address, 0_u8..10).prop_map(|(consumers, target, target_address, spread)| LinkSpec {
        consumers,
        target,
        target_address,
        spread: spread.clamp(1, 9),
    })
}

fn any_balancer() -> impl Strategy<Value = BalancerSpec> {
    let address = prop_oneof![4 => (0_u8..4).prop_map(|at| format!("db-{at}:1")), 1 => Just("db".to_owned())];
    let databases = prop::collection::btree_map((0_u8..5).prop_map(|at| format!("d{at}")), address, 0..3);
    (databases, prop::collection::btree_set(any_node(), 0..3))
        .prop_map(|(databases, on)| BalancerSpec { databases, on })
}

fn any_action() -> impl Strategy<Value = Action> {
    let token = || (0_u64..6).prop_map(TokenId);
    let link = || (0_u64..5).prop_map(LinkId);
    let expires = (0_u64..200).prop_map(|hours| WallTime(START + hours * HOUR));
    prop_oneof![
        1 => Just(found()),
        3 => (token(), any_roles(), expires).prop_map(|(token, roles, expires)| Action::TokenCreate {
            token, verifier: VerifierBytes([1; 32]), roles, expires,
        }),
        1 => token().prop_map(|token| Action::TokenRevoke { token }),
        4 => (token(), any_enrolment()).prop_map(|(token, enrolment)| Action::Enrol { token, enrolment }),
        2 => (any_node(), any_enrolment()).prop_map(|(node, place)| Action::Describe {
            node, advertised: place.advertised, domain: place.domain,
        }),
        1 => any_node().prop_map(|node| Action::NodeRemove { node }),
        1 => (any_node(), 100_u8..104, 60_usize..68).prop_map(|(node, key, length)| Action::Certify {
            node, issuer: IssuerRecord { snapshot_key_signature: vec![1; length.max(64)], ..issuer(key) },
        }),
        1 => any_node().prop_map(|node| Action::Decertify { node }),
        1 => (any_node(), any::<bool>()).prop_map(|(relay, ready)| Action::RelayVerified {
            relay, ready, reason: "seen".to_owned(),
        }),
        4 => (any_name(), any_link()).prop_map(|(name, link)| Action::LinkAdd { name, link }),
        1 => (link(), 0_u8..3).prop_map(|(link, host)| Action::LinkRetarget { link, target_address: format!("db-{host}:1") }),
        1 => link().prop_map(|link| Action::LinkRemove { link }),
        1 => (link(), 0_u8..10).prop_map(|(link, spread)| Action::LinkSpread { link, spread }),
        1 => (0_u64..300).prop_map(|hours| Action::SettingSet { setting: Setting::PolicyLeaseHours(hours) }),
        1 => Just(Action::LeaseRenew),
        1 => (any_node(), any::<bool>()).prop_map(|(relay, draining)| Action::RelayDrain { relay, draining }),
        1 => any_node().prop_map(|relay| Action::RelayDisconnect { relay }),
        1 => (any_node(), 0_u64..40).prop_map(|(relay, began)| Action::DrainUnseen { relay, began: Version(began) }),
        1 => (any_node(), 0_u64..40).prop_map(|(relay, began)| {
            Action::DrainCut { relay, began: Version(began), circuits: 2, flows: began % 3 }
        }),
        4 => (any_name(), any_balancer()).prop_map(|(name, spec)| Action::BalancerAdd { name, spec }),
        2 => (any_name(), any_balancer(), 1_u64..60).prop_map(|(name, spec, changed)| Action::BalancerSet {
            name, spec, changed: Version(changed),
        }),
        1 => any_name().prop_map(|name| Action::BalancerRemove { name }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // A refused command leaves the state equal byte for byte; an accepted one leaves it consistent, no older and
    // decodable; and the same commands give the same state.
    #[test]
    fn refused_commands_change_nothing_and_others_keep_the_state_sound(
        commands in prop::collection::vec((any_action(), any_node(), 0_u64..3, 0_u64..1_000), 1..60),
    ) {
        let mut fleet = Fleet::new();
        let mut twin = fleet.state.clone();
        for (action, by, step, minutes) in commands {
            // Mostly by the control node, so that most are not refused for that.
            let by = if by.0 < 6 { FIRST } else { by };
            fleet.index += step;
            let command = Command { at: WallTime(START + minutes * 60_000), by, expected: None, action };
            let before = wire::encode(&fleet.state);
            let version = fleet.state.version;
            let (time, granted) = (fleet.state.time, fleet.state.grants_issued);
            let outcome = fleet.state.apply(fleet.index, command.clone());
            prop_assert_eq!(twin.apply(fleet.index, command), outcome.clone());
            if outcome.refusal().is_some() || fleet.state.version == version {
                prop_assert_eq!(wire::encode(&fleet.state), before);
            } else {
                prop_assert_eq!(fleet.state.version, Version(fleet.index));
            }
            prop_assert!(fleet.state.time >= time && fleet.state.grants_issued >= granted);
            prop_assert_eq!(state_consistent(&fleet.state), Ok(()));
        }
        prop_assert_eq!(&twin, &fleet.state);
        prop_assert_eq!(wire::decode::<State>(&wire::encode(&twin)), Ok(twin));
    }
}
