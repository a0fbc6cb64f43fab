//! When everything is well again, everything works again: one leader, equal logs, every session, registration, circuit
//! and flow.

use std::collections::{BTreeMap, BTreeSet};

use postroad_cluster::id::NodeId;
use tokio::time::Instant;

use super::sessions::{missing, relay_of, session_of};
use crate::{
    faults::is_control,
    workload::{ROUTES, Workload},
    world::World,
};

/// What the world had before anything went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// The relays that each node had a session with.
    sessions: BTreeMap<usize, BTreeSet<NodeId>>,
}

impl Baseline {
    /// The world as it is now.
    #[must_use]
    pub fn of(world: &World) -> Self {
        let sessions = world.machines.iter().enumerate().filter_map(|(index, machine)| {
            Some((index, machine.node.as_ref()?.fabric().sessions().into_keys().collect()))
        });
        Self { sessions: sessions.collect() }
    }
}

/// Whether the world stands: every node knows every relay, and every link has a circuit and a registration.
///
/// # Errors
/// What is missing yet.
pub fn stands(world: &World) -> Result<(), String> {
    let relays: BTreeSet<NodeId> =
        world.machines.iter().filter(|machine| relay_of(machine).is_some()).filter_map(|machine| machine.id).collect();
    for machine in &world.machines {
        let node = machine.node.as_ref().ok_or_else(|| format!("{} does not run", machine.name))?;
        let sessions: BTreeSet<NodeId> = node.fabric().sessions().into_keys().collect();
        if sessions != relays {
            return Err(format!("{} has sessions with {sessions:?}, not with {relays:?}", machine.name));
        }
    }
    control(world)?;
    registered(world)?;
    circuits(world)
}

/// Whether the control group agrees and is done.
fn control(world: &World) -> Result<(), String> {
    let mut agreed = None;
    for (_, machine) in world.machines.iter().enumerate().filter(|(index, _)| is_control(*index)) {
        let consensus = machine.node.as_ref().and_then(|node| node.fabric().consensus.as_ref());
        let status = consensus.ok_or_else(|| format!("{} is no member", machine.name))?.status();
        let here = (status.leader, status.term, status.last_log, status.applied);
        if status.leader.is_none() || status.applied != status.last_log {
            return Err(format!("{} is at {here:?}", machine.name));
        }
        if *agreed.get_or_insert(here) != here {
            return Err(format!("{} is at {here:?}, another member at {agreed:?}", machine.name));
        }
    }
    Ok(())
}

fn registered(world: &World) -> Result<(), String> {
    if let Some((relay, node, link)) = missing(world).first() {
        return Err(format!("{relay} does not hold {link} of {node}"));
    }
    for route in ROUTES {
        let target = &world.machines[route.target];
        let relays = world.machines.iter().filter_map(|machine| machine.id);
        let here = relays.filter_map(|relay| session_of(target, relay));
        let registered = here.filter(|session| {
            session.is_up()
                && !session.endpoints.is_empty()
                && session.endpoints.values().all(|endpoint| endpoint.registered == Some(endpoint.generation))
        });
        if registered.count() < 2 {
            return Err(format!("{} is not registered at two relays", route.name));
        }
    }
    Ok(())
}

fn circuits(world: &World) -> Result<(), String> {
    for route in ROUTES {
        for (here, there) in [(route.consumer, route.target), (route.target, route.consumer)] {
            let (machine, peer) = (&world.machines[here], &world.machines[there]);
            let fabric = machine.node.as_ref().ok_or("it does not run")?.fabric();
            let circuits = peer.id.map(|peer| fabric.circuits.to(peer)).unwrap_or_default();
            if circuits.is_empty() {
                return Err(format!("{} has no circuit to {}", machine.name, peer.name));
            }
            for circuit in circuits {
                let status = fabric.socket.status(circuit.key).map_err(|error| error.to_string())?;
                let spare = status.channels.iter().filter(|channel| channel.candidate).count();
                if circuit.connection.close_reason().is_some() || status.stranded || spare < 2 {
                    return Err(format!(
                        "a circuit of {} to {} has {spare} proven channels, stranded: {}",
                        machine.name, peer.name, status.stranded
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Whether the world is again as it was before, and every flow has carried bytes both ways since `since`.
///
/// # Errors
/// What is not.
pub fn converged(world: &World, baseline: &Baseline, workload: &Workload, since: Instant) -> Result<(), String> {
    stands(world)?;
    let now = Baseline::of(world);
    if now != *baseline {
        return Err(format!("sessions were {baseline:?} and are {now:?}"));
    }
    let flows = workload.flows();
    for slot in 0..workload.slots() {
        let newest = flows.iter().rev().find(|flow| flow.slot == slot);
        let flow = newest.ok_or_else(|| format!("slot {slot} never opened a flow"))?;
        let last = flow.with(|state| state.last);
        if flow.with(|state| state.client.is_some()) {
            // It has just ended as it was to; the next one opens.
            continue;
        }
        if !last.iter().all(|at| at.is_some_and(|at| at >= since)) {
            return Err(format!("flow {} of {} carries nothing", flow.number, flow.route.name));
        }
    }
    Ok(())
}
