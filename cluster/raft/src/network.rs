//! What this member asks of others, over the carrier. Their answers are checked: none may end this member.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use openraft::{
    BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    alias::SnapshotOf,
    error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderError, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use postroad_cluster::{
    id::NodeId,
    limits::{RAFT_CHUNK_BYTES, RAFT_CHUNK_RETRIES, RAFT_CHUNK_WAIT},
    wire::{
        self,
        raft::{RaftAnswer, RaftMessage, StateSnapshotMeta, VoteRecord},
    },
};

use crate::{
    cause::Causes,
    options::Carrier,
    types::{self, BadRecord, Types, Vote},
};

/// Makes the way to each other member.
#[derive(Clone)]
pub(crate) struct Peers {
    pub(crate) carrier: Arc<dyn Carrier>,
    pub(crate) causes: Arc<Causes>,
}

/// The way to one other member.
pub(crate) struct Peer {
    peers: Peers,
    to: NodeId,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, to: u64, _node: &BasicNode) -> Peer {
        Peer { peers: self.clone(), to: NodeId(to) }
    }
}

/// Brings a message to a member and its answer back, with why not in words.
pub(crate) async fn ask(
    carrier: &dyn Carrier,
    to: NodeId,
    message: &RaftMessage,
    deadline: Duration,
) -> Result<RaftAnswer, String> {
    // The carrier keeps the deadline, too; this bounds one that does not.
    let call = carrier.call(to, wire::encode(message), deadline);
    let answer = match tokio::time::timeout(deadline, call).await {
        Ok(answer) => answer?,
        Err(_) => return Err(format!("{to} did not answer within {} ms", deadline.as_millis())),
    };
    match wire::decode(&answer) {
        Ok(RaftAnswer::Failed { code, message }) => Err(format!("{to} answers: {message} ({code})")),
        Ok(answer) => Ok(answer),
        Err(error) => Err(format!("the answer of {to} cannot be read: {error}")),
    }
}

fn network(found: impl ToString) -> NetworkError<Types> {
    NetworkError::from_string(found)
}

fn unexpected(to: NodeId) -> NetworkError<Types> {
    network(format!("{to} answers something else than was asked"))
}

impl From<BadRecord> for RPCError<Types> {
    fn from(error: BadRecord) -> Self {
        Self::Network(network(error))
    }
}

impl Peer {
    async fn ask(&self, message: &RaftMessage, deadline: Duration) -> Result<RaftAnswer, RPCError<Types>> {
        let answer = ask(&*self.peers.carrier, self.to, message, deadline).await;
        // "Unreachable" makes the library wait before it tries again.
        answer.map_err(|found| RPCError::Unreachable(Unreachable::from_string(found)))
    }

