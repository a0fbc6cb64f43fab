//! Certificates, the authority, and joining.

use crate::time::Span;

/// Certificates in a chain: leaf, issuer, authority, and one to spare. A peer that sends more is refused unread.
pub const CERTIFICATE_CHAIN_MAX: usize = 4;

/// The largest certificate that is read. Ours stay under 1 KiB, whatever the names.
pub const CERTIFICATE_BYTES_MAX: usize = 4 << 10;

/// How long before its issue a certificate begins: clocks of a fleet may be apart by less than this.
pub const CERTIFICATE_EARLY: Span = Span::from_hours(1);

/// The life of a node's certificate: twice a pool member's grant, so that three days without control plane end no session.
pub const CERTIFICATE_LIFETIME: Span = Span::from_hours(192);

/// The life of an issuing key's certificate. Renewing it needs the offline authority, so it is rare; revocation ends it early.
pub const ISSUER_LIFETIME: Span = Span::from_hours(10 * 365 * 24);

/// The life of an authority. Longer than two issuers', so that replacing it by overlap never hurries.
pub const AUTHORITY_LIFETIME: Span = Span::from_hours(25 * 365 * 24);

/// The largest sealed authority file that is read; ours stay under 2 KiB.
pub const AUTHORITY_FILE_BYTES_MAX: usize = 16 << 10;

/// PBKDF2 rounds that seal an authority: about a second for the operator, as much for every guess of a thief.
pub const AUTHORITY_SEAL_ROUNDS: u32 = 1_000_000;

/// The most PBKDF2 rounds that are accepted from a file: more would hang the command that opens it.
pub const AUTHORITY_SEAL_ROUNDS_MAX: u32 = 20_000_000;

/// How long a token may wait for its joiner: a forgotten one is a way in.
pub const TOKEN_LIFETIME_MAX: Span = Span::from_hours(7 * 24);

/// An Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

/// How long a joiner tries one seed before the next.
pub const JOIN_SEED_WAIT: Span = Span::from_secs(3);

/// Seeds that a joiner tries.
pub const JOIN_SEEDS_MAX: usize = 16;

/// How long the answer to a join may take: a proposal's wait and its way through the leader.
pub const JOIN_ANSWER_WAIT: Span = Span::from_secs(15);
