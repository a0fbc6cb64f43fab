//! The applications of the demonstration: one transfer each way and many chatty flows, all checked byte by byte.
//!
//! This file has what both ends share and the consumer's end; [`super::target`] has the other one.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use postroad_trust::Sha256;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval, timeout},
};

use super::{
    content::{Content, MESSAGE_BYTES, message},
    gauge::Gauge,
};

/// The time between two messages of a chatty flow.
pub const CHAT_EVERY: Duration = Duration::from_millis(20);
/// What a transfer sends between two looks at its pace, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// The time between two pieces of a paced transfer.
const PACE_EVERY: Duration = Duration::from_millis(10);
/// A paced transfer sends at least so much each time, so that it never seems to stand still, in bytes.
const PACE_BYTES_MIN: u64 = 4 << 10;
/// A paced transfer sends what is left in this time at any moment, so it slows down and never ends before its release.
const PACE_SPAN: Duration = Duration::from_secs(16);
/// A connection to a listener on this host takes no longer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The length of what a flow begins with: its kind and a number.
pub(super) const HELLO_BYTES: usize = 16;
/// The length of what ends a transfer: the count of its bytes and their hash.
pub(super) const TRAILER_BYTES: usize = 40;

/// What a flow is for; the first byte of its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Says whether the link carries anything.
    Probe,
    /// Messages that are sent back; the number is the flow's.
    Chat,
    /// The consumer sends; the number is the count of bytes.
    Upload,
    /// The target sends; the number is the count of bytes.
    Download,
}

impl Kind {
    const ALL: [(u8, Self); 4] =
        [(b'P', Self::Probe), (b'C', Self::Chat), (b'U', Self::Upload), (b'D', Self::Download)];

    fn hello(self, number: u64) -> [u8; HELLO_BYTES] {
        let mut hello = [0; HELLO_BYTES];
        hello[0] = Self::ALL.iter().find(|(_, kind)| *kind == self).map_or(0, |(letter, _)| *letter);
        hello[8..].copy_from_slice(&number.to_be_bytes());
        hello
    }

    pub(super) fn of_hello(hello: [u8; HELLO_BYTES]) -> Option<(Self, u64)> {
        let (first, last) = hello.split_at(8);
        let kind = Self::ALL.iter().find(|(letter, _)| *letter == first[0])?.1;
        Some((kind, u64::from_be_bytes(last.try_into().ok()?)))
    }
}

/// What went wrong with a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bytes were lost, changed, repeated or out of order.
    Bytes(String),
    /// A flow ended other than by its end of file, or was not opened.
    Ending(String),
}

impl Fault {
    pub(super) fn of(flow: &str, doing: &str, error: &io::Error) -> Self {
        let said = format!("{flow} broke while {doing}: {error}");
        // An end of file where more was to come is a loss, not a reset.
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Bytes(said) } else { Self::Ending(said) }
    }

    /// What happened, for people.
    pub fn said(&self) -> &str {
        match self {
            Self::Bytes(said) | Self::Ending(said) => said,
        }
    }
}

/// A transfer in one direction, as both ends see it.
#[derive(Debug)]
pub struct Transfer {
    /// How many bytes it has.
    pub bytes: u64,
    /// Where its content begins.
    seed: u64,
    /// Bytes that have arrived.
    pub received: AtomicU64,
    /// Where it arrives.
    pub gauge: Gauge,
    /// The hash of what was sent.
    pub sent_hash: OnceLock<[u8; 32]>,
    /// The hash of what arrived.
    pub received_hash: OnceLock<[u8; 32]>,
}

impl Transfer {
    fn new(bytes: u64, seed: u64) -> Self {
        let (sent_hash, received_hash) = (OnceLock::new(), OnceLock::new());
        Self { bytes, seed, received: AtomicU64::new(0), gauge: Gauge::new(), sent_hash, received_hash }
    }

    /// Whether both ends have hashed, and found the same.
    pub fn is_equal(&self) -> bool {
        self.sent_hash.get().is_some() && self.sent_hash.get() == self.received_hash.get()
    }

