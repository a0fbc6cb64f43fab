//! Every key of the configuration as data: what it is, its default, its bounds and the reason for them.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use postroad_cluster::{
    balancer::proxy_header::TrustedSources,
    id::Name,
    limits::{CIRCUIT_PACKET_BYTES_JUMBO, FLOW_WAIT_DEFAULT_SECONDS, FLOW_WAIT_SECONDS_MAX, PROXY_SOURCES_MAX},
};

/// A value of a key, after its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text of some kind.
    Text(String),
    /// A whole number.
    Number(u64),
    /// True or false.
    Flag(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A path of the file system.
    Path,
    /// A name: 1 to 63 of `a-z`, `0-9` and `-`.
    Name,
    /// An address and a port to bind.
    SocketAddress,
    /// A host, by name or address, and a port that others dial.
    HostPort,
    /// A whole number within bounds.
    Number {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// True or false.
    Flag,
    /// A text that is not empty.
    Text,
    /// A text that is never shown.
    Secret,
    /// An address without a port.
    IpAddress,
    /// An address and a port that only this host reaches.
    Loopback,
    /// Addresses and networks, with commas.
    Sources,
}

impl Kind {
    /// Checks a text of this kind; `Err` says what is wrong, to follow "KEY is VALUE, ".
    pub fn check_text(self, text: &str) -> Result<Value, String> {
        let valid = match self {
            Self::Number { .. } => {
                return text.parse().map_err(|_| self.wants()).and_then(|number| self.check_number(number));
            }
            Self::Name => text.parse::<Name>().is_ok(),
            Self::SocketAddress => text.parse::<SocketAddr>().is_ok(),
            Self::HostPort => is_host_port(text),
            Self::Choice(words) => words.contains(&text),
            Self::Flag => {
                return text.parse().map(Value::Flag).map_err(|_| self.wants());
            }
            Self::Path | Self::Text | Self::Secret => !text.is_empty() && !text.contains('\0'),
            Self::IpAddress => text.parse::<IpAddr>().is_ok(),
            Self::Loopback => text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback()),
            Self::Sources => TrustedSources::parse(text.split(',').map(str::trim)).is_ok(),
        };
        if valid { Ok(Value::Text(text.to_owned())) } else { Err(self.wants()) }
    }

    /// Checks a whole number.
    pub fn check_number(self, number: i128) -> Result<Value, String> {
        match self {
            Self::Number { min, .. } if number < i128::from(min) => Err(format!("at least {min}")),
            Self::Number { max, .. } if number > i128::from(max) => Err(format!("at most {max}")),
            Self::Number { .. } => Ok(Value::Number(number as u64)),
            _ => Err(self.wants()),
        }
    }

    /// What it takes, after "must be".
    pub fn wants(self) -> String {
        match self {
            Self::Path => "must be a path".to_owned(),
            Self::Name => "must be a name: 1 to 63 of a-z, 0-9 and -, not beginning or ending with -".to_owned(),
            Self::SocketAddress => "must be ADDRESS:PORT, as 0.0.0.0:9443 or [::]:9443".to_owned(),
            Self::HostPort => "must be HOST:PORT, as relay-1.example.com:9443".to_owned(),
            Self::Number { min, max } => format!("must be a whole number from {min} to {max}"),
            Self::Choice(words) => format!("must be {}", or(words)),
            Self::Flag => "must be true or false, without quotes".to_owned(),
            Self::Secret => "must be a text in quotes that is not empty".to_owned(),
            Self::Text => "must be a text that is not empty".to_owned(),
            Self::IpAddress => "must be an address without a port, as 10.0.0.7 or fd00::7".to_owned(),
            Self::Loopback => "must be an address of this host alone, as 127.0.0.1:9444 or [::1]:9444".to_owned(),
            Self::Sources => {
                format!("must be at most {PROXY_SOURCES_MAX} addresses or networks with commas, as 10.0.0.7, fd00::/64")
            }
        }
    }
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Its section.
    pub section: &'static str,
    /// Its name in the section.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Its default as text; none when it may be left out.
    pub default: Option<&'static str>,
    /// A value that would work, for keys without a default.
    pub example: &'static str,
    /// What it is, in a sentence.
    pub says: &'static str,
    /// Why it is there, and why within these bounds.
    pub why: &'static str,
}

