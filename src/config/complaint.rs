//! What is wrong in a configuration, and where: the line, carets under what is meant, and the reason.

use std::{fmt, ops::Range, path::PathBuf};

use serde_json::{Value, json};

/// The longest line that is repeated in an error; of a longer one only the place is named.
const SHOWN_COLUMNS_MAX: usize = 160;

/// Where something was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File {
        /// Which.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// The line itself.
        source: String,
        /// How many characters are meant.
        width: usize,
    },
    /// In an environment variable.
    Environment(String),
    /// By a flag.
    Flag(&'static str),
}

impl Place {
    /// The place of the bytes `span` of `text`, the content of the file at `path`.
    pub fn in_file(path: &std::path::Path, text: &str, span: &Range<usize>) -> Self {
        let start = floor(text, span.start);
        let end = floor(text, span.end.max(start));
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let source = text[line_start..line_end].trim_end_matches('\r');
        Self::File {
            path: path.to_owned(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            // One column each, so that the carets stand under what they mean.
            source: covered(source).map(|letter| if letter.is_control() { ' ' } else { letter }).collect(),
            width: text[start..end.min(line_end)].trim_end().chars().count().max(1),
        }
    }
}

/// The letters of a line; those of a password are covered, since what is wrong goes to logs.
fn covered(line: &str) -> impl Iterator<Item = char> {
    let secret = line.trim_start().starts_with("password");
    let value = if secret { line.find('=').map_or(0, |at| at + 1) } else { line.len() };
    line[..value].chars().chain(line[value..].chars().map(|letter| if letter == ' ' { ' ' } else { '*' }))
}

/// The last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column, .. } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment(variable) => f.write_str(variable),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Where.
    pub place: Place,
    /// What was found and what is right, in a sentence.
    pub sentence: String,
    /// Why it is so; may be empty.
    pub reason: String,
}

impl Complaint {
    /// The complaint for scripts.
    pub fn json(&self) -> Value {
        let (file, line, column) = match &self.place {
            Place::File { path, line, column, .. } => (Some(path.display().to_string()), Some(line), Some(column)),
            Place::Environment(_) | Place::Flag(_) => (None, None, None),
        };
        json!({
            "place": self.place.to_string(),
            "file": file,
            "line": line,
            "column": column,
            "message": self.sentence,
            "reason": self.reason,
        })
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.sentence)?;
        match &self.place {
            Place::File { line, column, source, width, .. } if source.chars().count() <= SHOWN_COLUMNS_MAX => {
                let (indent, carets) = (" ".repeat(column - 1), "^".repeat(*width));
                write!(f, "\n{line:>5} | {source}\n      | {indent}{carets} {}", self.reason)
            }
            _ if self.reason.is_empty() => Ok(()),
            _ => write!(f, " ({})", self.reason),
        }
    }
}
