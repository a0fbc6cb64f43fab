//! `postroad relay drain|resume|force-disconnect`: a relay goes out of service and comes back, and flows move.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use axum::http::Method;
use clap::Args;
use postroad_actors::status::relays::{Carried, DrainView, Relay, Relays, Standing};
use postroad_cluster::{drain::Phase, time::WallTime};
use serde_json::json;

use super::super::{Context, confirm, output::Output, read, relative, segment, token};
use crate::{
    api::view,
    demo::story::Story,
    errors::{Exit, Failure},
};

/// The time between two looks at what is left.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The command.
#[derive(Debug, Args)]
pub(super) struct Drain {
    /// Its name
    name: String,
    /// Say that the drain has begun, and do not wait for its end
    #[arg(long)]
    no_wait: bool,
    /// How long to watch; the drain goes on afterwards
    #[arg(long, value_name = "TIME", default_value = "11min", value_parser = token::lifetime)]
    wait: Duration,
    /// Do not ask, even if no other relay is ready
    #[arg(long)]
    yes: bool,
}

impl Drain {
    pub(super) fn run(&self, context: &Context) -> Result<Output, Failure> {
        let name = segment(&self.name)?;
        let before: Relays = read(&context.ask(Method::GET, "/api/relays", None)?)?;
        let other = before.list.iter().any(|relay| relay.state == Standing::Ready && relay.name != name);
        let drains = before.list.iter().any(|relay| relay.name == name && relay.drain.is_some());
        if !other && !drains {
            confirm(
                self.yes,
                &format!("no relay but {name} is ready: until it is resumed, no link opens a connection"),
            )?;
        }
        let mut output = context.ask(Method::POST, &format!("/api/relays/{name}/drain"), Some(&json!({})))?;
        let begun: view::RelayDrained = read(&output)?;
        let undo = format!("To undo: postroad relay resume {name}");
        let story = Story::new(context.style, context.global.json);
        if begun.connected == Some(false) || self.no_wait {
            let already = if begun.changed { "drains" } else { "was draining already" };
            output.human = format!(
                "{name} {already}: new connections go elsewhere and open ones move\n{undo}\nHow far it is: postroad relay show {name}"
            );
            return Ok(output);
        }
        story.say(format!("{name} takes nothing new; what it carries moves to other relays"));
        let watched = self.watch(context, &story, Watched::new(name, &before))?;
        let warnings = std::mem::take(&mut output.warnings);
        let data = json!({
            "id": begun.id,
            "name": name,
            "changed": begun.changed,
            "over": watched.over,
            "moved": watched.moved,
            "flows_left": watched.left,
            "took_ms": watched.took.as_millis() as u64,
        });
        let human = format!("{}\n{undo}", watched.words());
        let exit = if watched.over { Exit::Done } else { Exit::TimedOut };
        Ok(Output { exit, ..Output::new(data, human).warn(warnings) })
    }

