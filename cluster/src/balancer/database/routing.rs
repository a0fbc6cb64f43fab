//! Where one new connection goes, given what was decided last and what is open now.

use core::fmt;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    choice::{NoPrimary, Target},
    settings::Port,
};

/// What was decided, for connections to read. It is replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routing {
    /// Grows each time that writes go elsewhere or stop (DB-22).
    pub generation: u64,
    /// Where writes go.
    pub write: Result<Target, NoPrimary>,
    /// Who takes reads, by id.
    pub readers: Vec<Reader>,
    /// What an active session weighs against an open connection.
    pub active_weight: u64,
    /// Places of a node that reads leave free.
    pub connection_reserve: u64,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            generation: 0,
            write: Err(NoPrimary::NobodyHealthy),
            readers: Vec::new(),
            active_weight: 0,
            connection_reserve: 0,
        }
    }
}

/// A node that takes reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// The node.
    pub target: Target,
    /// Sessions that ran a command at its last answer.
    pub active: u64,
    /// Connections that were open then.
    pub connections: u64,
    /// Connections that it takes at most.
    pub connections_max: u64,
    /// Which answer that was, so that connections opened since can be told from those it counted.
    pub answer: u64,
}

/// What this balancer has open to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Connections through both ports.
    pub open: u64,
    /// Those of them that the node's last answer cannot have counted.
    pub since: u64,
}

/// Why a connection is led nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoNode {
    /// There is no primary.
    Write(NoPrimary),
    /// No node takes reads, and there is no primary to fall back to.
    Read(NoPrimary),
    /// Every node that could be chosen was tried.
    Tried(Port),
}

impl fmt::Display for NoNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(reason) => reason.fmt(f),
            Self::Read(reason) => write!(f, "no node takes reads, and there is no primary: {reason}"),
            Self::Tried(port) => write!(f, "every node for {} was tried, and none took the connection", port.word()),
        }
    }
}

impl Reader {
    /// What is compared (DB-4, DB-7).
    #[must_use]
    pub const fn score(&self, load: Load, active_weight: u64) -> u64 {
        load.open.saturating_add(active_weight.saturating_mul(self.active))
    }

    fn has_room(&self, load: Load, reserve: u64) -> bool {
        let taken = self.connections.saturating_add(load.since);
        self.connections_max.saturating_sub(taken) > reserve
    }
}

impl Routing {
    /// Where a write connection goes, unless that was `tried`.
    ///
    /// # Errors
    /// Why there is no such node.
    pub fn choose_write(&self, tried: &BTreeSet<String>) -> Result<&Target, NoNode> {
        let target = self.write.as_ref().map_err(|reason| NoNode::Write(reason.clone()))?;
        if tried.contains(&target.node) { Err(NoNode::Tried(Port::Rw)) } else { Ok(target) }
    }

    /// Where a read connection goes: to the least load, in turn after `last` where loads are equal; to the primary where
    /// nobody takes reads (DB-5). Nodes that were `tried` are passed over.
    ///
    /// # Errors
    /// Why there is no such node.
    pub fn choose_read(
        &self,
        load: impl Fn(&str) -> Load,
        last: Option<&str>,
        tried: &BTreeSet<String>,
    ) -> Result<&Target, NoNode> {
        let open = self.readers.iter().filter(|reader| !tried.contains(&reader.target.node));
        let open = open.map(|reader| (reader, load(&reader.target.node)));
        let least = open.filter(|(reader, load)| reader.has_room(*load, self.connection_reserve)).min_by_key(
            |(reader, load)| {
                let node = reader.target.node.as_str();
                (reader.score(*load, self.active_weight), last.is_some_and(|last| node <= last), node)
            },
        );
        match (least, &self.write) {
            (Some((reader, _)), _) => Ok(&reader.target),
            (None, Ok(primary)) if !tried.contains(&primary.node) => Ok(primary),
            (None, Err(reason)) if tried.is_empty() => Err(NoNode::Read(reason.clone())),
            (None, _) => Err(NoNode::Tried(Port::Ro)),
        }
    }

