//! What MariaDB and MySQL are asked: neither has a term, so the epoch is what the configured query answers (DB-16).

use std::net::SocketAddr;

use postroad_cluster::balancer::{
    database::evidence::{Answer, Cause, Failure, Position, Replica, Role},
    limits::REPLICAS_MAX,
};

use super::{ProbeSettings, Row, number, only, session::Session, text, yes};

/// The sessions that run a command, of all accounts, without replication's own and the probe's.
const ACTIVE: &str = "(SELECT COUNT(*) FROM information_schema.processlist
         WHERE command NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID', 'Slave_IO', 'Slave_SQL',
                               'Slave_worker', 'Connect')
           AND user <> 'system user' AND id <> CONNECTION_ID()) AS active";

/// What only MariaDB says in this way.
const MARIADB: &str = "@@global.gtid_current_pos AS written, @@global.gtid_slave_pos AS replayed,
       (SELECT variable_value FROM information_schema.global_status
         WHERE variable_name = 'THREADS_CONNECTED') AS connections";

/// And what only MySQL does.
const MYSQL: &str =
    "@@global.gtid_executed AS written, @@global.gtid_executed AS replayed, @@global.gtid_mode AS counts,
       (SELECT variable_value FROM performance_schema.global_status
         WHERE variable_name = 'THREADS_CONNECTED') AS connections";

/// The code of a statement that an account may not run.
const NOT_ALLOWED: &str = "1227";

/// How a server is asked, which differs by make and version.
struct Dialect {
    /// What it says in its own way: `written`, `replayed`, `connections`, and `counts` where transactions may go uncounted.
    own: &'static str,
    /// What tells where its log is.
    log: fn(&str) -> &'static str,
    /// What lists those that stream from it.
    list: fn(&str) -> &'static str,
    /// A position as a number.
    sequence: fn(&str) -> Option<u64>,
}

const MARIADB_DIALECT: Dialect =
    Dialect { own: MARIADB, log: |_| "SHOW MASTER STATUS", list: |_| "SHOW SLAVE HOSTS", sequence: mariadb_sequence };

/// MySQL 8.4 does not know the words of 5.7 any more.
const MYSQL_DIALECT: Dialect = Dialect {
    own: MYSQL,
    log: |version| if release(version) >= (8, 2, 0) { "SHOW BINARY LOG STATUS" } else { "SHOW MASTER STATUS" },
    list: |version| if release(version) >= (8, 0, 22) { "SHOW REPLICAS" } else { "SHOW SLAVE HOSTS" },
    sequence: mysql_sequence,
};

