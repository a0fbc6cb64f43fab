//! Acting from the console, and reading it from other machines: by tokens with a role. Acting is off unless the node is
//! started with it, needs a reason, and leaves a line in the cluster's audit before, and one in the node's own whatever
//! came of it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use postroad_cluster::{
    id::Name,
    limits::REASON_BYTES_MAX,
    recording::RecordingFile,
    time::{Entropy as _, WallTime},
    trace::TraceId,
};
use serde::{Deserialize, Serialize};

use super::query::Query;
use crate::{entropy::SystemEntropy, errors::Failure};

/// What a token allows. Whoever reads on loopback needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Role {
    /// Reading from other machines.
    Read,
    /// That, and acting where the node is started with it.
    Act,
}

impl Role {
    /// Its word in the file of tokens.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Act => "act",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::Read, Self::Act].into_iter().find(|role| role.word() == word)
    }
}

/// Tokens of one node: an operator each, with room.
const TOKENS_MAX: usize = 256;

/// The largest file of tokens that is read.
const TOKENS_BYTES_MAX: u64 = 64 << 10;

/// A reason says something, and no more than the audit takes.
const REASON_BYTES: std::ops::RangeInclusive<usize> = 4..=REASON_BYTES_MAX;

/// Lines of the audit that the page shows.
const LINES: usize = 50;

/// The end of the audit that is read for them.
const AUDIT_BYTES_READ: u64 = 64 << 10;

/// What may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Take a relay out of service.
    Drain(String),
    /// Put it back.
    Resume(String),
    /// Spread flows over the relays.
    Rebalance,
    /// Let another control node lead.
    StepDown,
    /// Start an actor anew.
    Restart {
        /// The node; empty for the one whose console it is.
        node: String,
        /// The actor's path.
        path: String,
    },
}

impl Deed {
    fn of(form: &Query) -> Result<Self, Failure> {
        let what = form.get("what").trim().to_owned();
        let named = |deed: &dyn Fn(String) -> Self| {
            let message = "nothing is named that this is to be done to";
            if what.is_empty() { Err(Failure::wrong_use(message)) } else { Ok(deed(what.clone())) }
        };
        match form.get("do") {
            "drain" => named(&Self::Drain),
            "resume" => named(&Self::Resume),
            "rebalance" => Ok(Self::Rebalance),
            "step-down" => Ok(Self::StepDown),
            "restart" => named(&|path| Self::Restart { node: form.get("on").trim().to_owned(), path }),
            other => Err(Failure::wrong_use(format!("the console cannot do {other:?}"))
                .hint("It does drain, resume, rebalance, step-down and restart")),
        }
    }

    /// In words, for the audit.
    pub fn words(&self) -> String {
        match self {
            Self::Drain(relay) => format!("drain relay {relay}"),
            Self::Resume(relay) => format!("resume relay {relay}"),
            Self::Rebalance => "rebalance the relays".to_owned(),
            Self::StepDown => "step down".to_owned(),
            Self::Restart { node, path } if node.is_empty() => format!("restart actor {path}"),
            Self::Restart { node, path } => format!("restart actor {path} of {node}"),
        }
    }

    /// The path of the API that does it.
    pub fn path(&self) -> String {
        let address = |path: String| Query::default().address(&path);
        match self {
            Self::Drain(relay) => address(format!("/api/relays/{relay}/drain")),
            Self::Resume(relay) => address(format!("/api/relays/{relay}/resume")),
            Self::Rebalance => "/api/relays/rebalance".to_owned(),
            Self::StepDown => "/api/control/step-down".to_owned(),
            Self::Restart { node, path } => {
                Query::default().with("node", node).address(&format!("/api/restart/{path}"))
            }
        }
    }

    /// The body of that request.
    pub const fn body(&self) -> &'static str {
        match self {
            Self::Rebalance => "{\"dry_run\":false}",
            _ => "",
        }
    }
}

/// A deed with who wants it and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What.
    pub deed: Deed,
    /// By whom, as their token is called.
    pub by: Name,
    /// Why.
    pub reason: String,
}

/// A line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at: WallTime,
    /// Who, as their token is called.
    pub by: String,
    /// What.
    pub what: String,
    /// Why.
    pub reason: String,
    /// `done`, or the code of what forbade it.
    pub outcome: String,
    /// What it was part of, if it was begun.
    #[serde(default)]
    pub trace: Option<TraceId>,
}

/// What acting needs: who may, and where it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acting {
    /// The file of tokens.
    pub tokens: PathBuf,
    /// The audit.
    pub audit: PathBuf,
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed("TOKENS_UNREADABLE", format!("could not read {}: {error}", path.display()))
}

impl Acting {
    /// The files in a data directory.
    pub fn within(data: &Path) -> Self {
        Self { tokens: data.join("console.tokens"), audit: data.join("console.audit") }
    }

