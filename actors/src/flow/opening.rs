//! How a flow opens: on the circuit whose relay admits it, and connected once at most.
//!
//! Whether the target has connected is not to be seen from here while the answer is outstanding. So a flow opens again on
//! another circuit only after the target's own word that it has connected nothing for the tunnel and will not
//! ([`ResetCode::frees`]), or if nothing was handed to the stream. Every other loss ends it. A flow whose tunnel was
//! admitted ahead of need does not wait for anybody's word.

use std::{collections::BTreeSet, sync::Arc};

use postroad_cluster::{
    admission::Via,
    command::{Refusal, code},
    grant::SignedGrant,
    id::{CircuitId, LinkId, NodeId, TunnelId},
    limits::{ADMIT_PAUSE, ADMIT_WAIT, ASKING_WAIT, OPENINGS_MAX},
    link::{Asked, ask_order},
    snapshot::LinkView,
    spread::Why,
    time::{Moment, Span},
    wire::{
        self,
        flow::{OpenFrame, ResetCode, TrialFrame, TrialKind},
        session::{NodeRequest, NodeResponse},
    },
};
use postroad_transport::{
    flow::{Ahead, FlowCounters, FlowEnd},
    network::TcpStream,
    node_socket::CircuitKey,
};

use super::{
    admission,
    stream::{NotOpened, Stream},
};
use crate::{
    fabric::{Fabric, circuits::Place},
    ports::sleep,
};

/// How often a flow that opens looks whether the relay that it has asked still carries its circuit.
const CARRIER_LOOK: Span = Span::from_millis(20);

/// What is to be opened.
pub(super) struct Opening<'a> {
    pub(super) fabric: &'a Arc<Fabric>,
    pub(super) link: LinkId,
    pub(super) view: &'a LinkView,
    pub(super) grant: SignedGrant,
    /// What the target node does itself, for trials.
    pub(super) kind: Option<TrialKind>,
}

/// A tunnel that a relay has admitted.
pub(super) struct Opened {
    pub(super) stream: Stream,
    pub(super) tunnel: TunnelId,
    pub(super) place: Place,
    pub(super) why: Why,
}

/// An application's connection whose first bytes travel while its flow opens.
pub(super) struct Speaker<'a> {
    pub(super) tcp: &'a mut TcpStream,
    pub(super) ahead: &'a mut Ahead,
    pub(super) counters: &'a FlowCounters,
}

/// Why a tunnel was refused: a stable code and the reason in words.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: &'static str,
    pub(super) reason: String,
}

impl Refused {
    /// The target's word.
    pub(super) fn of(word: ResetCode) -> Self {
        Self { code: word.code(), reason: word.words().to_owned() }
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Self {
        Self { code: code::known(&refusal.code), reason: refusal.to_string() }
    }
}

/// Why a tunnel did not open.
pub(super) enum Failure {
    /// Nothing is and will be connected for it: another circuit may take the flow.
    Free(Refused),
    /// It was refused, or may have been connected: the flow is over.
    Refused(Refused),
    /// The flow has ended.
    Ended(FlowEnd),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Free(refused) | Self::Refused(refused) => f.write_str(&refused.reason),
            Self::Ended(end) => end.fmt(f),
        }
    }
}

/// What became of asking relays.
enum Answer {
    Admitted,
    /// The circuit's relay refuses, and another circuit's may not.
    Elsewhere(Refusal),
    Refused(Refused),
}

/// The target has ended the stream before the flow began.
fn refused_by_target(place: &Place, number: u64) -> Failure {
    let code = ResetCode::from_number(number);
    if code == ResetCode::Closing {
        // The other end is closing the circuit, and its own word for that is on its way.
        place.circuit().close();
    }
    match code {
        code if code.frees() => Failure::Free(Refused::of(code)),
        ResetCode::PeerReset => Failure::Ended(FlowEnd::PeerReset(number)),
        code => Failure::Refused(Refused::of(code)),
    }
}

