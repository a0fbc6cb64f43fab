//! The handlers of `/api/links`.

use std::{collections::BTreeMap, time::Duration};

use postroad_actors::flow::trial;
use postroad_cluster::{
    command::{Action, LinkSpec, Outcome},
    id::{LinkId, Name, NodeId},
    limits::SPREAD_DEFAULT,
    state::{LinkRecord, State},
};
use serde_json::json;

use super::{Answer, Core, node_of, route::data, unknown, view};
use crate::errors::Failure;

fn row(state: &State, id: LinkId, record: &LinkRecord) -> view::Link {
    let name = |node: NodeId| state.nodes.get(&node).map_or_else(|| node.to_string(), |it| it.name.to_string());
    let consumers = record.spec.consumers.iter();
    view::Link {
        id,
        name: record.name.to_string(),
        generation: record.generation.0,
        from: consumers.map(|(node, listen)| view::Consumer { node: name(*node), listen: listen.clone() }).collect(),
        to: view::Target { node: name(record.spec.target), address: Some(record.spec.target_address.clone()) },
        spread: record.spec.spread,
        made: Some(record.made),
    }
}

impl Core {
    /// All links on a control node, elsewhere this node's.
    async fn links(&self) -> Result<(Vec<view::Link>, Vec<String>), Failure> {
        if self.consensus().is_err() {
            return Ok((self.own_links(), vec!["only this node's links; a control node knows all".to_owned()]));
        }
        let (state, warnings) = self.state().await?;
        Ok((state.links.iter().map(|(id, record)| row(&state, *id, record)).collect(), warnings))
    }

    fn own_links(&self) -> Vec<view::Link> {
        let fabric = self.fabric();
        let Some(accepted) = fabric.snapshot() else { return Vec::new() };
        let own = |node: NodeId| (node == fabric.me).then(|| fabric.name.to_string());
        let peer = |node: NodeId| accepted.content.peers.get(&node).map(|peer| peer.name.to_string());
        let name = |node: NodeId| own(node).or_else(|| peer(node)).unwrap_or_else(|| node.to_string());
        let links = accepted.content.links.iter().map(|(id, link)| view::Link {
            id: *id,
            name: link.name.to_string(),
            generation: link.generation.0,
            from: link
                .listen
                .iter()
                .map(|listen| view::Consumer { node: fabric.name.to_string(), listen: listen.clone() })
                .collect(),
            to: view::Target { node: name(link.target), address: link.target_address.clone() },
            spread: link.spread,
            made: None,
        });
        links.collect()
    }

    pub(super) async fn link_list(&self) -> Answer {
        let (links, warnings) = self.links().await?;
        Ok(data(json!({ "links": links })).warn(warnings))
    }

    pub(super) async fn link_show(&self, name: &str) -> Answer {
        let (links, warnings) = self.links().await?;
        let link = links.iter().find(|link| link.name == name || link.id.to_string() == name);
        let link = link.ok_or_else(|| missing(name, links.iter().map(|link| link.name.as_str())))?;
        Ok(data(link).warn(warnings))
    }

    pub(super) async fn link_add(&self, wanted: view::LinkAdd) -> Answer {
        let (state, _) = self.state().await?;
        let name: Name = wanted.name.parse().map_err(|error| Failure::wrong_use(format!("{error}")))?;
        let mut consumers = BTreeMap::new();
        for (node, listen) in wanted.from {
            consumers.insert(node_of(&state, &node)?.0, listen);
        }
        let (target, _) = node_of(&state, &wanted.to)?;
        let link = LinkSpec {
            consumers,
            target,
            target_address: wanted.address,
            spread: wanted.spread.unwrap_or(SPREAD_DEFAULT),
        };
        match self.propose(Action::LinkAdd { name: name.clone(), link }).await? {
            Outcome::LinkAdded { link, generation } => {
                Ok(data(json!({ "id": link, "name": name, "generation": generation })))
            }
            _ => Err(Failure::failed("UNKNOWN_OUTCOME", "the cluster's answer is not about a link")),
        }
    }

