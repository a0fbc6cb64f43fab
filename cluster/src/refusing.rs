//! Relays that refuse tunnels: for how long others are asked first, how often one that refuses is asked all the same, and
//! what the log is told of it (RP-21, RP-22).

use std::collections::BTreeMap;

use crate::{
    command::code,
    id::{LinkId, NodeId},
    limits::{REFUSALS_MAX, REFUSING_ASK, REFUSING_MAX, REFUSING_MIN, REFUSING_REMINDER},
    time::Moment,
};

/// Relays that have refused tunnels, by link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<(NodeId, LinkId), Refusing>);

/// A relay that refuses a link's tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusing {
    /// Until when others are asked first.
    until: Moment,
    /// How often in a row it was found to refuse for so long.
    times: u32,
    /// The code of its last refusal.
    code: &'static str,
    /// From when on one more tunnel may ask it.
    next: Moment,
    /// When the log was last told.
    told: Moment,
}

/// What is to be said of a refusal (RP-22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It is the first one.
    First,
    /// The relay still refuses, a minute after that was last said.
    Still,
}

impl Refusals {
    /// A relay has refused a tunnel: it is asked last for 30 s, and for longer the more often it goes on refusing. What
    /// the target's end is to blame for says nothing about the relay. Returns what is to be said of it.
    pub fn refused(&mut self, now: Moment, relay: NodeId, link: LinkId, word: &str) -> Option<News> {
        if matches!(word, code::ENDPOINT_RESTARTING | code::ENDPOINT_ABSENT | code::PEER_ABSENT) {
            return None;
        }
        self.forget_old(now);
        let Some(known) = self.0.get_mut(&(relay, link)).filter(|known| known.is_remembered(now)) else {
            return self.first(now, relay, link, word);
        };
        known.code = code::known(word);
        if known.until <= now {
            let span = REFUSING_MIN.saturating_mul(1 << known.times.min(16)).min(REFUSING_MAX);
            *known =
                Refusing { until: now.after(span), times: known.times + 1, next: now.after(REFUSING_ASK), ..*known };
        }
        let is_due = known.told.after(REFUSING_REMINDER) <= now;
        is_due.then(|| {
            known.told = now;
            News::Still
        })
    }

    fn first(&mut self, now: Moment, relay: NodeId, link: LinkId, word: &str) -> Option<News> {
        let (until, next) = (now.after(REFUSING_MIN), now.after(REFUSING_ASK));
        if self.0.len() >= REFUSALS_MAX && !self.0.contains_key(&(relay, link)) {
            return None;
        }
        self.0.insert((relay, link), Refusing { until, times: 1, code: code::known(word), next, told: now });
        Some(News::First)
    }

    fn forget_old(&mut self, now: Moment) {
        if self.0.len() >= REFUSALS_MAX {
            self.0.retain(|_, known| known.is_remembered(now));
        }
    }

    /// It has admitted one. Returns whether it had refused before.
    pub fn admitted(&mut self, relay: NodeId, link: LinkId) -> bool {
        self.0.remove(&(relay, link)).is_some()
    }

    /// Whether it is asked last, and for what refusal.
    #[must_use]
    pub fn refusing(&self, now: Moment, relay: NodeId, link: LinkId) -> Option<&'static str> {
        self.0.get(&(relay, link)).filter(|known| known.until > now).map(|known| known.code)
    }

    /// Whether a tunnel may ask it now. One that refuses is asked by one tunnel in a while, which takes that turn here;
    /// the others wait for what that one is told.
    pub fn may_ask(&mut self, now: Moment, relay: NodeId, link: LinkId) -> bool {
        match self.0.get_mut(&(relay, link)).filter(|known| known.until > now) {
            Some(known) if known.next > now => false,
            Some(known) => {
                known.next = now.after(REFUSING_ASK);
                true
            }
            None => true,
        }
    }
}

