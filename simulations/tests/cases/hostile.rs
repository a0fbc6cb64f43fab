//! Nodes with good credentials and bad intentions, and strangers that overhear: each gets nothing beyond the denial of its
//! own service. Relays in bad hands are in `hostile_relay.rs`.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use postroad_actors::status::local::Circuit;
use postroad_cluster::{
    grant::SignedGrant,
    id::{CircuitId, Generation, LinkId, NodeId, Role, TunnelId},
    limits::{AHEAD_LOT_MAX, CALL_WAIT, CHANNELS_PER_PAIR_MAX},
    wire::{
        self,
        flow::OpenFrame,
        session::{NodeRequest, NodeResponse, RelayRequest, RelayResponse},
    },
};
use postroad_simulations::{
    network::{Condition, Datagram, Host},
    world::{PORT, Plan},
};
use postroad_transport::{
    connection::Connection,
    node_socket::CircuitKey,
    packet::{HEADER_BYTES, Header, PacketType},
    switch::SwitchCounters,
};

use crate::support::{Fleet, Flow, ms, run, seconds, until, within};

/// The link that the mole may use, and the port on which it listens for it.
const OWN_PORT: u16 = 7_432;

/// A fleet with one more node that has a link of its own to `db`, and so a session, a grant and a circuit.
pub(crate) async fn with_mole(seed: u64, relays: usize) -> (Fleet, usize) {
    let mut fleet = Fleet::new(seed, Condition::default(), relays).await;
    let mole = fleet.world.add(Plan { name: "mole", role: Role::Node });
    fleet.world.join(mole).await.unwrap();
    fleet.world.link("own", &[mole], OWN_PORT, fleet.db, 8_432).await.unwrap();
    let db = fleet.id(fleet.db);
    until("the mole has a circuit of its own", seconds(30), || fleet.node(mole).fabric().circuit(db).is_some()).await;
    until("the mole has sessions", seconds(30), || fleet.relays.iter().all(|relay| fleet.session_is_up(mole, *relay)))
        .await;
    (fleet, mole)
}

/// The node's session with a relay, as its own program has it.
fn session(fleet: &Fleet, node: usize, relay: usize) -> Connection {
    fleet.node(node).fabric().session(fleet.id(relay)).expect("the session stands").connection
}

async fn ask(session: &Connection, request: NodeRequest) -> NodeResponse {
    session.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await.expect("the relay answers")
}

/// The code of a refusal; nothing if it was none.
fn code(response: &NodeResponse) -> &str {
    match response {
        NodeResponse::Refused(refusal) => &refusal.code,
        _ => "",
    }
}

fn address(fleet: &Fleet, index: usize) -> SocketAddr {
    (fleet.world.machines[index].host.ip(), PORT).into()
}

fn switch(fleet: &Fleet, relay: usize) -> SwitchCounters {
    fleet.node(relay).switch().expect("it is a relay").counters()
}

pub(crate) fn host(fleet: &Fleet, index: usize) -> Host {
    fleet.world.machines[index].host
}

pub(crate) fn is_of(address: SocketAddr, host: Host) -> bool {
    Host::of(address.ip()) == Some(host)
}

/// The circuit of the link between `web` and `db`, as one of the two sees it.
pub(crate) fn circuit(fleet: &Fleet, node: usize) -> Circuit {
    fleet.circuit_at(node).expect("the circuit is there")
}

fn forged(fleet: &Fleet, node: usize) -> u64 {
    let of = circuit(fleet, node);
    let key = CircuitKey { peer: of.peer, circuit: CircuitId(of.circuit) };
    fleet.node(node).fabric().socket.status(key).expect("the circuit is there").counters.forged
}

/// A datagram of a channel, by its header.
pub(crate) fn header(bytes: &[u8]) -> Option<Header> {
    Header::parse(bytes).filter(|_| bytes.len() > HEADER_BYTES)
}

/// The first datagram of a channel that goes from one host to another from now on.
async fn overheard(fleet: &Fleet, flow: &mut Flow, from: usize, to: usize) -> Datagram {
    let (from, to) = (host(fleet, from), host(fleet, to));
    let heard: Arc<Mutex<Option<Datagram>>> = Arc::default();
    let into = Arc::clone(&heard);
    fleet.world.fabric.tamper(Some(Box::new(move |datagram| {
        let data = header(&datagram.bytes).is_some_and(|header| header.packet_type == PacketType::Data);
        if data && is_of(datagram.from, from) && is_of(datagram.to, to) {
            into.lock().unwrap().get_or_insert_with(|| datagram.clone());
        }
        vec![datagram]
    })));
    flow.echo().await;
    fleet.world.fabric.tamper(None);
    let heard = heard.lock().unwrap().take();
    heard.expect("the flow's packets went that way")
}

