//! Nodes: founded, enrolled, described, certified, verified, drained and removed.

use std::collections::BTreeSet;

use super::{Change, NodeRecord, State, address::host_and_port};
use crate::{
    command::{Enrolment, IssuerRecord, Refusal, code, implied_roles},
    domain::FailureDomain,
    drain::Drain,
    id::{Name, NodeId, Role, Version},
    limits::{CERTIFICATE_BYTES_MAX, CONTROLS_MAX, NODES_MAX, REASON_BYTES_MAX, REVOKED_NODES_MAX, SIGNATURE_BYTES},
    time::WallTime,
};

const NOT_REACHED_YET: &str = "no node has reached its address yet";

impl NodeRecord {
    pub(super) fn new(enrolment: Enrolment, roles: BTreeSet<Role>, joined: WallTime) -> Self {
        let relay = roles.contains(&Role::Relay);
        let Enrolment { name, public, advertised, domain } = enrolment;
        let ready_reason = if relay { NOT_REACHED_YET.to_owned() } else { String::new() };
        Self { name, public, roles, advertised, domain, joined, ready: false, ready_reason, drain: None }
    }
}

impl State {
    pub(super) fn found(
        &mut self,
        now: WallTime,
        cluster: Name,
        authority: Vec<u8>,
        first: Enrolment,
        issuer: IssuerRecord,
    ) -> Result<Change, Refusal> {
        let roles = implied_roles(&BTreeSet::from([Role::Control]));
        check_certificate("the authority's certificate", &authority)?;
        check_issuer(&issuer)?;
        self.check_newcomer(&first, &roles)?;
        let what = format!("cluster {cluster} founded by {}", first.name);
        let node = NodeId(1);
        self.cluster = Some(cluster);
        self.authorities = vec![authority];
        self.grants_issued = now;
        self.last_node = node;
        self.nodes.insert(node, NodeRecord::new(first, roles, now));
        self.issuers.insert(node, issuer);
        Ok(Change::made(what))
    }

    /// Whether this newcomer fits beside the nodes there are.
    pub(super) fn check_newcomer(&self, enrolment: &Enrolment, roles: &BTreeSet<Role>) -> Result<(), Refusal> {
        let controls = self.nodes.values().filter(|record| record.roles.contains(&Role::Control)).count();
        if self.nodes.len() >= NODES_MAX || (roles.contains(&Role::Control) && controls >= CONTROLS_MAX) {
            return Err(Refusal::new(
                code::TOO_MANY,
                format!("a cluster has at most {NODES_MAX} nodes, {CONTROLS_MAX} of them control nodes"),
                "Remove those that are gone for good: postroad node remove",
            ));
        }
        if let Some((node, _)) = self.node_named(&enrolment.name) {
            return Err(Refusal::new(
                code::NAME_TAKEN,
                format!("{node} has the name {} already", enrolment.name),
                "Choose another name: postroad join --name",
            ));
        }
        if let Some(record) = self.nodes.values().find(|record| record.public == enrolment.public) {
            return Err(Refusal::new(
                code::KEY_TAKEN,
                format!("{} has joined with this key already", record.name),
                "Two hosts must not share a data directory: join from an empty one, or leave first: postroad leave",
            ));
        }
        self.check_place(None, roles, enrolment.advertised.as_deref(), &enrolment.domain)
    }

