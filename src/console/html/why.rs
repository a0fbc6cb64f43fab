//! Why, as HTML: the decision's own table for each circuit, and what it would do if a relay died.

use maud::{Markup, html};

use super::{carried, figure, nanoseconds};
use crate::console::{
    model::why::{Choice, Outcome, Placement, Why, Without},
    query::Query,
};

/// The page.
pub fn render(why: &Why, query: &Query) -> Markup {
    html! {
        div.head {
            h1 { "Why" small { @match &why.about { Some(about) => (about), None => "every circuit on its relay" } } }
            form.search {
                (carried(query, &["link", "relay"]))
                select name="link" aria-label="Link" {
                    option value="" { "every link" }
                    @for link in &why.links { option value=(link) selected[link == query.get("link")] { (link) } }
                }
                select name="relay" aria-label="Relay" {
                    option value="" { "every relay" }
                    @for relay in &why.relays { option value=(relay) selected[relay == query.get("relay")] { (relay) } }
                }
                button { "Show" }
            }
        }
        @if let Some(relay) = &why.relay { p.now { (relay) } }
        (without(&why.without, query))
        @if why.placements.is_empty() {
            p.empty { "No circuit is like that: two nodes have one while they share a link." }
        }
        div.columns {
            @for placement in &why.placements { (circuit(placement)) }
        }
        @if !why.silent.is_empty() { p.warning { "No answer of " (why.silent.join(", ")) ": its circuits are not here." } }
    }
}

fn without(rows: &[Without], query: &Query) -> Markup {
    html! {
        @if !rows.is_empty() { section {
            h2 { "What if a relay died now" small { "by the function that would decide, on a copy" } }
            div.scroll { table {
                thead { tr { th { "relay" } th.n { "circuits move" } th.n { "flows on them" } th.n { "circuits wait" } th.n { "relays to lose then" } } }
                tbody { @for row in rows {
                    tr.(if row.relay == query.get("relay") { "here" } else { "" }) data-row=(row.relay) {
                        td { a href=(query.with("relay", &row.relay).address("/why")) { (row.relay) } }
                        td.n { (figure(row.moving as u64)) }
                        td.n { (figure(row.flows)) }
                        td.n.(if row.waiting > 0 { "bad" } else { "" }) { (figure(row.waiting as u64)) }
                        td.n.(if row.can_lose == 0 { "warn" } else { "" }) { (row.can_lose) }
                    }
                } }
            } }
        } }
    }
}

fn circuit(placement: &Placement) -> Markup {
    html! {
        section {
            h2 {
                (placement.node) " → " (placement.peer)
                small {
                    @match &placement.relay { Some(relay) => { "over " b { (relay) } }, None => span.bad { "waits for a relay" } }
                    @match placement.flows { 0 => ", no flow", 1 => ", 1 flow", flows => { ", " (flows) " flows" } }
                    @if !placement.links.is_empty() { " of " (placement.links.join(", ")) }
                }
            }
            table {
                thead { tr { th { "relay" } th { "may carry it" } th.n { "round trip" } th { "against it" } th.n { "place" } th { "if it dies" } } }
                tbody { @for choice in &placement.choices { (row(choice)) } }
            }
            p.note {
                @if !placement.opens.is_empty() { "New flows: " (placement.opens_words()) ". " }
                @if !placement.packets.is_empty() { "Its packets have " (placement.packets) ". " }
                @if placement.moves > 0 { (placement.moves) @if placement.moves == 1 { " move" } @else { " moves" } @if let Some(reason) = &placement.move_reason { ", last: " (reason) } ". " }
                @if placement.chooses { "This end looks for nearer relays, when one is 30 % and 5 ms nearer." } @else { (placement.peer) " looks for nearer relays; this end leaves only silent ones." }
            }
        }
    }
}

fn row(choice: &Choice) -> Markup {
    let against = [
        (choice.last_resort, "drains or is too small"),
        (choice.shares_domain && !choice.carries, "shares a failure domain"),
        (choice.unheard, "not heard since its silence began"),
    ];
    let against: Vec<&str> = against.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect();
    html! {
        tr.(if choice.carries { "here" } else { "" }) {
            td { (choice.relay) @if choice.carries { span.tag.lead { "carries" } } }
            td { @if choice.candidate { span.dot.good {} "yes" } @else { span.dot.bad {} "no: its last probe did not come back" } }
            td.n { @if let Some(us) = choice.round_trip_us { (nanoseconds(us * 1_000)) } }
            td.wrap.muted { (against.join(", ")) }
            td.n { @if let Some(place) = choice.place { (place) "." } }
            td { @match &choice.if_it_dies {
                Outcome::Stays => span.muted { "stays" },
                Outcome::Moves { to } => { "moves to " b { (to) } }
                Outcome::Waits => span.bad { "waits" },
            } }
        }
    }
}
