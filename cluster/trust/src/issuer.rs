//! The issuing key of a control node, which certifies nodes, relays, control nodes and operators.

use std::collections::BTreeSet;

use postroad_cluster::{
    id::{Name, NodeId, Role},
    time::{Entropy, Span, WallTime},
};
use rustls_pki_types::CertificateDer;

use crate::{
    PublicKey, Serial, SigningKey, TrustError,
    certificate::{Certified, Draft, Signer, Window, read, unwritable},
    error::Place,
};

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The node.
    pub node: NodeId,
    /// What it may be: at least one role.
    pub roles: BTreeSet<Role>,
    /// How long from now the certificate holds, in whole seconds and at least one; it never outlives the issuer's.
    pub lifetime: Span,
}

/// A control node's issuing key and the authority's word for it.
#[derive(Debug)]
pub struct Issuer {
    cluster: Name,
    key: SigningKey,
    certificate: Vec<u8>,
    node: NodeId,
    window: Window,
}

impl Issuer {
    /// Takes the issuing key of `cluster` and its certificate, as [`crate::Authority::certify_issuer`] made it.
    ///
    /// # Errors
    /// [`TrustError::IssuerKeyMismatch`], [`TrustError::CertificateForeign`], and what the reading of the certificate
    /// finds.
    pub fn new(cluster: Name, key: SigningKey, certificate: Vec<u8>) -> Result<Self, TrustError> {
        let read = read::issuer(&certificate)?;
        if read.cluster != cluster {
            return Err(TrustError::CertificateForeign { found: read.cluster, expected: cluster });
        }
        if read.public != key.public() {
            return Err(TrustError::IssuerKeyMismatch);
        }
        Ok(Self { cluster, key, certificate, node: read.node, window: read.window })
    }

    /// The cluster it issues for.
    pub const fn cluster(&self) -> &Name {
        &self.cluster
    }

    /// The control node whose key it is.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The public half of its key.
    pub const fn public(&self) -> PublicKey {
        self.key.public()
    }

    /// Its certificate in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// When its certificate ends; the control node must be promoted again before.
    pub const fn expires(&self) -> WallTime {
        self.window.expires
    }

    /// Certifies that `public` is the key of `subject`: the chain in DER, leaf first, then the issuer's own.
    ///
    /// # Errors
    /// [`TrustError::SubjectInvalid`], and [`TrustError::CertificateExpired`] or
    /// [`TrustError::CertificateNotYetValid`] when the issuer's own certificate does not hold at `wall`.
    pub fn issue(
        &self,
        subject: &Subject,
        public: PublicKey,
        wall: WallTime,
        entropy: &dyn Entropy,
    ) -> Result<Vec<Vec<u8>>, TrustError> {
        if subject.roles.is_empty() {
            return Err(TrustError::SubjectInvalid { reason: "a certificate names at least one role" });
        }
        if subject.lifetime < Span::from_secs(1) {
            return Err(TrustError::SubjectInvalid { reason: "a certificate holds for at least a second" });
        }
        self.window.check(Place::Issuer, wall)?;
        let window = Window::issued(wall, subject.lifetime).within(self.window);
        let draft = Draft { cluster: &self.cluster, window, serial: Serial::draw(entropy) };
        let own = CertificateDer::from(self.certificate.as_slice());
        let issuer =
            rcgen::Issuer::from_ca_cert_der(&own, Signer::new(&self.key)).map_err(|error| unwritable(&error))?;
        let params = draft.leaf(subject.node, &subject.roles)?;
        let leaf = params.signed_by(&Certified(public), &issuer).map_err(|error| unwritable(&error))?;
        Ok(vec![leaf.der().to_vec(), self.certificate.clone()])
    }
}

#[cfg(test)]
mod tests {
    use postroad_cluster::limits::{CERTIFICATE_EARLY, CERTIFICATE_LIFETIME, ISSUER_LIFETIME};

    use super::*;
    use crate::fixture::{Seeded, WALL, World};

    fn subject(node: u64) -> Subject {
        Subject { node: NodeId(node), roles: [Role::Node].into(), lifetime: CERTIFICATE_LIFETIME }
    }

    #[test]
    fn the_same_inputs_give_the_same_bytes() {
        let issue = |seed| {
            let world = World::new(1);
            let public = SigningKey::generate(&Seeded::new(2)).public();
            world.issuer.issue(&subject(7), public, WALL, &Seeded::new(seed)).unwrap()
        };
        assert_eq!(issue(3), issue(3));
        assert_ne!(issue(3)[0], issue(4)[0]);
    }

    #[test]
    fn leaves_of_equal_names_have_one_length() {
        let world = World::new(1);
        let length = |seed| {
            let public = SigningKey::generate(&Seeded::new(seed)).public();
            let wall = WALL.after(Span::from_millis(seed * 77_777_777));
            world.issuer.issue(&subject(seed % 10), public, wall, &Seeded::new(seed)).unwrap()[0].len()
        };
        assert!((1..200).all(|seed| length(seed) == length(0)));
    }

    #[test]
    fn a_leaf_begins_early_and_ends_no_later_than_its_issuer() {
        let world = World::new(1);
        let public = SigningKey::generate(&Seeded::new(2)).public();
        let window = |wall| {
            let chain = world.issuer.issue(&subject(7), public, wall, &Seeded::new(3)).unwrap();
            read::leaf(&chain[0]).unwrap().window
        };
        let usual = WALL.after(Span::from_hours(24));
        assert_eq!(window(usual).starts, usual.before(CERTIFICATE_EARLY));
        assert_eq!(window(usual).expires, usual.after(CERTIFICATE_LIFETIME));
        let late = WALL.after(ISSUER_LIFETIME).before(Span::from_hours(1));
        assert_eq!(window(late).expires, world.issuer.expires());
        let refused = world.issuer.issue(&subject(7), public, world.issuer.expires(), &Seeded::new(3));
        assert_eq!(refused.unwrap_err().code(), "CERTIFICATE_EXPIRED");
    }

    #[test]
    fn subjects_without_role_or_time_are_refused() {
        let world = World::new(1);
        let public = SigningKey::generate(&Seeded::new(2)).public();
        for bad in [
            Subject { roles: BTreeSet::new(), ..subject(7) },
            Subject { lifetime: Span::from_millis(999), ..subject(7) },
        ] {
            let refused = world.issuer.issue(&bad, public, WALL, &Seeded::new(3)).unwrap_err();
            assert_eq!(refused.code(), "SUBJECT_INVALID");
        }
    }

    #[test]
    fn a_key_needs_its_own_certificate() {
        let world = World::new(1);
        let certificate = world.issuer.certificate().to_vec();
        let other = || SigningKey::generate(&Seeded::new(9));
        let code = |cluster: &str, certificate: Vec<u8>| {
            Issuer::new(cluster.parse().unwrap(), other(), certificate).unwrap_err().code()
        };
        assert_eq!(code("prod", certificate.clone()), "ISSUER_KEY_MISMATCH");
        assert_eq!(code("test", certificate), "CERTIFICATE_FOREIGN");
        assert_eq!(code("prod", world.issue(7, &[Role::Node]).remove(0)), "CERTIFICATE_ISSUER_FLAG");
        assert_eq!(code("prod", world.authority.certificate().to_vec()), "CERTIFICATE_PATH_TOO_LONG");
    }
}