    // RP-10: open flows go on where they are.
    pub(super) async fn link_set(&self, name: &str, wanted: view::LinkSet) -> Answer {
        let (state, _) = self.state().await?;
        let (link, record) = link_of(&state, name)?;
        let before = record.spec.spread;
        self.propose(Action::LinkSpread { link, spread: wanted.spread }).await?;
        let (state, warnings) = self.state().await?;
        let (_, record) = link_of(&state, name)?;
        Ok(data(view::LinkSetDone { link: row(&state, link, record), before }).warn(warnings))
    }

    // RP-31, RP-35: a new generation of the route; flows of the old one end.
    pub(super) async fn link_retarget(&self, name: &str, wanted: view::LinkRetarget) -> Answer {
        let (state, _) = self.state().await?;
        let (link, record) = link_of(&state, name)?;
        let before = record.spec.target_address.clone();
        let changed = before != wanted.address;
        self.propose(Action::LinkRetarget { link, target_address: wanted.address }).await?;
        let (state, warnings) = self.state().await?;
        let (_, record) = link_of(&state, name)?;
        let link = row(&state, link, record);
        Ok(data(view::LinkRetargeted { link, before, changed }).warn(warnings))
    }

    pub(super) async fn link_remove(&self, name: &str) -> Answer {
        let (state, _) = self.state().await?;
        let (link, record) = link_of(&state, name)?;
        let row = row(&state, link, record);
        self.propose(Action::LinkRemove { link }).await?;
        Ok(data(row))
    }
}

/// The link of a name, or of its number as `link-3`.
fn link_of<'a>(state: &'a State, name: &str) -> Result<(LinkId, &'a LinkRecord), Failure> {
    let named = name.parse::<Name>().ok().and_then(|name| state.link_named(&name));
    let numbered = || {
        let id = LinkId(name.strip_prefix("link-")?.parse().ok()?);
        Some((id, state.links.get(&id)?))
    };
    named.or_else(numbered).ok_or_else(|| missing(name, state.links.values().map(|record| record.name.as_str())))
}

impl Core {
    /// Measures a link of which this node is a consumer.
    pub(super) async fn link_trial(&self, name: &str, wanted: &view::Trial) -> Answer {
        let fabric = self.fabric();
        let links = fabric.snapshot().map(|accepted| accepted.content.links.clone()).unwrap_or_default();
        let found = links.iter().find(|(id, link)| link.name.as_str() == name || id.to_string() == name);
        let (link, view) = found.ok_or_else(|| missing(name, links.values().map(|link| link.name.as_str())))?;
        if view.listen.is_none() {
            let message = format!("{} is no consumer of {name}, and only those see its way", fabric.name);
            return Err(Failure::refused("LINK_NOT_CONSUMED", message)
                .hint(format!("Run it on one of them: postroad link show {name}")));
        }
        if !(1..=30).contains(&wanted.seconds) {
            return Err(Failure::wrong_use(format!("a trial takes 1 to 30 s, not {}", wanted.seconds)));
        }
        let Ok(_alone) = self.trial.try_lock() else {
            return Err(Failure::refused(
                "TRIAL_RUNS",
                "another trial is under way, and they would measure each other",
            )
            .hint("Try again when it is over: each part takes 30 s at the most"));
        };
        let span = Duration::from_secs(wanted.seconds.into());
        let failed = |reason: String| {
            Failure::failed("TRIAL_FAILED", format!("the trial of {name} came to no figure: {reason}"))
                .hint("See what the link lacks: postroad status")
        };
        match wanted.kind.as_str() {
            "latency" => trial::latency(fabric, *link, span).await.map(data).map_err(failed),
            "throughput" => trial::throughput(fabric, *link, span).await.map(data).map_err(failed),
            "death" => trial::death(fabric, *link).await.map(data).map_err(failed),
            other => Err(Failure::wrong_use(format!("{other:?} is no trial: latency, throughput or death"))),
        }
    }
}

fn missing<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Failure {
    unknown("LINK_UNKNOWN", "link", name, names, "See which there are: postroad link list")
}
