//! A relay of the fleet in somebody else's hands: it reads, alters, repeats, delays, makes up and vouches falsely, and gets
//! nothing beyond the denial of its own service.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use postroad_cluster::{
    id::{LinkId, TunnelId},
    wire::{self, flow::OpenFrame},
};
use postroad_simulations::network::{Condition, Datagram};
use postroad_transport::{
    network::TcpStream,
    packet::{HEADER_BYTES, Header, PacketType},
};

use crate::{
    hostile::{circuit, header, host, is_of, vouch, with_mole},
    support::{Fleet, ms, receive, run, seconds, send, until, within},
};

/// What a relay in bad hands does with the packets of channels that pass it.
#[derive(Clone, Copy, Debug)]
enum Crime {
    Reads,
    Alters,
    Replays,
    Delays,
    Swallows,
}

/// What came of a relay in bad hands.
struct Betrayed {
    /// The relay, which carried the flow.
    relay: usize,
    /// How often the crime was committed.
    committed: u64,
    /// Whether the relay saw anything of the content.
    seen: bool,
}

/// Puts the relay that carries a new flow into bad hands, and has much content go both ways.
async fn betrayed(fleet: &mut Fleet, crime: Crime) -> Betrayed {
    let mut flow = fleet.open().await;
    let relay = fleet.carrier();
    let evil = host(fleet, relay);
    let (count, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (crimes, saw) = (Arc::clone(&count), Arc::clone(&seen));
    // The content repeats, so that a piece of it would be recognized wherever packets cut it.
    const PIECE: usize = 16;
    let marker = [0x5a; PIECE];
    fleet.world.fabric.tamper(Some(Box::new(move |datagram| {
        let is_data =
            |datagram: &Datagram| header(&datagram.bytes).is_some_and(|it| it.packet_type == PacketType::Data);
        if is_of(datagram.to, evil) || is_of(datagram.from, evil) {
            saw.fetch_or(datagram.bytes.windows(PIECE).any(|window| window == marker), Ordering::Relaxed);
        }
        if !is_of(datagram.from, evil) || !is_data(&datagram) {
            return vec![datagram];
        }
        let number = crimes.fetch_add(1, Ordering::Relaxed);
        match crime {
            Crime::Reads => vec![datagram],
            Crime::Alters => {
                let mut altered = datagram;
                let last = altered.bytes.len() - 1;
                altered.bytes[HEADER_BYTES.max(last - (number % 20) as usize)] ^= 1 << (number % 8);
                vec![altered]
            }
            Crime::Replays => {
                let again = |late: u64| Datagram { late: ms(late), ..datagram.clone() };
                vec![again(0), again(1), again(40), again(3_000)]
            }
            Crime::Delays => vec![Datagram { late: ms(250), ..datagram }],
            Crime::Swallows => Vec::new(),
        }
    })));
    for round in 0..3_usize {
        let work = async {
            let (up, down) = (&mut flow.near, &mut flow.far);
            let marked = vec![0x5a; 64 << 10];
            let (sent, got) = tokio::join!(put(up, &marked), get(down, marked.len()));
            assert_eq!(got, marked);
            sent.unwrap();
            let (sent, got) = tokio::join!(
                send(&mut *flow.far.write, 9, round * 300_000, 300_000),
                receive(&mut *flow.near.read, 9, round * 300_000, 300_000)
            );
            assert_eq!((sent.map_err(|error| error.kind()), got), (Ok(()), Ok(())), "not one byte is another");
        };
        within(&format!("all of it arrives although the relay {crime:?}"), seconds(60), work).await;
    }
    tokio::time::sleep(seconds(4)).await;
    within("the flow goes on", seconds(5), flow.echo()).await;
    fleet.world.fabric.tamper(None);
    Betrayed { relay, committed: count.load(Ordering::Relaxed), seen: seen.load(Ordering::Relaxed) }
}

async fn put(to: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        let slices = [std::io::IoSlice::new(&bytes[sent..])];
        sent += std::future::poll_fn(|context| to.write.poll_write(context, &slices)).await?;
    }
    Ok(())
}

