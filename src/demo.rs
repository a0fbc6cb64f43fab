//! `postroad demo`: a whole cluster of real processes on loopback, traffic through it, relays that die under it, and one
//! that is drained.
//!
//! A map: [`fleet`] has the processes ([`child`] one of them, [`leash`] how it ends with us, [`ports`] where it
//! listens), [`setup`] the commands that make a cluster of them, [`traffic`] and [`target`] the applications at both
//! ends ([`content`] what they send, [`gauge`] how long they stood still), [`show`] the deaths, [`drain`] the drain,
//! [`stay`] what comes afterwards, [`observe`] what nodes say, [`report`] what came of it, and [`story`] how it is told.

pub mod child;
pub mod content;
pub mod drain;
pub mod fleet;
pub mod gauge;
pub mod leash;
pub mod member;
pub mod observe;
pub mod ports;
pub mod report;
pub mod setup;
pub mod show;
pub mod stay;
pub mod story;
pub mod target;
pub mod traffic;

use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cli::{output::Output, relative},
    errors::{Exit, Failure},
};
use fleet::Fleet;
use report::{Report, milliseconds};
use story::Story;

/// What to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// End after the story instead of staying up.
    pub once: bool,
    /// Leave the directory.
    pub keep: bool,
    /// Let the consoles act.
    pub act: bool,
    /// The size of the transfer, each way.
    pub transfer_bytes: u64,
    /// How many chatty flows there are.
    pub flows: u64,
    /// How many times the relay in use is killed.
    pub deaths: u32,
    /// How many times the relay in use is drained.
    pub drains: u32,
    /// How long a packet takes from one node to another and back, at least.
    pub round_trip: Duration,
}

/// Runs the demonstration from its directory to its last word.
///
/// # Errors
/// What kept it from its end, or what was not as it must be: `DEMO_BYTES_WRONG`, `DEMO_ENDINGS_WRONG`,
/// `DEMO_STALLED`. Every process that it started has ended then.
pub fn run(options: &Options, story: &Story) -> Result<Output, Failure> {
    // Two threads: looking at nodes must not hold up the flows whose pauses are measured.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::failed("NO_RUNTIME", format!("could not start the demonstration's runtime: {error}"))
    })?;
    runtime.block_on(async {
        let mut fleet = Fleet::make(options.keep)?;
        if options.act {
            fleet.let_consoles_act()?;
        }
        if !options.round_trip.is_zero() {
            fleet.delay(options.round_trip)?;
        }
        let outcome = until_signal(&mut fleet, options, story).await;
        fleet.stop().await;
        // Whoever is to read a log finds it.
        let interrupted = outcome.as_ref().is_err_and(|failure| failure.code == "DEMO_INTERRUPTED");
        fleet.keep |= outcome.is_err() && !interrupted;
        if fleet.keep {
            story.say(format!("Everything is in {}", fleet.directory.display()));
        }
        outcome
    })
}

async fn until_signal(fleet: &mut Fleet, options: &Options, story: &Story) -> Result<Output, Failure> {
    let asked_to_end = signals()?;
    tokio::pin!(asked_to_end);
    let shown = tokio::select! {
        biased;
        name = &mut asked_to_end => {
            let message = format!("the demonstration was ended by {name} before it was over");
            return Err(Failure::new(Exit::Failed, "DEMO_INTERRUPTED", message));
        }
        shown = tell(fleet, options, story) => shown?,
    };
    let (listener, report) = shown;
    let data = report.json(&place(fleet, options));
    if let Err(failure) = report.verdict() {
        return Err(fleet.blame(failure.details(data), setup::CONSUMER));
    }
    if options.once {
        stay::next(story);
        return Ok(Output::new(data, ""));
    }
    stay::suggest(fleet, story).await;
    tokio::select! {
        biased;
        _ = &mut asked_to_end => {}
        ended = stay::stay(fleet, story, &listener, options.flows) => ended?,
    }
    story.say("");
    story.say("Stopped; nothing is left running.");
    Ok(Output::new(data, ""))
}

/// Completes when the demonstration is to end, with the signal's name.
fn signals() -> Result<impl Future<Output = &'static str>, Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::failed("NO_SIGNALS", format!("could not wait for Ctrl-C: {error}")))
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = interrupt.recv() => "Ctrl-C",
            _ = terminate.recv() => "SIGTERM",
            _ = hang_up.recv() => "SIGHUP",
        }
    })
}

/// The story from its first line to its last.
async fn tell(fleet: &mut Fleet, options: &Options, story: &Story) -> Result<(Arc<TcpListener>, Report), Failure> {
    let began = Instant::now();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let service = listener.and_then(|listener| Ok((listener.local_addr()?.port(), Arc::new(listener))));
    let (port, listener) = service.map_err(|error| {
        Failure::failed("DEMO_NO_PORTS", format!("could not listen for the link's target on 127.0.0.1: {error}"))
    })?;
    let count = fleet.members().len();
    let directory = fleet.directory.display();
    story.say(format!("{}: {count} nodes on this machine, in {directory}", story.style().heading("Postroad")));
    {
        // Probes are answered while the cluster is set up.
        let probed = tokio::spawn(target::serve(Arc::clone(&listener), traffic::Traffic::new(0, 0)));
        let set_up = setup::set_up(fleet, story, port).await;
        probed.abort();
        set_up?;
    }
    let mut report = show::show(fleet, story, &listener, options).await?;
    report.took = began.elapsed();
    if report.verdict().is_ok() {
        story.say(ending(&report, story));
    }
    Ok((listener, report))
}

fn ending(report: &Report, story: &Story) -> String {
    let hash = report.upload.sent_sha256.as_deref().map_or("", |hash| &hash[..12]);
    let back = report.download.sent_sha256.as_deref().map_or("", |hash| &hash[..12]);
    format!(
        "  {} {} each way in {}: both ends hash the same ({hash}…, {back}…)\n  \
         {} {} messages answered in order, {} flows ended cleanly, longest stall of all {} ms; {} in all",
        story.style().good("✓"),
        relative::bytes(report.upload.bytes),
        seconds(report.transfer_took),
        story.style().good("✓"),
        relative::count(report.answers),
        report.clean_ends,
        milliseconds(report.longest_stall),
        seconds(report.took),
    )
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

/// Where everything is, for scripts.
fn place(fleet: &Fleet, options: &Options) -> Value {
    let node = |member: &member::Member| {
        json!({
            "name": member.name,
            "role": member.role.word(),
            "relay": member.port.map(|_| member.address()),
            "pid": member.pid(),
            "console": format!("http://127.0.0.1:{}", member.console),
            "data": member.data,
            "log": member.log,
        })
    };
    let nodes: Vec<Value> = fleet.members().iter().map(node).collect();
    json!({
        "cluster": setup::CLUSTER,
        "link": setup::LINK,
        "directory": fleet.directory,
        "kept": options.keep,
        "nodes": nodes,
    })
}
