//! The agreed state in memory: entries are applied to it in order, and its snapshots are kept on the store.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot,
    alias::SnapshotOf,
    storage::{EntryResponder, RaftStateMachine},
};
use postroad_cluster::{
    command::Outcome,
    id::{NodeId, Version},
    limits::{RAFT_SNAPSHOT_BYTES_MAX, TRACED_ENTRIES_MAX},
    state::State,
    trace::TraceId,
    wire::{self, raft::LogPlace},
};
use postroad_store::StateStore;

use crate::{
    log::{durable, failed},
    options::Observer,
    types::{self, Answer, Entry, LogId, Meta, Proposal, StoredMembership, Types},
    watch,
};

/// How far the state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppliedAt {
    /// The last entry applied, if any.
    pub index: Option<u64>,
    /// The state's version after it.
    pub version: Version,
}

/// An applied entry that is part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedEntry {
    /// Its index.
    pub index: u64,
    /// The trace.
    pub trace: TraceId,
    /// The kind of its command.
    pub kind: &'static str,
    /// Whether the command was refused.
    pub refused: bool,
}

/// An applied entry, for checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The hash of the entry, which is the same on every member; 0 for a snapshot.
    pub entry_hash: u64,
    /// The hash of the state after it, which is the same on every member.
    pub state_hash: u64,
}

/// FNV-1a, 64 bits: tells states apart in checks, not for keys.
#[must_use]
pub fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The state machine of this member. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Shared>);

struct Shared {
    me: NodeId,
    present: Mutex<Present>,
    store: StateStore,
    /// One snapshot is saved at a time, and no older one after a newer one: the log behind it may be gone.
    saved: tokio::sync::Mutex<Option<LogPlace>>,
    applied: watch::Sender<AppliedAt>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Default)]
struct Present {
    state: Arc<State>,
    last: Option<LogId>,
    membership: StoredMembership,
    /// The last entries that are part of a trace, oldest first, bounded. Soft: no entry depends on them.
    traced: VecDeque<TracedEntry>,
}

impl Present {
    fn remember(&mut self, entry: TracedEntry) {
        if self.traced.len() >= TRACED_ENTRIES_MAX {
            self.traced.pop_front();
        }
        self.traced.push_back(entry);
    }
}

impl Machine {
    pub(crate) fn new(me: NodeId, store: StateStore, observer: Option<Arc<dyn Observer>>) -> Self {
        let (applied, _) = watch::channel(AppliedAt::default());
        let saved = tokio::sync::Mutex::new(None);
        Self(Arc::new(Shared { me, present: Mutex::default(), store, saved, applied, observer }))
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.0.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.present().state)
    }

    pub(crate) fn last(&self) -> Option<LogId> {
        self.present().last
    }

    pub(crate) fn traced_after(&self, index: u64) -> Vec<TracedEntry> {
        self.present().traced.iter().filter(|entry| entry.index > index).copied().collect()
    }

    pub(crate) fn applied(&self) -> watch::Subscription<AppliedAt> {
        self.0.applied.subscription()
    }

    fn apply_one(&self, entry: Entry) -> Option<Outcome> {
        let entry_hash = self.0.observer.as_ref().map_or(0, |_| hash_of(&types::entry_bytes(&entry)));
        let mut present = self.present();
        present.last = Some(entry.log_id);
        let outcome = match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(proposal) => {
                let Proposal { command, trace } = proposal;
                let (index, kind) = (entry.log_id.index, command.action.kind());
                // Readers keep the state that they took; only then is it copied.
                let outcome = Arc::make_mut(&mut present.state).apply(index, *command);
                if let Some(trace) = trace {
                    let refused = outcome.refusal().is_some();
                    present.remember(TracedEntry { index, trace, kind, refused });
                }
                Some(outcome)
            }
            EntryPayload::Membership(members) => {
                present.membership = StoredMembership::new(Some(entry.log_id), members);
                None
            }
        };
        let state = Arc::clone(&present.state);
        drop(present);
        self.publish(entry.log_id, &state);
        if let Some(observer) = &self.0.observer {
            observer.on_apply(self.0.me, &seen(&entry.log_id, entry_hash, &state));
        }
        outcome
    }

    fn publish(&self, last: LogId, state: &State) {
        self.0.applied.modify(|applied| {
            *applied = AppliedAt { index: Some(last.index), version: state.version };
            true
        });
    }

    fn view(&self) -> View {
        let present = self.present();
        let meta = Meta { last_log_id: present.last, last_membership: present.membership.clone() };
        View { machine: self.clone(), meta, state: Arc::clone(&present.state) }
    }
}

