//! Figures in Prometheus' text format: names by its conventions, base units, few labels.

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
};

use postroad_actors::inspect::{ActorRow, Status};

use super::model::vitals::Vitals;

/// One family of figures.
struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    fn value(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.part("", labels, value);
    }

    /// A figure of a family that has several, such as a histogram's buckets.
    fn part(&mut self, part: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "{}{part}{labels} {value}", self.name);
    }
}

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.0, name }
    }

    fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, "gauge", help).value(&[], value);
    }

    fn counter(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, "counter", help).value(&[], value);
    }
}

/// The figures of a node. Actors are summed by the noun of their behavior: a label for each path would be thousands.
pub fn text(vitals: &Vitals, rows: &[ActorRow]) -> String {
    let mut text = Text(String::new());
    let health = ["well", "at risk", "degraded", "failing"];
    let mut family = text.family("postroad_health", "gauge", "How the node stands; 1 for the state that holds.");
    for word in health {
        family.value(&[("state", word)], u8::from(word == vitals.health.word()));
    }
    text.family("postroad_build_info", "gauge", "The release that runs.").value(&[("version", &vitals.release)], 1);
    text.gauge("postroad_problems", "Problems that the node knows of.", vitals.problems);
    text.gauge("postroad_flows", "Open flows at this node.", vitals.flows.open);
    text.counter("postroad_flows_ended_total", "Flows that have ended at this node.", vitals.flows.ended);
    refusals(&mut text, vitals);
    stalls(&mut text, vitals);
    sessions(&mut text, vitals);
    relay(&mut text, vitals);
    watch(&mut text, vitals);
    actors(&mut text, rows);
    text.0
}

fn refusals(text: &mut Text, vitals: &Vitals) {
    let help = "Tunnels refused at this node, by its end of them and the reason's code.";
    let mut family = text.family("postroad_tunnels_refused_total", "counter", help);
    for (end, reasons) in &vitals.flows.refused_by_reason {
        for (reason, count) in reasons {
            family.value(&[("end", end), ("reason", reason)], count);
        }
    }
}

fn stalls(text: &mut Text, vitals: &Vitals) {
    let help = "How long flows stood still when their circuit left a silent relay or had none, by cause.";
    let mut family = text.family("postroad_flow_stall_seconds", "histogram", help);
    for stall in &vitals.flows.stalls {
        let cause = ("cause", stall.cause.as_str());
        for (ms, count) in &stall.within_ms {
            family.part("_bucket", &[cause, ("le", &(*ms as f64 / 1e3).to_string())], count);
        }
        family.part("_bucket", &[cause, ("le", "+Inf")], stall.count);
        family.part("_sum", &[cause], stall.sum_us as f64 / 1e6);
        family.part("_count", &[cause], stall.count);
    }
}

fn sessions(text: &mut Text, vitals: &Vitals) {
    let mut family = text.family("postroad_session_up", "gauge", "Whether the session with a relay stands.");
    for way in &vitals.ways {
        family.value(&[("relay", &way.relay.to_string())], u8::from(way.up));
    }
    let mut family = text.family("postroad_session_round_trip_seconds", "gauge", "The last round trip to a relay.");
    for way in &vitals.ways {
        if let Some(us) = way.round_trip_us {
            family.value(&[("relay", &way.relay.to_string())], us as f64 / 1e6);
        }
    }
    let mut flows: BTreeMap<String, u64> = BTreeMap::new();
    for circuit in &vitals.circuits {
        if let Some(relay) = circuit.relay {
            *flows.entry(relay.to_string()).or_default() += circuit.flows;
        }
    }
    let mut family =
        text.family("postroad_relay_flows", "gauge", "Open flows of this node by the relay that carries them.");
    for (relay, flows) in flows {
        family.value(&[("relay", &relay)], flows);
    }
    let mut family = text.family("postroad_circuit_moves_total", "counter", "Moves of the circuit to a peer.");
    for circuit in &vitals.circuits {
        family.value(&[("peer", &circuit.peer.to_string())], circuit.moves);
    }
}

fn relay(text: &mut Text, vitals: &Vitals) {
    let Some(relay) = &vitals.relay else { return };
    text.gauge("postroad_relay_sessions", "Sessions at this relay.", relay.sessions);
    text.gauge("postroad_relay_registrations", "Endpoints registered at this relay.", relay.registrations);
    text.gauge("postroad_relay_channels", "Open channels of this relay.", relay.channels);
    text.counter(
        "postroad_relay_admissions_total",
        "Tunnels that this relay has admitted, those ahead of need too.",
        relay.admitted,
    );
    text.counter("postroad_relay_packets_total", "Packets that this relay has forwarded.", relay.packets);
    text.counter("postroad_relay_bytes_total", "Bytes that this relay has forwarded.", relay.bytes);
    let mut family = text.family("postroad_relay_refusals_total", "counter", "What this relay has refused, by reason.");
    for (reason, count) in &relay.refused {
        family.value(&[("reason", reason)], count);
    }
}

