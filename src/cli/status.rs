//! `postroad status`: is this safe, what is wrong, and what to do next.

use axum::http::Method;
use clap::Args;
use postroad_actors::{
    balancer::role::{RoleView, Standing},
    status::{Health, Problem, Status, control::ControlView, relays},
};
use postroad_cluster::{drain::Phase, id::NodeId, time::WallTime};

use super::{
    Context, milliseconds,
    output::{Output, Style},
    read, relative,
};
use crate::errors::Failure;

/// The command.
#[derive(Debug, Args)]
#[command(after_help = "Example: postroad status\n\n\
                        The first line says whether all is well and what may still be lost. Problems come before \
                        figures, each with since when, its cause and the next command. On a control node it is about \
                        the whole cluster, elsewhere about the node; --json has every figure.")]
pub struct Command {}

impl Command {
    /// Asks and tells.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn run(&self, context: &Context) -> Result<Output, Failure> {
        let mut output = context.ask(Method::GET, "/api/status", None)?;
        let status: Status = read(&output)?;
        output.human = text(&status, context.style);
        Ok(output)
    }
}

fn text(status: &Status, style: Style) -> String {
    let mut lines = vec![first_line(status, style)];
    lines.extend(status.problems.iter().map(|problem| problem_line(problem, status.now, style)));
    if !status.problems.is_empty() {
        lines.push(String::new());
    }
    let mut line = |noun: &str, text: String| lines.push(format!("  {} {text}", style.dim(format_args!("{noun:<9}"))));
    if let Some(control) = &status.control {
        line("control", control_line(control, status.now));
    }
    line("relays", relays_line(status));
    line("links", links_line(status));
    for link in &status.links {
        line("", link_line(link));
    }
    for circuit in &status.circuits {
        line("", circuit_line(circuit));
    }
    for balancer in &status.balancers {
        line("balancer", balancer_line(balancer));
    }
    if status.control.is_none() {
        line("sessions", sessions_line(status));
        line("control", connections_line(status));
    }
    if let Some(relay) = &status.relay_service {
        let text = format!(
            "{} sessions, {} endpoints, {} channels · {} forwarded",
            relay.sessions,
            relay.registrations,
            relay.channels,
            relative::bytes(relay.bytes)
        );
        line("relay", text);
    }
    line("watch", watch_line(status));
    lines.join("\n")
}

fn paint(health: Health, style: Style) -> String {
    let word = health.word();
    match health {
        Health::Well => style.good(word),
        Health::AtRisk => style.warning(word),
        Health::Degraded | Health::Failing => style.bad(word),
    }
}

pub(super) fn plural(count: u64, one: &str) -> String {
    format!("{} {one}{}", relative::count(count), if count == 1 { "" } else { "s" })
}

fn first_line(status: &Status, style: Style) -> String {
    let name = match status.control {
        Some(_) => style.heading(&status.cluster),
        None => format!("{} of {}", style.heading(&status.node.name), status.cluster),
    };
    let controls = status.can_lose.controls.map(|count| match count {
        1 => "1 more control node, ".to_owned(),
        _ => format!("{count} more control nodes, "),
    });
    let relays = match status.can_lose.relays {
        1 => "1 more relay".to_owned(),
        count => format!("{count} more relays"),
    };
    format!("{name} · {} · can lose {}{relays}", paint(status.health, style), controls.unwrap_or_default())
}

fn problem_line(problem: &Problem, now: WallTime, style: Style) -> String {
    let since = now.since(problem.since);
    let since = if since.as_secs() == 0 { String::new() } else { format!(" (for {})", relative::span(since)) };
    let mark = match problem.health {
        Health::Well | Health::AtRisk => style.warning("!"),
        Health::Degraded | Health::Failing => style.bad("✗"),
    };
    format!("{mark} {}{since}. {}", problem.what, problem.next)
}

fn name(control: &ControlView, node: NodeId) -> String {
    let member = control.members.iter().find(|member| member.id == node);
    member.map_or_else(|| node.to_string(), |member| member.name.clone())
}

fn control_line(control: &ControlView, now: WallTime) -> String {
    let voters = control.voters().count();
    let there = control.voters().filter(|member| member.live != Some(false)).count();
    let learners = control.members.len() - voters;
    let learners = if learners == 0 { String::new() } else { format!(", {learners} without a vote") };
    let leader = match control.leader {
        Some(leader) => {
            let span = relative::span(now.since(control.leads_since));
            let cause = control.cause.as_ref().map_or_else(String::new, |cause| format!(", since {cause}"));
            format!("leader {} (term {}, for {span}{cause})", name(control, leader), control.term)
        }
        None => format!("no leader (term {})", control.term),
    };
    let slowest = control.slowest().map_or_else(String::new, |member| {
        let behind = member.lag_entries.unwrap_or_default();
        let behind = if behind == 0 { String::new() } else { format!(", {behind} entries behind") };
        format!(", slowest follower {} answered {} ms ago{behind}", member.name, member.silent_ms.unwrap_or_default())
    });
    let log = relative::count(control.log);
    format!("{there} of {voters} voters{learners}, {leader}, log {log}{slowest}")
}

