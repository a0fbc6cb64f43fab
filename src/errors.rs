//! What a command that did not succeed says: what was tried, what was found, what to do, and the exit status.

use std::{borrow::Cow, fmt, process::ExitCode};

use serde_json::{Value, json};

/// The exit status of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    #[default]
    Done,
    /// 1: tried and failed.
    Failed,
    /// 2: the command line is wrong.
    WrongUse,
    /// 3: a rule forbids it; the code says which.
    Refused,
    /// 4: who should answer cannot be reached.
    Unreachable,
    /// 5: no answer in time, so whether it was done is not known.
    TimedOut,
}

impl Exit {
    /// The figure that the shell sees.
    pub const fn status(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::WrongUse => 2,
            Self::Refused => 3,
            Self::Unreachable => 4,
            Self::TimedOut => 5,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.status())
    }
}

/// Why a command did not do what it was asked to.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// A stable `SCREAMING_SNAKE` word for scripts.
    pub code: Cow<'static, str>,
    /// What was tried and what was found, in a sentence without a full stop.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Figures and names for scripts; null if there are none.
    pub details: Value,
    /// How the program ends.
    pub exit: Exit,
}

impl Failure {
    /// A failure that ends the program with `exit`.
    pub fn new(exit: Exit, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: None, details: Value::Null, exit }
    }

    /// It was tried and failed.
    pub fn failed(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, code, message)
    }

    /// The command line asks for something that makes no sense.
    pub fn wrong_use(message: impl Into<String>) -> Self {
        Self::new(Exit::WrongUse, "WRONG_USE", message)
    }

    /// A rule forbids it.
    pub fn refused(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, code, message)
    }

    /// Who should answer cannot be reached.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, "NOT_REACHABLE", message)
    }

    /// There was no answer in time.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Exit::TimedOut, "TIMED_OUT", message)
    }

    /// The same, with what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, with details for scripts.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// The error envelope of `--json` and of the API.
    pub fn envelope(&self) -> Value {
        json!({ "error": { "code": self.code, "message": self.message, "details": self.details, "hint": self.hint } })
    }
}

impl fmt::Display for Failure {
    /// One sentence, the code of the rule where there is one, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.exit == Exit::Refused {
            write!(f, " ({})", self.code)?;
        }
        match &self.hint {
            None => Ok(()),
            Some(hint) if self.message.contains('\n') => write!(f, "\n{hint}"),
            Some(hint) => write!(f, ". {hint}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<crate::disk::DiskError> for Failure {
    fn from(error: crate::disk::DiskError) -> Self {
        let (code, message) = (error.code(), error.to_string());
        // Only the system's own errors may pass by themselves; the others are our rules.
        let exit = if matches!(error, crate::disk::DiskError::System { .. }) { Exit::Failed } else { Exit::Refused };
        Self::new(exit, code, message).hint(error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_print_their_code_and_the_way_out() {
        let used = Failure::refused("TOKEN_USED", "join refused: this token was used 3 min ago by host web-4")
            .hint("Make another: postroad token create --role node")
            .details(json!({ "host": "web-4" }));
        assert_eq!(
            used.to_string(),
            "join refused: this token was used 3 min ago by host web-4 (TOKEN_USED). \
             Make another: postroad token create --role node"
        );
        assert_eq!(used.exit.status(), 3);
        let error = &used.envelope()["error"];
        assert_eq!((error["code"].as_str(), error["details"]["host"].as_str()), (Some("TOKEN_USED"), Some("web-4")));
    }

    #[test]
    fn other_failures_keep_their_code_for_scripts() {
        let failure = Failure::unreachable("no control node answers on 10.0.0.1:9443 after 5 s");
        assert_eq!(failure.to_string(), "no control node answers on 10.0.0.1:9443 after 5 s");
        assert_eq!(failure.envelope()["error"]["code"], "NOT_REACHABLE");
    }

    #[test]
    fn statuses_are_those_that_scripts_know() {
        let all = [Exit::Done, Exit::Failed, Exit::WrongUse, Exit::Refused, Exit::Unreachable, Exit::TimedOut];
        assert_eq!(all.map(Exit::status), [0, 1, 2, 3, 4, 5]);
    }
}
