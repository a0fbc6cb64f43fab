//! Tables of evidence and choices, and that no order changes a choice.

use proptest::prelude::*;

use super::{
    choice::NoReads,
    evidence::{Failure, Position, Replica},
    *,
};
use crate::time::Span;

const NODES: [&str; 3] = ["a", "b", "c"];

fn at(ms: u64) -> Moment {
    Moment::ZERO.after(Span::from_millis(1_000_000 + ms))
}

fn answer(node: &str, role: Role, epoch: u64) -> Answer {
    let last = node.bytes().last().unwrap_or_default();
    Answer {
        address: format!("10.0.0.{last}:5432").parse().unwrap(),
        identity: node.into(),
        cluster: Some("7".into()),
        role,
        writable: role != Role::Secondary,
        epoch,
        connections: 1,
        connections_max: 100,
        active: 0,
        position: Some(Position::bytes(1_000)),
        replicas: NODES.iter().map(|node| Replica::Identity((*node).to_owned())).collect(),
        version: "15".into(),
    }
}

#[allow(clippy::unnecessary_wraps, reason = "an outcome is what tables hold")]
fn primary(node: &str, epoch: u64) -> Outcome {
    Ok(answer(node, Role::Primary, epoch))
}

#[allow(clippy::unnecessary_wraps, reason = "an outcome is what tables hold")]
fn secondary(node: &str, epoch: u64) -> Outcome {
    Ok(answer(node, Role::Secondary, epoch))
}

fn failed(cause: Cause) -> Outcome {
    Err(Failure::new(cause, "the node's words"))
}

fn list(nodes: &[&str]) -> BTreeMap<String, String> {
    nodes.iter().map(|node| ((*node).to_owned(), format!("{node}:5432"))).collect()
}

/// A balancer that has heard of every node before, and knows nothing any more.
fn with(settings: Settings, nodes: &[&str]) -> Database {
    Database { unheard: BTreeSet::new(), ..Database::new(settings, list(nodes)) }
}

fn balancer() -> Database {
    with(Settings::default(), &NODES)
}

fn on(balancer: &mut Database, ms: u64, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    balancer.on(Turn { now: at(ms), ..Turn::default() }, event, &mut effects);
    effects
}

fn probed(balancer: &mut Database, ms: u64, node: &str, outcome: Outcome) -> Vec<Effect> {
    let event = Event::Probed { node: node.into(), listed: format!("{node}:5432"), outcome: Box::new(outcome) };
    on(balancer, ms, event)
}

/// The chosen primary, or why there is none.
fn write(balancer: &Database) -> Result<&str, &NoPrimary> {
    balancer.routing.write.as_ref().map(|target| target.node.as_str())
}

fn readers(balancer: &Database) -> Vec<&str> {
    balancer.routing.readers.iter().map(|reader| reader.target.node.as_str()).collect()
}

#[allow(clippy::option_option, reason = "whether, and all but whom")]
fn closed(effects: &[Effect]) -> Option<Option<&str>> {
    effects.iter().find_map(|effect| match effect {
        Effect::CloseWrites { but, .. } => Some(but.as_deref()),
        _ => None,
    })
}

fn lines(effects: &[Effect]) -> Vec<String> {
    let lines = effects.iter().filter_map(|effect| match effect {
        Effect::Say { line } => Some(line.to_string()),
        _ => None,
    });
    lines.collect()
}

/// A cluster whose primary is `a`, seen whole at 0 ms.
fn settled() -> Database {
    let mut balancer = balancer();
    probed(&mut balancer, 0, "a", primary("a", 1));
    probed(&mut balancer, 0, "b", secondary("b", 1));
    probed(&mut balancer, 0, "c", secondary("c", 1));
    assert_eq!((write(&balancer), readers(&balancer)), (Ok("a"), vec!["b", "c"]));
    balancer
}

