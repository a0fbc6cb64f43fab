//! The actor of a session with one relay: dials, greets, registers, pings, and takes what the relay offers.

use std::sync::Arc;

use postroad_cluster::{
    command::code,
    drain::Word,
    id::{NodeId, Role},
    limits::{AHEAD_LOT_MAX, CALL_WAIT, DIAL_WAIT},
    peer,
    session::{Effect, Event, Session, Timer},
    time::{Clock as _, Span},
    wire::session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
};
use postroad_transport::{
    connection::{CloseCode, Connection},
    endpoint::{Expect, transport},
    tls::Protocol,
};

use crate::{
    dial,
    fabric::{Fabric, Standing},
    handle::Handle,
    node,
    peer::peers,
    revoke,
    shell::Performer,
    vouch::Vouched,
};

type Me = Handle<Session>;

/// Performs what a session decides.
pub(crate) struct SessionPerformer {
    fabric: Arc<Fabric>,
    relay: NodeId,
    open: Vec<u64>,
}

impl SessionPerformer {
    pub(crate) const fn new(fabric: Arc<Fabric>, relay: NodeId) -> Self {
        Self { fabric, relay, open: Vec::new() }
    }

    fn dial(&self, address: String, me: &Me) {
        let (fabric, relay) = (Arc::clone(&self.fabric), self.relay);
        let late = Event::DialFailed { reason: format!("{address} did not answer within {} s", DIAL_WAIT.as_secs()) };
        let work = async move {
            let expect = Expect { node: Some(relay), role: Role::Relay };
            match dial::dial(&fabric, &address, Protocol::Relay, expect, transport::session()).await {
                Ok(connection) => Event::Connected { connection: fabric.connections().add(connection) },
                Err(reason) => Event::DialFailed { reason },
            }
        };
        run(me, DIAL_WAIT, late, work);
    }

    fn hello(&mut self, number: u64, session: postroad_cluster::id::Generation, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        self.open.push(number);
        self.watch(number, connection.clone(), me);
        let closed = move |reason: String| Event::Closed { connection: number, reason };
        let late = closed("the relay did not welcome this node in time".to_owned());
        let work = async move {
            match connection.call::<NodeRequest, NodeResponse>(&NodeRequest::Hello { session }, CALL_WAIT).await {
                Ok(NodeResponse::Welcome { policy }) => Event::Welcomed { connection: number, policy },
                Ok(NodeResponse::Refused(refusal)) => closed(refusal.to_string()),
                Ok(_) => closed("the relay misunderstood the greeting".to_owned()),
                Err(error) => closed(error.to_string()),
            }
        };
        run(me, CALL_WAIT * 2, late, work);
    }

    /// Answers the relay's requests until the connection ends, and tells the session of that.
    fn watch(&self, number: u64, connection: Connection, me: &Me) {
        let (fabric, relay, back) = (Arc::clone(&self.fabric), self.relay, me.clone());
        let work = async move {
            let of = Arc::clone(&fabric);
            let handler = move |request: RelayRequest| std::future::ready(answer(&of, relay, request));
            let closed = connection.serve::<RelayRequest, RelayResponse, _, _>(handler).await;
            fabric.connections().remove(number);
            let _ = back.send(Event::Closed { connection: number, reason: closed.to_string() });
        };
        attend(me, work);
    }

    fn register(&self, number: u64, request: NodeRequest, me: &Me) {
        let NodeRequest::Register { link, generation, .. } = &request else { return };
        let (link, generation) = (*link, *generation);
        let Some(connection) = self.fabric.connections().get(number) else { return };
        let answered = move |refusal| Event::Registered { connection: number, link, generation, refusal };
        let refused = move |message: String| {
            let hint = "It is tried again by itself";
            answered(Some(postroad_cluster::command::Refusal::new("TIMED_OUT", message, hint)))
        };
        let late = refused("the relay did not answer in time".to_owned());
        // A grant may wait at the relay for its policy (RP-32).
        let wait = postroad_cluster::limits::TUNNEL_WAIT + CALL_WAIT;
        let work = async move {
            match connection.call::<NodeRequest, NodeResponse>(&request, wait).await {
                Ok(NodeResponse::Refused(refusal)) => answered(Some(refusal)),
                Ok(_) => answered(None),
                Err(error) => refused(error.to_string()),
            }
        };
        run(me, wait * 2, late, work);
    }

    /// Passes this node's revocations on to the relay (RP-35).
    fn pass_on(&self, number: u64, me: &Me) {
        let (Some(connection), Some(signed)) =
            (self.fabric.connections().get(number), self.fabric.signed_revocations())
        else {
            return;
        };
        let Some(version) = self.fabric.revocations().map(|revocations| revocations.get().version) else { return };
        let (relay, back) = (self.relay, me.clone());
        briefly(me, async move {
            let request = NodeRequest::Revocations { signed: Box::new(signed) };
            match connection.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await {
                Ok(NodeResponse::Done) => {
                    tracing::info!(%relay, %version, "revocations were passed on to a relay");
                    let _ = back.send(Event::Applied { version, revocations: version });
                }
                Ok(NodeResponse::Refused(refusal)) => tracing::warn!(%relay, %refusal, "revocations were not taken"),
                // The session's own timers look after a relay that does not answer.
                Ok(_) | Err(_) => {}
            }
        });
    }

