//! What came of the demonstration: figures for people and scripts, and whether everything was as it must be.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::traffic::{Fault, Transfer};
use crate::errors::Failure;

/// No flow may stand still for longer.
pub const STALL_MAX: Duration = Duration::from_secs(5);
/// Faults that are shown; more of them have the same cause.
const FAULTS_SHOWN: usize = 5;

/// The death of a relay, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The relay that was killed.
    pub relay: String,
    /// The process that it was.
    pub pid: u32,
    /// The flows that it carried.
    pub flows: u64,
    /// The relay that carried them afterwards.
    pub moved_to: Option<String>,
    /// The longest pause of any flow from before its death until it was ready again.
    pub stall: Duration,
    /// How long after its death it was ready again.
    pub back_after: Duration,
}

impl Event {
    fn json(&self) -> Value {
        json!({
            "relay": self.relay,
            "pid": self.pid,
            "signal": "SIGKILL",
            "flows": self.flows,
            "moved_to": self.moved_to,
            "longest_stall_ms": milliseconds(self.stall),
            "back_after_ms": milliseconds(self.back_after),
        })
    }
}

/// One direction of the transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direction {
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes that have arrived.
    pub received: u64,
    /// The hash at the sender; nothing if it did not get to its end.
    pub sent_sha256: Option<String>,
    /// The hash at the receiver.
    pub received_sha256: Option<String>,
    /// Whether both have hashed and found the same.
    pub equal: bool,
}

impl Direction {
    /// What came of a transfer.
    pub fn of(transfer: &Transfer) -> Self {
        Self {
            bytes: transfer.bytes,
            received: transfer.received.load(std::sync::atomic::Ordering::Relaxed),
            sent_sha256: transfer.sent_hash.get().map(hexadecimal),
            received_sha256: transfer.received_hash.get().map(hexadecimal),
            equal: transfer.is_equal(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "bytes": self.bytes,
            "received": self.received,
            "sent_sha256": self.sent_sha256,
            "received_sha256": self.received_sha256,
            "equal": self.equal,
        })
    }
}

/// A relay's drain under load, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The relay.
    pub relay: String,
    /// The flows that it carried.
    pub flows: u64,
    /// The relay that carried them afterwards.
    pub moved_to: Option<String>,
    /// The longest pause of any flow from before the drain until after its end, the time between two messages included.
    pub gap: Duration,
    /// How long it took until nothing was left.
    pub took: Duration,
}

impl Drained {
    fn json(&self) -> Value {
        json!({
            "relay": self.relay,
            "flows": self.flows,
            "moved_to": self.moved_to,
            "longest_gap_ms": milliseconds(self.gap),
            "took_ms": milliseconds(self.took),
        })
    }
}

/// Everything that came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// From the consumer to the target.
    pub upload: Direction,
    /// From the target to the consumer.
    pub download: Direction,
    /// How long both took, beside each other.
    pub transfer_took: Duration,
    /// How many chatty flows there were.
    pub chatty_flows: u64,
    /// How many of their messages were answered.
    pub answers: u64,
    /// Flows, the transfers among them.
    pub flows: u64,
    /// Flows that ended by an end of file each way, without a reset.
    pub clean_ends: u64,
    /// What went wrong.
    pub faults: Vec<Fault>,
    /// The deaths.
    pub events: Vec<Event>,
    /// The drains.
    pub drains: Vec<Drained>,
    /// The longest pause of any flow ever.
    pub longest_stall: Duration,
    /// How long everything took.
    pub took: Duration,
}

impl Report {
    /// The facts for scripts; `place` says where the demonstration's directory is or was, and its nodes.
    pub fn json(&self, place: &Value) -> Value {
        json!({
            "ok": self.verdict().is_ok(),
            "seconds": self.took.as_secs_f64(),
            "transfer": {
                "seconds": self.transfer_took.as_secs_f64(),
                "upload": self.upload.json(),
                "download": self.download.json(),
            },
            "chatty": { "flows": self.chatty_flows, "answers": self.answers },
            "endings": { "flows": self.flows, "clean": self.clean_ends },
            "events": self.events.iter().map(Event::json).collect::<Vec<_>>(),
            "drains": self.drains.iter().map(Drained::json).collect::<Vec<_>>(),
            "longest_stall_ms": milliseconds(self.longest_stall),
            "longest_stall_allowed_ms": milliseconds(STALL_MAX),
            "faults": self.faults.iter().map(Fault::said).collect::<Vec<_>>(),
            "place": place,
        })
    }

