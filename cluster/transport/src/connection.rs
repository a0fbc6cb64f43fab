//! One QUIC connection to a verified peer: who it is, how it ends, and the keys that both ends share.
//!
//! - [`call`]: typed requests to the peer
//! - [`serve`]: answers to its requests
//! - [`closed`]: why a connection has ended
//! - `housekeeping`: certificates that end or are revoked while the connection is open
//! - `frame`: messages on streams

pub mod call;
pub mod closed;
pub(crate) mod frame;
pub(crate) mod housekeeping;
pub mod serve;

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use postroad_cluster::{
    id::{Name, NodeId},
    limits::CALLS_PER_PEER_MAX,
    time::Clock,
    verified::Verified,
};
use postroad_trust::PeerIdentity;
use tokio::sync::Semaphore;

pub use call::{CallError, CallFailure};
pub use closed::{CloseCode, Closed};

use crate::tls::Protocol;

/// An open connection to a peer whose protocol, certificate and role were checked. Clones are the same connection; it
/// is closed when the last one goes.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    calls: Arc<Semaphore>,
}

/// The part of a connection that its housekeeping shares; it does not keep the connection open.
pub(crate) struct Link {
    pub(crate) quinn: quinn::Connection,
    protocol: Protocol,
    peer: RwLock<Arc<Verified<PeerIdentity>>>,
    name: OnceLock<Name>,
    counters: Counters,
    closed_here: OnceLock<Closed>,
}

#[derive(Default)]
struct Counters {
    calls: AtomicU64,
    calls_failed: AtomicU64,
    served: AtomicU64,
    malformed: AtomicU64,
    abandoned: AtomicU64,
    proofs: AtomicU64,
}

/// What a connection has counted since it opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Requests sent.
    pub calls: u64,
    /// Of these, how many got no answer.
    pub calls_failed: u64,
    /// The peer's requests that were answered.
    pub served: u64,
    /// The peer's requests that were no messages.
    pub malformed: u64,
    /// The peer's requests whose caller no longer waited.
    pub abandoned: u64,
    /// Renewed certificates that the peer proved.
    pub proofs: u64,
}

impl Connection {
    pub(crate) fn new(link: Arc<Link>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { link, clock, calls: Arc::new(Semaphore::new(CALLS_PER_PEER_MAX)) }))
    }

    /// Who is at the other end, as its newest proved certificate says. The node never changes, its roles may.
    pub fn peer(&self) -> Arc<Verified<PeerIdentity>> {
        self.link().peer()
    }

    /// The node at the other end.
    pub fn node(&self) -> NodeId {
        self.peer().get().node
    }

    /// Tells the peer's name, for errors; the first one counts.
    pub fn name_peer(&self, name: Name) {
        let _ = self.link().name.set(name);
    }

    /// The peer as people know it: `n3 (fra)`.
    pub fn peer_text(&self) -> String {
        self.link().peer_text()
    }

    /// What is spoken.
    pub fn protocol(&self) -> Protocol {
        self.link().protocol
    }

    /// The peer's address; it changes when the peer moves.
    pub fn remote_address(&self) -> SocketAddr {
        self.quinn().remote_address()
    }

    /// Completes when the connection has ended.
    pub async fn closed(&self) -> Closed {
        let error = self.quinn().closed().await;
        self.link().closed_for(&error)
    }

    /// Why it has ended, if it has.
    pub fn close_reason(&self) -> Option<Closed> {
        self.quinn().close_reason().map(|error| self.link().closed_for(&error))
    }

    /// Ends the connection; the peer reads code and reason, unless the network loses them. The first close counts.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.link().close(code.word(), code, reason);
    }

    /// 32 bytes that both ends of this connection can compute and nobody else, different for each label.
    pub fn exporter(&self, label: &str) -> [u8; 32] {
        self.link().exporter(label, &[])
    }

    /// What was counted so far.
    pub fn counts(&self) -> ConnectionCounts {
        let counters = &self.link().counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConnectionCounts {
            calls: read(&counters.calls),
            calls_failed: read(&counters.calls_failed),
            served: read(&counters.served),
            malformed: read(&counters.malformed),
            abandoned: read(&counters.abandoned),
            proofs: read(&counters.proofs),
        }
    }

    /// The connection below, for circuits: their streams are flows and no messages. Its one-way streams are taken: they
    /// carry the proofs of renewed certificates.
    pub fn quinn(&self) -> &quinn::Connection {
        &self.link().quinn
    }

    fn link(&self) -> &Link {
        &self.0.link
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} with {})", self.protocol(), self.peer_text())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.close(CloseCode::Done.word(), CloseCode::Done, "not needed any more");
    }
}

impl Link {
    pub(crate) fn new(quinn: quinn::Connection, protocol: Protocol, peer: Verified<PeerIdentity>) -> Arc<Self> {
        Arc::new(Self {
            quinn,
            protocol,
            peer: RwLock::new(Arc::new(peer)),
            name: OnceLock::new(),
            counters: Counters::default(),
            closed_here: OnceLock::new(),
        })
    }

    fn peer(&self) -> Arc<Verified<PeerIdentity>> {
        Arc::clone(&self.peer.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_peer(&self, peer: Verified<PeerIdentity>) {
        *self.peer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(peer);
    }

    fn peer_text(&self) -> String {
        let node = self.peer().get().node;
        self.name.get().map_or_else(|| node.to_string(), |name| format!("{node} ({name})"))
    }

    /// Ends the connection for `word`, which is the code's or that of the error behind it.
    pub(crate) fn close(&self, word: &str, code: CloseCode, reason: &str) {
        // quinn would put this close over the peer's, and whoever still reads would not learn why the peer has closed.
        if self.quinn.close_reason().is_some() {
            return;
        }
        let _ = self.closed_here.set(Closed::here(word, reason));
        closed::close(&self.quinn, word, code, reason);
    }

    fn closed_for(&self, error: &quinn::ConnectionError) -> Closed {
        match (error, self.closed_here.get()) {
            (quinn::ConnectionError::LocallyClosed, Some(closed)) => closed.clone(),
            _ => Closed::of(error),
        }
    }

    fn exporter(&self, label: &str, context: &[u8]) -> [u8; 32] {
        exporter(&self.quinn, label, context)
    }
}

/// 32 bytes of a connection's exporter.
pub(crate) fn exporter(quinn: &quinn::Connection, label: &str, context: &[u8]) -> [u8; 32] {
    let mut output = [0; 32];
    quinn
        .export_keying_material(&mut output, label.as_bytes(), context)
        .expect("a finished TLS 1.3 handshake exports 32 bytes");
    output
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
