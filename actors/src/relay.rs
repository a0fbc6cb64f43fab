//! The actor of the relay service: carries out what it decides on sessions' connections and the packet switch.

use std::sync::Arc;

use postroad_cluster::{
    behavior::ReplyId,
    command::{Refusal, code},
    id::{Challenge, ChannelToken},
    limits::{CALL_WAIT, TUNNEL_WAIT},
    relay::{ChannelEnd, Effect, Event, Presented, Relay, Timer},
    time::Span,
    wire::session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
};
use postroad_transport::{
    connection::{CloseCode, Connection},
    switch::{OpenChannel, Switch, SwitchSession},
};

use crate::{
    fabric::Fabric,
    handle::{AskError, Handle},
    revoke,
    session::{after, briefly, run},
    shell::Performer,
    snapshot,
};

type Me = Handle<Relay, NodeResponse>;

/// Where the relay service stands in the tree.
pub(crate) const RELAY: &str = "node/relay";

/// How long a request may wait in the relay service: as long as a grant may wait for its policy, and a node's answer.
const REQUEST_WAIT: Span = Span::from_secs(TUNNEL_WAIT.as_secs() + CALL_WAIT.as_secs());

/// Performs what the relay service decides.
pub(crate) struct RelayPerformer {
    fabric: Arc<Fabric>,
    switch: Arc<Switch>,
}

impl RelayPerformer {
    pub(crate) const fn new(fabric: Arc<Fabric>, switch: Arc<Switch>) -> Self {
        Self { fabric, switch }
    }

    fn ask(&self, number: u64, ask: u64, request: RelayRequest, me: &Me) {
        let answered = move |response| Event::Answered { ask, response };
        let Some(connection) = self.fabric.connections().get(number) else {
            let _ = me.send(answered(Err("its session has ended".to_owned())));
            return;
        };
        let late = answered(Err("it did not answer in time".to_owned()));
        let work = async move {
            answered(
                connection
                    .call::<RelayRequest, RelayResponse>(&request, CALL_WAIT)
                    .await
                    .map_err(|error| error.to_string()),
            )
        };
        run(me, CALL_WAIT * 2, late, work);
    }

    fn tell(&self, number: u64, request: RelayRequest, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        briefly(me, async move {
            // The answer does not matter: the node also forgets it with the session.
            let _ = connection.call::<RelayRequest, RelayResponse>(&request, CALL_WAIT).await;
        });
    }

    fn ping(&self, number: u64, sequence: u64, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        let back = me.clone();
        briefly(me, async move {
            let request = RelayRequest::Ping { sequence };
            if connection.call::<RelayRequest, RelayResponse>(&request, CALL_WAIT).await.is_ok() {
                let _ = back.send(Event::Heard { connection: number });
            }
        });
    }

    fn switch_open(&self, ends: &[ChannelEnd; 2]) {
        for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let channel = OpenChannel {
                token: end.token_out.0,
                from: SwitchSession(end.connection),
                token_out: other.token_in.0,
                to: SwitchSession(other.connection),
            };
            if let Err(error) = self.switch.open(channel) {
                tracing::warn!(node = %end.node, %error, "the switch did not take a channel");
            }
        }
    }

    fn close(&self, number: u64, reason: &str) {
        if let Some(connection) = self.fabric.connections().get(number) {
            connection.close(CloseCode::Done, reason);
        }
    }
}

