//! Requests that are followed: what a node did for one outside of its actors, the entries of the log that are part of
//! one, and how the moments in journals stand to the wall clock.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    command::{Command, Outcome},
    limits::TRACE_STEPS_MAX,
    time::{Moment, Span, WallTime},
    trace::TraceId,
};
use postroad_raft::{Consensus, ProposeError};
use postroad_transport::trace;

use crate::{directory::lock, fabric::Fabric};

/// Something that a node did outside of its actors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it is part of.
    pub trace: TraceId,
    /// Where it was done: `api`, `group`.
    pub place: &'static str,
    /// What was done.
    pub kind: String,
    /// For whom: an actor's path, or a word for somebody else.
    pub by: Arc<str>,
    /// When it began.
    pub at: Moment,
    /// How long it took.
    pub took: Span,
    /// What came of it.
    pub outcome: String,
    /// Whether it failed.
    pub failed: bool,
}

/// The last steps of all traces, oldest first, bounded.
#[derive(Debug, Default)]
pub struct Steps(Mutex<VecDeque<Step>>);

impl Steps {
    /// Remembers a step.
    pub fn note(&self, step: Step) {
        let mut steps = lock(&self.0);
        if steps.len() >= TRACE_STEPS_MAX {
            steps.pop_front();
        }
        steps.push_back(step);
    }

    /// Those of one trace.
    #[must_use]
    pub fn of(&self, trace: TraceId) -> Vec<Step> {
        lock(&self.0).iter().filter(|step| step.trace == trace).cloned().collect()
    }
}

/// How a node's clock stands to its wall clock, as pairs of both tell. A wall time is cut to its millisecond, so the pair
/// in which it is furthest ahead is the nearest to the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    ahead_ns: Option<i128>,
    newest: Moment,
}

/// Pairs that are further apart than this are not compared: the wall clock may have been set in between.
const TIMES_APART_MAX: Span = Span::from_mins(1);

impl Times {
    /// Takes a pair.
    pub fn note(&mut self, now: Moment, wall: WallTime) {
        let ahead = i128::from(wall.0) * 1_000_000 - i128::from(now.0);
        if now > self.newest.after(TIMES_APART_MAX) {
            self.ahead_ns = None;
        }
        if self.newest <= now.after(TIMES_APART_MAX) {
            self.ahead_ns = Some(self.ahead_ns.map_or(ahead, |known| known.max(ahead)));
        }
        self.newest = self.newest.max(now);
    }

    /// The wall time at a moment, in microseconds since 1970; nothing while no pair was seen.
    #[must_use]
    pub fn wall_us(&self, at: Moment) -> Option<u64> {
        u64::try_from((self.ahead_ns? + i128::from(at.0)) / 1_000).ok()
    }
}

/// Proposes a command to this member of the group as part of the present trace, and remembers that step.
pub(crate) async fn propose(
    fabric: &Fabric,
    consensus: &Consensus,
    command: Command,
) -> Result<(u64, Outcome), ProposeError> {
    let (doing, at, kind) = (trace::doing(), fabric.now(), command.action.kind());
    let proposed = consensus.propose_traced(command, doing.trace).await;
    if let Some(trace) = doing.trace {
        let (outcome, failed) = match &proposed {
            Ok((index, Outcome::Refused(refusal))) => (format!("entry {index}: {}", refusal.code), true),
            Ok((index, _)) => (format!("entry {index}"), false),
            // That another one leads is what whoever asked wanted to know.
            Err(ProposeError::NotLeader { leader: Some(leader) }) => (format!("{leader} leads"), false),
            Err(error) => (error.to_string(), true),
        };
        let by = doing.by.unwrap_or_else(|| "outside".into());
        let (kind, took) = (format!("propose {kind}"), fabric.now().since(at));
        fabric.steps.note(Step { trace, place: "group", kind, by, at, took, outcome, failed });
    }
    proposed
}

/// Remembers each entry of the log that is part of a trace when this member has applied it, for as long as it lives.
pub(crate) async fn follow_log(fabric: Arc<Fabric>, consensus: Consensus) {
    let (mut applied, mut seen) = (consensus.applied(), 0);
    loop {
        for entry in consensus.traced_after(seen) {
            seen = entry.index;
            fabric.steps.note(Step {
                trace: entry.trace,
                place: "group",
                kind: format!("apply {}", entry.kind),
                by: "log".into(),
                at: fabric.now(),
                took: Span::ZERO,
                outcome: format!("entry {}", entry.index),
                failed: entry.refused,
            });
        }
        if !applied.changed().await {
            return;
        }
    }
}

/// The trace of the newest entry after `have` that `version` holds, if that is known.
pub(crate) fn newest(consensus: &Consensus, have: u64, version: u64) -> Option<TraceId> {
    let mut entries = consensus.traced_after(have).into_iter();
    entries.rfind(|entry| entry.index <= version && !entry.refused).map(|entry| entry.trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_time_of_a_moment_is_known_better_than_to_its_millisecond() {
        let mut times = Times::default();
        assert_eq!(times.wall_us(Moment(5)), None);
        // The wall clock is 1,000.2 ms ahead, and told in whole milliseconds.
        for now_us in (0..20_000).step_by(770) {
            times.note(Moment(now_us * 1_000), WallTime((now_us + 1_000_200) / 1_000));
        }
        let off = times.wall_us(Moment(7_000_000)).unwrap().abs_diff(7_000 + 1_000_200);
        assert!(off < 200, "{off} us");
        // After the wall clock was set, what was before counts for nothing.
        let later = Moment(300_000_000_000);
        times.note(later, WallTime(9_000_000));
        assert_eq!(times.wall_us(later), Some(9_000_000_000));
        times.note(Moment(1_000), WallTime(99_000_000));
        assert_eq!(times.wall_us(later), Some(9_000_000_000));
    }

    #[test]
    fn steps_are_bounded_and_found_by_their_trace() {
        let steps = Steps::default();
        for number in 0..TRACE_STEPS_MAX as u64 + 10 {
            steps.note(Step {
                trace: TraceId::drawn(number % 2),
                place: "api",
                kind: number.to_string(),
                by: "outside".into(),
                at: Moment(number),
                took: Span::ZERO,
                outcome: String::new(),
                failed: false,
            });
        }
        let found = steps.of(TraceId::drawn(1));
        assert_eq!((found.len(), found[0].kind.as_str()), (TRACE_STEPS_MAX / 2, "11"));
        assert_eq!(steps.of(TraceId::drawn(7)), []);
    }
}