// A node of the fleet floods: packets of unknown tokens, of its own channel beyond any rate, requests without end. Others'
// flows do not feel it, and nothing of it is kept.
#[test]
fn a_flooding_node_floods_itself() {
    run(|| async {
        let (mut fleet, mole) = with_mole(90, 1).await;
        // Until the mole's pair has all its circuits too.
        tokio::time::sleep(seconds(10)).await;
        let mut flow = fleet.open().await;
        let relay = fleet.carrier();
        let before = switch(&fleet, relay);
        let (from, to) = (address(&fleet, mole), address(&fleet, relay));
        for round in 0..20_u64 {
            for packet in 0..1_000_u64 {
                let token = round << 32 | packet;
                let kind = [PacketType::Data, PacketType::Probe, PacketType::Challenge][(packet % 3) as usize];
                let head = Header { packet_type: kind, flags: 0, generation: 1, mac: [0; 4], token };
                let bytes = [&head.encode()[..], &[7; 200]].concat();
                fleet.world.fabric.inject(Datagram { from, to, bytes, late: Duration::ZERO });
            }
            let slowest = within("an echo comes back", seconds(2), flow.echo()).await;
            // What the flood pushes out of a full socket is sent again, as on any crowded way.
            assert!(slowest < ms(200), "{slowest:?}");
        }
        let after = switch(&fleet, relay);
        let dropped = |counters: &SwitchCounters| counters.drops.unknown_token + counters.drops.malformed;
        assert!(dropped(&after) - dropped(&before) > 1_000, "{:?}", after.drops);
        assert_eq!(after.channels, before.channels);

        // Requests: more than are taken at a time, each for a circuit of its own making.
        let session = session(&fleet, mole, relay);
        let peer = fleet.id(fleet.db);
        let calls = (0..500_u64).map(|number| {
            let session = session.clone();
            tokio::spawn(async move {
                let request = NodeRequest::ChannelOpen { circuit: CircuitId(1 << 40 | number), peer };
                session.call::<NodeRequest, NodeResponse>(&request, CALL_WAIT).await
            })
        });
        let calls: Vec<_> = calls.collect();
        let slowest = flow.busy(seconds(3)).await;
        assert!(slowest < ms(100), "{slowest:?}");
        let mut refused = 0;
        for call in calls {
            refused += usize::from(!matches!(call.await.unwrap(), Ok(NodeResponse::ChannelOpened { .. })));
        }
        assert!(refused >= 500 - CHANNELS_PER_PAIR_MAX, "{refused} were refused");
        let channels = fleet.service(relay).channels.keys().filter(|key| key.high == fleet.id(mole)).count();
        assert!(channels <= CHANNELS_PER_PAIR_MAX, "{channels} channels of the mole");
        assert_eq!(fleet.carrier(), relay, "the flow had no reason to move");
    });
}

