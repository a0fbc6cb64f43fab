//! When a node is probed: once a period, the next only after the last has come back or has taken too long (DB-10).

use serde::{Deserialize, Serialize};

use super::evidence::{Cause, Failure, Outcome};
use crate::{
    balancer::limits::PROBE_EARLY_SHARE,
    behavior::{Behavior, Class, Turn},
    time::{Moment, Span},
};

/// The prober of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prober {
    /// The node.
    pub node: String,
    /// Where the list says it is.
    pub listed: String,
    /// Milliseconds from the beginning of a probe to that of the next, at most.
    pub period_ms: u64,
    /// Milliseconds that a whole probe may take.
    pub timeout_ms: u64,
    /// When the present or last probe began.
    pub began: Option<Moment>,
    /// Whether it is under way.
    pub under_way: bool,
    /// Probes so far.
    pub probes: u64,
}

/// What happens to a prober.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// It begins.
    Started,
    /// The next probe is due.
    Due,
    /// The probe came back.
    Came {
        /// What it came to.
        outcome: Box<Outcome>,
    },
    /// The probe took too long and was given up.
    Expired,
}

/// What a prober asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Probe; [`Event::Expired`] if that takes longer.
    Probe {
        /// How long it may take, in milliseconds.
        within_ms: u64,
    },
    /// Send [`Event::Due`] then.
    DueAt {
        /// When.
        at: Moment,
    },
    /// Tell the balancer.
    Tell {
        /// What the probe came to.
        outcome: Box<Outcome>,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Due => "due",
            Self::Came { .. } => "came",
            Self::Expired => "expired",
        }
    }

    fn class(&self) -> Class {
        Class::Reserved
    }
}

impl Prober {
    /// A prober of `node` at the address that the list has for it.
    #[must_use]
    pub const fn new(node: String, listed: String, period_ms: u64, timeout_ms: u64) -> Self {
        Self { node, listed, period_ms, timeout_ms, began: None, under_way: false, probes: 0 }
    }

    fn begin(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if !self.under_way {
            self.began = Some(now);
            self.under_way = true;
            self.probes += 1;
            effects.push(Effect::Probe { within_ms: self.timeout_ms });
        }
    }

    fn end(&mut self, now: Moment, outcome: Box<Outcome>, effects: &mut Vec<Effect>) {
        self.under_way = false;
        effects.push(Effect::Tell { outcome });
        let period = Span::from_millis(self.period_ms);
        let due = self.began.unwrap_or(now).after(period.saturating_sub(period / PROBE_EARLY_SHARE));
        effects.push(Effect::DueAt { at: due.max(now) });
    }
}

impl Behavior for Prober {
    const NOUN: &'static str = "prober";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Started | Event::Due => self.begin(turn.now, effects),
            Event::Came { outcome } => self.end(turn.now, outcome, effects),
            Event::Expired => {
                let failure = Failure::new(Cause::Timeout, format_args!("{} ms", self.timeout_ms));
                self.end(turn.now, Box::new(Err(failure)), effects);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(prober: &mut Prober, at_ms: u64, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let turn = Turn { now: moment(at_ms), ..Turn::default() };
        prober.on(turn, event, &mut effects);
        effects
    }

    fn moment(ms: u64) -> Moment {
        Moment::ZERO.after(Span::from_millis(ms))
    }

    fn failure(cause: Cause, detail: &str) -> Box<Outcome> {
        Box::new(Err(Failure::new(cause, detail)))
    }

    // DB-10, DB-14
    #[test]
    fn one_probe_at_a_time_begins_once_a_period_and_is_given_up_in_time() {
        let mut prober = Prober::new("a".into(), "a:1".into(), 1_000, 2_000);
        let probe = [Effect::Probe { within_ms: 2_000 }];
        assert_eq!(on(&mut prober, 0, Event::Started), probe);
        assert_eq!(on(&mut prober, 5, Event::Due), [], "one is under way");
        let refused = failure(Cause::Refused, "");
        let told = on(&mut prober, 10, Event::Came { outcome: refused.clone() });
        assert_eq!(told, [Effect::Tell { outcome: refused }, Effect::DueAt { at: moment(980) }]);
        assert_eq!(on(&mut prober, 1_000, Event::Due), probe);
        let told = on(&mut prober, 3_000, Event::Expired);
        let expired = failure(Cause::Timeout, "2000 ms");
        assert_eq!(told, [Effect::Tell { outcome: expired }, Effect::DueAt { at: moment(3_000) }]);
    }
}
