//! Tunnels that a relay admits ahead of need: a flow takes one, and a lot for later flows is asked for beside it.

use std::sync::Arc;

use postroad_cluster::{
    admission::{Order, Via},
    grant::SignedGrant,
    id::TunnelId,
    limits::ADMIT_WAIT,
    wire::session::{NodeRequest, NodeResponse},
};

use crate::fabric::{Fabric, circuits::Circuit};

/// A tunnel that the circuit's relay has admitted already, if there is one.
pub(super) fn ahead(fabric: &Arc<Fabric>, circuit: &Arc<Circuit>, via: Via, grant: &SignedGrant) -> Option<TunnelId> {
    // Its word would not be taken (RP-35), or it is to be asked for no more than it must (RP-21).
    if fabric.is_stale(via.relay, via.link) || fabric.refuses(via.relay, via.link).is_some() {
        return None;
    }
    let taken = circuit.lots(|lots| lots.take(fabric.now(), via));
    if let Some(order) = taken.order {
        tokio::spawn(ask(Arc::clone(fabric), Arc::clone(circuit), via, grant.clone(), order));
    }
    taken.tunnel
}

/// Asks for a lot. Without a good answer each flow asks for its own tunnel, and hears why it is refused.
async fn ask(fabric: Arc<Fabric>, circuit: Arc<Circuit>, via: Via, grant: SignedGrant, order: Order) {
    let Via { relay, link, generation } = via;
    let Some(session) = fabric.session(relay) else { return };
    let tunnels: Vec<TunnelId> = (0..order.tunnels).map(|_| TunnelId(fabric.entropy.next_u64())).collect();
    let request = NodeRequest::AdmitAhead { tunnels: tunnels.clone(), link, generation, grant };
    match session.connection.call::<NodeRequest, NodeResponse>(&request, ADMIT_WAIT).await {
        Ok(NodeResponse::Admitted { .. }) => {
            fabric.relay_admitted(relay, link);
            circuit.lots(|lots| lots.admitted(via, tunnels, order.until));
        }
        Ok(NodeResponse::Refused(refusal)) => fabric.relay_refused(relay, link, &refusal),
        Ok(_) => {}
        Err(error) => tracing::debug!(%relay, %link, %error, "no tunnels were admitted ahead"),
    }
}
