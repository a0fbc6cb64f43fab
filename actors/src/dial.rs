//! Dialling by name: resolves `host:port` and tries each of its addresses.

use std::sync::Arc;

use postroad_transport::{
    connection::Connection,
    endpoint::{Expect, transport::Transport},
    tls::Protocol,
};

use crate::fabric::Fabric;

/// Dials `host:port` from the node's outbound socket; the caller bounds the wait.
///
/// # Errors
/// What was tried and found, for people.
pub(crate) async fn dial(
    fabric: &Fabric,
    address: &str,
    protocol: Protocol,
    expect: Expect,
    transport: Arc<Transport>,
) -> Result<Connection, String> {
    if fabric.settings.shunned.contains(address) {
        return Err(format!("{address} is not dialled by this node's settings"));
    }
    let found = fabric.network.resolve(address).await.map_err(|error| format!("{address}: {error}"))?;
    let mut last = format!("{address} has no address");
    for found in found {
        match fabric.outbound.connect(found, protocol, expect, Arc::clone(&transport)).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}
