//! One link on one of its nodes: the consumer's listener, the target's readiness, and which relay a tunnel asks.

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Class, Turn},
    id::{Generation, LinkId, NodeId},
    limits::LISTEN_RETRY,
    snapshot::LinkView,
};

/// The link's state on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The link.
    pub link: LinkId,
    /// What the snapshot says of it.
    pub view: Box<LinkView>,
    /// The consumer's listener.
    pub listener: Listener,
}

/// A consumer's listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listener {
    /// This node does not consume the link.
    None,
    /// Being opened.
    Opening,
    /// Open.
    Open,
    /// Could not be opened; tried again.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

/// What happens to a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The link begins on this node.
    Started,
    /// The snapshot says something new of it.
    Changed {
        /// What.
        view: Box<LinkView>,
    },
    /// The listener is open.
    Listening {
        /// Its address.
        address: String,
    },
    /// It could not be opened.
    ListenFailed {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// The retry timer has run out.
    ListenTimer,
}

/// What a link asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Listen; each connection is a new flow.
    Listen {
        /// The address.
        address: String,
    },
    /// Close the listener.
    Unlisten,
    /// Flows of generations before this one end at once: their route is revoked.
    EndFlowsBefore {
        /// The generation that lives.
        generation: Generation,
    },
    /// Send [`Event::ListenTimer`] later.
    ListenAfter {
        /// When.
        after_ms: u64,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Changed { .. } => "changed",
            Self::Listening { .. } => "listening",
            Self::ListenFailed { .. } => "listen-failed",
            Self::ListenTimer => "listen-timer",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Changed { .. } => Class::State { key: 0 },
            _ => Class::Reserved,
        }
    }
}

impl Link {
    /// A link as the snapshot describes it.
    #[must_use]
    pub const fn new(link: LinkId, view: Box<LinkView>) -> Self {
        Self { link, view, listener: Listener::None }
    }

    fn listen(&mut self, effects: &mut Vec<Effect>) {
        if let Some(address) = self.view.listen.clone() {
            self.listener = Listener::Opening;
            effects.push(Effect::Listen { address });
        }
    }

    fn changed(&mut self, view: Box<LinkView>, effects: &mut Vec<Effect>) {
        let before = core::mem::replace(&mut self.view, view);
        if before.generation != self.view.generation {
            effects.push(Effect::EndFlowsBefore { generation: self.view.generation });
        }
        if before.listen != self.view.listen {
            if self.listener != Listener::None {
                self.listener = Listener::None;
                effects.push(Effect::Unlisten);
            }
            self.listen(effects);
        }
    }

    fn is_for(&self, address: &str) -> bool {
        self.view.listen.as_deref() == Some(address) && self.listener != Listener::None
    }
}

impl Behavior for Link {
    const NOUN: &'static str = "link";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, _turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Started => self.listen(effects),
            Event::Changed { view } => self.changed(view, effects),
            Event::Listening { address } => {
                if self.is_for(&address) {
                    self.listener = Listener::Open;
                }
            }
            Event::ListenFailed { address, reason } => {
                if self.is_for(&address) {
                    self.listener = Listener::Failed { reason };
                    effects.push(Effect::ListenAfter { after_ms: LISTEN_RETRY.as_millis() as u64 });
                }
            }
            Event::ListenTimer => {
                if matches!(self.listener, Listener::Failed { .. }) {
                    self.listen(effects);
                }
            }
        }
    }
}

/// How the route of a tunnel stands, by the target node's own snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It leads here.
    Live,
    /// It is newer than the snapshot, which may be about to come (RP-31): nothing says that it is not good.
    Ahead,
    /// It was revoked, or it never led here.
    Gone,
}

/// How the route of this generation stands for a consumer at the target node `me`, which knows the link as `view`.
#[must_use]
pub fn route(view: Option<&LinkView>, me: NodeId, consumer: NodeId, generation: Generation, revoked: bool) -> Route {
    match view {
        _ if revoked => Route::Gone,
        None => Route::Ahead,
        Some(view) if view.target != me || generation < view.generation => Route::Gone,
        Some(view) if generation > view.generation => Route::Ahead,
        Some(view) if view.consumers.contains(&consumer) => Route::Live,
        Some(_) => Route::Gone,
    }
}

/// A relay that a tunnel could ask for admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The relay.
    pub relay: NodeId,
    /// The round-trip time to it in microseconds, where measured.
    pub round_trip_us: Option<u64>,
    /// It has refused tunnels of the link lately, so others are asked first (RP-21).
    pub refusing: bool,
    /// It is being drained, so it is asked last.
    pub draining: bool,
}

