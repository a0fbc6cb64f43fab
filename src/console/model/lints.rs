//! What only shows when the whole fleet is looked at: clocks that differ, certificates and leases near their end, one
//! failure domain that carries everything. In sentences, with what to do.

use std::collections::BTreeMap;

use postroad_actors::status::{Health, Problem, relays::Relays};
use postroad_cluster::{
    domain::Independence,
    id::NodeId,
    time::{Span, WallTime},
};

use super::overview::Card;
use crate::cli::relative;

/// Clocks that are further apart than this make ages and leases hard to read.
const SKEW_MAX_MS: u64 = 1_000;

/// A certificate that has less than this left was not renewed for days: it is renewed at half of its life.
const CERTIFICATE_LEFT_MIN: Span = Span::from_hours(24);

/// A lease that has less than this left was not renewed for long.
const LEASE_LEFT_MIN: Span = Span::from_hours(1);

/// Circuits from which it says something that all of them are in one place.
const CIRCUITS_MIN: usize = 2;

struct Finder<'a> {
    found: Vec<Problem>,
    since: &'a dyn Fn(&str) -> WallTime,
}

impl Finder<'_> {
    fn add(&mut self, health: Health, code: &str, about: String, what: String, next: &str) {
        let since = (self.since)(&format!("{code} {about}"));
        let (code, next) = (code.to_owned(), next.to_owned());
        self.found.push(Problem { health, code, about, since, what, next, own: false });
    }
}

/// Everything of that kind. `since` says since when a thing of that name has been seen.
pub fn lints(cards: &[Card], relays: &Relays, now: WallTime, since: &dyn Fn(&str) -> WallTime) -> Vec<Problem> {
    let mut finder = Finder { found: Vec::new(), since };
    for card in cards.iter().filter(|card| !card.silent()) {
        clock(&mut finder, card, now);
        ends(&mut finder, card, now);
    }
    one_domain(&mut finder, cards, relays);
    finder.found
}

fn clock(finder: &mut Finder<'_>, card: &Card, now: WallTime) {
    let difference = card.heard.clock_ahead_ms(now).unwrap_or_default();
    if difference.unsigned_abs() <= SKEW_MAX_MS {
        return;
    }
    let span = relative::span(Span::from_millis(difference.unsigned_abs()));
    let word = if difference < 0 { "behind" } else { "ahead of" };
    let what = format!("the clock of {} is {span} {word} this node's", card.name);
    let next = "Let its host keep time: chrony or systemd-timesyncd";
    finder.add(Health::AtRisk, "CLOCK_SKEW", format!("node {}", card.name), what, next);
}

fn ends(finder: &mut Finder<'_>, card: &Card, now: WallTime) {
    let Some(vitals) = &card.heard.vitals else { return };
    let watch = &vitals.watch;
    let left = watch.certificate_expires.since(now);
    if left < CERTIFICATE_LEFT_MIN {
        let failure = watch.certificate_failure.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        let what =
            format!("the certificate of {} ends in {} and was not renewed{failure}", card.name, relative::span(left));
        let next = "A certified control node must be reached from there: postroad control list";
        finder.add(Health::AtRisk, "CERTIFICATE_ENDING", format!("node {}", card.name), what, next);
    }
    if let Some(ends) = watch.lease_ends
        && ends.since(now) < LEASE_LEFT_MIN
        && watch.snapshot_issued.is_none_or(|issued| ends.since(now) < ends.since(issued) / 2)
    {
        let left = relative::span(ends.since(now));
        let what = format!("the policy that {} works by ends in {left} and was not renewed", card.name);
        let next = "A control node must be reached from there: postroad status, on it";
        finder.add(Health::AtRisk, "LEASE_ENDING", format!("node {}", card.name), what, next);
    }
}

