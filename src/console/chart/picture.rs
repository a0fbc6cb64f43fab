//! The topology as a picture: control nodes above, the other relays in the middle, nodes below; sessions thin, circuits
//! through their relay as wide as their flows. Positions depend on names alone, so that nothing jumps.

use std::{collections::BTreeMap, fmt::Write as _};

use maud::{Markup, PreEscaped};
use postroad_actors::status::relays::Standing;
use postroad_cluster::id::NodeId;

use crate::{
    cli::relative,
    console::model::topology::{Domain, Hub, Leaf, Topology},
};

const WIDTH: f64 = 1_080.0;
const ROW_HEIGHT: f64 = 150.0;
const BOX_WIDTH: f64 = 132.0;
const BOX_HEIGHT: f64 = 50.0;

/// Boxes in one row; more go to the next.
const ROW_MAX: usize = 7;

/// Where the middle of each node's box is.
type Places = BTreeMap<NodeId, (f64, f64)>;

/// A text as SVG wants it.
pub(super) fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

struct Drawing {
    places: Places,
    /// What is drawn below the lines, and what stands on them.
    ground: String,
    lines: String,
    words: String,
    boxes: String,
    height: f64,
}

/// The picture.
pub fn draw(topology: &Topology) -> Markup {
    let mut drawing = Drawing {
        places: Places::new(),
        ground: String::new(),
        lines: String::new(),
        words: String::new(),
        boxes: String::new(),
        height: 30.0,
    };
    let is_local = |domain: &&Domain| domain.hubs.iter().any(|hub| hub.local);
    let (local, remote): (Vec<&Domain>, Vec<&Domain>) = topology.domains.iter().partition(is_local);
    drawing.domains(&local, "control nodes, each with a relay");
    drawing.domains(&remote, "relays");
    drawing.leaves(&topology.leaves);
    drawing.spokes(topology);
    drawing.threads(topology);
    let Drawing { ground, lines, words, boxes, height, .. } = drawing;
    // Below the last row nothing is written.
    let height = height - 44.0;
    PreEscaped(format!(
        "<svg class=\"topology\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Nodes, relays and what moves \
         over them; the tables below say the same\">{ground}{lines}{words}{boxes}</svg>"
    ))
}

/// The middles of so many boxes side by side.
fn spread(count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |at| WIDTH * (at as f64 + 0.5) / count as f64)
}

impl Drawing {
    fn row(&mut self, title: &str) -> f64 {
        let y = self.height + 44.0;
        let _ =
            write!(self.ground, "<text class=\"row\" x=\"4\" y=\"{:.0}\">{}</text>", self.height - 8.0, text(title));
        self.height += ROW_HEIGHT;
        y
    }

    fn domains(&mut self, domains: &[&Domain], title: &str) {
        let hubs: Vec<(&Domain, &Hub)> =
            domains.iter().flat_map(|domain| domain.hubs.iter().map(move |hub| (*domain, hub))).collect();
        for (at, part) in hubs.chunks(ROW_MAX).enumerate() {
            let y = self.row(if at == 0 { title } else { "" });
            let mut last: Option<(f64, &str)> = None;
            for ((domain, hub), x) in part.iter().zip(spread(part.len())) {
                let (left, top) = (x - BOX_WIDTH / 2.0 - 9.0, y - BOX_HEIGHT / 2.0 - 9.0);
                // Relays of one domain share its frame.
                if let Some((from, name)) = last
                    && name == domain.name
                    && !name.is_empty()
                {
                    let _ = write!(
                        self.ground,
                        "<rect class=\"domain\" x=\"{from:.0}\" y=\"{top:.0}\" width=\"{:.0}\" height=\"{}\" rx=\"10\"/>",
                        x - from,
                        BOX_HEIGHT + 18.0
                    );
                }
                let _ = write!(
                    self.ground,
                    "<rect class=\"domain\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{}\" height=\"{}\" rx=\"10\"/>",
                    BOX_WIDTH + 18.0,
                    BOX_HEIGHT + 18.0,
                );
                let _ = write!(
                    self.words,
                    "<text class=\"where\" x=\"{x:.0}\" y=\"{:.0}\">{}</text>",
                    top + BOX_HEIGHT + 32.0,
                    text(if domain.name.is_empty() { "domain not said" } else { &domain.name }),
                );
                last = Some((left, &domain.name));
                self.hub(hub, x, y);
            }
        }
    }