// RP-5, RP-35: with its own good session and circuit a node asks for what is others': their routes, registrations and
// channels. All of it is refused, at the relay and again at the target.
#[test]
fn a_node_gets_no_route_of_others() {
    run(|| async {
        let (mut fleet, mole) = with_mole(91, 1).await;
        let mut flow = fleet.open().await;
        let relay = fleet.relays[1];
        let (web, db) = (fleet.id(fleet.web), fleet.id(fleet.db));
        let sql = LinkId(1);
        let view = fleet.node(fleet.web).fabric().link(sql).expect("web consumes it");
        let (stolen, generation) = (view.grants.last().cloned().expect("web has a grant"), view.generation);
        let endpoint: SignedGrant = {
            let links = fleet.node(fleet.db).fabric().link(sql).expect("db serves it");
            links.grants.last().cloned().expect("db has a grant")
        };
        let to_relay = session(&fleet, mole, relay);
        let tunnel = TunnelId(77);
        let registered = fleet.service(relay).registrations.clone();
        let own = LinkId(2);
        let own_grant =
            fleet.node(mole).fabric().link(own).and_then(|link| link.grants.last().cloned()).expect("its own grant");
        let ahead = |count, grant: SignedGrant| {
            let link = if grant == own_grant { own } else { sql };
            NodeRequest::AdmitAhead { tunnels: (0..count).map(TunnelId).collect(), link, generation, grant }
        };
        for (request, expected) in [
            (NodeRequest::Admit { tunnel, link: sql, generation, grant: stolen.clone() }, "somebody else's grant"),
            (ahead(1, stolen.clone()), "somebody else's grant, ahead of need"),
            (ahead(0, own_grant.clone()), "no tunnels ahead"),
            (ahead(AHEAD_LOT_MAX as u64 + 1, own_grant.clone()), "more than a lot"),
            (ahead(100_000, own_grant.clone()), "far more than a lot"),
            (NodeRequest::Register { link: sql, generation, grant: endpoint.clone() }, "somebody else's endpoint"),
            (NodeRequest::Register { link: sql, generation: Generation(99), grant: endpoint }, "a newer generation"),
            (NodeRequest::ChannelOpen { circuit: CircuitId(5), peer: web }, "no link joins the two"),
            (NodeRequest::ChannelOpen { circuit: CircuitId(5), peer: NodeId(999) }, "nobody"),
        ] {
            let answer = ask(&to_relay, request).await;
            assert!(!code(&answer).is_empty(), "{expected}: {answer:?}");
        }
        // These are answered, and end nothing.
        for request in [
            NodeRequest::Unregister { link: sql, generation: Generation(u64::MAX) },
            NodeRequest::ChannelClose { circuit: CircuitId(circuit(&fleet, fleet.web).circuit), peer: db },
            NodeRequest::ChannelClose { circuit: CircuitId(circuit(&fleet, fleet.web).circuit), peer: web },
        ] {
            ask(&to_relay, request).await;
        }
        tokio::time::sleep(ms(300)).await;
        assert_eq!(fleet.service(relay).registrations, registered);

        // The same at the target itself, past every relay: on the mole's own circuit, for which it has a grant.
        let (_, own_circuit) = fleet.node(mole).fabric().circuit(db).expect("the mole's own circuit");
        let refused = fleet.status(fleet.db).flows.refused;
        let garbage = SignedGrant { signature: vec![0; 64], ..own_grant.clone() };
        let words = [
            OpenFrame { tunnel, link: sql, generation, grant: stolen },
            OpenFrame { tunnel, link: sql, generation, grant: own_grant.clone() },
            OpenFrame { tunnel, link: own, generation: Generation(9), grant: own_grant },
            OpenFrame { tunnel, link: own, generation: Generation(1), grant: garbage },
        ];
        let count = words.len() as u64;
        for frame in words {
            // The relay vouches for all of it: its word adds nothing to a grant that does not hold.
            vouch(&fleet, relay, fleet.db, tunnel, frame.link, frame.generation, fleet.id(mole)).await;
            let (mut out, mut back) = own_circuit.quinn().open_bi().await.unwrap();
            let bytes = wire::encode(&frame);
            out.write_all(&(bytes.len() as u32).to_be_bytes()).await.unwrap();
            out.write_all(&bytes).await.unwrap();
            let end = within("it is reset", seconds(12), back.read_to_end(64)).await;
            assert!(end.is_err(), "{:?} was taken: {end:?}", frame.link);
        }
        // Words that are none: a length beyond any frame, then silence.
        let (mut out, mut back) = own_circuit.quinn().open_bi().await.unwrap();
        out.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        assert!(within("it is reset", seconds(12), back.read_to_end(64)).await.is_err());
        assert_eq!(fleet.status(fleet.db).flows.refused, refused + count + 1);
        assert_eq!(fleet.status(fleet.db).flows.open, 1, "web's");
        flow.echo().await;
    });
}

/// A relay tells a target node that it has admitted a tunnel, whatever the truth is.
pub(crate) async fn vouch(
    fleet: &Fleet,
    relay: usize,
    target: usize,
    tunnel: TunnelId,
    link: LinkId,
    generation: Generation,
    consumer: NodeId,
) {
    let number = fleet.service(relay).sessions[&fleet.id(target)];
    let connection = fleet.node(relay).fabric().connections().get(number).expect("the target's session");
    let word = RelayRequest::Admission { tunnel, link, generation, consumer };
    let answer = connection.call::<RelayRequest, RelayResponse>(&word, CALL_WAIT).await;
    assert_eq!(answer.ok(), Some(RelayResponse::Done), "the target hears it");
}

// A channel's token that was overheard is worth nothing from another address, whatever is sent with it.
#[test]
fn a_stolen_token_is_dropped() {
    run(|| async {
        let (mut fleet, mole) = with_mole(92, 1).await;
        let mut flow = fleet.open().await;
        let relay = fleet.carrier();
        let stolen = overheard(&fleet, &mut flow, fleet.web, relay).await;
        let (before, received) = (switch(&fleet, relay), circuit(&fleet, fleet.db).received_bytes);
        let mut resting = received;
        for attempt in 0..1_000_u16 {
            let from = (fleet.world.machines[mole].host.ip(), 1_024 + attempt).into();
            fleet.world.fabric.inject(Datagram { from, ..stolen.clone() });
        }
        tokio::time::sleep(ms(20)).await;
        let after = switch(&fleet, relay);
        assert!(after.drops.wrong_source - before.drops.wrong_source >= 500, "{:?}", after.drops);
        // What arrives at the target meanwhile is the circuit's own, and little.
        resting = circuit(&fleet, fleet.db).received_bytes - resting;
        assert!(resting < 20_000, "{resting} bytes");
        flow.echo().await;
        assert_eq!(fleet.carrier(), relay);
    });
}

