//! Golden bytes of everything that crosses a wire or is kept: nodes of two releases must read each other. Lines are
//! only added; one that changes means that a released message can no longer be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Debug, Write},
};

use postroad_cluster::{
    command::{Action, BalancerSpec, Command, Enrolment, IssuerRecord, LinkSpec, Outcome, Refusal, VerifierBytes},
    domain::FailureDomain,
    drain::Drain,
    grant::{Grant, Right, SignedGrant},
    id::{Challenge, ChannelToken, CircuitId, Generation, LinkId, Name, NodeId, Role, TokenId, TunnelId, Version},
    revocation::{Revocation, RevocationList, Revocations, SignedRevocations},
    setting::Setting,
    snapshot::{
        BalancerView, LinkView, NodeView, Policy, RelayView, Route, SignedSnapshot, SnapshotContent, SnapshotHeader,
    },
    state::{AuditLine, BalancerRecord, LinkRecord, NodeRecord, State, TokenRecord, TokenUse},
    time::{Span, WallTime},
    trace::TraceId,
    wire::{
        Message,
        control::{BalancerReport, CircuitReport, ControlRequest, ControlResponse, Load, Report},
        decode, encode,
        flow::{ClosingFrame, OpenFrame, TrialFrame, TrialKind},
        join::{JoinRequest, JoinResponse},
        session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
    },
};

const FILE: &str = include_str!("golden.txt");

/// The lines of the file against what is written today.
struct Golden {
    known: BTreeMap<&'static str, &'static str>,
    seen: BTreeSet<String>,
    wrong: String,
}

impl Golden {
    fn new() -> Self {
        let lines = FILE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let known: BTreeMap<_, _> = lines.clone().filter_map(|line| line.split_once(' ')).collect();
        assert_eq!(known.len(), lines.count(), "a line of golden.txt is broken or there twice");
        Self { known, seen: BTreeSet::new(), wrong: String::new() }
    }

    fn check<M: Message + PartialEq + Debug>(&mut self, name: &str, message: &M) {
        let bytes = encode(message);
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a string succeeds");
            hex
        });
        assert!(self.seen.insert(name.to_owned()), "{name} is checked twice");
        if self.known.get(name) != Some(&hex.as_str()) {
            writeln!(self.wrong, "{name} {hex}").expect("writing to a string succeeds");
        }
        assert_eq!(decode::<M>(&bytes).as_ref(), Ok(message), "{name}");
    }

    fn end(self) {
        let unread: Vec<_> = self.known.keys().filter(|name| !self.seen.contains(**name)).collect();
        assert!(unread.is_empty(), "messages that no test reads any more: {unread:?}");
        assert!(self.wrong.is_empty(), "new messages, or changed ones (never change a line):\n{}", self.wrong);
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("tests use good names")
}

fn domain() -> FailureDomain {
    FailureDomain { host: Some(name("h1")), power: None, network: Some(name("n1")), zone: None }
}

fn enrolment() -> Enrolment {
    Enrolment { name: name("web-1"), public: [7; 32], advertised: Some("192.0.2.7:9443".to_owned()), domain: domain() }
}

fn issuer() -> IssuerRecord {
    IssuerRecord { certificate: vec![1, 2, 3], snapshot_key: [8; 32], snapshot_key_signature: vec![4, 5, 6] }
}

fn spec() -> LinkSpec {
    LinkSpec {
        consumers: BTreeMap::from([(NodeId(3), "127.0.0.1:5432".to_owned())]),
        target: NodeId(300),
        target_address: "db:5432".to_owned(),
        spread: 2,
    }
}

fn refusal() -> Refusal {
    Refusal::new("TOKEN_USED", "this token was used", "Make another")
}

fn grant() -> Grant {
    Grant {
        cluster: name("harbour"),
        link: LinkId(1),
        generation: Generation(2),
        holder: NodeId(3),
        target: NodeId(300),
        right: Right::Open,
        issued: WallTime(1_700_000_000_000),
        expires: WallTime(1_700_000_360_000),
    }
}

