//! What may enter the log: commands, the actions in them, what comes of applying one, and why one is refused.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    domain::FailureDomain,
    id::{Generation, LinkId, Name, NodeId, Role, TokenId, Version, hidden},
    setting::Setting,
    time::WallTime,
};

pub mod code;

/// An Ed25519 public key.
pub type PublicKeyBytes = [u8; 32];

/// What checks a join token's proof. It is as good as the secret itself, so nothing that people read shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerifierBytes(pub [u8; 32]);

hidden!(VerifierBytes as [u8; 32]);

/// An entry of the log: time and author enter `apply` only here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The proposer's wall clock; `apply` never lets the state's time go back.
    pub at: WallTime,
    /// The node that proposed it, for the audit.
    pub by: NodeId,
    /// Applied only if the state is still at this version; the proposer may have been outdated.
    pub expected: Option<Version>,
    /// What is to change.
    pub action: Action,
}

/// What a command changes. It only grows: the position of each variant is its number in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The first entry: the cluster, its authority and its first node, number 1.
    Found {
        /// The cluster's name.
        cluster: Name,
        /// The authority's certificate, DER.
        authority: Vec<u8>,
        /// The first node.
        first: Enrolment,
        /// Its right to issue and sign.
        issuer: IssuerRecord,
    },
    /// Allows one join.
    TokenCreate {
        /// The token's public number.
        token: TokenId,
        /// What checks its proof.
        verifier: VerifierBytes,
        /// The roles that the joiner gets.
        roles: BTreeSet<Role>,
        /// When it ends unused.
        expires: WallTime,
    },
    /// Forbids a token that was not used.
    TokenRevoke {
        /// The token.
        token: TokenId,
    },
    /// Uses a token. The same token with the same key gets the same node again.
    Enrol {
        /// The token.
        token: TokenId,
        /// Who joins.
        enrolment: Enrolment,
    },
    /// A node changed what it says of itself: its advertised address or its failure domain.
    Describe {
        /// The node.
        node: NodeId,
        /// The address that participants reach.
        advertised: Option<String>,
        /// Where it stands.
        domain: FailureDomain,
    },
    /// Takes a node out for good and revokes its certificates.
    NodeRemove {
        /// The node.
        node: NodeId,
    },
    /// Gives a control node the right to issue certificates and to sign snapshots.
    Certify {
        /// The node.
        node: NodeId,
        /// Its keys and the authority's word for them.
        issuer: IssuerRecord,
    },
    /// Takes that right away.
    Decertify {
        /// The node.
        node: NodeId,
    },
    /// The advertised address of a relay was reached, or was not (RP-7).
    RelayVerified {
        /// The relay's node.
        relay: NodeId,
        /// Whether it counts as capacity.
        ready: bool,
        /// What was found, for people.
        reason: String,
    },
    /// Makes a link.
    LinkAdd {
        /// Its name.
        name: Name,
        /// What it joins.
        link: LinkSpec,
    },
    /// Changes where a link leads; a new generation of its route.
    LinkRetarget {
        /// The link.
        link: LinkId,
        /// The new target address.
        target_address: String,
    },
    /// Deletes a link and revokes its route.
    LinkRemove {
        /// The link.
        link: LinkId,
    },
    /// Sets one setting of the whole cluster.
    SettingSet {
        /// The setting with its value, already within bounds.
        setting: Setting,
    },
    /// Prolongs every policy's lease; once a minute by the leader.
    LeaseRenew,
    /// Takes a relay out of service or returns it.
    RelayDrain {
        /// The relay's node.
        relay: NodeId,
        /// Whether it is to drain.
        draining: bool,
    },
    /// Ends the wait of a drain: the relay disconnects what is left.
    RelayDisconnect {
        /// The relay's node.
        relay: NodeId,
    },
    /// Makes a database balancer.
    BalancerAdd {
        /// Its name.
        name: Name,
        /// What it leads to, and who runs it.
        spec: BalancerSpec,
    },
    /// Changes what a database balancer leads to, or who runs it.
    BalancerSet {
        /// Its name.
        name: Name,
        /// What it becomes, as a whole.
        spec: BalancerSpec,
        /// The version of it that the proposer changed; by another one, what came between would be lost.
        changed: Version,
    },
    /// Takes a database balancer out of the cluster; whoever runs it ends it.
    BalancerRemove {
        /// Its name.
        name: Name,
    },
    /// A line of the audit: what somebody is about to do by hand at the proposing node's console.
    Note {
        /// Who, as their token is called.
        who: Name,
        /// What, in words.
        what: String,
        /// Why.
        reason: String,
    },
    /// A line of the audit: the time of a drain has run out and the relay cuts what is left; by the leader.
    DrainCut {
        /// The relay's node.
        relay: NodeId,
        /// The entry that began the drain.
        began: Version,
        /// Circuits that it still carried.
        circuits: u64,
        /// Flows on them.
        flows: u64,
    },
    /// Sets over how many relays a link's new connections are spread (RP-10).
    LinkSpread {
        /// The link.
        link: LinkId,
        /// How many.
        spread: u8,
    },
    /// A line of the audit: the time of a drain ran out while no leader had heard what its relay carried.
    DrainUnseen {
        /// The relay's node.
        relay: NodeId,
        /// The entry that began the drain.
        began: Version,
    },
}

