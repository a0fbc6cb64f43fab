//! Reads a configuration file into values by key, or says everything that is wrong with it.

use std::{
    collections::BTreeMap,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use toml_edit::{Document, Item, TableLike};

use super::{
    complaint::{Complaint, Place},
    keys::{self, Key, Kind, List, Schema, Value},
};

/// The values of a file, by section and key, each with its line.
pub(crate) type Values = BTreeMap<(&'static str, &'static str), (Value, Place)>;

/// The lists of a file: by section, names and values.
pub(crate) type Lists = BTreeMap<&'static str, BTreeMap<String, Value>>;

/// What a file holds, and everything that is wrong with it.
pub(crate) struct Content {
    pub(crate) values: Values,
    pub(crate) lists: Lists,
    pub(crate) complaints: Vec<Complaint>,
}

/// Reads `text`, the content of the file at `path`.
pub(crate) fn read(schema: &'static Schema, path: &Path, text: &str) -> Content {
    let content = Content { values: Values::new(), lists: Lists::new(), complaints: Vec::new() };
    let mut reader = Reader { schema, path, text, content };
    // The parser fails over some texts that are no TOML, such as `==)` before two carriage returns and `..=`.
    match catch_unwind(AssertUnwindSafe(|| Document::parse(text))) {
        Ok(Ok(document)) => reader.sections(document.as_table()),
        Ok(Err(error)) => {
            let sentence = format!("this is no TOML: {}", error.message().trim().replace('\n', "; "));
            reader.complain(&error.span().unwrap_or(0..0), sentence, "");
        }
        Err(_) => reader.complain(&(0..0), "this is no TOML, and its parser cannot say where".to_owned(), ""),
    }
    reader.content.complaints.sort_by_key(|complaint| match complaint.place {
        Place::File { line, column, .. } => (line, column),
        _ => (0, 0),
    });
    reader.content
}

struct Reader<'a> {
    schema: &'static Schema,
    path: &'a Path,
    text: &'a str,
    content: Content,
}

impl Reader<'_> {
    fn complain(&mut self, span: &Range<usize>, sentence: String, reason: &str) {
        let place = Place::in_file(self.path, self.text, span);
        self.content.complaints.push(Complaint { place, sentence, reason: reason.to_owned() });
    }

    fn sections(&mut self, root: &dyn TableLike) {
        for (section, item) in root.iter() {
            let span = key_span(root, section, item);
            match (self.schema.sections().into_iter().find(|known| *known == section), item.as_table_like()) {
                (Some(section), Some(table)) => self.keys(section, table),
                (Some(section), None) => {
                    let sentence = format!("{section} is {}, must be a section: [{section}]", found(item));
                    self.complain(&span, sentence, "");
                }
                (None, Some(_)) => {
                    let known = self.schema.sections();
                    let meant = match keys::nearest(section, known.iter().copied()) {
                        Some(nearest) => format!("did you mean [{nearest}]?"),
                        None => format!("there are {}", known.join(", ")),
                    };
                    self.complain(&span, format!("section [{section}] is unknown; {meant}"), "");
                }
                (None, None) => {
                    let sentence = format!("{section} stands in no section{}", self.elsewhere(section));
                    self.complain(&span, sentence, "every key belongs to a section");
                }
            }
        }
    }

    fn keys(&mut self, section: &'static str, table: &dyn TableLike) {
        if let Some(list) = self.schema.lists.iter().find(|list| list.section == section) {
            return self.list(list, table);
        }
        for (name, item) in table.iter() {
            let Some(key) = self.schema.find(section, name) else {
                let known = self.schema.keys.iter().filter(|key| key.section == section).map(|key| key.name);
                let meant = match keys::nearest(name, known.clone()) {
                    Some(nearest) => format!("; did you mean {nearest}?"),
                    None if !self.elsewhere(name).is_empty() => self.elsewhere(name),
                    None => format!("; [{section}] has {}", known.collect::<Vec<_>>().join(", ")),
                };
                self.complain(&key_span(table, name, item), format!("{section}.{name} is unknown{meant}"), "");
                continue;
            };
            self.value(key, item);
        }
    }

    fn list(&mut self, list: &'static List, table: &dyn TableLike) {
        self.content.lists.entry(list.section).or_default();
        for (name, item) in table.iter() {
            if let Err(wrong) = (list.name)(name) {
                self.complain(&key_span(table, name, item), format!("{}.{name} {wrong}", list.section), list.why);
                continue;
            }
            match check(list.kind, item) {
                Ok(value) => {
                    self.content.lists.entry(list.section).or_default().insert(name.to_owned(), value);
                }
                Err(wrong) => {
                    let sentence = format!("{}.{name} is {wrong}", list.section);
                    self.complain(&item.span().unwrap_or(0..0), sentence, list.why);
                }
            }
        }
    }

    fn value(&mut self, key: &'static Key, item: &Item) {
        let span = item.span().unwrap_or(0..0);
        match check(key.kind, item) {
            Ok(value) => {
                let place = Place::in_file(self.path, self.text, &span);
                self.content.values.insert((key.section, key.name), (value, place));
            }
            Err(wrong) => self.complain(&span, format!("{} is {wrong}", key.path()), key.why),
        }
    }

    /// Names the section that has a key `name`, if one has.
    fn elsewhere(&self, name: &str) -> String {
        match self.schema.keys.iter().find(|key| key.name == name) {
            Some(key) => format!("; it belongs to [{}]", key.section),
            None => String::new(),
        }
    }
}

/// The value that `item` is; an error says what it is and what it must be.
fn check(kind: Kind, item: &Item) -> Result<Value, String> {
    match (item.as_str(), item.as_integer(), item.as_bool()) {
        (Some(text), ..) if kind == Kind::Secret => {
            kind.check_text(text).map_err(|wrong| format!("not shown, {wrong}"))
        }
        _ if kind == Kind::Secret => Err(format!("not shown, {}", kind.wants())),
        (Some(text), ..) if matches!(kind, Kind::Number { .. } | Kind::Flag) => {
            let without = if kind == Kind::Flag { "" } else { " without quotes" };
            Err(format!("{text:?}, {}{without}", kind.wants()))
        }
        (Some(text), ..) => kind.check_text(text).map_err(|wrong| format!("{text:?}, {wrong}")),
        (_, Some(number), _) => kind.check_number(number.into()).map_err(|wrong| format!("{number}, {wrong}")),
        (_, _, Some(flag)) if kind == Kind::Flag => Ok(Value::Flag(flag)),
        _ => Err(format!("{}, {}", found(item), kind.wants())),
    }
}

/// Where a key was written.
fn key_span(table: &dyn TableLike, name: &str, item: &Item) -> Range<usize> {
    table.key(name).and_then(toml_edit::Key::span).or_else(|| item.span()).unwrap_or(0..0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_over_which_the_parser_fails_is_refused() {
        let content = read(&keys::NODE, Path::new("postroad.toml"), "==)\r\r..=");
        assert_eq!(content.complaints.len(), 1, "{:?}", content.complaints);
        assert!(content.complaints[0].sentence.contains("no TOML"), "{:?}", content.complaints);
    }
}