impl Opening<'_> {
    /// Opens a tunnel, on one circuit after the other as long as each says that it connected nothing.
    pub(super) async fn open(&self, mut speaker: Option<Speaker<'_>>) -> Result<Opened, Failure> {
        let wait = self.fabric.flow_wait();
        let limit = self.fabric.now().after(wait);
        let (mut tried, mut last) = (BTreeSet::new(), None);
        for _ in 0..OPENINGS_MAX {
            let left = limit.since(self.fabric.now());
            let Some((place, relay, why)) = self.place_within(&tried, left).await else { break };
            let circuit = place.circuit().key.circuit;
            tried.insert(circuit);
            match self.attempt(place, relay, why, &tried, &mut speaker).await {
                Ok(opened) => return Ok(opened),
                Err(Failure::Free(refused)) => {
                    let Refused { code, reason } = &refused;
                    tracing::debug!(link = %self.link, %circuit, code, reason, "another circuit is to take the flow");
                    last = Some(refused);
                }
                Err(failure) => return Err(failure),
            }
        }
        let no_path = || Refused {
            code: code::PATH_ABSENT,
            reason: format!("no path to {} within {} s", self.view.target, wait.as_secs()),
        };
        Err(Failure::Refused(last.unwrap_or_else(no_path)))
    }

    /// The circuit that serves the flow, as soon as there is one.
    async fn place_within(&self, tried: &BTreeSet<CircuitId>, wait: Span) -> Option<(Place, Option<NodeId>, Why)> {
        let circuits = &self.fabric.circuits;
        let limit = sleep(&*self.fabric.clock, wait);
        tokio::pin!(limit);
        loop {
            let changed = circuits.changed();
            tokio::pin!(changed);
            // Armed before the look, so that a circuit that comes in between is not missed.
            changed.as_mut().enable();
            if let Some((served, place)) = self.fabric.serve(self.view.target, self.link, tried) {
                return Some((place, served.relay, served.why));
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = &mut limit => return None,
            }
        }
    }

    async fn attempt(
        &self,
        place: Place,
        relay: Option<NodeId>,
        why: Why,
        tried: &BTreeSet<CircuitId>,
        speaker: &mut Option<Speaker<'_>>,
    ) -> Result<Opened, Failure> {
        if let Some(speaker) = speaker {
            speaker.ahead.again();
        }
        let via = relay.map(|relay| Via { relay, link: self.link, generation: self.view.generation });
        let ahead = via.and_then(|via| admission::ahead(self.fabric, place.circuit(), via, &self.grant));
        // Each attempt is a tunnel of its own: a relay's word for an earlier one opens nothing.
        let tunnel = ahead.unwrap_or_else(|| TunnelId(self.fabric.entropy.next_u64()));
        let opened = Stream::open(&place.circuit().connection, &self.frame(tunnel)).await;
        let mut stream = opened.map_err(|error| match error {
            NotOpened::Before(reason) => Failure::Free(Refused { code: code::CIRCUIT_LOST, reason }),
            NotOpened::During(reason) => Failure::Ended(FlowEnd::CircuitLost(reason)),
        })?;
        if ahead.is_some() {
            return Ok(Opened { stream, tunnel, place, why });
        }
        // What waits for an answer is large, and as a part of the flow's own task would be kept for as long as it is open.
        let answer = Box::pin(self.answered(&mut stream, &place, relay, tunnel, tried, speaker)).await?;
        match answer {
            Answer::Admitted => Ok(Opened { stream, tunnel, place, why }),
            Answer::Refused(refused) => Err(Failure::Refused(refused)),
            Answer::Elsewhere(refusal) => Err(Box::pin(self.withdrawn(&mut stream, &refusal)).await),
        }
    }

    fn frame(&self, tunnel: TunnelId) -> Vec<u8> {
        let (link, generation) = (self.link, self.view.generation);
        let open = OpenFrame { tunnel, link, generation, grant: self.grant.clone() };
        match self.kind {
            Some(kind) => wire::encode(&TrialFrame { open, kind }),
            None => wire::encode(&open),
        }
    }

    /// Waits for a relay's answer, the target's word or the application's end, whichever comes first. What the
    /// application says meanwhile travels.
    async fn answered(
        &self,
        stream: &mut Stream,
        place: &Place,
        relay: Option<NodeId>,
        tunnel: TunnelId,
        tried: &BTreeSet<CircuitId>,
        speaker: &mut Option<Speaker<'_>>,
    ) -> Result<Answer, Failure> {
        let over = || Failure::Ended(FlowEnd::Finished);
        let Some((send, _)) = stream.halves() else { return Err(over()) };
        let stopped = send.stopped();
        let speaking = async {
            match speaker {
                Some(Speaker { tcp, ahead, counters }) => ahead.run(tcp, send, counters).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            word = stopped => Err(match word {
                Ok(Some(code)) => refused_by_target(place, code.into_inner()),
                Ok(None) => over(),
                Err(error) => Failure::Ended(error.into()),
            }),
            answer = self.admit(place.circuit().key, relay, tunnel, tried) => Ok(answer),
            end = speaking => Err(Failure::Ended(end)),
        }
    }

    /// Takes a tunnel back that its circuit's relay has refused. Without the target's word that it connected nothing, the
    /// flow is over: a relay's refusal does not prove it.
    async fn withdrawn(&self, stream: &mut Stream, refusal: &Refusal) -> Failure {
        let limit = sleep(&*self.fabric.clock, self.fabric.flow_wait());
        let word = tokio::select! {
            biased;
            word = stream.withdraw() => word,
            () = limit => None,
        };
        match word {
            Some(code) if code.frees() => Failure::Free(refusal.into()),
            _ => Failure::Refused(Refused {
                code: code::known(&refusal.code),
                reason: format!("{refusal}; whether the target has connected is not known"),
            }),
        }
    }

    /// Asks relays in turn until one has admitted the tunnel and told the target node: the circuit's own first, and if
    /// that refuses, another circuit is tried where there is one. A relay that dies meanwhile is passed over: the same
    /// tunnel is asked of the next. Of tunnels that have no other relay than one that refuses, one in a while asks it; the
    /// others wait as if they had been refused.
    async fn admit(
        &self,
        key: CircuitKey,
        own: Option<NodeId>,
        tunnel: TunnelId,
        tried: &BTreeSet<CircuitId>,
    ) -> Answer {
        // Without any session the tunnel waits like an open flow would; relays that answer are given less time.
        let give_up = self.fabric.now().after(self.fabric.flow_wait());
        let mut answered_by: Option<Moment> = None;
        let mut last: Option<Refusal> = None;
        loop {
            let mut asked = BTreeSet::new();
            while let Some(relay) = self.next(key, &asked) {
                asked.insert(relay);
                let answer = if self.fabric.may_ask(relay, self.link) {
                    self.ask_while_carrying(key, relay, tunnel).await
                } else {
                    Some(Err(last.clone().unwrap_or_else(|| self.held_back(relay))))
                };
                match answer {
                    Some(Ok(())) => return Answer::Admitted,
                    Some(Err(refusal)) => {
                        if Some(relay) == own && self.fabric.serves_elsewhere(self.view.target, self.link, tried) {
                            return Answer::Elsewhere(refusal);
                        }
                        answered_by.get_or_insert(self.fabric.now());
                        last = Some(refusal);
                    }
                    None => {}
                }
            }
            let limit = answered_by.map_or(give_up, |since| since.after(ASKING_WAIT).min(give_up));
            if self.fabric.now() >= limit {
                let silent = || Refused { code: code::RELAY_SILENT, reason: "no relay answered in time".to_owned() };
                return Answer::Refused(last.as_ref().map_or_else(silent, Refused::from));
            }
            sleep(&*self.fabric.clock, ADMIT_PAUSE).await;
        }
    }

    /// A relay's answer, if it comes in time. One that carried the circuit and does not any more is not waited for: it is
    /// probably dead, and its session does not know yet.
    async fn ask_while_carrying(
        &self,
        key: CircuitKey,
        relay: NodeId,
        tunnel: TunnelId,
    ) -> Option<Result<(), Refusal>> {
        let carries = || self.carrying(key) == Some(relay);
        let left = async {
            if !carries() {
                return std::future::pending().await;
            }
            while carries() {
                sleep(&*self.fabric.clock, CARRIER_LOOK).await;
            }
        };
        tokio::select! {
            biased;
            answer = self.ask(relay, tunnel) => answer,
            () = left => None,
        }
    }

    /// Why a tunnel has to wait that did not ask: what the relay has told others.
    fn held_back(&self, relay: NodeId) -> Refusal {
        let code = self.fabric.refuses(relay, self.link).unwrap_or(code::OTHER);
        let name = self.fabric.relay(relay).map_or_else(|| relay.to_string(), |view| view.name.to_string());
        Refusal::new(
            code,
            format!("relay {name} refuses new tunnels, so it is asked for one of many"),
            format!("See why: postroad why {} {name}", self.view.name),
        )
    }

    fn carrying(&self, key: CircuitKey) -> Option<NodeId> {
        self.fabric.socket.status(key).ok().and_then(|status| status.relay)
    }

    /// A relay's answer, if it comes in time.
    async fn ask(&self, relay: NodeId, tunnel: TunnelId) -> Option<Result<(), Refusal>> {
        let session = self.fabric.session(relay)?;
        let (link, generation, grant) = (self.link, self.view.generation, self.grant.clone());
        let request = NodeRequest::Admit { tunnel, link, generation, grant };
        match session.connection.call::<NodeRequest, NodeResponse>(&request, ADMIT_WAIT).await {
            Ok(NodeResponse::Admitted { .. }) => {
                self.fabric.relay_admitted(relay, link);
                Some(Ok(()))
            }
            Ok(NodeResponse::Refused(refusal)) => {
                self.fabric.relay_refused(relay, link, &refusal);
                Some(Err(refusal))
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// The next relay to ask of those that were not asked in this round. One that is stale for the link is none (RP-35).
    fn next(&self, key: CircuitKey, asked: &BTreeSet<NodeId>) -> Option<NodeId> {
        let fabric = self.fabric;
        let carrying = self.carrying(key);
        let relays = fabric
            .sessions()
            .into_iter()
            .filter(|(relay, _)| !asked.contains(relay) && !fabric.is_stale(*relay, self.link));
        let relays = relays.map(|(relay, standing)| Asked {
            relay,
            round_trip_us: standing.round_trip_us,
            refusing: fabric.refuses(relay, self.link).is_some(),
            draining: fabric.drains(relay),
        });
        ask_order(carrying, relays.collect()).into_iter().next()
    }
}
