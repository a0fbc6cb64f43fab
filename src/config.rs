//! The configuration of one node: what is its own. What concerns the whole cluster lives in the log.
//!
//! Flags go before the environment, the environment before the file, the file before the defaults. [`keys::KEYS`] is
//! the only list of keys: reading, checking, the example and `config show` all come from it.

mod complaint;
pub(crate) mod file;
pub mod keys;

use std::{
    collections::BTreeMap,
    fmt,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use postroad_cluster::{
    balancer::proxy_header::TrustedSources,
    domain::FailureDomain,
    id::Name,
    limits::{CONFIG_BYTES_MAX, CONFIG_ERRORS_MAX},
};
use serde_json::json;

use crate::errors::Failure;

pub use complaint::{Complaint, Place};
use keys::{KEYS, Key, Value};

/// Everything that is this node's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[node]`
    pub node: Node,
    /// `[listen]`
    pub listen: Listen,
    /// `[relay]`
    pub relay: Relay,
    /// `[domain]`: where the node stands.
    pub domain: FailureDomain,
    /// `[link]`
    pub link: Link,
    /// `[fabric]`
    pub fabric: Fabric,
    /// `[log]`
    pub log: Log,
    /// `[api]`
    pub api: Api,
    /// `[console]`
    pub console: Console,
    /// `[balancers]`: the file of each, by its name.
    pub balancers: BTreeMap<Name, PathBuf>,
}

/// The node itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The data directory.
    pub data: PathBuf,
    /// The node's name, if the operator gave one.
    pub name: Option<Name>,
}

/// The sockets of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    /// Where sessions are taken.
    pub relay: SocketAddr,
    /// Where sessions and circuits are dialled from.
    pub outbound: SocketAddr,
}

/// The relay on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Relay {
    /// `host:port` that others dial.
    pub advertised: Option<String>,
}

/// The links of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// How long flows wait when no relay can be reached: 1 s to 1 h.
    pub flow_wait: Duration,
    /// Whose connections to links begin with a PROXY header.
    pub proxy_protocol_from: TrustedSources,
}

/// Circuits to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// The largest packet that is sent, in bytes of QUIC: 1,200 to 8,936.
    pub packet_bytes_max: u32,
}

/// The log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// For whom.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

/// For whom log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// People.
    Human,
    /// Machines: one JSON object a line.
    Json,
}

/// The API on this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Api {
    /// Its Unix socket.
    pub socket: PathBuf,
}

/// The console on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Console {
    /// Whether it is served.
    pub serve: bool,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Whether it acts, for tokens with the role.
    pub act: bool,
    /// The certificate that it shows to other machines.
    pub certificate: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// Nobody set it, and the system decides: a variable or a rule in words.
    System(&'static str),
    /// A file, the environment or a flag.
    Set(Place),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::System(rule) => f.write_str(rule),
            Self::Set(Place::File { path, line, .. }) => write!(f, "{}:{line}", path.display()),
            Self::Set(place) => write!(f, "{place}"),
        }
    }
}

/// One key with the value that is in force.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The key.
    pub key: &'static Key,
    /// Its value; none for an optional key that nobody set.
    pub value: Option<Value>,
    /// Where that comes from.
    pub origin: Origin,
}

/// A configuration, and how it came about.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The same by key, with their origins.
    pub settings: Vec<Setting>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// What is odd and no error.
    pub warnings: Vec<String>,
}

/// What a configuration is read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file; without one the usual place is looked at, where none need be.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// `--data`.
    pub data: Option<PathBuf>,
    /// Whether the process runs as root, which decides the usual places.
    pub root: bool,
}

