//! The stable codes of refusals: programs compare them, so one that was released never changes its meaning.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $($(#[$doc])* pub const $name: &str = stringify!($name);)+
        /// Every code of this file.
        pub const ALL: &[&str] = &[$($name),+];
    };
}

codes! {
    /// The cluster was not founded yet.
    NOT_FOUNDED,
    /// The cluster was founded already.
    ALREADY_FOUNDED,
    /// The entry is not newer than the state.
    ENTRY_OLD,
    /// The state has changed since the proposer looked.
    VERSION_CHANGED,
    /// The proposer may not ask for this.
    NOT_ALLOWED,
    /// A text is too long or holds what it must not.
    TEXT_INVALID,
    /// A certificate or signature that cannot be one.
    CERTIFICATE_INVALID,
    /// An address that is no `host:port`.
    ADDRESS_INVALID,
    /// The roles control and relay need an advertised address.
    ADDRESS_MISSING,
    /// Another node advertises this address.
    ADDRESS_TAKEN,
    /// The host has a relay already (RP-8).
    RELAY_EXISTS,
    /// The name is taken.
    NAME_TAKEN,
    /// The key is another node's.
    KEY_TAKEN,
    /// There is no such node.
    NODE_UNKNOWN,
    /// The node has links.
    NODE_HAS_LINKS,
    /// The node lacks the role that this needs.
    ROLE_MISSING,
    /// No role, or roles that nobody has together.
    ROLES_INVALID,
    /// The last control node, or the last one that can sign.
    LAST_CONTROL,
    /// There is no such token.
    TOKEN_UNKNOWN,
    /// The token has expired.
    TOKEN_EXPIRED,
    /// The token was used.
    TOKEN_USED,
    /// The token was revoked.
    TOKEN_REVOKED,
    /// There is a token of this number.
    TOKEN_EXISTS,
    /// A token's end that is past or too far away.
    TOKEN_LIFETIME,
    /// There is no such link.
    LINK_UNKNOWN,
    /// A link without consumer, or from a node to itself.
    LINK_INVALID,
    /// Another link listens there.
    LISTEN_TAKEN,
    /// A setting's value is out of its bounds.
    SETTING_OUT_OF_BOUNDS,
    /// There are as many as there may be.
    TOO_MANY,
    /// The grant is for something else than it is used for, or the policy has no such route (RP-62).
    POLICY_MISMATCH,
    /// The grant's time has ended.
    GRANT_EXPIRED,
    /// The grant's time has not begun.
    GRANT_EARLY,
    /// The grant's signature is not one of this cluster.
    GRANT_UNTRUSTED,
    /// The relay has no policy (RP-62).
    POLICY_REQUIRED,
    /// The lease of the relay's policy has ended (RP-25).
    POLICY_EXPIRED,
    /// The first request of a session must be its hello.
    SESSION_NOT_GREETED,
    /// A newer session of the same node is there.
    SESSION_REPLACED,
    /// The node may not hold a session at this relay.
    SESSION_NOT_ALLOWED,
    /// A newer generation is registered.
    GENERATION_OLD,
    /// The node that is wanted has no session at this relay, or ended it meanwhile.
    PEER_ABSENT,
    /// The link's target node has not registered its endpoint at this relay.
    ENDPOINT_ABSENT,
    /// The target node did not take what the relay told it.
    PEER_REFUSED,
    /// The channel was closed before it stood.
    CHANNEL_CLOSED,
    /// The target node restarts and said so (RP-34, RP-62); consumers hold their connections for a while.
    ENDPOINT_RESTARTING,
    /// The relay has not applied a revocation of this link's routes in time (RP-35).
    RELAY_STALE,
    /// The relay is being drained, so it takes nothing new.
    RELAY_DRAINING,
    /// The relay is not being drained.
    RELAY_NOT_DRAINING,
    /// The relay is not connected to the control nodes (RP-41).
    RELAY_NOT_CONNECTED,
    /// There is no such database balancer.
    BALANCER_UNKNOWN,
    /// A database balancer that leads nowhere, that nobody runs, or whose list is none.
    BALANCER_INVALID,
    /// The database balancer has changed since the proposer looked.
    BALANCER_CHANGED,
    /// The node runs database balancers.
    NODE_HAS_BALANCERS,
    /// The other end reset the tunnel without a reason that this release knows.
    TUNNEL_RESET,
    /// The target node found that the grant does not allow the tunnel.
    TUNNEL_NOT_GRANTED,
    /// No relay vouched for the tunnel at the target node in time.
    TUNNEL_NOT_ADMITTED,
    /// The consumer took its tunnel back.
    TUNNEL_WITHDRAWN,
    /// The target did not take the connection.
    TARGET_REFUSED,
    /// The link was deleted or changed, so its route is no longer good (RP-35).
    ROUTE_REVOKED,
    /// The node stops.
    NODE_STOPPING,
    /// The circuit is closing.
    CIRCUIT_CLOSING,
    /// The circuit ended before the tunnel opened on it.
    CIRCUIT_LOST,
    /// No circuit to the target node came to stand in time.
    PATH_ABSENT,
    /// No relay answered in time.
    RELAY_SILENT,
    /// The node holds no grant for the link.
    GRANT_ABSENT,
    /// A connection did not begin with the PROXY header that its sender is trusted to send.
    HEADER_INVALID,
    /// Stands for a code that this release does not know.
    OTHER,
}

/// The code that a peer said, if this release knows it: whoever counts or keeps codes must not grow with what others say.
#[must_use]
pub fn known(word: &str) -> &'static str {
    ALL.iter().find(|code| **code == word).copied().unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ALL, ENTRY_OLD, OTHER, known};

    #[test]
    fn codes_are_unique_and_in_capitals() {
        assert_eq!(ALL.iter().collect::<BTreeSet<_>>().len(), ALL.len());
        assert!(ALL.iter().all(|code| code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')));
    }

    #[test]
    fn what_this_release_does_not_know_is_other() {
        assert_eq!((known("ENTRY_OLD"), known("entry_old"), known("X")), (ENTRY_OLD, OTHER, OTHER));
    }
}
