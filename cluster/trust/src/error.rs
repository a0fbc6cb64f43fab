//! Every refusal of this crate: what was tried, what was found, what to do, and a code that stays.

use core::fmt;
use std::collections::BTreeSet;

use postroad_cluster::{
    id::{Name, NodeId, Role},
    limits::{CERTIFICATE_BYTES_MAX, CERTIFICATE_CHAIN_MAX},
    time::WallTime,
};
use time::OffsetDateTime;

use crate::{Fingerprint, PublicKey, Serial};

/// Which certificate of a chain an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The certificate of the node itself.
    Leaf,
    /// The certificate of the control node that issued it.
    Issuer,
    /// The certificate of the cluster's authority.
    Authority,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaf => "the node's certificate",
            Self::Issuer => "the issuer's certificate",
            Self::Authority => "the authority's certificate",
        })
    }
}

/// What of a chain was revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// One certificate.
    Serial(Serial),
    /// A node, with every certificate and snapshot key it ever had.
    Node(NodeId),
    /// An issuing or snapshot key of a control node.
    Key(PublicKey),
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serial(serial) => write!(f, "the certificate with serial {serial} was revoked"),
            Self::Node(node) => write!(f, "the node {node} was revoked"),
            Self::Key(key) => write!(f, "the control key {key} was revoked"),
        }
    }
}

