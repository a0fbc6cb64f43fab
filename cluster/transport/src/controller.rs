//! Congestion control of a circuit: Cubic that starts anew at each move and does not take what a dead relay swallowed
//! for congestion; and the meter through which the circuit's socket sees what is in flight.
//!
//! quinn sends no acknowledgement while it has data that the window does not let go. After a move what is in flight, and is
//! sent again by the ring, exceeds the new window: with data in both directions each end would wait for the other's
//! acknowledgement, until quinn's own probes. So until the window has room again, whatever comes from the peer lets a packet
//! go beyond it, which carries the acknowledgement.
//!
//! quinn shows neither which packets must be acknowledged nor when the last of them was. The controller hears of
//! every send and of every batch of acknowledgements with the bytes then in flight, and quinn asks it for its window
//! exactly before it builds a packet that must be acknowledged, never for an acknowledgement alone. Statistics ask for
//! the window too, so the socket believes the meter only if frames that must be acknowledged were counted as well.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use postroad_cluster::limits::{CIRCUIT_BEYOND_WINDOW_MAX, CIRCUIT_FIRST_WINDOW_BYTES};
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

/// No packet yet.
const NONE: u64 = u64::MAX;

/// What the controller of a circuit and its socket tell each other.
#[derive(Debug)]
pub struct Meter {
    asked: AtomicBool,
    in_flight: AtomicBool,
    sent_since_end: AtomicBool,
    left_bytes: AtomicU64,
    clears: AtomicU64,
    acknowledged: AtomicU64,
    largest_acknowledged: AtomicU64,
    last_sent: AtomicU64,
    moves: AtomicU64,
    /// How often packets came from the peer, and how often when quinn asked for the window last.
    heard: AtomicU64,
    heard_when_asked: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            asked: AtomicBool::new(false),
            in_flight: AtomicBool::new(false),
            sent_since_end: AtomicBool::new(false),
            left_bytes: AtomicU64::new(0),
            clears: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            largest_acknowledged: AtomicU64::new(NONE),
            last_sent: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            heard_when_asked: AtomicU64::new(0),
        }
    }
}

impl Meter {
    /// Whether something that must be acknowledged seems to be under way.
    pub fn in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Acquire)
    }

    /// How often everything under way was acknowledged.
    pub fn clears(&self) -> u64 {
        self.clears.load(Ordering::Acquire)
    }

    /// Packets acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// The newest packet that was acknowledged.
    pub fn largest_acknowledged(&self) -> Option<u64> {
        Some(self.largest_acknowledged.load(Ordering::Acquire)).filter(|number| *number != NONE)
    }

    /// The packet that was built last.
    pub fn last_sent(&self) -> u64 {
        self.last_sent.load(Ordering::Acquire)
    }

    /// The circuit has moved: the estimate starts anew.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Packets have come from the peer.
    pub fn heard(&self) {
        self.heard.fetch_add(1, Ordering::AcqRel);
    }

    fn clear(&self) {
        self.in_flight.store(false, Ordering::Release);
        self.clears.fetch_add(1, Ordering::AcqRel);
    }

    fn on_sent(&self, number: u64) {
        self.last_sent.store(number, Ordering::Release);
        if self.asked.swap(false, Ordering::AcqRel) {
            self.sent_since_end.store(true, Ordering::Release);
            self.in_flight.store(true, Ordering::Release);
        }
    }

    fn on_end(&self, left_bytes: u64, largest: Option<u64>) {
        self.left_bytes.store(left_bytes, Ordering::Release);
        self.sent_since_end.store(false, Ordering::Release);
        if let Some(number) = largest {
            self.largest_acknowledged.store(number, Ordering::Release);
        }
        if left_bytes == 0 {
            self.clear();
        }
    }

    /// What is declared lost after the last acknowledgements is not in flight either.
    fn on_lost(&self, bytes: u64) {
        let left = self.left_bytes.load(Ordering::Acquire).saturating_sub(bytes);
        self.left_bytes.store(left, Ordering::Release);
        if bytes > 0 && left == 0 && !self.sent_since_end.load(Ordering::Acquire) {
            self.clear();
        }
    }
}

