//! Two ends of a circuit over relays that die, return, drain and slow down, as tables and as properties.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{
    limits::{CIRCUIT_PACKET_BYTES, CIRCUIT_PACKET_BYTES_JUMBO, PROBE_SMALL_BYTES},
    packet_size::Carries,
};

const A: usize = 0;
const B: usize = 1;

const fn ms(ms: u64) -> Span {
    Span::from_millis(ms)
}

#[derive(Clone, Copy, Debug)]
enum What {
    Data(u64),
    Ack(u64),
    Probe { sequence: u64, bytes: u32 },
    Echo { sequence: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    to: usize,
    relay: NodeId,
    path: Path,
    what: What,
}

#[derive(Clone, Debug)]
struct Relay {
    /// One way from A to B and from B to A.
    way: [Span; 2],
    /// What it swallows, by direction.
    dead: [bool; 2],
    /// The largest packet that it carries.
    bytes: u32,
    /// Swallows every n-th probe of A.
    loses_probe: Option<u64>,
    /// Swallows everything but probes and their echoes.
    probes_only: bool,
}

/// What chance does to every packet on its way through a relay.
#[derive(Clone, Copy, Debug, Default)]
struct Rough {
    lost_per_thousand: u64,
    jitter: Span,
}

/// How an end sends: a message so long after the last one was acknowledged, sent again as QUIC does.
#[derive(Clone, Copy, Debug)]
struct Talk {
    pause: Span,
    next: Moment,
    again: Moment,
    tries: u32,
}

struct End {
    circuit: Circuit,
    sends: bool,
    talk: Option<Talk>,
    stamp: u64,
    acked: u64,
    acknowledged: u64,
    takes: Vec<(Moment, Take)>,
    resends: usize,
    stranded: usize,
    stalls: Vec<(MoveReason, Span)>,
    /// When each relay was last left in silence, and when the newest probe that came back was sent.
    left: BTreeMap<NodeId, Moment>,
    sent: BTreeMap<u64, Moment>,
    came_back: BTreeMap<NodeId, Moment>,
    received: Vec<Moment>,
}

/// Two ends, and relays between them.
struct World {
    now: Moment,
    ends: [End; 2],
    relays: BTreeMap<NodeId, Relay>,
    under_way: BTreeMap<(Moment, u64), Packet>,
    number: u64,
    rough: Rough,
    chance: u64,
}

impl World {
    fn new(relays: &[(u64, u64)]) -> Self {
        let end = |me: u64, peer: u64| End {
            circuit: Circuit::new(Moment::ZERO, NodeId(me), NodeId(peer), CIRCUIT_PACKET_BYTES, 0),
            sends: false,
            talk: None,
            stamp: 0,
            acked: 0,
            acknowledged: 0,
            takes: Vec::new(),
            resends: 0,
            stranded: 0,
            stalls: Vec::new(),
            left: BTreeMap::new(),
            sent: BTreeMap::new(),
            came_back: BTreeMap::new(),
            received: Vec::new(),
        };
        let mut world = Self {
            now: Moment::ZERO,
            ends: [end(1, 2), end(2, 1)],
            relays: BTreeMap::new(),
            under_way: BTreeMap::new(),
            number: 0,
            rough: Rough::default(),
            chance: 88_172_645_463_325_252,
        };
        for (relay, way_ms) in relays {
            let way = [ms(*way_ms); 2];
            let relay_new = Relay { way, dead: [false; 2], bytes: u32::MAX, loses_probe: None, probes_only: false };
            world.relays.insert(NodeId(*relay), relay_new);
            for end in [A, B] {
                world.event(end, Event::ChannelAdded { relay: NodeId(*relay), shares: BTreeSet::new() });
            }
        }
        for end in [A, B] {
            world.event(end, Event::Connected);
        }
        world
    }

    fn relay(&mut self, relay: u64) -> &mut Relay {
        self.relays.get_mut(&NodeId(relay)).unwrap()
    }

    fn kill(&mut self, relay: u64) {
        self.relay(relay).dead = [true; 2];
    }

    fn on(&self, end: usize) -> u64 {
        self.ends[end].circuit.path().relay.map_or(0, |relay| relay.0)
    }

