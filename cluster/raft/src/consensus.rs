//! One member of the group: it proposes, reads, hands over and shuts down.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use openraft::{
    BasicNode, Raft, ReadPolicy,
    alias::WatchReceiverOf,
    async_runtime::WatchReceiver,
    error::{ClientWriteError, Fatal, InitializeError, LinearizableReadError, RaftError},
    metrics::RaftServerMetrics,
};
use postroad_cluster::{
    command::{Command, Outcome},
    id::NodeId,
    limits,
    state::State,
    trace::TraceId,
    wire::{
        self,
        raft::{RaftAnswer, RaftMessage},
    },
};
use serde::Serialize;
use tokio::{
    sync::Semaphore,
    task::AbortHandle,
    time::{Instant, timeout},
};

use crate::{
    cause::Causes,
    error::{ConsensusError, ProposeError, ReadError},
    log::RaftLog,
    network::{self, Peers},
    options::{Carrier, Options, Timing},
    reassembly::Reassembly,
    runtime,
    state_machine::{AppliedAt, Machine, TracedEntry},
    types::{Proposal, Types},
    watch::{self, Subscription},
};

mod change;
mod incoming;
mod status;

pub use status::{ControlStatus, FollowerStatus, MemberRole};

/// Who leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Leadership {
    /// The leader, as far as this member knows.
    pub leader: Option<NodeId>,
    /// The newest term that this member knows.
    pub term: u64,
}

/// A member of the control group. Cloning shares it; when the last clone is dropped, the member stops.
#[derive(Clone)]
pub struct Consensus(Arc<Member>);

struct Member {
    me: NodeId,
    raft: Raft<Types, Machine>,
    machine: Machine,
    log: RaftLog,
    carrier: Arc<dyn Carrier>,
    causes: Arc<Causes>,
    timing: Timing,
    leadership: Subscription<Leadership>,
    /// When a leader last sent something; the start, while none has.
    led_at: Mutex<Instant>,
    watcher: AbortHandle,
    proposals: Semaphore,
    /// One change of the members at a time.
    changing: tokio::sync::Mutex<()>,
    arriving: Mutex<Reassembly>,
}

impl fmt::Debug for Consensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consensus").field("me", &self.0.me).finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

fn why(fatal: &Fatal<Types>) -> String {
    match fatal {
        Fatal::Stopped => "it was shut down".to_owned(),
        Fatal::Panicked => "it failed by a mistake in the program; the node's log says where".to_owned(),
        Fatal::StorageError(error) => error.to_string(),
    }
}

impl Consensus {
    /// Starts the member from what is on its disk. A new one waits until it founds a group or a leader adds it.
    ///
    /// # Errors
    /// If the options make no sense, the store fails, or what it holds contradicts itself.
    pub async fn start(options: Options) -> Result<Self, ConsensusError> {
        let config = Arc::new(options.config()?);
        let Options { me, log: store, state, carrier, entropy, observer, timing, .. } = options;
        // Their errors have codes that the library would turn into text.
        store.vote()?;
        state.snapshot()?;
        runtime::prepare(&entropy);
        let causes = Arc::new(Causes::new());
        let log = RaftLog {
            me,
            store,
            causes: Arc::clone(&causes),
            observer: observer.clone(),
            #[cfg(feature = "planted")]
            unsynced_vote: Arc::default(),
        };
        log.begin().map_err(|error| ConsensusError::Corrupt { found: error.to_string() })?;
        let machine = Machine::new(me, state, observer);
        let peers = Peers { carrier: Arc::clone(&carrier), causes: Arc::clone(&causes) };
        let raft = Raft::new(me.0, config, peers, log.clone(), machine.clone())
            .await
            .map_err(|fatal| ConsensusError::Corrupt { found: why(&fatal) })?;
        let (sender, leadership) = watch::channel(Leadership::default());
        let member = Arc::new_cyclic(|member: &Weak<Member>| Member {
            me,
            watcher: tokio::spawn(follow(member.clone(), raft.server_metrics(), sender, Arc::clone(&causes)))
                .abort_handle(),
            raft,
            machine,
            log,
            carrier,
            causes,
            timing,
            leadership,
            led_at: Mutex::new(Instant::now()),
            proposals: Semaphore::new(limits::RAFT_PROPOSALS_MAX),
            changing: tokio::sync::Mutex::new(()),
            arriving: Mutex::default(),
        });
        Ok(Self(member))
    }

