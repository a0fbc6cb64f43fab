//! The joiner's side: one seed after the other, each bounded, until one has granted or refused.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    command::{Enrolment, Refusal},
    id::Name,
    limits::{JOIN_ANSWER_WAIT, JOIN_SEED_WAIT, JOIN_SEEDS_MAX},
    time::{Clock, Entropy},
    wire::{
        self,
        join::{JoinRequest, JoinResponse},
    },
};
use postroad_trust::{Anchors, Fingerprint, JoinSecret, PublicKey};
use quinn::{AsyncUdpSocket, ClientConfig, VarInt};

use super::{JoinError, Joined, PROOF_LABEL, SeedFailure};
use crate::{
    connection::{Closed, exporter, frame},
    endpoint::{endpoint_config, first_ids, transport},
    runtime::DriverRuntime,
    tls::{self, JoinVerifier, Protocol, SERVER_NAME, Seen, Slot},
};

/// What a join needs.
pub struct JoinOptions {
    /// A socket for this join alone.
    pub socket: Arc<dyn AsyncUdpSocket>,
    /// The clock port.
    pub clock: Arc<dyn Clock>,
    /// The entropy port.
    pub entropy: Arc<dyn Entropy>,
    /// Control nodes' addresses, tried in this order; at most [`JOIN_SEEDS_MAX`].
    pub seeds: Vec<SocketAddr>,
    /// The fingerprint of the cluster's authority.
    pub fingerprint: Fingerprint,
    /// The cluster's name, if it is known.
    pub cluster: Option<Name>,
    /// The token.
    pub secret: JoinSecret,
    /// Who joins.
    pub enrolment: Enrolment,
}

impl fmt::Debug for JoinOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinOptions").field("seeds", &self.seeds).field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// Joins: asks the seeds in order. A refusal ends it; a seed that is dead, foreign or cannot decide now is passed over.
///
/// # Errors
/// [`JoinError`]. Repeating the join with the same token and key is safe: it gets the same answer.
pub async fn join(options: JoinOptions) -> Result<Joined, JoinError> {
    if options.seeds.is_empty() {
        return Err(JoinError::NoSeeds);
    }
    let mut secret = [0; 32];
    options.entropy.fill(&mut secret);
    let config = endpoint_config(&*options.entropy, &secret);
    let socket = Arc::clone(&options.socket);
    let quinn = quinn::Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(DriverRuntime::here()))
        .map_err(|error| JoinError::Socket(error.to_string()))?;
    let mut attempts = Vec::new();
    for seed in options.seeds.iter().copied().take(JOIN_SEEDS_MAX) {
        match try_seed(&quinn, &options, seed).await {
            Ok(joined) => return Ok(joined),
            Err(Failure::Final(refusal)) => return Err(JoinError::Refused { seed, refusal }),
            Err(Failure::Next(failure)) => attempts.push((seed, failure)),
        }
    }
    Err(JoinError::NoAnswer(attempts))
}

/// Whether another seed may do better.
enum Failure {
    Final(Refusal),
    Next(SeedFailure),
}

impl From<SeedFailure> for Failure {
    fn from(failure: SeedFailure) -> Self {
        Self::Next(failure)
    }
}

/// Refusals that are about this control node or this moment, and not about the join.
const LATER: [&str; 7] = [
    "NOT_FOUNDED",
    "CONTROL_NOT_LEADER",
    "CONTROL_BUSY",
    "CONTROL_OUTCOME_UNKNOWN",
    "CONTROL_STOPPED",
    "TIMED_OUT",
    "BUSY",
];

