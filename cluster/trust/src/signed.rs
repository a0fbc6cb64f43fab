//! Signed content of any kind: who signed it, for which purpose, and the check that makes it trusted.

use core::fmt;

use postroad_cluster::{id::NodeId, verified::Verified};
use serde::{Deserialize, Serialize};

use crate::{PublicKey, SigningKey, TrustError, key::sha256, verify_signature};

/// Content with a node's signature. The purpose (*context*) is signed with it but not carried: whoever reads knows what
/// he expects, and a signature for one purpose is none for another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// What was signed.
    pub content: Vec<u8>,
    /// Who signed it.
    pub signer: NodeId,
    /// The key that it was signed with.
    pub key: PublicKey,
    /// The Ed25519 signature.
    pub signature: Vec<u8>,
}

impl Signed {
    /// Signs `content` as `signer` for the purpose `context`, a constant of the program that no other purpose shares.
    pub fn sign(key: &SigningKey, signer: NodeId, context: &'static str, content: Vec<u8>) -> Self {
        let signature = key.sign(&statement(context, signer, &content));
        Self { content, signer, key: key.public(), signature }
    }

    /// Checks the signature for the purpose `context`; `trusted` says whether this key of this node may sign it.
    ///
    /// # Errors
    /// [`TrustError::SignerUnknown`] before any cryptography, else [`TrustError::SignatureInvalid`].
    pub fn verify(
        &self,
        context: &'static str,
        trusted: &dyn Fn(NodeId, &PublicKey) -> bool,
    ) -> Result<Verified<Vec<u8>>, TrustError> {
        if !trusted(self.signer, &self.key) {
            return Err(TrustError::SignerUnknown { signer: self.signer });
        }
        verify_signature(&self.key, &statement(context, self.signer, &self.content), &self.signature)?;
        Ok(Verified::vouch(self.content.clone()))
    }
}

/// Content can be keys and policies, so that only its size is shown.
impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signed({} bytes by {} with {})", self.content.len(), self.signer, self.key)
    }
}

/// What is signed. The hash keeps a snapshot of megabytes from being copied, and every part has a fixed length or says
/// its own.
fn statement(context: &str, signer: NodeId, content: &[u8]) -> Vec<u8> {
    let mut statement = b"postroad signed content 1\0".to_vec();
    statement.extend_from_slice(&(context.len() as u64).to_be_bytes());
    statement.extend_from_slice(context.as_bytes());
    statement.extend_from_slice(&signer.0.to_be_bytes());
    statement.extend_from_slice(&sha256(&[content]));
    statement
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Seeded;

    #[test]
    fn content_is_bound_to_signer_key_and_purpose() {
        let key = SigningKey::generate(&Seeded::new(1));
        let other = SigningKey::generate(&Seeded::new(2));
        let trusted = |signer: NodeId, public: &PublicKey| signer.0 < 3 && *public == key.public();
        let signed = Signed::sign(&key, NodeId(1), "snapshot", b"content".to_vec());
        assert_eq!(signed.verify("snapshot", &trusted).unwrap().get(), b"content");
        let code = |signed: &Signed, context| signed.verify(context, &trusted).unwrap_err().code();
        assert_eq!(code(&signed, "revocation"), "SIGNATURE_INVALID");
        for (changed, expected) in [
            (Signed { content: b"contents".to_vec(), ..signed.clone() }, "SIGNATURE_INVALID"),
            (Signed { signer: NodeId(2), ..signed.clone() }, "SIGNATURE_INVALID"),
            (Signed { signature: Vec::new(), ..signed.clone() }, "SIGNATURE_INVALID"),
            (Signed { signer: NodeId(3), ..signed.clone() }, "SIGNER_UNKNOWN"),
            (Signed { key: other.public(), ..signed.clone() }, "SIGNER_UNKNOWN"),
            (Signed::sign(&other, NodeId(1), "snapshot", b"content".to_vec()), "SIGNER_UNKNOWN"),
        ] {
            assert_eq!(code(&changed, "snapshot"), expected, "{changed:?}");
        }
    }

    #[test]
    fn debug_shows_no_content() {
        let signed = Signed::sign(&SigningKey::generate(&Seeded::new(1)), NodeId(1), "test", b"secret".to_vec());
        assert!(format!("{signed:?}").starts_with("Signed(6 bytes by n1 with "));
    }
}
