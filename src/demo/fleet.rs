//! The fleet of the demonstration: its directory, its nodes as child processes, and the commands that set them up.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::time::sleep;

use super::{
    child::{self, Child},
    member::Member,
    observe::Seen,
    ports,
};
use crate::{errors::Failure, net::delay::Delay};

/// A Unix socket's path has at most 107 bytes; this leaves room for the node's directory and the socket's name.
const DIRECTORY_BYTES_MAX: usize = 80;
/// A command of the set-up takes no longer.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);
/// How long nodes get to stop by themselves.
const STOP_WITHIN: Duration = Duration::from_secs(3);
/// The time between two looks at a node's status.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Lines of a log that a failure shows.
const LOG_LINES: usize = 12;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A control node, with its local relay.
    Control,
    /// A remote relay.
    Relay,
    /// A workload node.
    Node,
}

impl Role {
    /// The word of commands.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Relay => "relay",
            Self::Node => "node",
        }
    }
}

/// A node to be: its name, its role and, for those with a relay, the failure domain that it claims.
pub type Planned = (&'static str, Role, &'static str);

/// Every node of the demonstration.
const NODES: [Planned; 8] = [
    ("control-1", Role::Control, "1"),
    ("control-2", Role::Control, "2"),
    ("control-3", Role::Control, "3"),
    ("fra", Role::Relay, "fra"),
    ("ams", Role::Relay, "ams"),
    ("par", Role::Relay, "par"),
    ("web", Role::Node, ""),
    ("db", Role::Node, ""),
];

/// The fleet. Dropped, its processes are killed and reaped, and its directory is removed unless it is to be kept.
#[derive(Debug)]
pub struct Fleet {
    /// Everything is in here.
    pub directory: PathBuf,
    /// The port on which the consumer listens for the link.
    pub link_port: u16,
    /// Whether the directory stays.
    pub keep: bool,
    executable: PathBuf,
    members: Vec<Member>,
    steps: AtomicU64,
}

impl Fleet {
    /// The demonstration's fleet, of this very program.
    ///
    /// # Errors
    /// If the system gives no directory or no ports.
    pub fn make(keep: bool) -> Result<Self, Failure> {
        let executable = std::env::current_exe().map_err(|error| {
            Failure::failed("DEMO_NO_PROGRAM", format!("could not find this program's own file: {error}"))
        })?;
        Self::of(executable, &NODES, keep)
    }

    /// Makes the directory, finds ports, and writes each node's configuration. Nothing runs yet. `executable` is the
    /// program that the nodes run.
    ///
    /// # Errors
    /// If the system gives no directory or no ports.
    pub fn of(executable: PathBuf, nodes: &[Planned], keep: bool) -> Result<Self, Failure> {
        let ports = ports::free(2 * nodes.len(), std::process::id()).map_err(|error| {
            Failure::failed("DEMO_NO_PORTS", format!("could not find ports for the nodes: {error}"))
                .hint("Stop what uses them, or try where sockets on 127.0.0.1 are allowed")
        })?;
        let directory = make_directory()?;
        // From here on a failure drops the fleet, and so the directory.
        let mut fleet =
            Self { directory, link_port: 0, keep, executable, members: Vec::new(), steps: AtomicU64::new(0) };
        let mut ports = ports.into_iter();
        fleet.link_port = ports.next().unwrap_or_default();
        for &(name, role, domain) in nodes {
            let port = if role == Role::Node { None } else { ports.next() };
            let file = |extension: &str| fleet.directory.join(format!("{name}.{extension}"));
            let (data, log, config) = (fleet.directory.join(name), file("log"), file("toml"));
            let console = ports.next().unwrap_or_default();
            let member = Member { name, role, port, delay: None, console, data, log, config, process: None };
            fleet.write(&member.config.clone(), &member.config_text(domain))?;
            fleet.members.push(member);
        }
        Ok(fleet)
    }

    /// Lets every node's console act, once it starts.
    ///
    /// # Errors
    /// If the system does not let the configurations be written.
    pub fn let_consoles_act(&self) -> Result<(), Failure> {
        // The console's section is the last one.
        self.append("act = \"on\"\n")
    }

    /// Adds lines to every node's configuration, for its next start.
    ///
    /// # Errors
    /// If the system does not let the configurations be written.
    pub fn append(&self, lines: &str) -> Result<(), Failure> {
        for member in &self.members {
            self.write(&member.config, &format!("{}{lines}", member.configured()?))?;
        }
        Ok(())
    }

