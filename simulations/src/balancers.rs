//! A world of database balancers: two of them over five simulated nodes, with failovers, isolated old primaries and
//! writers that connect all the time. The actors, connections and bytes are the real ones.

mod databases;
pub mod role;
mod story;

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use postroad_actors::balancer::{self, BalancerHandle, Options, Setup};
use postroad_cluster::balancer::{
    database::settings::{Language, Protocol, Settings},
    proxy_header::TrustedSources,
};
use postroad_transport::network::{Network, TcpStream};
use rand::{SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep};

use self::{
    databases::{Cluster, NODES, SimProbes, name, serve},
    story::Story,
};
use crate::{
    checks::{Findings, balancer::BalancerCheck},
    clock::{SimClock, SimEntropy, Skew},
    network::{Condition, Fabric, Host, SimNetwork},
    trace::Trace,
};

/// Balancers side by side, which share nothing.
const BALANCERS: usize = 2;
/// The hosts of the balancers and of their clients come after those of the nodes.
const FIRST_BALANCER: u16 = 21;
const CLIENTS: Host = Host(31);
const RW_PORT: u16 = 6432;
const RO_PORT: u16 = 6433;

/// For how long something happens to a world, and how long it has to be well again afterwards.
const TROUBLE: Duration = Duration::from_mins(1);
const CALM: Duration = Duration::from_secs(15);
/// How often the checks look.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a seed came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcomes {
    /// What was found; nothing is what is wanted.
    pub findings: Vec<String>,
    /// A hash over what happened, equal for equal seeds.
    pub hash: u64,
    /// Changes of the primary that happened.
    pub failovers: u64,
    /// Connections of writers that reached a node, were refused, and were ended by a balancer or node.
    pub reached: u64,
    /// Refused.
    pub refused: u64,
    /// Ended.
    pub ended: u64,
}

/// Runs the world of `seed`; `settings` are the usual ones but in tests of the check itself.
#[must_use]
pub fn run(seed: u64, settings: Settings) -> Outcomes {
    let world = std::thread::Builder::new().name(format!("balancers-{seed}")).spawn(move || {
        let builder = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        builder.map_err(|error| error.to_string()).map(|runtime| runtime.block_on(live(seed, settings)))
    });
    let ended = world
        .map_err(|error| error.to_string())
        .and_then(|world| world.join().unwrap_or_else(|_| Err("the world panicked".to_owned())));
    ended.unwrap_or_else(|error| Outcomes {
        findings: vec![error],
        hash: 0,
        failovers: 0,
        reached: 0,
        refused: 0,
        ended: 0,
    })
}

async fn live(seed: u64, settings: Settings) -> Outcomes {
    let trace = Trace::new(false);
    let findings = Findings::new(trace.clone());
    let check = BalancerCheck::new(BALANCERS, findings.clone());
    let fabric = Fabric::new(seed, Condition::default());
    tokio::spawn(fabric.clone().run());
    let cluster = Cluster::new(seed);
    for node in 0..NODES {
        serve(&fabric, &cluster, node);
    }
    let mut balancers = Vec::new();
    for number in 0..BALANCERS {
        match start(seed, number, &fabric, &cluster, &check, settings.clone()).await {
            Ok(balancer) => balancers.push(Arc::new(balancer)),
            Err(error) => findings.add("balancer", error),
        }
    }
    let counts = Arc::new(Mutex::new(Counts::default()));
    let clients = fabric.boot(CLIENTS);
    for number in 0..BALANCERS {
        for writer in 0..2 {
            let pause_ms = 37 + 20 * writer;
            tokio::spawn(write(clients.clone(), number, pause_ms, check.clone(), Arc::clone(&counts)));
        }
    }
    let mut story = Story { fabric, cluster, trace: trace.clone(), rng: StdRng::seed_from_u64(seed), failovers: 0 };
    let began = Instant::now();
    let mut next = began + Duration::from_secs(5);
    while began.elapsed() < TROUBLE {
        if Instant::now() >= next {
            let wait_ms = story.happen();
            next = Instant::now() + Duration::from_millis(wait_ms);
        }
        sleep(LOOK_EVERY).await;
        look(&balancers, &check);
    }
    story.heal();
    let calm = Instant::now();
    while calm.elapsed() < CALM {
        sleep(LOOK_EVERY).await;
        look(&balancers, &check);
    }
    let primaries = story.cluster.lock().primaries();
    for (number, balancer) in balancers.iter().enumerate() {
        well(number, balancer, &primaries, &check).await;
    }
    let counts = *counts.lock().unwrap_or_else(PoisonError::into_inner);
    trace.note(format_args!("{counts:?}"));
    Outcomes {
        findings: findings.all().iter().map(ToString::to_string).collect(),
        hash: trace.traced().hash,
        failovers: story.failovers,
        reached: counts.reached,
        refused: counts.refused,
        ended: counts.ended,
    }
}