fn signed_grant() -> SignedGrant {
    SignedGrant { grant: vec![1, 2], signer: NodeId(1), key: [9; 32], signature: vec![3, 4] }
}

fn signed_revocations() -> SignedRevocations {
    SignedRevocations { list: vec![1], signer: NodeId(1), key: [8; 32], key_signature: vec![2], signature: vec![3] }
}

fn roles() -> BTreeSet<Role> {
    Role::ALL.into_iter().collect()
}

fn node_view() -> NodeView {
    NodeView { name: name("web-1"), roles: roles(), public: [7; 32], domain: domain() }
}

fn signed_snapshot() -> SignedSnapshot {
    SignedSnapshot {
        header: vec![1],
        signer: NodeId(1),
        key: [2; 32],
        key_signature: vec![3],
        signature: vec![4],
        content: Some(vec![5]),
    }
}

fn trace() -> TraceId {
    TraceId::drawn(7)
}

fn command(action: Action) -> Command {
    Command { at: WallTime(1_700_000_000_000), by: NodeId(1), expected: Some(Version(70_000)), action }
}

fn balancer_spec() -> BalancerSpec {
    let databases = BTreeMap::from([("db-1".to_owned(), "10.0.0.1:5432".to_owned())]);
    BalancerSpec { databases, on: BTreeSet::from([NodeId(3)]) }
}

fn commands(golden: &mut Golden) {
    let node = NodeId(3);
    let link = LinkId(1);
    let actions = [
        Action::Found { cluster: name("harbour"), authority: vec![1, 2], first: enrolment(), issuer: issuer() },
        Action::TokenCreate {
            token: TokenId(u64::MAX),
            verifier: VerifierBytes([5; 32]),
            roles: roles(),
            expires: WallTime(1_700_000_000_000),
        },
        Action::TokenRevoke { token: TokenId(4) },
        Action::Enrol { token: TokenId(4), enrolment: enrolment() },
        Action::Describe { node, advertised: None, domain: domain() },
        Action::NodeRemove { node },
        Action::Certify { node, issuer: issuer() },
        Action::Decertify { node },
        Action::RelayVerified { relay: node, ready: true, reason: "2 of 2".to_owned() },
        Action::LinkAdd { name: name("db"), link: spec() },
        Action::LinkRetarget { link, target_address: "db:1".to_owned() },
        Action::LinkRemove { link },
        Action::SettingSet { setting: Setting::PolicyLeaseHours(71) },
        Action::LeaseRenew,
        Action::RelayDrain { relay: node, draining: true },
        Action::RelayDisconnect { relay: node },
        Action::LinkSpread { link, spread: 8 },
        Action::DrainUnseen { relay: node, began: Version(20) },
        Action::DrainCut { relay: node, began: Version(20), circuits: 2, flows: 300 },
        Action::BalancerAdd { name: name("orders"), spec: balancer_spec() },
        Action::BalancerSet { name: name("orders"), spec: balancer_spec(), changed: Version(7) },
        Action::BalancerRemove { name: name("orders") },
        Action::Note { who: name("ann"), what: "step down".to_owned(), reason: "new disk".to_owned() },
    ];
    for action in actions {
        golden.check(&format!("command.{}", action.kind()), &command(action));
    }
    for (text, setting) in [("grant_hours", Setting::GrantHours(5)), ("flow_wait", Setting::FlowWaitSeconds(61))] {
        golden.check(&format!("command.setting_set.{text}"), &command(Action::SettingSet { setting }));
    }
    golden.check("outcome.done", &Outcome::Done { version: Version(7) });
    golden.check("outcome.enrolled", &Outcome::Enrolled { node, roles: roles() });
    golden.check("outcome.link_added", &Outcome::LinkAdded { link, generation: Generation(2) });
    golden.check("outcome.refused", &Outcome::Refused(refusal()));
}