// Whoever knows a channel claims a newer path with it: a node without the circuit's key, or the relay itself. The claim
// is counted, and no end follows it.
#[test]
fn a_spoofed_move_moves_nobody() {
    run(|| async {
        let (mut fleet, _) = with_mole(93, 2).await;
        let mut flow = fleet.open().await;
        let carrier = fleet.carrier();
        let evil = fleet.relays.iter().copied().find(|relay| *relay != carrier).expect("there are three");
        // What the evil relay forwards to `db` claims the newest of paths, over itself.
        let (of, to) = (host(&fleet, evil), host(&fleet, fleet.db));
        let claimed = Arc::new(AtomicU64::new(0));
        let claims = Arc::clone(&claimed);
        fleet.world.fabric.tamper(Some(Box::new(move |mut datagram| {
            if is_of(datagram.from, of)
                && is_of(datagram.to, to)
                && let Some(head) = header(&datagram.bytes)
            {
                let number = claims.fetch_add(1, Ordering::Relaxed);
                let head = Header { generation: 900 + number as u16, mac: [number as u8; 4], flags: 1, ..head };
                datagram.bytes[..HEADER_BYTES].copy_from_slice(&head.encode());
            }
            vec![datagram]
        })));
        let before = forged(&fleet, fleet.db);
        let slowest = flow.busy(seconds(10)).await;
        assert!(claimed.load(Ordering::Relaxed) > 5, "its probes passed there");
        assert!(forged(&fleet, fleet.db) > before, "the claims were seen");
        assert!(slowest < ms(60), "{slowest:?}");
        assert_eq!((fleet.carrier(), circuit(&fleet, fleet.db).relay), (carrier, Some(fleet.id(carrier))));
    });
}

// Somebody repeats a node's packets from another address, faster than they come themselves: the relay follows with its
// session as QUIC does, but not one packet of a channel goes there. The flow takes another relay at the worst.
#[test]
fn a_repeated_packet_draws_no_channel_to_a_stranger() {
    run(|| async {
        let mut fleet = Fleet::new(101, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let (web, relay) = (host(&fleet, fleet.web), host(&fleet, fleet.carrier()));
        // Somebody who has nothing to do with the cluster.
        let stranger: SocketAddr = "10.0.250.1:4000".parse().unwrap();
        let (hit, drawn) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (hits, draws) = (Arc::clone(&hit), Arc::clone(&drawn));
        fleet.world.fabric.tamper(Some(Box::new(move |datagram| {
            if datagram.to == stranger {
                let of_channel = header(&datagram.bytes).is_some();
                let counter = if of_channel { &hits } else { &draws };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            if is_of(datagram.from, web) && is_of(datagram.to, relay) {
                return vec![Datagram { from: stranger, ..datagram.clone() }, Datagram { late: ms(5), ..datagram }];
            }
            vec![datagram]
        })));
        let slowest = flow.busy(seconds(10)).await;
        assert!(slowest < seconds(2), "{slowest:?}");
        assert!(drawn.load(Ordering::Relaxed) > 0, "the session was drawn there, and a challenge");
        assert_eq!(hit.load(Ordering::Relaxed), 0, "packets of channels went to somebody who never was the node");
    });
}

// A node's address changes under it, as behind a router that starts anew. It names the relays' challenges, which only
// who receives there can, and its channels follow within its next ping: the sessions stay, and so does the flow.
#[test]
fn a_new_address_is_believed_once_its_node_is_there() {
    run(|| async {
        let mut fleet = Fleet::new(102, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let web = host(&fleet, fleet.web);
        let outside: SocketAddr = "10.0.250.1:4000".parse().unwrap();
        let generations: Vec<Generation> =
            fleet.relays.iter().map(|relay| fleet.session(fleet.web, *relay).generation).collect();
        let mut inside = None;
        fleet.world.fabric.tamper(Some(Box::new(move |datagram| {
            if is_of(datagram.from, web) && datagram.to.port() == PORT {
                inside = Some(datagram.from);
                return vec![Datagram { from: outside, ..datagram }];
            }
            match inside {
                Some(node) if datagram.to == outside => vec![Datagram { to: node, ..datagram }],
                // The way to the old address is gone.
                _ if is_of(datagram.to, web) => Vec::new(),
                _ => vec![datagram],
            }
        })));
        within("the flow goes on from the new address", seconds(4), flow.echo()).await;
        let slowest = flow.busy(seconds(5)).await;
        assert!(slowest < ms(200), "{slowest:?}");
        for (relay, generation) in fleet.relays.iter().zip(generations) {
            assert_eq!(fleet.session(fleet.web, *relay).generation, generation, "the session is the same");
        }
    });
}
