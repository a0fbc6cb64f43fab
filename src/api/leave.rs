//! The handler of `/api/leave`: this node takes itself out of the cluster and ends.

use postroad_cluster::{
    command::{Action, Command, Outcome},
    limits::JOIN_ANSWER_WAIT,
    time::Clock as _,
    wire::control::{ControlRequest, ControlResponse},
};
use serde_json::json;

use super::{
    Answer, Core, refusal,
    route::{Call, data},
};
use crate::errors::Failure;

/// What a control node says when it closes the connection of a node that was removed, often before the answer is out.
const REVOKED: &str = "(CERTIFICATE_REVOKED)";

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
        let fabric = self.fabric();
        let action = Action::NodeRemove { node: fabric.me };
        let command = Box::new(Command { at: fabric.clock.wall(), by: fabric.me, expected: None, action });
        let mut last = "this node is connected to none".to_owned();
        for (control, connection) in fabric.controls() {
            let request = ControlRequest::Propose { command: command.clone() };
            match connection.call::<ControlRequest, ControlResponse>(&request, JOIN_ANSWER_WAIT).await {
                Ok(ControlResponse::Outcome(Outcome::Refused(refused)) | ControlResponse::Refused(refused)) => {
                    return Err(refusal(refused));
                }
                Ok(ControlResponse::Outcome(_)) => return Ok(()),
                Ok(_) => last = format!("{control} did not reach the leader"),
                Err(error) if error.to_string().contains(REVOKED) => return Ok(()),
                Err(error) => last = format!("{control}: {error}"),
            }
        }
        Err(Failure::unreachable(format!("no control node took the goodbye: {last}")).hint(
            "Try again once one answers; if the node was removed already: postroad leave --forget, with the node stopped",
        ))
    }
}