fn state(golden: &mut Golden) {
    let at = WallTime(1_700_000_000_000);
    let node = NodeRecord {
        name: name("web-1"),
        public: [7; 32],
        roles: roles(),
        advertised: Some("192.0.2.7:9443".to_owned()),
        domain: domain(),
        joined: at,
        ready: true,
        ready_reason: "2 of 2".to_owned(),
        drain: Some(Drain { version: Version(8), since: at, ends: at, settled: true }),
    };
    let token = TokenRecord {
        verifier: VerifierBytes([5; 32]),
        roles: roles(),
        expires: at,
        used: Some(TokenUse { node: NodeId(3), public: [7; 32], at }),
        revoked: Some(at),
    };
    let link = LinkRecord { name: name("db"), spec: spec(), generation: Generation(2), made: at };
    let state = State {
        cluster: Some(name("harbour")),
        authorities: vec![vec![1, 2]],
        version: Version(9),
        time: at,
        grants_issued: at,
        nodes: BTreeMap::from([(NodeId(3), node)]),
        last_node: NodeId(4),
        revoked_nodes: BTreeSet::from([NodeId(4)]),
        tokens: BTreeMap::from([(TokenId(4), token)]),
        issuers: BTreeMap::from([(NodeId(1), issuer())]),
        links: BTreeMap::from([(LinkId(1), link)]),
        last_link: LinkId(1),
        balancers: BTreeMap::from([(
            name("orders"),
            BalancerRecord { spec: balancer_spec(), made: at, changed: Version(9) },
        )]),
        revocations: Revocations {
            version: Version(7),
            routes: BTreeMap::from([(LinkId(1), Revocation { below: Generation(2), version: Version(7), at })]),
        },
        settings: BTreeMap::from([("grant_hours".to_owned(), Setting::GrantHours(5))]),
        audit: vec![AuditLine { version: Version(9), at, by: NodeId(1), what: "link db made".to_owned() }],
    };
    golden.check("state", &state);
    golden.check("state.empty", &State::default());
}

fn snapshots_and_grants(golden: &mut Golden) {
    let header = SnapshotHeader {
        cluster: name("harbour"),
        recipient: NodeId(3),
        version: Version(9),
        issued: WallTime(1_700_000_000_000),
        lease: Span::from_hours(72),
        content_hash: [6; 32],
    };
    let relay = RelayView {
        name: name("fra-1"),
        address: "192.0.2.2:9443".to_owned(),
        domain: domain(),
        local: true,
        ready: false,
        draining: true,
    };
    let link = LinkView {
        name: name("db"),
        generation: Generation(2),
        consumers: BTreeSet::from([NodeId(3)]),
        listen: Some("127.0.0.1:5432".to_owned()),
        target: NodeId(300),
        target_address: None,
        spread: 2,
        grants: vec![signed_grant()],
    };
    let route = Route { generation: Generation(2), consumers: BTreeSet::from([NodeId(3)]), target: NodeId(300) };
    let content = SnapshotContent {
        authorities: vec![vec![1, 2]],
        revoked_nodes: BTreeSet::from([NodeId(4)]),
        issuers: BTreeMap::from([(NodeId(1), issuer())]),
        controls: BTreeMap::from([(NodeId(1), "192.0.2.1:9443".to_owned())]),
        me: node_view(),
        relays: BTreeMap::from([(NodeId(2), relay)]),
        peers: BTreeMap::from([(NodeId(300), node_view())]),
        links: BTreeMap::from([(LinkId(1), link)]),
        policy: Some(Policy {
            nodes: BTreeMap::from([(NodeId(3), [7; 32])]),
            routes: BTreeMap::from([(LinkId(1), route)]),
            drain: Some(Drain { version: Version(8), since: WallTime(1), ends: WallTime(2), settled: false }),
        }),
        flow_wait_seconds: 60,
        revocations: Some(signed_revocations()),
        balancers: BTreeMap::from([(
            name("orders"),
            BalancerView { changed: Version(9), databases: balancer_spec().databases },
        )]),
    };
    golden.check("snapshot.header", &header);
    golden.check("snapshot.content", &content);
    golden.check("snapshot.signed", &signed_snapshot());
    golden.check("snapshot.signed.header_only", &SignedSnapshot { content: None, ..signed_snapshot() });
    golden.check("grant.open", &grant());
    golden.check("grant.register", &Grant { right: Right::Register, ..grant() });
    golden.check("grant.signed", &signed_grant());
    let revocations = Revocations { version: Version(7), routes: BTreeMap::new() };
    golden.check("revocation.list", &RevocationList { cluster: name("harbour"), revocations });
}