impl Sources {
    /// The sources of this process, with the values of `--config` and `--data`.
    pub fn of_process(file: Option<PathBuf>, data: Option<PathBuf>) -> Self {
        // A variable that is no text is nobody's setting.
        let environment =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self { file, environment: environment.collect(), data, root: rustix::process::geteuid().is_root() }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A directory of the user: `variable` if it is absolute, as XDG wants it, else `fallback` in the home directory.
    fn user_directory(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
        let given = self.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        given.or_else(|| Some(Path::new(self.variable("HOME")?).join(fallback)))
    }

    /// Where the file is when nobody says.
    pub fn usual_file(&self) -> PathBuf {
        if self.root {
            return PathBuf::from("/etc/postroad/postroad.toml");
        }
        let directory = self.user_directory("XDG_CONFIG_HOME", ".config").unwrap_or_default();
        directory.join("postroad/postroad.toml")
    }

    /// Where the data is when nobody says, and by which rule.
    fn usual_data(&self) -> Result<(PathBuf, &'static str), Failure> {
        if let Some(given) = self.variable("STATE_DIRECTORY") {
            // systemd separates several by colons.
            return Ok((PathBuf::from(given.split(':').next().unwrap_or(given)), "$STATE_DIRECTORY"));
        }
        if self.root {
            return Ok((PathBuf::from("/var/lib/postroad"), "default as root"));
        }
        match self.user_directory("XDG_STATE_HOME", ".local/state") {
            Some(directory) => Ok((directory.join("postroad"), "default of this user")),
            None => Err(Failure::failed("NO_DATA_DIRECTORY", "this user has no home directory to keep data in")
                .hint("Give one by --data")),
        }
    }
}

/// Reads the configuration from all its sources.
///
/// # Errors
/// `CONFIG_INVALID` with everything that is wrong, at most [`CONFIG_ERRORS_MAX`] of it; `CONFIG_UNREADABLE` when the
/// file cannot be read.
pub fn load(sources: &Sources) -> Result<Loaded, Failure> {
    let (path, text) = read_file(sources)?;
    let file::Content { mut values, mut lists, mut complaints } =
        file::read(&keys::NODE, &path, text.as_deref().unwrap_or_default());
    complaints.extend(read_environment(sources, &mut values));
    if let Some(data) = &sources.data {
        let value = Value::Text(data.display().to_string());
        values.insert(("node", "data"), (value, Place::Flag("--data")));
    }
    if !complaints.is_empty() {
        return Err(invalid(&complaints, "postroad config example"));
    }
    let settings = settle(sources, values)?;
    let mut config = config(&settings);
    config.balancers = balancers(&path, lists.remove("balancers").unwrap_or_default());
    Ok(Loaded { config, settings, file: text.map(|_| path), warnings: unknown_variables(sources) })
}

/// The files of balancers; a relative path starts at the folder of the file at `path`.
fn balancers(path: &Path, named: BTreeMap<String, Value>) -> BTreeMap<Name, PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let of = |(name, file): (String, Value)| {
        (name.parse().expect("the list's names were checked"), folder.join(file.to_string()))
    };
    named.into_iter().map(of).collect()
}

