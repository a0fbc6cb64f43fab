//! The actor of what only the leader does; it runs on every control node and is idle where another one leads.

use std::sync::Arc;

use postroad_cluster::{
    command::{Action, Command},
    id::{NodeId, Role},
    leader::{Effect, Event, Leader},
    state::State,
    time::Clock as _,
};
use postroad_raft::Consensus;
use postroad_transport::trace::{Doing, During};

use crate::{
    fabric::Fabric,
    handle::Handle,
    session::{after, attend, briefly},
    shell::Performer,
    trace,
};

type Me = Handle<Leader>;

/// Where the leader's work stands in the tree.
pub(crate) const LEADER: &str = "node/leader";

/// Performs what the leader decides.
pub(crate) struct LeaderPerformer {
    fabric: Arc<Fabric>,
    consensus: Consensus,
}

impl LeaderPerformer {
    pub(crate) const fn new(fabric: Arc<Fabric>, consensus: Consensus) -> Self {
        Self { fabric, consensus }
    }

    fn propose(&self, action: Action, relay: Option<NodeId>, me: &Me) {
        let command = Command { at: self.fabric.clock.wall(), by: self.fabric.me, expected: None, action };
        let (consensus, back) = (self.consensus.clone(), me.clone());
        let fabric = Arc::clone(&self.fabric);
        briefly(me, async move {
            if let Err(error) = trace::propose(&fabric, &consensus, command).await {
                tracing::debug!(%error, "a command of the leader was not taken");
            }
            let _ = back.send(Event::Answered { relay });
        });
    }

    fn add_learner(&self, node: NodeId, address: String, me: &Me) {
        let (consensus, back) = (self.consensus.clone(), me.clone());
        attend(me, async move {
            match consensus.add_learner(node, address).await {
                Ok(()) => tracing::info!(%node, "a control node learns the log"),
                Err(error) => tracing::debug!(%node, %error, "a control node does not learn the log yet"),
            }
            let _ = back.send(Event::Taught { node });
        });
    }
}

fn agreed(state: &State, consensus: &Consensus) -> Event {
    let status = consensus.status();
    let member = |node: &NodeId| status.voters.contains_key(node) || status.learners.contains_key(node);
    Event::Agreed {
        nodes: state.nodes.keys().copied().collect(),
        relays: state
            .nodes
            .iter()
            .filter(|(_, it)| it.roles.contains(&Role::Relay))
            .map(|(id, it)| (*id, it.ready))
            .collect(),
        strangers: state.controls().into_iter().filter(|(node, _)| !member(node)).collect(),
        drains: state.nodes.iter().filter_map(|(id, it)| Some((*id, it.drain?))).collect(),
    }
}

/// Tells the actor who leads and what was agreed, for as long as it lives.
async fn follow(consensus: Consensus, me: Me) {
    let (mut leadership, mut applied) = (consensus.leadership(), consensus.applied());
    let mut told = 0;
    loop {
        let leading = leadership.get();
        let term = (leading.leader == Some(consensus.me())).then_some(leading.term);
        let _ = me.send(Event::Leads { term });
        let state = consensus.state();
        {
            let trace = trace::newest(&consensus, told, state.version.0);
            let _during = During::new(Doing { trace, by: Some("log".into()) });
            let _ = me.send(agreed(&state, &consensus));
        }
        told = state.version.0;
        tokio::select! {
            biased;
            alive = leadership.changed() => if !alive { return },
            alive = applied.changed() => if !alive { return },
        }
    }
}

impl Performer<Leader> for LeaderPerformer {
    type Reply = ();

    fn perform(&mut self, effect: Effect, me: &Me) {
        match effect {
            Effect::Propose { action, relay } => self.propose(*action, relay, me),
            Effect::AddLearner { node, address } => self.add_learner(node, address, me),
            Effect::LeaseAfter { after_ms } => after(me, after_ms, 0, Event::LeaseTimer),
            Effect::CutAfter { relay, after_ms } => after(me, after_ms, relay.0, Event::CutTimer { relay }),
        }
    }

    fn first(&mut self, me: &Me) -> Option<Event> {
        attend(me, follow(self.consensus.clone(), me.clone()));
        let (consensus, back) = (self.consensus.clone(), me.clone());
        attend(me, async move {
            let why = consensus.stopped().await;
            back.fail(format!("this control node's member of the group has stopped: {why}"));
        });
        None
    }
}
