//! What the fleet agreed on: the state machine of the Raft group, changed by `apply` alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    command::{
        Action, BalancerSpec, Command, IssuerRecord, LinkSpec, Outcome, PublicKeyBytes, Refusal, VerifierBytes, code,
        implied_roles,
    },
    domain::FailureDomain,
    drain::Drain,
    grant,
    id::{Generation, LinkId, Name, NodeId, Role, TokenId, Version},
    limits::{AUDIT_LINES_MAX, AUDIT_LINES_OF_A_NODE_MAX, REASON_BYTES_MAX},
    revocation::Revocations,
    setting::{self, Setting},
    time::{Span, WallTime},
};

pub mod address;
mod balancer;
mod link;
mod node;
mod token;
pub mod view;

/// The agreed state. Every map is ordered, so that equal states have equal bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The cluster, once founded.
    pub cluster: Option<Name>,
    /// The trusted authorities' certificates, DER.
    pub authorities: Vec<Vec<u8>>,
    /// The index of the last entry that changed the state or renewed the leases.
    pub version: Version,
    /// The time of that entry; never goes back.
    pub time: WallTime,
    /// The time from which the present grants count; moved by lease renewals only.
    pub grants_issued: WallTime,
    /// Nodes by number.
    pub nodes: BTreeMap<NodeId, NodeRecord>,
    /// The highest node number ever given.
    pub last_node: NodeId,
    /// Nodes that were removed; their certificates are revoked.
    pub revoked_nodes: BTreeSet<NodeId>,
    /// Tokens that were not used up or have not been forgotten yet.
    pub tokens: BTreeMap<TokenId, TokenRecord>,
    /// The rights of control nodes.
    pub issuers: BTreeMap<NodeId, IssuerRecord>,
    /// Links by number.
    pub links: BTreeMap<LinkId, LinkRecord>,
    /// The highest link number ever given.
    pub last_link: LinkId,
    /// Database balancers by name.
    pub balancers: BTreeMap<Name, BalancerRecord>,
    /// Routes that were revoked.
    pub revocations: Revocations,
    /// Settings that differ from their default, by name.
    pub settings: BTreeMap<String, Setting>,
    /// The last audited commands, oldest first, bounded.
    pub audit: Vec<AuditLine>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its unique name.
    pub name: Name,
    /// Its key.
    pub public: PublicKeyBytes,
    /// Its roles.
    pub roles: BTreeSet<Role>,
    /// `host:port` that participants reach.
    pub advertised: Option<String>,
    /// Where it stands.
    pub domain: FailureDomain,
    /// When it joined.
    pub joined: WallTime,
    /// Of a relay: whether it counts as capacity, with the reason.
    pub ready: bool,
    /// The reason for `ready`, for people.
    pub ready_reason: String,
    /// Of a relay: its drain, while it is out of service.
    pub drain: Option<Drain>,
}

/// A one-time token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// What checks its proof.
    pub verifier: VerifierBytes,
    /// The roles that it gives.
    pub roles: BTreeSet<Role>,
    /// When it ends.
    pub expires: WallTime,
    /// Who used it, and when.
    pub used: Option<TokenUse>,
    /// When it was revoked.
    pub revoked: Option<WallTime>,
}

/// The use of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    /// The node that joined by it.
    pub node: NodeId,
    /// Its key: the same token with the same key gets the same answer again.
    pub public: PublicKeyBytes,
    /// When.
    pub at: WallTime,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Its unique name.
    pub name: Name,
    /// What it joins.
    pub spec: LinkSpec,
    /// The generation of its route.
    pub generation: Generation,
    /// When it was made.
    pub made: WallTime,
}

/// A database balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerRecord {
    /// What it leads to, and who runs it.
    pub spec: BalancerSpec,
    /// When it was made.
    pub made: WallTime,
    /// The entry that made or changed it last.
    pub changed: Version,
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// The entry.
    pub version: Version,
    /// When.
    pub at: WallTime,
    /// Who.
    pub by: NodeId,
    /// What, as a sentence.
    pub what: String,
}

/// What an action that was not refused comes to.
enum Change {
    /// The state is already as it should be: no new version, and no line in the audit.
    None(Option<Outcome>),
    /// The state was changed.
    Made {
        /// The line of the audit, if it deserves one.
        what: Option<String>,
        /// The outcome, if it is more than done.
        outcome: Option<Outcome>,
    },
}

impl Change {
    fn made(what: impl Into<String>) -> Self {
        Self::Made { what: Some(what.into()), outcome: None }
    }
}

