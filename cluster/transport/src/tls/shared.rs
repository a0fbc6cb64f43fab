//! This node's certificate and its trust: shared by every connection, replaced as a whole while they run.

use std::{
    fmt,
    future::Future,
    sync::{Arc, PoisonError, RwLock},
};

use postroad_trust::{Anchors, PeerIdentity, SigningKey, TrustError, error::Place, read_identity};
use rustls::{
    crypto::ring::sign::any_eddsa_type,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use tokio::sync::Notify;

/// Whom this node trusts: a newer snapshot's authorities and revocations count for new handshakes, and for open
/// connections, as soon as they are here.
pub type SharedTrust = Shared<Anchors>;

/// What this node shows of itself: a renewed certificate is shown in new handshakes and proved in open connections.
pub type SharedIdentity = Shared<Identity>;

/// A value that many read and one replaces. Clones are the same value.
pub struct Shared<T>(Arc<Inner<T>>);

struct Inner<T> {
    value: RwLock<Arc<T>>,
    changed: Notify,
}

impl<T> Shared<T> {
    /// Shares `value`.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner { value: RwLock::new(Arc::new(value)), changed: Notify::new() }))
    }

    /// The value as of now.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.0.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the value and wakes who waits for that.
    pub fn replace(&self, value: T) {
        *self.0.value.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        self.0.changed.notify_waiters();
    }

    /// Completes when the value is replaced after this call, however late it is polled.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + '_
    where
        T: Send + Sync,
    {
        self.0.changed.notified()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.current()).finish()
    }
}

/// A certificate of this node with its key.
pub struct Identity {
    described: PeerIdentity,
    chain: Vec<Vec<u8>>,
    key: SigningKey,
    certified: Arc<CertifiedKey>,
    with_authority: Arc<CertifiedKey>,
}

impl Identity {
    /// Takes a chain (DER, leaf first, then its issuer) and the key that it is about. One of the authorities must stand
    /// behind it, whatever the time is: an expired certificate is still taken, its peers will say so.
    ///
    /// # Errors
    /// Those of [`Anchors::verify_chain`], and [`TrustError::CertificateMalformed`] when the key is another.
    pub fn new(chain: Vec<Vec<u8>>, key: SigningKey, anchors: &Anchors) -> Result<Self, TrustError> {
        let links: Vec<&[u8]> = chain.iter().map(Vec::as_slice).collect();
        let described = read_identity(&links)?;
        if described.public != key.public() {
            let reason = "it is about another key than this node's";
            return Err(TrustError::CertificateMalformed { place: Place::Leaf, reason });
        }
        let authority = authority_of(&links, &described, anchors)?;
        let certified = certify(&chain, None, &key)?;
        let with_authority = certify(&chain, Some(&authority), &key)?;
        Ok(Self { described, chain, key, certified, with_authority })
    }

    /// What the certificate says.
    pub const fn described(&self) -> &PeerIdentity {
        &self.described
    }

    /// The chain in DER, leaf first.
    pub fn chain(&self) -> &[Vec<u8>] {
        &self.chain
    }

    /// The key.
    pub const fn key(&self) -> &SigningKey {
        &self.key
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }

    /// With the authority's certificate, which joiners compare with their fingerprint: TLS leaves it out otherwise.
    pub(super) fn with_authority(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.with_authority)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.described).finish()
    }
}

/// The one authority that stands behind a chain, at the moment that the chain begins.
fn authority_of(chain: &[&[u8]], described: &PeerIdentity, anchors: &Anchors) -> Result<Vec<u8>, TrustError> {
    let mut refusal =
        TrustError::CertificateForeign { found: described.cluster.clone(), expected: anchors.cluster.clone() };
    for authority in &anchors.authorities {
        let alone = Anchors::of_authority(anchors.cluster.clone(), authority.clone());
        match alone.verify_chain(chain, described.starts) {
            Ok(_) => return Ok(authority.clone()),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

fn certify(chain: &[Vec<u8>], authority: Option<&Vec<u8>>, key: &SigningKey) -> Result<Arc<CertifiedKey>, TrustError> {
    let unusable = TrustError::CertificateMalformed { place: Place::Leaf, reason: "TLS does not take its key" };
    let pkcs8 = key.pkcs8_v1();
    let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice())).map_err(|_| unusable)?;
    let chain = chain.iter().chain(authority).cloned().map(CertificateDer::from).collect();
    Ok(Arc::new(CertifiedKey::new(chain, signer)))
}