/// All circuits on relays that share a failure domain, though others are ready.
fn one_domain(finder: &mut Finder<'_>, cards: &[Card], relays: &Relays) {
    let vitals = cards.iter().filter_map(|card| card.heard.vitals.as_ref());
    let mut carried: BTreeMap<NodeId, usize> = BTreeMap::new();
    for circuit in vitals.flat_map(|vitals| &vitals.circuits) {
        if let Some(relay) = circuit.relay {
            *carried.entry(relay).or_default() += 1;
        }
    }
    let circuits: usize = carried.values().sum::<usize>() / 2;
    let domain =
        |id: &NodeId| relays.list.iter().find(|relay| relay.id == *id).map(|relay| (&relay.name, &relay.domain));
    let mut used = carried.keys().filter_map(domain);
    let Some((first, place)) = used.next() else { return };
    let together = |domain| matches!(place.independence(domain), Independence::Shares(_));
    let others: Vec<_> = used.collect();
    if circuits < CIRCUITS_MIN || relays.independent < 2 || !others.iter().all(|(_, domain)| together(*domain)) {
        return;
    }
    let names: Vec<&str> =
        [first].into_iter().chain(others.iter().map(|(name, _)| *name)).map(String::as_str).collect();
    let what = format!("all {circuits} circuits are carried in one failure domain, by {}", names.join(" and "));
    let next =
        "They move by themselves when it fails; nearer relays elsewhere would spread them: postroad console, Why";
    finder.add(Health::Well, "ONE_DOMAIN_CARRIES_ALL", "relays".to_owned(), what, next);
}

#[cfg(test)]
pub(in crate::console) mod tests {
    use postroad_actors::status::{flows::Flows, local::Watch, relays::Relay};
    use postroad_cluster::{domain::FailureDomain, id::Role, snapshot::RelayView};

    use super::*;
    use crate::console::model::{
        overview::Heard,
        vitals::{Carried, Vitals},
    };

    const HOUR: u64 = 3_600_000;
    const NOW: WallTime = WallTime(1_000 * HOUR);

    pub(crate) fn card(name: &str, age_ms: u64) -> Card {
        let watch = Watch {
            certificate_expires: NOW.after(Span::from_hours(200)),
            certificate_renews: NOW.after(Span::from_hours(100)),
            certificate_failure: None,
            snapshot: Some(7),
            snapshot_issued: Some(NOW),
            lease_ends: Some(NOW.after(Span::from_hours(72))),
        };
        let vitals = Vitals {
            id: NodeId(1),
            name: name.to_owned(),
            roles: vec![Role::Node],
            now: WallTime(NOW.0 - age_ms),
            clock: Some(WallTime(NOW.0 - age_ms)),
            release: String::new(),
            health: Health::Well,
            problems: 0,
            actors: 1,
            down: 0,
            restarts: 0,
            depth: 0,
            deepest: None,
            busiest: None,
            turns: Vec::new(),
            flows: Flows::default(),
            ways: Vec::new(),
            circuits: Vec::new(),
            relay: None,
            watch,
            member: None,
            alarms: Vec::new(),
        };
        let heard = Heard { vitals: Some(vitals), age_ms: Some(age_ms), ..Heard::default() };
        Card {
            id: NodeId(1),
            name: name.to_owned(),
            roles: vec![Role::Node],
            leads: false,
            heard,
            stands: Health::Well,
        }
    }

    fn said(cards: &[Card], relays: &Relays) -> Vec<(String, String)> {
        let found = lints(cards, relays, NOW, &|_| NOW);
        assert!(found.iter().all(|problem| !problem.next.is_empty()), "each says what to do");
        found.into_iter().map(|problem| (problem.code, problem.what)).collect()
    }

    fn changed(change: impl FnOnce(&mut Vitals)) -> Vec<(String, String)> {
        let mut card = card("web", 1_500);
        change(card.heard.vitals.as_mut().unwrap());
        said(&[card], &Relays::default())
    }

