//! Grants: signed permissions to register an endpoint or to open tunnels, and how long they live.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    command::{PublicKeyBytes, Refusal, code},
    id::{Generation, LinkId, Name, NodeId},
    limits::CERTIFICATE_EARLY,
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

/// What a grant is presented for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use<'a> {
    /// The cluster of whoever checks.
    pub cluster: &'a Name,
    /// The link.
    pub link: LinkId,
    /// The generation of its route.
    pub generation: Generation,
    /// Who presents the grant, by its certificate.
    pub holder: NodeId,
    /// The target node of the link, as whoever checks knows it.
    pub target: NodeId,
    /// What is asked for.
    pub right: Right,
    /// The time.
    pub now: WallTime,
}

/// Why a grant does not allow what it is presented for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantRefusal {
    /// It is another cluster's.
    Cluster,
    /// It is for another link.
    Link {
        /// The link of the grant.
        granted: LinkId,
    },
    /// It is for another generation of the route.
    Generation {
        /// The generation of the grant.
        granted: Generation,
    },
    /// It is another node's.
    Holder {
        /// The node of the grant.
        granted: NodeId,
    },
    /// It leads to another target node.
    Target {
        /// The target of the grant.
        granted: NodeId,
    },
    /// It allows something else.
    Right {
        /// What the grant allows.
        granted: Right,
    },
    /// It has not begun, by more than clocks may be apart.
    Early,
    /// It has ended.
    Expired,
}

impl GrantRefusal {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Early => code::GRANT_EARLY,
            Self::Expired => code::GRANT_EXPIRED,
            _ => code::POLICY_MISMATCH,
        }
    }
}

// RP-62: the words "does not match policy" are stable.
impl fmt::Display for GrantRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("the grant does not match policy: it is another cluster's"),
            Self::Link { granted } => write!(f, "the grant does not match policy: it is for {granted}"),
            Self::Generation { granted } => {
                write!(f, "the grant does not match policy: it is for generation {granted} of the route")
            }
            Self::Holder { granted } => write!(f, "the grant does not match policy: it was given to {granted}"),
            Self::Target { granted } => write!(f, "the grant does not match policy: it leads to {granted}"),
            Self::Right { granted: Right::Open } => {
                f.write_str("the grant does not match policy: it allows to open tunnels, not to register")
            }
            Self::Right { granted: Right::Register } => {
                f.write_str("the grant does not match policy: it allows to register, not to open tunnels")
            }
            Self::Early => f.write_str("the grant's time has not begun"),
            Self::Expired => f.write_str("the grant's time has ended"),
        }
    }
}

impl std::error::Error for GrantRefusal {}

impl From<GrantRefusal> for Refusal {
    fn from(refusal: GrantRefusal) -> Self {
        let hint = match refusal {
            GrantRefusal::Early | GrantRefusal::Expired => {
                "Check the clocks and whether the node reaches a control node: postroad status"
            }
            _ => "The link was changed or deleted, or the node's snapshot is old: postroad why link NAME",
        };
        Self::new(refusal.code(), refusal.to_string(), hint)
    }
}

/// Whether a grant with a good signature allows this use, now. Relays and target nodes check by this same rule.
///
/// # Errors
/// The first thing that does not fit.
pub fn check(grant: &Grant, wanted: &Use<'_>) -> Result<(), GrantRefusal> {
    let unfit = |fits: bool, refusal: GrantRefusal| if fits { Ok(()) } else { Err(refusal) };
    unfit(grant.cluster == *wanted.cluster, GrantRefusal::Cluster)?;
    unfit(grant.link == wanted.link, GrantRefusal::Link { granted: grant.link })?;
    unfit(grant.right == wanted.right, GrantRefusal::Right { granted: grant.right })?;
    unfit(grant.holder == wanted.holder, GrantRefusal::Holder { granted: grant.holder })?;
    unfit(grant.generation == wanted.generation, GrantRefusal::Generation { granted: grant.generation })?;
    unfit(grant.target == wanted.target, GrantRefusal::Target { granted: grant.target })?;
    unfit(grant.issued <= wanted.now.after(CERTIFICATE_EARLY), GrantRefusal::Early)?;
    unfit(wanted.now < grant.expires, GrantRefusal::Expired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_allows_what_it_says_and_nothing_else() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let (harbour, other) = (name("harbour"), name("other"));
        let hour = WallTime(3_600_000);
        let grant = Grant {
            cluster: harbour.clone(),
            link: LinkId(1),
            generation: Generation(2),
            holder: NodeId(3),
            target: NodeId(4),
            right: Right::Open,
            issued: hour,
            expires: WallTime(2 * hour.0),
        };
        let fit = Use {
            cluster: &harbour,
            link: LinkId(1),
            generation: Generation(2),
            holder: NodeId(3),
            target: NodeId(4),
            right: Right::Open,
            now: hour,
        };
        assert_eq!(check(&grant, &fit), Ok(()));
        let code = |wanted: Use<'_>| check(&grant, &wanted).unwrap_err().code();
        assert_eq!(code(Use { cluster: &other, ..fit }), code::POLICY_MISMATCH);
        assert_eq!(code(Use { link: LinkId(2), ..fit }), code::POLICY_MISMATCH);
        assert_eq!(code(Use { generation: Generation(3), ..fit }), code::POLICY_MISMATCH);
        assert_eq!(code(Use { holder: NodeId(4), ..fit }), code::POLICY_MISMATCH);
        assert_eq!(code(Use { target: NodeId(3), ..fit }), code::POLICY_MISMATCH);
        assert_eq!(code(Use { right: Right::Register, ..fit }), code::POLICY_MISMATCH);
        // RP-62: words that stay.
        assert!(GrantRefusal::Cluster.to_string().contains("does not match policy"));
        // To the millisecond; an hour early is what clocks may be apart.
        assert_eq!(check(&grant, &Use { now: WallTime(2 * hour.0 - 1), ..fit }), Ok(()));
        assert_eq!(code(Use { now: WallTime(2 * hour.0), ..fit }), code::GRANT_EXPIRED);
        assert_eq!(check(&grant, &Use { now: WallTime(0), ..fit }), Ok(()));
        let early = Grant { issued: WallTime(hour.0 + 1), ..grant.clone() };
        assert_eq!(check(&early, &Use { now: WallTime(0), ..fit }), Err(GrantRefusal::Early));
    }

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
