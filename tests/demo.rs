//! The demonstration as a newcomer and a script meet it: its whole story, and that nothing of it is ever left behind.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The demonstration with its directory in `temporary`, small enough for a build without optimizations.
fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postroad"));
    command.args(["demo", "--transfer-mib", "4", "--flows", "5"]).args(arguments).env("TMPDIR", temporary);
    command
}

/// Processes whose command line names `temporary`: their place in /proc, and that line.
fn processes(temporary: &Path) -> Vec<(PathBuf, String)> {
    let name = temporary.display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let lines = all.filter_map(|place| Some((fs::read(place.join("cmdline")).ok()?, place)));
    let lines = lines.map(|(line, place)| (place, String::from_utf8_lossy(&line).replace('\0', " ")));
    lines.filter(|(_, line)| line.contains(&name)).collect()
}

/// Huge pages of the allocator would hold up packets while the kernel clears them, wherever the system allows them.
fn assert_no_huge_pages(temporary: &Path) {
    let processes = processes(temporary);
    assert!(!processes.is_empty(), "no process names its directory");
    for (place, line) in processes {
        // Kernels before 5.0 do not say.
        let status = fs::read_to_string(place.join("status")).unwrap_or_default();
        let says = status.lines().find(|line| line.starts_with("THP_enabled:"));
        assert!(says.is_none_or(|says| says.ends_with('0')), "{line}: {says:?}");
    }
}

/// Waits until no process of the demonstration is left.
fn assert_all_gone(temporary: &Path) {
    let until = Instant::now() + Duration::from_mins(1);
    while !processes(temporary).is_empty() {
        assert!(Instant::now() < until, "left: {:?}", processes(temporary));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts it and waits until its first node leads, so that something runs.
fn begun(temporary: &Path) -> Child {
    let mut child = demo(temporary, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut heard = Vec::new();
    for line in told {
        heard.push(line);
        if heard.last().is_some_and(|line| line.contains("founds the cluster")) {
            assert_no_huge_pages(temporary);
            return child;
        }
    }
    let output = child.wait_with_output().unwrap();
    panic!("it ended: {heard:?} {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn two_relays_die_one_is_drained_and_nothing_is_lost() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--once", "--json"]).output().unwrap();
    let story = String::from_utf8_lossy(&output.stderr);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{answer:#} {story}");
    let data = &answer["data"];
    assert_eq!((answer["version"].as_u64(), data["ok"].as_bool()), (Some(1), Some(true)), "{answer:#}");
    for direction in ["upload", "download"] {
        let direction = &data["transfer"][direction];
        assert_eq!((direction["received"].as_u64(), direction["equal"].as_bool()), (Some(4 << 20), Some(true)));
        assert_eq!(direction["sent_sha256"], direction["received_sha256"]);
    }
    assert_eq!((data["endings"]["flows"].as_u64(), data["endings"]["clean"].as_u64()), (Some(7), Some(7)));
    assert!(data["chatty"]["answers"].as_u64().is_some_and(|answers| answers > 100), "{data:#}");
    let events = data["events"].as_array().unwrap();
    assert_eq!(events.len(), 2);
    for event in events {
        // RP-1: the flows went on over another relay while theirs was away.
        assert!(event["moved_to"].is_string() && event["moved_to"] != event["relay"], "{event}");
        assert!(event["flows"].as_u64().is_some_and(|flows| flows > 0), "{event}");
        assert!(event["longest_stall_ms"].as_u64().is_some_and(|stall| stall <= 5_000), "{event}");
    }
    // RP-40: a planned move is hardly felt.
    let drains = data["drains"].as_array().unwrap();
    assert_eq!(drains.len(), 1);
    for drain in drains {
        assert!(drain["moved_to"].is_string() && drain["moved_to"] != drain["relay"], "{drain}");
        assert!(drain["flows"].as_u64().is_some_and(|flows| flows > 0), "{drain}");
        assert!(drain["longest_gap_ms"].as_u64().is_some_and(|gap| gap <= 2_000), "{drain}");
    }
    let nodes = data["place"]["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 8);
    assert!(story.lines().count() > 8 && story.contains("nothing lost"), "{story}");
    assert_all_gone(temporary.path());
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "its directory is left");
}

#[test]
fn ctrl_c_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let child = begun(temporary.path());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ended by Ctrl-C"), "{said}");
    assert!(processes(temporary.path()).is_empty(), "left: {:?}", processes(temporary.path()));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "its directory is left");
}

#[test]
fn even_a_killed_demonstration_leaves_no_process() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child = begun(temporary.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_all_gone(temporary.path());
}