    fn event(&mut self, end: usize, event: Event) {
        let before = self.ends[end].circuit.path().generation;
        let candidates: BTreeSet<NodeId> =
            self.relays.keys().copied().filter(|relay| self.ends[end].circuit.candidate(self.now, *relay)).collect();
        let echoed = match event {
            Event::Echoed { relay, .. } => Some(relay),
            _ => None,
        };
        let mut effects = Vec::new();
        self.ends[end].circuit.on(self.now, event, &mut effects);
        assert!(self.ends[end].circuit.path().generation >= before, "the generation only grows");
        for effect in effects {
            match effect {
                Effect::Probe { relay, sequence, bytes } => {
                    self.ends[end].sent.insert(sequence, self.now);
                    let path = self.ends[end].circuit.path();
                    self.send(end, relay, path, What::Probe { sequence, bytes });
                }
                Effect::Take(take) => self.take(end, take, &candidates, echoed),
                Effect::Resend { .. } => self.ends[end].resends += 1,
                Effect::NoRelay => {
                    self.ends[end].stranded += 1;
                    if let Some(relay) = self.ends[end].circuit.path().relay {
                        self.ends[end].left.insert(relay, self.now);
                    }
                }
                Effect::Stalled { reason, span } => self.ends[end].stalls.push((reason, span)),
                Effect::Proven { .. } | Effect::Silent { .. } => {}
            }
        }
    }

    fn take(&mut self, end: usize, take: Take, candidates: &BTreeSet<NodeId>, echoed: Option<NodeId>) {
        let now = self.now;
        let it = &mut self.ends[end];
        let to = take.path.relay.unwrap();
        if !matches!(take.reason, MoveReason::First | MoveReason::Followed) {
            assert!(candidates.contains(&to) || echoed == Some(to), "{to} was no candidate: {take:?}");
            // R7: a relay that was left in silence has proven itself since.
            let (left, came_back) = (it.left.get(&to), it.came_back.get(&to));
            assert!(left.is_none_or(|left| came_back.is_some_and(|sent| sent >= left)), "{to} is not proven: {take:?}");
        }
        // A relay that stranded the circuit was left then.
        if take.path.after_silence
            && take.reason != MoveReason::Returned
            && let Some(from) = take.from.filter(|from| *from != to)
        {
            it.left.insert(from, now);
        }
        it.takes.push((now, take));
    }

    fn send(&mut self, from: usize, relay: NodeId, path: Path, what: What) {
        let Some(it) = self.relays.get(&relay) else { return };
        let too_large = matches!(what, What::Probe { bytes, .. } if bytes > it.bytes);
        let lost = matches!(what, What::Probe { sequence, .. } if from == A && it.loses_probe.is_some_and(|nth| sequence % nth == 0));
        let data = matches!(what, What::Data(_) | What::Ack(_));
        if it.dead[from] || too_large || lost || (data && it.probes_only) {
            return;
        }
        let way = it.way[from];
        // Two hops of the same kind.
        if self.draw(1_000_000) < 2 * 1_000 * self.rough.lost_per_thousand {
            return;
        }
        let jitter = self.rough.jitter.as_micros() as u64 + 1;
        let way = way + Span::from_micros(self.draw(jitter) + self.draw(jitter));
        self.number += 1;
        let path = if path.relay == Some(relay) { path } else { Path { relay: Some(relay), ..Path::default() } };
        self.under_way.insert((self.now.after(way), self.number), Packet { to: 1 - from, relay, path, what });
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance % below
    }

    fn talk(&mut self, end: usize, pause: Span) {
        self.ends[end].talk = Some(Talk { pause, next: self.now, again: Moment::NEVER, tries: 0 });
    }

    /// Sends the next message, or the last one again.
    fn say(&mut self, end: usize) {
        let now = self.now;
        let it = &mut self.ends[end];
        let Some(talk) = &mut it.talk else { return };
        if it.stamp == it.acked && talk.again != Moment::NEVER {
            *talk = Talk { next: now.after(talk.pause), again: Moment::NEVER, ..*talk };
        }
        if talk.again <= now {
            talk.tries += 1;
        } else if talk.again == Moment::NEVER && talk.next <= now {
            talk.tries = 0;
        } else {
            return;
        }
        // Two round trips and a late acknowledgement, twice as long each time.
        talk.again = now.after(ms(57) * (1 << talk.tries.min(6)));
        it.stamp += 1;
        let stamp = it.stamp;
        self.send_by_paths(end, What::Data(stamp));
    }

