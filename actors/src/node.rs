//! The actor of the node itself: keeps the snapshot, runs what it says, and renews the certificate.

use std::sync::Arc;

use postroad_cluster::{
    control,
    id::{LinkId, NodeId, Version},
    limits::CALL_WAIT,
    link,
    node::{Certificate, Effect, Event, Node},
    peer::Peer,
    relay, session,
    snapshot::{Accepted, LinkView},
    supervision::Restart,
    wire::{
        self,
        control::{ControlRequest, ControlResponse},
    },
};
use postroad_store::{NodeStore, Put, StoreError, Table};
use postroad_transport::tls::Identity;

use crate::{
    control::CONTROL,
    fabric::Fabric,
    handle::Handle,
    link::{LINKS, LinkPerformer},
    peer::{PEERS, PeerPerformer},
    relay::RELAY,
    revoke,
    session::{SessionPerformer, after, run},
    shell::Performer,
    supervisor::{AddError, SupervisorHandle},
};

type Me = Handle<Node>;

/// Where the node's own actor stands in the tree.
pub(crate) const NODE: &str = "node/self";

/// Where sessions stand in the tree.
pub(crate) const SESSIONS: &str = "node/sessions";

const SNAPSHOT_KEY: &[u8] = b"accepted";

/// The snapshot in `store`, if there is one that reads.
pub(crate) fn kept_snapshot(store: &NodeStore) -> Result<Option<Accepted>, StoreError> {
    let Some(bytes) = store.get(Table::Snapshot, SNAPSHOT_KEY)? else { return Ok(None) };
    match wire::decode(&bytes) {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) => {
            // A control node sends it again; nothing else is lost.
            tracing::warn!(%error, "the snapshot on disk does not read, waiting for the next");
            Ok(None)
        }
    }
}

fn session_child(relay: NodeId) -> String {
    format!("relay-{}", relay.0)
}

/// Tells every session of this node's revocations, so that relays which have older ones get them.
pub(crate) fn tell_revocations(fabric: &Fabric, version: Version) {
    for session in sessions(fabric) {
        let _ = session.send(session::Event::Revocations { version });
    }
}

fn sessions(fabric: &Fabric) -> Vec<Handle<session::Session>> {
    let Some(supervisor) = SupervisorHandle::find(&fabric.directory, SESSIONS) else { return Vec::new() };
    supervisor.children().iter().filter_map(|id| fabric.directory.find(&format!("{SESSIONS}/{id}"))).collect()
}

/// Has every session say goodbye; it dials no more (RP-34).
pub(crate) fn leave(fabric: &Fabric) {
    for session in sessions(fabric) {
        let _ = session.send(session::Event::Leave);
    }
}

pub(crate) fn session(fabric: &Fabric, relay: NodeId) -> Option<Handle<session::Session>> {
    fabric.directory.find(&format!("{SESSIONS}/{}", session_child(relay)))
}

/// Performs what the node decides.
pub(crate) struct NodePerformer {
    fabric: Arc<Fabric>,
}

impl NodePerformer {
    pub(crate) const fn new(fabric: Arc<Fabric>) -> Self {
        Self { fabric }
    }

    /// The snapshot is acted on at once; a crash before it is on disk only means that it is fetched again.
    fn keep(&self, accepted: &Accepted) {
        let value = Some(wire::encode(accepted));
        let put = Put { table: Table::Snapshot, key: SNAPSHOT_KEY.to_vec(), value };
        let done = Box::new(|result: Result<(), StoreError>| {
            if let Err(error) = result {
                tracing::error!(%error, "the snapshot was not stored");
            }
        });
        if let Err(error) = self.fabric.store.write_then(vec![put], done) {
            tracing::error!(%error, "the snapshot was not stored");
        }
    }

    fn supervisor(&self, path: &str) -> Option<SupervisorHandle> {
        SupervisorHandle::find(&self.fabric.directory, path)
    }

    fn session_start(&self, relay: NodeId, address: String) {
        let fabric = Arc::clone(&self.fabric);
        let boots = self.fabric.boots;
        let Some(sessions) = self.supervisor(SESSIONS) else { return };
        let added = sessions.add_actor(&session_child(relay), Restart::Permanent, move |_| {
            // A restarted actor goes on above the generations of the one before it.
            let generation = fabric.sequence();
            let mut session = session::Session::new(relay, boots);
            session.generation.0 += u64::from(generation) << 16;
            Ok((session, SessionPerformer::new(Arc::clone(&fabric), relay)))
        });
        match added {
            Err(AddError::Taken { .. }) => self.session_target(relay, address),
            Err(error) => tracing::error!(%relay, %error, "session not started"),
            Ok(_) => {}
        }
    }

    fn session_target(&self, relay: NodeId, address: String) {
        if let Some(session) = session(&self.fabric, relay) {
            let _ = session.send(session::Event::Target { address });
        }
    }

    fn peer_start(&self, peer: NodeId) {
        let fabric = Arc::clone(&self.fabric);
        let Some(peers) = self.supervisor(PEERS) else { return };
        let added = peers.add_actor(&crate::peer::child(peer), Restart::Permanent, move |_| {
            Ok((Peer::new(fabric.me, peer), PeerPerformer::new(Arc::clone(&fabric), peer)))
        });
        report(added.err(), "pair");
    }

    fn link_start(&self, link: LinkId, view: Box<LinkView>) {
        let fabric = Arc::clone(&self.fabric);
        let first = view.clone();
        let Some(links) = self.supervisor(LINKS) else { return };
        let added = links.add_actor(&crate::link::child(link), Restart::Permanent, move |_| {
            let view = fabric.link(link).map_or_else(|| first.clone(), Box::new);
            Ok((link::Link::new(link, view), LinkPerformer::new(Arc::clone(&fabric), link)))
        });
        match added {
            Err(AddError::Taken { .. }) => self.link_change(link, view),
            other => report(other.err(), "link"),
        }
    }

