//! Reads a configuration file into values by key, or says everything that is wrong with it.

use std::{collections::BTreeMap, ops::Range, path::Path};

use toml_edit::{Document, Item, TableLike};

use super::{
    complaint::{Complaint, Place},
    keys::{self, Key, Value},
};

/// The values of a file, by section and key, each with its line.
pub(super) type Values = BTreeMap<(&'static str, &'static str), (Value, Place)>;

/// Reads `text`, the content of the file at `path`.
pub(super) fn read(path: &Path, text: &str) -> (Values, Vec<Complaint>) {
    let mut reader = Reader { path, text, values: Values::new(), complaints: Vec::new() };
    match Document::parse(text) {
        Ok(document) => reader.sections(document.as_table()),
        Err(error) => {
            let sentence = format!("this is no TOML: {}", error.message().trim().replace('\n', "; "));
            reader.complain(&error.span().unwrap_or(0..0), sentence, "");
        }
    }
    reader.complaints.sort_by_key(|complaint| match complaint.place {
        Place::File { line, column, .. } => (line, column),
        _ => (0, 0),
    });
    (reader.values, reader.complaints)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    values: Values,
    complaints: Vec<Complaint>,
}

impl Reader<'_> {
    fn complain(&mut self, span: &Range<usize>, sentence: String, reason: &str) {
        let place = Place::in_file(self.path, self.text, span);
        self.complaints.push(Complaint { place, sentence, reason: reason.to_owned() });
    }

    fn sections(&mut self, root: &dyn TableLike) {
        for (section, item) in root.iter() {
            let span = key_span(root, section, item);
            match (keys::sections().into_iter().find(|known| *known == section), item.as_table_like()) {
                (Some(section), Some(table)) => self.keys(section, table),
                (Some(section), None) => {
                    let sentence = format!("{section} is {}, must be a section: [{section}]", found(item));
                    self.complain(&span, sentence, "");
                }
                (None, Some(_)) => {
                    let known = keys::sections();
                    let meant = match keys::nearest(section, known.iter().copied()) {
                        Some(nearest) => format!("did you mean [{nearest}]?"),
                        None => format!("there are {}", known.join(", ")),
                    };
                    self.complain(&span, format!("section [{section}] is unknown; {meant}"), "");
                }
                (None, None) => {
                    let sentence = format!("{section} stands in no section{}", elsewhere(section));
                    self.complain(&span, sentence, "every key belongs to a section");
                }
            }
        }
    }

    fn keys(&mut self, section: &'static str, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let Some(key) = keys::find(section, name) else {
                let known = keys::KEYS.iter().filter(|key| key.section == section).map(|key| key.name);
                let meant = match keys::nearest(name, known.clone()) {
                    Some(nearest) => format!("; did you mean {nearest}?"),
                    None if !elsewhere(name).is_empty() => elsewhere(name),
                    None => format!("; [{section}] has {}", known.collect::<Vec<_>>().join(", ")),
                };
                self.complain(&key_span(table, name, item), format!("{section}.{name} is unknown{meant}"), "");
                continue;
            };
            self.value(key, item);
        }
    }

    fn value(&mut self, key: &'static Key, item: &Item) {
        let span = item.span().unwrap_or(0..0);
        let checked = match (item.as_str(), item.as_integer()) {
            (Some(text), _) if matches!(key.kind, keys::Kind::Number { .. }) => {
                Err(format!("{text:?}, {} without quotes", key.kind.wants()))
            }
            (Some(text), _) => key.kind.check_text(text).map_err(|wrong| format!("{text:?}, {wrong}")),
            (None, Some(number)) => key.kind.check_number(number.into()).map_err(|wrong| format!("{number}, {wrong}")),
            (None, None) => Err(format!("{}, {}", found(item), key.kind.wants())),
        };
        match checked {
            Ok(value) => {
                let place = Place::in_file(self.path, self.text, &span);
                self.values.insert((key.section, key.name), (value, place));
            }
            Err(wrong) => self.complain(&span, format!("{} is {wrong}", key.path()), key.why),
        }
    }
}

/// Where a key was written.
fn key_span(table: &dyn TableLike, name: &str, item: &Item) -> Range<usize> {
    table.key(name).and_then(toml_edit::Key::span).or_else(|| item.span()).unwrap_or(0..0)
}

/// Names the section that has a key `name`, if one has.
fn elsewhere(name: &str) -> String {
    match keys::KEYS.iter().find(|key| key.name == name) {
        Some(key) => format!("; it belongs to [{}]", key.section),
        None => String::new(),
    }
}

fn found(item: &Item) -> &'static str {
    match item.type_name() {
        "string" => "a text",
        "integer" => "a whole number",
        "float" => "a number with a fraction",
        "boolean" => "true or false",
        "datetime" => "a time",
        "array" => "a list",
        "array of tables" => "a list of sections",
        _ => "a section",
    }
}