async fn try_seed(quinn: &quinn::Endpoint, options: &JoinOptions, seed: SocketAddr) -> Result<Joined, Failure> {
    let within = |wait| options.clock.sleep_until(options.clock.now().after(wait));
    let (connection, anchors) = tokio::select! {
        biased;
        dialled = dial(quinn, options, seed) => dialled?,
        () = within(JOIN_SEED_WAIT) => return Err(SeedFailure::TimedOut(JOIN_SEED_WAIT).into()),
    };
    let response = tokio::select! {
        biased;
        response = ask(&connection, options) => response?,
        () = within(JOIN_ANSWER_WAIT) => return Err(SeedFailure::TimedOut(JOIN_ANSWER_WAIT).into()),
    };
    connection.close(VarInt::from_u32(0), b"DONE: the join was answered");
    match response {
        JoinResponse::Refused(refusal) if LATER.contains(&refusal.code.as_str()) => {
            Err(SeedFailure::Later(refusal).into())
        }
        JoinResponse::Refused(refusal) => Err(Failure::Final(refusal)),
        welcome @ JoinResponse::Welcome { .. } => Ok(check_welcome(welcome, options, anchors, seed)?),
    }
}

/// Dials a seed; what comes back is a control node whose authority has the fingerprint.
async fn dial(
    quinn: &quinn::Endpoint,
    options: &JoinOptions,
    seed: SocketAddr,
) -> Result<(quinn::Connection, Anchors), SeedFailure> {
    let seen: Slot<Seen> = Arc::new(Mutex::new(None));
    let verifier = JoinVerifier::new(options.fingerprint, options.cluster.clone(), Arc::clone(&seen));
    let mut config = ClientConfig::new(tls::client_config(None, Arc::new(verifier), &options.clock, Protocol::Join));
    config.transport_config(transport::control());
    first_ids(&mut config, Arc::clone(&options.entropy));
    let connecting = quinn
        .connect_with(config, seed, SERVER_NAME)
        .map_err(|error| SeedFailure::Malformed(format!("this address cannot be dialled: {error}")))?;
    let dialled = connecting.await;
    match (tls::take(&seen), dialled) {
        (Some(Seen::Refused { error, shown }), _) => Err(SeedFailure::Untrusted { error, shown }),
        (Some(Seen::Trusted(anchors)), Ok(connection)) => Ok((connection, anchors)),
        (_, Err(error)) => Err(SeedFailure::Closed(Closed::of(&error))),
        (None, Ok(_)) => Err(SeedFailure::Malformed("it showed no certificate".to_owned())),
    }
}

/// Proves the secret on this connection, for this key.
async fn ask(connection: &quinn::Connection, options: &JoinOptions) -> Result<JoinResponse, SeedFailure> {
    let public = PublicKey(options.enrolment.public);
    let proof = options.secret.proof(&exporter(connection, PROOF_LABEL, &[]), &public);
    let request = JoinRequest::Enrol { token: options.secret.id(), proof, enrolment: options.enrolment.clone() };
    let answer =
        frame::ask(connection, &wire::encode(&request), JOIN_ANSWER_WAIT).await.map_err(|error| match error {
            frame::FrameError::Lost(error) => SeedFailure::Closed(Closed::of(&error)),
            _ => SeedFailure::Malformed("it broke its answer off".to_owned()),
        })?;
    wire::decode(&answer).map_err(|error| SeedFailure::Malformed(error.to_string()))
}

/// Takes a welcome only with a certificate that holds: by the authorities that came with it, for this key and node.
fn check_welcome(
    welcome: JoinResponse,
    options: &JoinOptions,
    mut anchors: Anchors,
    through: SocketAddr,
) -> Result<Joined, SeedFailure> {
    let JoinResponse::Welcome { cluster, node, roles, chain, authorities, controls } = welcome else {
        return Err(SeedFailure::Malformed("it neither granted nor refused".to_owned()));
    };
    let unfit = |what: &str| SeedFailure::Malformed(format!("the certificate that it issued does not hold: {what}"));
    if cluster != anchors.cluster {
        return Err(unfit("it is for another cluster"));
    }
    anchors.authorities.clone_from(&authorities);
    let links: Vec<&[u8]> = chain.iter().map(Vec::as_slice).collect();
    let verified = anchors.verify_chain(&links, options.clock.wall()).map_err(|error| unfit(&error.to_string()))?;
    let found = verified.get();
    if found.public.0 != options.enrolment.public || found.node != node || found.roles != roles {
        return Err(unfit("it is for another key, node or roles"));
    }
    Ok(Joined { through, cluster, node, roles, chain, authorities, controls })
}