impl Key {
    /// `section.name`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// The environment variable that goes before the file.
    pub fn variable(&self) -> String {
        format!("POSTROAD_{}_{}", self.section, self.name).to_uppercase()
    }
}

/// The default of `link.flow_wait_seconds` as text.
const FLOW_WAIT_DEFAULT: &str = "60";
const _: () = assert!(FLOW_WAIT_DEFAULT_SECONDS == 60, "the text above is the same figure");

/// The least packet that QUIC allows.
const QUIC_PACKET_BYTES_MIN: u64 = 1_200;

/// The default of `fabric.packet_bytes_max` as text.
const PACKET_BYTES_MAX_DEFAULT: &str = "8936";
const _: () = assert!(CIRCUIT_PACKET_BYTES_JUMBO == 8_936, "the text above is the same figure");

/// Every key, in the order of the example file.
pub const KEYS: &[Key] = &[
    Key {
        section: "node",
        name: "data",
        kind: Kind::Path,
        default: None,
        example: "/var/lib/postroad",
        says: "Where this node keeps its keys, promises and snapshots. Left out, it is $STATE_DIRECTORY, else \
               /var/lib/postroad as root, else postroad in the user's XDG state directory.",
        why: "one process owns it, and whoever reads it can pose as this node",
    },
    Key {
        section: "node",
        name: "name",
        kind: Kind::Name,
        default: None,
        example: "web-1",
        says: "What people call this node. Left out, it is the first part of the host's name.",
        why: "names appear in commands and certificates, so they are short and need no quoting",
    },
    Key {
        section: "listen",
        name: "relay",
        kind: Kind::SocketAddress,
        default: Some("0.0.0.0:9443"),
        example: "[::]:9443",
        says: "Where control nodes and relays take sessions, over UDP.",
        why: "one port serves everything, so a firewall needs one rule",
    },
    Key {
        section: "listen",
        name: "outbound",
        kind: Kind::SocketAddress,
        default: Some("0.0.0.0:0"),
        example: "[::]:0",
        says: "Where sessions and circuits are dialled from; port 0 takes any.",
        why: "a firewall that knows the port, or a host with several addresses, may need a fixed one",
    },
    Key {
        section: "relay",
        name: "advertised",
        kind: Kind::HostPort,
        default: None,
        example: "relay-1.example.com:9443",
        says: "Where others reach this node's relay, when that is not the address it listens on.",
        why: "behind a port forward a host cannot know the address that others dial",
    },
    Key {
        section: "domain",
        name: "host",
        kind: Kind::Name,
        default: None,
        example: "rack-2-host-7",
        says: "The physical host that this node runs on.",
        why: "two relays that would die together count as one, and nothing is guessed",
    },
    Key {
        section: "domain",
        name: "power",
        kind: Kind::Name,
        default: None,
        example: "feed-a",
        says: "The power supply of that host.",
        why: "two relays on one supply go dark together",
    },
    Key {
        section: "domain",
        name: "network",
        kind: Kind::Name,
        default: None,
        example: "uplink-1",
        says: "Its uplink, firewall and route.",
        why: "two relays behind one uplink are cut off together",
    },
    Key {
        section: "domain",
        name: "zone",
        kind: Kind::Name,
        default: None,
        example: "fra",
        says: "The country or provider.",
        why: "it groups votes on what can be reached; it is no failure domain",
    },
    Key {
        section: "link",
        name: "flow_wait_seconds",
        kind: Kind::Number { min: 1, max: FLOW_WAIT_SECONDS_MAX },
        default: Some(FLOW_WAIT_DEFAULT),
        example: "60",
        says: "How long open flows wait, in seconds, when no relay can be reached; then both sockets are reset.",
        why: "a flow that waits longer than an hour holds its buffers for nothing",
    },
    Key {
        section: "link",
        name: "proxy_protocol_from",
        kind: Kind::Sources,
        default: None,
        example: "10.0.0.7, 10.1.0.0/24",
        says: "Addresses and networks of machines whose connections to this node's links begin with a PROXY v2 header, \
               such as a database balancer's. From them one is required and taken off, from all others none is read. \
               Left out, nobody is.",
        why: "a service that cannot read such a header would take it for its client's first word",
    },
    Key {
        section: "fabric",
        name: "packet_bytes_max",
        kind: Kind::Number { min: QUIC_PACKET_BYTES_MIN, max: CIRCUIT_PACKET_BYTES_JUMBO as u64 },
        default: Some(PACKET_BYTES_MAX_DEFAULT),
        example: "1436",
        says: "The largest packet that this node sends to another one, in bytes of QUIC; 64 more travel over IPv6. More than \
               1436 is sent where every relay in reach has carried it there and back.",
        why: "a network whose large packets get through for a while and then get lost is better used without them; QUIC \
              needs 1,200, and 8,936 fit frames of 9,000 bytes",
    },
    Key {
        section: "log",
        name: "format",
        kind: Kind::Choice(&["human", "json"]),
        default: Some("human"),
        example: "json",
        says: "How log lines look: human for people, json for machines.",
        why: "a collector wants fields and a person wants a sentence",
    },
    Key {
        section: "log",
        name: "level",
        kind: Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        default: Some("info"),
        example: "debug",
        says: "The least level that is logged; info is a quiet day.",
        why: "debug and trace say something for each message, which is too much to keep",
    },
    Key {
        section: "api",
        name: "socket",
        kind: Kind::Path,
        default: None,
        example: "/run/postroad/api.sock",
        says: "The Unix socket that commands on this host talk to. Left out, it is api.sock in the data directory.",
        why: "whoever may open it administers this node",
    },
    Key {
        section: "console",
        name: "serve",
        kind: Kind::Choice(&["on", "off"]),
        default: Some("on"),
        example: "off",
        says: "Whether this node serves its console, which shows the whole fleet to a browser and figures at /metrics.",
        why: "a host that runs what you do not trust may not want its users to see the node",
    },
    Key {
        section: "console",
        name: "listen",
        kind: Kind::SocketAddress,
        default: Some("127.0.0.1:9440"),
        example: "[::1]:9440",
        says: "Where the console listens. Where the port is taken, the node runs without it and says so.",
        why: "loopback alone is open to readers without a token; another address needs console.certificate and tokens",
    },
    Key {
        section: "console",
        name: "certificate",
        kind: Kind::Path,
        default: None,
        example: "/etc/postroad/console.pem",
        says: "A PEM file with the certificate that the console shows, its chain after it; with it, the console speaks TLS.",
        why: "tokens of readers on other machines must not cross a network in the clear",
    },
    Key {
        section: "console",
        name: "key",
        kind: Kind::Path,
        default: None,
        example: "/etc/postroad/console.key",
        says: "A PEM file with the key of console.certificate, closed to other users.",
        why: "whoever reads it can pose as the console and collect tokens",
    },
    Key {
        section: "console",
        name: "act",
        kind: Kind::Choice(&["off", "on"]),
        default: Some("off"),
        example: "on",
        says: "Whether the console drains, resumes and rebalances relays, hands over the lead and restarts actors, for tokens that may.",
        why: "a page that only reads cannot be used against the fleet, whoever gets at it",
    },
];

