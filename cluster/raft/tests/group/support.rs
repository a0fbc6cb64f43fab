//! The world of these tests: every member on one thread and one paused clock, with the checks that run all along.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postroad_cluster::{
    command::{Action, Command, Enrolment, IssuerRecord, Outcome, PublicKeyBytes},
    domain::FailureDomain,
    id::NodeId,
    limits::RAFT_APPEND_BYTES_MAX,
    time::{Entropy, WallTime},
};
use postroad_raft::{
    AppliedEntry, Carrier, Consensus, ControlStatus, Observer, Options, ProposeError, Reply, Retention, Timing, runtime,
};
use postroad_store::{Databases, Disk, DiskFile, Writing};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep, timeout};

pub(crate) const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(50),
    election_min: Duration::from_millis(200),
    election_max: Duration::from_millis(400),
};

/// The longest that anything may take to come right, in virtual time.
const PATIENCE: Duration = Duration::from_mins(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId(number)
}

/// Runs `body` in a world of its own, on a thread of its own.
#[expect(clippy::disallowed_methods, reason = "a seed's thread is the world, nothing else runs beside it")]
pub(crate) fn world<T, F>(seed: u64, body: impl FnOnce(World) -> F + Send + 'static) -> T
where
    F: Future<Output = T>,
    T: Send + 'static,
{
    let run = move || {
        runtime::seed(seed);
        let paused = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        paused.block_on(async { body(World::new(seed)).await })
    };
    std::thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

// ---- disk

/// The files of one node; what was not synced is lost in a crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    incarnation: u64,
    files: BTreeMap<String, Content>,
}

#[derive(Debug, Default)]
struct Content {
    seen: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    name: String,
    incarnation: u64,
}

impl MemoryDisk {
    fn crash(&self) {
        let mut files = lock(&self.0);
        files.incarnation += 1;
        for content in files.files.values_mut() {
            content.seen.clone_from(&content.synced);
        }
    }
}

impl Disk for MemoryDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = lock(&self.0);
        files.files.entry(name.to_owned()).or_default();
        let incarnation = files.incarnation;
        Ok(Arc::new(MemoryFile { disk: self.clone(), name: name.to_owned(), incarnation }))
    }
}

