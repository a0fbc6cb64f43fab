//! The overview as HTML: what is wrong first, then the control group, the relays, and every node.

use maud::{Markup, html};
use postroad_actors::status::{
    Problem,
    control::{ControlView, Member},
    relays::{Relay, Standing},
};
use postroad_cluster::{drain::Phase, id::Role, time::WallTime};

use super::{figure, health_class, percent};
use crate::{
    cli::relative,
    console::{
        chart,
        model::{
            overview::{Card, Overview, within},
            vitals::Vitals,
        },
        query::Query,
    },
};

/// The page.
pub fn render(overview: &Overview) -> Markup {
    html! {
        (figures(overview))
        @if !overview.problems.is_empty() { (alarms(&overview.problems, overview.now)) }
        div.columns {
            @if let Some(control) = &overview.control { (group(control, overview.now)) }
            (relays(overview))
        }
        (fleet(overview))
        @if overview.flows.refused > 0 || !overview.flows.stalls.is_empty() {
            div.columns { (refusals(overview)) (stalls(overview)) }
        }
    }
}

/// Refused tunnels of the node that is asked.
fn refusals(overview: &Overview) -> Markup {
    html! {
        @if overview.flows.refused > 0 { section {
            h2 { "Refused tunnels" small { "of this node, since it started" } }
            div.scroll { table {
                thead { tr { th { "reason" } th { "at its end as" } th.n { "tunnels" } } }
                tbody { @for (end, reason, count) in overview.refusals() {
                    tr data-row={ "refused " (end) " " (reason) } { td { code { (reason) } } td.muted { (end) } td.n { (figure(count)) } }
                } }
            } }
        } }
    }
}

/// How long its flows stood still.
fn stalls(overview: &Overview) -> Markup {
    html! {
        @if !overview.flows.stalls.is_empty() { section {
            h2 { "Stalls" small { "of this node's flows, until data moved again" } }
            div.scroll { table {
                thead { tr { th { "cause" } th.n { "times" } th.n { "half within" } th.n { "99 % within" } } }
                tbody { @for stall in &overview.flows.stalls {
                    tr data-row={ "stall " (stall.cause) } {
                        td { (stall.cause) }
                        td.n { (figure(stall.count)) }
                        td.n { (within(stall, 50)) }
                        td.n { (within(stall, 99)) }
                    }
                } }
            } }
        } }
    }
}

fn figures(overview: &Overview) -> Markup {
    let relays = &overview.relays;
    let flows = overview.flows.fleet.unwrap_or(overview.flows.open);
    let controls = overview.can_lose.controls.map_or_else(|| "–".to_owned(), relative::count);
    html! {
        dl.figures {
            div { dt { "control nodes to lose" } dd { (controls) } }
            div { dt { "relays to lose" } dd { (relative::count(overview.can_lose.relays)) } }
            div { dt { "relays ready" } dd { (relays.ready) small { " of " (relays.list.len()) } } }
            div { dt { "links" } dd { (relative::count(overview.links as u64)) } }
            div { dt { "flows" } dd { (relative::count(flows)) } }
            div { dt { "alarms" } dd.(if overview.problems.is_empty() { "" } else { health_class(overview.health) }) {
                (overview.problems.len())
            } }
        }
    }
}

fn alarms(problems: &[Problem], now: WallTime) -> Markup {
    html! {
        section.alarms aria-labelledby="alarms" {
            h2 #alarms { "Alarms" small { (problems.len()) } }
            ol {
                @for problem in problems {
                    li.(health_class(problem.health)) {
                        p { b { (problem.about) } span.muted { " for " (relative::span(now.since(problem.since))) } code { (problem.code) } }
                        p { (problem.what) }
                        p.next { (problem.next) }
                    }
                }
            }
        }
    }
}

fn member_state(member: &Member, leader: bool) -> (&'static str, String) {
    match (leader, member.live, member.votes) {
        (true, _, _) => ("lead", "leads".to_owned()),
        (_, Some(false), _) => ("bad", "silent".to_owned()),
        (_, _, false) => ("quiet", "without a vote".to_owned()),
        (_, Some(true), _) => ("good", "follows".to_owned()),
        (_, None, _) => ("quiet", "not known".to_owned()),
    }
}

fn group(control: &ControlView, now: WallTime) -> Markup {
    let since = relative::span(now.since(control.leads_since));
    html! {
        section {
            h2 { "Control" small { "term " (control.term) } }
            table {
                thead { tr { th { "node" } th { "role" } th.n { "behind" } th.n { "answered" } } }
                tbody {
                    @for member in &control.members {
                        @let (class, word) = member_state(member, control.leader == Some(member.id));
                        tr data-row={ "member " (member.name) } {
                            td { a href=(Query::default().with("node", &member.name).address("/tree")) { (member.name) } }
                            td { span class={ "dot " (class) } {} (word) }
                            td.n { @if let Some(lag) = member.lag_entries { (figure(lag)) } }
                            td.n { @if let Some(silent) = member.silent_ms { (silent) " ms" } }
                        }
                    }
                }
            }
            p.note {
                @if control.leader.is_none() { b.bad { "nobody leads" } " · " }
                "log " (relative::count(control.log)) ", committed " (relative::count(control.committed))
                " · leads for " (since)
                @if let Some(cause) = &control.cause { ", since " (cause) }
            }
        }
    }
}

fn standing_class(relay: &Relay) -> &'static str {
    match relay.state {
        Standing::Ready => "good",
        Standing::Pending => "quiet",
        Standing::Draining => "warn",
        Standing::Unreachable => "bad",
    }
}

