//! The dialling half of an endpoint: one attempt, bounded in time, that ends with a checked peer or a reason.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    id::{NodeId, Role},
    limits::HANDSHAKE_WAIT,
    time::{Entropy, Span, WallTime},
    verified::Verified,
};
use postroad_trust::{PeerIdentity, TrustError};
use quinn::{ClientConfig, ConnectionId, TransportConfig};

use super::{Endpoint, Shared, shown_chain, spoken};
use crate::{
    connection::{
        CloseCode, Closed, Connection, Link, closed,
        housekeeping::{self, Housekeeper, Housekeeping},
    },
    tls::{self, PeerVerifier, Protocol, SERVER_NAME, Slot},
};

/// Who is expected to answer, besides what the protocol asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The node, if it is known.
    pub node: Option<NodeId>,
    /// A role that it must have.
    pub role: Role,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// The address that was dialled.
    pub address: SocketAddr,
    /// What was to be spoken.
    pub protocol: Protocol,
    /// What happened.
    pub failure: ConnectFailure,
}

/// What happened to an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// Nobody answered, or not to the end, within this time.
    TimedOut(Span),
    /// This end does not trust who answered.
    Untrusted(TrustError),
    /// Another node answered.
    OtherNode {
        /// The node that was expected.
        expected: NodeId,
        /// The node that answered.
        found: NodeId,
    },
    /// The other end refused this one, or the handshake failed.
    Closed(Closed),
    /// The address cannot be dialled, or the endpoint is closed.
    Invalid(String),
}

