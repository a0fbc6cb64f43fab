//! What is wrong with this node: its connections, sessions, links, circuits, certificate, lease and actors.

use std::collections::{BTreeMap, BTreeSet};

use postroad_cluster::time::Span;

use super::{Finder, at_once, lasting, some};
use crate::{
    balancer::role::Standing,
    status::{Health, local},
};

/// A lease with less than this left has not been renewed for long.
const LEASE_LEFT_MIN: Span = Span::from_hours(1);

impl Finder<'_> {
    pub(super) fn connections(&mut self) {
        let controls = &self.status.controls;
        if controls.is_empty() || controls.iter().any(|control| control.up) {
            return;
        }
        let reason = |control: &local::ControlConnection| {
            let failure = control.last_failure.as_deref().unwrap_or("not tried yet");
            format!("{} at {}: {failure}", control.name, control.address)
        };
        let what = format!(
            "no control node answers ({}): nothing can be changed here, links go on by the last snapshot",
            some(controls.iter().map(reason))
        );
        let next = "Check that UDP reaches them, and that they run: postroad control list, on one of them";
        self.add(lasting(Health::Degraded, "CONTROL_UNREACHABLE"), "control", what, next);
    }

    pub(super) fn sessions(&mut self) {
        let status = self.status;
        let down: Vec<&local::Session> = status.sessions.iter().filter(|session| !session.up).collect();
        if !status.sessions.is_empty() && down.len() == status.sessions.len() {
            let what = "this node reaches no relay: its flows wait, and new connections too".to_owned();
            let next = "Check this node's network: UDP must get out to the relays' ports";
            self.add(lasting(Health::Failing, "SESSIONS_NONE"), "sessions", what, next);
        }
        for session in down {
            let reason = session.last_end.as_deref().unwrap_or("being dialled");
            let what = format!("this node has no session with relay {} at {}: {reason}", session.name, session.address);
            let next = format!("It is tried again by itself; look at the relay: postroad relay show {}", session.name);
            self.add(lasting(Health::Degraded, "SESSION_DOWN"), format!("relay {}", session.name), what, next);
        }
        for session in &status.sessions {
            for (link, refusal) in &session.refused {
                let what = format!("relay {} does not register {link} for this node: {refusal}", session.name);
                let about = format!("relay {} {link}", session.name);
                self.add(lasting(Health::Degraded, "REGISTRATION_REFUSED"), about, what, "It is tried again by itself");
            }
        }
    }

    pub(super) fn links(&mut self) {
        let status = self.status;
        for link in &status.links {
            let (name, about) = (&link.name, format!("link {}", link.name));
            if let (Some(reason), Some(listen)) = (&link.failure, &link.listen) {
                let what = format!("link {name} does not listen on {listen}: {reason}");
                let next = "Free the address; it is tried again by itself";
                self.add(at_once(Health::Degraded, "LINK_LISTEN_FAILED"), about.clone(), what, next);
            }
            if link.target_address.is_some() && link.registered_at.is_empty() && !status.sessions.is_empty() {
                let what = format!("the endpoint of link {name} is registered at no relay, so nobody gets through");
                self.add(
                    lasting(Health::Failing, "LINK_UNREGISTERED"),
                    about,
                    what,
                    "See the sessions: postroad status",
                );
            }
        }
    }

    pub(super) fn circuits(&mut self) {
        for (peer, last_end) in local::peers_without_circuit(self.view) {
            let peer = self.view.name(peer);
            let reason = last_end.map_or_else(String::new, |reason| format!(": {reason}"));
            let what = format!("there is no circuit to {peer}, so its links wait{reason}");
            let next = format!("Look whether {peer} runs and reaches a relay that this node reaches: postroad status");
            self.add(lasting(Health::Degraded, "CIRCUIT_NONE"), format!("node {peer}"), what, next);
        }
        let status = self.status;
        self.too_small();
        // Several circuits of a pair go over the same ways: what is wrong with them is said once.
        let mut said = BTreeSet::new();
        for circuit in status.circuits.iter().filter(|circuit| circuit.connected) {
            let about = format!("circuit to {}", circuit.peer_name);
            let stranded = circuit.stranded || circuit.relay.is_none();
            let candidates = circuit.channels.iter().filter(|channel| channel.candidate).count();
            let peer = &circuit.peer_name;
            let few = stranded || (candidates < 2 && status.relays.ready > 1);
            if !few || !said.insert((circuit.peer, stranded)) {
                continue;
            }
            if stranded {
                let what = format!("no relay carries the circuit to {peer}: its flows wait");
                self.add(at_once(Health::Failing, "CIRCUIT_STRANDED"), about, what, "See why: postroad relay list");
            } else {
                let carrier = circuit.relay_name.as_deref().unwrap_or_default();
                let what = format!("the circuit to {peer} has no second way beside relay {carrier}");
                let next = "See which relays both nodes reach: postroad status, on both";
                self.add(lasting(Health::AtRisk, "CIRCUIT_ONE_WAY"), about, what, next);
            }
        }
    }

    /// Relays that do not carry the packets of a circuit, each said once.
    fn too_small(&mut self) {
        let status = self.status;
        let mut found: BTreeMap<&str, u32> = BTreeMap::new();
        for circuit in status.circuits.iter().filter(|circuit| circuit.connected) {
            for channel in circuit.channels.iter().filter(|channel| channel.candidate && channel.too_small) {
                let bytes = found.entry(&channel.name).or_insert(circuit.packet_bytes);
                *bytes = circuit.packet_bytes.min(*bytes);
            }
        }
        for (relay, bytes) in found {
            let what =
                format!("relay {relay} carries no packets of {bytes} bytes: for circuits of these it is a last resort");
            let next =
                "Look for a narrower way to it, such as another MTU; new circuits avoid such packets by themselves";
            self.add(lasting(Health::AtRisk, "PACKETS_TOO_LARGE"), format!("relay {relay}"), what, next);
        }
    }

    pub(super) fn watch(&mut self) {
        let (watch, now) = (&self.status.watch, self.view.now);
        let failure = watch.certificate_failure.as_deref();
        let reason = failure.map_or_else(String::new, |failure| format!(": {failure}"));
        if watch.certificate_expires <= now {
            let what = format!("this node's certificate has expired, so nobody takes it in{reason}");
            let next = "Enrol it again with a new token: postroad token create, on a control node";
            self.add(at_once(Health::Failing, "CERTIFICATE_EXPIRED"), "certificate", what, next);
        } else if failure.is_some() && watch.certificate_renews <= now {
            let what = format!("this node's certificate was not renewed{reason}");
            let next = "It is tried again by itself; a certified control node must be reached";
            self.add(lasting(Health::AtRisk, "CERTIFICATE_NOT_RENEWED"), "certificate", what, next);
        }
        match watch.lease_ends {
            None => {
                let what = "this node has no snapshot yet, so it knows neither relays nor links";
                let next = "It waits for a certified control node: postroad control list, there";
                self.add(lasting(Health::Failing, "SNAPSHOT_NONE"), "snapshot", what, next);
            }
            Some(ends) if ends <= now => {
                let what = "the lease of this node's policy has ended: its relay admits no new connections";
                let next = "Bring the control nodes back: postroad control list";
                self.add(at_once(Health::Failing, "LEASE_ENDED"), "policy", what, next);
            }
            Some(ends) => {
                let left = ends.since(now);
                let whole = watch.snapshot_issued.map_or(Span::ZERO, |issued| ends.since(issued));
                if left < LEASE_LEFT_MIN && left < whole / 2 {
                    let what = "the lease of this node's policy ends within the hour and is not renewed";
                    let next = "Bring the control nodes back: postroad control list";
                    self.add(at_once(Health::Degraded, "LEASE_ENDING"), "policy", what, next);
                }
            }
        }
    }

    // DB-41, DB-43
    pub(super) fn balancers(&mut self) {
        let status = self.status;
        let node = &status.node.name;
        for balancer in &status.balancers {
            let Some(trouble) = &balancer.trouble else { continue };
            let (name, about) = (&balancer.name, format!("balancer {} on {node}", balancer.name));
            let what = format!("balancer {name} on {node}: {trouble}");
            let (kind, next) = match balancer.standing {
                Standing::Running => (
                    lasting(Health::Degraded, "BALANCER_TROUBLE"),
                    format!("See each database node and why: postroad balance show {name}"),
                ),
                Standing::NotConfigured | Standing::NotListed => (
                    at_once(Health::Degraded, "BALANCER_NOT_CONFIGURED"),
                    format!(
                        "Write the file and restart the node: postroad balance example; or take it off: \
                         postroad balance set {name} --off {node}"
                    ),
                ),
            };
            self.add(kind, about, what, next);
        }
    }

    pub(super) fn actors(&mut self) {
        let status = self.status;
        for actor in &status.actors.down {
            let error = actor.error.as_deref().unwrap_or("no reason was given");
            let what = match actor.restart_in_ms {
                Some(ms) => format!("the actor {} has failed and restarts in {ms} ms: {error}", actor.path),
                None => format!("the actor {} has failed: {error}", actor.path),
            };
            let next = "This is a defect: keep the log, and restart the node if it does not mend";
            self.add(at_once(Health::Degraded, "ACTOR_DOWN"), format!("actor {}", actor.path), what, next);
        }
        for actor in &status.actors.noticed {
            // A burst is no problem; what stuck or restarts has waited long enough.
            let kind = match actor.lint.as_str() {
                "growing" => lasting(Health::AtRisk, "MAILBOX_GROWS"),
                "stuck" => at_once(Health::AtRisk, "ACTOR_STUCK"),
                _ => at_once(Health::AtRisk, "ACTOR_RESTARTS"),
            };
            let what = format!("the actor {} {}", actor.path, actor.what);
            let next = format!("See what it does: postroad actor {}", actor.path);
            self.add(kind, format!("actor {}", actor.path), what, next);
        }
    }
}
