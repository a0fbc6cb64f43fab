//! The database balancer before real PostgreSQL 15: a primary and two streaming standbys, with psql as the client.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/balancer.rs"]
mod balancer;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/programs.rs"]
mod programs;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/servers.rs"]
mod servers;

use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use balancer::Balancer;
use postgres::Cluster;
use servers::{APPLICATION_PASSWORD, MONITOR_PASSWORD, until};

/// Period, timeout and misses of these tests, so that bounds are short.
const PERIOD_MS: u64 = 300;
const TIMEOUT_MS: u64 = 600;
const MISSES: u64 = 3;
/// Evidence's age limit, and what a loaded machine may add to it.
const BOUND: Duration = Duration::from_millis(PERIOD_MS * MISSES + TIMEOUT_MS);
const SLACK: Duration = Duration::from_secs(4);

fn monitor() -> String {
    format!(
        "user = \"monitor\"\npassword = \"{MONITOR_PASSWORD}\"\nperiod_ms = {PERIOD_MS}\ntimeout_ms = {TIMEOUT_MS}\n\
         unhealthy_after = {MISSES}\n"
    )
}

fn nodes(cluster: &Cluster, which: &[usize]) -> String {
    let lines = which.iter().map(|node| format!("db-{} = \"{}\"\n", node + 1, cluster.address(*node)));
    lines.collect::<Vec<_>>().concat()
}

fn balance(cluster: &Cluster, which: &[usize], routing: &str) -> Balancer {
    Balancer::start("engine = \"postgres\"", &nodes(cluster, which), &monitor(), routing)
}

/// psql as the application, through a port of the balancer.
fn psql(port: u16, more: &str, query: &str) -> Output {
    let to = format!("host=127.0.0.1 port={port} user=application dbname=shop connect_timeout=10 {more}");
    let mut command = Command::new("/usr/bin/psql");
    command.env_clear().env("PGPASSWORD", APPLICATION_PASSWORD).stdin(Stdio::null());
    command.args(["-X", "-A", "-t", "-q", "-d", &to, "-c", query]).output().unwrap()
}

