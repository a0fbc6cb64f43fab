//! Answers to a peer's requests: a bounded number at a time, each for as long as its caller waits.

use std::{future::Future, sync::Arc};

use postroad_cluster::{
    limits::{CALL_BYTES_PER_PEER_MAX, CALL_WAIT_MAX, CALLS_PER_PEER_MAX},
    time::{Clock, Moment},
    wire::{self, Message},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Closed, Connection, Link, count,
    frame::{FrameError, Stream, StreamCode},
};
use crate::trace::{Doing, carry};

/// What a request's permits of memory are counted in.
const BYTES_PER_PERMIT: usize = 1 << 10;

/// What the tasks of one connection share.
struct Server<H> {
    handler: H,
    /// The peer, as messages that follow from its requests name their sender.
    from: Arc<str>,
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    memory: Arc<Semaphore>,
}

impl Connection {
    /// Answers the peer's requests until the connection ends: at most
    /// [`postroad_cluster::limits::CALLS_PER_PEER_MAX`] at a time, further ones wait unread. What is no message ends
    /// its own stream and is counted. A handler is dropped when its caller no longer waits; it goes on with the trace that
    /// its request is part of.
    pub async fn serve<Q, A, H, F>(&self, handler: H) -> Closed
    where
        Q: Message + Send + 'static,
        A: Message + Send + 'static,
        H: Fn(Q) -> F + Send + Sync + 'static,
        F: Future<Output = A> + Send + 'static,
    {
        self.serve_until(move |request, _| handler(request)).await
    }

    /// As [`Connection::serve`], for handlers that may take all the time that the caller waits: they are told when it
    /// ends here. An answer should leave a round trip earlier.
    pub async fn serve_until<Q, A, H, F>(&self, handler: H) -> Closed
    where
        Q: Message + Send + 'static,
        A: Message + Send + 'static,
        H: Fn(Q, Moment) -> F + Send + Sync + 'static,
        F: Future<Output = A> + Send + 'static,
    {
        let server = Arc::new(Server {
            handler,
            from: self.node().to_string().into(),
            link: Arc::clone(&self.0.link),
            clock: Arc::clone(self.clock()),
            memory: Arc::new(Semaphore::new(CALL_BYTES_PER_PEER_MAX / BYTES_PER_PERMIT)),
        });
        let places = Arc::new(Semaphore::new(CALLS_PER_PEER_MAX));
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes this semaphore");
            let stream = match self.quinn().accept_bi().await {
                Ok(halves) => Stream::new(halves, StreamCode::Failed),
                Err(error) => return self.link().closed_for(&error),
            };
            tokio::spawn(answer(Arc::clone(&server), stream, place));
        }
    }
}

async fn answer<Q, A, H, F>(server: Arc<Server<H>>, mut stream: Stream, _place: OwnedSemaphorePermit)
where
    Q: Message,
    A: Message,
    H: Fn(Q, Moment) -> F,
    F: Future<Output = A>,
{
    let abandoned = stream.send.stopped();
    let begin = server.clock.now();
    let mut deadline = begin.after(CALL_WAIT_MAX);
    let counters = &server.link.counters;
    let outcome = tokio::select! {
        biased;
        outcome = take(&server, &mut stream, &mut deadline) => outcome,
        () = server.clock.sleep_until(begin.after(CALL_WAIT_MAX)) => Err(FrameError::Short),
    };
    let (doing, request, _memory) = match outcome {
        Ok(taken) => taken,
        Err(FrameError::Lost(_)) => return,
        Err(FrameError::GivenUp(_)) => return count(&counters.abandoned),
        Err(FrameError::Short | FrameError::TooLong(_)) => {
            count(&counters.malformed);
            return stream.give_up(StreamCode::Malformed);
        }
    };
    tokio::select! {
        biased;
        sent = carry(doing, reply(&server, &mut stream, request, deadline)) => count(if sent { &counters.served } else { &counters.abandoned }),
        _ = abandoned => count(&counters.abandoned),
        () = server.clock.sleep_until(deadline) => count(&counters.abandoned),
    }
}

/// Reads one request; `deadline` becomes the moment at which its caller no longer waits.
async fn take<Q: Message, H>(
    server: &Server<H>,
    stream: &mut Stream,
    deadline: &mut Moment,
) -> Result<(Doing, Q, OwnedSemaphorePermit), FrameError> {
    let (length, wait) = stream.read_request_head().await?;
    *deadline = server.clock.now().after(wait.min(CALL_WAIT_MAX));
    let permits = u32::try_from(length.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX);
    let memory = Arc::clone(&server.memory).acquire_many_owned(permits).await.expect("nobody closes this semaphore");
    let message = stream.read_message(length).await?;
    // What went wrong is counted and told to the peer by code; its bytes are not worth a line of the log each.
    let (trace, request) = wire::decode(&message).and_then(Q::untraced).map_err(|_| FrameError::Short)?;
    Ok((Doing { trace, by: Some(Arc::clone(&server.from)) }, request, memory))
}

async fn reply<Q, A, H, F>(server: &Server<H>, stream: &mut Stream, request: Q, deadline: Moment) -> bool
where
    A: Message,
    H: Fn(Q, Moment) -> F,
    F: Future<Output = A>,
{
    let answer = (server.handler)(request, deadline).await;
    let sent = stream.write_answer(&wire::encode(&answer)).await.is_ok();
    if sent {
        stream.on_drop = None;
    }
    sent
}
