//! The actor of this node's connections to control nodes: fetches snapshots over them and reports facts.

use std::{collections::BTreeMap, sync::Arc};

use postroad_cluster::{
    control::{Control, Effect, Event},
    id::{Name, NodeId, Role, Version},
    limits::{CALL_WAIT, DIAL_WAIT, REPORT_CIRCUITS_MAX, REPORT_INTERVAL, REPORT_INTERVAL_DRAINING, SNAPSHOT_POLL},
    node,
    snapshot::SignedSnapshot,
    trace::TraceId,
    wire::control::{BalancerReport, CircuitReport, ControlRequest, ControlResponse, Load, Report},
};
use postroad_transport::{
    connection::{CloseCode, Connection},
    endpoint::{Expect, transport},
    tls::Protocol,
    trace::{Doing, During},
};

use crate::{
    dial,
    fabric::Fabric,
    handle::Handle,
    look,
    node::NODE,
    ports::sleep,
    session::{after, attend, run},
    shell::Performer,
    snapshot,
};

type Me = Handle<Control>;

/// Where the connections to control nodes stand in the tree.
pub(crate) const CONTROL: &str = "node/control";

/// Performs what the connections to control nodes decide.
pub(crate) struct ControlPerformer {
    fabric: Arc<Fabric>,
    open: BTreeMap<u64, NodeId>,
}

impl ControlPerformer {
    pub(crate) const fn new(fabric: Arc<Fabric>) -> Self {
        Self { fabric, open: BTreeMap::new() }
    }

    fn dial(&self, node: NodeId, address: String, me: &Me) {
        let fabric = Arc::clone(&self.fabric);
        let reason = format!("{address} did not answer within {} s", DIAL_WAIT.as_secs());
        let late = Event::DialFailed { node, reason };
        let work = async move {
            let expect = Expect { node: Some(node), role: Role::Control };
            match dial::dial(&fabric, &address, Protocol::Control, expect, transport::control()).await {
                Ok(connection) => Event::Connected { node, connection: fabric.connections().add(connection) },
                Err(reason) => Event::DialFailed { node, reason },
            }
        };
        run(me, DIAL_WAIT, late, work);
    }

    fn begin(&mut self, node: NodeId, number: u64, me: &Me) {
        let Some(connection) = self.fabric.connections().get(number) else { return };
        tracing::info!(control = %node, "connected to a control node");
        self.open.insert(number, node);
        self.fabric.control_up(node, connection.clone());
        let (fabric, back) = (Arc::clone(&self.fabric), me.clone());
        attend(me, async move {
            let reason = tokio::select! {
                biased;
                closed = connection.closed() => closed.to_string(),
                reason = fetch(&fabric, &connection) => reason,
                reason = report(&fabric, &connection) => reason,
                reason = show(&fabric, &connection) => reason,
            };
            fabric.control_down(node);
            fabric.connections().remove(number);
            connection.close(CloseCode::Done, &reason);
            let _ = back.send(Event::Closed { node, connection: number, reason });
        });
    }

    fn close(&mut self, number: u64, reason: &str) {
        if let Some(node) = self.open.remove(&number) {
            self.fabric.control_down(node);
        }
        if let Some(connection) = self.fabric.connections().remove(number) {
            connection.close(CloseCode::Done, reason);
        }
    }
}

