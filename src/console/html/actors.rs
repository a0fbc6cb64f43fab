//! The list of actors as HTML: headings sort, filters are in the address, figures stand under each other.

use maud::{Markup, html};

use super::{actor_address, carried, figure, percent, rate, status, under};
use crate::{
    cli::relative,
    console::{
        chart,
        model::{
            actors::{Actors, Row, WINDOWS},
            vitals::{DEEP, STUCK_MS},
        },
        query::Query,
    },
};

const STATES: [(&str, &str); 5] =
    [("", "all"), ("busy", "busy"), ("waiting", "with waiting events"), ("restarted", "restarted"), ("down", "down")];

/// The page.
pub fn render(page: &Actors, query: &Query) -> Markup {
    html! {
        div.head {
            h1 { (page.node) small {
                @if page.found == page.total { (relative::count(page.total as u64)) " actors" }
                @else { (relative::count(page.found as u64)) " of " (relative::count(page.total as u64)) " actors" }
            } }
            form.search role="search" {
                (carried(query, &["q", "kind", "status", "window", "from"]))
                input type="search" name="q" value=(query.get("q")) placeholder="Search paths and kinds" aria-label="Search" autocomplete="off";
                select name="kind" aria-label="Behavior" {
                    option value="" { "every behavior" }
                    @for kind in &page.kinds { option value=(kind) selected[kind == query.get("kind")] { (kind) } }
                }
                select name="status" aria-label="State" {
                    @for (value, word) in STATES { option value=(value) selected[value == query.get("status")] { (word) } }
                }
                select name="window" aria-label="Window" {
                    @for window in WINDOWS { option value=(window) selected[window == page.window] { "last " (window) " s" } }
                }
                button { "Show" }
            }
        }
        @if page.rows.is_empty() {
            p.empty { "No actor is like that. " a href=(query.only(&["node"]).address("/actors")) { "Show all" } }
        } @else {
            div.scroll {
                table.actors {
                    thead { tr {
                        (heading(page, query, "path", "actor", false)) th { "behavior" } th { "state" }
                        (heading(page, query, "depth", "waiting", true)) (heading(page, query, "wait", "wait p99", true))
                        (heading(page, query, "rate", "turns/s", true)) th { "last minute" }
                        (heading(page, query, "busy", "busy %", true)) th {}
                        (heading(page, query, "restarts", "restarts", true)) (heading(page, query, "handled", "handled", true))
                    } }
                    tbody { @for row in &page.rows { (line(row, query)) } }
                }
            }
            (pager(page, query))
        }
        p.note { "Waits, turns a second and busy shares are those of the last " (page.window) " s, waits as powers of two. The console has no actors of its own." }
    }
}

fn heading(page: &Actors, query: &Query, sort: &str, name: &str, is_figure: bool) -> Markup {
    let here = page.sort == sort;
    let turned = query.with("sort", sort).with("dir", if here && !page.ascending { "up" } else { "" }).with("from", "");
    let order = if page.ascending { "ascending" } else { "descending" };
    html! {
        th.(if is_figure { "n" } else { "" }) aria-sort=[here.then_some(order)] {
            a href=(turned.address("/actors")) { (name) @if here { (if page.ascending { " ▴" } else { " ▾" }) } }
        }
    }
}

fn line(Row { actor: row, seconds }: &Row, query: &Query) -> Markup {
    let stuck = row.busy_for_ms.filter(|ms| *ms >= STUCK_MS);
    html! {
        tr data-row=(row.path) {
            td.path { a href=(actor_address(&row.path, query)) { (row.path) } }
            td.muted { (row.kind) }
            td {
                @if let Some(ms) = stuck { span.dot.bad {} "stuck for " (relative::span(std::time::Duration::from_millis(ms))) }
                @else { (status(row.status)) }
            }
            td.n.(if row.depth >= DEEP { "warn" } else { "" }) { (figure(row.depth as u64)) }
            td.n { @if row.rate > 0.0 { (under(row.wait_p99_us)) } @else { "·" } }
            td.n { (rate(row.rate)) }
            td { (chart::sparkline(seconds, "turns")) }
            td.n { (percent(row.busy_share)) }
            td { (chart::bar(row.busy_share, if row.busy_share > 0.8 { "bad" } else if row.busy_share > 0.4 { "warn" } else { "" })) }
            td.n.(if row.restarts > 0 { "warn" } else { "" }) { (figure(row.restarts)) }
            td.n.muted { (figure(row.handled)) }
        }
    }
}

fn pager(page: &Actors, query: &Query) -> Markup {
    let last = (page.first + page.rows.len()).min(page.found);
    let from = |first: usize| {
        query.with("from", &if first == 0 { String::new() } else { first.to_string() }).address("/actors")
    };
    html! {
        @if page.found > page.limit || page.first > 0 {
            p.pager {
                @if page.first > 0 { a href=(from(page.first.saturating_sub(page.limit))) rel="prev" { "◂ before" } }
                span { (page.first + 1) "–" (last) " of " (relative::count(page.found as u64)) }
                @if last < page.found { a href=(from(last)) rel="next" { "next ▸" } }
            }
        }
    }
}
