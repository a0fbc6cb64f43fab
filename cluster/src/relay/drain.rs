//! The relay's own drain: it tells every session, takes no new tunnel, and in the end disconnects what is left.

use super::{Effect, Relay};
use crate::{
    command::{Refusal, code},
    time::Moment,
    wire::session::RelayRequest,
};

impl Relay {
    /// Whether the relay is out of service.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.policy.as_ref().is_some_and(|held| held.policy.drain.is_some())
    }

    /// Whether its drain's time has run out: it opens no channel any more.
    pub(super) fn is_drained(&self, now: Moment) -> bool {
        self.policy.as_ref().and_then(|held| held.disconnects).is_some_and(|until| until <= now)
    }

    /// Tells a session that begins during a drain of it.
    pub(super) fn tell_drain(&self, connection: u64, effects: &mut Vec<Effect>) {
        if self.is_draining() {
            self.tell(connection, effects);
        }
    }

    /// The relay begins to drain, or is back in service: every session hears it at once.
    pub(super) fn tell_everybody(&self, effects: &mut Vec<Effect>) {
        for connection in self.sessions.values() {
            self.tell(*connection, effects);
        }
    }

    fn tell(&self, connection: u64, effects: &mut Vec<Effect>) {
        let Some(held) = &self.policy else { return };
        let request = RelayRequest::Drain { version: held.version, draining: held.policy.drain.is_some() };
        effects.push(Effect::Tell { connection, request });
    }

    /// Closes every channel once the drain's time has run out (RP-40).
    pub(super) fn disconnect_drained(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if self.channels.is_empty() || !self.is_drained(now) {
            return;
        }
        for key in self.channels.keys().copied().collect::<Vec<_>>() {
            self.channel_close(key, None, "the relay was drained and disconnects what is left", effects);
        }
    }
}

pub(super) fn draining() -> Refusal {
    Refusal::new(
        code::RELAY_DRAINING,
        "relay refuses new tunnels: it is being drained",
        "Another relay takes them; return it to service: postroad relay resume NAME",
    )
}

pub(super) fn drained() -> Refusal {
    Refusal::new(
        code::RELAY_DRAINING,
        "relay refuses new channels: it was drained and its time has run out",
        "Another relay takes them; return it to service: postroad relay resume NAME",
    )
}