impl State {
    /// Applies the committed command at `index`. A refused one changes nothing but what the outcome says, and one that
    /// asks for what already is changes nothing either. Equal states and commands give equal states and outcomes.
    pub fn apply(&mut self, index: u64, command: Command) -> Outcome {
        match self.try_apply(index, command) {
            Ok(outcome) => outcome,
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    fn try_apply(&mut self, index: u64, command: Command) -> Result<Outcome, Refusal> {
        let Command { at, by, expected, action } = command;
        self.check_entry(index, expected)?;
        self.may_propose(by, &action)?;
        let now = self.time.max(at);
        let outcome = match self.change(now, by, Version(index), action)? {
            Change::None(outcome) => outcome,
            Change::Made { what, outcome } => {
                self.version = Version(index);
                self.time = now;
                if let Some(what) = what {
                    let surplus = (self.audit.len() + 1).saturating_sub(AUDIT_LINES_MAX);
                    self.audit.drain(..surplus);
                    self.audit.push(AuditLine { version: self.version, at: now, by, what });
                }
                outcome
            }
        };
        Ok(outcome.unwrap_or(Outcome::Done { version: self.version }))
    }

    fn check_entry(&self, index: u64, expected: Option<Version>) -> Result<(), Refusal> {
        if index <= self.version.0 {
            return Err(Refusal::new(
                code::ENTRY_OLD,
                format!("the entry is v{index}, the state {}", self.version),
                "Propose the command again",
            ));
        }
        match expected {
            Some(expected) if expected != self.version => Err(Refusal::new(
                code::VERSION_CHANGED,
                format!("the command was meant for {expected}, the state is {} by now", self.version),
                "Look at the present state, then run the command again: postroad status",
            )),
            _ => Ok(()),
        }
    }

    /// Whether this node may ask for this: control nodes and operators for anything, others for what concerns
    /// themselves. `apply` asks again, since a node may have been removed meanwhile.
    ///
    /// # Errors
    /// `NOT_FOUNDED`, `ALREADY_FOUNDED`, or `NOT_ALLOWED` with what is missing.
    pub fn may_propose(&self, by: NodeId, action: &Action) -> Result<(), Refusal> {
        match (&self.cluster, action) {
            (None, Action::Found { .. }) => return Ok(()),
            (None, _) => {
                return Err(Refusal::new(
                    code::NOT_FOUNDED,
                    "the cluster was not founded yet",
                    "Found it on its first control node: postroad init",
                ));
            }
            (Some(cluster), Action::Found { .. }) => {
                return Err(Refusal::new(
                    code::ALREADY_FOUNDED,
                    format!("the cluster {cluster} was founded already"),
                    "Join it instead: postroad join",
                ));
            }
            (Some(_), _) => {}
        }
        let Some(record) = self.nodes.get(&by) else {
            return Err(Refusal::new(
                code::NOT_ALLOWED,
                format!("{by}, which asked for this, is no node of the cluster"),
                "Ask from a control node, or join first: postroad join",
            ));
        };
        let own = match action {
            Action::Describe { node, .. } | Action::NodeRemove { node } => *node == by,
            // It changes nothing but the audit, in which it names its author.
            Action::Note { .. } => true,
            _ => false,
        };
        if own || record.roles.contains(&Role::Control) || record.roles.contains(&Role::Operator) {
            return Ok(());
        }
        Err(Refusal::new(
            code::NOT_ALLOWED,
            format!("{} has neither the role control nor operator and may only change itself", record.name),
            "Run the command on a control node, or with an operator's certificate: postroad token create --role operator",
        ))
    }

    fn change(&mut self, now: WallTime, by: NodeId, version: Version, action: Action) -> Result<Change, Refusal> {
        match action {
            Action::Found { cluster, authority, first, issuer } => self.found(now, cluster, authority, first, issuer),
            Action::TokenCreate { token, verifier, roles, expires } => {
                let record = TokenRecord { verifier, roles: implied_roles(&roles), expires, used: None, revoked: None };
                self.token_create(now, token, record)
            }
            Action::TokenRevoke { token } => self.token_revoke(now, token),
            Action::Enrol { token, enrolment } => self.enrol(now, token, enrolment),
            Action::Describe { node, advertised, domain } => self.describe(node, advertised, domain),
            Action::NodeRemove { node } => self.node_remove(node),
            Action::Certify { node, issuer } => self.certify(node, issuer),
            Action::Decertify { node } => self.decertify(node),
            Action::RelayVerified { relay, ready, reason } => self.relay_verified(relay, ready, reason),
            Action::RelayDrain { relay, draining } => {
                self.relay_drain(relay, draining.then(|| Drain::new(version, now)))
            }
            Action::RelayDisconnect { relay } => self.relay_disconnect(now, relay),
            Action::LinkAdd { name, link } => self.link_add(now, name, link),
            Action::LinkRetarget { link, target_address } => self.link_retarget(now, version, link, target_address),
            Action::LinkSpread { link, spread } => self.link_spread(link, spread),
            Action::LinkRemove { link } => self.link_remove(now, version, link),
            Action::SettingSet { setting } => self.setting_set(now, setting),
            Action::LeaseRenew => Ok(self.lease_renew(now)),
            Action::BalancerAdd { name, spec } => self.balancer_add(now, version, name, spec),
            Action::BalancerSet { name, spec, changed } => self.balancer_set(version, &name, spec, changed),
            Action::BalancerRemove { name } => self.balancer_remove(&name),
            Action::Note { who, what, reason } => self.note(by, &who, &what, &reason),
            Action::DrainCut { relay, began, circuits, flows } => {
                self.drain_ended(now, relay, began, Some((circuits, flows)))
            }
            Action::DrainUnseen { relay, began } => self.drain_ended(now, relay, began, None),
        }
    }

    fn setting_set(&mut self, now: WallTime, setting: Setting) -> Result<Change, Refusal> {
        let (known, value) = setting.describe();
        if !setting.is_valid() {
            return Err(Refusal::new(
                code::SETTING_OUT_OF_BOUNDS,
                format!("{} is {value}, but must be from {} to {}: {}", known.name, known.least, known.most, known.why),
                "See the bounds of all settings: postroad setting list",
            ));
        }
        if setting::value(&self.settings, known) == value {
            return Ok(Change::None(None));
        }
        if value == known.default {
            self.settings.remove(known.name);
        } else {
            self.settings.insert(known.name.to_owned(), setting);
        }
        // A shorter lifetime must not end grants that were given for a longer one: they count anew from here.
        if matches!(setting, Setting::PolicyLeaseHours(_) | Setting::GrantHours(_)) {
            self.grants_issued = now;
        }
        Ok(Change::made(format!("setting {} set to {value}", known.name)))
    }

    /// Nodes that are no control nodes have few lines at a time, so that one that was taken over cannot push out what
    /// others did.
    fn note(&mut self, by: NodeId, who: &Name, what: &str, reason: &str) -> Result<Change, Refusal> {
        for (text, name) in [(what, "what is done"), (reason, "the reason")] {
            if text.is_empty() || text.len() > REASON_BYTES_MAX || text.chars().any(char::is_control) {
                let found = format!("{name} has {} bytes; it must be a line of 1 to {REASON_BYTES_MAX}", text.len());
                return Err(Refusal::new(code::TEXT_INVALID, found, "Say it in fewer words"));
            }
        }
        let record = self.node(by)?;
        let console = format!("by the console of {}", record.name);
        if !record.roles.contains(&Role::Control) {
            let own = self.audit.iter().filter(|line| line.by == by).count();
            let mut surplus = (own + 1).saturating_sub(AUDIT_LINES_OF_A_NODE_MAX);
            self.audit.retain(|line| {
                let goes = line.by == by && surplus > 0;
                surplus -= usize::from(goes);
                !goes
            });
        }
        Ok(Change::made(format!("{who} {console}: {what}, since {reason}")))
    }

    fn lease_renew(&mut self, now: WallTime) -> Change {
        if now.since(self.grants_issued) >= grant::renewal_age(self.grant_configured(), self.policy_lease()) {
            self.grants_issued = now;
        }
        self.revocations.forget(now);
        Change::Made { what: None, outcome: None }
    }

    /// How long a policy may be acted on after its issue (RP-25).
    #[must_use]
    pub fn policy_lease(&self) -> Span {
        Span::from_secs(3_600 * setting::value(&self.settings, &setting::POLICY_LEASE_HOURS))
    }

    /// The configured lifetime of grants (RP-26); [`grant::lifetime`] says how long they really live.
    #[must_use]
    pub fn grant_configured(&self) -> Span {
        Span::from_secs(3_600 * setting::value(&self.settings, &setting::GRANT_HOURS))
    }

    /// How long a flow waits for a path, in seconds (RP-1).
    #[must_use]
    pub fn flow_wait_seconds(&self) -> u64 {
        setting::value(&self.settings, &setting::FLOW_WAIT_SECONDS)
    }

    /// The node of this name.
    #[must_use]
    pub fn node_named(&self, name: &Name) -> Option<(NodeId, &NodeRecord)> {
        self.nodes.iter().find(|(_, record)| record.name == *name).map(|(node, record)| (*node, record))
    }

    /// The link of this name.
    #[must_use]
    pub fn link_named(&self, name: &Name) -> Option<(LinkId, &LinkRecord)> {
        self.links.iter().find(|(_, record)| record.name == *name).map(|(link, record)| (*link, record))
    }

    fn node(&self, node: NodeId) -> Result<&NodeRecord, Refusal> {
        self.nodes.get(&node).ok_or_else(|| {
            let found = if self.revoked_nodes.contains(&node) { "was removed" } else { "is no node of the cluster" };
            Refusal::new(code::NODE_UNKNOWN, format!("{node} {found}"), "See who there is: postroad node list")
        })
    }

    fn node_mut(&mut self, node: NodeId) -> Result<&mut NodeRecord, Refusal> {
        self.node(node)?;
        Ok(self.nodes.get_mut(&node).expect("the node was found above"))
    }

    fn node_with(&self, node: NodeId, role: Role) -> Result<&NodeRecord, Refusal> {
        let record = self.node(node)?;
        if record.roles.contains(&role) {
            return Ok(record);
        }
        Err(Refusal::new(
            code::ROLE_MISSING,
            format!("{} has not the role {role}, which this needs", record.name),
            "See the roles of every node: postroad node list",
        ))
    }
}

#[cfg(test)]
mod tests;
