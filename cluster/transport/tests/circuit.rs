//! Circuits over relays that die: two node sockets with quinn, over switches, on a network in memory.

mod support;

use std::time::Duration;

use postroad_cluster::{
    circuit::MoveReason,
    id::{CircuitId, NodeId},
};
use postroad_transport::{
    node_socket::{CircuitError, CircuitEvent, CircuitKey, CircuitSpec, NodeSocket, PathFigures},
    packet::{Header, PacketType},
};
use support::{TestCircuit, World, pattern, pause, transfer};
use tokio::time::Instant;

const MIB: usize = 1 << 20;

fn moves(world: &mut World, end: usize) -> Vec<(MoveReason, NodeId, usize)> {
    let mut moves = Vec::new();
    while let Ok(event) = world.nodes[end].events.try_recv() {
        if let CircuitEvent::Moved { reason, to, replayed, .. } = event
            && reason != MoveReason::First
        {
            moves.push((reason, to, replayed));
        }
    }
    moves
}

#[tokio::test(start_paused = true)]
async fn eight_mebibytes_survive_two_relays() {
    // RP-1: the sockets at both ends notice nothing. R7: what died is not chosen again.
    let mut world = World::new(3, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    let flow = transfer(&circuit, 0, 8 * MIB, 16 << 10);
    let mut killed = Vec::new();
    for _ in 0..2 {
        pause(250).await;
        let relay = world.relay(circuit.id);
        assert!(!killed.iter().any(|(dead, _)| *dead == relay));
        killed.push((relay, Instant::now()));
        let place = world.place(relay);
        world.kill_relay(place);
    }
    let arrivals = flow.await.unwrap();
    assert_eq!(arrivals.total, 8 * MIB);
    let stall = arrivals.stall(killed[0].1);
    assert!(stall < Duration::from_millis(100), "{stall:?}");
    let moved = moves(&mut world, 0);
    assert_eq!(moved.len(), 2, "one move each, no flapping: {moved:?}");
    assert!(moved.iter().all(|(reason, _, replayed)| *reason == MoveReason::Silence && *replayed > 0), "{moved:?}");
    assert!(moves(&mut world, 1).iter().all(|(reason, ..)| *reason == MoveReason::Followed));
    let status = world.status(0, circuit.id);
    assert_eq!((status.relay, status.generation.0, status.stranded), (Some(NodeId(13)), 2, false));
    assert!(status.choice.starts_with("n13: "), "{}", status.choice);
    assert_eq!(world.status(0, circuit.id).counters.forged, 0);
}

#[tokio::test(start_paused = true)]
async fn with_20_ms_of_round_trip_the_stall_stays_under_300_ms() {
    let mut world = World::new(2, Duration::from_millis(5));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    let flow = transfer(&circuit, 1, 4 * MIB, 16 << 10);
    pause(300).await;
    let killed = Instant::now();
    let place = world.place(world.relay(circuit.id));
    world.kill_relay(place);
    let arrivals = flow.await.unwrap();
    assert_eq!(arrivals.total, 4 * MIB);
    assert!(arrivals.stall(killed) < Duration::from_millis(200), "{:?}", arrivals.stall(killed));
}

// What was in flight fills the window that a move begins anew: with data both ways, neither end's acknowledgements came
// through until QUIC's own probes.
#[tokio::test(start_paused = true)]
async fn with_data_both_ways_the_stall_is_no_longer() {
    for (planned, limit_ms) in [(false, 120), (true, 20)] {
        for step in 0..5 {
            let mut world = World::new(3, Duration::from_millis(5));
            let circuit = world.connect(5).await;
            pause(1_500).await;
            let flows = [0, 1].map(|from| transfer(&circuit, from, 16 * MIB, 16 << 10));
            pause(1_000 + 3 * step).await;
            let (relay, moved) = (world.relay(circuit.id), Instant::now());
            if planned {
                let to = if relay == NodeId(11) { NodeId(12) } else { NodeId(11) };
                world.nodes[0].socket.move_to(world.key(0, circuit.id), to, MoveReason::Assigned).unwrap();
            } else {
                let place = world.place(relay);
                world.kill_relay(place);
            }
            for flow in flows {
                let arrivals = flow.await.unwrap();
                assert_eq!(arrivals.total, 16 * MIB);
                let stall = arrivals.stall(moved);
                assert!(stall < Duration::from_millis(limit_ms), "planned: {planned}, step {step}: {stall:?}");
            }
        }
    }
}

/// Sends 100 bytes there and back every 2 ms for `span`, and returns the longest wait for an answer.
async fn ping_pong(circuit: &TestCircuit, span: Duration) -> Duration {
    let [one, other] = circuit.connections.clone();
    tokio::spawn(async move {
        let (mut send, mut recv) = other.accept_bi().await.unwrap();
        let mut bytes = [0; 100];
        while recv.read_exact(&mut bytes).await.is_ok() {
            send.write_all(&bytes).await.unwrap();
        }
    });
    let (mut send, mut recv) = one.open_bi().await.unwrap();
    let until = Instant::now() + span;
    let mut longest = Duration::ZERO;
    let mut number = 0_u8;
    while Instant::now() < until {
        let asked = Instant::now();
        number = number.wrapping_add(1);
        send.write_all(&[number; 100]).await.unwrap();
        let mut bytes = [0; 100];
        recv.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, [number; 100]);
        longest = longest.max(asked.elapsed());
        pause(2).await;
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn small_messages_stall_no_longer() {
    for delay_us in [100, 1_000] {
        let mut world = World::new(2, Duration::from_micros(delay_us));
        let circuit = world.connect(5).await;
        pause(1_500).await;
        let (longest, ()) = tokio::join!(ping_pong(&circuit, Duration::from_secs(1)), async {
            pause(500).await;
            let place = world.place(world.relay(circuit.id));
            world.kill_relay(place);
        });
        assert!(longest < Duration::from_millis(120), "{delay_us} us: {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn loss_and_jitter_move_nothing() {
    let mut world = World::new(2, Duration::from_millis(5));
    world.fabric.change_all(|way| {
        way.loss = 50;
        way.jitter = Duration::from_millis(2);
    });
    let circuit = world.connect(5).await;
    let bulk = transfer(&circuit, 0, 4 * MIB, 2 << 10);
    ping_pong(&circuit, Duration::from_mins(1)).await;
    assert_eq!(bulk.await.unwrap().total, 4 * MIB);
    let (one, other) = (moves(&mut world, 0), moves(&mut world, 1));
    assert!(one.is_empty() && other.is_empty(), "{one:?} {other:?}");
}

#[tokio::test(start_paused = true)]
async fn one_way_black_holes_are_left_by_both_ends() {
    // R6, R16: each of the four ways of the relay in use, with data in each direction.
    for hole in 0..4 {
        for from in [0, 1] {
            let mut world = World::new(2, Duration::from_millis(1));
            let circuit = world.connect(5).await;
            pause(1_500).await;
            let flow = transfer(&circuit, from, 4 * MIB, 16 << 10);
            pause(200).await;
            let relay = world.relays[world.place(world.relay(circuit.id))].address;
            let node = world.nodes[hole % 2].address;
            let (source, destination) = if hole < 2 { (node, relay) } else { (relay, node) };
            world.fabric.change(source, destination, |way| way.dead = true);
            let cut = Instant::now();
            let arrivals = flow.await.unwrap();
            assert_eq!(arrivals.total, 4 * MIB);
            let stall = arrivals.stall(cut);
            assert!(stall < Duration::from_millis(150), "hole {hole}, from {from}: {stall:?}");
            pause(2_000).await;
            let place = world.place(world.relay(circuit.id));
            assert_ne!(world.relays[place].address, relay, "hole {hole}, from {from}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn full_windows_and_a_dead_relay_lose_nothing() {
    // R2
    for round in 0..5 {
        let mut world = World::new(2, Duration::from_millis(1));
        let circuit = world.connect(5).await;
        pause(1_500).await;
        let total = 6 * MIB;
        let mut ends = Vec::new();
        let (mut send, recv) = circuit.connections[0].open_bi().await.unwrap();
        send.write_all(&pattern(0, 1)).await.unwrap();
        ends.push((send, recv));
        ends.push(circuit.connections[1].accept_bi().await.unwrap());
        let mut tasks = Vec::new();
        let (go, _) = tokio::sync::broadcast::channel::<()>(1);
        for (end, (mut send, mut recv)) in ends.into_iter().enumerate() {
            tasks.push(tokio::spawn(async move {
                let first = usize::from(end == 0);
                send.write_all(&pattern(first, total - first)).await.unwrap();
                send.finish().unwrap();
                send.stopped().await.unwrap();
            }));
            let mut go = go.subscribe();
            tasks.push(tokio::spawn(async move {
                go.recv().await.unwrap();
                assert_eq!(recv.read_to_end(total).await.unwrap(), pattern(0, total));
            }));
        }
        pause(500 + round).await;
        let place = world.place(world.relay(circuit.id));
        world.kill_relay(place);
        pause(round * 20).await;
        go.send(()).unwrap();
        for task in tasks {
            tokio::time::timeout(Duration::from_secs(5), task).await.expect("data moves again").unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn flows_wait_while_no_relay_is_there_and_go_on_at_once() {
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    let flow = transfer(&circuit, 0, 4 * MIB, 16 << 10);
    pause(200).await;
    let addresses: Vec<_> = world.relays.iter().map(|relay| relay.address).collect();
    for address in &addresses {
        world.fabric.kill(*address);
    }
    pause(20_000).await;
    assert!(!flow.is_finished());
    assert!(world.status(0, circuit.id).stranded);
    let back = Instant::now();
    for address in &addresses {
        world.fabric.revive(*address);
    }
    let arrivals = flow.await.unwrap();
    assert_eq!(arrivals.total, 4 * MIB);
    let first = arrivals.times.iter().find(|at| **at > back).unwrap();
    assert!(*first - back < Duration::from_millis(400), "{:?}", *first - back);
    pause(2_000).await;
    world.relay(circuit.id);
}

#[tokio::test(start_paused = true)]
async fn planned_moves_forward_and_back_are_not_felt() {
    // RP-40
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    let (node, relay) = (world.nodes[0].address, world.relays[1].address);
    for (from, to) in [(node, relay), (relay, node)] {
        world.fabric.change(from, to, |way| way.delay = Duration::from_millis(6));
    }
    pause(3_500).await;
    let flow = transfer(&circuit, 0, 8 * MIB, 16 << 10);
    let started = Instant::now();
    for round in 0..3 {
        let to = NodeId(12 - round % 2);
        pause(150).await;
        let key = world.key(0, circuit.id);
        assert_eq!(world.nodes[0].socket.move_to(key, to, MoveReason::Assigned), Ok(()));
        assert_eq!(world.nodes[0].socket.move_to(key, to, MoveReason::Assigned), Err(CircuitError::NoCandidate));
        pause(50).await;
        assert_eq!(world.relay(circuit.id), to);
    }
    let lost = circuit.connections[0].stats().path.lost_packets;
    let arrivals = flow.await.unwrap();
    assert!(arrivals.stall(started + Duration::from_millis(50)) < Duration::from_millis(20));
    assert_eq!((arrivals.total, lost), (8 * MIB, 0), "nothing overtakes, so nothing seems lost");
}

#[tokio::test(start_paused = true)]
async fn a_draining_relay_is_left_by_both_ends() {
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    let relay = world.relay(circuit.id);
    world.nodes[1].socket.channel_avoid(world.key(1, circuit.id), relay, true).unwrap();
    pause(50).await;
    assert_ne!(world.relay(circuit.id), relay);
    // The lower id would like to go back only if that were nearer.
    pause(30_000).await;
    assert_ne!(world.relay(circuit.id), relay);
}

#[tokio::test(start_paused = true)]
async fn circuits_share_relays_and_sockets() {
    let mut world = World::new(2, Duration::from_millis(1));
    let mut flows = Vec::new();
    for number in [5, 6, 7] {
        let circuit = world.connect(number).await;
        for from in [0, 1] {
            flows.push(transfer(&circuit, from, 2 * MIB, 16 << 10));
        }
    }
    pause(50).await;
    for flow in flows {
        assert_eq!(flow.await.unwrap().total, 2 * MIB);
    }
    let relay = &world.relays[0];
    let counters = relay.switch.as_ref().unwrap().counters();
    assert_eq!(counters.drops, postroad_transport::switch::SwitchDrops::default());
    assert!(counters.packets > counters.sends * 3, "what goes to one destination goes together: {counters:?}");
}

#[tokio::test(start_paused = true)]
async fn a_relay_dead_from_the_start_does_not_stop_the_handshake() {
    let mut world = World::new(2, Duration::from_millis(1));
    let dead = world.relays[0].address;
    world.fabric.kill(dead);
    let started = Instant::now();
    let circuit = world.connect(5).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(world.relay(circuit.id), NodeId(12));
    assert_eq!(transfer(&circuit, 0, MIB, 16 << 10).await.unwrap().total, MIB);
}

#[tokio::test(start_paused = true)]
async fn idle_circuits_stay_open_and_leave_dead_relays() {
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(600_000).await;
    let place = world.place(world.relay(circuit.id));
    assert_eq!(place, 0);
    world.kill_relay(place);
    pause(5_000).await;
    assert_eq!(world.relay(circuit.id), NodeId(12));
    pause(600_000).await;
    assert!(circuit.connections[0].close_reason().is_none());
    let started = Instant::now();
    let arrivals = transfer(&circuit, 0, MIB, 16 << 10).await.unwrap();
    assert!(arrivals.times[0] - started < Duration::from_millis(30));
}

#[tokio::test(start_paused = true)]
async fn an_address_of_a_removed_circuit_is_silent() {
    let mut world = World::new(1, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    let key = world.key(0, circuit.id);
    let address = world.status(0, circuit.id).address;
    assert_eq!(world.nodes[0].socket.circuit_of(address), Some(key));
    circuit.connections[0].close(0_u32.into(), b"the last word");
    assert!(world.nodes[0].socket.circuit_remove(key));
    assert!(!world.nodes[0].socket.circuit_remove(key));
    assert_eq!(world.nodes[0].socket.circuit_of(address), None);
    assert_eq!(world.nodes[0].socket.status(key), Err(CircuitError::Unknown));
    // The connection's driver runs later than that, and what it says still leaves.
    let closed = tokio::time::timeout(Duration::from_millis(50), circuit.connections[1].closed()).await;
    assert!(closed.expect("the peer hears it").to_string().contains("the last word"));
}

#[tokio::test(start_paused = true)]
async fn garbage_and_forged_moves_disturb_nobody() {
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    let flow = transfer(&circuit, 0, 4 * MIB, 16 << 10);
    let before = world.status(1, circuit.id);
    let channel = world.specs.iter().rev().find(|(end, _)| *end == 1).unwrap().1.clone();
    assert_ne!(Some(channel.relay), before.relay);
    let node = world.nodes[1].address;
    for round in 0..200_u64 {
        // A relay that lies: with the right token and address, a newer path, and no key for its MAC.
        let header = Header {
            packet_type: [PacketType::Data, PacketType::Probe, PacketType::Echo][round as usize % 3],
            flags: 1,
            generation: 1 + round as u16,
            mac: (round as u32).to_le_bytes(),
            token: channel.token_in,
        };
        for length in [0, 1, 15, 16, 17, 1_000] {
            world.fabric.inject(channel.address, node, [&header.encode()[..], &vec![round as u8; length]].concat());
        }
        // Strangers, and what is no packet at all.
        world.fabric.inject("10.0.9.9:1".parse().unwrap(), node, header.encode().to_vec());
        world.fabric.inject(channel.address, node, vec![round as u8; round as usize % 40]);
        pause(2).await;
    }
    assert_eq!(flow.await.unwrap().total, 4 * MIB);
    let after = world.status(1, circuit.id);
    assert_eq!((after.relay, after.generation, after.moves), (before.relay, before.generation, before.moves));
    assert!(after.counters.forged > 0);
    assert!(world.nodes[1].socket.counters().unknown_packets > 200);
}

#[tokio::test(start_paused = true)]
async fn a_relay_cannot_answer_probes_in_the_peers_name() {
    let mut world = World::new(2, Duration::from_millis(1));
    let circuit = world.connect(5).await;
    pause(1_500).await;
    // The way to the peer is dead, and the relay answers itself.
    let (relay, place) = (world.relays[1].id, 1);
    world.fabric.change(world.relays[place].address, world.nodes[1].address, |way| way.dead = true);
    let channel = world.specs.iter().find(|(end, spec)| *end == 0 && spec.relay == relay).unwrap().1.clone();
    let lies = world.fabric.clone();
    let node = world.nodes[0].address;
    tokio::spawn(async move {
        let header =
            Header { packet_type: PacketType::Echo, flags: 0, generation: 0, mac: [0; 4], token: channel.token_in };
        for sequence in 0..100_u64 {
            let body = [&header.encode()[..], &sequence.to_le_bytes(), &[0; 1_400]].concat();
            lies.inject(channel.address, node, body);
            pause(50).await;
        }
    });
    pause(4_000).await;
    let status = world.status(0, circuit.id);
    let channel = status.channels.iter().find(|channel| channel.relay == relay).unwrap();
    assert!(!channel.candidate, "{channel:?}");
}

/// Figures that ask the socket back, as a connection that is just sending holds its lock and asks for the circuit's.
struct AsksBack(std::sync::Weak<NodeSocket>, CircuitKey, std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl AsksBack {
    fn ask(&self) {
        let socket = self.0.upgrade().expect("the socket outlives the test");
        assert!(socket.status(self.1).is_ok());
        self.2.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

impl PathFigures for AsksBack {
    fn round_trip(&self) -> Duration {
        self.ask();
        Duration::from_millis(1)
    }

    fn eliciting_frames(&self) -> u64 {
        self.ask();
        1
    }

    fn closed(&self) -> bool {
        self.ask();
        false
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a deadlock stops its thread, and the test must outlive it")]
fn the_connection_is_asked_where_the_circuit_holds_no_lock() {
    // A connection calls the socket under its own lock, so the other order would be a deadlock; on one thread it is one.
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let asked = runtime.expect("a runtime").block_on(async {
            let world = World::new(1, Duration::from_millis(1));
            let socket = std::sync::Arc::clone(&world.nodes[0].socket);
            let key = CircuitKey { peer: NodeId(2), circuit: CircuitId(9) };
            let spec = CircuitSpec { key, me: NodeId(1), packet_bytes: 1_436, larger_bytes: 1_436, enlarges: false };
            let destination = socket.circuit_add(spec).expect("there is room");
            let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let figures = AsksBack(std::sync::Arc::downgrade(&socket), key, std::sync::Arc::clone(&asked));
            socket.circuit_connected(key, std::sync::Arc::new(figures), &[7; 32]).expect("it was added");
            for _ in 0..10 {
                let transmit = quinn::udp::Transmit {
                    destination,
                    ecn: None,
                    contents: &[0x40; 100],
                    segment_size: None,
                    src_ip: None,
                };
                quinn::AsyncUdpSocket::try_send(&*socket, &transmit).expect("it is dropped or sent");
                pause(100).await;
            }
            asked.load(std::sync::atomic::Ordering::Relaxed)
        });
        let _ = done.send(asked);
    });
    let asked = finished.recv_timeout(Duration::from_mins(1)).expect("no deadlock");
    assert!(asked >= 3, "{asked}");
}