// DB-2, DB-8: who is the primary, as a table.
#[test]
fn the_primary_is_healthy_announces_writes_and_bears_the_highest_epoch() {
    let read_only = |node: &str| Ok(Answer { writable: false, ..answer(node, Role::Primary, 2) });
    let single = |node: &str| Ok(answer(node, Role::None, 0));
    let stranger = |node: &str| Ok(Answer { identity: "x".into(), ..answer(node, Role::Primary, 9) });
    let foreign = |node: &str| Ok(Answer { cluster: Some("8".into()), ..answer(node, Role::Secondary, 1) });
    let names = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>();
    type Case = (&'static str, Vec<(&'static str, Outcome)>, Result<&'static str, NoPrimary>);
    let table: Vec<Case> = vec![
        ("nothing is known", vec![], Err(NoPrimary::NobodyHealthy)),
        ("one announces", vec![("a", secondary("a", 1)), ("b", primary("b", 1))], Ok("b")),
        ("an isolated old one is ignored", vec![("a", primary("a", 1)), ("b", primary("b", 2))], Ok("b")),
        (
            "a secondary tells of a newer epoch",
            vec![("a", primary("a", 1)), ("b", secondary("b", 2))],
            Err(NoPrimary::Older { nodes: names(&["a"]), epoch: 2 }),
        ),
        (
            "two of one epoch",
            vec![("a", secondary("a", 1)), ("b", primary("b", 2)), ("c", primary("c", 2))],
            Err(NoPrimary::Ambiguous { nodes: names(&["b", "c"]) }),
        ),
        ("it takes no writes", vec![("a", read_only("a"))], Err(NoPrimary::ReadOnly { nodes: names(&["a"]) })),
        ("another takes them in the same epoch", vec![("a", read_only("a")), ("b", primary("b", 2))], Ok("b")),
        ("replicas alone", vec![("b", secondary("b", 1))], Err(NoPrimary::NobodyAnnounces)),
        ("a single server", vec![("a", single("a"))], Ok("a")),
        (
            "two single servers",
            vec![("a", single("a")), ("b", single("b"))],
            Err(NoPrimary::Ambiguous { nodes: names(&["a", "b"]) }),
        ),
        ("a cluster before a single server", vec![("a", single("a")), ("b", primary("b", 1))], Ok("b")),
        ("a stranger is set aside with its epoch", vec![("a", stranger("a")), ("b", primary("b", 1))], Ok("b")),
        (
            "two database clusters",
            vec![("a", primary("a", 1)), ("b", foreign("b"))],
            Err(NoPrimary::Clusters { nodes: vec![("a".into(), "7".into()), ("b".into(), "8".into())] }),
        ),
    ];
    for (case, outcomes, expected) in table {
        let mut balancer = balancer();
        for (node, outcome) in outcomes {
            probed(&mut balancer, 0, node, outcome);
        }
        assert_eq!(write(&balancer), expected.as_ref().copied(), "{case}");
    }
}

#[test]
fn a_pinned_cluster_sets_strangers_aside_instead_of_refusing_all() {
    let settings = Settings { cluster: Some("7".into()), ..Settings::default() };
    let mut balancer = with(settings, &NODES);
    probed(&mut balancer, 0, "a", primary("a", 1));
    probed(&mut balancer, 0, "b", Ok(Answer { cluster: Some("8".into()), ..answer("b", Role::Primary, 5) }));
    assert_eq!(write(&balancer), Ok("a"));
    let aside = balancer.report(at(0)).nodes[1].aside.clone();
    assert_eq!(aside.as_deref(), Some("it belongs to another database cluster, 8"));
}

