//! One actor as HTML: what it does now, its state with what changed, its messages, and the way back in time.

use maud::{Markup, html};
use postroad_actors::inspect::{ActorView, JournalView};
use postroad_cluster::time::WallTime;
use serde_json::Value;

use super::{actor_address, figure, nanoseconds, percent, rate, sender, status, tree, under};
use crate::{
    cli::relative,
    console::{
        chart,
        model::{
            actor::{Actor, Shown, content, name},
            state::{Change, Line, Lines, short},
            vitals::STUCK_MS,
        },
        query::Query,
    },
};

/// The page.
pub fn render(page: &Actor, query: &Query) -> Markup {
    let actor = &page.actor;
    html! {
        div.head {
            h1 { (trail(&actor.path, query)) small { (actor.kind) " on " (page.node) } }
        }
        (now(actor, query))
        (numbers(actor))
        (slider(page, query))
        div.columns.wide {
            (state(page))
            (messages(page, query))
        }
        @if !actor.history.is_empty() {
            section { h2 { "Restarts" small { (actor.restarts) } } (tree::history(&actor.history.iter().rev().cloned().collect::<Vec<_>>(), page.now)) }
        }
        @if !actor.children.is_empty() {
            section { h2 { "Children" small { (actor.children.len()) } }
                p.children { @for child in actor.children.iter().take(200) {
                    a href=(actor_address(child, query)) { (child.rsplit('/').next().unwrap_or_default()) } " "
                } }
            }
        }
    }
}

/// The path with a link for each part.
fn trail(path: &str, query: &Query) -> Markup {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    html! {
        @for end in ends {
            @let part = &path[..end];
            @if part.contains('/') { span.muted { "/" } }
            @if end == path.len() { (part.rsplit('/').next().unwrap_or_default()) }
            @else { a href=(actor_address(part, query)) { (part.rsplit('/').next().unwrap_or_default()) } }
        }
    }
}

fn now(actor: &ActorView, query: &Query) -> Markup {
    let stuck = actor.busy_for_ms.is_some_and(|ms| ms >= STUCK_MS);
    html! {
        p.now.(if stuck || actor.error.is_some() { "bad" } else { "" }) {
            (status(actor.status))
            @if let (Some(kind), Some(ms)) = (&actor.busy_kind, actor.busy_for_ms) {
                " with " code { (kind) } " from " (sender(actor.busy_from.as_deref().unwrap_or("outside"), query))
                " for " (relative::span(std::time::Duration::from_millis(ms)))
                @if stuck { ". Turns are computations, so this one is stuck; what it published before is below" }
            } @else if let Some(kind) = &actor.last_kind {
                span.muted { " · last " } code { (kind) }
            }
            @if let Some(error) = &actor.error { " · " (error) }
            @if let Some(ms) = actor.restart_in_ms { span.muted { " · starts again in " (ms) " ms" } }
        }
    }
}

fn numbers(actor: &ActorView) -> Markup {
    html! {
        dl.figures.small {
            div { dt { "waiting" } dd { (figure(actor.depth as u64)) small { " most " (relative::count(actor.depth_max as u64)) } } }
            div { dt { "wait p50, p99" } dd {
                @if actor.events_per_second > 0.0 { (under(actor.wait_p50_us)) small { " " (under(actor.wait_p99_us)) } } @else { "·" }
            } }
            div { dt { "turns/s" } dd { (rate(actor.events_per_second)) } }
            div { dt { "last minute" } dd { (chart::sparkline(&actor.seconds, "turns")) } }
            div { dt { "busy" } dd { (percent(actor.busy_share)) small { " %" } } }
            div { dt { "handled" } dd { (relative::count(actor.handled)) } }
            div { dt { "refused" } dd.(if actor.refused > 0 { "warn" } else { "" }) { (figure(actor.refused)) } }
            div { dt { "replaced" } dd { (figure(actor.replaced)) } }
            div { dt { "tasks, timers, askers" } dd { (actor.tasks) small { " " (actor.timers) " " (actor.askers) } } }
            div { dt { "restarts" } dd.(if actor.restarts > 0 { "warn" } else { "" }) { (figure(actor.restarts)) } }
        }
    }
}

/// The way through time: a slider over the events whose states can be computed again.
fn slider(page: &Actor, query: &Query) -> Markup {
    let Some((first, last)) = page.known.filter(|(first, last)| last > first) else { return html! {} };
    let at = page.past.as_ref().map_or(last, |past| past.number);
    let path = format!("/actor/{}", page.actor.path);
    let to = |number: u64| query.with("at", &number.to_string()).address(&path);
    html! {
        section.time aria-label="Time travel" {
            form action=(path) {
                (super::carried(query, &["at"]))
                @if at > first { a rel="prev" href=(to(at - 1)) title="A message back" data-key="[" { "◂" } } @else { span.muted { "◂" } }
                input type="range" name="at" min=(first) max=(last) value=(at) aria-label="Event" data-at=(at);
                @if at < last { a rel="next" href=(to(at + 1)) title="A message on" data-key="]" { "▸" } } @else { span.muted { "▸" } }
                output { "event " (relative::count(at)) span.muted { " of " (relative::count(last)) } }
                noscript { button { "Show" } }
                @if page.past.is_some() { a href=(query.with("at", "").address(&path)) { "Back to now" } }
                a href=(query.with("at", &at.to_string()).address(&format!("/recording/{}", page.actor.path))) download { "Save as simulation" }
            }
            @if let Some(past) = &page.past {
                p {
                    @match &past.message {
                        Some(message) => {
                            b { "after " code { (message.kind) } } " from " (sender(&message.sender, query))
                            span.muted { " · " (relative::moment(WallTime(message.wall_ms), page.now)) ", waited " (nanoseconds(message.waited_ns)) " · " a href={ "/trace/" (message.trace) } { "follow it" } }
                        },
                        None => span.muted { "after event " (past.number) ", which is no longer listed" },
                    }
                    @if let Some(failure) = &past.failure { " · " span.bad { (failure) } }
                }
            }
        }
    }
}

