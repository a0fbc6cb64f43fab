//! TLS 1.3 with Ed25519 certificates at both ends: whom a handshake trusts, and what this node shows of itself.
//!
//! - [`protocol`]: what is spoken on a connection, and which roles may speak it
//! - [`shared`]: this node's certificate and its trust, replaced while connections use them
//! - `verifier`: the checks inside a handshake

pub mod protocol;
pub mod shared;
mod verifier;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use postroad_cluster::time::{Clock, Span};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    ClientConfig, ServerConfig,
    client::{ResolvesClientCert, Resumption, danger::ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::UnixTime,
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    time_provider::TimeProvider,
};

pub use protocol::Protocol;
pub use shared::{Identity, Shared, SharedIdentity, SharedTrust};
pub(crate) use verifier::{JoinVerifier, PeerVerifier, Seen};

/// What a verifier leaves for whoever asked for the handshake: rustls carries only text.
pub(crate) type Slot<T> = Arc<Mutex<Option<T>>>;

/// Takes what a verifier left.
pub(crate) fn take<T>(slot: &Slot<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The name that clients ask for. No certificate names it: who answers is checked by cluster, node and role instead.
pub(crate) const SERVER_NAME: &str = "postroad.internal";

/// One suite, one key exchange: less to agree on, and handshakes of one length.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    })
}

/// The clock port as rustls asks for it.
struct ClockTime(Arc<dyn Clock>);

impl fmt::Debug for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockTime")
    }
}

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Span::from_millis(self.0.wall().0)))
    }
}

/// This node's certificate as of now, for each handshake anew.
#[derive(Debug)]
struct OwnCertificate(SharedIdentity);

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let joins = hello.alpn().is_some_and(|mut offered| offered.any(|one| one == Protocol::Join.alpn()));
        let identity = self.0.current();
        Some(if joins { identity.with_authority() } else { identity.certified() })
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// What a listener says: a client may stay without certificate until its protocol is known.
pub(crate) fn server_config(
    identity: &SharedIdentity,
    trust: &SharedTrust,
    clock: &Arc<dyn Clock>,
    protocols: &[Protocol],
) -> Arc<QuicServerConfig> {
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(ClockTime(Arc::clone(clock))))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has a suite of TLS 1.3")
        .with_client_cert_verifier(Arc::new(PeerVerifier::new(trust.clone(), None)))
        .with_cert_resolver(Arc::new(OwnCertificate(identity.clone())));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.alpn().to_vec()).collect();
    // A resumed chain is not verified again, and early data can be replayed.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Arc::new(QuicServerConfig::try_from(config).expect("the provider has the suite of QUIC's first packets"))
}

/// What a dialler says; a joiner has no identity yet.
pub(crate) fn client_config(
    identity: Option<&SharedIdentity>,
    verifier: Arc<dyn ServerCertVerifier>,
    clock: &Arc<dyn Clock>,
    protocol: Protocol,
) -> Arc<QuicClientConfig> {
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(ClockTime(Arc::clone(clock))))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has a suite of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(OwnCertificate(identity.clone()))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.alpn().to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Arc::new(QuicClientConfig::try_from(config).expect("the provider has the suite of QUIC's first packets"))
}
