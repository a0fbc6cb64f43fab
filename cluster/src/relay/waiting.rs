//! Requests that wait: for the policy that covers them (RP-32), or for the endpoint that is about to be registered.

use serde::{Deserialize, Serialize};

use super::{
    Asker, Effect, Held, Presented, Relay, Step,
    admission::{Tunnels, Wish},
    ended,
};
use crate::{
    behavior::{ReplyId, Turn},
    command::{Refusal, code},
    id::{Generation, LinkId},
    time::Moment,
    wire::session::{NodeRequest, NodeResponse},
};

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    asker: Asker,
    request: NodeRequest,
    grant: Presented,
    /// When it came.
    since: Moment,
    /// When it is refused.
    until: Moment,
    /// How it is refused then.
    refusal: Refusal,
}

impl Waiting {
    pub(super) const fn reply(&self) -> ReplyId {
        self.asker.reply
    }
}

impl Relay {
    /// Decides a request that just came.
    pub(super) fn attempt(
        &mut self,
        turn: Turn,
        asker: Asker,
        request: NodeRequest,
        grant: Presented,
        effects: &mut Vec<Effect>,
    ) {
        if let Err(refusal) = self.check_room(asker) {
            return self.refuse(asker, &request, refusal, effects);
        }
        let registered = registered_link(&request);
        match self.decide(turn, asker, &request, &grant, effects) {
            Step::Answer(NodeResponse::Refused(refusal)) => self.refuse(asker, &request, refusal, effects),
            Step::Answer(response) => {
                self.reply(asker.reply, response, effects);
                if let Some(link) = registered {
                    self.again(turn, |request| admitted_link(request) == Some(link), effects);
                }
            }
            Step::Asked => self.owe(asker),
            Step::Wait(span, refusal) => {
                self.owe(asker);
                self.last_waiting += 1;
                let (since, until) = (turn.now, turn.now.after(span));
                self.waiting.insert(self.last_waiting, Waiting { asker, request, grant, since, until, refusal });
            }
        }
    }

    /// How far a request gets in the present state.
    fn decide(
        &mut self,
        turn: Turn,
        asker: Asker,
        request: &NodeRequest,
        grant: &Presented,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let Some(node) = self.connections.get(&asker.connection).map(|known| known.node) else {
            return Step::Answer(NodeResponse::Refused(ended("the session has ended")));
        };
        let wish = |tunnels, link, generation| Wish { consumer: node, tunnels, link, generation };
        match *request {
            NodeRequest::Hello { session } => self.hello(asker, session, effects),
            NodeRequest::Register { link, generation, .. } => self.register(turn, node, link, generation, grant),
            NodeRequest::Admit { tunnel, link, generation, .. } => {
                self.admit(turn, asker, &wish(Tunnels::One(tunnel), link, generation), grant, effects)
            }
            NodeRequest::AdmitAhead { ref tunnels, link, generation, .. } => {
                self.admit(turn, asker, &wish(Tunnels::Ahead(tunnels.clone()), link, generation), grant, effects)
            }
            _ => Step::Answer(NodeResponse::Done),
        }
    }

    /// Refuses a request at once. A node that may have no session here is not kept connected.
    fn refuse(&mut self, asker: Asker, request: &NodeRequest, refusal: Refusal, effects: &mut Vec<Effect>) {
        let reason = refusal.message.clone();
        self.reply(asker.reply, NodeResponse::Refused(refusal), effects);
        self.close_refused(asker, request, reason, effects);
    }

    fn close_refused(&mut self, asker: Asker, request: &NodeRequest, reason: String, effects: &mut Vec<Effect>) {
        let ungreeted = self.connections.get(&asker.connection).is_some_and(|known| known.session.is_none());
        if ungreeted && matches!(request, NodeRequest::Hello { .. }) {
            self.end(asker.connection, &reason, effects);
            effects.push(Effect::CloseSession { connection: asker.connection, reason });
        }
    }

    /// Decides those waiting requests again for which something has changed.
    fn again(&mut self, turn: Turn, concerned: impl Fn(&NodeRequest) -> bool, effects: &mut Vec<Effect>) {
        let numbers = self.waiting.iter().filter(|(_, waiting)| concerned(&waiting.request)).map(|(number, _)| *number);
        for number in numbers.collect::<Vec<_>>() {
            self.once_more(turn, number, effects);
        }
    }

