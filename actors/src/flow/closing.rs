//! How both ends of a circuit agree that it is empty, so that no flow is lost with a circuit that nobody needs.
//!
//! The dialling end stops opening and taking streams there in the same step in which it sees that none is open, and says
//! so in the circuit. What the other end opens before it hears that is refused by a word, and opens on another circuit.

use std::sync::Arc;

use postroad_cluster::{
    limits::CIRCUIT_CLOSE_WAIT,
    wire::{
        self,
        flow::{ClosingFrame, ResetCode},
    },
};

use super::stream::{NotOpened, Stream};
use crate::{
    fabric::{Fabric, circuits::Circuit},
    ports::sleep,
};

/// Agrees with the other end that nothing is opened on the circuit any more. One that does not answer has nothing open
/// here either: what it opens now is refused.
pub(crate) async fn ask(fabric: &Fabric, circuit: &Circuit) {
    let asking = async {
        let mut stream = match Stream::open(&circuit.connection, &wire::encode(&ClosingFrame)).await {
            Ok(stream) => stream,
            Err(NotOpened::Before(reason) | NotOpened::During(reason)) => {
                return tracing::debug!(peer = %circuit.key.peer, reason, "a circuit ended before it was closed");
            }
        };
        if let Some((_, receive)) = stream.halves() {
            // The end of the stream is the answer, and a reset is one too.
            let _ = receive.read_chunk(1, true).await;
        }
    };
    tokio::select! {
        biased;
        () = asking => {}
        () = sleep(&*fabric.clock, CIRCUIT_CLOSE_WAIT) => {}
    }
}

/// The other end closes the circuit: opens nothing there any more, and says when nothing is open.
pub(super) async fn agree(circuit: &Arc<Circuit>, mut stream: Stream) {
    circuit.close();
    tokio::select! {
        biased;
        () = circuit.emptied() => {}
        _ = circuit.connection.closed() => return stream.end(ResetCode::Stopping),
    }
    let Some((send, _)) = stream.halves() else { return };
    // Errors say that the circuit has ended, which is what the other end wants.
    let _ = send.finish();
    let _ = send.stopped().await;
}
