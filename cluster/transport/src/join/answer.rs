//! The control node's side: one request, its proof, and what comes of it.

use std::future::Future;

use postroad_cluster::{
    command::{Enrolment, Refusal},
    id::TokenId,
    limits::{HANDSHAKE_WAIT, JOIN_ANSWER_WAIT},
    wire::{
        self, WireError,
        join::{JoinRequest, JoinResponse},
    },
};
use postroad_trust::{PublicKey, TokenVerifier};

use super::PROOF_LABEL;
use crate::{
    connection::{
        CloseCode, closed, exporter,
        frame::{FrameError, Stream, StreamCode},
    },
    endpoint::Joiner,
};

/// The largest request; names and addresses have bounds of their own.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// What came of a joiner's connection, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinAnswer {
    /// It was answered: welcomed or refused, and whether it has received that.
    Answered {
        /// The token that it named.
        token: TokenId,
        /// The code of the refusal; none if it was welcomed.
        refused: Option<String>,
        /// Whether the joiner acknowledged the answer.
        received: bool,
    },
    /// It asked nothing that could be answered.
    Nothing,
}

/// Answers one joiner. `verifier` finds the token's verifier, of used tokens too, or says why it does not count;
/// `commit` is asked only after the proof held, and must have committed the use before it welcomes.
///
/// Every wait is bounded, whatever the joiner does: [`HANDSHAKE_WAIT`] for its request and for its acknowledgement,
/// [`JOIN_ANSWER_WAIT`] for the commit.
pub async fn answer_join<V, C, F>(joiner: Joiner, verifier: V, commit: C) -> JoinAnswer
where
    V: FnOnce(TokenId) -> Result<TokenVerifier, Refusal>,
    C: FnOnce(TokenId, Enrolment) -> F,
    F: Future<Output = JoinResponse>,
{
    let within = |wait| joiner.clock.sleep_until(joiner.clock.now().after(wait));
    let taken = tokio::select! {
        biased;
        taken = take(&joiner.quinn) => taken,
        () = within(HANDSHAKE_WAIT) => None,
    };
    let Some((mut stream, JoinRequest::Enrol { token, proof, enrolment })) = taken else {
        let reason = "a join begins with one request, and none came";
        closed::close(&joiner.quinn, CloseCode::Protocol.word(), CloseCode::Protocol, reason);
        return JoinAnswer::Nothing;
    };
    let response = if let Err(refusal) = check(&joiner.quinn, token, proof, &enrolment, verifier) {
        JoinResponse::Refused(refusal)
    } else {
        tokio::select! {
            biased;
            response = commit(token, enrolment) => response,
            () = within(JOIN_ANSWER_WAIT) => JoinResponse::Refused(too_late()),
        }
    };
    let received = tokio::select! {
        biased;
        received = give(&mut stream, &response) => received,
        () = within(HANDSHAKE_WAIT) => false,
    };
    closed::close(&joiner.quinn, CloseCode::Done.word(), CloseCode::Done, "the join was answered");
    let refused = match response {
        JoinResponse::Refused(refusal) => Some(refusal.code),
        JoinResponse::Welcome { .. } => None,
    };
    JoinAnswer::Answered { token, refused, received }
}

fn too_late() -> Refusal {
    let hint = "Run the same command again: the same token with the same key gets the same answer.";
    Refusal::new("TIMED_OUT", "the control nodes did not decide in time", hint)
}

async fn take(quinn: &quinn::Connection) -> Option<(Stream, JoinRequest)> {
    let mut stream = Stream::new(quinn.accept_bi().await.ok()?, StreamCode::Malformed);
    let (length, _) = stream.read_request_head().await.ok()?;
    if length > REQUEST_BYTES_MAX {
        return None;
    }
    let message = stream.read_message(length).await.ok()?;
    let request: Result<JoinRequest, WireError> = wire::decode(&message);
    Some((stream, request.ok()?))
}

/// Whether the joiner holds the secret of the token that it names.
fn check<V>(
    quinn: &quinn::Connection,
    token: TokenId,
    proof: [u8; 32],
    enrolment: &Enrolment,
    verifier: V,
) -> Result<(), Refusal>
where
    V: FnOnce(TokenId) -> Result<TokenVerifier, Refusal>,
{
    verifier(token)?
        .check(&exporter(quinn, PROOF_LABEL, &[]), &PublicKey(enrolment.public), &proof)
        .map_err(|error| Refusal::new(error.code(), error.to_string(), "Copy the token again, whole, or make another."))
}

/// Sends the answer and waits until it has arrived.
async fn give(stream: &mut Stream, response: &JoinResponse) -> bool {
    let sent: Result<(), FrameError> = stream.write_answer(&wire::encode(response)).await;
    stream.on_drop = None;
    sent.is_ok() && matches!(stream.send.stopped().await, Ok(None))
}
