//! Certificates that end, are renewed or are revoked while a connection is open. It speaks on one-way streams, so that
//! it is the same on every protocol.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
};

use postroad_cluster::{
    limits::{CERTIFICATE_BYTES_MAX, CERTIFICATE_CHAIN_MAX, HOUSEKEEPING_WAIT},
    time::{Clock, Moment, WallTime},
    verified::Verified,
    wire::{self, Message},
};
use postroad_trust::{Anchors, PeerIdentity, Signed, TrustError};
use quinn::{RecvStream, Side};
use serde::{Deserialize, Serialize};

use super::{CloseCode, Link, count};
use crate::tls::{Identity, SharedIdentity, SharedTrust};

/// What the two ends of a connection tell each other besides their protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Housekeeping {
    /// The end that was dialled has taken the dialler: inside TLS a dialler does not learn that.
    Taken,
    /// The sender has a new certificate.
    Renewed {
        /// Its chain, DER, leaf first.
        chain: Vec<Vec<u8>>,
        /// The new key's signature over this connection's exporter.
        proof: Signed,
    },
}

impl Message for Housekeeping {
    const WHAT: &'static str = "housekeeping message";
}

/// The largest such message: a chain, a signature and what frames them.
const HOUSEKEEPING_BYTES_MAX: usize = CERTIFICATE_CHAIN_MAX * CERTIFICATE_BYTES_MAX + 1024;

/// The purpose of the signature.
const PROOF_CONTEXT: &str = "postroad renewed certificate";

/// The label of the exporter that is signed.
const PROOF_LABEL: &str = "EXPORTER-postroad-renewed-certificate";

/// A peer's chain and when it was checked: later checks look at what was revoked since, not at a clock that jumped.
struct Checked {
    chain: Vec<Vec<u8>>,
    wall: WallTime,
    expires: Moment,
}

/// The housekeeping of one connection, a task as long as the connection.
pub(crate) struct Housekeeper {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    trust: SharedTrust,
    identity: SharedIdentity,
    /// The certificate that the peer knows.
    shown: Arc<Identity>,
    checked: Checked,
    /// What it was checked against; none before the first check.
    checked_by: Option<Arc<Anchors>>,
    /// A proof whose chain is not trusted yet, usually since this node's snapshot is older than it.
    waiting: Option<Vec<Vec<u8>>>,
}

type Reading = Pin<Box<dyn Future<Output = Option<Housekeeping>> + Send>>;

/// The chain of a handshake, checked by `trust` as of now.
pub(crate) fn verify(
    trust: &SharedTrust,
    chain: &[Vec<u8>],
    wall: WallTime,
) -> Result<Verified<PeerIdentity>, TrustError> {
    let links: Vec<&[u8]> = chain.iter().map(Vec::as_slice).collect();
    trust.current().verify_chain(&links, wall)
}

impl Housekeeper {
    /// Keeps `link` in order, whose peer showed `chain` at `wall` and was shown `shown`.
    pub(crate) fn new(
        link: Arc<Link>,
        clock: Arc<dyn Clock>,
        trust: SharedTrust,
        identity: SharedIdentity,
        shown: Arc<Identity>,
        chain: Vec<Vec<u8>>,
        wall: WallTime,
    ) -> Self {
        let expires = clock.now().after(link.peer().get().expires.since(wall));
        let checked = Checked { chain, wall, expires };
        Self { link, clock, trust, identity, shown, checked, checked_by: None, waiting: None }
    }

    /// Runs until the connection ends.
    pub(crate) async fn run(mut self) {
        let mut reading: Option<Reading> = None;
        let quinn = self.link.quinn.clone();
        let (trust, identity) = (self.trust.clone(), self.identity.clone());
        while quinn.close_reason().is_none() {
            // Asked for before the values are looked at, so that no change falls between.
            let (trust_changed, identity_changed) = (trust.changed(), identity.changed());
            self.recheck();
            self.prove();
            let (expiry, expires) = (self.clock.sleep_until(self.checked.expires), self.checked.expires);
            let idle = reading.is_none();
            tokio::select! {
                biased;
                _ = quinn.closed() => return,
                () = trust_changed => {}
                () = identity_changed => {}
                () = expiry => self.expire(expires),
                message = next(&mut reading) => {
                    reading = None;
                    self.take(message);
                }
                stream = quinn.accept_uni(), if idle => {
                    let Ok(stream) = stream else { return };
                    reading = Some(Box::pin(read_within(stream, Arc::clone(&self.clock))));
                }
            }
        }
    }

    /// Ends the connection if the peer's certificate does not count any more. Most snapshots change no trust, and a
    /// relay has thousands of connections: the same trust is not asked twice.
    fn recheck(&mut self) {
        let trust = self.trust.current();
        if self.checked_by.as_ref().is_some_and(|before| *before == trust) {
            return;
        }
        self.checked_by = Some(trust);
        if let Some(chain) = self.waiting.take() {
            self.extend(chain);
        }
        let Err(error) = verify(&self.trust, &self.checked.chain, self.checked.wall) else { return };
        self.link.close(error.code(), CloseCode::CertificateRevoked, &error.to_string());
    }