    /// Has every packet to and from relays be late, so that one from node to node and back takes this long. For the first
    /// start.
    ///
    /// # Errors
    /// If the system gives no ports, or does not let the configurations be written.
    pub fn delay(&mut self, round_trip: Duration) -> Result<(), Failure> {
        for member in self.members.iter_mut().filter(|member| member.port.is_some()) {
            // Two ways there and two back.
            let delay = Delay::start(member.listens(), round_trip / 4);
            member.delay = Some(delay.map_err(|error| {
                Failure::failed("DEMO_NO_PORTS", format!("could not find a port for a way to {}: {error}", member.name))
            })?);
        }
        for member in self.members.iter().filter(|member| member.port.is_some()) {
            let text = member.configured()?;
            let advertised = |address: &str| format!("advertised = \"{address}\"");
            let text = text.replace(&advertised(&member.listens().to_string()), &advertised(&member.address()));
            self.write(&member.config, &text)?;
        }
        Ok(())
    }

    /// Writes a file that only this user reads.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn write(&self, path: &Path, text: &str) -> Result<(), Failure> {
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::failed("DEMO_DIRECTORY", format!("could not write {}: {error}", path.display())))
    }

    /// Every node.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The nodes of a role.
    pub fn names(&self, role: Role) -> Vec<&'static str> {
        self.members.iter().filter(|member| member.role == role).map(|member| member.name).collect()
    }

    /// The node of this name.
    ///
    /// # Errors
    /// If there is none, which a node's own word would have to say.
    pub fn member(&self, name: &str) -> Result<&Member, Failure> {
        self.members.iter().find(|member| member.name == name).ok_or_else(|| unknown(name))
    }

    fn member_mut(&mut self, name: &str) -> Result<&mut Member, Failure> {
        self.members.iter_mut().find(|member| member.name == name).ok_or_else(|| unknown(name))
    }

    fn command(&self, member: &Member) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg("--config").arg(&member.config).arg("--data").arg(&member.data);
        command
    }

    /// Starts a node, or starts it again.
    ///
    /// # Errors
    /// If the system does not start the process.
    pub fn start(&mut self, name: &str) -> Result<(), Failure> {
        let member = self.member(name)?;
        let mut command = self.command(member);
        command.arg("node");
        let started = Child::start(&mut command, &member.log, &member.log).map_err(|error| {
            Failure::failed("DEMO_NOT_STARTED", format!("could not start the node {name}: {error}"))
        })?;
        self.member_mut(name)?.process = Some(started);
        Ok(())
    }

    /// Kills a node by SIGKILL; its process id.
    ///
    /// # Errors
    /// If there is no such node or it does not run.
    pub fn kill(&mut self, name: &str) -> Result<u32, Failure> {
        let mut process = self.member_mut(name)?.process.take().ok_or_else(|| unknown(name))?;
        process.kill();
        Ok(process.pid())
    }

    /// A command against or for a node, ready to run beside others.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn step(&self, name: &str, arguments: &[&str], secret: Option<&str>) -> Result<Step, Failure> {
        let member = self.member(name)?;
        let mut command = self.command(member);
        command.arg("--json").args(arguments);
        if let Some(token) = secret {
            command.env("POSTROAD_JOIN_TOKEN", token);
        }
        let number = self.steps.fetch_add(1, Ordering::Relaxed);
        let place = self.directory.join(format!("step-{number}"));
        let words = arguments.iter().take_while(|word| !word.starts_with("--")).copied().collect::<Vec<_>>().join(" ");
        Ok(Step { name: member.name, words, command, place, log: member.log.clone() })
    }

    /// What a node says of itself and of the fleet.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn look(&self, name: &str) -> Result<Seen, Failure> {
        let data = self.step(name, &["status"], None)?.run().await?;
        serde_json::from_value(data).map_err(|error| {
            Failure::failed("DEMO_STATUS_UNKNOWN", format!("the status of {name} is not as it was: {error}"))
        })
    }

    /// Waits until a node says what `wanted` looks for; fails at once when a process has ended.
    ///
    /// # Errors
    /// If it does not within `limit`, with the end of that node's log.
    pub async fn until(
        &mut self,
        name: &str,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Seen) -> bool,
    ) -> Result<Seen, Failure> {
        let until = Instant::now() + limit;
        loop {
            self.check_alive()?;
            let looked = self.look(name).await;
            if let Ok(seen) = &looked
                && wanted(seen)
            {
                return looked;
            }
            if Instant::now() > until {
                let answer = looked.err().map(|failure| format!("; it says: {}", failure.message)).unwrap_or_default();
                let message = format!("waited {} s until {what}{answer}", limit.as_secs());
                return Err(self.blame(Failure::failed("DEMO_WAITED", message), name));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Nodes whose process has ended by itself or by somebody else's hand. They no longer run.
    pub fn ended(&mut self) -> Vec<(&'static str, String)> {
        let mut ended = Vec::new();
        for member in &mut self.members {
            if let Some(status) = member.process.as_mut().and_then(Child::ended) {
                member.process = None;
                ended.push((member.name, status.to_string()));
            }
        }
        ended
    }

    /// Fails when a node has ended that nobody meant to end.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn check_alive(&mut self) -> Result<(), Failure> {
        match self.ended().first() {
            None => Ok(()),
            Some((name, status)) => {
                let message = format!("the node {name} has ended unexpectedly ({status})");
                Err(self.blame(Failure::failed("DEMO_NODE_ENDED", message), name))
            }
        }
    }

    /// The same failure with which log to read, and its last lines. The directory stays then.
    pub fn blame(&mut self, failure: Failure, name: &str) -> Failure {
        self.keep = true;
        let Ok(member) = self.member(name) else { return failure };
        let lines = child::tail(&member.log, LOG_LINES);
        let lines = if lines.is_empty() { "    (it is empty)".to_owned() } else { indent(&lines) };
        failure.hint(format!("Read {}; it ends with:\n{lines}", member.log.display()))
    }

    /// Stops every node: asked first, killed where that takes too long.
    pub async fn stop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            process.ask_to_stop();
        }
        let until = Instant::now() + STOP_WITHIN;
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                process.end_within(until.saturating_duration_since(Instant::now())).await;
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Processes first, so that nobody writes into the directory while it goes.
        self.members.clear();
        if !self.keep {
            // What cannot be removed lies among the system's temporary files.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// A command for a node.
#[derive(Debug)]
pub struct Step {
    name: &'static str,
    words: String,
    command: Command,
    place: PathBuf,
    log: PathBuf,
}

impl Step {
    /// Runs it; what its answer holds.
    ///
    /// # Errors
    /// What the command said, as a failure of this step.
    pub async fn run(self) -> Result<Value, Failure> {
        let what = format!("`postroad {}` of {}", self.words, self.name);
        let failed = |said: String| {
            let hint = format!("Its node's log: {}", self.log.display());
            Failure::failed("DEMO_STEP_FAILED", format!("{what} {said}")).hint(hint)
        };
        let answer = child::run(self.command, self.place, COMMAND_WITHIN).await;
        let answer = answer.map_err(|error| failed(format!("could not be run: {error}")))?;
        let Some(status) = answer.status else {
            return Err(failed(format!("has not ended after {} s", COMMAND_WITHIN.as_secs())));
        };
        let envelope: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        if status.success() && envelope.get("data").is_some() {
            return Ok(envelope["data"].clone());
        }
        let error = &envelope["error"];
        let said = match (error["message"].as_str(), error["code"].as_str()) {
            (Some(message), Some(code)) => format!("failed: {message} ({code})"),
            _ => format!("ended with {status} and no answer: {}{}", answer.stdout, answer.stderr),
        };
        Err(failed(said))
    }
}

fn unknown(name: &str) -> Failure {
    Failure::failed("DEMO_NODE_UNKNOWN", format!("no running node of the demonstration is called {name}"))
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// A directory that only this user enters, with a short path.
fn make_directory() -> Result<PathBuf, Failure> {
    let usual = std::env::temp_dir();
    let base = if usual.as_os_str().len() > DIRECTORY_BYTES_MAX - 24 { PathBuf::from("/tmp") } else { usual };
    let mut last = None;
    for attempt in 0..100 {
        let directory = base.join(format!("postroad-demo-{}", std::process::id() + attempt));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            // Somebody's, perhaps kept from an earlier run.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = Some(error),
            Err(error) => {
                last = Some(error);
                break;
            }
        }
    }
    let why = last.map(|error| error.to_string()).unwrap_or_default();
    Err(Failure::failed("DEMO_DIRECTORY", format!("could not make a directory in {}: {why}", base.display()))
        .hint("Set TMPDIR to a directory that may be written"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::{self, Sources};

    #[test]
    fn a_fleet_is_a_private_directory_with_good_configurations_and_leaves_nothing() {
        let fleet = Fleet::make(false).unwrap();
        let directory = fleet.directory.clone();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fleet.names(Role::Control).len(), 3);
        let mut ports = vec![fleet.link_port];
        for member in fleet.members() {
            let sources = Sources { file: Some(member.config.clone()), ..Sources::default() };
            let loaded = config::load(&sources).unwrap().config;
            assert_eq!(loaded.node.data, member.data);
            assert!(loaded.api.socket.as_os_str().len() < 108);
            // RP-8: without a host of its own, a second relay behind one address would be refused.
            assert_eq!(loaded.domain.host.is_some(), member.role != Role::Node);
            ports.extend(member.port);
        }
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 7, "two nodes share a port");
        drop(fleet);
        assert!(!directory.exists());
    }

    #[test]
    fn blame_names_the_log_and_keeps_it() {
        let mut fleet = Fleet::make(false).unwrap();
        let log = fleet.member("fra").unwrap().log.clone();
        fs::write(&log, "one\ntwo\n").unwrap();
        let failure = fleet.blame(Failure::failed("X", "it failed"), "fra");
        let hint = failure.hint.unwrap();
        assert!(hint.contains("fra.log") && hint.ends_with("    one\n    two"), "{hint}");
        let directory = fleet.directory.clone();
        drop(fleet);
        assert!(directory.exists());
        fs::remove_dir_all(directory).unwrap();
    }
}
