//! No orphan, no failed actor, and never more restarts than a supervisor may make.

use std::collections::BTreeSet;

use postroad_actors::inspect::{ActorView, Status};
use postroad_cluster::limits::{SUPERVISION_RESTARTS_MAX, SUPERVISION_WINDOW};

use super::Findings;
use crate::world::World;

const CHECK: &str = "supervision";

/// Looks at every actor of every node.
pub fn look(world: &World, findings: &Findings) {
    for machine in &world.machines {
        let Some(node) = &machine.node else { continue };
        let actors = node.directory().inspect();
        findings.expect(CHECK, judge(&actors).map_err(|what| format!("{}: {what}", machine.name)));
    }
}

/// Whether a node's actors are as they must be.
///
/// # Errors
/// The first that is not.
pub fn judge(actors: &[ActorView]) -> Result<(), String> {
    let children: BTreeSet<(&str, &str)> = actors
        .iter()
        .flat_map(|actor| actor.children.iter().map(|child| (actor.path.as_str(), child.as_str())))
        .collect();
    for actor in actors {
        let path = &actor.path;
        if let Some(supervisor) = &actor.supervisor
            && actor.status != Status::Failed
            && !children.contains(&(supervisor.as_str(), path.as_str()))
        {
            return Err(format!("{path} is an orphan: {supervisor} does not know it"));
        }
        if let Some(error) =
            actor.error.as_ref().filter(|_| matches!(actor.status, Status::Failed | Status::Restarting))
        {
            return Err(format!("{path} failed: {error}"));
        }
        if let Some(last) = actor.history.last() {
            let since = last.wall_ms.saturating_sub(SUPERVISION_WINDOW.as_millis() as u64);
            let recent = actor.history.iter().filter(|restart| restart.wall_ms > since).count();
            if recent > SUPERVISION_RESTARTS_MAX {
                return Err(format!("{path} was restarted {recent} times within a minute"));
            }
            return Err(format!("{path} failed and was restarted: {}", last.error));
        }
    }
    Ok(())
}
