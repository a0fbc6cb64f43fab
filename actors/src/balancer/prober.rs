//! The actor that probes one node: it resolves the node's name, asks by the probe port, and tells the balancer.

use std::sync::Arc;

use postroad_cluster::{
    balancer::database::{
        self, Database,
        evidence::{Cause, Failure, Outcome},
        prober::{Effect, Event, Prober},
        report::Report,
    },
    time::Span,
};
use postroad_transport::network::Network;
use tokio::sync::Mutex;

use super::{Shared, probe::Probe};
use crate::{handle::Handle, shell::Performer};

type Me = Handle<Prober>;

/// Performs what a prober decides.
pub(super) struct ProberPerformer {
    /// Where the actor that decides stands in the tree.
    database: String,
    node: String,
    listed: String,
    network: Arc<dyn Network>,
    /// One probe at a time; the behavior sees to that.
    probe: Arc<Mutex<Box<dyn Probe>>>,
}

impl ProberPerformer {
    pub(super) fn new(shared: &Shared, node: String, listed: String) -> Self {
        let probe = Arc::new(Mutex::new(shared.setup.probes.of(&node)));
        Self { database: shared.database(), node, listed, network: Arc::clone(&shared.network), probe }
    }

    fn tell(&self, outcome: Box<Outcome>, me: &Me) {
        let balancer = me.directory().and_then(|directory| directory.find::<Database, Report>(&self.database));
        let event = database::Event::Probed { node: self.node.clone(), listed: self.listed.clone(), outcome };
        // A balancer that is busy or restarting takes the next one; evidence has an age limit.
        if let Some(Err(error)) = balancer.map(|balancer| balancer.send(event)) {
            tracing::debug!(node = self.node, %error, "the balancer did not take a probe's outcome");
        }
    }
}

async fn ask(network: Arc<dyn Network>, listed: String, probe: Arc<Mutex<Box<dyn Probe>>>) -> Event {
    let outcome = match network.resolve(&listed).await {
        Ok(found) => match found.into_iter().next() {
            Some(address) => probe.lock().await.probe(address).await,
            None => Err(Failure::new(Cause::Name, format_args!("{listed} has no address"))),
        },
        Err(error) => Err(Failure::new(Cause::Name, error)),
    };
    Event::Came { outcome: Box::new(outcome) }
}

impl Performer<Prober> for ProberPerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        let done = match effect {
            Effect::Probe { within_ms } => {
                let work = ask(Arc::clone(&self.network), self.listed.clone(), Arc::clone(&self.probe));
                me.run(Span::from_millis(within_ms), Event::Expired, work)
            }
            Effect::DueAt { at } => me.after(at, 0, Event::Due),
            Effect::Tell { outcome } => {
                self.tell(outcome, me);
                Ok(())
            }
        };
        if let Err(error) = done {
            me.fail(error.to_string());
        }
    }

    fn first(&mut self, _me: &Me) -> Option<Event> {
        Some(Event::Started)
    }
}
