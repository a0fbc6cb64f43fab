//! Tables of events and effects, and properties over any order of events.

use proptest::prelude::*;

use super::*;
use crate::{
    drain::Drain,
    grant::{Grant, Right, SignedGrant},
    id::{CircuitId, Generation, TunnelId},
    invariant::{registrations_guarded, relay_consistent, replies_once},
    revocation::{Revocation, Revocations},
    snapshot::Route,
    time::Span,
    verified::Verified,
};

const HOUR: u64 = 3_600_000;
const WALL: u64 = 1_000 * HOUR;
const CONSUMER: NodeId = NodeId(2);
const TARGET: NodeId = NodeId(3);
const LINK: LinkId = LinkId(1);

fn cluster() -> Name {
    "harbour".parse().unwrap()
}

fn grant(link: LinkId, generation: u64, holder: NodeId, right: Right) -> Grant {
    Grant {
        cluster: cluster(),
        link,
        generation: Generation(generation),
        holder,
        target: TARGET,
        right,
        issued: WallTime(WALL - HOUR),
        expires: WallTime(WALL + 90 * HOUR),
    }
}

fn signed() -> SignedGrant {
    SignedGrant { grant: Vec::new(), signer: NodeId(1), key: [1; 32], signature: Vec::new() }
}

/// Nodes 2 to 5 with their number as key; link 1 from 2 to 3, and more as given.
fn policy(version: u64, routes: &[(u64, u64, u64, u64)]) -> Event {
    let route = |&(link, generation, consumer, target): &(u64, u64, u64, u64)| {
        let consumers = BTreeSet::from([NodeId(consumer)]);
        (LinkId(link), Route { generation: Generation(generation), consumers, target: NodeId(target) })
    };
    let nodes = (2..=5).map(|node| (NodeId(node), [node as u8; 32])).collect();
    Event::Policy {
        cluster: cluster(),
        version: Version(version),
        issued: WallTime(WALL),
        ends: WallTime(WALL + 72 * HOUR),
        policy: Box::new(Policy { nodes, routes: routes.iter().map(route).collect(), drain: None }),
    }
}

/// The same for a relay that drains, and disconnects what is left so many milliseconds after the start.
fn draining(version: u64, ends_ms: u64) -> Event {
    let Event::Policy { cluster, version, issued, ends, mut policy } = policy(version, &[(1, 1, 2, 3)]) else {
        unreachable!("it makes a policy")
    };
    policy.drain = Some(Drain { version, since: WallTime(WALL), ends: WallTime(WALL + ends_ms), settled: false });
    Event::Policy { cluster, version, issued, ends, policy }
}

struct Bench {
    relay: Relay,
    now: Moment,
    next: u64,
    /// What was asked and not answered yet.
    asked: BTreeSet<ReplyId>,
}

impl Bench {
    fn bare() -> Self {
        Self { relay: Relay::default(), now: Moment(1), next: 0, asked: BTreeSet::new() }
    }

    /// A relay with the policy v7; the target on connection 11 and the consumer on 12, link 1 registered.
    fn new() -> Self {
        let mut bench = Self::bare();
        bench.on(policy(7, &[(1, 1, 2, 3)]));
        bench.join(11, TARGET, 1);
        bench.join(12, CONSUMER, 1);
        assert_eq!(bench.register(11, 1), [done()]);
        bench
    }

    fn turn(&self) -> Turn {
        Turn { now: self.now, wall: WallTime(WALL + self.now.0 / 1_000_000), chance: 7 }
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        let before = self.relay.clone();
        let mut effects = Vec::new();
        if let Event::Request { reply, .. } = &event {
            assert!(self.asked.insert(*reply));
        }
        self.relay.on(self.turn(), event, &mut effects);
        relay_consistent(&self.relay).unwrap();
        registrations_guarded(&before, &self.relay).unwrap();
        replies_once(&self.asked, &effects, &self.relay).unwrap();
        self.asked = self.relay.owed();
        effects
    }

    fn wait(&mut self, millis: u64) -> Vec<Effect> {
        let until = self.now.after(Span::from_millis(millis));
        let mut effects = Vec::new();
        while self.now < until {
            self.now = self.now.after(Span::from_millis(250)).min(until);
            effects.extend(self.on(Event::Timer(Timer::Sweep)));
        }
        effects.retain(|effect| !matches!(effect, Effect::Ping { .. } | Effect::Start { .. }));
        effects
    }

    fn hear(&mut self, connections: &[u64]) {
        for connection in connections {
            self.on(Event::Heard { connection: *connection });
        }
    }

    fn connect(&mut self, connection: u64, node: NodeId) -> Vec<Effect> {
        self.on(Event::Connected { connection, node, public: [node.0 as u8; 32] })
    }

    fn join(&mut self, connection: u64, node: NodeId, session: u64) {
        self.connect(connection, node);
        let effects = self.ask(connection, hello(session), Presented::Absent);
        assert!(
            matches!(effects.last(), Some(Effect::Reply { response: NodeResponse::Welcome { .. }, .. })),
            "{effects:?}"
        );
    }

