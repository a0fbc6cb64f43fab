//! The handlers of `/api/balancers`: database balancers that the cluster agrees on (DB-43).

use std::collections::{BTreeMap, BTreeSet};

use postroad_actors::balancer::role::RoleView;
use postroad_cluster::{
    command::{Action, BalancerSpec},
    id::{Name, NodeId, Version},
    state::{BalancerRecord, State},
    wire::control::Report,
};
use serde_json::json;

use super::{Answer, Core, node_of, route::data, unknown, view};
use crate::errors::Failure;

type Reports = BTreeMap<NodeId, Report>;

fn runner(state: &State, name: &Name, record: &BalancerRecord, node: NodeId, reports: &Reports) -> view::Runner {
    let report = reports.get(&node).and_then(|report| report.balancers.get(name));
    view::Runner {
        node: state.nodes.get(&node).map_or_else(|| node.to_string(), |it| it.name.to_string()),
        runs: report.map(|report| report.changed.is_some()),
        current: report.and_then(|report| report.changed).map(|changed| changed == record.changed),
        primary: report.and_then(|report| report.primary.clone()),
        trouble: report.and_then(|report| report.trouble.clone()),
    }
}

fn row(state: &State, name: &Name, record: &BalancerRecord, reports: &Reports) -> view::Balancer {
    let runners = record.spec.on.iter().map(|node| runner(state, name, record, *node, reports));
    view::Balancer {
        name: name.to_string(),
        databases: record.spec.databases.clone(),
        on: runners.collect(),
        made: Some(record.made),
        changed: Some(record.changed.0),
    }
}

/// What this node knows of a balancer by itself.
fn own(node: &Name, role: &RoleView, databases: Option<BTreeMap<String, String>>) -> view::Balancer {
    let status = role.status.as_ref();
    let runner = view::Runner {
        node: node.to_string(),
        runs: Some(status.is_some()),
        current: None,
        primary: status.and_then(|status| status.primary.clone()),
        trouble: role.trouble.clone(),
    };
    view::Balancer {
        name: role.name.clone(),
        databases: databases.unwrap_or_default(),
        on: if role.changed.is_some() { vec![runner] } else { Vec::new() },
        made: None,
        changed: role.changed,
    }
}

impl Core {
    fn roles(&self) -> Vec<RoleView> {
        self.fabric().balancers.views(self.fabric())
    }

    /// All balancers on a control node, elsewhere this node's.
    async fn balancers(&self) -> Result<(Vec<view::Balancer>, Vec<String>), Failure> {
        if self.consensus().is_ok() {
            let (state, warnings) = self.state().await?;
            let reports = self.facts().await.map(|facts| facts.reports).unwrap_or_default();
            let rows = state.balancers.iter().map(|(name, record)| row(&state, name, record, &reports));
            return Ok((rows.collect(), warnings));
        }
        let fabric = self.fabric();
        let listed = fabric.snapshot().map(|accepted| accepted.content.balancers.clone()).unwrap_or_default();
        let databases = |role: &RoleView| Some(listed.get(&role.name.parse::<Name>().ok()?)?.databases.clone());
        let rows = self.roles().into_iter().map(|role| own(&fabric.name, &role, databases(&role))).collect();
        Ok((rows, vec!["only this node's balancers; a control node knows all".to_owned()]))
    }

    pub(super) async fn balancer_list(&self) -> Answer {
        let (balancers, warnings) = self.balancers().await?;
        Ok(data(json!({ "balancers": balancers })).warn(warnings))
    }

    pub(super) async fn balancer_show(&self, name: &str) -> Answer {
        let (balancers, warnings) = self.balancers().await?;
        let found = balancers.iter().find(|balancer| balancer.name == name);
        let balancer = found.ok_or_else(|| missing(name, balancers.iter().map(|it| it.name.as_str())))?.clone();
        let here = self.roles().into_iter().find(|role| role.name == name);
        Ok(data(view::BalancerShown { balancer, here }).warn(warnings))
    }

    pub(super) async fn balancer_add(&self, wanted: view::BalancerAdd) -> Answer {
        let (state, _) = self.state().await?;
        let name: Name = wanted.name.parse().map_err(|error| Failure::wrong_use(format!("{error}")))?;
        let spec = BalancerSpec { databases: wanted.to, on: nodes(&state, &wanted.on)? };
        self.propose(Action::BalancerAdd { name: name.clone(), spec }).await?;
        let (state, warnings) = self.state().await?;
        let (name, record) = balancer_of(&state, name.as_str())?;
        Ok(data(row(&state, name, record, &Reports::new())).warn(warnings))
    }

    pub(super) async fn balancer_set(&self, name: &str, wanted: view::BalancerSet) -> Answer {
        let (state, _) = self.state().await?;
        let (name, record) = balancer_of(&state, name)?;
        let before = row(&state, name, record, &Reports::new());
        let mut spec = record.spec.clone();
        for id in &wanted.without {
            if spec.databases.remove(id).is_none() {
                let known = spec.databases.keys().map(String::as_str);
                let hint = format!("See them: postroad balance show {name}");
                return Err(unknown("DATABASE_UNKNOWN", "database node", id, known, &hint));
            }
        }
        spec.databases.extend(wanted.to);
        for node in nodes(&state, &wanted.off)? {
            if !spec.on.remove(&node) {
                let node = state.nodes.get(&node).map_or_else(|| node.to_string(), |it| it.name.to_string());
                return Err(Failure::refused("NOT_ON", format!("{node} does not run {name}"))
                    .hint(format!("See who does: postroad balance show {name}")));
            }
        }
        spec.on.extend(nodes(&state, &wanted.on)?);
        let changed: Version = record.changed;
        self.propose(Action::BalancerSet { name: name.clone(), spec, changed }).await?;
        let (after, warnings) = self.state().await?;
        let (name, record) = balancer_of(&after, name.as_str())?;
        let balancer = row(&after, name, record, &Reports::new());
        let changed = record.changed != changed;
        Ok(data(view::BalancerChanged { balancer, before, changed }).warn(warnings))
    }

    pub(super) async fn balancer_remove(&self, name: &str) -> Answer {
        let (state, _) = self.state().await?;
        let (name, record) = balancer_of(&state, name)?;
        let row = row(&state, name, record, &Reports::new());
        self.propose(Action::BalancerRemove { name: name.clone() }).await?;
        Ok(data(row))
    }
}

fn nodes(state: &State, names: &[String]) -> Result<BTreeSet<NodeId>, Failure> {
    names.iter().map(|name| node_of(state, name).map(|(node, _)| node)).collect()
}

fn balancer_of<'a>(state: &'a State, name: &str) -> Result<(&'a Name, &'a BalancerRecord), Failure> {
    let found = name.parse::<Name>().ok().and_then(|name| state.balancers.get_key_value(&name));
    found.ok_or_else(|| missing(name, state.balancers.keys().map(Name::as_str)))
}

fn missing<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Failure {
    unknown("BALANCER_UNKNOWN", "balancer", name, names, "See which there are: postroad balance list")
}
