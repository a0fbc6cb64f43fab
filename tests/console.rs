//! The console on a live fleet, as it is read: in a real browser, light and dark, wide and narrow; in a terminal; and for
//! scripts. How it acts is in `console_acting.rs`.

#[path = "console/browser.rs"]
mod browser;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "console/fleet.rs"]
mod fleet;
#[path = "console/terminal.rs"]
mod terminal;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use browser::{Browser, Mode};
use fleet::{Fleet, POSTROAD, all_are_heard, eventually, json, request, there};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

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

/// Pages while one relay drains and another is silent.
const HURT: [(&str, &str); 6] = [
    ("hurt-overview", "/"),
    ("hurt-topology", "/topology"),
    ("hurt-control", "/control"),
    ("hurt-why", "/why"),
    ("hurt-tree", "/tree?node=par"),
    ("hurt-actors", "/actors?node=par"),
];

#[test]
fn the_console_shows_a_live_fleet_to_browsers_terminals_and_scripts() {
    let fleet = Fleet::start(1);
    let console = fleet.console.clone();
    all_are_heard(&console);
    scripts(&fleet, &console);
    strangers(&console);
    let trace = followed(&fleet, &console);
    alarms_of_others(&fleet, &console);
    replayed(&fleet, &console);
    if there("chromedriver") {
        let mut browser = Browser::start();
        let of_trace = format!("/trace/{trace}");
        looks(&mut browser, &console, &[&PAGES[..], &[("trace", of_trace.as_str())]].concat());
        keys(&mut browser, &console);
        time_travel(&mut browser, &console);
        timeline(&mut browser, &console, &trace);
        without_scripts(&mut browser, &console);
        silence(&mut browser, &fleet, &console, &trace);
    }
    if there("tmux") {
        terminal::reads(&fleet);
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
    // Whatever a state holds, it is shown part by part.
    for node in ["control-1", "fra", "web", "db"] {
        let actors = json(console, &format!("/actors?node={node}&limit=1000"));
        for path in paths(&actors) {
            let page = json(console, &format!("/actor/{}?node={node}", path.as_str().unwrap()));
            assert!(page["data"]["raw"].is_object(), "{path} of {node}: {}", page["data"]["raw"]);
            assert!(page["data"]["messages"].as_array().unwrap().iter().all(|it| it["kind"].is_string()));
        }
    }
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
    // A relay has the link's placements there, or is told that they are elsewhere; a circuit may move between two looks.
    let relays = why["data"]["relays"].as_array().unwrap().iter().map(|relay| relay.as_str().unwrap());
    let (mut here, mut elsewhere) = (0, 0);
    for relay in relays {
        let of = fleet.run("web", &["why", "files", relay]);
        assert!(!of["data"]["placements"].as_array().unwrap().is_empty(), "{of}");
        let about = of["data"]["about"].as_str().unwrap();
        here += usize::from(about == format!("link files on relay {relay}"));
        elsewhere += usize::from(about == format!("link files is not on relay {relay}, but here"));
    }
    assert!(here > 0 && elsewhere > 0, "{here} relays carry it and {elsewhere} do not: {why}");
    assert_eq!(fleet.run("db", &["why", "files", "nobody"])["error"]["code"], "RELAY_UNKNOWN");
    assert_eq!(fleet.run("db", &["why", "nobody"])["error"]["code"], "NAME_UNKNOWN");
    // What relays carry and forward now: the flows of the demonstration chat all the time.
    eventually("relays have flows and load", || {
        let page = json(console, "/")["data"].take();
        let relays = page["relays"]["list"].as_array().unwrap();
        let flows: u64 = relays.iter().filter_map(|relay| relay["flows"].as_u64()).sum();
        flows >= 8 && page["cards"].as_array().unwrap().iter().any(|card| card["heard"]["forwards"].as_u64() > Some(0))
    });
    assert_eq!(fleet.run("db", &["top", "--on", "nobody"])["error"]["code"], "NODE_UNKNOWN");
    // The demonstration has just killed a relay, and what it was to others passes within seconds.
    eventually("the node is well", || {
        request(console, "GET", "/metrics", "").2.contains("postroad_health{state=\"well\"} 1\n")
    });
    let (status, _, text) = request(console, "GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(text.lines().any(|line| line.starts_with("postroad_actor_turns_total{behavior=\"relay\"} ")), "{text}");
    // RP-55
    assert!(text.lines().any(|line| line == "# TYPE postroad_flow_stall_seconds histogram"), "{text}");
}