async fn get(from: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut got = vec![0; length];
    let mut filled = 0;
    while filled < length {
        std::future::poll_fn(|context| from.read.poll_readable(context)).await.expect("the connection stands");
        match from.read.try_read(&mut got[filled..]) {
            Ok(0) => panic!("ended after {filled} of {length} bytes"),
            Ok(more) => filled += more,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    got
}

// A relay of the fleet reads what passes it: nothing that applications say is in it.
#[test]
fn a_relay_that_reads_learns_nothing() {
    run(|| async {
        let mut fleet = Fleet::new(94, Condition::default(), 1).await;
        let Betrayed { committed, seen, .. } = betrayed(&mut fleet, Crime::Reads).await;
        assert!(committed > 500, "{committed} packets passed");
        assert!(!seen, "content passed in the clear");
    });
}

// A relay alters, swallows or delays every packet of data that passes it, and answers probes as ever; or it repeats them
// all, at once and late. Not one byte changes for the applications; what the relay denies, it denies itself.
#[test]
fn a_relay_that_alters_replays_or_delays_harms_itself() {
    run(|| async {
        for (seed, crime) in [(95, Crime::Alters), (96, Crime::Swallows), (97, Crime::Replays), (98, Crime::Delays)] {
            let mut fleet = Fleet::new(seed, Condition::default(), 1).await;
            let Betrayed { relay, committed, .. } = betrayed(&mut fleet, crime).await;
            assert!(committed > 3, "{crime:?}: {committed}");
            if matches!(crime, Crime::Alters | Crime::Swallows) {
                assert_ne!(fleet.carrier(), relay, "{crime:?}: the circuit leaves it");
            }
        }
    });
}

// A relay makes up the answers to probes that it swallows: it does not become a candidate by that.
#[test]
fn a_relay_cannot_answer_probes_itself() {
    run(|| async {
        let mut fleet = Fleet::new(99, Condition::default(), 1).await;
        let mut flow = fleet.open().await;
        let carrier = fleet.carrier();
        let other = fleet.relays.iter().copied().find(|relay| *relay != carrier).expect("there are two");
        let (evil, node) = (host(&fleet, other), host(&fleet, fleet.web));
        let invented = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&invented);
        // The token under which the evil relay reaches `web`, as soon as it has forwarded something there.
        let mut reaches = None;
        fleet.world.fabric.tamper(Some(Box::new(move |mut datagram| {
            let Some(head) = header(&datagram.bytes) else { return vec![datagram] };
            if is_of(datagram.from, evil) && is_of(datagram.to, node) {
                reaches = Some((head.token, datagram.from));
                return if head.packet_type == PacketType::Echo { Vec::new() } else { vec![datagram] };
            }
            if !is_of(datagram.from, node) || !is_of(datagram.to, evil) || head.packet_type != PacketType::Probe {
                return vec![datagram];
            }
            let Some((token, from)) = reaches else { return vec![datagram] };
            count.fetch_add(1, Ordering::Relaxed);
            let echo = Header { packet_type: PacketType::Echo, token, ..head };
            datagram.bytes[..HEADER_BYTES].copy_from_slice(&echo.encode());
            vec![Datagram { from, to: datagram.from, ..datagram }]
        })));
        let id = fleet.id(other);
        let candidate = |fleet: &Fleet| {
            circuit(fleet, fleet.web).channels.iter().any(|channel| channel.relay == id && channel.candidate)
        };
        until("the relay is no candidate", seconds(15), || !candidate(&fleet)).await;
        for _ in 0..20 {
            tokio::time::sleep(ms(500)).await;
            assert!(!candidate(&fleet));
        }
        assert!(invented.load(Ordering::Relaxed) > 10, "it did answer");
        flow.echo().await;
        assert_eq!(fleet.carrier(), carrier);
    });
}

// RP-35: a relay vouches for tunnels that no grant allows, and for a consumer that is another: the target takes none.
#[test]
fn a_relay_that_vouches_falsely_opens_nothing() {
    run(|| async {
        let (fleet, mole) = with_mole(100, 1).await;
        let evil = fleet.relays[1];
        let (sql, db) = (LinkId(1), fleet.id(fleet.db));
        let (_, own_circuit) = fleet.node(mole).fabric().circuit(db).expect("the mole's own circuit");
        let generation = fleet.node(fleet.web).fabric().link(sql).expect("web consumes it").generation;
        let grant = fleet.node(mole).fabric().link(LinkId(2)).and_then(|link| link.grants.last().cloned());
        let (open, refused) = (fleet.status(fleet.db).flows.open, fleet.status(fleet.db).flows.refused);
        for (number, consumer) in [fleet.id(fleet.web), fleet.id(mole)].into_iter().enumerate() {
            let tunnel = TunnelId(number as u64 + 500);
            vouch(&fleet, evil, fleet.db, tunnel, sql, generation, consumer).await;
            let frame = OpenFrame { tunnel, link: sql, generation, grant: grant.clone().expect("its own grant") };
            let (mut out, mut back) = own_circuit.quinn().open_bi().await.unwrap();
            let bytes = wire::encode(&frame);
            out.write_all(&[&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()).await.unwrap();
            assert!(within("it is reset", seconds(12), back.read_to_end(64)).await.is_err());
        }
        assert_eq!(fleet.status(fleet.db).flows.open, open);
        assert_eq!(fleet.status(fleet.db).flows.refused, refused + 2);
    });
}