    /// Whether bytes and endings were right and no flow stood still for too long.
    ///
    /// # Errors
    /// What was not as it must be, the worst first.
    pub fn verdict(&self) -> Result<(), Failure> {
        let of = |wanted: fn(&Fault) -> bool| {
            let said: Vec<&str> = self.faults.iter().filter(|fault| wanted(fault)).map(Fault::said).collect();
            let more = said.len().saturating_sub(FAULTS_SHOWN);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            said[..said.len().min(FAULTS_SHOWN)].join("; ") + &more
        };
        let bytes = of(|fault| matches!(fault, Fault::Bytes(_)));
        if !bytes.is_empty() {
            return Err(Failure::failed("DEMO_BYTES_WRONG", bytes));
        }
        let endings = of(|fault| matches!(fault, Fault::Ending(_)));
        if !endings.is_empty() {
            return Err(Failure::failed("DEMO_ENDINGS_WRONG", endings));
        }
        for (direction, which) in [(&self.upload, "to"), (&self.download, "from")] {
            if direction.bytes > 0 && !direction.equal {
                let message = format!(
                    "the transfer {which} the target has other hashes at its ends: {} of {} bytes have arrived",
                    direction.received, direction.bytes
                );
                return Err(Failure::failed("DEMO_BYTES_WRONG", message));
            }
        }
        if self.clean_ends != self.flows {
            let message = format!("only {} of {} flows have ended by an end of file", self.clean_ends, self.flows);
            return Err(Failure::failed("DEMO_ENDINGS_WRONG", message));
        }
        if self.longest_stall > STALL_MAX {
            let (found, allowed) = (milliseconds(self.longest_stall), milliseconds(STALL_MAX));
            let message = format!("a flow stood still for {found} ms, and {allowed} ms are allowed");
            return Err(Failure::failed("DEMO_STALLED", message));
        }
        Ok(())
    }
}

/// A span in whole milliseconds.
pub fn milliseconds(span: Duration) -> u64 {
    span.as_millis() as u64
}

fn hexadecimal(hash: &[u8; 32]) -> String {
    hash.iter().fold(String::with_capacity(64), |mut text, byte| {
        // A text takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        let direction = Direction {
            bytes: 9,
            received: 9,
            sent_sha256: Some(hexadecimal(&[0xa0; 32])),
            received_sha256: Some(hexadecimal(&[0xa0; 32])),
            equal: true,
        };
        Report {
            upload: direction.clone(),
            download: direction,
            transfer_took: Duration::from_secs(2),
            chatty_flows: 1,
            answers: 40,
            flows: 3,
            clean_ends: 3,
            faults: Vec::new(),
            events: Vec::new(),
            drains: Vec::new(),
            longest_stall: STALL_MAX,
            took: Duration::from_secs(30),
        }
    }

    fn code(change: impl FnOnce(&mut Report)) -> Option<String> {
        let mut report = good();
        change(&mut report);
        report.verdict().err().map(|failure| failure.code.into_owned())
    }

    #[test]
    fn bytes_endings_and_stalls_decide() {
        assert_eq!(code(|_| {}), None);
        assert_eq!(code(|it| it.download.equal = false).as_deref(), Some("DEMO_BYTES_WRONG"));
        assert_eq!(code(|it| it.clean_ends = 2).as_deref(), Some("DEMO_ENDINGS_WRONG"));
        assert_eq!(code(|it| it.longest_stall += Duration::from_millis(1)).as_deref(), Some("DEMO_STALLED"));
        assert_eq!(code(|it| it.faults.push(Fault::Ending("reset".into()))).as_deref(), Some("DEMO_ENDINGS_WRONG"));
        let both = |it: &mut Report| it.faults = vec![Fault::Ending("reset".into()), Fault::Bytes("lost".into())];
        assert_eq!(code(both).as_deref(), Some("DEMO_BYTES_WRONG"));
        let none = |it: &mut Report| {
            it.upload = Direction { bytes: 0, received: 0, sent_sha256: None, received_sha256: None, equal: false };
        };
        assert_eq!(code(none), None, "no transfer was asked for");
    }

    #[test]
    fn many_faults_are_counted_not_listed() {
        let mut report = good();
        report.faults = (0..9).map(|number| Fault::Ending(format!("flow {number}"))).collect();
        let message = report.verdict().unwrap_err().message;
        assert!(message.contains("flow 4; and 4 more") && !message.contains("flow 5"), "{message}");
    }

    #[test]
    fn scripts_read_figures() {
        let json = good().json(&json!({ "directory": "d" }));
        assert_eq!((json["ok"].as_bool(), json["endings"]["clean"].as_u64()), (Some(true), Some(3)));
        assert_eq!(json["transfer"]["upload"]["sent_sha256"].as_str().map(str::len), Some(64));
        assert_eq!(json["place"]["directory"], "d");
    }
}