/// Makes the controller of one circuit.
#[derive(Debug)]
pub struct CircuitControllerFactory {
    meter: Arc<Meter>,
    config: Arc<CubicConfig>,
}

impl CircuitControllerFactory {
    /// A factory whose controllers report to `meter`.
    #[must_use]
    pub fn new(meter: Arc<Meter>) -> Self {
        let mut config = CubicConfig::default();
        config.initial_window(CIRCUIT_FIRST_WINDOW_BYTES);
        Self { meter, config: Arc::new(config) }
    }
}

impl ControllerFactory for CircuitControllerFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(CircuitController {
            cubic: Cubic::new(Arc::clone(&self.config), now, current_mtu),
            config: Arc::clone(&self.config),
            seen_moves: self.meter.moves.load(Ordering::Acquire),
            meter: Arc::clone(&self.meter),
            moved: None,
            mtu: current_mtu,
            in_flight: 0,
            answered: 0,
            beyond: 0,
        })
    }
}

/// Cubic, anew at each move.
#[derive(Clone, Debug)]
struct CircuitController {
    cubic: Cubic,
    config: Arc<CubicConfig>,
    meter: Arc<Meter>,
    seen_moves: u64,
    /// When the last move was noticed: at the latest when the first packet after it was built.
    moved: Option<Instant>,
    mtu: u16,
    /// Bytes in flight, and what was sent since the last acknowledgements though it need not be acknowledged.
    in_flight: u64,
    /// Which packets of the peer were answered by a send.
    answered: u64,
    /// How many sends may still go beyond the window since the last move; none once it has had room.
    beyond: u32,
}

impl CircuitController {
    fn notice_move(&mut self, now: Instant) {
        let moves = self.meter.moves.load(Ordering::Acquire);
        if moves != self.seen_moves {
            self.seen_moves = moves;
            self.moved = Some(now);
            self.beyond = CIRCUIT_BEYOND_WINDOW_MAX;
            self.cubic = Cubic::new(Arc::clone(&self.config), now, self.mtu);
        }
    }

    /// Whether the peer's packets let one go beyond the window. A move that is not noticed yet counts: nothing was sent since.
    fn goes_beyond(&self) -> bool {
        let moved = self.meter.moves.load(Ordering::Acquire) != self.seen_moves;
        (moved || self.beyond > 0) && self.meter.heard_when_asked.load(Ordering::Acquire) != self.answered
    }
}