    /// Whether a connection that was led to `chosen` may still go there (DB-22).
    #[must_use]
    pub fn still_holds(&self, port: Port, chosen: &Target) -> bool {
        let same = |target: &Target| target.node == chosen.node && target.address == chosen.address;
        let writes = self.write.as_ref().is_ok_and(same);
        writes || (port == Port::Ro && self.readers.iter().any(|reader| same(&reader.target)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn target(node: &str) -> Target {
        Target { node: node.into(), address: "10.0.0.1:5432".parse().unwrap(), epoch: 1 }
    }

    fn reader(node: &str, active: u64, connections: u64, connections_max: u64) -> Reader {
        Reader { target: target(node), active, connections, connections_max, answer: 1 }
    }

    fn routing(readers: Vec<Reader>) -> Routing {
        let write = Ok(target("primary"));
        Routing { generation: 1, write, readers, active_weight: 4, connection_reserve: 5 }
    }

    fn chosen(routing: &Routing, open: &[(&str, u64)], last: Option<&str>, tried: &[&str]) -> Result<String, NoNode> {
        let open: BTreeMap<&str, u64> = open.iter().copied().collect();
        let load = |node: &str| Load { open: open.get(node).copied().unwrap_or(0), since: 0 };
        let tried = tried.iter().map(|node| (*node).to_owned()).collect();
        routing.choose_read(load, last, &tried).map(|target| target.node.clone())
    }

    // DB-7: 38 open + 4 × 3 active = 50.
    #[test]
    fn the_score_is_what_is_open_and_four_times_what_is_active() {
        assert_eq!(reader("a", 3, 60, 100).score(Load { open: 38, since: 0 }, 4), 50);
    }

    // DB-4
    #[test]
    fn reads_go_to_the_least_load_and_ties_in_turn() {
        let routing = routing(vec![reader("a", 0, 0, 100), reader("b", 0, 0, 100), reader("c", 2, 0, 100)]);
        type Case = (&'static [(&'static str, u64)], Option<&'static str>, &'static str);
        let table: &[Case] = &[
            (&[], None, "a"),
            (&[], Some("a"), "b"),
            (&[], Some("b"), "a"),
            (&[("a", 3), ("b", 4)], Some("a"), "a"),
            (&[("a", 9), ("b", 9)], Some("a"), "c"),
            (&[("a", 8), ("b", 8)], Some("b"), "c"),
            (&[("a", 8), ("b", 8)], Some("c"), "a"),
        ];
        for (open, last, expected) in table {
            assert_eq!(chosen(&routing, open, *last, &[]).as_deref(), Ok(*expected), "{open:?} after {last:?}");
        }
    }

    // DB-3, DB-5, DB-6
    #[test]
    fn full_and_tried_nodes_are_passed_over_and_the_primary_is_the_last_resort() {
        let both = routing(vec![reader("a", 0, 95, 100), reader("b", 9, 94, 100)]);
        assert_eq!(chosen(&both, &[], None, &[]).as_deref(), Ok("b"), "a has only its reserve left");
        assert_eq!(chosen(&both, &[], None, &["b"]).as_deref(), Ok("primary"));
        assert_eq!(chosen(&both, &[], None, &["b", "primary"]), Err(NoNode::Tried(Port::Ro)));
        let nobody = Routing { write: Err(NoPrimary::NobodyHealthy), ..routing(vec![]) };
        assert_eq!(chosen(&nobody, &[], None, &[]), Err(NoNode::Read(NoPrimary::NobodyHealthy)));
        let since = |_: &str| Load { open: 1, since: 1 };
        assert_eq!(both.choose_read(since, None, &BTreeSet::new()).map(|target| &*target.node), Ok("primary"));
    }

    // DB-22
    #[test]
    fn a_choice_holds_only_while_it_would_be_made_again() {
        let before = routing(vec![reader("a", 0, 0, 100)]);
        assert!(before.still_holds(Port::Rw, &target("primary")) && before.still_holds(Port::Ro, &target("primary")));
        assert!(!before.still_holds(Port::Rw, &target("a")) && before.still_holds(Port::Ro, &target("a")));
        let elsewhere = Target { address: "10.0.0.9:5432".parse().unwrap(), ..target("primary") };
        assert!(!before.still_holds(Port::Rw, &elsewhere));
        let nobody = Routing { write: Err(NoPrimary::NobodyHealthy), ..before };
        assert!(!nobody.still_holds(Port::Rw, &target("primary")));
    }
}
