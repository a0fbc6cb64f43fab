//! The console in a terminal, driven and captured by tmux.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::fleet::{Fleet, PATIENCE, POSTROAD, eventually};

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

/// The console in a terminal, by its keys.
pub(crate) fn reads(fleet: &Fleet) {
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
    // A branch opens and closes where it is marked.
    pane.keys(&["h"]);
    pane.shows("▸ node");
    pane.keys(&["l"]);
    pane.shows("▾ node");
    pane.keys(&["6"]);
    pane.shows("there and back");
    pane.shows("⇄");
    pane.keys(&["4"]);
    pane.shows("voted for");
    pane.keys(&["5"]);
    pane.shows("if it dies");
    pane.keys(&["q"]);
    eventually("q leaves", || !pane.tmux(&["list-sessions"]).contains("console"));
}
