//! What a control node answers: snapshots, certificates, commands, facts and joins.

use std::{future::Future, pin::Pin, sync::Arc};

use postroad_cluster::{
    command::{Action, Command, Enrolment, Outcome, Refusal},
    id::{NodeId, Role, TokenId, Version},
    leader,
    limits::CERTIFICATE_LIFETIME,
    time::{Clock as _, Moment, Span},
    wire::{
        control::{ControlRequest, ControlResponse, Report},
        join::JoinResponse,
    },
};
use postroad_transport::{
    connection::Connection,
    endpoint::Joiner,
    join::{JoinAnswer, answer_join},
};
use postroad_trust::{Issuer, PeerIdentity, PublicKey, Subject, TokenVerifier};

use crate::{
    carrier::{self, ControlCarrier},
    fabric::Fabric,
    leader::LEADER,
    look::{self, Dialled, Errand, Seen},
    snapshot::Signer,
    trace,
};

/// What answers requests of the HTTP API that come over the control protocol.
pub trait Api: Send + Sync {
    /// Answers one request with a status and a JSON body.
    fn answer(
        &self,
        method: String,
        path: String,
        body: Vec<u8>,
    ) -> Pin<Box<dyn Future<Output = (u16, Vec<u8>)> + Send>>;
}

/// A control node's part in the control plane.
pub struct Service {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) carrier: Arc<ControlCarrier>,
    dialled: Dialled,
}

impl Service {
    pub(crate) fn new(fabric: Arc<Fabric>, carrier: Arc<ControlCarrier>) -> Arc<Self> {
        Arc::new(Self { fabric, carrier, dialled: Dialled::default() })
    }

    /// Looks at a page of the console of any node.
    ///
    /// # Errors
    /// Why nothing was seen, for people.
    pub async fn look(&self, node: NodeId, path: String) -> Result<Seen, Refusal> {
        let errand = Errand::Look(path);
        look::from_control(&self.fabric, &self.carrier, &self.dialled, node, errand, false).await
    }

    /// Has any node do what a path of its API does.
    ///
    /// # Errors
    /// Why it did not, for people; whether it did is not known if it is silent.
    pub async fn act(&self, node: NodeId, path: String) -> Result<Seen, Refusal> {
        look::from_control(&self.fabric, &self.carrier, &self.dialled, node, Errand::Act(path), false).await
    }

    /// Brings a command to the leader in this node's name.
    ///
    /// # Errors
    /// A refusal for people.
    pub async fn propose(&self, action: Action, expected: Option<Version>) -> Result<Outcome, Refusal> {
        let command = Command { at: self.fabric.clock.wall(), by: self.fabric.me, expected, action };
        match carrier::propose(&self.fabric, &self.carrier, command).await? {
            Outcome::Refused(refusal) => Err(refusal),
            outcome => Ok(outcome),
        }
    }

    /// Answers a peer's requests until its connection ends.
    pub(crate) async fn serve(self: Arc<Self>, connection: Connection) {
        let peer = connection.peer();
        let of = Arc::clone(&self);
        let handler = move |request: ControlRequest, deadline: Moment| {
            let (service, peer) = (Arc::clone(&of), peer.get().clone());
            async move { service.answer(&peer, request, deadline).await }
        };
        self.dialled.add(&connection);
        connection.serve_until::<ControlRequest, ControlResponse, _, _>(handler).await;
        self.dialled.remove(&connection);
    }

    async fn answer(&self, peer: &PeerIdentity, request: ControlRequest, deadline: Moment) -> ControlResponse {
        let control = peer.roles.contains(&Role::Control);
        match request {
            ControlRequest::SnapshotAfter { have, content_hash } => {
                self.snapshot_after(peer.node, have, content_hash, deadline).await
            }
            ControlRequest::CertificateRenew { public } => self.renew(peer, public),
            ControlRequest::Propose { command } => self.proposed(peer, *command).await,
            ControlRequest::Report(report) => self.reported(peer.node, report).await,
            ControlRequest::Reported { from, report } if control => {
                self.to_leader_actor(from, report);
                ControlResponse::Done
            }
            ControlRequest::Raft { message } if control => self.raft(peer.node, message).await,
            ControlRequest::Api { method, path, body } if control || peer.roles.contains(&Role::Operator) => {
                match self.fabric.api() {
                    Some(api) => {
                        let (status, body) = api.answer(method, path, body).await;
                        ControlResponse::Api { status, body }
                    }
                    None => refused("NO_API", "this control node serves no API", "Ask another one"),
                }
            }
            ControlRequest::Look { node, path } => {
                let (carrier, errand) = (&self.carrier, Errand::Look(path));
                look::respond(look::from_control(&self.fabric, carrier, &self.dialled, node, errand, control).await)
            }
            ControlRequest::Act { node, path } if control => {
                let (carrier, errand) = (&self.carrier, Errand::Act(path));
                look::respond(look::from_control(&self.fabric, carrier, &self.dialled, node, errand, true).await)
            }
            _ => refused("ROLE_MISSING", "only control nodes may ask this", "Use a certificate with the role control"),
        }
    }

