//! What people see of actors: views for `status`, the console and the commands that look inside.

use std::{
    borrow::Cow,
    fmt::{self, Debug},
    sync::Arc,
};

use postroad_cluster::{
    behavior::{Behavior, Turn},
    trace::TraceId,
};
use serde::{Deserialize, Serialize};

use crate::journal::{Arrival, Entry};

/// How an actor fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Not started yet.
    Starting,
    /// Waits for events.
    Alive,
    /// In a turn; since when is in [`ActorView::busy_for_ms`].
    Busy,
    /// Has failed and waits for its restart.
    Restarting,
    /// Has ended normally.
    Stopped,
    /// Has been killed.
    Killed,
    /// Has failed and will not come back by itself.
    Failed,
}

/// One actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorView {
    /// Where it is found.
    pub path: String,
    /// The noun of its behavior.
    pub kind: String,
    /// How it fares.
    pub status: Status,
    /// The path of its supervisor; none for the root.
    pub supervisor: Option<String>,
    /// The paths of its children in the order of starting.
    pub children: Vec<String>,
    /// Events that wait.
    pub depth: usize,
    /// The most that ever waited.
    pub depth_max: usize,
    /// The wait that half of the events of the last 20 s stayed under, in microseconds, as a power of two.
    pub wait_p50_us: u64,
    /// The wait that 99 of 100 of them stayed under, in microseconds, as a power of two.
    pub wait_p99_us: u64,
    /// Events a second over the last 20 s.
    pub events_per_second: f64,
    /// Events ever handled.
    pub handled: u64,
    /// Events refused because the mailbox was full.
    pub refused: u64,
    /// States that a newer one replaced before they were handled.
    pub replaced: u64,
    /// The kind of the last handled event.
    pub last_kind: Option<String>,
    /// The kind of the event that it handles now.
    pub busy_kind: Option<String>,
    /// Who sent that event.
    pub busy_from: Option<String>,
    /// How long it has been handling it, in milliseconds.
    pub busy_for_ms: Option<u64>,
    /// The share of the last 59 s that its turns took, from 0 to 1.
    pub busy_share: f64,
    /// Turns in each of the last 59 s, oldest first.
    pub seconds: Vec<u32>,
    /// The number of the last event in its journal.
    pub events: u64,
    /// Tasks under way.
    pub tasks: usize,
    /// Timers set.
    pub timers: usize,
    /// Askers that wait.
    pub askers: usize,
    /// The age of its published state, in milliseconds.
    pub state_age_ms: Option<u64>,
    /// How often it was restarted.
    pub restarts: u64,
    /// How long until its restart, in milliseconds.
    pub restart_in_ms: Option<u64>,
    /// Why it is down.
    pub error: Option<String>,
    /// Its last restarts, oldest first.
    pub history: Vec<RestartView>,
}

/// One actor as a row among many: what lists sort and filter by, cheap enough for ten thousand of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorRow {
    /// Where it is found.
    #[serde(with = "shared")]
    pub path: Arc<str>,
    /// The noun of its behavior.
    pub kind: Cow<'static, str>,
    /// How it fares.
    pub status: Status,
    /// The path of its supervisor; none for the root.
    #[serde(with = "shared_option")]
    pub supervisor: Option<Arc<str>>,
    /// How many children it has.
    pub children: usize,
    /// Events that wait.
    pub depth: usize,
    /// The wait that 99 of 100 events stayed under over the window that was asked for, in microseconds.
    pub wait_p99_us: u64,
    /// Turns a second over that window.
    pub rate: f64,
    /// The share of that window that the turns took, from 0 to 1.
    pub busy_share: f64,
    /// How long its present turn has lasted, in milliseconds.
    pub busy_for_ms: Option<u64>,
    /// How often it was restarted.
    pub restarts: u64,
    /// Events refused because the mailbox was full.
    pub refused: u64,
    /// Events ever handled.
    pub handled: u64,
}

/// A shared text as any other.
mod shared {
    use super::{Arc, Deserialize, Serialize};

    pub(super) fn serialize<S: serde::Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        (**text).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Into::into)
    }
}

/// The same where there may be none.
mod shared_option {
    use super::{Arc, Deserialize, Serialize};

    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: serde::Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
        text.as_deref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Into::into))
    }
}

