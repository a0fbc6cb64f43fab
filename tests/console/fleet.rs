//! The live fleet that the tests of the console share, and how they ask it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take on a loaded machine; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The program under test.
pub(crate) const POSTROAD: &str = env!("CARGO_BIN_EXE_postroad");

/// A demonstration that stays up. It ends with this.
pub(crate) struct Fleet {
    process: Child,
    /// The console of the first control node, as `http://127.0.0.1:PORT`.
    pub(crate) console: String,
    pub(crate) directory: PathBuf,
}

impl Fleet {
    /// Starts it; the relay in use is killed so many times first.
    pub(crate) fn start(deaths: u32) -> Self {
        let arguments = ["demo", "--act", "--transfer-mib", "1", "--flows", "8", "--drains", "0", "--deaths"];
        let deaths = deaths.to_string();
        let mut process = Command::new(POSTROAD).args(arguments).arg(deaths).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                println!("{line}");
                let _ = sender.send(line);
            }
        });
        let (mut directory, mut console) = (None, None);
        let until = Instant::now() + 2 * PATIENCE;
        while console.is_none() {
            let wait = until.saturating_duration_since(Instant::now());
            let line = receiver.recv_timeout(wait).expect("the demonstration tells its console's address");
            if let Some((_, path)) = line.split_once(" nodes on this machine, in ") {
                directory = Some(PathBuf::from(path.trim()));
            }
            console = line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned);
        }
        Self { process, console: console.unwrap(), directory: directory.expect("it says where it is") }
    }

    /// The demonstration itself, which starts what has ended again.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed()).unwrap()
    }

    pub(crate) fn pid_of(&self, node: &str) -> Pid {
        self.try_pid_of(node).unwrap_or_else(|| panic!("{node} does not run"))
    }

    pub(crate) fn try_pid_of(&self, node: &str) -> Option<Pid> {
        let config = self.directory.join(format!("{node}.toml"));
        let own = |entry: &Path| {
            let line = std::fs::read(entry.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            // The path makes it a process of this fleet and of no other.
            (line.contains(config.to_str()?) && line.ends_with("node\0")).then_some(())?;
            Pid::from_raw(entry.file_name()?.to_str()?.parse().ok()?)
        };
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(|entry| own(&entry.ok()?.path()));
        entries.last()
    }

    /// The console of a node, by its configuration.
    pub(crate) fn console_of(&self, node: &str) -> String {
        let text = std::fs::read_to_string(self.directory.join(format!("{node}.toml"))).unwrap();
        let (_, console) = text.split_once("[console]").unwrap();
        let address = console.split('"').nth(1).unwrap();
        format!("http://{address}")
    }

    pub(crate) fn run(&self, node: &str, arguments: &[&str]) -> Value {
        let output = Command::new(POSTROAD)
            .arg("--json")
            .arg("--data")
            .arg(self.directory.join(node))
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // A test that failed may have left it standing still.
        let _ = kill_process(self.pid(), Signal::CONT);
        let _ = kill_process(self.pid(), Signal::TERM);
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until && self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One request as bytes; status, head and body.
pub(crate) fn request(console: &str, method: &str, path: &str, headers: &str) -> (u16, String, String) {
    send(console, method, path, headers, "")
}

fn send(console: &str, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, String) {
    let address = console.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

/// The form of the page Act, as a page of `origin` sends it; status and answer.
pub(crate) fn act_from(origin: &str, console: &str, form: &str) -> (u16, String) {
    let length = form.len();
    let headers =
        format!("Origin: {origin}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n");
    let (status, head, body) = send(console, "POST", "/act", &headers, form);
    (status, format!("{head}\n{body}"))
}

/// The form of the page Act, as the console's own page sends it.
pub(crate) fn act(console: &str, form: &str) -> (u16, String) {
    act_from(console, console, form)
}

pub(crate) fn json(console: &str, path: &str) -> Value {
    let (status, _, body) = request(console, "GET", path, "Accept: application/json\r\n");
    let value: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {status} {error}: {body}"));
    assert_eq!(status, 200, "{path}: {value}");
    value
}

/// Waits until the console has heard every node.
pub(crate) fn all_are_heard(console: &str) {
    eventually("every node is heard", || {
        let overview = json(console, "/");
        let cards = overview["data"]["cards"].as_array().unwrap();
        cards.len() == 8 && cards.iter().all(|card| card["heard"]["vitals"].is_object())
    });
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it never came to be that {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a tool is there; where everything is required, it must be.
pub(crate) fn there(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap().status.success();
    let required = std::env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(found || !required, "{tool} is not installed, and everything is required");
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}
