//! The database balancers of a node, as its configuration names their files: `[balancers] NAME = FILE`. The cluster has
//! their lists of nodes (DB-43).

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use postroad_actors::{balancer::Setup, root::NodeHandle};
use postroad_cluster::{balancer::limits::BALANCERS_PER_NODE_MAX, id::Name};
use rustix::process::{Resource, getrlimit};

use super::{
    admin::Listener,
    config::{self, Config, List},
    password, setup,
};
use crate::errors::{Exit, Failure};

/// Of the descriptors of a node, its balancers together take this share; the rest is for flows and all else.
const DESCRIPTORS_SHARE: u64 = 2;

/// The files of a node's balancers, read and checked.
pub struct Roles(BTreeMap<Name, Config>);

impl Roles {
    /// Reads the files. A password stands in the file, or else in the environment, where it is that of all.
    ///
    /// # Errors
    /// When one cannot be read or is wrong, two want one address, or there are too many.
    pub fn load(files: &BTreeMap<Name, PathBuf>) -> Result<Self, Failure> {
        if files.len() > BALANCERS_PER_NODE_MAX {
            let message =
                format!("[balancers] names {}, and a node runs at most {BALANCERS_PER_NODE_MAX}", files.len());
            return Err(Failure::failed("CONFIG_INVALID", message).hint("Give some to another node"));
        }
        let mut taken: BTreeMap<SocketAddr, String> = BTreeMap::new();
        let mut roles = BTreeMap::new();
        for (name, path) in files {
            let mut config = config::load(path, List::Cluster, None)?;
            config.probe.password = config.probe.password.or_else(password);
            let addresses = [("rw", Some(config.rw)), ("ro", config.ro), ("admin", Some(config.admin))];
            for (key, address) in addresses.into_iter().filter_map(|(key, address)| Some((key, address?))) {
                let what = format!("proxy.{key} of {name}");
                // Port 0 is another one each time.
                if address.port() > 0
                    && let Some(other) = taken.insert(address, what.clone())
                {
                    let message = format!("{}: {what} is {address}, and so is {other}", path.display());
                    return Err(Failure::failed("CONFIG_INVALID", message).hint("Give each an address of its own"));
                }
            }
            if config.log_file.is_some() {
                let warning =
                    format!("{}: proxy.log_file does nothing here: its lines go to the node's log", path.display());
                config.warnings.push(warning);
            }
            roles.insert(name.clone(), config);
        }
        Ok(Self(roles))
    }

    /// What is odd and no error.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.0.values().flat_map(|config| &config.warnings)
    }

    /// What the node's actors need of each.
    pub fn setups(&self) -> BTreeMap<Name, Setup> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
        // A connection takes two.
        let each = (descriptors / DESCRIPTORS_SHARE / 2 / self.0.len().max(1) as u64).max(1) as usize;
        self.0.iter().map(|(name, config)| (name.clone(), setup(config.clone(), each))).collect()
    }

    /// Serves the admin port of each, whether the cluster has this node run it or not yet. One that is taken costs
    /// status and metrics and not the node.
    pub async fn serve(&self, node: &Arc<NodeHandle>) -> Vec<tokio::task::JoinHandle<()>> {
        let mut serving = Vec::new();
        for (name, config) in &self.0 {
            match Listener::bind(config.admin).await {
                Ok(listener) => {
                    let (node, name) = (Arc::clone(node), name.clone());
                    let find = move || {
                        let fabric = node.fabric();
                        fabric.balancers.get(&name).ok_or_else(|| {
                            let message = format!("the cluster does not have {} run the balancer {name}", fabric.name);
                            Failure::new(Exit::Refused, "BALANCER_NOT_LISTED", message)
                                .hint(format!("On a control node: postroad balance set {name} --on {}", fabric.name))
                        })
                    };
                    serving.push(tokio::spawn(listener.serve(Arc::new(find))));
                }
                Err(failure) => tracing::warn!(balancer = %name, code = %failure.code, "{failure}"),
            }
        }
        serving
    }
}