    fn voted(&self, answer: &RaftAnswer) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let &RaftAnswer::Voted { vote, granted, last } = answer else { return Err(unexpected(self.to).into()) };
        Ok(VoteResponse::new(types::vote(vote)?, types::log_id_of(last)?, granted))
    }

    /// A vote that another member calls newer, if it is.
    fn newer(&self, mine: &Vote, theirs: VoteRecord) -> Result<Vote, RPCError<Types>> {
        let theirs = types::vote(theirs)?;
        if matches!(theirs.partial_cmp(mine), Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)) {
            return Err(network(format!("{} calls an older vote newer", self.to)).into());
        }
        Ok(theirs)
    }

    async fn send_chunks(&self, vote: &Vote, meta: &StateSnapshotMeta, data: &[u8]) -> Result<Vote, RPCError<Types>> {
        let total = data.len() as u64;
        let (mut offset, mut retries) = (0_usize, 0);
        loop {
            let end = (offset + RAFT_CHUNK_BYTES).min(data.len());
            let chunk = data[offset..end].to_vec();
            let message = RaftMessage::Snapshot {
                vote: types::vote_record(vote),
                meta: meta.clone(),
                offset: offset as u64,
                total,
                chunk,
            };
            match self.ask(&message, RAFT_CHUNK_WAIT).await {
                Ok(RaftAnswer::SnapshotTaken { vote }) => return Ok(types::vote(vote)?),
                Ok(RaftAnswer::Newer { vote: newer }) => return self.newer(vote, newer),
                Ok(RaftAnswer::SnapshotFrom { offset: next }) if next < total => {
                    if next != end as u64 {
                        retries += 1;
                    }
                    // Below `total`, which is the length of a slice.
                    offset = next as usize;
                }
                Ok(_) => return Err(unexpected(self.to).into()),
                Err(error) => {
                    retries += 1;
                    if retries > RAFT_CHUNK_RETRIES {
                        return Err(error);
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
            if retries > RAFT_CHUNK_RETRIES {
                return Err(network(format!("{} lost its place in the snapshot too often", self.to)).into());
            }
        }
    }
}

/// Before a chunk is sent again: long enough for a connection to be made anew.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let message = RaftMessage::Append {
            vote: types::vote_record(&request.vote),
            previous: types::place_of(request.prev_log_id.as_ref()),
            entries: request.entries.iter().map(types::entry_bytes).collect(),
            committed: types::place_of(request.leader_commit.as_ref()),
        };
        // A heartbeat is of no use after the next one. Entries may need longer than that on a slow way.
        let deadline = if request.entries.is_empty() { option.soft_ttl() } else { option.hard_ttl() * 4 };
        match self.ask(&message, deadline).await? {
            RaftAnswer::Appended => Ok(AppendEntriesResponse::Success),
            RaftAnswer::Conflict if request.prev_log_id.is_some() => Ok(AppendEntriesResponse::Conflict),
            RaftAnswer::Newer { vote } => Ok(AppendEntriesResponse::HigherVote(self.newer(&request.vote, vote)?)),
            _ => Err(unexpected(self.to).into()),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let vote = types::vote_record(&request.vote);
        self.peers.causes.candidate(vote.term, vote.node, request.leadership_transfer);
        let last = types::place_of(request.last_log_id.as_ref());
        let message = RaftMessage::Vote { vote, last, handed_over: request.leadership_transfer };
        let answer = self.ask(&message, option.soft_ttl()).await?;
        self.voted(&answer)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let vote = types::vote_record(&request.vote);
        let message = RaftMessage::PreVote { vote, last: types::place_of(request.last_log_id.as_ref()) };
        let answer = self.ask(&message, option.soft_ttl()).await?;
        self.voted(&answer)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, Vec<u8>>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let Some(meta) = types::meta_record(&snapshot.meta) else {
            return Err(network("there is no snapshot to send").into());
        };
        let sending = self.send_chunks(&vote, &meta, &snapshot.snapshot);
        tokio::select! {
            biased;
            closed = pin!(cancel) => Err(closed.into()),
            answer = sending => Ok(SnapshotResponse::new(answer?)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let message = RaftMessage::HandOver {
            vote: types::vote_record(request.from_leader()),
            to: NodeId(*request.to_node_id()),
            last: types::place_of(request.last_log_id()),
        };
        match self.ask(&message, option.soft_ttl()).await? {
            RaftAnswer::HandOverTaken => Ok(Ok(())),
            RaftAnswer::HandOverOutdated { vote } => Ok(Err(TransferLeaderError::VoteChanged {
                expected: *request.from_leader(),
                actual: types::vote(vote)?,
            })),
            RaftAnswer::HandOverBehind { last } => Ok(Err(TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: types::log_id_of(last)?,
            })),
            _ => Err(unexpected(self.to).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, atomic::AtomicU64, atomic::Ordering};

    use postroad_cluster::wire::raft::{LogPlace, MembershipRecord};

    use super::*;
    use crate::{
        options::Reply,
        reassembly::{Chunk, Reassembly, Taken},
    };

    /// A member that reassembles, and loses every third chunk.
    #[derive(Default)]
    struct Receiver {
        calls: AtomicU64,
        reassembly: Mutex<Reassembly>,
        whole: Mutex<Option<Vec<u8>>>,
        deaf: bool,
    }

    impl Carrier for Receiver {
        fn call(&self, _to: NodeId, message: Vec<u8>, _deadline: Duration) -> Reply {
            assert!(message.len() < RAFT_CHUNK_BYTES + 1_024);
            if self.deaf || self.calls.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
                return Box::pin(async { Err("lost".to_owned()) });
            }
            let Ok(RaftMessage::Snapshot { vote, meta, offset, total, chunk }) = wire::decode(&message) else {
                panic!("a chunk was expected");
            };
            let chunk = Chunk { from: NodeId(1), term: vote.term, meta, offset, total, bytes: chunk };
            let answer = match self.reassembly.lock().unwrap().take(chunk) {
                Taken::From(offset) => RaftAnswer::SnapshotFrom { offset },
                Taken::Whole(data) => {
                    *self.whole.lock().unwrap() = Some(data);
                    RaftAnswer::SnapshotTaken { vote }
                }
                Taken::Refused(message) => RaftAnswer::Failed { code: "BAD".to_owned(), message },
            };
            Box::pin(async move { Ok(wire::encode(&answer)) })
        }
    }

    async fn send(receiver: Arc<Receiver>, data: &[u8]) -> Result<Vote, RPCError<Types>> {
        let peers = Peers { carrier: receiver, causes: Arc::new(Causes::new()) };
        let peer = Peer { peers, to: NodeId(2) };
        let vote = types::vote(VoteRecord { term: 3, node: NodeId(1), granted: true }).unwrap();
        let meta = StateSnapshotMeta {
            last: LogPlace { term: 1, index: 9 },
            membership_at: None,
            membership: MembershipRecord::default(),
        };
        peer.send_chunks(&vote, &meta, data).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_of_many_chunks_arrives_whole_though_some_are_lost() {
        let data: Vec<u8> = (0..5 * RAFT_CHUNK_BYTES + 7).map(|at| (at % 251) as u8).collect();
        let receiver = Arc::new(Receiver::default());
        let vote = send(Arc::clone(&receiver), &data).await.unwrap();
        assert_eq!(vote.leader_id.term, 3);
        assert!(receiver.whole.lock().unwrap().as_deref() == Some(&data[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_never_answers_is_given_up() {
        let receiver = Arc::new(Receiver { deaf: true, ..Receiver::default() });
        assert!(matches!(send(receiver, &[1; 10]).await, Err(RPCError::Unreachable(_))));
    }
}
