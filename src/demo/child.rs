//! A child process: its log in a file, its life tied to ours, killed and reaped when it is dropped.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::leash;

/// How often a child is looked at while somebody waits for its end.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The longest part of a log that is shown or parsed, in bytes.
const TAIL_BYTES: u64 = 16 << 10;
/// The longest answer of a command, in bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A child process.
#[derive(Debug)]
pub struct Child {
    process: Process,
    /// The other end of its standard input. It ends with this process, however that ends.
    leash: Option<ChildStdin>,
}

impl Child {
    /// Starts `command` in a process group of its own, so that Ctrl-C reaches us alone; what it writes goes to
    /// `stdout` and `stderr`, after what stands there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(command: &mut Command, stdout: &Path, stderr: &Path) -> io::Result<Self> {
        // Settings of whoever runs the demonstration are not meant for its nodes.
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.to_string_lossy().starts_with("POSTROAD_")) {
            if command.get_envs().all(|(given, value)| given != name || value.is_none()) {
                command.env_remove(name);
            }
        }
        command.env_remove("STATE_DIRECTORY").env(leash::VARIABLE, "1").process_group(0);
        command.stdin(Stdio::piped()).stdout(append(stdout)?).stderr(append(stderr)?);
        let mut process = command.spawn()?;
        Ok(Self { leash: process.stdin.take(), process })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has; it is reaped then.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Kills it by SIGKILL and reaps it. One that has ended already is left as it is.
    pub fn kill(&mut self) {
        self.leash = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Asks it to stop, by SIGTERM.
    pub fn ask_to_stop(&mut self) {
        if self.ended().is_none()
            && let Some(pid) = Pid::from_raw(self.pid().cast_signed())
        {
            // It may end in this very moment.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits for its end, at most so long.
    pub async fn end_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.ended() {
                None if Instant::now() < until => sleep(LOOK_EVERY).await,
                ended => return ended,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// What a command answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How it ended; nothing if it did not in time and was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub stdout: String,
    /// The end of its standard error.
    pub stderr: String,
}

/// Runs a command to its end, at most so long. `place` is where its output goes meanwhile; it is removed afterwards.
///
/// # Errors
/// Those of the system.
pub async fn run(mut command: Command, place: PathBuf, limit: Duration) -> io::Result<Answer> {
    let (out, err) = (place.with_extension("out"), place.with_extension("err"));
    let mut child = Child::start(&mut command, &out, &err)?;
    let status = child.end_within(limit).await;
    drop(child);
    let mut stdout = String::new();
    File::open(&out)?.take(ANSWER_BYTES_MAX).read_to_string(&mut stdout)?;
    let stderr = tail(&err, 20);
    for path in [out, err] {
        fs::remove_file(path)?;
    }
    Ok(Answer { status, stdout, stderr })
}

/// The last lines of a file; empty if it cannot be read.
pub fn tail(path: &Path, lines: usize) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut end = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut end)?;
        io::Result::Ok(String::from_utf8_lossy(&end).into_owned())
    };
    let text = read().unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_command_answers_by_status_and_both_streams() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("step");
        let answer = run(shell("echo yes; echo no >&2; exit 3"), place, Duration::from_secs(30)).await.unwrap();
        assert_eq!(answer.status.and_then(|status| status.code()), Some(3));
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("yes\n", "no"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "something is left");
    }

    #[tokio::test]
    async fn a_child_that_stays_is_killed_and_one_on_a_leash_ends_with_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let place = directory.path().join("step");
        let answer = run(shell("exec sleep 600"), place, Duration::from_millis(50)).await.unwrap();
        assert_eq!(answer.status, None);
        let mut child = Child::start(&mut shell("cat; echo let go"), &log, &log).unwrap();
        assert_eq!(child.ended(), None);
        child.leash = None;
        assert!(child.end_within(Duration::from_secs(30)).await.is_some_and(|status| status.success()));
        assert_eq!(tail(&log, 5), "let go");
    }

    #[test]
    fn a_tail_is_the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        assert_eq!(tail(&log, 3), "", "it is not there");
        fs::write(&log, "a\nb\nc\nd\n").unwrap();
        assert_eq!(tail(&log, 2), "c\nd");
        assert_eq!(tail(&log, 9), "a\nb\nc\nd");
    }
}