    /// What a form wants, if its token may and it has a reason.
    ///
    /// # Errors
    /// `TOKEN_WRONG`, or what is missing in the form.
    pub fn wanted(&self, form: &Query) -> Result<Wanted, Failure> {
        let by = self.holder(form.get("token"), Role::Act)?;
        let reason = form.get("reason").trim();
        if !REASON_BYTES.contains(&reason.len()) || reason.chars().any(char::is_control) {
            let (least, most) = (REASON_BYTES.start(), REASON_BYTES.end());
            let message = format!("the reason has {} bytes, it needs {least} to {most} in one line", reason.len());
            return Err(Failure::wrong_use(message).hint("Whoever reads the audit wants to know why"));
        }
        Ok(Wanted { deed: Deed::of(form)?, by, reason: reason.to_owned() })
    }

    /// The name of the token, if it is one that allows as much as this role.
    ///
    /// # Errors
    /// `TOKEN_WRONG`, or that the file of tokens cannot be read.
    pub fn holder(&self, token: &str, least: Role) -> Result<Name, Failure> {
        let word = least.word();
        let wrong = || {
            Failure::refused("TOKEN_WRONG", format!("no token with the role {word} is like that"))
                .hint(format!("Make one on this host: postroad console --make-token NAME --role {word}"))
        };
        if token.is_empty() {
            return Err(wrong());
        }
        let hash = hash(token);
        let is = |(_, role, known): &(String, String, String)| {
            Role::of(role).is_some_and(|role| role >= least) && *known == hash
        };
        let known = self.known()?.into_iter().find(is);
        known.and_then(|(name, ..)| name.parse().ok()).ok_or_else(wrong)
    }

    /// Name, role and hash of every token.
    fn known(&self) -> Result<Vec<(String, String, String)>, Failure> {
        let mut text = String::new();
        match fs::File::open(&self.tokens) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(&self.tokens, &error)),
            Ok(file) => {
                let mode = file.metadata().map_err(|error| unreadable(&self.tokens, &error))?.permissions().mode();
                if mode & 0o077 != 0 {
                    let message = format!("{} is open to other users, so no token in it counts", self.tokens.display());
                    return Err(Failure::refused("TOKENS_EXPOSED", message).hint("Close it: chmod 600"));
                }
                file.take(TOKENS_BYTES_MAX)
                    .read_to_string(&mut text)
                    .map_err(|error| unreadable(&self.tokens, &error))?;
            }
        }
        let token = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned);
            Some((words.next()?, words.next()?, words.next()?))
        };
        Ok(text.lines().filter_map(token).take(TOKENS_MAX).collect())
    }

    /// Makes a token and keeps its hash. It is told once.
    ///
    /// # Errors
    /// When there is one of that name, or the file cannot be written.
    pub fn make_token(&self, name: &Name, role: Role) -> Result<String, Failure> {
        let known = self.known()?;
        if known.iter().any(|(taken, ..)| taken == name.as_str()) {
            let message = format!("there is a token {name} in {} already", self.tokens.display());
            return Err(Failure::refused("TOKEN_TAKEN", message).hint("Remove its line there, or take another name"));
        }
        if known.len() >= TOKENS_MAX {
            return Err(Failure::refused(
                "TOKENS_FULL",
                format!("there are {TOKENS_MAX} tokens, the most there may be"),
            ));
        }
        let mut bytes = [0; 24];
        SystemEntropy.fill(&mut bytes);
        let token = RecordingFile::encoded(&bytes);
        append(&self.tokens, &format!("{name} {} {}\n", role.word(), hash(&token)))?;
        Ok(token)
    }

    /// Writes down what was wanted and what came of it.
    ///
    /// # Errors
    /// When the audit cannot be written.
    pub fn note(&self, line: &Line) -> Result<(), Failure> {
        tracing::warn!(by = %line.by, what = %line.what, reason = %line.reason, outcome = %line.outcome, "acted by the console");
        let text =
            serde_json::to_string(line).map_err(|error| Failure::failed("AUDIT_UNWRITABLE", error.to_string()))?;
        append(&self.audit, &format!("{text}\n"))
    }

    /// The last lines of the audit, newest first.
    pub fn lines(&self) -> Vec<Line> {
        let read = || {
            use io::{Seek as _, SeekFrom};
            let mut file = fs::File::open(&self.audit)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(AUDIT_BYTES_READ)))?;
            let mut end = Vec::new();
            file.read_to_end(&mut end)?;
            io::Result::Ok(String::from_utf8_lossy(&end).into_owned())
        };
        // Without the file nothing was done yet; a cut first line is none.
        let text = read().unwrap_or_default();
        text.lines().rev().filter_map(|line| serde_json::from_str(line).ok()).take(LINES).collect()
    }
}

fn append(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_data()))
        .map_err(|error| Failure::failed("FILE_UNWRITABLE", format!("could not write {}: {error}", path.display())))
}

