//! The control group as HTML.

use std::time::Duration;

use maud::{Markup, html};
use postroad_cluster::time::WallTime;

use super::figure;
use crate::{
    cli::relative,
    console::{
        model::control::{Group, Policy, Suspicion, Term, Voter},
        query::Query,
    },
};

/// Less than this left of a lease or a certificate wants a look, in milliseconds.
const NEAR_END_MS: u64 = 3_600_000;

/// Clocks that are further apart than this want a look, in milliseconds.
const SKEW_MS: u64 = 500;

/// The page.
pub fn render(group: &Group) -> Markup {
    html! {
        (members(group))
        div.columns {
            (terms(&group.terms, group.now))
            (suspicions(&group.suspicions))
        }
        (policies(group))
    }
}

fn members(group: &Group) -> Markup {
    let title = group.view.as_ref().map_or_else(String::new, |view| format!("term {}", view.term));
    html! {
        section {
            h2 { "Control group" small { (title) } }
            @if group.voters.is_empty() {
                p.empty { "The group is known on control nodes, and none of them answers." }
            } @else {
                div.scroll { table {
                    thead { tr {
                        th { "node" } th { "state" } th { "voted for" } th.n { "term" } th.n { "log" } th.n { "matches" } th.n { "behind" }
                        th.n { "committed" } th.n { "applied" } th.n { "snapshot" } th.n { "removed up to" } th.n { "answered" } th { "certified" }
                    } }
                    tbody { @for voter in &group.voters { (member(voter)) } }
                } }
                p.note { "A member's vote, log and snapshot are its own words; what matches and who answers is the leader's." }
            }
        }
    }
}

fn member(voter: &Voter) -> Markup {
    let (class, word) = match (voter.leads, voter.live, voter.votes) {
        (true, _, _) => ("lead", "leads"),
        (_, Some(false), _) => ("bad", "silent"),
        (_, _, false) => ("quiet", "without a vote"),
        _ => ("good", "follows"),
    };
    html! {
        tr.(if voter.live == Some(false) { "silent" } else { "" }) data-row={ "member " (voter.name) } {
            td { a href=(Query::default().with("node", &voter.name).address("/tree")) { (voter.name) } }
            td { span class={ "dot " (class) } {} (word) }
            td { @if let Some(to) = &voter.voted_for { (to) } }
            @match &voter.own {
                Some(own) => { td.n { (own.term) } td.n { (relative::count(own.log)) } }
                None => { td {} td {} }
            }
            td.n { @if let Some(matched) = voter.matched { (relative::count(matched)) } }
            td.n.(if voter.lag_entries.unwrap_or(0) > 100 { "warn" } else { "" }) { @if let Some(lag) = voter.lag_entries { (figure(lag)) } }
            @match &voter.own {
                Some(own) => {
                    td.n { (relative::count(own.committed)) } td.n { (relative::count(own.applied)) }
                    td.n { @if let Some(at) = own.snapshot { (relative::count(at)) } @else { "·" } }
                    td.n { @if let Some(at) = own.purged { (relative::count(at)) } @else { "·" } }
                }
                None => td colspan="4" {},
            }
            td.n { @if let Some(ms) = voter.silent_ms { (ms) " ms ago" } }
            td { @if voter.certified { "yes" } @else { span.warn { "no" } } }
        }
    }
}

fn terms(terms: &[Term], now: WallTime) -> Markup {
    html! {
        section {
            h2 { "Terms" small { "as this node has seen them" } }
            @if terms.is_empty() { p.empty { "This node has seen none begin yet." } }
            @else { table {
                thead { tr { th.n { "term" } th { "leader" } th { "began" } th.n { "seen" } } }
                tbody { @for term in terms { tr {
                    td.n { (term.term) }
                    td { @match &term.leader { Some(leader) => (leader), None => span.bad { "nobody" } } }
                    td.wrap { @if let Some(cause) = &term.cause { (cause) } @else { span.muted { "before it looked" } } }
                    td.n.muted { (relative::moment(term.since, now)) }
                } } }
            } }
        }
    }
}

fn suspicions(suspicions: &[Suspicion]) -> Markup {
    html! {
        section {
            h2 { "Suspicions" small { "relays that somebody does not reach" } }
            @if suspicions.is_empty() { p.empty { "Every node reaches every relay." } }
            @else { @for suspicion in suspicions {
                div.(if suspicion.believed { "suspicion bad" } else { "suspicion warn" }) {
                    p { b { (suspicion.relay) } @if suspicion.believed { " counts as unreachable" } @else { " still counts as reached" } }
                    p.muted { (suspicion.missed_by.len()) " do not reach it, " (suspicion.reached_by.len()) " do" }
                    ul {
                        @for (node, reason) in &suspicion.missed_by { li { (node) ": " (reason) } }
                        @for (node, us) in &suspicion.reached_by { li.muted { (node) " reaches it in " (super::nanoseconds(us * 1_000)) } }
                    }
                }
            } }
        }
    }
}

fn left(ends: Option<WallTime>, now: WallTime) -> Markup {
    let Some(ends) = ends else { return html! { span.muted { "none" } } };
    let near = ends.since(now).as_millis() as u64 <= NEAR_END_MS;
    html! { span.(if near { "bad" } else { "" }) { (relative::moment(ends, now)) } }
}

fn policies(group: &Group) -> Markup {
    html! {
        section {
            h2 { "Policies, leases, certificates" small { (group.policies.len()) " nodes" } }
            @if group.policies.is_empty() { p.empty { "No node has told of its policy yet." } }
            @else { div.scroll { table {
                thead { tr { th { "node" } th.n { "policy" } th.n { "behind" } th.n { "issued" } th.n { "lease ends" } th.n { "certificate ends" } th.n { "renews" } th.n { "clock" } } }
                tbody { @for policy in &group.policies { (row(policy, group.now)) } }
            } } }
        }
    }
}

fn row(policy: &Policy, now: WallTime) -> Markup {
    let skewed = policy.clock_ms.unsigned_abs() > SKEW_MS;
    html! {
        tr.(if policy.silent { "silent" } else { "" }) data-row={ "node " (policy.node) } {
            td { a href=(Query::default().with("node", &policy.node).address("/tree")) { (policy.node) } }
            td.n { @if let Some(version) = policy.version { (relative::count(version)) } @else { span.warn { "none" } } }
            td.n.(if policy.behind.unwrap_or(0) > 0 { "warn" } else { "" }) { @if let Some(behind) = policy.behind { (figure(behind)) } }
            td.n.muted { @if let Some(issued) = policy.issued { (relative::moment(issued, now)) } }
            td.n { (left(policy.lease_ends, now)) }
            td.n { (left(Some(policy.certificate_expires), now)) }
            td.n.muted title=[policy.certificate_failure.as_deref()] {
                (relative::moment(policy.certificate_renews, now))
                @if policy.certificate_failure.is_some() { " " span.bad { "failed" } }
            }
            td.n.(if skewed { "warn" } else { "muted" }) {
                @if skewed { (if policy.clock_ms < 0 { "−" } else { "+" }) (relative::span(Duration::from_millis(policy.clock_ms.unsigned_abs()))) } @else { "·" }
            }
        }
    }
}