fn seen(last: &LogId, entry_hash: u64, state: &State) -> AppliedEntry {
    let place = types::place(last);
    AppliedEntry { index: place.index, term: place.term, entry_hash, state_hash: hash_of(&wire::encode(state)) }
}

fn invalid(found: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, found)
}

/// The state as it was when a snapshot was asked for.
pub(crate) struct View {
    machine: Machine,
    meta: Meta,
    state: Arc<State>,
}

impl View {
    /// The snapshot's bytes, if they can be read again. A snapshot that cannot is worse than a log that grows.
    fn bytes(&self) -> io::Result<Vec<u8>> {
        let bytes = wire::encode(&*self.state);
        if bytes.len() > RAFT_SNAPSHOT_BYTES_MAX {
            return Err(invalid(format!(
                "the agreed state has {} bytes, a snapshot holds {RAFT_SNAPSHOT_BYTES_MAX}: remove links, tokens or nodes",
                bytes.len()
            )));
        }
        wire::decode::<State>(&bytes).map_err(|error| invalid(format!("the agreed state cannot be kept: {error}")))?;
        Ok(bytes)
    }
}

impl RaftSnapshotBuilder<Types> for View {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, Vec<u8>>> {
        let record = types::meta_record(&self.meta)
            .ok_or_else(|| invalid("a snapshot was asked for before anything was applied".to_owned()))?;
        let bytes = self.bytes()?;
        let mut saved = self.machine.0.saved.lock().await;
        if saved.is_none_or(|saved| saved < record.last) {
            let (meta, data) = (wire::encode(&record), bytes.clone());
            durable(|done| self.machine.0.store.save_snapshot_then(meta, data, done)).await?;
            *saved = Some(record.last);
        }
        Ok(Snapshot { meta: self.meta.clone(), snapshot: bytes })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = View;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let present = self.present();
        Ok((present.last, present.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let outcome = self.apply_one(entry);
            if let Some(responder) = responder {
                responder.send(Answer(outcome));
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<View> {
        let view = self.view();
        if !force && let Err(error) = view.bytes() {
            tracing::error!(code = "CONTROL_STATE_TOO_LARGE", %error, "no snapshot is made, and the log grows");
            return None;
        }
        Some(view)
    }

    async fn get_snapshot_builder(&mut self) -> View {
        self.view()
    }

    async fn install_snapshot(&mut self, meta: &Meta, data: Vec<u8>) -> io::Result<()> {
        let (Some(record), Some(last)) = (types::meta_record(meta), meta.last_log_id) else {
            return Err(invalid("a snapshot of nothing was to be installed".to_owned()));
        };
        let state: State =
            wire::decode(&data).map_err(|error| invalid(format!("the state's snapshot cannot be read: {error}")))?;
        let mut saved = self.0.saved.lock().await;
        if saved.is_none_or(|saved| saved < record.last) {
            durable(|done| self.0.store.save_snapshot_then(wire::encode(&record), data, done)).await?;
            *saved = Some(record.last);
        }
        drop(saved);
        let state = Arc::new(state);
        let membership = meta.last_membership.clone();
        let mut present = self.present();
        (present.state, present.last, present.membership) = (Arc::clone(&state), Some(last), membership);
        drop(present);
        self.publish(last, &state);
        if let Some(observer) = &self.0.observer {
            observer.on_install(self.0.me, &seen(&last, 0, &state));
        }
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, Vec<u8>>>> {
        let Some((meta, data)) = self.0.store.snapshot().map_err(failed)? else { return Ok(None) };
        let record = wire::decode(&meta).map_err(|error| invalid(format!("the state's snapshot: {error}")))?;
        let meta = types::meta(record).map_err(|error| invalid(format!("the state's snapshot: {error}")))?;
        Ok(Some(Snapshot { meta, snapshot: data }))
    }
}