async fn start(
    seed: u64,
    number: usize,
    fabric: &Fabric,
    cluster: &Cluster,
    check: &BalancerCheck,
    settings: Settings,
) -> Result<BalancerHandle, String> {
    let host = Host(FIRST_BALANCER + number as u16);
    // Clocks a little apart, and one of them fast.
    let rate_ppm = if number == 0 { 0 } else { 200 };
    let skew = Skew { boot_offset_ns: (1 + number as u64) * 1_000_000_000, wall_offset_ms: 0, rate_ppm };
    let probes = SimProbes { balancer: number, cluster: cluster.clone(), check: check.clone() };
    balancer::start(Options {
        clock: Arc::new(SimClock::new(Instant::now(), skew)),
        entropy: Arc::new(SimEntropy::new(seed.wrapping_add(number as u64))),
        network: Arc::new(fabric.boot(host)),
        setup: setup(host, probes, settings),
        nodes: databases::listed(NODES),
    })
    .await
}

/// A balancer with its ports on `host`.
fn setup(host: Host, probes: SimProbes, settings: Settings) -> Setup {
    Setup {
        probes: Arc::new(probes),
        settings,
        rw: SocketAddr::new(host.ip(), RW_PORT),
        ro: Some(SocketAddr::new(host.ip(), RO_PORT)),
        source: None,
        proxy_protocol: false,
        proxy_protocol_from: TrustedSources::default(),
        protocol: Protocol::Mysql,
        language: Language::En,
        capacity: 1_000,
    }
}

fn look(balancers: &[Arc<BalancerHandle>], check: &BalancerCheck) {
    for (number, balancer) in balancers.iter().enumerate() {
        check.look(number, balancer.connections());
    }
}

/// When all is well again, both balancers lead writes to the one primary, and reads to its followers.
async fn well(number: usize, balancer: &BalancerHandle, primaries: &[usize], check: &BalancerCheck) {
    let status = match balancer.status().await {
        Ok(status) => status,
        Err(error) => return check.found(format!("balancer {number} does not answer: {error}")),
    };
    let [primary] = primaries else { return check.found(format!("the world has primaries {primaries:?} at its end")) };
    if status.primary != Some(name(*primary)) {
        let why = status.no_primary.unwrap_or_default();
        check.found(format!("balancer {number} leads writes to {:?} ({why}) and not to db-{primary}", status.primary));
    }
    let readers = status.nodes.iter().filter(|node| node.report.reads).count();
    if readers != NODES - 1 {
        check.found(format!("balancer {number} leads reads to {readers} nodes: {:?}", status.nodes));
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reached: u64,
    refused: u64,
    ended: u64,
}

/// A writer: it connects, learns whom it reached, stays for a while, and connects again.
async fn write(network: SimNetwork, balancer: usize, pause_ms: u64, check: BalancerCheck, counts: Arc<Mutex<Counts>>) {
    let address = SocketAddr::new(Host(FIRST_BALANCER + balancer as u16).ip(), RW_PORT);
    let count = |what: fn(&mut Counts)| what(&mut counts.lock().unwrap_or_else(PoisonError::into_inner));
    let mut round = 0_u64;
    loop {
        round += 1;
        sleep(Duration::from_millis(pause_ms)).await;
        let seen = check.newest(balancer);
        let Ok(mut stream) = network.tcp_connect(address).await else { continue };
        let Some(epoch) = greeting(&mut stream).await else {
            count(|counts| counts.refused += 1);
            continue;
        };
        count(|counts| counts.reached += 1);
        check.reached(balancer, seen, epoch);
        // Every third one stays for long, so that failovers meet open connections.
        let stay = if round.is_multiple_of(3) { 9_000 } else { 50 };
        tokio::select! {
            biased;
            () = poll_fn(|context| stream.write.poll_closed(context)) => count(|counts| counts.ended += 1),
            () = sleep(Duration::from_millis(stay)) => {}
        }
    }
}

/// The epoch of the node that was reached; none if the balancer refused, whose error begins otherwise.
async fn greeting(stream: &mut TcpStream) -> Option<u64> {
    let mut bytes = [0; 8];
    let mut length = 0;
    while length < bytes.len() {
        match stream.read.try_read(&mut bytes[length..]) {
            Ok(0) => return None,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|context| stream.read.poll_readable(context)).await.ok()?;
            }
            Err(_) => return None,
        }
    }
    // A refusal is an error packet, whose fifth byte is 255.
    (bytes[4] != 0xff).then(|| u64::from_be_bytes(bytes))
}