/// Why something is not trusted, or could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustError {
    /// A peer sent no certificate, or more than [`CERTIFICATE_CHAIN_MAX`].
    ChainLength {
        /// How many it sent.
        found: usize,
    },
    /// A certificate is larger than [`CERTIFICATE_BYTES_MAX`].
    CertificateTooLarge {
        /// Its size in bytes.
        bytes: usize,
    },
    /// A certificate is not DER, or not of the form that Postroad issues.
    CertificateMalformed {
        /// Which one.
        place: Place,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A certificate has ended.
    CertificateExpired {
        /// Which one.
        place: Place,
        /// When it ended.
        expired: WallTime,
        /// The time it was checked at.
        wall: WallTime,
    },
    /// A certificate has not begun, usually since a clock is wrong.
    CertificateNotYetValid {
        /// Which one.
        place: Place,
        /// When it begins.
        starts: WallTime,
        /// The time it was checked at.
        wall: WallTime,
    },
    /// A certificate was issued for another cluster, or by nobody whom this cluster trusts, or was altered.
    CertificateForeign {
        /// The cluster that it names.
        found: Name,
        /// The cluster that was expected.
        expected: Name,
    },
    /// A certificate, its node or its issuer was revoked.
    CertificateRevoked(Revoked),
    /// There are more issuers between the leaf and the authority than the one that may be there.
    CertificatePathTooLong,
    /// A leaf claims to be an issuer, or what issued a certificate was not allowed to.
    CertificateIssuerFlag {
        /// Which one.
        place: Place,
    },
    /// A certificate is not for what it is used for (its key usages).
    CertificateUsage {
        /// Which one.
        place: Place,
    },
    /// An issuer or authority is not confined to its own cluster's names, or what it issued lies outside of them.
    CertificateNameConstraint {
        /// Which one.
        place: Place,
    },
    /// The peer is who it says, but may not do this.
    RoleMissing {
        /// The peer.
        node: NodeId,
        /// The role that was needed.
        needed: Role,
        /// The roles that its certificate names.
        found: BTreeSet<Role>,
    },
    /// No certificate of the chain is the authority's with the fingerprint that the joiner was given.
    FingerprintMismatch {
        /// The fingerprint it was given.
        expected: Fingerprint,
    },
    /// A text is no key, serial or fingerprint.
    HexMalformed {
        /// What it should be.
        noun: &'static str,
        /// The number of hexadecimal digits that one has.
        digits: usize,
    },
    /// A signature does not fit its content and key.
    SignatureInvalid,
    /// A signature fits, but its key is not one that may sign this.
    SignerUnknown {
        /// Who claims to have signed.
        signer: NodeId,
    },
    /// A signature is good, but what was signed cannot be read: a newer release's, or a fault of ours.
    ContentMalformed {
        /// What it should be.
        what: &'static str,
    },
    /// The content of a snapshot is not the one that its header was signed for, or neither came nor is held.
    ContentMismatch,
    /// A text is no join token; no server was asked.
    TokenMalformed {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A joiner does not hold the secret of the token that it names.
    TokenProofInvalid,
    /// The passphrase does not open the sealed authority.
    AuthorityPassphrase,
    /// A sealed authority file was cut or altered.
    AuthorityFileDamaged {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file is no sealed authority at all.
    AuthorityFileForeign,
    /// A sealed authority file was written by a newer release.
    AuthorityFileVersion {
        /// The version that it says.
        found: String,
    },
    /// An issuing key and a certificate do not belong together.
    IssuerKeyMismatch,
    /// A subject names no role, or a lifetime of less than a second.
    SubjectInvalid {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A certificate could not be written.
    CertificateUnwritable {
        /// What the library said.
        reason: String,
    },
}

impl TrustError {
    /// The code that scripts and the API rely on; it never changes.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ChainLength { .. } => "CERTIFICATE_CHAIN_LENGTH",
            Self::CertificateTooLarge { .. } => "CERTIFICATE_TOO_LARGE",
            Self::CertificateMalformed { .. } => "CERTIFICATE_MALFORMED",
            Self::CertificateExpired { .. } => "CERTIFICATE_EXPIRED",
            Self::CertificateNotYetValid { .. } => "CERTIFICATE_NOT_YET_VALID",
            Self::CertificateForeign { .. } => "CERTIFICATE_FOREIGN",
            Self::CertificateRevoked(_) => "CERTIFICATE_REVOKED",
            Self::CertificatePathTooLong => "CERTIFICATE_PATH_TOO_LONG",
            Self::CertificateIssuerFlag { .. } => "CERTIFICATE_ISSUER_FLAG",
            Self::CertificateUsage { .. } => "CERTIFICATE_USAGE",
            Self::CertificateNameConstraint { .. } => "CERTIFICATE_NAME_CONSTRAINT",
            Self::RoleMissing { .. } => "ROLE_MISSING",
            Self::FingerprintMismatch { .. } => "FINGERPRINT_MISMATCH",
            Self::HexMalformed { .. } => "HEX_MALFORMED",
            Self::SignatureInvalid => "SIGNATURE_INVALID",
            Self::SignerUnknown { .. } => "SIGNER_UNKNOWN",
            Self::ContentMalformed { .. } => "CONTENT_MALFORMED",
            Self::ContentMismatch => "CONTENT_MISMATCH",
            Self::TokenMalformed { .. } => "TOKEN_MALFORMED",
            Self::TokenProofInvalid => "TOKEN_PROOF_INVALID",
            Self::AuthorityPassphrase => "AUTHORITY_PASSPHRASE",
            Self::AuthorityFileDamaged { .. } => "AUTHORITY_FILE_DAMAGED",
            Self::AuthorityFileForeign => "AUTHORITY_FILE_FOREIGN",
            Self::AuthorityFileVersion { .. } => "AUTHORITY_FILE_VERSION",
            Self::IssuerKeyMismatch => "ISSUER_KEY_MISMATCH",
            Self::SubjectInvalid { .. } => "SUBJECT_INVALID",
            Self::CertificateUnwritable { .. } => "CERTIFICATE_UNWRITABLE",
        }
    }
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChainLength { found } => {
                write!(f, "the peer sent {found} certificates; 1 to {CERTIFICATE_CHAIN_MAX} are read")
            }
            Self::CertificateTooLarge { bytes } => {
                write!(f, "a certificate of {bytes} bytes was not read: {CERTIFICATE_BYTES_MAX} at most")
            }
            Self::CertificateMalformed { place, reason } => {
                write!(f, "{place} cannot be used: {reason}; enrol the node again")
            }
            Self::CertificateExpired { place, expired, wall } => write!(
                f,
                "{place} ended at {}, and it is {}: renew it or enrol again, or set the clock",
                Utc(*expired),
                Utc(*wall)
            ),
            Self::CertificateNotYetValid { place, starts, wall } => {
                write!(f, "{place} begins at {}, and it is {}: check the clocks", Utc(*starts), Utc(*wall))
            }
            Self::CertificateForeign { found, expected } if found == expected => write!(
                f,
                "the certificate names cluster {found}, but none of its authorities stands behind it: \
                 it is another cluster of that name, or was altered"
            ),
            Self::CertificateForeign { found, expected } => {
                write!(f, "the certificate belongs to cluster {found}, not {expected}: check the address")
            }
            Self::CertificateRevoked(what) => write!(f, "{what}; if that was a mistake, enrol the node again"),
            Self::CertificatePathTooLong => {
                f.write_str("the chain has an issuer issued by another issuer; only the authority certifies issuers")
            }
            Self::CertificateIssuerFlag { place: Place::Leaf } => {
                f.write_str("the node's certificate claims to be an issuer's; a node proves itself with a node's")
            }
            Self::CertificateIssuerFlag { place } => {
                write!(f, "{place} does not allow its key to issue certificates; the chain is refused")
            }
            Self::CertificateUsage { place } => {
                write!(f, "{place} is for other uses than Postroad's; the chain is refused")
            }
            Self::CertificateNameConstraint { place } => {
                write!(f, "{place} is not confined to the names of its own cluster; the chain is refused")
            }
            Self::RoleMissing { node, needed, found } => {
                write!(f, "{node} may not do this: it needs the role {needed} and has ")?;
                let mut separator = "";
                for role in found {
                    write!(f, "{separator}{role}")?;
                    separator = ", ";
                }
                f.write_str(if found.is_empty() { "none" } else { "" })
            }
            Self::FingerprintMismatch { expected } => write!(
                f,
                "the server showed no authority with the fingerprint {expected}: it is another cluster, or somebody \
                 is between; compare the fingerprint with that of `postroad status` on a control node"
            ),
            Self::HexMalformed { noun, digits } => write!(f, "this is no {noun}: {digits} hexadecimal digits"),
            Self::SignatureInvalid => f.write_str("the signature does not fit the content; it was altered on the way"),
            Self::SignerUnknown { signer } => {
                write!(f, "signed by {signer} with a key that may not sign this; nothing was taken over")
            }
            Self::ContentMalformed { what } => {
                write!(
                    f,
                    "a {what} was signed rightly but cannot be read: update this node to the control nodes' release"
                )
            }
            Self::ContentMismatch => {
                f.write_str("the content of a snapshot is not the one that was signed; it is asked for again, whole")
            }
            Self::TokenMalformed { reason } => write!(f, "this is no join token: {reason}; copy it again, whole"),
            Self::TokenProofInvalid => f.write_str("the joiner does not hold the token's secret; nothing was issued"),
            Self::AuthorityPassphrase => {
                f.write_str("the passphrase does not open the authority's file; nothing was changed, try again")
            }
            Self::AuthorityFileDamaged { reason } => {
                write!(f, "the authority's file is damaged: {reason}; use another copy of it")
            }
            Self::AuthorityFileForeign => f.write_str(
                "this is no authority's file: that is the one that `postroad init` wrote, beginning with \
                 -----BEGIN POSTROAD AUTHORITY-----",
            ),
            Self::AuthorityFileVersion { found } => {
                write!(f, "the authority's file has version {found:?}, and this release reads 1: use a newer release")
            }
            Self::IssuerKeyMismatch => f.write_str(
                "the issuing key and its certificate do not belong together: promote the control node again",
            ),
            Self::SubjectInvalid { reason } => write!(f, "no certificate was issued: {reason}"),
            Self::CertificateUnwritable { reason } => write!(f, "no certificate was written: {reason}"),
        }
    }
}

impl std::error::Error for TrustError {}

/// A wall time as people read it.
struct Utc(WallTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0.0 / 1_000).unwrap_or(i64::MAX);
        match OffsetDateTime::from_unix_timestamp(seconds) {
            Ok(at) => {
                let (date, month) = (at.date(), u8::from(at.month()));
                write!(f, "{}-{month:02}-{:02} {:02}:{:02} UTC", date.year(), date.day(), at.hour(), at.minute())
            }
            Err(_) => f.write_str("a time after the year 9999"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_what_was_found_and_what_to_do() {
        let expired = TrustError::CertificateExpired {
            place: Place::Leaf,
            expired: WallTime(1_767_323_045_000),
            wall: WallTime(u64::MAX),
        };
        assert_eq!(
            expired.to_string(),
            "the node's certificate ended at 2026-01-02 03:04 UTC, and it is a time after the year 9999: renew it or \
             enrol again, or set the clock"
        );
        let role =
            TrustError::RoleMissing { node: NodeId(7), needed: Role::Control, found: [Role::Relay, Role::Node].into() };
        assert_eq!(role.to_string(), "n7 may not do this: it needs the role control and has relay, node");
        assert_eq!(role.code(), "ROLE_MISSING");
    }
}
