//! What a probe finds of a node: its answer, or the cause for which there was none.

use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{balancer::limits::PROBE_ERROR_CHARACTERS_MAX, time::Moment};

/// What a node says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// It takes the writes of its cluster.
    Primary,
    /// It follows a primary.
    Secondary,
    /// It is a server outside any cluster: nobody can follow it (DB-8).
    None,
}

impl Role {
    /// The role in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::None => "none",
        }
    }
}

/// How far a node's log is: what a primary has written, what a secondary has replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Grows with every change, and means the same on every node of one cluster: bytes of the log in PostgreSQL, the
    /// number of the last transaction in MariaDB.
    pub sequence: u64,
    /// The file of the primary's log and the bytes in it, where `sequence` counts no bytes.
    pub file: Option<(u64, u64)>,
}

impl Position {
    /// A position whose sequence counts bytes.
    #[must_use]
    pub const fn bytes(sequence: u64) -> Self {
        Self { sequence, file: None }
    }
}

/// What one probe answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The address that was reached; connections go to the same.
    pub address: SocketAddr,
    /// Who the node says that it is, to be compared with its id in the configuration (DB-11).
    pub identity: String,
    /// Which database cluster it says that it belongs to: PostgreSQL's `system_identifier`. None where an engine has no
    /// such thing.
    pub cluster: Option<String>,
    /// What it says that it is.
    pub role: Role,
    /// Whether it takes writes.
    pub writable: bool,
    /// The term of its role: PostgreSQL's timeline, in MariaDB what the configured query answers.
    pub epoch: u64,
    /// Connections that are open to it, whoever opened them.
    pub connections: u64,
    /// Connections that it takes at most.
    pub connections_max: u64,
    /// Sessions that run a command now, of all accounts, without the probe's own (DB-12).
    pub active: u64,
    /// How far its log is; none where the node does not say.
    pub position: Option<Position>,
    /// Who streams from it, as it sees it: identities, or addresses where an engine lists no identity (DB-8).
    pub replicas: Vec<Replica>,
    /// The server's version, for people.
    pub version: String,
}

/// A replica in a primary's list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Replica {
    /// By the identity that it announces.
    Identity(String),
    /// By the address that it connects from.
    Address(core::net::IpAddr),
}

impl Replica {
    /// Whether it is the node of that identity, reached at that address.
    #[must_use]
    pub fn is(&self, identity: &str, address: SocketAddr) -> bool {
        match self {
            Self::Identity(name) => name == identity,
            Self::Address(from) => from.to_canonical() == address.ip().to_canonical(),
        }
    }
}

/// Why a probe has no answer (DB-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The node's name leads to no address.
    Name,
    /// Nothing listens there, or a firewall says no.
    Refused,
    /// The local address that connections are to come from cannot be used.
    Source,
    /// The account or its password.
    Authentication,
    /// TLS, with the node's own error.
    Tls,
    /// The node closed the connection in the handshake.
    HandshakeClosed,
    /// The node has no place left: it is saturated, not dead (DB-14).
    Saturated,
    /// The whole probe took too long.
    Timeout,
    /// It answered something that is no answer to the probe's query.
    Answer,
    /// The connection broke.
    Connection,
}

impl Cause {
    /// A stable name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Refused => "TCP_REFUSED",
            Self::Source => "SOURCE_UNUSABLE",
            Self::Authentication => "AUTHENTICATION_REFUSED",
            Self::Tls => "TLS_FAILURE",
            Self::HandshakeClosed => "HANDSHAKE_CLOSED",
            Self::Saturated => "SATURATED",
            Self::Timeout => "TIMEOUT",
            Self::Answer => "BAD_ANSWER",
            Self::Connection => "CONNECTION_LOST",
        }
    }

    /// What it means and what to do, without the node's own words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Name => "the node's name leads to no address",
            Self::Refused => "TCP was refused: nothing listens there, or a firewall says no",
            Self::Source => "the source address cannot be used: [proxy] source must be an address of this host",
            Self::Authentication => {
                "authentication was refused: look at [monitor] user and password, and at the \
                                     account's host, which is this balancer's address as the node sees it"
            }
            Self::Tls => "TLS failed",
            Self::HandshakeClosed => {
                "the node closed the connection in the handshake: it must accept this balancer's \
                                      PROXY header (proxy_protocol_networks in MariaDB), or set \
                                      [routing] proxy_protocol = false"
            }
            Self::Saturated => "the node has no connection left",
            Self::Timeout => "no answer in time",
            Self::Answer => "the answer is not what the probe asked for",
            Self::Connection => "the connection was lost",
        }
    }
}

/// A probe without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// The words of the node or of the system; may be empty.
    pub detail: String,
}

impl Failure {
    /// A failure with the node's own words, of which as many are kept as a line shows.
    #[must_use]
    pub fn new(cause: Cause, detail: impl fmt::Display) -> Self {
        let detail = detail.to_string().replace(['\n', '\r'], " ");
        Self { cause, detail: detail.chars().take(PROBE_ERROR_CHARACTERS_MAX).collect() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cause.words())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " ({})", self.detail) }
    }
}

/// What one probe came to.
pub type Outcome = Result<Answer, Failure>;

/// All that is known of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The last answer and when it came.
    pub answer: Option<(Moment, Answer)>,
    /// Failed probes in a row since.
    pub failures: u64,
    /// The last failure, until a probe succeeds.
    pub failure: Option<Failure>,
    /// The highest epoch that this node has ever borne.
    pub epoch_max: u64,
}
