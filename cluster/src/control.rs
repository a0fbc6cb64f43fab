//! A node's connections to control nodes: two at a time, chosen so that a fleet spreads over them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Class, Turn},
    id::NodeId,
    limits::{CONTROL_CONNECTIONS, DIAL_RETRY_MAX, DIAL_RETRY_MIN},
    retry,
};

/// The connections' state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// This node.
    pub me: NodeId,
    /// Control nodes by number.
    pub candidates: BTreeMap<NodeId, Candidate>,
}

/// A control node as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// `host:port`.
    pub address: String,
    /// How far the connection is.
    pub phase: Phase,
    /// Failures in a row.
    pub failures: u32,
    /// The last one, for people.
    pub failure: Option<String>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not used, and may be dialled.
    Idle,
    /// A dial is under way.
    Dialling,
    /// Connected.
    Up {
        /// The connection.
        connection: u64,
    },
    /// Failed; not dialled until its timer.
    Waiting,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// These are the control nodes.
    Candidates {
        /// Address by number.
        addresses: BTreeMap<NodeId, String>,
    },
    /// A dial succeeded.
    Connected {
        /// The control node.
        node: NodeId,
        /// The connection.
        connection: u64,
    },
    /// A dial failed.
    DialFailed {
        /// The control node.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A connection ended.
    Closed {
        /// The control node.
        node: NodeId,
        /// The connection.
        connection: u64,
        /// Why.
        reason: String,
    },
    /// A node may be dialled again.
    Retry {
        /// The control node.
        node: NodeId,
    },
}

/// What is asked of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Dial a control node.
    Dial {
        /// The control node.
        node: NodeId,
        /// `host:port`.
        address: String,
    },
    /// Use a connection: ask it for snapshots, report to it.
    Use {
        /// The control node.
        node: NodeId,
        /// The connection.
        connection: u64,
    },
    /// Close a connection.
    Close {
        /// The control node.
        node: NodeId,
        /// The connection.
        connection: u64,
    },
    /// Send [`Event::Retry`] later.
    RetryAfter {
        /// The control node.
        node: NodeId,
        /// When.
        after_ms: u64,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Candidates { .. } => "candidates",
            Self::Connected { .. } => "connected",
            Self::DialFailed { .. } => "dial-failed",
            Self::Closed { .. } => "closed",
            Self::Retry { .. } => "retry",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Candidates { .. } => Class::State { key: 0 },
            _ => Class::Reserved,
        }
    }
}

impl Control {
    /// No control node known yet.
    #[must_use]
    pub const fn new(me: NodeId) -> Self {
        Self { me, candidates: BTreeMap::new() }
    }

    /// Control nodes with an open connection.
    pub fn connected(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.candidates
            .iter()
            .filter(|(_, candidate)| matches!(candidate.phase, Phase::Up { .. }))
            .map(|(node, _)| *node)
    }

    /// Where a candidate stands in this node's order: itself first, the others by a hash of the pair (rendezvous
    /// hashing, Thaler and Ravishankar 1996), so that nodes spread and a lost one moves only its share.
    fn rank(&self, node: NodeId) -> u64 {
        if node == self.me {
            return 0;
        }
        let pair = Turn { chance: self.me.0.rotate_left(32) ^ node.0, ..Turn::default() };
        1 + pair.draw(0, u64::MAX - 1)
    }

    fn fill(&mut self, effects: &mut Vec<Effect>) {
        let active = |phase| matches!(phase, Phase::Dialling | Phase::Up { .. });
        let mut count = self.candidates.values().filter(|candidate| active(candidate.phase)).count();
        let mut idle: Vec<NodeId> = self
            .candidates
            .iter()
            .filter(|(_, candidate)| candidate.phase == Phase::Idle)
            .map(|(node, _)| *node)
            .collect();
        idle.sort_by_key(|node| (self.candidates[node].failures, self.rank(*node)));
        for node in idle {
            if count >= CONTROL_CONNECTIONS {
                return;
            }
            if let Some(candidate) = self.candidates.get_mut(&node) {
                candidate.phase = Phase::Dialling;
                effects.push(Effect::Dial { node, address: candidate.address.clone() });
                count += 1;
            }
        }
    }

    fn failed(&mut self, turn: Turn, node: NodeId, reason: String, effects: &mut Vec<Effect>) {
        let Some(candidate) = self.candidates.get_mut(&node) else { return };
        candidate.failures = candidate.failures.saturating_add(1);
        candidate.failure = Some(reason);
        candidate.phase = Phase::Waiting;
        let wait = retry::delay(&turn, candidate.failures, DIAL_RETRY_MIN, DIAL_RETRY_MAX);
        effects.push(Effect::RetryAfter { node, after_ms: wait.as_millis() as u64 });
        self.fill(effects);
    }

