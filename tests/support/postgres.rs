//! PostgreSQL clusters on loopback: a primary made by `initdb`, standbys by `pg_basebackup`, each a process of its own.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    programs,
    servers::{APPLICATION_PASSWORD, Home, MONITOR_PASSWORD, free_ports, until},
};

/// What is needed of the machine.
const PROGRAMS: [&str; 5] = ["initdb", "postgres", "pg_basebackup", "psql", "openssl"];

/// A cluster; its servers end with it.
pub(crate) struct Cluster {
    home: Home,
    /// Where each of [`PROGRAMS`] is.
    programs: Vec<PathBuf>,
    nodes: Vec<Node>,
    tls: bool,
    /// Where its first node is, if that is not on loopback.
    apart: Option<Apart>,
}

struct Node {
    host: String,
    port: u16,
    server: Option<Child>,
}

/// A network of its own with one way to it, that can be cut. It goes with this.
struct Apart {
    name: String,
    near: String,
    /// The address in it.
    far: String,
}

impl Apart {
    fn make() -> Self {
        let number = std::process::id();
        let (name, near) = (format!("postroad-{number}"), format!("prn{number}"));
        let network = format!("10.98.{}", number % 250);
        let apart = Self { far: format!("{network}.2"), name, near };
        let (gateway, peer) = (format!("{network}.1"), format!("prf{number}"));
        apart.ip(&["netns", "add", &apart.name]);
        apart.ip(&["link", "add", &apart.near, "type", "veth", "peer", "name", &peer, "netns", &apart.name]);
        apart.ip(&["addr", "add", &format!("{gateway}/24"), "dev", &apart.near]);
        apart.ip(&["link", "set", &apart.near, "up"]);
        apart.ip(&["-n", &apart.name, "addr", "add", &format!("{}/24", apart.far), "dev", &peer]);
        apart.ip(&["-n", &apart.name, "link", "set", &peer, "up"]);
        apart
    }

    fn ip(&self, arguments: &[&str]) {
        let output = Command::new("ip").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: ip {arguments:?}: {said}", self.name);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

impl Cluster {
    /// A primary `db-1` with `standbys` that stream from it, `db-2` and so on; none where PostgreSQL is not installed.
    #[track_caller]
    pub(crate) fn start(standbys: usize, tls: bool) -> Option<Self> {
        Self::make(standbys, tls, false)
    }

    /// The same without standbys, in a network of its own that [`Cluster::cut`] cuts off.
    #[track_caller]
    pub(crate) fn start_apart() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let required = std::env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1");
            assert!(!required, "network namespaces need root, and POSTROAD_REQUIRE_ALL is set");
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        programs::find(&["ip", "setpriv"])?;
        Self::make(0, false, true)
    }

    fn make(standbys: usize, tls: bool, apart: bool) -> Option<Self> {
        let programs = programs::find(&PROGRAMS)?;
        let apart = apart.then(Apart::make);
        let host = apart.as_ref().map_or("127.0.0.1", |apart| apart.far.as_str());
        let ports = free_ports(1 + standbys).into_iter();
        let nodes = ports.map(|port| Node { host: host.to_owned(), port, server: None }).collect();
        let mut cluster = Self { home: Home::new("postgres"), programs, nodes, tls, apart };
        cluster.make_primary();
        for standby in 1..=standbys {
            cluster.make_standby(standby);
        }
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        until("streaming", || (cluster.ask(0, streaming) == standbys.to_string()).then_some(()));
        Some(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    pub(crate) fn data(&self, node: usize) -> PathBuf {
        self.path(&format!("db-{}", node + 1))
    }

    pub(crate) fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// `host:port` of a node.
    pub(crate) fn address(&self, node: usize) -> String {
        format!("{}:{}", self.nodes[node].host, self.port(node))
    }

    /// Cuts the way to a cluster that is apart, without a word to either side, or mends it.
    pub(crate) fn cut(&self, cut: bool) {
        let apart = self.apart.as_ref().unwrap();
        apart.ip(&["link", "set", &apart.near, if cut { "down" } else { "up" }]);
    }

    fn program(&self, name: &str) -> Command {
        let place = PROGRAMS.iter().position(|program| *program == name).unwrap();
        let mut command = Command::new(&self.programs[place]);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(self.home.directory()).stdin(Stdio::null());
        if let Some((user, group)) = self.home.user {
            command.uid(user).gid(group);
        }
        command
    }

    #[track_caller]
    fn run(command: &mut Command) {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn make_primary(&mut self) {
        let data = self.data(0);
        let mut initdb = self.program("initdb");
        initdb.args(["--auth=trust", "--username=admin", "--no-sync", "--encoding=UTF8", "--locale=C", "--pgdata"]);
        Self::run(initdb.arg(&data));
        // The administrator and replication come in without a password, as on a machine's own socket.
        let rules = "host replication all 127.0.0.1/32 trust\nhost all admin 127.0.0.1/32 trust\n\
                     host all admin 10.98.0.0/16 trust\n\
                     host all all all scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
        if self.tls {
            self.make_certificate(&data);
        }
        self.launch(0);
        self.ask(0, &format!("CREATE ROLE monitor LOGIN PASSWORD '{MONITOR_PASSWORD}' IN ROLE pg_monitor"));
        self.ask(0, &format!("CREATE ROLE application LOGIN PASSWORD '{APPLICATION_PASSWORD}'"));
        self.ask(0, "CREATE DATABASE shop OWNER application");
    }

    /// A certificate in the data directory, so that standbys copy it.
    fn make_certificate(&self, data: &Path) {
        self.home.make_certificate();
        for name in ["server.key", "server.crt"] {
            fs::copy(self.path(name), data.join(name)).unwrap();
            fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o600)).unwrap();
            self.home.own(&data.join(name));
        }
    }

    fn make_standby(&mut self, node: usize) {
        let mut backup = self.program("pg_basebackup");
        backup.args([
            "--host=127.0.0.1",
            "--username=admin",
            "--checkpoint=fast",
            "--no-sync",
            "--write-recovery-conf",
        ]);
        backup.arg(format!("--port={}", self.port(0))).arg("--pgdata").arg(self.data(node));
        Self::run(&mut backup);
        self.launch(node);
    }

    /// Starts the server of a node and waits until it answers.
    pub(crate) fn launch(&mut self, node: usize) {
        let mut server = self.program("postgres");
        if let (Some(apart), Some((user, group))) = (&self.apart, self.home.user) {
            let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
            let program = server.get_program().to_owned();
            server = Command::new("ip");
            server.current_dir(self.home.directory()).stdin(Stdio::null());
            server.args(["netns", "exec", &apart.name, "setpriv", &user, &group, "--clear-groups"]).arg(program);
        }
        server.arg("-D").arg(self.data(node));
        let name = format!("cluster_name=db-{}", node + 1);
        let port = format!("port={}", self.port(node));
        let tls = if self.tls { "ssl=on" } else { "ssl=off" };
        let listen = format!("listen_addresses={}", self.nodes[node].host);
        let settings = [
            name.as_str(),
            &port,
            tls,
            &listen,
            "unix_socket_directories=",
            "fsync=off",
            "shared_buffers=16MB",
            "max_connections=40",
            "wal_level=replica",
            "max_wal_senders=6",
            "wal_keep_size=256MB",
            "hot_standby=on",
            "wal_retrieve_retry_interval=200ms",
            "recovery_target_timeline=latest",
        ];
        for setting in settings {
            server.args(["-c", setting]);
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path(&format!("{node}.log"))).unwrap();
        server.stdout(log.try_clone().unwrap()).stderr(log);
        self.nodes[node].server = Some(server.spawn().unwrap());
        until("a server's start", || self.psql(node, "SELECT 1").status.success().then_some(()));
    }

    fn psql(&self, node: usize, query: &str) -> Output {
        let mut psql = Command::new("/usr/bin/psql");
        psql.env_clear().env("PGCONNECT_TIMEOUT", "5").stdin(Stdio::null());
        let to = format!("host={} port={} user=admin dbname=postgres", self.nodes[node].host, self.port(node));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &to, "-c", query]).output().unwrap()
    }