    fn ask(&mut self, connection: u64, request: NodeRequest, grant: Presented) -> Vec<Effect> {
        self.next += 1;
        let draws = [1, 2, 3, 4].map(|draw| ChannelToken(self.next * 10 + draw));
        self.on(Event::Request { connection, reply: ReplyId(self.next), request, grant, draws })
    }

    /// The responses among these effects.
    fn responses(effects: Vec<Effect>) -> Vec<NodeResponse> {
        let response = |effect| match effect {
            Effect::Reply { response, .. } => Some(response),
            _ => None,
        };
        effects.into_iter().filter_map(response).collect()
    }

    fn register(&mut self, connection: u64, generation: u64) -> Vec<NodeResponse> {
        let good = Presented::Good(Verified::vouch(grant(LINK, generation, TARGET, Right::Register)));
        let effects = self.ask(connection, register(generation), good);
        Self::responses(effects)
    }

    fn admit(&mut self, generation: u64) -> Vec<Effect> {
        let good = Presented::Good(Verified::vouch(grant(LINK, generation, CONSUMER, Right::Open)));
        self.ask(12, admit(generation), good)
    }

    fn answer_last(&mut self, response: Result<RelayResponse, String>) -> Vec<Effect> {
        let ask = self.relay.last_ask;
        self.on(Event::Answered { ask, response })
    }
}

fn hello(session: u64) -> NodeRequest {
    NodeRequest::Hello { session: Generation(session) }
}

fn register(generation: u64) -> NodeRequest {
    NodeRequest::Register { link: LINK, generation: Generation(generation), grant: signed() }
}

fn admit(generation: u64) -> NodeRequest {
    NodeRequest::Admit { tunnel: TunnelId(9), link: LINK, generation: Generation(generation), grant: signed() }
}

fn open(circuit: u64, peer: NodeId) -> NodeRequest {
    NodeRequest::ChannelOpen { circuit: CircuitId(circuit), peer }
}

fn done() -> NodeResponse {
    NodeResponse::Done
}

fn codes(effects: Vec<Effect>) -> Vec<String> {
    let code = |response| match response {
        NodeResponse::Refused(refusal) => refusal.code,
        other => format!("{other:?}"),
    };
    Bench::responses(effects).into_iter().map(code).collect()
}

#[test]
fn a_tunnel_is_admitted_once_its_target_knows() {
    let mut bench = Bench::new();
    let effects = bench.admit(1);
    let request =
        RelayRequest::Admission { tunnel: TunnelId(9), link: LINK, generation: Generation(1), consumer: CONSUMER };
    assert_eq!(effects, [Effect::Ask { connection: 11, ask: 1, request }]);
    let effects = bench.answer_last(Ok(RelayResponse::Done));
    assert_eq!(Bench::responses(effects), [NodeResponse::Admitted { target: TARGET }]);
    assert_eq!(bench.relay.counters.admitted, 1);
    bench.admit(1);
    assert_eq!(codes(bench.answer_last(Err("too late".to_owned()))), [code::PEER_ABSENT]);
    bench.admit(1);
    let refused = Refusal::new("NOT_MINE", "no such link", "");
    assert_eq!(codes(bench.answer_last(Ok(RelayResponse::Refused(refused)))), [code::PEER_REFUSED]);
    assert_eq!(bench.relay.counters.refused[code::PEER_REFUSED], 1);
}

#[test]
fn tunnels_are_admitted_ahead_as_one() {
    let mut bench = Bench::new();
    let lot = |count| NodeRequest::AdmitAhead {
        tunnels: (0..count).map(TunnelId).collect(),
        link: LINK,
        generation: Generation(1),
        grant: signed(),
    };
    let most = AHEAD_LOT_MAX as u64;
    let good = || Presented::Good(Verified::vouch(grant(LINK, 1, CONSUMER, Right::Open)));
    for count in [0, most + 1, 100_000] {
        assert_eq!(codes(bench.ask(12, lot(count), good())), [code::TOO_MANY], "{count}");
    }
    let effects = bench.ask(12, lot(most), good());
    let tunnels = (0..most).map(TunnelId).collect();
    let request = RelayRequest::AdmissionAhead { tunnels, link: LINK, generation: Generation(1), consumer: CONSUMER };
    assert_eq!(effects, [Effect::Ask { connection: 11, ask: 1, request }]);
    let effects = bench.answer_last(Ok(RelayResponse::Done));
    assert_eq!(Bench::responses(effects), [NodeResponse::Admitted { target: TARGET }]);
    assert_eq!(bench.relay.counters.admitted, most);
    assert_eq!(codes(bench.ask(12, lot(1), Presented::Bad)), [code::GRANT_UNTRUSTED]);
}