    fn hub(&mut self, hub: &Hub, x: f64, y: f64) {
        let (class, word) = match hub.state {
            // What no node reaches is dead, whether it says something or not.
            Standing::Unreachable if hub.silent => ("bad", "unreachable, silent"),
            _ if hub.silent => ("silent", "silent"),
            Standing::Ready => ("good", "ready"),
            Standing::Pending => ("quiet", "pending"),
            Standing::Draining => ("warn", "draining"),
            Standing::Unreachable => ("bad", "unreachable"),
        };
        let load = hub.forwards.map_or_else(String::new, |bytes| format!(" · {}/s", relative::bytes(bytes)));
        let said = match (hub.flows, hub.state) {
            (1.., Standing::Ready) => format!("{} flows{load}", relative::count(hub.flows)),
            // What is wrong goes before what it carries.
            (1.., _) => format!("{word} · {} flows", relative::count(hub.flows)),
            (0, _) => format!("{word}{load}"),
        };
        let leads = if hub.leads { " lead" } else { "" };
        self.place(hub.id, x, y, &format!("hub {class}{leads}"), &hub.name, if hub.silent { word } else { &said });
    }

    fn leaves(&mut self, leaves: &[Leaf]) {
        for (at, part) in leaves.chunks(ROW_MAX).enumerate() {
            let y = self.row(if at == 0 { "nodes" } else { "" });
            for (leaf, x) in part.iter().zip(spread(part.len())) {
                let class = if leaf.silent { "leaf silent" } else { "leaf" };
                let said =
                    if leaf.silent { "silent".to_owned() } else { format!("{} flows", relative::count(leaf.flows)) };
                self.place(leaf.id, x, y, class, &leaf.name, &said);
            }
        }
    }

    fn place(&mut self, id: NodeId, x: f64, y: f64, class: &str, name: &str, said: &str) {
        self.places.insert(id, (x, y));
        let (left, top) = (x - BOX_WIDTH / 2.0, y - BOX_HEIGHT / 2.0);
        let name = text(name);
        let _ = write!(
            self.boxes,
            "<a href=\"/tree?node={name}\"><g class=\"{class}\"><rect x=\"{left:.0}\" y=\"{top:.0}\" width=\"{BOX_WIDTH}\" \
             height=\"{BOX_HEIGHT}\" rx=\"7\"/><circle cx=\"{:.0}\" cy=\"{:.0}\" r=\"4\"/><text class=\"name\" x=\"{:.0}\" \
             y=\"{:.0}\">{name}</text><text class=\"said\" x=\"{:.0}\" y=\"{:.0}\">{}</text></g></a>",
            left + 14.0,
            top + 17.0,
            left + 25.0,
            top + 21.0,
            left + 11.0,
            top + 39.0,
            text(said),
        );
    }

    fn spokes(&mut self, topology: &Topology) {
        for spoke in &topology.spokes {
            let (Some((x, y)), Some((to_x, to_y))) = (self.places.get(&spoke.node), self.places.get(&spoke.relay))
            else {
                continue;
            };
            let class = if spoke.up { "spoke" } else { "spoke down" };
            // Between two of one row the line bends, so that it does not run through the boxes between.
            let bend = if (y - to_y).abs() < 1.0 { y - 46.0 } else { f64::midpoint(*y, *to_y) };
            let round_trip =
                spoke.round_trip_us.map_or_else(String::new, |us| format!(", {}.{} ms", us / 1_000, us % 1_000 / 100));
            let _ = write!(
                self.lines,
                "<path class=\"{class}\" d=\"M{x:.0},{y:.0}C{x:.0},{bend:.0} {to_x:.0},{bend:.0} {to_x:.0},{to_y:.0}\"><title>{}{round_trip}</title></path>",
                if spoke.up { "session stands" } else { "session is down" },
            );
        }
    }