fn watch(text: &mut Text, vitals: &Vitals) {
    let seconds = |at: postroad_cluster::time::WallTime| at.0 as f64 / 1e3;
    let watch = &vitals.watch;
    let expires = seconds(watch.certificate_expires);
    text.gauge("postroad_certificate_expires_timestamp_seconds", "When the node's certificate ends.", expires);
    if let Some(ends) = watch.lease_ends {
        text.gauge("postroad_policy_lease_ends_timestamp_seconds", "When the policy's lease ends.", seconds(ends));
    }
    if let Some(version) = watch.snapshot {
        text.gauge("postroad_policy_version", "The version of the snapshot that the node works by.", version);
    }
}

fn actors(text: &mut Text, rows: &[ActorRow]) {
    let mut kinds: Vec<&str> = rows.iter().map(|row| &*row.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut sum = |name, kind, help, figure: &dyn Fn(&ActorRow) -> f64| {
        let mut family = text.family(name, kind, help);
        for kind in &kinds {
            let total: f64 = rows.iter().filter(|row| row.kind == *kind).map(figure).sum();
            family.value(&[("behavior", kind)], total);
        }
    };
    let down = |row: &ActorRow| f64::from(u8::from(matches!(row.status, Status::Restarting | Status::Failed)));
    sum("postroad_actors", "gauge", "Actors of the node.", &|_| 1.0);
    sum("postroad_actors_down", "gauge", "Actors that have failed and are not back.", &down);
    sum("postroad_actor_turns_total", "counter", "Events that actors have handled.", &|row| row.handled as f64);
    sum("postroad_actor_restarts_total", "counter", "Restarts of actors.", &|row| row.restarts as f64);
    sum("postroad_mailbox_depth", "gauge", "Events that wait in mailboxes.", &|row| row.depth as f64);
    sum("postroad_mailbox_refused_total", "counter", "Events refused by full mailboxes.", &|row| row.refused as f64);
}

#[cfg(test)]
mod tests {
    use postroad_actors::status::flows::{Flows, Stall};

    use super::*;

    /// The names that Prometheus' own linter asks for: what kind of a figure each is can be told from its name.
    #[test]
    fn names_follow_the_conventions() {
        let card = crate::console::model::lints::tests::card("web", 0);
        let mut vitals = card.heard.vitals.unwrap();
        vitals.flows = counted();
        let text = text(&vitals, &[]);
        let mut families = std::collections::BTreeSet::new();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("# HELP ")) {
            let mut words = line.split(' ').skip(2);
            let name = words.next().unwrap();
            assert!(words.next().is_some() && line.ends_with('.'), "{line}");
            let kind = lines[at + 1].strip_prefix(&format!("# TYPE {name} ")).unwrap_or_else(|| panic!("{line}"));
            assert!(families.insert(name), "{name} twice");
            assert!(
                name.starts_with("postroad_") && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_'),
                "{name}"
            );
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            for unit in ["_ms", "_us", "_millis", "_kb", "_minutes", "_percent", "_count", "_gauge"] {
                assert!(!name.contains(unit), "{name} is in no base unit");
            }
        }
        let figures = lines.iter().filter(|line| !line.starts_with('#'));
        for line in figures {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            let of_histogram = || {
                let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
                part.is_some_and(|family| text.contains(&format!("# TYPE {family} histogram\n")))
            };
            assert!(families.contains(name) || of_histogram(), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(families.len() > 15, "{families:?}");
    }

    fn counted() -> Flows {
        let by_reason = BTreeMap::from([("RELAY_DRAINING".to_owned(), 3), ("PATH_ABSENT".to_owned(), 1)]);
        let within_ms = BTreeMap::from([(75, 0), (150, 2)]);
        Flows {
            refused: 4,
            refused_by_reason: BTreeMap::from([("consumer".to_owned(), by_reason)]),
            stalls: vec![Stall { cause: "silence".to_owned(), count: 3, sum_us: 500_250, within_ms }],
            ..Flows::default()
        }
    }

    // RP-55
    #[test]
    fn refusals_have_a_reason_and_stalls_are_a_histogram() {
        let card = crate::console::model::lints::tests::card("web", 0);
        let text = text(&Vitals { flows: counted(), ..card.heard.vitals.unwrap() }, &[]);
        for line in [
            "postroad_tunnels_refused_total{end=\"consumer\",reason=\"RELAY_DRAINING\"} 3",
            "# TYPE postroad_flow_stall_seconds histogram",
            "postroad_flow_stall_seconds_bucket{cause=\"silence\",le=\"0.075\"} 0",
            "postroad_flow_stall_seconds_bucket{cause=\"silence\",le=\"0.15\"} 2",
            "postroad_flow_stall_seconds_bucket{cause=\"silence\",le=\"+Inf\"} 3",
            "postroad_flow_stall_seconds_sum{cause=\"silence\"} 0.50025",
            "postroad_flow_stall_seconds_count{cause=\"silence\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn labels_cannot_break_a_line() {
        let mut text = Text(String::new());
        text.family("x", "gauge", "An x.").value(&[("a", "b\"c\\d\ne")], 1);
        assert_eq!(text.0, "# HELP x An x.\n# TYPE x gauge\nx{a=\"b\\\"c\\\\d\\ne\"} 1\n");
    }
}