    /// Founds a group with this node as its only member, which others reach at `address`.
    ///
    /// # Errors
    /// [`ConsensusError::AlreadyFounded`] if this member has a log or has voted.
    pub async fn found(&self, address: String) -> Result<(), ConsensusError> {
        self.0.causes.founded();
        let members = BTreeMap::from([(self.0.me.0, BasicNode::new(address))]);
        match self.0.raft.initialize(members).await {
            Ok(()) => Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Err(ConsensusError::AlreadyFounded),
            Err(RaftError::APIError(error)) => Err(ConsensusError::Corrupt { found: error.to_string() }),
            Err(RaftError::Fatal(fatal)) => Err(ConsensusError::Stopped { why: why(&fatal) }),
        }
    }

    /// Proposes a command and waits until it is applied here. Returns the index of its entry and what came of it.
    ///
    /// # Errors
    /// Each says whether the command can still take effect.
    pub async fn propose(&self, command: Command) -> Result<(u64, Outcome), ProposeError> {
        self.propose_traced(command, None).await
    }

    /// The same for a command that is part of a trace; every member learns of that with the entry.
    ///
    /// # Errors
    /// Those of [`Consensus::propose`].
    pub async fn propose_traced(
        &self,
        command: Command,
        trace: Option<TraceId>,
    ) -> Result<(u64, Outcome), ProposeError> {
        let _permit = self.0.proposals.try_acquire().map_err(|_| ProposeError::Busy)?;
        let bytes = wire::encode(&command).len();
        if bytes > limits::RAFT_COMMAND_BYTES_MAX {
            return Err(ProposeError::TooLarge { bytes });
        }
        let write = self.0.raft.client_write(Proposal { command: Box::new(command), trace });
        let unknown = |found: &str| Err(ProposeError::Unknown { found: found.to_owned() });
        match timeout(limits::RAFT_PROPOSE_WAIT, write).await {
            Err(_) => unknown("no majority of the control nodes took it in time"),
            Ok(Ok(response)) => match response.data.0 {
                Some(outcome) => Ok((response.log_id.index, outcome)),
                None => unknown("another entry took its place"),
            },
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => {
                Err(ProposeError::NotLeader { leader: self.other(forward.leader_id) })
            }
            Ok(Err(RaftError::APIError(error))) => unknown(&error.to_string()),
            Ok(Err(RaftError::Fatal(fatal))) => Err(ProposeError::Stopped { why: why(&fatal) }),
        }
    }

    /// A leader other than this member: the library names this one while it leads without a majority.
    fn other(&self, leader: Option<u64>) -> Option<NodeId> {
        leader.map(NodeId).filter(|leader| *leader != self.0.me)
    }

    /// Waits until this member has applied everything that was acknowledged anywhere before the call; then
    /// [`Consensus::state`] sees it. The leader asks a majority whether it still leads (never its clock), a follower
    /// asks the leader. Returns the index.
    ///
    /// # Errors
    /// If no leader with a majority answers, or this member does not catch up, within [`limits::RAFT_READ_WAIT`].
    pub async fn read_index(&self) -> Result<u64, ReadError> {
        let waited = |waited_for: &str| ReadError::Timeout { waited_for: waited_for.to_owned() };
        let reading = async {
            let index = self.safe_index().await?;
            let mut applied = self.applied();
            match applied.until(|applied| applied.index.is_some_and(|at| at >= index)).await {
                Some(_) => Ok(index),
                None => Err(ReadError::Stopped { why: "it was shut down".to_owned() }),
            }
        };
        match timeout(limits::RAFT_READ_WAIT, reading).await {
            Ok(result) => result,
            Err(_) => Err(waited("a majority of the control nodes")),
        }
    }

    async fn safe_index(&self) -> Result<u64, ReadError> {
        let leader = self.0.leadership.clone().get().leader;
        match leader {
            Some(leader) if leader == self.0.me => self.leader_index().await,
            None => Err(ReadError::NotLeader { leader }),
            Some(leader) => {
                let carrier = &*self.0.carrier;
                match network::ask(carrier, leader, &RaftMessage::ReadIndex, limits::RAFT_READ_WAIT).await {
                    Ok(RaftAnswer::ReadIndex { index }) => Ok(index),
                    Ok(_) => {
                        Err(ReadError::Timeout { waited_for: format!("the leader {leader}, which misunderstood") })
                    }
                    Err(found) => Err(ReadError::Timeout { waited_for: format!("the leader {leader}: {found}") }),
                }
            }
        }
    }

