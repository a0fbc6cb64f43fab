//! Revoked routes: cumulative, signed, passed on by whoever has newer ones, and who is stale for which route (RP-35).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    command::PublicKeyBytes,
    id::{Generation, LinkId, Name, NodeId, Version},
    limits::{REVOCATION_KEPT, REVOCATIONS_MAX, REVOKED_WITHIN},
    time::WallTime,
};

/// The newest revocation of a link's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Routes of generations below this one are revoked; of a deleted link, all.
    pub below: Generation,
    /// The entry that revoked them.
    pub version: Version,
    /// When.
    pub at: WallTime,
}

/// Every revocation that may still matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    /// The entry of the newest one: whoever has applied this version has applied all.
    pub version: Version,
    /// By link.
    pub routes: BTreeMap<LinkId, Revocation>,
}

/// What is signed: revocations with the cluster that they are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationList {
    /// The cluster.
    pub cluster: Name,
    /// All of them.
    pub revocations: Revocations,
}

/// Revocations with a control node's signature, and the authority's word for its key, so that anybody may pass them on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedRevocations {
    /// The encoded [`RevocationList`].
    pub list: Vec<u8>,
    /// The control node that signed.
    pub signer: NodeId,
    /// Its snapshot key.
    pub key: PublicKeyBytes,
    /// The authority's signature over that key.
    pub key_signature: Vec<u8>,
    /// The Ed25519 signature over the list.
    pub signature: Vec<u8>,
}

impl Revocations {
    /// Revokes routes of a link. The oldest make room where there are too many.
    pub fn revoke(&mut self, link: LinkId, revocation: Revocation) {
        self.version = self.version.max(revocation.version);
        self.routes.insert(link, revocation);
        while self.routes.len() > REVOCATIONS_MAX {
            let oldest = self.routes.iter().min_by_key(|(_, revocation)| revocation.version).map(|(link, _)| *link);
            let Some(oldest) = oldest else { return };
            self.routes.remove(&oldest);
        }
    }

    /// Forgets those whose grants and policies have all ended. Returns whether there were such.
    pub fn forget(&mut self, now: WallTime) -> bool {
        let before = self.routes.len();
        self.routes.retain(|_, revocation| now.since(revocation.at) <= REVOCATION_KEPT);
        self.routes.len() < before
    }

    /// Whether this route was revoked.
    #[must_use]
    pub fn is_revoked(&self, link: LinkId, generation: Generation) -> bool {
        self.routes.get(&link).is_some_and(|revocation| generation < revocation.below)
    }

    /// Whether a relay that has applied `applied` is stale for a link: it knows nothing of a revocation of it that is
    /// older than [`REVOKED_WITHIN`], so nothing new of that link goes through it.
    #[must_use]
    pub fn is_stale(&self, link: LinkId, applied: Version, now: WallTime) -> bool {
        self.routes
            .get(&link)
            .is_some_and(|revocation| applied < revocation.version && now.since(revocation.at) > REVOKED_WITHIN)
    }

    /// How many revocations are pending at a relay that has applied `applied`, and for how many it is stale.
    #[must_use]
    pub fn outstanding(&self, applied: Version, now: WallTime) -> (usize, usize) {
        let open = self.routes.iter().filter(|(_, revocation)| revocation.version > applied);
        let (stale, pending): (Vec<_>, Vec<_>) = open.partition(|(link, _)| self.is_stale(**link, applied, now));
        (pending.len(), stale.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    fn one(below: u64, version: u64, at: u64) -> Revocation {
        Revocation { below: Generation(below), version: Version(version), at: WallTime(at) }
    }

    // RP-35: 90 s to the millisecond, and for those routes only.
    #[test]
    fn a_relay_is_stale_for_what_it_has_not_applied_in_time() {
        let mut all = Revocations::default();
        all.revoke(LinkId(1), one(2, 10, 1_000));
        all.revoke(LinkId(2), one(u64::MAX, 12, 5_000));
        assert_eq!(all.version, Version(12));
        assert!(all.is_revoked(LinkId(1), Generation(1)) && !all.is_revoked(LinkId(1), Generation(2)));
        assert!(all.is_revoked(LinkId(2), Generation(9)) && !all.is_revoked(LinkId(3), Generation(1)));
        let stale = |link, applied, now| all.is_stale(LinkId(link), Version(applied), WallTime(now));
        assert!(!stale(1, 9, 91_000) && stale(1, 9, 91_001), "90 s");
        assert!(!stale(1, 10, 999_000), "it has applied this one");
        assert!(!stale(2, 9, 95_000) && stale(2, 9, 95_001));
        assert!(!stale(3, 0, 999_000), "other routes go on");
        assert_eq!(all.outstanding(Version(9), WallTime(50_000)), (2, 0));
        assert_eq!(all.outstanding(Version(9), WallTime(93_000)), (1, 1));
        assert_eq!(all.outstanding(Version(11), WallTime(99_000)), (0, 1));
        assert_eq!(all.outstanding(Version(12), WallTime(99_000)), (0, 0));
    }

    #[test]
    fn revocations_are_kept_as_long_as_a_grant_may_live_and_are_bounded() {
        let mut all = Revocations::default();
        all.revoke(LinkId(1), one(2, 10, 0));
        all.revoke(LinkId(2), one(2, 11, Span::from_hours(1).as_millis() as u64));
        let end = WallTime(0).after(REVOCATION_KEPT);
        assert!(!all.forget(end));
        assert!(all.forget(end.after(Span::from_millis(1))));
        assert_eq!(all.routes.keys().copied().collect::<Vec<_>>(), [LinkId(2)]);
        for link in 0..=REVOCATIONS_MAX as u64 {
            all.revoke(LinkId(100 + link), one(2, 100 + link, 0));
        }
        assert_eq!(all.routes.len(), REVOCATIONS_MAX);
        assert!(!all.routes.contains_key(&LinkId(2)) && !all.routes.contains_key(&LinkId(100)));
    }
}