    fn once_more(&mut self, turn: Turn, number: u64, effects: &mut Vec<Effect>) {
        // An earlier one of the same turn may have ended this one's connection.
        let Some(mut waiting) = self.waiting.remove(&number) else { return };
        match self.decide(turn, waiting.asker, &waiting.request, &waiting.grant, effects) {
            Step::Answer(response) => {
                let reason = match &response {
                    NodeResponse::Refused(refusal) => Some(refusal.message.clone()),
                    _ => None,
                };
                self.settle(waiting.asker, response, effects);
                if let Some(reason) = reason {
                    self.close_refused(waiting.asker, &waiting.request, reason, effects);
                }
            }
            Step::Asked => {}
            Step::Wait(span, refusal) => {
                waiting.until = waiting.since.after(span);
                waiting.refusal = refusal;
                self.waiting.insert(number, waiting);
            }
        }
    }

    /// A snapshot was accepted.
    pub(super) fn policy_came(&mut self, turn: Turn, held: Held, effects: &mut Vec<Effect>) {
        if self.policy.as_ref().is_some_and(|active| active.version > held.version) {
            return;
        }
        let same = self.policy.as_ref().is_some_and(|active| active.policy == held.policy);
        if !same {
            self.close_unwelcome(&held, effects);
            self.close_unrouted(&held);
            self.close_unjoined(&held, effects);
        }
        let drained = self.is_draining();
        self.policy = Some(held);
        if self.is_draining() != drained {
            self.tell_everybody(effects);
        }
        self.disconnect_drained(turn.now, effects);
        let unknown = self.waiting.iter().filter(|(_, waiting)| waiting.grant == Presented::Unknown);
        let checks = unknown.filter_map(|(number, waiting)| match &waiting.request {
            NodeRequest::Register { grant, .. }
            | NodeRequest::Admit { grant, .. }
            | NodeRequest::AdmitAhead { grant, .. } => Some(Effect::Check { waiting: *number, grant: grant.clone() }),
            _ => None,
        });
        effects.extend(checks);
        self.again(turn, |request| admitted_link(request).is_none(), effects);
        self.again(turn, |request| admitted_link(request).is_some(), effects);
    }

    pub(super) fn checked(&mut self, turn: Turn, number: u64, grant: Presented, effects: &mut Vec<Effect>) {
        let Some(waiting) = self.waiting.get_mut(&number) else { return };
        waiting.grant = grant;
        let link = registered_link(&waiting.request);
        self.once_more(turn, number, effects);
        if let Some(link) = link {
            self.again(turn, |request| admitted_link(request) == Some(link), effects);
        }
    }

    pub(super) fn waiting_sweep(&mut self, turn: Turn, effects: &mut Vec<Effect>) {
        let over = self.waiting.iter().filter(|(_, waiting)| waiting.until <= turn.now).map(|(number, _)| *number);
        for number in over.collect::<Vec<_>>() {
            let Some(waiting) = self.waiting.remove(&number) else { continue };
            let reason = waiting.refusal.message.clone();
            self.settle(waiting.asker, NodeResponse::Refused(waiting.refusal), effects);
            self.close_refused(waiting.asker, &waiting.request, reason, effects);
        }
    }

    pub(super) fn waiting_end(&mut self, connection: u64, effects: &mut Vec<Effect>) {
        self.waiting_drop(|waiting| waiting.asker.connection == connection, &ended("the session has ended"), effects);
    }

    /// A node takes back a registration that still waits.
    pub(super) fn waiting_unregistered(
        &mut self,
        connection: u64,
        link: LinkId,
        up_to: Generation,
        effects: &mut Vec<Effect>,
    ) {
        let concerned = |waiting: &Waiting| {
            let registers = matches!(waiting.request, NodeRequest::Register { link: of, generation, .. }
                if of == link && generation <= up_to);
            registers && waiting.asker.connection == connection
        };
        let refusal = Refusal::new(code::GENERATION_OLD, "the node has taken the registration back", "");
        self.waiting_drop(concerned, &refusal, effects);
    }

    fn waiting_drop(&mut self, concerned: impl Fn(&Waiting) -> bool, refusal: &Refusal, effects: &mut Vec<Effect>) {
        let numbers = self.waiting.iter().filter(|(_, waiting)| concerned(waiting)).map(|(number, _)| *number);
        for number in numbers.collect::<Vec<_>>() {
            if let Some(waiting) = self.waiting.remove(&number) {
                self.settle(waiting.asker, NodeResponse::Refused(refusal.clone()), effects);
            }
        }
    }
}

const fn registered_link(request: &NodeRequest) -> Option<LinkId> {
    match request {
        NodeRequest::Register { link, .. } => Some(*link),
        _ => None,
    }
}

const fn admitted_link(request: &NodeRequest) -> Option<LinkId> {
    match request {
        NodeRequest::Admit { link, .. } | NodeRequest::AdmitAhead { link, .. } => Some(*link),
        _ => None,
    }
}