// D8: a balancer that has just started does not take the first primary that answers for the newest.
#[test]
fn nobody_is_the_primary_before_every_node_was_heard_of() {
    let mut balancer = Database::new(Settings::default(), list(&NODES));
    probed(&mut balancer, 0, "a", primary("a", 1));
    let starting = NoPrimary::Starting { nodes: vec!["b".into(), "c".into()] };
    assert_eq!(write(&balancer), Err(&starting));
    probed(&mut balancer, 10, "b", failed(Cause::Refused));
    let effects = probed(&mut balancer, 20, "c", primary("c", 2));
    assert_eq!(write(&balancer), Ok("c"), "one that cannot be reached has been heard of too");
    assert_eq!(lines(&effects), ["node c is healthy: primary, epoch 2", "writes go to c, epoch 2 (generation 1)"]);
    on(&mut balancer, 30, Event::Nodes { nodes: list(&["a", "b", "c", "d"]) });
    assert_eq!(write(&balancer), Ok("c"), "a node that joins the list stops no writes");
}

// DB-3, DB-8: who takes reads, as a table.
#[test]
fn reads_go_to_those_who_stream_keep_up_and_have_room() {
    let no_limit = Settings { max_lag_bytes: 0, max_lag_seconds: 0, ..Settings::default() };
    let with_primary = Settings { primary_in_ro: true, ..Settings::default() };
    let far = |bytes: u64| Answer { position: Some(Position::bytes(1_000 - bytes)), ..answer("b", Role::Secondary, 1) };
    let limit = |max_lag_bytes| Settings { max_lag_bytes, ..Settings::default() };
    let full = |connections| Answer { connections, ..answer("b", Role::Secondary, 1) };
    let dumb = Answer { position: None, ..answer("b", Role::Secondary, 1) };
    let none = answer("b", Role::None, 0);
    let table: Vec<(&str, Settings, Answer, Result<(), &str>)> = vec![
        ("streams and keeps up", Settings::default(), far(0), Ok(())),
        ("just within the limit", limit(999), far(999), Ok(())),
        ("beyond it", limit(998), far(999), Err("it is 999 bytes and 0.0 s behind")),
        ("six places left", Settings::default(), full(94), Ok(())),
        ("only the reserve left", Settings::default(), full(95), Err("95 of its 100 connections are taken")),
        (
            "it does not say how far it is",
            Settings::default(),
            dumb.clone(),
            Err("it does not say how far it has replayed, and a limit of lag is set"),
        ),
        ("and no limit is set", no_limit, dumb, Ok(())),
        ("outside", with_primary, none, Err("it stands outside the cluster that the others form")),
    ];
    for (case, settings, of_b, expected) in table {
        let mut balancer = with(settings, &NODES);
        probed(&mut balancer, 0, "a", primary("a", 1));
        probed(&mut balancer, 0, "b", Ok(of_b));
        let chosen = balancer.routing.write.clone().ok();
        let reads = balancer.facts(at(0)).reads("b", chosen.as_ref()).map(|_| ()).map_err(|why| why.to_string());
        assert_eq!(reads, expected.map_err(str::to_owned), "{case}");
    }
}

// DB-8: streaming is what the primary sees.
#[test]
fn a_replica_that_the_primary_does_not_list_gets_no_reads() {
    let mut balancer = settled();
    let by_address = Replica::Address("10.0.0.99".parse().unwrap());
    let listed = vec![Replica::Identity("b".into()), by_address];
    probed(&mut balancer, 100, "a", Ok(Answer { replicas: listed, ..answer("a", Role::Primary, 1) }));
    assert_eq!(readers(&balancer), ["b", "c"], "c is listed by its address, 10.0.0.99");
    probed(&mut balancer, 200, "a", Ok(Answer { replicas: vec![], ..answer("a", Role::Primary, 1) }));
    assert_eq!(readers(&balancer), Vec::<&str>::new());
    let report = balancer.report(at(200));
    assert_eq!(report.nodes[1].no_reads.as_deref(), Some("a does not list it as connected"));
}

// DB-3
#[test]
fn the_primary_takes_reads_only_where_the_operator_says_so() {
    let mut balancer = settled();
    assert_eq!(balancer.facts(at(0)).reads("a", balancer.routing.write.as_ref().ok()), Err(NoReads::Primary));
    balancer.settings.primary_in_ro = true;
    probed(&mut balancer, 10, "a", primary("a", 1));
    assert_eq!(readers(&balancer), ["a", "b", "c"]);
}

