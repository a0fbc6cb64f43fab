//! Wires the ports to the real world and runs a node: start, serve the API, wait for a signal, stop in order.

pub(crate) mod notify;
pub(crate) mod runtimes;

use std::{io, path::PathBuf, sync::Arc};

use postroad_actors::{
    identity::{Kept, KeptError},
    ports::{Ports, Settings},
    root::{self, NodeHandle, StartError},
    setup::SetupError,
};
use postroad_cluster::id::Name;
use postroad_store::{Databases, Put, StoreError, Table, Writing};
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
};

use self::runtimes::Runtimes;
use crate::{
    api::{self, Stop},
    balancer::role::Roles,
    clock::BootClock,
    config::Config,
    console::{
        act::Acting,
        door::Certified,
        listen::{Listening, listen},
    },
    disk::DataDirectory,
    entropy::SystemEntropy,
    errors::{Exit, Failure},
    net::SystemNetwork,
};

/// More files than the flows of a node.
const OPEN_FILES: u64 = 1 << 20;

/// The key under which a directory says that its node has left.
const LEFT: &[u8] = b"left";

/// A data directory that this process owns, with everything that a node needs from it and from the host.
pub struct Opened {
    /// The ports.
    pub ports: Ports,
    /// The node's own settings.
    pub settings: Settings,
    /// Its databases.
    pub databases: Databases,
}

/// What a directory remembers of a node that left the cluster.
#[derive(Debug, Serialize, Deserialize)]
struct Left {
    cluster: Name,
    name: Name,
}

/// Opens the data directory and the host's clock, chance and network. It must be called within a tokio runtime.
/// `carriage` is where packets are carried.
///
/// # Errors
/// When the directory is in use, exposed or broken, belongs to a node that has left, or the system refuses.
pub fn open(config: &Config, carriage: &Handle) -> Result<Opened, Failure> {
    let directory = Arc::new(DataDirectory::open(&config.node.data)?);
    let databases = Databases::open(&*directory, Writing::Thread).map_err(stored)?;
    refuse_left(&databases, config)?;
    // Flows have more timers than actors do.
    let there = carriage.enter();
    let clock = BootClock::start()
        .map_err(|error| Failure::failed("NO_CLOCK", format!("the system gives no timer: {error}")))?;
    drop(there);
    let ports = Ports {
        clock: Arc::new(clock),
        entropy: Arc::new(SystemEntropy),
        disk: directory,
        writing: Writing::Thread,
        network: Arc::new(SystemNetwork::default()),
        carriage: carriage.clone(),
        boot_id: boot_id()?,
    };
    let settings = Settings {
        domain: config.domain.clone(),
        advertised: config.relay.advertised.clone(),
        packet_bytes_max: config.fabric.packet_bytes_max,
        proxy_protocol_from: config.link.proxy_protocol_from.clone(),
        ..Settings::new(config.listen.relay, config.listen.outbound)
    };
    Ok(Opened { ports, settings, databases })
}

/// The number of this boot of the host: moments of two boots are not compared.
fn boot_id() -> Result<u64, Failure> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH)
        .map_err(|error| Failure::failed("NO_BOOT_ID", format!("could not read {PATH}: {error}")))?;
    let hash = postroad_trust::sha256(&[text.trim().as_bytes()]);
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    Ok(u64::from_le_bytes(first))
}

/// Why a node was not started, for people.
pub(crate) fn not_started(error: &StartError, config: &Config) -> Failure {
    let code = error.code().to_owned();
    match error {
        StartError::Kept(KeptError::Absent) => nobody(config),
        StartError::Socket { .. } => Failure::failed(code, error.to_string())
            .hint("The keys are listen.relay and listen.outbound: postroad config show"),
        _ => Failure::failed(code, error.to_string()),
    }
}

/// The directory belongs to no node.
pub(crate) fn nobody(config: &Config) -> Failure {
    let message = format!("data directory {} belongs to no node yet", config.node.data.display());
    Failure::refused("NOT_JOINED", message)
        .hint("Found a cluster: postroad init NAME; or join one with the command that its postroad token create prints")
}

