//! The topology as grids: a terminal has no picture, and says the same in rows.

use std::collections::BTreeMap;

use postroad_actors::status::relays::Standing;
use postroad_cluster::id::NodeId;

use super::{Grid, Row, Target, Tone};
use crate::{
    cli::relative,
    console::{
        figures::{figure, nanoseconds},
        model::topology::{Hub, Spoke, Topology},
    },
};

/// Relays in their failure domains, circuits over them, and each node's sessions.
pub fn topology(page: &Topology) -> Vec<Grid> {
    let hubs = page.domains.iter().flat_map(|domain| domain.hubs.iter().map(move |hub| (domain, hub)));
    let relays = hubs.map(|(domain, hub)| relay(if domain.name.is_empty() { "not said" } else { &domain.name }, hub));
    let columns = ["relay", "failure domain", "state", ">sessions", ">flows", ">load"];
    let circuits = page.threads.iter().map(|thread| {
        let (carries, tone) = match thread.relay {
            Some(relay) => (page.name(relay), Tone::Plain),
            None => ("waits for a relay".to_owned(), Tone::Bad),
        };
        Row::new([
            format!("{} ⇄ {}", page.name(thread.one), page.name(thread.other)),
            carries,
            figure(thread.flows),
            relative::bytes(thread.bytes),
            figure(thread.moves),
            thread.choice.clone(),
        ])
        .tone(tone)
    });
    let circuits =
        Grid::new("Circuits", ["between", "relay", ">flows", ">carried", ">moves", "why there"]).rows(circuits);
    let mut sessions: BTreeMap<NodeId, Vec<&Spoke>> = BTreeMap::new();
    for spoke in &page.spokes {
        sessions.entry(spoke.node).or_default().push(spoke);
    }
    let sessions = sessions.iter().map(|(node, spokes)| {
        let down = spokes.iter().any(|spoke| !spoke.up);
        let words: Vec<String> = spokes.iter().map(|spoke| session(page, spoke)).collect();
        let name = page.name(*node);
        Row::new([name.clone(), words.join(", ")])
            .tone(if down { Tone::Bad } else { Tone::Plain })
            .to(Target::Node(name))
    });
    let sessions = Grid::new("Sessions", ["from", "to, there and back"]).rows(sessions);
    vec![Grid::new("Relays", columns).rows(relays), circuits, sessions]
}

fn relay(domain: &str, hub: &Hub) -> Row {
    let (word, tone) = match hub.state {
        Standing::Unreachable => ("unreachable", Tone::Bad),
        _ if hub.silent => ("silent", Tone::Dim),
        Standing::Ready => ("ready", Tone::Plain),
        Standing::Pending => ("pending", Tone::Dim),
        Standing::Draining => ("draining", Tone::Warn),
    };
    let load = hub.forwards.map_or_else(String::new, |bytes| format!("{}/s", relative::bytes(bytes)));
    let sessions = figure(hub.sessions as u64);
    Row::new([hub.name.clone(), domain.to_owned(), word.to_owned(), sessions, figure(hub.flows), load])
        .tone(tone)
        .to(Target::Relay(hub.name.clone()))
}

fn session(page: &Topology, spoke: &Spoke) -> String {
    let relay = page.name(spoke.relay);
    match spoke.round_trip_us {
        _ if !spoke.up => format!("{relay} down"),
        Some(us) => format!("{relay} {}", nanoseconds(us * 1_000)),
        None => relay,
    }
}
