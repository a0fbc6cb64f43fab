//! What the demonstration shows: traffic through the link, the death of the relay that carries it, twice, and a drain.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use tokio::{
    net::TcpListener,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    Options, drain,
    fleet::{Fleet, Role},
    observe::Seen,
    report::{Direction, Event, Report, milliseconds},
    setup::{CONSUMER, TARGET},
    story::Story,
    target,
    traffic::{self, Flows, Traffic},
};
use crate::{cli::relative, errors::Failure};

/// Traffic before the first death and between two, so that each has a before.
const QUIET: Duration = Duration::from_secs(2);
/// How long a killed relay stays away: long enough that the flows cannot have waited for it.
const AWAY: Duration = Duration::from_secs(2);
/// A restarted relay is ready within this time, or something is wrong with it.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(40);
/// The transfers end within this time once they may run, or they stand still.
const TRANSFER_WITHIN: Duration = Duration::from_mins(2);
/// Flows that were told to end do so within this time.
const END_WITHIN: Duration = Duration::from_secs(15);
/// The time between two looks at the traffic.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Everything that runs while traffic runs; it ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    /// What both ends see.
    pub traffic: Arc<Traffic>,
    /// The consumer's flows.
    pub flows: Flows,
    helpers: Vec<AbortHandle>,
}

impl Running {
    /// Opens the flows, serves them, and shows how far they are.
    pub fn start(traffic: Arc<Traffic>, link_port: u16, listener: &Arc<TcpListener>, story: &Story) -> Self {
        let serving = tokio::spawn(target::serve(Arc::clone(listener), Arc::clone(&traffic))).abort_handle();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, link_port));
        let flows = traffic::open(address, &traffic);
        let showing = tokio::spawn(show_progress(Arc::clone(&traffic), story.clone())).abort_handle();
        Self { traffic, flows, helpers: vec![serving, showing] }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.helpers.iter().for_each(AbortHandle::abort);
    }
}

async fn show_progress(traffic: Arc<Traffic>, story: Story) {
    if traffic.upload.bytes == 0 {
        return;
    }
    let began = Instant::now();
    while traffic.share() < 1.0 {
        let share = traffic.share();
        let bytes = share * (traffic.upload.bytes + traffic.download.bytes) as f64;
        let speed = relative::bytes((bytes / began.elapsed().as_secs_f64().max(0.1)) as u64);
        let answers = relative::count(traffic.answers.load(Ordering::Relaxed));
        story.progress(share, &format!("{:.0} % · {speed}/s · {answers} messages answered", share * 100.0));
        sleep(LOOK_EVERY).await;
    }
    story.end_progress();
}

/// Runs the traffic with its deaths to its end.
///
/// # Errors
/// What kept it from its end. Flows that broke are in the report.
pub async fn show(
    fleet: &mut Fleet,
    story: &Story,
    listener: &Arc<TcpListener>,
    options: &Options,
) -> Result<Report, Failure> {
    let began = Instant::now();
    let traffic = Traffic::new(options.transfer_bytes, options.flows);
    let mut running = Running::start(Arc::clone(&traffic), fleet.link_port, listener, story);
    story.say(format!(
        "  {} go each way, held back until the last event is over, and {} flows exchange 100 bytes every {} ms",
        relative::bytes(options.transfer_bytes),
        options.flows,
        traffic::CHAT_EVERY.as_millis()
    ));
    let mut events = Vec::new();
    for _ in 0..options.deaths {
        watch(fleet, &traffic, QUIET).await?;
        events.push(death(fleet, story, &traffic).await?);
    }
    let mut drains = Vec::new();
    for _ in 0..options.drains {
        watch(fleet, &traffic, QUIET / 2).await?;
        drains.push(drain::drain(fleet, story, &traffic).await?);
    }
    watch(fleet, &traffic, QUIET / 2).await?;
    traffic.pace.release();
    let ended = timeout(TRANSFER_WITHIN, async { while running.flows.transfers.join_next().await.is_some() {} });
    if ended.await.is_err() && traffic.faults().is_empty() {
        let message = format!(
            "after {} s only {:.0} % of the transfer have arrived",
            TRANSFER_WITHIN.as_secs(),
            traffic.share() * 100.0
        );
        return Err(fleet.blame(Failure::failed("DEMO_STALLED", message), CONSUMER));
    }
    let transfer_took = began.elapsed();
    story.end_progress();
    end(&traffic, &mut running.flows).await;
    Ok(Report { drains, ..report(&traffic, events, transfer_took) })
}