fn control(golden: &mut Golden) {
    let relays = BTreeMap::from([(NodeId(1), Ok(1_500)), (NodeId(2), Err("refused".to_owned()))]);
    let loads = BTreeMap::from([(NodeId(2), Load { circuits: 1, flows: 5 })]);
    let applied = BTreeMap::from([(NodeId(2), Version(9))]);
    let report = BalancerReport { changed: Some(Version(9)), primary: Some("db-1".to_owned()), trouble: None };
    let balancers = BTreeMap::from([(name("orders"), report)]);
    let circuits = vec![CircuitReport { peer: NodeId(3), circuit: CircuitId(5), relay: Some(NodeId(2)), flows: 5 }];
    let requests = [
        ("snapshot_after", ControlRequest::SnapshotAfter { have: Version(9), content_hash: Some([6; 32]) }),
        ("certificate_renew", ControlRequest::CertificateRenew { public: [7; 32] }),
        ("propose", ControlRequest::Propose { command: Box::new(command(Action::LeaseRenew)) }),
        (
            "report",
            ControlRequest::Report(Report {
                relays,
                snapshot: Version(9),
                flows: 5,
                loads,
                circuits,
                applied,
                balancers,
            }),
        ),
        ("raft", ControlRequest::Raft { message: vec![1, 2] }),
        ("api", ControlRequest::Api { method: "GET".to_owned(), path: "/api/status".to_owned(), body: vec![b'{'] }),
        ("look", ControlRequest::Look { node: NodeId(3), path: "/api/console/vitals".to_owned() }),
        ("act", ControlRequest::Act { node: NodeId(3), path: "/api/restart/node/control".to_owned() }),
        ("traced", ControlRequest::Report(Report::default()).traced(trace()).expect("requests carry traces")),
    ];
    for (text, request) in requests {
        golden.check(&format!("control.request.{text}"), &request);
    }
    let responses = [
        ("snapshot", ControlResponse::Snapshot(Box::new(signed_snapshot()))),
        ("unchanged", ControlResponse::Unchanged),
        ("certificate", ControlResponse::Certificate { chain: vec![vec![1], vec![2]] }),
        ("outcome", ControlResponse::Outcome(Outcome::Done { version: Version(7) })),
        ("no_leader", ControlResponse::NoLeader { leader: Some(NodeId(2)) }),
        ("done", ControlResponse::Done),
        ("raft", ControlResponse::Raft { message: vec![1, 2] }),
        ("api", ControlResponse::Api { status: 404, body: vec![b'{'] }),
        ("refused", ControlResponse::Refused(refusal())),
        ("snapshot_traced", ControlResponse::SnapshotTraced { trace: trace(), signed: Box::new(signed_snapshot()) }),
    ];
    for (text, response) in responses {
        golden.check(&format!("control.response.{text}"), &response);
    }
}

fn joining(golden: &mut Golden) {
    let request = JoinRequest::Enrol { token: TokenId(4), proof: [3; 32], enrolment: enrolment() };
    golden.check("join.request.enrol", &request);
    let welcome = JoinResponse::Welcome {
        cluster: name("harbour"),
        node: NodeId(3),
        roles: roles(),
        chain: vec![vec![1], vec![2]],
        authorities: vec![vec![3]],
        controls: BTreeMap::from([(NodeId(1), "192.0.2.1:9443".to_owned())]),
    };
    golden.check("join.response.welcome", &welcome);
    golden.check("join.response.refused", &JoinResponse::Refused(refusal()));
}

