//! The relay service of a node: who has a session, which endpoints are registered, which channels are open, and which
//! tunnels are admitted. It dials nobody (RP-5) and touches no packet: the packet switch does as `SwitchOpen` says.
//!
//! # Events and effects
//!
//! The actor numbers connections and never uses a number twice. For a connection it sends `Connected` once the
//! certificate was checked, then a `Request` for each request, `Heard` for every sign of life, and `Disconnected` once.
//! - Each `Request` gets exactly one `Reply` with its `ReplyId`, at once or later, also when its connection has ended.
//! - Each `Ask` wants exactly one `Answered` with its number, in time; `Tell` and `Ping` want none.
//! - A request with a grant carries what the actor found of it, by the issuers of the accepted snapshot
//!   ([`Presented`]). `Check` asks for that once more, after a newer policy has come, and wants one `Checked`.
//! - `Policy` comes whenever a snapshot was accepted, and first from disk after a start (RP-25, RP-30).
//! - `Request` brings fresh chance for a channel's four tokens, from the entropy port: they must be unguessable.
//! - `Start` starts a timer in place of an earlier one of the same name; it comes back as `Timer`.
//! - `CloseSession` closes a connection; its later `Disconnected` changes nothing.
//!
//! A tunnel of node 2 over link 1, which node 3 serves:
//!
//! ```text
//! Policy { version: v7, .. }
//! Connected { connection: 11, node: n3 }   Request { 11, Hello { g1 } }        -> Reply Welcome { v7 }
//! Request { 11, Register { link-1, g1 } }                                      -> Reply Done
//! Connected { connection: 12, node: n2 }   Request { 12, Hello { g1 } }        -> Reply Welcome { v7 }
//! Request { 12, ChannelOpen { circuit-5, n3 } }       -> SwitchOpen, Ask { 11, ChannelOffer { circuit-5, n2 } }
//! Answered { Done }                                                            -> Reply ChannelOpened
//! Request { 12, Admit { tunnel-9, link-1, g1 } }      -> Ask { 11, Admission { tunnel-9, link-1, n2 } }
//! Answered { Done }                                                            -> Reply Admitted { n3 }
//! ```
//!
//! # Rules
//!
//! A node has one session, the one of the highest generation (R5, R17). Its registrations outlive the change of
//! session, its channels do not, since they belong to a source address; it opens them again. When the policy's lease
//! has ended, no endpoint is registered and no tunnel admitted; sessions and channels, and so open flows, go on (R18).
//! While the relay drains it admits no tunnel and says so on every session; its channels stay, as a last resort, until
//! the drain's time has run out (RP-40).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, ReplyId, Turn},
    command::{Refusal, code},
    id::{ChannelToken, LinkId, Name, NodeId, Version},
    limits::AHEAD_LOT_MAX,
    revocation::Revocations,
    snapshot::Policy,
    time::{Moment, WallTime},
    wire::session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
};

mod admission;
mod channel;
mod drain;
mod event;
mod registration;
mod revocation;
mod session;
#[cfg(test)]
mod tests;
mod waiting;

pub use channel::{Channel, ChannelEnd, ChannelKey};
pub use event::{Effect, Event, Presented, Timer};
pub use registration::Registration;
pub use session::Connection;

/// The relay service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Relay {
    /// What it admits by; nothing before the first snapshot.
    pub policy: Option<Held>,
    /// Routes that it takes nothing for, whatever the policy says.
    pub revocations: Revocations,
    /// Connections by the actor's number, greeted or not.
    pub connections: BTreeMap<u64, Connection>,
    /// The one session of each node, by its connection.
    pub sessions: BTreeMap<NodeId, u64>,
    /// Endpoints by link.
    pub registrations: BTreeMap<LinkId, Registration>,
    /// Channels by pair and circuit.
    pub channels: BTreeMap<ChannelKey, Channel>,
    /// What happened since the start.
    pub counters: Counters,
    links_of: BTreeMap<NodeId, BTreeSet<LinkId>>,
    channels_of: BTreeMap<NodeId, BTreeSet<ChannelKey>>,
    tokens: BTreeSet<ChannelToken>,
    asks: BTreeMap<u64, Asked>,
    last_ask: u64,
    waiting: BTreeMap<u64, waiting::Waiting>,
    last_waiting: u64,
    sweeping: bool,
}

