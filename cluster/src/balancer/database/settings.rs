//! What the operator sets, with its bounds and defaults (DB-40, DB-45).

use serde::{Deserialize, Serialize};

use crate::{balancer::limits::NODE_ID_BYTES_MAX, time::Span};

/// Checks a node's id, which is what the node announces.
///
/// # Errors
/// What it must be, to follow the id.
pub fn check_node_id(id: &str) -> Result<(), String> {
    let fits = (1..=NODE_ID_BYTES_MAX).contains(&id.len());
    let plain = id.chars().all(|letter| !letter.is_control() && letter != '/' && letter != '"' && letter != '\\');
    if fits && plain { Ok(()) } else { Err(format!("is no id: 1 to {NODE_ID_BYTES_MAX} bytes without / \" and \\")) }
}

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// MariaDB.
    Mariadb,
    /// MySQL.
    Mysql,
    /// PostgreSQL.
    Postgres,
    /// One whose probe the configuration spells out, over MySQL's protocol.
    CustomMysql,
    /// The same over PostgreSQL's protocol.
    CustomPostgres,
}

impl Engine {
    /// Which protocol it speaks.
    #[must_use]
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Mariadb | Self::Mysql | Self::CustomMysql => Protocol::Mysql,
            Self::Postgres | Self::CustomPostgres => Protocol::Postgres,
        }
    }
}

/// The protocol between a client and its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// MySQL's: the server speaks first.
    Mysql,
    /// PostgreSQL's: the client speaks first.
    Postgres,
}

/// Which of the two ports a connection came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Port {
    /// To the primary.
    Rw,
    /// To a replica.
    Ro,
}

impl Port {
    /// Its name in the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rw => "rw",
            Self::Ro => "ro",
        }
    }
}

/// The language of what clients read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    /// English.
    #[default]
    En,
    /// French.
    Fr,
}

/// What decides; the bounds are those of [`crate::balancer::limits`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Milliseconds from one probe of a node to the next.
    pub period_ms: u64,
    /// Milliseconds that a whole probe may take.
    pub timeout_ms: u64,
    /// Failed probes in a row that take a node out.
    pub unhealthy_after: u64,
    /// Whether the primary takes reads like a secondary.
    pub primary_in_ro: bool,
    /// Bytes that a replica may be behind; 0 is no limit.
    pub max_lag_bytes: u64,
    /// Seconds that a replica may be behind; 0 is no limit.
    pub max_lag_seconds: u64,
    /// What an active session weighs against an open connection.
    pub active_weight: u64,
    /// Places of a node that reads leave free.
    pub connection_reserve: u64,
    /// Whether write connections to an old primary are closed.
    pub close_rw_on_primary_change: bool,
    /// The database cluster's identity, where the operator pins it.
    pub cluster: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            period_ms: 1_000,
            timeout_ms: 2_000,
            unhealthy_after: 3,
            primary_in_ro: false,
            max_lag_bytes: 16 << 20,
            max_lag_seconds: 5,
            active_weight: 4,
            connection_reserve: 5,
            close_rw_on_primary_change: true,
            cluster: None,
        }
    }
}

impl Settings {
    /// How old evidence may be: what is older is unknown, and unknown is not eligible (DB-14).
    #[must_use]
    pub const fn evidence_age_max(&self) -> Span {
        let probes_ms = self.period_ms.saturating_mul(self.unhealthy_after);
        Span::from_millis(probes_ms.saturating_add(self.timeout_ms))
    }
}
