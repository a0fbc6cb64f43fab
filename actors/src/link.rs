//! The actor of one link on this node: the consumer's listener, and the end of flows whose route was revoked.

use std::{net::SocketAddr, sync::Arc};

use postroad_cluster::{
    id::LinkId,
    limits::CALL_WAIT,
    link::{Effect, Event, Link},
};
use postroad_transport::network::TcpListener;
use tokio::sync::Notify;

use crate::{
    fabric::Fabric,
    flow::consumer,
    handle::Handle,
    session::{after, attend_flows},
    shell::Performer,
};

type Me = Handle<Link>;

/// Where links stand in the tree.
pub(crate) const LINKS: &str = "node/links";

/// The id of a link's actor.
pub(crate) fn child(link: LinkId) -> String {
    format!("link-{}", link.0)
}

/// The actor of a link.
pub(crate) fn find(fabric: &Fabric, link: LinkId) -> Option<Me> {
    fabric.directory.find(&format!("{LINKS}/{}", child(link)))
}

/// Performs what a link decides.
pub(crate) struct LinkPerformer {
    fabric: Arc<Fabric>,
    link: LinkId,
    unlisten: Option<Arc<Notify>>,
}

impl LinkPerformer {
    pub(crate) const fn new(fabric: Arc<Fabric>, link: LinkId) -> Self {
        Self { fabric, link, unlisten: None }
    }

    fn listen(&mut self, address: String, me: &Me) {
        // Accepted connections belong to where their listener does.
        let _there = self.fabric.carriage.enter();
        let opened = address
            .parse::<SocketAddr>()
            .map_err(|error| error.to_string())
            .and_then(|parsed| self.fabric.network.tcp_listen(parsed).map_err(|error| error.to_string()));
        let event = match opened {
            Ok(listener) => {
                tracing::info!(link = %self.link, address, "listening");
                let end = Arc::new(Notify::new());
                self.unlisten = Some(Arc::clone(&end));
                attend_flows(me, &self.fabric, accept(Arc::clone(&self.fabric), self.link, listener, end));
                Event::Listening { address }
            }
            Err(reason) => {
                tracing::warn!(link = %self.link, address, reason, "cannot listen; tried again by itself");
                Event::ListenFailed { address, reason }
            }
        };
        let _ = me.send(event);
    }
}

/// Takes connections until the listener is to be closed.
async fn accept(fabric: Arc<Fabric>, link: LinkId, listener: Arc<dyn TcpListener>, end: Arc<Notify>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = end.notified() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(tcp) => consumer::take(&fabric, link, tcp),
            Err(error) => {
                // Short of descriptors, an accept fails at once again: a pause instead of a spin.
                tracing::warn!(%link, %error, "cannot accept a connection");
                crate::ports::sleep(&*fabric.clock, CALL_WAIT / 10).await;
            }
        }
    }
}

impl Performer<Link> for LinkPerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::Listen { address } => self.listen(address, me),
            Effect::Unlisten => {
                if let Some(end) = self.unlisten.take() {
                    end.notify_one();
                }
            }
            Effect::EndFlowsBefore { generation } => {
                let ended = self.fabric.flows.revoke(self.link, Some(generation));
                tracing::info!(link = %self.link, ended, "the link has changed: its old flows end");
            }
            Effect::ListenAfter { after_ms } => after(me, after_ms, 0, Event::ListenTimer),
        }
    }

    fn first(&mut self, _me: &Me) -> Option<Event> {
        Some(Event::Started)
    }
}
