//! Every bound of the system and its reason: queues, buffers, retries and waits.

use crate::time::Span;

/// Socket buffers asked for on UDP sockets; the usual 212 KiB halves throughput and loses packets in bursts.
pub const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The largest message between two nodes. A snapshot of a fleet of 500 nodes and some thousand links stays under it.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The largest UDP payload over IPv4; a larger send fails.
pub const UDP_PAYLOAD_BYTES_MAX: usize = 65_507;

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