/// Takes a session: tells the relay service of it, and brings it the node's requests until the connection ends.
pub(crate) async fn serve(fabric: Arc<Fabric>, switch: Arc<Switch>, connection: Connection) {
    let Some(relay): Option<Me> = fabric.directory.find(RELAY) else {
        return connection.close(CloseCode::Refused, "this node is no relay");
    };
    let peer = connection.peer();
    let (node, public) = (peer.get().node, peer.get().public.0);
    let number = fabric.connections().add(connection.clone());
    // Before the service knows of it, so that a channel finds the session's address.
    switch.session_address(SwitchSession(number), connection.remote_address());
    if relay.send(Event::Connected { connection: number, node, public }).is_ok() {
        fabric.served(|served| served.insert(number));
        let (of, to) = (Arc::clone(&fabric), relay.clone());
        let (asked, switch_of) = (connection.clone(), Arc::clone(&switch));
        let handler = move |request: NodeRequest| {
            let (session, challenge) = (SwitchSession(number), Challenge(of.entropy.next_u64()));
            match &request {
                NodeRequest::AddressProof { challenge } => _ = switch_of.session_proved(session, *challenge),
                // Every request shows where the node is now.
                _ => switch_of.session_seen(session, asked.remote_address(), challenge),
            }
            let (fabric, relay) = (Arc::clone(&of), to.clone());
            async move { answer(&fabric, &relay, number, request).await }
        };
        let closed = connection.serve::<NodeRequest, NodeResponse, _, _>(handler).await;
        let _ = relay.send(Event::Disconnected { connection: number, reason: closed.to_string() });
        fabric.served(|served| served.remove(&number));
    } else {
        connection.close(CloseCode::Busy, "the relay service is not running");
    }
    switch.session_closed(SwitchSession(number));
    fabric.connections().remove(number);
}

async fn answer(fabric: &Fabric, relay: &Me, connection: u64, request: NodeRequest) -> NodeResponse {
    match &request {
        NodeRequest::RevocationsAsk => {
            return NodeResponse::Revocations { signed: fabric.signed_revocations().map(Box::new) };
        }
        // Signed by a control node, so it does not matter who brings them.
        NodeRequest::Revocations { signed } => {
            if let Err(error) = revoke::take(fabric, signed) {
                let hint = "Look whether the node and the relay are of one cluster: postroad status";
                return NodeResponse::Refused(Refusal::new(code::GRANT_UNTRUSTED, error, hint));
            }
        }
        _ => {}
    }
    let grant = match &request {
        NodeRequest::Register { grant, .. }
        | NodeRequest::Admit { grant, .. }
        | NodeRequest::AdmitAhead { grant, .. } => snapshot::presented(fabric, grant),
        _ => Presented::Absent,
    };
    let draws = std::array::from_fn(|_| ChannelToken(fabric.entropy.next_u64()));
    let event = |reply: ReplyId| Event::Request { connection, reply, request, grant, draws };
    relay.ask(REQUEST_WAIT, event).await.unwrap_or_else(|error| NodeResponse::Refused(busy(&error)))
}

fn busy(error: &AskError) -> Refusal {
    Refusal::new(error.code(), error.to_string(), "It is tried again by itself")
}

impl Performer<Relay> for RelayPerformer {
    type Reply = NodeResponse;

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::Reply { reply, response } => {
                me.reply(reply, response);
            }
            Effect::Ask { connection, ask, request } => self.ask(connection, ask, request, me),
            Effect::Tell { connection, request } => self.tell(connection, request, me),
            Effect::Ping { connection, sequence } => self.ping(connection, sequence, me),
            Effect::SwitchOpen { ends } => self.switch_open(&ends),
            Effect::SwitchClose { tokens } => {
                for token in tokens {
                    self.switch.close(token.0);
                }
            }
            Effect::CloseSession { connection, reason } => self.close(connection, &reason),
            Effect::Check { waiting, grant } => {
                let _ = me.send(Event::Checked { waiting, grant: snapshot::presented(&self.fabric, &grant) });
            }
            Effect::Start { timer: timer @ Timer::Sweep, after_ms } => after(me, after_ms, 0, Event::Timer(timer)),
        }
    }

    fn first(&mut self, me: &Me) -> Option<Event> {
        if let Some(revocations) = self.fabric.revocations() {
            let _ = me.send(Event::Revoked { revocations });
        }
        Event::policy(&*self.fabric.snapshot()?)
    }
}

impl Drop for RelayPerformer {
    fn drop(&mut self) {
        // A restarted relay service knows no session: nodes must come again.
        for number in self.fabric.served(std::mem::take) {
            self.close(number, "the relay service restarts");
        }
    }
}