impl MemoryFile {
    fn with<T>(&self, act: impl FnOnce(&mut Content) -> io::Result<T>) -> io::Result<T> {
        let mut files = lock(&self.disk.0);
        if files.incarnation != self.incarnation {
            return Err(io::Error::other("this node has crashed"));
        }
        act(files.files.get_mut(&self.name).expect("opened before"))
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|content| Ok(content.seen.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|content| {
            let from = offset as usize;
            let bytes = content.seen.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|content| {
            let (from, end) = (offset as usize, offset as usize + data.len());
            if content.seen.len() < end {
                content.seen.resize(end, 0);
            }
            content.seen[from..end].copy_from_slice(data);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|content| {
            content.seen.resize(len as usize, 0);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|content| {
            content.synced.clone_from(&content.seen);
            Ok(())
        })
    }
}

// ---- wire

#[derive(Debug)]
struct Wire {
    generator: StdRng,
    loss: f64,
    cut: BTreeSet<(NodeId, NodeId)>,
    bytes_max: usize,
    messages: u64,
}

impl Wire {
    /// How long a message takes, or that it is lost.
    fn way(&mut self, from: NodeId, to: NodeId) -> Option<Duration> {
        self.messages += 1;
        let delay = Duration::from_micros(self.generator.random_range(500..4_000));
        let lost = self.generator.random_bool(self.loss) || self.cut.contains(&(from, to));
        (!lost).then_some(delay)
    }
}

#[derive(Default)]
struct Members(BTreeMap<NodeId, (u64, Consensus)>);

struct Shared {
    wire: Mutex<Wire>,
    members: Mutex<Members>,
    checks: Mutex<Checks>,
    begin: Instant,
}

struct Sender {
    from: NodeId,
    incarnation: u64,
    shared: Arc<Shared>,
}

impl Shared {
    fn member(&self, node: NodeId) -> Option<(u64, Consensus)> {
        lock(&self.members).0.get(&node).cloned()
    }

    fn is_alive(&self, node: NodeId, incarnation: u64) -> bool {
        self.member(node).is_some_and(|(alive, _)| alive == incarnation)
    }

    async fn carry(&self, from: NodeId, incarnation: u64, to: NodeId, message: Vec<u8>) -> Option<Vec<u8>> {
        let there = lock(&self.wire).way(from, to)?;
        sleep(there).await;
        let (receiver, member) = self.member(to)?;
        let answer = member.handle(from, message).await;
        drop(member);
        let back = lock(&self.wire).way(to, from)?;
        sleep(back).await;
        (self.is_alive(from, incarnation) && self.is_alive(to, receiver)).then_some(answer)
    }
}

impl Carrier for Sender {
    fn call(&self, to: NodeId, message: Vec<u8>, deadline: Duration) -> Reply {
        let (shared, from, incarnation) = (Arc::clone(&self.shared), self.from, self.incarnation);
        let mut wire = lock(&shared.wire);
        wire.bytes_max = wire.bytes_max.max(message.len());
        drop(wire);
        Box::pin(async move {
            let answer = async {
                match shared.carry(from, incarnation, to, message).await {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            };
            timeout(deadline, answer).await.map_err(|_| format!("nothing came back from {to}"))
        })
    }
}

// ---- checks

/// What every member did, and what contradicts itself.
#[derive(Default)]
struct Checks {
    entries: BTreeMap<u64, (u64, u64)>,
    states: BTreeMap<u64, u64>,
    leaders: BTreeMap<u64, NodeId>,
    installs: u64,
    wrong: Vec<String>,
    trace: String,
}

struct Watcher(Arc<Shared>);

impl Checks {
    fn state(&mut self, node: NodeId, entry: &AppliedEntry) {
        let known = *self.states.entry(entry.index).or_insert(entry.state_hash);
        if known != entry.state_hash {
            self.wrong.push(format!("{node} has another state after entry {}", entry.index));
        }
    }

    fn line(&mut self, at: Duration, line: &str) {
        writeln!(self.trace, "{at:?} {line}").expect("a string takes everything");
    }
}

impl Observer for Watcher {
    fn on_apply(&self, node: NodeId, entry: &AppliedEntry) {
        let mut checks = lock(&self.0.checks);
        let known = *checks.entries.entry(entry.index).or_insert((entry.term, entry.entry_hash));
        if known != (entry.term, entry.entry_hash) {
            checks.wrong.push(format!("{node} has applied another entry {}", entry.index));
        }
        checks.state(node, entry);
        checks.line(self.0.begin.elapsed(), &format!("{node} applies {entry:?}"));
    }

    fn on_install(&self, node: NodeId, entry: &AppliedEntry) {
        let mut checks = lock(&self.0.checks);
        checks.installs += 1;
        checks.state(node, entry);
        checks.line(self.0.begin.elapsed(), &format!("{node} installs {entry:?}"));
    }

    fn on_leader(&self, node: NodeId, term: u64, leader: NodeId) {
        let mut checks = lock(&self.0.checks);
        let known = *checks.leaders.entry(term).or_insert(leader);
        if known != leader {
            checks.wrong.push(format!("{node} sees {leader} lead term {term}, which {known} led"));
        }
        checks.line(self.0.begin.elapsed(), &format!("{node} sees {leader} lead {term}"));
    }
}

// ---- world

#[derive(Debug)]
struct NoEntropy;

impl Entropy for NoEntropy {
    fn fill(&self, _bytes: &mut [u8]) {
        unreachable!("the world's thread is seeded");
    }
}

/// A group and everything around it.
pub(crate) struct World {
    shared: Arc<Shared>,
    disks: BTreeMap<NodeId, MemoryDisk>,
    incarnations: BTreeMap<NodeId, u64>,
    pub(crate) retention: Retention,
    acknowledged: Vec<u64>,
    proposed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let generator = StdRng::seed_from_u64(seed);
        let wire = Wire { generator, loss: 0.0, cut: BTreeSet::new(), bytes_max: 0, messages: 0 };
        let shared = Shared {
            wire: Mutex::new(wire),
            members: Mutex::default(),
            checks: Mutex::default(),
            begin: Instant::now(),
        };
        Self {
            shared: Arc::new(shared),
            disks: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            retention: Retention::default(),
            acknowledged: Vec::new(),
            proposed: 0,
        }
    }

    /// A group of `count` voters, founded and led.
    pub(crate) async fn group(mut self, count: u64) -> Self {
        self.start(node(1)).await;
        self.member(node(1)).found("n1:9443".to_owned()).await.unwrap();
        self.leader().await;
        self.propose(found()).await;
        for number in 2..=count {
            self.start(node(number)).await;
            self.join(node(number)).await;
        }
        self
    }

    /// Adds a running node as a learner and promotes it.
    pub(crate) async fn join(&self, node: NodeId) {
        let leader = self.leader().await;
        leader.add_learner(node, format!("{node}:9443")).await.unwrap();
        self.wait("the learner is promoted", async || leader.promote(node).await.is_ok()).await;
    }

    pub(crate) async fn start(&mut self, node: NodeId) {
        let disk = self.disks.entry(node).or_default().clone();
        let incarnation = self.incarnations.entry(node).or_default();
        *incarnation += 1;
        let incarnation = *incarnation;
        let Databases { log, state, .. } = Databases::open(&disk, Writing::Inline).unwrap();
        let member = Consensus::start(Options {
            me: node,
            log,
            state,
            carrier: Arc::new(Sender { from: node, incarnation, shared: Arc::clone(&self.shared) }),
            entropy: Arc::new(NoEntropy),
            observer: Some(Arc::new(Watcher(Arc::clone(&self.shared)))),
            timing: TIMING,
            retention: self.retention,
        })
        .await
        .unwrap();
        lock(&self.shared.members).0.insert(node, (incarnation, member));
    }

    /// The node stops at once; nothing that was not synced is there when it starts again.
    pub(crate) async fn crash(&mut self, node: NodeId) {
        self.disks[&node].crash();
        let gone = lock(&self.shared.members).0.remove(&node);
        let (_, member) = gone.expect("it runs");
        member.shutdown().await;
    }

    /// The last handle of a member is dropped, with nobody to shut it down.
    pub(crate) fn abandon(&mut self, node: NodeId) {
        lock(&self.shared.members).0.remove(&node).expect("it runs");
    }

    /// Whether some member's tasks are still there.
    pub(crate) fn is_haunted(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    pub(crate) async fn restart(&mut self, node: NodeId) {
        self.crash(node).await;
        self.start(node).await;
    }

    pub(crate) fn running(&self) -> Vec<NodeId> {
        lock(&self.shared.members).0.keys().copied().collect()
    }

    pub(crate) fn member(&self, node: NodeId) -> Consensus {
        self.shared.member(node).expect("it runs").1
    }

    pub(crate) fn status(&self, node: NodeId) -> ControlStatus {
        self.member(node).status()
    }

    /// Nothing goes between `one` and the rest any more.
    pub(crate) fn isolate(&self, one: NodeId) {
        for other in self.disks.keys().copied().filter(|other| *other != one) {
            lock(&self.shared.wire).cut.extend([(one, other), (other, one)]);
        }
    }

    /// Nothing goes from `from` to `to` any more; the other direction stays.
    pub(crate) fn cut(&self, from: NodeId, to: NodeId) {
        lock(&self.shared.wire).cut.insert((from, to));
    }

    pub(crate) fn heal(&self) {
        lock(&self.shared.wire).cut.clear();
    }

    pub(crate) fn lose(&self, share: f64) {
        lock(&self.shared.wire).loss = share;
    }

    pub(crate) async fn wait(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let begin = Instant::now();
        while !condition().await {
            let states: Vec<_> = self.running().into_iter().map(|node| self.status(node)).collect();
            assert!(begin.elapsed() < PATIENCE, "waited in vain until {what}: {states:#?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The leader that a read by a majority confirms.
    pub(crate) async fn leader(&self) -> Consensus {
        let mut found = None;
        self.wait("somebody leads", async || {
            for node in self.running() {
                let member = self.member(node);
                if member.leads() && member.read_index().await.is_ok() {
                    found = Some(member);
                    return true;
                }
            }
            false
        })
        .await;
        found.expect("waited for")
    }

    /// Proposes until it is acknowledged, as a client would whose command may be repeated.
    pub(crate) async fn propose(&mut self, action: Action) -> Outcome {
        let begin = Instant::now();
        loop {
            self.proposed += 1;
            let at = WallTime(1_000_000 + self.proposed);
            let command = Command { at, by: node(1), expected: None, action: action.clone() };
            let leader = self.leader().await;
            match leader.propose(command).await {
                Ok((index, outcome)) => {
                    self.acknowledged.push(index);
                    return outcome;
                }
                Err(ProposeError::NotLeader { .. } | ProposeError::Unknown { .. } | ProposeError::Stopped { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(begin.elapsed() < PATIENCE, "nothing is acknowledged any more");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn propose_some(&mut self, count: usize) {
        for _ in 0..count {
            self.propose(Action::LeaseRenew).await;
        }
    }

    /// Every running member has everything that was acknowledged, and nothing contradicted itself on the way.
    pub(crate) async fn check(&self) {
        let last = self.acknowledged.last().copied().unwrap_or_default();
        self.wait("everybody has everything", async || {
            self.running().into_iter().all(|node| self.status(node).applied >= Some(last))
        })
        .await;
        let checks = lock(&self.shared.checks);
        assert_eq!(checks.wrong, Vec::<String>::new());
        for index in &self.acknowledged {
            assert!(checks.entries.contains_key(index), "entry {index} was acknowledged and never applied");
        }
        drop(checks);
        let bytes_max = lock(&self.shared.wire).bytes_max;
        assert!(bytes_max < 2 * RAFT_APPEND_BYTES_MAX, "a message of {bytes_max} bytes");
    }

    pub(crate) fn contradictions(&self) -> Vec<String> {
        lock(&self.shared.checks).wrong.clone()
    }

    pub(crate) fn installs(&self) -> u64 {
        lock(&self.shared.checks).installs
    }

    pub(crate) fn trace(&self) -> String {
        let messages = lock(&self.shared.wire).messages;
        format!("{}{messages} messages", lock(&self.shared.checks).trace)
    }
}

fn found() -> Action {
    let key = |byte| -> PublicKeyBytes { [byte; 32] };
    let advertised = Some("192.0.2.1:9443".to_owned());
    let first = Enrolment { name: "n1".parse().unwrap(), public: key(1), advertised, domain: FailureDomain::default() };
    let issuer = IssuerRecord { certificate: vec![1; 300], snapshot_key: key(2), snapshot_key_signature: vec![3; 64] };
    Action::Found { cluster: "harbour".parse().unwrap(), authority: vec![1; 300], first, issuer }
}
