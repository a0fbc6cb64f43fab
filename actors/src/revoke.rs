//! Revocations on their way through a node: from its snapshot, a relay or a node to its flows, its relay service and
//! its sessions.

use postroad_cluster::{relay, revocation::SignedRevocations, verified::Verified, wire::session::NodeResponse};

use crate::{fabric::Fabric, node, relay::RELAY};

/// Takes revocations from wherever they come; older ones change nothing.
///
/// # Errors
/// What is wrong with them, for people.
pub(crate) fn take(fabric: &Fabric, signed: &SignedRevocations) -> Result<(), String> {
    let newer = fabric.take_revocations(signed).map_err(|error| error.to_string())?;
    let Some(revocations) = newer else { return Ok(()) };
    for (link, revocation) in &revocations.get().routes {
        let ended = fabric.flows.revoke(*link, Some(revocation.below));
        if ended > 0 {
            tracing::info!(%link, ended, "the route was revoked: its flows end");
        }
    }
    let version = revocations.get().version;
    tell_relay(fabric, revocations);
    node::tell_revocations(fabric, version);
    Ok(())
}

/// Gives the relay service of this node, if it has one, the revocations.
pub(crate) fn tell_relay(fabric: &Fabric, revocations: Verified<postroad_cluster::revocation::Revocations>) {
    if let Some(relay) = fabric.directory.find::<relay::Relay, NodeResponse>(RELAY) {
        let _ = relay.send(relay::Event::Revoked { revocations });
    }
}