/// The numbers that a version begins with: `8.0.36-28` is (8, 0, 36).
fn release(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// Asks a MariaDB node.
pub(super) async fn ask(
    session: &mut Session,
    settings: &ProbeSettings,
    address: SocketAddr,
) -> Result<Answer, Failure> {
    answer(session, settings, address, &MARIADB_DIALECT).await
}

/// Asks a MySQL node.
pub(super) async fn ask_mysql(
    session: &mut Session,
    settings: &ProbeSettings,
    address: SocketAddr,
) -> Result<Answer, Failure> {
    answer(session, settings, address, &MYSQL_DIALECT).await
}

async fn answer(
    session: &mut Session,
    settings: &ProbeSettings,
    address: SocketAddr,
    dialect: &Dialect,
) -> Result<Answer, Failure> {
    let own = dialect.own;
    let query = format!(
        "SELECT @@global.server_id AS identity, @@global.read_only AS read_only, @@global.log_bin AS followed,
       @@global.max_connections AS connections_max, @@version AS version, {ACTIVE}, {own}"
    );
    let row = only(session.rows(&query).await?)?;
    let (read_only, followed) = (yes(&row, "read_only")?, yes(&row, "followed")?);
    let role = match (read_only, followed) {
        (false, true) => Role::Primary,
        (false, false) => Role::None,
        (true, _) => Role::Secondary,
    };
    let epoch = match &settings.epoch_query {
        Some(query) => epoch(&only(session.rows(query).await?)?)?,
        None => 0,
    };
    let leads = role == Role::Primary;
    let version = text(&row, "version")?.to_owned();
    // Without numbered transactions nothing grows that means the same on every node.
    let counts = text(&row, "counts").is_ok_and(|mode| mode.starts_with("ON")) || !row.contains_key("counts");
    let written = text(&row, if leads { "written" } else { "replayed" })?;
    let file = if leads { log_file(session, (dialect.log)(&version)).await? } else { None };
    let position = (dialect.sequence)(written).filter(|_| counts).map(|sequence| Position { sequence, file });
    Ok(Answer {
        address,
        identity: text(&row, "identity")?.to_owned(),
        cluster: None,
        role,
        writable: !read_only,
        epoch,
        connections: number(&row, "connections")?,
        connections_max: number(&row, "connections_max")?,
        active: number(&row, "active")?,
        position,
        replicas: if leads { replicas(session, (dialect.list)(&version)).await? } else { Vec::new() },
        version,
    })
}

/// The one number of the configured query's one row.
fn epoch(row: &Row) -> Result<u64, Failure> {
    let column = row.keys().next().cloned().unwrap_or_default();
    let found = number(row, &column);
    found.map_err(|failure| Failure::new(Cause::Answer, format_args!("monitor.epoch_query: {}", failure.detail)))
}

/// The number of the file that the log is in, and the bytes in it: `binlog.000012` is 12.
async fn log_file(session: &mut Session, query: &str) -> Result<Option<(u64, u64)>, Failure> {
    let rows = session.rows(query).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let number_of = text(row, "file")?.rsplit('.').next().and_then(|number| number.parse().ok());
    Ok(number_of.zip(Some(number(row, "position")?)))
}

/// Who streams from this node: by id where the account may see that, else by the address that they come from.
async fn replicas(session: &mut Session, list: &str) -> Result<Vec<Replica>, Failure> {
    match session.rows(list).await {
        Ok(rows) => {
            let ids = rows.iter().take(REPLICAS_MAX).map(|row| text(row, "server_id").map(str::to_owned));
            ids.map(|id| id.map(Replica::Identity)).collect()
        }
        Err(failure) if failure.detail.contains(NOT_ALLOWED) => {
            let query = "SELECT host FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'";
            let rows = session.rows(query).await?;
            let hosts = rows.iter().take(REPLICAS_MAX).filter_map(|row| text(row, "host").ok());
            // A host that the server shows by its name cannot be told apart from here.
            let address = |host: &str| host.rsplit_once(':').map_or(host, |(host, _)| host).parse().ok();
            Ok(hosts.filter_map(address).map(Replica::Address).collect())
        }
        Err(failure) => Err(failure),
    }
}

/// The transactions of a MariaDB position, `0-1-123,1-1-7`: the last number of each domain, added up.
fn mariadb_sequence(position: &str) -> Option<u64> {
    let parts = position.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.rsplit('-').next()?.parse::<u64>().ok()).sum()
}

/// The transactions of a MySQL set, `UUID:1-123:130,UUID:1-7:TAG:1-2`: how many it has.
fn mysql_sequence(set: &str) -> Option<u64> {
    let parts = set.split(',').map(str::trim).filter(|part| !part.is_empty());
    let is_tag = |part: &&str| part.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    let intervals = parts.flat_map(|part| part.split(':').skip(1).map(str::trim).filter(|part| !is_tag(part)));
    let size = |interval: &str| {
        let (first, last) = interval.split_once('-').unwrap_or((interval, interval));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    intervals.map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_become_numbers_that_grow() {
        assert_eq!(mariadb_sequence(""), Some(0));
        assert_eq!(mariadb_sequence("0-1-123"), Some(123));
        assert_eq!(mariadb_sequence("0-1-123,7-2-4"), Some(127));
        assert_eq!(mariadb_sequence("nonsense"), None);
        let uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        assert_eq!(mysql_sequence(&format!("{uuid}:1-5:9,\n{uuid}:1-2")), Some(8));
        assert_eq!(mysql_sequence(&format!("{uuid}:5-1")), None);
        assert_eq!(mysql_sequence(&format!("{uuid}:1-5:nightly:1-3:_x:7")), Some(9));
    }

    #[test]
    fn mysql_is_asked_in_the_words_of_its_release() {
        let asked = |version| ((MYSQL_DIALECT.log)(version), (MYSQL_DIALECT.list)(version));
        assert_eq!(asked("5.7.44-log"), ("SHOW MASTER STATUS", "SHOW SLAVE HOSTS"));
        assert_eq!(asked("8.0.21"), ("SHOW MASTER STATUS", "SHOW SLAVE HOSTS"));
        assert_eq!(asked("8.0.36-28.1"), ("SHOW MASTER STATUS", "SHOW REPLICAS"));
        assert_eq!(asked("8.4.3"), ("SHOW BINARY LOG STATUS", "SHOW REPLICAS"));
        assert_eq!(asked("9.1.0-commercial"), ("SHOW BINARY LOG STATUS", "SHOW REPLICAS"));
        assert_eq!(asked("8.0.mysql_aurora.3.05"), ("SHOW MASTER STATUS", "SHOW SLAVE HOSTS"));
    }
}
