//! One UDP socket's QUIC: connections dialled and taken, each checked for protocol, certificate and role before it is
//! handed out.
//!
//! - `accept`: the listening half
//! - `connect`: the dialling half
//! - [`transport`]: timeouts and windows of each kind of connection
//! - `reset`: connection ids and stateless resets that outlive a restart

mod accept;
mod connect;
mod reset;
pub mod transport;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicUsize},
};

use postroad_cluster::{
    limits::{ACCEPT_QUEUE_MAX, UDP_PAYLOAD_BYTES_MAX},
    time::{Clock, Entropy},
};
use quinn::{AsyncUdpSocket, EndpointConfig, ServerConfig, TransportConfig, VarInt};
use tokio::sync::mpsc;

pub use accept::{Accepted, Joiner};
pub(crate) use connect::first_ids;
pub use connect::{ConnectError, ConnectFailure, Expect};

use crate::{
    connection::CloseCode,
    runtime::DriverRuntime,
    tls::{Protocol, SharedIdentity, SharedTrust},
};

/// What an endpoint is made of.
pub struct EndpointOptions {
    /// The clock port.
    pub clock: Arc<dyn Clock>,
    /// The entropy port.
    pub entropy: Arc<dyn Entropy>,
    /// What this node shows of itself.
    pub identity: SharedIdentity,
    /// Whom this node trusts.
    pub trust: SharedTrust,
    /// What may be spoken on connections that others dial: a listening socket takes control, relay and join as the
    /// node's roles are, a node's outbound socket takes circuits.
    pub protocols: Vec<Protocol>,
    /// The timeouts and windows of connections that others dial: [`transport::listener`], or those of circuits. Where
    /// the two ends differ in their idle timeout, the shorter one counts.
    pub transport: Arc<TransportConfig>,
    /// The transport of each connection by the address that dials, in place of `transport`: circuits have one each. An
    /// address without one is refused.
    pub transport_of: Option<TransportOf>,
    /// A secret that outlives restarts: from it come the ids and the stateless resets, so that the peers of a restarted
    /// process learn at once that their connections are gone.
    pub secret: [u8; 32],
}

impl fmt::Debug for EndpointOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointOptions").field("protocols", &self.protocols).finish_non_exhaustive()
    }
}

/// The transport for a dialling address.
pub type TransportOf = Arc<dyn Fn(SocketAddr) -> Option<Arc<TransportConfig>> + Send + Sync>;

/// What an endpoint has counted since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Connections taken.
    pub accepted: u64,
    /// Connections refused, or handshakes that failed, by code.
    pub refused: BTreeMap<String, u64>,
    /// Handshakes that were told to show that they receive at their address.
    pub retried: u64,
    /// Handshakes that were ignored for want of room.
    pub ignored: u64,
}

/// The QUIC of one socket. It ends, with every connection, when this is dropped.
pub struct Endpoint {
    shared: Arc<Shared>,
    accepted: tokio::sync::Mutex<mpsc::Receiver<Accepted>>,
}

/// What the tasks of an endpoint share.
struct Shared {
    quinn: quinn::Endpoint,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    identity: SharedIdentity,
    trust: SharedTrust,
    server: ServerConfig,
    transport_of: Option<TransportOf>,
    half_open: AtomicUsize,
    counts: Mutex<EndpointCounts>,
}

impl Endpoint {
    /// Starts QUIC on `socket`, within a tokio runtime, where all of its connections are driven.
    ///
    /// # Errors
    /// If the socket does not know its address.
    pub fn new(socket: Arc<dyn AsyncUdpSocket>, options: EndpointOptions) -> io::Result<Self> {
        let EndpointOptions { clock, entropy, identity, trust, protocols, transport, transport_of, secret } = options;
        let mut config = endpoint_config(&*entropy, &secret);
        reset::outlive_restarts(&mut config, &secret, &clock);
        let server = accept::server_config(&identity, &trust, &clock, &*entropy, &protocols, transport);
        let runtime = Arc::new(DriverRuntime::here());
        let quinn = quinn::Endpoint::new_with_abstract_socket(config, Some(server.clone()), socket, runtime)?;
        let (sender, accepted) = mpsc::channel(ACCEPT_QUEUE_MAX);
        let shared = Arc::new(Shared {
            quinn,
            clock,
            entropy,
            identity,
            trust,
            server,
            transport_of,
            half_open: AtomicUsize::new(0),
            counts: Mutex::default(),
        });
        tokio::spawn(accept::listen(Arc::clone(&shared), sender));
        Ok(Self { shared, accepted: tokio::sync::Mutex::new(accepted) })
    }

    /// The next connection that somebody dialled: checked, or somebody without certificate who wants to join. None when
    /// the endpoint was closed.
    pub async fn accept(&self) -> Option<Accepted> {
        self.accepted.lock().await.recv().await
    }

    /// The address that the socket is bound to.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.quinn.local_addr()
    }

    /// Closes every connection and takes no more. The peers read code and reason.
    pub fn close(&self, code: CloseCode, reason: &str) {
        let text = format!("{}: {reason}", code.word());
        self.shared.quinn.close(VarInt::from_u32(code as u32), text.as_bytes());
    }

    /// Completes when every connection has ended and told its peer so. The caller bounds the wait.
    pub async fn idle(&self) {
        self.shared.quinn.wait_idle().await;
    }

    /// What was counted so far.
    pub fn counts(&self) -> EndpointCounts {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close(CloseCode::Stopping, "this endpoint stops");
    }
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut EndpointCounts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn count_refusal(&self, code: &str) {
        /// Codes come from peers too, so that their number is bounded.
        const CODES_MAX: usize = 64;
        self.count(|counts| {
            let known = counts.refused.len() < CODES_MAX || counts.refused.contains_key(code);
            *counts.refused.entry(if known { code } else { "OTHER" }.to_owned()).or_default() += 1;
        });
    }
}

/// What every endpoint has in common, a joiner's too.
pub(crate) fn endpoint_config(entropy: &dyn Entropy, secret: &[u8; 32]) -> EndpointConfig {
    let mut config = EndpointConfig::new(reset::reset_key(secret));
    let mut seed = [0; 32];
    entropy.fill(&mut seed);
    // The fixed bit tells QUIC from channel packets on the same port.
    config.rng_seed(Some(seed)).grease_quic_bit(false);
    // Each receive buffer is as large as this: whatever a kernel joins fits.
    config.max_udp_payload_size(UDP_PAYLOAD_BYTES_MAX as u16).expect("QUIC allows up to 65,527 bytes");
    config
}

/// The certificates that the other end showed, DER, leaf first; none if it showed none.
pub(crate) fn shown_chain(quinn: &quinn::Connection) -> Vec<Vec<u8>> {
    quinn
        .peer_identity()
        .and_then(|shown| shown.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok())
        .map(|chain| chain.iter().map(|certificate| certificate.as_ref().to_vec()).collect())
        .unwrap_or_default()
}

/// What the two ends agreed to speak.
pub(crate) fn spoken(quinn: &quinn::Connection) -> Option<Protocol> {
    let data = quinn.handshake_data()?.downcast::<quinn::crypto::rustls::HandshakeData>().ok()?;
    Protocol::from_alpn(&data.protocol?)
}
