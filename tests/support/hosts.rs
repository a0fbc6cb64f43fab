//! Hosts of a cluster on loopback, each a process of the real program with a data directory of its own.

use std::{
    fs,
    net::UdpSocket,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take on a loaded machine; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Hosts of one cluster, and the processes on them, which end with it.
pub(crate) struct Hosts {
    directory: tempfile::TempDir,
    ports: Vec<u16>,
    pub(crate) nodes: Vec<Option<Child>>,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: i32,
    pub(crate) json: Value,
    pub(crate) text: String,
}

impl Said {
    #[track_caller]
    pub(crate) fn done(self) -> Value {
        assert_eq!(self.exit, 0, "{} {}", self.json, self.text);
        self.json["data"].clone()
    }

    #[track_caller]
    pub(crate) fn failed(self, exit: i32, code: &str) -> String {
        let found = self.json["error"]["code"].as_str().unwrap_or_default().to_owned();
        assert_eq!((self.exit, found.as_str()), (exit, code), "{} {}", self.json, self.text);
        format!("{} {}", self.json["error"]["message"], self.json["error"]["hint"])
    }
}

impl Hosts {
    pub(crate) fn new(count: usize) -> Self {
        // All at once, so that no two are one; whoever takes one in between fails this test, loudly.
        let sockets: Vec<UdpSocket> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let ports = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("passphrase"), "four random words\n").unwrap();
        fs::write(directory.path().join("postroad.toml"), "").unwrap();
        Self { directory, ports, nodes: (0..count).map(|_| None).collect() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Gives a host a configuration of its own.
    pub(crate) fn configure(&self, host: usize, text: &str) {
        fs::write(self.path(&format!("postroad-{host}.toml")), text).unwrap();
    }

    pub(crate) fn address(&self, host: usize) -> String {
        format!("127.0.0.1:{}", self.ports[host])
    }

    /// The program on one host, with nothing of this machine's environment.
    pub(crate) fn command(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postroad"));
        let own = self.path(&format!("postroad-{host}.toml"));
        let config = if own.exists() { own } else { self.path("postroad.toml") };
        command.env_clear().env("HOME", self.directory.path()).env("POSTROAD_CONFIG", config);
        command.env("POSTROAD_LISTEN_RELAY", self.address(host)).env("POSTROAD_LISTEN_OUTBOUND", "127.0.0.1:0");
        for part in ["HOST", "POWER", "NETWORK"] {
            command.env(format!("POSTROAD_DOMAIN_{part}"), format!("{}-{host}", part.to_lowercase()));
        }
        command.arg("--data").arg(self.path(&format!("data-{host}"))).args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn say(&self, host: usize, line: &str) -> Said {
        let arguments: Vec<&str> = ["--json"].into_iter().chain(line.split_whitespace()).collect();
        let output = self.command(host, &arguments).output().unwrap();
        let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
        let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        Said { exit: output.status.code().unwrap_or(-1), json, text }
    }

    /// Says it until it is done, and what it said satisfies `wanted`.
    #[track_caller]
    pub(crate) fn until(&self, host: usize, line: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.say(host, line);
            if said.exit == 0 && wanted(&said.json["data"]) {
                return said.json["data"].clone();
            }
            assert!(Instant::now() < deadline, "{line} on {host}: {} {}\n{}", said.json, said.text, self.log(host));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn log(&self, host: usize) -> String {
        fs::read_to_string(self.path(&format!("log-{host}"))).unwrap_or_default()
    }

    pub(crate) fn start(&mut self, host: usize) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path(&format!("log-{host}"))).unwrap();
        let mut command = self.command(host, &["node"]);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.nodes[host] = Some(child);
        self.until(host, "status", |_| true);
    }

    pub(crate) fn signal(&mut self, host: usize, signal: Signal) -> Option<i32> {
        let mut child = self.nodes[host].take().unwrap();
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
        child.wait().unwrap().code()
    }

    /// Founds the cluster on host 0 and runs it.
    pub(crate) fn found(&mut self) {
        let (authority, passphrase) = (self.path("authority"), self.path("passphrase"));
        let line = format!(
            "init harbour --name ams-1 --advertise {} --authority {} --passphrase-file {}",
            self.address(0),
            authority.display(),
            passphrase.display()
        );
        let data = self.say(0, &line).done();
        assert_eq!((data["cluster"].as_str(), data["node"].as_str()), (Some("harbour"), Some("ams-1")));
        assert_eq!(data["fingerprint"].as_str().map(str::len), Some(64));
        self.start(0);
    }

    /// The line that joins a host by a token, as its JSON says.
    pub(crate) fn join(token: &Value, name: &str) -> String {
        let text = |key: &str| token[key].as_str().unwrap().to_owned();
        let seeds: Vec<String> = token["seeds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|seed| format!("--seed {}", seed.as_str().unwrap()))
            .collect();
        let (seeds, fingerprint, token) = (seeds.join(" "), text("fingerprint"), text("token"));
        format!("join {seeds} --fingerprint {fingerprint} --token {token} --name {name}")
    }

    pub(crate) fn token(&self, role: &str) -> Value {
        self.until(0, &format!("token create --role {role}"), |_| true)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
