//! One request across nodes as HTML: the timeline, and the same as a table with every step.

use std::time::Duration;

use maud::{Markup, html};

use super::nanoseconds;
use crate::{
    cli::relative,
    console::{
        chart::timeline,
        model::trace::{Step, Trace},
        query::Query,
    },
};

/// The page.
pub fn render(page: &Trace) -> Markup {
    html! {
        div.head {
            h1 { "Trace " code { (page.id) } small { (page.words()) } }
            form role="search" action="/trace" {
                input type="search" name="id" placeholder="Another trace" aria-label="Trace" autocomplete="off";
                button { "Follow" }
            }
        }
        @if page.steps.is_empty() {
            p.empty {
                "No node remembers a message of this trace. Journals keep the last messages of an actor; every message there "
                "links to its trace."
            }
        } @else {
            section {
                div.scroll.picture { (timeline::draw(page)) }
                p.legend {
                    span { span.key.wait {} "waits in a mailbox" } span { span.key.turn {} "is handled" }
                    span { span.key.leads {} "leads to" } span { span.key.gap {} "nothing happens" }
                    @if !page.silent.is_empty() { span { span.key.unheard {} "silent node" } }
                }
            }
        }
        @for silent in &page.silent { p.warning { (silent.node) " does not answer, so its steps are not here: " (silent.reason) } }
        @for node in &page.cut { p.warning { (node) " knows more steps than it tells" } }
        @if !page.steps.is_empty() { (table(page)) }
    }
}

fn table(page: &Trace) -> Markup {
    html! {
        section {
            h2 { "Steps" small { "by the nodes' wall clocks" } }
            div.scroll { table.steps {
                thead { tr { th.n { "after" } th { "node" } th { "who" } th { "message" } th { "from" } th.n { "waited" } th.n { "took" } th { "led to" } } }
                tbody { @for (at, step) in page.steps.iter().enumerate() { (row(at, step)) } }
            } }
        }
    }
}

fn row(at: usize, step: &Step) -> Markup {
    let query = Query::default().with("node", &step.node);
    html! {
        tr data-row=(at) class=(if step.failure.is_some() { "bad" } else { "" }) {
            td.n { (nanoseconds(step.after_us * 1_000)) }
            td { a href=(query.address("/tree")) { (step.node) } }
            td.path {
                @match step.event {
                    Some(event) => a href=(query.with("at", &event.to_string()).address(&format!("/actor/{}", step.place))) { (step.place) },
                    None => (step.place),
                }
            }
            td { code { (step.kind) } }
            td.muted { (step.sender) }
            td.n { @if step.event.is_some() { (nanoseconds(step.waited_us * 1_000)) } }
            td.n {
                @match step.took_us {
                    Some(us) => (relative_span(us)),
                    None => span.muted { @if step.failure.is_some() { "failed" } @else { "goes on" } },
                }
            }
            td.wrap {
                @match &step.failure {
                    Some(failure) => span.bad { (failure) },
                    None => (step.effects.join(", ")),
                }
            }
        }
    }
}

fn relative_span(us: u64) -> String {
    if us < 10_000_000 { nanoseconds(us * 1_000) } else { relative::span(Duration::from_micros(us)) }
}
