//! Database balancers: made, changed and removed. The cluster agrees on the nodes that they lead to and on who runs them.

use super::{BalancerRecord, Change, State, address::host_and_port};
use crate::{
    balancer::{
        database::settings::check_node_id,
        limits::{BALANCER_DATABASES_MAX, BALANCER_RUNNERS_MAX, BALANCERS_MAX, BALANCERS_PER_NODE_MAX, NODES_MAX},
    },
    command::{BalancerSpec, Refusal, code},
    id::{Name, NodeId, Role, Version},
    time::WallTime,
};

impl State {
    pub(super) fn balancer_add(
        &mut self,
        now: WallTime,
        version: Version,
        name: Name,
        spec: BalancerSpec,
    ) -> Result<Change, Refusal> {
        if let Some(known) = self.balancers.get(&name) {
            // Whoever lost the answer and asks again gets it again.
            if known.spec == spec {
                return Ok(Change::None(None));
            }
            return Err(Refusal::new(
                code::NAME_TAKEN,
                format!("there is a balancer {name} already"),
                format!("Choose another name, or change that one: postroad balance set {name}"),
            ));
        }
        if self.balancers.len() >= BALANCERS_MAX {
            return Err(Refusal::new(
                code::TOO_MANY,
                format!("a cluster has at most {BALANCERS_MAX} balancers"),
                "Remove what is not needed: postroad balance list, postroad balance remove",
            ));
        }
        self.check_balancer(&name, &spec)?;
        let what = format!("balancer {name} made, {}", self.balancer_words(&spec));
        self.balancers.insert(name, BalancerRecord { spec, made: now, changed: version });
        Ok(Change::made(what))
    }

    pub(super) fn balancer_set(
        &mut self,
        version: Version,
        name: &Name,
        spec: BalancerSpec,
        changed: Version,
    ) -> Result<Change, Refusal> {
        let known = self.balancers.get(name).ok_or_else(|| unknown(name))?;
        if known.spec == spec {
            return Ok(Change::None(None));
        }
        if known.changed != changed {
            return Err(Refusal::new(
                code::BALANCER_CHANGED,
                format!("the balancer {name} was changed by {} and this was meant for {changed}", known.changed),
                format!("Look at it, then run the command again: postroad balance show {name}"),
            ));
        }
        self.check_balancer(name, &spec)?;
        let what = format!("balancer {name} changed, {}", self.balancer_words(&spec));
        if let Some(record) = self.balancers.get_mut(name) {
            record.spec = spec;
            record.changed = version;
        }
        Ok(Change::made(what))
    }

    pub(super) fn balancer_remove(&mut self, name: &Name) -> Result<Change, Refusal> {
        match self.balancers.remove(name) {
            Some(_) => Ok(Change::made(format!("balancer {name} removed"))),
            None => Err(unknown(name)),
        }
    }

    /// Refuses to remove a node that a balancer counts on.
    pub(super) fn check_runs_none(&self, node: NodeId, name: &Name) -> Result<(), Refusal> {
        let Some((balancer, _)) = self.balancers.iter().find(|(_, record)| record.spec.on.contains(&node)) else {
            return Ok(());
        };
        Err(Refusal::new(
            code::NODE_HAS_BALANCERS,
            format!("{name} runs the balancer {balancer}"),
            format!("Take it off first: postroad balance set {balancer} --off {name}; or postroad balance remove"),
        ))
    }

    fn check_balancer(&self, name: &Name, spec: &BalancerSpec) -> Result<(), Refusal> {
        let invalid = |what: String, hint: &str| Err(Refusal::new(code::BALANCER_INVALID, what, hint));
        if spec.databases.is_empty() {
            return invalid(
                format!("the balancer {name} would lead to no database node"),
                "Name them by the id that each announces: --to db-1=10.0.0.1:5432",
            );
        }
        if spec.on.is_empty() {
            return invalid(
                format!("nobody would run the balancer {name}"),
                "Name a node: --on NODE; or remove the balancer: postroad balance remove",
            );
        }
        if spec.databases.len() > NODES_MAX || spec.on.len() > BALANCER_RUNNERS_MAX {
            return Err(Refusal::new(
                code::TOO_MANY,
                format!("a balancer leads to at most {NODES_MAX} database nodes and runs on {BALANCER_RUNNERS_MAX}"),
                "Several database clusters want a balancer each",
            ));
        }
        self.check_balancer_room(name, spec)?;
        for (database, address) in &spec.databases {
            if let Err(wrong) = check_node_id(database) {
                let shown: String = database.chars().take(80).collect();
                return invalid(format!("{shown:?} {wrong}"), "It is what the database node announces");
            }
            let place = host_and_port(&format!("the address of {database}"), address)?;
            let same = |(other, text): &(&String, &String)| {
                *other < database && host_and_port("", text).is_ok_and(|known| known == place)
            };
            if let Some((other, _)) = spec.databases.iter().find(same) {
                return invalid(
                    format!("{other} and {database} are both at {address}"),
                    "Every database node has an address of its own",
                );
            }
        }
        spec.on.iter().try_for_each(|node| self.node_with(*node, Role::Node).map(|_| ()))
    }

    /// Whether all balancers together, with this one as `spec`, stay within what the state and a node may hold.
    fn check_balancer_room(&self, name: &Name, spec: &BalancerSpec) -> Result<(), Refusal> {
        let others = || self.balancers.iter().filter(|(other, _)| *other != name).map(|(_, record)| &record.spec);
        let databases = others().map(|other| other.databases.len()).sum::<usize>() + spec.databases.len();
        if databases > BALANCER_DATABASES_MAX {
            return Err(Refusal::new(
                code::TOO_MANY,
                format!("the balancers of a cluster lead to at most {BALANCER_DATABASES_MAX} database nodes in all"),
                "Remove what is not needed: postroad balance list, postroad balance remove",
            ));
        }
        let full = |node: &&NodeId| others().filter(|other| other.on.contains(*node)).count() >= BALANCERS_PER_NODE_MAX;
        match spec.on.iter().find(full) {
            Some(node) => Err(Refusal::new(
                code::TOO_MANY,
                format!("{node} runs {BALANCERS_PER_NODE_MAX} balancers, the most a node may"),
                "Give it to another node: --on NODE",
            )),
            None => Ok(()),
        }
    }

    fn balancer_words(&self, spec: &BalancerSpec) -> String {
        let names: Vec<&str> = spec.databases.keys().map(String::as_str).take(8).collect();
        let more = if spec.databases.len() > names.len() { " and more" } else { "" };
        let on = spec.on.iter().filter_map(|node| Some(self.nodes.get(node)?.name.as_str())).collect::<Vec<_>>();
        format!("to {}{more} on {}", names.join(", "), on.join(", "))
    }
}

fn unknown(name: &Name) -> Refusal {
    Refusal::new(
        code::BALANCER_UNKNOWN,
        format!("there is no balancer {name}"),
        "See which there are: postroad balance list",
    )
}