    async fn raft(&self, from: NodeId, message: Vec<u8>) -> ControlResponse {
        match &self.fabric.consensus {
            Some(consensus) => ControlResponse::Raft { message: consensus.handle(from, message).await },
            None => ControlResponse::Refused(carrier::not_control()),
        }
    }

    /// The signer, once the authority has certified this node and the cluster has agreed on it.
    fn signer(&self) -> Result<Signer, Refusal> {
        let missing = || {
            Refusal::new(
                "NOT_CERTIFIED",
                "this control node may not sign yet",
                "Certify it: postroad control promote NAME --authority FILE",
            )
        };
        let keys = self.fabric.kept().issuing().ok_or_else(missing)?;
        let key_signature = keys.snapshot_key_signature.ok_or_else(missing)?;
        let state = self.fabric.consensus.as_ref().ok_or_else(carrier::not_control)?.state();
        if state.issuers.get(&self.fabric.me).is_none_or(|issuer| issuer.snapshot_key != keys.snapshot.public().0) {
            return Err(missing());
        }
        Ok(Signer { node: self.fabric.me, key: keys.snapshot, key_signature })
    }

    fn issuer(&self) -> Result<Issuer, Refusal> {
        self.signer()?;
        let kept = self.fabric.kept();
        let issuer = kept.issuing().and_then(|keys| keys.certified_issuer(&kept.cluster));
        let hint = "Certify this node again: postroad control promote NAME --authority FILE";
        match issuer {
            Some(Ok(issuer)) => Ok(issuer),
            Some(Err(error)) => Err(Refusal::new(error.code(), error.to_string(), hint)),
            None => Err(Refusal::new("NOT_CERTIFIED", "this control node may not issue certificates", hint)),
        }
    }

    async fn snapshot_after(
        &self,
        recipient: NodeId,
        have: Version,
        content_hash: Option<[u8; 32]>,
        deadline: Moment,
    ) -> ControlResponse {
        let Some(consensus) = &self.fabric.consensus else { return ControlResponse::Refused(carrier::not_control()) };
        let signer = match self.signer() {
            Ok(signer) => signer,
            Err(refusal) => return ControlResponse::Refused(refusal),
        };
        // A round trip earlier, so that the answer arrives in time.
        let margin = Span::from_millis(500);
        let limit = self.fabric.clock.sleep_until(Moment(deadline.0.saturating_sub(margin.as_nanos() as u64)));
        tokio::pin!(limit);
        let mut applied = consensus.applied();
        loop {
            let state = consensus.state();
            if state.version > have {
                let traced = trace::newest(consensus, have.0, state.version.0);
                return match (signer.snapshot(&state, recipient, content_hash).map(Box::new), traced) {
                    (Some(signed), Some(trace)) => ControlResponse::SnapshotTraced { trace, signed },
                    (Some(signed), None) => ControlResponse::Snapshot(signed),
                    (None, _) => refused("NODE_UNKNOWN", "this node was removed from the cluster", "Join again"),
                };
            }
            tokio::select! {
                biased;
                alive = applied.changed() => if !alive { return ControlResponse::Unchanged },
                () = &mut limit => return ControlResponse::Unchanged,
            }
        }
    }

    fn renew(&self, peer: &PeerIdentity, public: [u8; 32]) -> ControlResponse {
        let Some(consensus) = &self.fabric.consensus else { return ControlResponse::Refused(carrier::not_control()) };
        let state = consensus.state();
        let Some(record) = state.nodes.get(&peer.node).filter(|record| record.public == public) else {
            return refused("NODE_UNKNOWN", "no node of this number has this key", "Join again with a new token");
        };
        match self.issue(peer.node, record.roles.clone(), public) {
            Ok(chain) => ControlResponse::Certificate { chain },
            Err(refusal) => ControlResponse::Refused(refusal),
        }
    }

    fn issue(
        &self,
        node: NodeId,
        roles: std::collections::BTreeSet<Role>,
        public: [u8; 32],
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let subject = Subject { node, roles, lifetime: CERTIFICATE_LIFETIME };
        self.issuer()?
            .issue(&subject, PublicKey(public), self.fabric.clock.wall(), &*self.fabric.entropy)
            .map_err(|error| Refusal::new(error.code(), error.to_string(), "Look at this control node's log"))
    }

