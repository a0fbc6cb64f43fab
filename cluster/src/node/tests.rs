//! What a node does with each snapshot, certificate and address.

use super::*;
use crate::{
    domain::FailureDomain,
    id::{Name, Version},
    snapshot::{NodeView, SnapshotContent, SnapshotHeader},
};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn relay(address: &str) -> RelayView {
    RelayView {
        name: name("fra"),
        address: address.into(),
        domain: FailureDomain::default(),
        local: false,
        ready: true,
        draining: false,
    }
}

fn link(generation: u64, target: u64) -> LinkView {
    LinkView {
        name: name("db"),
        generation: Generation(generation),
        consumers: BTreeSet::from([NodeId(5)]),
        listen: None,
        target: NodeId(target),
        target_address: Some("127.0.0.1:5432".into()),
        spread: 2,
        grants: vec![SignedGrant { grant: vec![1], signer: NodeId(1), key: [0; 32], signature: vec![] }],
    }
}

fn accepted(version: u64, relays: &[(u64, &str)], links: &[(u64, LinkView)]) -> Box<Accepted> {
    Box::new(Accepted {
        header: SnapshotHeader {
            cluster: name("harbour"),
            recipient: NodeId(6),
            version: Version(version),
            issued: WallTime(0),
            lease: Span::from_hours(72),
            content_hash: [0; 32],
        },
        content: SnapshotContent {
            authorities: vec![],
            revoked_nodes: BTreeSet::new(),
            issuers: BTreeMap::new(),
            controls: BTreeMap::from([(NodeId(1), "c1:9443".into())]),
            me: NodeView {
                name: name("web"),
                roles: BTreeSet::new(),
                public: [0; 32],
                domain: FailureDomain::default(),
            },
            relays: relays.iter().map(|(id, address)| (NodeId(*id), relay(address))).collect(),
            peers: BTreeMap::new(),
            links: links.iter().map(|(id, view)| (LinkId(*id), view.clone())).collect(),
            policy: None,
            flow_wait_seconds: 60,
            revocations: None,
            balancers: BTreeMap::new(),
        },
    })
}

const CERTIFICATE: Certificate = Certificate { starts: WallTime(0), expires: WallTime(192 * 3_600_000) };

fn on(node: &mut Node, wall: u64, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    node.on(Turn { wall: WallTime(wall), ..Turn::default() }, event, &mut effects);
    effects
}

#[test]
fn a_snapshot_starts_changes_and_stops_what_it_says() {
    let mut node = Node::new(NodeId(6), None, CERTIFICATE);
    let effects = on(&mut node, 0, Event::Snapshot { accepted: accepted(1, &[(2, "fra:9443")], &[(1, link(1, 6))]) });
    assert!(matches!(effects[..2], [Effect::Snapshot { .. }, Effect::Keep]));
    assert!(effects.contains(&Effect::SessionStart { relay: NodeId(2), address: "fra:9443".into() }));
    assert!(effects.contains(&Effect::PeerStart { peer: NodeId(5) }));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::LinkStart { link: LinkId(1), .. })));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Endpoints { wanted } if wanted.len() == 1)));

    let same = on(&mut node, 0, Event::Snapshot { accepted: accepted(2, &[(2, "fra:9443")], &[(1, link(1, 6))]) });
    assert!(
        matches!(same[..], [Effect::Snapshot { .. }, Effect::Keep]),
        "a renewed lease over equal content moves nothing"
    );

    let effects = on(&mut node, 0, Event::Snapshot { accepted: accepted(3, &[(2, "fra:1")], &[(1, link(2, 6))]) });
    assert!(effects.contains(&Effect::SessionTarget { relay: NodeId(2), address: "fra:1".into() }));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::LinkChange { .. })));

    let effects = on(&mut node, 0, Event::Snapshot { accepted: accepted(4, &[], &[]) });
    for wanted in [
        Effect::SessionStop { relay: NodeId(2) },
        Effect::PeerStop { peer: NodeId(5) },
        Effect::LinkStop { link: LinkId(1) },
        Effect::Endpoints { wanted: BTreeMap::new() },
    ] {
        assert!(effects.contains(&wanted), "{wanted:?} in {effects:?}");
    }
}

