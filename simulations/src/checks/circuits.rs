//! What a silence swallowed is sent again before anything new (design: quinn drops what comes too late), and a pair has no
//! more circuits than it may have.

use std::collections::BTreeMap;

use postroad_cluster::limits::CIRCUITS_TAKEN_MAX;

use super::Findings;
use crate::world::World;

/// Looks at every circuit of every node.
pub fn look(world: &World, findings: &Findings) {
    for machine in &world.machines {
        let Some(node) = &machine.node else { continue };
        let socket = &node.fabric().socket;
        let mut of_pair: BTreeMap<_, usize> = BTreeMap::new();
        for key in socket.circuits() {
            let count = of_pair.entry(key.peer).or_default();
            *count += 1;
            if *count > CIRCUITS_TAKEN_MAX {
                findings
                    .add("circuits", format!("{} has more circuits to {} than it may have", machine.name, key.peer));
            }
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
