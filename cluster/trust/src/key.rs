//! Ed25519 keys, fingerprints, and the hash and signature check that everything else here rests on.

use core::{fmt, str::FromStr};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use postroad_cluster::time::Entropy;
use ring::{
    digest,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use zeroize::Zeroizing;

use crate::TrustError;

/// Bytes that people see as hexadecimal digits: as text in formats for people, plain in the others.
macro_rules! hex_bytes {
    ($(#[$doc:meta])* $name:ident, $length:literal, $noun:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $length]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&HEXLOWER.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = TrustError;

            /// Reads the hexadecimal digits, in either case.
            fn from_str(text: &str) -> Result<Self, TrustError> {
                let bad = TrustError::HexMalformed { noun: $noun, digits: 2 * $length };
                if text.len() != 2 * $length {
                    return Err(bad);
                }
                let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| bad.clone())?;
                bytes.try_into().map(Self).map_err(|_| bad)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                } else {
                    <[u8; $length]>::deserialize(deserializer).map(Self)
                }
            }
        }
    };
}

pub(crate) use hex_bytes;

hex_bytes!(/// The public half of an Ed25519 key.
    PublicKey, 32, "public key");
hex_bytes!(/// The SHA-256 of an authority's certificate: what a joiner compares before it trusts anything.
    Fingerprint, 32, "fingerprint");

impl Fingerprint {
    /// The fingerprint of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(sha256(&[certificate]))
    }
}

/// The SHA-256 of the parts, one after the other.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// A SHA-256 over what arrives piece by piece, for content that is too long to hold at once.
#[derive(Clone)]
pub struct Sha256(digest::Context);

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha256")
    }
}

impl Sha256 {
    /// The hash of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }

    /// Takes the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The hash of all pieces, one after the other.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(self.0.finish().as_ref());
        hash
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

/// Checks an Ed25519 signature over `message`.
///
/// # Errors
/// [`TrustError::SignatureInvalid`], also for a signature of another length or a key that is none.
pub fn verify_signature(key: &PublicKey, message: &[u8], signature: &[u8]) -> Result<(), TrustError> {
    UnparsedPublicKey::new(&ED25519, &key.0).verify(message, signature).map_err(|_| TrustError::SignatureInvalid)
}

/// What precedes the seed of an Ed25519 key in PKCS#8 version 1 (RFC 8410, section 7).
const PKCS8_V1_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// An Ed25519 key that signs. The seed is wiped when it goes, and `Debug` shows the public key alone.
#[derive(Clone)]
pub struct SigningKey {
    seed: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl SigningKey {
    /// Draws a new key.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        entropy.fill(seed.as_mut_slice());
        Self::from_zeroizing(seed)
    }

    /// The key of a stored seed.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self::from_zeroizing(Zeroizing::new(seed))
    }

    fn from_zeroizing(seed: Zeroizing<[u8; 32]>) -> Self {
        let mut public = PublicKey([0; 32]);
        public.0.copy_from_slice(pair(&seed).public_key().as_ref());
        Self { seed, public }
    }

    /// The secret itself, for the store of its own node and nothing else.
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        self.seed.clone()
    }

    /// The public half.
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs `message`: 64 bytes, the same for the same message.
    ///
    /// Whoever signs structured content uses [`crate::Signed`], which keeps signatures of one purpose from being
    /// taken for those of another.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        pair(&self.seed).sign(message).as_ref().to_vec()
    }

    /// The key as PKCS#8 version 1, which is what rustls reads.
    pub fn pkcs8_v1(&self) -> Zeroizing<Vec<u8>> {
        let mut der = Zeroizing::new(Vec::with_capacity(PKCS8_V1_PREFIX.len() + self.seed.len()));
        der.extend_from_slice(&PKCS8_V1_PREFIX);
        der.extend_from_slice(self.seed.as_slice());
        der
    }
}

/// The key pair is made anew for each use: ring does not wipe its own copy, so none is kept.
fn pair(seed: &[u8; 32]) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(seed).expect("32 bytes are an Ed25519 seed, whatever they are")
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Seeded;

    /// RFC 8032, section 7.1, test 2.
    const SEED: &str = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";
    const PUBLIC: &str = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
    const SIGNATURE: &str = "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
                             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";

    fn standard_key() -> SigningKey {
        SigningKey::from_seed(SEED.parse::<PublicKey>().unwrap().0)
    }

    #[test]
    fn keys_follow_the_standard() {
        let key = standard_key();
        assert_eq!(key.public().to_string(), PUBLIC);
        assert_eq!(HEXLOWER.encode(&key.sign(&[0x72])), SIGNATURE);
        assert_eq!(verify_signature(&key.public(), &[0x72], &key.sign(&[0x72])), Ok(()));
    }

    #[test]
    fn wrong_signatures_are_refused() {
        let key = standard_key();
        let signature = key.sign(b"message");
        let mut bent = signature.clone();
        bent[10] ^= 1;
        let other = SigningKey::generate(&Seeded::new(1)).public();
        for (key, message, signature) in [
            (key.public(), &b"massage"[..], &signature[..]),
            (key.public(), b"message", &bent[..]),
            (key.public(), b"message", &signature[..63]),
            (key.public(), b"message", &[]),
            (other, b"message", &signature[..]),
            (PublicKey([0xff; 32]), b"message", &signature[..]),
        ] {
            assert_eq!(verify_signature(&key, message, signature), Err(TrustError::SignatureInvalid));
        }
    }

    #[test]
    fn a_hash_over_pieces_is_the_hash_of_the_whole() {
        let mut hash = Sha256::new();
        hash.update(b"");
        hash.update(b"abc");
        hash.update(b"def");
        assert_eq!(hash.finish(), sha256(&[b"abcdef"]));
        assert_ne!(Sha256::new().finish(), sha256(&[b"abcdef"]));
    }

    #[test]
    fn rustls_gets_a_key_that_ring_reads() {
        let key = standard_key();
        let read = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&key.pkcs8_v1()).unwrap();
        assert_eq!(read.public_key().as_ref(), key.public().0);
    }

    #[test]
    fn debug_shows_no_secret() {
        let shown = format!("{:?}", standard_key());
        assert_eq!(shown, format!("SigningKey({PUBLIC})"));
        assert!(!shown.contains(&SEED[..8]));
    }

    #[test]
    fn keys_come_from_the_entropy_port_alone() {
        let draw = |seed| SigningKey::generate(&Seeded::new(seed)).public();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn bytes_are_hexadecimal_for_people() {
        let key: PublicKey = PUBLIC.parse().unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("\"{PUBLIC}\""));
        assert_eq!(serde_json::from_str::<PublicKey>(&format!("\"{}\"", PUBLIC.to_uppercase())).unwrap(), key);
        for bad in ["", &PUBLIC[1..], &PUBLIC.replace('3', "g"), &format!("{PUBLIC}00"), &"é".repeat(32)] {
            let error = bad.parse::<Fingerprint>().unwrap_err();
            assert_eq!(error.to_string(), "this is no fingerprint: 64 hexadecimal digits", "{bad}");
        }
    }
}
