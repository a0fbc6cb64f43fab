//! The models as HTML: one frame around all pages, one file a page. Readable without scripts or styles.

pub mod act;
pub mod actor;
pub mod actors;
pub mod control;
mod frame;
pub mod overview;
pub mod topology;
pub mod trace;
pub mod tree;
pub mod why;

use maud::{Markup, html};
use postroad_actors::{inspect::Status, status::Health};

pub use frame::{Frame, failure, inner, page};

use super::{
    figures::{figure, nanoseconds, percent, rate, under},
    query::Query,
};

/// The class of a health.
const fn health_class(health: Health) -> &'static str {
    match health {
        Health::Well => "good",
        Health::AtRisk => "warn",
        Health::Degraded | Health::Failing => "bad",
    }
}

/// The class and the word of a status.
const fn status_words(status: Status) -> (&'static str, &'static str) {
    match status {
        Status::Starting => ("quiet", "starting"),
        Status::Alive => ("good", "alive"),
        Status::Busy => ("busy", "busy"),
        Status::Restarting => ("warn", "restarting"),
        Status::Stopped => ("quiet", "stopped"),
        Status::Killed => ("bad", "killed"),
        Status::Failed => ("bad", "failed"),
    }
}

/// A dot and a word.
fn status(status: Status) -> Markup {
    let (class, word) = status_words(status);
    html! { span class={ "dot " (class) } {} (word) }
}

/// The address of an actor's page.
fn actor_address(path: &str, query: &Query) -> String {
    query.only(&["node"]).address(&format!("/actor/{path}"))
}

/// A sender: a link where it is an actor of the same node.
fn sender(name: &str, query: &Query) -> Markup {
    if name == "node" || name.starts_with("node/") {
        html! { a href=(actor_address(name, query)) { (name) } }
    } else {
        html! { span.muted { (name) } }
    }
}

/// Inputs that carry what a form does not ask for.
fn carried(query: &Query, without: &[&str]) -> Markup {
    html! {
        @for (key, value) in query.pairs().filter(|(key, _)| !without.contains(key)) {
            input type="hidden" name=(key) value=(value);
        }
    }
}