fn state(page: &Actor) -> Markup {
    let age = page.age_ms.map(|ms| relative::span(std::time::Duration::from_millis(ms)));
    html! {
        section.state-view {
            h2 { "State" small {
                @match page.shown {
                    Shown::Nothing => "not published yet",
                    Shown::Published => { "published " (age.unwrap_or_default()) " ago" },
                    Shown::PostMortem => { "post mortem: the last one before its end, " (age.unwrap_or_default()) " ago" },
                    Shown::Past => { "computed again from the journal" },
                }
                @if page.state.changed > 0 { " · " (page.state.changed) " changed by the last turn" }
            } }
            @if page.shown == Shown::Nothing {
                p.empty { "An actor publishes its state as soon as it has started." }
            } @else {
                (lines(&page.state))
                @if !page.figures.is_null() { h3 { "Figures of its performer" } (lines(&crate::console::model::state::lines(None, &page.figures))) }
            }
        }
    }
}

fn lines(lines: &Lines) -> Markup {
    html! {
        table.lines {
            tbody { @for line in &lines.lines { (one(line)) } }
        }
        @if lines.left_out > 0 { p.note { (relative::count(lines.left_out as u64)) " more lines; the JSON of this page has all." } }
    }
}

fn one(line: &Line) -> Markup {
    let (class, mark) = match line.change {
        Change::Same => ("", ""),
        Change::Added => ("added", "+"),
        Change::Removed => ("removed", "−"),
        Change::Changed => ("changed", "~"),
    };
    html! {
        tr.(class) {
            td.mark { (mark) }
            td.key data-level=(line.depth.min(8)) { (line.key) }
            td.value {
                @if let Some(before) = &line.before { del { (before) } " " }
                (line.value)
            }
        }
    }
}

fn messages(page: &Actor, query: &Query) -> Markup {
    let at = page.past.as_ref().map(|past| past.number);
    let path = format!("/actor/{}", page.actor.path);
    html! {
        section {
            h2 { "Messages" small { "newest first" } }
            @if page.messages.is_empty() {
                p.empty { "It has handled none yet." }
            } @else {
                div.scroll { table.messages {
                    thead { tr { th.n { "event" } th { "kind" } th { "from" } th.n { "waited" } th.n { "took" } th { "effects" } th.n { "age, trace" } } }
                    tbody { @for message in &page.messages {
                        tr.(if at == Some(message.number) { "here" } else { "" }) data-row=(message.number) {
                            td.n { a href=(query.with("at", &message.number.to_string()).address(&path)) { (message.number) } }
                            td { (detail(message)) }
                            td.path { (sender(&message.sender, query)) }
                            td.n { (nanoseconds(message.waited_ns)) }
                            td.n { @if let Some(took) = message.took_ns { (nanoseconds(took)) } }
                            td { (effects(message)) }
                            td.n { a.trace href={ "/trace/" (message.trace) } title="Follow this message through actors and nodes" { (relative::moment(WallTime(message.wall_ms), page.now).trim_end_matches(" ago")) } }
                        }
                    } }
                } }
            }
        }
    }
}

fn detail(message: &JournalView) -> Markup {
    html! {
        details data-keep={ "event-" (message.number) } {
            summary { code { (message.kind) } @if message.failure.is_some() { " " span.bad { "failed" } } }
            @if let Some(failure) = &message.failure { p.bad { (failure) } }
            pre { (pretty(&message.event)) }
        }
    }
}

fn effects(message: &JournalView) -> Markup {
    html! {
        @if message.effects.is_empty() { span.muted { "none" } }
        @else { details data-keep={ "effects-" (message.number) } {
            summary {
                @for (at, effect) in message.effects.iter().take(3).enumerate() { @if at > 0 { ", " } (name(effect)) }
                @if message.effects.len() > 3 { " +" (message.effects.len() - 3) }
            }
            ul { @for effect in &message.effects { li { b { (name(effect)) } " " span.muted { (content(effect)) } } } }
        } }
    }
}

/// JSON on several lines; cut where it is very long.
fn pretty(value: &Value) -> String {
    const CHARS_MAX: usize = 4_000;
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| short(value));
    if text.chars().count() > CHARS_MAX { text.chars().take(CHARS_MAX).chain(['…']).collect() } else { text }
}
