//! Who gets a connection: every kind of wrong certificate is refused, and both ends learn why (RP-5, R12).

#[path = "support/quic.rs"]
mod support;

use std::sync::Arc;

use postroad_cluster::{
    id::{NodeId, Role},
    limits::{CERTIFICATE_LIFETIME, HANDSHAKE_WAIT},
    time::Span,
};
use postroad_transport::{
    connection::Connection,
    endpoint::{ConnectError, Expect, transport},
    tls::{Identity, Protocol, SharedIdentity},
};
use postroad_trust::SigningKey;
use support::{Node, World, accept, paused};

const RELAY: Expect = Expect { node: None, role: Role::Relay };
const CONTROL: Expect = Expect { node: None, role: Role::Control };

async fn dial(from: &Node, to: &Node, protocol: Protocol, expect: Expect) -> Result<Connection, ConnectError> {
    from.endpoint.connect(to.address, protocol, expect, transport::session()).await
}

/// A relay n1 and a node n2.
fn pair(world: &World) -> (Node, Node) {
    (world.node(1, &[Role::Relay], &[Protocol::Relay]), world.node(2, &[Role::Node], &[Protocol::Flow]))
}

fn refusals(node: &Node, code: &str) -> u64 {
    node.endpoint.counts().refused.get(code).copied().unwrap_or_default()
}

#[test]
fn two_nodes_of_one_cluster_meet() {
    paused(|| async {
        let world = World::new(1);
        let (relay, node) = pair(&world);
        let dialled = dial(&node, &relay, Protocol::Relay, RELAY).await.unwrap();
        let taken = accept(&relay).await;
        assert_eq!((dialled.node(), taken.node()), (NodeId(1), NodeId(2)));
        assert_eq!((dialled.protocol(), taken.protocol()), (Protocol::Relay, Protocol::Relay));
        assert_eq!(taken.peer().get().roles, [Role::Node].into());
        assert_eq!(dialled.exporter("a"), taken.exporter("a"));
        assert_ne!(dialled.exporter("a"), dialled.exporter("b"));
        assert_eq!(relay.endpoint.counts().accepted, 1);
    });
}

// RP-5: each of these is refused, and the dialler reads the listener's reason.
#[test]
fn a_dialler_with_a_bad_certificate_reads_why() {
    paused(|| async {
        let world = World::new(2);
        let relay = world.node(1, &[Role::Relay], &[Protocol::Relay]);
        let foreign = World::named("prod", 77, world.fabric.clone());
        let cases: Vec<(&str, Node)> = vec![
            ("CERTIFICATE_FOREIGN", {
                let node = foreign.node(2, &[Role::Node], &[]);
                node.trust.replace(world.anchors());
                node
            }),
            ("ROLE_MISSING", world.node(3, &[Role::Operator], &[])),
            ("CERTIFICATE_REVOKED", {
                let mut anchors = world.anchors();
                anchors.revoked_nodes.insert(NodeId(4));
                relay.trust.replace(anchors);
                world.node(4, &[Role::Node], &[])
            }),
        ];
        for (code, node) in cases {
            let error = dial(&node, &relay, Protocol::Relay, RELAY).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            tokio::time::sleep(Span::from_secs(1)).await;
            assert_eq!(refusals(&relay, code), 1, "{:?}", relay.endpoint.counts());
        }
        assert_eq!(relay.endpoint.counts().accepted, 0);
    });
}

