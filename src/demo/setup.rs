//! How the demonstration's cluster comes to be, by the same commands that set up a real one.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::{
    fleet::{Fleet, Role, Step},
    story::Story,
    traffic,
};
use crate::errors::Failure;

/// The name of the cluster.
pub const CLUSTER: &str = "harbour";
/// The name of the link.
pub const LINK: &str = "files";
/// The first control node, which founds the cluster.
pub const FIRST: &str = "control-1";
/// The node that consumes the link.
pub const CONSUMER: &str = "web";
/// The node that serves it.
pub const TARGET: &str = "db";
/// No step of the set-up takes longer on a machine that can run the demonstration at all.
const STEP_WITHIN: Duration = Duration::from_secs(40);

/// Sets everything up until the link carries bytes to `target_port`.
///
/// # Errors
/// The step that failed, with the log to read.
pub async fn set_up(fleet: &mut Fleet, story: &Story, target_port: u16) -> Result<(), Failure> {
    let authority = fleet.directory.join("authority").display().to_string();
    let passphrase = fleet.directory.join("passphrase").display().to_string();
    let keys = ["--authority", authority.as_str(), "--passphrase-file", passphrase.as_str()];
    let fingerprint = found(fleet, &keys).await?;
    story.say(format!("  {} founds the cluster {}", FIRST, story.style().heading(CLUSTER)));
    let others = control_nodes(fleet, &keys, &fingerprint).await?;
    if !others.is_empty() {
        let count = others.len() + 1;
        story.say(format!(
            "  {} join and are promoted: {count} control nodes agree, each with a local relay",
            listed(&others)
        ));
    }
    let ready = relays_and_nodes(fleet, &fingerprint).await?;
    let (relays, nodes) = (listed(&fleet.names(Role::Relay)), listed(&fleet.names(Role::Node)));
    story.say(format!("  relays {relays} join by their seeds, each on a host, power and uplink of its own (made up)"));
    story.say(format!("  workload nodes {nodes} join; all {ready} relays are ready"));
    link(fleet, target_port).await?;
    story.say(format!(
        "  link {} opens: {CONSUMER} listens on 127.0.0.1:{}, {TARGET} connects to 127.0.0.1:{target_port}",
        story.style().heading(LINK),
        fleet.link_port
    ));
    Ok(())
}

/// Names as a sentence has them.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A passphrase for an authority that lives for a minute; the operator's own in real life.
fn passphrase() -> String {
    use postroad_cluster::time::Entropy as _;
    let mut bytes = [0; 16];
    crate::entropy::SystemEntropy.fill(&mut bytes);
    format!("{:032x}", u128::from_be_bytes(bytes))
}

async fn found(fleet: &mut Fleet, keys: &[&str]) -> Result<String, Failure> {
    fleet.write(&fleet.directory.join("passphrase"), &passphrase())?;
    let address = fleet.member(FIRST)?.address();
    let words = ["init", CLUSTER, "--name", FIRST, "--advertise", &address];
    let founded = fleet.step(FIRST, &[&words[..], keys].concat(), None)?.run().await?;
    fleet.start(FIRST)?;
    fleet.until(FIRST, "the first control node leads", STEP_WITHIN, |seen| seen.agrees_with(1)).await?;
    text(&founded, "fingerprint", FIRST)
}

async fn control_nodes(fleet: &mut Fleet, keys: &[&str], fingerprint: &str) -> Result<Vec<&'static str>, Failure> {
    let others: Vec<&'static str> = fleet.names(Role::Control).into_iter().filter(|name| *name != FIRST).collect();
    let seeds = [fleet.member(FIRST)?.address()];
    join(fleet, &others, &seeds, fingerprint).await?;
    for name in &others {
        fleet.start(name)?;
    }
    for name in &others {
        let what = format!("{name} knows who leads");
        fleet.until(name, &what, STEP_WITHIN, super::observe::Seen::has_leader).await?;
        let words = ["control", "promote", name];
        fleet.step(name, &[&words[..], keys].concat(), None)?.run().await?;
    }
    let count = fleet.names(Role::Control).len();
    let agree = |seen: &super::observe::Seen| seen.agrees_with(count);
    fleet.until(FIRST, "all control nodes agree", STEP_WITHIN, agree).await?;
    Ok(others)
}

