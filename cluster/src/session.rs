//! A node's session with one relay: when to dial, what to register, and when the relay counts as reachable.

mod event;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Turn},
    command::Refusal,
    grant::SignedGrant,
    id::{Generation, LinkId, NodeId, Version},
    limits::{
        PASS_ON_MIN, PASS_ON_SPREAD, REGISTER_RETRY_MAX, REGISTER_RETRY_MIN, SESSION_PING_INTERVAL, SESSION_RETRY_MAX,
        SESSION_RETRY_MIN,
    },
    retry,
};

pub use self::event::{Effect, Event, Timer};

/// The session's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The relay's node.
    pub relay: NodeId,
    /// Where it is dialled.
    pub address: String,
    /// How far the session is.
    pub phase: Phase,
    /// Failed attempts in a row.
    pub failures: u32,
    /// Why the last attempt or session ended, for people.
    pub last_end: Option<String>,
    /// The generation of the last session; the boot count is its upper half.
    pub generation: Generation,
    /// The last round-trip time, in microseconds, of this session.
    pub round_trip_us: Option<u64>,
    /// The version of the policy that the relay said it admits by.
    pub policy: Version,
    /// Endpoints to register, by link.
    pub endpoints: BTreeMap<LinkId, Endpoint>,
    /// Pings sent in this session.
    pub pings: u64,
    /// What the relay says that it has applied.
    pub applied: Version,
    /// The newest of this node's revocations.
    pub revocations: Version,
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not started, or stopped.
    Idle,
    /// A dial is under way.
    Dialling,
    /// Connected, not yet welcomed.
    Greeting {
        /// The connection.
        connection: u64,
    },
    /// The session stands.
    Up {
        /// The connection.
        connection: u64,
    },
    /// Until the retry timer.
    Waiting,
    /// Ended on purpose: this node stops.
    Left,
}

/// An endpoint of this node, as the relay is to hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The generation of its route.
    pub generation: Generation,
    /// The grant to register.
    pub grant: SignedGrant,
    /// The generation that the relay has confirmed in this session.
    pub registered: Option<Generation>,
    /// Refusals in a row.
    pub refusals: u32,
    /// The last refusal, for people.
    pub refusal: Option<Refusal>,
}

impl Session {
    /// A session that has not begun. `boots` counts the starts of the node, so that generations only grow.
    #[must_use]
    pub fn new(relay: NodeId, boots: u32) -> Self {
        Self {
            relay,
            address: String::new(),
            phase: Phase::Idle,
            failures: 0,
            last_end: None,
            generation: Generation(u64::from(boots) << 32),
            round_trip_us: None,
            policy: Version(0),
            endpoints: BTreeMap::new(),
            pings: 0,
            applied: Version(0),
            revocations: Version(0),
        }
    }