impl Controller for CircuitController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.notice_move(now);
        if self.in_flight + bytes >= self.cubic.window() {
            self.beyond = self.beyond.saturating_sub(1);
        }
        self.in_flight += bytes;
        self.answered = self.meter.heard_when_asked.load(Ordering::Acquire);
        self.meter.on_sent(last_packet_number);
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.notice_move(now);
        self.meter.acknowledged.fetch_add(1, Ordering::AcqRel);
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.meter.on_end(in_flight, largest);
        self.in_flight = in_flight;
        if in_flight + u64::from(self.mtu) < self.cubic.window() {
            self.beyond = 0;
        }
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.notice_move(now);
        self.meter.on_lost(lost_bytes);
        self.in_flight = self.in_flight.saturating_sub(lost_bytes);
        // The path that lost it is no longer used.
        if self.moved.is_some_and(|moved| sent < moved) {
            return;
        }
        self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.meter.asked.store(true, Ordering::Release);
        self.meter.heard_when_asked.store(self.meter.heard.load(Ordering::Acquire), Ordering::Release);
        let window = self.cubic.window();
        // quinn asks for room for the packet and for what it has begun.
        if self.goes_beyond() { window.max(self.in_flight + 2 * u64::from(self.mtu) + 1) } else { window }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn controller() -> (Arc<Meter>, Box<dyn Controller>, Instant) {
        let meter = Arc::new(Meter::default());
        // Any instant does: the controller only compares those that it is given.
        let start = tokio::time::Instant::now().into_std();
        let factory = Arc::new(CircuitControllerFactory::new(Arc::clone(&meter)));
        (meter, factory.build(start, 1_436), start)
    }

    #[test]
    fn only_what_must_be_acknowledged_is_in_flight() {
        let (meter, mut controller, now) = controller();
        controller.on_sent(now, 40, 1);
        assert!(!meter.in_flight(), "an acknowledgement alone");
        let _ = controller.window();
        controller.on_sent(now, 1_200, 2);
        assert!(meter.in_flight());
        controller.on_end_acks(now, 600, false, Some(1));
        assert!(meter.in_flight());
        controller.on_end_acks(now, 0, false, Some(2));
        assert!(!meter.in_flight());
        assert_eq!((meter.clears(), meter.largest_acknowledged(), meter.last_sent()), (1, Some(2), 2));
    }

    #[test]
    fn what_is_lost_is_not_in_flight() {
        let (meter, mut controller, now) = controller();
        let _ = controller.window();
        controller.on_sent(now, 1_200, 1);
        controller.on_end_acks(now, 500, false, Some(2));
        controller.on_congestion_event(now, now, false, 500);
        assert!(!meter.in_flight());
        // Unless something new was sent since.
        let _ = controller.window();
        controller.on_sent(now, 1_200, 3);
        controller.on_congestion_event(now, now, false, 500);
        assert!(meter.in_flight());
    }

    #[test]
    fn a_move_starts_anew_and_forgives_losses_before_it() {
        let (meter, mut controller, start) = controller();
        let at = |ms| start + Duration::from_millis(ms);
        let first = controller.window();
        controller.on_congestion_event(at(10), at(5), false, 1_200);
        let halved = controller.window();
        assert!(halved < first);
        meter.moved();
        controller.on_sent(at(20), 1_200, 9);
        assert_eq!(controller.window(), first);
        controller.on_congestion_event(at(30), at(15), false, 50_000);
        assert_eq!(controller.window(), first, "sent before the move");
        controller.on_congestion_event(at(40), at(25), false, 1_200);
        assert!(controller.window() < first, "sent after the move");
    }

    // With data in both directions an acknowledgement is sent with data alone, for which a new window has no room.
    #[test]
    fn after_a_move_what_comes_lets_a_packet_go_until_the_window_has_room() {
        let (meter, mut controller, now) = controller();
        let window = controller.window();
        controller.on_sent(now, 3 * window, 100);
        meter.heard();
        assert_eq!(controller.window(), window, "without a move the window is the window");
        meter.moved();
        assert_eq!(controller.window(), 3 * window + 2 * 1_436 + 1, "also before the first packet after the move");
        controller.on_sent(now, 1_436, 101);
        assert_eq!(controller.window(), window, "one packet for what came");
        meter.heard();
        assert_eq!(controller.window(), 3 * window + 3 * 1_436 + 1);
        controller.on_end_acks(now, 2 * window, false, Some(50));
        assert_eq!(controller.window(), 2 * window + 2 * 1_436 + 1, "it has no room yet");
        controller.on_end_acks(now, window / 2, false, Some(101));
        assert_eq!(controller.window(), window, "it has room");
        controller.on_sent(now, 2 * window, 102);
        meter.heard();
        assert_eq!(controller.window(), window);

        meter.moved();
        for number in 0..CIRCUIT_BEYOND_WINDOW_MAX {
            meter.heard();
            assert!(controller.window() > window);
            controller.on_sent(now, 1_436, u64::from(number));
        }
        meter.heard();
        assert_eq!(controller.window(), window, "bounded");
    }
}
