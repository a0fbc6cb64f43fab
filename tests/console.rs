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
        let arguments = ["demo", "--transfer-mib", "1", "--flows", "8", "--deaths", "1"];
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

/// Every page, as people open it.
const PAGES: [(&str, &str); 9] = [
    ("overview", "/"),
    ("topology", "/topology"),
    ("control", "/control"),
    ("why", "/why"),
    ("why-relay", "/why?relay=fra"),
    ("tree", "/tree?node=fra"),
    ("actors", "/actors?node=web&sort=rate"),
    ("actor", "/actor/node/sessions/relay-1?node=web"),
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
    if there("chromedriver") {
        let mut browser = Browser::start();
        looks(&mut browser, &console);
        keys(&mut browser, &console);
        time_travel(&mut browser, &console);
        silence(&mut browser, &fleet, &console);
    }
    if there("tmux") {
        terminal(&fleet);
    }
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
fn looks(browser: &mut Browser, console: &str) {
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&pictures).unwrap();
    for (name, path) in PAGES {
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

/// A node that does not answer is grey with its age, its pages are its last ones, and nobody waits for it.
fn silence(browser: &mut Browser, fleet: &Fleet, console: &str) {
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
            "const form = document.querySelectorAll('form.deed')[3]; \
                     form.what.value = 'node/self'; form.reason.value = 'by a browser';",
        );
        browser.run(&format!("document.querySelectorAll('form.deed')[3].token.value = '{token}'"));
        browser.run("document.querySelectorAll('form.deed')[3].querySelector('button').click()");
        eventually("the deed is in the audit that is shown", || {
            browser.text("return document.querySelector('main').innerText").contains("by a browser")
        });
    }
}
