//! How one node looks at another: any node asks a control node, which has the other's connection or knows who may have it.
//! Looking only reads; control nodes, and nobody else, also have a node do what its console may, on the same ways. All of
//! it is bounded in time and number, and a node that is silent costs nobody more than that time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use postroad_cluster::{
    command::Refusal,
    id::{NodeId, Role},
    limits::{ACT_WAIT, LOOK_WAIT, LOOKS_MAX},
    time::Span,
    wire::control::{ControlRequest, ControlResponse},
};
use postroad_transport::{
    connection::Connection,
    trace::{self, carry},
};
use postroad_trust::PeerIdentity;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{carrier::ControlCarrier, directory::lock, fabric::Fabric};

/// Paths of the API that others may look at: pages, which change nothing.
const PAGES: &[&str] = &["/api/console/"];

/// Paths of the API by which control nodes have a node act.
const DEEDS: &[&str] = &["/api/restart/", "/api/moves/"];

/// A status and a JSON body.
pub type Seen = (u16, Vec<u8>);

/// The connections that nodes have dialled to this control node, newest first to count, and how many look at a time.
#[derive(Debug)]
pub(crate) struct Dialled {
    open: Mutex<BTreeMap<NodeId, Connection>>,
    looks: Arc<Semaphore>,
}

impl Default for Dialled {
    fn default() -> Self {
        Self { open: Mutex::default(), looks: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }
}

impl Dialled {
    pub(crate) fn add(&self, connection: &Connection) {
        lock(&self.open).insert(connection.node(), connection.clone());
    }

    /// Takes out a connection that has ended, unless a newer one has its place.
    pub(crate) fn remove(&self, connection: &Connection) {
        let mut open = lock(&self.open);
        if open.get(&connection.node()).is_some_and(|present| present.close_reason().is_some()) {
            open.remove(&connection.node());
        }
    }

    fn get(&self, node: NodeId) -> Option<Connection> {
        lock(&self.open).get(&node).cloned().filter(|connection| connection.close_reason().is_none())
    }
}

/// What is wanted of a node.
#[derive(Clone, Debug)]
pub(crate) enum Errand {
    /// A page.
    Look(String),
    /// What a path of the API does.
    Act(String),
}

impl Errand {
    fn request(&self, node: NodeId) -> ControlRequest {
        match self.clone() {
            Self::Look(path) => ControlRequest::Look { node, path },
            Self::Act(path) => ControlRequest::Act { node, path },
        }
    }

