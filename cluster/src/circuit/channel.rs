//! One channel of a circuit: its probes, what they have proven, and whether its relay may carry the circuit.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    id::NodeId,
    limits::{
        BETRAYAL_MAX, BETRAYAL_MIN, CIRCUIT_CHECKS_MOST, CIRCUIT_CHECKS_NEEDED, CIRCUIT_FALSE_SUSPICIONS, CIRCUIT_TICK,
        PROBE_BURST, PROBE_BURST_INTERVAL, PROBE_FRESH, PROBE_FULL_MISSES, PROBE_LARGER_ROUNDS, PROBE_LOSS_SAMPLES,
        PROBE_PATIENCE, PROBE_PATIENCE_UNKNOWN, PROBE_ROUNDS_KEPT, PROBE_SMALL_BYTES,
    },
    packet_size::Carries,
    time::{Moment, Span},
};

/// A probe under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    at: Moment,
    bytes: u32,
    round: Option<u64>,
    /// A probe of a larger size than the circuit needs: its loss says nothing about the relay.
    extra: bool,
    overdue: bool,
}

/// A channel of a circuit through one relay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Channel {
    /// Relays of this circuit that share a failure domain with this one.
    pub(super) shares: BTreeSet<NodeId>,
    /// Whether the session to the relay is up.
    pub(super) connected: bool,
    /// Whether the relay is to be left (it drains): a last resort.
    pub(super) avoided: bool,
    /// The smoothed round trip of probes, relay and peer included.
    pub(super) round_trip: Option<Span>,
    /// How far probes' round trips are from the smoothed one, smoothed as well.
    variation: Span,
    /// Of a million probes, how many get lost lately.
    lost_of_million: u64,
    samples: BTreeMap<u64, Span>,
    outstanding: BTreeMap<u64, Sent>,
    /// When the newest probe that came back was sent.
    proven: Option<Moment>,
    /// When the newest probe that was given up was sent.
    missing: Option<Moment>,
    /// When the relay fell silent: only a probe sent since makes it a candidate again.
    distrusted: Option<Moment>,
    /// The largest packet that a probe has carried there and back, without our header.
    pub(super) carried_bytes: u32,
    /// Whether it carries the larger size, and how many probes of that in a row have said otherwise.
    larger: Carries,
    against: u8,
    missed_in_row: u32,
    /// When the first small probe came back since one of full size did.
    small_since: Option<Moment>,
    /// Probes of full size that went missing since then.
    full_missing: u8,
    /// Whether the relay carries small packets only.
    pub(super) too_small: bool,
    burst_left: u8,
    burst_at: Moment,
    /// How often the relay has carried probes and no data, and until when it is a last resort for that.
    betrayals: u32,
    betrayed_until: Moment,
    /// Whether the outside was last told that the relay is a candidate.
    pub(super) told: bool,
}

impl Channel {
    /// A new channel, which begins with a burst of probes so that it is a candidate soon.
    pub(super) fn new(now: Moment, shares: BTreeSet<NodeId>) -> Self {
        Self { shares, connected: true, burst_left: PROBE_BURST, burst_at: now, ..Self::default() }
    }

    /// Whether the last probe that had the time to come back did, and none is needed since a silence.
    pub(super) fn candidate(&self, now: Moment) -> bool {
        self.connected
            && self.proven.is_some_and(|proven| {
                self.distrusted.is_none_or(|since| proven >= since)
                    && self.missing.is_none_or(|missing| proven > missing)
                    && now.since(proven) <= PROBE_FRESH
            })
    }

    /// When the newest probe that came back was sent.
    pub(super) const fn proven(&self) -> Option<Moment> {
        self.proven
    }

    /// Probes lost since the last one that came back.
    pub(super) const fn missed_in_row(&self) -> u32 {
        self.missed_in_row
    }

    /// Believes nothing that was proven before `now`.
    pub(super) fn distrust(&mut self, now: Moment) {
        self.distrusted = Some(now);
        self.burst(now);
    }

    /// The relay has carried probes and no data: for a minute it is a last resort, and each time for twice as long.
    pub(super) fn betrayed(&mut self, now: Moment) {
        let span = BETRAYAL_MIN.saturating_mul(1 << self.betrayals.min(16)).min(BETRAYAL_MAX);
        self.betrayals = self.betrayals.saturating_add(1);
        self.betrayed_until = now.after(span);
    }