/// A section whose keys are names that the operator gives.
#[derive(Debug)]
pub struct List {
    /// The section.
    pub section: &'static str,
    /// What each value is.
    pub kind: Kind,
    /// Checks a name; an error says what it must be.
    pub name: fn(&str) -> Result<(), String>,
    /// Lines that would work.
    pub example: &'static str,
    /// What it is, in a sentence.
    pub says: &'static str,
    /// Why names and values are as they are.
    pub why: &'static str,
}

/// What a configuration file may hold.
#[derive(Debug)]
pub struct Schema {
    /// Every key, in the order of the example file.
    pub keys: &'static [Key],
    /// Every list, after them.
    pub lists: &'static [List],
    /// What the example file begins with.
    pub heading: &'static str,
}

const BALANCERS: List = List {
    section: "balancers",
    kind: Kind::Path,
    name: |name| name.parse::<Name>().map(|_| ()).map_err(|_| Kind::Name.wants()),
    example: "#orders = \"orders.toml\"\n",
    says: "Database balancers that the cluster may have this node run: the balancer's name in the cluster, and the file \
           with its ports and its monitoring account, as postroad balance example prints it, without [nodes]. A relative \
           path starts at this file's folder.",
    why: "ports and passwords are this host's own, and the list of database nodes is the cluster's: postroad balance add",
};