/// How a relay stands, and what is left of its drain.
fn standing(relay: &Relay) -> Markup {
    let progress = relay.drain.as_ref().and_then(|drain| drain.progress.as_ref());
    html! {
        span class={ "dot " (standing_class(relay)) } {}
        @match progress {
            Some(progress) if progress.phase == Phase::Over => "drained",
            Some(progress) => { (relay.state.word()) small { " " (progress.flows) " left" } },
            None => (relay.state.word()),
        }
    }
}

fn relays(overview: &Overview) -> Markup {
    let relays = &overview.relays;
    let heard = |name: &str| overview.cards.iter().find(|card| card.name == name).map(|card| &card.heard);
    html! {
        section {
            h2 { "Relays" small { (relays.independent) " independent, " (relays.off_control) " off the control nodes" } }
            @if relays.list.is_empty() {
                p.empty { "There is no relay yet. Invite one: " code { "postroad relay add NAME --advertise HOST:PORT" } }
            } @else {
                div.scroll { table {
                    thead { tr { th { "relay" } th { "state" } th.n { "round trip" } th.n { "sessions" } th.n { "flows" } th.n { "load" } th.n { "forwarded" } th.n { "reached by" } } }
                    tbody {
                        @for relay in &relays.list {
                            @let heard = heard(&relay.name);
                            @let service = heard.filter(|heard| heard.silence.is_none()).and_then(|heard| heard.vitals.as_ref()?.relay.as_ref());
                            @let nearest = relay.reached_by.values().min();
                            tr data-row={ "relay " (relay.name) } {
                                td { a href=(Query::default().with("node", &relay.name).address("/tree")) { (relay.name) } @if relay.local { span.tag { "control" } } }
                                td title={ (relay.state_words()) @if !relay.reason.is_empty() { ": " (relay.reason) } } { (standing(relay)) }
                                td.n { @if let Some(us) = nearest { (super::nanoseconds(us * 1_000)) } }
                                td.n { @if let Some(it) = service { (figure(it.sessions as u64)) } }
                                td.n { @if let Some(flows) = relay.flows { (figure(flows)) } }
                                td.n { @if let Some(bytes) = heard.and_then(|heard| heard.forwards) { (relative::bytes(bytes)) "/s" } }
                                td.n { @if let Some(it) = service { (relative::bytes(it.bytes)) } }
                                td.n {
                                    (relay.reached_by.len())
                                    @if !relay.missed_by.is_empty() { span.bad { " −" (relay.missed_by.len()) } }
                                }
                            }
                        }
                    }
                } }
                @for shared in relays.shared.iter().take(3) {
                    p.note { b.warn { (shared.one) " and " (shared.other) } " " (shared.what) }
                }
            }
        }
    }
}

fn fleet(overview: &Overview) -> Markup {
    html! {
        section {
            h2 { "Nodes" small { (overview.cards.len()) } }
            div.scroll {
                table.fleet {
                    thead { tr {
                        th { "node" } th { "roles" } th { "stands" } th.n { "flows" } th.n { "actors" } th.n { "waiting" }
                        th { "turns in the last minute" } th { "busiest actor" } th.n { "busy" } th.n { "restarts" } th.n { "age" }
                    } }
                    tbody { @for card in &overview.cards { (node(card)) } }
                }
            }
        }
    }
}

fn roles(card: &Card) -> String {
    let words: Vec<&str> = card.roles.iter().filter(|role| **role != Role::Node).map(|role| role.word()).collect();
    if words.is_empty() { "node".to_owned() } else { words.join(", ") }
}

fn node(card: &Card) -> Markup {
    let query = Query::default().with("node", &card.name);
    let (class, word) = match &card.heard.vitals {
        _ if card.silent() => ("silent", "silent"),
        Some(_) => (health_class(card.stands), card.stands.word()),
        None => ("quiet", "not heard yet"),
    };
    html! {
        tr.(if card.silent() { "silent" } else { "" }) title=[card.heard.silence.as_deref()] data-row={ "node " (card.name) } {
            td { a href=(query.address("/tree")) { (card.name) } @if card.leads { span.tag.lead { "leads" } } }
            td.muted { (roles(card)) }
            td { span class={ "dot " (class) } {} (word) }
            @match &card.heard.vitals {
                Some(vitals) => (node_figures(vitals, &query)),
                None => td colspan="7" {},
            }
            td.n.age { @if let Some(age) = card.heard.age_ms { @if card.silent() || age > 5_000 { (relative::span(std::time::Duration::from_millis(age))) } @else { "now" } } }
        }
    }
}

fn node_figures(vitals: &Vitals, query: &Query) -> Markup {
    html! {
        td.n { (figure(vitals.flows.open)) }
        td.n { (vitals.actors) @if vitals.down > 0 { span.bad { " −" (vitals.down) } } }
        td.n.(if vitals.depth >= super::super::model::vitals::DEEP { "warn" } else { "" }) { (figure(vitals.depth as u64)) }
        td { (chart::sparkline(&vitals.turns, "turns")) }
        td.path { @if let Some(busiest) = &vitals.busiest { a href=(super::actor_address(&busiest.path, query)) { (busiest.path.trim_start_matches("node/")) } } }
        td.n { @if let Some(busiest) = &vitals.busiest { (percent(busiest.busy_share)) " %" } }
        td.n.(if vitals.restarts > 0 { "warn" } else { "" }) { (figure(vitals.restarts)) }
    }
}
