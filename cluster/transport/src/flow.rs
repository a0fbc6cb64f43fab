//! One flow: pumps an application's TCP connection against a stream of a circuit, half-closes and resets included.
//!
//! No buffer is held while a flow is idle. An error is never passed on as an end of file: whatever ends the pump
//! before both directions have ended cleanly, dropping its future included, resets both sides.

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use bytes::{Buf, Bytes};
use postroad_cluster::{
    limits::{FLOW_AHEAD_BYTES, FLOW_CHUNKS, FLOW_COPY_BYTES, FLOW_READ_BYTES},
    time::{Clock, Moment},
};
use quinn::{ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use tokio::task::yield_now;

use crate::network::{TcpRead, TcpStream, TcpWrite};

/// The sending half of a circuit's stream.
pub type Sender = SendStream;

/// The receiving half of a circuit's stream.
pub type Receiver = RecvStream;

/// The stream's code for a TCP connection that was reset.
pub const RESET_BY_APPLICATION: u32 = 0x10;

/// The stream's code for a flow that this node has given up.
pub const RESET_BY_NODE: u32 = 0x11;

/// What a flow has carried. Cheap to read from anywhere.
#[derive(Debug)]
pub struct FlowCounters {
    clock: Arc<dyn Clock>,
    began: Moment,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    last_activity: AtomicU64,
}

impl FlowCounters {
    /// The counters of a flow that begins now.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let began = clock.now();
        let zero = AtomicU64::new(0);
        Self {
            clock,
            began,
            sent_bytes: zero,
            received_bytes: AtomicU64::new(0),
            last_activity: AtomicU64::new(began.0),
        }
    }

    /// When the flow began.
    pub const fn began(&self) -> Moment {
        self.began
    }

    /// Bytes from the TCP connection into the circuit.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Bytes from the circuit into the TCP connection.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// When a byte was carried last.
    pub fn last_activity(&self) -> Moment {
        Moment(self.last_activity.load(Ordering::Relaxed))
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last_activity.store(self.clock.now().0, Ordering::Relaxed);
    }
}

/// How a flow ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// Both directions ended cleanly, and the other end has everything.
    Finished,
    /// The TCP connection was reset or failed; the other end's is reset too.
    TcpReset(io::ErrorKind),
    /// The other end reset the flow with this code; the TCP connection is reset too.
    PeerReset(u64),
    /// The circuit ended; the TCP connection is reset.
    CircuitLost(String),
}

impl FlowEnd {
    /// The end in one word, for counters.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::TcpReset(_) => "tcp_reset",
            Self::PeerReset(_) => "peer_reset",
            Self::CircuitLost(_) => "circuit_lost",
        }
    }

    const fn code(&self) -> u32 {
        match self {
            Self::TcpReset(_) | Self::PeerReset(_) => RESET_BY_APPLICATION,
            Self::Finished | Self::CircuitLost(_) => RESET_BY_NODE,
        }
    }
}

impl fmt::Display for FlowEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("both directions ended"),
            Self::TcpReset(kind) => write!(f, "the local TCP connection was reset ({kind})"),
            Self::PeerReset(code) => write!(f, "the other end reset the flow (code {code})"),
            Self::CircuitLost(reason) => write!(f, "the circuit ended: {reason}"),
        }
    }
}

impl From<ReadError> for FlowEnd {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::PeerReset(code.into_inner()),
            other => Self::CircuitLost(other.to_string()),
        }
    }
}

impl From<WriteError> for FlowEnd {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::PeerReset(code.into_inner()),
            other => Self::CircuitLost(other.to_string()),
        }
    }
}

impl From<StoppedError> for FlowEnd {
    fn from(error: StoppedError) -> Self {
        Self::CircuitLost(error.to_string())
    }
}

/// Both sides of a flow. Dropped before `done` it resets them, since quinn would finish a dropped stream as if all
/// had been sent.
struct Sides {
    read: Box<dyn TcpRead>,
    write: Box<dyn TcpWrite>,
    send: SendStream,
    recv: RecvStream,
    code: u32,
    done: bool,
}

