//! No registration is lost while its session stands: neither to an old goodbye nor otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use postroad_cluster::{
    id::{LinkId, NodeId},
    invariant,
    relay::Relay,
    session::Session,
    wire::session::NodeResponse,
};
use tokio::time::Instant;

use super::Findings;
use crate::world::{Machine, World};

const CHECK: &str = "sessions";

/// How long a relay and a node may see a registration differently: states are published after 100 ms, and an end of a
/// session is noticed after 3.5 s at one end and 3 s at the other.
const DIFFER_MAX: Duration = Duration::from_secs(9);

/// The relay service of a host, as it was published.
#[must_use]
pub fn relay_of(machine: &Machine) -> Option<Arc<Relay>> {
    let directory = machine.node.as_ref()?.directory();
    Some(directory.find::<Relay, NodeResponse>("node/relay")?.published()?.0)
}

/// The session of a host with a relay, as it was published.
#[must_use]
pub fn session_of(machine: &Machine, relay: NodeId) -> Option<Arc<Session>> {
    let directory = machine.node.as_ref()?.directory();
    Some(directory.find::<Session, ()>(&format!("node/sessions/relay-{}", relay.0))?.published()?.0)
}

/// The registrations that a node believes to have at a relay and the relay does not hold.
#[must_use]
pub fn missing(world: &World) -> BTreeSet<(NodeId, NodeId, LinkId)> {
    let mut missing = BTreeSet::new();
    for relay_machine in &world.machines {
        let (Some(relay), Some(service)) = (relay_machine.id, relay_of(relay_machine)) else { continue };
        for machine in &world.machines {
            let (Some(node), Some(session)) = (machine.id, session_of(machine, relay)) else { continue };
            if !session.is_up() {
                continue;
            }
            for (link, endpoint) in &session.endpoints {
                let held = service.registrations.get(link);
                let registered =
                    held.is_some_and(|held| held.node == node && Some(held.generation) >= endpoint.registered);
                if endpoint.registered.is_some() && !registered {
                    missing.insert((relay, node, *link));
                }
            }
        }
    }
    missing
}

/// Since when registrations are missing.
#[derive(Debug, Default)]
pub struct SessionCheck {
    since: BTreeMap<(NodeId, NodeId, LinkId), Instant>,
}

impl SessionCheck {
    /// Looks at every relay and every session.
    pub fn look(&mut self, world: &World, findings: &Findings) {
        for machine in &world.machines {
            if let Some(relay) = relay_of(machine)
                && let Err(broken) = invariant::relay_consistent(&relay)
            {
                findings.add(CHECK, format!("the relay of {}: {broken}", machine.name));
            }
        }
        let missing = missing(world);
        self.since.retain(|key, _| missing.contains(key));
        for key in missing {
            let since = *self.since.entry(key).or_insert_with(Instant::now);
            if since.elapsed() > DIFFER_MAX {
                let (relay, node, link) = key;
                findings.add(
                    CHECK,
                    format!("{relay} lost the registration of {link}, though the session of {node} stands"),
                );
            }
        }
    }
}