fn sessions_and_flows(golden: &mut Golden) {
    let (link, generation, grant, peer) = (LinkId(1), Generation(2), signed_grant(), NodeId(300));
    let (circuit, tunnel, session) = (CircuitId(5), TunnelId(u64::MAX), Generation((3 << 32) + 1));
    let requests = [
        ("hello", NodeRequest::Hello { session }),
        ("ping", NodeRequest::Ping { sequence: 251 }),
        ("register", NodeRequest::Register { link, generation, grant: grant.clone() }),
        ("unregister", NodeRequest::Unregister { link, generation }),
        ("channel_open", NodeRequest::ChannelOpen { circuit, peer }),
        ("channel_close", NodeRequest::ChannelClose { circuit, peer }),
        ("admit", NodeRequest::Admit { tunnel, link, generation, grant: grant.clone() }),
        ("goodbye", NodeRequest::Goodbye { session }),
        ("address_proof", NodeRequest::AddressProof { challenge: Challenge(u64::MAX - 1) }),
        ("revocations", NodeRequest::Revocations { signed: Box::new(signed_revocations()) }),
        ("revocations_ask", NodeRequest::RevocationsAsk),
        ("traced", NodeRequest::Ping { sequence: 251 }.traced(trace()).expect("requests carry traces")),
        (
            "admit_ahead",
            NodeRequest::AdmitAhead { tunnels: vec![TunnelId(1), tunnel], link, generation, grant: grant.clone() },
        ),
    ];
    for (text, request) in requests {
        golden.check(&format!("session.node.request.{text}"), &request);
    }
    let (token_out, token_in) = (ChannelToken(u64::MAX), ChannelToken(1));
    let responses = [
        ("welcome", NodeResponse::Welcome { policy: Version(9) }),
        ("done", NodeResponse::Done),
        ("channel_opened", NodeResponse::ChannelOpened { token_out, token_in }),
        ("admitted", NodeResponse::Admitted { target: peer }),
        ("refused", NodeResponse::Refused(refusal())),
        ("revocations", NodeResponse::Revocations { signed: Some(Box::new(signed_revocations())) }),
    ];
    for (text, response) in responses {
        golden.check(&format!("session.node.response.{text}"), &response);
    }
    let requests = [
        ("ping", RelayRequest::Ping { sequence: 251 }),
        ("channel_offer", RelayRequest::ChannelOffer { circuit, peer, token_out, token_in }),
        ("channel_closed", RelayRequest::ChannelClosed { circuit, peer, reason: "gone".to_owned() }),
        ("admission", RelayRequest::Admission { tunnel, link, generation, consumer: NodeId(3) }),
        ("drain", RelayRequest::Drain { version: Version(9), draining: true }),
        ("applied", RelayRequest::Applied { version: Version(9), revocations: Version(7) }),
        ("traced", RelayRequest::Ping { sequence: 251 }.traced(trace()).expect("requests carry traces")),
        (
            "admission_ahead",
            RelayRequest::AdmissionAhead { tunnels: vec![TunnelId(1), tunnel], link, generation, consumer: NodeId(3) },
        ),
    ];
    for (text, request) in requests {
        golden.check(&format!("session.relay.request.{text}"), &request);
    }
    golden.check("session.relay.response.done", &RelayResponse::Done);
    golden.check("session.relay.response.refused", &RelayResponse::Refused(refusal()));
    let open = OpenFrame { tunnel, link, generation, grant };
    golden.check("flow.open", &open);
    golden.check("flow.trial", &TrialFrame { open, kind: TrialKind::Sink });
    golden.check("flow.closing", &ClosingFrame);
}

#[test]
fn every_message_keeps_its_bytes() {
    let mut golden = Golden::new();
    commands(&mut golden);
    state(&mut golden);
    snapshots_and_grants(&mut golden);
    control(&mut golden);
    joining(&mut golden);
    sessions_and_flows(&mut golden);
    golden.end();
}

#[test]
fn a_message_that_was_cut_is_refused() {
    let lines: Vec<_> = FILE.lines().filter(|line| line.starts_with("session.node.request.")).collect();
    assert_eq!(lines.len(), 13);
    for line in lines {
        let (_, hex) = line.split_once(' ').expect("lines have a name and bytes");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("lines hold hex");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        assert!(decode::<NodeRequest>(&bytes).is_ok(), "{line}");
        for length in 0..bytes.len() {
            assert!(decode::<NodeRequest>(&bytes[..length]).is_err(), "{line} cut at {length}");
        }
    }
}