/// The policy that a relay holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The cluster.
    pub cluster: Name,
    /// The snapshot's version.
    pub version: Version,
    /// When the snapshot was issued.
    pub issued: WallTime,
    /// When the lease ends, on this node's clock, fixed when the snapshot came: a jump of the wall clock neither
    /// prolongs nor ends it.
    pub until: Moment,
    /// The policy.
    pub policy: Policy,
    /// When the relay disconnects what its drain has left, on this node's clock.
    pub disconnects: Option<Moment>,
    /// The pairs of nodes that a live route joins, the lower one first.
    pairs: BTreeSet<(NodeId, NodeId)>,
}

/// Figures since the start, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Sessions welcomed.
    pub welcomed: u64,
    /// Sessions that a newer one of the same node replaced.
    pub replaced: u64,
    /// Sessions dropped for their silence.
    pub dropped: u64,
    /// Registrations made.
    pub registered: u64,
    /// Channels opened.
    pub channels_opened: u64,
    /// Tunnels admitted, those ahead of need too.
    pub admitted: u64,
    /// Refusals by code.
    pub refused: BTreeMap<String, u64>,
}

/// The present numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Sessions.
    pub sessions: usize,
    /// Registered endpoints.
    pub registrations: usize,
    /// Channels, those that wait for their peer too.
    pub channels: usize,
    /// Requests that wait for a policy or a registration.
    pub waiting: usize,
}

/// A request to a node that was not answered yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Asked {
    /// The connection that was asked.
    connection: u64,
    what: AskedFor,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum AskedFor {
    Offer { key: ChannelKey },
    Admission { connection: u64, reply: ReplyId, target: NodeId, tunnels: u64 },
}

/// How far a request got.
enum Step {
    /// Answer it.
    Answer(NodeResponse),
    /// Answer it when the world has changed, or refuse it so when that long has passed since it came.
    Wait(crate::time::Span, Refusal),
    /// Somebody was asked; the answer to that answers it.
    Asked,
}

impl Behavior for Relay {
    const NOUN: &'static str = "relay";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        #[cfg(feature = "planted")]
        if crate::planted::relays_deaf() && self.hears_not(&event, effects) {
            return;
        }
        match event {
            Event::Policy { cluster, version, issued, ends, policy } => {
                let until = turn.now.after(ends.since(turn.wall));
                let pairs = pairs(&policy);
                let disconnects = policy.drain.map(|drain| turn.now.after(drain.ends.since(turn.wall)));
                let held = Held { cluster, version, issued, until, policy: *policy, disconnects, pairs };
                self.policy_came(turn, held, effects);
            }
            Event::Revoked { revocations } => self.revoked(revocations.into_inner(), effects),
            Event::Connected { connection, node, public } => self.connected(turn, connection, node, public, effects),
            Event::Disconnected { connection, reason } => self.end(connection, &reason, effects),
            Event::Heard { connection } => self.heard(turn, connection),
            Event::Request { connection, reply, request, grant, draws } => {
                self.heard(turn, connection);
                self.request(turn, Asker { connection, reply }, request, grant, draws, effects);
            }
            Event::Answered { ask, response } => self.answered(turn, ask, response, effects),
            Event::Checked { waiting, grant } => self.checked(turn, waiting, grant, effects),
            Event::Timer(Timer::Sweep) => self.sweep(turn, effects),
        }
    }
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Asker {
    connection: u64,
    reply: ReplyId,
}

