//! The topology as HTML: the picture, and the same as a table for whoever sees no picture.

use maud::{Markup, html};
use postroad_cluster::id::NodeId;

use super::{figure, nanoseconds};
use crate::{
    cli::relative,
    console::{
        chart::picture,
        model::topology::{Thread, Topology},
        query::Query,
    },
};

/// The page.
pub fn render(topology: &Topology) -> Markup {
    let name = |id: NodeId| topology.name(id);
    html! {
        section {
            div.scroll.picture { (picture::draw(topology)) }
            p.legend {
                span { span.key.up {} "session" } span { span.key.down {} "session down" }
                span { span.key.thread {} "circuit, as wide as its flows" }
                span { span.dot.good {} "ready" } span { span.dot.warn {} "draining" } span { span.dot.bad {} "unreachable" }
                span { span.dot.silent {} "silent" }
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

fn circuit(thread: &Thread, name: &impl Fn(NodeId) -> String) -> Markup {
    html! {
        tr data-row={ "circuit " (thread.one) " " (thread.other) " " (thread.circuit) } {
            td { (name(thread.one)) " ⇄ " (name(thread.other)) }
            td { @match thread.relay { Some(relay) => a href=(Query::default().with("relay", &name(relay)).address("/why")) { (name(relay)) }, None => span.bad { "waits for a relay" } } }
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
                td { (topology.name(node)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The script of a live page keeps one row of a name.
    #[test]
    fn circuits_of_one_pair_are_rows_of_their_own() {
        let rows = [7, 8].map(|number| {
            let thread = Thread {
                one: NodeId(1),
                other: NodeId(2),
                circuit: number,
                relay: Some(NodeId(3)),
                flows: 4,
                bytes: 5,
                moves: 0,
                choice: String::new(),
            };
            let row = circuit(&thread, &|id| id.to_string()).into_string();
            row.split("data-row=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
        });
        assert_eq!(rows, ["circuit n1 n2 7", "circuit n1 n2 8"]);
    }
}
