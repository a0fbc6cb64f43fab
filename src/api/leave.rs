//! The handler of `/api/leave`: this node takes itself out of the cluster and ends.

use postroad_cluster::command::Action;
use serde_json::json;

use super::{
    Answer, Core,
    act::REVOKED,
    route::{Call, data},
};
use crate::errors::Failure;

impl Core {
    pub(super) async fn leave(&self) -> Answer {
        let fabric = self.fabric();
        let left = if fabric.consensus.is_some() {
            let call = Call::new("DELETE", &format!("/api/control/{}", fabric.me), Vec::new());
            self.control_remove(&call, &fabric.me.to_string()).await.map(drop)
        } else {
            self.leave_as_node().await
        };
        match left {
            Ok(()) => {}
            // Somebody was faster, or our first answer was lost: what was wanted is so.
            Err(failure) if failure.code == "NODE_UNKNOWN" || failure.message.contains(REVOKED) => {}
            Err(failure) => return Err(failure),
        }
        self.stop.left();
        Ok(data(json!({ "cluster": fabric.cluster, "node": fabric.name, "id": fabric.me })))
    }

    /// A node asks for its own removal; any control node that it reaches brings that to the leader.
    async fn leave_as_node(&self) -> Result<(), Failure> {
        let action = Action::NodeRemove { node: self.fabric().me };
        self.propose_as_node(action).await.map_err(|failure| {
            if failure.code != "NOT_REACHABLE" {
                return failure;
            }
            failure.hint(
                "Try again once one answers; if the node was removed already: postroad leave --forget, with the node stopped",
            )
        })
    }
}