fn relays_line(status: &Status) -> String {
    let relays = &status.relays;
    let mut parts = vec![format!("{} ready", relays.ready)];
    for (count, state) in [
        (relays.pending, relays::Standing::Pending),
        (relays.draining, relays::Standing::Draining),
        (relays.unreachable, relays::Standing::Unreachable),
    ] {
        if count > 0 {
            let names = relays.list.iter().filter(|relay| relay.state == state).map(|relay| match &relay.drain {
                Some(drain) if state == relays::Standing::Draining => match &drain.progress {
                    Some(progress) if progress.phase == Phase::Over => format!("{}: drained", relay.name),
                    Some(progress) => {
                        format!("{}: {} left, {}", relay.name, plural(progress.flows, "flow"), progress.phase.word())
                    }
                    None => relay.name.clone(),
                },
                _ => relay.name.clone(),
            });
            parts.push(format!("{count} {} ({})", state.word(), names.take(3).collect::<Vec<_>>().join(", ")));
        }
    }
    format!("{} · {} independent, {} off the control nodes", parts.join(", "), relays.independent, relays.off_control)
}

fn links_line(status: &Status) -> String {
    let flows = match status.flows.fleet {
        Some(fleet) => plural(fleet, "flow"),
        None => format!("{} here", plural(status.flows.open, "flow")),
    };
    // The code that came most often says more than a count.
    let reasons = status.flows.refused_by_reason.values().flatten().max_by_key(|(_, count)| **count);
    let most = reasons.map_or_else(String::new, |(code, _)| format!(", most for {code}"));
    let refused = match status.flows.refused {
        0 => String::new(),
        refused => format!(" · {refused} refused here{most}"),
    };
    format!("{} · {flows}{refused}", status.link_count)
}

fn link_line(link: &postroad_actors::status::local::Link) -> String {
    let end = match (&link.listen, &link.target_address) {
        (Some(listen), _) => {
            let how = link.listener.as_deref().unwrap_or("not up");
            format!("{listen} ({how}) to {}", link.target_name)
        }
        (None, Some(address)) => {
            let relays =
                if link.registered_at.is_empty() { "no relay".to_owned() } else { link.registered_at.join(", ") };
            format!("to {address} here, registered at {relays}")
        }
        (None, None) => format!("to {}", link.target_name),
    };
    let by = link
        .flows_by_relay
        .iter()
        .map(|(relay, count)| format!("{count} by {}", if relay.is_empty() { "no relay" } else { relay }));
    let by = by.collect::<Vec<_>>().join(", ");
    let by = if by.is_empty() { String::new() } else { format!(" ({by})") };
    format!("{}: {end} · {}{by}", link.name, plural(link.flows, "flow"))
}

fn balancer_line(balancer: &RoleView) -> String {
    let name = &balancer.name;
    let Some(status) = &balancer.status else {
        let why = match balancer.standing {
            Standing::NotListed => {
                "configured here, and the cluster does not have this node run it: postroad balance add"
            }
            Standing::NotConfigured => "not configured on this host",
            Standing::Running => "begins",
        };
        return format!("{name}: {why}");
    };
    let ports = status.ports.iter().map(|port| format!("{} {}", port.port.word(), port.address));
    let healthy = status.nodes.iter().filter(|node| node.report.healthy).count();
    let open: u64 = status.nodes.iter().map(|node| node.open.rw + node.open.ro).sum();
    let writes = match &status.primary {
        Some(primary) => format!("writes go to {primary}"),
        None => "writes are refused".to_owned(),
    };
    format!(
        "{name}: {} · {writes} · {healthy} of {} nodes · {}",
        ports.collect::<Vec<_>>().join(", "),
        status.nodes.len(),
        plural(open, "connection")
    )
}

fn circuit_line(circuit: &postroad_actors::status::local::Circuit) -> String {
    let relay = circuit.relay_name.as_deref().unwrap_or("no relay");
    let why = if circuit.choice.is_empty() { String::new() } else { format!(" ({})", circuit.choice) };
    let moves = match &circuit.move_reason {
        Some(reason) if circuit.moves > 1 => format!(", moved {} times, last: {reason}", circuit.moves),
        _ => String::new(),
    };
    let ways = circuit.channels.iter().filter(|channel| channel.candidate).count();
    let flows = plural(circuit.flows, "flow");
    let opens = &circuit.opens;
    let packets = format!("packets of {} bytes: {}", circuit.packet_bytes, circuit.packet_words);
    let ways = plural(ways as u64, "way");
    format!("circuit to {} by {relay}{why}, {flows}, {ways}{moves}; {opens}; {packets}", circuit.peer_name)
}

fn sessions_line(status: &Status) -> String {
    let up = status.sessions.iter().filter(|session| session.up);
    let shown = up.clone().map(|session| match session.round_trip_us {
        Some(us) => format!("{} {}", session.name, milliseconds(us)),
        None => session.name.clone(),
    });
    let shown = shown.take(6).collect::<Vec<_>>().join(", ");
    format!("{} of {} relays: {shown}", up.count(), status.sessions.len())
}

fn connections_line(status: &Status) -> String {
    let shown = status.controls.iter().filter(|control| control.up || control.last_failure.is_some()).map(|control| {
        match &control.last_failure {
            Some(failure) if !control.up => format!("{} not connected: {failure}", control.address),
            _ => format!("{} connected", control.address),
        }
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "not connected".to_owned() } else { shown }
}

fn watch_line(status: &Status) -> String {
    let watch = &status.watch;
    let renews = relative::moment(watch.certificate_renews, status.now);
    let lease = watch.lease_ends.map_or_else(
        || "no policy yet".to_owned(),
        |ends| format!("policy lease ends {}", relative::moment(ends, status.now)),
    );
    let restarts = match status.actors.restarts {
        0 => String::new(),
        count => format!(" · {} of actors", plural(count, "restart")),
    };
    format!("certificate of {} renews {renews} · {lease}{restarts}", status.node.name)
}
