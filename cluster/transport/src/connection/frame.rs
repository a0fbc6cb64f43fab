//! Messages on streams: a request is its length, the time that the caller waits, and the message; an answer is its
//! length and the message. All numbers are big-endian.

use postroad_cluster::{limits::MESSAGE_BYTES_MAX, time::Span};
use quinn::{ReadError, ReadExactError, RecvStream, SendStream, VarInt, WriteError};

/// Why a stream was reset or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum StreamCode {
    /// Whoever asked no longer waits.
    Abandoned = 1,
    /// What came was no message.
    Malformed = 2,
    /// Whoever was asked failed, and the request with it.
    Failed = 3,
}

impl StreamCode {
    pub(crate) const fn number(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }
}

/// Why no message came, or none went.
#[derive(Clone, Debug)]
pub(crate) enum FrameError {
    /// The stream ended before the message did.
    Short,
    /// The message says that it is longer than is read.
    TooLong(usize),
    /// The other end gave the stream up.
    GivenUp(VarInt),
    /// The connection has ended.
    Lost(quinn::ConnectionError),
}

impl From<ReadError> for FrameError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::GivenUp(code),
            ReadError::ConnectionLost(error) => Self::Lost(error),
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => Self::Short,
        }
    }
}

impl From<ReadExactError> for FrameError {
    fn from(error: ReadExactError) -> Self {
        match error {
            ReadExactError::FinishedEarly(_) => Self::Short,
            ReadExactError::ReadError(error) => error.into(),
        }
    }
}

impl From<WriteError> for FrameError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::GivenUp(code),
            WriteError::ConnectionLost(error) => Self::Lost(error),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Self::Short,
        }
    }
}

/// The two halves of a stream. Unless it is finished, dropping it resets both: half a message never looks whole.
pub(crate) struct Stream {
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
    /// What the other end reads if this one is dropped.
    pub(crate) on_drop: Option<StreamCode>,
}

impl Stream {
    pub(crate) fn new((send, receive): (SendStream, RecvStream), on_drop: StreamCode) -> Self {
        Self { send, receive, on_drop: Some(on_drop) }
    }

    pub(crate) async fn write_request(&mut self, message: &[u8], wait: Span) -> Result<(), FrameError> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        self.write([&length(message)[..], &wait_ms.to_be_bytes(), message].concat()).await
    }

    pub(crate) async fn write_answer(&mut self, message: &[u8]) -> Result<(), FrameError> {
        self.write([&length(message)[..], message].concat()).await
    }

    /// Writes all that this end says, in one piece: each write wakes the connection, which may send it by itself.
    async fn write(&mut self, all: Vec<u8>) -> Result<(), FrameError> {
        self.send.write_chunk(all.into()).await?;
        self.send.finish().map_err(|_| FrameError::Short)
    }

    /// The length of a request's message and how long the caller waits for its answer.
    pub(crate) async fn read_request_head(&mut self) -> Result<(usize, Span), FrameError> {
        let length = self.read_length().await?;
        let mut wait_ms = [0; 4];
        self.receive.read_exact(&mut wait_ms).await?;
        Ok((length, Span::from_millis(u32::from_be_bytes(wait_ms).into())))
    }

    pub(crate) async fn read_length(&mut self) -> Result<usize, FrameError> {
        let mut length = [0; 4];
        self.receive.read_exact(&mut length).await?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX { Err(FrameError::TooLong(length)) } else { Ok(length) }
    }

    /// Reads a message and the end of the stream behind it.
    pub(crate) async fn read_message(&mut self, length: usize) -> Result<Vec<u8>, FrameError> {
        // A length is only a claim: memory is taken as the bytes come.
        let mut message = Vec::with_capacity(length.min(64 << 10));
        while message.len() < length {
            let chunk = self.receive.read_chunk(length - message.len(), true).await?.ok_or(FrameError::Short)?;
            message.extend_from_slice(&chunk.bytes);
        }
        if self.receive.read_chunk(1, true).await?.is_some() {
            return Err(FrameError::TooLong(length + 1));
        }
        Ok(message)
    }

    /// Gives the stream up for this reason.
    pub(crate) fn give_up(&mut self, code: StreamCode) {
        self.on_drop = None;
        let _ = self.send.reset(code.number());
        let _ = self.receive.stop(code.number());
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(code) = self.on_drop {
            self.give_up(code);
        }
    }
}

fn length(message: &[u8]) -> [u8; 4] {
    u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// Sends a request on a stream of its own and reads the answer. The caller bounds the wait; dropping this gives up.
pub(crate) async fn ask(quinn: &quinn::Connection, request: &[u8], wait: Span) -> Result<Vec<u8>, FrameError> {
    if request.len() > MESSAGE_BYTES_MAX {
        return Err(FrameError::TooLong(request.len()));
    }
    let mut stream = Stream::new(quinn.open_bi().await.map_err(FrameError::Lost)?, StreamCode::Abandoned);
    stream.write_request(request, wait).await?;
    let length = stream.read_length().await?;
    let answer = stream.read_message(length).await?;
    stream.on_drop = None;
    Ok(answer)
}