#[test]
fn a_request_before_the_hello_is_refused() {
    let mut bench = Bench::new();
    bench.connect(13, NodeId(4));
    assert_eq!(codes(bench.ask(13, open(1, TARGET), Presented::Absent)), [code::SESSION_NOT_GREETED]);
    assert_eq!(codes(bench.ask(99, hello(1), Presented::Absent)), [code::SESSION_REPLACED]);
    // A node that is not in the policy, or has another key, waits for the policy and is sent away then.
    bench.on(Event::Connected { connection: 14, node: NodeId(5), public: [99; 32] });
    assert_eq!(bench.ask(14, hello(1), Presented::Absent), []);
    for _ in 0..10 {
        bench.hear(&[11, 12, 13, 14]);
        let effects = bench.wait(1_000);
        if !effects.is_empty() {
            assert!(matches!(effects.last(), Some(Effect::CloseSession { connection: 14, .. })));
            assert_eq!(codes(effects), [code::SESSION_NOT_ALLOWED]);
        }
    }
    assert!(!bench.relay.connections.contains_key(&14));
}

// RP-40, R15: a draining relay says so on every session, takes no new tunnel, keeps its channels until its time has run
// out and then closes them; back in service it admits again.
#[test]
fn a_draining_relay_takes_nothing_new_and_disconnects_in_the_end() {
    let mut bench = Bench::new();
    bench.ask(12, open(5, TARGET), Presented::Absent);
    bench.answer_last(Ok(RelayResponse::Done));
    let told = |connection, version, draining| Effect::Tell {
        connection,
        request: RelayRequest::Drain { version: Version(version), draining },
    };
    let effects = bench.on(draining(8, 2_000));
    assert_eq!(effects, [told(12, 8, true), told(11, 8, true)]);
    assert_eq!(bench.on(draining(9, 2_000)), [], "said once");
    assert_eq!(codes(bench.admit(1)), [code::RELAY_DRAINING]);
    bench.connect(13, NodeId(4));
    let effects = bench.ask(13, hello(1), Presented::Absent);
    assert_eq!(effects[0], told(13, 9, true), "who comes later hears it too");
    bench.hear(&[11, 12, 13]);
    assert_eq!(bench.wait(1_750), []);
    assert_eq!(bench.relay.channels.len(), 1, "a last resort until then");
    let effects = bench.wait(250);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::SwitchClose { .. })), "{effects:?}");
    assert!(bench.relay.channels.is_empty());
    assert_eq!(codes(bench.ask(12, open(6, TARGET), Presented::Absent)), [code::RELAY_DRAINING]);
    bench.hear(&[11, 12, 13]);
    let effects = bench.on(policy(10, &[(1, 1, 2, 3)]));
    assert_eq!(effects, [told(12, 10, false), told(11, 10, false), told(13, 10, false)]);
    assert!(matches!(bench.admit(1)[..], [Effect::Ask { connection: 11, .. }]));
    assert!(bench.ask(12, open(7, TARGET), Presented::Absent).len() == 2);
}

fn revoked(version: u64, routes: &[(u64, u64)]) -> Event {
    let mut revocations = Revocations::default();
    for (link, below) in routes {
        let revocation = Revocation { below: Generation(*below), version: Version(version), at: WallTime(WALL) };
        revocations.revoke(LinkId(*link), revocation);
    }
    Event::Revoked { revocations: Verified::vouch(revocations) }
}

// RP-35, R11: revocations count whatever the policy says; they are cumulative, and every session hears what was applied.
#[test]
fn a_revoked_route_is_admitted_no_more_though_the_policy_has_it() {
    let mut bench = Bench::new();
    let told = |connection, version, revocations| Effect::Tell {
        connection,
        request: RelayRequest::Applied { version: Version(version), revocations: Version(revocations) },
    };
    let effects = bench.on(revoked(9, &[(1, u64::MAX)]));
    assert_eq!(effects, [told(12, 9, 9), told(11, 9, 9)]);
    assert!(bench.relay.registrations.is_empty());
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH]);
    assert!(matches!(&bench.register(11, 1)[..], [NodeResponse::Refused(_)]));
    assert_eq!(bench.on(revoked(8, &[])), [], "older ones take nothing back");
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH]);
    bench.connect(13, NodeId(4));
    assert!(bench.ask(13, hello(1), Presented::Absent).contains(&told(13, 9, 9)), "who comes later hears it too");
    bench.on(policy(12, &[(1, 1, 2, 3)]));
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH], "a policy that is behind brings no route back");
}

// RP-31: the registration of a retargeted link stays until the new one comes; meanwhile nothing is admitted by it.
#[test]
fn the_registration_before_stays_until_the_new_one_comes() {
    let mut bench = Bench::new();
    bench.on(policy(9, &[(1, 2, 2, 3)]));
    bench.on(revoked(9, &[(1, 2)]));
    assert_eq!(bench.relay.registrations[&LINK].generation, Generation(1));
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH]);
    assert_eq!(bench.admit(2), [], "a tunnel of the new route waits for its endpoint");
    let good = Presented::Good(Verified::vouch(grant(LINK, 2, TARGET, Right::Register)));
    let effects = bench.ask(11, register(2), good);
    assert_eq!(effects.len(), 2, "{effects:?}");
    assert!(matches!(effects[1], Effect::Ask { connection: 11, .. }), "the waiting tunnel goes on: {effects:?}");
    assert_eq!(bench.relay.registrations[&LINK].generation, Generation(2));
}

