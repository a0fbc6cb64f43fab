//! Registrations: which node serves which link here. Each is guarded by the generation of its route.

use serde::{Deserialize, Serialize};

use super::{Asker, Effect, Held, Presented, Relay, Step, admission, session::policy_required, too_many};
use crate::{
    behavior::Turn,
    command::{Refusal, code},
    grant::{self, Right, Use},
    id::{Generation, LinkId, NodeId},
    limits::{POLICY_WAIT, REGISTRATIONS_PER_SESSION_MAX},
    time::Moment,
    wire::session::NodeResponse,
};

/// A registered endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The node that serves it.
    pub node: NodeId,
    /// The generation of its route.
    pub generation: Generation,
    /// Until when it is kept for a node that said goodbye (RP-34).
    pub gone_until: Option<Moment>,
}

impl Relay {
    pub(super) fn register(
        &mut self,
        turn: Turn,
        node: NodeId,
        link: LinkId,
        generation: Generation,
        presented: &Presented,
    ) -> Step {
        let refused = |refusal: Refusal| Step::Answer(NodeResponse::Refused(refusal));
        let Some(held) = &self.policy else { return Step::Wait(POLICY_WAIT, policy_required()) };
        if held.until <= turn.now {
            return refused(admission::policy_expired());
        }
        let grant = match admission::read(presented) {
            Ok(grant) => grant,
            Err(step) => return step,
        };
        let (cluster, right) = (&held.cluster, Right::Register);
        let wanted = Use { cluster, link, generation, holder: node, target: node, right, now: turn.wall };
        if let Err(refusal) = grant::check(grant, &wanted) {
            return refused(refusal.into());
        }
        if self.revocations.is_revoked(link, generation) {
            return refused(admission::revoked(link));
        }
        match admission::route(held, grant) {
            Ok(route) if route.target == node => {}
            Ok(_) => return refused(admission::mismatch(&format!("{link} is served by another node"))),
            Err(step) => return step,
        }
        if let Some(known) = self.registrations.get(&link)
            && known.node == node
            && known.generation > generation
        {
            let found =
                format!("generation {} of {link} is registered, which is newer than {generation}", known.generation);
            return refused(Refusal::new(code::GENERATION_OLD, found, "Register the newest generation"));
        }
        let links = self.links_of.entry(node).or_default();
        if links.len() >= REGISTRATIONS_PER_SESSION_MAX && !links.contains(&link) {
            return refused(too_many(&format!("{node} has {REGISTRATIONS_PER_SESSION_MAX} endpoints here")));
        }
        links.insert(link);
        // The previous generation has served until now (RP-31).
        self.registrations.insert(link, Registration { node, generation, gone_until: None });
        self.counters.registered += 1;
        Step::Answer(NodeResponse::Done)
    }

    pub(super) fn unregister(
        &mut self,
        asker: Asker,
        node: NodeId,
        link: LinkId,
        generation: Generation,
        effects: &mut Vec<Effect>,
    ) {
        if self.registrations.get(&link).is_some_and(|known| known.node == node && known.generation <= generation) {
            self.registration_end(link);
        }
        self.waiting_unregistered(asker.connection, link, generation, effects);
        self.reply(asker.reply, NodeResponse::Done, effects);
    }

    pub(super) fn registration_end(&mut self, link: LinkId) {
        let Some(known) = self.registrations.remove(&link) else { return };
        if let Some(links) = self.links_of.get_mut(&known.node) {
            links.remove(&link);
            if links.is_empty() {
                self.links_of.remove(&known.node);
            }
        }
    }

    pub(super) fn registrations_end(&mut self, node: NodeId) {
        for link in self.links_of.remove(&node).unwrap_or_default() {
            self.registrations.remove(&link);
        }
    }

    /// The node said goodbye: its registrations stay a while, so that consumers hear that it restarts.
    pub(super) fn go(&mut self, node: NodeId, until: Moment) {
        self.mark(node, Some(until));
    }

    /// The node is here again.
    pub(super) fn stay(&mut self, node: NodeId) {
        self.mark(node, None);
    }

    fn mark(&mut self, node: NodeId, gone_until: Option<Moment>) {
        for link in self.links_of.get(&node).into_iter().flatten() {
            if let Some(known) = self.registrations.get_mut(link) {
                known.gone_until = gone_until;
            }
        }
    }

    pub(super) fn forget_gone(&mut self, now: Moment) {
        let over = |known: &Registration| known.gone_until.is_some_and(|until| until <= now);
        let links = self.registrations.iter().filter(|(_, known)| over(known)).map(|(link, _)| *link);
        for link in links.collect::<Vec<_>>() {
            self.registration_end(link);
        }
    }

    /// Ends what the policy has no more: a deleted route, or one that another node serves now (RP-35). Of a route with a
    /// newer generation the old registration stays until the new one comes (RP-31); tunnels are admitted by the policy's
    /// generation alone.
    pub(super) fn close_unrouted(&mut self, held: &Held) {
        let live = |link: &LinkId, known: &Registration| {
            held.policy.routes.get(link).is_some_and(|route| route.target == known.node)
        };
        let gone = self.registrations.iter().filter(|(link, known)| !live(link, known)).map(|(link, _)| *link);
        for link in gone.collect::<Vec<_>>() {
            self.registration_end(link);
        }
    }
}
