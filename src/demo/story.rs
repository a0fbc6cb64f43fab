//! The story a line at a time: on a terminal with the transfer's progress, in a pipe one line a step.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
};

use crate::cli::output::Style;

/// Cells of the progress bar.
const CELLS: usize = 24;
/// Clears the line of the progress bar.
const CLEAR: &str = "\r\x1b[2K";

/// Tells the story. Whoever has stopped listening is nobody's error: the demonstration goes on.
#[derive(Clone, Debug)]
pub struct Story {
    style: Style,
    to_stderr: bool,
    terminal: bool,
    /// Whether the cursor stands behind a progress bar; held while something is written.
    bar: Arc<Mutex<bool>>,
}

impl Story {
    /// A story for people; with `json`, standard output belongs to the answer, and the story goes to standard error.
    pub fn new(style: Style, json: bool) -> Self {
        let terminal = if json { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let style = if json { Style { colour: style.colour && terminal } } else { style };
        Self { style, to_stderr: json, terminal, bar: Arc::default() }
    }

    /// How to write.
    pub const fn style(&self) -> Style {
        self.style
    }

    /// Whether somebody watches a screen.
    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A line of the story.
    pub fn say(&self, line: impl AsRef<str>) {
        self.write(&format!("{}\n", line.as_ref()), false);
    }

    /// What is under way, overwritten by whatever comes next; only on a terminal.
    pub fn progress(&self, share: f64, text: &str) {
        if self.terminal {
            self.write(&format!("    {} {text}", self.style.dim(bar(share))), true);
        }
    }

    /// Takes the progress bar away.
    pub fn end_progress(&self) {
        self.write("", false);
    }

    fn write(&self, text: &str, is_bar: bool) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        let clear = if std::mem::replace(&mut *bar, is_bar) { CLEAR } else { "" };
        let text = format!("{clear}{text}");
        let _ = if self.to_stderr { put(io::stderr().lock(), &text) } else { put(io::stdout().lock(), &text) };
    }
}

fn put(mut stream: impl Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

fn bar(share: f64) -> String {
    let full = ((share.clamp(0.0, 1.0) * CELLS as f64) as usize).min(CELLS);
    format!("[{}{}]", "█".repeat(full), "·".repeat(CELLS - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_stays_in_its_bounds() {
        assert_eq!(bar(0.0), format!("[{}]", "·".repeat(CELLS)));
        assert_eq!(bar(0.5).chars().filter(|cell| *cell == '█').count(), CELLS / 2);
        assert_eq!(bar(7.0), format!("[{}]", "█".repeat(CELLS)));
    }
}