    fn candidates(&mut self, addresses: BTreeMap<NodeId, String>, effects: &mut Vec<Effect>) {
        self.candidates.retain(|node, candidate| {
            let kept = addresses.get(node) == Some(&candidate.address);
            if let (false, Phase::Up { connection }) = (kept, candidate.phase) {
                effects.push(Effect::Close { node: *node, connection });
            }
            kept
        });
        for (node, address) in addresses {
            self.candidates.entry(node).or_insert(Candidate {
                address,
                phase: Phase::Idle,
                failures: 0,
                failure: None,
            });
        }
        self.fill(effects);
    }
}

impl Behavior for Control {
    const NOUN: &'static str = "control";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Candidates { addresses } => self.candidates(addresses, effects),
            Event::Connected { node, connection } => match self.candidates.get_mut(&node) {
                Some(candidate) if candidate.phase == Phase::Dialling => {
                    candidate.phase = Phase::Up { connection };
                    candidate.failures = 0;
                    candidate.failure = None;
                    effects.push(Effect::Use { node, connection });
                }
                _ => effects.push(Effect::Close { node, connection }),
            },
            Event::DialFailed { node, reason } => {
                if self.candidates.get(&node).is_some_and(|candidate| candidate.phase == Phase::Dialling) {
                    self.failed(turn, node, reason, effects);
                }
            }
            Event::Closed { node, connection, reason } => {
                if self.candidates.get(&node).is_some_and(|candidate| candidate.phase == (Phase::Up { connection })) {
                    self.failed(turn, node, reason, effects);
                }
            }
            Event::Retry { node } => {
                if let Some(candidate) = self.candidates.get_mut(&node)
                    && candidate.phase == Phase::Waiting
                {
                    candidate.phase = Phase::Idle;
                    self.fill(effects);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(control: &mut Control, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        control.on(Turn::default(), event, &mut effects);
        effects
    }

    fn addresses(nodes: impl IntoIterator<Item = u64>) -> BTreeMap<NodeId, String> {
        nodes.into_iter().map(|node| (NodeId(node), format!("c{node}:9443"))).collect()
    }

    fn dialled(effects: &[Effect]) -> Vec<NodeId> {
        effects
            .iter()
            .filter_map(|effect| if let Effect::Dial { node, .. } = effect { Some(*node) } else { None })
            .collect()
    }

    #[test]
    fn two_are_connected_and_a_lost_one_is_replaced_at_once() {
        let mut control = Control::new(NodeId(20));
        let first = dialled(&on(&mut control, Event::Candidates { addresses: addresses(1..=5) }));
        assert_eq!(first.len(), 2);
        for (connection, node) in first.iter().enumerate() {
            let connection = connection as u64;
            let effects = on(&mut control, Event::Connected { node: *node, connection });
            assert_eq!(effects, [Effect::Use { node: *node, connection }]);
        }
        let effects = on(&mut control, Event::Closed { node: first[0], connection: 0, reason: "timed out".into() });
        let next = dialled(&effects);
        assert_eq!(next.len(), 1);
        assert!(!first.contains(&next[0]));
        assert_eq!(control.connected().collect::<Vec<_>>(), [first[1]]);
    }

    #[test]
    fn with_all_down_each_is_tried_again() {
        let mut control = Control::new(NodeId(20));
        let mut dials = dialled(&on(&mut control, Event::Candidates { addresses: addresses(1..=3) }));
        let mut waiting = Vec::new();
        while let Some(node) = dials.pop() {
            let effects = on(&mut control, Event::DialFailed { node, reason: "refused".into() });
            assert!(effects.iter().any(|effect| matches!(effect, Effect::RetryAfter { .. })));
            waiting.push(node);
            dials.extend(dialled(&effects));
        }
        assert_eq!(waiting.len(), 3);
        assert_eq!(dialled(&on(&mut control, Event::Retry { node: waiting[0] })), [waiting[0]]);
    }

    #[test]
    fn a_removed_control_node_is_left_and_never_dialled_again() {
        let mut control = Control::new(NodeId(1));
        on(&mut control, Event::Candidates { addresses: addresses(1..=1) });
        on(&mut control, Event::Connected { node: NodeId(1), connection: 3 });
        let effects = on(&mut control, Event::Candidates { addresses: addresses(2..=2) });
        assert_eq!(effects[0], Effect::Close { node: NodeId(1), connection: 3 });
        assert_eq!(dialled(&effects), [NodeId(2)]);
        assert_eq!(on(&mut control, Event::Retry { node: NodeId(1) }), []);
    }

    #[test]
    fn nodes_spread_over_the_control_nodes() {
        let mut chosen: BTreeMap<NodeId, u32> = BTreeMap::new();
        for me in 100..400 {
            let mut control = Control::new(NodeId(me));
            for node in dialled(&on(&mut control, Event::Candidates { addresses: addresses(1..=5) })) {
                *chosen.entry(node).or_default() += 1;
            }
        }
        assert!(chosen.values().all(|count| (60..=180).contains(count)), "{chosen:?}");
    }
}
