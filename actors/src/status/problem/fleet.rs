//! What is wrong with the fleet: the control group, the relays, nodes that say nothing.

use postroad_cluster::{id::NodeId, limits::RAFT_PROMOTE_LAG_MAX};

use super::{Finder, at_once, lasting, plural, some};
use crate::status::{
    Health,
    control::{ControlView, Member},
    relays::{Relay, Standing},
};

/// Voters below which losing one stops every change.
const VOTERS_SAFE: usize = 3;

impl Finder<'_> {
    pub(super) fn control(&mut self, control: &ControlView, leaderless: bool) {
        if let Some(why) = &control.stopped {
            let what = format!("this control node's member of the group has stopped: {why}");
            self.add(at_once(Health::Failing, "CONTROL_STOPPED"), "control", what, "Restart this node");
        }
        if control.leader.is_none() {
            let voters: Vec<&str> = control.voters().map(|member| member.name.as_str()).collect();
            let what = format!(
                "no control node leads: nothing can be changed and nobody can join, connections go on; voters are {}",
                some(voters)
            );
            let next = "See that more than half of them run and reach each other, then: postroad control list";
            self.add(at_once(Health::Failing, "CONTROL_NO_LEADER"), "control", what, next);
        } else if leaderless {
            let what = "the leader does not answer this node, so what nodes reported to it is missing here";
            let next = "Ask it directly: postroad status, on the leader; postroad control list names it";
            self.add(lasting(Health::Degraded, "CONTROL_LEADER_SILENT"), "control", what, next);
        }
        for member in &control.members {
            self.member(member);
        }
        let voters = control.voters().count();
        if voters < VOTERS_SAFE {
            let what = match voters {
                1 => "there is one voting control node: without it nothing can be changed, and if its disk is lost, \
                      the cluster is"
                    .to_owned(),
                _ => format!("there are {voters} voting control nodes: without any one of them nothing can be changed"),
            };
            let next = format!("Have three: postroad token create --role control{}", {
                if control.members.len() > voters { ", or promote one that has joined" } else { "" }
            });
            self.add(at_once(Health::AtRisk, "CONTROL_FEW_VOTERS"), "control", what, next);
        }
    }

    fn member(&mut self, member: &Member) {
        let about = format!("control {}", member.name);
        let name = &member.name;
        if member.live == Some(false) && member.learns {
            let health = if member.votes { Health::Degraded } else { Health::AtRisk };
            let silence = member.silent_ms.map_or_else(
                || "has not answered this leader".to_owned(),
                |silent| format!("has not answered for {} s", silent / 1_000),
            );
            let what = format!("control node {name} {silence}");
            let next = format!(
                "Look whether it runs: postroad status, on {name}; gone for good: postroad control remove {name}"
            );
            self.add(at_once(health, "CONTROL_SILENT"), about.clone(), what, next);
        } else if member.lag_entries.is_some_and(|lag| lag > RAFT_PROMOTE_LAG_MAX) {
            let lag = member.lag_entries.unwrap_or_default();
            let what = format!("control node {name} is {lag} entries behind");
            self.add(lasting(Health::AtRisk, "CONTROL_BEHIND"), about.clone(), what, "Look at its disk and network");
        }
        if !member.votes || !member.certified {
            let missing = match (member.votes, member.certified) {
                (false, false) => "neither votes nor signs yet",
                (false, true) => "does not vote",
                _ => "votes, but may not sign, so nodes get no snapshots or certificates from it",
            };
            let what = format!("control node {name} has joined and {missing}");
            let next = format!("On {name}: postroad control promote {name} --authority FILE");
            self.add(at_once(Health::AtRisk, "CONTROL_NOT_PROMOTED"), about, what, next);
        }
    }

    /// Nodes that have not reported since the present leader began.
    pub(super) fn reports(&mut self, leaderless: bool) {
        if leaderless {
            return;
        }
        let status = self.status;
        let silent = status.nodes.iter().filter(|node| !self.view.reports.contains_key(&node.id));
        for (id, name) in silent.map(|node| (node.id, node.name.to_string())).collect::<Vec<(NodeId, String)>>() {
            let what = format!("node {name} ({id}) has said nothing to the present leader");
            let next =
                format!("Look whether it runs: postroad status, on {name}; gone for good: postroad node remove {name}");
            self.add(lasting(Health::Degraded, "NODE_SILENT"), format!("node {name}"), what, next);
        }
    }

    /// What other nodes report of their database balancers; this node's own are told by itself.
    pub(super) fn balancers_elsewhere(&mut self) {
        let (me, view) = (self.status.node.id, self.view);
        for (node, report) in view.reports.iter().filter(|(node, _)| **node != me) {
            let node = view.name(*node);
            for (name, balancer) in &report.balancers {
                let Some(trouble) = &balancer.trouble else { continue };
                let what = format!("balancer {name} on {node}: {trouble}");
                let next = format!("See each database node and why: postroad balance show {name}, on {node}");
                let about = format!("balancer {name} on {node}");
                self.add(lasting(Health::Degraded, "BALANCER_TROUBLE"), about, what, next);
            }
        }
    }

    pub(super) fn relays(&mut self) {
        let status = self.status;
        for relay in &status.relays.list {
            let about = format!("relay {}", relay.name);
            let (name, address) = (&relay.name, &relay.address);
            let reasons = || {
                let first = relay.missed_by.iter().next();
                first.map_or_else(String::new, |(_, reason)| format!(": {reason}"))
            };
            match relay.state {
                Standing::Pending => {
                    let what = format!("relay {name} is pending: no other node has reached {address}{}", reasons());
                    let next = "Check that it runs, and its port forward and firewall for UDP";
                    self.add(lasting(Health::Degraded, "RELAY_PENDING"), about, what, next);
                }
                // RP-62: the text is kept stable.
                Standing::Unreachable => {
                    let witnesses = relay.missed_by.len() + relay.reached_by.len();
                    let what = format!(
                        "relay {name} unreachable from {} of {witnesses} nodes ({}): nodes cannot reach {address}{}",
                        relay.missed_by.len(),
                        some(relay.missed_by.keys()),
                        reasons()
                    );
                    let next = "Check port forward and firewall; it gets no connections meanwhile";
                    self.add(at_once(Health::Degraded, "RELAY_UNREACHABLE"), about, what, next);
                }
                Standing::Ready | Standing::Draining => {}
            }
            self.revocations(relay);
        }
        if status.control.is_some() {
            self.independence();
        }
    }

    // RP-35, RP-62: the texts are kept stable.
    fn revocations(&mut self, relay: &Relay) {
        let Some(found) = relay.revocations else { return };
        let (name, about) = (&relay.name, format!("relay {}", relay.name));
        let next = format!("Look whether it reaches a control node: postroad relay show {name}");
        if found.stale > 0 {
            let what = format!(
                "relay {name} is stale for {}: it has not applied their revocation within 90 s, and nothing of them \
                 is admitted through it",
                plural(found.stale, "route", "routes")
            );
            self.add(at_once(Health::Degraded, "RELAY_STALE"), about.clone(), what, next.clone());
        }
        if found.pending > 0 {
            let what = format!("revocation of {} pending at relay {name}", plural(found.pending, "route", "routes"));
            self.add(lasting(Health::AtRisk, "RELAY_REVOCATION_PENDING"), about, what, next);
        }
    }

    fn independence(&mut self) {
        let relays = &self.status.relays;
        let ready: Vec<_> = relays.list.iter().filter(|relay| relay.state == Standing::Ready).collect();
        if ready.is_empty() {
            let what = "no relay is ready, so links cannot open new connections";
            let next = "See each with its reason: postroad relay list";
            return self.add(lasting(Health::Failing, "RELAYS_NONE"), "relays", what, next);
        }
        // RP-4
        if ready.len() == 1 {
            let what = format!("{} is the only ready relay: every link stops with its host", ready[0].name);
            let next = "Add one on another host: postroad relay add NAME --advertise HOST:PORT";
            return self.add(at_once(Health::AtRisk, "RELAYS_ONE"), "relays", what, next);
        }
        // RP-3
        if relays.independent < 2 {
            let pairs = relays.shared.iter().map(|it| format!("{} and {}: {}", it.one, it.other, it.what));
            let what = format!(
                "{} are ready and {} known to be independent ({})",
                plural(ready.len(), "relay", "relays"),
                if relays.independent == 1 { "one is" } else { "none is" },
                some(pairs)
            );
            let next = "Say where each stands by [domain] host, power and network of its configuration";
            return self.add(at_once(Health::AtRisk, "RELAYS_NOT_INDEPENDENT"), "relays", what, next);
        }
        // RP-61
        if relays.off_control_independent < 2 {
            let what = format!(
                "{} off the control nodes; production and availability policies need two there that are independent",
                match relays.off_control {
                    0 => "no ready relay stands".to_owned(),
                    1 => "one ready relay stands".to_owned(),
                    count => format!("{count} ready relays stand, and no two known to be independent,"),
                }
            );
            let next = "Add one on a host of its own: postroad relay add NAME --advertise HOST:PORT";
            self.add(at_once(Health::AtRisk, "RELAYS_ON_CONTROL"), "relays", what, next);
        }
    }
}