// DB-10, DB-14, DB-20: fewer misses close nothing, the third does; the next success restores.
#[test]
fn a_node_that_cannot_be_reached_waits_for_the_third_miss() {
    let mut balancer = settled();
    for ms in [10, 20] {
        let effects = probed(&mut balancer, ms, "a", failed(Cause::Refused));
        assert_eq!((closed(&effects), lines(&effects)), (None, vec![]));
        assert_eq!(write(&balancer), Ok("a"));
    }
    let effects = probed(&mut balancer, 30, "a", failed(Cause::Refused));
    assert_eq!(closed(&effects), Some(None));
    assert_eq!(write(&balancer), Err(&NoPrimary::NobodyAnnounces));
    assert_eq!(readers(&balancer), ["b", "c"], "reads go on");
    let said = lines(&effects);
    assert!(said[0].starts_with("node a is set aside: 3 probes in a row failed: TCP was refused"), "{said:?}");
    assert_eq!(said[1], "writes are refused: no healthy node says that it is the primary (generation 2)");
    let effects = probed(&mut balancer, 40, "a", primary("a", 1));
    assert_eq!(lines(&effects), ["node a is healthy: primary, epoch 1", "writes go to a, epoch 1 (generation 3)"]);
}

// DB-14, DB-20, D4: whoever says nothing at all is out at period × unhealthy_after + timeout, and not before.
#[test]
fn evidence_grows_too_old_at_its_limit() {
    let mut balancer = settled();
    let effects = probed(&mut balancer, 1_000, "b", secondary("b", 1));
    assert!(effects.contains(&Effect::AgedAt { at: at(5_000) }), "{effects:?}");
    probed(&mut balancer, 4_999, "a", failed(Cause::Timeout));
    assert_eq!(write(&balancer), Ok("a"));
    let effects = on(&mut balancer, 5_000, Event::Aged);
    assert_eq!((closed(&effects), readers(&balancer)), (Some(None), vec!["b"]));
    assert!(lines(&effects)[0].contains("its last answer is 5000 ms old"), "{effects:?}");
}

// DB-20, D4: what a node says of itself acts at once, and so does a higher epoch elsewhere.
#[test]
fn a_demotion_a_promotion_and_a_read_only_primary_act_at_once() {
    let mut demoted = settled();
    assert_eq!(closed(&probed(&mut demoted, 10, "a", secondary("a", 1))), Some(None));
    let mut promoted = settled();
    let effects = probed(&mut promoted, 10, "b", primary("b", 2));
    assert_eq!((closed(&effects), write(&promoted)), (Some(Some("b")), Ok("b")));
    assert_eq!(readers(&promoted), ["c"], "the old primary gets nothing");
    let mut read_only = settled();
    let outcome = Ok(Answer { writable: false, ..answer("a", Role::Primary, 1) });
    assert_eq!(closed(&probed(&mut read_only, 10, "a", outcome)), Some(None));
    let mut open = settled();
    open.settings.close_rw_on_primary_change = false;
    // DB-23
    assert_eq!(closed(&probed(&mut open, 10, "b", primary("b", 2))), None);
}

// An old primary stays old when the new one is lost.
#[test]
fn an_epoch_that_was_seen_is_not_forgotten_while_its_node_is_listed() {
    let mut balancer = settled();
    probed(&mut balancer, 10, "b", primary("b", 2));
    probed(&mut balancer, 10_000, "a", primary("a", 1));
    assert_eq!(write(&balancer), Err(&NoPrimary::Older { nodes: vec!["a".into()], epoch: 2 }));
    on(&mut balancer, 10_001, Event::Nodes { nodes: list(&["a", "c"]) });
    assert_eq!(write(&balancer), Ok("a"), "the operator has taken the lost one out");
}

