//! Snapshots and grants at the edge: a control node signs them, a node opens them before any behavior sees them.

use postroad_cluster::{
    grant::{Grant, SignedGrant},
    id::{NodeId, Version},
    snapshot::{Accepted, SignedSnapshot, SnapshotContent, SnapshotHeader, acceptable},
    state::State,
    time::Clock as _,
    verified::Verified,
    wire::{self, Message},
};
use postroad_trust::{PublicKey, Signed, SigningKey, sha256};

use crate::fabric::Fabric;

const SNAPSHOT_CONTEXT: &str = "postroad snapshot header";
const GRANT_CONTEXT: &str = "postroad grant";

/// The keys with which a certified control node signs.
pub struct Signer {
    /// The control node.
    pub node: NodeId,
    /// Its snapshot key.
    pub key: SigningKey,
    /// The authority's signature over that key.
    pub key_signature: Vec<u8>,
}

impl Signer {
    /// The recipient's snapshot of `state`, without the content if its hash is the one that the recipient has. None if
    /// the recipient is no node of the cluster.
    pub fn snapshot(&self, state: &State, recipient: NodeId, known: Option<[u8; 32]>) -> Option<SignedSnapshot> {
        let content = state.snapshot_for(recipient, &mut |grant| self.grant(grant))?;
        let content = wire::encode(&content);
        let content_hash = sha256(&[&content]);
        let header = wire::encode(&state.header_for(recipient, content_hash)?);
        let signed = Signed::sign(&self.key, self.node, SNAPSHOT_CONTEXT, header);
        Some(SignedSnapshot {
            header: signed.content,
            signer: self.node,
            key: self.key.public().0,
            key_signature: self.key_signature.clone(),
            signature: signed.signature,
            content: (known != Some(content_hash)).then_some(content),
        })
    }

    fn grant(&self, grant: &Grant) -> SignedGrant {
        let signed = Signed::sign(&self.key, self.node, GRANT_CONTEXT, wire::encode(grant));
        SignedGrant { grant: signed.content, signer: self.node, key: self.key.public().0, signature: signed.signature }
    }
}

/// A grant that an issuer of this node's snapshot has signed; nothing else is believed.
pub(crate) fn open_grant(fabric: &Fabric, signed: &SignedGrant) -> Option<Verified<Grant>> {
    let accepted = fabric.snapshot()?;
    let signed = Signed {
        content: signed.grant.clone(),
        signer: signed.signer,
        key: PublicKey(signed.key),
        signature: signed.signature.clone(),
    };
    let trusted = |signer: NodeId, key: &PublicKey| {
        accepted.content.issuers.get(&signer).is_some_and(|issuer| issuer.snapshot_key == key.0)
    };
    signed.verify_message(GRANT_CONTEXT, &trusted).ok()
}

/// Whether the signer of a grant is an issuer of this node's snapshot.
pub(crate) fn knows_signer(fabric: &Fabric, signed: &SignedGrant) -> bool {
    fabric.snapshot().is_some_and(|accepted| {
        accepted.content.issuers.get(&signed.signer).is_some_and(|issuer| issuer.snapshot_key == signed.key)
    })
}

/// Checks a snapshot for this node: the authority's word for the signer, the signature, recipient, version and lease,
/// and the content's hash.
///
/// # Errors
/// A sentence for people; nothing was changed.
pub(crate) fn open(fabric: &Fabric, signed: SignedSnapshot) -> Result<Accepted, String> {
    let anchors = fabric.trust.current();
    let key = PublicKey(signed.key);
    anchors
        .verify_snapshot_key(signed.signer, &key, &signed.key_signature)
        .map_err(|error| format!("the snapshot's signer {} is not to be believed: {error}", signed.signer))?;
    let envelope = Signed { content: signed.header, signer: signed.signer, key, signature: signed.signature };
    let header = envelope
        .verify(SNAPSHOT_CONTEXT, &|signer, public| signer == envelope.signer && *public == key)
        .map_err(|error| format!("the snapshot of {} does not hold: {error}", envelope.signer))?;
    let header: SnapshotHeader = decode(header.get())?;
    let present = fabric.snapshot();
    let active = present.as_ref().map_or(Version(0), |accepted| accepted.header.version);
    acceptable(&header, &fabric.cluster, fabric.me, active, fabric.clock.wall())
        .map_err(|refusal| refusal.to_string())?;
    let content = match (signed.content, present) {
        (Some(content), _) if sha256(&[&content]) == header.content_hash => decode::<SnapshotContent>(&content)?,
        (None, Some(present)) if present.header.content_hash == header.content_hash => present.content.clone(),
        _ => return Err("the snapshot's content is not the one that was signed".to_owned()),
    };
    fabric.clock.accept_issue_time(header.issued);
    Ok(Accepted { header, content })
}

fn decode<M: Message>(bytes: &[u8]) -> Result<M, String> {
    wire::decode(bytes).map_err(|error| error.to_string())
}