    fn threads(&mut self, topology: &Topology) {
        for (at, thread) in topology.threads.iter().enumerate() {
            let ends = (self.places.get(&thread.one), self.places.get(&thread.other));
            let (Some((x, y)), Some((to_x, to_y))) = ends else { continue };
            let width = 2.0 + (thread.flows as f64 + 1.0).log2().min(7.0);
            // Several circuits over one relay lie side by side.
            let aside = (at % 5) as f64 * 5.0 - 10.0;
            let moving = if thread.flows > 0 { " moving" } else { "" };
            let path = match thread.relay.and_then(|relay| self.places.get(&relay)) {
                Some((relay_x, relay_y)) => {
                    let relay_x = relay_x + aside;
                    let (above, below) = (f64::midpoint(*y, *relay_y), f64::midpoint(*to_y, *relay_y));
                    format!(
                        "M{x:.0},{y:.0}C{x:.0},{above:.0} {relay_x:.0},{above:.0} {relay_x:.0},{relay_y:.0}C{relay_x:.0},{below:.0} {to_x:.0},{below:.0} {to_x:.0},{to_y:.0}"
                    )
                }
                None => format!("M{x:.0},{y:.0}L{to_x:.0},{to_y:.0}"),
            };
            let class = if thread.relay.is_some() { "thread" } else { "thread stranded" };
            let _ = write!(
                self.lines,
                "<path class=\"{class}\" stroke-width=\"{width:.1}\" d=\"{path}\"><title>{}</title></path><path class=\"pulse{moving}\" d=\"{path}\"/>",
                text(&format!("{} flows, {}: {}", thread.flows, relative::bytes(thread.bytes), thread.choice)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use postroad_cluster::time::WallTime;

    use super::*;
    use crate::console::model::topology::{Spoke, Thread};

    #[test]
    fn everybody_is_drawn_and_names_are_harmless() {
        let hub = |id, name: &str, local| Hub {
            id: NodeId(id),
            name: name.into(),
            state: Standing::Draining,
            local,
            leads: local,
            silent: false,
            sessions: 1,
            bytes: 5,
            flows: 0,
            forwards: Some(2_048),
        };
        let leaf = |id, name: &str| Leaf { id: NodeId(id), name: name.into(), silent: id == 9, flows: 3 };
        let topology = Topology {
            cluster: "c".into(),
            now: WallTime(0),
            domains: vec![
                Domain { name: "rack-1".into(), hubs: vec![hub(1, "ams", true)] },
                Domain { name: String::new(), hubs: vec![hub(2, "fra", false), hub(3, "<par>", false)] },
            ],
            leaves: vec![leaf(8, "web"), leaf(9, "db")],
            spokes: vec![Spoke { node: NodeId(8), relay: NodeId(2), up: false, round_trip_us: Some(1_250) }],
            threads: vec![Thread {
                one: NodeId(8),
                other: NodeId(9),
                circuit: 5,
                relay: Some(NodeId(2)),
                flows: 3,
                bytes: 9,
                moves: 0,
                choice: "n2: 1 ms".into(),
            }],
        };
        let svg = draw(&topology).into_string();
        for part in [
            "ams",
            "&lt;par&gt;",
            "hub warn lead",
            "leaf silent",
            "spoke down",
            "1.2 ms",
            "pulse moving",
            "draining · 2 KiB/s",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(!svg.contains("<par>"));
        assert!(
            draw(&Topology {
                domains: Vec::new(),
                leaves: Vec::new(),
                spokes: Vec::new(),
                threads: Vec::new(),
                ..topology
            })
            .into_string()
            .contains("<svg")
        );
    }
}
