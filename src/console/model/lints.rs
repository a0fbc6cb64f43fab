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
        self.found.push(Problem { health, code: code.to_owned(), about, since, what, next: next.to_owned() });
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
    let (Some(vitals), Some(age)) = (&card.heard.vitals, card.heard.age_ms) else { return };
    let difference = vitals.now.0.cast_signed() + age.cast_signed() - now.0.cast_signed();
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