impl Drop for Sides {
    fn drop(&mut self) {
        if !self.done {
            self.write.reset();
            // Errors say that the stream has ended already.
            let _ = self.send.reset(VarInt::from_u32(self.code));
            let _ = self.recv.stop(VarInt::from_u32(self.code));
        }
    }
}

/// What an application says before its flow is admitted: it travels at once and is kept until then, so that it can travel
/// again where the target has said that it connected nothing.
#[derive(Debug, Default)]
pub struct Ahead {
    kept: Vec<u8>,
    sent: usize,
    ended: bool,
}

impl Ahead {
    /// The flow opens on another stream: everything travels again.
    pub const fn again(&mut self) {
        self.sent = 0;
    }

    /// What has not left yet, for [`pump_after`].
    #[must_use]
    pub fn rest(mut self) -> Bytes {
        Bytes::from(self.kept.split_off(self.sent))
    }

    /// Sends what the application says, up to [`FLOW_AHEAD_BYTES`]. Completes when its connection has failed, and may be
    /// given up at any time.
    pub async fn run(&mut self, tcp: &mut TcpStream, send: &mut SendStream, counters: &FlowCounters) -> FlowEnd {
        loop {
            while let Some(rest) = self.kept.get(self.sent..).filter(|rest| !rest.is_empty()) {
                match send.write(rest).await {
                    Ok(count) => self.sent += count,
                    // Whoever waits for the stream's end knows better why.
                    Err(_) => std::future::pending().await,
                }
            }
            if self.ended || self.kept.len() >= FLOW_AHEAD_BYTES {
                poll_fn(|context| tcp.write.poll_closed(context)).await;
                return FlowEnd::TcpReset(io::ErrorKind::ConnectionReset);
            }
            if let Err(error) = poll_fn(|context| tcp.read.poll_readable(context)).await {
                return tcp_reset(&error);
            }
            self.kept.reserve_exact(FLOW_AHEAD_BYTES - self.kept.len());
            match tcp.read.try_read_behind(&mut self.kept) {
                Ok(0) => self.ended = true,
                Ok(count) => counters.count(&counters.sent_bytes, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return tcp_reset(&error),
            }
        }
    }
}

/// Pumps until both directions have ended or one has failed.
pub async fn pump(tcp: TcpStream, send: SendStream, recv: RecvStream, counters: Arc<FlowCounters>) -> FlowEnd {
    pump_after(tcp, send, recv, Bytes::new(), counters).await
}

/// The same, after the first bytes of the application, which were read from it already.
pub async fn pump_after(
    tcp: TcpStream,
    send: SendStream,
    recv: RecvStream,
    first: Bytes,
    counters: Arc<FlowCounters>,
) -> FlowEnd {
    let TcpStream { read, write, .. } = tcp;
    let mut sides = Sides { read, write, send, recv, code: RESET_BY_NODE, done: false };
    let result = {
        let Sides { read, write, send, recv, .. } = &mut sides;
        let up = async {
            if !first.is_empty() {
                send.write_chunk(first).await?;
            }
            upstream(&mut **read, send, &counters).await
        };
        let down = downstream(recv, &mut **write, &counters);
        both(up, down).await
    };
    let end = result.err().unwrap_or(FlowEnd::Finished);
    sides.code = end.code();
    sides.done = end == FlowEnd::Finished;
    end
}

/// Waits for both directions, or for the first that fails.
async fn both(
    up: impl Future<Output = Result<(), FlowEnd>>,
    down: impl Future<Output = Result<(), FlowEnd>>,
) -> Result<(), FlowEnd> {
    tokio::pin!(up, down);
    let (mut up_open, mut down_open) = (true, true);
    while up_open || down_open {
        tokio::select! {
            biased;
            result = &mut up, if up_open => { result?; up_open = false; }
            result = &mut down, if down_open => { result?; down_open = false; }
        }
    }
    Ok(())
}

fn tcp_reset(error: &io::Error) -> FlowEnd {
    FlowEnd::TcpReset(error.kind())
}

/// From the TCP connection into the circuit.
async fn upstream(read: &mut dyn TcpRead, send: &mut SendStream, counters: &FlowCounters) -> Result<(), FlowEnd> {
    let stopped = send.stopped();
    tokio::pin!(stopped);
    let mut buffer = Vec::new();
    loop {
        let readable = tokio::select! {
            biased;
            code = &mut stopped => return Err(code?.map_or(FlowEnd::Finished, |code| FlowEnd::PeerReset(code.into_inner()))),
            readable = poll_fn(|context| read.poll_readable(context)) => readable,
        };
        readable.map_err(|error| tcp_reset(&error))?;
        // The buffer lives only as long as there is something to read.
        loop {
            buffer.reserve_exact(FLOW_READ_BYTES);
            match read.try_read_behind(&mut buffer) {
                Ok(0) => {
                    drop(buffer);
                    // An error says that the peer has stopped the stream, which `stopped` tells better.
                    let _ = send.finish();
                    return match stopped.await? {
                        Some(code) => Err(FlowEnd::PeerReset(code.into_inner())),
                        None => Ok(()),
                    };
                }
                Ok(count) => {
                    let chunk = take(&mut buffer);
                    send.write_chunk(chunk).await?;
                    counters.count(&counters.sent_bytes, count);
                    if count == FLOW_READ_BYTES {
                        // It fills a send by itself; what a second read brings would leave as a remainder.
                        yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(tcp_reset(&error)),
            }
        }
        buffer = Vec::new();
    }
}

/// What the buffer holds; it is empty then. Little is copied, so that the large buffer serves again; much takes it along.
fn take(buffer: &mut Vec<u8>) -> Bytes {
    if buffer.len() >= FLOW_COPY_BYTES {
        return Bytes::from(std::mem::take(buffer));
    }
    let copy = Bytes::copy_from_slice(buffer);
    buffer.clear();
    copy
}

/// From the circuit into the TCP connection.
async fn downstream(recv: &mut RecvStream, write: &mut dyn TcpWrite, counters: &FlowCounters) -> Result<(), FlowEnd> {
    loop {
        // An idle flow waits with no more than this.
        let first = tokio::select! {
            biased;
            first = recv.read_chunk(usize::MAX, true) => first?,
            // There is nothing to write, so that a reset would go unnoticed.
            () = poll_fn(|context| write.poll_closed(context)) => {
                return Err(FlowEnd::TcpReset(io::ErrorKind::ConnectionReset));
            }
        };
        let Some(first) = first else {
            return poll_fn(|context| write.poll_shutdown(context)).await.map_err(|error| tcp_reset(&error));
        };
        let mut chunks = vec![Bytes::new(); FLOW_CHUNKS];
        chunks[0] = first.bytes;
        let more = at_once(recv.read_chunks(&mut chunks[1..])).await;
        let count = more.transpose()?.flatten().unwrap_or(0);
        write_all(write, &mut chunks[..=count], counters).await?;
    }
}

/// What a future says when it is asked once.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Writes every chunk, as many as possible in one call.
async fn write_all(write: &mut dyn TcpWrite, chunks: &mut [Bytes], counters: &FlowCounters) -> Result<(), FlowEnd> {
    let mut first = 0;
    loop {
        while chunks.get(first).is_some_and(Bytes::is_empty) {
            first += 1;
        }
        if first == chunks.len() {
            return Ok(());
        }
        let written = poll_fn(|context| {
            let mut slices = [IoSlice::new(&[]); FLOW_CHUNKS];
            let unwritten = &chunks[first..];
            for (slice, chunk) in slices.iter_mut().zip(unwritten) {
                *slice = IoSlice::new(chunk);
            }
            write.poll_write(context, &slices[..unwritten.len()])
        });
        let written = written.await;
        let mut written = written.map_err(|error| tcp_reset(&error))?;
        if written == 0 {
            return Err(FlowEnd::TcpReset(io::ErrorKind::WriteZero));
        }
        counters.count(&counters.received_bytes, written);
        for chunk in &mut chunks[first..] {
            let part = written.min(chunk.len());
            chunk.advance(part);
            written -= part;
        }
    }
}