#[track_caller]
fn asked(port: u16, query: &str) -> String {
    let output = psql(port, "", query);
    assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The node that a new connection reaches, or what psql prints.
fn reached(port: u16) -> Result<String, String> {
    let output = psql(port, "", "SELECT current_setting('cluster_name')");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// An application's open session: it was led to a node, and tells when its connection is closed.
struct Session {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
    ended: tokio::task::JoinHandle<()>,
}

impl Session {
    fn open(port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (client, ended) = runtime.block_on(async {
            let mut config = tokio_postgres::Config::new();
            config.user("application").password(APPLICATION_PASSWORD).dbname("shop");
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (client, connection) = config.connect_raw(stream, tokio_postgres::NoTls).await.unwrap();
            (client, tokio::spawn(async move { drop(connection.await) }))
        });
        Self { runtime, client, ended }
    }

    fn node(&self) -> Option<String> {
        let rows = self.runtime.block_on(self.client.simple_query("SELECT current_setting('cluster_name')"));
        rows.ok()?.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    fn is_open(&self) -> bool {
        !self.ended.is_finished()
    }

    /// How long it takes from `since` until the connection is closed.
    #[track_caller]
    fn closed_after(&self, since: Instant) -> Duration {
        until("the close of a write session", || self.ended.is_finished().then(|| since.elapsed()))
    }
}

fn settled(balancer: &Balancer, primary: &str, readers: &[&str]) {
    until(&format!("{primary} as primary and {readers:?} as readers"), || {
        (balancer.primary().as_deref() == Some(primary) && balancer.readers() == readers).then_some(())
    });
}

// DB-1, DB-3, DB-12, DB-42, DB-46, DB-16, DB-17, DB-41, DB-45: on a cluster that is well; then D2, D3, D4, D5, D8, DB-10, DB-13, DB-20.
#[test]
fn a_cluster_is_served_through_pauses_read_only_and_losses() {
    let Some(mut cluster) = Cluster::start(2, false) else { return };
    let balancer = balance(&cluster, &[0, 1, 2], "max_lag_seconds = 2\nmax_lag_bytes = 4194304");
    settled(&balancer, "db-1", &["db-2", "db-3"]);
    asked(balancer.rw, "CREATE TABLE orders (id int primary key, note text)");
    assert_eq!(reached(balancer.rw).as_deref(), Ok("db-1"));
    // DB-4: in turn, as nothing is open or active.
    let reads = [reached(balancer.ro).unwrap(), reached(balancer.ro).unwrap()];
    assert!(reads.contains(&"db-2".to_owned()) && reads.contains(&"db-3".to_owned()), "{reads:?}");
    statuses(&balancer);
    active_sessions_are_counted(&cluster, &balancer);
    idle_primary(&balancer);
    replay_paused(&cluster, &balancer);
    read_only_primary(&cluster, &balancer);
    black_holed_primary(&cluster, &balancer);
    two_of_three_down(&mut cluster, &balancer);
}

fn statuses(balancer: &Balancer) {
    let node = balancer.node("db-2");
    assert_eq!((&node["role"], &node["epoch"], &node["healthy"]), (&"Secondary".into(), &1.into(), &true.into()));
    assert_eq!(node["connections_max"], 40);
    let status = balancer.status();
    assert!(status["ports"][0]["passed"].as_u64().unwrap() >= 2 && status["ports"][1]["passed"].as_u64().unwrap() >= 2);
    let text = String::from_utf8(balancer.ask(&[]).stdout).unwrap();
    assert!(text.contains("writes go to db-1, epoch 1") && text.contains("[routing] primary_in_ro is false"), "{text}");
    let metrics = http(balancer.admin, "/metrics");
    assert!(metrics.contains("postroad_database_node_reads{node=\"db-3\"} 1"), "{metrics}");
    let log = balancer.log();
    assert!(log.contains("writes go to db-1, epoch 1 (generation 1)"), "{log}");
    asked(balancer.rw, "SELECT 1");
    asked(balancer.ro, "SELECT 1");
    assert_eq!(balancer.log(), log, "an ordinary connection leaves no line");
}

fn http(port: u16, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

// DB-7, DB-12: a session that runs a command counts, also one that came past the balancer; the probe's own does not.
fn active_sessions_are_counted(cluster: &Cluster, balancer: &Balancer) {
    std::thread::scope(|scope| {
        scope.spawn(|| cluster.ask(1, "SELECT pg_sleep(3)"));
        until("an active session", || (balancer.node("db-2")["active"] == 1).then_some(()));
        assert_eq!(balancer.node("db-2")["score"], 4);
    });
    until("its end", || (balancer.node("db-2")["active"] == 0).then_some(()));
}

// D3: nobody falls behind a primary that is idle for 30 s, with a limit of 2 s.
fn idle_primary(balancer: &Balancer) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        assert_eq!(balancer.readers(), ["db-2", "db-3"]);
        std::thread::sleep(Duration::from_millis(500));
    }
}

// D2
fn replay_paused(cluster: &Cluster, balancer: &Balancer) {
    cluster.ask(1, "SELECT pg_wal_replay_pause()");
    let rows = "INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(1, 12000) n";
    asked(balancer.rw, rows);
    until("db-2 leaving the reads", || (balancer.readers() == ["db-3"]).then_some(()));
    // The probe that took it out may have come while rows were still written.
    until("the whole lag", || (balancer.node("db-2")["lag_bytes"].as_u64()? > 12 << 20).then_some(()));
    let lagging = balancer.node("db-2");
    assert!(lagging["no_reads"].as_str().unwrap().contains("behind"), "{lagging}");
    assert_eq!(reached(balancer.ro).as_deref(), Ok("db-3"));
    cluster.ask(1, "SELECT pg_wal_replay_resume()");
    settled(balancer, "db-1", &["db-2", "db-3"]);
    assert!(balancer.node("db-2")["lag_ms"].as_u64().is_some());
}

// DB-20: a primary that says it takes no writes is none, at once.
fn read_only_primary(cluster: &Cluster, balancer: &Balancer) {
    let session = Session::open(balancer.rw);
    assert_eq!(session.node().as_deref(), Some("db-1"));
    let since = Instant::now();
    cluster.ask(0, "ALTER SYSTEM SET default_transaction_read_only = on");
    cluster.ask(0, "SELECT pg_reload_conf()");
    let closed = session.closed_after(since);
    assert!(closed < Duration::from_millis(PERIOD_MS + TIMEOUT_MS) + SLACK, "{closed:?}");
    // DB-6, DB-21: psql prints the error of its own protocol.
    let refused = reached(balancer.rw).unwrap_err();
    assert!(refused.contains("FATAL:  no node available for RW connections"), "{refused}");
    assert_eq!(reached(balancer.ro).map(|node| node != "db-1"), Ok(true), "reads go on");
    assert!(balancer.status()["no_primary"].as_str().unwrap().contains("db-1 takes no writes"));
    cluster.ask(0, "ALTER SYSTEM RESET default_transaction_read_only");
    cluster.ask(0, "SELECT pg_reload_conf()");
    settled(balancer, "db-1", &["db-2", "db-3"]);
}

// D4: black-holed. A stopped server still accepts TCP; its clients are closed within the bound, and not at the first miss.
fn black_holed_primary(cluster: &Cluster, balancer: &Balancer) {
    let session = Session::open(balancer.rw);
    assert_eq!(session.node().as_deref(), Some("db-1"));
    let since = Instant::now();
    cluster.pause(0, true);
    std::thread::sleep(Duration::from_millis(PERIOD_MS));
    assert!(session.is_open(), "one miss closes nothing");
    let closed = session.closed_after(since);
    cluster.pause(0, false);
    assert!(closed < BOUND + SLACK, "{closed:?}, the bound is {BOUND:?}");
    settled(balancer, "db-1", &["db-2", "db-3"]);
    let log = balancer.log();
    assert!(log.contains("node db-1 is set aside") && log.contains("write connections were closed"), "{log}");
}

// D5: with two of three down, there is never a connection to one of them.
fn two_of_three_down(cluster: &mut Cluster, balancer: &Balancer) {
    cluster.stop(0);
    cluster.stop(1);
    until("db-1 and db-2 set aside", || (balancer.primary().is_none() && balancer.readers() == ["db-3"]).then_some(()));
    for _ in 0..5 {
        assert_eq!(reached(balancer.ro).as_deref(), Ok("db-3"));
        assert!(reached(balancer.rw).unwrap_err().contains("no node available for RW connections"));
    }
    // DB-13
    let node = balancer.node("db-1");
    assert_eq!(node["probe_error_code"], "TCP_REFUSED", "{node}");
    assert!(balancer.status()["ports"][0]["refused"].as_u64().unwrap() >= 5);
}

// D1, DB-2, DB-11, DB-20, DB-22, DB-44
#[test]
fn failovers_are_followed_and_two_primaries_are_a_refusal() {
    let Some(mut cluster) = Cluster::start(2, false) else { return };
    let balancer = balance(&cluster, &[0, 1, 2], "");
    settled(&balancer, "db-1", &["db-2", "db-3"]);

    // db-2 is elected while db-1, cut off, goes on as the primary of the old timeline.
    let (session, reader) = (Session::open(balancer.rw), Session::open(balancer.ro));
    assert_eq!(session.node().as_deref(), Some("db-1"));
    let since = Instant::now();
    cluster.promote(1);
    let closed = session.closed_after(since);
    assert!(closed < Duration::from_millis(PERIOD_MS + TIMEOUT_MS) + SLACK, "{closed:?}");
    until("db-2 as primary", || (balancer.primary().as_deref() == Some("db-2")).then_some(()));
    assert_eq!(reached(balancer.rw).as_deref(), Ok("db-2"), "the old primary still runs, of timeline 1");
    assert!(reader.is_open() && reader.node().is_some(), "open reads go on");
    let status = balancer.status();
    assert_eq!((&status["epoch"], &status["old_write_connections"]), (&2.into(), &0.into()));
    assert_eq!(balancer.node("db-1")["no_reads"], "it says that it is a primary and was not chosen");

    // D1: the other standby is promoted by hand too, to the same timeline.
    let session = Session::open(balancer.rw);
    cluster.promote(2);
    session.closed_after(Instant::now());
    let status = until("both named", || Some(balancer.status()).filter(|status| status["primary"].is_null()));
    assert_eq!(status["ambiguous"], serde_json::json!(["db-2", "db-3"]));
    assert!(reached(balancer.rw).unwrap_err().contains("no node available for RW connections"));
    let text = String::from_utf8(balancer.ask(&[]).stdout).unwrap();
    assert!(text.contains("db-2 and db-3 are all primaries of the same epoch"), "{text}");
    cluster.stop(2);
    until("db-2 serves again", || (balancer.primary().as_deref() == Some("db-2")).then_some(()));
    assert_eq!(reached(balancer.rw).as_deref(), Ok("db-2"));

    // The primary is lost.
    let session = Session::open(balancer.rw);
    let since = Instant::now();
    cluster.stop(1);
    let closed = session.closed_after(since);
    assert!(closed < SLACK, "{closed:?}");
    // The epoch that was seen is not forgotten: db-1 must not take writes that db-2's clients cannot see.
    until("a refusal", || reached(balancer.rw).err());
    until("why", || {
        let why = balancer.status()["no_primary"].as_str().unwrap_or_default().to_owned();
        why.contains("db-1 bears an older epoch than 2").then_some(())
    });
    // DB-44: the operator takes the lost nodes out; no restart, and nothing open is dropped.
    balancer.relist(&nodes(&cluster, &[0]));
    until("db-1 serves", || (balancer.primary().as_deref() == Some("db-1")).then_some(()));
    let session = Session::open(balancer.rw);
    // DB-11: another node answers at the address that the list has for db-1.
    cluster.launch(1);
    balancer.relist(&format!("{}db-9 = \"127.0.0.1:{}\"\n", nodes(&cluster, &[0]), cluster.port(1)));
    let stranger = until("db-9 set aside", || {
        Some(balancer.node("db-9")).filter(|node| node["aside"].as_str().is_some_and(|why| why.contains("db-2")))
    });
    assert_eq!(stranger["healthy"], false);
    assert!(session.is_open() && session.node().as_deref() == Some("db-1"), "reloads drop no connection");
}

// D4, DB-20: the network to the primary is cut, so that nobody says a word; its clients are closed within the bound, and
// it serves again when the way is mended.
#[test]
fn a_primary_that_is_cut_off_is_left_within_the_bound() {
    let Some(cluster) = Cluster::start_apart() else { return };
    let balancer = balance(&cluster, &[0], "");
    until("db-1 as primary", || (balancer.primary().as_deref() == Some("db-1")).then_some(()));
    let session = Session::open(balancer.rw);
    assert_eq!(session.node().as_deref(), Some("db-1"));
    let since = Instant::now();
    cluster.cut(true);
    let closed = session.closed_after(since);
    assert!(closed < BOUND + SLACK, "{closed:?}, the bound is {BOUND:?}");
    assert!(reached(balancer.rw).unwrap_err().contains("no node available for RW connections"));
    cluster.cut(false);
    until("db-1 again", || (balancer.primary().as_deref() == Some("db-1")).then_some(()));
    assert_eq!(reached(balancer.rw).as_deref(), Ok("db-1"));
}

// DB-10, DB-13, DB-17: TLS from client to server is untouched, SCRAM binds to its channel, and probes check authorities.
#[test]
fn tls_passes_from_end_to_end_and_scram_binds_to_it() {
    let Some(cluster) = Cluster::start(0, true) else { return };
    let ca = cluster.path("ca.pem");
    let with_ca = format!("{}tls_ca = \"{}\"\n", monitor(), ca.display());
    let balancer = Balancer::start("engine = \"postgres\"", &nodes(&cluster, &[0]), &with_ca, "");
    until("db-1 as primary", || (balancer.primary().as_deref() == Some("db-1")).then_some(()));
    let more = format!("sslmode=verify-full sslrootcert={} channel_binding=require", ca.display());
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let output = psql(balancer.rw, &more, query);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "t", "{}", String::from_utf8_lossy(&output.stderr));
    let probes =
        "SELECT bool_and(s.ssl) FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid) WHERE usename = 'monitor'";
    assert_eq!(cluster.ask(0, probes), "t", "the probe came with TLS");

    // A certificate of another authority is refused, with the node's own words; a wrong password too.
    let strange = cluster.path("server.crt");
    let wrong_ca = format!("{}tls_ca = \"{}\"\n", monitor(), strange.display());
    let wrong_password = monitor().replace(MONITOR_PASSWORD, "guessing");
    for (monitor, code) in [(wrong_ca, "TLS_FAILURE"), (wrong_password, "AUTHENTICATION_REFUSED")] {
        let other = Balancer::start("engine = \"postgres\"", &nodes(&cluster, &[0]), &monitor, "");
        let node = until(code, || Some(other.node("db-1")).filter(|node| !node["probe_error_code"].is_null()));
        assert_eq!(node["probe_error_code"], code, "{node}");
        assert!(other.primary().is_none());
    }
}

// DB-13, DB-14, D4 (demoted), D8: one node unreachable from the start, no primary while a replica is there, a source that
// is none, and a primary that changes places with its standby.
#[test]
fn a_balancer_starts_before_its_nodes() {
    let Some(mut cluster) = Cluster::start(1, false) else { return };
    cluster.stop(0);
    let balancer = balance(&cluster, &[0, 1], "max_lag_seconds = 0\nmax_lag_bytes = 0");
    until("reads", || (balancer.readers() == ["db-2"]).then_some(()));
    assert_eq!(reached(balancer.ro).as_deref(), Ok("db-2"));
    assert!(reached(balancer.rw).is_err());
    cluster.launch(0);
    settled(&balancer, "db-1", &["db-2"]);
    let session = Session::open(balancer.rw);
    assert_eq!(session.node().as_deref(), Some("db-1"));
    let since = Instant::now();
    cluster.demote(0, 1);
    session.closed_after(since);
    until("two standbys", || (balancer.readers() == ["db-1", "db-2"]).then_some(()));
    assert!(reached(balancer.rw).is_err());
    cluster.promote(1);
    settled(&balancer, "db-2", &["db-1"]);
    assert_eq!(reached(balancer.rw).as_deref(), Ok("db-2"));
    let log = balancer.log();
    assert!(
        log.contains("node db-2 was secondary and is primary") && log.contains("bore epoch 1 and bears 2"),
        "{log}"
    );
    let proxy = "engine = \"postgres\"\nsource = \"203.0.113.9\"\nlanguage = \"fr\"";
    let astray = Balancer::start(proxy, &nodes(&cluster, &[0]), &monitor(), "");
    let node = until("a failed probe", || Some(astray.node("db-1")).filter(|node| !node["probe_error"].is_null()));
    assert_eq!(node["probe_error_code"], "SOURCE_UNUSABLE", "{node}");
    let refused = reached(astray.rw).unwrap_err();
    assert!(refused.contains("aucun nœud disponible pour les connexions RW"), "{refused}");
}
