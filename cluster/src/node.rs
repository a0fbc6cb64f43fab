//! The node itself: the snapshot that it works by, what it therefore runs, and its certificate.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    behavior::{Behavior, Class, Turn},
    grant::SignedGrant,
    id::{Generation, LinkId, Name, NodeId},
    limits::{DIAL_RETRY_MAX, DIAL_RETRY_MIN, SESSIONS_MAX},
    retry,
    revocation::SignedRevocations,
    snapshot::{Accepted, BalancerView, LinkView, RelayView},
    time::{Span, WallTime},
};

/// The node's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// This node.
    pub me: NodeId,
    /// The snapshot that it works by.
    pub accepted: Option<Box<Accepted>>,
    /// Its certificate.
    pub certificate: Certificate,
    /// A renewal is under way.
    pub renewing: bool,
    /// Failed renewals in a row.
    pub failures: u32,
    /// The last one, for people.
    pub failure: Option<String>,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// From when.
    pub starts: WallTime,
    /// Until when.
    pub expires: WallTime,
}

impl Certificate {
    /// From when it is renewed: at half of its life.
    #[must_use]
    pub const fn renew_at(&self) -> WallTime {
        self.starts.after(Span::from_millis(self.expires.since(self.starts).as_millis() as u64 / 2))
    }
}

/// What happens to the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The node starts with what it kept.
    Started,
    /// A newer snapshot whose signature, recipient, version and lease were checked.
    Snapshot {
        /// The snapshot.
        accepted: Box<Accepted>,
    },
    /// A control node issued a certificate.
    Renewed {
        /// When it is valid.
        certificate: Certificate,
    },
    /// None did.
    RenewFailed {
        /// Why.
        reason: String,
    },
    /// The renewal timer has run out.
    RenewTimer,
}

/// What the node asks of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Everybody works by this snapshot from now on.
    Snapshot {
        /// The snapshot.
        accepted: Box<Accepted>,
    },
    /// Keep the snapshot on disk for the next start.
    Keep,
    /// Anchors or revocations have changed.
    Trust,
    /// The control nodes have changed.
    Controls {
        /// Address by number.
        addresses: BTreeMap<NodeId, String>,
    },
    /// Routes were revoked.
    Revocations {
        /// All of them.
        signed: Box<SignedRevocations>,
    },
    /// What the relay service admits by has changed or was renewed.
    Policy,
    /// Hold a session with this relay.
    SessionStart {
        /// The relay.
        relay: NodeId,
        /// `host:port`.
        address: String,
    },
    /// The relay has another address.
    SessionTarget {
        /// The relay.
        relay: NodeId,
        /// `host:port`.
        address: String,
    },
    /// End the session with this relay for good.
    SessionStop {
        /// The relay.
        relay: NodeId,
    },
    /// A relay drains, or does no more, by the snapshot.
    Drain {
        /// The relay.
        relay: NodeId,
    },
    /// Register these endpoints on every relay.
    Endpoints {
        /// By link.
        wanted: BTreeMap<LinkId, (Generation, SignedGrant)>,
    },
    /// Build a circuit to this node.
    PeerStart {
        /// The peer.
        peer: NodeId,
    },
    /// Give it up.
    PeerStop {
        /// The peer.
        peer: NodeId,
    },
    /// Serve this link.
    LinkStart {
        /// The link.
        link: LinkId,
        /// What is to be known of it.
        view: Box<LinkView>,
    },
    /// The link has changed.
    LinkChange {
        /// The link.
        link: LinkId,
        /// What is to be known of it.
        view: Box<LinkView>,
    },
    /// The link is gone.
    LinkStop {
        /// The link.
        link: LinkId,
    },
    /// Run these database balancers and no others.
    Balancers {
        /// By name.
        wanted: BTreeMap<Name, BalancerView>,
    },
    /// Ask a control node for a certificate.
    Renew,
    /// Send [`Event::RenewTimer`] later.
    RenewAfter {
        /// When.
        after_ms: u64,
    },
}

impl crate::behavior::Event for Event {
    fn kind(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Snapshot { .. } => "snapshot",
            Self::Renewed { .. } => "renewed",
            Self::RenewFailed { .. } => "renew-failed",
            Self::RenewTimer => "renew-timer",
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Snapshot { .. } => Class::State { key: 0 },
            _ => Class::Reserved,
        }
    }
}

/// The relays to hold sessions with: ready ones first, then by number, bounded.
fn sessions(relays: &BTreeMap<NodeId, RelayView>) -> BTreeMap<NodeId, String> {
    let mut order: Vec<(&NodeId, &RelayView)> = relays.iter().collect();
    order.sort_by_key(|(relay, view)| (!view.ready, **relay));
    order.into_iter().take(SESSIONS_MAX).map(|(relay, view)| (*relay, view.address.clone())).collect()
}

/// The nodes to which this node needs a circuit: the other ends of its links.
fn peers(me: NodeId, links: &BTreeMap<LinkId, LinkView>) -> BTreeSet<NodeId> {
    let ends = links.values().flat_map(|link| {
        let consumers = if link.target == me { link.consumers.clone() } else { BTreeSet::new() };
        consumers.into_iter().chain(link.consumers.contains(&me).then_some(link.target))
    });
    ends.filter(|peer| *peer != me).collect()
}

fn endpoints(me: NodeId, links: &BTreeMap<LinkId, LinkView>) -> BTreeMap<LinkId, (Generation, SignedGrant)> {
    links
        .iter()
        .filter(|(_, view)| view.target == me)
        .filter_map(|(link, view)| view.grants.first().map(|grant| (*link, (view.generation, grant.clone()))))
        .collect()
}

