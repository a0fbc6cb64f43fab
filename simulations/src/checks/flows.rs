//! Bytes exact and in order; no end of file or reset unless an end asked, its host went down, or no path existed for
//! the allowed time.

use std::{collections::BTreeMap, time::Duration};

use postroad_cluster::limits::{FLOW_WAIT_DEFAULT_SECONDS, TUNNEL_WAIT};
use tokio::time::Instant;

use super::Findings;
use crate::{
    faults::host,
    scenario::{HOSTS, RELAYS},
    workload::flow::{Flow, Seen},
    world::World,
};

const CHECK: &str = "flows";

/// A flow may give up when no path existed for this long: its wait, less what its node takes to notice a path that is
/// just back.
const ABSENT_MIN: Duration = Duration::from_secs(FLOW_WAIT_DEFAULT_SECONDS - 15);

/// A flow that is this young may have been refused while something was wrong: nothing was admitted yet.
const YOUNG: Duration = Duration::from_secs(TUNNEL_WAIT.as_secs() + 10);

/// Since when and until when pairs of hosts had no path, and when anything was wrong.
#[derive(Debug, Default)]
pub struct FlowCheck {
    absent: BTreeMap<(usize, usize), Instant>,
    /// The longest absence so far that ended, or is still there, with its last moment.
    absences: Vec<((usize, usize), Duration, Instant)>,
    /// When a fault was in force last.
    troubled: Option<Instant>,
}

impl FlowCheck {
    /// Looks at every pair of hosts; `trouble` says whether any fault is in force.
    pub fn look(&mut self, world: &World, trouble: bool) {
        let now = Instant::now();
        if trouble {
            self.troubled = Some(now);
        }
        for one in 0..HOSTS {
            for other in one + 1..HOSTS {
                if path_exists(world, one, other) {
                    if let Some(since) = self.absent.remove(&(one, other)) {
                        self.absences.push(((one, other), now - since, now));
                    }
                } else {
                    self.absent.entry((one, other)).or_insert(now);
                }
            }
        }
    }

    fn no_path_for_long(&self, flow: &Flow, at: Instant) -> bool {
        let (one, other) = (flow.route.consumer, flow.route.target);
        let pair = (one.min(other), one.max(other));
        let still = self.absent.get(&pair).map(|since| (at.saturating_duration_since(*since), at));
        let before = self.absences.iter().filter(|(of, ..)| *of == pair).map(|(_, lasted, end)| (*lasted, *end));
        before.chain(still).any(|(lasted, end)| lasted >= ABSENT_MIN && end + YOUNG >= at)
    }

    /// Judges every flow at the end; `over` says that all should be over by now.
    pub fn judge(&self, flows: &[std::sync::Arc<Flow>], over: bool, findings: &Findings) {
        for flow in flows {
            findings.expect(CHECK, self.judge_one(flow, over));
        }
    }

    fn judge_one(&self, flow: &Flow, over: bool) -> Result<(), String> {
        let state = flow.with(|state| state.clone());
        let name = format!("flow {} of {} ({})", flow.number, flow.route.name, flow.plan.ending.word());
        if let Some(wrong) = state.wrong {
            return Err(format!("{name}: {wrong}"));
        }
        for (end, seen) in [("consumer", &state.client), ("target", &state.server)] {
            let Some((Seen::Failed(error), at)) = seen else { continue };
            let asked = [state.reset, state.broken].into_iter().flatten().any(|since| since <= *at);
            let young = state.accepted.is_none_or(|accepted| *at - accepted < YOUNG);
            let refused = young && self.troubled.is_some_and(|last| last + YOUNG >= *at);
            if !asked && !refused && !self.no_path_for_long(flow, *at) {
                let [up, down] = state.got;
                let age = (*at - flow.began).as_secs_f64();
                return Err(format!(
                    "{name} ended at its {end} after {age:.1} s, {up} bytes up and {down} down, though nobody asked and a path existed: {error}"
                ));
            }
        }
        if over && !flow.is_over() {
            let [up, down] = state.got;
            let (client, server) = (state.client.is_some(), state.server.is_some());
            return Err(format!(
                "{name} never ended: {up} of {} bytes up, {down} of {} down, its consumer is over: {client}, its target: {server}",
                state.sent[0], state.sent[1]
            ));
        }
        Ok(())
    }
}

fn path_exists(world: &World, one: usize, other: usize) -> bool {
    let up = |index: usize| {
        let machine = &world.machines[index];
        machine.node.is_some() && !world.is_paused(index)
    };
    let way = |from: usize, to: usize| from == to || !world.fabric.condition(host(from), host(to)).cut;
    let joined = |end: usize, relay: usize| way(end, relay) && way(relay, end);
    up(one) && up(other) && (0..RELAYS).any(|relay| up(relay) && joined(one, relay) && joined(other, relay))
}
