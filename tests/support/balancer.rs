//! The balancer as its operator runs it: the program, its configuration, its status.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::servers::{free_ports, until};

/// A running balancer; it ends with this.
pub(crate) struct Balancer {
    directory: tempfile::TempDir,
    process: Child,
    pub(crate) rw: u16,
    pub(crate) ro: u16,
    pub(crate) admin: u16,
}

impl Balancer {
    /// Starts one. `nodes` are lines of `[nodes]`, `monitor` and `routing` lines of these sections, `proxy` more of its own.
    pub(crate) fn start(proxy: &str, nodes: &str, monitor: &str, routing: &str) -> Self {
        Self::start_under(&[], proxy, nodes, monitor, routing)
    }

    /// Starts one by a program that limits it; `limits` are that program and its arguments.
    pub(crate) fn start_under(limits: &[&str], proxy: &str, nodes: &str, monitor: &str, routing: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports(3);
        let (rw, ro, admin) = (ports[0], ports[1], ports[2]);
        let text = format!(
            "[proxy]\nrw = \"127.0.0.1:{rw}\"\nro = \"127.0.0.1:{ro}\"\nadmin = \"127.0.0.1:{admin}\"\n\
             log_file = \"balancer.log\"\n{proxy}\n[monitor]\n{monitor}\n[routing]\n{routing}\n[nodes]\n{nodes}\n"
        );
        let file = directory.path().join("proxy.toml");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let process = spawn(limits, directory.path().join("proxy.toml"));
        let balancer = Self { directory, process, rw, ro, admin };
        until("the balancer's start", || balancer.try_status());
        balancer
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("balancer.log")).unwrap_or_default()
    }

    /// Replaces the list of nodes and has it read.
    pub(crate) fn relist(&self, nodes: &str) {
        let file = self.directory.path().join("proxy.toml");
        let text = fs::read_to_string(&file).unwrap();
        let (before, _) = text.split_once("[nodes]\n").unwrap();
        self.reload(&format!("{before}[nodes]\n{nodes}\n"));
    }

    /// Replaces a text in the configuration and has it read.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let file = self.directory.path().join("proxy.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        self.reload(&text.replacen(from, to, 1));
    }

    /// Replaces the configuration as a whole, so that nobody reads half of it, and has it read.
    fn reload(&self, text: &str) {
        let file = self.directory.path().join("proxy.toml");
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, file).unwrap();
        kill_process(Pid::from_raw(self.process.id().cast_signed()).unwrap(), Signal::HUP).unwrap();
    }

    fn try_status(&self) -> Option<Value> {
        let output = self.ask(&["--json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        output.status.success().then(|| answer["data"].clone())
    }

    /// `postroad balance status`.
    pub(crate) fn ask(&self, arguments: &[&str]) -> std::process::Output {
        let admin = format!("127.0.0.1:{}", self.admin);
        let mut command = Command::new(env!("CARGO_BIN_EXE_postroad"));
        command.env_clear().args(["balance", "status", "--admin", &admin]).args(arguments).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        self.try_status().unwrap_or_else(|| panic!("no status; log:\n{}", self.log()))
    }

    /// The id of the primary.
    pub(crate) fn primary(&self) -> Option<String> {
        self.status()["primary"].as_str().map(str::to_owned)
    }

    /// What is known of one node.
    pub(crate) fn node(&self, id: &str) -> Value {
        let status = self.status();
        status["nodes"].as_array().unwrap().iter().find(|node| node["node"] == id).cloned().unwrap_or(Value::Null)
    }

    /// The ids of the nodes that get reads.
    pub(crate) fn readers(&self) -> Vec<String> {
        let status = self.status();
        let nodes = status["nodes"].as_array().unwrap();
        let reads = nodes.iter().filter(|node| node["reads"] == true);
        reads.map(|node| node["node"].as_str().unwrap().to_owned()).collect()
    }
}

fn spawn(limits: &[&str], config: PathBuf) -> Child {
    let words: Vec<&str> = limits.iter().copied().chain([env!("CARGO_BIN_EXE_postroad")]).collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .args(["balance", "database", "--config"])
        .arg(config);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.process.id().cast_signed()).unwrap(), Signal::TERM);
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the balancer's log:\n{}", self.log());
        }
    }
}
