//! The database balancer before real MariaDB 10.11: a primary and a GTID replica that read PROXY headers themselves, with
//! the mariadb client.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/balancer.rs"]
mod balancer;
#[path = "support/mariadb.rs"]
mod mariadb;
#[path = "support/programs.rs"]
mod programs;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/servers.rs"]
mod servers;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Output, Stdio},
};

use balancer::Balancer;
use mariadb::{BALANCER, Mariadb, client};
use servers::{APPLICATION_PASSWORD, MONITOR_PASSWORD, until};

fn balance(cluster: &Mariadb, language: &str) -> Balancer {
    let proxy = format!("engine = \"mariadb\"\nsource = \"{BALANCER}\"\nlanguage = \"{language}\"");
    let monitor = format!(
        "user = \"monitor\"\npassword = \"{MONITOR_PASSWORD}\"\nperiod_ms = 300\ntimeout_ms = 1500\n\
         epoch_query = \"SELECT epoch FROM ops.failover\""
    );
    Balancer::start(&proxy, &cluster.lines(), &monitor, "")
}

fn application(port: u16, more: &[&str], query: &str) -> Output {
    client(port, "application", APPLICATION_PASSWORD, more, query)
}

#[track_caller]
fn asked(port: u16, more: &[&str], query: &str) -> String {
    let output = application(port, more, query);
    assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What the client prints when it fails. One that would use TLS says first that nobody has signed what it was told.
#[track_caller]
fn refused(port: u16) -> String {
    let output = application(port, &["--skip-ssl"], "SELECT 1");
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap().trim().to_owned()
}

/// A client that stays.
fn session(port: u16) -> Child {
    let mut client = Command::new("mariadb");
    client.env_clear().env("PATH", "/usr/bin:/bin").env("MYSQL_PWD", APPLICATION_PASSWORD);
    client.args(["--no-defaults", "--host=127.0.0.1", "--user=application", "--batch", "--skip-column-names"]);
    client.args(["--unbuffered", "--skip-reconnect", &format!("--port={port}")]);
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn settled(balancer: &Balancer, primary: &str, readers: &[&str]) {
    until(&format!("{primary} as primary and {readers:?} as readers"), || {
        (balancer.primary().as_deref() == Some(primary) && balancer.readers() == readers).then_some(())
    });
}

// DB-1, DB-2, DB-6, DB-16, DB-17, DB-20, DB-23, DB-30, DB-31, DB-35
#[test]
fn mariadb_is_served_by_the_clients_own_address_through_a_failover_that_bears_an_epoch() {
    let Some(mut cluster) = Mariadb::start(1) else { return };
    let balancer = balance(&cluster, "en");
    settled(&balancer, "1", &["2"]);
    assert_eq!(asked(balancer.rw, &[], "SELECT @@server_id, @@read_only"), "1\t0");
    assert_eq!(asked(balancer.ro, &[], "SELECT @@server_id, @@read_only"), "2\t1");
    the_node_sees_the_client(&cluster, &balancer);
    tls_goes_from_the_client_to_the_node(&cluster, &balancer);
    two_writable_nodes_are_refused_until_one_bears_a_higher_epoch(&cluster, &balancer);
    cluster.stop(0);
    cluster.stop(1);
    until("both nodes set aside", || balancer.primary().is_none().then_some(()));
    assert_eq!(refused(balancer.rw), "ERROR 9043 (HY000): no node available for RW connections");
    let output = application(balancer.rw, &[], "SELECT 1");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.trim().ends_with("9043 - no node available for RW connections"), "{said}");
    assert_eq!(refused(balancer.ro), "ERROR 9043 (HY000): no node available for RO connections");
    let french = balance(&cluster, "fr");
    assert_eq!(refused(french.rw), "ERROR 9043 (HY000): aucun nœud disponible pour les connexions RW");
}

/// DB-30, DB-35: the account is the client's address's, and the process list has it, while the connection comes from
/// the balancer's.
fn the_node_sees_the_client(cluster: &Mariadb, balancer: &Balancer) {
    let host = asked(balancer.rw, &[], "SELECT host FROM information_schema.processlist WHERE id = CONNECTION_ID()");
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    assert_eq!(asked(balancer.rw, &[], "SELECT CURRENT_USER()"), "application@127.0.0.1");
    // The probes are the balancer's own (DB-17).
    let monitors = cluster.ask(
        0,
        "SELECT DISTINCT SUBSTRING_INDEX(host, ':', 1) FROM information_schema.processlist WHERE user = 'monitor'",
    );
    assert_eq!(monitors, BALANCER);
}

fn tls_goes_from_the_client_to_the_node(cluster: &Mariadb, balancer: &Balancer) {
    let ca = format!("--ssl-ca={}", cluster.path("ca.pem").display());
    let verified = [ca.as_str(), "--ssl-verify-server-cert"];
    let cipher = asked(balancer.rw, &verified, "SHOW STATUS LIKE 'Ssl_cipher'");
    assert!(cipher.starts_with("Ssl_cipher\tTLS"), "{cipher}");
}

/// DB-16, DB-2, DB-20, DB-23
fn two_writable_nodes_are_refused_until_one_bears_a_higher_epoch(cluster: &Mariadb, balancer: &Balancer) {
    let mut open = session(balancer.rw);
    let mut said = BufReader::new(open.stdout.take().unwrap());
    let mut typed = open.stdin.take().unwrap();
    typed.write_all(b"SELECT @@server_id;\n").unwrap();
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "1\n");

    cluster.ask(1, "STOP SLAVE; SET GLOBAL read_only = 0");
    until("the refusal of writes", || {
        let output = application(balancer.rw, &[], "SELECT 1");
        String::from_utf8_lossy(&output.stderr).contains("9043").then_some(())
    });
    assert_eq!(balancer.primary(), None);
    // With close_rw_on_primary_change the open one is lost, and says so at its next word.
    typed.write_all(b"SELECT 1;\n").unwrap();
    drop(typed);
    let ended = open.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && (said.contains("2013") || said.contains("2006")), "{said}");

    cluster.ask(1, "SET sql_log_bin = 0; UPDATE ops.failover SET epoch = 2");
    until("the new primary", || (balancer.primary().as_deref() == Some("2")).then_some(()));
    assert_eq!(asked(balancer.rw, &[], "SELECT @@server_id"), "2");
}
