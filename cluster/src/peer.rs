//! One pair of nodes: its circuits, one for each relay that takes their new connections, and the channels of each over
//! the relays that both nodes reach.
//!
//! The node with the lower number dials, draws the circuits' numbers and closes those that are surplus; the other takes
//! what relays offer it.

mod circuit;
mod event;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::{
    circuit::{Channel, ChannelPhase, Circuit},
    event::{Effect, Event, Lie, Timer, Tokens},
};
use crate::{
    behavior::{Behavior, Turn},
    id::{CircuitId, NodeId},
    limits::{
        CIRCUIT_SURPLUS, CIRCUITS_OF_A_PAIR_MAX, CIRCUITS_TAKEN_MAX, DIAL_RETRY_MAX, DIAL_RETRY_MIN, SPREAD_RETRY_MAX,
        SPREAD_RETRY_MIN,
    },
    retry,
};

/// The pair's state on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// This node.
    pub me: NodeId,
    /// The node at the other end.
    pub peer: NodeId,
    /// Relays with which this node has a session.
    pub relays: BTreeSet<NodeId>,
    /// Circuits by number.
    pub circuits: BTreeMap<CircuitId, Circuit>,
    /// Relays that take the pair's new connections: the dialling end has a circuit at each.
    pub takers: Vec<NodeId>,
    /// Where circuits lay when that was last told.
    pub lies: BTreeMap<CircuitId, Lie>,
    /// Whether new circuits have large packets (see [`crate::packet_size`]).
    pub large: bool,
    /// Circuits in a row that their relay did not open.
    pub refusals: u32,
    /// Why the last circuit or dial ended, for people.
    pub last_end: Option<String>,
    /// The upper half of the numbers of all circuits that this life of the dialling end draws: by it the other end knows
    /// a further circuit from one of a node that has restarted.
    life: Option<u32>,
}

/// Which life of the dialling end a circuit is from.
const fn life_of(circuit: CircuitId) -> u64 {
    circuit.0 >> 32
}

impl Peer {
    /// A pair that has nothing yet.
    #[must_use]
    pub const fn new(me: NodeId, peer: NodeId) -> Self {
        Self {
            me,
            peer,
            relays: BTreeSet::new(),
            circuits: BTreeMap::new(),
            takers: Vec::new(),
            lies: BTreeMap::new(),
            large: false,
            refusals: 0,
            last_end: None,
            life: None,
        }
    }

    /// Whether this node dials.
    #[must_use]
    pub fn dials(&self) -> bool {
        self.me < self.peer
    }

