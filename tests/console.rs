//! The console on a live fleet: in a real browser, light and dark, wide and narrow; in a terminal; and for scripts.

#[path = "console/browser.rs"]
mod browser;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use browser::{Browser, Mode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take on a loaded machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(90);

/// The program under test.
const POSTROAD: &str = env!("CARGO_BIN_EXE_postroad");

/// A demonstration that stays up. It ends with this.
struct Fleet {
    process: Child,
    /// The console of the first control node, as `http://127.0.0.1:PORT`.
    console: String,
    directory: PathBuf,
}

impl Fleet {
    fn start() -> Self {
        let arguments = ["demo", "--act", "--transfer-mib", "1", "--flows", "8", "--deaths", "1", "--drains", "0"];
        let mut process = Command::new(POSTROAD).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
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

    fn pid_of(&self, node: &str) -> Pid {
        let config = self.directory.join(format!("{node}.toml"));
        let own = |entry: &Path| {
            let line = std::fs::read(entry.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            // The path makes it a process of this fleet and of no other.
            (line.contains(config.to_str()?) && line.ends_with("node\0")).then_some(())?;
            Pid::from_raw(entry.file_name()?.to_str()?.parse().ok()?)
        };
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(|entry| own(&entry.ok()?.path()));
        entries.last().unwrap_or_else(|| panic!("{node} does not run"))
    }

    /// The console of a node, by its configuration.
    fn console_of(&self, node: &str) -> String {
        let text = std::fs::read_to_string(self.directory.join(format!("{node}.toml"))).unwrap();
        let (_, console) = text.split_once("[console]").unwrap();
        let address = console.split('"').nth(1).unwrap();
        format!("http://{address}")
    }

    fn run(&self, node: &str, arguments: &[&str]) -> Value {
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
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until && self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One request as bytes; status, head and body.
fn request(console: &str, method: &str, path: &str, headers: &str) -> (u16, String, String) {
    let address = console.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

fn json(console: &str, path: &str) -> Value {
    let (status, _, body) = request(console, "GET", path, "Accept: application/json\r\n");
    let value: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {status} {error}: {body}"));
    assert_eq!(status, 200, "{path}: {value}");
    value
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it never came to be that {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a tool is there; where everything is required, it must be.
fn there(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap().status.success();
    let required = std::env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(found || !required, "{tool} is not installed, and everything is required");
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

/// Every page, as people open it; beside these, that of a trace.
const PAGES: [(&str, &str); 10] = [
    ("overview", "/"),
    ("topology", "/topology"),
    ("control", "/control"),
    ("why", "/why"),
    ("why-relay", "/why?relay=fra"),
    ("tree", "/tree?node=fra"),
    ("actors", "/actors?node=web&sort=rate"),
    ("actor", "/actor/node/sessions/relay-1?node=web"),
    ("act", "/act"),
    ("nothing", "/actor/node/nobody"),
];

#[test]
fn the_console_shows_a_live_fleet_to_browsers_terminals_and_scripts() {
    let fleet = Fleet::start();
    let console = fleet.console.clone();
    eventually("every node is heard", || {
        let overview = json(&console, "/");
        let cards = overview["data"]["cards"].as_array().unwrap();
        cards.len() == 8 && cards.iter().all(|card| card["heard"]["vitals"].is_object())
    });
    scripts(&fleet, &console);
    strangers(&console);
    let trace = followed(&fleet, &console);
    replayed(&fleet, &console);
    acting(&fleet, &console);
    if there("chromedriver") {
        let mut browser = Browser::start();
        looks(&mut browser, &console, &trace);
        keys(&mut browser, &console);
        time_travel(&mut browser, &console);
        timeline(&mut browser, &console, &trace);
        forms(&mut browser, &fleet, &console);
        without_scripts(&mut browser, &console);
        silence(&mut browser, &fleet, &console, &trace);
    }
    if there("tmux") {
        terminal(&fleet);
    }
}

/// The steps of a trace, as node, place and kind.
fn steps(page: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let steps = page["data"]["steps"].as_array().unwrap();
    steps.iter().map(|step| (text(&step["node"]), text(&step["place"]), text(&step["kind"]))).collect()
}

/// One request across nodes: a link that is made, from the command to the listener on another node, and a message of a
/// relay's session. Returns the trace of the link.
fn followed(fleet: &Fleet, console: &str) -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let from = format!("web=127.0.0.1:{port}");
    let made = fleet.run("control-2", &["link", "add", "spare", "--from", &from, "--to", "db=127.0.0.1:9"]);
    let trace = made["trace"].as_str().unwrap_or_else(|| panic!("a change says its trace: {made}")).to_owned();
    let wanted = [
        ("control-2", "api", "POST /api/links"),
        ("web", "node/self", "snapshot"),
        ("db", "node/self", "snapshot"),
        ("web", "node/links/link-2", "listening"),
    ];
    let mut page = Value::Null;
    eventually("the link is followed to its listener", || {
        page = json(console, &format!("/trace/{trace}"));
        let steps = steps(&page);
        let came = wanted.iter().all(|(node, place, kind)| {
            steps.iter().any(|(of, at, what)| (of.as_str(), at.as_str(), what.as_str()) == (*node, *place, *kind))
        });
        // Each control node applies it, in its own time.
        came && steps.iter().filter(|(_, _, what)| what.contains("apply link_add")).count() == 3
    });
    let steps = page["data"]["steps"].as_array().unwrap();
    let is = |value: &Value, text: &str| value.as_str().is_some_and(|value| value.contains(text));
    assert!(steps.iter().any(|step| step["place"] == "group" && is(&step["kind"], "propose link_add")), "{page}");
    assert!(steps.iter().any(|step| step["place"] == "node/leader"), "the leader's actor hears of it: {page}");
    // Steps name what led to them, and stand in the order of time.
    let listening = steps.iter().find(|step| step["kind"] == "listening").unwrap();
    assert!(listening["cause"].is_number() && listening["took_us"].is_number(), "{listening}");
    let times: Vec<u64> = steps.iter().map(|step| step["after_us"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(page["data"]["silent"], Value::Array(Vec::new()));
    // The terminal says the same from any node, in the same envelope.
    let told = fleet.run("web", &["trace", &trace]);
    assert_eq!((&told["version"], &told["data"]["id"]), (&Value::from(1), &Value::from(trace.as_str())));
    assert!(told["data"]["steps"].as_array().unwrap().len() >= wanted.len(), "{told}");
    // Every message has a trace, and a ping's crosses to the relay.
    let actor = json(console, "/actor/node/sessions/relay-1?node=web");
    let messages = actor["data"]["messages"].as_array().unwrap();
    let pong = messages.iter().find(|message| message["kind"] == "pong").unwrap();
    let ping = json(console, &format!("/trace/{}", pong["trace"].as_str().unwrap()));
    let nodes: Vec<&str> = ping["data"]["nodes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(nodes, ["web", "control-1"], "{ping}");
    assert_eq!(fleet.run("db", &["trace", "0000000000000001"])["data"]["steps"], Value::Array(Vec::new()));
    let (status, _, _) = request(console, "GET", "/trace/none", "Accept: application/json\r\n");
    assert_eq!(status, 400);
    trace
}

/// What an actor of the live fleet went through, played again by the simulations' own program.
fn replayed(fleet: &Fleet, console: &str) {
    let simulations = Path::new(POSTROAD).with_file_name("simulations");
    if !simulations.exists() {
        let required = std::env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!required, "{} is not built, and everything is required", simulations.display());
        println!("skipped: {} is not built", simulations.display());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let replay = |file: &Path| {
        let output = Command::new(&simulations).arg("replay").arg(file).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
    };
    let actors = [
        ("web", "node/control"),
        ("web", "node/self"),
        ("web", "node/sessions/relay-1"),
        ("web", "node/links"),
        ("fra", "node/relay"),
        ("control-1", "node/leader"),
    ];
    for (number, (node, path)) in actors.into_iter().enumerate() {
        let file = directory.path().join(format!("{number}.recording.json"));
        let saved = fleet.run("control-1", &["actor", path, "--on", node, "--save", &file.display().to_string()]);
        assert!(saved["error"].is_null(), "{saved}");
        let (good, text) = replay(&file);
        assert!(good, "{path} of {node}: {text}");
        let last = saved["data"]["last"].as_u64().unwrap();
        assert!(last == 0 || text.contains(&format!("#{last} ")), "{path} of {node} is played to its end: {text}");
    }
    // The browser's link saves the same kind of file, of any moment that can be shown.
    let known = json(console, "/actor/node/control?node=web")["data"]["known"].clone();
    let at = known[0].as_u64().unwrap() + 2;
    let (status, head, body) = request(console, "GET", &format!("/recording/node/control?node=web&at={at}"), "");
    assert_eq!((status, head.contains("attachment; filename=\"control.recording.json\"")), (200, true), "{head}");
    let file = directory.path().join("saved.json");
    std::fs::write(&file, &body).unwrap();
    let (good, text) = replay(&file);
    assert!(good && text.contains(&format!("#{at} ")), "{text}");
    // A recording that was tampered with is found.
    let mut changed: Value = serde_json::from_str(&body).unwrap();
    changed["noun"] = Value::from("relay");
    std::fs::write(&file, changed.to_string()).unwrap();
    assert!(!replay(&file).0, "what is no recording of a relay does not play as one");
}

/// A form of the page Act; status and answer.
fn act(console: &str, form: &str) -> (u16, String) {
    let address = console.trim_start_matches("http://");
    let length = form.len();
    let headers =
        format!("Origin: {console}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "POST /act HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n{form}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

/// Flows that lie on one relay are spread over others, and go on.
fn rebalanced(fleet: &Fleet) {
    let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("db={}", target.local_addr().unwrap());
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in target.incoming().map_while(Result::ok) {
            let mut other = stream.try_clone().unwrap();
            let mut stream = stream;
            open.push(thread::spawn(move || std::io::copy(&mut stream, &mut other)));
        }
    });
    let mut flows = Vec::new();
    for (link, node) in [("two", "par"), ("three", "ams")] {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let made =
            fleet.run("control-2", &["link", "add", link, "--from", &format!("{node}=127.0.0.1:{port}"), "--to", &to]);
        assert!(made["error"].is_null(), "{made}");
        for _ in 0..6 {
            let mut flow = None;
            eventually("the link listens", || {
                flow = TcpStream::connect(("127.0.0.1", port)).ok();
                flow.is_some()
            });
            flows.push(flow.unwrap());
        }
    }
    let mut echo = |text: &[u8]| {
        for flow in &mut flows {
            flow.set_read_timeout(Some(PATIENCE)).unwrap();
            flow.write_all(text).unwrap();
            let mut back = vec![0; text.len()];
            flow.read_exact(&mut back).unwrap();
            assert_eq!(back, text);
        }
    };
    echo(b"before");
    // What drains leaves everything on the one that is left, and nothing comes back by itself.
    let others = ["control-2", "control-3", "fra", "ams", "par"];
    for (verb, relays) in [("drain", &others[..]), ("resume", &others[..])] {
        for relay in relays {
            let changed = fleet.run("control-2", &["relay", verb, relay]);
            assert!(changed["error"].is_null(), "{changed}");
        }
    }
    let planned = |fleet: &Fleet| {
        let plan = fleet.run("control-2", &["relay", "rebalance", "--dry-run"]);
        assert_eq!(plan["data"]["dry_run"], true, "{plan}");
        plan["data"]["moves"].as_array().unwrap().clone()
    };
    eventually("the leader has heard where flows are", || {
        planned(fleet).iter().any(|next| next["from"] == "control-1" && next["done"] == false && next["flows"] == 6)
    });
    let done = fleet.run("control-2", &["relay", "rebalance"]);
    let moves = done["data"]["moves"].as_array().unwrap_or_else(|| panic!("{done}")).clone();
    // What the leader has heard is some seconds old: a circuit that was surplus may have been closed since.
    let warned = done["warnings"].as_array().unwrap();
    let missed = moves.iter().filter(|next| next["done"] == false).count();
    assert!(
        warned.len() == missed && warned.iter().all(|it| it.as_str().unwrap().contains("CIRCUIT_UNKNOWN")),
        "{done}"
    );
    let moved = moves.iter().find(|next| next["done"] == true && next["flows"] == 6);
    let moved = moved.unwrap_or_else(|| panic!("{done}"));
    eventually("the circuit is where it was to go", || {
        let why = fleet.run("control-2", &["why"]);
        let placements = why["data"]["placements"].as_array().unwrap().clone();
        placements
            .iter()
            .any(|it| it["node"] == moved["node"] && it["peer"] == moved["peer"] && it["relay"] == moved["to"])
    });
    echo(b"after");
    eventually("there is nothing left to move", || planned(fleet).is_empty());
}

impl Fleet {
    /// A token for acting from a node's console.
    fn token(&self, node: &str, name: &str, role: &str) -> String {
        let made = self.run(node, &["console", "--make-token", name, "--role", role]);
        made["data"]["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }
}

/// What may be done, by whom, and that the cluster writes it down.
fn acting(fleet: &Fleet, console: &str) {
    let (acts, reads) = (fleet.token("control-1", "ann", "act"), fleet.token("control-1", "bob", "read"));
    let form = |deed: &str, token: &str| format!("do={deed}&reason=because+of+a+test&token={token}");
    let (status, answer) = act(console, &form("drain&what=fra", &reads));
    assert_eq!((status, answer.contains("TOKEN_WRONG")), (401, true), "{answer}");
    let relay = |name: &str| {
        let list = json(console, "/")["data"]["relays"]["list"].clone();
        let relay = list.as_array().unwrap().iter().find(|relay| relay["name"] == name).cloned().unwrap();
        relay["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(relay("fra"), "ready", "nothing was done by a token that only reads");
    // Drain and resume.
    let (status, answer) = act(console, &form("drain&what=fra", &acts));
    assert_eq!(status, 303, "{answer}");
    eventually("the relay drains", || relay("fra") == "draining");
    let (status, answer) = act(console, &form("resume&what=fra", &acts));
    assert_eq!(status, 303, "{answer}");
    eventually("the relay is ready again", || relay("fra") == "ready");
    let (status, answer) = act(console, &form("drain&what=nobody", &acts));
    assert_eq!((status, answer.contains("NODE_UNKNOWN")), (404, true), "{answer}");
    // An actor of another node, which does not run on the one that serves the page.
    let restarts = |node: &str| {
        json(console, &format!("/actor/node/control?node={node}"))["data"]["actor"]["restarts"].as_u64().unwrap()
    };
    let before = restarts("web");
    let (status, answer) = act(console, &form("restart&what=node/control&on=web", &acts));
    assert_eq!(status, 303, "{answer}");
    eventually("another node's actor was restarted", || restarts("web") == before + 1);
    // A lead is handed over.
    let leader = || json(console, "/control")["data"]["view"]["leader"].as_u64();
    let led = leader();
    let (status, answer) = act(console, &form("step-down", &acts));
    assert_eq!(status, 303, "{answer}");
    eventually("another leads", || leader().is_some_and(|leader| Some(leader) != led));
    eventually("the fleet can be changed again", || act(console, &form("rebalance", &acts)).0 == 303);
    rebalanced(fleet);
    // Every deed was written down by the cluster before it was done: any control node tells of it.
    let audit = fleet.run("control-3", &["audit"]);
    let lines: Vec<&str> =
        audit["data"]["lines"].as_array().unwrap().iter().filter_map(|line| line["what"].as_str()).collect();
    for what in ["drain relay fra", "resume relay fra", "restart actor node/control of web", "step down"] {
        let line = format!("ann by the console of control-1: {what}, since because of a test");
        assert!(lines.contains(&line.as_str()), "{line} is not in {lines:#?}");
    }
    assert!(lines.contains(&"relay fra is taken out of service"), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("bob")), "what was refused for the token is no deed: {lines:#?}");
    // A workload node's console restarts its own actors, with the same line, and nothing else.
    let own = fleet.console_of("web");
    let carl = fleet.token("web", "carl", "act");
    let (status, answer) = act(&own, &form("restart&what=node/self", &carl));
    assert_eq!(status, 303, "{answer}");
    let (status, answer) = act(&own, &form("restart&what=node/self&on=db", &carl));
    assert_eq!((status, answer.contains("NOT_CONTROL")), (409, true), "{answer}");
    let (status, answer) = act(&own, &form("drain&what=fra", &carl));
    assert_eq!((status, answer.contains("NOT_CONTROL")), (409, true), "{answer}");
    let audit = fleet.run("web", &["audit"]);
    assert!(audit.to_string().contains("carl by the console of web: restart actor node/self"), "{audit}");
}

/// Pages, API and commands say the same in one envelope; figures are in Prometheus' format.
fn scripts(fleet: &Fleet, console: &str) {
    for path in ["/", "/tree?node=db", "/actors", "/topology", "/control", "/why", "/actor/node/control?node=web"] {
        let page = json(console, path);
        assert_eq!((&page["version"], page["data"].is_object()), (&Value::from(1), true), "{path}: {page}");
    }
    let top = fleet.run("control-1", &["top", "--on", "web", "--sort", "path"]);
    let page = json(console, "/actors?node=web&sort=path&limit=20&window=20");
    let paths = |value: &Value| {
        value["data"]["rows"].as_array().unwrap().iter().map(|row| row["path"].clone()).collect::<Vec<_>>()
    };
    assert!(!paths(&page).is_empty());
    assert_eq!(paths(&top), paths(&page));
    // A workload node shows the fleet too, through a control node.
    let overview = fleet.run("web", &["diagnose"]);
    assert_eq!(overview["data"]["overview"]["cards"].as_array().unwrap().len(), 8, "{overview}");
    let actor = fleet.run("web", &["actor", "node/relay", "--on", "fra"]);
    assert_eq!(actor["data"]["actor"]["kind"], "relay", "{actor}");
    let why = fleet.run("db", &["why", "files"]);
    let placements = why["data"]["placements"].as_array().unwrap();
    let chooses = placements.iter().find(|placement| placement["chooses"] == true).unwrap();
    let carries = chooses["choices"].as_array().unwrap().iter().find(|choice| choice["carries"] == true).unwrap();
    assert_eq!(carries["if_it_dies"]["outcome"], "moves", "{why}");
    assert_eq!(fleet.run("db", &["why", "nobody"])["error"]["code"], "NAME_UNKNOWN");
    assert_eq!(fleet.run("db", &["top", "--on", "nobody"])["error"]["code"], "NODE_UNKNOWN");
    // The demonstration has just killed a relay, and what it was to others passes within seconds.
    eventually("the node is well", || {
        request(console, "GET", "/metrics", "").2.contains("postroad_health{state=\"well\"} 1\n")
    });
    let (status, _, text) = request(console, "GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(text.lines().any(|line| line.starts_with("postroad_actor_turns_total{behavior=\"relay\"} ")), "{text}");
}

/// What is not addressed to this host, or would change something, is refused.
fn strangers(console: &str) {
    let (status, _, body) = request(console, "GET", "/", "Host: evil.example\r\n");
    assert_eq!((status, body.contains("HOST_FOREIGN")), (403, true));
    for method in ["POST", "DELETE", "PUT"] {
        assert_eq!(request(console, method, "/api/leave", "Content-Length: 0\r\n").0, 405, "{method}");
    }
    assert_eq!(request(console, "GET", "/api/settings", "Accept: application/json\r\n").0, 404);
    let (_, head, _) = request(console, "GET", "/", "");
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
}

/// Every page, light and dark, wide and narrow: readable, within its width, without a complaint of the browser.
fn looks(browser: &mut Browser, console: &str, trace: &str) {
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&pictures).unwrap();
    let of_trace = format!("/trace/{trace}");
    for (name, path) in PAGES.into_iter().chain([("trace", of_trace.as_str())]) {
        for dark in [false, true] {
            for width in [1_400, 400] {
                browser.mode(Mode { dark, width, height: 900 });
                browser.open(&format!("{console}{path}"));
                eventually(&format!("{path} is shown"), || {
                    browser.number("return document.querySelector('main').innerText.length") > 20.0
                });
                let over = browser.number("return document.documentElement.scrollWidth - window.innerWidth");
                assert!(over <= 0.0, "{path} is {over} pixels wider than {width}");
                let failed = browser.number("return document.querySelectorAll('.failure').length");
                assert_eq!(failed > 0.0, name == "nothing", "{path}");
                let paper = browser.text("return getComputedStyle(document.body).backgroundColor");
                let light = paper.trim_start_matches("rgb(").split(',').next().unwrap().parse::<u32>().unwrap() > 128;
                assert_eq!(light, !dark, "{path} has paper {paper}");
                let theme = if dark { "dark" } else { "light" };
                browser.picture(&pictures.join(format!("{name}-{theme}-{width}.png")));
            }
        }
    }
    // The page that does not exist is the only one that may complain.
    let complaints: Vec<String> = browser.complaints().into_iter().filter(|text| !text.contains("nobody")).collect();
    assert_eq!(complaints, [""; 0]);
}

/// Keys lead everywhere, and filters stay in the address.
fn keys(browser: &mut Browser, console: &str) {
    browser.mode(Mode { dark: false, width: 1_400, height: 900 });
    browser.open(&format!("{console}/"));
    browser.run("window.here = 1");
    browser.keys("gt");
    eventually("g t leads to the tree", || browser.text("return location.pathname") == "/tree");
    browser.keys("n");
    eventually("n leads to the next node", || browser.text("return location.search").contains("node="));
    browser.keys("/");
    browser.keys("relay");
    eventually("a search is in the address", || browser.text("return location.search").contains("q=relay"));
    eventually("a search finds", || browser.number("return document.querySelectorAll('tr.found').length") > 0.0);
    assert!(
        browser.text("return document.activeElement.name") == "q",
        "the search keeps its focus while the page changes"
    );
    browser.run("document.activeElement.blur()");
    browser.keys("jj");
    assert!(browser.number("return document.querySelectorAll('tr.at').length") > 0.0);
    browser.keys("\n");
    eventually("Enter opens the row", || browser.text("return location.pathname").starts_with("/actor/"));
    assert!(browser.number("return window.here || 0") > 0.0, "the page was never loaded anew");
}

/// The state after each message, computed again from the journal, by keys and by the slider.
fn time_travel(browser: &mut Browser, console: &str) {
    browser.open(&format!("{console}/actor/node/control?node=web"));
    eventually("the slider is there", || {
        browser.number("return document.querySelectorAll('.time input[type=range]').length") > 0.0
    });
    let last = browser.number("return Number(document.querySelector('.time input[type=range]').max)");
    browser.keys("[");
    eventually("a message back is in the address", || {
        browser.text("return location.search").contains(&format!("at={}", last - 1.0))
    });
    eventually("the state of then is shown", || {
        browser.text("return document.querySelector('.state-view h2').innerText").contains("computed again")
    });
    let first = json(console, "/actor/node/control?node=web")["data"]["known"][0].as_u64().unwrap();
    let then = json(console, &format!("/actor/node/control?node=web&at={}", first + 1));
    let now = json(console, "/actor/node/control?node=web");
    assert_ne!(then["data"]["raw"], now["data"]["raw"], "the past differs from the present");
    let recording = json(console, "/recording/node/control?node=web");
    assert_eq!(
        (&recording["noun"], &recording["recording"]),
        (&Value::from("control"), &Value::from(1)),
        "{recording}"
    );
}

/// A message is followed by a click on an actor's page, and each step leads back to its actor.
fn timeline(browser: &mut Browser, console: &str, trace: &str) {
    browser.open(&format!("{console}/trace/{trace}"));
    eventually("the timeline is drawn", || {
        browser.number("return document.querySelectorAll('svg.timeline rect.turn').length") > 5.0
    });
    let lanes = browser
        .text("return [...document.querySelectorAll('svg.timeline text.node')].map(it => it.textContent).join()");
    for node in ["control-2", "web", "db"] {
        assert!(lanes.split(',').any(|lane| lane == node), "{node} has no lane in {lanes}");
    }
    browser.run("window.here = 1");
    browser.run("document.querySelector('table.steps td.path a').click()");
    eventually("a step leads to its actor", || browser.text("return location.pathname").starts_with("/actor/"));
    eventually("at that message", || browser.text("return location.search").contains("at="));
    browser.open(&format!("{console}/actor/node/sessions/relay-1?node=web"));
    eventually("messages are there", || browser.number("return document.querySelectorAll('a.trace').length") > 0.0);
    browser.run("window.here = 1");
    browser.keys("jf");
    eventually("f follows the marked message", || browser.text("return location.pathname").starts_with("/trace/"));
    assert!(browser.number("return window.here || 0") > 0.0, "the page was not loaded anew");
    let id = browser.text("return location.pathname").trim_start_matches("/trace/").to_owned();
    browser.run(&format!("document.querySelector('input[name=id]').value = '{trace}'"));
    browser.run("document.querySelector('form[action=\"/trace\"] button').click()");
    eventually("another trace is found by its number", || {
        let path = browser.text("return location.pathname");
        path == format!("/trace/{trace}") && path != format!("/trace/{id}")
    });
}

/// The forms of acting as a person fills them in: what is typed is no command of the page.
fn forms(browser: &mut Browser, fleet: &Fleet, console: &str) {
    let token = fleet.token("control-1", "eve", "act");
    browser.open(&format!("{console}/act"));
    browser.run("window.form = document.querySelector('form.deed input[value=restart]').form");
    browser.run("form.on.value = 'db'; form.what.focus()");
    browser.keys("node/control");
    browser.run("form.reason.focus()");
    browser.keys("going by keys? no, n p j k");
    browser.run("form.token.focus()");
    browser.keys(&token);
    assert_eq!(browser.text("return form.reason.value"), "going by keys? no, n p j k");
    browser.keys("\n");
    eventually("the deed is in the audit that is shown", || {
        let text = browser.text("return document.querySelector('main').innerText");
        text.contains("eve by the console of control-1: restart actor node/control of db, since going by keys?")
    });
    browser.open(&format!("{console}/act"));
    browser.run("window.form = document.querySelector('form.deed input[value=rebalance]').form");
    browser
        .run("form.reason.value = 'by a browser'; form.token.value = 'a guess'; form.querySelector('button').click()");
    eventually("a guess is refused", || {
        browser.text("return document.querySelector('main').innerText").contains("no token with the role act")
    });
}

/// Pages are read without scripts, and lead on by links and forms.
fn without_scripts(browser: &mut Browser, console: &str) {
    browser.scripts(false);
    for path in ["/", "/actors?node=web", "/tree?node=fra", "/actor/node/control?node=web", "/topology", "/why", "/act"]
    {
        let (status, _, body) = request(console, "GET", path, "");
        assert_eq!(status, 200, "{path}");
        let follows = body.contains("<noscript><meta http-equiv=\"refresh\"");
        assert!(follows == (path != "/act") && body.contains("<main"), "{path}");
        browser.open(&format!("{console}{path}"));
        let picture = browser.picture_bytes();
        assert!(picture.len() > 20_000, "{path} shows something without scripts: {} bytes", picture.len());
    }
    browser.scripts(true);
}

/// A node that does not answer is grey with its age, its pages are its last ones, and nobody waits for it.
fn silence(browser: &mut Browser, fleet: &Fleet, console: &str, trace: &str) {
    let stopped = fleet.pid_of("par");
    json(console, "/tree?node=par");
    browser.open(&format!("{console}/"));
    browser.run("window.here = 1");
    kill_process(stopped, Signal::STOP).unwrap();
    eventually("the silent node is grey", || {
        browser
            .text("return [...document.querySelectorAll('tr.silent')].map(it => it.innerText).join()")
            .contains("par")
    });
    let began = Instant::now();
    let (status, _, body) = request(console, "GET", "/tree?node=par", "");
    let took = began.elapsed();
    assert_eq!(status, 200);
    assert!(body.contains("par does not answer; this is what it showed"), "{body}");
    // A second of patience with the node, and the machine's own slowness.
    assert!(took < Duration::from_secs(8), "{took:?}");
    // What it may have done for a request is a gap in the timeline, which is there all the same.
    let page = json(console, &format!("/trace/{trace}"));
    let silent = page["data"]["silent"].as_array().unwrap();
    assert!(silent.iter().any(|silent| silent["node"] == "par"), "{page}");
    assert!(page["data"]["steps"].as_array().unwrap().len() > 5, "{page}");
    let (_, _, body) = request(console, "GET", &format!("/trace/{trace}"), "");
    assert!(body.contains("silent: what it did is not known"), "{body}");
    kill_process(stopped, Signal::CONT).unwrap();
    eventually("it is back", || {
        !browser
            .text("return [...document.querySelectorAll('tr.silent')].map(it => it.innerText).join()")
            .contains("par")
    });
    let killed = fleet.pid_of("ams");
    kill_process(killed, Signal::KILL).unwrap();
    eventually("the killed node is seen", || {
        let text = browser.text("return document.querySelector('#live').innerText");
        text.contains("silent") || text.contains("unreachable")
    });
    eventually("it is back after its restart", || {
        let overview = json(console, "/");
        let cards = overview["data"]["cards"].as_array().unwrap().clone();
        cards.iter().all(|card| card["heard"]["silence"].is_null())
    });
    assert!(browser.number("return window.here || 0") > 0.0, "the open page followed without being loaded anew");
}

/// A terminal of its own, by tmux. It ends with this.
struct Pane(String);

impl Pane {
    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.0, "-f", "/dev/null"]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys", "-t", "console"], keys].concat());
    }

    fn shows(&self, text: &str) {
        let mut last = String::new();
        let until = Instant::now() + PATIENCE;
        while !last.contains(text) {
            assert!(Instant::now() < until, "the terminal never shows {text:?}:\n{last}");
            thread::sleep(Duration::from_millis(100));
            last = self.tmux(&["capture-pane", "-p", "-t", "console"]);
        }
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn terminal(fleet: &Fleet) {
    let pane = Pane(format!("postroad-test-{}", std::process::id()));
    let command = format!("{POSTROAD} --data {} console", fleet.directory.join("control-1").display());
    pane.tmux(&["new-session", "-d", "-s", "console", "-x", "140", "-y", "45", &command]);
    pane.shows("can lose");
    pane.shows("control-2");
    pane.keys(&["?"]);
    pane.shows("any key closes this");
    // Apart, since a terminal takes an escape right before a key for that key with Alt.
    pane.keys(&["Escape"]);
    thread::sleep(Duration::from_millis(300));
    pane.keys(&["2"]);
    pane.shows("actors, by busy");
    pane.keys(&["n", "n"]);
    pane.shows(" on ");
    pane.keys(&["/", "relay", "Enter"]);
    pane.shows("node/sessions/relay-");
    pane.keys(&["Enter"]);
    pane.shows("Messages");
    pane.keys(&["["]);
    pane.shows("State after event");
    // To the messages, which are below the state.
    pane.keys(&["t"]);
    pane.shows("steps on");
    pane.keys(&["Escape"]);
    thread::sleep(Duration::from_millis(300));
    pane.keys(&["3"]);
    pane.shows("below it");
    pane.keys(&["4"]);
    pane.shows("voted for");
    pane.keys(&["5"]);
    pane.shows("if it dies");
    pane.keys(&["q"]);
    eventually("q leaves", || !pane.tmux(&["list-sessions"]).contains("console"));
}

/// A node of its own, which is a cluster by itself. It ends with this.
struct Single {
    directory: tempfile::TempDir,
    process: Option<Child>,
    console: String,
}

impl Single {
    fn found() -> Self {
        let ports: Vec<u16> = {
            let listeners: Vec<_> = (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
        };
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("passphrase"), "four random words\n").unwrap();
        std::fs::write(directory.path().join("postroad.toml"), "").unwrap();
        let single = Self { directory, process: None, console: format!("http://127.0.0.1:{}", ports[1]) };
        let relay = format!("127.0.0.1:{}", ports[0]);
        let authority = single.path("authority");
        let passphrase = single.path("passphrase");
        let founded = single.run(
            &relay,
            &[
                "init",
                "harbour",
                "--name",
                "ams",
                "--advertise",
                &relay,
                "--authority",
                &authority,
                "--passphrase-file",
                &passphrase,
            ],
        );
        assert!(founded["error"].is_null(), "{founded}");
        single
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn command(&self, relay: &str) -> Command {
        let mut command = Command::new(POSTROAD);
        command.args(["--config", &self.path("postroad.toml"), "--data", &self.path("data")]);
        command.env("POSTROAD_LISTEN_RELAY", relay).env("POSTROAD_LISTEN_OUTBOUND", "127.0.0.1:0");
        command.env("POSTROAD_CONSOLE_LISTEN", self.console.trim_start_matches("http://"));
        command
    }

    fn run(&self, relay: &str, arguments: &[&str]) -> Value {
        let output = self.command(relay).arg("--json").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    fn start(&mut self, act: &str) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        let mut command = self.command("127.0.0.1:0");
        command.env("POSTROAD_CONSOLE_ACT", act).stderr(Stdio::null()).arg("node");
        self.process = Some(command.spawn().unwrap());
        let address = self.console.trim_start_matches("http://").to_owned();
        eventually("the console listens", || TcpStream::connect(&address).is_ok());
    }

    /// Sends the form of the page Act as a browser would.
    fn act(&self, origin: &str, form: &str) -> (u16, String) {
        let headers = format!(
            "Origin: {origin}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
            form.len()
        );
        let address = self.console.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "POST /act HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n{form}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn the_console_acts_for_a_token_with_a_reason_and_for_nobody_else() {
    let mut single = Single::found();
    let token = single.run("127.0.0.1:0", &["console", "--make-token", "ann"]);
    let token = token["data"]["token"].as_str().unwrap_or_else(|| panic!("{token}")).to_owned();
    let form = |token: &str| format!("do=restart&what=node%2Fcontrol&reason=it+looked+odd&token={token}");
    single.start("off");
    let (status, answer) = single.act(&single.console, &form(&token));
    assert_eq!((status, answer.contains("CONSOLE_READS")), (403, true), "{answer}");
    single.start("on");
    let (status, answer) = single.act("http://evil.example", &form(&token));
    assert_eq!((status, answer.contains("CROSS_SITE")), (403, true), "{answer}");
    let (status, answer) = single.act(&single.console, &form("guess"));
    assert_eq!((status, answer.contains("TOKEN_WRONG")), (401, true), "{answer}");
    let restarts = |single: &Single| json(&single.console, "/actor/node/control")["data"]["actor"]["restarts"].as_u64();
    assert_eq!(restarts(&single), Some(0), "nothing has acted yet");
    let (status, answer) = single.act(&single.console, &form(&token));
    assert_eq!(status, 303, "{answer}");
    eventually("the actor was restarted", || restarts(&single) == Some(1));
    let (status, answer) = single.act(&single.console, &format!("do=restart&what=nobody&reason=because&token={token}"));
    assert_eq!((status, answer.contains("ACTOR_UNKNOWN")), (404, true), "{answer}");
    let agreed = single.run("127.0.0.1:0", &["audit"]);
    let noted = "ann by the console of ams: restart actor node/control, since it looked odd";
    assert!(agreed.to_string().contains(noted), "{agreed}");
    let audit = std::fs::read_to_string(single.path("data/console.audit")).unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{audit}");
    assert_eq!((&lines[0]["by"], &lines[0]["outcome"]), (&Value::from("ann"), &Value::from("done")), "{audit}");
    assert_eq!(lines[0]["what"], "restart actor node/control");
    assert_eq!(lines[1]["outcome"], "ACTOR_UNKNOWN");
    let (_, _, page) = request(&single.console, "GET", "/act", "");
    assert!(page.contains("it looked odd") && !page.contains(&token), "{page}");
    if there("chromedriver") {
        let mut browser = Browser::start();
        browser.open(&format!("{}/act", single.console));
        browser.run(
            "window.form = document.querySelector('form.deed input[value=restart]').form; \
                     form.what.value = 'node/self'; form.reason.value = 'by a browser';",
        );
        browser.run(&format!("form.token.value = '{token}'"));
        browser.run("form.querySelector('button').click()");
        eventually("the deed is in the audit that is shown", || {
            browser.text("return document.querySelector('main').innerText").contains("by a browser")
        });
    }
}

/// An address of this host that is none of its loopback.
fn outside_address() -> Option<std::net::Ipv4Addr> {
    // Nothing is sent: the system only says from where it would be.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(address) if !address.is_loopback() && !address.is_unspecified() => Some(address),
        _ => None,
    }
}

/// A page by `curl`, as from another machine; its status and body.
fn curl(arguments: &[&str]) -> (u16, String) {
    let output =
        Command::new("curl").args(["-sk", "-m", "30", "-w", "\n%{http_code}"]).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn other_machines_read_by_a_token_over_tls_and_not_at_all_without() {
    if !there("openssl") || !there("curl") {
        return;
    }
    let Some(outside) = outside_address() else {
        let required = std::env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!required, "this host has no address but loopback, and everything is required");
        println!("skipped: this host has no address but loopback");
        return;
    };
    let mut single = Single::found();
    let port = single.console.rsplit_once(':').unwrap().1.to_owned();
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Without TLS an open address is refused, by the node itself.
    let mut open = single.command("127.0.0.1:0");
    open.env("POSTROAD_CONSOLE_LISTEN", format!("0.0.0.0:{port}")).arg("node");
    let (good, text) = run(&mut open);
    assert!(!good && text.contains("CONSOLE_OPEN") && text.contains("console.certificate"), "{text}");
    let (certificate, key) = (single.path("console.pem"), single.path("console.key"));
    let made = run(Command::new("openssl").args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=console",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ]));
    assert!(made.0, "{}", made.1);
    // A key that others may read is refused.
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o644);
    let tls = |command: &mut Command| {
        command.env("POSTROAD_CONSOLE_LISTEN", format!("0.0.0.0:{port}"));
        command.env("POSTROAD_CONSOLE_CERTIFICATE", &certificate).env("POSTROAD_CONSOLE_KEY", &key);
    };
    let mut exposed = single.command("127.0.0.1:0");
    tls(&mut exposed);
    let (good, text) = run(exposed.arg("node"));
    assert!(!good && text.contains("CONSOLE_KEY_EXPOSED"), "{text}");
    mode(0o600);
    let token = |name: &str, role: &str| {
        let made = single.run("127.0.0.1:0", &["console", "--make-token", name, "--role", role]);
        made["data"]["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    };
    let (reads, acts) = (token("ann", "read"), token("bob", "act"));
    let mut command = single.command("127.0.0.1:0");
    tls(&mut command);
    command.env("POSTROAD_CONSOLE_ACT", "on").stderr(Stdio::null()).arg("node");
    single.process = Some(command.spawn().unwrap());
    eventually("the console listens", || TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    let there = format!("https://{outside}:{port}");
    let here = format!("https://127.0.0.1:{port}/");
    // Loopback alone is open, and only to its own names.
    assert_eq!(curl(&[&here]).0, 200);
    assert_eq!(curl(&["-H", "Host: evil.example", &here]).0, 403);
    let page = format!("{there}/actors");
    let (status, body) = curl(&[&page]);
    assert_eq!((status, body.contains("TOKEN_MISSING")), (401, true), "{body}");
    assert_eq!(curl(&["-H", "Authorization: Bearer guess", &page]).0, 401);
    assert_eq!(curl(&["-H", &format!("Authorization: Bearer {reads}"), &page]).0, 200);
    // As a browser asks for it, by whatever name the host is called there.
    let (status, body) = curl(&["-u", &format!("ann:{reads}"), "-H", "Host: ams.example:9440", &page]);
    assert_eq!((status, body.contains("node/relay")), (200, true), "{body}");
    assert_eq!(curl(&["-u", &format!("ann:{reads}"), &format!("{there}/metrics")]).0, 200);
    assert_eq!(curl(&[&format!("{there}/metrics")]).0, 401);
    assert_eq!(curl(&[&format!("{there}/live/")]).0, 401);
    // Reading is no acting, wherever one comes from.
    let deed = |door: &str, form: &str| {
        let origin = format!("Origin: {there}");
        let data = format!("do=restart&what=node/control&reason=from+afar&token={form}");
        let user = format!("x:{door}");
        curl(&["-u", &user, "-H", &origin, "-d", &data, &format!("{there}/act")])
    };
    let (status, body) = deed(&reads, &reads);
    assert_eq!((status, body.contains("TOKEN_WRONG")), (401, true), "{body}");
    assert_eq!(deed("", &acts).0, 401, "the form's token opens no door");
    assert_eq!(deed(&reads, &acts).0, 303);
    // The actor may still be on its way back.
    eventually("a token that acts opens the door too", || deed(&acts, &acts).0 == 303);
    // Unencrypted, nothing is said at all.
    assert_eq!(curl(&[&format!("http://{outside}:{port}/")]).0, 0);
}
