//! The models as grids of text: what the terminal console draws and what one-shot commands print.
//!
//! - `fleet`: the overview, the control group, why
//! - `topology`: relays, circuits and sessions
//! - `actors`: the list of actors, the tree, one actor
//! - `trace`: one request across nodes

mod actors;
mod fleet;
mod topology;
mod trace;

pub use actors::{actor, actors, messages, tree};
pub use fleet::{control, overview, why};
pub use topology::topology;
pub use trace::trace;

use crate::cli::{output::Style, table::Table};

/// What a line or a row means; nothing for most of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// It may be passed over.
    Dim,
    /// It is well.
    Good,
    /// It wants a look.
    Warn,
    /// It is wrong.
    Bad,
}

/// Where a row leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a node's actors.
    Node(String),
    /// To an actor.
    Actor(String),
    /// To an actor after an event.
    Event(u64),
    /// To an actor of a node after an event.
    Turn {
        /// The node.
        node: String,
        /// The actor's path.
        path: String,
        /// The event.
        event: u64,
    },
    /// To why of a relay.
    Relay(String),
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its cells.
    pub cells: Vec<String>,
    /// What it means.
    pub tone: Tone,
    /// Where it leads.
    pub target: Option<Target>,
}

impl Row {
    fn new(cells: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { cells: cells.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    fn to(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }
}

/// Lines above rows under headings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// What it is called.
    pub title: String,
    /// Lines before the rows.
    pub lines: Vec<(String, Tone)>,
    /// Headings; one that begins with `>` is of figures.
    pub columns: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Grid {
    fn new<const COLUMNS: usize>(title: impl Into<String>, columns: [&'static str; COLUMNS]) -> Self {
        Self { title: title.into(), columns: columns.to_vec(), ..Self::default() }
    }

    fn line(mut self, text: impl Into<String>, tone: Tone) -> Self {
        self.lines.push((text.into(), tone));
        self
    }

    fn rows(mut self, rows: impl IntoIterator<Item = Row>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// As text of at most 100 columns.
    pub fn text(&self, style: Style) -> String {
        let mut text = String::new();
        if !self.title.is_empty() {
            text.push_str(&style.heading(&self.title));
            text.push('\n');
        }
        for (line, tone) in &self.lines {
            text.push_str(&paint(*tone, line, style));
            text.push('\n');
        }
        if !self.rows.is_empty() {
            let mut table = Table::of(&self.columns);
            for row in &self.rows {
                table.row(row.cells.iter().map(String::as_str));
            }
            let rendered = table.render(style);
            let tones = [Tone::Plain].into_iter().chain(self.rows.iter().map(|row| row.tone));
            for (line, tone) in rendered.lines().zip(tones) {
                text.push_str(&paint(tone, line, style));
                text.push('\n');
            }
        }
        text
    }
}

/// All of them, one under the other.
pub fn text(grids: &[Grid], style: Style) -> String {
    let parts: Vec<String> = grids.iter().map(|grid| grid.text(style)).collect();
    parts.join("\n").trim_end().to_owned()
}

fn paint(tone: Tone, text: &str, style: Style) -> String {
    match tone {
        Tone::Plain => text.to_owned(),
        Tone::Dim => style.dim(text),
        Tone::Good => style.good(text),
        Tone::Warn => style.warning(text),
        Tone::Bad => style.bad(text),
    }
}

/// Figures as a line of blocks, five seconds a sign.
fn blocks(seconds: &[u32]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let pairs: Vec<u32> = seconds.chunks(5).map(|part| part.iter().copied().max().unwrap_or(0)).collect();
    let most = pairs.iter().copied().max().unwrap_or(0);
    let block = |figure: &u32| {
        if most == 0 { ' ' } else { BLOCKS[(u64::from(*figure) * 7).div_ceil(u64::from(most)) as usize] }
    };
    pairs.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_show_the_shape_of_a_minute() {
        assert_eq!(blocks(&[0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 14, 1, 1, 0, 0]), "▁▅█");
        assert_eq!(blocks(&[0; 10]), "  ");
        assert_eq!(blocks(&[]), "");
    }

    #[test]
    fn grids_are_tables_with_what_they_mean() {
        let grid = Grid::new("Nodes", ["node", ">flows"])
            .line("all is well", Tone::Good)
            .rows([Row::new(["web", "50"]), Row::new(["db", "1\x1b[2J"]).tone(Tone::Bad)]);
        let text = grid.text(Style::default());
        assert_eq!(text, "Nodes\nall is well\nnode  flows\nweb      50\ndb    1·[2J\n");
        assert!(grid.text(Style { colour: true }).contains("\x1b[31mdb"));
    }
}
