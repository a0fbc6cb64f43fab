//! The packet switch of a relay: the one reader of the listening socket. It forwards packets of channels by their
//! token without touching what they carry, and hands QUIC packets to the relay's endpoint.
//!
//! It never waits and never answers: what it cannot forward is dropped and counted.

mod forward;
mod socket;
mod table;

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    io::IoSliceMut,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use postroad_cluster::{id::Challenge, limits::SOCKET_RETRY, time::Clock};
use quinn::udp::{BATCH_SIZE, RecvMeta, Transmit};
use tokio::task::JoinHandle;

pub use self::socket::SwitchSocket;
use self::{
    forward::{Assembler, Run, sort},
    table::Table,
};
use crate::{
    network::UdpSocket,
    packet::{Header, PacketType},
};

/// The largest buffer that one receive fills.
const BUFFER_BYTES: usize = 64 << 10;

/// Batches between two pauses in which other tasks of the thread run.
const BATCHES_IN_A_ROW: u32 = 16;

/// A session at this relay, by a number that the relay never uses twice: a new generation is another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchSession(pub u64);

/// One direction of a channel. `Debug` leaves out the tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenChannel {
    /// The token that packets arrive with; drawn from entropy, never reused.
    pub token: u64,
    /// The session that they must come from.
    pub from: SwitchSession,
    /// The token that they leave with.
    pub token_out: u64,
    /// The session that they go to.
    pub to: SwitchSession,
}

impl fmt::Debug for OpenChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenChannel").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

/// Why a channel cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// One of the sessions is unknown or has ended.
    SessionUnknown,
    /// The token is in use.
    TokenTaken,
    /// The session has 4,096 channels.
    TooManyChannels,
}

impl OpenError {
    /// A stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::SessionUnknown => "CHANNEL_SESSION_UNKNOWN",
            Self::TokenTaken => "CHANNEL_TOKEN_TAKEN",
            Self::TooManyChannels => "CHANNEL_TOO_MANY",
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SessionUnknown => "channel not opened: a session of it has ended; open it again once both are up",
            Self::TokenTaken => "channel not opened: its token is in use; draw another",
            Self::TooManyChannels => "channel not opened: the session has 4,096 channels; close some first",
        })
    }
}

impl std::error::Error for OpenError {}

/// Why packets were dropped, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchDrops {
    /// No channel has the token.
    pub unknown_token: u64,
    /// The token was not sent from its session's address.
    pub wrong_source: u64,
    /// Too short for a header, or of a type that only relays send.
    pub malformed: u64,
    /// The channel or session is over its rate.
    pub over_rate: u64,
    /// The receiver muted the channel.
    pub muted: u64,
    /// The socket was full.
    pub socket_full: u64,
    /// The socket failed otherwise.
    pub socket_error: u64,
    /// The endpoint did not read its QUIC packets fast enough.
    pub endpoint_full: u64,
}

/// What one session sent and was sent through the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Packets that came from it.
    pub packets_in: u64,
    /// Bytes that came from it, our header included.
    pub bytes_in: u64,
    /// Packets that went to it.
    pub packets_out: u64,
    /// Bytes that went to it, our header included.
    pub bytes_out: u64,
}

/// What a switch has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes forwarded, our header included.
    pub bytes: u64,
    /// Sends that carried them; fewer than packets, since packets to one destination go together.
    pub sends: u64,
    /// QUIC packets handed to the endpoint.
    pub quic_packets: u64,
    /// Channels that are open, each direction counted.
    pub channels: u64,
    /// Packets dropped.
    pub drops: SwitchDrops,
    /// By session.
    pub sessions: BTreeMap<SwitchSession, SessionCounters>,
}

/// Counters that the switch and its sends share.
#[derive(Debug, Default)]
struct Totals {
    packets: AtomicU64,
    bytes: AtomicU64,
    sends: AtomicU64,
    socket_full: AtomicU64,
    socket_error: AtomicU64,
}

fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    totals: Totals,
    quic: Arc<SwitchSocket>,
    clock: Arc<dyn Clock>,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The switch of one listening socket. It ends when dropped.