#[test]
fn expired_and_early_certificates_are_refused_at_both_ends() {
    paused(|| async {
        let world = World::new(3);
        let relay = world.node(1, &[Role::Relay], &[Protocol::Relay]);
        let short = world.identity(2, &[Role::Node], Span::from_mins(1));
        let node = world.node_with(2, short, &[Protocol::Flow], transport::listener());
        tokio::time::sleep(Span::from_secs(59)).await;
        assert!(dial(&node, &relay, Protocol::Relay, RELAY).await.is_ok());
        tokio::time::sleep(Span::from_secs(1)).await;
        let error = dial(&node, &relay, Protocol::Relay, RELAY).await.unwrap_err();
        assert_eq!(error.code(), "CERTIFICATE_EXPIRED", "{error}");
        // The other way round: the dialler finds the listener's certificate expired, and the listener reads that.
        let error = dial(&relay, &node, Protocol::Flow, Expect { node: None, role: Role::Node }).await.unwrap_err();
        assert_eq!(error.code(), "CERTIFICATE_EXPIRED", "{error}");
        tokio::time::sleep(Span::from_secs(1)).await;
        assert_eq!(refusals(&node, "CERTIFICATE_EXPIRED"), 1, "{:?}", node.endpoint.counts());
        // A clock that is two hours behind: everything is from the future.
        world.clock.jump(-7_200_000);
        let error = dial(&relay, &relay, Protocol::Relay, RELAY).await.unwrap_err();
        assert_eq!(error.code(), "CERTIFICATE_NOT_YET_VALID", "{error}");
    });
}

// RP-5: a relay cannot pose as a control node.
#[test]
fn a_listener_without_the_role_is_refused_and_reads_why() {
    paused(|| async {
        let world = World::new(4);
        let relay = world.node(1, &[Role::Relay], &[Protocol::Relay, Protocol::Control]);
        let node = world.node(2, &[Role::Node], &[]);
        let error = dial(&node, &relay, Protocol::Control, CONTROL).await.unwrap_err();
        assert_eq!(error.code(), "ROLE_MISSING", "{error}");
        let taken = accept(&relay).await;
        assert_eq!(taken.closed().await.code, "ROLE_MISSING");
        let other = Expect { node: Some(NodeId(9)), role: Role::Relay };
        let error = dial(&node, &relay, Protocol::Relay, other).await.unwrap_err();
        assert_eq!(error.code(), "OTHER_NODE", "{error}");
        assert_eq!(accept(&relay).await.closed().await.code, "OTHER_NODE");
    });
}

#[test]
fn an_absent_certificate_is_refused_and_told() {
    paused(|| async {
        let world = World::new(5);
        let (relay, _node) = pair(&world);
        let closed = bare::dial(&world, &relay, b"postroad-relay/1").await;
        assert!(closed.starts_with("CERTIFICATE_ABSENT: "), "{closed}");
        let closed = bare::dial(&world, &relay, b"h3").await;
        assert!(closed.contains("alert") || closed.contains("protocol"), "{closed}");
        tokio::time::sleep(Span::from_secs(1)).await;
        assert_eq!(refusals(&relay, "CERTIFICATE_ABSENT"), 1, "{:?}", relay.endpoint.counts());
        assert_eq!(relay.endpoint.counts().accepted, 0);
    });
}

// R12: after a re-enrolment the old key is refused, here by its serial, while the new one is taken.
#[test]
fn newer_trust_and_certificates_count_at_once() {
    paused(|| async {
        let world = World::new(6);
        let (relay, node) = pair(&world);
        let old = node.identity.current().described().serial;
        let mut anchors = world.anchors();
        anchors.revoked_serials.insert(old);
        relay.trust.replace(anchors);
        let error = dial(&node, &relay, Protocol::Relay, RELAY).await.unwrap_err();
        assert_eq!(error.code(), "CERTIFICATE_REVOKED", "{error}");
        node.identity.replace(world.identity(2, &[Role::Node], CERTIFICATE_LIFETIME));
        let dialled = dial(&node, &relay, Protocol::Relay, RELAY).await.unwrap();
        assert_eq!(accept(&relay).await.peer().get().serial, node.identity.current().described().serial);
        drop(dialled);
    });
}