/// The file's path and its content; no content if it is the usual one and not there.
fn read_file(sources: &Sources) -> Result<(PathBuf, Option<String>), Failure> {
    let path = sources.file.clone().unwrap_or_else(|| sources.usual_file());
    let unreadable = |what: String| {
        Failure::failed("CONFIG_UNREADABLE", format!("could not read configuration {}: {what}", path.display()))
            .hint("Make one: postroad config example > postroad.toml")
    };
    let mut text = String::new();
    let read = std::fs::File::open(&path).and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 > CONFIG_BYTES_MAX => {
            Err(unreadable(format!("it has more than {CONFIG_BYTES_MAX} bytes, so it is another file")))
        }
        Ok(_) => Ok((path, Some(text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && sources.file.is_none() => Ok((path, None)),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// Puts the environment's values over the file's.
fn read_environment(sources: &Sources, values: &mut file::Values) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for key in KEYS {
        let variable = key.variable();
        let Some(text) = sources.variable(&variable) else { continue };
        let place = Place::Environment(variable.clone());
        match key.kind.check_text(text) {
            Ok(value) => {
                values.insert((key.section, key.name), (value, place));
            }
            Err(wrong) => {
                let shown =
                    if matches!(key.kind, keys::Kind::Number { .. }) { text.to_owned() } else { format!("{text:?}") };
                let sentence = format!("{} is {shown}, {wrong}", key.path());
                complaints.push(Complaint { place, sentence, reason: key.why.to_owned() });
            }
        }
    }
    complaints
}

/// Variables that look like a key's and are none's.
fn unknown_variables(sources: &Sources) -> Vec<String> {
    /// Variables of ours that are no keys.
    const OTHERS: &[&str] = &["POSTROAD_RELAY_RUN_USER"];
    let known: Vec<String> = KEYS.iter().map(Key::variable).collect();
    let prefixes: Vec<String> =
        keys::NODE.sections().into_iter().map(|section| format!("POSTROAD_{}_", section.to_uppercase())).collect();
    let ours = sources.environment.keys().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    ours.filter(|name| !known.contains(name) && !OTHERS.contains(&name.as_str()))
        .map(|name| {
            let lower: Vec<String> = known.iter().map(|known| known.to_lowercase()).collect();
            match keys::nearest(name, lower.iter().map(String::as_str)) {
                Some(nearest) => format!("{name} sets nothing; did you mean {}?", nearest.to_uppercase()),
                None => format!("{name} sets nothing: no key has that name"),
            }
        })
        .collect()
}

pub(crate) fn invalid(complaints: &[Complaint], example: &str) -> Failure {
    let shown = complaints.iter().take(CONFIG_ERRORS_MAX);
    let mut lines: Vec<String> = shown.clone().map(Complaint::to_string).collect();
    if complaints.len() > CONFIG_ERRORS_MAX {
        lines.push(format!("and {} more", complaints.len() - CONFIG_ERRORS_MAX));
    }
    let message = lines.join("\n");
    let details = shown.map(Complaint::json).collect::<Vec<_>>();
    let failure =
        Failure::failed("CONFIG_INVALID", message).details(json!({ "errors": details, "count": complaints.len() }));
    if complaints.iter().any(|complaint| complaint.sentence.contains(" is unknown")) {
        return failure.hint(format!("Every key with its default: {example}"));
    }
    failure
}

/// Every key with the value in force.
fn settle(sources: &Sources, mut values: file::Values) -> Result<Vec<Setting>, Failure> {
    let mut settings = Vec::with_capacity(KEYS.len());
    for key in KEYS {
        let (value, origin) = match values.remove(&(key.section, key.name)) {
            Some((value, place)) => (Some(value), Origin::Set(place)),
            None => unset(sources, key, &settings)?,
        };
        settings.push(Setting { key, value, origin });
    }
    Ok(settings)
}

/// The value of a key that nobody set; `before` are the keys before it.
fn unset(sources: &Sources, key: &'static Key, before: &[Setting]) -> Result<(Option<Value>, Origin), Failure> {
    match (key.section, key.name) {
        ("node", "data") => {
            let (path, rule) = sources.usual_data()?;
            Ok((Some(Value::Text(path.display().to_string())), Origin::System(rule)))
        }
        ("api", "socket") => {
            let socket = path(before, "node", "data").join("api.sock");
            Ok((Some(Value::Text(socket.display().to_string())), Origin::System("in the data directory")))
        }
        _ => {
            let value = key.default.map(|text| key.kind.check_text(text).expect("a test checks every default"));
            Ok((value, Origin::Default))
        }
    }
}

fn text<'a>(settings: &'a [Setting], section: &str, name: &str) -> Option<&'a str> {
    match settings.iter().find(|setting| setting.key.section == section && setting.key.name == name)?.value.as_ref()? {
        Value::Text(text) => Some(text),
        Value::Number(_) | Value::Flag(_) => None,
    }
}

fn path(settings: &[Setting], section: &str, name: &str) -> PathBuf {
    text(settings, section, name).map(PathBuf::from).unwrap_or_default()
}

fn number(settings: &[Setting], section: &str, name: &str) -> u64 {
    let found = settings.iter().find(|setting| setting.key.section == section && setting.key.name == name);
    match found.and_then(|setting| setting.value.as_ref()) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    }
}

/// Addresses and networks of a key that was checked.
fn sources(text: Option<&str>) -> TrustedSources {
    let texts = text.unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty());
    TrustedSources::parse(texts).expect("the key's kind was checked")
}

/// The settings as types. Their checks are done, so nothing here fails.
fn config(settings: &[Setting]) -> Config {
    const CHECKED: &str = "the key's kind was checked";
    let name = |section, name| text(settings, section, name).map(|text| text.parse::<Name>().expect(CHECKED));
    let address = |section, name| text(settings, section, name).expect(CHECKED).parse::<SocketAddr>().expect(CHECKED);
    Config {
        node: Node { data: path(settings, "node", "data"), name: name("node", "name") },
        listen: Listen { relay: address("listen", "relay"), outbound: address("listen", "outbound") },
        relay: Relay { advertised: text(settings, "relay", "advertised").map(str::to_owned) },
        domain: FailureDomain {
            host: name("domain", "host"),
            power: name("domain", "power"),
            network: name("domain", "network"),
            zone: name("domain", "zone"),
        },
        link: Link {
            flow_wait: Duration::from_secs(number(settings, "link", "flow_wait_seconds")),
            proxy_protocol_from: sources(text(settings, "link", "proxy_protocol_from")),
        },
        fabric: Fabric { packet_bytes_max: number(settings, "fabric", "packet_bytes_max") as u32 },
        log: Log {
            format: if text(settings, "log", "format") == Some("json") { LogFormat::Json } else { LogFormat::Human },
            level: text(settings, "log", "level").expect(CHECKED).to_owned(),
        },
        api: Api { socket: path(settings, "api", "socket") },
        console: Console {
            serve: text(settings, "console", "serve") == Some("on"),
            listen: address("console", "listen"),
            act: text(settings, "console", "act") == Some("on"),
            certificate: text(settings, "console", "certificate").map(PathBuf::from),
            key: text(settings, "console", "key").map(PathBuf::from),
        },
        balancers: BTreeMap::new(),
    }
}
