//! Snapshots: everything that one node needs, signed, versioned and leased; and when one is accepted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    command::{IssuerRecord, PublicKeyBytes},
    domain::FailureDomain,
    drain::Drain,
    grant::SignedGrant,
    id::{Generation, LinkId, Name, NodeId, Role, Version},
    revocation::SignedRevocations,
    time::{Span, WallTime},
};

/// What is signed. A lease is renewed by a new header over the same content, which need not be sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// The cluster.
    pub cluster: Name,
    /// The node that it is for.
    pub recipient: NodeId,
    /// The index of the committed entry that made or renewed it.
    pub version: Version,
    /// The time in that entry.
    pub issued: WallTime,
    /// How long it may be acted on after `issued`.
    pub lease: Span,
    /// SHA-256 of the encoded content.
    pub content_hash: [u8; 32],
}

/// A header with its signature, and the content where the recipient did not have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedSnapshot {
    /// The encoded [`SnapshotHeader`].
    pub header: Vec<u8>,
    /// The control node that signed.
    pub signer: NodeId,
    /// Its snapshot key.
    pub key: PublicKeyBytes,
    /// The authority's signature over that key, so that a recipient trusts a control node that it did not know.
    pub key_signature: Vec<u8>,
    /// The Ed25519 signature over the header.
    pub signature: Vec<u8>,
    /// The encoded [`SnapshotContent`], absent when the recipient said that it has the same.
    pub content: Option<Vec<u8>>,
}

/// Everything that one node needs, complete: what is not in it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotContent {
    /// Certificates of the trusted authorities, DER.
    pub authorities: Vec<Vec<u8>>,
    /// Nodes whose certificates are no longer good.
    pub revoked_nodes: BTreeSet<NodeId>,
    /// The control nodes' rights; only keys listed here sign grants.
    pub issuers: BTreeMap<NodeId, IssuerRecord>,
    /// Every control node's advertised address.
    pub controls: BTreeMap<NodeId, String>,
    /// The recipient itself.
    pub me: NodeView,
    /// Relays that may be dialled.
    pub relays: BTreeMap<NodeId, RelayView>,
    /// The nodes at the other ends of the recipient's links.
    pub peers: BTreeMap<NodeId, NodeView>,
    /// The recipient's links.
    pub links: BTreeMap<LinkId, LinkView>,
    /// What the recipient's relay admits by; only for relays.
    pub policy: Option<Policy>,
    /// Seconds that a flow waits for a path.
    pub flow_wait_seconds: u64,
    /// Routes that were revoked, signed on their own so that the recipient may pass them on.
    pub revocations: Option<SignedRevocations>,
    /// The database balancers that the recipient runs.
    pub balancers: BTreeMap<Name, BalancerView>,
}

/// A database balancer as a node sees it that runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerView {
    /// The entry that made or changed it last.
    pub changed: Version,
    /// The nodes of the database cluster: `host:port` by the id that each announces.
    pub databases: BTreeMap<String, String>,
}

/// What others know of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: Name,
    /// Its roles.
    pub roles: BTreeSet<Role>,
    /// Its key.
    pub public: PublicKeyBytes,
    /// Where it stands.
    pub domain: FailureDomain,
}

/// A relay as nodes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayView {
    /// Its node's name.
    pub name: Name,
    /// `host:port`, reached by UDP.
    pub address: String,
    /// Where it stands.
    pub domain: FailureDomain,
    /// Whether it stands on a control node.
    pub local: bool,
    /// Whether it counts as capacity: its address was reached (RP-7). Nodes dial pending ones too, to find out.
    pub ready: bool,
    /// Whether it is being drained.
    pub draining: bool,
}

/// A link as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// Its name.
    pub name: Name,
    /// The generation of its route.
    pub generation: Generation,
    /// The nodes that consume it.
    pub consumers: BTreeSet<NodeId>,
    /// The address on which the recipient listens, if it is a consumer.
    pub listen: Option<String>,
    /// The node that connects to the target.
    pub target: NodeId,
    /// The target's address, if the recipient is the target node.
    pub target_address: Option<String>,
    /// How many ready relays receive its new connections (RP-10).
    pub spread: u8,
    /// The recipient's grants: to open tunnels as a consumer, to register the endpoint as the target node.
    pub grants: Vec<SignedGrant>,
}

