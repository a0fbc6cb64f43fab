//! A table of at most 100 columns.

use super::output::Style;

/// The widest that a table gets.
pub const COLUMNS_MAX: usize = 100;

/// What a column keeps when the table is too wide.
const COLUMN_MIN: usize = 8;

/// A heading and rows of as many cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns that align to the right: figures.
    figures: Vec<bool>,
}

impl Table {
    /// An empty table. A heading that begins with `>` is a column of figures and aligns to the right.
    pub fn new<const COLUMNS: usize>(heading: [&str; COLUMNS]) -> Self {
        Self::of(&heading)
    }

    /// The same for headings that are not known before.
    pub fn of(heading: &[&str]) -> Self {
        Self {
            figures: heading.iter().map(|name| name.starts_with('>')).collect(),
            heading: heading.iter().map(|name| name.trim_start_matches('>').to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells that are missing stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        // What others named may not steer a terminal.
        let clean = |text: String| text.chars().map(|letter| if letter.is_control() { '·' } else { letter }).collect();
        let mut row: Vec<String> = cells.into_iter().map(|cell| clean(cell.into())).collect();
        row.resize(self.heading.len(), String::new());
        self.rows.push(row);
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, each ended. Cells that are too wide end with `…`.
    pub fn render(&self, style: Style) -> String {
        let widths = self.widths();
        let mut text = style.heading(self.line(&self.heading, &widths));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&self.line(row, &widths));
            text.push('\n');
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let widest = |column: usize| {
            let cells = self.rows.iter().chain([&self.heading]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.heading.len()).map(widest).collect();
        let room = COLUMNS_MAX.saturating_sub(2 * widths.len().saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
                _ => break,
            }
        }
        widths
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let columns = cells.iter().zip(widths).zip(&self.figures).map(|((cell, &width), figures)| {
            let cut = if cell.chars().count() > width {
                format!("{}…", cell.chars().take(width.saturating_sub(1)).collect::<String>())
            } else {
                cell.clone()
            };
            if *figures { format!("{cut:>width$}") } else { format!("{cut:<width$}") }
        });
        columns.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_figures_stand_right() {
        let mut table = Table::new(["relay", ">flows", "state"]);
        table.row(["ams-1", "1208", "ready"]);
        table.row(["frankfurt-2", "3", "draining"]);
        let expected = "relay        flows  state\n\
                        ams-1         1208  ready\n\
                        frankfurt-2      3  draining\n";
        assert_eq!(table.render(Style::default()), expected);
    }

    #[test]
    fn a_wide_table_is_cut_to_a_hundred_columns_at_its_widest_column() {
        let mut table = Table::new(["name", "cause", "next"]);
        table.row(["par-1", &"x".repeat(300), "postroad why relay par-1"]);
        let text = table.render(Style::default());
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{text}");
        assert!(text.contains("par-1") && text.contains("postroad why relay par-1") && text.contains('…'), "{text}");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut table = Table::new(["name"]);
        table.row(["a\x1b[2Jb"]);
        assert!(!table.render(Style::default()).contains('\x1b'));
    }
}