// D1: both standbys promoted; refused, closed, named; one stopped: serves again.
#[test]
fn two_primaries_of_one_epoch_are_a_refusal_until_one_is_gone() {
    let mut balancer = settled();
    probed(&mut balancer, 10, "b", primary("b", 2));
    let effects = probed(&mut balancer, 20, "c", primary("c", 2));
    assert_eq!(closed(&effects), Some(None));
    let report = balancer.report(at(20));
    assert_eq!((report.primary, report.ambiguous), (None, vec!["b".to_owned(), "c".to_owned()]));
    for ms in [30, 40, 50] {
        probed(&mut balancer, ms, "c", failed(Cause::Refused));
    }
    assert_eq!(write(&balancer), Ok("b"));
}

// D2: a replica that stops replaying leaves the reads and returns.
#[test]
fn a_replica_that_stops_replaying_leaves_and_returns() {
    let mut balancer = settled();
    let moved =
        |node: &str, role, bytes| Ok(Answer { position: Some(Position::bytes(bytes)), ..answer(node, role, 1) });
    for second in 1..=6 {
        probed(&mut balancer, second * 1_000, "a", moved("a", Role::Primary, 1_000 + second));
        probed(&mut balancer, second * 1_000, "b", moved("b", Role::Secondary, 1_000));
        probed(&mut balancer, second * 1_000, "c", moved("c", Role::Secondary, 1_000 + second));
    }
    assert_eq!(readers(&balancer), ["b", "c"], "5 s behind is within the limit");
    probed(&mut balancer, 6_500, "b", moved("b", Role::Secondary, 1_000));
    assert_eq!(readers(&balancer), ["c"]);
    assert_eq!(balancer.report(at(6_500)).nodes[1].lag_ms, Some(5_500));
    probed(&mut balancer, 7_000, "b", moved("b", Role::Secondary, 1_006));
    assert_eq!(readers(&balancer), ["b", "c"]);
}

// D3: an idle primary leaves nobody behind.
#[test]
fn an_idle_primary_keeps_its_replicas_in_the_reads() {
    let mut balancer = settled();
    balancer.settings.max_lag_seconds = 2;
    for second in 1..=30 {
        for (node, outcome) in [("a", primary("a", 1)), ("b", secondary("b", 1)), ("c", secondary("c", 1))] {
            probed(&mut balancer, second * 1_000, node, outcome);
        }
        assert_eq!(readers(&balancer), ["b", "c"], "after {second} s");
    }
}

// D5, D8: who is down or was never probed gets nothing.
#[test]
fn nodes_that_are_down_or_never_probed_get_nothing() {
    let mut balancer = balancer();
    probed(&mut balancer, 0, "b", secondary("b", 1));
    for ms in [0, 10, 20] {
        probed(&mut balancer, ms, "a", failed(Cause::Refused));
    }
    assert_eq!((write(&balancer), readers(&balancer)), (Err(&NoPrimary::NobodyAnnounces), vec!["b"]));
    let nodes = [("b", "b:5432"), ("c", "elsewhere:5432")];
    let nodes: BTreeMap<String, String> = nodes.iter().map(|(id, at)| ((*id).to_owned(), (*at).to_owned())).collect();
    let effects = on(&mut balancer, 30, Event::Nodes { nodes: nodes.clone() });
    assert_eq!((closed(&effects), readers(&balancer)), (None, vec!["b"]));
    assert!(effects.contains(&Effect::Watch { nodes }));
    let effects = probed(&mut balancer, 40, "c", primary("c", 1));
    assert_eq!(effects, [], "a probe of its old address says nothing of the new one");
}

// DB-14: saturated is not dead.
#[test]
fn a_saturated_primary_stays_the_primary() {
    let mut balancer = settled();
    for second in 1..=20 {
        probed(&mut balancer, second * 1_000, "a", failed(Cause::Saturated));
        probed(&mut balancer, second * 1_000, "b", failed(Cause::Saturated));
    }
    assert_eq!((write(&balancer), readers(&balancer)), (Ok("a"), vec![]));
    probed(&mut balancer, 21_000, "b", secondary("b", 1));
    assert_eq!(readers(&balancer), ["b"]);
}