impl ConnectError {
    /// The code that scripts and the API rely on; a refusal's is that of the other end.
    pub fn code(&self) -> &str {
        match &self.failure {
            ConnectFailure::TimedOut(_) => "TIMED_OUT",
            ConnectFailure::Untrusted(error) => error.code(),
            ConnectFailure::OtherNode { .. } => "OTHER_NODE",
            ConnectFailure::Closed(closed) => &closed.code,
            ConnectFailure::Invalid(_) => "ADDRESS_INVALID",
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dialled {} for {}: ", self.address, self.protocol)?;
        match &self.failure {
            ConnectFailure::TimedOut(after) => write!(
                f,
                "no answer within {} ms; check that it runs and that UDP reaches this address",
                after.as_millis()
            ),
            ConnectFailure::Untrusted(error) => error.fmt(f),
            ConnectFailure::OtherNode { expected, found } => {
                write!(f, "expected {expected} and found {found}; check the advertised addresses of the two")
            }
            ConnectFailure::Closed(closed) => closed.fmt(f),
            ConnectFailure::Invalid(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for ConnectError {}

impl Endpoint {
    /// Dials a peer and waits, for [`HANDSHAKE_WAIT`] at most, until both ends have checked each other.
    ///
    /// # Errors
    /// [`ConnectError`], with the other end's reason where it refused.
    pub async fn connect(
        &self,
        address: SocketAddr,
        protocol: Protocol,
        expect: Expect,
        transport: Arc<TransportConfig>,
    ) -> Result<Connection, ConnectError> {
        let deadline = self.shared.clock.sleep_until(self.shared.clock.now().after(HANDSHAKE_WAIT));
        let outcome = tokio::select! {
            biased;
            outcome = dial(&self.shared, address, protocol, expect, transport) => outcome,
            () = deadline => Err(ConnectFailure::TimedOut(HANDSHAKE_WAIT)),
        };
        outcome.map_err(|failure| ConnectError { address, protocol, failure })
    }
}

/// The first connection id, from the entropy port.
pub(crate) fn first_ids(config: &mut ClientConfig, entropy: Arc<dyn Entropy>) {
    config.initial_dst_cid_provider(Arc::new(move || {
        let mut id = [0; 20];
        entropy.fill(&mut id);
        ConnectionId::new(&id)
    }));
}

async fn dial(
    shared: &Shared,
    address: SocketAddr,
    protocol: Protocol,
    expect: Expect,
    transport: Arc<TransportConfig>,
) -> Result<Connection, ConnectFailure> {
    let refusal: Slot<TrustError> = Arc::new(Mutex::new(None));
    let shown = shared.identity.current();
    let verifier = PeerVerifier::new(shared.trust.clone(), Some(Arc::clone(&refusal)));
    let tls = tls::client_config(Some(&shared.identity), Arc::new(verifier), &shared.clock, protocol);
    let mut config = ClientConfig::new(tls);
    config.transport_config(transport);
    first_ids(&mut config, Arc::clone(&shared.entropy));
    let connecting = shared
        .quinn
        .connect_with(config, address, SERVER_NAME)
        .map_err(|error| ConnectFailure::Invalid(error.to_string()))?;
    let failed = |error: quinn::ConnectionError| match tls::take(&refusal) {
        Some(refusal) => ConnectFailure::Untrusted(refusal),
        None => ConnectFailure::Closed(Closed::of(&error)),
    };
    let quinn = connecting.await.map_err(failed)?;
    let chain = shown_chain(&quinn);
    let wall = shared.clock.wall();
    let peer = check(shared, &quinn, protocol, expect, &chain, wall).inspect_err(|failure| {
        let (code, reason) = refusal_text(failure);
        closed::close(&quinn, &code, CloseCode::Refused, &reason);
    })?;
    let link = Link::new(quinn, protocol, peer);
    // Should this end here, the connection is closed with it.
    let connection = Connection::new(Arc::clone(&link), Arc::clone(&shared.clock));
    wait_until_taken(&link.quinn).await.map_err(ConnectFailure::Closed)?;
    let (clock, trust, identity) = (Arc::clone(&shared.clock), shared.trust.clone(), shared.identity.clone());
    tokio::spawn(Housekeeper::new(link, clock, trust, identity, shown, chain, wall).run());
    Ok(connection)
}

/// Protocol, then certificate, then role.
fn check(
    shared: &Shared,
    quinn: &quinn::Connection,
    protocol: Protocol,
    expect: Expect,
    chain: &[Vec<u8>],
    wall: WallTime,
) -> Result<Verified<PeerIdentity>, ConnectFailure> {
    if spoken(quinn) != Some(protocol) {
        return Err(ConnectFailure::Invalid(format!("who answered does not speak {protocol}")));
    }
    let verified = housekeeping::verify(&shared.trust, chain, wall).map_err(ConnectFailure::Untrusted)?;
    let peer = verified.get();
    protocol.check_server(peer).map_err(ConnectFailure::Untrusted)?;
    // Relays and control nodes are nodes; the protocol has asked for that already.
    if expect.role != Role::Node {
        peer.require(expect.role).map_err(ConnectFailure::Untrusted)?;
    }
    match expect.node {
        Some(expected) if expected != peer.node => Err(ConnectFailure::OtherNode { expected, found: peer.node }),
        _ => Ok(verified),
    }
}

fn refusal_text(failure: &ConnectFailure) -> (String, String) {
    match failure {
        ConnectFailure::Untrusted(error) => (error.code().to_owned(), error.to_string()),
        ConnectFailure::OtherNode { expected, found } => {
            ("OTHER_NODE".to_owned(), format!("dialled for {expected} and found {found}"))
        }
        _ => ("PROTOCOL".to_owned(), "what was to be spoken is not spoken".to_owned()),
    }
}

/// Inside TLS 1.3 a dialler has finished before its certificate is looked at, so that the other end says when it has.
async fn wait_until_taken(quinn: &quinn::Connection) -> Result<(), Closed> {
    let stream = quinn.accept_uni().await.map_err(|error| Closed::of(&error))?;
    match housekeeping::read(stream).await {
        Some(Housekeeping::Taken) => Ok(()),
        _ => Err(quinn.close_reason().map_or_else(
            || Closed::here("PROTOCOL", "the other end did not say that it takes the connection"),
            |error| Closed::of(&error),
        )),
    }
}
