//! The configuration of a database balancer: one TOML file, checked as a whole before anything starts (DB-40).

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use postroad_cluster::{
    balancer::{
        database::settings::{Engine, Language, Settings},
        limits::NODES_MAX,
        proxy_header::TrustedSources,
    },
    limits::CONFIG_BYTES_MAX,
};

use super::{
    keys::SCHEMA,
    probe::{ProbeSettings, Tls, custom::Columns},
};
use crate::{
    config::{
        Complaint, Place,
        file::{self, Content},
        invalid,
        keys::Value,
    },
    errors::Failure,
};

/// The variable that holds the monitoring account's password.
pub const PASSWORD_VARIABLE: &str = "POSTROAD_PROXY_PASSWORD";

/// How to get a file that is right.
const EXAMPLE: &str = "postroad balance example";

/// Who says which nodes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// The file: the balancer stands alone.
    Own,
    /// The cluster: the balancer is a role of a node (DB-43).
    Cluster,
    /// Either; the list is not what is wanted of the file.
    Either,
}

/// What a file sets, by section and key. Some of it is secret, so it is not shown.
#[derive(Clone, Default, PartialEq)]
struct Set(BTreeMap<(&'static str, &'static str), Value>);

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Everything that a balancer is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where writes are taken.
    pub rw: SocketAddr,
    /// Where reads are taken.
    pub ro: Option<SocketAddr>,
    /// Where status and metrics are told.
    pub admin: SocketAddr,
    /// The language of what clients read.
    pub language: Language,
    /// Where the log goes; none is standard error.
    pub log_file: Option<PathBuf>,
    /// The local address of connections to the nodes.
    pub source: Option<IpAddr>,
    /// Whether a PROXY header goes first.
    pub proxy_protocol: bool,
    /// From whom such a header is read.
    pub proxy_protocol_from: TrustedSources,
    /// Addresses of the nodes by id.
    pub nodes: BTreeMap<String, String>,
    /// What decides.
    pub settings: Settings,
    /// How nodes are probed.
    pub probe: ProbeSettings,
    /// What is odd and no error.
    pub warnings: Vec<String>,
    /// What the file sets, by section and key, to be compared with what it sets later.
    set: Set,
}

impl Config {
    /// The keys that `other` sets to something else, without those of lists.
    pub fn differs(&self, other: &Self) -> Vec<String> {
        let (ours, others) = (&self.set.0, &other.set.0);
        let keys: BTreeSet<_> = ours.keys().chain(others.keys()).collect();
        let differing = keys.into_iter().filter(|key| ours.get(key) != others.get(key));
        differing.map(|(section, name)| format!("{section}.{name}")).collect()
    }
}

/// Reads the file at `path`; `password` is the environment's.
///
/// # Errors
/// `CONFIG_UNREADABLE`, or `CONFIG_INVALID` with everything that is wrong.
pub fn load(path: &Path, list: List, password: Option<String>) -> Result<Config, Failure> {
    let (text, open_to_others) = read(path)?;
    let mut config = parse(path, &text, list, password)?;
    if open_to_others && text.lines().any(|line| line.trim_start().starts_with("password")) {
        config.warnings.push(format!(
            "{} holds a password and others can read it: chmod 600 {0}, or set {PASSWORD_VARIABLE} instead",
            path.display()
        ));
    }
    Ok(config)
}

/// The file's text, and whether others than its owner and group can read it.
fn read(path: &Path) -> Result<(String, bool), Failure> {
    let unreadable = |what: String| {
        Failure::failed("CONFIG_UNREADABLE", format!("could not read configuration {}: {what}", path.display()))
            .hint(format!("Make one: {EXAMPLE} > proxy.toml"))
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mode = file.metadata().map_err(|error| unreadable(error.to_string()))?.permissions().mode();
    let length = file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text);
    match length.map_err(|error| unreadable(error.to_string()))? as u64 {
        length if length > CONFIG_BYTES_MAX => {
            Err(unreadable(format!("it has more than {CONFIG_BYTES_MAX} bytes, so it is another file")))
        }
        _ => Ok((text, mode & 0o004 != 0)),
    }
}