// RP-40: force-disconnect ends the wait at once.
#[test]
fn a_forced_drain_disconnects_at_once() {
    let mut bench = Bench::new();
    bench.ask(12, open(5, TARGET), Presented::Absent);
    bench.answer_last(Ok(RelayResponse::Done));
    bench.on(draining(8, 600_000));
    assert_eq!(bench.relay.channels.len(), 1);
    let effects = bench.on(draining(9, 0));
    let closed = |effect: &Effect| matches!(effect, Effect::Tell { request: RelayRequest::ChannelClosed { .. }, .. });
    assert_eq!(effects.iter().filter(|effect| closed(effect)).count(), 2, "{effects:?}");
    assert_eq!(bench.relay.figures().channels, 0);
}

// R5: generation 7 registers, freezes, 8 registers, then the goodbye of 7 arrives, soon or late.
#[test]
fn a_late_goodbye_ends_nothing_newer() {
    let mut bench = Bench::bare();
    bench.on(policy(7, &[(1, 1, 2, 3)]));
    bench.join(11, TARGET, 7);
    bench.join(12, CONSUMER, 1);
    bench.register(11, 1);
    bench.connect(21, TARGET);
    let effects = bench.ask(21, hello(8), Presented::Absent);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::CloseSession { connection: 11, .. })));
    // The registration serves all along, before it was made again and after.
    assert!(matches!(bench.admit(1)[..], [Effect::Ask { connection: 21, .. }]));
    bench.register(21, 1);
    for connection in [11, 21] {
        let goodbye = NodeRequest::Goodbye { session: Generation(7) };
        bench.ask(connection, goodbye, Presented::Absent);
        bench.on(Event::Disconnected { connection: 11, reason: "late".to_owned() });
        assert!(matches!(bench.admit(1)[..], [Effect::Ask { connection: 21, .. }]));
        for _ in 0..30 {
            bench.hear(&[12, 21]);
            bench.wait(1_000);
        }
    }
    // An older session does not come back.
    bench.connect(31, TARGET);
    assert_eq!(codes(bench.ask(31, hello(7), Presented::Absent)), [code::SESSION_REPLACED]);
    assert_eq!(bench.relay.sessions[&TARGET], 21);
}

// R17: a node that is killed and started again and again has one slot, and is admitted each time.
#[test]
fn a_restarted_node_has_one_slot() {
    let mut bench = Bench::new();
    for session in 2..100 {
        bench.join(100 + session, TARGET, session << 32);
        assert_eq!(bench.relay.sessions.len(), 2);
        bench.hear(&[12, 100 + session]);
        bench.wait(600);
    }
    assert_eq!(bench.relay.connections.len(), 2);
    assert_eq!(bench.relay.counters.replaced, 98);
}

#[test]
fn a_node_has_few_connections() {
    let mut bench = Bench::new();
    for connection in 0..7 {
        assert_eq!(bench.connect(100 + connection, TARGET), []);
    }
    assert!(matches!(bench.connect(200, TARGET)[..], [Effect::CloseSession { connection: 200, .. }]));
}

// RP-33
#[test]
fn a_silent_node_is_dropped_and_its_tunnels_too() {
    let mut bench = Bench::new();
    bench.ask(12, open(5, TARGET), Presented::Absent);
    bench.answer_last(Ok(RelayResponse::Done));
    bench.admit(1);
    bench.wait(3_000);
    bench.hear(&[12]);
    let effects = bench.wait(500);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::SwitchClose { .. })));
    let closed = RelayRequest::ChannelClosed {
        circuit: CircuitId(5),
        peer: TARGET,
        reason: "nothing came from the node for 3500 ms".to_owned(),
    };
    assert!(effects.contains(&Effect::Tell { connection: 12, request: closed }));
    assert_eq!(codes(effects), [code::PEER_ABSENT]);
    assert_eq!(bench.relay.figures(), Figures { sessions: 1, registrations: 0, channels: 0, waiting: 0 });
    assert_eq!(bench.relay.counters.dropped, 1);
}

#[test]
fn sessions_are_pinged_each_second_and_sweeping_ends_with_them() {
    let mut bench = Bench::new();
    bench.now = bench.now.after(Span::from_secs(1));
    let effects = bench.on(Event::Timer(Timer::Sweep));
    let ping = |connection| Effect::Ping { connection, sequence: 1 };
    let sweep = Effect::Start { timer: Timer::Sweep, after_ms: 250 };
    assert_eq!(effects, [ping(11), ping(12), sweep]);
    bench.now = bench.now.after(Span::from_millis(250));
    assert!(!bench.on(Event::Timer(Timer::Sweep)).iter().any(|effect| matches!(effect, Effect::Ping { .. })));
    for connection in [11, 12] {
        bench.on(Event::Disconnected { connection, reason: "gone".to_owned() });
    }
    assert_eq!(bench.on(Event::Timer(Timer::Sweep)), []);
}

