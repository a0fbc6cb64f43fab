//! The handlers of `/api/status` and `/api/leader`.

use postroad_actors::status::{self, LeaderFacts, Status, control::ControlView, local::Session, relays::Relays};
use postroad_cluster::{
    id::NodeId,
    time::Span,
    wire::control::{ControlRequest, ControlResponse},
};

use super::{Answer, Core, client, route::data};
use crate::{cli::output::Output, errors::Failure};

/// How long the leader may take to tell what it knows: `status` must answer also when the leader does not.
const FACTS_WAIT: Span = Span::from_secs(2);

/// A status, of which handlers answer the whole or a part.
pub(super) struct Found(Status);

impl Found {
    pub(super) fn output(self) -> Output {
        data(self.0)
    }

    pub(super) fn into_inner(self) -> Status {
        self.0
    }

    pub(super) const fn control(&self) -> Option<&ControlView> {
        self.0.control.as_ref()
    }

    pub(super) const fn relays(&self) -> &Relays {
        &self.0.relays
    }

    pub(super) fn session(&self, relay: NodeId) -> Option<&Session> {
        self.0.sessions.iter().find(|session| session.relay == relay)
    }
}

impl Core {
    /// How this node, and on a control node the fleet, stand.
    pub(super) async fn status(&self) -> Found {
        let fabric = self.fabric();
        let facts = self.facts().await;
        let (switch, rows) = (self.node.switch().map(|switch| &**switch), self.rows(status::ROWS_SECONDS));
        let found = status::status(fabric, switch, facts, &rows, &self.seen);
        self.memory.note_term(&found);
        Found(found)
    }

    /// What only the leader knows.
    pub(super) fn leader(&self) -> Answer {
        let facts = status::leader_facts(self.fabric(), &self.seen);
        facts.map(data).ok_or_else(|| Failure::unreachable("this node does not lead"))
    }

    /// What only the leader knows, from wherever it is; nothing where it does not answer.
    pub(super) async fn facts(&self) -> Option<LeaderFacts> {
        match status::leader_facts(self.fabric(), &self.seen) {
            Some(facts) => Some(facts),
            None => self.facts_of_leader().await,
        }
    }

    async fn facts_of_leader(&self) -> Option<LeaderFacts> {
        let leader = self.fabric().consensus.as_ref()?.leadership().get().leader?;
        if leader == self.fabric().me {
            return None;
        }
        let request =
            ControlRequest::Api { method: "GET".to_owned(), path: "/api/leader".to_owned(), body: Vec::new() };
        match self.node.carrier().ask(leader, &request, FACTS_WAIT).await {
            Ok(ControlResponse::Api { status, body }) => {
                serde_json::from_value(client::parse(status, &body).ok()?.data).ok()
            }
            _ => None,
        }
    }
}
