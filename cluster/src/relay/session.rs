//! Connections and sessions: who is here, who is here anew, and who has fallen silent.

use serde::{Deserialize, Serialize};

use super::{Asked, AskedFor, Asker, Effect, Held, Relay, Step, Timer, absent, ended};
use crate::{
    behavior::Turn,
    command::{PublicKeyBytes, Refusal, code},
    id::{Generation, NodeId},
    limits::{
        POLICY_WAIT, RELAY_CONNECTIONS_PER_NODE_MAX, RELAY_SESSIONS_MAX, RELAY_SWEEP_INTERVAL, RESTART_KEPT,
        SESSION_PING_INTERVAL, SESSION_SILENCE_MAX,
    },
    time::Moment,
    wire::session::NodeResponse,
};

/// A connection of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The node.
    pub node: NodeId,
    /// The key of its certificate.
    pub public: PublicKeyBytes,
    /// The generation of its session, once it was welcomed.
    pub session: Option<Generation>,
    /// When something came from it last.
    pub heard: Moment,
    /// When it was pinged last.
    pub pinged: Moment,
    /// Pings so far.
    pub pings: u64,
    /// Requests of it that were not answered yet.
    pub owed: u32,
}

impl Relay {
    pub(super) fn connected(
        &mut self,
        turn: Turn,
        connection: u64,
        node: NodeId,
        public: PublicKeyBytes,
        effects: &mut Vec<Effect>,
    ) {
        let siblings = self.connections.values().filter(|known| known.node == node).count();
        let full = self.connections.len() >= RELAY_SESSIONS_MAX && !self.sessions.contains_key(&node);
        if full || siblings >= RELAY_CONNECTIONS_PER_NODE_MAX || self.connections.contains_key(&connection) {
            let reason = "the relay has as many connections as it keeps".to_owned();
            return effects.push(Effect::CloseSession { connection, reason });
        }
        let now = turn.now;
        let known = Connection { node, public, session: None, heard: now, pinged: now, pings: 0, owed: 0 };
        self.connections.insert(connection, known);
        self.keep_sweeping(effects);
    }

    pub(super) fn heard(&mut self, turn: Turn, connection: u64) {
        if let Some(known) = self.connections.get_mut(&connection) {
            known.heard = known.heard.max(turn.now);
        }
    }

    /// A newer session replaces the older; one that is not newer is refused (R5, R17).
    pub(super) fn hello(&mut self, asker: Asker, session: Generation, effects: &mut Vec<Effect>) -> Step {
        let Some(known) = self.connections.get(&asker.connection) else {
            return Step::Answer(NodeResponse::Refused(ended("the session has ended")));
        };
        let node = known.node;
        let Some(held) = &self.policy else { return Step::Wait(POLICY_WAIT, policy_required()) };
        let version = held.version;
        if held.policy.nodes.get(&node) != Some(&known.public) {
            return Step::Wait(POLICY_WAIT, not_allowed(node));
        }
        if let Some(mine) = known.session {
            return Step::Answer(if mine == session {
                NodeResponse::Welcome { policy: version }
            } else {
                NodeResponse::Refused(ended(&format!("this session is {mine} and cannot become {session}")))
            });
        }
        if let Some(old) = self.sessions.get(&node).copied() {
            let there = self.connections.get(&old).and_then(|old| old.session);
            if there >= Some(session) {
                let found = format!("{node} has a session that is not older than {session}");
                effects.push(Effect::CloseSession { connection: asker.connection, reason: found.clone() });
                return Step::Answer(NodeResponse::Refused(ended(&found)));
            }
            self.replace(old, session, effects);
        }
        self.sessions.insert(node, asker.connection);
        if let Some(known) = self.connections.get_mut(&asker.connection) {
            known.session = Some(session);
        }
        self.stay(node);
        self.counters.welcomed += 1;
        self.tell_drain(asker.connection, effects);
        self.tell_applied(asker.connection, effects);
        Step::Answer(NodeResponse::Welcome { policy: version })
    }

    /// The registrations stay for the newer session, which serves them from here on; the channels go.
    fn replace(&mut self, old: u64, by: Generation, effects: &mut Vec<Effect>) {
        let reason = format!("the node has the newer session {by}");
        self.counters.replaced += 1;
        #[cfg(feature = "planted")]
        if crate::planted::goodbyes_unguarded() {
            if let Some(known) = self.connections.get_mut(&old) {
                known.session = None;
                let node = known.node;
                self.channels_end(node, &reason, effects);
            }
            return;
        }
        self.leave_connection(old, &reason, effects);
        effects.push(Effect::CloseSession { connection: old, reason });
    }

