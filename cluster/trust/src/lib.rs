//! Who may speak: keys, certificates, signatures and tokens. The only crate that vouches for a `Verified<T>`.
//!
//! - [`key`]: Ed25519 keys and fingerprints
//! - [`authority`]: the offline root of a cluster, and the sealed file it is kept in
//! - [`issuer`]: a control node's own issuing key, which certifies nodes
//! - [`identity`]: what a certificate says about a node
//! - [`anchors`]: whom a node trusts, and the check of a chain
//! - [`token`]: the one-time secret of a joiner
//! - [`signed`]: signed content of any kind
//! - [`grant`], [`revocation`], [`snapshot`]: what control nodes sign for others
//! - [`error`]: every refusal, its code and its sentence

pub mod anchors;
pub mod authority;
mod certificate;
pub mod error;
pub mod grant;
pub mod identity;
pub mod issuer;
pub mod key;
pub mod revocation;
pub mod signed;
pub mod snapshot;
pub mod token;

#[cfg(test)]
mod fixture;

pub use anchors::{Anchors, SnapshotKey, verify_joined};
pub use authority::Authority;
pub use error::TrustError;
pub use grant::{sign_grant, verify_grant};
pub use identity::{PeerIdentity, Serial, read_identity};
pub use issuer::{Issuer, Subject};
pub use key::{Fingerprint, PublicKey, Sha256, SigningKey, sha256, verify_signature};
pub use revocation::{sign_revocations, verify_revocations};
pub use signed::Signed;
pub use snapshot::{content_hash, sign_snapshot, verify_snapshot};
pub use token::{JoinSecret, TokenVerifier};
