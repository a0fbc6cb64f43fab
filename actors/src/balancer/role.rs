//! The database balancers of a node: those that the cluster lists for it, by what this host's files say (DB-43).

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    balancer::limits::TROUBLE_CHARACTERS_MAX,
    id::{Name, Version},
    snapshot::BalancerView,
    supervision::Restart,
    wire::control::BalancerReport,
};
use serde::{Deserialize, Serialize};

use super::{BalancerHandle, Nodes, Setup, Shared, children, status::Status};
use crate::{
    directory::lock,
    fabric::Fabric,
    supervisor::{ChildSpec, SupervisorHandle},
};

/// Where a node's balancers stand in the tree.
pub(crate) const BALANCERS: &str = "node/balancers";

/// The balancers of one node.
#[derive(Default)]
pub struct Balancers {
    /// What this host has for each, by its name.
    setups: BTreeMap<Name, Setup>,
    running: Mutex<BTreeMap<Name, Running>>,
}

struct Running {
    handle: Arc<BalancerHandle>,
    /// The id of its supervisor below [`BALANCERS`].
    child: String,
    /// The entry by which it has its list.
    changed: Version,
}

impl fmt::Debug for Balancers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.running).keys()).finish()
    }
}

/// How a balancer stands that this node has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It runs.
    Running,
    /// The cluster has this node run it, and no file of this host says how.
    NotConfigured,
    /// This host has a file for it, and the cluster does not have this node run it.
    NotListed,
}

/// A balancer as its node shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleView {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub standing: Standing,
    /// The entry by which it has its list.
    pub changed: Option<u64>,
    /// What is wrong, in a sentence.
    pub trouble: Option<String>,
    /// Everything of it, while it runs.
    pub status: Option<Status>,
}

impl RoleView {
    /// The same as control nodes hear it; nothing of one that they know nothing of.
    #[must_use]
    pub fn report(&self) -> Option<BalancerReport> {
        let short = |text: &String| text.chars().take(TROUBLE_CHARACTERS_MAX).collect();
        (self.standing != Standing::NotListed).then(|| BalancerReport {
            changed: self.changed.map(Version),
            primary: self.status.as_ref().and_then(|status| status.primary.clone()),
            trouble: self.trouble.as_ref().map(short),
        })
    }
}

impl Balancers {
    /// Those for which this host has a setup; none runs yet.
    pub(crate) const fn new(setups: BTreeMap<Name, Setup>) -> Self {
        Self { setups, running: Mutex::new(BTreeMap::new()) }
    }

    /// A balancer that runs.
    pub fn get(&self, name: &Name) -> Option<Arc<BalancerHandle>> {
        lock(&self.running).get(name).map(|running| Arc::clone(&running.handle))
    }

    /// Runs those that are wanted and no others. A changed list is taken over, and drops no connection (DB-44).
    pub(crate) fn want(&self, fabric: &Fabric, wanted: &BTreeMap<Name, BalancerView>) {
        let mut running = lock(&self.running);
        let supervisor = SupervisorHandle::find(&fabric.directory, BALANCERS);
        running.retain(|name, running| {
            let stays = wanted.contains_key(name);
            if !stays {
                tracing::info!(balancer = %name, "the cluster does not have this node run it any more: it ends");
                running.handle.end();
                // A supervisor that is down has ended its children.
                let _ = supervisor.as_ref().map(|supervisor| supervisor.remove(&running.child));
            }
            stays
        });
        for (name, view) in wanted {
            match (running.get_mut(name), self.setups.get(name)) {
                (Some(known), _) => {
                    known.changed = view.changed;
                    if let Err(error) = known.handle.relist(view.databases.clone()) {
                        tracing::error!(balancer = %name, %error, "the new list of nodes was not taken");
                    }
                }
                (None, None) => tracing::warn!(
                    balancer = %name,
                    "the cluster has this node run a balancer that no file of this host describes: [balancers] {name} = FILE"
                ),
                (None, Some(setup)) => match begin(fabric, supervisor.as_ref(), name, setup, view.databases.clone()) {
                    Ok((handle, child)) => {
                        tracing::info!(balancer = %name, rw = %setup.rw, nodes = view.databases.len(), "it runs");
                        running.insert(name.clone(), Running { handle, child, changed: view.changed });
                    }
                    Err(error) => tracing::error!(balancer = %name, error, "it did not start"),
                },
            }
        }
        for name in self.setups.keys().filter(|name| !wanted.contains_key(*name)) {
            tracing::info!(balancer = %name, "it waits until the cluster has this node run it: postroad balance add");
        }
    }

    /// Every balancer that this node has to do with.
    pub fn views(&self, fabric: &Fabric) -> Vec<RoleView> {
        let running: BTreeMap<Name, (Arc<BalancerHandle>, Version)> = {
            let running = lock(&self.running);
            running.iter().map(|(name, it)| (name.clone(), (Arc::clone(&it.handle), it.changed))).collect()
        };
        let listed = fabric.snapshot().map(|accepted| accepted.content.balancers.clone()).unwrap_or_default();
        let mut names: Vec<&Name> = self.setups.keys().chain(listed.keys()).chain(running.keys()).collect();
        names.sort();
        names.dedup();
        let view = |name: &Name| {
            let found = running.get(name);
            let standing = match (found, listed.contains_key(name)) {
                (Some(_), _) => Standing::Running,
                (None, true) => Standing::NotConfigured,
                (None, false) => Standing::NotListed,
            };
            let status = found.and_then(|(handle, _)| handle.published());
            let trouble = match standing {
                Standing::NotConfigured => {
                    Some(format!("no file of this host describes it: [balancers] {name} = FILE in postroad.toml"))
                }
                Standing::NotListed => None,
                Standing::Running => status.as_ref().map_or_else(|| Some("it has not begun yet".to_owned()), trouble),
            };
            let changed = found.map(|(_, changed)| changed.0);
            RoleView { name: name.to_string(), standing, changed, trouble, status }
        };
        names.into_iter().map(view).collect()
    }

    /// Ends the connections of all: their node stops.
    pub(crate) fn end(&self) {
        for running in std::mem::take(&mut *lock(&self.running)).into_values() {
            running.handle.end();
        }
    }
}

/// What an operator should hear of a balancer that runs.
fn trouble(status: &Status) -> Option<String> {
    let shut = status.ports.iter().find_map(|port| {
        let failure = port.failure.as_ref()?;
        Some(format!("it does not listen on {} for {}: {failure}", port.address, port.port.word()))
    });
    shut.or_else(|| status.no_primary.as_ref().map(|why| format!("writes are refused: {why}")))
}

fn begin(
    fabric: &Fabric,
    supervisor: Option<&SupervisorHandle>,
    name: &Name,
    setup: &Setup,
    nodes: Nodes,
) -> Result<(Arc<BalancerHandle>, String), String> {
    let supervisor = supervisor.ok_or("there is no supervisor of balancers")?;
    // One that is on its way out keeps its place for a moment.
    let child = format!("{name}-{}", fabric.sequence());
    let clock = Arc::clone(&fabric.clock);
    let shared = Shared::new(format!("{BALANCERS}/{child}"), clock, Arc::clone(&fabric.network), setup.clone());
    let specs = children(&shared, nodes);
    let spec = ChildSpec::supervisor(&child, Restart::Permanent, move |_| specs.clone());
    supervisor.add(spec).map_err(|error| error.to_string())?;
    let root = tokio::sync::Mutex::new(None);
    Ok((Arc::new(BalancerHandle { shared, directory: fabric.directory.clone(), root }), child))
}
