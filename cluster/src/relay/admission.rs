//! Tunnel admission: whether a consumer may open a tunnel here, by policy, grant and registration; then the target node
//! is told, and its word is the answer.

use super::{AskedFor, Asker, Effect, Held, Presented, Relay, Step, absent, session::policy_required};
use crate::{
    behavior::Turn,
    command::{Refusal, code},
    grant::{self, Grant, Right, Use},
    id::{Generation, LinkId, NodeId, TunnelId},
    limits::{ENDPOINT_WAIT, POLICY_WAIT},
    snapshot::Route,
    wire::session::{NodeResponse, RelayRequest},
};

/// What a consumer asks for.
pub(super) struct Wish {
    pub(super) consumer: NodeId,
    pub(super) tunnels: Tunnels,
    pub(super) link: LinkId,
    pub(super) generation: Generation,
}

/// Which tunnels.
pub(super) enum Tunnels {
    /// One, whose flow waits for it.
    One(TunnelId),
    /// Those of later flows.
    Ahead(Vec<TunnelId>),
}

impl Wish {
    /// How the target node is told.
    fn word(&self) -> RelayRequest {
        let Self { consumer, link, generation, .. } = *self;
        match &self.tunnels {
            Tunnels::One(tunnel) => RelayRequest::Admission { tunnel: *tunnel, link, generation, consumer },
            Tunnels::Ahead(tunnels) => {
                RelayRequest::AdmissionAhead { tunnels: tunnels.clone(), link, generation, consumer }
            }
        }
    }

    const fn tunnels(&self) -> u64 {
        match &self.tunnels {
            Tunnels::One(_) => 1,
            Tunnels::Ahead(tunnels) => tunnels.len() as u64,
        }
    }
}

impl Relay {
    pub(super) fn admit(
        &mut self,
        turn: Turn,
        asker: Asker,
        wish: &Wish,
        presented: &Presented,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let target = match self.admissible(turn, wish, presented) {
            Ok(target) => target,
            Err(step) => return step,
        };
        let Some(connection) = self.sessions.get(&target).copied() else {
            return Step::Wait(ENDPOINT_WAIT, absent("the link's target node has no session at this relay"));
        };
        let (asking, reply, tunnels) = (asker.connection, asker.reply, wish.tunnels());
        let what = AskedFor::Admission { connection: asking, reply, target, tunnels };
        self.ask(connection, what, wish.word(), effects);
        Step::Asked
    }

    /// The target node, if policy, grant and registration allow the tunnel.
    fn admissible(&self, turn: Turn, wish: &Wish, presented: &Presented) -> Result<NodeId, Step> {
        let refused = |refusal: Refusal| Err(Step::Answer(NodeResponse::Refused(refusal)));
        let Some(held) = &self.policy else { return Err(Step::Wait(POLICY_WAIT, policy_required())) };
        if held.until <= turn.now {
            return refused(policy_expired());
        }
        if held.policy.drain.is_some() {
            return refused(super::drain::draining());
        }
        let grant = read(presented)?;
        let (link, generation, holder) = (wish.link, wish.generation, wish.consumer);
        let (cluster, target, right) = (&held.cluster, grant.target, Right::Open);
        if let Err(refusal) =
            grant::check(grant, &Use { cluster, link, generation, holder, target, right, now: turn.wall })
        {
            return refused(refusal.into());
        }
        if self.revocations.is_revoked(link, generation) {
            return refused(revoked(link));
        }
        let route = route(held, grant)?;
        if route.target != target || !route.consumers.contains(&holder) {
            return refused(mismatch(&format!("{link} does not lead from {holder} to {target}")));
        }
        match self.registrations.get(&link) {
            Some(known) if known.node == target && known.gone_until.is_some() => refused(restarting()),
            Some(known) if known.node == target && known.generation == generation => Ok(target),
            _ if !self.sessions.contains_key(&target) => {
                Err(Step::Wait(ENDPOINT_WAIT, absent("the link's target node has no session at this relay")))
            }
            _ => Err(Step::Wait(ENDPOINT_WAIT, endpoint_absent())),
        }
    }

    pub(super) fn admission_answered(
        &mut self,
        asker: Asker,
        target: NodeId,
        tunnels: u64,
        refusal: Option<Refusal>,
        effects: &mut Vec<Effect>,
    ) {
        let response = match refusal {
            None => {
                self.counters.admitted += tunnels;
                NodeResponse::Admitted { target }
            }
            Some(refusal) => NodeResponse::Refused(refusal),
        };
        self.settle(asker, response, effects);
    }
}

/// The grant that was presented, or how far the request gets without a good one.
pub(super) fn read(presented: &Presented) -> Result<&Grant, Step> {
    match presented {
        Presented::Good(grant) => Ok(grant.get()),
        Presented::Unknown => {
            Err(Step::Wait(POLICY_WAIT, untrusted("its signer is no control node that this relay knows")))
        }
        Presented::Absent | Presented::Bad => {
            Err(Step::Answer(NodeResponse::Refused(untrusted("its signature is wrong"))))
        }
    }
}

/// The live route of a grant. A grant may be ahead of the policy and then waits for it (RP-32): it is for a newer
/// generation, or for a link that was made no earlier than the policy. Any other is for a route that was revoked.
pub(super) fn route<'a>(held: &'a Held, grant: &Grant) -> Result<&'a Route, Step> {
    match held.policy.routes.get(&grant.link) {
        Some(route) if route.generation == grant.generation => Ok(route),
        Some(route) if route.generation < grant.generation => {
            let found = format!("{} is {} here, the grant is for {}", grant.link, route.generation, grant.generation);
            Err(Step::Wait(POLICY_WAIT, mismatch(&found)))
        }
        None if grant.issued >= held.issued => {
            Err(Step::Wait(POLICY_WAIT, mismatch(&format!("{} is not known here", grant.link))))
        }
        Some(route) => {
            let found = format!("{} is {} by now, the grant is for {}", grant.link, route.generation, grant.generation);
            Err(Step::Answer(NodeResponse::Refused(mismatch(&found))))
        }
        None => {
            let found = format!("{} was deleted", grant.link);
            Err(Step::Answer(NodeResponse::Refused(mismatch(&found))))
        }
    }
}

/// The route was revoked, though the relay's policy may still have it.
pub(super) fn revoked(link: LinkId) -> Refusal {
    mismatch(&format!("this route of {link} was revoked"))
}

// RP-62: the words "does not match policy" are stable.
pub(super) fn mismatch(found: &str) -> Refusal {
    Refusal::new(
        code::POLICY_MISMATCH,
        format!("the request does not match policy: {found}"),
        "The link was changed or deleted, or a snapshot is late: postroad why link NAME",
    )
}

pub(super) fn policy_expired() -> Refusal {
    Refusal::new(
        code::POLICY_EXPIRED,
        "the lease of this relay's policy has ended: it admits nothing new until a control node renews it",
        "Bring back a majority of the control nodes: postroad control list",
    )
}

fn untrusted(found: &str) -> Refusal {
    Refusal::new(
        code::GRANT_UNTRUSTED,
        format!("the grant is not trusted: {found}"),
        "Look whether node and relay reach a control node: postroad status",
    )
}

// RP-34, RP-62: the words are stable.
fn restarting() -> Refusal {
    Refusal::new(code::ENDPOINT_RESTARTING, "target endpoint is restarting", "Wait a few seconds and try again")
}

fn endpoint_absent() -> Refusal {
    Refusal::new(
        code::ENDPOINT_ABSENT,
        "the link's target node has not registered its endpoint at this relay",
        "Another relay may have it: postroad why link NAME",
    )
}
