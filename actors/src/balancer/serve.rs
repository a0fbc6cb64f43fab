//! One connection of the balancer: a node is chosen, opened and confirmed, and then bytes pass, or the client is told why
//! not. Also the loop that accepts them.

use std::{collections::BTreeSet, sync::Arc};

use postroad_cluster::{
    balancer::{
        database::{routing::NoNode, settings::Port},
        limits::{ACCEPT_PAUSE, CONNECT_TRIES_MAX, CONNECT_WAIT, SHORTAGE_SAID_EVERY},
        proxy_header::Header,
        refusal::Refusal,
    },
    time::Moment,
};
use postroad_transport::{
    network::{TcpListener, TcpStream},
    proxy_header,
    refusal::refuse,
};

use super::{Shared, connections::Ticket};
use crate::ports::sleep;

/// Takes connections for as long as the balancer lives. Without room it pauses: whoever waits then waits in the kernel,
/// and descriptors stay for probes and the admin port (DB-33).
pub(super) async fn accept(shared: Arc<Shared>, port: Port, listener: Arc<dyn TcpListener>) {
    let mut said: Option<Moment> = None;
    let mut may_say = |shared: &Shared| {
        let now = shared.clock.now();
        let due = said.is_none_or(|at| now.since(at) >= SHORTAGE_SAID_EVERY);
        if due {
            said = Some(now);
        }
        due
    };
    loop {
        if let Some(room) = shared.connections.room() {
            if may_say(&shared) {
                let open = shared.connections.capacity();
                tracing::warn!(port = port.word(), open, "no room for more connections: accepting pauses");
            }
            room.await;
        }
        match listener.accept().await {
            Ok(client) => shared.connections.spawn(serve(Arc::clone(&shared), port, client)),
            Err(error) => {
                if may_say(&shared) {
                    tracing::warn!(port = port.word(), %error, "cannot accept a connection: accepting pauses");
                }
                // Short of descriptors, an accept fails at once again: a pause instead of a spin.
                sleep(&*shared.clock, ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(shared: Arc<Shared>, port: Port, mut client: TcpStream) {
    let mut peer = client.peer;
    if shared.proxy_protocol_from.contains(peer.ip()) {
        // In a box, so that the task of an open connection is no larger for it.
        let header = Box::pin(proxy_header::read(&mut client, &*shared.clock)).await;
        match header {
            Ok(header) => peer = header.client(peer),
            Err(refused) => {
                shared.connections.refuse(port);
                tracing::debug!(port = port.word(), %peer, "a connection was reset: {refused}");
                return;
            }
        }
    }
    let (ticket, node) = match lead(&shared, port).await {
        Ok(led) => led,
        Err(why) => {
            shared.connections.refuse(port);
            tracing::debug!(port = port.word(), %peer, %why, "refused");
            let refusal = Refusal::new(shared.protocol, port, shared.language);
            refuse(client, refusal, &*shared.clock).await;
            return;
        }
    };
    let first = if shared.proxy_protocol {
        let destination = if port == Port::Rw { shared.rw } else { shared.ro.unwrap_or(shared.rw) };
        Header::Proxied { source: peer, destination }.encode()
    } else {
        Vec::new()
    };
    tokio::select! {
        biased;
        // Dropping the path resets both sides: the client sees a lost connection and comes back (DB-23).
        () = ticket.ended() => {}
        spliced = shared.splicer.splice(client, node, first) => {
            tracing::debug!(port = port.word(), %peer, node = ticket.target.node, end = %spliced.end, "ended");
        }
    }
}

/// Chooses a node and opens a connection to it; the next one where that fails (DB-6). The client has seen nothing yet.
async fn lead(shared: &Arc<Shared>, port: Port) -> Result<(Ticket, TcpStream), NoNode> {
    let mut tried = BTreeSet::new();
    for _ in 0..CONNECT_TRIES_MAX {
        let ticket = shared.connections.choose(port, &tried)?;
        let address = ticket.target.address;
        let connecting = match shared.source {
            Some(source) => shared.network.tcp_connect_from(source, address),
            None => shared.network.tcp_connect(address),
        };
        let connected = tokio::select! {
            biased;
            connected = connecting => connected.map_err(|error| error.to_string()),
            () = sleep(&*shared.clock, CONNECT_WAIT) => Err("it swallowed the connection".to_owned()),
        };
        match connected {
            Ok(node) if ticket.confirm() => return Ok((ticket, node)),
            // Something else was decided meanwhile, so it is chosen anew.
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(node = ticket.target.node, error, "could not connect");
                tried.insert(ticket.target.node.clone());
            }
        }
    }
    Err(NoNode::Tried(port))
}