/// What a relay admits by (RP-25).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Nodes that may hold a session, with the key of their certificate.
    pub nodes: BTreeMap<NodeId, PublicKeyBytes>,
    /// Live routes.
    pub routes: BTreeMap<LinkId, Route>,
    /// The relay's drain, while it is out of service.
    pub drain: Option<Drain>,
}

/// One live route of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its generation.
    pub generation: Generation,
    /// Who may open tunnels.
    pub consumers: BTreeSet<NodeId>,
    /// Who may register the endpoint.
    pub target: NodeId,
}

impl Policy {
    /// Whether a live route joins these two nodes, in either direction; a channel needs one.
    #[must_use]
    pub fn joins(&self, one: NodeId, other: NodeId) -> bool {
        self.routes.values().any(|route| {
            (route.target == one && route.consumers.contains(&other))
                || (route.target == other && route.consumers.contains(&one))
        })
    }
}

/// A snapshot that a node works by: checked, decoded, with the end of its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The header.
    pub header: SnapshotHeader,
    /// The content.
    pub content: SnapshotContent,
}

impl Accepted {
    /// When the lease ends, on the wall clock.
    #[must_use]
    pub fn ends(&self) -> WallTime {
        self.header.issued.after(self.header.lease)
    }
}

/// Why a snapshot was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotRefusal {
    /// For another cluster or node.
    Foreign,
    /// Not newer than the active one.
    NotNewer {
        /// The active version.
        active: Version,
        /// The version that came.
        came: Version,
    },
    /// So far ahead that it can only be wrong.
    Leap {
        /// The version that came.
        came: Version,
    },
    /// Its lease had ended when it came.
    Expired,
}

impl core::fmt::Display for SnapshotRefusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Foreign => f.write_str("the snapshot is for another cluster or node"),
            Self::NotNewer { active, came } => write!(f, "the snapshot is {came}, the active one {active}"),
            Self::Leap { came } => write!(f, "the snapshot's version {came} is too far ahead to be true"),
            Self::Expired => f.write_str("the snapshot's lease has ended"),
        }
    }
}

/// The farthest that a version may be ahead of the active one.
pub const VERSION_LEAP_MAX: u64 = 1 << 40;

/// Whether a snapshot with a good signature may replace the active one. `active` is the highest version ever accepted.
///
/// # Errors
/// The reason for which it is refused; nothing changes then.
pub fn acceptable(
    header: &SnapshotHeader,
    cluster: &Name,
    me: NodeId,
    active: Version,
    wall: WallTime,
) -> Result<(), SnapshotRefusal> {
    let came = header.version;
    if header.cluster != *cluster || header.recipient != me {
        return Err(SnapshotRefusal::Foreign);
    }
    if came <= active {
        return Err(SnapshotRefusal::NotNewer { active, came });
    }
    if came.0 == u64::MAX || came.0 - active.0 > VERSION_LEAP_MAX {
        return Err(SnapshotRefusal::Leap { came });
    }
    if header.issued.after(header.lease) <= wall {
        return Err(SnapshotRefusal::Expired);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_snapshot_for_this_node_is_taken() {
        let name: Name = "harbour".parse().unwrap();
        let header = |recipient, version| SnapshotHeader {
            cluster: name.clone(),
            recipient: NodeId(recipient),
            version: Version(version),
            issued: WallTime(1_000),
            lease: Span::from_hours(1),
            content_hash: [0; 32],
        };
        let check = |header: &SnapshotHeader, wall| acceptable(header, &name, NodeId(3), Version(7), WallTime(wall));
        assert_eq!(check(&header(3, 8), 2_000), Ok(()));
        assert_eq!(check(&header(4, 8), 2_000), Err(SnapshotRefusal::Foreign));
        assert!(matches!(check(&header(3, 7), 2_000), Err(SnapshotRefusal::NotNewer { .. })));
        assert!(matches!(check(&header(3, 6), 2_000), Err(SnapshotRefusal::NotNewer { .. })));
        assert!(matches!(check(&header(3, 8 + VERSION_LEAP_MAX), 2_000), Err(SnapshotRefusal::Leap { .. })));
        assert!(matches!(check(&header(3, u64::MAX), 2_000), Err(SnapshotRefusal::Leap { .. })));
        assert_eq!(check(&header(3, 8), 3_601_000), Err(SnapshotRefusal::Expired));
    }
}
