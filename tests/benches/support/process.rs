//! Processes that end with the bench, and programs that may be missing.

use std::{
    env,
    fs::File,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a process may take to end when it is asked to.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A process that is ended and reaped when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it says goes to `log`.
    pub(crate) fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot start {name}: {error}");
        let out = File::create(log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(failed)?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it takes connections on `address`.
    pub(crate) fn listens(&mut self, address: SocketAddr, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{} has ended ({status}): {}", self.name, self.said()));
            }
            if Instant::now() > until {
                return Err(format!("{} does not listen on {address}: {}", self.name, self.said()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until `find` finds something in what it has said.
    pub(crate) fn says<T>(&mut self, limit: Duration, find: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let until = Instant::now() + limit;
        loop {
            if let Some(found) = find(&self.said()) {
                return Ok(found);
            }
            if Instant::now() > until || matches!(self.child.try_wait(), Ok(Some(_))) {
                return Err(format!("{} has not said what was waited for: {}", self.name, self.said()));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Asked first: a master that is killed leaves its workers behind.
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where `program` is: in the path, beside administrators' programs, or in cargo's directory. Where it is missing the
/// bench goes on without it and says so, unless `POSTROAD_REQUIRE_ALL=1` makes that a failure.
pub(crate) fn program(name: &str) -> Result<Option<PathBuf>, String> {
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let path = env::var_os("PATH").unwrap_or_default();
    let more = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")].into_iter().chain(cargo.map(|it| it.join("bin")));
    if let Some(found) = env::split_paths(&path).chain(more).map(|place| place.join(name)).find(|it| it.is_file()) {
        return Ok(Some(found));
    }
    if env::var_os("POSTROAD_REQUIRE_ALL").is_some_and(|value| value == "1") {
        return Err(format!("{name} is not installed, and POSTROAD_REQUIRE_ALL=1 asks for everything"));
    }
    println!("{name} is not installed: left out");
    Ok(None)
}

/// `count` ports of loopback that nobody listens on now.
pub(crate) fn ports(count: usize) -> Result<Vec<u16>, String> {
    let bound = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>();
    let bound = bound.map_err(|error| format!("no free port on 127.0.0.1: {error}"))?;
    bound.iter().map(|it| it.local_addr().map(|it| it.port()).map_err(|error| error.to_string())).collect()
}