#[test]
fn an_identity_needs_its_own_key_and_a_known_authority() {
    paused(|| async {
        let world = World::new(7);
        let chain = world.identity(2, &[Role::Node], CERTIFICATE_LIFETIME).chain().to_vec();
        let stranger = SigningKey::generate(&*world.entropy);
        let error = Identity::new(chain, stranger, &world.anchors()).unwrap_err();
        assert_eq!(error.code(), "CERTIFICATE_MALFORMED");
        let other = World::named("prod", 8, world.fabric.clone());
        let (key, theirs) = {
            let identity = other.identity(2, &[Role::Node], CERTIFICATE_LIFETIME);
            (identity.key().clone(), identity.chain().to_vec())
        };
        assert_eq!(Identity::new(theirs, key, &world.anchors()).unwrap_err().code(), "CERTIFICATE_FOREIGN");
        let debug = format!("{:?}", SharedIdentity::new(world.identity(2, &[Role::Node], CERTIFICATE_LIFETIME)));
        assert!(debug.contains("NodeId(2)") && !debug.contains("seed"), "{debug}");
    });
}

#[test]
fn nobody_there_is_a_bounded_wait() {
    paused(|| async {
        let world = World::new(9);
        let (relay, node) = pair(&world);
        world.fabric.cut(relay.address);
        let begin = tokio::time::Instant::now();
        let error = dial(&node, &relay, Protocol::Relay, RELAY).await.unwrap_err();
        // Whichever is shorter: the session's idle timeout or the handshake's bound.
        assert!(["TIMED_OUT", "SILENT"].contains(&error.code()), "{error}");
        assert!(begin.elapsed() <= HANDSHAKE_WAIT);
        assert!(error.to_string().contains("10.0.0.1:9443"), "{error}");
    });
}

// A flood of first packets is asked to show its addresses, and honest diallers still get through.
#[test]
fn half_open_handshakes_are_bounded() {
    paused(|| async {
        let world = World::new(10);
        let (relay, node) = pair(&world);
        let flood = bare::flood(&world, &relay, 150);
        tokio::time::sleep(Span::from_millis(100)).await;
        assert!(relay.endpoint.counts().retried >= 50, "{:?}", relay.endpoint.counts());
        let dialled = dial(&node, &relay, Protocol::Relay, RELAY).await;
        assert!(dialled.is_ok(), "{:?}", dialled.err());
        drop(flood);
        tokio::time::sleep(HANDSHAKE_WAIT).await;
        assert_eq!(relay.endpoint.counts().ignored, 0);
    });
}

/// A client that is none of ours: no certificate, any protocol, no check of the server.
mod bare {
    use rustls::{
        DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        pki_types::{CertificateDer, ServerName, UnixTime},
    };

    use super::{Arc, Node, World};

    #[derive(Debug)]
    struct Anybody;

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    }

    fn config(alpn: &[u8]) -> quinn::ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        tls.alpn_protocols = vec![alpn.to_vec()];
        quinn::ClientConfig::new(Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap()))
    }

    fn endpoint(world: &World, address: &str) -> quinn::Endpoint {
        let mut config = quinn::EndpointConfig::default();
        config.rng_seed(Some([9; 32])).grease_quic_bit(false);
        let socket = world.fabric.bind(address);
        quinn::Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(quinn::TokioRuntime)).unwrap()
    }

    /// Dials without certificate and returns what the connection ends with.
    pub(super) async fn dial(world: &World, to: &Node, alpn: &[u8]) -> String {
        let endpoint = endpoint(world, "10.0.9.1:1");
        let error = match endpoint.connect_with(config(alpn), to.address, "x").unwrap().await {
            Ok(connection) => connection.closed().await,
            Err(error) => error,
        };
        match error {
            quinn::ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
            other => other.to_string(),
        }
    }

    /// Begins handshakes whose answers never arrive, so that they stay half open.
    pub(super) fn flood(world: &World, to: &Node, number: usize) -> (quinn::Endpoint, Vec<quinn::Connecting>) {
        let endpoint = endpoint(world, "10.0.9.2:1");
        let begun = (0..number).map(|_| endpoint.connect_with(config(b"postroad-relay/1"), to.address, "x").unwrap());
        let begun = begun.collect();
        let (fabric, address) = (world.fabric.clone(), "10.0.9.2:1".parse().unwrap());
        // Its packets are on their way at 0 ms and arrive at 5 ms; the answers arrive at 10 ms.
        tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(7)).await;
            fabric.cut(address);
        });
        (endpoint, begun)
    }
}
