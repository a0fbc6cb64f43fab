//! Whom a node trusts: the authorities of its cluster less what was revoked, and the check of every chain against them.

use std::collections::BTreeSet;

use postroad_cluster::{
    id::{Name, NodeId, Role},
    time::{Span, WallTime},
    verified::Verified,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, ring::ED25519};

use crate::{
    Fingerprint, PeerIdentity, PublicKey, Serial, TrustError,
    authority::snapshot_key_statement,
    certificate::{
        Window,
        read::{self, AuthorityCertificate},
    },
    error::{Place, Revoked},
    verify_signature,
};

/// What trust rests on. There can be several authorities, so that one is replaced by overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchors {
    /// The cluster.
    pub cluster: Name,
    /// The certificates of its authorities in DER; an unreadable or foreign one is passed over.
    pub authorities: Vec<Vec<u8>>,
    /// Certificates that no longer count.
    pub revoked_serials: BTreeSet<Serial>,
    /// Nodes of which no certificate and no snapshot key counts. What such a node *issued* still does: that ends with
    /// its issuing key in `revoked_issuers`.
    pub revoked_nodes: BTreeSet<NodeId>,
    /// Issuing and snapshot keys of control nodes that no longer count.
    pub revoked_issuers: BTreeSet<PublicKey>,
}

/// A snapshot key that an authority stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotKey {
    /// The control node that signs with it.
    pub node: NodeId,
    /// The key.
    pub public: PublicKey,
}

impl Anchors {
    /// Trust in one authority and nothing revoked.
    pub fn of_authority(cluster: Name, authority: Vec<u8>) -> Self {
        Self {
            cluster,
            authorities: vec![authority],
            revoked_serials: BTreeSet::new(),
            revoked_nodes: BTreeSet::new(),
            revoked_issuers: BTreeSet::new(),
        }
    }

    /// Checks a chain in DER, leaf first, as of `wall`: leaf, issuer, and possibly the authority, in that order.
    ///
    /// # Errors
    /// The `Certificate…` and [`TrustError::ChainLength`] errors, each for one thing that is wrong. Nothing that a
    /// refused chain says is to be believed, the text of the error included.
    pub fn verify_chain(&self, chain: &[&[u8]], wall: WallTime) -> Result<Verified<PeerIdentity>, TrustError> {
        read::check_bounds(chain)?;
        let leaf = read::leaf(chain[0])?;
        self.check_cluster(&leaf.cluster)?;
        let issuer_der = self.only_issuer(&chain[1..])?;
        let issuer = read::issuer(issuer_der)?;
        self.check_cluster(&issuer.cluster)?;
        leaf.window.check(Place::Leaf, wall)?;
        issuer.window.check(Place::Issuer, wall)?;
        let authority = self.verify_path(chain[0], issuer_der, wall)?;
        authority.window.check(Place::Authority, wall)?;
        self.check_revoked(&[leaf.serial, issuer.serial], leaf.node, &issuer.public)?;
        let mut identity = PeerIdentity::assemble(&leaf, &issuer);
        let window = Window { starts: identity.starts, expires: identity.expires }.within(authority.window);
        (identity.starts, identity.expires) = (window.starts, window.expires);
        Ok(Verified::vouch(identity))
    }

    /// Checks an authority's word ([`crate::Authority::certify_snapshot_key`]) for the snapshot key of a control node.
    ///
    /// # Errors
    /// [`TrustError::CertificateRevoked`] for a revoked node or key, [`TrustError::SignatureInvalid`] when no authority
    /// of this cluster signed it.
    pub fn verify_snapshot_key(
        &self,
        node: NodeId,
        public: &PublicKey,
        signature: &[u8],
    ) -> Result<Verified<SnapshotKey>, TrustError> {
        self.check_revoked(&[], node, public)?;
        let statement = snapshot_key_statement(&self.cluster, node, public);
        let stands_behind = |authority: &[u8]| {
            self.readable(authority).is_some_and(|read| verify_signature(&read.public, &statement, signature).is_ok())
        };
        if self.authorities.iter().any(|authority| stands_behind(authority)) {
            return Ok(Verified::vouch(SnapshotKey { node, public: *public }));
        }
        Err(TrustError::SignatureInvalid)
    }

    fn check_cluster(&self, found: &Name) -> Result<(), TrustError> {
        if *found == self.cluster { Ok(()) } else { Err(self.foreign(found.clone())) }
    }

    fn foreign(&self, found: Name) -> TrustError {
        TrustError::CertificateForeign { found, expected: self.cluster.clone() }
    }

