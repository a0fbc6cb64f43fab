//! Signs and checks revocations of routes. The authority's word for the signer goes with them, so that whoever gets them
//! from a relay or another node needs no snapshot that knows the signer.

use postroad_cluster::{
    id::NodeId,
    revocation::{RevocationList, Revocations, SignedRevocations},
    verified::Verified,
    wire,
};

use crate::{Anchors, PublicKey, Signed, SigningKey, TrustError};

const CONTEXT: &str = "revocations";

/// Signs `list` as the control node `signer`, whose snapshot key an authority certified by `key_signature`.
pub fn sign_revocations(
    key: &SigningKey,
    signer: NodeId,
    key_signature: Vec<u8>,
    list: &RevocationList,
) -> SignedRevocations {
    let signed = Signed::sign(key, signer, CONTEXT, wire::encode(list));
    SignedRevocations { list: signed.content, signer, key: signed.key.0, key_signature, signature: signed.signature }
}

/// Checks where revocations come from. Whether they are newer is their version's to say.
///
/// # Errors
/// Those of [`Anchors::verify_snapshot_key`], [`TrustError::SignatureInvalid`], [`TrustError::CertificateForeign`] for
/// another cluster's, and [`TrustError::ContentMalformed`].
pub fn verify_revocations(signed: &SignedRevocations, anchors: &Anchors) -> Result<Verified<Revocations>, TrustError> {
    let key = PublicKey(signed.key);
    anchors.verify_snapshot_key(signed.signer, &key, &signed.key_signature)?;
    let (content, signature) = (signed.list.clone(), signed.signature.clone());
    let bytes = Signed { content, signer: signed.signer, key, signature }.verify(CONTEXT, &|_, _| true)?;
    let list: RevocationList =
        wire::decode(bytes.get()).map_err(|_| TrustError::ContentMalformed { what: "revocations" })?;
    if list.cluster != anchors.cluster {
        return Err(TrustError::CertificateForeign { found: list.cluster, expected: anchors.cluster.clone() });
    }
    Ok(Verified::vouch(list.revocations))
}

#[cfg(test)]
mod tests {
    use postroad_cluster::{
        id::{Generation, LinkId, Version},
        revocation::Revocation,
    };

    use super::*;
    use crate::fixture::{Seeded, WALL, World};

    // RP-35: signed, so that a relay can pass them on and can make none up.
    #[test]
    fn revocations_are_taken_only_unaltered_and_from_a_certified_key() {
        let (world, key) = (World::new(1), SigningKey::generate(&Seeded::new(5)));
        let certified = world.authority.certify_snapshot_key(NodeId(1), &key.public());
        let anchors = world.anchors();
        let mut revocations = Revocations::default();
        revocations.revoke(LinkId(1), Revocation { below: Generation(2), version: Version(7), at: WALL });
        let list =
            |cluster: &str| RevocationList { cluster: cluster.parse().unwrap(), revocations: revocations.clone() };
        let good = sign_revocations(&key, NodeId(1), certified.clone(), &list("prod"));
        assert_eq!(*verify_revocations(&good, &anchors).unwrap().get(), revocations);
        let code = |signed: &SignedRevocations| verify_revocations(signed, &anchors).unwrap_err().code();
        let more =
            RevocationList { revocations: Revocations { version: Version(8), ..revocations.clone() }, ..list("prod") };
        assert_eq!(code(&SignedRevocations { list: wire::encode(&more), ..good.clone() }), "SIGNATURE_INVALID");
        assert_eq!(code(&SignedRevocations { signer: NodeId(2), ..good.clone() }), "SIGNATURE_INVALID");
        assert_eq!(code(&SignedRevocations { key_signature: Vec::new(), ..good }), "SIGNATURE_INVALID");
        let foreign = sign_revocations(&key, NodeId(1), certified, &list("test"));
        assert_eq!(code(&foreign), "CERTIFICATE_FOREIGN");
    }
}