    /// Whether the session stands.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    const fn connection(&self) -> Option<u64> {
        match self.phase {
            Phase::Greeting { connection } | Phase::Up { connection } => Some(connection),
            _ => None,
        }
    }

    fn dial(&mut self, effects: &mut Vec<Effect>) {
        self.phase = Phase::Dialling;
        effects.push(Effect::Dial { address: self.address.clone() });
    }

    /// The dial or the session has ended: wait and dial again.
    fn ended(&mut self, turn: Turn, reason: String, effects: &mut Vec<Effect>) {
        let was_up = self.is_up();
        // A session that stood proves the relay: only failures after it count.
        self.failures = if was_up { 1 } else { self.failures.saturating_add(1) };
        if was_up {
            effects.push(Effect::Down { reason: reason.clone() });
        }
        self.phase = Phase::Waiting;
        self.last_end = Some(reason);
        self.round_trip_us = None;
        self.applied = Version(0);
        for endpoint in self.endpoints.values_mut() {
            endpoint.registered = None;
        }
        let wait = retry::delay(&turn, self.failures, SESSION_RETRY_MIN, SESSION_RETRY_MAX);
        effects.push(Effect::Start { timer: Timer::Retry, after_ms: wait.as_millis() as u64 });
    }

    fn retarget(&mut self, address: String, effects: &mut Vec<Effect>) {
        if address == self.address && self.phase != Phase::Idle {
            return;
        }
        self.address = address;
        match self.phase {
            Phase::Idle | Phase::Waiting => self.dial(effects),
            // The dial under way ends by itself, and the next goes to the new address.
            Phase::Dialling | Phase::Left => {}
            Phase::Greeting { connection } | Phase::Up { connection } => {
                effects.push(Effect::Close { connection, reason: "the relay has a new address".to_owned() });
            }
        }
    }

    fn register(&self, link: LinkId, effects: &mut Vec<Effect>) {
        if let (Phase::Up { connection }, Some(endpoint)) = (self.phase, self.endpoints.get(&link)) {
            effects.push(Effect::Register {
                connection,
                link,
                generation: endpoint.generation,
                grant: endpoint.grant.clone(),
            });
        }
    }

    fn want(&mut self, wanted: BTreeMap<LinkId, (Generation, SignedGrant)>, effects: &mut Vec<Effect>) {
        let gone: Vec<LinkId> = self.endpoints.keys().filter(|link| !wanted.contains_key(link)).copied().collect();
        for link in gone {
            if let Some(Endpoint { registered: Some(generation), .. }) = self.endpoints.remove(&link)
                && let Some(connection) = self.connection()
            {
                effects.push(Effect::Unregister { connection, link, generation });
            }
        }
        for (link, (generation, grant)) in wanted {
            let known = self.endpoints.get(&link);
            if known.is_some_and(|known| known.generation == generation && known.grant == grant) {
                continue;
            }
            let registered = known.and_then(|known| known.registered);
            self.endpoints.insert(link, Endpoint { generation, grant, registered, refusals: 0, refusal: None });
            self.register(link, effects);
        }
    }

    fn registered(
        &mut self,
        turn: Turn,
        link: LinkId,
        generation: Generation,
        refusal: Option<Refusal>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(&link) else { return };
        match refusal {
            None => {
                endpoint.registered = Some(generation);
                endpoint.refusals = 0;
                endpoint.refusal = None;
            }
            Some(refusal) if generation == endpoint.generation => {
                endpoint.refusals = endpoint.refusals.saturating_add(1);
                endpoint.refusal = Some(refusal);
                let wait = retry::delay(&turn, endpoint.refusals, REGISTER_RETRY_MIN, REGISTER_RETRY_MAX);
                effects.push(Effect::Start { timer: Timer::Register, after_ms: wait.as_millis() as u64 });
            }
            Some(_) => {}
        }
    }

    /// The relay gets a while to hear of revocations by itself.
    fn pass_on_later(&self, turn: Turn, effects: &mut Vec<Effect>) {
        if self.is_up() && self.applied < self.revocations {
            let spread = turn.draw(3, PASS_ON_SPREAD.as_millis() as u64);
            let after_ms = PASS_ON_MIN.as_millis() as u64 + spread;
            effects.push(Effect::Start { timer: Timer::PassOn, after_ms });
        }
    }

    fn applied(&mut self, turn: Turn, version: Version, revocations: Version, effects: &mut Vec<Effect>) {
        let Some(connection) = self.connection() else { return };
        self.applied = self.applied.max(version);
        if self.is_up() {
            effects.push(Effect::Applied { version: self.applied });
        }
        if revocations > self.revocations {
            effects.push(Effect::Fetch { connection });
        }
        self.pass_on_later(turn, effects);
    }

    fn leave(&mut self, effects: &mut Vec<Effect>) {
        match core::mem::replace(&mut self.phase, Phase::Left) {
            Phase::Up { connection } => {
                let reason = "this node stops".to_owned();
                effects.push(Effect::Goodbye { connection, session: self.generation });
                effects.push(Effect::Down { reason });
            }
            Phase::Greeting { connection } => {
                effects.push(Effect::Close { connection, reason: "this node stops".to_owned() });
            }
            Phase::Idle | Phase::Dialling | Phase::Waiting | Phase::Left => {}
        }
    }

    fn timer(&mut self, timer: Timer, effects: &mut Vec<Effect>) {
        match (timer, self.phase) {
            (Timer::Retry, Phase::Waiting) => self.dial(effects),
            (Timer::Ping, Phase::Up { connection }) => {
                self.pings += 1;
                effects.push(Effect::Ping { connection, sequence: self.pings });
                effects.push(start_ping());
            }
            (Timer::PassOn, Phase::Up { connection }) if self.applied < self.revocations => {
                effects.push(Effect::PassOn { connection });
            }
            (Timer::Register, Phase::Up { .. }) => {
                let refused: Vec<LinkId> = self
                    .endpoints
                    .iter()
                    .filter(|(_, endpoint)| endpoint.refusals > 0)
                    .map(|(link, _)| *link)
                    .collect();
                for link in refused {
                    self.register(link, effects);
                }
            }
            _ => {}
        }
    }
}

fn start_ping() -> Effect {
    Effect::Start { timer: Timer::Ping, after_ms: SESSION_PING_INTERVAL.as_millis() as u64 }
}

impl Behavior for Session {
    const NOUN: &'static str = "session";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Target { address } => self.retarget(address, effects),
            Event::Endpoints { wanted } => self.want(wanted, effects),
            Event::Connected { connection } => {
                if self.phase == Phase::Dialling {
                    self.phase = Phase::Greeting { connection };
                    self.generation = self.generation.next();
                    effects.push(Effect::Hello { connection, session: self.generation });
                } else {
                    effects.push(Effect::Close { connection, reason: "not wanted any more".to_owned() });
                }
            }
            Event::DialFailed { reason } => {
                if self.phase == Phase::Dialling {
                    self.ended(turn, reason, effects);
                }
            }
            Event::Welcomed { connection, policy } => {
                if self.phase == (Phase::Greeting { connection }) {
                    self.phase = Phase::Up { connection };
                    self.policy = policy;
                    self.failures = 0;
                    effects.push(Effect::Up { connection });
                    effects.push(start_ping());
                    // What the relay has said while it welcomed the node may be more than its policy.
                    self.applied(turn, policy, Version(0), effects);
                    let links: Vec<LinkId> = self.endpoints.keys().copied().collect();
                    for link in links {
                        self.register(link, effects);
                    }
                }
            }
            Event::Closed { connection, reason } => {
                if self.connection() == Some(connection) {
                    self.ended(turn, reason, effects);
                }
            }
            Event::Registered { connection, link, generation, refusal } => {
                if self.connection() == Some(connection) {
                    self.registered(turn, link, generation, refusal, effects);
                }
            }
            Event::Pong { connection, round_trip_us } => {
                if self.connection() == Some(connection) {
                    self.round_trip_us = Some(round_trip_us);
                    effects.push(Effect::Measured { round_trip_us });
                }
            }
            Event::Silent { connection } => {
                if self.connection() == Some(connection) {
                    let reason = "its pings are not answered".to_owned();
                    effects.push(Effect::Close { connection, reason: reason.clone() });
                    self.ended(turn, reason, effects);
                }
            }
            Event::Revocations { version } => {
                self.revocations = self.revocations.max(version);
                self.pass_on_later(turn, effects);
            }
            Event::Applied { version, revocations } => self.applied(turn, version, revocations, effects),
            Event::Leave => self.leave(effects),
            Event::Timer(timer) => self.timer(timer, effects),
        }
    }
}

#[cfg(test)]
mod tests;