/// The configuration of a node.
pub const NODE: Schema = Schema {
    keys: KEYS,
    lists: &[BALANCERS],
    heading: "# Configuration of one postroad node. Every key is here with its default or, without one, an example;\n\
              # remove the # before a key to change it. Environment variables POSTROAD_SECTION_KEY go before this file,\n\
              # flags before both. What concerns the whole cluster is not here: the cluster agrees on it.\n",
};

impl Schema {
    /// The sections, in order.
    pub fn sections(&self) -> Vec<&'static str> {
        let mut sections: Vec<_> = self.keys.iter().map(|key| key.section).collect();
        sections.extend(self.lists.iter().map(|list| list.section));
        sections.dedup();
        sections
    }

    /// The key of `section` named `name`.
    pub fn find(&self, section: &str, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.section == section && key.name == name)
    }

    /// The whole file with every key, its default and its reason, ready to be edited.
    pub fn example(&self) -> String {
        let mut text = String::from(self.heading);
        for section in self.sections() {
            text.extend(["\n[", section, "]\n"]);
            for key in self.keys.iter().filter(|key| key.section == section) {
                let none = if key.default.is_none() { " There is no default." } else { "" };
                let left_out = if key.says.contains("Left out") { "" } else { none };
                comment(&mut text, &format!("{}{left_out}", key.says));
                if let Kind::Number { .. } | Kind::Choice(_) = key.kind {
                    comment(&mut text, &format!("It {}.", key.kind.wants()));
                }
                comment(&mut text, &format!("Why: {}.", key.why));
                let value = key.default.unwrap_or(key.example);
                let quote = if matches!(key.kind, Kind::Number { .. } | Kind::Flag) { "" } else { "\"" };
                text.extend(["#", key.name, " = ", quote, value, quote, "\n"]);
            }
            for list in self.lists.iter().filter(|list| list.section == section) {
                comment(&mut text, list.says);
                comment(&mut text, &format!("Why: {}.", list.why));
                text.push_str(list.example);
            }
        }
        text
    }
}

/// The nearest of `known` to what was written, if any is near enough to have been meant.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    let known: Vec<&str> = known.into_iter().collect();
    if written.len() >= 3
        && let Some(longer) = known.iter().find(|word| word.starts_with(&written))
    {
        return Some(longer);
    }
    let distance = |word: &&str| strsim::damerau_levenshtein(&written, word);
    let nearest = known.into_iter().min_by_key(distance)?;
    // A typing error or two, and not another word altogether.
    let near = distance(&nearest) <= 1 + nearest.len() / 4;
    near.then_some(nearest)
}

/// Adds `sentence` as comment lines of at most 100 columns.
fn comment(text: &mut String, sentence: &str) {
    let mut width = usize::MAX;
    for word in sentence.split_whitespace() {
        if width.saturating_add(1 + word.len()) > 100 {
            text.push_str(if width == usize::MAX { "#" } else { "\n#" });
            width = 1;
        }
        text.push(' ');
        text.push_str(word);
        width += 1 + word.len();
    }
    text.push('\n');
}

/// `a, b or c`.
fn or(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let port_is_one = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let host_is_one = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            (1..=253).contains(&host.len())
                && host.split('.').all(|label| {
                    (1..=63).contains(&label.len())
                        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
                })
        }
    };
    port_is_one && host_is_one
}

#[cfg(test)]
mod tests;
