//! The real probe: a connection to one node that is kept, and what an engine is asked over it.
//!
//! | what | where |
//! |---|---|
//! | what PostgreSQL is asked | `probe/postgres.rs` |
//! | what MariaDB and MySQL are asked | `probe/mariadb.rs` |
//! | a probe that the configuration spells out | `probe/custom.rs` |
//! | connections: TCP, TLS, the drivers | `probe/connect.rs`, `probe/tls.rs`, `probe/session.rs` |

mod connect;
pub mod custom;
mod mariadb;
mod postgres;
mod session;
mod tls;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use postroad_actors::balancer::probe::{Probe, Probes, Probing};
use postroad_cluster::balancer::database::{
    evidence::{Answer, Cause, Failure, Outcome},
    settings::Engine,
};

use self::{custom::Columns, session::Session};

/// Whether probes use TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Where the node offers it.
    Preferred,
    /// Always.
    Required {
        /// The authorities of the nodes' certificates, in PEM; without any, certificates are not checked.
        ca: Option<Vec<u8>>,
    },
    /// Never.
    Disabled,
}

/// How nodes are probed.
#[derive(Clone)]
pub struct ProbeSettings {
    /// What is asked.
    pub engine: Engine,
    /// The monitoring account.
    pub user: String,
    /// Its password.
    pub password: Option<String>,
    /// The database, in PostgreSQL.
    pub database: String,
    /// Whether TLS is used.
    pub tls: Tls,
    /// The local address.
    pub source: Option<IpAddr>,
    /// Whether a PROXY header goes first.
    pub proxy_protocol: bool,
    /// What answers the epoch, in MariaDB and MySQL.
    pub epoch_query: Option<String>,
    /// What a custom engine is asked.
    pub columns: Option<Columns>,
}

impl fmt::Debug for ProbeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeSettings").field("engine", &self.engine).field("user", &self.user).finish_non_exhaustive()
    }
}

/// A row of an answer: texts by column, in small letters.
type Row = BTreeMap<String, Option<String>>;

/// The probes of one balancer.
#[derive(Clone, Debug)]
pub struct SystemProbes(Arc<ProbeSettings>);

impl SystemProbes {
    /// Probes that ask as `settings` say.
    pub fn new(settings: ProbeSettings) -> Self {
        Self(Arc::new(settings))
    }
}

impl Probes for SystemProbes {
    fn of(&self, _node: &str) -> Box<dyn Probe> {
        Box::new(SystemProbe { settings: Arc::clone(&self.0), kept: None })
    }
}

/// The probe of one node.
struct SystemProbe {
    settings: Arc<ProbeSettings>,
    /// The connection of the last probe, unless that failed.
    kept: Option<(SocketAddr, Session)>,
}

impl Probe for SystemProbe {
    fn probe(&mut self, address: SocketAddr) -> Probing<'_> {
        Box::pin(async move {
            // Taken out, so that a probe that is given up midway takes its connection along.
            if let Some((at, session)) = self.kept.take().filter(|(at, _)| *at == address) {
                match self.ask(at, session).await {
                    // A server that was restarted has closed it; whether it is there is found out anew.
                    Err(failure) if failure.cause == Cause::Connection => {}
                    outcome => return outcome,
                }
            }
            let session = Session::open(&self.settings, address).await?;
            self.ask(address, session).await
        })
    }
}

impl SystemProbe {
    async fn ask(&mut self, address: SocketAddr, mut session: Session) -> Outcome {
        let answer = match (self.settings.engine, &self.settings.columns) {
            (Engine::Postgres, _) => postgres::ask(&mut session, address).await?,
            (Engine::Mariadb, _) => mariadb::ask(&mut session, &self.settings, address).await?,
            (Engine::Mysql, _) => mariadb::ask_mysql(&mut session, &self.settings, address).await?,
            (Engine::CustomMysql | Engine::CustomPostgres, Some(columns)) => {
                let rows = session.rows(&columns.query).await?;
                columns.answer(address, &rows)?
            }
            (Engine::CustomMysql | Engine::CustomPostgres, None) => {
                return Err(Failure::new(Cause::Answer, "no query is configured"));
            }
        };
        self.kept = Some((address, session));
        Ok::<Answer, Failure>(answer)
    }
}

/// The only row of an answer.
fn only(mut rows: Vec<Row>) -> Result<Row, Failure> {
    match (rows.pop(), rows.len()) {
        (Some(row), 0) => Ok(row),
        (None, _) => Err(Failure::new(Cause::Answer, "it has no row")),
        (Some(_), more) => Err(Failure::new(Cause::Answer, format_args!("it has {} rows instead of one", more + 1))),
    }
}

/// A column's text.
fn text<'a>(row: &'a Row, column: &str) -> Result<&'a str, Failure> {
    match row.get(&column.to_lowercase()) {
        Some(Some(text)) => Ok(text),
        Some(None) => Err(Failure::new(Cause::Answer, format_args!("column {column} is null"))),
        None => {
            let there = row.keys().cloned().collect::<Vec<_>>().join(", ");
            Err(Failure::new(Cause::Answer, format_args!("there is no column {column}; there are {there}")))
        }
    }
}

/// A column's number.
fn number(row: &Row, column: &str) -> Result<u64, Failure> {
    let text = text(row, column)?;
    let no_number = |_| Failure::new(Cause::Answer, format_args!("column {column} is {text:?}, no whole number"));
    text.trim().parse().map_err(no_number)
}

/// Whether a column says yes, in the words of either protocol.
fn yes(row: &Row, column: &str) -> Result<bool, Failure> {
    let word = text(row, column)?.trim().to_lowercase();
    Ok(!matches!(word.as_str(), "0" | "f" | "false" | "off" | "no" | ""))
}
