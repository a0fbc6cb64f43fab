//! What tests with servers of their own share: patience, ports, the accounts that servers run as, and certificates.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How long anything may take on a loaded machine; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// The monitoring account's password.
pub(crate) const MONITOR_PASSWORD: &str = "watching";
/// The application's.
pub(crate) const APPLICATION_PASSWORD: &str = "working";

/// Ports that nobody has now.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let sockets: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect()
}

/// Waits until `done` says something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "{what} did not happen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The directory of a cluster of servers, which refuse to run as root.
pub(crate) struct Home {
    directory: tempfile::TempDir,
    /// Whom they run as, where the tests run as root.
    pub(crate) user: Option<(u32, u32)>,
}

impl Home {
    /// One for servers that run as the account `name`, which Debian's package of theirs makes.
    pub(crate) fn new(name: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("postroad-servers").tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let user = rustix::process::geteuid().is_root().then(|| account(name));
        let home = Self { directory, user };
        home.own(home.directory.path());
        home
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Gives a file to the servers.
    pub(crate) fn own(&self, path: &Path) {
        if let Some((user, group)) = self.user {
            std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
        }
    }

    /// An authority of its own, `ca.pem`, and a certificate by it for this host, `server.crt` with `server.key`.
    pub(crate) fn make_certificate(&self) {
        fs::write(self.path("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
        for arguments in [
            "req -newkey rsa:2048 -nodes -x509 -keyout ca.key -out ca.pem -subj /CN=tests -days 2",
            "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost",
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt",
        ] {
            let mut openssl = Command::new("openssl");
            openssl.env_clear().env("PATH", "/usr/bin:/bin").current_dir(self.directory()).stdin(Stdio::null());
            let output = openssl.args(arguments.split(' ')).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        for name in ["server.key", "server.crt"] {
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
            self.own(&self.path(name));
        }
    }
}

fn account(name: &str) -> (u32, u32) {
    let accounts = fs::read_to_string("/etc/passwd").unwrap();
    let line = accounts.lines().find(|line| line.split(':').next() == Some(name));
    let fields: Vec<&str> = line.expect("the package makes an account").split(':').collect();
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}
