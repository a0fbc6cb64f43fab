//! How a session is dialled, greeted, kept and left.

use super::*;

fn on(session: &mut Session, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    session.on(Turn::default(), event, &mut effects);
    effects
}

fn grant() -> SignedGrant {
    SignedGrant { grant: vec![], signer: NodeId(1), key: [0; 32], signature: vec![] }
}

fn up() -> Session {
    let mut session = Session::new(NodeId(4), 3);
    assert_eq!(
        on(&mut session, Event::Target { address: "fra:9443".into() }),
        [Effect::Dial { address: "fra:9443".into() }]
    );
    let hello = on(&mut session, Event::Connected { connection: 1 });
    assert_eq!(hello, [Effect::Hello { connection: 1, session: Generation((3 << 32) + 1) }]);
    let welcome = on(&mut session, Event::Welcomed { connection: 1, policy: Version(9) });
    let applied = Effect::Applied { version: Version(9) };
    assert_eq!(welcome, [Effect::Up { connection: 1 }, start_ping(), applied]);
    session
}

#[test]
fn a_session_that_ends_is_dialled_again_with_its_endpoints() {
    let mut session = up();
    let wanted = BTreeMap::from([(LinkId(1), (Generation(2), grant()))]);
    assert!(matches!(
        &on(&mut session, Event::Endpoints { wanted: wanted.clone() })[..],
        [Effect::Register { link: LinkId(1), generation: Generation(2), .. }]
    ));
    on(&mut session, Event::Registered { connection: 1, link: LinkId(1), generation: Generation(2), refusal: None });
    assert_eq!(on(&mut session, Event::Endpoints { wanted }), [], "the same again asks for nothing");

    let effects = on(&mut session, Event::Closed { connection: 1, reason: "timed out".into() });
    assert!(matches!(&effects[..], [Effect::Down { .. }, Effect::Start { timer: Timer::Retry, .. }]));
    assert!(matches!(&on(&mut session, Event::Timer(Timer::Retry))[..], [Effect::Dial { .. }]));
    on(&mut session, Event::Connected { connection: 2 });
    let effects = on(&mut session, Event::Welcomed { connection: 2, policy: Version(9) });
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Register { connection: 2, .. })));
    assert_eq!(session.generation, Generation((3 << 32) + 2));
}

#[test]
fn what_belongs_to_an_old_connection_changes_nothing() {
    let mut session = up();
    let before = session.clone();
    for event in [
        Event::Closed { connection: 7, reason: "late".into() },
        Event::Welcomed { connection: 7, policy: Version(1) },
        Event::Pong { connection: 7, round_trip_us: 5 },
        Event::DialFailed { reason: "late".into() },
        Event::Timer(Timer::Retry),
    ] {
        assert_eq!(on(&mut session, event.clone()), [], "{event:?}");
    }
    assert_eq!(session, before);
    assert!(matches!(&on(&mut session, Event::Connected { connection: 8 })[..], [Effect::Close { .. }]));
}

// R6, R16: a way that is dead in one direction is noticed by the pings that go over both.
#[test]
fn a_silent_relay_is_left() {
    let mut session = up();
    let effects = on(&mut session, Event::Silent { connection: 1 });
    assert!(matches!(
        effects[..],
        [Effect::Close { connection: 1, .. }, Effect::Down { .. }, Effect::Start { timer: Timer::Retry, .. }]
    ));
    assert_eq!(on(&mut session, Event::Silent { connection: 1 }), []);
}

// RP-35: revocations go both ways, to whoever has older ones; the relay first gets a while to hear by itself.
#[test]
fn revocations_are_passed_on_to_whoever_has_not_applied_them() {
    let mut session = up();
    assert_eq!(on(&mut session, Event::Revocations { version: Version(9) }), [], "its policy has them");
    let effects = on(&mut session, Event::Revocations { version: Version(12) });
    assert!(matches!(effects[..], [Effect::Start { timer: Timer::PassOn, after_ms: 2_000..=10_000 }]));
    let mut told = session.clone();
    assert_eq!(on(&mut session, Event::Timer(Timer::PassOn)), [Effect::PassOn { connection: 1 }]);
    let applied = Event::Applied { version: Version(12), revocations: Version(12) };
    assert_eq!(on(&mut session, applied.clone()), [Effect::Applied { version: Version(12) }]);
    on(&mut told, applied);
    assert_eq!(on(&mut told, Event::Timer(Timer::PassOn)), [], "it has heard meanwhile");
    let newer = Event::Applied { version: Version(20), revocations: Version(19) };
    let fetch = [Effect::Applied { version: Version(20) }, Effect::Fetch { connection: 1 }];
    assert_eq!(on(&mut session, newer), fetch);
    on(&mut session, Event::Closed { connection: 1, reason: "gone".into() });
    assert_eq!(session.applied, Version(0), "the next session says it anew");
}

// RP-34: a goodbye is said once, and nothing is dialled any more.
#[test]
fn a_node_that_stops_says_goodbye() {
    let mut session = up();
    let effects = on(&mut session, Event::Leave);
    let session_generation = Generation((3 << 32) + 1);
    assert_eq!(effects[0], Effect::Goodbye { connection: 1, session: session_generation });
    assert!(matches!(effects[1..], [Effect::Down { .. }]));
    for event in [
        Event::Leave,
        Event::Closed { connection: 1, reason: "goodbye".into() },
        Event::Timer(Timer::Retry),
        Event::Timer(Timer::Ping),
        Event::Target { address: "fra:1".into() },
    ] {
        assert_eq!(on(&mut session, event.clone()), [], "{event:?}");
    }
    let mut waiting = Session::new(NodeId(4), 3);
    on(&mut waiting, Event::Target { address: "fra:9443".into() });
    assert_eq!(on(&mut waiting, Event::Leave), []);
    assert!(matches!(on(&mut waiting, Event::Connected { connection: 2 })[..], [Effect::Close { .. }]));
}

// RP-32: a refused registration is tried again.
#[test]
fn a_refused_registration_is_tried_again_until_it_is_taken_or_gone() {
    let mut session = up();
    on(&mut session, Event::Endpoints { wanted: BTreeMap::from([(LinkId(1), (Generation(2), grant()))]) });
    let refusal = Some(Refusal::new("POLICY_MISMATCH", "does not match policy", ""));
    let event = Event::Registered { connection: 1, link: LinkId(1), generation: Generation(2), refusal };
    assert!(matches!(&on(&mut session, event)[..], [Effect::Start { timer: Timer::Register, .. }]));
    assert!(matches!(&on(&mut session, Event::Timer(Timer::Register))[..], [Effect::Register { .. }]));
    on(&mut session, Event::Endpoints { wanted: BTreeMap::new() });
    assert_eq!(on(&mut session, Event::Timer(Timer::Register)), []);
}

#[test]
fn failures_in_a_row_wait_longer() {
    let mut session = Session::new(NodeId(4), 0);
    on(&mut session, Event::Target { address: "fra:9443".into() });
    let mut waits = Vec::new();
    for _ in 0..12 {
        match &on(&mut session, Event::DialFailed { reason: "refused".into() })[..] {
            [Effect::Start { timer: Timer::Retry, after_ms }] => waits.push(*after_ms),
            other => panic!("{other:?}"),
        }
        on(&mut session, Event::Timer(Timer::Retry));
    }
    assert!(waits[0] <= SESSION_RETRY_MIN.as_millis() as u64);
    assert!(waits[11] <= SESSION_RETRY_MAX.as_millis() as u64);
    assert!(waits[11] >= SESSION_RETRY_MAX.as_millis() as u64 / 2);
}