    /// Whether a node may stand there: its address well-formed, given where its roles need it and its own; and no
    /// second relay on its host (RP-8).
    fn check_place(
        &self,
        node: Option<NodeId>,
        roles: &BTreeSet<Role>,
        advertised: Option<&str>,
        domain: &FailureDomain,
    ) -> Result<(), Refusal> {
        let Some(advertised) = advertised else {
            if roles.contains(&Role::Relay) {
                return Err(Refusal::new(
                    code::ADDRESS_MISSING,
                    "a control node or relay needs the address that others reach, and none was given",
                    "Say it: postroad join --advertise relay.example.org:9443",
                ));
            }
            return Ok(());
        };
        let (host, port) = host_and_port("the advertised address", advertised)?;
        for (other, record) in self.nodes.iter().filter(|(other, _)| Some(**other) != node) {
            let Some(place) = record.advertised.as_deref().and_then(|text| host_and_port("", text).ok()) else {
                continue;
            };
            if place == (host.clone(), port) {
                return Err(Refusal::new(
                    code::ADDRESS_TAKEN,
                    format!("{} ({other}) advertises {advertised} already", record.name),
                    "Give every node an address of its own, or remove the other: postroad node remove",
                ));
            }
            let both = roles.contains(&Role::Relay) && record.roles.contains(&Role::Relay);
            if both && same_host((&host, domain), (&place.0, &record.domain)) {
                return Err(Refusal::new(
                    code::RELAY_EXISTS,
                    format!("this host has the relay {} already, and a host has one relay", record.name),
                    format!(
                        "Re-enrol that one (postroad relay re-enroll {0}) or remove it (postroad relay remove {0}); if \
                         these are two hosts behind one address, name both in their configuration: [domain] host",
                        record.name
                    ),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn describe(
        &mut self,
        node: NodeId,
        advertised: Option<String>,
        domain: FailureDomain,
    ) -> Result<Change, Refusal> {
        let known = self.node(node)?;
        if known.advertised == advertised && known.domain == domain {
            return Ok(Change::None(None));
        }
        self.check_place(Some(node), &known.roles, advertised.as_deref(), &domain)?;
        let record = self.node_mut(node)?;
        let address = advertised.as_deref().unwrap_or("no address");
        let what = format!("{} described: {address}, {}", record.name, domain_words(&domain));
        // What was reached is the old address: the new one is pending until somebody has reached it (RP-7).
        if record.advertised != advertised && record.roles.contains(&Role::Relay) {
            record.ready = false;
            NOT_REACHED_YET.clone_into(&mut record.ready_reason);
        }
        record.advertised = advertised;
        record.domain = domain;
        Ok(Change::made(what))
    }

    pub(super) fn node_remove(&mut self, node: NodeId) -> Result<Change, Refusal> {
        let name = self.node(node)?.name.clone();
        let links =
            self.links.values().filter(|link| link.spec.target == node || link.spec.consumers.contains_key(&node));
        let names: Vec<&str> = links.map(|link| link.name.as_str()).collect();
        if !names.is_empty() {
            let more = if names.len() > 5 { format!(" and {} more", names.len() - 5) } else { String::new() };
            let shown = names.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            return Err(Refusal::new(
                code::NODE_HAS_LINKS,
                format!("{name} consumes or serves the links {shown}{more}"),
                format!("Remove them first: postroad link remove {}", names[0]),
            ));
        }
        self.check_runs_none(node, &name)?;
        self.check_not_last(node)?;
        self.nodes.remove(&node);
        self.issuers.remove(&node);
        self.revoked_nodes.insert(node);
        if self.revoked_nodes.len() > REVOKED_NODES_MAX
            && let Some(oldest) = self.revoked_nodes.iter().copied().find(|oldest| *oldest != node)
        {
            self.revoked_nodes.remove(&oldest);
        }
        Ok(Change::made(format!("{name} ({node}) removed and its certificates revoked")))
    }

    /// Refuses to take the last right to sign: nobody could change, renew or give anything afterwards.
    fn check_not_last(&self, node: NodeId) -> Result<(), Refusal> {
        if self.issuers.contains_key(&node) && self.issuers.len() == 1 {
            return Err(Refusal::new(
                code::LAST_CONTROL,
                format!("{} is the only control node that can certify and sign", self.node(node)?.name),
                "Promote another first: postroad control promote NAME --authority FILE",
            ));
        }
        Ok(())
    }

    pub(super) fn certify(&mut self, node: NodeId, issuer: IssuerRecord) -> Result<Change, Refusal> {
        let name = self.node_with(node, Role::Control)?.name.clone();
        check_issuer(&issuer)?;
        if self.issuers.get(&node) == Some(&issuer) {
            return Ok(Change::None(None));
        }
        if self.issuers.iter().any(|(other, record)| *other != node && record.snapshot_key == issuer.snapshot_key) {
            return Err(Refusal::new(
                code::KEY_TAKEN,
                format!("the snapshot key for {name} is another control node's"),
                "Every control node makes its own keys: join from an empty data directory",
            ));
        }
        self.issuers.insert(node, issuer);
        Ok(Change::made(format!("{name} may certify and sign")))
    }

    pub(super) fn decertify(&mut self, node: NodeId) -> Result<Change, Refusal> {
        let name = self.node(node)?.name.clone();
        self.check_not_last(node)?;
        Ok(match self.issuers.remove(&node) {
            Some(_) => Change::made(format!("{name} may no longer certify and sign")),
            None => Change::None(None),
        })
    }

    pub(super) fn relay_verified(&mut self, relay: NodeId, ready: bool, reason: String) -> Result<Change, Refusal> {
        self.node_with(relay, Role::Relay)?;
        if reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            return Err(Refusal::new(
                code::TEXT_INVALID,
                format!("the reason has {} bytes; it must be one line of at most {REASON_BYTES_MAX}", reason.len()),
                "Shorten it",
            ));
        }
        let record = self.node_mut(relay)?;
        if record.ready == ready && record.ready_reason == reason {
            return Ok(Change::None(None));
        }
        let what = format!("relay {} is {}: {reason}", record.name, if ready { "ready" } else { "not ready" });
        record.ready = ready;
        record.ready_reason = reason;
        Ok(Change::made(what))
    }

    pub(super) fn relay_drain(&mut self, relay: NodeId, drain: Option<Drain>) -> Result<Change, Refusal> {
        self.node_with(relay, Role::Relay)?;
        let record = self.node_mut(relay)?;
        if record.drain.is_some() == drain.is_some() {
            return Ok(Change::None(None));
        }
        record.drain = drain;
        let what = if drain.is_some() { "is taken out of service" } else { "is back in service" };
        Ok(Change::made(format!("relay {} {what}", record.name)))
    }

    pub(super) fn relay_disconnect(&mut self, now: WallTime, relay: NodeId) -> Result<Change, Refusal> {
        self.node_with(relay, Role::Relay)?;
        let record = self.node_mut(relay)?;
        let name = record.name.clone();
        let Some(drain) = &mut record.drain else {
            return Err(Refusal::new(
                code::RELAY_NOT_DRAINING,
                format!("relay {name} is not being drained, so nothing there waits to be disconnected"),
                format!("Drain it first: postroad relay drain {name}"),
            ));
        };
        if drain.ends <= now {
            return Ok(Change::None(None));
        }
        drain.ends = now;
        Ok(Change::made(format!("relay {name} disconnects what its drain has left")))
    }

    /// Says once for each drain what its end cuts, as circuits and flows if somebody has seen that (RP-40): leaders change,
    /// and each may say it.
    pub(super) fn drain_ended(
        &mut self,
        now: WallTime,
        relay: NodeId,
        began: Version,
        cut: Option<(u64, u64)>,
    ) -> Result<Change, Refusal> {
        self.node_with(relay, Role::Relay)?;
        let record = self.node_mut(relay)?;
        let ended = |drain: &&mut Drain| drain.version == began && drain.ends <= now && !drain.settled;
        let Some(drain) = record.drain.as_mut().filter(ended) else { return Ok(Change::None(None)) };
        drain.settled = true;
        let line = format!("relay {} was drained and its time has run out", record.name);
        let count = |count: u64, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let what = match cut {
            Some((_, 0)) => None,
            Some((circuits, flows)) => {
                let (flows, circuits) = (count(flows, "flow"), count(circuits, "circuit"));
                Some(format!("{line}: it cuts {flows} on {circuits} that could not move"))
            }
            None => Some(format!("{line} while the leader changed: what that cut was not seen")),
        };
        Ok(Change::Made { what, outcome: None })
    }
}

/// Whether two nodes stand on one host. The operator's word decides where it is given for both, since several hosts can
/// stand behind one address; else the address does.
fn same_host(one: (&str, &FailureDomain), other: (&str, &FailureDomain)) -> bool {
    match (&one.1.host, &other.1.host) {
        (Some(one), Some(other)) => one == other,
        _ => one.0 == other.0,
    }
}

fn check_issuer(issuer: &IssuerRecord) -> Result<(), Refusal> {
    check_certificate("the issuing certificate", &issuer.certificate)?;
    if issuer.snapshot_key_signature.len() == SIGNATURE_BYTES {
        return Ok(());
    }
    Err(Refusal::new(
        code::CERTIFICATE_INVALID,
        format!("the signature over the snapshot key has {} bytes", issuer.snapshot_key_signature.len()),
        "Have the authority sign again: postroad control promote NAME --authority FILE",
    ))
}

fn check_certificate(what: &str, der: &[u8]) -> Result<(), Refusal> {
    if (1..=CERTIFICATE_BYTES_MAX).contains(&der.len()) {
        return Ok(());
    }
    Err(Refusal::new(
        code::CERTIFICATE_INVALID,
        format!("{what} has {} bytes; it must have 1 to {CERTIFICATE_BYTES_MAX}", der.len()),
        "Make it again: postroad init, or postroad control promote NAME --authority FILE",
    ))
}

pub(super) fn role_words(roles: &BTreeSet<Role>) -> String {
    match roles.len() {
        0 => "no role".to_owned(),
        1 => format!("the role {}", roles.iter().next().map_or("", |role| role.word())),
        _ => format!("the roles {}", roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(", ")),
    }
}

fn domain_words(domain: &FailureDomain) -> String {
    let part = |word: &str, name: &Option<Name>| match name {
        Some(name) => format!("{word} {name}"),
        None => format!("{word} not given"),
    };
    [part("host", &domain.host), part("power", &domain.power), part("network", &domain.network)].join(", ")
}