#[derive(Debug)]
pub struct Switch {
    socket: Arc<dyn UdpSocket>,
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Switch {
    /// Starts reading `socket` in a task of the present runtime. QUIC packets come out of the returned socket, which
    /// is for the relay's endpoint; what that sends goes straight to `socket`.
    pub fn start(socket: Arc<dyn UdpSocket>, clock: Arc<dyn Clock>) -> (Self, Arc<SwitchSocket>) {
        let ipv6 = socket.local_address().is_ok_and(|address| address.is_ipv6());
        let quic = Arc::new(SwitchSocket::new(Arc::clone(&socket)));
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(ipv6)),
            totals: Totals::default(),
            quic: Arc::clone(&quic),
            clock,
        });
        let reader = tokio::spawn(read(Arc::clone(&socket), Arc::clone(&shared)));
        (Self { socket, shared, reader }, quic)
    }

    /// Tells the address of a new session: its handshake has proven it.
    pub fn session_address(&self, session: SwitchSession, address: SocketAddr) {
        let now = self.shared.clock.now();
        self.shared.table().session_address(session, address, now);
    }

    /// A session's connection has heard its node from `address`. If that is another one than is believed, a challenge
    /// of this number goes there; packets of its channels come from and go to the old one until it is proven. QUIC
    /// follows an authenticated packet before it validates the path, which would let a node point its peers' packets
    /// at anybody.
    pub fn session_seen(&self, session: SwitchSession, address: SocketAddr, challenge: Challenge) {
        let now = self.shared.clock.now();
        let asked = self.shared.table().session_seen(session, address, challenge, now);
        let Some((destination, Challenge(token))) = asked else { return };
        let header = Header { packet_type: PacketType::Challenge, flags: 0, generation: 0, mac: [0; 4], token };
        let contents = &header.encode();
        // A full socket loses it, as the network may: the next request from there brings another.
        let _ = self.socket.try_send(&Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None });
    }

    /// The session names a challenge: if it is the one that was sent to its new address last, that is its address from
    /// now on, and the one before stays valid as a source for 5 s. False if it is another.
    pub fn session_proved(&self, session: SwitchSession, challenge: Challenge) -> bool {
        let now = self.shared.clock.now();
        self.shared.table().session_proved(session, challenge, now)
    }

    /// A newer generation has replaced the session: its channels end in 5 s.
    pub fn session_replaced(&self, session: SwitchSession) {
        let now = self.shared.clock.now();
        self.shared.table().session_replaced(session, now);
    }

    /// The session has ended: so do its channels, at once and in both directions.
    pub fn session_closed(&self, session: SwitchSession) {
        self.shared.table().session_closed(session);
    }

    /// Opens one direction of a channel. Bad input changes nothing.
    pub fn open(&self, channel: OpenChannel) -> Result<(), OpenError> {
        let now = self.shared.clock.now();
        self.shared.table().open(channel, now)
    }

    /// Closes the direction of a channel whose packets arrive with `token`; false if there is none.
    pub fn close(&self, token: u64) -> bool {
        self.shared.table().close(token)
    }

    /// Whether the receiver wants nothing from the channel; false if there is none.
    pub fn mute(&self, token: u64, muted: bool) -> bool {
        self.shared.table().mute(token, muted)
    }

    /// What the switch has done so far.
    pub fn counters(&self) -> SwitchCounters {
        let totals = &self.shared.totals;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counters = self.shared.table().counters();
        counters.packets = load(&totals.packets);
        counters.bytes = load(&totals.bytes);
        counters.sends = load(&totals.sends);
        counters.drops.socket_full = load(&totals.socket_full);
        counters.drops.socket_error = load(&totals.socket_error);
        (counters.quic_packets, counters.drops.endpoint_full) = self.shared.quic.counters();
        counters
    }
}

/// Reads batches and forwards them until the task is aborted.
async fn read(socket: Arc<dyn UdpSocket>, shared: Arc<Shared>) {
    let mut buffers: Vec<Box<[u8]>> = (0..BATCH_SIZE).map(|_| vec![0; BUFFER_BYTES].into_boxed_slice()).collect();
    let mut meta = [RecvMeta::default(); BATCH_SIZE];
    let mut runs: Vec<Run> = Vec::with_capacity(BATCH_SIZE * 4);
    let mut assembler = Assembler::new();
    let mut in_a_row = 0;
    loop {
        let received = poll_fn(|context| {
            let mut free = buffers.iter_mut();
            let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| IoSliceMut::new(free.next().expect("a buffer for each of the batch")));
            socket.poll_receive(context, &mut slices, &mut meta)
        })
        .await;
        let Ok(count) = received else {
            add(&shared.totals.socket_error, 1);
            shared.clock.sleep_until(shared.clock.now().after(SOCKET_RETRY)).await;
            continue;
        };
        runs.clear();
        let now = shared.clock.now();
        {
            let mut table = shared.table();
            for (place, (buffer, meta)) in buffers.iter_mut().zip(&meta).take(count).enumerate() {
                sort(&mut table, now, place, buffer, meta, &mut runs);
            }
        }
        assembler.forward(&*socket, &shared, &buffers, &meta, &runs);
        in_a_row += 1;
        if in_a_row == BATCHES_IN_A_ROW {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}
