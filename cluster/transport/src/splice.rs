//! The byte path between two TCP connections: a client's and a node's, half-closes and resets included.
//!
//! An idle path holds no buffer. Small messages are copied through a buffer of the thread; where one read fills it,
//! bytes go through a pipe of the kernel instead, if the network has one to lend. An error is never passed on as an
//! end of file: whatever ends the path before both directions have ended cleanly, dropping its future included,
//! resets both connections.

mod direction;
mod watch;

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use direction::{Broken, Direction};
use postroad_cluster::{
    limits::{SPLICE_SILENT_WAIT, SPLICE_UNANSWERED_WAIT},
    time::{Clock, Moment, Span},
};
use watch::{Place, Watch};

use crate::network::{Network, TcpRead, TcpStream, TcpWrite};

/// The two connections of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was accepted.
    Client,
    /// The one that was opened for it.
    Node,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Node => "node",
        })
    }
}

/// How a path ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpliceEnd {
    /// Both directions ended cleanly, and the kernel has taken everything.
    Finished,
    /// This side's connection was reset or failed; the other one is reset too.
    Reset(Side, io::ErrorKind),
    /// The other side had ended, and this one carried no byte for so long; both are reset.
    Silent(Side, Span),
    /// The host of this side answered nothing for so long while bytes were sent to it; both are reset.
    Unanswered(Side, Span),
}

impl SpliceEnd {
    /// The end in one word, for counters.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Reset(Side::Client, _) => "client_reset",
            Self::Reset(Side::Node, _) => "node_reset",
            Self::Silent(..) => "silent",
            Self::Unanswered(..) => "unanswered",
        }
    }
}

impl fmt::Display for SpliceEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("both sides ended"),
            Self::Reset(side, kind) => write!(f, "the {side}'s connection was reset ({kind})"),
            Self::Silent(side, span) => {
                write!(f, "the other side had ended, and the {side} was silent for {} s", span.as_secs())
            }
            Self::Unanswered(side, span) => {
                write!(f, "the {side}'s host answered nothing for {} s", span.as_secs())
            }
        }
    }
}

/// What a path has carried, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spliced {
    /// Bytes from the client to the node, what was written first included.
    pub client_bytes: u64,
    /// Bytes from the node to the client.
    pub node_bytes: u64,
    /// How it ended.
    pub end: SpliceEnd,
}

/// How long a path waits for what does not come. Both are looked at four times as often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceWaits {
    /// One side has ended, the other carries no byte (DB-33).
    pub silent: Span,
    /// Bytes were sent, and the peer's host answers nothing.
    pub unanswered: Span,
}

impl Default for SpliceWaits {
    fn default() -> Self {
        Self { silent: SPLICE_SILENT_WAIT, unanswered: SPLICE_UNANSWERED_WAIT }
    }
}

/// What all paths of one node share. Clones are the same.
#[derive(Clone, Debug)]
pub struct Splicer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    network: Arc<dyn Network>,
    clock: Arc<dyn Clock>,
    waits: SpliceWaits,
    watch: Watch,
}

impl Splicer {
    /// A splicer over these ports.
    #[must_use]
    pub fn new(network: Arc<dyn Network>, clock: Arc<dyn Clock>, waits: SpliceWaits) -> Self {
        let watch = Watch::new(Arc::clone(&clock), waits.silent.min(waits.unanswered) / 4);
        Self(Arc::new(Shared { network, clock, waits, watch }))
    }

    /// The path between two connections, within a tokio runtime. `first` goes to the node before anything of the
    /// client, in one write. Dropping the future resets both connections.
    pub fn splice(&self, client: TcpStream, node: TcpStream, first: Vec<u8>) -> Splice {
        Splice {
            client: Leg { read: client.read, write: client.write },
            node: Leg { read: node.read, write: node.write },
            up: Direction::new(first),
            down: Direction::new(Vec::new()),
            watched: None,
            begun: false,
            shared: Arc::clone(&self.0),
            done: false,
        }
    }
}

struct Leg {
    read: Box<dyn TcpRead>,
    write: Box<dyn TcpWrite>,
}

/// A path's future. It is small, since thousands of idle ones lie in memory.
#[must_use = "nothing moves unless it is polled"]
pub struct Splice {
    client: Leg,
    node: Leg,
    /// From the client to the node.
    up: Direction,
    /// From the node to the client.
    down: Direction,
    /// Present while something may have to be given up.
    watched: Option<Watched>,
    /// It was watched before.
    begun: bool,
    shared: Arc<Shared>,
    done: bool,
}

/// What a path remembers between two looks of the watch.
struct Watched {
    place: Place,
    waker: Waker,
    look: u64,
    /// Bytes carried at the last look.
    bytes: u64,
    /// Since when no byte was carried.
    silent_since: Moment,
    /// Since when bytes may be unanswered.
    answered_at: Moment,
}

impl fmt::Debug for Splice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (up, down) = (self.up.bytes, self.down.bytes);
        f.debug_struct("Splice").field("client_bytes", &up).field("node_bytes", &down).finish_non_exhaustive()
    }
}