    async fn leader_index(&self) -> Result<u64, ReadError> {
        match self.0.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => Ok(linearizer.read_log_id().index()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(ReadError::NotLeader { leader: self.other(forward.leader_id) })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ReadError::Timeout { waited_for: "a majority of the control nodes".to_owned() })
            }
            Err(RaftError::Fatal(fatal)) => Err(ReadError::Stopped { why: why(&fatal) }),
        }
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.0.me
    }

    /// The state as this member has applied it; cheap, and never changed under its reader.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        self.0.machine.state()
    }

    /// The last entries that this member has applied and that were part of a trace, oldest first, after the one at
    /// `index`; at most [`limits::TRACED_ENTRIES_MAX`], and none from before its start.
    #[must_use]
    pub fn traced_after(&self, index: u64) -> Vec<TracedEntry> {
        self.0.machine.traced_after(index)
    }

    /// Tells of each applied entry.
    #[must_use]
    pub fn applied(&self) -> Subscription<AppliedAt> {
        self.0.machine.applied()
    }

    /// Tells who leads.
    #[must_use]
    pub fn leadership(&self) -> Subscription<Leadership> {
        self.0.leadership.clone()
    }

    /// Whether this member leads, as far as it knows; whether it still does, only a majority can tell.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.0.leadership.clone().get().leader == Some(self.0.me)
    }

    /// For how long this member has not heard of a leader with a majority: a follower counts from the leader's last
    /// message, a leader from the last answer of a majority.
    #[must_use]
    pub fn leaderless_for(&self) -> Duration {
        let led = self.0.led_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.current_leader != Some(self.0.me.0) {
            return led;
        }
        // Where nobody else votes, nobody is asked.
        if metrics.membership_config.membership().voter_ids().all(|voter| voter == self.0.me.0) {
            return Duration::ZERO;
        }
        metrics.last_quorum_acked.map_or(led, |acked| openraft::Instant::elapsed(&*acked))
    }

    /// Waits until the member has stopped, by [`Consensus::shutdown`] or a failure, and says why.
    pub async fn stopped(&self) -> String {
        let mut metrics = self.0.raft.metrics();
        loop {
            if let Err(fatal) = &metrics.borrow_watched().running_state {
                return why(fatal);
            }
            if WatchReceiver::changed(&mut metrics).await.is_err() {
                let state = metrics.borrow_watched().running_state.clone();
                return state.map_or_else(|fatal| why(&fatal), |()| why(&Fatal::Stopped));
            }
        }
    }

    /// Stops the member. What it has acknowledged is on disk.
    pub async fn shutdown(&self) {
        if let Err(error) = self.0.raft.shutdown().await {
            tracing::error!(%error, "the control group's member did not stop in order");
        }
    }

    /// As long as an election may take, with one failed vote.
    fn election_wait(&self) -> Duration {
        self.0.timing.election_max * 4
    }
}

/// Tells who leads, and completes a change of the members that the last leader left half done.
async fn follow(
    member: Weak<Member>,
    mut metrics: WatchReceiverOf<Types, RaftServerMetrics<Types>>,
    leadership: watch::Sender<Leadership>,
    causes: Arc<Causes>,
) {
    loop {
        let (now, joint) = {
            let metrics = metrics.borrow_and_update();
            let joint = metrics.membership_config.membership().get_joint_config().len() > 1;
            (Leadership { leader: metrics.current_leader.map(NodeId), term: metrics.vote.leader_id.term }, joint)
        };
        if let Some(leader) = now.leader {
            causes.leader(leader);
        }
        tell(&leadership, now);
        if joint
            && let Some(member) = member.upgrade()
            && now.leader == Some(member.me)
        {
            tokio::spawn(async move { Consensus(member).complete_change().await });
        }
        if WatchReceiver::changed(&mut metrics).await.is_err() {
            tell(&leadership, Leadership { leader: None, ..now });
            return;
        }
    }
}

fn tell(leadership: &watch::Sender<Leadership>, now: Leadership) {
    leadership.modify(|present| {
        let changed = *present != now;
        *present = now;
        changed
    });
}