// RP-40
#[test]
fn a_drain_is_told_when_it_begins_and_when_it_ends() {
    let mut node = Node::new(NodeId(6), None, CERTIFICATE);
    let mut told = |version, draining| {
        let mut accepted = accepted(version, &[(2, "fra:9443")], &[]);
        accepted.content.relays.get_mut(&NodeId(2)).unwrap().draining = draining;
        on(&mut node, 0, Event::Snapshot { accepted }).contains(&Effect::Drain { relay: NodeId(2) })
    };
    assert_eq!([told(1, false), told(2, true), told(3, true), told(4, false)], [false, true, false, true]);
}

// DB-43: the list comes with the snapshot, and another one is taken as it is.
#[test]
fn balancers_are_told_when_their_list_changes() {
    let mut node = Node::new(NodeId(6), None, CERTIFICATE);
    let mut told = |version, databases: &[&str]| {
        let mut accepted = accepted(version, &[], &[]);
        if !databases.is_empty() {
            let at = |id: &&str| ((*id).to_owned(), format!("{id}:5432"));
            let view = BalancerView { changed: Version(1), databases: databases.iter().map(at).collect() };
            accepted.content.balancers.insert(name("orders"), view);
        }
        let effects = on(&mut node, 0, Event::Snapshot { accepted });
        effects.into_iter().find_map(|effect| match effect {
            Effect::Balancers { wanted } => Some(wanted.values().map(|view| view.databases.len()).sum::<usize>()),
            _ => None,
        })
    };
    assert_eq!(told(1, &[]), Some(0), "what an earlier start has left is ended");
    assert_eq!([told(2, &["a"]), told(3, &["a"]), told(4, &["a", "b"])], [Some(1), None, Some(2)]);
    assert_eq!(told(5, &[]), Some(0));
}

#[test]
fn an_older_snapshot_changes_nothing() {
    let mut node = Node::new(NodeId(6), Some(accepted(5, &[], &[])), CERTIFICATE);
    for version in [4, 5] {
        let event = Event::Snapshot { accepted: accepted(version, &[(2, "fra:9443")], &[]) };
        assert_eq!(on(&mut node, 0, event), []);
    }
    assert_eq!(node.accepted, Some(accepted(5, &[], &[])));
}

// RP-50: renewed at half of its life, and again until it works.
#[test]
fn the_certificate_is_renewed_at_half_of_its_life() {
    let hour = 3_600_000;
    let mut node = Node::new(NodeId(6), None, CERTIFICATE);
    assert_eq!(on(&mut node, 0, Event::Started), [Effect::RenewAfter { after_ms: 96 * hour }]);
    assert_eq!(on(&mut node, 95 * hour, Event::RenewTimer), [Effect::RenewAfter { after_ms: hour }]);
    assert_eq!(on(&mut node, 96 * hour, Event::RenewTimer), [Effect::Renew]);
    assert_eq!(on(&mut node, 96 * hour, Event::RenewTimer), [], "one at a time");
    let failed = on(&mut node, 96 * hour, Event::RenewFailed { reason: "no control node answers".into() });
    assert!(matches!(failed[..], [Effect::RenewAfter { after_ms }] if after_ms <= 200));
    assert_eq!(on(&mut node, 97 * hour, Event::RenewTimer), [Effect::Renew]);
    let next = Certificate { starts: WallTime(96 * hour), expires: WallTime(288 * hour) };
    assert_eq!(
        on(&mut node, 97 * hour, Event::Renewed { certificate: next }),
        [Effect::RenewAfter { after_ms: 95 * hour }]
    );
}
