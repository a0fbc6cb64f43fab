//! One connection of the balancer: a node is chosen, opened and confirmed, and then bytes pass, or the client is told why
//! not. Also the loop that accepts them.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use postroad_cluster::{
    balancer::{
        database::{routing::NoNode, settings::Port},
        limits::{ACCEPT_PAUSE, CONNECT_TRIES_MAX, CONNECT_WAIT, SHORTAGE_SAID_EVERY},
        proxy_header::Header,
        refusal::Refusal,
    },
    time::Moment,
};
use postroad_transport::{network::TcpStream, proxy_header, refusal::refuse, splice::Splice};

use super::{Shared, connections::Place, door::Door};
use crate::ports::sleep;

/// Takes connections for as long as the balancer lives. Without room it pauses: whoever waits then waits in the kernel,
/// and descriptors stay for probes and the admin port (DB-33).
pub(super) async fn accept(shared: Arc<Shared>, door: Arc<Door>) {
    let port = door.port;
    let listener = door.opened(&shared).await;
    let here = door.address();
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
            Ok(client) => {
                let of = Arc::clone(&shared);
                shared.connections.spawn(|place| serve(of, place, port, here, client));
            }
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

/// The whole life of one connection; `here` is the address that it came to. What lives only until the path stands is in
/// a box of its own, so that the tasks of open connections, which may be tens of thousands, are no larger for it. One
/// that is to end is aborted: dropping the path resets both sides, and the client sees a lost connection and comes back
/// (DB-23).
fn serve(
    shared: Arc<Shared>,
    place: Place,
    port: Port,
    here: SocketAddr,
    client: TcpStream,
) -> impl Future<Output = ()> + Send + 'static {
    let opening = Box::pin(open(shared, place, port, here, client));
    async move {
        let Some((place, path)) = opening.await else { return };
        let spliced = path.await;
        tracing::debug!(port = port.word(), end = %spliced.end, "ended");
        drop(place);
    }
}

/// The path to a node; nothing for a connection that was refused.
async fn open(
    shared: Arc<Shared>,
    place: Place,
    port: Port,
    here: SocketAddr,
    mut client: TcpStream,
) -> Option<(Place, Splice)> {
    let mut peer = client.peer;
    if shared.setup.proxy_protocol_from.contains(peer.ip()) {
        match proxy_header::read(&mut client, &*shared.clock).await {
            Ok(header) => peer = header.client(peer),
            Err(refused) => {
                place.refuse(port);
                tracing::debug!(port = port.word(), %peer, "a connection was reset: {refused}");
                return None;
            }
        }
    }
    let node = match lead(&shared, &place, port).await {
        Ok(node) => node,
        Err(why) => {
            place.refuse(port);
            tracing::debug!(port = port.word(), %peer, %why, "refused");
            let refusal = Refusal::new(shared.setup.protocol, port, shared.setup.language);
            refuse(client, refusal, &*shared.clock).await;
            return None;
        }
    };
    tracing::debug!(port = port.word(), %peer, node = %node.peer, "led");
    let header = Header::Proxied { source: peer, destination: here };
    let first = if shared.setup.proxy_protocol { header.encode() } else { Vec::new() };
    Some((place, shared.splicer.splice(client, node, first)))
}

/// Chooses a node and opens a connection to it; the next one where that fails (DB-6). The client has seen nothing yet.
async fn lead(shared: &Shared, place: &Place, port: Port) -> Result<TcpStream, NoNode> {
    let mut tried = BTreeSet::new();
    for _ in 0..CONNECT_TRIES_MAX {
        let target = place.choose(port, &tried)?;
        let connecting = shared.network.tcp_connect_from(shared.setup.source, target.address);
        let connected = tokio::select! {
            biased;
            connected = connecting => connected.map_err(|error| error.to_string()),
            () = sleep(&*shared.clock, CONNECT_WAIT) => Err("it swallowed the connection".to_owned()),
        };
        match connected {
            Ok(node) if place.confirm() => return Ok(node),
            // Something else was decided meanwhile, so it is chosen anew.
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(node = target.node, error, "could not connect");
                tried.insert(target.node.clone());
            }
        }
    }
    Err(NoNode::Tried(port))
}
