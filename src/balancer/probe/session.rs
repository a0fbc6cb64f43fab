//! A signed-in connection of a probe by its driver, and every error by its cause (DB-13).

use std::{error::Error as _, io, net::SocketAddr};

use mysql_async::{Conn, DriverError, IoError, OptsBuilder, SslOpts, prelude::Queryable};
use postroad_cluster::balancer::database::{
    evidence::{Cause, Failure},
    settings::Protocol,
};
use tokio::task::AbortHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, config::SslMode, error::SqlState};

use super::{
    ProbeSettings, Row, Tls,
    connect::{self, Doorway},
    tls::Connector,
};

/// The largest packet that a probe takes; answers have some kilobytes.
const PACKET_BYTES_MAX: usize = 1 << 20;

/// A connection.
pub(super) enum Session {
    Postgres { client: Client, _driver: Driver },
    Mysql { connection: Box<Conn>, _doorway: Doorway },
}

/// The task behind a PostgreSQL connection; it ends with it.
pub(super) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Connects and signs in.
    pub(super) async fn open(settings: &ProbeSettings, address: SocketAddr) -> Result<Self, Failure> {
        match settings.engine.protocol() {
            Protocol::Postgres => postgres(settings, address).await,
            Protocol::Mysql => mysql(settings, address).await,
        }
    }

    /// The rows of a query, as texts.
    pub(super) async fn rows(&mut self, query: &str) -> Result<Vec<Row>, Failure> {
        match self {
            Self::Postgres { client, .. } => {
                let messages = client.simple_query(query).await.map_err(|error| postgres_failure(&error, false))?;
                let rows = messages.into_iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row),
                    _ => None,
                });
                let texts = |row: tokio_postgres::SimpleQueryRow| {
                    let names = row.columns().iter().map(|column| column.name().to_lowercase());
                    names.enumerate().map(|(at, name)| (name, row.get(at).map(str::to_owned))).collect()
                };
                Ok(rows.map(texts).collect())
            }
            Self::Mysql { connection, .. } => {
                let rows: Vec<mysql_async::Row> =
                    connection.query(query).await.map_err(|error| mysql_failure(&error, false))?;
                Ok(rows.into_iter().map(mysql_texts).collect())
            }
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is passed to map")]
fn mysql_texts(row: mysql_async::Row) -> Row {
    let text = |at: usize| match row.as_ref(at)? {
        mysql_async::Value::NULL => None,
        mysql_async::Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        other => Some(other.as_sql(true)),
    };
    let names = row.columns_ref().iter().map(|column| column.name_str().to_lowercase());
    names.enumerate().map(|(at, name)| (name, text(at))).collect()
}

async fn postgres(settings: &ProbeSettings, address: SocketAddr) -> Result<Session, Failure> {
    let mut config = tokio_postgres::Config::new();
    config.user(&settings.user).dbname(&settings.database).application_name("postroad");
    if let Some(password) = &settings.password {
        config.password(password);
    }
    let stream = connect::tcp(settings, address).await?;
    let ca = match &settings.tls {
        Tls::Disabled => {
            config.ssl_mode(SslMode::Disable);
            let connected = config.connect_raw(stream, NoTls).await;
            let (client, connection) = connected.map_err(|error| postgres_failure(&error, true))?;
            return Ok(driven(client, connection));
        }
        Tls::Preferred => {
            config.ssl_mode(SslMode::Prefer);
            None
        }
        Tls::Required { ca } => {
            config.ssl_mode(SslMode::Require);
            ca.as_deref()
        }
    };
    let connected = config.connect_raw(stream, Connector::new(ca, address)?).await;
    let (client, connection) = connected.map_err(|error| postgres_failure(&error, true))?;
    Ok(driven(client, connection))
}

fn driven<F: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static>(
    client: Client,
    connection: F,
) -> Session {
    // Its error comes to the query that was under way.
    let task = tokio::spawn(async move { drop(connection.await) });
    Session::Postgres { client, _driver: Driver(task.abort_handle()) }
}