    /// Whether it has done so lately.
    pub(super) fn is_betrayer(&self, now: Moment) -> bool {
        self.betrayed_until > now
    }

    /// Starts quick probes, unless some are under way.
    pub(super) fn burst(&mut self, now: Moment) {
        if self.burst_left == 0 && self.connected {
            self.burst_left = PROBE_BURST;
            self.burst_at = self.burst_at.after(PROBE_BURST_INTERVAL).max(now);
        }
    }

    /// When the answer to a probe that is sent now is due: unanswered until then, it counts as lost.
    pub(super) fn answers_within(&self) -> Span {
        self.round_trip.map_or(PROBE_PATIENCE, |round_trip| round_trip + (self.variation * 4).max(CIRCUIT_TICK))
    }

    /// How many probes must be lost in a row so that this is no chance, as many as get lost here anyway.
    pub(super) fn checks_needed(&self) -> u8 {
        let (mut chance, mut checks) = (1_000_000_000_u64, 0);
        while (chance > CIRCUIT_FALSE_SUSPICIONS && checks < CIRCUIT_CHECKS_MOST) || checks < CIRCUIT_CHECKS_NEEDED {
            chance = chance * self.lost_of_million / 1_000_000;
            checks += 1;
        }
        checks
    }

    fn count(&mut self, lost: bool) {
        let sample = if lost { 1_000_000 } else { 0 };
        self.lost_of_million = (self.lost_of_million * (PROBE_LOSS_SAMPLES - 1) + sample) / PROBE_LOSS_SAMPLES;
    }

    /// The session is lost: nothing proven counts any longer.
    pub(super) fn disconnect(&mut self, now: Moment) {
        self.connected = false;
        self.distrusted = Some(now);
        self.outstanding.clear();
        self.burst_left = 0;
    }

    /// Notes a probe that is sent now.
    pub(super) fn sent(&mut self, now: Moment, sequence: u64, bytes: u32, round: Option<u64>, extra: bool) {
        self.outstanding.insert(sequence, Sent { at: now, bytes, round, extra, overdue: false });
    }

    /// Takes a turn of the quick probes if one is due.
    pub(super) fn burst_due(&mut self, now: Moment) -> bool {
        if self.burst_left == 0 || !self.connected || self.burst_at > now {
            return false;
        }
        self.burst_left -= 1;
        self.burst_at = now.after(PROBE_BURST_INTERVAL);
        true
    }

    /// A probe came back. False if it is unknown (forged, repeated or far too late).
    pub(super) fn echoed(&mut self, now: Moment, sequence: u64, packet_bytes: u32) -> bool {
        let Some(sent) = self.outstanding.remove(&sequence) else { return false };
        let took = now.since(sent.at);
        if self.proven.is_none_or(|proven| proven <= sent.at) {
            self.proven = Some(sent.at);
            self.missed_in_row = 0;
        }
        if sent.extra {
            self.larger_found(Carries::Yes);
        }
        if !sent.extra || self.larger == Carries::Yes {
            self.carried_bytes = self.carried_bytes.max(sent.bytes);
        }
        if sent.bytes >= packet_bytes {
            self.small_since = None;
            self.full_missing = 0;
            self.too_small = false;
        } else if self.small_since.is_none() {
            self.small_since = Some(sent.at);
        }
        if !sent.extra {
            self.variation = match self.round_trip {
                Some(smooth) => (self.variation * 3 + smooth.abs_diff(took)) / 4,
                None => took / 2,
            };
            self.round_trip = Some(self.round_trip.map_or(took, |smooth| (smooth * 7 + took) / 8));
        }
        if !sent.extra && !sent.overdue {
            self.count(false);
        }
        if let Some(round) = sent.round {
            self.samples.insert(round, took);
            while self.samples.len() > PROBE_ROUNDS_KEPT {
                self.samples.pop_first();
            }
        }
        true
    }