impl Action {
    /// The action's kind in one word, for counters and logs.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Found { .. } => "found",
            Self::TokenCreate { .. } => "token_create",
            Self::TokenRevoke { .. } => "token_revoke",
            Self::Enrol { .. } => "enrol",
            Self::Describe { .. } => "describe",
            Self::NodeRemove { .. } => "node_remove",
            Self::Certify { .. } => "certify",
            Self::Decertify { .. } => "decertify",
            Self::RelayVerified { .. } => "relay_verified",
            Self::LinkAdd { .. } => "link_add",
            Self::LinkRetarget { .. } => "link_retarget",
            Self::LinkRemove { .. } => "link_remove",
            Self::SettingSet { .. } => "setting_set",
            Self::LeaseRenew => "lease_renew",
            Self::RelayDrain { .. } => "relay_drain",
            Self::RelayDisconnect { .. } => "relay_disconnect",
            Self::BalancerAdd { .. } => "balancer_add",
            Self::BalancerSet { .. } => "balancer_set",
            Self::BalancerRemove { .. } => "balancer_remove",
            Self::Note { .. } => "note",
            Self::DrainCut { .. } => "drain_cut",
            Self::LinkSpread { .. } => "link_spread",
            Self::DrainUnseen { .. } => "drain_unseen",
        }
    }
}

/// The roles that somebody gets who is given these: every control node runs a local relay (RP-59), and a relay's host
/// is a node, since it dials the control nodes as one.
#[must_use]
pub fn implied_roles(given: &BTreeSet<Role>) -> BTreeSet<Role> {
    let mut roles = given.clone();
    if roles.contains(&Role::Control) {
        roles.insert(Role::Relay);
    }
    if roles.contains(&Role::Relay) {
        roles.insert(Role::Node);
    }
    roles
}

/// What a joining node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    /// The name that people use; unique.
    pub name: Name,
    /// The public key of its certificate.
    pub public: PublicKeyBytes,
    /// `host:port` that participants reach; needed for the roles control and relay.
    pub advertised: Option<String>,
    /// Where it stands.
    pub domain: FailureDomain,
}

/// The right of a control node to issue certificates and sign snapshots, as the authority certified it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuerRecord {
    /// The issuing certificate, DER, path length 0.
    pub certificate: Vec<u8>,
    /// The key that signs snapshots and grants.
    pub snapshot_key: PublicKeyBytes,
    /// The authority's signature over cluster, node and snapshot key.
    pub snapshot_key_signature: Vec<u8>,
}

/// What a link joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// The nodes that listen, each with its local address.
    pub consumers: BTreeMap<NodeId, String>,
    /// The node that connects to the target.
    pub target: NodeId,
    /// `host:port` of the target, as the target node resolves it.
    pub target_address: String,
    /// How many ready relays receive its new connections, 1 to [`crate::limits::SPREAD_MAX`] (RP-10).
    pub spread: u8,
}

/// What a database balancer of the cluster leads to, and who runs it. Ports, the monitoring account and all that a restart
/// takes are in a file of each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerSpec {
    /// The nodes of the database cluster: `host:port` by the id that each announces (DB-43).
    pub databases: BTreeMap<String, String>,
    /// The nodes of this cluster that run the balancer, each for itself.
    pub on: BTreeSet<NodeId>,
}

/// What came of an applied command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done, nothing to add. The state's version after it.
    Done {
        /// The version.
        version: Version,
    },
    /// A node has joined.
    Enrolled {
        /// Its number.
        node: NodeId,
        /// The roles of its certificate.
        roles: BTreeSet<Role>,
    },
    /// A link was made.
    LinkAdded {
        /// Its number.
        link: LinkId,
        /// The generation of its route.
        generation: Generation,
    },
    /// The command changed nothing, and why.
    Refused(Refusal),
}

impl Outcome {
    /// Why nothing was changed, if so.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

/// Why a command was refused: a stable code, a sentence of what was found and one of what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The stable code, in capitals.
    pub code: String,
    /// What was tried and found.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Refusal {
    /// A refusal with its code, what was found and what to do.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, ". {}", self.hint) }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    // RP-59: every control node runs a local relay, and every relay's host is a node.
    #[test]
    fn roles_bring_those_that_they_need() {
        let implied = |roles: &[Role]| implied_roles(&roles.iter().copied().collect()).into_iter().collect::<Vec<_>>();
        assert_eq!(implied(&[Role::Control]), [Role::Control, Role::Relay, Role::Node]);
        assert_eq!(implied(&[Role::Relay]), [Role::Relay, Role::Node]);
        assert_eq!(implied(&[Role::Node]), [Role::Node]);
        assert_eq!(implied(&[Role::Operator]), [Role::Operator]);
    }

    #[test]
    fn a_verifier_is_never_shown() {
        let action = Action::TokenCreate {
            token: TokenId(1),
            verifier: VerifierBytes([77; 32]),
            roles: BTreeSet::from([Role::Node]),
            expires: WallTime(1),
        };
        // Neither in logs nor in the JSON of journals and states.
        assert!(!format!("{action:?}").contains("77"));
    }
}