    /// Whether a circuit stands for new flows.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.circuits.values().any(Circuit::serves)
    }

    /// Opens another circuit: over its home's channel first, if it is for one relay. One that is to take whatever comes has
    /// small packets, which get through before anything is proven.
    fn open(&mut self, turn: Turn, home: Option<NodeId>, effects: &mut Vec<Effect>) {
        let half = |salt| turn.draw(salt, u64::from(u32::MAX)) + 1;
        let life = *self.life.get_or_insert(half(1) as u32);
        // Several may open in one turn.
        let circuit = CircuitId(u64::from(life) << 32 | half(2 + self.circuits.len() as u64));
        if self.circuits.contains_key(&circuit) {
            return;
        }
        let large = self.large && home.is_some();
        self.circuits.insert(circuit, Circuit { home, waits: home.is_some(), large, ..Circuit::default() });
        effects.push(Effect::CircuitAdd { circuit, large });
        self.ask_all(circuit, effects);
    }

    /// A circuit is there for whatever comes: the first, or one in place of the last that ended.
    fn open_if_none(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        if self.dials() && !self.relays.is_empty() && self.circuits.values().all(|known| known.closing) {
            self.open(turn, None, effects);
        }
    }

    fn relay_up(&mut self, turn: Turn, relay: NodeId, effects: &mut Vec<Effect>) {
        self.relays.insert(relay);
        if !self.dials() {
            return;
        }
        for circuit in self.circuits.keys().copied().collect::<Vec<_>>() {
            self.ask(relay, circuit, effects);
        }
        self.open_if_none(turn, effects);
        // It may be one that takes new connections and has lost its circuit meanwhile.
        self.level(turn, effects);
    }

    fn relay_down(&mut self, turn: Turn, relay: NodeId, effects: &mut Vec<Effect>) {
        self.relays.remove(&relay);
        for circuit in self.circuits.keys().copied().collect::<Vec<_>>() {
            self.channel_remove(relay, circuit, effects);
            let Some(known) = self.circuits.get_mut(&circuit) else { continue };
            known.channels.remove(&relay);
            if known.waits && known.home == Some(relay) {
                self.give_up(turn, circuit, "the session with its relay ended", effects);
            } else if self.dials() {
                // Its place is another relay's now, where there are more than a circuit has channels.
                self.ask_all(circuit, effects);
            }
        }
    }

    /// A further circuit does not come to stand: another serves meanwhile, and its relay is asked again later.
    fn give_up(&mut self, turn: Turn, circuit: CircuitId, reason: &str, effects: &mut Vec<Effect>) {
        self.remove(circuit, reason, effects);
        self.refusals = self.refusals.saturating_add(1);
        let wait = retry::delay(&turn, self.refusals, SPREAD_RETRY_MIN, SPREAD_RETRY_MAX);
        effects.push(Effect::Start { timer: Timer::Spread, after_ms: wait.as_millis() as u64 });
        self.open_if_none(turn, effects);
    }

    fn opened(&mut self, relay: NodeId, circuit: CircuitId, tokens: Tokens, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else {
            return effects.push(Effect::ChannelClose { relay, circuit });
        };
        if !self.relays.contains(&relay) {
            return;
        }
        let waited = core::mem::take(&mut known.waits);
        self.channel_add(relay, circuit, tokens, effects);
        self.dial(circuit, effects);
        if waited {
            self.ask_all(circuit, effects);
        }
    }

    fn dial(&mut self, circuit: CircuitId, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else { return };
        if known.connection.is_none() && !known.dialling && known.added().next().is_some() {
            known.dialling = true;
            effects.push(Effect::Dial { circuit });
        }
    }

    fn offered(&mut self, relay: NodeId, circuit: CircuitId, tokens: Tokens, effects: &mut Vec<Effect>) {
        // The relay may be ahead of the news that its session stands; with the session, the channel goes again.
        if self.dials() {
            return;
        }
        if !self.circuits.contains_key(&circuit) {
            if self.circuits.len() >= CIRCUITS_TAKEN_MAX {
                let Some(spare) = self.spare(circuit) else {
                    return effects.push(Effect::ChannelClose { relay, circuit });
                };
                self.remove(spare, "the peer opened another circuit", effects);
            }
            self.circuits.insert(circuit, Circuit::default());
            effects.push(Effect::CircuitAdd { circuit, large: false });
        }
        self.channel_add(relay, circuit, tokens, effects);
    }

    /// What makes room for an offered circuit: one that does not stand, of another life of the dialler first.
    fn spare(&self, offered: CircuitId) -> Option<CircuitId> {
        let free = self.circuits.iter().filter(|(_, known)| known.connection.is_none());
        free.map(|(circuit, _)| *circuit).min_by_key(|it| (life_of(*it) == life_of(offered), *it))
    }

    fn remove(&mut self, circuit: CircuitId, reason: &str, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.remove(&circuit) else { return };
        self.lies.remove(&circuit);
        if self.dials() {
            for relay in known.added() {
                effects.push(Effect::ChannelClose { relay, circuit });
            }
        }
        let reason = reason.to_owned();
        effects.push(Effect::CircuitRemove { circuit, reason: reason.clone() });
        if known.connection.is_some() {
            effects.push(Effect::Down { circuit, reason });
        }
    }

    fn connected(&mut self, circuit: CircuitId, connection: u64, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else {
            effects.push(Effect::CircuitRemove { circuit, reason: "not wanted any more".to_owned() });
            return;
        };
        known.dialling = false;
        known.failures = 0;
        known.connection = Some(connection);
        effects.push(Effect::Up { circuit, connection });
        if self.dials() {
            self.refusals = 0;
            return;
        }
        // The dialling end has restarted: what it had before leads nowhere.
        let older = self.circuits.keys().filter(|other| life_of(**other) != life_of(circuit)).copied();
        for older in older.collect::<Vec<_>>() {
            self.remove(older, "the peer opened another circuit", effects);
        }
    }

    fn closed(&mut self, turn: Turn, circuit: CircuitId, reason: &str, effects: &mut Vec<Effect>) {
        self.last_end = Some(reason.to_owned());
        if let Some(known) = self.circuits.get(&circuit).filter(|_| !self.dials()) {
            // The dialling end may go on with this circuit: it must hear that its channels lead nowhere any more.
            for relay in known.added() {
                effects.push(Effect::ChannelClose { relay, circuit });
            }
        }
        self.remove(circuit, reason, effects);
        self.open_if_none(turn, effects);
    }

    /// Has a circuit at each relay that takes new connections, and none that no relay needs and nothing uses.
    fn level(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        if !self.dials() {
            return;
        }
        for taker in self.takers.clone() {
            if self.at(taker).any(|circuit| self.fits(circuit)) || !self.relays.contains(&taker) {
                continue;
            }
            if let Some(circuit) = self.idle_elsewhere() {
                self.lies.insert(circuit, Lie { relay: Some(taker), busy: false, fits: true });
                effects.push(Effect::Move { circuit, relay: taker });
            } else if self.circuits.len() < CIRCUITS_OF_A_PAIR_MAX && self.serves() {
                self.open(turn, Some(taker), effects);
            }
        }
        self.mark_surplus(effects);
    }

    /// Circuits at a relay, those under way to it too.
    fn at(&self, relay: NodeId) -> impl Iterator<Item = CircuitId> + '_ {
        let lies = move |circuit: &CircuitId, known: &Circuit| match self.lies.get(circuit) {
            Some(lie) => lie.relay == Some(relay),
            None => known.home == Some(relay),
        };
        let open = self.circuits.iter().filter(|(_, known)| !known.closing);
        open.filter(move |(circuit, known)| lies(circuit, known)).map(|(circuit, _)| *circuit)
    }

    /// Whether a circuit's packets have the size of new ones.
    fn fits(&self, circuit: CircuitId) -> bool {
        let under_way = || self.circuits.get(&circuit).is_some_and(|known| known.large == self.large);
        self.lies.get(&circuit).map_or_else(under_way, |lie| lie.fits)
    }

    /// An empty circuit that no relay needs where it is and that would serve elsewhere.
    fn idle_elsewhere(&self) -> Option<CircuitId> {
        let needed = self.needed();
        let idle = self.circuits.iter().filter(|(circuit, known)| known.serves() && !needed.contains(circuit));
        let serves = |lie: &Lie| !lie.busy && lie.fits;
        idle.map(|(circuit, _)| *circuit).find(|circuit| self.lies.get(circuit).is_some_and(serves))
    }

    /// One circuit for each relay that takes new connections, and any where there is none such: the one that stays open. One
    /// of another size than new ones have is needed until such a one stands.
    fn needed(&self) -> BTreeSet<CircuitId> {
        let serves = |circuit: &CircuitId| self.circuits.get(circuit).is_some_and(Circuit::serves);
        let busy = |circuit: &CircuitId| self.lies.get(circuit).is_some_and(|lie| lie.busy);
        let best = |circuit: &CircuitId| (!self.fits(*circuit), !busy(circuit), *circuit);
        let at = |taker: &NodeId| self.at(*taker).filter(serves).min_by_key(best);
        let needed: BTreeSet<CircuitId> = self.takers.iter().filter_map(at).collect();
        if !needed.is_empty() {
            return needed;
        }
        self.circuits.keys().filter(|circuit| serves(circuit)).copied().min_by_key(best).into_iter().collect()
    }

    fn mark_surplus(&mut self, effects: &mut Vec<Effect>) {
        let needed = self.needed();
        for (circuit, known) in &mut self.circuits {
            let idle = self.lies.get(circuit).is_some_and(|lie| !lie.busy);
            let surplus = known.serves() && idle && !needed.contains(circuit);
            if surplus && !known.surplus {
                let timer = Timer::Surplus(*circuit);
                effects.push(Effect::Start { timer, after_ms: CIRCUIT_SURPLUS.as_millis() as u64 });
            }
            known.surplus = surplus;
        }
    }

    /// A circuit that the dialling end has given up before it stood leaves nothing here.
    fn forsaken(&mut self, circuit: CircuitId, effects: &mut Vec<Effect>) {
        let known = self.circuits.get(&circuit).filter(|_| !self.dials());
        if known.is_some_and(|known| known.connection.is_none() && known.added().next().is_none()) {
            self.remove(circuit, "the peer gave it up", effects);
        }
    }

    fn retire(&mut self, circuit: CircuitId, effects: &mut Vec<Effect>) {
        let others = self.circuits.iter().any(|(other, known)| *other != circuit && known.serves() && !known.surplus);
        let Some(known) = self.circuits.get_mut(&circuit).filter(|known| known.surplus && known.serves()) else {
            return;
        };
        if others {
            known.closing = true;
            effects.push(Effect::Retire { circuit });
        }
    }

    fn dial_failed(&mut self, turn: Turn, circuit: CircuitId, reason: String, effects: &mut Vec<Effect>) {
        let Some(known) = self.circuits.get_mut(&circuit) else { return };
        if known.large {
            // Its way may be too narrow by now: it is dialled again only once that is known.
            return self.give_up(turn, circuit, &reason, effects);
        }
        known.dialling = false;
        known.failures = known.failures.saturating_add(1);
        let wait = retry::delay(&turn, known.failures, DIAL_RETRY_MIN, DIAL_RETRY_MAX);
        effects.push(Effect::Start { timer: Timer::Dial(circuit), after_ms: wait.as_millis() as u64 });
        self.last_end = Some(reason);
    }

    fn timer(&mut self, turn: Turn, timer: Timer, effects: &mut Vec<Effect>) {
        let known = |circuit| self.circuits.get(&circuit);
        match timer {
            Timer::Channel(relay, circuit) => {
                let channel = known(circuit).and_then(|known| known.channels.get(&relay));
                if channel.is_some_and(|channel| channel.phase == ChannelPhase::Waiting) {
                    self.ask(relay, circuit, effects);
                }
            }
            Timer::Stranded(circuit) => {
                if known(circuit).is_some_and(|known| known.stranded) {
                    self.closed(turn, circuit, "no relay carried it for as long as flows wait", effects);
                }
            }
            Timer::Surplus(circuit) if self.dials() => self.retire(circuit, effects),
            Timer::Surplus(circuit) => self.forsaken(circuit, effects),
            Timer::Dial(circuit) => self.dial(circuit, effects),
            Timer::Spread => self.level(turn, effects),
        }
    }
}

