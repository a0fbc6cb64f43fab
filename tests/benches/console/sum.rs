//! The actor of this bench: it adds numbers up, with one effect a message, and may have a state of some size.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use postroad_actors::{
    directory::Directory,
    handle::Handle,
    shell::Performer,
    supervisor::{ChildSpec, Seat},
};
use postroad_cluster::{
    behavior::{Behavior, Class, Event, Turn},
    supervision::Restart,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sum {
    total: u64,
    /// What it holds besides; copies of it are what instruments cost an actor with a large state.
    held: BTreeMap<u64, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Add(pub(crate) u64);

impl Event for Add {
    fn kind(&self) -> &'static str {
        "add"
    }

    fn class(&self) -> Class {
        Class::Request
    }
}

impl Behavior for Sum {
    const NOUN: &'static str = "sum";
    type Event = Add;
    type Effect = u64;

    fn on(&mut self, _: Turn, event: Add, effects: &mut Vec<u64>) {
        self.total = self.total.wrapping_mul(31).wrapping_add(event.0);
        effects.push(self.total);
    }
}

struct Count(Arc<AtomicU64>);

impl Performer<Sum> for Count {
    type Reply = ();

    fn perform(&mut self, _: u64, _: &Handle<Sum>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// So many of them, each with a state of `size` entries, which count in `handled`.
pub(crate) fn children(count: usize, size: u64, handled: &Arc<AtomicU64>) -> Vec<ChildSpec> {
    let child = |at: usize| {
        let handled = Arc::clone(handled);
        let make = move |_: &Seat<Sum>| {
            let held = (0..size).map(|at| (at, at)).collect();
            Ok((Sum { total: 0, held }, Count(Arc::clone(&handled))))
        };
        ChildSpec::actor(&format!("sum-{at}"), Restart::Permanent, make)
    };
    (0..count).map(child).collect()
}

/// The handles of so many of them.
pub(crate) fn handles(directory: &Directory, count: usize) -> Vec<Handle<Sum>> {
    let find = |at: usize| directory.find::<Sum, ()>(&format!("load/sum-{at}"));
    (0..count).map(|at| find(at).expect("it is there")).collect()
}