    /// Gets revocations from a relay that has newer ones: this node is cut off from the control nodes.
    fn fetch(&self, number: u64, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        let (fabric, relay) = (Arc::clone(&self.fabric), self.relay);
        briefly(me, async move {
            let asked = connection.call::<NodeRequest, NodeResponse>(&NodeRequest::RevocationsAsk, CALL_WAIT).await;
            if let Ok(NodeResponse::Revocations { signed: Some(signed) }) = asked
                && let Err(error) = revoke::take(&fabric, &signed)
            {
                tracing::warn!(%relay, error, "a relay's revocations do not hold");
            }
        });
    }

    fn ping(&self, number: u64, sequence: u64, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        let clock = Arc::clone(&self.fabric.clock);
        let begin = clock.now();
        let work = async move {
            match connection.call::<NodeRequest, NodeResponse>(&NodeRequest::Ping { sequence }, CALL_WAIT).await {
                Ok(_) => {
                    let round_trip_us = clock.now().since(begin).as_micros() as u64;
                    Event::Pong { connection: number, round_trip_us }
                }
                // A relay that restarted resets the connection: that is no silence, and people read what it was.
                Err(_) => match connection.close_reason() {
                    Some(closed) => Event::Closed { connection: number, reason: closed.to_string() },
                    None => Event::Silent { connection: number },
                },
            }
        };
        run(me, CALL_WAIT, Event::Silent { connection: number }, work);
    }

    fn up(&self, number: u64) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        let address = connection.remote_address();
        if let Some(view) = self.fabric.relay(self.relay) {
            connection.name_peer(view.name);
        }
        tracing::info!(relay = %self.relay, %address, "session stands");
        self.fabric.session_up(self.relay, Standing { connection, address, round_trip_us: None });
        for peer in peers(&self.fabric) {
            let _ = peer.send(peer::Event::RelayUp { relay: self.relay });
        }
    }

    fn down(&self, reason: &str) {
        tracing::warn!(relay = %self.relay, reason, "session ended");
        self.fabric.session_down(self.relay);
        self.fabric.socket.session_lost(self.relay);
        for peer in peers(&self.fabric) {
            let _ = peer.send(peer::Event::RelayDown { relay: self.relay });
        }
    }

    fn close(&mut self, number: u64, reason: &str) {
        self.open.retain(|open| *open != number);
        if let Some(connection) = self.fabric.connections().remove(number) {
            connection.close(CloseCode::Done, reason);
        }
    }

    fn tell(&self, number: u64, request: NodeRequest, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        briefly(me, async move {
            // What it was for is gone in any case; the relay also forgets it with the session.
            let _ = connection.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await;
        });
    }
}

/// What a relay asks of this node.
fn answer(fabric: &Fabric, relay: NodeId, request: RelayRequest) -> RelayResponse {
    let to_peer = |peer: NodeId, event: peer::Event| match crate::peer::find(fabric, peer).map(|to| to.send(event)) {
        Some(Ok(())) => RelayResponse::Done,
        _ => RelayResponse::Refused(postroad_cluster::command::Refusal::new(
            "PEER_UNKNOWN",
            format!("this node has no link with {peer} yet"),
            "It is tried again by itself",
        )),
    };
    match request {
        // The transport has taken the trace off.
        RelayRequest::Ping { .. } | RelayRequest::Traced { .. } => RelayResponse::Done,
        RelayRequest::Applied { version, revocations } => {
            if let Some(session) = node::session(fabric, relay) {
                let _ = session.send(Event::Applied { version, revocations });
            }
            RelayResponse::Done
        }
        RelayRequest::Admission { link, .. } | RelayRequest::AdmissionAhead { link, .. }
            if fabric.is_stale(relay, link) =>
        {
            RelayResponse::Refused(postroad_cluster::command::Refusal::new(
                code::RELAY_STALE,
                format!("the relay is stale for {link}: it has not applied a revocation within 90 s"),
                "Another relay takes it; look at this one: postroad relay show NAME",
            ))
        }
        RelayRequest::Drain { version, draining } => {
            fabric.told_of_drain(relay, Word { version, draining });
            fabric.apply_drain(relay);
            RelayResponse::Done
        }
        // The socket needs the session's address; the relay offers again when the peer asks again.
        RelayRequest::ChannelOffer { .. } if fabric.session(relay).is_none() => {
            let message = "this node's session has not been welcomed yet";
            let hint = "It is tried again by itself";
            RelayResponse::Refused(postroad_cluster::command::Refusal::new("SESSION_EARLY", message, hint))
        }
        RelayRequest::ChannelOffer { circuit, peer, token_out, token_in } => {
            let tokens = peer::Tokens { outgoing: token_out, incoming: token_in };
            to_peer(peer, peer::Event::ChannelOffered { relay, circuit, tokens })
        }
        RelayRequest::ChannelClosed { circuit, peer, reason } => {
            to_peer(peer, peer::Event::ChannelClosed { relay, circuit, reason })
        }
        RelayRequest::Admission { tunnel, link, generation, consumer } => {
            fabric.vouchers.put(fabric.now(), [Vouched { consumer, tunnel, link, generation }]);
            RelayResponse::Done
        }
        RelayRequest::AdmissionAhead { tunnels, link, generation, consumer } => {
            let lot = tunnels.into_iter().take(AHEAD_LOT_MAX);
            fabric.vouchers.put(fabric.now(), lot.map(|tunnel| Vouched { consumer, tunnel, link, generation }));
            RelayResponse::Done
        }
    }
}

