//! Silences: when nothing that was sent is acknowledged, whom to ask, and when the relay is to blame.

use serde::{Deserialize, Serialize};

use super::{Circuit, Effect, Figures, MoveReason};
use crate::{
    id::NodeId,
    limits::{
        CIRCUIT_CHECKED_OTHERS, CIRCUIT_CHECKS_MAX, CIRCUIT_CONTRADICTIONS_MAX, CIRCUIT_PATIENCE_MAX,
        CIRCUIT_ROUND_TRIP_UNKNOWN, CIRCUIT_SENT_AGAIN_MIN, CIRCUIT_SILENCE_MIN, CIRCUIT_SILENCE_ROUND_TRIPS,
        CIRCUIT_TICK,
    },
    time::{Moment, Span},
};

/// What is known of the present silence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Watch {
    /// How long nothing came back, counting only time in which ticks were on time: an end that was itself asleep
    /// accuses nobody.
    pub(super) waited: Span,
    pub(super) last_tick: Moment,
    pub(super) since: Moment,
    pub(super) acknowledged: u64,
    pub(super) in_flight: bool,
    /// Probes sent over the circuit's relay since half the silence.
    pub(super) checks: u8,
    /// How long the silence must last until so many of them are overdue that this is no chance; none before they are sent.
    pub(super) checked_after: Option<Span>,
    /// What was sent so far that must be acknowledged, and how much of it before the silence.
    pub(super) sent: u64,
    pub(super) sent_before: u64,
    /// When something was acknowledged last, or began to be in flight.
    pub(super) progress: Moment,
    /// Why the circuit has left or lost its relay since then, first reason first.
    pub(super) stalled: Option<MoveReason>,
    /// How often probes came back during the silence; it was doubled each time, up to a bound.
    pub(super) patience: u32,
}

impl Circuit {
    pub(super) fn watch_silence(&mut self, now: Moment, figures: Figures, effects: &mut Vec<Effect>) {
        let gap = now.since(self.watch.last_tick).min(CIRCUIT_TICK * 2);
        let began = figures.in_flight && !self.watch.in_flight;
        self.watch_stall(now, figures, effects);
        self.watch.last_tick = now;
        self.watch.in_flight = figures.in_flight;
        self.watch.sent = figures.sent;
        if figures.acknowledged != self.watch.acknowledged {
            self.watch.acknowledged = figures.acknowledged;
            self.watch.patience = 0;
            if let Some(relay) = self.path.relay.filter(|_| self.stranded) {
                self.stranded = false;
                effects.push(Effect::Resend { relay });
            }
            if self.double.is_some() && self.moved < now {
                self.double = None;
            }
            self.quiet(now);
            return;
        }
        if !figures.in_flight || began || self.stranded || self.path.relay.is_none() || !self.chooses() {
            return self.quiet(now);
        }
        self.watch.waited += gap;
        let limit = self.silence_limit(figures.round_trip);
        let checked = self.watch.checked_after.is_some_and(|checked_after| self.watch.waited >= checked_after);
        if self.watch.waited >= limit && checked {
            self.judge(now, effects);
        } else if self.watch.waited * 2 >= limit {
            self.check(now, limit, effects);
        }
    }

    /// Says how long what was in flight has waited, once something of it is acknowledged after a move.
    fn watch_stall(&mut self, now: Moment, figures: Figures, effects: &mut Vec<Effect>) {
        let acknowledged = figures.acknowledged != self.watch.acknowledged;
        if let Some(reason) = self.watch.stalled.take_if(|_| acknowledged || !figures.in_flight)
            && acknowledged
        {
            effects.push(Effect::Stalled { reason, span: now.since(self.watch.progress) });
        }
        if acknowledged || !figures.in_flight || !self.watch.in_flight {
            self.watch.progress = now;
        }
    }

    /// The circuit leaves a relay that swallowed what is in flight, or has lost it and has no other.
    pub(super) fn stalls(&mut self, reason: MoveReason) {
        if self.watch.in_flight {
            self.watch.stalled.get_or_insert(reason);
        }
    }

    pub(super) fn quiet(&mut self, now: Moment) {
        self.watch.waited = Span::ZERO;
        self.watch.checks = 0;
        self.watch.checked_after = None;
        self.watch.since = now;
    }

