//! A real node in this process, a cluster by itself, with its console on a socket, and browsers that watch it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use postroad::{
    api::{self, Serving, Stop},
    boot,
    config::{self, Config, Sources},
    console::{
        act::Acting,
        listen::{Listening, listen},
    },
};
use postroad_actors::{
    directory::Context,
    handle::Handle,
    root::{self, NodeHandle},
    supervisor::{ChildSpec, Root},
};
use tokio::runtime::Runtime;

use super::sum::{Sum, handles};

/// Threads of the node: those that a small machine gives it.
pub(crate) const WORKERS: usize = 2;

/// The longest that a loaded node may take for a page before the bench gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// A node with its console.
pub(crate) struct Node {
    pub(crate) runtime: Runtime,
    actors: Arc<NodeHandle>,
    serving: Serving,
    listening: Listening,
    _directory: tempfile::TempDir,
}

/// Founds a cluster of one node in this directory, by the program, and gives its configuration.
fn founded(directory: &Path) -> Config {
    let path = |name: &str| directory.join(name).display().to_string();
    std::fs::write(path("passphrase"), "four random words\n").expect("the directory can be written");
    let file = format!(
        "[node]\ndata = \"{}\"\nname = \"large\"\n\n[listen]\nrelay = \"127.0.0.1:0\"\noutbound = \"127.0.0.1:0\"\n",
        path("data")
    );
    std::fs::write(path("postroad.toml"), file).expect("the directory can be written");
    let founded = Command::new(env!("CARGO_BIN_EXE_postroad"))
        .args(["--config", &path("postroad.toml"), "init", "bench", "--advertise", "127.0.0.1:9"])
        .args(["--authority", &path("authority"), "--passphrase-file", &path("passphrase")])
        .output()
        .expect("the program runs");
    assert!(founded.status.success(), "{}", String::from_utf8_lossy(&founded.stderr));
    let sources = Sources { file: Some(directory.join("postroad.toml")), ..Sources::default() };
    config::load(&sources).unwrap_or_else(|failure| panic!("{failure}")).config
}

impl Node {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let config = founded(directory.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
        let runtime = runtime.expect("the system gives threads");
        let (node, serving, listening) = runtime.block_on(async {
            let opened =
                boot::open(&config, &tokio::runtime::Handle::current()).unwrap_or_else(|failure| panic!("{failure}"));
            let node = root::start(opened.ports, opened.settings, opened.databases).await;
            let node = Arc::new(node.unwrap_or_else(|error| panic!("{error}")));
            let (stop, _) = Stop::new();
            let serving = api::serve(&config.api.socket, Arc::clone(&node), stop, false);
            let serving = serving.unwrap_or_else(|failure| panic!("{failure}"));
            let acting = Acting::within(&config.node.data);
            let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
            let listening = listen(anywhere, None, serving.pages(), acting, false).await;
            (node, serving, listening.unwrap_or_else(|failure| panic!("{failure}")))
        });
        Self { runtime, actors: node, serving, listening, _directory: directory }
    }

    /// Adds a tree of actors beside its own, where its console sees them.
    pub(crate) fn add(&self, children: Vec<ChildSpec>, count: usize) -> Vec<Handle<Sum>> {
        let fabric = self.actors.fabric();
        let context = Context {
            clock: fabric.clock.clone(),
            entropy: Arc::clone(&fabric.entropy),
            directory: self.actors.directory().clone(),
            node: "large".into(),
        };
        let started = Root::start(context, "load", move |_| children, |reason| panic!("{reason}"));
        // It runs on without its handle.
        self.runtime.block_on(started).expect("the tree starts");
        handles(self.actors.directory(), count)
    }

    fn connect(&self, address: &str, accept: &str) -> TcpStream {
        let console = self.listening.address;
        let mut stream = TcpStream::connect(console).expect("the console listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("sockets have timeouts");
        write!(stream, "GET {address} HTTP/1.1\r\nHost: {console}\r\n{accept}Connection: close\r\n\r\n")
            .expect("the console takes a request");
        stream
    }

    /// How long a page takes, over the socket to its last byte.
    pub(crate) fn page(&self, address: &str) -> Duration {
        let began = Instant::now();
        let mut page = String::new();
        self.connect(address, "Accept: text/html\r\n").read_to_string(&mut page).expect("the page comes whole");
        let took = began.elapsed();
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("</html>"), "{address}: {page}");
        took
    }

    pub(crate) fn stop(self) {
        self.listening.stop();
        self.runtime.block_on(async {
            self.serving.stop().await;
            self.actors.kill();
        });
        self.runtime.shutdown_background();
    }
}

/// Browsers that have pages open. What they do with them costs the node nothing, so they only read.
pub(crate) struct Browsers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Browsers {
    pub(crate) fn open(node: &Node, addresses: &[&str]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watch = |address: &&str| {
            let mut stream = node.connect(&format!("/live{address}"), "Accept: text/event-stream\r\n");
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let (mut answers, mut buffer) = (0, vec![0; 1 << 16]);
                while !over.load(Ordering::Relaxed) {
                    match stream.read(&mut buffer) {
                        Ok(0) | Err(_) => break,
                        // Each answer, be it a page or that it is as before, begins so.
                        Ok(count) => answers += buffer[..count].windows(7).filter(|part| part == b"event: ").count(),
                    }
                }
                answers as u64
            })
        };
        let threads = addresses.iter().map(watch).collect();
        Self { over, threads }
    }

    /// Closes them; how many answers all of them got.
    pub(crate) fn close(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        // Each hears of it with its next answer.
        self.threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
    }
}
