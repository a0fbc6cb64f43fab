//! The handlers of `/api/console/why` and of what it asks each node for: its circuits with the decision's own table.

use std::collections::BTreeSet;

use postroad_cluster::id::NodeId;
use tokio::task::JoinSet;

use super::super::{Answer, Core, client, route::data, unknown};
use crate::{
    console::{
        model::{
            overview::Overview,
            why::{self, Placement, Why},
        },
        query::Query,
    },
    errors::Failure,
};

impl Core {
    /// This node's circuits on their relays, of one link if the query names one.
    pub(super) fn placements(&self, query: &Query) -> Vec<Placement> {
        let fabric = self.fabric();
        let Some(accepted) = fabric.snapshot() else { return Vec::new() };
        let name = |id: NodeId| {
            let relay = accepted.content.relays.get(&id).map(|relay| relay.name.to_string());
            relay.or_else(|| Some(accepted.content.peers.get(&id)?.name.to_string())).unwrap_or_else(|| id.to_string())
        };
        let flows = fabric.flows.by_circuit();
        let links = |peer: NodeId| {
            // Of a link that this node serves, any peer may be the consumer.
            let over = accepted.content.links.values().filter(|link| link.target == peer || link.target == fabric.me);
            over.map(|link| link.name.to_string()).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let placement = |key| {
            let (circuit, now) = fabric.socket.copy(key).ok()?;
            let status = fabric.socket.status(key).ok()?;
            Some(Placement {
                node: fabric.name.to_string(),
                peer: name(key.peer),
                links: links(key.peer),
                flows: flows.get(&key).copied().unwrap_or(0),
                relay: circuit.path().relay.map(&name),
                opens: postroad_actors::status::local::opens(fabric, key, &status),
                spread: Some(fabric.spread(key.peer)),
                chooses: fabric.me < key.peer,
                moves: circuit.moves(),
                move_reason: status.reason.map(|reason| reason.text().to_owned()),
                packets: format!("{} bytes: {}", status.packet_bytes, fabric.packet_words(&status, name)),
                choices: why::choices(&circuit, now, name),
            })
        };
        let link = query.get("link");
        let all = fabric.socket.circuits().into_iter().filter_map(placement);
        all.filter(|placement| link.is_empty() || placement.links.iter().any(|it| it == link)).collect()
    }

    /// The page: of the whole fleet on a control node; others ask one, and know their own circuits without.
    pub(super) async fn why(&self, query: &Query, carried: bool) -> Answer {
        if self.consensus().is_err() && !carried {
            let address = query.with("node", "").address("/api/console/why");
            if let Some(answer) = self.of_control(&address).await {
                return answer;
            }
        }
        let output = self.overview(true).await?;
        let overview: Overview = serde_json::from_value(output.data).map_err(|error| {
            Failure::failed("PAGE_MALFORMED", format!("the overview is not what this release knows: {error}"))
        })?;
        let (link, relay) = (query.get("link"), query.get("relay"));
        let links = self.link_names();
        let relays: Vec<String> = overview.relays.list.iter().map(|relay| relay.name.clone()).collect();
        if !link.is_empty() && !links.iter().any(|known| known == link) {
            let names = links.iter().map(String::as_str);
            return Err(unknown("LINK_UNKNOWN", "link", link, names, "See them all: postroad link list"));
        }
        if !relay.is_empty() && !relays.iter().any(|known| known == relay) {
            let names = relays.iter().map(String::as_str);
            return Err(unknown("RELAY_UNKNOWN", "relay", relay, names, "See them all: postroad relay list"));
        }
        let (mut placements, silent) = self.all_placements(&overview, query).await;
        let without = why::without(&overview.relays, &placements);
        let is_there = |placement: &Placement| placement.relay.as_deref() == Some(relay);
        // Whoever asks why a link is not on a relay wants to see where it is.
        if !relay.is_empty() && (link.is_empty() || placements.iter().any(is_there)) {
            placements.retain(is_there);
        }
        placements.sort_by(|one, other| (&one.node, &one.peer).cmp(&(&other.node, &other.peer)));
        let about = match (link, relay) {
            ("", "") => None,
            (link, "") => Some(format!("link {link}")),
            ("", relay) => Some(format!("relay {relay}")),
            (link, relay) if placements.iter().any(is_there) => Some(format!("link {link} on relay {relay}")),
            (link, relay) => Some(format!("link {link} is not on relay {relay}, but here")),
        };
        let state = overview.relays.list.iter().find(|known| known.name == relay).map(why::relay_words);
        Ok(data(Why { now: overview.now, about, relay: state, without, placements, links, relays, silent })
            .warn(output.warnings))
    }

    fn link_names(&self) -> Vec<String> {
        if let Ok(consensus) = self.consensus() {
            return consensus.state().links.values().map(|link| link.name.to_string()).collect();
        }
        let accepted = self.fabric().snapshot();
        accepted.map(|it| it.content.links.values().map(|link| link.name.to_string()).collect()).unwrap_or_default()
    }

    /// The circuits of every node that has some, as far as they answer.
    async fn all_placements(&self, overview: &Overview, query: &Query) -> (Vec<Placement>, Vec<String>) {
        let mut placements = self.placements(query);
        let Some(service) = self.node.service() else { return (placements, Vec::new()) };
        let address = query.only(&["link"]).address("/api/console/placements");
        let mut asking = JoinSet::new();
        let mut silent = Vec::new();
        let has_circuits =
            overview.cards.iter().filter(|card| card.heard.vitals.as_ref().is_none_or(|it| !it.circuits.is_empty()));
        for card in has_circuits.filter(|card| card.id != self.fabric().me) {
            // Nobody waits for a node that is known to be silent: the fleet is asked every other second whether it still is.
            if card.silent() {
                silent.push(card.name.clone());
                continue;
            }
            let (service, address) = (std::sync::Arc::clone(service), address.clone());
            let (id, name) = (card.id, card.name.clone());
            asking.spawn(async move {
                let seen = service.look(id, address).await;
                let parsed = seen.ok().and_then(|(status, body)| client::parse(status, &body).ok());
                (name, parsed.and_then(|output| serde_json::from_value::<Vec<Placement>>(output.data).ok()))
            });
        }
        while let Some(Ok((name, found))) = asking.join_next().await {
            match found {
                Some(found) => placements.extend(found),
                None => silent.push(name),
            }
        }
        silent.sort_unstable();
        (placements, silent)
    }
}