    /// A node ends its session on purpose; a goodbye of an older session ends nothing (R5).
    pub(super) fn goodbye(&mut self, turn: Turn, asker: Asker, session: Generation, effects: &mut Vec<Effect>) {
        self.reply(asker.reply, NodeResponse::Done, effects);
        let Some(known) = self.connections.get(&asker.connection) else { return };
        if known.session != Some(session) {
            return;
        }
        let node = known.node;
        self.leave_connection(asker.connection, "the node said goodbye", effects);
        self.go(node, turn.now.after(RESTART_KEPT));
        effects.push(Effect::CloseSession { connection: asker.connection, reason: "goodbye".to_owned() });
    }

    /// A connection is gone, and with it all that its node had here.
    pub(super) fn end(&mut self, connection: u64, reason: &str, effects: &mut Vec<Effect>) {
        let Some(known) = self.connections.get(&connection) else { return };
        let node = known.node;
        let was_session = self.sessions.get(&node) == Some(&connection);
        #[cfg(feature = "planted")]
        let was_session = was_session || crate::planted::goodbyes_unguarded();
        self.leave_connection(connection, reason, effects);
        if was_session {
            self.registrations_end(node);
        }
    }

    /// Forgets a connection, closes its channels and settles every request from or to it.
    fn leave_connection(&mut self, connection: u64, reason: &str, effects: &mut Vec<Effect>) {
        let Some(known) = self.connections.remove(&connection) else { return };
        if self.sessions.get(&known.node) == Some(&connection) {
            self.sessions.remove(&known.node);
            self.channels_end(known.node, reason, effects);
        }
        let concerned = |(ask, asked): (&u64, &Asked)| match asked.what {
            AskedFor::Admission { connection: consumer, reply, .. } => {
                let hit = consumer == connection || asked.connection == connection;
                hit.then_some((*ask, Asker { connection: consumer, reply }))
            }
            AskedFor::Offer { .. } => None,
        };
        for (ask, asker) in self.asks.iter().filter_map(concerned).collect::<Vec<_>>() {
            self.asks.remove(&ask);
            let found =
                if asker.connection == connection { "the session has ended" } else { "the target node has left" };
            self.settle(asker, NodeResponse::Refused(absent(found)), effects);
        }
        self.waiting_end(connection, effects);
    }

    /// Closes the sessions of nodes that the policy no longer has, or has with another key (R12).
    pub(super) fn close_unwelcome(&mut self, held: &Held, effects: &mut Vec<Effect>) {
        let unwelcome =
            |known: &Connection| known.session.is_some() && held.policy.nodes.get(&known.node) != Some(&known.public);
        let gone = self.connections.iter().filter(|(_, known)| unwelcome(known)).map(|(connection, _)| *connection);
        for connection in gone.collect::<Vec<_>>() {
            let reason = "the node was removed or has another key now".to_owned();
            self.end(connection, &reason, effects);
            effects.push(Effect::CloseSession { connection, reason });
        }
    }

    /// Drops who has fallen silent (RP-33), pings the others, and refuses what has waited long enough.
    pub(super) fn sweep(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        self.sweeping = false;
        let silent = |known: &Connection| turn.now.since(known.heard) >= SESSION_SILENCE_MAX;
        let dropped = self.connections.iter().filter(|(_, known)| silent(known)).map(|(connection, _)| *connection);
        for connection in dropped.collect::<Vec<_>>() {
            let reason = format!("nothing came from the node for {} ms", SESSION_SILENCE_MAX.as_millis());
            self.counters.dropped += 1;
            self.end(connection, &reason, effects);
            effects.push(Effect::CloseSession { connection, reason });
        }
        for (connection, known) in &mut self.connections {
            if known.session.is_some() && turn.now.since(known.pinged) >= SESSION_PING_INTERVAL {
                known.pinged = turn.now;
                known.pings += 1;
                effects.push(Effect::Ping { connection: *connection, sequence: known.pings });
            }
        }
        self.forget_gone(turn.now);
        self.disconnect_drained(turn.now, effects);
        self.waiting_sweep(turn, effects);
        self.keep_sweeping(effects);
    }

    /// Sweeps as long as there is something to sweep.
    pub(super) fn keep_sweeping(&mut self, effects: &mut Vec<Effect>) {
        if !self.sweeping && (!self.connections.is_empty() || !self.registrations.is_empty()) {
            self.sweeping = true;
            effects.push(Effect::Start { timer: Timer::Sweep, after_ms: RELAY_SWEEP_INTERVAL.as_millis() as u64 });
        }
    }
}

// RP-62: these words are stable.
pub(super) fn policy_required() -> Refusal {
    Refusal::new(
        code::POLICY_REQUIRED,
        "policy snapshot is required: this relay has none yet",
        "It gets one as soon as it reaches a control node: postroad relay show NAME",
    )
}

fn not_allowed(node: NodeId) -> Refusal {
    Refusal::new(
        code::SESSION_NOT_ALLOWED,
        format!("{node} does not match policy: it was removed, has another key, or is too new for this relay"),
        "Look whether the node and the relay are up to date: postroad status",
    )
}
