//! What a node was told is on disk is there after a crash: who it is, how often it started, what it works by.

use std::collections::BTreeMap;

use postroad_cluster::{
    id::{NodeId, Version},
    time::{Clock as _, WallTime},
};

use super::Findings;
use crate::world::World;

const CHECK: &str = "store";

#[derive(Clone, Debug)]
struct Known {
    node: NodeId,
    boots: u32,
    version: Option<Version>,
    /// What was seen one look ago: between accepting a snapshot and keeping it a crash may come.
    kept: Option<Version>,
    wall: WallTime,
}

/// What is known of each host's disk.
#[derive(Debug, Default)]
pub struct StoreCheck {
    known: BTreeMap<usize, Known>,
}

impl StoreCheck {
    /// Looks at every running node.
    pub fn look(&mut self, world: &World, findings: &Findings) {
        for (index, machine) in world.machines.iter().enumerate() {
            let Some(node) = &machine.node else { continue };
            let fabric = node.fabric();
            let version = fabric.snapshot().map(|accepted| accepted.header.version);
            let wall = fabric.clock.wall();
            let before = self.known.get(&index).cloned();
            if let Some(before) = &before {
                if version < before.version && fabric.boots == before.boots {
                    findings.add(CHECK, format!("{} went back to snapshot {version:?}", machine.name));
                }
                if wall < before.wall {
                    findings.add(CHECK, format!("the time of {} went back", machine.name));
                }
            }
            let kept = before.filter(|before| before.boots == fabric.boots).and_then(|before| before.version);
            self.known.insert(index, Known { node: fabric.me, boots: fabric.boots, version, kept, wall });
        }
    }

    /// A host has started again from its disk.
    pub fn started(&mut self, index: usize, world: &World, findings: &Findings) {
        let machine = &world.machines[index];
        let (Some(node), Some(known)) = (&machine.node, self.known.get(&index)) else { return };
        let fabric = node.fabric();
        if fabric.me != known.node {
            findings.add(CHECK, format!("{} was {} and is {}", machine.name, known.node, fabric.me));
        }
        if fabric.boots <= known.boots {
            let (now, before) = (fabric.boots, known.boots);
            findings.add(CHECK, format!("{} starts for the {now}. time after the {before}.", machine.name));
        }
        let version = fabric.snapshot().map(|accepted| accepted.header.version);
        if version < known.kept {
            findings.add(CHECK, format!("{} had snapshot {:?} and starts with {version:?}", machine.name, known.kept));
        }
    }
}
