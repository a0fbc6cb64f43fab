//! The packet switch against strangers, mixed buffers and a full socket.

mod support;

use std::{future::poll_fn, io::IoSliceMut, net::SocketAddr, sync::Arc, time::Duration};

use postroad_cluster::time::Clock;
use postroad_transport::{
    network::UdpSocket,
    packet::{Header, PacketType},
    switch::{OpenChannel, Switch, SwitchSession},
};
use quinn::{
    AsyncUdpSocket,
    udp::{RecvMeta, Transmit},
};
use support::{Fabric, FabricSocket, TestClock, pause};

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 1_000))
}

fn packet(token: u64, length: usize) -> Vec<u8> {
    let header = Header { packet_type: PacketType::Data, flags: 0, generation: 3, mac: [1, 2, 3, 4], token };
    let mut packet = header.encode().to_vec();
    packet.resize(length, token as u8);
    packet
}

fn send(socket: &FabricSocket, to: SocketAddr, contents: &[u8], stride: usize) {
    let segment_size = (contents.len() > stride).then_some(stride);
    socket.try_send(&Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None }).unwrap();
}

async fn receive(socket: &FabricSocket) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut data = vec![vec![0; 65_536]; 8];
    loop {
        let received = poll_fn(|context| {
            let mut slices: Vec<IoSliceMut<'_>> = data.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            let mut meta = [RecvMeta::default(); 8];
            match socket.poll_receive(context, &mut slices, &mut meta) {
                std::task::Poll::Ready(Ok(count)) => std::task::Poll::Ready(meta[..count].to_vec()),
                _ => std::task::Poll::Ready(Vec::new()),
            }
        })
        .await;
        if received.is_empty() {
            return packets;
        }
        for (meta, buffer) in received.iter().zip(&data) {
            packets.extend(buffer[..meta.len].chunks(meta.stride).map(<[u8]>::to_vec));
        }
    }
}

struct Bench {
    fabric: Fabric,
    switch: Switch,
    quic: Arc<postroad_transport::switch::SwitchSocket>,
    ends: [Arc<FabricSocket>; 3],
}

fn bench() -> Bench {
    let fabric = Fabric::new(Duration::from_micros(100));
    let clock: Arc<dyn Clock> = TestClock::new();
    let (switch, quic) = Switch::start(fabric.bind(address(9)), clock);
    let ends = [1, 2, 3].map(|last| fabric.bind(address(last)));
    for last in [1, 2, 3] {
        switch.session_address(SwitchSession(last.into()), address(last));
    }
    for (token, from, to) in [(12, 1, 2), (13, 1, 3), (21, 2, 1)] {
        let channel = OpenChannel { token, from: SwitchSession(from), token_out: token + 100, to: SwitchSession(to) };
        switch.open(channel).unwrap();
    }
    Bench { fabric, switch, quic, ends }
}

#[tokio::test(start_paused = true)]
async fn only_the_token_is_rewritten() {
    let bench = bench();
    send(&bench.ends[0], address(9), &packet(12, 500), 500);
    pause(5).await;
    assert_eq!(
        receive(&bench.ends[1]).await,
        vec![{
            let mut expected = packet(12, 500);
            expected[8..16].copy_from_slice(&112_u64.to_le_bytes());
            expected
        }]
    );
}

#[tokio::test(start_paused = true)]
async fn one_buffer_may_mix_channels_destinations_and_quic() {
    let bench = bench();
    let mut mixed = Vec::new();
    for token in [12, 12, 13, 12, 13] {
        mixed.extend(packet(token, 300));
    }
    let quic = [0x40; 300];
    mixed.extend(quic);
    mixed.extend(&packet(13, 200));
    send(&bench.ends[0], address(9), &mixed, 300);
    pause(5).await;
    let second: Vec<usize> = receive(&bench.ends[1]).await.iter().map(Vec::len).collect();
    let third: Vec<usize> = receive(&bench.ends[2]).await.iter().map(Vec::len).collect();
    assert_eq!((second, third), (vec![300; 3], vec![300, 300, 200]));
    let mut buffer = vec![0; 4_096];
    let mut meta = [RecvMeta::default()];
    let count = poll_fn(|context| bench.quic.poll_recv(context, &mut [IoSliceMut::new(&mut buffer)], &mut meta)).await;
    assert_eq!((count.unwrap(), meta[0].len, meta[0].addr), (1, 300, address(1)));
    assert_eq!(buffer[..300], quic);
    assert_eq!(bench.switch.counters().quic_packets, 1);
}

#[tokio::test(start_paused = true)]
async fn strangers_get_nothing_not_even_an_answer() {
    let bench = bench();
    let stranger = bench.fabric.bind(address(66));
    send(&stranger, address(9), &packet(12, 500), 500);
    send(&bench.ends[1], address(9), &packet(12, 500), 500);
    send(&stranger, address(9), &packet(999, 500), 500);
    send(&stranger, address(9), &[1; 10], 10);
    let (sent, _) = bench.fabric.sends();
    pause(50).await;
    assert_eq!(bench.fabric.sends().0, sent, "the switch sent nothing");
    let drops = bench.switch.counters().drops;
    assert_eq!((drops.wrong_source, drops.unknown_token, drops.malformed), (2, 1, 1));
    assert!(receive(&stranger).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn packets_to_one_destination_go_together_and_large_ones_are_split() {
    let bench = bench();
    for _ in 0..6 {
        let ten: Vec<u8> = (0..10).flat_map(|_| packet(12, 1_452)).collect();
        send(&bench.ends[0], address(9), &ten, 1_452);
    }
    pause(5).await;
    assert_eq!(receive(&bench.ends[1]).await.len(), 60);
    let counters = bench.switch.counters();
    assert_eq!((counters.packets, counters.bytes), (60, 60 * 1_452));
    assert!(counters.sends <= 3, "{counters:?}");
    for size in [8_952, 30_000, 65_507] {
        send(&bench.ends[0], address(9), &packet(12, size), size);
    }
    send(&bench.ends[0], address(9), &[packet(12, 30_000), packet(12, 30_000)].concat(), 30_000);
    pause(5).await;
    let sizes: Vec<usize> = receive(&bench.ends[1]).await.iter().map(Vec::len).collect();
    assert_eq!(sizes, [8_952, 30_000, 65_507, 30_000, 30_000]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_switch_forwards_no_longer() {
    let Bench { switch, ends, .. } = bench();
    drop(switch);
    pause(1).await;
    send(&ends[0], address(9), &packet(12, 500), 500);
    pause(5).await;
    assert!(receive(&ends[1]).await.is_empty());
}