/// The configuration that `text` is, as the content of the file at `path`.
///
/// # Errors
/// `CONFIG_INVALID` with everything that is wrong.
pub fn parse(path: &Path, text: &str, list: List, password: Option<String>) -> Result<Config, Failure> {
    let Content { values, mut lists, mut complaints } = file::read(&SCHEMA, path, text);
    let reader = Reader { values, path, text };
    let nodes = lists.remove("nodes").unwrap_or_default();
    if complaints.is_empty() {
        complaints.extend(reader.missing());
        complaints.extend(reader.misplaced_nodes(list, nodes.len()));
    }
    if !complaints.is_empty() {
        return Err(invalid(&complaints, EXAMPLE));
    }
    let nodes = nodes.into_iter().map(|(node, address)| (node, address.to_string())).collect();
    reader.config(nodes, password)
}

struct Reader<'a> {
    values: file::Values,
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn value(&self, section: &str, name: &str) -> Option<Value> {
        let key = SCHEMA.find(section, name).expect("only keys of the schema are read");
        let set = self.values.get(&(key.section, key.name)).map(|(value, _)| value.clone());
        set.or_else(|| key.default.map(|text| key.kind.check_text(text).expect("a test checks every default")))
    }

    fn text(&self, section: &str, name: &str) -> Option<String> {
        self.value(section, name).map(|value| value.to_string())
    }

    fn parsed<T: std::str::FromStr>(&self, section: &str, name: &str) -> Option<T> {
        self.text(section, name)?.parse().ok()
    }

    /// A path that starts at the file's folder.
    fn path(&self, section: &str, name: &str) -> Option<PathBuf> {
        Some(self.path.parent().unwrap_or(Path::new("")).join(self.text(section, name)?))
    }

    fn number(&self, section: &str, name: &str) -> u64 {
        self.parsed(section, name).unwrap_or_default()
    }

    fn sources(&self, section: &str, name: &str) -> TrustedSources {
        let texts = self.text(section, name).unwrap_or_default();
        let texts = texts.split(',').map(str::trim).filter(|text| !text.is_empty());
        TrustedSources::parse(texts).expect("the key's kind was checked")
    }

    fn flag(&self, section: &str, name: &str) -> Option<bool> {
        self.parsed(section, name)
    }

    /// Where the list of nodes stands and must not, or is missing, or has too many.
    fn misplaced_nodes(&self, list: List, count: usize) -> Option<Complaint> {
        let end = self.text.trim_end().len();
        let at = self.text.find("[nodes]").filter(|_| list == List::Cluster).unwrap_or(end);
        let (sentence, reason) = match (list, count) {
            (List::Own, 0) => {
                ("[nodes] names no node, and one is required".to_owned(), "id = \"ADDRESS:PORT\"".to_owned())
            }
            (List::Own | List::Either, 0..=NODES_MAX) | (List::Cluster, 0) => return None,
            (List::Own | List::Either, _) => (
                format!("[nodes] names {count} nodes, at most {NODES_MAX}"),
                "each is a probe and a connection".to_owned(),
            ),
            (List::Cluster, _) => (
                "[nodes] stands in the file of a balancer whose list the cluster has; take it out".to_owned(),
                "two lists would differ one day: postroad balance add, postroad balance set".to_owned(),
            ),
        };
        Some(Complaint { place: Place::in_file(self.path, self.text, &(at..at)), sentence, reason })
    }

    /// What is required and not there, or does not fit together.
    fn missing(&self) -> Vec<Complaint> {
        let end = self.text.trim_end().len();
        let complaint = |sentence: &str, reason: &str| Complaint {
            place: Place::in_file(self.path, self.text, &(end..end)),
            sentence: sentence.to_owned(),
            reason: reason.to_owned(),
        };
        let mut complaints = Vec::new();
        let required = [("proxy", "rw"), ("monitor", "user")];
        for (section, name) in required.into_iter().filter(|(section, name)| self.value(section, name).is_none()) {
            let why = SCHEMA.find(section, name).map_or("", |key| key.why);
            complaints.push(complaint(&format!("{section}.{name} is missing, and it is required"), why));
        }
        let custom = self.text("proxy", "engine").as_deref() == Some("custom");
        if custom && self.value("custom", "query").is_none() {
            complaints.push(complaint("custom.query is missing, and the engine is custom", "it is the whole probe"));
        }
        complaints
    }

    fn engine(&self) -> Engine {
        let protocol = self.text("custom", "protocol");
        match (self.text("proxy", "engine").as_deref(), protocol.as_deref()) {
            (Some("postgres"), _) => Engine::Postgres,
            (Some("mysql"), _) => Engine::Mysql,
            (Some("custom"), Some("postgres")) => Engine::CustomPostgres,
            (Some("custom"), _) => Engine::CustomMysql,
            _ => Engine::Mariadb,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            period_ms: self.number("monitor", "period_ms"),
            timeout_ms: self.number("monitor", "timeout_ms"),
            unhealthy_after: self.number("monitor", "unhealthy_after"),
            primary_in_ro: self.flag("routing", "primary_in_ro").unwrap_or_default(),
            max_lag_bytes: self.number("routing", "max_lag_bytes"),
            max_lag_seconds: self.number("routing", "max_lag_seconds"),
            active_weight: self.number("routing", "active_weight"),
            connection_reserve: self.number("routing", "connection_reserve"),
            close_rw_on_primary_change: self.flag("routing", "close_rw_on_primary_change").unwrap_or(true),
            cluster: self.text("monitor", "cluster"),
        }
    }

    fn tls(&self) -> Result<Tls, Failure> {
        let Some(ca) = self.path("monitor", "tls_ca") else {
            return Ok(match self.text("monitor", "tls").as_deref() {
                Some("required") => Tls::Required { ca: None },
                Some("disabled") => Tls::Disabled,
                _ => Tls::Preferred,
            });
        };
        let unreadable = |error| {
            Failure::failed("TLS_CA_UNREADABLE", format!("could not read monitor.tls_ca {}: {error}", ca.display()))
                .hint("It is a file of certificates in PEM")
        };
        std::fs::read(&ca).map(|pem| Tls::Required { ca: Some(pem) }).map_err(unreadable)
    }

    fn columns(&self) -> Option<Columns> {
        let column = |name| self.text("custom", name);
        let required = |name| column(name).unwrap_or_default();
        Some(Columns {
            query: column("query")?,
            identity: required("identity"),
            epoch: required("epoch"),
            role: required("role"),
            role_primary: required("role_primary"),
            role_secondary: required("role_secondary"),
            role_none: required("role_none"),
            writable: column("writable"),
            replicas: column("replicas"),
            position: column("position"),
            connections: column("connections"),
            connections_max: column("connections_max"),
            active: column("active"),
        })
    }

    fn config(&self, nodes: BTreeMap<String, String>, password: Option<String>) -> Result<Config, Failure> {
        const CHECKED: &str = "the key's kind was checked";
        let engine = self.engine();
        let source = self.parsed("proxy", "source");
        let by_default = matches!(engine, Engine::Mariadb | Engine::Mysql);
        let proxy_protocol = self.flag("routing", "proxy_protocol").unwrap_or(by_default);
        let mut warnings = Vec::new();
        if by_default && !proxy_protocol {
            warnings.push(
                "routing.proxy_protocol is false: the nodes see this balancer's address instead of the clients', also \
                 where they choose accounts and block after failed logins"
                    .to_owned(),
            );
        }
        let probe = ProbeSettings {
            engine,
            user: self.text("monitor", "user").expect(CHECKED),
            password: password.or_else(|| self.text("monitor", "password")),
            database: self.text("monitor", "database").expect(CHECKED),
            tls: self.tls()?,
            source,
            proxy_protocol,
            epoch_query: self.text("monitor", "epoch_query"),
            columns: self.columns(),
        };
        Ok(Config {
            rw: self.parsed("proxy", "rw").expect(CHECKED),
            ro: self.parsed("proxy", "ro"),
            admin: self.parsed("proxy", "admin").expect(CHECKED),
            language: if self.text("proxy", "language").as_deref() == Some("fr") { Language::Fr } else { Language::En },
            log_file: self.path("proxy", "log_file"),
            source,
            proxy_protocol,
            proxy_protocol_from: self.sources("proxy", "proxy_protocol_from"),
            nodes,
            settings: self.settings(),
            probe,
            warnings,
            set: Set(self.values.iter().map(|(key, (value, _))| (*key, value.clone())).collect()),
        })
    }
}
