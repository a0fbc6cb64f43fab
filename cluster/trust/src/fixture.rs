//! What the tests of this crate share: seeded entropy, and a cluster with one authority and one issuer.

use std::sync::Mutex;

use postroad_cluster::{
    id::{NodeId, Role},
    limits::CERTIFICATE_LIFETIME,
    time::{Entropy, WallTime},
};

use crate::{Anchors, Authority, Issuer, SigningKey, Subject, sha256};

/// The time of the tests: 2026-01-01 00:00 UTC.
pub(crate) const WALL: WallTime = WallTime(1_767_225_600_000);

/// Entropy that repeats: SHA-256 of seed and counter.
#[derive(Debug)]
pub(crate) struct Seeded(u64, Mutex<u64>);

impl Seeded {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed, Mutex::new(0))
    }
}

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        let mut counter = self.1.lock().unwrap();
        for chunk in bytes.chunks_mut(32) {
            *counter += 1;
            let block = sha256(&[&self.0.to_be_bytes(), &counter.to_be_bytes()]);
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

/// The cluster `prod` and its first control node, n1.
pub(crate) struct World {
    pub(crate) authority: Authority,
    pub(crate) issuer: Issuer,
    pub(crate) issuer_key: SigningKey,
    entropy: Seeded,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self::named("prod", seed)
    }

    pub(crate) fn named(cluster: &str, seed: u64) -> Self {
        let entropy = Seeded::new(seed);
        let authority = Authority::create(&cluster.parse().unwrap(), &entropy, WALL).unwrap();
        let issuer_key = SigningKey::generate(&entropy);
        let certificate = authority.certify_issuer(issuer_key.public(), NodeId(1), WALL, &entropy).unwrap();
        let issuer = Issuer::new(authority.cluster().clone(), issuer_key.clone(), certificate).unwrap();
        Self { authority, issuer, issuer_key, entropy }
    }

    pub(crate) fn anchors(&self) -> Anchors {
        Anchors::of_authority(self.authority.cluster().clone(), self.authority.certificate().to_vec())
    }

    /// A chain for a new key of `node`.
    pub(crate) fn issue(&self, node: u64, roles: &[Role]) -> Vec<Vec<u8>> {
        let subject =
            Subject { node: NodeId(node), roles: roles.iter().copied().collect(), lifetime: CERTIFICATE_LIFETIME };
        self.issuer.issue(&subject, SigningKey::generate(&self.entropy).public(), WALL, &self.entropy).unwrap()
    }
}

pub(crate) fn refs(chain: &[Vec<u8>]) -> Vec<&[u8]> {
    chain.iter().map(Vec::as_slice).collect()
}
