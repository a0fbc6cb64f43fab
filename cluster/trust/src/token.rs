//! The one-time secret of a joiner: never sent, only proved, bound to one TLS connection and one public key.
//!
//! The log keeps `SHA-256("postroad join key" || secret)`, the [`TokenVerifier`]: from it the secret cannot be had, but
//! it checks proofs, so whoever has it could also make them. It is therefore treated as a secret of the control nodes.

use core::fmt;

use data_encoding::BASE32_NOPAD_NOCASE;
use postroad_cluster::{id::TokenId, time::Entropy};
use ring::hmac;
use zeroize::Zeroizing;

use crate::{PublicKey, TrustError, key::sha256};

const PREFIX: &str = "prt1-";
const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
const TEXT_DIGITS: usize = ((SECRET_BYTES + CHECKSUM_BYTES) * 8).div_ceil(5);

/// The secret of a one-time join token.
#[derive(Clone)]
pub struct JoinSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl JoinSecret {
    /// Draws a new secret.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        entropy.fill(secret.as_mut_slice());
        Self(secret)
    }

    /// Reads what [`JoinSecret::reveal`] wrote, in either case and with blanks around it.
    ///
    /// # Errors
    /// [`TrustError::TokenMalformed`]; a checksum tells a typo from a token that nobody knows.
    pub fn parse(text: &str) -> Result<Self, TrustError> {
        let malformed = |reason| TrustError::TokenMalformed { reason };
        let text = Zeroizing::new(text.trim().to_ascii_lowercase());
        let digits = text.strip_prefix(PREFIX).ok_or(malformed("it does not begin with prt1-"))?;
        if digits.len() != TEXT_DIGITS {
            return Err(malformed("it has not the length of one"));
        }
        let bytes = BASE32_NOPAD_NOCASE
            .decode(digits.as_bytes())
            .map(Zeroizing::new)
            .map_err(|_| malformed("it has a character that no token has"))?;
        let typo = malformed("its checksum does not fit, so that some character is wrong");
        let (secret, checksum) = bytes.split_first_chunk::<SECRET_BYTES>().ok_or(typo.clone())?;
        let secret = Self(Zeroizing::new(*secret));
        if secret.checksum() == checksum { Ok(secret) } else { Err(typo) }
    }

    /// The token as text, secret and all, for the one command that shows it: `prt1-` and 58 letters and digits.
    pub fn reveal(&self) -> String {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES + CHECKSUM_BYTES]);
        bytes[..SECRET_BYTES].copy_from_slice(self.0.as_slice());
        bytes[SECRET_BYTES..].copy_from_slice(&self.checksum());
        PREFIX.to_owned() + &BASE32_NOPAD_NOCASE.encode(bytes.as_slice()).to_ascii_lowercase()
    }

    fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        let hash = sha256(&[b"postroad join text", self.0.as_slice()]);
        [hash[0], hash[1], hash[2], hash[3]]
    }

    /// What the log stores of it.
    pub fn verifier(&self) -> TokenVerifier {
        TokenVerifier(Zeroizing::new(sha256(&[b"postroad join key", self.0.as_slice()])))
    }

    /// The bytes of [`JoinSecret::verifier`].
    pub fn hash(&self) -> [u8; 32] {
        self.verifier().to_bytes()
    }

    /// What the token is called; no secret.
    pub fn id(&self) -> TokenId {
        self.verifier().id()
    }

    /// Proves the secret on one TLS connection (by its `exporter`) for one key: worth nothing on another connection or
    /// for another key.
    pub fn proof(&self, exporter: &[u8; 32], public: &PublicKey) -> [u8; 32] {
        let mut proof = [0; 32];
        proof.copy_from_slice(hmac::sign(&self.verifier().key(), &statement(exporter, public)).as_ref());
        proof
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinSecret({})", self.id())
    }
}

/// What the control nodes know of a token: enough to check a proof, and to make one, hence a secret too.
#[derive(Clone)]
pub struct TokenVerifier(Zeroizing<[u8; 32]>);

