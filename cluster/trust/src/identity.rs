//! What a certificate says about a node: who it is, in which cluster, what it may be, and for how long.

use core::fmt;
use std::{collections::BTreeSet, str::FromStr};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use postroad_cluster::{
    id::{Name, NodeId, Role},
    time::{Entropy, WallTime},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    PublicKey, TrustError,
    certificate::read::{self, IssuerCertificate, Leaf},
    error::Place,
    key::hex_bytes,
};

hex_bytes!(/// The serial number of a certificate, drawn by its issuer.
    Serial, 16, "serial number");

impl Serial {
    /// Draws a serial. Its first byte is 0x40 to 0x7f, so that DER writes each with the same length.
    pub(crate) fn draw(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 16];
        entropy.fill(&mut bytes);
        bytes[0] = bytes[0] & 0x3f | 0x40;
        Self(bytes)
    }
}

/// A node as its certificate describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerIdentity {
    /// The cluster it belongs to.
    pub cluster: Name,
    /// The node.
    pub node: NodeId,
    /// What it may be; never empty.
    pub roles: BTreeSet<Role>,
    /// The key that its certificate is about.
    pub public: PublicKey,
    /// The serial of its certificate.
    pub serial: Serial,
    /// The key that issued its certificate.
    pub issuer: PublicKey,
    /// When the chain ends, in whole seconds: with its first certificate that does.
    pub expires: WallTime,
    /// When the chain begins, in whole seconds: with its last certificate that does.
    pub starts: WallTime,
}

impl PeerIdentity {
    /// Checks that the node may be `role`.
    ///
    /// # Errors
    /// [`TrustError::RoleMissing`].
    pub fn require(&self, role: Role) -> Result<(), TrustError> {
        if self.roles.contains(&role) {
            return Ok(());
        }
        Err(TrustError::RoleMissing { node: self.node, needed: role, found: self.roles.clone() })
    }

    pub(crate) fn assemble(leaf: &Leaf, issuer: &IssuerCertificate) -> Self {
        Self {
            cluster: leaf.cluster.clone(),
            node: leaf.node,
            roles: leaf.roles.clone(),
            public: leaf.public,
            serial: leaf.serial,
            issuer: issuer.public,
            expires: leaf.window.expires.min(issuer.window.expires),
            starts: leaf.window.starts.max(issuer.window.starts),
        }
    }
}

/// Reads a chain, leaf first, *without checking anything it claims*: for display, for messages, and for a node that
/// looks at its own certificate. `starts` and `expires` regard leaf and issuer only.
///
/// # Errors
/// [`TrustError::ChainLength`] and the errors of a certificate that is none of ours.
pub fn read_identity(chain: &[&[u8]]) -> Result<PeerIdentity, TrustError> {
    read::check_bounds(chain)?;
    let leaf = read::leaf(chain[0])?;
    let Some(issuer) = chain.get(1) else {
        return Err(TrustError::CertificateMalformed { place: Place::Issuer, reason: "it is not in the chain" });
    };
    Ok(PeerIdentity::assemble(&leaf, &read::issuer(issuer)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{World, refs};

    #[test]
    fn a_chain_is_read_without_trust() {
        let world = World::new(1);
        let chain = world.issue(7, &[Role::Node, Role::Relay]);
        let identity = read_identity(&refs(&chain)).unwrap();
        assert_eq!(identity.node, NodeId(7));
        assert_eq!(identity.roles, BTreeSet::from([Role::Relay, Role::Node]));
        assert_eq!(identity.issuer, world.issuer.public());
        assert_eq!(identity.require(Role::Relay), Ok(()));
        assert_eq!(identity.require(Role::Control).unwrap_err().code(), "ROLE_MISSING");
        let text = serde_json::to_string(&identity).unwrap();
        assert_eq!(serde_json::from_str::<PeerIdentity>(&text).unwrap(), identity);
    }

    #[test]
    fn half_a_chain_is_no_identity() {
        let world = World::new(1);
        let chain = world.issue(7, &[Role::Node]);
        assert_eq!(read_identity(&[]).unwrap_err().code(), "CERTIFICATE_CHAIN_LENGTH");
        assert_eq!(read_identity(&[&chain[0]]).unwrap_err().code(), "CERTIFICATE_MALFORMED");
        assert_eq!(read_identity(&[&chain[1], &chain[0]]).unwrap_err().code(), "CERTIFICATE_ISSUER_FLAG");
    }
}