/// Asks for the next snapshot, again and again. Returns why that ended.
async fn fetch(fabric: &Arc<Fabric>, connection: &Connection) -> String {
    loop {
        let present = fabric.snapshot();
        let request = ControlRequest::SnapshotAfter {
            have: present.as_ref().map_or(Version(0), |accepted| accepted.header.version),
            content_hash: present.as_ref().map(|accepted| accepted.header.content_hash),
        };
        match connection.call::<ControlRequest, ControlResponse>(&request, SNAPSHOT_POLL).await {
            Ok(ControlResponse::Snapshot(signed)) => take(fabric, connection, &signed, None).await,
            Ok(ControlResponse::SnapshotTraced { trace, signed }) => {
                take(fabric, connection, &signed, Some(trace)).await;
            }
            Ok(ControlResponse::Unchanged) => {}
            Ok(ControlResponse::Refused(refusal)) => {
                tracing::debug!(%refusal, "no snapshot from this control node");
                sleep(&*fabric.clock, CALL_WAIT).await;
            }
            Ok(_) => return "the control node misunderstood the request".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

/// Takes a snapshot, as part of the trace of what it brings.
async fn take(fabric: &Arc<Fabric>, connection: &Connection, signed: &SignedSnapshot, trace: Option<TraceId>) {
    let refused = {
        let _during = During::new(Doing { trace, by: Some(connection.node().to_string().into()) });
        match snapshot::open(fabric, signed) {
            Ok(accepted) => {
                let node = fabric.directory.find::<node::Node, ()>(NODE);
                // The node's actor sets it too; set here, the next question is about the next one.
                fabric.set_snapshot_if_newer(&accepted);
                if let Some(node) = node {
                    let _ = node.send(node::Event::Snapshot { accepted: Box::new(accepted) });
                }
                return;
            }
            Err(reason) => reason,
        }
    };
    tracing::debug!(reason = refused, "a snapshot was not taken");
    sleep(&*fabric.clock, CALL_WAIT / 10).await;
}

/// Reports the node's facts, again and again. Returns why that ended.
async fn report(fabric: &Arc<Fabric>, connection: &Connection) -> String {
    let mut wait = CALL_WAIT / 10;
    loop {
        tokio::select! {
            biased;
            () = fabric.report_soon.notified() => sleep(&*fabric.clock, CALL_WAIT / 30).await,
            () = sleep(&*fabric.clock, wait) => {}
        }
        let request = ControlRequest::Report(facts(fabric));
        let answer = connection.call::<ControlRequest, ControlResponse>(&request, CALL_WAIT).await;
        if let Err(error) = answer {
            return error.to_string();
        }
        // Soon after a change, so that a new relay is ready within a second; at leisure otherwise.
        let relays = fabric.snapshot().map(|accepted| accepted.content.relays.clone()).unwrap_or_default();
        let drains = relays.values().any(|view| view.draining);
        let pending = relays.values().any(|view| !view.ready);
        wait = match (drains, pending) {
            (true, _) => REPORT_INTERVAL_DRAINING,
            (false, true) => REPORT_INTERVAL / 5,
            _ => REPORT_INTERVAL,
        };
    }
}

/// Shows this node's pages to the control node, for whoever looks at them there. Returns why that ended.
async fn show(fabric: &Arc<Fabric>, connection: &Connection) -> String {
    let (of, peer) = (Arc::clone(fabric), connection.peer());
    let handler = move |request: ControlRequest| {
        let (fabric, peer) = (Arc::clone(&of), Arc::clone(&peer));
        async move { look::answer(&fabric, peer.get(), request).await }
    };
    connection.serve::<ControlRequest, ControlResponse, _, _>(handler).await.to_string()
}

fn facts(fabric: &Fabric) -> Report {
    let relays =
        fabric.sessions().into_iter().filter_map(|(relay, standing)| Some((relay, Ok(standing.round_trip_us?))));
    let mut relays: BTreeMap<NodeId, Result<u64, String>> = relays.collect();
    if let Some(accepted) = fabric.snapshot() {
        for relay in accepted.content.relays.keys() {
            relays.entry(*relay).or_insert_with(|| Err("no session stands".to_owned()));
        }
    }
    let (loads, circuits) = carried(fabric);
    Report {
        relays,
        loads,
        circuits,
        applied: fabric.applied(),
        snapshot: fabric.snapshot().map_or(Version(0), |accepted| accepted.header.version),
        flows: fabric.flows.len() as u64,
        balancers: balancers(fabric),
    }
}

/// How the balancers do that the cluster has this node run.
fn balancers(fabric: &Fabric) -> BTreeMap<Name, BalancerReport> {
    let views = fabric.balancers.views(fabric).into_iter();
    views.filter_map(|view| Some((view.name.parse().ok()?, view.report()?))).collect()
}

/// What each relay carries for this node, and the circuits that this node dials, one by one.
fn carried(fabric: &Fabric) -> (BTreeMap<NodeId, Load>, Vec<CircuitReport>) {
    let flows = fabric.flows.by_circuit();
    let (mut loads, mut circuits) = (BTreeMap::<NodeId, Load>::new(), Vec::new());
    for key in fabric.socket.circuits() {
        let Ok(status) = fabric.socket.status(key) else { continue };
        let flows = flows.get(&key).copied().unwrap_or_default();
        if let Some(relay) = status.relay.filter(|_| status.connected) {
            let load = loads.entry(relay).or_default();
            load.circuits += 1;
            load.flows += flows;
        }
        if status.connected && fabric.me < key.peer && circuits.len() < REPORT_CIRCUITS_MAX {
            circuits.push(CircuitReport { peer: key.peer, circuit: key.circuit, relay: status.relay, flows });
        }
    }
    (loads, circuits)
}

impl Performer<Control> for ControlPerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::Dial { node, address } => self.dial(node, address, me),
            Effect::Use { node, connection } => self.begin(node, connection, me),
            Effect::Close { connection, .. } => self.close(connection, "not needed any more"),
            Effect::RetryAfter { node, after_ms } => after(me, after_ms, node.0, Event::Retry { node }),
        }
    }

    fn first(&mut self, _me: &Me) -> Option<Event> {
        Some(Event::Candidates { addresses: self.fabric.kept().controls })
    }
}

impl Drop for ControlPerformer {
    fn drop(&mut self) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        for number in open {
            self.close(number, "the actor of these connections ends");
        }
    }
}
