//! Typed requests to a peer: one stream each, a deadline each, and a bound on how many wait at a time.

use core::fmt;

use postroad_cluster::{
    time::Span,
    wire::{self, Message},
};

use super::{
    Closed, Connection, count,
    frame::{self, FrameError, StreamCode},
};
use crate::trace;

/// Why a request got no answer: who was asked for what, and what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The peer: `n3 (fra)`.
    pub peer: String,
    /// What was sent.
    pub request: &'static str,
    /// What happened.
    pub failure: CallFailure,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// No answer within this time. The peer may have acted on the request.
    TimedOut(Span),
    /// Too many requests wait for this peer's answers; it was not sent.
    Busy,
    /// The connection has ended. The peer may have acted on the request.
    Closed(Closed),
    /// One end sent what the other takes for no message.
    Malformed(String),
    /// The peer failed over this request.
    Failed,
}

impl CallError {
    /// The code that scripts and the API rely on.
    pub const fn code(&self) -> &'static str {
        match self.failure {
            CallFailure::TimedOut(_) => "TIMED_OUT",
            CallFailure::Busy => "BUSY",
            CallFailure::Closed(_) => "CLOSED",
            CallFailure::Malformed(_) => "MALFORMED",
            CallFailure::Failed => "FAILED",
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sent {} a {}: ", self.peer, self.request)?;
        match &self.failure {
            CallFailure::TimedOut(after) => {
                write!(f, "no answer within {} ms; it may still act on it", after.as_millis())
            }
            CallFailure::Busy => f.write_str("not sent, too many requests wait for its answers; try again"),
            CallFailure::Closed(closed) => write!(f, "the connection was {closed}"),
            CallFailure::Malformed(what) => write!(f, "{what}; one of the two may need an update"),
            CallFailure::Failed => f.write_str("it failed over it; its log says more"),
        }
    }
}

impl std::error::Error for CallError {}

impl CallFailure {
    fn of(error: FrameError, connection: &Connection) -> Self {
        match error {
            FrameError::Short => Self::Malformed("the answer was cut short".to_owned()),
            FrameError::TooLong(bytes) => Self::Malformed(format!("a message of {bytes} bytes is more than is read")),
            FrameError::GivenUp(code) if code == StreamCode::Malformed.number() => {
                Self::Malformed("the peer takes the request for no message".to_owned())
            }
            FrameError::GivenUp(_) => Self::Failed,
            FrameError::Lost(error) => Self::Closed(connection.link().closed_for(&error)),
        }
    }
}

impl Connection {
    /// Sends a request and waits at most `wait` for the answer. The wait travels with it, so that the peer stops when
    /// this end no longer waits; dropping the call tells the peer too. So does the trace that the caller is part of.
    ///
    /// # Errors
    /// [`CallError`]; at most [`postroad_cluster::limits::CALLS_PER_PEER_MAX`] calls of a connection wait at a time.
    pub async fn call<Q: Message, A: Message>(&self, request: &Q, wait: Span) -> Result<A, CallError> {
        count(&self.link().counters.calls);
        self.ask(request, wait).await.map_err(|failure| {
            count(&self.link().counters.calls_failed);
            CallError { peer: self.peer_text(), request: Q::WHAT, failure }
        })
    }

    async fn ask<Q: Message, A: Message>(&self, request: &Q, wait: Span) -> Result<A, CallFailure> {
        if let Some(closed) = self.close_reason() {
            return Err(CallFailure::Closed(closed));
        }
        let Ok(_permit) = self.0.calls.try_acquire() else { return Err(CallFailure::Busy) };
        let traced = trace::current().and_then(|trace| request.traced(trace));
        let request = wire::encode(traced.as_ref().unwrap_or(request));
        let deadline = self.clock().sleep_until(self.clock().now().after(wait));
        let answer = tokio::select! {
            biased;
            answer = frame::ask(self.quinn(), &request, wait) => answer,
            () = deadline => return Err(CallFailure::TimedOut(wait)),
        };
        let answer = answer.map_err(|error| CallFailure::of(error, self))?;
        wire::decode(&answer).map_err(|error| CallFailure::Malformed(error.to_string()))
    }
}
