//! The balancer's configuration as its operator meets it: the program's own words for what is wrong, and where.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

const LEAST: &str =
    "[proxy]\nrw = \"127.0.0.1:6432\"\n[nodes]\ndb-1 = \"10.0.0.1:5432\"\n[monitor]\nuser = \"watch\"\n";

fn postroad(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postroad"));
    command.env_clear().current_dir(directory).args(arguments).output().unwrap()
}

/// What `check` says of a file, and its exit status.
fn check(text: &str, mode: u32) -> (String, Option<i32>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("proxy.toml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    let output = postroad(directory.path(), &["balance", "check", "proxy.toml"]);
    let said = String::from_utf8([output.stderr, output.stdout].concat()).unwrap();
    (said, output.status.code())
}

// DB-40: only rw, [nodes] and user are required.
#[test]
fn the_least_configuration_is_enough() {
    assert_eq!(check(LEAST, 0o600), ("proxy.toml: nothing is wrong; 1 nodes\n".to_owned(), Some(0)));
}

// DB-40, DB-45: a syntax error, an unknown key, a value out of bounds: each with line and column.
#[test]
fn what_is_wrong_is_said_with_line_and_column() {
    let with = |more: &str| format!("{LEAST}{more}");
    let table = [
        (with("period_ms = 50"), "proxy.toml:7:13: monitor.period_ms is 50, at least 100"),
        (with("timeout_ms = 60001"), "proxy.toml:7:14: monitor.timeout_ms is 60001, at most 60000"),
        (with("unhealthy_after = 0"), "monitor.unhealthy_after is 0, at least 1"),
        (with("perod_ms = 500"), "proxy.toml:7:1: monitor.perod_ms is unknown; did you mean period_ms?"),
        (with("tls = \"maybe\""), "monitor.tls is \"maybe\", must be preferred, required or disabled"),
        (with("active_weight = 2"), "monitor.active_weight is unknown; it belongs to [routing]"),
        (with("[routing]\nprimary_in_ro = 1"), "proxy.toml:8:17: routing.primary_in_ro is 1, must be true or false"),
        (with("[routing]\nmax_lag_seconds = -1"), "routing.max_lag_seconds is -1, at least 0"),
        (with("[rooting]\n"), "section [rooting] is unknown; did you mean [routing]?"),
        (with("user = 'twice'"), "proxy.toml:7:1: this is no TOML"),
        (with("[proxy"), "this is no TOML"),
        (LEAST.replace("rw =", "ro ="), "proxy.rw is missing, and it is required"),
        (LEAST.replace("user = \"watch\"", ""), "monitor.user is missing, and it is required"),
        (LEAST.replace("db-1 = \"10.0.0.1:5432\"", ""), "[nodes] names no node, and one is required"),
        (LEAST.replace(":5432", ""), "proxy.toml:4:8: nodes.db-1 is \"10.0.0.1\", must be HOST:PORT"),
        (LEAST.replace("db-1", "\"a/b\""), "proxy.toml:4:1: nodes.a/b is no id"),
        (
            format!("[proxy]\nadmin = \"0.0.0.0:1\"\n{}", &LEAST[8..]),
            "proxy.admin is \"0.0.0.0:1\", must be an address of this host alone",
        ),
        (format!("[proxy]\nengine = \"custom\"\n{}", &LEAST[8..]), "custom.query is missing, and the engine is custom"),
        (with("tls_ca = \"nowhere.pem\""), "could not read monitor.tls_ca nowhere.pem"),
    ];
    for (text, expected) in table {
        let (said, status) = check(&text, 0o600);
        assert!(said.contains(expected), "{text}\n{said}");
        assert_eq!(status, Some(1), "{said}");
    }
}

// DB-40: a password that others can read is warned about, and never shown.
#[test]
fn passwords_are_kept() {
    let text = format!("{LEAST}password = \"hush\"\n");
    assert!(check(&text, 0o644).0.contains("holds a password and others can read it: chmod 600 proxy.toml"));
    assert!(!check(&text, 0o640).0.contains("warning"));
    for wrong in ["password = 12345", "password = \"12345", "password = \"12345\"\nperiod_ms = 1"] {
        let (said, status) = check(&format!("{LEAST}{wrong}\n"), 0o600);
        assert!(!said.contains("12345"), "{said}");
        assert_eq!(status, Some(1));
    }
}

// DB-35
#[test]
fn a_node_that_is_not_told_its_clients_is_warned_about() {
    let text = format!("{LEAST}[routing]\nproxy_protocol = false\n");
    let (said, status) = check(&text, 0o600);
    assert!(said.contains("warning: routing.proxy_protocol is false: the nodes see this balancer's address"), "{said}");
    assert_eq!(status, Some(0));
    let postgres = text.replace("[proxy]\n", "[proxy]\nengine = \"postgres\"\n");
    assert!(!check(&postgres, 0o600).0.contains("warning"));
}

// DB-45: every key stands in the example, and it works once its lines are no comments.
#[test]
fn the_example_is_a_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let output = postroad(directory.path(), &["balance", "example"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let keys = "rw ro admin language log_file source user password tls tls_ca period_ms timeout_ms unhealthy_after \
                primary_in_ro max_lag_bytes max_lag_seconds active_weight connection_reserve \
                close_rw_on_primary_change proxy_protocol";
    for key in keys.split_whitespace() {
        assert!(text.contains(&format!("\n#{key} = ")), "{key} is not there");
    }
    let live = text.lines().map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line));
    let live: Vec<&str> = live.filter(|line| !line.starts_with("tls_ca")).collect();
    let (said, status) = check(&live.join("\n"), 0o600);
    assert_eq!(status, Some(0), "{said}");
}

// DB-40, DB-41: who should answer is not there.
#[test]
fn a_balancer_that_does_not_run_is_said_not_to() {
    let directory = tempfile::tempdir().unwrap();
    let output = postroad(directory.path(), &["balance", "status", "--admin", "127.0.0.1:1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no balancer answers on 127.0.0.1:1"), "{said}");
    assert_eq!(output.status.code(), Some(4));
    let output = postroad(directory.path(), &["balance", "database"]);
    assert_eq!(output.status.code(), Some(2));
    let output = postroad(directory.path(), &["balance", "database", "--config", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(1));
}

// DB-47: what it cannot do is said where its operators read, and by the command itself.
#[test]
fn its_limits_are_documented() {
    let directory = tempfile::tempdir().unwrap();
    let help = postroad(directory.path(), &["balance", "database", "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    for text in [include_str!("../README.md"), &help] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "");
        for limit in
            ["mixed reads and writes", "may miss a write", "KILL, cancel requests and connection ids belong to"]
        {
            assert!(text.contains(limit), "{limit}: {text}");
        }
    }
}
