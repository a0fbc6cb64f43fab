//! Both halves of a circuit's stream, and the frame that begins it.

use postroad_cluster::{
    limits::OPEN_FRAME_BYTES_MAX,
    wire::{
        self,
        flow::{ClosingFrame, OpenFrame, ResetCode, TrialFrame, TrialKind},
    },
};
use postroad_transport::{
    connection::Connection,
    flow::{Receiver, Sender},
};

/// Both halves of a stream that resets when it is dropped: quinn would end it as if all had been sent.
pub(super) struct Stream(Option<(Sender, Receiver)>);

/// The first frame of a stream.
pub(super) enum First {
    /// A tunnel, and if it is a trial's, which.
    Open(OpenFrame, Option<TrialKind>),
    /// The dialling end closes the circuit.
    Closing,
}

/// Why a stream did not open.
pub(super) enum NotOpened {
    /// Nothing was handed to it: the circuit had ended before.
    Before(String),
    /// The circuit ended while its first frame was being sent, which may have arrived.
    During(String),
}

impl Stream {
    pub(super) const fn new(send: Sender, receive: Receiver) -> Self {
        Self(Some((send, receive)))
    }

    /// Opens one whose first frame are these bytes.
    pub(super) async fn open(circuit: &Connection, frame: &[u8]) -> Result<Self, NotOpened> {
        let lost = |error: &dyn std::fmt::Display| format!("the circuit ended: {error}");
        let opened = circuit.quinn().open_bi().await;
        let (send, receive) = opened.map_err(|error| NotOpened::Before(lost(&error)))?;
        let mut stream = Self::new(send, receive);
        let length = (frame.len() as u32).to_be_bytes();
        if let Some((send, _)) = stream.halves() {
            let written = send.write_all(&[&length[..], frame].concat()).await;
            written.map_err(|error| NotOpened::During(lost(&error)))?;
        }
        Ok(stream)
    }

    /// Both halves, for as long as it is not over.
    pub(super) const fn halves(&mut self) -> Option<(&mut Sender, &mut Receiver)> {
        match &mut self.0 {
            Some((send, receive)) => Some((send, receive)),
            None => None,
        }
    }

    /// Both halves for good: whoever takes them sees to their reset.
    pub(super) const fn take(&mut self) -> Option<(Sender, Receiver)> {
        self.0.take()
    }

    /// Resets both halves.
    pub(super) fn end(&mut self, code: ResetCode) {
        let Some((mut send, mut receive)) = self.0.take() else { return };
        // Errors say that the stream has ended already.
        let _ = send.reset((code as u32).into());
        let _ = receive.stop((code as u32).into());
    }

    /// Takes the tunnel back and waits for the target's word on it; none if its circuit ends before, or if it speaks.
    pub(super) async fn withdraw(&mut self) -> Option<ResetCode> {
        let (send, receive) = self.halves()?;
        // An error says that the target has stopped the stream, and so said its word.
        let _ = send.reset((ResetCode::Withdrawn as u32).into());
        if receive.read_chunk(1, true).await.is_ok() {
            return None;
        }
        let code = receive.received_reset().await.ok().flatten()?;
        Some(ResetCode::from_number(code.into_inner()))
    }

    /// Reads the first frame. An error is what to end the stream with.
    pub(super) async fn first(&mut self) -> Result<First, ResetCode> {
        let (_, receive) = self.halves().ok_or(ResetCode::NotGranted)?;
        let mut length = [0; 4];
        read(receive, &mut length).await?;
        let length = u32::from_be_bytes(length) as usize;
        if length > OPEN_FRAME_BYTES_MAX {
            return Err(ResetCode::NotGranted);
        }
        let mut bytes = vec![0; length];
        read(receive, &mut bytes).await?;
        if let Ok(frame) = wire::decode::<OpenFrame>(&bytes) {
            return Ok(First::Open(frame, None));
        }
        if wire::decode::<ClosingFrame>(&bytes).is_ok() {
            return Ok(First::Closing);
        }
        let trial = wire::decode::<TrialFrame>(&bytes).map_err(|_| ResetCode::NotGranted)?;
        Ok(First::Open(trial.open, Some(trial.kind)))
    }

    /// Completes when the consumer takes its tunnel back.
    pub(super) async fn withdrawn(&mut self) {
        if let Some((_, receive)) = self.halves()
            && let Ok(Some(code)) = receive.received_reset().await
            && is_withdrawn(code.into_inner())
        {
            return;
        }
        // Any other end is seen by whoever reads on.
        std::future::pending::<()>().await;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end(ResetCode::Stopping);
    }
}

fn is_withdrawn(code: u64) -> bool {
    ResetCode::from_number(code) == ResetCode::Withdrawn
}

/// A reset may overtake the frame: a consumer that has taken its tunnel back is told so.
async fn read(receive: &mut Receiver, bytes: &mut [u8]) -> Result<(), ResetCode> {
    if receive.read_exact(bytes).await.is_ok() {
        return Ok(());
    }
    match receive.received_reset().await {
        Ok(Some(code)) if is_withdrawn(code.into_inner()) => Err(ResetCode::NotConnected),
        _ => Err(ResetCode::NotGranted),
    }
}