impl Refusing {
    /// Whether the next refusal counts as one more in a row.
    fn is_remembered(&self, now: Moment) -> bool {
        self.until.after(REFUSING_MAX) > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    const RELAY: NodeId = NodeId(1);
    const LINK: LinkId = LinkId(1);

    fn at(ms: u64) -> Moment {
        Moment(0).after(Span::from_millis(ms))
    }

    // RP-21
    #[test]
    fn a_refusing_relay_is_asked_last_for_longer_each_time() {
        let mut refusals = Refusals::default();
        let is_refusing = |refusals: &Refusals, ms| refusals.refusing(at(ms), RELAY, LINK).is_some();
        assert_eq!(refusals.refused(at(0), RELAY, LINK, code::RELAY_DRAINING), Some(News::First));
        assert_eq!(refusals.refusing(at(29_000), RELAY, LINK), Some(code::RELAY_DRAINING));
        assert!(!is_refusing(&refusals, 30_000));
        assert_eq!(refusals.refusing(at(1_000), RELAY, LinkId(2)), None, "another link is another matter");
        assert_eq!(refusals.refused(at(31_000), RELAY, LINK, code::RELAY_DRAINING), None);
        assert!(is_refusing(&refusals, 90_000) && !is_refusing(&refusals, 91_000));
        assert!(refusals.admitted(RELAY, LINK));
        assert!(!is_refusing(&refusals, 90_000) && !refusals.admitted(RELAY, LINK));
        assert_eq!(
            refusals.refused(at(100_000), RELAY, LINK, code::ENDPOINT_RESTARTING),
            None,
            "the target is to blame"
        );
        assert!(!is_refusing(&refusals, 101_000));
        for round in 0..10_u64 {
            refusals.refused(at(200_000 + round * 310_000), RELAY, LINK, "WHAT_A_LATER_RELEASE_SAYS");
        }
        assert_eq!(refusals.refusing(at(200_000 + 9 * 310_000 + 299_999), RELAY, LINK), Some(code::OTHER));
        assert!(!is_refusing(&refusals, 200_000 + 9 * 310_000 + 300_000), "5 min at most");
    }

    // RP-21: however many tunnels come, one that refuses is asked once a second, until it admits one.
    #[test]
    fn a_refusing_relay_is_asked_at_a_limited_rate() {
        let mut refusals = Refusals::default();
        assert!((0..5).all(|ms| refusals.may_ask(at(ms), RELAY, LINK)), "one that does not refuse, without limit");
        refusals.refused(at(0), RELAY, LINK, code::POLICY_EXPIRED);
        let mut asked = Vec::new();
        for ms in (0..5_000).step_by(50) {
            if refusals.may_ask(at(ms), RELAY, LINK) {
                asked.push(ms);
                refusals.refused(at(ms + 10), RELAY, LINK, code::POLICY_EXPIRED);
            }
        }
        assert_eq!(asked, [1_000, 2_000, 3_000, 4_000]);
        assert!(refusals.may_ask(at(4_100), RELAY, LinkId(2)) && refusals.may_ask(at(4_100), NodeId(2), LINK));
        refusals.admitted(RELAY, LINK);
        assert!((4_100..4_200).all(|ms| refusals.may_ask(at(ms), RELAY, LINK)), "all of them, once it admits");
    }

    // RP-22
    #[test]
    fn the_log_hears_of_the_first_refusal_and_once_a_minute() {
        let mut refusals = Refusals::default();
        let said: Vec<(u64, News)> = (0..180)
            .filter_map(|second| Some((second, refusals.refused(at(second * 1_000), RELAY, LINK, code::RELAY_STALE)?)))
            .collect();
        assert_eq!(said, [(0, News::First), (60, News::Still), (120, News::Still)]);
        assert_eq!(refusals.refused(at(3_600_000), RELAY, LINK, code::RELAY_STALE), Some(News::First), "an hour later");
    }

    #[test]
    fn refusals_that_are_remembered_are_bounded() {
        let mut refusals = Refusals::default();
        for link in 0..2 * REFUSALS_MAX as u64 {
            refusals.refused(at(1), RELAY, LinkId(link), code::RELAY_DRAINING);
        }
        assert_eq!(refusals.0.len(), REFUSALS_MAX);
        refusals.refused(at(1_000_000), RELAY, LINK, code::RELAY_DRAINING);
        assert_eq!(refusals.0.len(), 1, "what is old makes room");
    }
}
