//! What other members ask of this one. Everything is checked before the library sees it: whatever arrives, the answer
//! is a message, and a message that cannot come from a sound member changes nothing.

use std::sync::PoisonError;

use openraft::{
    error::{Fatal, RaftError},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest, VoteRequest,
        VoteResponse,
    },
    storage::Snapshot,
};
use postroad_cluster::{
    id::NodeId,
    state::State,
    wire::{
        self,
        raft::{LogPlace, RaftAnswer, RaftMessage, VoteRecord},
    },
};

use tokio::time::Instant;

use super::{Consensus, why};
use crate::{
    error::ReadError,
    reassembly::{Chunk, Taken},
    types::{self, BadRecord, Entry, LogId, Types},
};

/// Why a message is not done.
struct Failure {
    code: &'static str,
    message: String,
}

impl Failure {
    fn refused(message: impl Into<String>) -> Self {
        Self { code: "RAFT_MESSAGE_REFUSED", message: message.into() }
    }
}

impl From<BadRecord> for Failure {
    fn from(error: BadRecord) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<Fatal<Types>> for Failure {
    fn from(fatal: Fatal<Types>) -> Self {
        Self { code: "CONTROL_STOPPED", message: why(&fatal) }
    }
}

impl From<RaftError<Types>> for Failure {
    fn from(error: RaftError<Types>) -> Self {
        match error {
            RaftError::Fatal(fatal) => fatal.into(),
            RaftError::APIError(never) => match never {},
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: "CONTROL_STORE_FAILED", message: error.to_string() }
    }
}

/// Whether `vote` is what `from` may speak for: itself, as the leader or as a candidate.
fn check_speaker(from: NodeId, vote: VoteRecord, leads: bool) -> Result<(), Failure> {
    if vote.node == from && vote.granted == leads {
        return Ok(());
    }
    let expected = if leads { "leader" } else { "candidate" };
    Err(Failure::refused(format!("expected {from} as {expected} of term {}, found another vote", vote.term)))
}

impl Consensus {
    /// Answers a message that `from`, whose identity the connection has proven, sent by its [`crate::Carrier`].
    pub async fn handle(&self, from: NodeId, message: Vec<u8>) -> Vec<u8> {
        let answer = match wire::decode(&message) {
            Ok(message) => self.answer(from, message).await,
            Err(error) => Err(Failure { code: "RAFT_MESSAGE_UNREADABLE", message: error.to_string() }),
        };
        wire::encode(&answer.unwrap_or_else(|failure| {
            tracing::debug!(%from, code = failure.code, message = failure.message, "a message of the control group failed");
            RaftAnswer::Failed { code: failure.code.to_owned(), message: failure.message }
        }))
    }

    async fn answer(&self, from: NodeId, message: RaftMessage) -> Result<RaftAnswer, Failure> {
        if from == self.0.me {
            return Err(Failure::refused("a member does not ask itself"));
        }
        match message {
            RaftMessage::Append { vote, previous, entries, committed } => {
                check_speaker(from, vote, true)?;
                self.append(vote, previous, &entries, committed).await
            }
            RaftMessage::Vote { vote, last, handed_over } => {
                check_speaker(from, vote, false)?;
                let request = VoteRequest {
                    vote: types::vote(vote)?,
                    last_log_id: types::log_id_of(last)?,
                    leadership_transfer: handed_over,
                };
                self.0.causes.candidate(vote.term, from, handed_over);
                Ok(voted(&self.0.raft.vote(request).await?))
            }
            RaftMessage::PreVote { vote, last } => {
                check_speaker(from, vote, false)?;
                let request = VoteRequest::new(types::vote(vote)?, types::log_id_of(last)?);
                Ok(voted(&self.0.raft.pre_vote(request).await?))
            }
            RaftMessage::HandOver { vote, to, last } => {
                check_speaker(from, vote, true)?;
                self.take_over(vote, to, last).await
            }
            RaftMessage::Snapshot { vote, meta, offset, total, chunk } => {
                check_speaker(from, vote, true)?;
                self.led();
                self.snapshot(vote, Chunk { from, term: vote.term, meta, offset, total, bytes: chunk }).await
            }
            RaftMessage::ReadIndex => match self.leader_index().await {
                Ok(index) => Ok(RaftAnswer::ReadIndex { index }),
                Err(error @ ReadError::NotLeader { .. }) => {
                    Err(Failure { code: "CONTROL_NOT_LEADER", message: error.to_string() })
                }
                Err(error) => Err(Failure { code: error.code(), message: error.to_string() }),
            },
        }
    }