    /// How long a silence must last to count.
    pub(super) fn silence_limit(&self, measured: Option<Span>) -> Span {
        let probed = self.path.relay.and_then(|relay| self.channels.get(&relay)).and_then(|channel| channel.round_trip);
        let round_trip = probed.max(measured).unwrap_or(CIRCUIT_ROUND_TRIP_UNKNOWN);
        (round_trip * CIRCUIT_SILENCE_ROUND_TRIPS).max(CIRCUIT_SILENCE_MIN)
            * (1 << self.watch.patience.min(CIRCUIT_PATIENCE_MAX.ilog2()))
    }

    /// Half a silence has passed: asks the relay itself, as often as it takes so that lost probes are no chance, and spread
    /// over what is left of the silence; and asks others whether they could take over.
    fn check(&mut self, now: Moment, limit: Span, effects: &mut Vec<Effect>) {
        let Some((relay, channel)) = self.path.relay.and_then(|relay| Some((relay, self.channels.get(&relay)?))) else {
            self.watch.checked_after = Some(limit);
            return;
        };
        let (needed, within) = (channel.checks_needed(), channel.answers_within());
        if self.watch.checks >= needed {
            return;
        }
        let left = limit.saturating_sub(limit / 2 + within) + CIRCUIT_TICK;
        let at_once = (CIRCUIT_TICK * u32::from(needed)).as_nanos().div_ceil(left.as_nanos());
        for _ in 0..at_once.min(u128::from(needed - self.watch.checks)) {
            self.ask(now, relay, effects);
        }
        if self.watch.checks >= needed {
            self.watch.checked_after = Some(self.watch.waited + within);
        }
        self.ask_others(now, relay, effects);
    }

    /// Asks the circuit's relay whether it is there.
    fn ask(&mut self, now: Moment, relay: NodeId, effects: &mut Vec<Effect>) {
        if self.watch.checks < CIRCUIT_CHECKS_MAX {
            self.watch.checks += 1;
            self.probe(now, relay, None, effects);
        }
    }

    /// Asks the best of the relays of which nothing was heard in this silence.
    fn ask_others(&mut self, now: Moment, relay: NodeId, effects: &mut Vec<Effect>) {
        if self.watch.checks >= CIRCUIT_CHECKS_MAX {
            return;
        }
        let mut others = self.candidates(now, Some(relay));
        others.retain(|rank| rank.unheard);
        for other in others.into_iter().take(CIRCUIT_CHECKED_OTHERS) {
            self.probe(now, other.relay, None, effects);
        }
    }

    /// The silence is long enough, and the relay has not answered. It is left for one that has, since whoever hears nobody
    /// has lost its own network and learns nothing of relays; and if there is no other.
    fn judge(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let others = self.candidates(now, self.path.relay);
        if !self.connected || others.is_empty() || others.iter().any(|other| !other.unheard) {
            return self.suspect(now, MoveReason::Silence, effects);
        }
        // Answers and the patience of probes end this: each other relay answers, or is no candidate any longer.
        if let Some(relay) = self.path.relay {
            self.ask(now, relay, effects);
            self.ask_others(now, relay, effects);
        }
    }

    /// The circuit's relay is silent: believes nothing that it has proven, and leaves it if another can take over.
    pub(super) fn suspect(&mut self, now: Moment, reason: MoveReason, effects: &mut Vec<Effect>) {
        let Some(relay) = self.path.relay else { return };
        let to = self.best(now, Some(relay));
        if let Some(channel) = self.channels.get_mut(&relay) {
            channel.distrust(now);
        }
        match to {
            Some(to) => self.take(now, to, reason, effects),
            None => self.strand(now, reason, effects),
        }
    }

    /// A probe came back over the circuit's relay although nothing is acknowledged. The relay works, so what is missing was
    /// lost or its acknowledgement is late; it gets twice as long next time. One that goes on like that carries what
    /// keeps it in use and nothing else, and is left.
    pub(super) fn contradicted(&mut self, now: Moment, relay: NodeId, effects: &mut Vec<Effect>) {
        if self.watch.patience == 0 {
            self.watch.sent_before = self.watch.sent;
        }
        // What is really under way is sent again. Without that nothing is, whatever the figures say, and nobody is to blame.
        let sent_again = self.watch.sent >= self.watch.sent_before + CIRCUIT_SENT_AGAIN_MIN;
        if self.watch.patience >= CIRCUIT_CONTRADICTIONS_MAX
            && sent_again
            && let Some(to) = self.best_proper(now, relay)
        {
            if let Some(channel) = self.channels.get_mut(&relay) {
                channel.betrayed(now);
            }
            return self.take(now, to, MoveReason::Selective, effects);
        }
        self.watch.patience = (self.watch.patience + 1).min(CIRCUIT_CONTRADICTIONS_MAX);
        self.quiet(now);
    }
}
