//! Signs and checks grants: a control node's word, by its snapshot key, for what a node may do on a link.

use postroad_cluster::{
    grant::{Grant, SignedGrant},
    id::NodeId,
    verified::Verified,
    wire,
};

use crate::{PublicKey, Signed, SigningKey, TrustError};

const CONTEXT: &str = "grant";

/// Signs `grant` as the control node `signer`.
pub fn sign_grant(key: &SigningKey, signer: NodeId, grant: &Grant) -> SignedGrant {
    let Signed { content, signer, key, signature } = Signed::sign(key, signer, CONTEXT, wire::encode(grant));
    SignedGrant { grant: content, signer, key: key.0, signature }
}

/// Checks who signed a grant; `trusted` says whether this key of this node may, as the accepted snapshot has it. What
/// the grant allows, and until when, is `Grant`'s own to check.
///
/// # Errors
/// [`TrustError::SignerUnknown`] (the next snapshot may know it), else [`TrustError::SignatureInvalid`] or
/// [`TrustError::ContentMalformed`].
pub fn verify_grant(
    signed: &SignedGrant,
    trusted: &dyn Fn(NodeId, &PublicKey) -> bool,
) -> Result<Verified<Grant>, TrustError> {
    let SignedGrant { grant, signer, key, signature } = signed.clone();
    let signed = Signed { content: grant, signer, key: PublicKey(key), signature };
    let bytes = signed.verify(CONTEXT, trusted)?;
    wire::decode(bytes.get()).map(Verified::vouch).map_err(|_| TrustError::ContentMalformed { what: "grant" })
}

#[cfg(test)]
mod tests {
    use postroad_cluster::{
        grant::Right,
        id::{Generation, LinkId},
        time::Span,
    };

    use super::*;
    use crate::fixture::{Seeded, WALL};

    #[test]
    fn a_grant_is_taken_only_from_a_known_key_and_unaltered() {
        let key = SigningKey::generate(&Seeded::new(1));
        let trusted = |node: NodeId, public: &PublicKey| node == NodeId(1) && *public == key.public();
        let grant = Grant {
            cluster: "prod".parse().unwrap(),
            link: LinkId(1),
            generation: Generation(2),
            holder: NodeId(7),
            target: NodeId(8),
            right: Right::Open,
            issued: WALL,
            expires: WALL.after(Span::from_hours(1)),
        };
        let signed = sign_grant(&key, NodeId(1), &grant);
        assert_eq!(verify_grant(&signed, &trusted).unwrap().get(), &grant);
        let code = |signed: &SignedGrant| verify_grant(signed, &trusted).unwrap_err().code();
        let other = wire::encode(&Grant { holder: NodeId(9), ..grant.clone() });
        assert_eq!(code(&SignedGrant { grant: other, ..signed.clone() }), "SIGNATURE_INVALID");
        assert_eq!(code(&SignedGrant { signer: NodeId(2), ..signed.clone() }), "SIGNER_UNKNOWN");
        // Good signatures of the same key over no grant, and for another purpose.
        let convert = |signed: Signed| SignedGrant {
            grant: signed.content,
            signer: signed.signer,
            key: signed.key.0,
            signature: signed.signature,
        };
        let garbage = Signed::sign(&key, NodeId(1), CONTEXT, vec![1, 2, 3]);
        assert_eq!(code(&convert(garbage)), "CONTENT_MALFORMED");
        let elsewhere = Signed::sign(&key, NodeId(1), "snapshot", wire::encode(&grant));
        assert_eq!(code(&convert(elsewhere)), "SIGNATURE_INVALID");
    }
}