/// The order in which a tunnel asks relays: the one that carries the circuit first, since its answer comes with the
/// path, then the nearest; those that have refused lately come after them, relays that drain last, and the number breaks
/// ties.
#[must_use]
pub fn ask_order(carrying: Option<NodeId>, mut relays: Vec<Asked>) -> Vec<NodeId> {
    relays.sort_by_key(|asked| {
        let far = asked.round_trip_us.unwrap_or(u64::MAX);
        (asked.draining, asked.refusing, Some(asked.relay) != carrying, far, asked.relay)
    });
    relays.into_iter().map(|asked| asked.relay).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn view(generation: u64, listen: Option<&str>) -> Box<LinkView> {
        Box::new(LinkView {
            name: "db".parse().unwrap(),
            generation: Generation(generation),
            consumers: BTreeSet::from([NodeId(1)]),
            listen: listen.map(str::to_owned),
            target: NodeId(2),
            target_address: None,
            spread: 2,
            grants: vec![],
        })
    }

    fn on(link: &mut Link, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        link.on(Turn::default(), event, &mut effects);
        effects
    }

    #[test]
    fn a_consumer_listens_until_it_can_and_moves_with_its_address() {
        let mut link = Link::new(LinkId(1), view(1, Some("127.0.0.1:5432")));
        let listen = [Effect::Listen { address: "127.0.0.1:5432".into() }];
        assert_eq!(on(&mut link, Event::Started), listen);
        let failed = Event::ListenFailed { address: "127.0.0.1:5432".into(), reason: "in use".into() };
        assert!(matches!(on(&mut link, failed)[..], [Effect::ListenAfter { .. }]));
        assert_eq!(on(&mut link, Event::ListenTimer), listen);
        on(&mut link, Event::Listening { address: "127.0.0.1:5432".into() });
        assert_eq!(link.listener, Listener::Open);
        let effects = on(&mut link, Event::Changed { view: view(1, Some("127.0.0.1:1")) });
        assert_eq!(effects, [Effect::Unlisten, Effect::Listen { address: "127.0.0.1:1".into() }]);
        on(&mut link, Event::Listening { address: "127.0.0.1:5432".into() });
        assert_eq!(link.listener, Listener::Opening, "the old address's answer is not the new one's");
    }

    // RP-35: a retargeted link ends the flows of its old route.
    #[test]
    fn a_new_generation_ends_the_flows_of_the_old() {
        let mut link = Link::new(LinkId(1), view(1, None));
        assert_eq!(on(&mut link, Event::Started), []);
        let effects = on(&mut link, Event::Changed { view: view(2, None) });
        assert_eq!(effects, [Effect::EndFlowsBefore { generation: Generation(2) }]);
    }

    // RP-31, RP-35: what is newer than the snapshot waits for it; what is older, revoked or another's is gone.
    #[test]
    fn a_route_is_live_ahead_or_gone() {
        let known = view(2, None);
        let at = |view, me, consumer, generation, revoked| {
            route(view, NodeId(me), NodeId(consumer), Generation(generation), revoked)
        };
        assert_eq!(at(Some(&*known), 2, 1, 2, false), Route::Live);
        assert_eq!(at(Some(&*known), 2, 1, 3, false), Route::Ahead);
        assert_eq!(at(None, 2, 1, 1, false), Route::Ahead);
        assert_eq!(at(Some(&*known), 2, 1, 1, false), Route::Gone, "an older route");
        assert_eq!(at(Some(&*known), 2, 1, 2, true), Route::Gone, "revoked, though the snapshot has it");
        assert_eq!(at(None, 2, 1, 1, true), Route::Gone);
        assert_eq!(at(Some(&*known), 2, 9, 2, false), Route::Gone, "another's");
        assert_eq!(at(Some(&*known), 7, 1, 2, false), Route::Gone, "it leads elsewhere");
    }

    // RP-21: whoever has refused lately comes after all others but those that drain, though it carries the circuit.
    #[test]
    fn the_carrying_relay_is_asked_first_and_a_draining_one_last() {
        let asked =
            |relay, round_trip_us| Asked { relay: NodeId(relay), round_trip_us, refusing: false, draining: false };
        let draining = Asked { draining: true, ..asked(4, Some(1)) };
        let refusing = Asked { refusing: true, ..asked(5, Some(1)) };
        let relays = vec![asked(1, None), asked(2, Some(9)), asked(3, Some(4)), draining, refusing];
        assert_eq!(ask_order(Some(NodeId(2)), relays.clone()), [2, 3, 1, 5, 4].map(NodeId));
        assert_eq!(ask_order(Some(NodeId(4)), relays.clone()), [3, 2, 1, 5, 4].map(NodeId));
        assert_eq!(ask_order(Some(NodeId(5)), relays.clone()), [3, 2, 1, 5, 4].map(NodeId));
        assert_eq!(ask_order(None, relays), [3, 2, 1, 5, 4].map(NodeId));
    }
}
