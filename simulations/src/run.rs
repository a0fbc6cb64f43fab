//! One world from its scenario to its report, in a thread of its own.

mod panics;

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use postroad_cluster::{
    command::{Action, VerifierBytes},
    id::{NodeId, Role},
    time::{Clock as _, Span},
};
use postroad_trust::JoinSecret;
use rand::RngExt;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    checks::{
        Findings, circuits,
        convergence::{self, Baseline},
        flows::FlowCheck,
        raft::RaftCheck,
        sessions::SessionCheck,
        store::StoreCheck,
        supervision,
    },
    clock::SimEntropy,
    faults::{Fault, Weather, is_control},
    network::{Condition, JUMBO_PAYLOAD_BYTES},
    planted,
    report::Report,
    scenario::{RELAYS, Scenario, has_large_frames},
    trace::Trace,
    workload::{ROUTES, Workload},
    world::{Plan, World},
};

/// How long a world may take to stand at its beginning.
const STAND_WITHIN: Duration = Duration::from_mins(1);

/// How long a world may take to be well again once nothing is wrong any more: the longest retry of anything is 15 s,
/// and some follow each other.
const CONVERGE_WITHIN: Duration = Duration::from_mins(1);

/// How long flows may take to end after their consumers have closed them.
const END_WITHIN: Duration = Duration::from_secs(20);

/// How often the checks look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often somebody changes something.
const COMMAND_EVERY: Duration = Duration::from_secs(3);

/// How long the world waits for somebody's proposal: the steps that are planned meanwhile come late by that much.
const PROPOSE_WITHIN: Duration = Duration::from_millis(200);

/// How long a node may take to stop in order.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// The stack of a world's thread: debug builds of the handshakes' libraries need more than the usual one.
const STACK_BYTES: usize = 16 << 20;

/// Runs a scenario; with `keeps` the report has the trace's text.
#[must_use]
pub fn run(scenario: &Scenario, keeps: bool) -> Report {
    let whole = scenario.clone();
    let builder = std::thread::Builder::new().name(format!("seed-{}", scenario.seed)).stack_size(STACK_BYTES);
    let world = builder.spawn(move || in_thread(whole, keeps));
    let ended = world.map_err(|error| error.to_string()).and_then(|world| {
        world.join().map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        })
    });
    ended.unwrap_or_else(|error| Report::broken(scenario.clone(), format!("the world broke: {error}")))
}

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How long the world of this thread has lasted; nothing on other threads.
#[must_use]
pub fn age() -> Duration {
    BEGAN.get().map_or(Duration::ZERO, |began| began.elapsed())
}

fn in_thread(scenario: Scenario, keeps: bool) -> Report {
    panics::watch();
    planted::plant(scenario.planted);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build() {
        Ok(runtime) => runtime,
        Err(error) => return Report::broken(scenario, format!("no runtime: {error}")),
    };
    let mut report = runtime.block_on(async {
        BEGAN.set(Some(Instant::now()));
        let mut life = Life::new(scenario, keeps);
        let result = life.live().await;
        life.findings.expect("world", result);
        for panic in panics::take() {
            life.findings.add("world", panic);
        }
        life.report()
    });
    report.took = processor_time();
    report
}

/// What this thread, which is one world, has had of the processor: a busy machine makes no world slower.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// What is to happen next.
#[derive(Clone, Debug)]
enum Step {
    Begin(usize),
    End(usize),
    Start(usize),
    Drain(usize, bool),
    Look,
    Command,
}

/// The life of one world.
struct Life {
    scenario: Scenario,
    trace: Trace,
    findings: Findings,
    world: World,
    weather: Weather,
    workload: Workload,
    raft: Arc<RaftCheck>,
    votes: mpsc::UnboundedReceiver<NodeId>,
    flows: FlowCheck,
    sessions: SessionCheck,
    store: StoreCheck,
    schedule: BTreeMap<(Instant, u64), Step>,
    steps: u64,
    /// For how long the next control node that votes is down.
    ambush: Option<Duration>,
    troubled_until: Instant,
    datagrams: Arc<AtomicU64>,
    began: Instant,
    converged_after: Option<Duration>,
}

/// The ways of a seed's network while nothing is wrong with them.
fn ways(seed: u64) -> Condition {
    let wide = Condition { payload_bytes_max: JUMBO_PAYLOAD_BYTES, ..Condition::default() };
    if has_large_frames(seed) { wide } else { Condition::default() }
}