/// Why a node was not made, for people.
pub(crate) fn not_made(error: &SetupError) -> Failure {
    use postroad_transport::join::JoinError;
    let (code, text) = (error.code(), error.to_string());
    let exit = match error {
        SetupError::AlreadyJoined { .. } | SetupError::Refused(_) => Exit::Refused,
        SetupError::Join(JoinError::Refused { refusal, .. }) => {
            let message = format!("join refused: {}", refusal.message);
            return Failure::refused(code, message).hint(refusal.hint.clone());
        }
        SetupError::Join(JoinError::NoAnswer(_)) if code != "SEEDS_UNREACHABLE" => Exit::Refused,
        SetupError::Join(JoinError::NoSeeds | JoinError::NoAnswer(_)) => Exit::Unreachable,
        _ => Exit::Failed,
    };
    // The code stands in a refusal's own text already.
    if let SetupError::Refused(refusal) = error {
        return Failure::refused(code, refusal.message.clone()).hint(refusal.hint.clone());
    }
    Failure::new(exit, code, text)
}

#[allow(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
pub(crate) fn stored(error: StoreError) -> Failure {
    Failure::failed(error.code(), error.to_string())
}

fn refuse_left(databases: &Databases, config: &Config) -> Result<(), Failure> {
    let Some(bytes) = databases.node.get(Table::Setting, LEFT).map_err(stored)? else { return Ok(()) };
    let whose = serde_json::from_slice::<Left>(&bytes)
        .map_or_else(|_| "a node".to_owned(), |left| format!("{}, which left {}", left.name, left.cluster));
    let message = format!("data directory {} belonged to {whose}", config.node.data.display());
    Err(Failure::refused("NODE_LEFT", message).hint("Remove the directory, or give another by --data"))
}

/// Says in the directory that its node has left, and wipes the node's keys from it.
///
/// # Errors
/// When the store fails.
pub fn mark_left(databases: &Databases) -> Result<(), Failure> {
    let kept = match Kept::load(&databases.node) {
        Ok(kept) => kept,
        Err(KeptError::Absent) => return Ok(()),
        Err(error) => return Err(Failure::failed(error.code().to_owned(), error.to_string())),
    };
    let left = Left { cluster: kept.cluster, name: kept.name };
    let value = serde_json::to_vec(&left).map_err(|error| Failure::failed("LEFT_UNWRITABLE", error.to_string()))?;
    let marker = Put { table: Table::Setting, key: LEFT.to_vec(), value: Some(value) };
    databases.node.write(vec![Kept::forget(), marker]).map_err(stored)
}

/// Runs the node of this directory in the foreground until a signal or its end.
///
/// # Errors
/// What kept it from starting, or why it ended by itself.
pub fn run(config: &Config) -> Result<(), Failure> {
    Runtimes::start()?.run(|carriage| async move {
        let opened = open(config, &carriage)?;
        live(config, opened).await
    })
}

/// Lets this process open as many files as the system allows it: every flow is a socket, and the usual bound of 1,024 is
/// for programs that select.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Without a bound the system still has one, and refuses to be asked for more.
    let wanted = maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::warn!(%error, current, wanted, "open files stay bounded: so do flows");
    }
}

