//! What is spoken on a connection, and which roles may speak it at either end.

use std::fmt;

use postroad_cluster::id::Role;
use postroad_trust::{PeerIdentity, TrustError};

/// What is spoken on a connection, as both ends agreed inside TLS (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// From anybody with a certificate to a control node: facts, snapshots, Raft.
    Control,
    /// From a node to a relay: a session.
    Relay,
    /// From a node to a node: a circuit.
    Flow,
    /// From somebody with a token and no certificate to a control node.
    Join,
}

impl Protocol {
    /// Every protocol, in order.
    pub const ALL: [Self; 4] = [Self::Control, Self::Relay, Self::Flow, Self::Join];

    /// Its name inside TLS.
    #[must_use]
    pub const fn alpn(self) -> &'static [u8] {
        self.word().as_bytes()
    }

    /// Its name as text.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Control => "postroad-control/1",
            Self::Relay => "postroad-relay/1",
            Self::Flow => "postroad-flow/1",
            Self::Join => "postroad-join/1",
        }
    }

    /// The protocol of a name inside TLS.
    #[must_use]
    pub fn from_alpn(alpn: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.alpn() == alpn)
    }

    /// Whether this peer may be the end that was dialled.
    ///
    /// # Errors
    /// [`TrustError::RoleMissing`].
    pub fn check_server(self, peer: &PeerIdentity) -> Result<(), TrustError> {
        match self {
            Self::Control | Self::Join => peer.require(Role::Control),
            Self::Relay => peer.require(Role::Relay),
            Self::Flow => require_node(peer),
        }
    }

    /// Whether this peer may be the end that dials. Joiners have no certificate, and whoever has one must not join.
    ///
    /// # Errors
    /// [`TrustError::RoleMissing`].
    pub fn check_client(self, peer: &PeerIdentity) -> Result<(), TrustError> {
        match self {
            Self::Control | Self::Join => Ok(()),
            Self::Relay | Self::Flow => require_node(peer),
        }
    }
}

/// Relays and control nodes are nodes too; an operator's certificate is none.
fn require_node(peer: &PeerIdentity) -> Result<(), TrustError> {
    if peer.roles.contains(&Role::Relay) || peer.roles.contains(&Role::Control) {
        return Ok(());
    }
    peer.require(Role::Node)
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use postroad_cluster::{id::NodeId, time::WallTime};
    use postroad_trust::{PublicKey, SigningKey};

    use super::*;

    fn peer(role: Role) -> PeerIdentity {
        let public: PublicKey = SigningKey::from_seed([1; 32]).public();
        PeerIdentity {
            cluster: "prod".parse().unwrap(),
            node: NodeId(1),
            roles: [role].into(),
            public,
            serial: "40".repeat(16).parse().unwrap(),
            issuer: public,
            expires: WallTime(2),
            starts: WallTime(1),
        }
    }

    #[test]
    fn names_lead_back_to_their_protocol() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::from_alpn(protocol.alpn()), Some(protocol));
        }
        assert_eq!(Protocol::from_alpn(b"h3"), None);
    }

    // RP-5: a relay cannot pose as a control node, an operator is no node.
    #[test]
    fn each_protocol_has_its_roles() {
        use Protocol::{Control, Flow, Join, Relay};
        let table = [
            (Role::Control, [Control, Flow, Join].as_slice(), [Control, Relay, Flow].as_slice()),
            (Role::Relay, &[Relay, Flow], &[Control, Relay, Flow]),
            (Role::Node, &[Flow], &[Control, Relay, Flow]),
            (Role::Operator, &[], &[Control]),
        ];
        for (role, server, client) in table {
            for protocol in Protocol::ALL {
                assert_eq!(protocol.check_server(&peer(role)).is_ok(), server.contains(&protocol), "{role} {protocol}");
                if protocol != Join {
                    assert_eq!(
                        protocol.check_client(&peer(role)).is_ok(),
                        client.contains(&protocol),
                        "{role} {protocol}"
                    );
                }
            }
        }
    }
}