impl Life {
    fn new(scenario: Scenario, keeps: bool) -> Self {
        let trace = Trace::new(keeps);
        let findings = Findings::new(trace.clone());
        let (raft, votes) = RaftCheck::new(findings.clone(), trace.clone());
        let world = World::new(scenario.seed, ways(scenario.seed), Some(raft.clone()));
        let datagrams = Arc::new(AtomicU64::new(0));
        let (to, count) = (trace.clone(), Arc::clone(&datagrams));
        world.fabric.observe(Box::new(move |at, from, target, bytes, lost| {
            count.fetch_add(1, Ordering::Relaxed);
            to.datagram(at, from, target, bytes, lost);
        }));
        Self {
            workload: Workload::new(scenario.seed, scenario.flows, trace.clone()),
            scenario,
            trace,
            findings,
            world,
            weather: Weather::default(),
            raft,
            votes,
            flows: FlowCheck::default(),
            sessions: SessionCheck::default(),
            store: StoreCheck::default(),
            schedule: BTreeMap::new(),
            steps: 0,
            ambush: None,
            troubled_until: Instant::now(),
            datagrams,
            began: Instant::now(),
            converged_after: None,
        }
    }

    /// From the first node to the last flow.
    async fn live(&mut self) -> Result<(), String> {
        self.found().await?;
        let baseline = Baseline::of(&self.world);
        for index in 0..self.world.machines.len() {
            self.workload.host_up(index, &self.world.machines[index].applications);
        }
        let begin = Instant::now();
        for (number, timed) in self.scenario.faults.clone().iter().enumerate() {
            self.plan(begin + Duration::from_millis(timed.at_ms), Step::Begin(number));
        }
        self.plan(begin, Step::Look);
        self.plan(begin + COMMAND_EVERY, Step::Command);
        self.until(begin + Duration::from_secs(self.scenario.seconds)).await;
        self.quiet().await;
        self.converge(&baseline).await?;
        self.end_flows().await;
        self.raft.judge(&self.world);
        Ok(())
    }