    fn one(found: Vec<(String, String)>) -> (String, String) {
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn what_is_well_says_nothing_and_what_is_silent_neither() {
        assert_eq!(said(&[card("web", 0), card("db", 1_999)], &Relays::default()), []);
        let mut silent = card("web", 1_500);
        silent.heard.vitals.as_mut().unwrap().now = WallTime(0);
        silent.heard.silence = Some("no answer".to_owned());
        assert_eq!(said(&[silent], &Relays::default()), [], "its clock is not known any more");
    }

    #[test]
    fn clocks_that_differ_are_told_with_their_direction() {
        let shows = |difference_ms: i64| {
            changed(|vitals| vitals.clock = vitals.clock.map(|at| WallTime(at.0.saturating_add_signed(difference_ms))))
        };
        let (code, what) = one(shows(5_000));
        assert_eq!((code.as_str(), what.as_str()), ("CLOCK_SKEW", "the clock of web is 5 s ahead of this node's"));
        let (_, what) = one(shows(-120_000));
        assert_eq!(what, "the clock of web is 2 min behind this node's");
        assert_eq!(shows(900), [], "what the way takes is no skew");
        assert_eq!(changed(|vitals| vitals.now.0 -= 5_000), [], "nor is the age of what it tells");
        let (_, what) = one(changed(|vitals| (vitals.now.0, vitals.clock) = (vitals.now.0 + 5_000, None)));
        assert_eq!(what, "the clock of web is 5 s ahead of this node's", "by what an older release tells");
    }

    #[test]
    fn a_certificate_near_its_end_is_told_with_why_it_was_not_renewed() {
        let (code, what) = one(changed(|vitals| {
            vitals.watch.certificate_expires = NOW.after(Span::from_hours(20));
            vitals.watch.certificate_failure = Some("n1 refused".to_owned());
        }));
        assert_eq!(code, "CERTIFICATE_ENDING");
        assert_eq!(what, "the certificate of web ends in 20 h and was not renewed: n1 refused");
        assert_eq!(changed(|vitals| vitals.watch.certificate_expires = NOW.after(Span::from_hours(25))), []);
    }

    #[test]
    fn a_lease_near_its_end_is_told_unless_leases_are_that_short() {
        let ends = |issued_hours: u64, left_min: u64| {
            changed(|vitals| {
                vitals.watch.snapshot_issued = Some(NOW.before(Span::from_hours(issued_hours)));
                vitals.watch.lease_ends = Some(NOW.after(Span::from_mins(left_min)));
            })
        };
        let (code, what) = one(ends(71, 50));
        assert_eq!(
            (code.as_str(), what.as_str()),
            ("LEASE_ENDING", "the policy that web works by ends in 50 min and was not renewed")
        );
        assert_eq!(ends(71, 61), []);
        assert_eq!(ends(0, 50), [], "a lease of an hour that was just issued");
    }

    #[test]
    fn one_failure_domain_that_carries_everything_is_told() {
        let relay = |id: u64, name: &str, host: &str| {
            let part = || host.parse().ok();
            let domain = FailureDomain { host: part(), power: part(), network: part(), zone: part() };
            let (name, address) = (name.parse().unwrap(), String::new());
            Relay::agreed(NodeId(id), &RelayView { name, address, domain, local: false, ready: true, draining: false })
        };
        let list = vec![relay(7, "fra-1", "fra"), relay(8, "fra-2", "fra"), relay(9, "par", "par")];
        let relays = Relays { independent: 2, list, ..Relays::default() };
        let over = |carriers: &[u64]| {
            let carried = |relay: &u64| Carried {
                peer: NodeId(2),
                circuit: *relay,
                relay: Some(NodeId(*relay)),
                choice: String::new(),
                moves: 0,
                move_reason: None,
                stranded: false,
                bytes: 0,
                flows: 1,
                channels: Vec::new(),
            };
            // Both ends of a circuit tell of it.
            let ends = ["web", "db"].map(|name| {
                let mut card = card(name, 0);
                card.heard.vitals.as_mut().unwrap().circuits = carriers.iter().map(carried).collect();
                card
            });
            said(&ends, &relays)
        };
        let (code, what) = one(over(&[7, 8]));
        assert_eq!(
            (code.as_str(), what.as_str()),
            ("ONE_DOMAIN_CARRIES_ALL", "all 2 circuits are carried in one failure domain, by fra-1 and fra-2")
        );
        assert_eq!(over(&[7, 9]), [], "they are spread");
        assert_eq!(over(&[7]), [], "one circuit cannot be");
    }
}