    async fn proposed(&self, peer: &PeerIdentity, command: Command) -> ControlResponse {
        let Some(consensus) = &self.fabric.consensus else { return ControlResponse::Refused(carrier::not_control()) };
        if peer.roles.contains(&Role::Control) {
            // It looked for the leader already: nothing is passed on twice.
            return match trace::propose(&self.fabric, consensus, command).await {
                Ok((_, outcome)) => ControlResponse::Outcome(outcome),
                Err(postroad_raft::ProposeError::NotLeader { leader }) => ControlResponse::NoLeader { leader },
                Err(error) => ControlResponse::Refused(Refusal::new(error.code(), error.to_string(), "Try again")),
            };
        }
        if command.by != peer.node {
            return refused("NOT_ALLOWED", "the command names another node as its author", "Name yourself");
        }
        if let Err(refusal) = consensus.state().may_propose(peer.node, &command.action) {
            return ControlResponse::Refused(refusal);
        }
        match carrier::propose(&self.fabric, &self.carrier, command).await {
            Ok(outcome) => ControlResponse::Outcome(outcome),
            Err(refusal) => ControlResponse::Refused(refusal),
        }
    }

    async fn reported(&self, from: NodeId, report: Report) -> ControlResponse {
        let leader = self.fabric.consensus.as_ref().and_then(|consensus| consensus.leadership().get().leader);
        match leader {
            Some(leader) if leader == self.fabric.me => self.to_leader_actor(from, report),
            Some(leader) => {
                let request = ControlRequest::Reported { from, report };
                // Soft facts: the next report comes by itself.
                let _ = self.carrier.ask(leader, &request, carrier::LEADER_WAIT).await;
            }
            None => {}
        }
        ControlResponse::Done
    }

    fn to_leader_actor(&self, from: NodeId, report: Report) {
        if let Some(leader) = self.fabric.directory.find::<leader::Leader, ()>(LEADER) {
            let _ = leader.send(leader::Event::Reported { from, report });
        }
    }

    /// Answers somebody who wants to join.
    pub(crate) async fn join(self: Arc<Self>, joiner: Joiner) {
        let from = joiner.remote_address();
        let of = Arc::clone(&self);
        let verifier = |token: TokenId| self.verifier(token);
        let commit = move |token: TokenId, enrolment: Enrolment| async move {
            of.enrol(token, enrolment).await.unwrap_or_else(JoinResponse::Refused)
        };
        match answer_join(joiner, verifier, commit).await {
            JoinAnswer::Answered { token, refused: None, .. } => tracing::info!(%from, %token, "a node has joined"),
            JoinAnswer::Answered { token, refused: Some(code), .. } => {
                tracing::warn!(%from, %token, code, "a join was refused");
            }
            JoinAnswer::Nothing => tracing::debug!(%from, "somebody connected to join and asked nothing"),
        }
    }

    fn verifier(&self, token: TokenId) -> Result<TokenVerifier, Refusal> {
        let state = self.fabric.consensus.as_ref().ok_or_else(carrier::not_control)?.state();
        let record = state.tokens.get(&token).ok_or_else(|| {
            let hint = "Make one: postroad token create";
            Refusal::new("TOKEN_UNKNOWN", "no token of this number was made here, or it was forgotten", hint)
        })?;
        Ok(TokenVerifier::from_bytes(record.verifier.0))
    }

    async fn enrol(&self, token: TokenId, enrolment: Enrolment) -> Result<JoinResponse, Refusal> {
        // Before anything is committed: a control node that cannot issue must not use up a token.
        self.issuer()?;
        let public = enrolment.public;
        let Outcome::Enrolled { node, roles } = self.propose(Action::Enrol { token, enrolment }, None).await? else {
            return Err(Refusal::new("UNKNOWN_OUTCOME", "the join came to nothing known", "Try again"));
        };
        let chain = self.issue(node, roles.clone(), public)?;
        let consensus = self.fabric.consensus.as_ref().ok_or_else(carrier::not_control)?;
        let state = consensus.state();
        Ok(JoinResponse::Welcome {
            cluster: self.fabric.cluster.clone(),
            node,
            roles,
            chain,
            authorities: state.authorities.clone(),
            controls: state.controls(),
        })
    }
}

fn refused(code: &str, message: &str, hint: &str) -> ControlResponse {
    ControlResponse::Refused(Refusal::new(code, message, hint))
}