/// One restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartView {
    /// When it failed, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The error.
    pub error: String,
    /// The number of the event on which it failed.
    pub event: Option<u64>,
    /// That event's kind.
    pub kind: Option<String>,
    /// The state before that event as JSON, cut if it is long.
    pub state_before: Option<String>,
    /// How long the restart waited, in milliseconds.
    pub backoff_ms: u64,
}

/// A published state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateView {
    /// The actor.
    pub path: String,
    /// How old it is, in milliseconds.
    pub age_ms: u64,
    /// The event that it is the state after; none if the incarnation had taken none.
    #[serde(default)]
    pub after: Option<u64>,
    /// The behavior's state.
    pub state: serde_json::Value,
    /// What the performer adds, or null.
    pub figures: serde_json::Value,
}

/// An event in a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalView {
    /// Its number.
    pub number: u64,
    /// The node's clock, in nanoseconds since its host booted.
    pub now_ns: u64,
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// Who sent it.
    pub sender: String,
    /// What it is part of.
    pub trace: TraceId,
    /// How long it waited in the mailbox, in nanoseconds.
    pub waited_ns: u64,
    /// How long its turn took, effects included, in nanoseconds; nothing while it is under way or if it failed.
    pub took_ns: Option<u64>,
    /// Its kind.
    pub kind: String,
    /// The event.
    pub event: serde_json::Value,
    /// The effects.
    pub effects: Vec<serde_json::Value>,
    /// The error, if the behavior failed on it.
    pub failure: Option<String>,
}

impl JournalView {
    /// A turn that begins, without what its event holds.
    pub(crate) fn brief(kind: &str, turn: Turn, arrival: &Arrival) -> Self {
        Self {
            number: 0,
            now_ns: turn.now.0,
            wall_ms: turn.wall.0,
            sender: arrival.sender.to_string(),
            trace: arrival.trace,
            waited_ns: arrival.waited.as_nanos() as u64,
            took_ns: None,
            kind: kind.to_owned(),
            event: serde_json::Value::Null,
            effects: Vec::new(),
            failure: None,
        }
    }

    pub(crate) fn of<B: Behavior>(entry: &Entry<B>) -> Self {
        Self {
            number: entry.number,
            now_ns: entry.turn.now.0,
            wall_ms: entry.turn.wall.0,
            sender: entry.arrival.sender.to_string(),
            trace: entry.arrival.trace,
            waited_ns: entry.arrival.waited.as_nanos() as u64,
            took_ns: entry.took.map(|took| took.as_nanos() as u64),
            kind: entry.kind().to_owned(),
            event: to_json(&entry.event),
            effects: entry.effects.iter().map(to_json).collect(),
            failure: entry.failure.clone(),
        }
    }
}

/// What the enum of a value calls it, without the rest, which may be long.
pub(crate) fn variant_name<T: Debug>(value: &T) -> String {
    struct Head(String);
    impl fmt::Write for Head {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.find(|sign: char| !sign.is_alphanumeric()).unwrap_or(text.len());
            self.0.push_str(&text[..end]);
            // An error ends the formatting.
            if end < text.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut head = Head(String::new());
    let _ = fmt::write(&mut head, format_args!("{value:?}"));
    head.0
}

/// `value` as JSON; as text where JSON cannot hold it, such as maps whose keys are no text.
pub(crate) fn to_json<T: Serialize + Debug>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_else(|_| serde_json::Value::String(format!("{value:?}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_variant_is_named_without_what_it_holds() {
        assert_eq!(variant_name(&Status::Alive), "Alive");
        assert_eq!(variant_name(&Some(vec![1; 1_000])), "Some");
        let view =
            StateView { path: "x".into(), age_ms: 1, after: None, state: serde_json::Value::Null, figures: 1.into() };
        assert_eq!(variant_name(&view), "StateView");
    }

    #[test]
    fn what_json_cannot_hold_is_still_shown() {
        assert_eq!(to_json(&BTreeMap::from([(1_u64, 2)])), serde_json::json!({ "1": 2 }));
        assert_eq!(to_json(&BTreeMap::from([((1, 2), 3)])), serde_json::json!("{(1, 2): 3}"));
    }
}
