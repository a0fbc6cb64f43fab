//! Acting as HTML: a form for each deed, each with a token and a reason, and the audit below.

use maud::{Markup, html};
use postroad_cluster::time::WallTime;

use crate::{
    cli::relative,
    console::{act::Line, model::overview::Overview, query::Query},
};

/// The page. Without rights to act there are no forms, only how to get them.
pub fn render(overview: Option<&Overview>, may: bool, lines: &[Line], query: &Query, now: WallTime) -> Markup {
    let relays: Vec<&str> =
        overview.into_iter().flat_map(|page| &page.relays.list).map(|relay| relay.name.as_str()).collect();
    html! {
        div.head { h1 { "Act" small { "with a token, a reason, and a line in the audit" } } }
        @if may {
            div.deeds {
                (form("drain", "Drain a relay", "New connections go elsewhere, open ones move, nothing breaks.", &choice(&relays, query)))
                (form("resume", "Resume a relay", "It takes connections again.", &choice(&relays, query)))
                (form("step-down", "Let another lead", "Another control node leads within a second.", &html! {}))
                (form("restart", "Restart an actor of this node", "It fails now, and its supervisor starts it again.", &html! {
                    label { "path " input name="what" value=(query.get("what")) placeholder="node/control" required; }
                }))
            }
        } @else {
            p.empty {
                "This node's console only reads. To act from it, start the node with " code { "console.act = \"on\"" }
                " and make a token: " code { "postroad console --make-token NAME" }
            }
        }
        section {
            h2 { "Audit" small { "of this node's console" } }
            @if lines.is_empty() { p.empty { "Nothing was done from here." } }
            @else { table {
                thead { tr { th { "when" } th { "who" } th { "what" } th { "why" } th { "came of it" } } }
                tbody { @for line in lines { tr {
                    td { (relative::moment(line.at, now)) } td { (line.by) } td { (line.what) } td.wrap { (line.reason) }
                    td.(if line.outcome == "done" { "good" } else { "bad" }) { (line.outcome) }
                } } }
            } }
        }
    }
}

fn choice(relays: &[&str], query: &Query) -> Markup {
    html! { label { "relay " select name="what" { @for relay in relays { option value=(relay) selected[*relay == query.get("what")] { (relay) } } } } }
}

fn form(deed: &str, title: &str, says: &str, what: &Markup) -> Markup {
    html! {
        form.deed method="post" action="/act" {
            h3 { (title) }
            p.muted { (says) }
            input type="hidden" name="do" value=(deed);
            (what)
            label { "reason " input name="reason" required minlength="4" maxlength="300" autocomplete="off"; }
            label { "token " input name="token" type="password" required autocomplete="off"; }
            button { (title) }
        }
    }
}
