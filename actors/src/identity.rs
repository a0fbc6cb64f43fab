//! Who this node is, as kept on its disk: keys, certificate, the authorities it trusts, and where control nodes are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use postroad_cluster::{
    id::{Name, NodeId, Role},
    wire::{self, Message},
};
use postroad_store::{NodeStore, Put, StoreError, Table};
use postroad_transport::tls::Identity;
use postroad_trust::{Anchors, Issuer, SigningKey, TrustError};
use serde::{Deserialize, Serialize};

const KEY: &[u8] = b"identity";
const BOOTS: &[u8] = b"boots";

/// What a node keeps of itself. `Debug` shows no key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The cluster.
    pub cluster: Name,
    /// This node.
    pub node: NodeId,
    /// Its name.
    pub name: Name,
    /// Its roles.
    pub roles: BTreeSet<Role>,
    seed: [u8; 32],
    /// Its certificate and the issuer's, DER, leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The trusted authorities, DER.
    pub authorities: Vec<Vec<u8>>,
    /// Control nodes' addresses, as of the last word.
    pub controls: BTreeMap<NodeId, String>,
    issuing: Option<Issuing>,
    reset_secret: [u8; 32],
}

/// What a control node keeps besides.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Issuing {
    issuer_seed: [u8; 32],
    certificate: Option<Vec<u8>>,
    snapshot_seed: [u8; 32],
    snapshot_key_signature: Option<Vec<u8>>,
}

impl Message for Kept {
    const WHAT: &'static str = "identity";
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("cluster", &self.cluster).field("node", &self.node).finish_non_exhaustive()
    }
}

/// The keys of a control node, and the authority's word for them once it has been given.
pub struct IssuingKeys {
    /// Signs certificates.
    pub issuer: SigningKey,
    /// Signs snapshots and grants.
    pub snapshot: SigningKey,
    /// The issuing certificate, DER.
    pub certificate: Option<Vec<u8>>,
    /// The authority's signature over the snapshot key.
    pub snapshot_key_signature: Option<Vec<u8>>,
}

/// Why a node cannot start from what is on its disk.
#[derive(Debug)]
pub enum KeptError {
    /// The store failed.
    Store(StoreError),
    /// There is no identity: the node has not joined.
    Absent,
    /// What is there is no identity of ours.
    Malformed(String),
    /// The certificate or key is not good.
    Trust(TrustError),
}

impl KeptError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Store(error) => error.code(),
            Self::Absent => "NOT_JOINED",
            Self::Malformed(_) => "IDENTITY_MALFORMED",
            Self::Trust(error) => error.code(),
        }
    }
}

impl fmt::Display for KeptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Absent => f.write_str(
                "this data directory belongs to no node yet. Found a cluster with postroad init, or join one with postroad join",
            ),
            Self::Malformed(found) => write!(f, "the identity on disk does not read: {found}. Restore it, or re-enrol the node"),
            Self::Trust(error) => write!(f, "the identity on disk is not usable: {error}"),
        }
    }
}

impl std::error::Error for KeptError {}

impl From<StoreError> for KeptError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<TrustError> for KeptError {
    fn from(error: TrustError) -> Self {
        Self::Trust(error)
    }
}

impl Kept {
    /// A new node's identity. The reset secret is drawn once and outlives restarts.
    #[expect(clippy::too_many_arguments, reason = "each is one fact of the join, named where it is called")]
    #[must_use]
    pub fn new(
        cluster: Name,
        node: NodeId,
        name: Name,
        roles: BTreeSet<Role>,
        key: &SigningKey,
        chain: Vec<Vec<u8>>,
        authorities: Vec<Vec<u8>>,
        controls: BTreeMap<NodeId, String>,
        reset_secret: [u8; 32],
    ) -> Self {
        Self {
            cluster,
            node,
            name,
            roles,
            seed: *key.seed(),
            chain,
            authorities,
            controls,
            issuing: None,
            reset_secret,
        }
    }

    /// The identity in `store`.
    pub fn load(store: &NodeStore) -> Result<Self, KeptError> {
        let bytes = store.get(Table::Identity, KEY)?.ok_or(KeptError::Absent)?;
        wire::decode(&bytes).map_err(|error| KeptError::Malformed(error.to_string()))
    }

    /// Stores it, durable when this returns.
    pub fn save(&self, store: &NodeStore) -> Result<(), StoreError> {
        store.write(vec![self.put()])
    }

    /// It as a change of the node's database.
    #[must_use]
    pub fn put(&self) -> Put {
        Put { table: Table::Identity, key: KEY.to_vec(), value: Some(wire::encode(self)) }
    }

    /// The change of the node's database that wipes its identity: the node has left.
    #[must_use]
    pub fn forget() -> Put {
        Put { table: Table::Identity, key: KEY.to_vec(), value: None }
    }

    /// The key of the node's certificate.
    #[must_use]
    pub fn key(&self) -> SigningKey {
        SigningKey::from_seed(self.seed)
    }

    /// The secret behind connection ids and stateless resets.
    #[must_use]
    pub const fn reset_secret(&self) -> [u8; 32] {
        self.reset_secret
    }

    /// Whom the node trusts before it has a snapshot.
    #[must_use]
    pub fn anchors(&self) -> Anchors {
        Anchors {
            cluster: self.cluster.clone(),
            authorities: self.authorities.clone(),
            revoked_serials: BTreeSet::new(),
            revoked_nodes: BTreeSet::new(),
            revoked_issuers: BTreeSet::new(),
        }
    }

    /// The node's certificate with its key.
    pub fn identity(&self) -> Result<Identity, TrustError> {
        Identity::new(self.chain.clone(), self.key(), &self.anchors())
    }

    /// Gives a control node its issuing and snapshot keys; they stay on this disk.
    pub fn set_issuing(&mut self, keys: &IssuingKeys) {
        self.issuing = Some(Issuing {
            issuer_seed: *keys.issuer.seed(),
            certificate: keys.certificate.clone(),
            snapshot_seed: *keys.snapshot.seed(),
            snapshot_key_signature: keys.snapshot_key_signature.clone(),
        });
    }

    /// The issuing and snapshot keys, of a control node.
    #[must_use]
    pub fn issuing(&self) -> Option<IssuingKeys> {
        self.issuing.as_ref().map(|issuing| IssuingKeys {
            issuer: SigningKey::from_seed(issuing.issuer_seed),
            snapshot: SigningKey::from_seed(issuing.snapshot_seed),
            certificate: issuing.certificate.clone(),
            snapshot_key_signature: issuing.snapshot_key_signature.clone(),
        })
    }
}

impl IssuingKeys {
    /// The issuer, once the authority has certified it.
    pub fn certified_issuer(&self, cluster: &Name) -> Option<Result<Issuer, TrustError>> {
        let certificate = self.certificate.clone()?;
        Some(Issuer::new(cluster.clone(), SigningKey::from_seed(*self.issuer.seed()), certificate))
    }
}

/// Counts one more start of the node, durably, and returns the count: session generations grow over restarts by it.
pub fn count_boot(store: &NodeStore) -> Result<u32, StoreError> {
    let last = store.get(Table::Identity, BOOTS)?;
    let last = last.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    let boots = last.saturating_add(1);
    store.write(vec![Put {
        table: Table::Identity,
        key: BOOTS.to_vec(),
        value: Some(boots.to_le_bytes().to_vec()),
    }])?;
    Ok(boots)
}