async fn relays_and_nodes(fleet: &mut Fleet, fingerprint: &str) -> Result<usize, Failure> {
    let newcomers = [fleet.names(Role::Relay), fleet.names(Role::Node)].concat();
    let controls = fleet.names(Role::Control);
    let seeds = controls.iter().map(|name| fleet.member(name).map(super::member::Member::address));
    let seeds = seeds.collect::<Result<Vec<_>, _>>()?;
    join(fleet, &newcomers, &seeds, fingerprint).await?;
    for name in &newcomers {
        fleet.start(name)?;
    }
    let count = fleet.members().iter().filter(|member| member.port.is_some()).count();
    let ready = |seen: &super::observe::Seen| seen.relays_ready() == count;
    fleet.until(FIRST, "all relays are ready", STEP_WITHIN, ready).await?;
    Ok(count)
}

/// Lets nodes join beside each other: a token for each, then the node's own command.
async fn join(fleet: &Fleet, names: &[&str], seeds: &[String], fingerprint: &str) -> Result<(), Failure> {
    let token = |name: &&str| {
        let role = fleet.member(name)?.role.word();
        fleet.step(FIRST, &["token", "create", "--role", role], None)
    };
    let tokens = all(names.iter().map(token)).await?;
    let joining = names.iter().zip(&tokens).map(|(name, token)| {
        let secret = text(token, "token", FIRST)?;
        let mut words = vec!["join", "--name", name, "--fingerprint", fingerprint];
        for seed in seeds {
            words.extend(["--seed", seed]);
        }
        fleet.step(name, &words, Some(&secret))
    });
    all(joining).await.map(|_| ())
}

/// Runs steps beside each other; their answers in the order of the steps.
async fn all(steps: impl Iterator<Item = Result<Step, Failure>>) -> Result<Vec<Value>, Failure> {
    let steps = steps.collect::<Result<Vec<_>, _>>()?;
    let mut answers = vec![Value::Null; steps.len()];
    let mut running = JoinSet::new();
    for (number, step) in steps.into_iter().enumerate() {
        running.spawn(async move { (number, step.run().await) });
    }
    while let Some(ended) = running.join_next().await {
        let ended = ended.map_err(|error| Failure::failed("DEMO_STEP_FAILED", format!("a step broke: {error}")));
        let (number, answer) = ended?;
        answers[number] = answer?;
    }
    Ok(answers)
}

async fn link(fleet: &mut Fleet, target_port: u16) -> Result<(), Failure> {
    let from = format!("{CONSUMER}=127.0.0.1:{}", fleet.link_port);
    let to = format!("{TARGET}=127.0.0.1:{target_port}");
    fleet.step(FIRST, &["link", "add", LINK, "--from", &from, "--to", &to], None)?.run().await?;
    fleet.until(TARGET, "a relay holds the link's endpoint", STEP_WITHIN, |seen| seen.registered_at() > 0).await?;
    fleet.until(CONSUMER, "the consumer listens", STEP_WITHIN, super::observe::Seen::listens).await?;
    let listener = (std::net::Ipv4Addr::LOCALHOST, fleet.link_port).into();
    if let Err(error) = traffic::probe(listener, STEP_WITHIN).await {
        let message = format!("the link was opened and carries nothing: {error}");
        return Err(fleet.blame(Failure::failed("DEMO_LINK_SILENT", message), CONSUMER));
    }
    let what = "the circuit has a warm path over a second relay";
    fleet.until(CONSUMER, what, STEP_WITHIN, super::observe::Seen::has_spares).await?;
    Ok(())
}

fn text(answer: &Value, key: &str, name: &str) -> Result<String, Failure> {
    answer[key]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| Failure::failed("DEMO_STEP_FAILED", format!("{name} has answered without `{key}`: {answer}")))
}