    /// Gives up probes that had the time to come back. Returns whether one was lost.
    pub(super) fn expire(&mut self, now: Moment, packet_bytes: u32) -> bool {
        let patience = self.patience();
        let (mut lost, mut gone, mut larger_gone) = (false, 0, 0);
        for sent in self.outstanding.values_mut().filter(|sent| !sent.overdue && now.since(sent.at) > patience) {
            sent.overdue = true;
            if sent.extra {
                // Of a relay that carries nothing at all it says nothing.
                larger_gone += u32::from(self.proven.is_some_and(|proven| proven >= sent.at));
                continue;
            }
            if sent.bytes >= packet_bytes && self.small_since.is_some_and(|since| sent.at > since) {
                self.full_missing = self.full_missing.saturating_add(1);
                if self.full_missing >= PROBE_FULL_MISSES {
                    self.too_small = true;
                    self.carried_bytes = PROBE_SMALL_BYTES;
                }
            }
            if sent.bytes >= packet_bytes && self.too_small {
                continue;
            }
            lost = true;
            gone += 1;
            self.missing = self.missing.max(Some(sent.at));
            // What was sent before one that came back accuses nobody any longer.
            if self.proven.is_none_or(|proven| proven <= sent.at) {
                self.missed_in_row += 1;
            }
        }
        for _ in 0..gone {
            self.count(true);
        }
        for _ in 0..larger_gone {
            self.larger_found(Carries::No);
        }
        if self.larger == Carries::No {
            self.carried_bytes = self.carried_bytes.min(packet_bytes);
        }
        // A late echo still measures the way, for a while.
        self.outstanding.retain(|_, sent| now.since(sent.at) <= PROBE_FRESH);
        if lost && self.missed_in_row == 1 {
            self.burst(now);
        }
        lost
    }

    /// A probe of the larger size came back or did not. The first that comes back is believed; else it takes several in a
    /// row, since any may just be lost.
    fn larger_found(&mut self, found: Carries) {
        self.against = if self.larger == found { 0 } else { self.against + 1 };
        let first = (self.larger, found) == (Carries::Unknown, Carries::Yes);
        if first || self.against >= PROBE_FULL_MISSES {
            (self.larger, self.against) = (found, 0);
        }
    }

    /// Whether the larger size is probed in this round: now and then, and in every one while that is not settled.
    pub(super) fn larger_due(&self, round: u64) -> bool {
        let unsettled = self.larger == Carries::Unknown || self.against > 0;
        self.proven.is_some() && (unsettled || round % PROBE_LARGER_ROUNDS == 1)
    }

    /// Whether it carries the larger size; on a circuit whose own is that, whether it carries the circuit.
    pub(super) const fn larger(&self, packet_bytes: u32, larger_bytes: u32) -> Carries {
        match (larger_bytes > packet_bytes, self.too_small) {
            (true, _) => self.larger,
            (false, true) => Carries::No,
            (false, false) if self.carried_bytes >= packet_bytes => Carries::Yes,
            (false, false) => Carries::Unknown,
        }
    }

    /// How large the next probe is: the circuit's size, and every other one small where that never comes back.
    pub(super) fn probe_bytes(&self, packet_bytes: u32, sequence: u64) -> u32 {
        let stuck = self.missed_in_row > u32::from(PROBE_BURST) || self.small_since.is_some();
        if stuck && sequence.is_multiple_of(2) { PROBE_SMALL_BYTES.min(packet_bytes) } else { packet_bytes }
    }

    fn patience(&self) -> Span {
        self.round_trip.map_or(PROBE_PATIENCE_UNKNOWN, |round_trip| (round_trip * 3).max(PROBE_PATIENCE))
    }

    /// The next moment at which a quick probe is due or an outstanding one overdue.
    pub(super) fn next_due(&self) -> Moment {
        let burst = if self.burst_left > 0 && self.connected { self.burst_at } else { Moment::NEVER };
        let patience = self.patience();
        let overdue = self.outstanding.values().filter(|sent| !sent.overdue).map(|sent| sent.at.after(patience)).min();
        // One nanosecond more, since a probe is overdue only past its patience.
        burst.min(overdue.map_or(Moment::NEVER, |moment| moment.after(Span::from_nanos(1))))
    }

    /// The middle figures of this channel and of `other`, over the newest rounds in which both came back; none with
    /// fewer than `pairs` such rounds. A missing sample is not a bad sample.
    pub(super) fn compare(&self, other: &Self, pairs: usize) -> Option<(Span, Span)> {
        let common: Vec<(Span, Span)> = self
            .samples
            .iter()
            .rev()
            .filter_map(|(round, mine)| other.samples.get(round).map(|its| (*mine, *its)))
            .take(pairs)
            .collect();
        (common.len() == pairs).then(|| {
            let (mut mine, mut its): (Vec<Span>, Vec<Span>) = common.into_iter().unzip();
            mine.sort_unstable();
            its.sort_unstable();
            (mine[pairs / 2], its[pairs / 2])
        })
    }
}