    /// The one certificate between leaf and authority. Authorities that the peer sends are no evidence and are left out.
    fn only_issuer<'a>(&self, rest: &[&'a [u8]]) -> Result<&'a [u8], TrustError> {
        match rest {
            [] => Err(TrustError::CertificateMalformed { place: Place::Issuer, reason: "it is not in the chain" }),
            [issuer] => Ok(issuer),
            [issuer, others @ ..] => {
                for other in others {
                    if !self.authorities.iter().any(|authority| authority == other) {
                        return Err(match read::authority(other) {
                            Ok(unknown) => self.foreign(unknown.cluster),
                            Err(_) => TrustError::CertificatePathTooLong,
                        });
                    }
                }
                Ok(issuer)
            }
        }
    }

    /// An authority that counts: well-formed and of this cluster.
    fn readable(&self, authority: &[u8]) -> Option<AuthorityCertificate> {
        read::authority(authority).ok().filter(|read| read.cluster == self.cluster)
    }

    /// Finds the authority that the leaf's path ends at, signatures and constraints checked by webpki.
    fn verify_path(&self, leaf: &[u8], issuer: &[u8], wall: WallTime) -> Result<AuthorityCertificate, TrustError> {
        let mut refusal = self.foreign(self.cluster.clone());
        for der in &self.authorities {
            let Some(authority) = self.readable(der) else { continue };
            match verify_path_to(der, leaf, issuer, wall) {
                Ok(()) => return Ok(authority),
                // Another authority's refusal says less than that of the one that the path ends at.
                Err(error) => refusal = classify(&error).unwrap_or(refusal),
            }
        }
        Err(refusal)
    }

    fn check_revoked(&self, serials: &[Serial], node: NodeId, key: &PublicKey) -> Result<(), TrustError> {
        let serial = serials.iter().find(|serial| self.revoked_serials.contains(serial));
        let revoked = if self.revoked_issuers.contains(key) {
            Revoked::Key(*key)
        } else if self.revoked_nodes.contains(&node) {
            Revoked::Node(node)
        } else if let Some(serial) = serial {
            Revoked::Serial(*serial)
        } else {
            return Ok(());
        };
        Err(TrustError::CertificateRevoked(revoked))
    }
}

fn verify_path_to(authority: &[u8], leaf: &[u8], issuer: &[u8], wall: WallTime) -> Result<(), webpki::Error> {
    let authority = CertificateDer::from(authority);
    let anchors = [anchor_from_trusted_cert(&authority)?];
    let leaf = CertificateDer::from(leaf);
    let leaf = EndEntityCert::try_from(&leaf)?;
    let issuers = [CertificateDer::from(issuer)];
    let time = UnixTime::since_unix_epoch(Span::from_millis(wall.0));
    for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
        leaf.verify_for_usage(&[ED25519], &anchors, &issuers, time, usage, None, None)?;
    }
    Ok(())
}

/// What webpki's refusal means; none if the path just does not lead to that authority. The reader has refused most of
/// this before: webpki is the second opinion.
const fn classify(error: &webpki::Error) -> Option<TrustError> {
    use webpki::Error;
    Some(match error {
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => return None,
        Error::PathLenConstraintViolated => TrustError::CertificatePathTooLong,
        Error::EndEntityUsedAsCa => TrustError::CertificateIssuerFlag { place: Place::Issuer },
        Error::CaUsedAsEndEntity => TrustError::CertificateIssuerFlag { place: Place::Leaf },
        Error::NameConstraintViolation => TrustError::CertificateNameConstraint { place: Place::Leaf },
        Error::RequiredEkuNotFoundContext(_) => TrustError::CertificateUsage { place: Place::Leaf },
        _ => TrustError::CertificateMalformed { place: Place::Leaf, reason: "the check of its path refuses its form" },
    })
}

/// Checks the chain of a control node before anything is trusted but the fingerprint that the joiner was given. The
/// chain holds the authority's certificate too, since TLS leaves it out. `cluster` is its name, if the joiner knows it.
///
/// # Errors
/// [`TrustError::FingerprintMismatch`], [`TrustError::CertificateForeign`] for another cluster, those of
/// [`Anchors::verify_chain`], and [`TrustError::RoleMissing`] when the peer is no control node.
pub fn verify_joined(
    fingerprint: &Fingerprint,
    cluster: Option<&Name>,
    chain: &[&[u8]],
    wall: WallTime,
) -> Result<(Verified<PeerIdentity>, Anchors), TrustError> {
    read::check_bounds(chain)?;
    let Some(der) = chain.iter().find(|der| Fingerprint::of(der) == *fingerprint) else {
        return Err(TrustError::FingerprintMismatch { expected: *fingerprint });
    };
    let found = read::authority(der)?.cluster;
    if let Some(expected) = cluster.filter(|expected| **expected != found) {
        return Err(TrustError::CertificateForeign { found, expected: expected.clone() });
    }
    let anchors = Anchors::of_authority(found, der.to_vec());
    let identity = anchors.verify_chain(chain, wall)?;
    identity.get().require(Role::Control)?;
    Ok((identity, anchors))
}

#[cfg(test)]
mod tests;
