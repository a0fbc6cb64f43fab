//! One actor: what it does right now, its state and what the last turn changed, its last messages, and its past.

use postroad_actors::inspect::{ActorView, JournalView, StateView};
use postroad_cluster::time::WallTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::{self, Lines};

/// Messages that are shown unless asked otherwise.
pub const MESSAGES: usize = 40;

/// The most that are shown: all that a journal keeps.
pub const MESSAGES_MAX: usize = postroad_cluster::limits::JOURNAL_ENTRIES_MAX;

/// A moment of the past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Past {
    /// The number of the event after which it was so.
    pub number: u64,
    /// That event.
    pub message: Option<JournalView>,
    /// Why the state cannot be shown.
    pub failure: Option<String>,
}

/// Which state is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// None: it has not started.
    #[default]
    Nothing,
    /// The published one.
    Published,
    /// The last one before its end.
    PostMortem,
    /// One of the past.
    Past,
}

/// What the page is made from, besides the actor's own view.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The published state.
    pub published: Option<StateView>,
    /// The last messages, oldest first.
    pub messages: Vec<JournalView>,
    /// The events whose states can be computed again, first and last.
    pub known: Option<(u64, u64)>,
    /// The event that is asked for, with the state after it and the one before it.
    pub past: Option<(u64, Result<Value, String>, Option<Value>)>,
    /// The state one event before the published one, for the difference.
    pub before: Option<Value>,
}

/// The page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    /// The node.
    pub node: String,
    /// When.
    pub now: WallTime,
    /// The actor.
    pub actor: ActorView,
    /// Which state is shown.
    pub shown: Shown,
    /// The age of the published state, in milliseconds.
    pub age_ms: Option<u64>,
    /// The state, with what its turn changed.
    pub state: Lines,
    /// The state as it is.
    pub raw: Value,
    /// What the performer adds.
    pub figures: Value,
    /// The moment of the past that is shown.
    pub past: Option<Past>,
    /// The events whose states can be shown, first and last.
    pub known: Option<(u64, u64)>,
    /// The last messages, newest first.
    pub messages: Vec<JournalView>,
}

/// The page of an actor.
pub fn actor(node: &str, now: WallTime, view: ActorView, facts: Facts) -> Actor {
    let figures = facts.published.as_ref().map(|state| state.figures.clone()).unwrap_or_default();
    let age_ms = facts.published.as_ref().map(|state| state.age_ms);
    let find = |number| facts.messages.iter().find(|message: &&JournalView| message.number == number).cloned();
    let (shown, raw, before, past) = match (facts.past, facts.published) {
        (Some((number, Ok(state), before)), _) => {
            let past = Past { number, message: find(number), failure: None };
            (Shown::Past, state, before, Some(past))
        }
        (Some((number, Err(failure), before)), _) => {
            let past = Past { number, message: find(number), failure: Some(failure) };
            (Shown::Past, before.clone().unwrap_or_default(), before, Some(past))
        }
        (None, Some(published)) => {
            let dead = view.error.is_some();
            let shown = if dead { Shown::PostMortem } else { Shown::Published };
            (shown, published.state, facts.before, None)
        }
        (None, None) => (Shown::Nothing, Value::Null, None, None),
    };
    let mut messages = facts.messages;
    messages.reverse();
    let state = state::lines(before.as_ref(), &raw);
    Actor {
        node: node.to_owned(),
        now,
        actor: view,
        shown,
        age_ms,
        state,
        raw,
        figures,
        past,
        known: facts.known,
        messages,
    }
}

/// The name of an effect, or of an event: what its enum calls it.
pub fn name(value: &Value) -> String {
    match value {
        Value::String(name) => name.clone(),
        Value::Object(fields) if fields.len() == 1 => fields.keys().next().cloned().unwrap_or_default(),
        other => state::short(other),
    }
}

/// What is in an effect or an event, without its name.
pub fn content(value: &Value) -> String {
    match value {
        Value::Object(fields) if fields.len() == 1 => fields.values().next().map(state::short).unwrap_or_default(),
        _ => String::new(),
    }
}