/// The whole life of a node whose directory is open.
pub(crate) async fn live(config: &Config, opened: Opened) -> Result<(), Failure> {
    // Sockets and files of a node are its owner's alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_open_files();
    let Opened { ports, mut settings, databases } = opened;
    let roles = Roles::load(&config.balancers)?;
    for warning in roles.warnings() {
        tracing::warn!("{warning}");
    }
    settings.balancers = roles.setups();
    // The directory's lock goes with the port: it is kept until the last word, so that no second process gets in.
    let _directory = Arc::clone(&ports.disk);
    let mut signals = Signals::new()?;
    let node = root::start(ports, settings, databases.clone()).await.map_err(|error| not_started(&error, config))?;
    let node = Arc::new(node);
    let fabric = node.fabric();
    tracing::info!(cluster = %fabric.cluster, node = %fabric.name, id = %fabric.me, "the node has started");
    let (stop, stopping) = Stop::new();
    let serving =
        match api::serve(&config.api.socket, Arc::clone(&node), stop, config.console.serve && config.console.act) {
            Ok(serving) => serving,
            Err(failure) => {
                node.stop().await;
                return Err(failure);
            }
        };
    let console = match console(config, &serving).await {
        Ok(console) => console,
        Err(failure) => {
            stop_in_order(&node, serving).await;
            return Err(failure);
        }
    };
    let admin = roles.serve(&node).await;
    notify::ready();
    let watchdog = tokio::spawn(notify::watchdog());
    let why = wait(&node, &mut signals, stopping).await;
    admin.iter().for_each(tokio::task::JoinHandle::abort);
    notify::stopping();
    watchdog.abort();
    tracing::info!(why = why.word(), "the node stops");
    if let Some(console) = console {
        console.stop();
    }
    tokio::select! {
        biased;
        () = stop_in_order(&node, serving) => {}
        name = signals.next() => {
            node.kill();
            return Err(Failure::failed("STOPPED_AT_ONCE", format!("{name} came a second time, so the node was cut off")));
        }
    }
    match why {
        Why::Signal(_) => Ok(()),
        Why::Left => mark_left(&databases),
        Why::Ended(how) => Err(Failure::failed("NODE_FAILED", format!("the node's actors have ended: {how}"))
            .hint("The log says which one and why; start the node again")),
    }
}

/// Starts the console, if it is wanted. A taken address costs the console and not the node, whose flows matter more.
async fn console(config: &Config, serving: &api::Serving) -> Result<Option<Listening>, Failure> {
    let wanted = &config.console;
    if !wanted.serve {
        return Ok(None);
    }
    let certified = match (&wanted.certificate, &wanted.key) {
        (Some(certificate), Some(key)) => Some(Certified::read(certificate, key)?),
        (None, None) => None,
        _ => {
            return Err(Failure::refused(
                "CONSOLE_CERTIFICATE",
                "of console.certificate and console.key only one is set",
            )
            .hint("Set both, or neither"));
        }
    };
    if certified.is_none() && !wanted.listen.ip().is_loopback() {
        let message = format!("console.listen is {}, which other machines reach, and there is no TLS", wanted.listen);
        return Err(Failure::refused("CONSOLE_OPEN", message).hint(
            "Listen on 127.0.0.1 and come by ssh -L 9440:127.0.0.1:9440 HOST, or set console.certificate and console.key",
        ));
    }
    let acting = Acting::within(&config.node.data);
    match listen(wanted.listen, certified, serving.pages(), acting, wanted.act).await {
        Ok(listening) => Ok(Some(listening)),
        Err(failure) => {
            tracing::warn!(code = %failure.code, "{failure}");
            Ok(None)
        }
    }
}

async fn stop_in_order(node: &NodeHandle, serving: api::Serving) {
    serving.stop().await;
    node.stop().await;
}

/// Why a node stops.
enum Why {
    Signal(&'static str),
    Left,
    Ended(String),
}

impl Why {
    fn word(&self) -> &str {
        match self {
            Self::Signal(name) => name,
            Self::Left => "it has left the cluster",
            Self::Ended(how) => how,
        }
    }
}

async fn wait(node: &NodeHandle, signals: &mut Signals, stopping: tokio::sync::oneshot::Receiver<()>) -> Why {
    tokio::select! {
        biased;
        name = signals.next() => Why::Signal(name),
        Ok(()) = stopping => Why::Left,
        () = crate::demo::leash::let_go() => Why::Signal("the end of whoever started it"),
        exit = node.ended() => Why::Ended(format!("{exit:?}")),
    }
}

/// The signals that end a node.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::failed("NO_SIGNALS", format!("the system delivers no signals: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt()).map_err(failed)? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The name that a node gets where nobody gives one: the first part of the host's, as far as it is one.
pub(crate) fn host_name() -> Option<Name> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_lowercase();
    name.split('.').next()?.parse().ok()
}

/// The data directory as people pass it on: the flag, where it is not the usual one.
pub(crate) fn data_flag(data: Option<&PathBuf>) -> String {
    data.map_or_else(String::new, |data| format!(" --data {}", data.display()))
}