    async fn append(
        &self,
        vote: VoteRecord,
        previous: Option<LogPlace>,
        entries: &[Vec<u8>],
        committed: Option<LogPlace>,
    ) -> Result<RaftAnswer, Failure> {
        let previous_id = types::log_id_of(previous)?;
        let entries = types::entries(vote.term, previous, entries)?;
        let request = AppendEntriesRequest {
            vote: types::vote(vote)?,
            prev_log_id: previous_id,
            entries,
            leader_commit: types::log_id_of(committed)?,
        };
        let newest = types::vote_record(&self.metrics().vote);
        if vote.term < newest.term {
            return Ok(RaftAnswer::Newer { vote: newest });
        }
        self.led();
        self.check_applied(previous_id, &request.entries)?;
        Ok(match self.0.raft.append_entries(request).await? {
            AppendEntriesResponse::Success => RaftAnswer::Appended,
            AppendEntriesResponse::Conflict => RaftAnswer::Conflict,
            AppendEntriesResponse::HigherVote(vote) => RaftAnswer::Newer { vote: types::vote_record(&vote) },
            AppendEntriesResponse::PartialSuccess(_) => {
                return Err(Failure::refused("only some of the entries were taken"));
            }
        })
    }

    fn led(&self) {
        *self.0.led_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// No leader can have another entry where one is applied. Whoever claims so has lost its disk or its mind, and is
    /// refused rather than followed.
    fn check_applied(&self, previous: Option<LogId>, entries: &[Entry]) -> Result<(), Failure> {
        let Some(applied) = self.0.machine.last() else { return Ok(()) };
        let claimed = previous.into_iter().chain(entries.iter().map(|entry| entry.log_id));
        for claim in claimed.take_while(|claim| claim.index <= applied.index) {
            let known = if claim.index == applied.index {
                Some(applied)
            } else {
                self.0.log.entry_at(claim.index)?.map(|entry| entry.log_id)
            };
            if known.is_some_and(|known| known != claim) {
                let found = format!("entry {} of term {} contradicts what is applied", claim.index, claim.leader_id);
                tracing::error!(code = "RAFT_CONTRADICTS_APPLIED", found, "a leader's log is not the group's");
                return Err(Failure { code: "RAFT_CONTRADICTS_APPLIED", message: found });
            }
        }
        Ok(())
    }

    async fn take_over(&self, vote: VoteRecord, to: NodeId, last: Option<LogPlace>) -> Result<RaftAnswer, Failure> {
        if to == self.0.me {
            self.0.causes.asked_to_stand();
        }
        let request = TransferLeaderRequest::new(types::vote(vote)?, to.0, types::log_id_of(last)?);
        Ok(match self.0.raft.handle_transfer_leader(request).await? {
            Ok(()) => RaftAnswer::HandOverTaken,
            Err(TransferLeaderError::VoteChanged { actual, .. }) => {
                RaftAnswer::HandOverOutdated { vote: types::vote_record(&actual) }
            }
            Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                RaftAnswer::HandOverBehind { last: types::place_of(actual.as_ref()) }
            }
        })
    }

    async fn snapshot(&self, vote: VoteRecord, chunk: Chunk) -> Result<RaftAnswer, Failure> {
        let newest = types::vote_record(&self.metrics().vote);
        if vote.term < newest.term {
            return Ok(RaftAnswer::Newer { vote: newest });
        }
        let (vote, meta) = (types::vote(vote)?, types::meta(chunk.meta.clone())?);
        let taken = self.0.arriving.lock().unwrap_or_else(PoisonError::into_inner).take(chunk);
        let data = match taken {
            Taken::From(offset) => return Ok(RaftAnswer::SnapshotFrom { offset }),
            Taken::Refused(found) => return Err(Failure::refused(found)),
            Taken::Whole(data) => data,
        };
        // Once the library has it, a snapshot that cannot be read would end this member.
        wire::decode::<State>(&data).map_err(BadRecord::Wire)?;
        let answer = self.0.raft.install_full_snapshot(vote, Snapshot { meta, snapshot: data }).await?;
        Ok(RaftAnswer::SnapshotTaken { vote: types::vote_record(&answer.vote) })
    }
}

fn voted(response: &VoteResponse<Types>) -> RaftAnswer {
    RaftAnswer::Voted {
        vote: types::vote_record(&response.vote),
        granted: response.vote_granted,
        last: types::place_of(response.last_log_id.as_ref()),
    }
}