    fn send_by_paths(&mut self, from: usize, what: What) {
        let circuit = &self.ends[from].circuit;
        for path in [Some(circuit.path()), circuit.double()].into_iter().flatten() {
            if let Some(relay) = path.relay {
                self.send(from, relay, path, what);
            }
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let Packet { to, relay, path, what } = packet;
        // The relay may have died while the packet was under way to it.
        if self.relays.get(&relay).is_none_or(|it| it.dead[1 - to]) {
            return;
        }
        if path.generation.0 > 0 {
            self.event(to, Event::Heard { path });
        }
        match what {
            What::Data(stamp) => {
                self.ends[to].received.push(self.now);
                self.send_by_paths(to, What::Ack(stamp));
            }
            What::Ack(stamp) => {
                let it = &mut self.ends[to];
                if stamp > it.acked {
                    it.acked = stamp;
                    it.acknowledged += 1;
                }
            }
            What::Probe { sequence, .. } => {
                let own = self.ends[to].circuit.path();
                self.send(to, relay, own, What::Echo { sequence });
            }
            What::Echo { sequence } => {
                if let Some(sent) = self.ends[to].sent.get(&sequence).copied() {
                    let newest = self.ends[to].came_back.entry(relay).or_insert(sent);
                    *newest = (*newest).max(sent);
                }
                self.event(to, Event::Echoed { relay, sequence });
            }
        }
    }

    fn tick(&mut self, end: usize) {
        self.say(end);
        if self.ends[end].sends {
            self.ends[end].stamp += 1;
            self.send_by_paths(end, What::Data(self.ends[end].stamp));
        }
        let it = &self.ends[end];
        let (in_flight, acknowledged) = (it.stamp > it.acked, it.acknowledged);
        let figures = Figures { in_flight, acknowledged, sent: it.stamp, round_trip: None };
        self.event(end, Event::Tick(figures));
    }

    fn run(&mut self, span: Span) {
        let until = self.now.after(span);
        while self.now < until {
            let beat = self.now.after(CIRCUIT_TICK);
            while let Some(((at, number), packet)) =
                self.under_way.iter().next().map(|(key, it)| (*key, *it)).filter(|((at, _), _)| *at <= beat)
            {
                self.under_way.remove(&(at, number));
                self.now = self.now.max(at);
                self.deliver(packet);
            }
            self.now = beat;
            self.tick(A);
            self.tick(B);
        }
    }

    /// The longest gap in what `end` received since `since`, and since the last that came before.
    fn stall(&self, end: usize, since: Moment) -> Span {
        let times = &self.ends[end].received;
        let first = times.partition_point(|at| *at < since).saturating_sub(1);
        times[first..].windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap_or(Span::MAX)
    }

    fn moves(&self, end: usize) -> usize {
        self.ends[end].takes.iter().filter(|(_, take)| take.reason != MoveReason::First).count()
    }
}

#[test]
fn a_killed_relay_stalls_for_50_ms_and_both_ends_follow() {
    // RP-1
    for way in [0, 1, 5] {
        let mut world = World::new(&[(7, way), (8, way), (9, way)]);
        world.ends[A].sends = true;
        world.run(ms(2_000));
        assert_eq!((world.on(A), world.on(B)), (7, 7));
        let killed = world.now;
        world.kill(7);
        world.run(ms(1_000));
        assert_eq!(world.on(A), world.on(B));
        assert_ne!(world.on(A), 7);
        assert!(world.stall(B, killed) < ms(80), "way {way} ms: {:?}", world.stall(B, killed));
        assert_eq!(world.moves(A), 1, "no flapping");
    }
}

// RP-12: lost and late packets are no reason, be a circuit idle or busy: an hour of 1 % on each of two hops there and two
// back, with a round trip between 8 and 24 ms.
#[test]
fn loss_and_jitter_move_nothing() {
    for (seed, pauses) in
        [(1, [Some(10), Some(35)]), (2, [Some(250), None]), (3, [None, None]), (4, [Some(1), Some(1)])]
    {
        let mut world = World::new(&[(7, 4), (8, 4), (9, 4)]);
        world.chance ^= seed;
        world.rough = Rough { lost_per_thousand: 10, jitter: ms(4) };
        world.run(ms(2_000));
        for (end, pause) in pauses.into_iter().enumerate() {
            if let Some(pause_ms) = pause {
                world.talk(end, ms(pause_ms));
            }
        }
        world.run(Span::from_mins(15));
        for end in [A, B] {
            let it = &world.ends[end];
            let moves: Vec<_> = it.takes.iter().filter(|(_, take)| take.reason != MoveReason::First).collect();
            assert!(moves.is_empty() && it.stranded == 0, "{pauses:?}, end {end}: {moves:?}, stranded {}", it.stranded);
        }
    }
}

// Those who cannot tell a relay's silence from their own move nothing: the network of one end is away for a while.
#[test]
fn an_end_that_hears_nobody_blames_no_relay() {
    let mut world = World::new(&[(7, 1), (8, 1), (9, 1)]);
    world.ends[A].sends = true;
    world.ends[B].sends = true;
    world.run(ms(2_000));
    for away in [60, 90] {
        for relay in 7..10 {
            world.relay(relay).dead = [true; 2];
        }
        world.run(ms(away));
        for relay in 7..10 {
            world.relay(relay).dead = [false; 2];
        }
        world.run(ms(3_000));
        assert_eq!((world.moves(A), world.moves(B)), (0, 0), "away for {away} ms");
    }
}

#[test]
fn a_relay_that_dies_is_left_as_soon_on_clean_ways_and_hardly_later_on_lossy_ones() {
    for (way_us, lost_per_thousand, most_ms) in [(250, 0, 60), (10_000, 0, 85), (250, 10, 75), (10_000, 10, 115)] {
        let mut stalls = Vec::new();
        for seed in 0..40 {
            let mut world = World::new(&[(7, 1), (8, 1), (9, 1)]);
            for relay in 7..10 {
                world.relay(relay).way = [Span::from_micros(way_us); 2];
            }
            world.chance ^= seed;
            world.run(ms(3_000));
            world.rough.lost_per_thousand = lost_per_thousand;
            world.ends[A].sends = true;
            world.run(ms(20_000 + seed));
            let (from, killed) = (world.on(A), world.now);
            world.kill(from);
            world.run(ms(1_500));
            assert_ne!(world.on(A), from);
            stalls.push(world.stall(B, killed));
        }
        stalls.sort_unstable();
        println!("{way_us} us, {lost_per_thousand} lost: {:?} {:?} {:?}", stalls[20], stalls[36], stalls[39]);
        assert!(stalls[36] <= ms(most_ms), "{way_us} us, {lost_per_thousand} lost: {stalls:?}");
    }
}

#[test]
fn a_long_way_waits_three_round_trips() {
    let mut world = World::new(&[(7, 20), (8, 20)]);
    world.ends[A].sends = true;
    world.run(ms(2_000));
    let killed = world.now;
    world.kill(7);
    world.run(ms(1_000));
    let (at, take) = world.ends[A].takes.last().unwrap();
    assert_eq!((take.reason, take.path.relay), (MoveReason::Silence, Some(NodeId(8))));
    // The last acknowledgement arrives 20 to 40 ms after the death.
    let waited = at.since(killed);
    assert!(waited >= ms(120) && waited <= ms(175), "{waited:?}");
}

#[test]
fn a_silence_of_one_direction_is_noticed_whoever_sends() {
    // R6, R16
    for direction in [A, B] {
        for sends in [[true, false], [false, true], [true, true]] {
            let mut world = World::new(&[(7, 1), (8, 1)]);
            world.run(ms(2_000));
            world.ends[A].sends = sends[A];
            world.ends[B].sends = sends[B];
            world.run(ms(1_000));
            world.relay(7).dead[direction] = true;
            world.run(ms(1_000));
            assert_eq!((world.on(A), world.on(B)), (8, 8), "direction {direction}, {sends:?}");
            assert!(world.moves(A) <= 2 && world.moves(B) <= 2, "direction {direction}, {sends:?}");
        }
    }
}

#[test]
fn an_idle_circuit_leaves_a_dead_relay_before_it_is_needed() {
    // R6: within 5 s
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.run(ms(5_000));
    world.kill(7);
    world.run(ms(5_000));
    assert_eq!((world.on(A), world.on(B)), (8, 8));
    assert_eq!(world.ends[A].takes[1].1.reason, MoveReason::Unanswered);
    let status = world.ends[A].circuit.channels(world.now);
    assert!(!status[0].candidate && status[1].candidate, "a dead relay is not shown as up");
    assert_eq!(world.ends[A].stalls, [], "nothing was in flight");
}

#[test]
fn a_relay_that_died_is_no_candidate_until_a_probe_came_back_after_it() {
    // R7
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.ends[A].sends = true;
    world.run(ms(2_000));
    world.kill(7);
    world.run(ms(500));
    assert_eq!(world.on(A), 8);
    world.kill(8);
    world.run(ms(2_000));
    assert_eq!(world.on(A), 8, "nothing else has proven itself");
    assert!(world.ends[A].circuit.stranded());
    assert_eq!(world.ends[A].stranded, 1, "said once");
    let back = world.now;
    world.relay(7).dead = [false; 2];
    world.run(ms(1_000));
    assert_eq!((world.on(A), world.on(B)), (7, 7));
    let (at, take) = world.ends[A].takes.last().unwrap();
    assert_eq!(take.reason, MoveReason::Returned);
    assert!(take.path.after_silence, "what the ring holds goes again");
    assert!(at.since(back) < ms(300), "quick probes while stranded: {:?}", at.since(back));
}

#[test]
fn the_own_relay_that_returns_is_used_again_without_a_move() {
    let mut world = World::new(&[(7, 1)]);
    world.ends[A].sends = true;
    world.run(ms(2_000));
    world.kill(7);
    world.run(ms(10_000));
    world.relay(7).dead = [false; 2];
    world.run(ms(1_000));
    assert_eq!((world.moves(A), world.ends[A].resends), (0, 1));
    assert!(!world.ends[A].circuit.stranded());
    // RP-55: a stall ends when data is acknowledged, whether or not the circuit moved.
    let [(MoveReason::Silence, span)] = world.ends[A].stalls[..] else { panic!("{:?}", world.ends[A].stalls) };
    assert!(ms(10_000) <= span && span < ms(10_500), "{span:?}");
}

#[test]
fn another_failure_domain_is_preferred() {
    // RP-3
    let mut world = World::new(&[(7, 1), (8, 1), (9, 5)]);
    let shares = BTreeSet::from([NodeId(8)]);
    world.event(A, Event::ChannelAdded { relay: NodeId(7), shares });
    world.ends[A].sends = true;
    world.run(ms(2_000));
    world.kill(7);
    world.run(ms(500));
    assert_eq!(world.on(A), 9, "8 is nearer but shares a domain with 7");
}

#[test]
fn a_lost_session_moves_at_once() {
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.run(ms(2_000));
    world.event(A, Event::SessionLost { relay: NodeId(7) });
    assert_eq!(world.on(A), 8);
    world.run(ms(10));
    assert_eq!(world.on(B), 8, "the move is announced also when idle");
    assert_eq!(world.ends[B].takes.last().unwrap().1.reason, MoveReason::Followed);
}

#[test]
fn a_draining_relay_is_left_and_is_a_last_resort() {
    // RP-40
    let mut world = World::new(&[(7, 1), (8, 5)]);
    world.ends[A].sends = true;
    world.run(ms(2_000));
    world.event(A, Event::Avoided { relay: NodeId(7), avoided: true });
    let (_, take) = *world.ends[A].takes.last().unwrap();
    assert_eq!((take.reason, take.path.relay, take.path.after_silence), (MoveReason::Draining, Some(NodeId(8)), false));
    world.run(ms(2_000));
    assert_eq!((world.on(A), world.on(B)), (8, 8));
    world.kill(8);
    world.run(ms(500));
    assert_eq!(world.on(A), 7, "better than none");
}

#[test]
fn a_faster_way_waits_out_the_difference_of_the_ways() {
    let mut world = World::new(&[(7, 20), (8, 5)]);
    world.run(ms(3_000));
    world.event(A, Event::MoveTo { relay: NodeId(8), reason: MoveReason::Assigned });
    let (_, take) = *world.ends[A].takes.last().unwrap();
    // 40 ms against 10 ms there and back: 15 ms one way, less or more a tick.
    assert!(take.hold >= ms(10) && take.hold <= ms(20), "{:?}", take.hold);
    world.run(ms(100));
    assert_eq!(world.on(B), 8);
    assert!(world.ends[B].takes.last().unwrap().1.hold >= ms(10), "both directions");
    world.event(A, Event::MoveTo { relay: NodeId(7), reason: MoveReason::Assigned });
    assert_eq!(world.ends[A].takes.last().unwrap().1.hold, Span::ZERO);
}

#[test]
fn nearer_means_30_percent_and_5_ms_of_the_same_moments() {
    // RP-12, R13: ways in microseconds, so that round trips are twice that.
    let mut world = World::new(&[(7, 10), (8, 9)]);
    let way = |world: &mut World, relay, round_trip_us: u64| {
        world.relay(relay).way = [Span::from_micros(round_trip_us / 2); 2];
    };
    world.relay(7).loses_probe = Some(10);
    world.run(Span::from_mins(10));
    assert_eq!(world.moves(A), 0, "18 against 20 ms, every tenth probe lost");
    for round_trip in [15_100, 14_100] {
        way(&mut world, 8, round_trip);
        world.run(Span::from_mins(2));
        assert_eq!(world.moves(A), 0, "{round_trip} us against 20 ms");
    }
    way(&mut world, 8, 13_900);
    world.run(Span::from_mins(1));
    assert_eq!((world.moves(A), world.on(A), world.on(B)), (1, 8, 8), "13.9 against 20 ms");
    way(&mut world, 8, 6_000);
    way(&mut world, 7, 3_000);
    world.run(Span::from_mins(1));
    assert_eq!(world.moves(A), 1, "3 against 6 ms: half, but only 3 ms");
}

#[test]
fn a_relay_too_small_for_the_packets_is_a_last_resort() {
    let mut world = World::new(&[(7, 1), (8, 1), (9, 5)]);
    world.relay(8).bytes = PROBE_SMALL_BYTES;
    world.ends[A].sends = true;
    world.run(Span::from_secs(10));
    let channels = world.ends[A].circuit.channels(world.now);
    assert!(channels[1].too_small && channels[1].candidate, "small probes prove it: {:?}", channels[1]);
    assert_eq!(world.ends[A].circuit.proven_bytes(world.now), PROBE_SMALL_BYTES);
    world.kill(7);
    world.run(ms(500));
    assert_eq!(world.on(A), 9, "8 is nearer but too small");
    world.kill(9);
    world.run(ms(500));
    assert_eq!(world.on(A), 8, "better than none");
}

#[test]
fn a_larger_size_is_found_by_probes() {
    let mut circuit = Circuit::new(Moment::ZERO, NodeId(1), NodeId(2), CIRCUIT_PACKET_BYTES, 8_936);
    let mut effects = Vec::new();
    circuit.on(Moment::ZERO, Event::ChannelAdded { relay: NodeId(7), shares: BTreeSet::new() }, &mut effects);
    let mut now = Moment::ZERO;
    for _ in 0..300 {
        for effect in std::mem::take(&mut effects) {
            if let Effect::Probe { relay, sequence, .. } = effect {
                circuit.on(now, Event::Echoed { relay, sequence }, &mut effects);
            }
        }
        now = now.after(CIRCUIT_TICK);
        circuit.on(now, Event::Tick(Figures::default()), &mut effects);
    }
    assert_eq!(circuit.proven_bytes(now), 8_936);
    assert_eq!(circuit.channels(now)[0].larger, Carries::Yes);
}

/// An end of a circuit whose larger probes come back only from a relay that carries so many bytes.
fn narrowed(circuit: &mut Circuit, now: &mut Moment, rounds: u64, bytes_max: impl Fn(u64) -> u32) -> usize {
    let (mut effects, mut larger) = (Vec::new(), 0);
    for tick in 0..rounds * 200 {
        *now = now.after(CIRCUIT_TICK);
        circuit.on(*now, Event::Tick(Figures::default()), &mut effects);
        for effect in std::mem::take(&mut effects) {
            let Effect::Probe { relay, sequence, bytes } = effect else { continue };
            larger += usize::from(bytes == CIRCUIT_PACKET_BYTES_JUMBO);
            if bytes <= bytes_max(tick / 200) {
                circuit.on(*now, Event::Echoed { relay, sequence }, &mut effects);
            }
        }
    }
    larger
}

#[test]
fn a_larger_size_takes_several_losses_in_a_row_to_be_given_up_and_several_echoes_to_return() {
    let jumbo = CIRCUIT_PACKET_BYTES_JUMBO;
    let mut circuit = Circuit::new(Moment::ZERO, NodeId(1), NodeId(2), CIRCUIT_PACKET_BYTES, jumbo);
    circuit.on(Moment::ZERO, Event::ChannelAdded { relay: NodeId(7), shares: BTreeSet::new() }, &mut Vec::new());
    let mut now = Moment::ZERO;
    let found = |circuit: &Circuit, now| (circuit.channels(now)[0].larger, circuit.proven_bytes(now));
    narrowed(&mut circuit, &mut now, 40, |round| if round == 30 { 1_500 } else { u32::MAX });
    assert_eq!(found(&circuit, now), (Carries::Yes, jumbo), "one may be lost");
    narrowed(&mut circuit, &mut now, 30, |_| 1_500);
    assert_eq!(found(&circuit, now), (Carries::No, CIRCUIT_PACKET_BYTES));
    let probes = narrowed(&mut circuit, &mut now, 60, |_| 1_500);
    assert_eq!(probes, 2, "then one looks now and then");
    narrowed(&mut circuit, &mut now, 40, |_| u32::MAX);
    assert_eq!(found(&circuit, now), (Carries::Yes, jumbo));
    // A relay that carries nothing is no narrow one.
    narrowed(&mut circuit, &mut now, 40, |_| 0);
    assert_eq!(circuit.channels(now)[0].larger, Carries::Yes);
}

#[test]
fn the_dialling_end_says_the_size_before_there_is_a_key() {
    let jumbo = CIRCUIT_PACKET_BYTES_JUMBO;
    for (connected, expected) in [(false, jumbo), (true, CIRCUIT_PACKET_BYTES)] {
        let mut circuit = Circuit::new(Moment::ZERO, NodeId(2), NodeId(1), CIRCUIT_PACKET_BYTES, jumbo);
        let mut effects = Vec::new();
        if connected {
            circuit.on(Moment::ZERO, Event::Connected, &mut effects);
        }
        circuit.on(Moment::ZERO, Event::Sized { packet_bytes: jumbo }, &mut effects);
        circuit.on(Moment::ZERO, Event::ChannelAdded { relay: NodeId(7), shares: BTreeSet::new() }, &mut effects);
        let probes = effects.iter().filter_map(|effect| match effect {
            Effect::Probe { bytes, .. } => Some(*bytes),
            _ => None,
        });
        assert_eq!(probes.max(), Some(expected));
    }
}

#[test]
fn an_end_that_slept_accuses_nobody() {
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.ends[A].sends = true;
    world.run(ms(2_000));
    // Both stand still for a second: nothing was delivered, no tick ran.
    world.now = world.now.after(ms(1_000));
    world.run(ms(1_000));
    assert_eq!(world.moves(A) + world.moves(B), 0);
}

#[test]
fn probes_that_come_back_contradict_a_silence() {
    // What is in flight was lost, or its acknowledgement is late: the relay works.
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.run(ms(2_000));
    world.ends[A].stamp += 1;
    world.run(ms(5_000));
    assert_eq!(world.moves(A), 0);
}

#[test]
fn a_relay_that_carries_probes_alone_is_left_and_not_believed_for_a_while() {
    let mut world = World::new(&[(7, 1), (8, 30)]);
    world.run(ms(2_000));
    world.ends[A].sends = true;
    world.relay(7).probes_only = true;
    world.run(ms(1_500));
    let reasons = |world: &World| world.ends[A].takes.iter().map(|(_, take)| take.reason).collect::<Vec<_>>();
    assert_eq!((world.on(A), world.on(B)), (8, 8));
    assert_eq!(reasons(&world).last(), Some(&MoveReason::Selective));
    // It is nearer by far, and its probes come back: for a minute that is not enough.
    world.relay(7).probes_only = false;
    world.run(ms(50_000));
    assert_eq!(world.on(A), 8);
    world.run(ms(30_000));
    assert_eq!(world.on(A), 7, "it may have been mended");
    assert_eq!(reasons(&world).last(), Some(&MoveReason::Nearer));
    // With no other relay it is better than none.
    let mut world = World::new(&[(7, 1)]);
    world.run(ms(2_000));
    world.ends[A].sends = true;
    world.relay(7).probes_only = true;
    world.run(ms(5_000));
    assert_eq!((world.on(A), world.ends[A].stranded), (7, 0));
}

#[test]
fn both_ends_moving_at_once_end_on_the_choice_of_the_lower_id() {
    let mut world = World::new(&[(7, 5), (8, 5), (9, 5)]);
    world.run(ms(2_000));
    world.event(A, Event::MoveTo { relay: NodeId(8), reason: MoveReason::Assigned });
    world.event(B, Event::MoveTo { relay: NodeId(9), reason: MoveReason::Assigned });
    assert_eq!((world.on(A), world.on(B)), (8, 9));
    world.run(ms(100));
    assert_eq!((world.on(A), world.on(B)), (8, 8));
    assert_eq!(world.ends[A].circuit.path().generation, world.ends[B].circuit.path().generation);
}

#[test]
fn during_a_silence_both_relays_get_the_packets_until_an_answer_comes() {
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.ends[A].sends = true;
    world.run(ms(2_000));
    // Only the way back is silent, so that copies over the old relay still arrive.
    world.relay(7).dead[B] = true;
    world.run(ms(60));
    assert_eq!(world.on(A), 8);
    world.run(ms(2_000));
    assert_eq!(world.ends[A].circuit.double(), None, "it ends");
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.run(ms(2_000));
    world.ends[A].sends = true;
    world.kill(7);
    while world.on(A) == 7 {
        world.run(CIRCUIT_TICK);
    }
    let double = world.ends[A].circuit.double().unwrap();
    assert_eq!((world.on(A), double.relay, double.generation), (8, Some(NodeId(7)), Generation(0)));
}

#[test]
fn before_the_key_the_dialling_end_chooses_and_the_other_goes_by_its_packets() {
    let mut dialler = Circuit::new(Moment::ZERO, NodeId(1), NodeId(2), CIRCUIT_PACKET_BYTES, 0);
    let mut other = Circuit::new(Moment::ZERO, NodeId(2), NodeId(1), CIRCUIT_PACKET_BYTES, 0);
    let mut effects = Vec::new();
    for relay in [NodeId(7), NodeId(8)] {
        for circuit in [&mut dialler, &mut other] {
            circuit.on(Moment::ZERO, Event::ChannelAdded { relay, shares: BTreeSet::new() }, &mut effects);
        }
    }
    let mut now = Moment::ZERO;
    for _ in 0..70 {
        now = now.after(CIRCUIT_TICK);
        for circuit in [&mut dialler, &mut other] {
            circuit.on(now, Event::Tick(Figures { in_flight: true, ..Figures::default() }), &mut effects);
        }
    }
    assert_eq!(dialler.path(), Path { relay: Some(NodeId(8)), generation: Generation(0), after_silence: true });
    assert_eq!(other.path().relay, Some(NodeId(7)));
    other.on(now, Event::Heard { path: Path { relay: Some(NodeId(8)), ..Path::default() } }, &mut effects);
    assert_eq!(other.path().relay, Some(NodeId(8)));
}

#[test]
fn strange_events_change_nothing() {
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.run(ms(2_000));
    let before = world.ends[A].circuit.path();
    let unknown = NodeId(99);
    let far = Path { relay: Some(unknown), generation: Generation(9), after_silence: true };
    for event in [
        Event::Heard { path: far },
        Event::Heard { path: Path { relay: None, generation: Generation(9), after_silence: true } },
        Event::Heard { path: Path { relay: Some(NodeId(8)), generation: Generation(0), after_silence: true } },
        Event::Echoed { relay: unknown, sequence: 1 },
        Event::Echoed { relay: NodeId(8), sequence: u64::MAX },
        Event::SessionLost { relay: unknown },
        Event::ChannelRemoved { relay: unknown },
        Event::MoveTo { relay: unknown, reason: MoveReason::Assigned },
        Event::MoveTo { relay: NodeId(7), reason: MoveReason::Assigned },
    ] {
        world.event(A, event);
    }
    assert_eq!(world.ends[A].circuit.path(), before);
}

#[test]
fn state_and_messages_survive_a_journal() {
    let mut world = World::new(&[(7, 1), (8, 1)]);
    world.ends[A].sends = true;
    world.run(ms(500));
    let text = serde_json::to_string(&world.ends[A].circuit).unwrap();
    assert_eq!(serde_json::from_str::<Circuit>(&text).unwrap(), world.ends[A].circuit);
}

#[derive(Clone, Debug)]
enum Fault {
    Dead { relay: u64, direction: usize, dead: bool },
    Avoid { end: usize, relay: u64, avoided: bool },
    SessionLost { end: usize, relay: u64 },
    Move { end: usize, relay: u64 },
    Sends { end: usize, sends: bool },
    Run { ms: u64 },
}

fn fault() -> impl Strategy<Value = Fault> {
    let relay = 7_u64..10;
    prop_oneof![
        3 => (relay.clone(), 0_usize..2, any::<bool>())
            .prop_map(|(relay, direction, dead)| Fault::Dead { relay, direction, dead }),
        1 => (0_usize..2, relay.clone(), any::<bool>())
            .prop_map(|(end, relay, avoided)| Fault::Avoid { end, relay, avoided }),
        1 => (0_usize..2, relay.clone()).prop_map(|(end, relay)| Fault::SessionLost { end, relay }),
        2 => (0_usize..2, relay).prop_map(|(end, relay)| Fault::Move { end, relay }),
        2 => (0_usize..2, any::<bool>()).prop_map(|(end, sends)| Fault::Sends { end, sends }),
        6 => (5_u64..700).prop_map(|ms| Fault::Run { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // The invariants of every step are asserted by the world itself: generations only grow, and whoever is chosen was
    // a candidate by a probe that came back since it was left.
    #[test]
    fn both_ends_find_one_relay_after_any_faults(faults in proptest::collection::vec(fault(), 1..40)) {
        let mut world = World::new(&[(7, 1), (8, 3), (9, 10)]);
        world.run(ms(1_000));
        for fault in faults {
            match fault {
                Fault::Dead { relay, direction, dead } => world.relay(relay).dead[direction] = dead,
                Fault::Avoid { end, relay, avoided } => {
                    world.event(end, Event::Avoided { relay: NodeId(relay), avoided });
                }
                Fault::SessionLost { end, relay } => {
                    world.event(end, Event::SessionLost { relay: NodeId(relay) });
                    world.run(ms(50));
                    world.event(end, Event::ChannelAdded { relay: NodeId(relay), shares: BTreeSet::new() });
                }
                Fault::Move { end, relay } => {
                    world.event(end, Event::MoveTo { relay: NodeId(relay), reason: MoveReason::Assigned });
                }
                Fault::Sends { end, sends } => world.ends[end].sends = sends,
                Fault::Run { ms } => world.run(Span::from_millis(ms)),
            }
        }
        for relay in 7..10 {
            world.relay(relay).dead = [false; 2];
            for end in [A, B] {
                world.event(end, Event::Avoided { relay: NodeId(relay), avoided: false });
            }
        }
        world.ends[A].sends = true;
        world.ends[B].sends = true;
        world.run(ms(3_000));
        prop_assert_eq!(world.on(A), world.on(B));
        prop_assert_eq!(world.ends[A].circuit.path().generation, world.ends[B].circuit.path().generation);
        prop_assert!(!world.ends[A].circuit.stranded() && !world.ends[B].circuit.stranded());
        let settled = (world.ends[A].takes.len(), world.ends[B].takes.len(), world.now);
        world.run(ms(3_000));
        // The nearest relay may just have become due; anything else would be flapping.
        let later = world.ends[A].takes[settled.0..].iter().chain(&world.ends[B].takes[settled.1..]);
        let later: Vec<MoveReason> = later.map(|(_, take)| take.reason).collect();
        let nearer = [MoveReason::Nearer, MoveReason::Followed];
        prop_assert!(later.is_empty() || later == nearer, "{later:?}");
        prop_assert!(world.stall(A, settled.2) < ms(50) && world.stall(B, settled.2) < ms(50));
    }
}
