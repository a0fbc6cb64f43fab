//! Which relay a circuit takes next, and when another one is worth a move.

use super::{Circuit, Effect, MoveReason, channel::Channel};
use crate::{
    id::NodeId,
    limits::{CIRCUIT_DWELL, CIRCUIT_HOLD_MAX, NEARER_PERCENT, NEARER_SPAN, PROBE_PAIRS},
    time::{Moment, Span},
};

/// How a relay stands in a choice; the least one is taken. The order of the fields is the order of what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Nothing was heard of it since the silence began.
    pub unheard: bool,
    /// It drains, or is too small for the circuit's packets.
    pub last_resort: bool,
    /// It shares a failure domain with the present relay.
    pub shares_domain: bool,
    /// The round trip of its probes.
    pub round_trip: Option<Span>,
    /// The relay.
    pub relay: NodeId,
    /// Whether it may carry the circuit at all, which is asked before.
    pub candidate: bool,
}

impl Circuit {
    /// The choice in words: `n7: 4.1 ms, next n9 9.8 ms`.
    #[must_use]
    pub fn choice(&self, now: Moment) -> String {
        let figure = |span: Option<Span>| {
            span.map_or_else(|| "unmeasured".into(), |span| format!("{:.1} ms", span.as_secs_f64() * 1e3))
        };
        let Some(relay) = self.path.relay else { return "no relay".into() };
        let mine = self.channels.get(&relay).and_then(|channel| channel.round_trip);
        let next =
            self.best(now, Some(relay)).and_then(|next| self.channels.get(&next).map(|it| (next, it.round_trip)));
        match next {
            Some((next, round_trip)) => format!("{relay}: {}, next {next} {}", figure(mine), figure(round_trip)),
            None => format!("{relay}: {}, no other", figure(mine)),
        }
    }

    /// How long the first packets of a faster way wait so that they do not overtake those of the slower one.
    pub(super) fn hold(&self, from: Option<NodeId>, to: Option<NodeId>) -> Span {
        let round_trip =
            |relay: Option<NodeId>| relay.and_then(|relay| self.channels.get(&relay)).and_then(|it| it.round_trip);
        match (round_trip(from), round_trip(to)) {
            (Some(old), Some(new)) => (old.saturating_sub(new) / 2).min(CIRCUIT_HOLD_MAX),
            _ => Span::ZERO,
        }
    }

    /// The relay that would take over from `from`.
    pub(super) fn best(&self, now: Moment, from: Option<NodeId>) -> Option<NodeId> {
        self.candidates(now, from).first().map(|rank| rank.relay)
    }

    /// The relay that would take over from `from` and is no last resort.
    pub(super) fn best_proper(&self, now: Moment, from: NodeId) -> Option<NodeId> {
        self.candidates(now, Some(from)).into_iter().find(|rank| !rank.last_resort).map(|rank| rank.relay)
    }

    /// The relays that could take over from `from`, the best first: heard since the silence began, able to carry the
    /// circuit's packets, in another failure domain, near; in this order.
    pub(super) fn candidates(&self, now: Moment, from: Option<NodeId>) -> Vec<Rank> {
        let any = !self.connected && !self.channels.values().any(|channel| channel.candidate(now));
        let mut ranks: Vec<Rank> = self
            .channels
            .iter()
            .filter(|(relay, channel)| {
                // During the handshake there was hardly time to prove anything: any open channel is worth a try.
                Some(**relay) != from && (channel.candidate(now) || (any && channel.connected))
            })
            .map(|(relay, channel)| self.rank(now, from, *relay, channel))
            .collect();
        ranks.sort_unstable();
        ranks
    }

    fn rank(&self, now: Moment, from: Option<NodeId>, relay: NodeId, channel: &Channel) -> Rank {
        let shares = from.and_then(|from| self.channels.get(&from)).map(|channel| &channel.shares);
        Rank {
            last_resort: self.last_resort(now, channel),
            shares_domain: shares.is_some_and(|shares| shares.contains(&relay)),
            unheard: self.watch.waited > Span::ZERO && channel.proven() < Some(self.watch.since),
            round_trip: channel.round_trip,
            relay,
            candidate: channel.candidate(now),
        }
    }

    /// Every relay as the next choice would see it, in order of relays.
    #[must_use]
    pub fn ranks(&self, now: Moment) -> Vec<Rank> {
        let from = self.path.relay;
        self.channels.iter().map(|(relay, channel)| self.rank(now, from, *relay, channel)).collect()
    }

    pub(super) fn last_resort(&self, now: Moment, channel: &Channel) -> bool {
        channel.is_betrayer(now) || channel.avoided || channel.too_small || channel.carried_bytes < self.packet_bytes
    }

    /// Leaves a relay that drains, or is too small for the circuit's packets, as soon as a proper one is there.
    pub(super) fn leave_last_resort(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(relay) = self.path.relay.filter(|_| self.connected && !self.stranded) else { return };
        let Some(current) = self.channels.get(&relay) else { return };
        if !current.avoided && !current.too_small {
            return;
        }
        let reason = if current.avoided { MoveReason::Draining } else { MoveReason::TooSmall };
        if let Some(to) = self.best_proper(now, relay) {
            self.take(now, to, reason, effects);
        }
    }

    /// Moves to a relay that is nearer by 30 % and 5 ms over the same moments (RP-12). One end looks, so that two
    /// views of one difference do not pull at the circuit.
    pub(super) fn look_for_nearer(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(relay) = self.path.relay.filter(|_| self.connected && self.me < self.peer) else { return };
        if self.stranded || self.watch.checks > 0 || now.since(self.moved) < CIRCUIT_DWELL {
            return;
        }
        let Some(current) = self.channels.get(&relay) else { return };
        let nearest = self
            .channels
            .iter()
            .filter(|(other, channel)| **other != relay && channel.candidate(now) && !self.last_resort(now, channel))
            .filter_map(|(other, channel)| {
                let (mine, its) = current.compare(channel, PROBE_PAIRS)?;
                let needed = (mine * NEARER_PERCENT / 100).max(NEARER_SPAN);
                (mine >= its + needed).then_some((its, *other))
            })
            .min();
        if let Some((_, to)) = nearest {
            self.take(now, to, MoveReason::Nearer, effects);
        }
    }
}