/// What is wrong on one node, and seen there alone, is an alarm for whoever looks at another.
fn alarms_of_others(fleet: &Fleet, console: &str) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let from = format!("web={}", taken.local_addr().unwrap());
    let made = fleet.run("control-2", &["link", "add", "blocked", "--from", &from, "--to", "db=127.0.0.1:9"]);
    assert!(made["error"].is_null(), "{made}");
    let alarm = |page: &Value| {
        let all = page["data"]["problems"].as_array().unwrap().clone();
        all.into_iter().find(|problem| problem["code"] == "LINK_LISTEN_FAILED")
    };
    let mut page = Value::Null;
    eventually("the alarm of web is heard", || {
        page = json(console, "/");
        alarm(&page).is_some()
    });
    let told = alarm(&page).unwrap();
    assert_eq!(told["about"], "link blocked on web", "{told}");
    assert!(told["what"].as_str().unwrap().starts_with("web says: link blocked does not listen on"), "{told}");
    assert!(page["data"]["sentence"].as_str().unwrap().contains("degraded"), "{}", page["data"]["sentence"]);
    let removed = fleet.run("control-2", &["link", "remove", "blocked"]);
    assert!(removed["error"].is_null(), "{removed}");
    eventually("the alarm is over", || alarm(&json(console, "/")).is_none());
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
fn looks(browser: &mut Browser, console: &str, pages: &[(&str, &str)]) {
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&pictures).unwrap();
    for (name, path) in pages {
        for dark in [false, true] {
            for width in [1_400, 400] {
                browser.mode(Mode { dark, width, height: 900 });
                browser.open(&format!("{console}{path}"));
                eventually(&format!("{path} is shown"), || {
                    browser.number("return document.querySelector('main').innerText.length") > 20.0
                });
                let over = browser
                    .number("return document.documentElement.scrollWidth - document.documentElement.clientWidth");
                assert!(over <= 0.0, "{path} is {over} pixels wider than {width}");
                let failed = browser.number("return document.querySelectorAll('.failure').length");
                assert_eq!(failed > 0.0, *name == "nothing", "{path}");
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
    browser.keys("j");
    let marked = browser.text("return document.querySelector('tr.at').dataset.row");
    assert_eq!(marked, "member control-1", "keys move on the first page too");
    browser.keys("\n");
    eventually("Enter leads on from there", || browser.text("return location.search") == "?node=control-1");
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
    for page in ["/tree?node=par", "/actors?node=par"] {
        json(console, page);
    }
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
    // The pages of a fleet that is hurt are as readable as those of one that is well.
    let drained = fleet.run("control-2", &["relay", "drain", "fra"]);
    assert!(drained["error"].is_null(), "{drained}");
    eventually("the relay drains", || {
        let page = json(console, "/");
        let relays = page["data"]["relays"]["list"].as_array().unwrap().clone();
        relays.iter().any(|relay| relay["name"] == "fra" && relay["state"] == "draining")
    });
    looks(browser, console, &HURT);
    browser.mode(Mode { dark: false, width: 1_400, height: 900 });
    browser.open(&format!("{console}/"));
    browser.run("window.here = 1");
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
    // The demo starts it again after two seconds, in which a busy machine's browser may not have looked once: so the demo
    // itself stands still until the death was seen.
    let killed = fleet.pid_of("ams");
    kill_process(fleet.pid(), Signal::STOP).unwrap();
    kill_process(killed, Signal::KILL).unwrap();
    eventually("the killed node is seen", || {
        let text = browser.text("return document.querySelector('#live').innerText");
        text.contains("silent") || text.contains("unreachable")
    });
    kill_process(fleet.pid(), Signal::CONT).unwrap();
    eventually("it is back after its restart", || {
        let overview = json(console, "/");
        let cards = overview["data"]["cards"].as_array().unwrap().clone();
        cards.iter().all(|card| card["heard"]["silence"].is_null())
    });
    assert!(browser.number("return window.here || 0") > 0.0, "the open page followed without being loaded anew");
}