#[test]
fn a_channel_joins_two_sessions() {
    let mut bench = Bench::new();
    let effects = bench.ask(12, open(5, TARGET), Presented::Absent);
    let [Effect::SwitchOpen { ends: [one, other] }, Effect::Ask { connection: 11, request, .. }] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!((one.connection, other.connection), (12, 11));
    let circuit = CircuitId(5);
    let (token_out, token_in) = (other.token_out, other.token_in);
    assert_eq!(*request, RelayRequest::ChannelOffer { circuit, peer: CONSUMER, token_out, token_in });
    // The peer asks for the same one meanwhile.
    assert_eq!(bench.ask(11, open(5, CONSUMER), Presented::Absent), []);
    let opened = |end: &ChannelEnd| NodeResponse::ChannelOpened { token_out: end.token_out, token_in: end.token_in };
    let responses = Bench::responses(bench.answer_last(Ok(RelayResponse::Done)));
    assert_eq!(responses, [opened(one), opened(other)]);
    assert_eq!(Bench::responses(bench.ask(12, open(5, TARGET), Presented::Absent)), [opened(one)]);
    // Closed at one end, it is closed at both.
    let close = NodeRequest::ChannelClose { circuit, peer: CONSUMER };
    let effects = bench.ask(11, close.clone(), Presented::Absent);
    assert!(effects.contains(&Effect::SwitchClose { tokens: [one.token_out, other.token_out] }));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Tell { connection: 12, .. })));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Tell { connection: 11, .. })));
    assert_eq!(Bench::responses(bench.ask(11, close, Presented::Absent)), [done()]);
}

#[test]
fn a_channel_is_refused_without_route_or_peer() {
    let mut bench = Bench::new();
    bench.join(14, NodeId(4), 1);
    assert_eq!(codes(bench.ask(12, open(5, NodeId(4)), Presented::Absent)), [code::POLICY_MISMATCH]);
    assert_eq!(codes(bench.ask(12, open(5, CONSUMER), Presented::Absent)), [code::POLICY_MISMATCH]);
    let effects = bench.ask(12, open(5, TARGET), Presented::Absent);
    assert!(matches!(effects[0], Effect::SwitchOpen { .. }));
    let refusal = Refusal::new("TOO_MANY", "no room", "");
    let effects = bench.answer_last(Ok(RelayResponse::Refused(refusal)));
    assert!(matches!(effects[0], Effect::SwitchClose { .. }));
    assert_eq!(codes(effects), [code::PEER_REFUSED]);
    // One that did not answer in time is told that there is no channel.
    bench.ask(12, open(6, TARGET), Presented::Absent);
    let effects = bench.answer_last(Err("too late".to_owned()));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Tell { connection: 11, .. })));
    assert_eq!(codes(effects), [code::PEER_ABSENT]);
    bench.on(Event::Disconnected { connection: 11, reason: "gone".to_owned() });
    assert_eq!(codes(bench.ask(12, open(5, TARGET), Presented::Absent)), [code::PEER_ABSENT]);
}

#[test]
fn channels_of_a_pair_are_bounded() {
    let mut bench = Bench::new();
    for circuit in 0..64 {
        bench.ask(12, open(circuit, TARGET), Presented::Absent);
        bench.answer_last(Ok(RelayResponse::Done));
    }
    assert_eq!(codes(bench.ask(12, open(64, TARGET), Presented::Absent)), [code::TOO_MANY]);
    assert_eq!(bench.relay.counters.channels_opened, 64);
}

#[test]
fn a_session_is_owed_few_answers() {
    let mut bench = Bench::new();
    for _ in 0..256 {
        assert!(matches!(bench.admit(1)[..], [Effect::Ask { .. }]));
    }
    assert_eq!(codes(bench.admit(1)), [code::TOO_MANY]);
    bench.answer_last(Ok(RelayResponse::Done));
    assert!(matches!(bench.admit(1)[..], [Effect::Ask { .. }]));
}

// RP-35, R11: a route that is gone takes its registration and its channels along.
#[test]
fn a_revoked_route_ends_what_it_allowed() {
    let mut bench = Bench::new();
    bench.ask(12, open(5, TARGET), Presented::Absent);
    bench.answer_last(Ok(RelayResponse::Done));
    // The same content again, as a renewed lease has it, touches nothing.
    assert_eq!(bench.on(policy(8, &[(1, 1, 2, 3)])), []);
    let effects = bench.on(policy(9, &[]));
    assert!(matches!(effects[0], Effect::SwitchClose { .. }));
    let told = effects.iter().filter(|effect| matches!(effect, Effect::Tell { .. })).count();
    assert_eq!((told, bench.relay.registrations.len(), bench.relay.channels.len()), (2, 0, 0));
    // Granted before this policy was issued and not in it: revoked, refused at once.
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH]);
    // An older policy changes nothing.
    bench.on(policy(7, &[(1, 1, 2, 3)]));
    assert_eq!(bench.relay.policy.as_ref().unwrap().version, Version(9));
}

