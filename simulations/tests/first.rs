//! The shortest world in which everything has to work: a cluster, two relays, a link, bytes, a relay that dies.

use std::{future::poll_fn, io::IoSlice, net::SocketAddr, time::Duration};

use postroad_cluster::id::Role;
use postroad_simulations::{
    network::Condition,
    world::{Plan, World},
};
use postroad_transport::network::{Network, TcpStream};

async fn write(stream: &mut TcpStream, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += poll_fn(|context| stream.write.poll_write(context, &[IoSlice::new(&bytes[sent..])])).await.unwrap();
    }
}

async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut got = 0;
    while got < count {
        poll_fn(|context| stream.read.poll_readable(context)).await.unwrap();
        match stream.read.try_read(&mut bytes[got..]) {
            Ok(0) => panic!("ended after {got} of {count}"),
            Ok(more) => got += more,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error} after {got} of {count}"),
        }
    }
    bytes
}

#[test]
fn bytes_go_through_a_relay_and_on_when_it_dies() {
    let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).try_init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(1, Condition::default(), None);
        let control = world.add(Plan { name: "ams", role: Role::Control });
        let relay = world.add(Plan { name: "fra", role: Role::Relay });
        let web = world.add(Plan { name: "web", role: Role::Node });
        let db = world.add(Plan { name: "db", role: Role::Node });
        world.found(control).await.unwrap();
        for index in [relay, web, db] {
            world.join(index).await.unwrap();
        }
        world.link("sql", &[web], 5432, db, 6432).await.unwrap();
        let listener =
            world.machines[db].applications.tcp_listen(SocketAddr::new(world.machines[db].host.ip(), 6432)).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let address = SocketAddr::new(world.machines[web].host.ip(), 5432);
        let mut near = world.machines[web].applications.tcp_connect(address).await.unwrap();
        write(&mut near, b"hello").await;
        let mut far = listener.accept().await.unwrap();
        assert_eq!(read(&mut far, 5).await, b"hello");
        write(&mut far, b"world").await;
        assert_eq!(read(&mut near, 5).await, b"world");
        for index in [relay, control] {
            tokio::time::sleep(Duration::from_secs(5)).await;
            world.crash(index);
            for round in 0..10u8 {
                write(&mut near, &[round; 100]).await;
                assert_eq!(read(&mut far, 100).await, [round; 100]);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            world.start(index).await.unwrap();
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    });
}
