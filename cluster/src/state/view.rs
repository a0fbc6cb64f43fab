//! What each node gets to see: its snapshot, built from the state alone, so that equal states give equal snapshots.

use std::collections::{BTreeMap, BTreeSet};

use super::{BalancerRecord, LinkRecord, NodeRecord, State};
use crate::{
    grant::{self, Grant, Right, SignedGrant},
    id::{LinkId, Name, NodeId, Role},
    revocation::{RevocationList, SignedRevocations},
    snapshot::{BalancerView, LinkView, NodeView, Policy, RelayView, Route, SnapshotContent, SnapshotHeader},
};

/// Signs what a snapshot carries for its recipient and for those to whom that passes it on.
pub trait Sign {
    /// Signs a grant.
    fn grant(&mut self, grant: &Grant) -> SignedGrant;
    /// Signs the revocations.
    fn revocations(&mut self, list: &RevocationList) -> SignedRevocations;
}

impl State {
    /// Everything that `recipient` needs, complete; nothing if it is no node. `sign` signs its grants and the revocations.
    ///
    /// The content depends on the state and the signer alone and not on the version, so that renewing the leases makes
    /// a new header over the same content, until the grants themselves are renewed.
    pub fn snapshot_for(&self, recipient: NodeId, sign: &mut dyn Sign) -> Option<SnapshotContent> {
        self.cluster.as_ref()?;
        let me = self.nodes.get(&recipient)?;
        let mut peers = BTreeMap::new();
        let mut links = BTreeMap::new();
        for (link, record) in self.links.iter().filter(|(_, record)| concerns(record, recipient)) {
            for peer in ends_beyond(record, recipient) {
                if let Some(record) = self.nodes.get(&peer) {
                    peers.insert(peer, record.view());
                }
            }
            links.insert(*link, self.link_view(recipient, *link, record, sign));
        }
        Some(SnapshotContent {
            authorities: self.authorities.clone(),
            revoked_nodes: self.revoked_nodes.clone(),
            issuers: self.issuers.clone(),
            controls: self.controls(),
            me: me.view(),
            relays: self.relays(),
            peers,
            links,
            policy: me.roles.contains(&Role::Relay).then(|| self.policy(recipient)),
            flow_wait_seconds: self.flow_wait_seconds(),
            revocations: self.revocation_list().map(|list| sign.revocations(&list)),
            balancers: self.balancers_of(recipient),
        })
    }

    /// The database balancers that a node runs. Nobody else hears where the databases are.
    fn balancers_of(&self, node: NodeId) -> BTreeMap<Name, BalancerView> {
        let own = self.balancers.iter().filter(|(_, record)| record.spec.on.contains(&node));
        let view = |record: &BalancerRecord| BalancerView {
            changed: record.changed,
            databases: record.spec.databases.clone(),
        };
        own.map(|(name, record)| (name.clone(), view(record))).collect()
    }

    /// The revocations as they are signed; nothing while there are none.
    #[must_use]
    pub fn revocation_list(&self) -> Option<RevocationList> {
        let revocations = (!self.revocations.routes.is_empty()).then(|| self.revocations.clone())?;
        Some(RevocationList { cluster: self.cluster.clone()?, revocations })
    }

    /// The header over a content of this hash, for `recipient`; nothing before the cluster is founded.
    #[must_use]
    pub fn header_for(&self, recipient: NodeId, content_hash: [u8; 32]) -> Option<SnapshotHeader> {
        Some(SnapshotHeader {
            cluster: self.cluster.clone()?,
            recipient,
            version: self.version,
            issued: self.time,
            lease: self.policy_lease(),
            content_hash,
        })
    }

    /// What a relay admits by: every node that may hold a session, every route, and its own drain.
    #[must_use]
    pub fn policy(&self, relay: NodeId) -> Policy {
        let nodes = self.nodes.iter().filter(|(_, record)| record.roles.contains(&Role::Node));
        let route = |record: &LinkRecord| Route {
            generation: record.generation,
            consumers: record.spec.consumers.keys().copied().collect(),
            target: record.spec.target,
        };
        Policy {
            nodes: nodes.map(|(node, record)| (*node, record.public)).collect(),
            routes: self.links.iter().map(|(link, record)| (*link, route(record))).collect(),
            drain: self.nodes.get(&relay).and_then(|record| record.drain),
        }
    }

    /// Every control node's advertised address.
    #[must_use]
    pub fn controls(&self) -> BTreeMap<NodeId, String> {
        let controls = self.nodes.iter().filter(|(_, record)| record.roles.contains(&Role::Control));
        controls.filter_map(|(node, record)| Some((*node, record.advertised.clone()?))).collect()
    }

    /// Every relay that may be dialled, pending and draining ones too.
    #[must_use]
    pub fn relays(&self) -> BTreeMap<NodeId, RelayView> {
        let relays = self.nodes.iter().filter(|(_, record)| record.roles.contains(&Role::Relay));
        let view = |record: &NodeRecord| {
            Some(RelayView {
                name: record.name.clone(),
                address: record.advertised.clone()?,
                domain: record.domain.clone(),
                local: record.roles.contains(&Role::Control),
                ready: record.ready,
                draining: record.drain.is_some(),
            })
        };
        relays.filter_map(|(node, record)| Some((*node, view(record)?))).collect()
    }

    fn link_view(&self, recipient: NodeId, link: LinkId, record: &LinkRecord, sign: &mut dyn Sign) -> LinkView {
        let spec = &record.spec;
        let target = spec.target == recipient;
        let rights = [(target, Right::Register), (spec.consumers.contains_key(&recipient), Right::Open)];
        let held = rights.into_iter().filter(|(held, _)| *held);
        let grants = held.filter_map(|(_, right)| self.grant(recipient, link, record, right));
        LinkView {
            name: record.name.clone(),
            generation: record.generation,
            consumers: spec.consumers.keys().copied().collect(),
            listen: spec.consumers.get(&recipient).cloned(),
            target: spec.target,
            target_address: target.then(|| spec.target_address.clone()),
            spread: spec.spread,
            grants: grants.map(|grant| sign.grant(&grant)).collect(),
        }
    }

    fn grant(&self, holder: NodeId, link: LinkId, record: &LinkRecord, right: Right) -> Option<Grant> {
        let issued = self.grants_issued.max(record.made);
        Some(Grant {
            cluster: self.cluster.clone()?,
            link,
            generation: record.generation,
            holder,
            target: record.spec.target,
            right,
            issued,
            expires: issued.after(grant::lifetime(self.grant_configured(), self.policy_lease())),
        })
    }
}

impl NodeRecord {
    /// What others know of the node.
    #[must_use]
    pub fn view(&self) -> NodeView {
        NodeView {
            name: self.name.clone(),
            roles: self.roles.clone(),
            public: self.public,
            domain: self.domain.clone(),
        }
    }
}

fn concerns(record: &LinkRecord, node: NodeId) -> bool {
    record.spec.target == node || record.spec.consumers.contains_key(&node)
}

/// The nodes with which this one would have a circuit for the link: consumers meet the target, not each other.
fn ends_beyond(record: &LinkRecord, node: NodeId) -> BTreeSet<NodeId> {
    if record.spec.target == node {
        record.spec.consumers.keys().copied().collect()
    } else {
        BTreeSet::from([record.spec.target])
    }
}