impl Node {
    /// A node with what it kept.
    #[must_use]
    pub const fn new(me: NodeId, accepted: Option<Box<Accepted>>, certificate: Certificate) -> Self {
        Self { me, accepted, certificate, renewing: false, failures: 0, failure: None }
    }

    /// Asks for all that leads from one snapshot to the next; `None` is a node that runs nothing.
    fn change(&self, before: Option<&Accepted>, effects: &mut Vec<Effect>) {
        let Some(after) = self.accepted.as_deref().map(|accepted| &accepted.content) else { return };
        let before = before.map(|accepted| &accepted.content);
        let trust = |content: &crate::snapshot::SnapshotContent| {
            (content.authorities.clone(), content.revoked_nodes.clone(), content.issuers.clone())
        };
        if before.map(trust) != Some(trust(after)) {
            effects.push(Effect::Trust);
        }
        if let Some(signed) = &after.revocations
            && before.is_none_or(|content| content.revocations.as_ref() != Some(signed))
        {
            effects.push(Effect::Revocations { signed: Box::new(signed.clone()) });
        }
        if before.map(|content| &content.controls) != Some(&after.controls) {
            effects.push(Effect::Controls { addresses: after.controls.clone() });
        }
        if after.policy.is_some() {
            effects.push(Effect::Policy);
        }
        self.change_sessions(before.map(|content| sessions(&content.relays)).unwrap_or_default(), effects);
        let drained_before =
            |relay: &NodeId| before.and_then(|content| content.relays.get(relay)).is_some_and(|view| view.draining);
        let changed = after.relays.iter().filter(|(relay, view)| view.draining != drained_before(relay));
        effects.extend(changed.map(|(relay, _)| Effect::Drain { relay: *relay }));
        let old_links = before.map(|content| content.links.clone()).unwrap_or_default();
        let wanted = endpoints(self.me, &after.links);
        if before.is_none() || endpoints(self.me, &old_links) != wanted {
            effects.push(Effect::Endpoints { wanted });
        }
        let (old_peers, new_peers) = (peers(self.me, &old_links), peers(self.me, &after.links));
        effects.extend(new_peers.difference(&old_peers).map(|peer| Effect::PeerStart { peer: *peer }));
        Self::change_links(&old_links, &after.links, effects);
        effects.extend(old_peers.difference(&new_peers).map(|peer| Effect::PeerStop { peer: *peer }));
        // At the start too, where none is wanted: an earlier incarnation may have left some.
        if before.is_none_or(|content| content.balancers != after.balancers) {
            effects.push(Effect::Balancers { wanted: after.balancers.clone() });
        }
    }

    fn change_sessions(&self, mut before: BTreeMap<NodeId, String>, effects: &mut Vec<Effect>) {
        let Some(accepted) = self.accepted.as_deref() else { return };
        for (relay, address) in sessions(&accepted.content.relays) {
            match before.remove(&relay) {
                None => effects.push(Effect::SessionStart { relay, address }),
                Some(old) if old != address => effects.push(Effect::SessionTarget { relay, address }),
                Some(_) => {}
            }
        }
        effects.extend(before.into_keys().map(|relay| Effect::SessionStop { relay }));
    }

    fn change_links(
        before: &BTreeMap<LinkId, LinkView>,
        after: &BTreeMap<LinkId, LinkView>,
        effects: &mut Vec<Effect>,
    ) {
        for (link, view) in after {
            let view = || Box::new(view.clone());
            match before.get(link) {
                None => effects.push(Effect::LinkStart { link: *link, view: view() }),
                Some(old) if *old != *view() => effects.push(Effect::LinkChange { link: *link, view: view() }),
                Some(_) => {}
            }
        }
        effects.extend(
            before.keys().filter(|link| !after.contains_key(link)).map(|link| Effect::LinkStop { link: *link }),
        );
    }

    fn plan_renewal(&self, turn: Turn, effects: &mut Vec<Effect>) {
        let wait = self.certificate.renew_at().since(turn.wall);
        effects.push(Effect::RenewAfter { after_ms: wait.as_millis() as u64 });
    }
}

impl Behavior for Node {
    const NOUN: &'static str = "node";
    type Event = Event;
    type Effect = Effect;

    fn on(&mut self, turn: Turn, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Started => {
                self.change(None, effects);
                self.plan_renewal(turn, effects);
            }
            Event::Snapshot { accepted } => {
                let active = self.accepted.as_ref().map(|active| active.header.version);
                if active.is_some_and(|active| accepted.header.version <= active) {
                    return;
                }
                effects.push(Effect::Snapshot { accepted: accepted.clone() });
                let before = self.accepted.replace(accepted);
                effects.push(Effect::Keep);
                self.change(before.as_deref(), effects);
            }
            Event::Renewed { certificate } => {
                self.certificate = certificate;
                self.renewing = false;
                self.failures = 0;
                self.failure = None;
                self.plan_renewal(turn, effects);
            }
            Event::RenewFailed { reason } => {
                self.renewing = false;
                self.failures = self.failures.saturating_add(1);
                self.failure = Some(reason);
                let wait = retry::delay(&turn, self.failures, DIAL_RETRY_MIN, DIAL_RETRY_MAX);
                effects.push(Effect::RenewAfter { after_ms: wait.as_millis() as u64 });
            }
            Event::RenewTimer => {
                if turn.wall < self.certificate.renew_at() {
                    self.plan_renewal(turn, effects);
                } else if !self.renewing {
                    self.renewing = true;
                    effects.push(Effect::Renew);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