// RP-31: the previous generation serves until the new one is registered.
#[test]
fn a_new_generation_replaces_the_old_one_when_it_is_registered() {
    let mut bench = Bench::new();
    // RP-32: registered ahead of the policy, it waits, and the old one goes on.
    assert_eq!(bench.register(11, 2), []);
    assert!(matches!(bench.admit(1)[..], [Effect::Ask { .. }]));
    let effects = bench.on(policy(8, &[(1, 2, 2, 3)]));
    assert_eq!(Bench::responses(effects), [done()]);
    assert_eq!(bench.relay.registrations[&LINK].generation, Generation(2));
    // The old generation is revoked now, for tunnels and registrations.
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH]);
    assert!(matches!(bench.register(11, 1)[..], [NodeResponse::Refused(_)]));
    // A late end of the old one ends nothing.
    let old = NodeRequest::Unregister { link: LINK, generation: Generation(1) };
    assert_eq!(Bench::responses(bench.ask(11, old, Presented::Absent)), [done()]);
    assert!(matches!(bench.admit(2)[..], [Effect::Ask { .. }]));
    let new = NodeRequest::Unregister { link: LINK, generation: Generation(2) };
    bench.ask(11, new, Presented::Absent);
    assert!(bench.relay.registrations.is_empty());
}

// RP-32: ahead of the policy by its generation, a tunnel waits for the policy and then for the registration.
#[test]
fn a_tunnel_waits_for_its_policy_and_its_endpoint() {
    let mut bench = Bench::new();
    assert_eq!(bench.admit(2), []);
    bench.on(policy(8, &[(1, 2, 2, 3)]));
    assert_eq!(bench.relay.figures().waiting, 1);
    let good = Presented::Good(Verified::vouch(grant(LINK, 2, TARGET, Right::Register)));
    let effects = bench.ask(11, register(2), good);
    assert!(matches!(effects[..], [Effect::Reply { .. }, Effect::Ask { connection: 11, .. }]));
    // One whose policy never comes is refused after 10 s, one without endpoint after 1 s.
    assert_eq!(bench.admit(3), []);
    let mut refused = Vec::new();
    for _ in 0..11 {
        bench.hear(&[11, 12]);
        refused.push(codes(bench.wait(1_000)));
    }
    assert_eq!(refused.concat(), [code::POLICY_MISMATCH]);
    assert_eq!(refused[9], [code::POLICY_MISMATCH]);
    bench.ask(11, NodeRequest::Unregister { link: LINK, generation: Generation(2) }, Presented::Absent);
    assert_eq!(bench.admit(2), []);
    assert_eq!(codes(bench.wait(1_000)), [code::ENDPOINT_ABSENT]);
}

#[test]
fn an_unknown_signer_is_looked_up_in_the_next_policy() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(12, admit(1), Presented::Unknown), []);
    let effects = bench.on(policy(8, &[(1, 1, 2, 3)]));
    let [Effect::Check { waiting, .. }] = effects[..] else { panic!("{effects:?}") };
    let good = Presented::Good(Verified::vouch(grant(LINK, 1, CONSUMER, Right::Open)));
    let effects = bench.on(Event::Checked { waiting, grant: good });
    assert!(matches!(effects[..], [Effect::Ask { connection: 11, .. }]));
    assert_eq!(codes(bench.ask(12, admit(1), Presented::Bad)), [code::GRANT_UNTRUSTED]);
    assert_eq!(codes(bench.ask(12, admit(1), Presented::Absent)), [code::GRANT_UNTRUSTED]);
}

#[test]
fn a_grant_of_another_is_refused() {
    let mut bench = Bench::new();
    let good = |grant| Presented::Good(Verified::vouch(grant));
    let other = good(grant(LINK, 1, NodeId(4), Right::Open));
    assert_eq!(codes(bench.ask(12, admit(1), other)), [code::POLICY_MISMATCH]);
    let right = good(grant(LINK, 1, CONSUMER, Right::Register));
    assert_eq!(codes(bench.ask(12, admit(1), right)), [code::POLICY_MISMATCH]);
    // A consumer's grant, but the policy has another consumer by now.
    bench.on(policy(8, &[(1, 1, 4, 3)]));
    assert_eq!(codes(bench.admit(1)), [code::POLICY_MISMATCH]);
    let ended = Grant { expires: WallTime(WALL), ..grant(LINK, 1, CONSUMER, Right::Open) };
    assert_eq!(codes(bench.ask(12, admit(1), good(ended))), [code::GRANT_EXPIRED]);
}

