//! The handlers of `/api/relays`.

use postroad_actors::status::relays::Relay;
use postroad_cluster::{
    command::{Action, code},
    id::{NodeId, Role},
};
use serde_json::json;

use super::{Answer, Core, node_of, route::data, unknown, view};
use crate::errors::Failure;

impl Core {
    pub(super) async fn relay_list(&self) -> Answer {
        let found = self.status().await;
        Ok(data(found.relays()))
    }

    pub(super) async fn relay_show(&self, name: &str) -> Answer {
        let found = self.status().await;
        let relays = &found.relays().list;
        let is = |relay: &&Relay| relay.name == name || relay.id.to_string() == name;
        let relay = relays.iter().find(is).ok_or_else(|| {
            let names = relays.iter().map(|relay| relay.name.as_str());
            unknown("RELAY_UNKNOWN", "relay", name, names, "See which there are: postroad relay list")
        })?;
        let shared = found.relays().shared.iter().filter(|pair| pair.one == relay.name || pair.other == relay.name);
        let shared: Vec<_> = shared.collect();
        let session = found.session(relay.id);
        let named = Some(&relay.name);
        let circuits = found.relays().circuits.iter().filter(|circuit| circuit.relay.as_ref() == named);
        let circuits: Vec<_> = circuits.collect();
        Ok(data(json!({ "relay": relay, "shares": shared, "session": session, "carries": circuits })))
    }

    /// The relay of a name, and how it stands; the agreed state says whether there is one.
    async fn relay_of(&self, name: &str) -> Result<(NodeId, Option<Relay>, Vec<String>), Failure> {
        let (state, warnings) = self.state().await?;
        let (id, record) = node_of(&state, name)?;
        if !record.roles.contains(&Role::Relay) {
            return Err(Failure::refused(code::ROLE_MISSING, format!("{} is no relay", record.name))
                .hint("See which are: postroad relay list"));
        }
        let found = self.status().await;
        let relay = found.relays().list.iter().find(|relay| relay.id == id).cloned();
        Ok((id, relay, warnings))
    }

    // RP-40; RP-41: a relay that is not connected drains as soon as it is.
    pub(super) async fn relay_drain(&self, name: &str) -> Answer {
        let (id, before, mut warnings) = self.relay_of(name).await?;
        self.propose(Action::RelayDrain { relay: id, draining: true }).await?;
        let connected = before.as_ref().and_then(|relay| relay.connected);
        if connected == Some(false) {
            warnings.push(format!("{name} is not connected to the control nodes: it drains as soon as it is"));
        }
        let changed = before.is_none_or(|relay| relay.drain.is_none());
        Ok(data(view::RelayDrained { id, name: name.to_owned(), changed, connected }).warn(warnings))
    }

    pub(super) async fn relay_resume(&self, name: &str) -> Answer {
        let (id, before, warnings) = self.connected_relay(name, "resume").await?;
        self.propose(Action::RelayDrain { relay: id, draining: false }).await?;
        let changed = before.drain.is_some();
        Ok(data(view::RelayDrained { id, name: name.to_owned(), changed, connected: Some(true) }).warn(warnings))
    }

    pub(super) async fn relay_disconnect(&self, name: &str) -> Answer {
        let (id, before, warnings) = self.connected_relay(name, "force-disconnect").await?;
        self.propose(Action::RelayDisconnect { relay: id }).await?;
        let now = self.fabric().wall();
        let changed = before.drain.is_some_and(|drain| drain.ends > now);
        Ok(data(view::RelayDrained { id, name: name.to_owned(), changed, connected: Some(true) }).warn(warnings))
    }

    // RP-41
    async fn connected_relay(&self, name: &str, verb: &str) -> Result<(NodeId, Relay, Vec<String>), Failure> {
        let (id, relay, warnings) = self.relay_of(name).await?;
        match relay {
            Some(relay) if relay.connected == Some(true) => Ok((id, relay, warnings)),
            Some(Relay { connected: Some(false), .. }) => {
                let message = format!("{verb} needs the relay, and {name} is not connected to the control nodes");
                Err(Failure::refused(code::RELAY_NOT_CONNECTED, message)
                    .hint(format!("Bring it back, then run the command again: postroad relay show {name}")))
            }
            _ => Err(Failure::unreachable(format!("whether {name} is connected is not known: the leader did not say"))
                .hint("Try again in a few seconds: postroad control list")),
        }
    }
}
