//! Signs and checks snapshots: the header by a control node's snapshot key, that key by an authority, the content by
//! its hash in the header.

use postroad_cluster::{
    id::NodeId,
    snapshot::{Accepted, SignedSnapshot, SnapshotContent, SnapshotHeader},
    verified::Verified,
    wire,
};

use crate::{Anchors, PublicKey, Signed, SigningKey, TrustError, sha256};

const CONTEXT: &str = "snapshot";

/// What [`SnapshotHeader::content_hash`] is of: the encoded content.
pub fn content_hash(content: &[u8]) -> [u8; 32] {
    sha256(&[content])
}

/// Signs `header` as the control node `signer`, whose snapshot key an authority certified by `key_signature`. `content`
/// is the encoded content, or nothing when the recipient has the same.
pub fn sign_snapshot(
    key: &SigningKey,
    signer: NodeId,
    key_signature: Vec<u8>,
    header: &SnapshotHeader,
    content: Option<Vec<u8>>,
) -> SignedSnapshot {
    let signed = Signed::sign(key, signer, CONTEXT, wire::encode(header));
    SignedSnapshot {
        header: signed.content,
        signer,
        key: signed.key.0,
        key_signature,
        signature: signed.signature,
        content,
    }
}

/// Checks where a snapshot comes from and that its content is the signed one. `held` is the encoded content that the
/// recipient has, for a snapshot that comes without. Whether it is newer, and for this node, is
/// [`postroad_cluster::snapshot::acceptable`]'s to say.
///
/// # Errors
/// Those of [`Anchors::verify_snapshot_key`], [`TrustError::SignatureInvalid`], [`TrustError::CertificateForeign`] for
/// another cluster's, [`TrustError::ContentMismatch`] when the content is not the one of the header or is not there
/// (then ask for it whole), and [`TrustError::ContentMalformed`].
pub fn verify_snapshot(
    signed: &SignedSnapshot,
    anchors: &Anchors,
    held: Option<&[u8]>,
) -> Result<Verified<Accepted>, TrustError> {
    let key = PublicKey(signed.key);
    anchors.verify_snapshot_key(signed.signer, &key, &signed.key_signature)?;
    let (content, signature) = (signed.header.clone(), signed.signature.clone());
    let bytes = Signed { content, signer: signed.signer, key, signature }.verify(CONTEXT, &|_, _| true)?;
    let malformed = |what| TrustError::ContentMalformed { what };
    let header: SnapshotHeader = wire::decode(bytes.get()).map_err(|_| malformed("snapshot header"))?;
    if header.cluster != anchors.cluster {
        return Err(TrustError::CertificateForeign { found: header.cluster, expected: anchors.cluster.clone() });
    }
    let content = signed.content.as_deref().or(held).ok_or(TrustError::ContentMismatch)?;
    if content_hash(content) != header.content_hash {
        return Err(TrustError::ContentMismatch);
    }
    let content: SnapshotContent = wire::decode(content).map_err(|_| malformed("snapshot"))?;
    Ok(Verified::vouch(Accepted { header, content }))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use postroad_cluster::{domain::FailureDomain, id::Version, snapshot::NodeView, time::Span};

    use super::*;
    use crate::fixture::{Seeded, WALL, World};

    fn content() -> Vec<u8> {
        let me = NodeView {
            name: "web-1".parse().unwrap(),
            roles: BTreeSet::new(),
            public: [1; 32],
            domain: FailureDomain::default(),
        };
        wire::encode(&SnapshotContent {
            authorities: Vec::new(),
            revoked_nodes: BTreeSet::new(),
            issuers: BTreeMap::new(),
            controls: BTreeMap::new(),
            me,
            relays: BTreeMap::new(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            policy: None,
            flow_wait_seconds: 60,
            revocations: None,
            balancers: BTreeMap::new(),
        })
    }

    fn header(cluster: &str, content: &[u8]) -> SnapshotHeader {
        SnapshotHeader {
            cluster: cluster.parse().unwrap(),
            recipient: NodeId(7),
            version: Version(5),
            issued: WALL,
            lease: Span::from_hours(72),
            content_hash: content_hash(content),
        }
    }

    #[test]
    fn a_snapshot_is_taken_only_whole_signed_and_certified() {
        let (world, key) = (World::new(1), SigningKey::generate(&Seeded::new(5)));
        let certified = world.authority.certify_snapshot_key(NodeId(1), &key.public());
        let content = content();
        let sign = |header: &SnapshotHeader, content: Option<Vec<u8>>| {
            sign_snapshot(&key, NodeId(1), certified.clone(), header, content)
        };
        let (anchors, good) = (world.anchors(), header("prod", &content));
        let signed = sign(&good, Some(content.clone()));
        assert_eq!(verify_snapshot(&signed, &anchors, None).unwrap().get().header, good);
        let renewed = sign(&SnapshotHeader { version: Version(6), ..good.clone() }, None);
        assert_eq!(verify_snapshot(&renewed, &anchors, Some(&content)).unwrap().get().header.version, Version(6));

        let code = |signed: &SignedSnapshot, held| verify_snapshot(signed, &anchors, held).unwrap_err().code();
        assert_eq!(code(&renewed, None), "CONTENT_MISMATCH");
        assert_eq!(code(&renewed, Some(b"older")), "CONTENT_MISMATCH");
        let altered = SignedSnapshot { content: Some(b"other".to_vec()), ..signed.clone() };
        assert_eq!(code(&altered, Some(&content)), "CONTENT_MISMATCH");
        // RP-25: nothing prolongs a lease but another signature.
        let longer = wire::encode(&SnapshotHeader { lease: Span::from_hours(99), ..good.clone() });
        assert_eq!(code(&SignedSnapshot { header: longer, ..signed.clone() }, None), "SIGNATURE_INVALID");
        assert_eq!(code(&SignedSnapshot { signer: NodeId(2), ..signed.clone() }, None), "SIGNATURE_INVALID");
        assert_eq!(code(&SignedSnapshot { key_signature: Vec::new(), ..signed.clone() }, None), "SIGNATURE_INVALID");
        assert_eq!(code(&sign(&header("test", &content), Some(content.clone())), None), "CERTIFICATE_FOREIGN");
        assert_eq!(code(&sign(&header("prod", b"junk"), Some(b"junk".to_vec())), None), "CONTENT_MALFORMED");
        let revoked = Anchors { revoked_issuers: [key.public()].into(), ..anchors.clone() };
        assert_eq!(verify_snapshot(&signed, &revoked, None).unwrap_err().code(), "CERTIFICATE_REVOKED");
    }
}
