//! The topology as HTML: the picture, and the same as a table for whoever sees no picture.

use maud::{Markup, html};
use postroad_cluster::id::NodeId;

use super::{figure, nanoseconds};
use crate::{
    cli::relative,
    console::{
        chart::picture,
        model::topology::{Thread, Topology},
    },
};

/// The page.
pub fn render(topology: &Topology) -> Markup {
    let name = |id: NodeId| name(topology, id);
    html! {
        section {
            div.scroll.picture { (picture::draw(topology)) }
            p.legend {
                span.key.up {} "session" span.key.down {} "session down" span.key.thread {} "circuit, as wide as its flows"
                span.dot.good {} "ready" span.dot.warn {} "draining" span.dot.bad {} "unreachable" span.dot.silent {} "silent"
            }
        }
        div.columns {
            section {
                h2 { "Circuits" small { (topology.threads.len()) } }
                @if topology.threads.is_empty() { p.empty { "No two nodes share a link yet. Make one: " code { "postroad link add" } } }
                @else { table {
                    thead { tr { th { "between" } th { "relay" } th.n { "flows" } th.n { "carried" } th.n { "moves" } th { "why there" } } }
                    tbody { @for thread in &topology.threads { (circuit(thread, &name)) } }
                } }
            }
            section {
                h2 { "Sessions" small { (topology.spokes.iter().filter(|spoke| spoke.up).count()) " of " (topology.spokes.len()) " stand" } }
                (matrix(topology))
            }
        }
    }
}

fn name(topology: &Topology, id: NodeId) -> String {
    let hubs = topology.domains.iter().flat_map(|domain| &domain.hubs).map(|hub| (hub.id, &hub.name));
    let leaves = topology.leaves.iter().map(|leaf| (leaf.id, &leaf.name));
    hubs.chain(leaves).find(|(known, _)| *known == id).map_or_else(|| id.to_string(), |(_, name)| name.clone())
}

fn circuit(thread: &Thread, name: &impl Fn(NodeId) -> String) -> Markup {
    html! {
        tr {
            td { (name(thread.one)) " ⇄ " (name(thread.other)) }
            td { @match thread.relay { Some(relay) => (name(relay)), None => span.bad { "waits for a relay" } } }
            td.n { (figure(thread.flows)) }
            td.n { (relative::bytes(thread.bytes)) }
            td.n { (figure(thread.moves)) }
            td.wrap.muted { (thread.choice) }
        }
    }
}

/// Round trips of each node to each relay.
fn matrix(topology: &Topology) -> Markup {
    let hubs: Vec<_> = topology.domains.iter().flat_map(|domain| &domain.hubs).collect();
    let mut nodes: Vec<NodeId> = topology.spokes.iter().map(|spoke| spoke.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    html! {
        div.scroll { table.matrix {
            thead { tr { th { "from" } @for hub in &hubs { th.n { (hub.name) } } } }
            tbody { @for node in nodes { tr {
                td { (name(topology, node)) }
                @for hub in &hubs {
                    @match topology.spokes.iter().find(|spoke| spoke.node == node && spoke.relay == hub.id) {
                        Some(spoke) if spoke.up => td.n { @match spoke.round_trip_us { Some(us) => (nanoseconds(us * 1_000)), None => "up" } },
                        Some(_) => td.n.bad { "down" },
                        None => td.n.muted { "·" },
                    }
                }
            } } }
        } }
    }
}