/// What is kept of a token: 192 bits of chance need no salt.
fn hash(token: &str) -> String {
    RecordingFile::encoded(&postroad_trust::sha256(&[b"postroad console token", token.as_bytes()]))
}

/// Whether a request comes from a page of this console. Browsers say where a form was sent from, and other sites cannot
/// change that.
pub fn is_same_site(origin: &str, host: &str, fetch_site: &str) -> bool {
    let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    from.is_some_and(|from| !host.is_empty() && from == host) && (fetch_site.is_empty() || fetch_site == "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str, token: &str) -> Query {
        Query::parse(text).with("token", token)
    }

    #[test]
    fn a_token_with_its_role_and_a_reason_act_and_nothing_less() {
        let directory = tempfile::tempdir().unwrap();
        let acting = Acting::within(directory.path());
        let good = "do=drain&what=fra&reason=new+disk";
        assert_eq!(acting.wanted(&form(good, "x")).unwrap_err().code, "TOKEN_WRONG");
        let token = acting.make_token(&"ann".parse().unwrap(), Role::Act).unwrap();
        assert!(!fs::read_to_string(&acting.tokens).unwrap().contains(&token), "only its hash is kept");
        let wanted = acting.wanted(&form(good, &token)).unwrap();
        assert_eq!((wanted.deed.path().as_str(), wanted.by.as_str()), ("/api/relays/fra/drain", "ann"));
        let on = acting.wanted(&form("do=restart&what=node%2Fself&on=par&reason=stuck", &token)).unwrap().deed;
        assert_eq!(on.path(), "/api/restart/node/self?node=par");
        assert_eq!(on.words(), "restart actor node/self of par");
        let even = acting.wanted(&form("do=rebalance&reason=uneven", &token)).unwrap().deed;
        assert_eq!((even.path().as_str(), even.body()), ("/api/relays/rebalance", "{\"dry_run\":false}"));
        assert_eq!(acting.wanted(&form("do=drain&what=fra&reason=no", &token)).unwrap_err().code, "WRONG_USE");
        assert_eq!(acting.wanted(&form("do=leave&what=fra&reason=because", &token)).unwrap_err().code, "WRONG_USE");
        assert_eq!(acting.wanted(&form("do=drain&reason=because", &token)).unwrap_err().code, "WRONG_USE");
        assert_eq!(acting.wanted(&form(good, "")).unwrap_err().code, "TOKEN_WRONG");
        assert_eq!(acting.make_token(&"ann".parse().unwrap(), Role::Act).unwrap_err().code, "TOKEN_TAKEN");
        let text = fs::read_to_string(&acting.tokens).unwrap().replace(" act ", " read ");
        fs::write(&acting.tokens, text).unwrap();
        assert_eq!(acting.wanted(&form(good, &token)).unwrap_err().code, "TOKEN_WRONG");
        assert_eq!(acting.holder(&token, Role::Read).unwrap().as_str(), "ann", "it still reads");
        fs::set_permissions(&acting.tokens, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(acting.wanted(&form(good, &token)).unwrap_err().code, "TOKENS_EXPOSED");
    }

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        let deed = |what: &str| Deed::of(&Query::default().with("do", "drain").with("what", what)).unwrap().path();
        assert_eq!(deed("fra?x=1"), "/api/relays/fra%3Fx%3D1/drain");
        assert_eq!(deed("a b"), "/api/relays/a%20b/drain");
    }

    #[test]
    fn the_audit_is_read_newest_first() {
        let directory = tempfile::tempdir().unwrap();
        let acting = Acting::within(directory.path());
        assert_eq!(acting.lines(), []);
        for at in 0..60 {
            let line = Line {
                at: WallTime(at),
                by: "ann".into(),
                what: "step down".into(),
                reason: "a\nb".into(),
                outcome: "done".into(),
                trace: None,
            };
            acting.note(&line).unwrap();
        }
        let lines = acting.lines();
        assert_eq!((lines.len(), lines[0].at, lines[0].reason.as_str()), (50, WallTime(59), "a\nb"));
        assert_eq!(fs::metadata(&acting.audit).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_this_consoles_own_pages_may_send_forms() {
        assert!(is_same_site("http://127.0.0.1:9440", "127.0.0.1:9440", ""));
        assert!(is_same_site("http://127.0.0.1:9440", "127.0.0.1:9440", "same-origin"));
        for (origin, host, site) in [
            ("", "127.0.0.1:9440", ""),
            ("null", "127.0.0.1:9440", ""),
            ("http://evil.example", "127.0.0.1:9440", ""),
            ("http://127.0.0.1:8000", "127.0.0.1:9440", ""),
            ("http://127.0.0.1:9440", "127.0.0.1:9440", "cross-site"),
            ("http://", "", ""),
        ] {
            assert!(!is_same_site(origin, host, site), "{origin} {host} {site}");
        }
    }
}