    /// Looks again and again, and tells what has moved, until nothing is left or the time is up.
    fn watch(&self, context: &Context, story: &Story, mut watched: Watched) -> Result<Watched, Failure> {
        let client = context.client()?;
        let path = "/api/relays";
        let until = Instant::now() + self.wait;
        context.block_on(async {
            loop {
                let relays: Relays = read(&client.ask(Method::GET, path, None).await?)?;
                watched.look(&relays, story);
                if watched.over || Instant::now() >= until {
                    story.end_progress();
                    return Ok(watched);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        })
    }
}

/// What the watching of a drain has seen.
struct Watched {
    name: String,
    began: Instant,
    took: Duration,
    /// Circuits that were on the relay, with their flows.
    there: BTreeMap<String, Carried>,
    /// Flows that were there when it began, as far as nodes had said.
    flows: u64,
    moved: Vec<Carried>,
    left: u64,
    over: bool,
    /// What was said last, so that a pipe gets a line a step and no more.
    said: String,
}

impl Watched {
    fn new(name: &str, before: &Relays) -> Self {
        let there = before.circuits.iter().filter(|circuit| circuit.relay.as_deref() == Some(name));
        Self {
            name: name.to_owned(),
            began: Instant::now(),
            took: Duration::ZERO,
            there: there.map(|circuit| (circuit.circuit.clone(), circuit.clone())).collect(),
            flows: before.list.iter().find(|relay| relay.name == name).and_then(|relay| relay.flows).unwrap_or(0),
            moved: Vec::new(),
            left: 0,
            over: false,
            said: String::new(),
        }
    }

    fn look(&mut self, relays: &Relays, story: &Story) {
        self.took = self.began.elapsed();
        for circuit in &relays.circuits {
            let here = circuit.relay.as_deref() == Some(self.name.as_str());
            if here {
                self.there.insert(circuit.circuit.clone(), circuit.clone());
            } else if self.there.remove(&circuit.circuit).is_some() {
                story.say(format!("  {}", moved(circuit)));
                self.moved.push(circuit.clone());
            }
        }
        let relay: Option<&Relay> = relays.list.iter().find(|relay| relay.name == self.name);
        let Some(drain) = relay.and_then(|relay| relay.drain.as_ref()) else {
            // Somebody has resumed it meanwhile.
            self.over = true;
            return;
        };
        let Some(progress) = &drain.progress else { return };
        self.left = progress.flows;
        self.flows = self.flows.max(progress.flows);
        self.over = progress.phase == Phase::Over;
        let (share, left) = self.progress();
        story.progress(share, &format!("{left}{}", progress.phase.word()));
        let step = format!("  {} flows left, {}", self.left, progress.phase.word());
        if !self.over && self.left > 0 && step != self.said {
            if !story.is_terminal() {
                story.say(&step);
            }
            self.said = step;
        }
    }

    /// How much of it is done, and what is left in words, once nodes have said what the relay carried.
    fn progress(&self) -> (f64, String) {
        match self.flows {
            0 => (if self.over { 1.0 } else { 0.0 }, String::new()),
            flows => (1.0 - self.left as f64 / flows as f64, format!("{} of {flows} flows left, ", self.left)),
        }
    }

    fn words(&self) -> String {
        let seconds = format!("{:.1} s", self.took.as_secs_f64());
        let moved: u64 = self.moved.iter().map(|circuit| circuit.flows).sum();
        if !self.over {
            return format!(
                "{} flows are left on {} after {seconds}; the drain goes on\nTo end their wait: postroad relay force-disconnect {}",
                self.left, self.name, self.name
            );
        }
        match self.moved.len() {
            0 => format!("{} is drained: it carried nothing ({seconds})", self.name),
            1 => format!("{} is drained: 1 circuit with {moved} flows moved in {seconds}", self.name),
            count => format!("{} is drained: {count} circuits with {moved} flows moved in {seconds}", self.name),
        }
    }
}

/// A circuit as people read it: `web and db: 12 flows by par`.
pub(super) fn pair(circuit: &Carried) -> String {
    format!("{} by {}", flows(circuit), circuit.relay.as_deref().unwrap_or("no relay"))
}

/// A circuit that left the relay: `web and db: 12 flows moved to par`.
fn moved(circuit: &Carried) -> String {
    match circuit.relay.as_deref() {
        Some(relay) => format!("{} moved to {relay}", flows(circuit)),
        None => format!("{} off it, no relay carries them yet", flows(circuit)),
    }
}

fn flows(circuit: &Carried) -> String {
    let [one, other] = &circuit.between;
    let flows = if circuit.flows == 1 { "1 flow".to_owned() } else { format!("{} flows", circuit.flows) };
    format!("{one} and {other}: {flows}")
}

/// A drain as `relay show` has it.
pub(super) fn words(drain: &DrainView, now: WallTime) -> String {
    let since = relative::moment(drain.since, now);
    let over = drain.progress.as_ref().is_some_and(|progress| progress.phase == Phase::Over);
    let ends = if over {
        "nothing is left".to_owned()
    } else {
        format!("disconnects what is left {}", relative::moment(drain.ends, now))
    };
    let unheard = match drain.unheard.as_slice() {
        [] => String::new(),
        names => format!("; not heard yet: {}", names.join(", ")),
    };
    format!("  drain    began {since}, {ends}{unheard}")
}

pub(super) fn resume(context: &Context, name: &str) -> Result<Output, Failure> {
    let mut output = context.ask(Method::POST, &format!("/api/relays/{}/resume", segment(name)?), Some(&json!({})))?;
    let done: view::RelayDrained = read(&output)?;
    output.human = if done.changed {
        format!("{name} is back in service\nTo undo: postroad relay drain {name}")
    } else {
        format!("{name} was in service already")
    };
    Ok(output)
}

pub(super) fn disconnect(context: &Context, name: &str, yes: bool) -> Result<Output, Failure> {
    confirm(yes, &format!("flows that could not leave {name} lose their path at once"))?;
    let path = format!("/api/relays/{}/disconnect", segment(name)?);
    let mut output = context.ask(Method::POST, &path, Some(&json!({})))?;
    let done: view::RelayDrained = read(&output)?;
    output.human = if done.changed {
        format!(
            "{name} disconnects what its drain has left; this cannot be undone\nBack in service: postroad relay resume {name}"
        )
    } else {
        format!("{name} has disconnected what was left already")
    };
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_that_left_is_told_with_its_new_relay() {
        let between = ["web".to_owned(), "db".to_owned()];
        let mut circuit = Carried { between, circuit: "1".to_owned(), relay: Some("ams".to_owned()), flows: 50 };
        assert_eq!(moved(&circuit), "web and db: 50 flows moved to ams");
        circuit.flows = 1;
        assert_eq!(moved(&circuit), "web and db: 1 flow moved to ams");
        circuit.relay = None;
        assert_eq!(moved(&circuit), "web and db: 1 flow off it, no relay carries them yet");
    }

    #[test]
    fn progress_begins_at_nothing_until_nodes_have_said_what_there_was() {
        let mut watched = Watched::new("fra", &Relays::default());
        assert_eq!(watched.progress(), (0.0, String::new()));
        (watched.flows, watched.left) = (50, 20);
        assert_eq!(watched.progress(), (0.6, "20 of 50 flows left, ".to_owned()));
        (watched.flows, watched.left, watched.over) = (0, 0, true);
        assert_eq!(watched.progress(), (1.0, String::new()), "an idle relay is drained");
    }
}
