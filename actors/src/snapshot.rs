//! Snapshots and grants at the edge: a control node signs them, a node opens them before any behavior sees them.

use std::collections::BTreeMap;

use postroad_cluster::{
    grant::{Grant, SignedGrant},
    id::{NodeId, Version},
    limits::GRANTS_REMEMBERED_MAX,
    relay::Presented,
    revocation::{RevocationList, SignedRevocations},
    snapshot::{Accepted, SignedSnapshot, acceptable},
    state::{State, view::Sign},
    time::Clock as _,
    verified::Verified,
    wire,
};
use postroad_trust::{
    PublicKey, SigningKey, TrustError, content_hash, sign_grant, sign_revocations, sign_snapshot, verify_grant,
    verify_snapshot,
};

use crate::{directory::lock, fabric::Fabric};

/// The keys with which a certified control node signs.
pub(crate) struct Signer {
    /// The control node.
    pub(crate) node: NodeId,
    /// Its snapshot key.
    pub(crate) key: SigningKey,
    /// The authority's signature over that key.
    pub(crate) key_signature: Vec<u8>,
}

impl Signer {
    /// The recipient's snapshot of `state`, without the content if its hash is the one that the recipient has. None if
    /// the recipient is no node of the cluster.
    pub(crate) fn snapshot(&self, state: &State, recipient: NodeId, known: Option<[u8; 32]>) -> Option<SignedSnapshot> {
        let content = state.snapshot_for(recipient, &mut Signing(self))?;
        let content = wire::encode(&content);
        let hash = content_hash(&content);
        let header = state.header_for(recipient, hash)?;
        let content = (known != Some(hash)).then_some(content);
        Some(sign_snapshot(&self.key, self.node, self.key_signature.clone(), &header, content))
    }
}

struct Signing<'a>(&'a Signer);

impl Sign for Signing<'_> {
    fn grant(&mut self, grant: &Grant) -> SignedGrant {
        sign_grant(&self.0.key, self.0.node, grant)
    }

    fn revocations(&mut self, list: &RevocationList) -> SignedRevocations {
        sign_revocations(&self.0.key, self.0.node, self.0.key_signature.clone(), list)
    }
}

/// Grants whose signature held by the issuers of one snapshot. Every tunnel of a link shows the same grant, and checking its
/// signature anew would be the largest part of a tunnel's cost.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    version: Option<Version>,
    /// By signature, with the whole that it is of.
    grants: BTreeMap<Vec<u8>, (SignedGrant, Verified<Grant>)>,
}

impl Opened {
    /// The grant, if it was opened by the snapshot of this version. Another version has other issuers, and forgets all.
    fn known(&mut self, version: Option<Version>, signed: &SignedGrant) -> Option<Verified<Grant>> {
        if self.version != version || self.grants.len() >= GRANTS_REMEMBERED_MAX {
            *self = Self { version, grants: BTreeMap::new() };
        }
        let (known, grant) = self.grants.get(&signed.signature)?;
        (known == signed).then(|| grant.clone())
    }
}

/// What this node finds of a grant, by the issuers of its own snapshot; nobody else is believed.
pub(crate) fn presented(fabric: &Fabric, signed: &SignedGrant) -> Presented {
    match open_grant(fabric, signed) {
        Ok(grant) => Presented::Good(grant),
        Err(TrustError::SignerUnknown { .. }) => Presented::Unknown,
        Err(_) => Presented::Bad,
    }
}

/// A grant that an issuer of this node's snapshot has signed.
///
/// # Errors
/// [`TrustError::SignerUnknown`] where the next snapshot may know the signer, else what is wrong.
fn open_grant(fabric: &Fabric, signed: &SignedGrant) -> Result<Verified<Grant>, TrustError> {
    let accepted = fabric.snapshot();
    let version = accepted.as_ref().map(|accepted| accepted.header.version);
    if let Some(grant) = lock(&fabric.opened).known(version, signed) {
        return Ok(grant);
    }
    let grant = verify_grant(signed, &|signer: NodeId, key: &PublicKey| {
        let issuer = accepted.as_ref().and_then(|accepted| accepted.content.issuers.get(&signer));
        issuer.is_some_and(|issuer| issuer.snapshot_key == key.0)
    })?;
    let mut opened = lock(&fabric.opened);
    // A newer snapshot may have come meanwhile, and does not take over what an older one believed.
    if opened.version == version {
        opened.grants.insert(signed.signature.clone(), (signed.clone(), grant.clone()));
    }
    Ok(grant)
}

/// Checks a snapshot for this node: the authority's word for the signer, the signature, the content's hash, then
/// recipient, version and lease.
///
/// # Errors
/// A sentence for people; nothing was changed.
pub(crate) fn open(fabric: &Fabric, signed: &SignedSnapshot) -> Result<Accepted, String> {
    let present = fabric.snapshot();
    let held = present.as_ref().map(|accepted| wire::encode(&accepted.content));
    let accepted = verify_snapshot(signed, &fabric.trust.current(), held.as_deref())
        .map_err(|error| format!("the snapshot of {} does not hold: {error}", signed.signer))?
        .into_inner();
    let active = present.map_or(Version(0), |accepted| accepted.header.version);
    acceptable(&accepted.header, &fabric.cluster, fabric.me, active, fabric.clock.wall())
        .map_err(|refusal| refusal.to_string())?;
    fabric.clock.accept_issue_time(accepted.header.issued);
    Ok(accepted)
}