// RP-62: without policy everybody waits 10 s for it and is refused with these words; with one they are welcomed.
#[test]
fn without_policy_a_snapshot_is_required() {
    let mut bench = Bench::bare();
    bench.connect(11, TARGET);
    assert_eq!(bench.ask(11, hello(1), Presented::Absent), []);
    bench.wait(2_000);
    let effects = bench.on(policy(7, &[]));
    assert_eq!(Bench::responses(effects), [NodeResponse::Welcome { policy: Version(7) }]);
    let mut bench = Bench::bare();
    bench.connect(11, TARGET);
    bench.ask(11, hello(1), Presented::Absent);
    let mut effects = Vec::new();
    for _ in 0..10 {
        bench.hear(&[11]);
        effects.extend(bench.wait(1_000));
    }
    let [Effect::Reply { response: NodeResponse::Refused(refusal), .. }, Effect::CloseSession { .. }] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert!(refusal.message.contains("policy snapshot is required"));
}

// R18, RP-25: new flows until the lease ends, to the millisecond; what is open lives on.
#[test]
fn the_lease_ends_admission_and_nothing_else() {
    let mut bench = Bench::new();
    bench.ask(12, open(5, TARGET), Presented::Absent);
    bench.answer_last(Ok(RelayResponse::Done));
    bench.now = Moment(1).after(Span::from_hours(72));
    bench.now = Moment(bench.now.0 - 1);
    assert!(matches!(bench.admit(1)[..], [Effect::Ask { .. }]));
    bench.now = Moment(1).after(Span::from_hours(72));
    bench.hear(&[11, 12]);
    assert_eq!(codes(bench.admit(1)), [code::POLICY_EXPIRED]);
    assert!(
        matches!(&bench.register(11, 1)[..], [NodeResponse::Refused(refusal)] if refusal.code == code::POLICY_EXPIRED)
    );
    assert_eq!(bench.relay.figures(), Figures { sessions: 2, registrations: 1, channels: 1, waiting: 0 });
    // A flow's circuit still finds its way here, and a session that dropped comes back.
    bench.join(22, CONSUMER, 2);
    assert!(matches!(
        bench.ask(22, open(6, TARGET), Presented::Absent)[..],
        [Effect::SwitchOpen { .. }, Effect::Ask { .. }]
    ));
    // The next lease mends it without a restart.
    let Event::Policy { cluster, policy, .. } = policy(9, &[(1, 1, 2, 3)]) else { unreachable!() };
    let (issued, ends) = (bench.turn().wall, bench.turn().wall.after(Span::from_hours(72)));
    bench.on(Event::Policy { cluster, version: Version(9), issued, ends, policy });
    assert!(matches!(&bench.register(11, 1)[..], [NodeResponse::Done]));
}

