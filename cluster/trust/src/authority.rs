//! The authority of a cluster: the offline root that certifies the issuing and snapshot keys of control nodes.

mod seal;

use postroad_cluster::{
    id::{Name, NodeId},
    limits::{AUTHORITY_LIFETIME, ISSUER_LIFETIME},
    time::{Entropy, WallTime},
};
use rustls_pki_types::CertificateDer;

use crate::{
    Fingerprint, PublicKey, Serial, SigningKey, TrustError,
    certificate::{Certified, Draft, Signer, Window, read, unwritable},
    error::Place,
};

/// The root of a cluster's trust, open in memory. It exists while `init` or `control promote` runs and is otherwise
/// kept sealed and offline.
#[derive(Debug)]
pub struct Authority {
    cluster: Name,
    key: SigningKey,
    certificate: Vec<u8>,
    window: Window,
}

impl Authority {
    /// Makes the authority of a new cluster, or a successor of one.
    ///
    /// # Errors
    /// [`TrustError::CertificateUnwritable`] when `wall` is out of the range of certificates.
    pub fn create(cluster: &Name, entropy: &dyn Entropy, wall: WallTime) -> Result<Self, TrustError> {
        let key = SigningKey::generate(entropy);
        let window = Window::issued(wall, AUTHORITY_LIFETIME);
        let params = Draft { cluster, window, serial: Serial::draw(entropy) }.authority(&key.public())?;
        let certificate = params.self_signed(&Signer::new(&key)).map_err(|error| unwritable(&error))?.der().to_vec();
        Ok(Self { cluster: cluster.clone(), key, certificate, window })
    }

    /// Puts a stored authority together again.
    fn assemble(key: SigningKey, certificate: Vec<u8>) -> Result<Self, TrustError> {
        let read = read::authority(&certificate)?;
        if read.public != key.public() {
            return Err(TrustError::IssuerKeyMismatch);
        }
        Ok(Self { cluster: read.cluster, key, certificate, window: read.window })
    }

    /// The cluster it is the root of.
    pub const fn cluster(&self) -> &Name {
        &self.cluster
    }

    /// Its certificate in DER: what goes into [`crate::Anchors`].
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The fingerprint of its certificate: what a joiner is given.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Certifies the issuing key of a control node: DER of an intermediate that may certify nodes of this cluster and
    /// nothing else, for [`ISSUER_LIFETIME`], but no longer than the authority itself.
    ///
    /// # Errors
    /// [`TrustError::CertificateExpired`] or [`TrustError::CertificateNotYetValid`] when the authority does not hold at
    /// `wall`.
    pub fn certify_issuer(
        &self,
        public: PublicKey,
        node: NodeId,
        wall: WallTime,
        entropy: &dyn Entropy,
    ) -> Result<Vec<u8>, TrustError> {
        self.window.check(Place::Authority, wall)?;
        let window = Window::issued(wall, ISSUER_LIFETIME).within(self.window);
        let draft = Draft { cluster: &self.cluster, window, serial: Serial::draw(entropy) };
        let own = CertificateDer::from(self.certificate.as_slice());
        let issuer =
            rcgen::Issuer::from_ca_cert_der(&own, Signer::new(&self.key)).map_err(|error| unwritable(&error))?;
        let certificate =
            draft.issuer(node, &public)?.signed_by(&Certified(public), &issuer).map_err(|error| unwritable(&error))?;
        Ok(certificate.der().to_vec())
    }

    /// Certifies the snapshot key of a control node: a signature that [`crate::Anchors::verify_snapshot_key`] checks.
    /// It has no end but a revocation.
    pub fn certify_snapshot_key(&self, node: NodeId, public: &PublicKey) -> Vec<u8> {
        self.key.sign(&snapshot_key_statement(&self.cluster, node, public))
    }
}

/// What an authority signs about a snapshot key. Each part has a fixed length or says its own, so that no two statements are
/// written alike; it begins with a letter, which no certificate and no TLS handshake does.
pub(crate) fn snapshot_key_statement(cluster: &Name, node: NodeId, public: &PublicKey) -> Vec<u8> {
    let name = cluster.as_str().as_bytes();
    let mut statement = b"postroad snapshot key 1\0".to_vec();
    statement.push(name.len() as u8);
    statement.extend_from_slice(name);
    statement.extend_from_slice(&node.0.to_be_bytes());
    statement.extend_from_slice(&public.0);
    statement
}

#[cfg(test)]
mod tests {
    use postroad_cluster::time::Span;

    use super::*;
    use crate::fixture::{Seeded, WALL};

    fn authority(seed: u64) -> Authority {
        Authority::create(&"prod".parse().unwrap(), &Seeded::new(seed), WALL).unwrap()
    }

    #[test]
    fn the_same_entropy_makes_the_same_bytes() {
        let (one, two) = (authority(1), authority(1));
        assert_eq!(one.certificate(), two.certificate());
        assert_ne!(one.fingerprint(), authority(2).fingerprint());
        let public = SigningKey::generate(&Seeded::new(3)).public();
        let certify = |root: &Authority| root.certify_issuer(public, NodeId(1), WALL, &Seeded::new(4)).unwrap();
        assert_eq!(certify(&one), certify(&two));
    }

    #[test]
    fn all_certificates_of_a_kind_have_one_length() {
        let issuer = |seed| {
            let public = SigningKey::generate(&Seeded::new(seed)).public();
            let wall = WALL.after(Span::from_hours(seed));
            authority(seed).certify_issuer(public, NodeId(seed % 10), wall, &Seeded::new(seed + 1)).unwrap().len()
        };
        let length = authority(0).certificate().len();
        assert!((1..50).all(|seed| authority(seed).certificate().len() == length));
        assert!((1..50).all(|seed| issuer(seed) == issuer(0)));
    }

    #[test]
    fn an_issuer_ends_with_its_authority() {
        let root = authority(1);
        let late = WALL.after(AUTHORITY_LIFETIME).before(Span::from_hours(1));
        let public = SigningKey::generate(&Seeded::new(3)).public();
        let der = root.certify_issuer(public, NodeId(1), late, &Seeded::new(4)).unwrap();
        assert_eq!(
            read::issuer(&der).unwrap().window.expires,
            read::authority(root.certificate()).unwrap().window.expires
        );
        let refused = root.certify_issuer(public, NodeId(1), WALL.after(AUTHORITY_LIFETIME), &Seeded::new(4));
        assert_eq!(refused.unwrap_err().code(), "CERTIFICATE_EXPIRED");
        let refused = root.certify_issuer(public, NodeId(1), WallTime(0), &Seeded::new(4));
        assert_eq!(refused.unwrap_err().code(), "CERTIFICATE_NOT_YET_VALID");
    }

    #[test]
    fn a_time_out_of_range_is_refused() {
        let made = Authority::create(&"prod".parse().unwrap(), &Seeded::new(1), WallTime(u64::MAX));
        assert_eq!(made.unwrap_err().code(), "CERTIFICATE_UNWRITABLE");
    }
}
