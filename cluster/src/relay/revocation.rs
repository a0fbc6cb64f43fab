//! Revoked routes at the relay: it ends their registrations, takes nothing new for them, and tells every session what it
//! has applied.

use super::{Effect, Relay};
use crate::{id::Version, revocation::Revocations, wire::session::RelayRequest};

impl Relay {
    pub(super) fn revoked(&mut self, revocations: Revocations, effects: &mut Vec<Effect>) {
        if revocations.version <= self.revocations.version {
            return;
        }
        self.revocations = revocations;
        let revoked = self
            .registrations
            .iter()
            .filter(|(link, known)| self.revocations.is_revoked(**link, known.generation) && !self.replaces(**link));
        for link in revoked.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.registration_end(link);
        }
        for connection in self.sessions.values().copied().collect::<Vec<_>>() {
            self.tell_applied(connection, effects);
        }
    }

    /// Whether a newer route of this link lives: then the registration of the old one stays until the new one comes, so
    /// that consumers wait for it instead of being refused (RP-31). Nothing is admitted by the old one.
    fn replaces(&self, link: crate::id::LinkId) -> bool {
        let route = self.policy.as_ref().and_then(|held| held.policy.routes.get(&link));
        route.is_some_and(|route| !self.revocations.is_revoked(link, route.generation))
    }

    /// Tells a session what this relay has applied; nothing while there are no revocations.
    pub(super) fn tell_applied(&self, connection: u64, effects: &mut Vec<Effect>) {
        if self.revocations.version == Version(0) {
            return;
        }
        let revocations = self.revocations.version;
        let version = self.policy.as_ref().map_or(revocations, |held| held.version.max(revocations));
        effects.push(Effect::Tell { connection, request: RelayRequest::Applied { version, revocations } });
    }
}
