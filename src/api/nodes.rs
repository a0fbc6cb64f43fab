//! The handlers of `/api/nodes`.

use postroad_cluster::{
    command::Action,
    id::{NodeId, Role},
    state::{NodeRecord, State},
};
use serde_json::json;

use super::{
    Answer, Core, node_of,
    route::{Call, data},
    view,
};

fn row(state: &State, id: NodeId, record: &NodeRecord) -> view::Node {
    let links = || state.links.values();
    let named = |link: &postroad_cluster::state::LinkRecord| link.name.to_string();
    view::Node {
        id,
        name: record.name.to_string(),
        roles: record.roles.iter().copied().collect(),
        advertised: record.advertised.clone(),
        domain: record.domain.clone(),
        joined: record.joined,
        consumes: links().filter(|link| link.spec.consumers.contains_key(&id)).map(named).collect(),
        serves: links().filter(|link| link.spec.target == id).map(named).collect(),
    }
}

impl Core {
    pub(super) async fn node_list(&self) -> Answer {
        let (state, warnings) = self.state().await?;
        let nodes: Vec<view::Node> = state.nodes.iter().map(|(id, record)| row(&state, *id, record)).collect();
        Ok(data(json!({ "nodes": nodes })).warn(warnings))
    }

    pub(super) async fn node_show(&self, name: &str) -> Answer {
        let (state, warnings) = self.state().await?;
        let (id, record) = node_of(&state, name)?;
        Ok(data(row(&state, id, record)).warn(warnings))
    }

    /// Removes a node for good. A control node leaves the group first.
    pub(super) async fn node_remove(&self, call: &Call, name: &str) -> Answer {
        let (state, warnings) = self.state().await?;
        let (node, record) = node_of(&state, name)?;
        if record.roles.contains(&Role::Control) {
            return self.control_remove(call, name).await;
        }
        self.propose(Action::NodeRemove { node }).await?;
        Ok(data(json!({ "node": record.name, "id": node })).warn(warnings))
    }
}
