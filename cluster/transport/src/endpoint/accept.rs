//! The listening half of an endpoint: each handshake in a task of its own, bounded in number and time, and checked for
//! protocol, certificate and role before anything is read.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use postroad_cluster::{
    limits::{HANDSHAKE_WAIT, HANDSHAKES_MAX, HANDSHAKES_RETRY},
    time::{Clock, Entropy},
};
use postroad_trust::TrustError;
use quinn::{Incoming, ServerConfig, TimeSource, TransportConfig};
use ring::hkdf;
use tokio::sync::mpsc;

use super::{Shared, shown_chain, spoken};
use crate::{
    connection::{
        CloseCode, Closed, Connection, Link, closed,
        housekeeping::{self, Housekeeper, Housekeeping},
    },
    tls::{self, Identity, Protocol, SharedIdentity, SharedTrust},
};

/// Bytes of a handshake that are kept before its task has begun; a first flight is smaller.
const INCOMING_BYTES_MAX: u64 = 64 << 10;

/// Who has dialled this endpoint.
#[derive(Debug)]
pub enum Accepted {
    /// A peer whose protocol, certificate and role were checked.
    Peer(Connection),
    /// Somebody without certificate who wants to join.
    Joiner(Joiner),
}

/// A connection of somebody who wants to join: nothing is known of it but its address.
pub struct Joiner {
    pub(crate) quinn: quinn::Connection,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Joiner {
    /// The joiner's address.
    pub fn remote_address(&self) -> SocketAddr {
        self.quinn.remote_address()
    }
}

impl std::fmt::Debug for Joiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joiner({})", self.remote_address())
    }
}

/// The clock port as quinn asks for it, for the age of address tokens.
struct ClockSource(Arc<dyn Clock>);

impl TimeSource for ClockSource {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.wall().0)
    }
}

/// What a listener says to everybody.
pub(super) fn server_config(
    identity: &SharedIdentity,
    trust: &SharedTrust,
    clock: &Arc<dyn Clock>,
    entropy: &dyn Entropy,
    protocols: &[Protocol],
    transport: Arc<TransportConfig>,
) -> ServerConfig {
    let mut secret = [0; 64];
    entropy.fill(&mut secret);
    let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&secret);
    let tls = tls::server_config(identity, trust, clock, protocols);
    let mut config = ServerConfig::new(tls, Arc::new(token_key));
    config
        .transport_config(transport)
        .time_source(Arc::new(ClockSource(Arc::clone(clock))))
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_MAX * HANDSHAKES_RETRY as u64);
    config
}

/// Counts one half-open handshake for as long as it lives.
struct HalfOpen(Arc<Shared>);

impl HalfOpen {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.half_open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.half_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes handshakes until the endpoint is closed.
pub(super) async fn listen(shared: Arc<Shared>, accepted: mpsc::Sender<Accepted>) {
    while let Some(incoming) = shared.quinn.accept().await {
        let half_open = shared.half_open.load(Ordering::Relaxed);
        if half_open >= HANDSHAKES_MAX {
            shared.count(|counts| counts.ignored += 1);
            incoming.ignore();
        } else if half_open >= HANDSHAKES_RETRY && !incoming.remote_address_validated() {
            shared.count(|counts| counts.retried += 1);
            let _ = incoming.retry();
        } else {
            tokio::spawn(greet(HalfOpen::begin(&shared), incoming, accepted.clone()));
        }
    }
}

/// One handshake, from the first packet until somebody takes the connection.
async fn greet(half_open: HalfOpen, incoming: Incoming, accepted: mpsc::Sender<Accepted>) {
    let shared = &half_open.0;
    let from = incoming.remote_address();
    let deadline = shared.clock.sleep_until(shared.clock.now().after(HANDSHAKE_WAIT));
    let outcome = tokio::select! {
        biased;
        outcome = shake(shared, incoming, &accepted) => outcome,
        () = deadline => Err(("TIMED_OUT".to_owned(), "the handshake was not finished in time".to_owned())),
    };
    match outcome {
        Ok(()) => shared.count(|counts| counts.accepted += 1),
        Err((code, reason)) => {
            tracing::debug!(%from, code, reason, "a handshake was refused or failed");
            shared.count_refusal(&code);
        }
    }
}

async fn shake(
    shared: &Arc<Shared>,
    incoming: Incoming,
    accepted: &mpsc::Sender<Accepted>,
) -> Result<(), (String, String)> {
    // Taken before the handshake: should it be replaced meanwhile, the newer one is proved right after.
    let shown = shared.identity.current();
    let failed = |error: quinn::ConnectionError| {
        let Closed { code, reason, .. } = Closed::of(&error);
        (code, reason)
    };
    let connecting = match &shared.transport_of {
        None => incoming.accept(),
        Some(of) => {
            let Some(transport) = of(incoming.remote_address()) else {
                // Not answered: what comes here is a handshake of ours that was given up, and reads as a new one by luck.
                incoming.ignore();
                return Err(("REFUSED".to_owned(), "nothing is served to this address".to_owned()));
            };
            let mut config = shared.server.clone();
            config.transport_config(transport);
            incoming.accept_with(Arc::new(config))
        }
    };
    let quinn = connecting.map_err(failed)?.await.map_err(failed)?;
    let taken = match check(shared, &quinn, shown) {
        Ok(taken) => taken,
        Err((code, reason)) => {
            closed::close(&quinn, &code, CloseCode::Refused, &reason);
            return Err((code, reason));
        }
    };
    // Nobody takes connections any more when the endpoint goes; dropping the connection closes it.
    let _ = accepted.send(taken).await;
    Ok(())
}

/// Protocol, then certificate, then role.
fn check(shared: &Shared, quinn: &quinn::Connection, shown: Arc<Identity>) -> Result<Accepted, (String, String)> {
    let Some(protocol) = spoken(quinn) else {
        return Err(("PROTOCOL".to_owned(), "the dialler names no protocol of Postroad".to_owned()));
    };
    let chain = shown_chain(quinn);
    if protocol == Protocol::Join {
        let clock = Arc::clone(&shared.clock);
        return Ok(Accepted::Joiner(Joiner { quinn: quinn.clone(), clock }));
    }
    if chain.is_empty() {
        let reason = format!("{protocol} needs a certificate and none was shown; join the cluster first");
        return Err(("CERTIFICATE_ABSENT".to_owned(), reason));
    }
    let wall = shared.clock.wall();
    let refused = |error: TrustError| (error.code().to_owned(), error.to_string());
    let peer = housekeeping::verify(&shared.trust, &chain, wall).map_err(refused)?;
    protocol.check_client(peer.get()).map_err(refused)?;
    let link = Link::new(quinn.clone(), protocol, peer);
    let (clock, trust, identity) = (Arc::clone(&shared.clock), shared.trust.clone(), shared.identity.clone());
    let housekeeper = Housekeeper::new(Arc::clone(&link), clock, trust, identity, shown, chain, wall);
    tokio::spawn(housekeeping::tell(quinn.clone(), Housekeeping::Taken));
    tokio::spawn(housekeeper.run());
    Ok(Accepted::Peer(Connection::new(link, Arc::clone(&shared.clock))))
}
