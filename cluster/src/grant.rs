//! Grants: signed permissions to register an endpoint or to open tunnels, and how long they live.

use serde::{Deserialize, Serialize};

use crate::{
    command::PublicKeyBytes,
    id::{Generation, LinkId, Name, NodeId},
    time::{Span, WallTime},
};

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Right {
    /// To register the endpoint of a link.
    Register,
    /// To open tunnels on a link.
    Open,
}

/// A permission, as signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The cluster.
    pub cluster: Name,
    /// The link.
    pub link: LinkId,
    /// The generation of its route.
    pub generation: Generation,
    /// Who may use the grant.
    pub holder: NodeId,
    /// The node at the other end: the target for [`Right::Open`], the holder itself for [`Right::Register`].
    pub target: NodeId,
    /// What it allows.
    pub right: Right,
    /// From when.
    pub issued: WallTime,
    /// Until when.
    pub expires: WallTime,
}

/// A grant with its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedGrant {
    /// The encoded [`Grant`].
    pub grant: Vec<u8>,
    /// The control node that signed.
    pub signer: NodeId,
    /// Its snapshot key; the verifier trusts it only as part of its own snapshot.
    pub key: PublicKeyBytes,
    /// The Ed25519 signature over the grant.
    pub signature: Vec<u8>,
}

/// How long a pool member's grant lives: the configured lifetime, or a third more than the policy's lease (RP-24,
/// RP-26), whichever is more.
#[must_use]
pub fn lifetime(configured: Span, policy_lease: Span) -> Span {
    configured.max(policy_lease + policy_lease / 3)
}

/// How old grants may get before they are issued again, so that a quarter more than the policy's lease is always left.
#[must_use]
pub fn renewal_age(configured: Span, policy_lease: Span) -> Span {
    lifetime(configured, policy_lease).saturating_sub(policy_lease + policy_lease / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    // RP-24, RP-26: 96 h for the defaults, 224 h at the ceiling.
    #[test]
    fn grants_outlive_the_policy_lease_by_a_third() {
        let hours = |hours: u64| Span::from_secs(hours * 3_600);
        assert_eq!(lifetime(hours(4), hours(72)), hours(96));
        assert_eq!(lifetime(hours(4), hours(168)), hours(224));
        assert_eq!(lifetime(hours(4), hours(1)), hours(4));
        assert_eq!(renewal_age(hours(4), hours(72)), hours(6));
    }
}