    fn expire(&mut self, expired: Moment) {
        if let Some(chain) = self.waiting.take() {
            self.extend(chain);
        }
        if self.checked.expires <= expired {
            let reason = "the certificate has ended and no newer one was proved; renew it, then connect again";
            self.link.close("CERTIFICATE_EXPIRED", CloseCode::CertificateExpired, reason);
        }
    }

    /// Proves this node's certificate where it is newer than what the peer knows.
    fn prove(&mut self) {
        let current = self.identity.current();
        if Arc::ptr_eq(&current, &self.shown) {
            return;
        }
        let content = self.statement(self.link.quinn.side());
        let proof = Signed::sign(current.key(), current.described().node, PROOF_CONTEXT, content);
        let message = Housekeeping::Renewed { chain: current.chain().to_vec(), proof };
        self.shown = current;
        tokio::spawn(tell(self.link.quinn.clone(), message));
    }

    /// What a side signs: bound to this connection and to that side, so that it is worth nothing elsewhere.
    fn statement(&self, side: Side) -> Vec<u8> {
        let context: &[u8] = if side == Side::Client { b"client" } else { b"server" };
        self.link.exporter(PROOF_LABEL, context).to_vec()
    }

    fn take(&mut self, message: Option<Housekeeping>) {
        match message {
            // Only a dialler is told so, and only before its housekeeping begins.
            Some(Housekeeping::Taken) => {}
            Some(Housekeeping::Renewed { chain, proof }) => self.renew(chain, &proof),
            None => {
                self.link.close("PROTOCOL", CloseCode::Protocol, "a one-way stream carried no housekeeping message");
            }
        }
    }

    fn renew(&mut self, chain: Vec<Vec<u8>>, proof: &Signed) {
        if let Err(error) = self.check_proof(&chain, proof) {
            self.link.close(
                error.code(),
                CloseCode::Refused,
                &format!("a renewed certificate was not proved: {error}"),
            );
        } else {
            count(&self.link.counters.proofs);
            self.extend(chain);
        }
    }

    /// Whether the sender holds the key that the chain is about, and says that it is the same node.
    fn check_proof(&self, chain: &[Vec<u8>], proof: &Signed) -> Result<(), TrustError> {
        let links: Vec<&[u8]> = chain.iter().map(Vec::as_slice).collect();
        let claimed = postroad_trust::read_identity(&links)?;
        let node = self.link.peer().get().node;
        proof.verify(PROOF_CONTEXT, &|signer, key| signer == node && claimed.node == node && *key == claimed.public)?;
        let expected = self.statement(!self.link.quinn.side());
        if proof.content == expected { Ok(()) } else { Err(TrustError::SignatureInvalid) }
    }

    /// Takes over a proved chain if it is trusted, else keeps it until this node's trust changes.
    fn extend(&mut self, chain: Vec<Vec<u8>>) {
        let wall = self.clock.wall();
        match verify(&self.trust, &chain, wall).and_then(|peer| self.check_role(peer.get()).map(|()| peer)) {
            Ok(peer) => {
                let expires = self.clock.now().after(peer.get().expires.since(wall));
                self.checked = Checked { chain, wall, expires };
                self.link.set_peer(peer);
            }
            Err(error) => {
                tracing::warn!(peer = self.link.peer_text(), %error, "a renewed certificate is not trusted yet");
                self.waiting = Some(chain);
            }
        }
    }

    fn check_role(&self, peer: &PeerIdentity) -> Result<(), TrustError> {
        if self.link.quinn.side() == Side::Client {
            self.link.protocol.check_server(peer)
        } else {
            self.link.protocol.check_client(peer)
        }
    }
}

/// The message that is being read; never, if none is.
async fn next(reading: &mut Option<Reading>) -> Option<Housekeeping> {
    match reading {
        Some(reading) => reading.await,
        None => pending().await,
    }
}

async fn read_within(stream: RecvStream, clock: Arc<dyn Clock>) -> Option<Housekeeping> {
    let deadline = clock.sleep_until(clock.now().after(HOUSEKEEPING_WAIT));
    tokio::select! {
        biased;
        message = read(stream) => message,
        () = deadline => None,
    }
}

/// Reads one message; none if it is none.
pub(crate) async fn read(mut stream: RecvStream) -> Option<Housekeeping> {
    let bytes = stream.read_to_end(HOUSEKEEPING_BYTES_MAX).await.ok()?;
    wire::decode(&bytes).ok()
}

/// Sends one message; a connection that ends meanwhile has no use for it.
pub(crate) async fn tell(quinn: quinn::Connection, message: Housekeeping) {
    let Ok(mut stream) = quinn.open_uni().await else { return };
    if stream.write_all(&wire::encode(&message)).await.is_ok() {
        let _ = stream.finish();
    }
}
