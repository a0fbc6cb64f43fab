//! What a silence swallowed is sent again before anything new (design: quinn drops what comes too late).

use super::Findings;
use crate::world::World;

/// Looks at every circuit of every node.
pub fn look(world: &World, findings: &Findings) {
    for machine in &world.machines {
        let Some(node) = &machine.node else { continue };
        let socket = &node.fabric().socket;
        for key in socket.circuits() {
            let Ok(status) = socket.status(key) else { continue };
            let overtaken = status.counters.overtaken;
            if overtaken > 0 {
                let (name, peer) = (&machine.name, key.peer);
                findings
                    .add("circuits", format!("{name} sent new packets to {peer} before those that wait in its ring"));
            }
        }
    }
}
