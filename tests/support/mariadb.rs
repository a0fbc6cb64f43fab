//! MariaDB on loopback: a primary, and replicas that follow it by GTID; each is a process of its own and reads PROXY
//! headers from the balancer's address alone.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    programs,
    servers::{APPLICATION_PASSWORD, Home, MONITOR_PASSWORD, free_ports, until},
};

/// Where the balancer connects from, and the only address that the servers read headers from.
pub(crate) const BALANCER: &str = "127.0.0.9";

/// A primary and its replicas; the servers end with it.
pub(crate) struct Mariadb {
    home: Home,
    ports: Vec<u16>,
    servers: Vec<Option<Child>>,
}

impl Mariadb {
    /// A primary `1` with `replicas`, `2` and so on; none where MariaDB is not installed.
    #[track_caller]
    pub(crate) fn start(replicas: usize) -> Option<Self> {
        programs::find(&["mariadbd", "mariadb-install-db", "mariadb", "openssl"])?;
        let servers = (0..=replicas).map(|_| None).collect();
        let mut cluster = Self { home: Home::new("mysql"), ports: free_ports(1 + replicas), servers };
        cluster.home.make_certificate();
        for node in 0..=replicas {
            cluster.install(node);
            cluster.launch(node);
        }
        cluster.accounts();
        for node in 1..=replicas {
            cluster.follow(node);
        }
        Some(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    pub(crate) fn port(&self, node: usize) -> u16 {
        self.ports[node]
    }

    /// The lines of `[nodes]`.
    pub(crate) fn lines(&self) -> String {
        let lines = self.ports.iter().enumerate().map(|(node, port)| format!("{} = \"127.0.0.1:{port}\"", node + 1));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir(self.home.directory());
        command.stdin(Stdio::null());
        if let Some((user, group)) = self.home.user {
            command.uid(user).gid(group);
        }
        command
    }

    fn install(&self, node: usize) {
        let mut install = self.program("mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.args(["--skip-name-resolve", "--innodb-buffer-pool-size=16M"]);
        let output = install.arg(format!("--datadir={}", self.path(&format!("db-{node}")).display())).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts the server of a node and waits until it answers.
    pub(crate) fn launch(&mut self, node: usize) {
        let mut server = self.program("mariadbd");
        server.arg("--no-defaults");
        let paths =
            [("datadir", format!("db-{node}")), ("socket", format!("{node}.sock")), ("ssl-ca", "ca.pem".into())];
        for (option, name) in paths {
            server.arg(format!("--{option}={}", self.path(&name).display()));
        }
        server.arg(format!("--ssl-cert={}", self.path("server.crt").display()));
        server.arg(format!("--ssl-key={}", self.path("server.key").display()));
        server.args([
            format!("--port={}", self.port(node)),
            format!("--server-id={}", node + 1),
            format!("--read-only={}", u8::from(node > 0)),
            format!("--proxy-protocol-networks={BALANCER}"),
        ]);
        server.args(["--bind-address=127.0.0.1", "--log-bin=bin", "--log-slave-updates=1", "--gtid-strict-mode=0"]);
        server.args(["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0"]);
        server.args(["--skip-name-resolve", "--skip-slave-start"]);
        let log = fs::File::create(self.path(&format!("{node}.log"))).unwrap();
        server.stdout(log.try_clone().unwrap()).stderr(log);
        self.servers[node] = Some(server.spawn().unwrap());
        until("a server's start", || {
            client(self.port(node), "root", "", &[], "SELECT 1").status.success().then_some(())
        });
    }

    fn accounts(&self) {
        self.ask(0, &format!("CREATE USER monitor@'{BALANCER}' IDENTIFIED BY '{MONITOR_PASSWORD}'"));
        self.ask(0, &format!("GRANT PROCESS, REPLICATION CLIENT ON *.* TO monitor@'{BALANCER}'"));
        // By the client's own address: the balancer's would not do.
        self.ask(0, &format!("CREATE USER application@'127.0.0.1' IDENTIFIED BY '{APPLICATION_PASSWORD}'"));
        self.ask(0, "CREATE USER replica@'127.0.0.1' IDENTIFIED BY 'following'");
        self.ask(0, "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'");
        self.ask(
            0,
            "CREATE DATABASE ops; CREATE TABLE ops.failover (epoch BIGINT); INSERT INTO ops.failover VALUES (1)",
        );
        self.ask(0, "GRANT SELECT ON ops.* TO monitor@'127.0.0.9'");
        self.ask(0, "CREATE DATABASE shop; GRANT ALL ON shop.* TO application@'127.0.0.1'");
    }

    fn follow(&self, node: usize) {
        let primary = self.port(0);
        self.ask(
            node,
            &format!(
                "CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary}, master_user = 'replica', \
                 master_password = 'following', master_use_gtid = slave_pos; START SLAVE"
            ),
        );
        let written = self.ask(0, "SELECT @@gtid_binlog_pos");
        until("replication", || (self.ask(node, "SELECT @@gtid_slave_pos") == written).then_some(()));
    }

    /// What a node answers its administrator.
    #[track_caller]
    pub(crate) fn ask(&self, node: usize, query: &str) -> String {
        let output = client(self.port(node), "root", "", &[], query);
        assert!(output.status.success(), "{query}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Stops a server in order.
    pub(crate) fn stop(&mut self, node: usize) {
        if let Some(mut server) = self.servers[node].take() {
            let _ = kill_process(Pid::from_raw(server.id().cast_signed()).unwrap(), Signal::TERM);
            until("a server's end", || server.try_wait().unwrap());
        }
    }
}

/// The `mariadb` client, as a person uses it.
pub(crate) fn client(port: u16, user: &str, password: &str, more: &[&str], query: &str) -> Output {
    let mut client = Command::new("mariadb");
    client.env_clear().env("PATH", "/usr/bin:/bin").env("MYSQL_PWD", password).stdin(Stdio::null());
    client.args(["--no-defaults", "--host=127.0.0.1", "--batch", "--skip-column-names", "--connect-timeout=20"]);
    client.arg(format!("--port={port}")).arg(format!("--user={user}")).args(more);
    client.args(["--execute", query]).output().unwrap()
}

impl Drop for Mariadb {
    fn drop(&mut self) {
        for server in &mut self.servers {
            if let Some(mut server) = server.take() {
                let _ = server.kill();
                let _ = server.wait();
            }
        }
    }
}
