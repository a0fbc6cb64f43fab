//! How the console acts: for whom, on which nodes, and what is written down; and who may read it from other machines.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "console/browser.rs"]
mod browser;
#[path = "console/fleet.rs"]
mod fleet;

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
};

use browser::Browser;
use fleet::{Fleet, PATIENCE, POSTROAD, act, act_from, all_are_heard, eventually, json, request, there};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

#[test]
fn a_live_fleet_is_acted_on_by_tokens_forms_and_nobody_else() {
    let fleet = Fleet::start(0);
    let console = fleet.console.clone();
    all_are_heard(&console);
    acting(&fleet, &console);
    if there("chromedriver") {
        forms(&mut Browser::start(), &fleet, &console);
    }
    refused_elsewhere(&fleet, &console);
}

impl Fleet {
    /// A token for acting from a node's console.
    fn token(&self, node: &str, name: &str, role: &str) -> String {
        let made = self.run(node, &["console", "--make-token", name, "--role", role]);
        made["data"]["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }
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
            // A leader that has just begun has not heard of every relay yet, and says so.
            let mut changed = Value::Null;
            eventually("the leader knows the relay", || {
                changed = fleet.run("control-2", &["relay", verb, relay]);
                changed["error"]["code"] != "RELAY_NOT_CONNECTED"
            });
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
    let mut moved = Value::Null;
    eventually("a circuit with six flows was moved", || {
        let done = fleet.run("control-2", &["relay", "rebalance"]);
        let moves = done["data"]["moves"].as_array().unwrap_or_else(|| panic!("{done}"));
        // What the leader has heard is some seconds old: a circuit that was surplus may have been closed since.
        let warned = done["warnings"].as_array().unwrap();
        let missed = moves.iter().filter(|next| next["done"] == false).count();
        assert!(
            warned.len() == missed && warned.iter().all(|it| it.as_str().unwrap().contains("CIRCUIT_UNKNOWN")),
            "{done}"
        );
        moved = moves.iter().find(|next| next["done"] == true && next["flows"] == 6).cloned().unwrap_or_default();
        moved.is_object()
    });
    eventually("the circuit is where it was to go", || {
        let why = fleet.run("control-2", &["why"]);
        let placements = why["data"]["placements"].as_array().unwrap().clone();
        placements
            .iter()
            .any(|it| it["node"] == moved["node"] && it["peer"] == moved["peer"] && it["relay"] == moved["to"])
    });
    echo(b"after");
    // On a busy machine the leader hears of a shorter way to one of the others only now.
    eventually("rebalancing leaves nothing to move", || {
        fleet.run("control-2", &["relay", "rebalance"]);
        planned(fleet).is_empty()
    });
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
    let page = json(console, "/actor/node/control?node=web");
    let last = page["data"]["actor"]["history"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["error"], "an operator had it restarted", "{last}");
    assert!(last["state_before"].as_str().unwrap().contains("candidates") && last["backoff_ms"].is_u64(), "{last}");
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

/// A node whose console only reads has its actors restarted by nobody, whoever acts from another node's console.
fn refused_elsewhere(fleet: &Fleet, console: &str) {
    let config = fleet.directory.join("web.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains("act = \"on\"\n"), "{text}");
    std::fs::write(&config, text.replace("act = \"on\"\n", "")).unwrap();
    let (old, own) = (fleet.pid_of("web"), fleet.console_of("web"));
    // The demonstration starts it again, by its new configuration.
    kill_process(old, Signal::KILL).unwrap();
    let (acts, reads) = (fleet.token("control-1", "dan", "act"), fleet.token("web", "dan", "act"));
    let form =
        |token: &str, on: &str| format!("do=restart&what=node/links&on={on}&reason=from+elsewhere&token={token}");
    let page = |console: &str| request(console, "GET", "/actor/node/links?node=web", "Accept: application/json\r\n");
    eventually("the node is back and seen", || {
        TcpStream::connect(own.trim_start_matches("http://")).is_ok()
            && page(console).0 == 200
            && page(&own).0 == 200
            && fleet.try_pid_of("web").is_some_and(|pid| pid != old)
    });
    let mut last = (0, String::new());
    eventually("it answers the control node that wants it to act", || {
        last = act(console, &form(&acts, "web"));
        !last.1.contains("NODE_SILENT")
    });
    let (status, answer) = last;
    assert_eq!((status, answer.contains("CONSOLE_READS")), (403, true), "{answer}");
    assert!(answer.contains("the console of web only reads") && answer.contains("console.act"), "{answer}");
    let (status, answer) = act(&own, &form(&reads, ""));
    assert_eq!((status, answer.contains("CONSOLE_READS")), (403, true), "{answer}");
    let restarts = json(console, "/actor/node/links?node=web")["data"]["actor"]["restarts"].as_u64();
    assert_eq!(restarts, Some(0), "nothing was done");
    // What was refused there is written down here, with the code of what forbade it.
    let audit = std::fs::read_to_string(fleet.directory.join("control-1/console.audit")).unwrap();
    let line: Value = serde_json::from_str(audit.lines().last().unwrap()).unwrap();
    assert_eq!((&line["what"], &line["outcome"]), (&"restart actor node/links of web".into(), &"CONSOLE_READS".into()));
    // Others act as before.
    assert_eq!(act(console, &form(&acts, "db")).0, 303);
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
    let (status, answer) = act(&single.console, &form(&token));
    assert_eq!((status, answer.contains("CONSOLE_READS")), (403, true), "{answer}");
    single.start("on");
    let (status, answer) = act_from("http://evil.example", &single.console, &form(&token));
    assert_eq!((status, answer.contains("CROSS_SITE")), (403, true), "{answer}");
    let (status, answer) = act(&single.console, &form("guess"));
    assert_eq!((status, answer.contains("TOKEN_WRONG")), (401, true), "{answer}");
    let restarts = |single: &Single| json(&single.console, "/actor/node/control")["data"]["actor"]["restarts"].as_u64();
    assert_eq!(restarts(&single), Some(0), "nothing has acted yet");
    let (status, answer) = act(&single.console, &form(&token));
    assert_eq!(status, 303, "{answer}");
    eventually("the actor was restarted", || restarts(&single) == Some(1));
    let (status, answer) = act(&single.console, &format!("do=restart&what=nobody&reason=because&token={token}"));
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
