//! The checks inside a handshake: the peer's chain by this node's trust, or by the fingerprint that a joiner was given.

use std::{fmt, sync::PoisonError};

use postroad_cluster::{id::Name, time::WallTime};
use postroad_trust::{Anchors, Fingerprint, TrustError, verify_joined};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use super::{SharedTrust, Slot};

/// A refusal as the peer reads it: the code, then the sentence.
fn refuse(error: &TrustError) -> Error {
    Error::General(format!("{}: {error}", error.code()))
}

fn wall(now: UnixTime) -> WallTime {
    WallTime(now.as_secs().saturating_mul(1_000))
}

fn links<'a>(leaf: &'a CertificateDer<'_>, rest: &'a [CertificateDer<'_>]) -> Vec<&'a [u8]> {
    std::iter::once(leaf.as_ref()).chain(rest.iter().map(AsRef::as_ref)).collect()
}

/// Checks that the peer holds the key of its certificate; Ed25519 and nothing else.
fn check_signature(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    if signed.scheme != SignatureScheme::ED25519 {
        return Err(PeerIncompatible::NoSignatureSchemesInCommon.into());
    }
    verify_tls13_signature(message, certificate, signed, algorithms)
}

/// What both kinds of verifier say of signatures.
macro_rules! ed25519_only {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            check_signature(&self.algorithms, message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    };
}

/// Takes any peer that this node's trust takes; what it may do is checked when its protocol is known.
pub(crate) struct PeerVerifier {
    trust: SharedTrust,
    algorithms: WebPkiSupportedAlgorithms,
    refusal: Option<Slot<TrustError>>,
}

impl PeerVerifier {
    /// A verifier that leaves its refusal in `refusal`, if there is one.
    pub(crate) fn new(trust: SharedTrust, refusal: Option<Slot<TrustError>>) -> Self {
        Self { trust, algorithms: ring::default_provider().signature_verification_algorithms, refusal }
    }

    fn check(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        let Err(error) = self.trust.current().verify_chain(&links(leaf, rest), wall(now)) else { return Ok(()) };
        let refused = refuse(&error);
        if let Some(slot) = &self.refusal {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        Err(refused)
    }
}

impl fmt::Debug for PeerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerVerifier")
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, rest, now).map(|()| ServerCertVerified::assertion())
    }

    ed25519_only!();
}

impl ClientCertVerifier for PeerVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, rest, now).map(|()| ClientCertVerified::assertion())
    }

    ed25519_only!();
}

/// What a joiner's handshake found.
#[derive(Debug)]
pub(crate) enum Seen {
    /// A control node of the cluster with that fingerprint; trust in its authority.
    Trusted(Anchors),
    /// Somebody else, with the fingerprint of the authority that it showed.
    Refused { error: TrustError, shown: Option<Fingerprint> },
}

/// Takes only a control node whose authority has the fingerprint that the joiner was given.
pub(crate) struct JoinVerifier {
    fingerprint: Fingerprint,
    cluster: Option<Name>,
    algorithms: WebPkiSupportedAlgorithms,
    seen: Slot<Seen>,
}

impl JoinVerifier {
    /// A verifier that leaves what it saw in `seen`.
    pub(crate) fn new(fingerprint: Fingerprint, cluster: Option<Name>, seen: Slot<Seen>) -> Self {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Self { fingerprint, cluster, algorithms, seen }
    }
}

impl fmt::Debug for JoinVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinVerifier")
    }
}

impl ServerCertVerifier for JoinVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = links(leaf, rest);
        let (seen, result) = match verify_joined(&self.fingerprint, self.cluster.as_ref(), &chain, wall(now)) {
            Ok((_, anchors)) => (Seen::Trusted(anchors), Ok(ServerCertVerified::assertion())),
            Err(error) => {
                let refused = refuse(&error);
                // The authority comes third; what is before it says nothing to a person.
                let shown = chain.get(2).map(|der| Fingerprint::of(der));
                (Seen::Refused { error, shown }, Err(refused))
            }
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        result
    }

    ed25519_only!();
}
