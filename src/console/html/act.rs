//! Acting as HTML: a form for each deed, each with a token and a reason, and the audit below.

use maud::{Markup, html};
use postroad_cluster::{id::Role, time::WallTime};

use crate::{
    api::view::Audit,
    cli::relative,
    console::{act::Line, model::overview::Overview, query::Query},
};

/// What the page is made from.
pub struct Shown<'a> {
    /// The fleet, as far as it is known.
    pub overview: Option<&'a Overview>,
    /// Whether this console acts.
    pub may: bool,
    /// The node whose console it is.
    pub node: &'a str,
    /// What was wanted from this console, and what came of it.
    pub lines: &'a [Line],
    /// What the cluster has agreed on; known to control nodes.
    pub audit: Option<Audit>,
    /// When.
    pub now: WallTime,
}

/// Lines of the audit on the page.
const AUDIT_SHOWN: usize = 50;

/// The page. Without rights to act there are no forms, only how to get them.
pub fn render(page: &Shown<'_>, query: &Query) -> Markup {
    html! {
        div.head { h1 { "Act" small { "with a token, a reason, and a line in the audit" } } }
        @if page.may { (forms(page, query)) } @else {
            p.empty {
                "This node's console only reads. To act from it, start the node with " code { "console.act = \"on\"" }
                " and make a token: " code { "postroad console --make-token NAME" }
            }
        }
        (own(page))
        (agreed(page))
    }
}

fn forms(page: &Shown<'_>, query: &Query) -> Markup {
    let relays: Vec<&str> =
        page.overview.into_iter().flat_map(|page| &page.relays.list).map(|relay| relay.name.as_str()).collect();
    let cards = page.overview.map(|overview| overview.cards.as_slice()).unwrap_or_default();
    let control = cards.iter().any(|card| card.name == page.node && card.roles.contains(&Role::Control));
    html! {
        @if !control && !cards.is_empty() {
            p.warning { (page.node) " is no control node: from here only its own actors can be restarted. The console of a control node does the rest." }
        }
        div.deeds {
            (form("drain", "Drain a relay", "New connections go elsewhere, open ones move, nothing breaks.", &choice("relay", "what", &relays, query.get("what"))))
            (form("resume", "Resume a relay", "It takes connections again.", &choice("relay", "what", &relays, query.get("what"))))
            (form("rebalance", "Rebalance the relays", "Circuits move from the relay with most flows to others that are about as near, nothing breaks.", &html! {}))
            (form("step-down", "Let another lead", "Another control node leads within a second.", &html! {}))
            (form("restart", "Restart an actor", "It fails now, and its supervisor starts it again.", &html! {
                @let names: Vec<&str> = cards.iter().map(|card| card.name.as_str()).collect();
                @let on = if query.get("on").is_empty() { page.node } else { query.get("on") };
                @if names.is_empty() { input type="hidden" name="on" value=(page.node); } @else { (choice("node", "on", &names, on)) }
                label { "path " input name="what" value=(query.get("what")) placeholder="node/control" required; }
            }))
        }
    }
}

fn choice(label: &str, name: &str, options: &[&str], chosen: &str) -> Markup {
    html! { label { (label) " " select name=(name) { @for option in options { option value=(option) selected[*option == chosen] { (option) } } } } }
}

fn form(deed: &str, title: &str, says: &str, what: &Markup) -> Markup {
    html! {
        form.deed method="post" action="/act" {
            h3 { (title) }
            p.muted { (says) }
            input type="hidden" name="do" value=(deed);
            (what)
            label { "reason " input name="reason" required minlength="4" maxlength="200" autocomplete="off"; }
            label { "token " input name="token" type="password" required autocomplete="off"; }
            button { (title) }
        }
    }
}

fn own(page: &Shown<'_>) -> Markup {
    html! {
        section {
            h2 { "From here" small { "what was wanted from the console of " (page.node) ", and what came of it" } }
            @if page.lines.is_empty() { p.empty { "Nothing was done from here." } }
            @else { div.scroll { table {
                thead { tr { th { "when" } th { "who" } th { "what" } th { "why" } th { "came of it" } } }
                tbody { @for line in page.lines { tr {
                    td { (relative::moment(line.at, page.now)) } td { (line.by) } td { (line.what) } td.wrap { (line.reason) }
                    td.(if line.outcome == "done" { "good" } else { "bad" }) {
                        @match line.trace { Some(trace) => a href={ "/trace/" (trace) } { (line.outcome) }, None => (line.outcome) }
                    }
                } } }
            } } }
        }
    }
}

fn agreed(page: &Shown<'_>) -> Markup {
    html! {
        section {
            h2 { "Audit" small { "as the cluster agreed on it" } }
            @match &page.audit {
                None => p.empty { "The audit is known to control nodes, and none of them answers." },
                Some(audit) if audit.lines.is_empty() => p.empty { "Nothing was changed yet." },
                Some(audit) => div.scroll { table {
                    thead { tr { th.n { "entry" } th { "when" } th { "by" } th { "what" } } }
                    tbody { @for line in audit.lines.iter().take(AUDIT_SHOWN) { tr data-row=(line.version) {
                        td.n { (relative::count(line.version)) } td { (relative::moment(line.at, audit.now)) }
                        td { (line.by) } td.wrap { (line.what) }
                    } } }
                } },
            }
        }
    }
}