/// Runs work beside an actor whose result comes back as an event. An actor with all places taken fails: it has lost
/// count.
pub(crate) fn run<B: postroad_cluster::behavior::Behavior, R: Send + 'static>(
    me: &Handle<B, R>,
    within: Span,
    late: B::Event,
    work: impl Future<Output = B::Event> + Send + 'static,
) {
    if let Err(error) = me.run(within, late, work) {
        me.fail(error.to_string());
    }
}

/// Runs work beside an actor for as long as it lives.
pub(crate) fn attend<B: postroad_cluster::behavior::Behavior, R: Send + 'static>(
    me: &Handle<B, R>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    if let Err(error) = me.attend(work) {
        me.fail(error.to_string());
    }
}

/// Carries flows beside an actor for as long as it lives, where packets are carried too.
pub(crate) fn attend_flows<B: postroad_cluster::behavior::Behavior, R: Send + 'static>(
    me: &Handle<B, R>,
    fabric: &Fabric,
    work: impl Future<Output = ()> + Send + 'static,
) {
    if let Err(error) = me.attend_on(&fabric.carriage, work) {
        me.fail(error.to_string());
    }
}

/// Runs work beside an actor that ends soon, as part of what the actor does now.
pub(crate) fn briefly<B: postroad_cluster::behavior::Behavior, R: Send + 'static>(
    me: &Handle<B, R>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    if let Err(error) = me.attend_briefly(work) {
        me.fail(error.to_string());
    }
}

/// Sends an event to an actor itself after so many milliseconds, in place of an earlier one of the same key.
pub(crate) fn after<B: postroad_cluster::behavior::Behavior, R: Send + 'static>(
    me: &Handle<B, R>,
    after_ms: u64,
    key: u64,
    event: B::Event,
) {
    if let Err(error) = me.after(me.now().after(Span::from_millis(after_ms)), key, event) {
        me.fail(error.to_string());
    }
}

impl Performer<Session> for SessionPerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::Dial { address } => self.dial(address, me),
            Effect::Hello { connection, session } => self.hello(connection, session, me),
            Effect::Register { connection, link, generation, grant } => {
                self.register(connection, NodeRequest::Register { link, generation, grant }, me);
            }
            Effect::Unregister { connection, link, generation } => {
                self.tell(connection, NodeRequest::Unregister { link, generation }, me);
            }
            Effect::Ping { connection, sequence } => self.ping(connection, sequence, me),
            Effect::PassOn { connection } => self.pass_on(connection, me),
            Effect::Fetch { connection } => self.fetch(connection, me),
            Effect::Applied { version } => self.fabric.relay_applied(self.relay, version),
            Effect::Goodbye { connection, session } => self.tell(connection, NodeRequest::Goodbye { session }, me),
            Effect::Close { connection, reason } => self.close(connection, &reason),
            Effect::Start { timer, after_ms } => after(me, after_ms, timer_key(timer), Event::Timer(timer)),
            Effect::Up { connection } => self.up(connection),
            Effect::Down { reason } => self.down(&reason),
            Effect::Measured { round_trip_us } => self.fabric.session_measured(self.relay, round_trip_us),
        }
    }

    fn first(&mut self, me: &Me) -> Option<Event> {
        let wanted = self.fabric.endpoints();
        let _ = me.send(Event::Endpoints { wanted });
        if let Some(revocations) = self.fabric.revocations() {
            let _ = me.send(Event::Revocations { version: revocations.get().version });
        }
        let address = self.fabric.relay(self.relay)?.address;
        Some(Event::Target { address })
    }
}

const fn timer_key(timer: Timer) -> u64 {
    match timer {
        Timer::Retry => 0,
        Timer::Ping => 1,
        Timer::Register => 2,
        Timer::PassOn => 3,
    }
}

impl Drop for SessionPerformer {
    fn drop(&mut self) {
        // Whatever ended the actor, its session ends with it: the next incarnation dials anew.
        for number in std::mem::take(&mut self.open) {
            self.close(number, "the session's actor ends");
        }
        if self.fabric.session(self.relay).is_some() {
            self.down("the session's actor ends");
        }
    }
}
