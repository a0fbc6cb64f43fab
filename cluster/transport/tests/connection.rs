//! What goes over an open connection: requests with deadlines and bounds, renewed and revoked certificates, and the
//! same packets for the same seed.

#[path = "support/quic.rs"]
mod support;

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use postroad_cluster::{
    command::Refusal,
    id::{Generation, NodeId, Role, Version},
    limits::{CALLS_PER_PEER_MAX, CERTIFICATE_LIFETIME, MESSAGE_BYTES_MAX},
    time::{Moment, Span},
    wire::{
        control::{ControlRequest, ControlResponse},
        session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
    },
};
use postroad_transport::{
    connection::{CallFailure, CloseCode, Connection},
    endpoint::{Expect, transport},
    tls::Protocol,
};
use quinn::{TransportConfig, VarInt};
use support::{Node, Packet, World, accept, paused};

const RELAY: Expect = Expect { node: None, role: Role::Relay };

struct Pair {
    world: World,
    relay: Node,
    node: Node,
    dialled: Connection,
    taken: Connection,
}

async fn pair(seed: u64) -> Pair {
    let world = World::new(seed);
    let relay = world.node(1, &[Role::Relay, Role::Control], &[Protocol::Relay, Protocol::Control]);
    let node = world.node(2, &[Role::Node], &[Protocol::Flow]);
    let dialled = node.endpoint.connect(relay.address, Protocol::Relay, RELAY, transport::session()).await.unwrap();
    let taken = accept(&relay).await;
    Pair { world, relay, node, dialled, taken }
}

fn ping(sequence: u64) -> NodeRequest {
    NodeRequest::Ping { sequence }
}

/// Serves pings on `connection`: even ones are answered, odd ones never.
fn serve_even(connection: &Connection) {
    let connection = connection.clone();
    tokio::spawn(async move {
        connection
            .serve(|request| async move {
                match request {
                    NodeRequest::Ping { sequence } if sequence % 2 == 0 => NodeResponse::Done,
                    NodeRequest::Hello { session } => NodeResponse::Welcome { policy: Version(session.0) },
                    _ => pending().await,
                }
            })
            .await
    });
}

async fn settle() {
    tokio::time::sleep(Span::from_millis(200)).await;
}

#[test]
fn both_ends_ask_and_answer() {
    paused(|| async {
        let pair = pair(1).await;
        serve_even(&pair.taken);
        let node_end = pair.dialled.clone();
        tokio::spawn(async move {
            let refusal = || RelayResponse::Refused(Refusal::new("BUSY", "no", ""));
            node_end.serve(move |_: RelayRequest| async move { refusal() }).await
        });
        let wait = Span::from_secs(1);
        let hello = NodeRequest::Hello { session: Generation(7) };
        let welcome: NodeResponse = pair.dialled.call(&hello, wait).await.unwrap();
        assert_eq!(welcome, NodeResponse::Welcome { policy: Version(7) });
        let answer: RelayResponse = pair.taken.call(&RelayRequest::Ping { sequence: 1 }, wait).await.unwrap();
        assert!(matches!(answer, RelayResponse::Refused(_)));
        settle().await;
        assert_eq!((pair.dialled.counts().calls, pair.dialled.counts().served), (1, 1));
    });
}

