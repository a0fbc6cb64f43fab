//! The database balancer as a program: its configuration, the real probes, the admin port, its life from start to stop.
//! [`role`] has what it takes as a role of a node.

pub mod admin;
pub mod config;
mod keys;
pub mod probe;
pub mod role;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use postroad_actors::balancer::{self, BalancerHandle, Options, Setup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    config::{Config, List, PASSWORD_VARIABLE},
    probe::SystemProbes,
};
use crate::{
    boot::{self, notify},
    clock::BootClock,
    config::{Log, LogFormat},
    entropy::SystemEntropy,
    errors::Failure,
    net::SystemNetwork,
    telemetry,
};

pub use keys::SCHEMA;

/// Descriptors that are for no connection: the runtime, listeners, log, signals, and callers of the admin port.
const DESCRIPTORS_OWN: u64 = 32;
/// Descriptors of one node's probe: its connection, the doorway to it, and a name look-up.
const DESCRIPTORS_PER_NODE: u64 = 6;
/// The network's pipes take at most so much of all descriptors.
const DESCRIPTORS_PIPES_SHARE: u64 = 16;

/// The monitoring account's password by the environment.
fn password() -> Option<String> {
    std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty())
}

/// Reads the configuration at `path` of a balancer that stands alone, with the password of the environment.
///
/// # Errors
/// When it cannot be read or is wrong.
pub fn load(path: &Path) -> Result<Config, Failure> {
    load_with(path, List::Own)
}

/// Reads the configuration at `path` of a balancer with or without a list of nodes of its own.
///
/// # Errors
/// When it cannot be read or is wrong.
pub fn load_with(path: &Path, list: List) -> Result<Config, Failure> {
    config::load(path, list, password())
}

/// What a balancer is on its host, of at most so many connections at once.
fn setup(config: Config, capacity: usize) -> Setup {
    Setup {
        protocol: config.probe.engine.protocol(),
        probes: Arc::new(SystemProbes::new(config.probe)),
        settings: config.settings,
        rw: config.rw,
        ro: config.ro,
        source: config.source,
        proxy_protocol: config.proxy_protocol,
        proxy_protocol_from: config.proxy_protocol_from,
        language: config.language,
        capacity,
    }
}

/// Runs the balancer of the configuration at `path` in the foreground until a signal. `log` goes before its `log_file`.
///
/// # Errors
/// What kept it from starting, or why it ended by itself.
pub fn run(path: &Path, log: Option<&PathBuf>) -> Result<(), Failure> {
    let config = load(path)?;
    let file = log.or(config.log_file.as_ref());
    telemetry::start_in(&Log { format: LogFormat::Human, level: "info".to_owned() }, file.map(PathBuf::as_path))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = boot::runtimes::of_balancer()?;
    let result = runtime.block_on(live(path, config));
    // What still runs is a resolver's lookup at most; nobody waits for its answer.
    runtime.shutdown_background();
    result
}

/// How many connections there is room for: as many descriptors as this process may have, without those that probes, the
/// admin port and pipes need (DB-33).
fn capacity(nodes: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // The system gives a low limit and allows a higher one to whoever asks.
    if limit.current != limit.maximum {
        // It fails for nobody: raising it to its maximum is every process's right.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    let kept = DESCRIPTORS_OWN + DESCRIPTORS_PER_NODE * nodes as u64 + descriptors / DESCRIPTORS_PIPES_SHARE;
    (descriptors.saturating_sub(kept) / 2).max(1) as usize
}

async fn live(path: &Path, config: Config) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let capacity = capacity(config.nodes.len());
    let admin = admin::Listener::bind(config.admin).await?;
    let clock = BootClock::start()
        .map_err(|error| Failure::failed("NO_CLOCK", format!("the system gives no timer: {error}")))?;
    let options = Options {
        clock: Arc::new(clock),
        entropy: Arc::new(SystemEntropy),
        network: Arc::new(SystemNetwork::default()),
        nodes: config.nodes.clone(),
        setup: setup(config.clone(), capacity),
    };
    let started = balancer::start(options).await;
    let balancer = Arc::new(started.map_err(|error| {
        Failure::failed("BALANCER_NOT_STARTED", format!("the balancer did not start: {error}"))
            .hint("Free the address, or set another: proxy.rw, proxy.ro")
    })?);
    let ro = balancer.ro().map_or_else(|| "none".to_owned(), |ro| ro.to_string());
    tracing::info!(
        rw = %balancer.rw(), %ro, admin = %admin.address(), connections_max = capacity,
        version = env!("CARGO_PKG_VERSION"), "the database balancer has started"
    );
    let served = Arc::clone(&balancer);
    let serving = tokio::spawn(admin.serve(Arc::new(move || Ok(Arc::clone(&served)))));
    notify::ready();
    let watchdog = tokio::spawn(notify::watchdog());
    let why = wait(path, &config, &balancer, &mut signals).await;
    notify::stopping();
    watchdog.abort();
    tracing::info!("the database balancer stops");
    balancer.stop().await;
    serving.abort();
    match why {
        None => Ok(()),
        Some(how) => Err(Failure::failed("BALANCER_FAILED", format!("the balancer's actors have ended: {how}"))
            .hint("The log says which one and why; start it again")),
    }
}

/// Waits for a signal to stop, or for the balancer's own end, and says how that was. SIGHUP reads the list of nodes anew.
async fn wait(path: &Path, config: &Config, balancer: &BalancerHandle, signals: &mut Signals) -> Option<String> {
    loop {
        tokio::select! {
            biased;
            _ = signals.terminate.recv() => return None,
            _ = signals.interrupt.recv() => return None,
            _ = signals.reload.recv() => reload(path, config, balancer),
            exit = balancer.ended() => return Some(format!("{exit:?}")),
        }
    }
}

/// Takes the list of nodes from the file (DB-44). What else the file says otherwise than at the start is named, since it
/// needs a restart.
fn reload(path: &Path, started: &Config, balancer: &BalancerHandle) {
    notify::reloading();
    match load(path) {
        Ok(config) => {
            let differing = started.differs(&config);
            tracing::info!(nodes = config.nodes.len(), "the list of nodes was read anew");
            if !differing.is_empty() {
                let keys = differing.join(", ");
                tracing::warn!("only [nodes] is taken without a restart; these keys stay as they were: {keys}");
            }
            if let Err(error) = balancer.relist(config.nodes) {
                tracing::warn!(%error, "the new list was not taken");
            }
        }
        Err(failure) => tracing::warn!("the configuration was not read anew, all stays as it is: {failure}"),
    }
    notify::ready();
}

/// The signals that a balancer heeds.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::failed("NO_SIGNALS", format!("the system delivers no signals: {error}"));
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            reload: signal(SignalKind::hangup()).map_err(failed)?,
        })
    }
}
