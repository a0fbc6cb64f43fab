//! What a command says at its end: text for people or the envelope for scripts, and the exit status.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use postroad_cluster::trace::TraceId;
use serde_json::{Value, json};

use crate::errors::{Exit, Failure};

/// The version of the envelope. It grows when a field changes its meaning, not when one is added.
const ENVELOPE_VERSION: u32 = 1;

/// What a command that went well says.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The facts, for scripts.
    pub data: Value,
    /// The same for people; empty says nothing.
    pub human: String,
    /// What is odd and no failure.
    pub warnings: Vec<String>,
    /// What it was part of, for what changed something: `postroad trace` follows it.
    pub trace: Option<TraceId>,
    /// How the program ends, for commands whose answer is a status, such as a check.
    pub exit: Exit,
}

impl Output {
    /// An output from its facts and its text.
    pub fn new(data: Value, human: impl Into<String>) -> Self {
        Self { data, human: human.into(), ..Self::default() }
    }

    /// The same with warnings.
    #[must_use]
    pub fn warn(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// The envelope of `--json` and of the API.
    pub fn envelope(&self) -> Value {
        let mut envelope = json!({ "version": ENVELOPE_VERSION, "data": self.data, "warnings": self.warnings });
        if let Some(trace) = self.trace {
            envelope["trace"] = Value::from(trace.to_string());
        }
        envelope
    }
}

/// How to write for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub colour: bool,
}

impl Style {
    /// The style of standard output: colours on a terminal, unless `NO_COLOR` is set to anything.
    pub fn of_terminal() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: io::stdout().is_terminal() && !refused }
    }

    /// What names things: headings.
    pub fn heading(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// What is well.
    pub fn good(self, text: impl Display) -> String {
        self.paint("32", text)
    }

    /// What wants a look.
    pub fn warning(self, text: impl Display) -> String {
        self.paint("33", text)
    }

    /// What is wrong.
    pub fn bad(self, text: impl Display) -> String {
        self.paint("31", text)
    }

    /// What may be passed over.
    pub fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Says what came of a command. JSON goes to standard output whatever came of it, so that a script reads one stream;
/// failures and warnings for people go to standard error.
pub fn say(result: &Result<Output, Failure>, json: bool) -> ExitCode {
    let exit = match result {
        Ok(output) => output.exit,
        Err(failure) => failure.exit,
    };
    let written = match result {
        Ok(output) if json => line(io::stdout(), &output.envelope().to_string()),
        Err(failure) if json => line(io::stdout(), &failure.envelope().to_string()),
        Ok(output) => output
            .warnings
            .iter()
            .try_for_each(|warning| line(io::stderr(), &format!("warning: {warning}")))
            .and_then(|()| line(io::stdout(), &output.human))
            .and_then(|()| line(io::stdout(), &follow(output))),
        Err(failure) => line(io::stderr(), &failure.to_string()),
    };
    match written {
        // Whoever reads us has read enough, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit.into(),
        Err(error) => {
            // There is nobody left to tell when standard error is gone as well.
            let _ = line(io::stderr(), &format!("could not write the answer: {error}"));
            Exit::Failed.into()
        }
        Ok(()) => exit.into(),
    }
}

/// How to follow what was changed, for whoever sits at a terminal; scripts find it in the envelope.
fn follow(output: &Output) -> String {
    let trace = output.trace.filter(|_| io::stdout().is_terminal() && !output.human.is_empty());
    trace.map_or_else(String::new, |trace| {
        Style::of_terminal().dim(format!("What follows from it, step by step: postroad trace {trace}"))
    })
}

/// Says what is wrong with the command line, or the help that was asked for.
pub(super) fn wrong_line(error: &clap::Error, json: bool) -> ExitCode {
    if !json || !error.use_stderr() {
        // Clap knows where each belongs; a closed pipe is nobody's business.
        let _ = error.print();
        return if error.use_stderr() { Exit::WrongUse.into() } else { Exit::Done.into() };
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let failure = Failure::wrong_use(first.strip_prefix("error: ").unwrap_or(first)).hint("postroad --help");
    say(&Err(failure), true)
}

fn line(mut stream: impl Write, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let end = if text.ends_with('\n') { "" } else { "\n" };
    stream.write_all(format!("{text}{end}").as_bytes())?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_is_stable() {
        let output = Output::new(json!({ "links": 41 }), "41 links").warn(["one relay only".to_owned()]);
        let expected = json!({ "version": 1, "data": { "links": 41 }, "warnings": ["one relay only"] });
        assert_eq!(output.envelope(), expected);
        let traced = Output { trace: Some(TraceId::drawn(1)), ..output };
        assert_eq!(traced.envelope()["trace"], TraceId::drawn(1).to_string());
    }

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(Style { colour: false }.bad("down"), "down");
        assert_eq!(Style { colour: true }.bad("down"), "\x1b[31mdown\x1b[0m");
    }
}