// RP-34: a node that says goodbye keeps its registrations for a while, and consumers hear that it restarts.
#[test]
fn a_node_that_restarts_is_waited_for() {
    let mut bench = Bench::new();
    let goodbye = NodeRequest::Goodbye { session: Generation(1) };
    let effects = bench.ask(11, goodbye, Presented::Absent);
    assert!(matches!(effects[..], [Effect::Reply { .. }, Effect::CloseSession { connection: 11, .. }]));
    let effects = bench.admit(1);
    let [Effect::Reply { response: NodeResponse::Refused(refusal), .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(
        (refusal.code.as_str(), refusal.message.as_str()),
        (code::ENDPOINT_RESTARTING, "target endpoint is restarting")
    );
    bench.join(21, TARGET, 2);
    assert!(matches!(bench.admit(1)[..], [Effect::Ask { connection: 21, .. }]));
    bench.ask(21, NodeRequest::Goodbye { session: Generation(2) }, Presented::Absent);
    bench.hear(&[12]);
    bench.on(Event::Disconnected { connection: 12, reason: "gone".to_owned() });
    bench.wait(15_000);
    assert_eq!(bench.relay.figures(), Figures { sessions: 0, registrations: 0, channels: 0, waiting: 0 });
}

// R12: a removed node, or an old identity, is sent away with the policy that no longer has it.
#[test]
fn a_removed_node_loses_its_session() {
    let mut bench = Bench::new();
    let Event::Policy { cluster, version, issued, ends, mut policy } = policy(8, &[(1, 1, 2, 3)]) else {
        unreachable!()
    };
    policy.nodes.insert(TARGET, [77; 32]);
    let effects = bench.on(Event::Policy { cluster, version, issued, ends, policy });
    assert!(matches!(effects[..], [Effect::CloseSession { connection: 11, .. }]));
    assert_eq!(bench.relay.figures().sessions, 1);
}

fn any_request() -> impl Strategy<Value = (NodeRequest, u8)> {
    let node = || (2_u64..6).prop_map(NodeId);
    let generation = || (1_u64..4).prop_map(Generation);
    let link = || (1_u64..4).prop_map(LinkId);
    let circuit = || (0_u64..3).prop_map(CircuitId);
    let request = prop_oneof![
        3 => (1_u64..6).prop_map(hello),
        1 => Just(NodeRequest::Ping { sequence: 1 }),
        4 => (link(), generation()).prop_map(|(link, generation)| NodeRequest::Register { link, generation, grant: signed() }),
        1 => (link(), generation()).prop_map(|(link, generation)| NodeRequest::Unregister { link, generation }),
        3 => (circuit(), node()).prop_map(|(circuit, peer)| NodeRequest::ChannelOpen { circuit, peer }),
        1 => (circuit(), node()).prop_map(|(circuit, peer)| NodeRequest::ChannelClose { circuit, peer }),
        4 => (link(), generation()).prop_map(|(link, generation)| NodeRequest::Admit {
            tunnel: TunnelId(1), link, generation, grant: signed(),
        }),
        2 => (link(), generation(), 0_u64..40).prop_map(|(link, generation, count)| NodeRequest::AdmitAhead {
            tunnels: (0..count).map(TunnelId).collect(), link, generation, grant: signed(),
        }),
        1 => (1_u64..6).prop_map(|session| NodeRequest::Goodbye { session: Generation(session) }),
    ];
    (request, 0_u8..10)
}

#[derive(Clone, Debug)]
enum Act {
    Policy(Vec<(u64, u64, u64, u64)>),
    Connect(u64, u64),
    Disconnect(u64),
    Request(u64, NodeRequest, u8),
    Answer(u64, bool),
    Check(u64, bool),
    Pass(u64),
}

fn any_act() -> impl Strategy<Value = Act> {
    let route = (1_u64..4, 1_u64..4, 2_u64..4, 4_u64..6);
    prop_oneof![
        1 => prop::collection::vec(route, 0..4).prop_map(Act::Policy),
        2 => (0_u64..8, 2_u64..6).prop_map(|(connection, node)| Act::Connect(connection, node)),
        1 => (0_u64..8).prop_map(Act::Disconnect),
        9 => (0_u64..8, any_request()).prop_map(|(connection, (request, found))| Act::Request(connection, request, found)),
        4 => (0_u64..40, any::<bool>()).prop_map(|(ask, good)| Act::Answer(ask, good)),
        1 => (0_u64..40, any::<bool>()).prop_map(|(waiting, good)| Act::Check(waiting, good)),
        3 => (0_u64..2_000).prop_map(Act::Pass),
    ]
}

/// The grant that fits a request, if it needs one and has a good one.
fn presented(relay: &Relay, connection: u64, request: &NodeRequest, found: u8) -> Presented {
    let holder = relay.connections.get(&connection).map_or(NodeId(0), |known| known.node);
    let fitting = |link: LinkId, generation: Generation, right, target| {
        Presented::Good(Verified::vouch(Grant { target, ..grant(link, generation.0, holder, right) }))
    };
    match (found, request) {
        (0, _) => Presented::Unknown,
        (1, _) => Presented::Bad,
        (_, NodeRequest::Register { link, generation, .. }) => fitting(*link, *generation, Right::Register, holder),
        (_, NodeRequest::Admit { link, generation, .. } | NodeRequest::AdmitAhead { link, generation, .. }) => {
            let route = relay.policy.as_ref().and_then(|held| held.policy.routes.get(link));
            fitting(*link, *generation, Right::Open, route.map_or(TARGET, |route| route.target))
        }
        _ => Presented::Absent,
    }
}

impl Bench {
    fn act(&mut self, act: Act, version: u64) {
        match act {
            Act::Policy(routes) => drop(self.on(policy(version, &routes))),
            Act::Connect(connection, node) => drop(self.connect(connection, NodeId(node))),
            Act::Disconnect(connection) => drop(self.on(Event::Disconnected { connection, reason: "gone".to_owned() })),
            Act::Request(connection, request, found) => {
                let grant = presented(&self.relay, connection, &request, found);
                self.ask(connection, request, grant);
            }
            Act::Answer(back, good) => {
                let refused = || RelayResponse::Refused(Refusal::new("NO", "no", ""));
                let response = if good { Ok(RelayResponse::Done) } else { Ok(refused()) };
                let ask = self.relay.last_ask.saturating_sub(back);
                self.on(Event::Answered { ask, response });
            }
            Act::Check(back, good) => {
                let waiting = self.relay.last_waiting.saturating_sub(back);
                let found = if good { Presented::Unknown } else { Presented::Bad };
                self.on(Event::Checked { waiting, grant: found });
            }
            Act::Pass(millis) => drop(self.wait(millis)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // Whatever comes in whatever order: `Bench::on` checks after each event that one session a node, registrations and
    // channels are as they must be, that no registration goes back, and that every request is answered exactly once.
    #[test]
    fn any_order_of_events_keeps_the_relay_sound(acts in prop::collection::vec(any_act(), 1..120)) {
        let mut bench = Bench::bare();
        bench.on(policy(1, &[(1, 1, 2, 4), (2, 1, 3, 5)]));
        for (number, act) in acts.into_iter().enumerate() {
            bench.act(act, 2 + number as u64);
        }
        // In the end everybody is silent and nothing is left.
        bench.wait(30_000);
        prop_assert_eq!(bench.relay.figures(), Figures { sessions: 0, registrations: 0, channels: 0, waiting: 0 });
        prop_assert!(bench.relay.owed().is_empty() && bench.relay.tokens.is_empty() && bench.relay.asks.is_empty());
        prop_assert!(bench.relay.links_of.is_empty() && bench.relay.channels_of.is_empty());
    }
}