#[test]
fn an_unanswered_call_ends_at_its_deadline_at_both_ends() {
    paused(|| async {
        let pair = pair(2).await;
        serve_even(&pair.taken);
        pair.dialled.name_peer("fra".parse().unwrap());
        let begin = tokio::time::Instant::now();
        let wait = Span::from_millis(700);
        let error = pair.dialled.call::<_, NodeResponse>(&ping(1), wait).await.unwrap_err();
        assert_eq!(error.code(), "TIMED_OUT", "{error}");
        // Timers are 1 ms wide.
        assert!((wait..=wait + Span::from_millis(1)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        let text = error.to_string();
        assert!(text.starts_with("sent n1 (fra) a session request of a node: no answer within 700 ms"), "{text}");
        settle().await;
        assert_eq!((pair.taken.counts().abandoned, pair.taken.counts().served), (1, 0));
        // The connection is none the worse for it.
        assert!(pair.dialled.call::<_, NodeResponse>(&ping(2), wait).await.is_ok());
        assert_eq!(pair.dialled.counts().calls_failed, 1);
    });
}

#[test]
fn the_server_knows_the_deadline_and_a_dropped_call_ends_its_handler() {
    paused(|| async {
        let pair = pair(3).await;
        let deadlines = Arc::new(AtomicUsize::new(0));
        let (server, seen, clock) = (pair.taken.clone(), Arc::clone(&deadlines), Arc::clone(&pair.world.clock));
        tokio::spawn(async move {
            server
                .serve_until(move |_: NodeRequest, until: Moment| {
                    let left = until.since(postroad_cluster::time::Clock::now(&*clock));
                    seen.store(left.as_millis() as usize, Ordering::Relaxed);
                    pending::<NodeResponse>()
                })
                .await
        });
        let request = ping(1);
        let call = pair.dialled.call::<_, NodeResponse>(&request, Span::from_secs(30));
        assert!(tokio::time::timeout(Span::from_millis(300), call).await.is_err());
        settle().await;
        assert_eq!(deadlines.load(Ordering::Relaxed), 30_000);
        assert_eq!(pair.taken.counts().abandoned, 1);
    });
}

#[test]
fn past_its_bound_a_peer_is_busy() {
    paused(|| async {
        let pair = pair(4).await;
        serve_even(&pair.taken);
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..CALLS_PER_PEER_MAX {
            let connection = pair.dialled.clone();
            waiting.spawn(async move { connection.call::<_, NodeResponse>(&ping(1), Span::from_secs(5)).await });
        }
        settle().await;
        let error = pair.dialled.call::<_, NodeResponse>(&ping(2), Span::from_secs(5)).await.unwrap_err();
        assert_eq!(error.code(), "BUSY", "{error}");
        while let Some(result) = waiting.join_next().await {
            assert_eq!(result.unwrap().unwrap_err().code(), "TIMED_OUT");
        }
        assert!(pair.dialled.call::<_, NodeResponse>(&ping(2), Span::from_secs(5)).await.is_ok());
    });
}

#[test]
fn requests_past_the_servers_bound_wait_unread() {
    paused(|| async {
        let pair = pair(5).await;
        let running = Arc::new(AtomicUsize::new(0));
        let (server, count) = (pair.taken.clone(), Arc::clone(&running));
        tokio::spawn(async move {
            server
                .serve(move |_: NodeRequest| {
                    count.fetch_add(1, Ordering::Relaxed);
                    pending::<NodeResponse>()
                })
                .await
        });
        // A peer that ignores its own bound: raw streams, each with a whole request.
        let mut streams = Vec::new();
        for _ in 0..CALLS_PER_PEER_MAX + 20 {
            let (mut send, receive) = pair.dialled.quinn().open_bi().await.unwrap();
            send.write_all(&frame(&postroad_cluster::wire::encode(&ping(1)), 60_000)).await.unwrap();
            send.finish().unwrap();
            streams.push((send, receive));
        }
        settle().await;
        assert_eq!(running.load(Ordering::Relaxed), CALLS_PER_PEER_MAX);
    });
}

fn frame(message: &[u8], wait_ms: u32) -> Vec<u8> {
    let mut bytes = (message.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(&wait_ms.to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

#[test]
fn garbage_ends_its_own_stream_and_nothing_else() {
    paused(|| async {
        let pair = pair(6).await;
        serve_even(&pair.taken);
        let good = postroad_cluster::wire::encode(&ping(2));
        let mut longer = frame(&good, 1_000);
        longer.push(0);
        let mut newer = good.clone();
        newer[0] = 99;
        let cases: Vec<Vec<u8>> = vec![
            Vec::new(),
            vec![1, 2, 3],
            frame(&[], 1_000),
            frame(&[7; 40], 1_000),
            frame(&good, 1_000)[..9].to_vec(),
            [(MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes(), [0; 4]].concat(),
            longer,
            frame(&newer, 1_000),
        ];
        for (number, bytes) in cases.iter().enumerate() {
            let (mut send, mut receive) = pair.dialled.quinn().open_bi().await.unwrap();
            send.write_all(bytes).await.unwrap();
            send.finish().unwrap();
            let error = receive.read_to_end(100).await.unwrap_err();
            assert_eq!(error, quinn::ReadToEndError::Read(quinn::ReadError::Reset(VarInt::from_u32(2))), "{number}");
            settle().await;
            assert_eq!(pair.taken.counts().malformed, number as u64 + 1, "{bytes:?}");
        }
        // An answer of another kind is the caller's error alone, and a request of another kind malformed at the server.
        let error = pair.dialled.call::<_, RelayResponse>(&ping(2), Span::from_secs(1)).await.unwrap_err();
        assert_eq!(error.code(), "MALFORMED", "{error}");
        let foreign = ControlRequest::Raft { message: vec![9; 300] };
        let error = pair.dialled.call::<_, ControlResponse>(&foreign, Span::from_secs(1)).await.unwrap_err();
        assert_eq!(error.code(), "MALFORMED", "{error}");
        assert!(pair.dialled.call::<_, NodeResponse>(&ping(2), Span::from_secs(1)).await.is_ok());
    });
}

#[test]
fn a_handler_that_panics_fails_its_own_call() {
    paused(|| async {
        let pair = pair(7).await;
        let server = pair.taken.clone();
        tokio::spawn(async move {
            server
                .serve(|request: NodeRequest| async move {
                    assert_ne!(request, ping(13), "unlucky");
                    NodeResponse::Done
                })
                .await
        });
        let error = pair.dialled.call::<_, NodeResponse>(&ping(13), Span::from_secs(1)).await.unwrap_err();
        assert_eq!(error.failure, CallFailure::Failed);
        assert!(pair.dialled.call::<_, NodeResponse>(&ping(1), Span::from_secs(1)).await.is_ok());
    });
}

#[test]
fn the_largest_message_passes_and_a_larger_one_is_not_sent() {
    paused(|| async {
        let pair = pair(8).await;
        let server = pair.taken.clone();
        tokio::spawn(async move {
            server
                .serve(|request| async move {
                    let ControlRequest::Raft { message } = request else { return ControlResponse::Done };
                    ControlResponse::Raft { message }
                })
                .await
        });
        let message = vec![7; MESSAGE_BYTES_MAX - 100];
        let request = ControlRequest::Raft { message: message.clone() };
        let answer: ControlResponse = pair.dialled.call(&request, Span::from_mins(1)).await.unwrap();
        assert_eq!(answer, ControlResponse::Raft { message });
        let request = ControlRequest::Raft { message: vec![7; MESSAGE_BYTES_MAX] };
        let error = pair.dialled.call::<_, ControlResponse>(&request, Span::from_mins(1)).await.unwrap_err();
        assert_eq!(error.code(), "MALFORMED", "{error}");
    });
}

#[test]
fn a_close_says_why_and_ends_waiting_calls() {
    paused(|| async {
        let pair = pair(9).await;
        serve_even(&pair.taken);
        let caller = pair.dialled.clone();
        let waiting = tokio::spawn(async move { caller.call::<_, NodeResponse>(&ping(1), Span::from_secs(9)).await });
        settle().await;
        pair.taken.close(CloseCode::Stopping, "n1 stops");
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.code(), "CLOSED");
        assert!(error.to_string().contains("closed by the peer: n1 stops (STOPPING)"), "{error}");
        assert_eq!(pair.taken.closed().await.to_string(), "closed here: n1 stops (STOPPING)");
        let error = pair.dialled.call::<_, NodeResponse>(&ping(2), Span::from_secs(9)).await.unwrap_err();
        assert_eq!(error.code(), "CLOSED");
    });
}

// RP-33: a host that is gone is dropped after about 3.5 s, one that only has nothing to say is not.
#[test]
fn a_silent_host_is_dropped_and_a_quiet_one_kept() {
    paused(|| async {
        let pair = pair(10).await;
        tokio::time::sleep(Span::from_mins(1)).await;
        assert_eq!(pair.taken.close_reason(), None);
        let begin = tokio::time::Instant::now();
        pair.world.fabric.cut(pair.node.address);
        assert_eq!(pair.taken.closed().await.code, "SILENT");
        // The timeout of 3.5 s begins anew with the first keepalive in vain, up to a second after the last word.
        assert!((2_400..=4_500).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
        assert_eq!(pair.dialled.closed().await.code, "SILENT");
    });
}

#[test]
fn the_last_handle_closes_the_connection() {
    paused(|| async {
        let Pair { dialled, taken, node, relay, .. } = pair(11).await;
        let other = dialled.clone();
        drop(dialled);
        settle().await;
        assert_eq!(taken.close_reason(), None);
        drop(other);
        assert_eq!(taken.closed().await.code, "DONE");
        drop((node, relay));
    });
}

// RP-31: a peer that comes back without its state says so at once, since its secret outlived it.
#[test]
fn a_restarted_relay_is_noticed_at_once() {
    paused(|| async {
        let Pair { world, relay, dialled, taken, node } = pair(12).await;
        world.fabric.cut(relay.address);
        drop((relay, taken));
        tokio::time::sleep(Span::from_millis(100)).await;
        world.fabric.heal();
        let _again = world.node(1, &[Role::Relay], &[Protocol::Relay]);
        let begin = tokio::time::Instant::now();
        let closed = dialled.closed().await;
        assert_eq!(closed.code, "PEER_RESTARTED", "{closed}");
        assert!(begin.elapsed() < Span::from_millis(1_500), "{:?}", begin.elapsed());
        drop(node);
    });
}

/// Few packets, so that virtual days pass quickly.
fn drowsy() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(Some(VarInt::from_u32(1_800_000).into()))
        .keep_alive_interval(Some(Span::from_mins(10)))
        .mtu_discovery_config(None);
    Arc::new(config)
}

const HOUR: Span = Span::from_hours(1);

/// A relay whose certificate lives 192 h and a node whose one lives 96 h.
async fn drowsy_pair(seed: u64) -> Pair {
    let world = World::new(seed);
    let mine = world.identity(1, &[Role::Relay], CERTIFICATE_LIFETIME * 2);
    let relay = world.node_with(1, mine, &[Protocol::Relay], drowsy());
    let node = world.node_with(2, world.identity(2, &[Role::Node], 96 * HOUR), &[Protocol::Flow], drowsy());
    let dialled = node.endpoint.connect(relay.address, Protocol::Relay, RELAY, drowsy()).await.unwrap();
    let taken = accept(&relay).await;
    Pair { world, relay, node, dialled, taken }
}

// RP-50: a connection stays open through renewals, for 200 hours with certificates of 96.
#[test]
fn renewed_certificates_keep_a_connection_open() {
    paused(|| async {
        let pair = drowsy_pair(13).await;
        for _ in 0..2 {
            tokio::time::sleep(90 * HOUR).await;
            pair.node.identity.replace(pair.world.identity(2, &[Role::Node], 96 * HOUR));
        }
        tokio::time::sleep(20 * HOUR).await;
        assert_eq!(pair.taken.close_reason(), None);
        assert_eq!(pair.dialled.close_reason(), None);
        assert_eq!(pair.taken.counts().proofs, 2);
        assert_eq!(*pair.taken.peer().get(), {
            let mut newest = pair.node.identity.current().described().clone();
            newest.expires = pair.taken.peer().get().expires;
            newest
        });
        // The renewed one ends too.
        tokio::time::sleep(80 * HOUR).await;
        assert_eq!(pair.taken.close_reason().unwrap().code, "CERTIFICATE_EXPIRED");
    });
}

#[test]
fn without_renewal_a_connection_closes_at_the_expiry() {
    paused(|| async {
        let pair = drowsy_pair(14).await;
        tokio::time::sleep(95 * HOUR + Span::from_secs(3_595)).await;
        assert_eq!(pair.taken.close_reason(), None);
        tokio::time::sleep(Span::from_secs(6)).await;
        assert_eq!(pair.taken.close_reason().unwrap().code, "CERTIFICATE_EXPIRED");
        assert_eq!(pair.dialled.closed().await.code, "CERTIFICATE_EXPIRED");
    });
}

// A wall clock that jumps ends no connection: the expiry was fixed on the other clock.
#[test]
fn a_jump_of_the_wall_clock_ends_nothing() {
    paused(|| async {
        let pair = drowsy_pair(15).await;
        pair.world.clock.jump(97 * 3_600_000);
        pair.relay.trust.replace(pair.world.anchors());
        tokio::time::sleep(HOUR).await;
        assert_eq!(pair.taken.close_reason(), None);
    });
}

#[test]
fn a_renewal_that_is_not_trusted_yet_counts_later() {
    paused(|| async {
        let pair = drowsy_pair(16).await;
        let renewed = pair.world.identity(2, &[Role::Node], 192 * HOUR);
        let mut anchors = pair.world.anchors();
        anchors.revoked_serials.insert(renewed.described().serial);
        pair.relay.trust.replace(anchors);
        pair.node.identity.replace(renewed);
        tokio::time::sleep(50 * HOUR).await;
        assert_eq!(pair.taken.close_reason(), None);
        pair.relay.trust.replace(pair.world.anchors());
        tokio::time::sleep(100 * HOUR).await;
        assert_eq!(pair.taken.close_reason(), None);
    });
}

#[test]
fn a_renewal_for_another_node_closes_the_connection() {
    paused(|| async {
        let pair = drowsy_pair(17).await;
        pair.node.identity.replace(pair.world.identity(3, &[Role::Node], 96 * HOUR));
        let closed = pair.dialled.closed().await;
        assert_eq!(closed.code, "SIGNER_UNKNOWN", "{closed}");
        assert_eq!(pair.taken.node(), NodeId(2));
    });
}

// RP-35, R12: a revocation ends what is open, at once and at both ends, and leaves others alone.
#[test]
fn a_revocation_closes_open_connections_at_once() {
    paused(|| async {
        let pair = pair(18).await;
        let bystander = pair.world.node(3, &[Role::Node], &[]);
        let others =
            bystander.endpoint.connect(pair.relay.address, Protocol::Relay, RELAY, transport::session()).await.unwrap();
        let mut anchors = pair.world.anchors();
        anchors.revoked_nodes.insert(NodeId(2));
        pair.relay.trust.replace(anchors);
        settle().await;
        assert_eq!(pair.taken.close_reason().unwrap().code, "CERTIFICATE_REVOKED");
        let closed = pair.dialled.close_reason().unwrap();
        assert_eq!(closed.code, "CERTIFICATE_REVOKED");
        assert!(closed.reason.contains("n2"), "{closed}");
        assert_eq!(others.close_reason(), None);
    });
}

#[test]
fn a_one_way_stream_of_garbage_closes_the_connection() {
    paused(|| async {
        let pair = pair(19).await;
        let mut stream = pair.dialled.quinn().open_uni().await.unwrap();
        stream.write_all(b"garbage").await.unwrap();
        stream.finish().unwrap();
        assert_eq!(pair.dialled.closed().await.code, "PROTOCOL");
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "each run begins on a fresh thread, so that no thread-local state is left over"
)]
fn run(seed: u64) -> Vec<Packet> {
    let run = move || {
        paused(|| async {
            let pair = pair(seed).await;
            serve_even(&pair.taken);
            for sequence in 0..20 {
                let _ = pair.dialled.call::<_, NodeResponse>(&ping(sequence), Span::from_millis(150)).await;
            }
            pair.node.identity.replace(pair.world.identity(2, &[Role::Node], CERTIFICATE_LIFETIME));
            tokio::time::sleep(Span::from_secs(10)).await;
            drop((pair.dialled, pair.taken));
            settle().await;
            pair.world.fabric.packets()
        })
    };
    std::thread::spawn(run).join().unwrap()
}

#[test]
fn one_seed_gives_the_same_packets_twice() {
    for seed in [1, 2, 3] {
        let (first, second) = (run(seed), run(seed));
        assert!(first.len() > 80, "{}", first.len());
        assert_eq!(first, second);
    }
}