impl TokenVerifier {
    /// The verifier of stored bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes to store.
    pub fn to_bytes(&self) -> [u8; 32] {
        *self.0
    }

    /// What the token is called: the first bytes of a hash over the verifier, which tell nothing of it.
    pub fn id(&self) -> TokenId {
        let hash = sha256(&[b"postroad join id", self.0.as_slice()]);
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        TokenId(u64::from_be_bytes(first))
    }

    /// Checks a joiner's proof in constant time.
    ///
    /// # Errors
    /// [`TrustError::TokenProofInvalid`].
    pub fn check(&self, exporter: &[u8; 32], public: &PublicKey, proof: &[u8]) -> Result<(), TrustError> {
        hmac::verify(&self.key(), &statement(exporter, public), proof).map_err(|_| TrustError::TokenProofInvalid)
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice())
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenVerifier({})", self.id())
    }
}

/// What a joiner proves; every part has a fixed length.
fn statement(exporter: &[u8; 32], public: &PublicKey) -> Vec<u8> {
    [b"postroad join proof 1\0".as_slice(), exporter, &public.0].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::Seeded;

    fn secret(seed: u64) -> JoinSecret {
        JoinSecret::generate(&Seeded::new(seed))
    }

    #[test]
    fn a_token_survives_copying_and_tells_a_typo() {
        let text = secret(1).reveal();
        assert_eq!(text.len(), PREFIX.len() + TEXT_DIGITS);
        for copied in [text.clone(), text.to_uppercase(), format!(" {text}\n")] {
            assert_eq!(JoinSecret::parse(&copied).unwrap().id(), secret(1).id());
        }
        let swapped = if text.ends_with('a') { text.replace('a', "b") } else { text[..62].to_owned() + "a" };
        for bad in ["", "prt1-", "prt2-abc", &text[1..], &text[..62], &format!("{text}a"), &swapped, "prt1-é"] {
            assert_eq!(JoinSecret::parse(bad).unwrap_err().code(), "TOKEN_MALFORMED", "{bad}");
        }
        let wrong_letter = text.replace(&text[20..21], "1");
        assert!(JoinSecret::parse(&wrong_letter).unwrap_err().to_string().contains("character"));
    }

    #[test]
    fn a_proof_is_bound_to_token_connection_and_key() {
        let (exporter, public) = ([5; 32], PublicKey([6; 32]));
        let proof = secret(1).proof(&exporter, &public);
        // The server knows the stored bytes alone.
        let verifier = TokenVerifier::from_bytes(secret(1).hash());
        assert_eq!(verifier.id(), secret(1).id());
        assert_eq!(verifier.check(&exporter, &public, &proof), Ok(()));
        let refused = Err(TrustError::TokenProofInvalid);
        assert_eq!(verifier.check(&[4; 32], &public, &proof), refused);
        assert_eq!(verifier.check(&exporter, &PublicKey([7; 32]), &proof), refused);
        assert_eq!(verifier.check(&exporter, &public, &proof[..31]), refused);
        assert_eq!(verifier.check(&exporter, &public, &[]), refused);
        assert_eq!(secret(2).verifier().check(&exporter, &public, &proof), refused);
    }

    #[test]
    fn debug_shows_the_name_alone() {
        let (secret, id) = (secret(1), secret(1).id());
        assert_eq!(format!("{secret:?} {:?}", secret.verifier()), format!("JoinSecret({id}) TokenVerifier({id})"));
    }

    proptest! {
        #[test]
        fn every_single_typo_is_noticed(seed in any::<u64>(), at in 0_usize..TEXT_DIGITS, digit in "[a-z2-7]") {
            let mut text = secret(seed).reveal();
            let at = PREFIX.len() + at;
            let changed = text[at..=at] != digit;
            text.replace_range(at..=at, &digit);
            prop_assert_eq!(JoinSecret::parse(&text).is_err(), changed);
        }

        #[test]
        fn garbage_never_panics(text in "(prt1-)?.{0,70}") {
            prop_assert!(JoinSecret::parse(&text).is_err());
        }
    }
}