    fn link_change(&self, link: LinkId, view: Box<LinkView>) {
        if let Some(handle) = crate::link::find(&self.fabric, link) {
            let _ = handle.send(link::Event::Changed { view });
        }
    }

    fn remove(&self, supervisor: &str, id: &str) {
        if let Some(supervisor) = self.supervisor(supervisor) {
            let _ = supervisor.remove(id);
        }
    }

    fn endpoints(&self) {
        let wanted = self.fabric.endpoints();
        for session in sessions(&self.fabric) {
            let _ = session.send(session::Event::Endpoints { wanted: wanted.clone() });
        }
    }

    fn policy(&self, accepted: &Accepted) {
        let relay: Option<Handle<relay::Relay, _>> =
            self.fabric.directory.find::<relay::Relay, postroad_cluster::wire::session::NodeResponse>(RELAY);
        if let (Some(relay), Some(event)) = (relay, relay::Event::policy(accepted)) {
            let _ = relay.send(event);
        }
    }

    fn renew(&self, me: &Me) {
        let fabric = Arc::clone(&self.fabric);
        let late = Event::RenewFailed { reason: "no control node answered in time".to_owned() };
        let work = async move {
            match renewed(&fabric).await {
                Ok(certificate) => Event::Renewed { certificate },
                Err(reason) => Event::RenewFailed { reason },
            }
        };
        run(me, CALL_WAIT * 4, late, work);
    }
}

fn report(error: Option<AddError>, what: &str) {
    match error {
        // A restarted actor of the node finds what the one before it started.
        None | Some(AddError::Taken { .. }) => {}
        Some(error) => tracing::error!(%error, "{what} not started"),
    }
}

/// Gets a certificate for the present key from any connected control node, stores it and shows it from now on.
async fn renewed(fabric: &Fabric) -> Result<Certificate, String> {
    let mut last = "no control node is connected".to_owned();
    let public = fabric.kept().key().public().0;
    for (node, connection) in fabric.controls() {
        let request = ControlRequest::CertificateRenew { public };
        match connection.call::<ControlRequest, ControlResponse>(&request, CALL_WAIT).await {
            Ok(ControlResponse::Certificate { chain }) => return take(fabric, chain),
            Ok(ControlResponse::Refused(refusal)) => last = format!("{node}: {refusal}"),
            Ok(_) => last = format!("{node} misunderstood the request"),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

fn take(fabric: &Fabric, chain: Vec<Vec<u8>>) -> Result<Certificate, String> {
    let key = fabric.kept().key();
    let identity = Identity::new(chain.clone(), key, &fabric.trust.current()).map_err(|error| error.to_string())?;
    let described = identity.described();
    if described.node != fabric.me {
        return Err("the certificate is another node's".to_owned());
    }
    let certificate = Certificate { starts: described.starts, expires: described.expires };
    fabric.keep(|kept| kept.chain = chain).map_err(|error| error.to_string())?;
    fabric.identity.replace(identity);
    tracing::info!(expires = certificate.expires.0, "certificate renewed");
    Ok(certificate)
}

impl Performer<Node> for NodePerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        let accepted = self.fabric.snapshot();
        match effect {
            Effect::Snapshot { accepted } => self.fabric.set_snapshot_if_newer(&accepted),
            Effect::Keep => accepted.iter().for_each(|accepted| self.keep(accepted)),
            Effect::Trust => {
                if let Some(accepted) = accepted {
                    self.fabric.trust.replace(self.fabric.anchors(&accepted));
                }
            }
            Effect::Revocations { signed } => {
                if let Err(error) = revoke::take(&self.fabric, &signed) {
                    tracing::error!(error, "the revocations of a snapshot do not hold");
                }
            }
            Effect::Controls { addresses } => {
                if let Some(control) = self.fabric.directory.find::<control::Control, ()>(CONTROL) {
                    let _ = control.send(control::Event::Candidates { addresses: addresses.clone() });
                }
                if let Err(error) = self.fabric.keep(|kept| kept.controls = addresses) {
                    tracing::error!(%error, "the control nodes' addresses were not stored");
                }
            }
            Effect::Policy => accepted.iter().for_each(|accepted| self.policy(accepted)),
            Effect::SessionStart { relay, address } => self.session_start(relay, address),
            Effect::SessionTarget { relay, address } => self.session_target(relay, address),
            Effect::SessionStop { relay } => self.remove(SESSIONS, &session_child(relay)),
            Effect::Drain { relay } => {
                tracing::info!(%relay, draining = self.fabric.drains(relay), "a relay's service changes");
                self.fabric.apply_drain(relay);
            }
            Effect::Endpoints { wanted } => {
                self.fabric.set_endpoints(wanted);
                self.endpoints();
            }
            Effect::PeerStart { peer } => self.peer_start(peer),
            Effect::PeerStop { peer } => self.remove(PEERS, &crate::peer::child(peer)),
            Effect::LinkStart { link, view } => self.link_start(link, view),
            Effect::LinkChange { link, view } => self.link_change(link, view),
            Effect::LinkStop { link } => {
                self.remove(LINKS, &crate::link::child(link));
                self.fabric.flows.revoke(link, None);
            }
            Effect::Balancers { wanted } => self.fabric.balancers.want(&self.fabric, &wanted),
            Effect::Renew => self.renew(me),
            Effect::RenewAfter { after_ms } => after(me, after_ms, 0, Event::RenewTimer),
        }
    }

    fn first(&mut self, _me: &Me) -> Option<Event> {
        Some(Event::Started)
    }
}