    /// Sends all of it at its pace, and keeps the hash.
    pub(super) async fn send(&self, write: &mut (impl AsyncWrite + Unpin), pace: &Pace) -> io::Result<[u8; 32]> {
        let mut content = Content::new(self.seed);
        let (mut hash, mut piece, mut left) = (Sha256::new(), vec![0; PIECE_BYTES], self.bytes);
        let mut ticks = ticks(PACE_EVERY);
        while left > 0 {
            let mut share = pace.share(left, &mut ticks).await;
            left -= share;
            while share > 0 {
                let length = share.min(PIECE_BYTES as u64) as usize;
                content.fill(&mut piece[..length]);
                hash.update(&piece[..length]);
                write.write_all(&piece[..length]).await?;
                share -= length as u64;
            }
        }
        let hash = hash.finish();
        // Sent once, so it is not set yet.
        let _ = self.sent_hash.set(hash);
        Ok(hash)
    }

    /// Receives until `most` bytes or the end of file are there; the count and the hash of them.
    pub(super) async fn receive(&self, read: &mut (impl AsyncRead + Unpin), most: u64) -> io::Result<(u64, [u8; 32])> {
        let (mut hash, mut piece, mut count) = (Sha256::new(), vec![0; PIECE_BYTES], 0);
        while count < most {
            let wanted = (most - count).min(PIECE_BYTES as u64) as usize;
            let length = read.read(&mut piece[..wanted]).await?;
            if length == 0 {
                break;
            }
            hash.update(&piece[..length]);
            count += length as u64;
            self.received.store(count, Ordering::Relaxed);
            self.gauge.progress();
        }
        self.gauge.end();
        let hash = hash.finish();
        let _ = self.received_hash.set(hash);
        Ok((count, hash))
    }
}

/// How quickly the transfers go: slowly until the last event is over, then as quickly as they can.
#[derive(Debug, Default)]
pub struct Pace(AtomicBool);

