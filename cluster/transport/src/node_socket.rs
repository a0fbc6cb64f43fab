//! The one outbound socket of a node: plain QUIC for sessions and control connections, and circuits, whose packets
//! travel through relays that may change while quinn sees one constant address in `100::/64`.
//!
//! Towards quinn it returns nothing but `Ok` and `WouldBlock`, since any other error ends quinn's driver silently.

mod cell;
pub(crate) mod held;
mod receive;
mod schedule;
#[cfg(test)]
mod tests;
mod view;

use std::{
    collections::BTreeMap,
    fmt, io,
    io::IoSliceMut,
    net::{Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use postroad_cluster::{
    circuit::{Circuit, Event, MoveReason},
    id::{Challenge, NodeId},
    limits::{
        CHALLENGE_ANSWERS_PER_SECOND, CIRCUIT_CHANNELS_MAX, CIRCUIT_EVENTS, CIRCUIT_IDLE_EXTRA, CIRCUIT_KEEPALIVE,
        CIRCUIT_PACKET_BYTES, CIRCUIT_ROUND_TRIP_UNKNOWN, CIRCUIT_SEND_WINDOW_BYTES, CIRCUITS_MAX, FLOW_WINDOW_BYTES,
        FLOWS_PER_CIRCUIT, RECEIVE_PAYLOADS,
    },
    time::{Clock, Moment, Span},
};
use quinn::{
    AsyncUdpSocket, TransportConfig, UdpPoller, VarInt,
    udp::{RecvMeta, Transmit},
};
use tokio::{sync::mpsc, task::JoinHandle};

pub use self::{
    cell::PathFigures,
    view::{
        ChannelSpec, CircuitCounters, CircuitError, CircuitEvent, CircuitKey, CircuitSpec, CircuitStatus,
        SocketCounters,
    },
};
use self::{
    cell::{Cell, PerSecond},
    receive::Receiver,
    schedule::Schedule,
};
use crate::{
    address::{canonical, for_family, mapped},
    controller::CircuitControllerFactory,
    network::UdpSocket,
    packet::PathKey,
    writable::{Poller, Waiters, send_in_pieces},
};

/// The port of circuits' addresses; any but 0 does.
const CIRCUIT_PORT: u16 = 9443;

/// The channel that an incoming token belongs to.
#[derive(Clone, Debug)]
struct Incoming {
    cell: Arc<Cell>,
    relay: NodeId,
    /// Where its packets come from, in canonical form.
    source: SocketAddr,
}

#[derive(Debug, Default)]
struct Table {
    by_key: BTreeMap<CircuitKey, Arc<Cell>>,
    by_index: BTreeMap<u64, Arc<Cell>>,
    by_token: BTreeMap<u64, Incoming>,
    next_index: u64,
}

/// What the socket and its circuits share.
#[derive(Debug)]
struct Common {
    socket: Arc<dyn UdpSocket>,
    waiters: Arc<Waiters>,
    clock: Arc<dyn Clock>,
    ipv6: bool,
    schedule: Schedule,
    events: mpsc::Sender<CircuitEvent>,
    plain_lost: AtomicU64,
    receive_errors: AtomicU64,
    events_lost: AtomicU64,
    unknown: AtomicU64,
    queue_full: AtomicU64,
    challenges: Mutex<PerSecond>,
    /// Whether some address is dead to this socket, so that packets need not ask the lock.
    deaf: AtomicBool,
    deaf_to: Mutex<Option<(SocketAddr, Moment)>>,
}

impl Common {
    /// Sends one transmit of circuits, unless its destination is dead to this socket: the network, too, loses without a word.
    fn put(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.is_deaf_to(transmit.destination) { Ok(()) } else { send_in_pieces(&*self.socket, transmit) }
    }

    fn is_deaf_to(&self, address: SocketAddr) -> bool {
        if !self.deaf.load(Ordering::Relaxed) {
            return false;
        }
        let mut deaf_to = self.deaf_to.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if deaf_to.is_none_or(|(_, until)| until <= now) {
            *deaf_to = None;
            self.deaf.store(false, Ordering::Relaxed);
        }
        deaf_to.is_some_and(|(dead, _)| dead == canonical(address))
    }

    /// Passes a relay's challenge on, unless there are more than relays send.
    fn challenged(&self, from: SocketAddr, challenge: Challenge) {
        let now = self.clock.now();
        let mut challenges = self.challenges.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = challenges.take(now, CHALLENGE_ANSWERS_PER_SECOND);
        drop(challenges);
        if taken {
            self.tell(CircuitEvent::Challenged { from, challenge });
        } else {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends to a real address. Nothing but `WouldBlock` is an error.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let destination = for_family(transmit.destination, self.ipv6);
        let sent = self.put(&Transmit { destination, ..transmit.clone() });
        self.waiters.note(&sent);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(_) => {
                self.plain_lost.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn tell(&self, event: CircuitEvent) {
        if self.events.try_send(event).is_err() {
            self.events_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The outbound socket of a node.
pub struct NodeSocket {
    common: Arc<Common>,
    table: RwLock<Table>,
    receiver: Mutex<Receiver>,
    ticker: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for NodeSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSocket").field("socket", &self.common.socket).finish_non_exhaustive()
    }
}

impl Drop for NodeSocket {
    fn drop(&mut self) {
        if let Some(ticker) = self.ticker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            ticker.abort();
        }
    }
}

impl NodeSocket {
    /// A node's socket on `socket`, and the events of its circuits, of which those that nobody takes are counted and
    /// lost. Starts the failover's tick in a task of the present runtime; it ends with the socket.
    pub fn new(socket: Arc<dyn UdpSocket>, clock: Arc<dyn Clock>) -> (Arc<Self>, mpsc::Receiver<CircuitEvent>) {
        let (events, events_out) = mpsc::channel(CIRCUIT_EVENTS);
        let common = Arc::new(Common {
            ipv6: socket.local_address().is_ok_and(|address| address.is_ipv6()),
            socket,
            waiters: Arc::default(),
            clock,
            schedule: Schedule::default(),
            events,
            plain_lost: AtomicU64::new(0),
            receive_errors: AtomicU64::new(0),
            events_lost: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            challenges: Mutex::default(),
            deaf: AtomicBool::new(false),
            deaf_to: Mutex::default(),
        });
        let this = Arc::new(Self {
            common: Arc::clone(&common),
            table: RwLock::default(),
            receiver: Mutex::default(),
            ticker: Mutex::default(),
        });
        let ticker = tokio::spawn(tick(common, Arc::downgrade(&this)));
        *this.ticker.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticker);
        (this, events_out)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn receiver(&self) -> MutexGuard<'_, Receiver> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, key: CircuitKey) -> Result<Arc<Cell>, CircuitError> {
        self.read().by_key.get(&key).cloned().ok_or(CircuitError::Unknown)
    }

    /// Adds a circuit and returns its constant address, to which quinn connects and from which it hears the peer.
    pub fn circuit_add(&self, spec: CircuitSpec) -> Result<SocketAddr, CircuitError> {
        let mut table = self.write();
        if table.by_key.contains_key(&spec.key) {
            return Err(CircuitError::Taken);
        }
        if table.by_key.len() >= CIRCUITS_MAX {
            return Err(CircuitError::TooMany);
        }
        table.next_index += 1;
        let index = table.next_index;
        let cell = Arc::new(Cell::new(Arc::clone(&self.common), spec, index, circuit_address(index)));
        table.by_key.insert(spec.key, Arc::clone(&cell));
        table.by_index.insert(index, Arc::clone(&cell));
        Ok(cell.address())
    }

    /// Removes a circuit and its channels; false if there is none. Close its connection first: what it says last still
    /// leaves, for as long as
    /// [`postroad_cluster::limits::CIRCUIT_LINGER`].
    pub fn circuit_remove(&self, key: CircuitKey) -> bool {
        let mut table = self.write();
        let Some(cell) = table.by_key.remove(&key) else { return false };
        table.by_token.retain(|_, incoming| !Arc::ptr_eq(&incoming.cell, &cell));
        drop(table);
        cell.disconnect();
        cell.leave();
        true
    }

    /// The circuit of an address that quinn reports as a remote one.
    pub fn circuit_of(&self, address: SocketAddr) -> Option<CircuitKey> {
        let index = circuit_index(address)?;
        self.read().by_index.get(&index).filter(|cell| !cell.is_leaving()).map(|cell| cell.key())
    }

    /// What quinn needs to know for the connection of a circuit: its packet size, windows, limits and controller. A
    /// dialling node passes it in its client configuration, a listening one by [`quinn::Incoming::accept_with`].
    pub fn transport_config(&self, key: CircuitKey, flow_wait: Span) -> Result<Arc<TransportConfig>, CircuitError> {
        let cell = self.cell(key)?;
        let factory = Arc::new(CircuitControllerFactory::new(cell.meter()));
        let mut config = circuit_transport(cell.packet_bytes(), flow_wait);
        config.congestion_controller_factory(factory);
        Ok(Arc::new(config))
    }

    /// A channel of a circuit is open at the relay and at both ends; opening it again replaces its tokens.
    pub fn channel_add(&self, key: CircuitKey, spec: ChannelSpec) -> Result<(), CircuitError> {
        let mut table = self.write();
        let cell = table.by_key.get(&key).cloned().ok_or(CircuitError::Unknown)?;
        if table.by_token.get(&spec.token_in).is_some_and(|it| !Arc::ptr_eq(&it.cell, &cell) || it.relay != spec.relay)
        {
            return Err(CircuitError::TokenTaken);
        }
        if cell.channel_count() >= CIRCUIT_CHANNELS_MAX && !cell.has_channel(spec.relay) {
            return Err(CircuitError::TooManyChannels);
        }
        table.by_token.retain(|_, incoming| !(Arc::ptr_eq(&incoming.cell, &cell) && incoming.relay == spec.relay));
        let incoming = Incoming { cell: Arc::clone(&cell), relay: spec.relay, source: canonical(spec.address) };
        table.by_token.insert(spec.token_in, incoming);
        drop(table);
        cell.channel_add(spec);
        Ok(())
    }

    /// A channel of a circuit is closed; false if there was none.
    pub fn channel_remove(&self, key: CircuitKey, relay: NodeId) -> bool {
        let mut table = self.write();
        let Some(cell) = table.by_key.get(&key).cloned() else { return false };
        let before = table.by_token.len();
        table.by_token.retain(|_, incoming| !(Arc::ptr_eq(&incoming.cell, &cell) && incoming.relay == relay));
        let removed = table.by_token.len() < before;
        drop(table);
        if removed {
            cell.channel_remove(relay);
        }
        removed
    }

    /// The session to `relay` has ended: every circuit that used it moves at once.
    pub fn session_lost(&self, relay: NodeId) {
        let cells: Vec<Arc<Cell>> = self.read().by_key.values().cloned().collect();
        for cell in cells {
            cell.event(Event::SessionLost { relay });
        }
    }

    /// The channel of one circuit through `relay` is dead until it is added again.
    pub fn channel_session_lost(&self, key: CircuitKey, relay: NodeId) -> Result<(), CircuitError> {
        self.cell(key)?.event(Event::SessionLost { relay });
        Ok(())
    }

    /// Whether `relay` is only a last resort, since it drains. If it carries the circuit, that moves.
    pub fn channel_avoid(&self, key: CircuitKey, relay: NodeId, avoided: bool) -> Result<(), CircuitError> {
        self.cell(key)?.event(Event::Avoided { relay, avoided });
        Ok(())
    }

    /// The circuit's connection stands and its peer is who it should be. From now on moves are authenticated by
    /// `secret`, 32 bytes of the connection's TLS exporter. `figures` is held until the circuit is removed or the
    /// connection is closed.
    pub fn circuit_connected(
        &self,
        key: CircuitKey,
        figures: Arc<dyn PathFigures>,
        secret: &[u8; 32],
    ) -> Result<(), CircuitError> {
        self.cell(key)?.connected(figures, PathKey::new(key.circuit, secret));
        Ok(())
    }

    /// Moves a circuit to a relay that has proven itself.
    pub fn move_to(&self, key: CircuitKey, relay: NodeId, reason: MoveReason) -> Result<(), CircuitError> {
        self.cell(key)?.move_to(relay, reason)
    }

    /// For so long drops everything to and from an address, as if whoever is there had died: for trials of a link. A later
    /// call replaces an earlier one.
    pub fn deafen(&self, address: SocketAddr, span: Span) {
        let until = self.common.clock.now().after(span);
        *self.common.deaf_to.lock().unwrap_or_else(PoisonError::into_inner) = Some((canonical(address), until));
        self.common.deaf.store(true, Ordering::Relaxed);
    }

    /// The state of a circuit.
    pub fn status(&self, key: CircuitKey) -> Result<CircuitStatus, CircuitError> {
        Ok(self.cell(key)?.status())
    }

    /// What decides about a circuit, as a copy to ask "what if", with the moment of that copy.
    pub fn copy(&self, key: CircuitKey) -> Result<(Circuit, Moment), CircuitError> {
        Ok(self.cell(key)?.copy())
    }

    /// Every circuit, in order.
    pub fn circuits(&self) -> Vec<CircuitKey> {
        self.read().by_key.keys().copied().collect()
    }

    /// What the socket has lost, over all circuits.
    pub fn counters(&self) -> SocketCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SocketCounters {
            unknown_packets: load(&self.common.unknown),
            send_errors: load(&self.common.plain_lost),
            receive_errors: load(&self.common.receive_errors),
            queue_full: load(&self.common.queue_full),
            events_lost: load(&self.common.events_lost),
        }
    }
}

/// The constant address of the circuit with this number.
fn circuit_address(index: u64) -> SocketAddr {
    let ip = Ipv6Addr::from((0x0100_u128 << 112) | u128::from(index));
    SocketAddr::new(ip.into(), CIRCUIT_PORT)
}

/// The number of a circuit's address; none for real addresses.
fn circuit_index(address: SocketAddr) -> Option<u64> {
    let SocketAddr::V6(v6) = address else { return None };
    let bits = u128::from(*v6.ip());
    (bits >> 64 == 0x0100 << 48).then_some(bits as u64)
}

/// What quinn needs for circuits, without the controller. Discovery of the packet size is off: the size is what
/// probes have proven, and a better one takes effect with a new circuit. The connection's window exceeds what its
/// streams were promised, so that one slow reader disturbs nobody else.
fn circuit_transport(packet_bytes: u32, flow_wait: Span) -> TransportConfig {
    let mut config = TransportConfig::default();
    let size = u16::try_from(packet_bytes).unwrap_or(CIRCUIT_PACKET_BYTES as u16);
    let idle = (flow_wait + CIRCUIT_IDLE_EXTRA).min(Duration::from_hours(7 * 24));
    config
        .mtu_discovery_config(None)
        .initial_mtu(size)
        .initial_rtt(CIRCUIT_ROUND_TRIP_UNKNOWN)
        .keep_alive_interval(Some(CIRCUIT_KEEPALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(FLOWS_PER_CIRCUIT))
        .stream_receive_window(VarInt::from_u32(FLOW_WINDOW_BYTES))
        .receive_window(VarInt::MAX)
        .send_window(CIRCUIT_SEND_WINDOW_BYTES)
        .datagram_receive_buffer_size(None);
    if let Ok(idle) = idle.try_into() {
        config.max_idle_timeout(Some(idle));
    }
    config
}

/// Drives the circuits whose time has come, until the socket is gone.
async fn tick(common: Arc<Common>, socket: Weak<NodeSocket>) {
    loop {
        common.schedule.wait(&*common.clock).await;
        let due = common.schedule.take_due(common.clock.now());
        let Some(socket) = socket.upgrade() else { return };
        for index in due {
            let cell = socket.read().by_index.get(&index).cloned();
            match cell {
                Some(cell) if cell.has_left() => _ = socket.write().by_index.remove(&index),
                Some(cell) => cell.tick(),
                None => {}
            }
        }
    }
}

impl AsyncUdpSocket for NodeSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller::new(Arc::clone(&self.common.socket), Arc::clone(&self.common.waiters)))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(index) = circuit_index(transmit.destination) else {
            return self.common.send(transmit);
        };
        let cell = self.read().by_index.get(&index).cloned();
        match cell {
            Some(cell) => cell.send(transmit),
            None => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.receive(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.common.socket.local_address().map(mapped)
    }

    fn may_fragment(&self) -> bool {
        false
    }

    fn max_transmit_segments(&self) -> usize {
        // One figure for all packet sizes and more than quinn ever uses: the send splits at 65,507 bytes.
        10
    }

    fn max_receive_segments(&self) -> usize {
        RECEIVE_PAYLOADS
    }
}