    /// What a node answers its administrator.
    #[track_caller]
    pub(crate) fn ask(&self, node: usize, query: &str) -> String {
        let output = self.psql(node, query);
        assert!(output.status.success(), "db-{}: {query}: {}", node + 1, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes a standby a primary of the next timeline.
    pub(crate) fn promote(&self, node: usize) {
        assert_eq!(self.ask(node, "SELECT pg_promote(true, 60)"), "t");
    }

    /// Stops a server: in order, its clients cut off.
    pub(crate) fn stop(&mut self, node: usize) {
        let Some(mut server) = self.nodes[node].server.take() else { return };
        signal(server.id(), Signal::INT);
        let ended = until("a server's end", || server.try_wait().unwrap());
        assert!(ended.success() || ended.code().is_some(), "{ended}");
    }

    /// The server and all that it has started stand still, or go on: it still accepts TCP, and answers nothing.
    pub(crate) fn pause(&self, node: usize, pause: bool) {
        let server = self.nodes[node].server.as_ref().unwrap().id();
        let which = if pause { Signal::STOP } else { Signal::CONT };
        if pause {
            signal(server, which);
        }
        for child in children(server) {
            signal(child, which);
        }
        if !pause {
            signal(server, which);
        }
    }

    /// The demoted primary comes back as a standby of `of`.
    pub(crate) fn demote(&mut self, node: usize, of: usize) {
        self.stop(node);
        let primary = format!("primary_conninfo = 'host=127.0.0.1 port={} user=admin'\n", self.port(of));
        let file = self.data(node).join("postgresql.auto.conf");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, before + &primary).unwrap();
        fs::write(self.data(node).join("standby.signal"), "").unwrap();
        self.home.own(&self.data(node).join("standby.signal"));
        self.launch(node);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut server) = node.server.take() {
                for child in children(server.id()) {
                    signal(child, Signal::CONT);
                }
                signal(server.id(), Signal::CONT);
                signal(server.id(), Signal::QUIT);
                let _ = server.wait();
            }
        }
    }
}

fn signal(process: u32, signal: Signal) {
    // A process that has ended needs none.
    let _ = kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal);
}

/// The processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    numbers.filter(is_child).collect()
}