    const fn wait(&self) -> Span {
        match self {
            Self::Look(_) => LOOK_WAIT,
            Self::Act(_) => ACT_WAIT,
        }
    }
}

fn refused(code: &str, message: impl Into<String>, hint: &str) -> Refusal {
    Refusal::new(code, message, hint)
}

fn seen(response: ControlResponse) -> Result<Seen, Refusal> {
    match response {
        ControlResponse::Api { status, body } => Ok((status, body)),
        ControlResponse::Refused(refusal) => Err(refusal),
        _ => Err(refused("LOOK_MISUNDERSTOOD", "the node answered something else", "Are all nodes of one release?")),
    }
}

async fn ask(connection: &Connection, node: NodeId, errand: &Errand) -> Result<Seen, Refusal> {
    match connection.call::<ControlRequest, ControlResponse>(&errand.request(node), errand.wait()).await {
        Ok(response) => seen(response),
        Err(error) => Err(refused("NODE_SILENT", error.to_string(), "It is tried again with the next look")),
    }
}

/// What this node shows of itself, or does.
async fn own(fabric: &Fabric, errand: Errand) -> Result<Seen, Refusal> {
    let (method, path, allowed) = match errand {
        Errand::Look(path) => ("GET", path, PAGES),
        Errand::Act(path) => ("POST", path, DEEDS),
    };
    if !allowed.iter().any(|allowed| path.starts_with(allowed)) {
        return Err(refused("LOOK_NOT_A_PAGE", "others may only look at pages", "Run the command on that node"));
    }
    match fabric.api() {
        Some(api) => Ok(api.answer(method.to_owned(), path, Vec::new()).await),
        None => Err(refused("NO_API", "this node serves no API", "It may have just started; try again")),
    }
}

/// Answers a control node that looks at this node or has it act, over the connection that this node has dialled.
pub(crate) async fn answer(fabric: &Fabric, peer: &PeerIdentity, request: ControlRequest) -> ControlResponse {
    let ours = |node: NodeId| node == fabric.me && peer.roles.contains(&Role::Control);
    let answer = match request {
        ControlRequest::Look { node, path } if ours(node) => own(fabric, Errand::Look(path)).await,
        ControlRequest::Act { node, path } if ours(node) => own(fabric, Errand::Act(path)).await,
        _ => Err(refused("NOT_CONTROL", "this node answers only who looks at it", "Ask a control node")),
    };
    respond(answer)
}

pub(crate) fn respond(answer: Result<Seen, Refusal>) -> ControlResponse {
    match answer {
        Ok((status, body)) => ControlResponse::Api { status, body },
        Err(refusal) => ControlResponse::Refused(refusal),
    }
}

/// Looks at `node`, or has it act, for a control node. `passed_on` says that another control node asks, so that nothing goes
/// round.
pub(crate) async fn from_control(
    fabric: &Arc<Fabric>,
    carrier: &Arc<ControlCarrier>,
    dialled: &Dialled,
    node: NodeId,
    errand: Errand,
    passed_on: bool,
) -> Result<Seen, Refusal> {
    if node == fabric.me {
        return own(fabric, errand).await;
    }
    let Ok(_permit) = dialled.looks.try_acquire() else {
        return Err(refused("LOOK_BUSY", format!("{LOOKS_MAX} looks at other nodes are under way"), "Try again"));
    };
    let controls = fabric.consensus.as_ref().map(|consensus| consensus.state().controls()).unwrap_or_default();
    if controls.contains_key(&node) {
        return by_carrier(carrier, node, node, &errand).await;
    }
    if let Some(connection) = dialled.get(node) {
        return ask(&connection, node, &errand).await;
    }
    let silent =
        refused("NODE_SILENT", format!("{node} is connected to no control node that answers"), "Is it running?");
    if passed_on {
        return Err(silent);
    }
    let mut asking = JoinSet::new();
    let doing = trace::doing();
    for other in controls.into_keys().filter(|other| *other != fabric.me) {
        let (carrier, errand) = (Arc::clone(carrier), errand.clone());
        asking.spawn(carry(doing.clone(), async move { by_carrier(&carrier, other, node, &errand).await }));
    }
    let mut last = Err(silent);
    while let Some(answer) = asking.join_next().await {
        match answer {
            Ok(Ok(seen)) => return Ok(seen),
            // Who is connected to the node says why it did not act; the others only that they are not.
            Ok(Err(refusal)) if refusal.code != "NODE_SILENT" => last = Err(refusal),
            _ => {}
        }
    }
    last
}

async fn by_carrier(carrier: &ControlCarrier, to: NodeId, node: NodeId, errand: &Errand) -> Result<Seen, Refusal> {
    match carrier.ask(to, &errand.request(node), errand.wait()).await {
        Ok(response) => seen(response),
        Err(reason) => Err(refused("NODE_SILENT", reason, "It is tried again with the next look")),
    }
}

/// Looks at `node` for a node that is no control node, by way of the control nodes that it is connected to.
///
/// # Errors
/// Why nothing was seen, for people.
pub async fn from_node(fabric: &Fabric, node: NodeId, path: String) -> Result<Seen, Refusal> {
    let errand = Errand::Look(path);
    if node == fabric.me {
        return own(fabric, errand).await;
    }
    let mut last = refused("CONTROL_UNREACHABLE", "no control node is connected, and others are seen through them", "");
    for (_, connection) in fabric.controls() {
        match ask(&connection, node, &errand).await {
            Ok(seen) => return Ok(seen),
            Err(refusal) => last = refusal,
        }
    }
    Err(last)
}
