//! The tree as HTML: a row an actor, drawn with the lines of a tree; a closed branch carries the worst below it.

use maud::{Markup, html};
use postroad_actors::inspect::RestartView;
use postroad_cluster::time::WallTime;

use super::{actor_address, carried, figure, rate, status};
use crate::{
    cli::relative,
    console::{
        model::tree::{Branch, Look, Tree},
        query::Query,
    },
};

const fn look_words(look: Look) -> (&'static str, &'static str) {
    match look {
        Look::Well => ("good", "well"),
        Look::Restarted => ("warn", "restarted"),
        Look::Deep => ("warn", "deep mailbox"),
        Look::Stuck => ("bad", "stuck"),
        Look::Restarting => ("warn", "restarting"),
        Look::Failed => ("bad", "failed"),
    }
}

/// The page. `now` is the present wall time, for the ages of restarts.
pub fn render(tree: &Tree, query: &Query, now: WallTime) -> Markup {
    html! {
        div.head {
            h1 { (tree.node) small { (relative::count(tree.total as u64)) " actors" } }
            form.search role="search" {
                (carried(query, &["q"]))
                input type="search" name="q" value=(query.get("q")) placeholder="Search paths and kinds" aria-label="Search" autocomplete="off";
                @if let Some(found) = tree.found { span.muted { (relative::count(found as u64)) " found" } }
            }
            p.actions {
                a href=(query.with("open", &everything(tree)).with("q", "").address("/tree")) { "Open all shown" }
                a href=(query.with("open", "").with("q", "").address("/tree")) { "Close" }
            }
        }
        @if tree.branches.is_empty() {
            p.empty { "No actor is called like that. " a href=(query.with("q", "").address("/tree")) { "Show all" } }
        } @else {
            div.scroll {
                table.tree {
                    thead { tr { th { "actor" } th { "behavior" } th { "state" } th { "below it" } th.n { "waiting" } th.n { "turns/s" } th.n { "restarts" } } }
                    tbody { @for branch in &tree.branches { (row(branch, tree, query, now)) } }
                }
            }
            @if tree.left_out > 0 {
                p.note { (relative::count(tree.left_out as u64)) " more are not shown; search for them." }
            }
        }
    }
}

/// The branches that a query has to name so that all shown ones with children are open.
fn everything(tree: &Tree) -> String {
    let with_children = tree.branches.iter().filter(|branch| branch.children > 0).take(200);
    with_children.map(|branch| branch.path.as_str()).collect::<Vec<_>>().join(",")
}

fn row(branch: &Branch, tree: &Tree, query: &Query, now: WallTime) -> Markup {
    html! {
        tr data-row=(branch.path) class=(if branch.found { "found" } else { "" }) {
            td.branch data-level=(branch.level.min(8)) {
                @if branch.children > 0 {
                    a.toggle href=(tree.toggled(branch, query).address("/tree")) aria-expanded=(branch.open)
                        aria-label=(if branch.open { "Close" } else { "Open" }) { (if branch.open { "▾" } else { "▸" }) }
                } @else { span.toggle {} }
                a href=(actor_address(&branch.path, query)) { (branch.name) }
            }
            td.muted { (branch.kind) }
            td {
                @if branch.look == Look::Well { (status(branch.status)) }
                @else { @let (class, word) = look_words(branch.look); span class={ "dot " (class) } {} (word) }
            }
            td {
                @if branch.below > 0 { span.muted { (relative::count(branch.below as u64)) } }
                @if let Some((look, path)) = &branch.worst {
                    @let (class, word) = look_words(*look);
                    " " a.(class) href=(actor_address(path, query)) { (word) " " (path.rsplit('/').next().unwrap_or_default()) }
                }
            }
            td.n { (figure(branch.depth as u64)) }
            td.n { (rate(branch.rate)) }
            td.n.(if branch.restarts > 0 { "warn" } else { "" }) { (figure(branch.restarts)) }
        }
        @if !branch.history.is_empty() {
            tr.history { td colspan="7" { details data-keep=(branch.path) {
                summary { "last restarts" }
                (history(&branch.history, now))
            } } }
        }
    }
}

/// Restarts, newest first.
pub(super) fn history(history: &[RestartView], now: WallTime) -> Markup {
    html! {
        ol.restarts {
            @for restart in history {
                li {
                    p {
                        b { (relative::moment(WallTime(restart.wall_ms), now)) }
                        @if let Some(kind) = &restart.kind { " on " code { (kind) } }
                        @if let Some(event) = restart.event { span.muted { " (event " (event) ")" } }
                        span.muted { " · back after " (restart.backoff_ms) " ms" }
                    }
                    p.bad { (restart.error) }
                    @if let Some(state) = &restart.state_before {
                        details { summary { "state before" } pre { (state) } }
                    }
                }
            }
        }
    }
}
