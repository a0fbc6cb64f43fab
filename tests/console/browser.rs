//! A headless Chromium, driven by the `WebDriver` protocol over plain HTTP.

use std::{
    io::{BufRead, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// How a page is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) dark: bool,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// A browser, which ends with this.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("chromedriver");
        let driver = command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let until = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "chromedriver does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut browser = Self { driver, port, session: String::new(), profile };
        let directory = format!("--user-data-dir={}", browser.profile.path().display());
        // Nothing but the page under test: no sandbox, since tests run as root, and no calls home.
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            &directory,
        ];
        let options = json!({ "goog:chromeOptions": { "args": arguments }, "goog:loggingPrefs": { "browser": "ALL" } });
        let made = browser.call("POST", "/session", &json!({ "capabilities": { "alwaysMatch": options } }));
        let session = made["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {made}"));
        session.clone_into(&mut browser.session);
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let answer = body_of(&mut BufReader::new(stream));
        let mut value: Value = serde_json::from_slice(&answer)
            .unwrap_or_else(|error| panic!("{path}: {error}: {}", String::from_utf8_lossy(&answer)));
        value["value"].take()
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let value = self.call(method, &format!("/session/{}{path}", self.session), body);
        assert!(value["error"].is_null(), "{path}: {value}");
        value
    }

    fn tell(&self, command: &str, parameters: &Value) {
        self.ask("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// Looks at pages in this way from now on.
    pub(crate) fn mode(&mut self, mode: Mode) {
        let scheme = if mode.dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tell("Emulation.setEmulatedMedia", &features);
        let metrics = json!({
            "width": mode.width, "height": mode.height, "deviceScaleFactor": 1, "mobile": mode.width < 600,
        });
        self.tell("Emulation.setDeviceMetricsOverride", &metrics);
    }

    pub(crate) fn open(&mut self, address: &str) {
        self.ask("POST", "/url", &json!({ "url": address }));
    }

    /// Runs a script and gives what it returns.
    pub(crate) fn run(&mut self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    pub(crate) fn text(&mut self, script: &str) -> String {
        self.run(script).as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn number(&mut self, script: &str) -> f64 {
        self.run(script).as_f64().unwrap_or(f64::NAN)
    }

    /// Presses keys, one after the other.
    pub(crate) fn keys(&mut self, keys: &str) {
        let press = |key: char| {
            let value = if key == '\n' { "\u{e007}".to_owned() } else { key.to_string() };
            [json!({ "type": "keyDown", "value": value }), json!({ "type": "keyUp", "value": value })]
        };
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        self.ask("POST", "/actions", &json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] }));
    }

    /// What the browser complained of since it was last asked.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({ "type": "browser" }));
        let severe = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Whether pages run their scripts from now on.
    pub(crate) fn scripts(&mut self, run: bool) {
        self.tell("Emulation.setScriptExecutionDisabled", &json!({ "value": !run }));
    }

    /// What is seen, as a PNG.
    pub(crate) fn picture_bytes(&mut self) -> Vec<u8> {
        let picture = self.ask("GET", "/screenshot", &Value::Null);
        decoded(picture.as_str().unwrap())
    }

    /// Saves what is seen, for people.
    pub(crate) fn picture(&mut self, path: &Path) {
        std::fs::write(path, self.picture_bytes()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The body of an answer, as long as its head says: the driver keeps connections open.
fn body_of(stream: &mut impl BufRead) -> Vec<u8> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim().to_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            None if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    body
}

/// The bytes of a text in base 64.
fn decoded(text: &str) -> Vec<u8> {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for value in text.bytes().filter_map(|byte| SIGNS.iter().position(|sign| *sign == byte)) {
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