impl Behavior for Peer {
    const NOUN: &'static str = "peer";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::RelayUp { relay } => self.relay_up(turn, relay, effects),
            Event::RelayDown { relay } => self.relay_down(turn, relay, effects),
            Event::ChannelOpened { relay, circuit, tokens } => self.opened(relay, circuit, tokens, effects),
            Event::ChannelRefused { relay, circuit, reason } => {
                if self.circuits.get(&circuit).is_some_and(|known| known.waits) {
                    self.give_up(turn, circuit, &reason, effects);
                } else {
                    self.ask_later(turn, relay, circuit, reason, effects);
                }
            }
            Event::ChannelOffered { relay, circuit, tokens } => self.offered(relay, circuit, tokens, effects),
            Event::ChannelClosed { relay, circuit, reason } => {
                self.channel_remove(relay, circuit, effects);
                if self.dials() {
                    self.ask_later(turn, relay, circuit, reason, effects);
                }
            }
            Event::Connected { circuit, connection } => self.connected(circuit, connection, effects),
            Event::DialFailed { circuit, reason } => self.dial_failed(turn, circuit, reason, effects),
            Event::Closed { circuit, connection, reason } => {
                if self.circuits.get(&circuit).is_some_and(|known| known.connection == Some(connection)) {
                    self.closed(turn, circuit, &reason, effects);
                }
            }
            Event::Stranded { circuit, wait_ms } => {
                if let Some(known) = self.circuits.get_mut(&circuit).filter(|known| !known.stranded) {
                    known.stranded = true;
                    effects.push(Effect::Start { timer: Timer::Stranded(circuit), after_ms: wait_ms });
                }
            }
            Event::Carried { circuit } => {
                if let Some(known) = self.circuits.get_mut(&circuit) {
                    known.stranded = false;
                }
            }
            Event::Spread { takers, lies, large } => {
                (self.takers, self.lies, self.large) = (takers, lies, large);
                self.lies.retain(|circuit, _| self.circuits.contains_key(circuit));
                self.level(turn, effects);
            }
            Event::Retired { circuit } => {
                if self.circuits.get(&circuit).is_some_and(|known| known.closing) {
                    self.remove(circuit, "it was empty and no relay needed it", effects);
                    self.open_if_none(turn, effects);
                }
            }
            Event::Kept { circuit } => {
                if let Some(known) = self.circuits.get_mut(&circuit) {
                    (known.closing, known.surplus) = (false, false);
                }
            }
            Event::Timer(timer) => self.timer(turn, timer, effects),
        }
    }
}