/// Lets the chatty flows end, and waits until the target has seen every end. What does not end is in the report.
async fn end(traffic: &Traffic, flows: &mut Flows) {
    traffic.end_chats();
    let all = async {
        while flows.chats.join_next().await.is_some() {}
        while traffic.faults().is_empty() && traffic.clean_ends.load(Ordering::Relaxed) < traffic.flows() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    // Out of time, the count of clean ends says what is missing.
    let _ = timeout(END_WITHIN, all).await;
}

fn report(traffic: &Traffic, events: Vec<Event>, transfer_took: Duration) -> Report {
    Report {
        upload: Direction::of(&traffic.upload),
        download: Direction::of(&traffic.download),
        transfer_took,
        chatty_flows: traffic.chats.len() as u64,
        answers: traffic.answers.load(Ordering::Relaxed),
        flows: traffic.flows(),
        clean_ends: traffic.clean_ends.load(Ordering::Relaxed),
        faults: traffic.faults(),
        events,
        drains: Vec::new(),
        longest_stall: traffic.ever(),
        took: Duration::ZERO,
    }
}

/// Lets time pass while traffic runs; fails at once when a flow breaks or a node ends.
pub(super) async fn watch(fleet: &mut Fleet, traffic: &Traffic, time: Duration) -> Result<(), Failure> {
    let until = Instant::now() + time;
    loop {
        fleet.check_alive()?;
        if let Some(fault) = traffic.faults().first() {
            let code =
                if matches!(fault, traffic::Fault::Bytes(_)) { "DEMO_BYTES_WRONG" } else { "DEMO_ENDINGS_WRONG" };
            return Err(fleet.blame(Failure::failed(code, fault.said().to_owned()), CONSUMER));
        }
        if Instant::now() >= until {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The death and return of the relay that is in use.
async fn death(fleet: &mut Fleet, story: &Story, traffic: &Traffic) -> Result<Event, Failure> {
    let what = "a relay carries the flows, and another could";
    let carried = |seen: &Seen| seen.in_use().is_some() && seen.has_spares();
    let seen = fleet.until(CONSUMER, what, READY_WITHIN, carried).await?;
    let relay = seen.in_use().unwrap_or_default().to_owned();
    let flows = seen.flows_of(&relay);
    traffic.begin_window();
    let died = Instant::now();
    let pid = fleet.kill(&relay)?;
    let style = story.style();
    let who = match fleet.member(&relay)?.role {
        Role::Control => format!("the relay on {}", style.heading(&relay)),
        Role::Relay | Role::Node => format!("relay {}", style.heading(&relay)),
    };
    story
        .say(format!("  {} {who} is killed (SIGKILL to process {pid}) while it carries {flows} flows", style.bad("✗")));
    watch(fleet, traffic, AWAY).await?;
    let moved_to = fleet.look(CONSUMER).await?.in_use().map(str::to_owned);
    fleet.start(&relay)?;
    let back_after = ready_again(fleet, &relay, died).await?;
    watch(fleet, traffic, Duration::ZERO).await?;
    let stall = traffic.window();
    story.say(format!(
        "  {} {} carries them on: longest stall {}, nothing lost; {relay} is ready again after {}",
        style.good("✓"),
        style.heading(moved_to.as_deref().unwrap_or("another relay")),
        style.heading(format!("{} ms", milliseconds(stall))),
        relative::span(back_after),
    ));
    Ok(Event { relay, pid, flows, moved_to, stall, back_after })
}

/// Waits until a restarted relay could carry again: both ends have a session with it, and the circuit has a spare.
///
/// # Errors
/// If that takes too long.
pub async fn ready_again(fleet: &mut Fleet, relay: &str, since: Instant) -> Result<Duration, Failure> {
    let what = format!("{relay} is ready again");
    if fleet.member(relay)?.role == Role::Control {
        fleet.until(relay, &what, READY_WITHIN, Seen::has_leader).await?;
    }
    // Blamed on the relay's own log when it does not come back.
    for end in [TARGET, CONSUMER] {
        let reached = fleet.until(end, &what, READY_WITHIN, |seen| seen.reaches(relay)).await;
        reached.map_err(|failure| fleet.blame(Failure { hint: None, ..failure }, relay))?;
    }
    fleet.until(CONSUMER, "the circuit has a spare path again", READY_WITHIN, Seen::has_spares).await?;
    Ok(since.elapsed())
}