    /// Makes the cluster: the first control node founds it, the others join by seeds and are promoted.
    async fn found(&mut self) -> Result<(), String> {
        for (name, role) in [
            ("ams", Role::Control),
            ("fra", Role::Control),
            ("par", Role::Control),
            ("nyc", Role::Relay),
            ("web", Role::Node),
        ] {
            self.world.add(Plan { name, role });
        }
        self.world.found(0).await?;
        for index in 1..self.world.machines.len() {
            self.world.join(index).await?;
            if is_control(index) {
                self.world.promote(index).await?;
            }
        }
        for route in ROUTES {
            self.world.link(route.name, &[route.consumer], route.listen, route.target, route.port).await?;
        }
        let limit = Instant::now() + STAND_WITHIN;
        while let Err(missing) = convergence::stands(&self.world) {
            if Instant::now() >= limit {
                return Err(format!("the world does not stand after {} s: {missing}", STAND_WITHIN.as_secs()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.trace.note(format_args!("the world stands"));
        Ok(())
    }

    fn plan(&mut self, at: Instant, step: Step) {
        self.steps += 1;
        self.schedule.insert((at, self.steps), step);
    }

    /// Has everything happen that is planned until `end`.
    async fn until(&mut self, end: Instant) {
        loop {
            let next = self.schedule.keys().next().map_or(end, |(at, _)| *at);
            tokio::select! {
                biased;
                Some(node) = self.votes.recv() => self.voted(node),
                () = tokio::time::sleep_until(next.min(end)) => {
                    if next > end || Instant::now() > end {
                        return;
                    }
                    if let Some((_, step)) = self.schedule.pop_first() {
                        self.step(step).await;
                    } else {
                        return;
                    }
                }
            }
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Begin(number) => self.begin(number).await,
            Step::End(number) => {
                self.trace.note(format_args!("fault {number} ends"));
                self.weather.end(number, &self.world.fabric);
            }
            Step::Start(index) => self.start(index).await,
            Step::Drain(index, draining) => self.drain(index, draining).await,
            Step::Look => {
                self.look();
                self.plan(Instant::now() + LOOK_EVERY, Step::Look);
            }
            Step::Command => {
                self.command();
                self.plan(Instant::now() + COMMAND_EVERY, Step::Command);
            }
        }
    }

    fn look(&mut self) {
        let down = self.world.machines.iter().any(|machine| machine.node.is_none());
        let trouble = down || Instant::now() < self.troubled_until;
        self.flows.look(&self.world, trouble);
        self.sessions.look(&self.world, &self.findings);
        self.store.look(&self.world, &self.findings);
        supervision::look(&self.world, &self.findings);
        circuits::look(&self.world, &self.findings);
    }

    /// Somebody makes a token at some control node.
    fn command(&mut self) {
        let (seed, start) = (self.world.rng.random::<u64>(), self.world.rng.random_range(0..self.world.machines.len()));
        let count = self.world.machines.len();
        let order = (0..count).map(|step| (start + step) % count);
        let node =
            order.filter_map(|index| self.world.machines[index].node.as_ref()).find(|node| node.service().is_some());
        let Some((node, service)) = node.and_then(|node| Some((node, Arc::clone(node.service()?)))) else { return };
        let secret = JoinSecret::generate(&SimEntropy::new(seed));
        let token = secret.id();
        let action = Action::TokenCreate {
            token,
            verifier: VerifierBytes(secret.verifier().to_bytes()),
            roles: [Role::Node].into(),
            expires: node.fabric().clock.wall().after(Span::from_hours(1)),
        };
        let raft = Arc::clone(&self.raft);
        tokio::spawn(async move {
            if service.propose(action, None).await.is_ok() {
                raft.acknowledged(token);
            }
        });
    }

    async fn begin(&mut self, number: usize) {
        let Some(timed) = self.scenario.faults.get(number) else { return };
        let fault = timed.fault.clone();
        let now = Instant::now();
        self.trace.note(format_args!("fault {number}: {fault:?}"));
        if !matches!(fault, Fault::Drain { .. }) {
            self.troubled_until = self.troubled_until.max(now + fault.lasts());
        }
        match fault {
            Fault::Crash { host, for_ms } => self.down(host, Duration::from_millis(for_ms), World::crash),
            Fault::Kill { host, for_ms } => self.down(host, Duration::from_millis(for_ms), World::kill),
            Fault::Restart { host, for_ms } => self.restart(host, Duration::from_millis(for_ms)).await,
            Fault::Pause { host, for_ms } => self.world.pause(host, Duration::from_millis(for_ms)),
            Fault::Election { for_ms, voter_for_ms } => {
                if let Some(leader) = self.world.leader() {
                    self.down(leader, Duration::from_millis(for_ms), World::crash);
                    // Votes that were cast before do not count.
                    while self.votes.try_recv().is_ok() {}
                    self.ambush = Some(Duration::from_millis(voter_for_ms));
                }
            }
            Fault::Drain { host, for_ms } => {
                self.plan(now, Step::Drain(host, true));
                self.plan(now + Duration::from_millis(for_ms), Step::Drain(host, false));
            }
            of_ways => {
                let end = now + of_ways.lasts();
                self.weather.begin(number, of_ways, &self.world.fabric);
                self.plan(end, Step::End(number));
            }
        }
    }

    /// Takes a running host down, and plans its return.
    fn down(&mut self, index: usize, span: Duration, how: impl FnOnce(&mut World, usize)) {
        if self.world.machines[index].node.is_none() {
            return;
        }
        how(&mut self.world, index);
        self.workload.host_down(index);
        self.trace.note(format_args!("{} is down", self.world.machines[index].name));
        self.plan(Instant::now() + span, Step::Start(index));
    }

    async fn restart(&mut self, index: usize, span: Duration) {
        if self.world.machines[index].node.is_none() {
            return;
        }
        self.workload.break_flows(index);
        if tokio::time::timeout(STOP_WITHIN, self.world.stop(index)).await.is_err() {
            let name = self.world.machines[index].name.clone();
            self.findings.add("supervision", format!("{name} did not stop within {} s", STOP_WITHIN.as_secs()));
        }
        self.workload.host_down(index);
        self.trace.note(format_args!("{} has stopped", self.world.machines[index].name));
        self.plan(Instant::now() + span, Step::Start(index));
    }

    async fn start(&mut self, index: usize) {
        if self.world.machines[index].node.is_some() {
            return;
        }
        match self.world.start(index).await {
            Ok(()) => {
                self.trace.note(format_args!("{} is up", self.world.machines[index].name));
                self.store.started(index, &self.world, &self.findings);
                self.workload.host_up(index, &self.world.machines[index].applications);
            }
            Err(error) => {
                let name = self.world.machines[index].name.clone();
                self.findings.add("store", format!("{name} does not start from its disk: {error}"));
            }
        }
    }

    /// Somebody drains or resumes a relay, again and again until it was agreed; who resumes has drained it before.
    async fn drain(&mut self, index: usize, draining: bool) {
        let Some(relay) = self.world.machines[index].id else { return };
        let services = self.world.machines.iter().filter_map(|machine| machine.node.as_ref()?.service().cloned());
        let Some(service) = services.collect::<Vec<_>>().into_iter().next() else {
            return self.plan(Instant::now() + LOOK_EVERY, Step::Drain(index, draining));
        };
        let action = Action::RelayDrain { relay, draining };
        // A proposal waits for an election; the world goes on meanwhile, and a second one changes nothing.
        let proposed = tokio::time::timeout(PROPOSE_WITHIN, service.propose(action, None)).await;
        let name = &self.world.machines[index].name;
        if matches!(proposed, Ok(Ok(_))) {
            self.trace.note(format_args!("{name} {}", if draining { "drains" } else { "is in service" }));
        } else if !draining {
            self.plan(Instant::now() + LOOK_EVERY, Step::Drain(index, false));
        }
    }

    /// A control node has voted; an election fault takes it down in that moment.
    fn voted(&mut self, node: NodeId) {
        if let (Some(index), Some(span)) = (self.world.index_of(node), self.ambush.take()) {
            self.down(index, span, World::crash);
        }
    }

    /// Everything that was wrong ends.
    async fn quiet(&mut self) {
        self.trace.note(format_args!("quiet"));
        self.ambush = None;
        self.schedule.retain(|_, step| matches!(step, Step::Look | Step::Command));
        for index in 0..RELAYS {
            self.plan(Instant::now(), Step::Drain(index, false));
        }
        self.weather.clear(&self.world.fabric);
        for index in 0..self.world.machines.len() {
            self.start(index).await;
        }
        self.troubled_until = Instant::now();
    }

    async fn converge(&mut self, baseline: &Baseline) -> Result<(), String> {
        let since = Instant::now();
        loop {
            self.until(Instant::now() + LOOK_EVERY).await;
            match convergence::converged(&self.world, baseline, &self.workload, since) {
                Ok(()) => {
                    self.converged_after = Some(since.elapsed());
                    self.trace.note(format_args!("well again"));
                    return Ok(());
                }
                Err(missing) if since.elapsed() >= CONVERGE_WITHIN => {
                    let seconds = CONVERGE_WITHIN.as_secs();
                    self.findings.add("convergence", format!("{seconds} s after everything was well: {missing}"));
                    return Ok(());
                }
                Err(_) => {}
            }
        }
    }

    async fn end_flows(&mut self) {
        self.workload.stop();
        // What is agreed last has the time to reach every member before they are compared.
        self.schedule.retain(|_, step| !matches!(step, Step::Command));
        let limit = Instant::now() + END_WITHIN;
        while Instant::now() < limit && !self.workload.flows().iter().all(|flow| flow.is_over()) {
            self.until(Instant::now() + LOOK_EVERY).await;
        }
        self.until(Instant::now() + LOOK_EVERY).await;
        self.flows.judge(&self.workload.flows(), true, &self.findings);
    }

    fn report(self) -> Report {
        let flows = self.workload.flows();
        let bytes = flows.iter().map(|flow| flow.with(|state| state.got.iter().sum::<u64>())).sum();
        let longest_stall = flows.iter().map(|flow| flow.with(|state| state.longest_stall)).max().unwrap_or_default();
        Report {
            scenario: self.scenario,
            lasted: self.began.elapsed(),
            took: Duration::ZERO,
            traced: self.trace.traced(),
            datagrams: self.datagrams.load(Ordering::Relaxed),
            flows: flows.len(),
            bytes,
            longest_stall,
            commands: self.raft.acknowledgements(),
            converged_after: self.converged_after,
            findings: self.findings.all(),
        }
    }
}