// DB-44: a reload closes nothing, even where it takes the primary out.
#[test]
fn a_reload_closes_no_connection() {
    let mut balancer = settled();
    let effects = on(&mut balancer, 10, Event::Nodes { nodes: list(&["b", "c"]) });
    assert_eq!((closed(&effects), write(&balancer)), (None, Err(&NoPrimary::NobodyAnnounces)));
    assert_eq!(on(&mut balancer, 20, Event::Nodes { nodes: list(&["c", "b"]) }), [], "the same list changes nothing");
}

fn some_outcome(node: &'static str) -> impl Strategy<Value = Outcome> {
    let role = prop_oneof![Just(Role::Primary), Just(Role::Secondary), Just(Role::None)];
    let stranger = prop::bool::weighted(0.1);
    let answered = (role, any::<bool>(), 0..3_u64, 0..3_000_u64, 0..120_u64, stranger);
    let answered = answered.prop_map(move |(role, writable, epoch, position, connections, stranger)| {
        let identity = if stranger { "x".to_owned() } else { node.to_owned() };
        let position = Some(Position::bytes(position));
        Ok(Answer { identity, writable, connections, position, ..answer(node, role, epoch) })
    });
    prop_oneof![6 => answered, 1 => Just(failed(Cause::Refused)), 1 => Just(failed(Cause::Saturated))]
}

proptest! {
    // DB-14: neither the order of arrival nor earlier choices change what is chosen from the same evidence.
    #[test]
    fn the_order_of_arrival_never_changes_the_choice(
        (a, b, c) in (some_outcome("a"), some_outcome("b"), some_outcome("c")),
        order in Just(vec![0_usize, 1, 2]).prop_shuffle(),
    ) {
        let outcomes = [("a", a), ("b", b), ("c", c)];
        // Lag is about time, and the primary's history is told by probes in their order.
        let settings = Settings { max_lag_bytes: 0, max_lag_seconds: 0, ..Settings::default() };
        let mut straight = with(settings.clone(), &NODES);
        let mut shuffled = with(settings, &["c", "b", "a"]);
        for (node, outcome) in &outcomes {
            probed(&mut straight, 0, node, outcome.clone());
        }
        for index in order {
            let (node, outcome) = &outcomes[index];
            probed(&mut shuffled, 0, node, outcome.clone());
        }
        prop_assert_eq!(&straight.routing.write, &shuffled.routing.write);
        prop_assert_eq!(readers(&straight), readers(&shuffled));
        prop_assert_eq!(&straight.evidence, &shuffled.evidence);
    }

    // A chosen primary is always healthy, announces the role, takes writes, and nobody bears a higher epoch.
    #[test]
    fn what_is_chosen_is_what_the_rule_says(
        rounds in prop::collection::vec((some_outcome("a"), some_outcome("b"), some_outcome("c")), 1..6),
    ) {
        let mut balancer = balancer();
        let mut highest = 0;
        for (round, (a, b, c)) in rounds.into_iter().enumerate() {
            for (node, outcome) in [("a", a), ("b", b), ("c", c)] {
                if let Ok(answer) = &outcome && answer.identity == node {
                    highest = highest.max(answer.epoch);
                }
                let before = balancer.routing.clone();
                let effects = probed(&mut balancer, round as u64 * 1_000, node, outcome);
                if let Ok(target) = &balancer.routing.write {
                    let (_, answer) = balancer.evidence[&target.node].answer.clone().unwrap();
                    prop_assert!(answer.writable && answer.role != Role::Secondary && answer.identity == target.node);
                    prop_assert!(answer.role == Role::None || answer.epoch == highest);
                }
                // DB-22: another primary, or none, is another generation, and the old one's writers are closed.
                let moved = before.write.as_ref().ok() != balancer.routing.write.as_ref().ok();
                prop_assert_eq!(balancer.routing.generation, before.generation + u64::from(moved));
                prop_assert_eq!(closed(&effects).is_some(), moved);
            }
        }
    }
}