impl Relay {
    /// The present numbers.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            sessions: self.sessions.len(),
            registrations: self.registrations.len(),
            channels: self.channels.len(),
            waiting: self.waiting.len(),
        }
    }

    /// A deaf relay takes no change, and says so to whoever passes one on.
    #[cfg(feature = "planted")]
    fn hears_not(&mut self, event: &Event, effects: &mut Vec<Effect>) -> bool {
        match event {
            Event::Policy { .. } | Event::Revoked { .. } => true,
            Event::Request { reply, request: NodeRequest::Revocations { .. }, .. } => {
                self.reply(*reply, NodeResponse::Refused(ended("this relay is deaf")), effects);
                true
            }
            _ => false,
        }
    }

    /// The requests that will be answered later.
    #[must_use]
    pub fn owed(&self) -> BTreeSet<ReplyId> {
        let asks = self.asks.values().filter_map(|asked| match asked.what {
            AskedFor::Admission { reply, .. } => Some(reply),
            AskedFor::Offer { .. } => None,
        });
        let channels = self.channels.values().flat_map(Channel::waiters);
        asks.chain(channels).chain(self.waiting.values().map(waiting::Waiting::reply)).collect()
    }

    /// Whether the lease of the policy, if there is one, has ended.
    #[must_use]
    pub fn lease_has_ended(&self, now: Moment) -> bool {
        self.policy.as_ref().is_some_and(|held| held.until <= now)
    }

    fn request(
        &mut self,
        turn: Turn,
        asker: Asker,
        request: NodeRequest,
        grant: Presented,
        draws: [ChannelToken; 4],
        effects: &mut Vec<Effect>,
    ) {
        let Some(connection) = self.connections.get(&asker.connection) else {
            return self.reply(asker.reply, NodeResponse::Refused(ended("the session has ended")), effects);
        };
        let node = connection.node;
        match request {
            // What a proof proves, the packet switch says.
            NodeRequest::Ping { .. } | NodeRequest::AddressProof { .. } => {
                self.reply(asker.reply, NodeResponse::Done, effects);
            }
            NodeRequest::Goodbye { session } => self.goodbye(turn, asker, session, effects),
            NodeRequest::Hello { .. } => self.attempt(turn, asker, request, grant, effects),
            _ if connection.session.is_none() => {
                let refusal =
                    Refusal::new(code::SESSION_NOT_GREETED, "the session has no hello yet", "Say hello first");
                self.reply(asker.reply, NodeResponse::Refused(refusal), effects);
            }
            NodeRequest::Unregister { link, generation } => self.unregister(asker, node, link, generation, effects),
            NodeRequest::ChannelOpen { circuit, peer } => {
                self.channel_open(turn, asker, ChannelKey::new(node, peer, circuit), peer, draws, effects);
            }
            NodeRequest::ChannelClose { circuit, peer } => {
                let reason = format!("{node} has closed it");
                self.channel_close(ChannelKey::new(node, peer, circuit), Some(node), &reason, effects);
                self.reply(asker.reply, NodeResponse::Done, effects);
            }
            // The actor has taken them before, or has answered with its own; the transport has taken the trace off.
            NodeRequest::Revocations { .. } | NodeRequest::RevocationsAsk | NodeRequest::Traced { .. } => {
                self.reply(asker.reply, NodeResponse::Done, effects);
            }
            NodeRequest::AdmitAhead { ref tunnels, .. } if !(1..=AHEAD_LOT_MAX).contains(&tunnels.len()) => {
                let found = format!("{} tunnels are asked for ahead, and 1 to {AHEAD_LOT_MAX} may be", tunnels.len());
                let refusal = Refusal::new(code::TOO_MANY, found, "Update the node: it asks for lots of another size");
                self.reply(asker.reply, NodeResponse::Refused(refusal), effects);
            }
            NodeRequest::Register { .. } | NodeRequest::Admit { .. } | NodeRequest::AdmitAhead { .. } => {
                self.attempt(turn, asker, request, grant, effects);
            }
        }
    }

    fn answered(&mut self, turn: Turn, ask: u64, response: Result<RelayResponse, String>, effects: &mut Vec<Effect>) {
        // An ask of a session that has ended was settled then.
        let Some(Asked { connection, what }) = self.asks.remove(&ask) else { return };
        let refusal = match response {
            Ok(RelayResponse::Done) => None,
            Ok(RelayResponse::Refused(refusal)) => {
                let message: String = refusal.to_string().chars().take(200).collect();
                Some(Refusal::new(code::PEER_REFUSED, format!("the other node refused: {message}"), refusal.hint))
            }
            Err(reason) => Some(absent(&format!("the other node did not answer: {reason}"))),
        };
        if refusal.as_ref().is_none_or(|refusal| refusal.code == code::PEER_REFUSED) {
            self.heard(turn, connection);
        }
        match what {
            AskedFor::Offer { key } => self.offer_answered(key, refusal.as_ref(), effects),
            AskedFor::Admission { connection, reply, target, tunnels } => {
                self.admission_answered(Asker { connection, reply }, target, tunnels, refusal, effects);
            }
        }
    }

    fn ask(&mut self, connection: u64, what: AskedFor, request: RelayRequest, effects: &mut Vec<Effect>) -> u64 {
        self.last_ask += 1;
        let ask = self.last_ask;
        self.asks.insert(ask, Asked { connection, what });
        effects.push(Effect::Ask { connection, ask, request });
        ask
    }

    /// Answers a request, and counts it if it is refused.
    fn reply(&mut self, reply: ReplyId, response: NodeResponse, effects: &mut Vec<Effect>) {
        if let NodeResponse::Refused(refusal) = &response {
            *self.counters.refused.entry(refusal.code.clone()).or_default() += 1;
        }
        effects.push(Effect::Reply { reply, response });
    }

    /// Answers a request that was owed an answer.
    fn settle(&mut self, asker: Asker, response: NodeResponse, effects: &mut Vec<Effect>) {
        if let Some(connection) = self.connections.get_mut(&asker.connection) {
            connection.owed = connection.owed.saturating_sub(1);
        }
        self.reply(asker.reply, response, effects);
    }

    /// Notes that a request will be answered later.
    fn owe(&mut self, asker: Asker) {
        if let Some(connection) = self.connections.get_mut(&asker.connection) {
            connection.owed += 1;
        }
    }

    /// Refuses what would be answered later, where too much is owed already.
    fn check_room(&self, asker: Asker) -> Result<(), Refusal> {
        use crate::limits::{RELAY_ASKS_MAX, RELAY_OWED_PER_SESSION_MAX, RELAY_WAITING_MAX};
        let owed = self.connections.get(&asker.connection).map_or(0, |connection| connection.owed);
        if owed >= RELAY_OWED_PER_SESSION_MAX
            || self.asks.len() >= RELAY_ASKS_MAX
            || self.waiting.len() >= RELAY_WAITING_MAX
        {
            return Err(too_many(&format!("{owed} requests of this session and too many in all wait for an answer")));
        }
        Ok(())
    }
}

impl Held {
    /// Whether a live route joins these two nodes.
    #[must_use]
    pub fn joins(&self, one: NodeId, other: NodeId) -> bool {
        self.pairs.contains(&(one.min(other), one.max(other)))
    }
}

fn pairs(policy: &Policy) -> BTreeSet<(NodeId, NodeId)> {
    let ends =
        policy.routes.values().flat_map(|route| route.consumers.iter().map(|consumer| (*consumer, route.target)));
    ends.map(|(one, other)| (one.min(other), one.max(other))).collect()
}

fn ended(found: &str) -> Refusal {
    Refusal::new(code::SESSION_REPLACED, found, "The node connects again by itself")
}

fn absent(found: &str) -> Refusal {
    Refusal::new(code::PEER_ABSENT, found, "Another relay may reach it: postroad status")
}

fn too_many(found: &str) -> Refusal {
    Refusal::new(code::TOO_MANY, found, "Try again in a moment, or another relay")
}
