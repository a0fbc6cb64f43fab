//! The table and the JSON of a bench.

use std::fmt;

use serde_json::{Map, Value, json};

/// Rows of figures for people.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (place, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names to the left, figures to the right.
                let cell = if place == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Everything that a bench has found: printed for people as it comes, and for programs as one line at the end.
#[derive(Debug, Default)]
pub(crate) struct Report {
    parts: Map<String, Value>,
    missed: Vec<String>,
}

impl Report {
    /// One part: its table now, its JSON at the end.
    pub(crate) fn part(&mut self, name: &str, title: &str, table: &Table, json: Value) {
        println!("{title}\n\n{table}");
        self.parts.insert(name.to_owned(), json);
    }

    /// Compares a figure with its goal and says which way it went.
    pub(crate) fn goal(&mut self, what: &str, found: f64, at_most: f64, unit: &str) {
        let met = found <= at_most;
        let verdict = if met { "met" } else { "MISSED" };
        let line = format!("{what}: {found:.2}{unit}, goal at most {at_most:.2}{unit}: {verdict}");
        println!("  {line}");
        if !met {
            self.missed.push(line);
        }
    }

    /// The JSON of all parts, on one line.
    pub(crate) fn finish(self) {
        if !self.missed.is_empty() {
            println!("\nMissed:\n  {}", self.missed.join("\n  "));
        }
        println!("{}", json!({ "version": 1, "data": self.parts, "missed": self.missed }));
    }
}
