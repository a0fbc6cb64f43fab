//! After the story: everything stays up, and whoever kills a node sees what it did.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, time::sleep};

use super::{
    fleet::{Fleet, Role},
    report::milliseconds,
    setup::CONSUMER,
    show::{Running, ready_again},
    story::Story,
    target,
    traffic::{self, Traffic},
};
use crate::errors::Failure;

/// The time between two looks at the nodes.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a node that somebody killed stays away.
const AWAY: Duration = Duration::from_secs(2);

/// Keeps chatty flows going and restarts what is killed, until it is dropped.
///
/// # Errors
/// When a node does not come back.
pub async fn stay(fleet: &mut Fleet, story: &Story, listener: &Arc<TcpListener>, flows: u64) -> Result<(), Failure> {
    loop {
        let traffic = Traffic::new(0, flows);
        let running = Running::start(Arc::clone(&traffic), fleet.link_port, listener, story);
        loop {
            let ended = fleet.ended();
            if !ended.is_empty() {
                back(fleet, story, &traffic, ended).await?;
                traffic.begin_window();
            } else if traffic.faults().is_empty() {
                sleep(LOOK_EVERY).await;
            } else {
                break;
            }
        }
        let faults = traffic.faults();
        let first = faults.first().map(|fault| fault.said().to_owned()).unwrap_or_default();
        story.say(format!(
            "  {} {} of {flows} flows broke, as they must when an end of theirs dies: {first}",
            story.style().bad("✗"),
            faults.len().min(flows as usize)
        ));
        drop(running);
        link_again(fleet, story, listener).await?;
        story.say(format!("  {} the link carries again, and {flows} flows are opened", story.style().good("✓")));
    }
}

/// Waits until the link carries bytes; restarts what ends meanwhile.
async fn link_again(fleet: &mut Fleet, story: &Story, listener: &Arc<TcpListener>) -> Result<(), Failure> {
    let nothing = Traffic::new(0, 0);
    let serving = tokio::spawn(target::serve(Arc::clone(listener), Arc::clone(&nothing)));
    let address = (Ipv4Addr::LOCALHOST, fleet.link_port).into();
    while traffic::probe(address, AWAY).await.is_err() {
        let ended = fleet.ended();
        if ended.is_empty() {
            sleep(LOOK_EVERY).await;
        } else {
            back(fleet, story, &nothing, ended).await?;
        }
    }
    serving.abort();
    Ok(())
}

async fn back(
    fleet: &mut Fleet,
    story: &Story,
    traffic: &Traffic,
    ended: Vec<(&'static str, String)>,
) -> Result<(), Failure> {
    let style = story.style();
    let died = Instant::now();
    for (name, status) in &ended {
        let again = AWAY.as_secs();
        story.say(format!(
            "  {} {} has ended ({status}); in {again} s it is started again",
            style.bad("✗"),
            style.heading(name)
        ));
    }
    sleep(AWAY).await;
    for (name, _) in &ended {
        fleet.start(name)?;
        if fleet.member(name)?.role == Role::Node {
            // Whether it carries again is seen by the link.
            story.say(format!("  {} {name} is started again", style.good("✓")));
            continue;
        }
        let back_after = ready_again(fleet, name, died).await?;
        story.say(format!(
            "  {} longest stall {}; {name} is ready again after {}",
            style.good("✓"),
            style.heading(format!("{} ms", milliseconds(traffic.window()))),
            crate::cli::relative::span(back_after),
        ));
    }
    Ok(())
}

/// What to try while it stays up.
pub async fn suggest(fleet: &Fleet, story: &Story) {
    let program = std::env::current_exe().unwrap_or_else(|_| Path::new("postroad").to_path_buf());
    let program = program.display();
    let style = story.style();
    let in_use = fleet.look(CONSUMER).await.ok().and_then(|seen| seen.in_use().map(str::to_owned));
    let victim = in_use.and_then(|name| Some((name.clone(), fleet.member(&name).ok()?.pid()?)));
    let data = |name: &str| fleet.directory.join(name).display().to_string();
    story.say("");
    story.say(style.heading("It stays up until Ctrl-C, with the chatty flows open. Try:"));
    if let Some(first) = fleet.members().first() {
        story.say(format!("    http://127.0.0.1:{}    {}", first.console, style.dim("# the console, of every node")));
    }
    story.say(format!("    {program} --data {} status", data("control-1")));
    story.say(format!("    {program} --data {} status    {}", data(CONSUMER), style.dim("# which relay carries what")));
    if let Some((name, pid)) = victim {
        story.say(format!("    kill -9 {pid}    {}", style.dim(format!("# {name}, which carries the flows now"))));
    }
    for member in fleet.members().iter().filter(|member| member.port.is_some()) {
        let pid = member.pid().map_or_else(|| "not running".to_owned(), |pid| format!("process {pid}"));
        story.say(style.dim(format!("    {:<10} {pid}, log {}", member.name, member.log.display())));
    }
    next(story);
}

/// What comes after the demonstration.
pub fn next(story: &Story) {
    story.say("");
    story.say("Next: three machines of your own, by the same commands; README.md, Setting up a cluster.");
}