impl Pace {
    /// Lets the transfers run.
    pub fn release(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    async fn share(&self, left: u64, ticks: &mut Interval) -> u64 {
        if self.0.load(Ordering::Relaxed) {
            return left.min(PIECE_BYTES as u64);
        }
        ticks.tick().await;
        let share = (left as f64 * PACE_EVERY.as_secs_f64() / PACE_SPAN.as_secs_f64()) as u64;
        share.clamp(PACE_BYTES_MIN, PACE_BYTES_MIN.max(1 << 20)).min(left)
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    // What was missed while the flow stood still is not made up for by a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// All flows of a run, as both ends see them.
#[derive(Debug)]
pub struct Traffic {
    /// From the consumer to the target.
    pub upload: Transfer,
    /// From the target to the consumer.
    pub download: Transfer,
    /// One gauge a chatty flow, where answers arrive.
    pub chats: Vec<Gauge>,
    /// Answers that were as they should be.
    pub answers: AtomicU64,
    /// Flows that the target has seen end by an end of file, with everything in order before.
    pub clean_ends: AtomicU64,
    /// How quickly the transfers go.
    pub pace: Pace,
    over: AtomicBool,
    faults: Mutex<Vec<Fault>>,
}

impl Traffic {
    /// Traffic that begins now: transfers of so many bytes each way, none if 0, and so many chatty flows.
    pub fn new(bytes: u64, flows: u64) -> Arc<Self> {
        Arc::new(Self {
            upload: Transfer::new(bytes, 0x0075_706c_6f61_6400),
            download: Transfer::new(bytes, 0x646f_776e_6c6f_6164),
            chats: (0..flows).map(|_| Gauge::new()).collect(),
            answers: AtomicU64::new(0),
            clean_ends: AtomicU64::new(0),
            pace: Pace::default(),
            over: AtomicBool::new(false),
            faults: Mutex::new(Vec::new()),
        })
    }

    /// The chatty flows end by themselves from now on.
    pub fn end_chats(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// How many flows there are.
    pub fn flows(&self) -> u64 {
        self.chats.len() as u64 + if self.upload.bytes > 0 { 2 } else { 0 }
    }

    /// What went wrong so far.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn fault(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    fn gauges(&self) -> impl Iterator<Item = &Gauge> {
        let transfers = [&self.upload, &self.download].into_iter().filter(|transfer| transfer.bytes > 0);
        transfers.map(|transfer| &transfer.gauge).chain(&self.chats)
    }

    /// Begins a new window on every gauge.
    pub fn begin_window(&self) {
        self.gauges().for_each(Gauge::begin_window);
    }

    /// The longest pause of any flow in this window.
    pub fn window(&self) -> Duration {
        self.gauges().map(Gauge::window).max().unwrap_or_default()
    }

    /// The longest pause of any flow ever.
    pub fn ever(&self) -> Duration {
        self.gauges().map(Gauge::ever).max().unwrap_or_default()
    }

    /// The share of both transfers that has arrived, from 0 to 1.
    pub fn share(&self) -> f64 {
        let received = |transfer: &Transfer| transfer.received.load(Ordering::Relaxed);
        let all = (self.upload.bytes + self.download.bytes).max(1);
        (received(&self.upload) + received(&self.download)) as f64 / all as f64
    }
}

/// The consumer's flows under way. Dropped, they are reset.
#[derive(Debug)]
pub struct Flows {
    /// The transfers.
    pub transfers: JoinSet<()>,
    /// The chatty flows.
    pub chats: JoinSet<()>,
}

/// Opens every flow of `traffic` through the link's listener.
pub fn open(listener: SocketAddr, traffic: &Arc<Traffic>) -> Flows {
    let mut flows = Flows { transfers: JoinSet::new(), chats: JoinSet::new() };
    if traffic.upload.bytes > 0 {
        let of = Arc::clone(traffic);
        flows.transfers.spawn(async move { note(&of, upload(listener, &of).await) });
        let of = Arc::clone(traffic);
        flows.transfers.spawn(async move { note(&of, download(listener, &of).await) });
    }
    for flow in 0..traffic.chats.len() {
        let of = Arc::clone(traffic);
        flows.chats.spawn(async move { note(&of, chat(listener, flow, &of).await) });
    }
    flows
}

fn note(traffic: &Traffic, outcome: Result<(), Fault>) {
    if let Err(fault) = outcome {
        traffic.fault(fault);
    }
}

/// Whether a byte goes there and back through the link within `limit`.
pub async fn probe(listener: SocketAddr, limit: Duration) -> io::Result<()> {
    let there_and_back = async {
        let mut stream = TcpStream::connect(listener).await?;
        stream.write_all(&Kind::Probe.hello(0)).await?;
        stream.read_exact(&mut [0; HELLO_BYTES]).await.map(|_| ())
    };
    timeout(limit, there_and_back).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn connect(listener: SocketAddr, flow: &str, kind: Kind, number: u64) -> Result<TcpStream, Fault> {
    let connected = async {
        let mut stream = TcpStream::connect(listener).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&kind.hello(number)).await?;
        Ok(stream)
    };
    let connected = timeout(CONNECT_WITHIN, connected).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    connected.map_err(|error| Fault::of(flow, "connecting", &error))
}

async fn upload(listener: SocketAddr, traffic: &Traffic) -> Result<(), Fault> {
    const FLOW: &str = "the transfer to the target";
    let transfer = &traffic.upload;
    let (mut read, mut write) = connect(listener, FLOW, Kind::Upload, transfer.bytes).await?.into_split();
    let sent = transfer.send(&mut write, &traffic.pace).await.map_err(|error| Fault::of(FLOW, "sending", &error))?;
    write.shutdown().await.map_err(|error| Fault::of(FLOW, "ending", &error))?;
    // The answer comes after this end was closed: half a connection goes on.
    let (count, hash) = read_trailer(&mut read, FLOW).await?;
    expect_end(&mut read, FLOW).await?;
    check(FLOW, (transfer.bytes, sent), (count, hash))
}

async fn download(listener: SocketAddr, traffic: &Traffic) -> Result<(), Fault> {
    const FLOW: &str = "the transfer from the target";
    let transfer = &traffic.download;
    let (mut read, mut write) = connect(listener, FLOW, Kind::Download, transfer.bytes).await?.into_split();
    // Closed from the beginning: everything comes over half a connection.
    write.shutdown().await.map_err(|error| Fault::of(FLOW, "ending", &error))?;
    let received = transfer.receive(&mut read, transfer.bytes).await;
    let received = received.map_err(|error| Fault::of(FLOW, "receiving", &error))?;
    let sent = read_trailer(&mut read, FLOW).await?;
    expect_end(&mut read, FLOW).await?;
    check(FLOW, sent, received)
}

pub(super) fn check(flow: &str, sent: (u64, [u8; 32]), received: (u64, [u8; 32])) -> Result<(), Fault> {
    if sent == received {
        return Ok(());
    }
    let (sent, received) = (sent.0, received.0);
    let what = if sent == received { "other bytes have arrived" } else { "bytes are missing" };
    Err(Fault::Bytes(format!("{flow}: {what}: {sent} bytes were sent and {received} have arrived")))
}

async fn read_trailer(read: &mut (impl AsyncRead + Unpin), flow: &str) -> Result<(u64, [u8; 32]), Fault> {
    let mut trailer = [0; TRAILER_BYTES];
    read.read_exact(&mut trailer).await.map_err(|error| Fault::of(flow, "waiting for the other end's hash", &error))?;
    let (mut count, mut hash) = ([0; 8], [0; 32]);
    count.copy_from_slice(&trailer[..8]);
    hash.copy_from_slice(&trailer[8..]);
    Ok((u64::from_be_bytes(count), hash))
}

pub(super) fn trailer(count: u64, hash: [u8; 32]) -> [u8; TRAILER_BYTES] {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..8].copy_from_slice(&count.to_be_bytes());
    trailer[8..].copy_from_slice(&hash);
    trailer
}

pub(super) async fn expect_end(read: &mut (impl AsyncRead + Unpin), flow: &str) -> Result<(), Fault> {
    match read.read(&mut [0]).await {
        Ok(0) => Ok(()),
        Ok(_) => Err(Fault::Bytes(format!("{flow}: more has arrived than was sent"))),
        Err(error) => Err(Fault::of(flow, "waiting for its end", &error)),
    }
}

async fn chat(listener: SocketAddr, number: usize, traffic: &Traffic) -> Result<(), Fault> {
    let name = format!("chatty flow {number}");
    let gauge = &traffic.chats[number];
    let flow = number as u64;
    let (mut read, mut write) = connect(listener, &name, Kind::Chat, flow).await?.into_split();
    let say = async {
        let mut ticks = ticks(CHAT_EVERY);
        let mut sent = 0;
        while !traffic.over.load(Ordering::Relaxed) {
            ticks.tick().await;
            let said = write.write_all(&message(flow, sent)).await;
            said.map_err(|error| Fault::of(&name, &format!("sending message {sent}"), &error))?;
            sent += 1;
        }
        write.shutdown().await.map_err(|error| Fault::of(&name, "ending", &error))?;
        Ok(sent)
    };
    let hear = async {
        let mut heard = 0;
        while read_message(&mut read, &name, flow, heard).await? {
            gauge.progress();
            traffic.answers.fetch_add(1, Ordering::Relaxed);
            heard += 1;
        }
        gauge.end();
        Ok(heard)
    };
    let (sent, heard) = tokio::try_join!(say, hear)?;
    if sent == heard {
        return Ok(());
    }
    Err(Fault::Bytes(format!("{name}: {sent} messages were sent and {heard} came back")))
}

/// Reads the message `sequence` of a chatty flow; `false` at an end of file between two messages.
pub(super) async fn read_message(
    read: &mut (impl AsyncRead + Unpin),
    name: &str,
    flow: u64,
    sequence: u64,
) -> Result<bool, Fault> {
    let mut heard = [0; MESSAGE_BYTES];
    let doing = || format!("waiting for message {sequence}");
    let first = read.read(&mut heard).await.map_err(|error| Fault::of(name, &doing(), &error))?;
    if first == 0 {
        return Ok(false);
    }
    read.read_exact(&mut heard[first..]).await.map_err(|error| Fault::of(name, &doing(), &error))?;
    if heard == message(flow, sequence) {
        return Ok(true);
    }
    Err(Fault::Bytes(format!("{name}: message {sequence} has other bytes than were sent")))
}
