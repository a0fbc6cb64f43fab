//! A state as lines of text, each marked with what became of it since the turn before.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Lines that are made of one state: what is longer is looked at by `--json`.
const LINES_MAX: usize = 400;

/// A part that did not change, with more in it than this, is folded.
const UNFOLDED_MAX: usize = 12;

/// How deep parts that did not change are shown.
const DEPTH_MAX: usize = 5;

/// Characters of one value.
const VALUE_CHARS_MAX: usize = 160;

/// What became of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is as it was.
    #[default]
    Same,
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It had another value.
    Changed,
}

/// One line of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// How far inside it stands.
    pub depth: usize,
    /// Its name, or its place in a list.
    pub key: String,
    /// Its value, or how much is in it.
    pub value: String,
    /// Its value before, if that was another.
    pub before: Option<String>,
    /// What became of it.
    pub change: Change,
}

/// A state as lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lines {
    /// The lines.
    pub lines: Vec<Line>,
    /// How many were left out because there are too many.
    pub left_out: usize,
    /// How many changed.
    pub changed: usize,
}

/// `after` as lines, compared with `before` if there is one.
pub fn lines(before: Option<&Value>, after: &Value) -> Lines {
    let mut maker = Maker { made: Lines::default() };
    match before {
        Some(before) => maker.compare("", Some(before), Some(after), 0),
        None => maker.compare("", Some(after), Some(after), 0),
    }
    maker.made
}

struct Maker {
    made: Lines,
}

/// How many values are in it.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(size).sum::<usize>() + 1,
        Value::Object(fields) => fields.values().map(size).sum::<usize>() + 1,
        _ => 1,
    }
}

/// A value in a few words.
pub fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Object(fields) if fields.is_empty() => "none".to_owned(),
        _ => value.to_string(),
    };
    if text.chars().count() <= VALUE_CHARS_MAX {
        return text;
    }
    text.chars().take(VALUE_CHARS_MAX).chain(['…']).collect()
}

fn is_leaf(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() || (items.len() <= 8 && items.iter().all(Value::is_number)),
        Value::Object(fields) => fields.is_empty(),
        _ => true,
    }
}

impl Maker {
    fn push(&mut self, line: Line) {
        self.made.changed += usize::from(line.change != Change::Same);
        if self.made.lines.len() < LINES_MAX {
            self.made.lines.push(line);
        } else {
            self.made.left_out += 1;
        }
    }

    fn compare(&mut self, key: &str, before: Option<&Value>, after: Option<&Value>, depth: usize) {
        let change = match (before, after) {
            (Some(before), Some(after)) if before == after => Change::Same,
            (Some(_), Some(_)) => Change::Changed,
            (None, _) => Change::Added,
            (_, None) => Change::Removed,
        };
        let Some(shown) = after.or(before) else { return };
        let both = before.zip(after);
        let line =
            |value: String, before: Option<String>, change| Line { depth, key: key.to_owned(), value, before, change };
        // Parts of one kind are compared inside; what became something else is shown as both.
        let inside = both
            .is_none_or(|(before, after)| !is_leaf(before) && !is_leaf(after) && before.is_array() == after.is_array());
        if is_leaf(shown) || !inside {
            let was = both.filter(|_| change == Change::Changed).map(|(before, _)| short(before));
            return self.push(line(short(shown), was, change));
        }
        if change == Change::Same && depth > 0 && (size(shown) > UNFOLDED_MAX || depth >= DEPTH_MAX) {
            return self.push(line(folded(shown), None, change));
        }
        if depth > 0 || !key.is_empty() {
            // What changed inside says so itself.
            let own = if both.is_some() { Change::Same } else { change };
            self.push(line(String::new(), None, own));
        }
        let depth = if depth > 0 || !key.is_empty() { depth + 1 } else { depth };
        for (key, before, after) in parts(before, after) {
            self.compare(&key, before, after, depth.max(1));
        }
    }
}

/// What a part holds that is not shown.
fn folded(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[ {} ]", items.len()),
        Value::Object(fields) => format!("{{ {} }}", fields.len()),
        _ => short(value),
    }
}

type Part<'a> = (String, Option<&'a Value>, Option<&'a Value>);

/// What is inside of two values, side by side.
fn parts<'a>(before: Option<&'a Value>, after: Option<&'a Value>) -> Vec<Part<'a>> {
    if let Some(Value::Array(_)) = after.or(before) {
        let items = |value: Option<&'a Value>| value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let (before, after) = (items(before), items(after));
        let count = before.len().max(after.len());
        return (0..count).map(|at| (at.to_string(), before.get(at), after.get(at))).collect();
    }
    let fields = |value: Option<&'a Value>| value.and_then(Value::as_object);
    let (before, after) = (fields(before), fields(after));
    let mut keys: Vec<&String> = after.into_iter().chain(before).flat_map(|fields| fields.keys()).collect();
    keys.sort_unstable_by(|one, other| natural(one).cmp(&natural(other)));
    keys.dedup();
    let get =
        |fields: Option<&'a serde_json::Map<String, Value>>, key: &String| fields.and_then(|fields| fields.get(key));
    keys.into_iter().map(|key| (key.clone(), get(before, key), get(after, key))).collect()
}

/// Numbers in the order of numbers, before words.
fn natural(key: &str) -> (u64, &str) {
    (key.parse().unwrap_or(u64::MAX), key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(lines: &Lines) -> Vec<String> {
        let mark = |line: &Line| match line.change {
            Change::Same => ' ',
            Change::Added => '+',
            Change::Removed => '-',
            Change::Changed => '~',
        };
        let before = |line: &Line| line.before.as_ref().map(|before| format!(" was {before}")).unwrap_or_default();
        let shown =
            lines.lines.iter().map(|it| format!("{}{} {}={}{}", mark(it), it.depth, it.key, it.value, before(it)));
        shown.collect()
    }

    #[test]
    fn what_a_turn_changed_is_marked_where_it_stands() {
        let before = json!({ "phase": "Idle", "peers": { "2": { "up": true }, "10": { "up": true } }, "list": [1, 2] });
        let after =
            json!({ "phase": { "Up": { "since": 7 } }, "peers": { "2": { "up": false }, "3": null }, "list": [1, 2] });
        let lines = lines(Some(&before), &after);
        assert_eq!(
            text(&lines),
            [
                " 1 list=[1,2]",
                " 1 peers=",
                " 2 2=",
                "~3 up=false was true",
                "+2 3=–",
                "-2 10=",
                "-3 up=true",
                "~1 phase={\"Up\":{\"since\":7}} was Idle",
            ]
        );
        assert_eq!(lines.changed, 5);
    }

    #[test]
    fn what_did_not_change_is_folded_and_much_is_cut() {
        let many: serde_json::Map<String, Value> = (0..5_000).map(|at| (at.to_string(), json!(at))).collect();
        let same = json!({ "many": many, "few": [] });
        assert_eq!(text(&lines(None, &same)), [" 1 few=none", " 1 many={ 5000 }"]);
        let lines = lines(Some(&json!({ "many": {}, "few": [] })), &same);
        assert_eq!((lines.lines.len(), lines.changed), (2, 1));
        let grown = json!({ "many": (0..5_000).map(|at| json!({ "at": at })).collect::<Vec<_>>() });
        let lines = super::lines(Some(&json!({ "many": [{ "at": 0 }] })), &grown);
        assert_eq!(lines.lines.len(), LINES_MAX);
        assert!(lines.left_out > 9_000);
    }
}