impl Future for Splice {
    type Output = Spliced;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Spliced> {
        let path = &mut *self;
        let carried = path.up.bytes + path.down.bytes;
        let end = match path.carry(context) {
            Ok(Poll::Ready(())) => Some(SpliceEnd::Finished),
            Ok(Poll::Pending) => path.look(context, carried),
            Err(end) => Some(end),
        };
        let Some(end) = end else { return Poll::Pending };
        path.done = end == SpliceEnd::Finished;
        path.end();
        Poll::Ready(Spliced { client_bytes: path.up.bytes, node_bytes: path.down.bytes, end })
    }
}

impl Splice {
    /// Moves what can be moved, both ways.
    fn carry(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, SpliceEnd> {
        let Self { client, node, up, down, shared, .. } = self;
        let network = &*shared.network;
        let broken = |from: Side, to: Side| {
            move |broken: Broken| match broken {
                Broken::Reading(kind) => SpliceEnd::Reset(from, kind),
                // So does Linux tell a reset that comes after the end of file.
                Broken::Writing(io::ErrorKind::BrokenPipe) => SpliceEnd::Reset(to, io::ErrorKind::ConnectionReset),
                Broken::Writing(kind) => SpliceEnd::Reset(to, kind),
            }
        };
        let upward = up.carry(context, (&mut *client.read, &mut *node.write), network, down.is_ended());
        upward.map_err(broken(Side::Client, Side::Node))?;
        let downward = down.carry(context, (&mut *node.read, &mut *client.write), network, up.is_ended());
        downward.map_err(broken(Side::Node, Side::Client))?;
        if up.is_ended() && down.is_ended() {
            return Ok(Poll::Ready(()));
        }
        // A side that is not being read would be reset unnoticed.
        if !up.is_reading() && client.write.poll_closed(context).is_ready() {
            return Err(SpliceEnd::Reset(Side::Client, io::ErrorKind::ConnectionReset));
        }
        if !down.is_reading() && node.write.poll_closed(context).is_ready() {
            return Err(SpliceEnd::Reset(Side::Node, io::ErrorKind::ConnectionReset));
        }
        Ok(Poll::Pending)
    }

    /// Asks to be watched when there is a reason to, and looks for what must be given up when the watch says so.
    fn look(&mut self, context: &mut Context<'_>, carried_before: u64) -> Option<SpliceEnd> {
        let bytes = self.up.bytes + self.down.bytes;
        let half_closed = self.up.is_ended() || self.down.is_ended();
        let Some(watched) = &mut self.watched else {
            // A path that carried nothing has nothing unanswered that it did not have before. Each is looked at once, to
            // see that it lasts.
            if half_closed || bytes != carried_before || !self.begun {
                self.begun = true;
                let now = self.shared.clock.now();
                let waker = context.waker().clone();
                let (place, look) = self.shared.watch.enter(waker.clone());
                self.watched = Some(Watched { place, waker, look, bytes, silent_since: now, answered_at: now });
            }
            return None;
        };
        let watch = &self.shared.watch;
        if watch.looks() == watched.look {
            if !watched.waker.will_wake(context.waker()) {
                watched.waker.clone_from(context.waker());
                watch.stay(watched.place, watched.waker.clone());
            }
            return None;
        }
        let now = self.shared.clock.now();
        watched.look = watch.looks();
        self.client.write.lasts();
        self.node.write.lasts();
        if bytes != watched.bytes {
            watched.bytes = bytes;
            watched.silent_since = now;
        }
        let silent = now.since(watched.silent_since);
        if half_closed && silent >= self.shared.waits.silent {
            let side = if self.up.is_ended() { Side::Node } else { Side::Client };
            return Some(SpliceEnd::Silent(side, silent));
        }
        let legs = [(Side::Client, self.client.write.unanswered()), (Side::Node, self.node.write.unanswered())];
        let longest = legs.into_iter().filter_map(|(side, span)| span.map(|span| (span, side)));
        let longest = longest.max_by_key(|(span, _)| *span);
        match longest {
            Some((span, side)) if span > Span::ZERO => {
                // The kernel counts from the last word, which may have come long before the first unanswered byte.
                let span = span.min(now.since(watched.answered_at));
                if span >= self.shared.waits.unanswered {
                    return Some(SpliceEnd::Unanswered(side, span));
                }
            }
            _ => watched.answered_at = now,
        }
        if longest.is_none() && silent > Span::ZERO && !half_closed {
            watch.leave(watched.place);
            self.watched = None;
        } else {
            watched.waker.clone_from(context.waker());
            watch.stay(watched.place, watched.waker.clone());
        }
        None
    }

    /// Gives up what is shared, and resets what has not ended.
    fn end(&mut self) {
        if let Some(watched) = self.watched.take() {
            self.shared.watch.leave(watched.place);
        }
        if !self.done {
            self.client.write.reset();
            self.node.write.reset();
        }
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        self.end();
    }
}