/// `handshake` tells whether the connection was only being made.
fn postgres_failure(error: &tokio_postgres::Error, handshake: bool) -> Failure {
    if let Some(said) = error.as_db_error() {
        let cause = match said.code() {
            code if *code == SqlState::TOO_MANY_CONNECTIONS => Cause::Saturated,
            code if code.code().starts_with("28") => Cause::Authentication,
            code if handshake && *code == SqlState::UNDEFINED_DATABASE => Cause::Authentication,
            _ if handshake => Cause::Connection,
            _ => Cause::Answer,
        };
        return Failure::new(cause, format_args!("{} {}", said.code().code(), said.message()));
    }
    let text = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let system = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let cause = match system {
        _ if text.contains("TLS") => Cause::Tls,
        _ if text.contains("authentication") || text.contains("password") => Cause::Authentication,
        _ if handshake && (closed(system) || error.is_closed()) => Cause::HandshakeClosed,
        _ => Cause::Connection,
    };
    Failure::new(cause, text)
}

/// Whether the other side went away.
fn closed(error: Option<&io::Error>) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    error.is_some_and(|error| matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted))
}

async fn mysql(settings: &ProbeSettings, address: SocketAddr) -> Result<Session, Failure> {
    let tls = match &settings.tls {
        Tls::Disabled => return mysql_by(settings, address, None).await.map_err(|error| error.0),
        Tls::Preferred => tls_options(None),
        Tls::Required { ca } => tls_options(ca.as_deref()),
    };
    match mysql_by(settings, address, Some(tls)).await {
        // Preferred means that a node without TLS is asked without it.
        Err((_, true)) if settings.tls == Tls::Preferred => {
            mysql_by(settings, address, None).await.map_err(|error| error.0)
        }
        outcome => outcome.map_err(|error| error.0),
    }
}

fn tls_options(ca: Option<&[u8]>) -> SslOpts {
    let options = SslOpts::default().with_danger_skip_domain_validation(true);
    match ca {
        Some(pem) => options.with_root_certs(vec![pem.to_vec().into()]).with_disable_built_in_roots(true),
        None => options.with_danger_accept_invalid_certs(true),
    }
}

/// An error tells beside its cause whether it is that the node offers no TLS.
async fn mysql_by(
    settings: &ProbeSettings,
    address: SocketAddr,
    tls: Option<SslOpts>,
) -> Result<Session, (Failure, bool)> {
    let plain = |failure| (failure, false);
    let far = connect::tcp(settings, address).await.map_err(plain)?;
    let (port, doorway) = connect::doorway(far).await.map_err(plain)?;
    let options = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .user(Some(settings.user.clone()))
        .pass(settings.password.clone())
        .prefer_socket(false)
        // Told, so that the driver does not ask.
        .max_allowed_packet(Some(PACKET_BYTES_MAX))
        .wait_timeout(Some(28_800))
        .ssl_opts(tls);
    match Conn::new(options).await {
        Ok(connection) => Ok(Session::Mysql { connection: Box::new(connection), _doorway: doorway }),
        Err(error) => {
            let no_tls = matches!(&error, mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer));
            Err((mysql_failure(&error, true), no_tls))
        }
    }
}

fn mysql_failure(error: &mysql_async::Error, handshake: bool) -> Failure {
    let cause = match error {
        mysql_async::Error::Server(said) => match said.code {
            1040 | 1203 => Cause::Saturated,
            1043 => Cause::HandshakeClosed,
            1044 | 1045 | 1049 | 1130 | 1698 => Cause::Authentication,
            _ if handshake => Cause::Connection,
            _ => Cause::Answer,
        },
        mysql_async::Error::Io(IoError::Tls(_))
        | mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => Cause::Tls,
        mysql_async::Error::Io(IoError::Io(system)) if handshake && closed(Some(system)) => Cause::HandshakeClosed,
        mysql_async::Error::Driver(DriverError::ConnectionClosed) if handshake => Cause::HandshakeClosed,
        _ => Cause::Connection,
    };
    Failure::new(cause, error)
}
