//! The service behind the link: it answers chatty flows, takes one transfer and sends the other.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::traffic::{Fault, HELLO_BYTES, Kind, Traffic, expect_end, read_message, trailer};

/// Serves until it is dropped; its flows are reset then. A listener that fails to accept is tried again at once, since
/// every connection is a flow that somebody waits for.
pub async fn serve(listener: Arc<TcpListener>, traffic: Arc<Traffic>) {
    let mut flows = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = flows.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    flows.spawn(answer(stream, from, Arc::clone(&traffic)));
                }
                Err(error) => {
                    tracing::warn!(%error, "the demonstration's service cannot accept");
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            },
        }
    }
}

async fn answer(stream: TcpStream, from: SocketAddr, traffic: Arc<Traffic>) {
    match flow(stream, from, &traffic).await {
        Ok(true) => {
            traffic.clean_ends.fetch_add(1, Ordering::Relaxed);
        }
        Ok(false) => {}
        Err(fault) => traffic.fault(fault),
    }
}

/// One flow from its hello to its end; `false` for a probe.
async fn flow(mut stream: TcpStream, from: SocketAddr, traffic: &Traffic) -> Result<bool, Fault> {
    let mut hello = [0; HELLO_BYTES];
    if stream.set_nodelay(true).is_err() || stream.read_exact(&mut hello).await.is_err() {
        // Nobody has said that this is a flow of ours; whoever opened one notices by itself.
        return Ok(false);
    }
    match Kind::of_hello(hello) {
        Some((Kind::Probe, _)) => {
            // A probe that has gone again is no fault: the next one says whether the link works.
            let _ = stream.write_all(&hello).await;
            Ok(false)
        }
        Some((Kind::Chat, number)) => chat(stream, number).await.map(|()| true),
        Some((Kind::Upload, _)) => take(stream, traffic).await.map(|()| true),
        Some((Kind::Download, _)) => send(stream, traffic).await.map(|()| true),
        None => Err(Fault::Bytes(format!("a flow from {from} does not begin as one of ours"))),
    }
}

async fn chat(stream: TcpStream, flow: u64) -> Result<(), Fault> {
    let name = format!("chatty flow {flow} at the target");
    let (mut read, mut write) = stream.into_split();
    let mut sequence = 0;
    while read_message(&mut read, &name, flow, sequence).await? {
        let said = write.write_all(&super::content::message(flow, sequence)).await;
        said.map_err(|error| Fault::of(&name, &format!("answering message {sequence}"), &error))?;
        sequence += 1;
    }
    write.shutdown().await.map_err(|error| Fault::of(&name, "ending", &error))
}

async fn take(stream: TcpStream, traffic: &Traffic) -> Result<(), Fault> {
    const FLOW: &str = "the transfer to the target, at the target";
    let (mut read, mut write) = stream.into_split();
    let received = traffic.upload.receive(&mut read, u64::MAX).await;
    let (count, hash) = received.map_err(|error| Fault::of(FLOW, "receiving", &error))?;
    let answered = write.write_all(&trailer(count, hash)).await;
    answered.map_err(|error| Fault::of(FLOW, "answering with the hash", &error))?;
    write.shutdown().await.map_err(|error| Fault::of(FLOW, "ending", &error))
}

async fn send(stream: TcpStream, traffic: &Traffic) -> Result<(), Fault> {
    const FLOW: &str = "the transfer from the target, at the target";
    let (mut read, mut write) = stream.into_split();
    expect_end(&mut read, FLOW).await?;
    let hash = traffic.download.send(&mut write, &traffic.pace).await;
    let hash = hash.map_err(|error| Fault::of(FLOW, "sending", &error))?;
    let trailed = write.write_all(&trailer(traffic.download.bytes, hash)).await;
    trailed.map_err(|error| Fault::of(FLOW, "sending the hash", &error))?;
    write.shutdown().await.map_err(|error| Fault::of(FLOW, "ending", &error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::traffic::{Flows, open, probe},
        *,
    };

    async fn listener() -> (Arc<TcpListener>, SocketAddr) {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn run(mut flows: Flows, traffic: &Traffic) {
        traffic.pace.release();
        while flows.transfers.join_next().await.is_some() {}
        traffic.end_chats();
        while flows.chats.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn everything_arrives_and_ends_cleanly() {
        let (listener, address) = listener().await;
        let traffic = Traffic::new(3 << 20, 3);
        let serving = tokio::spawn(serve(listener, Arc::clone(&traffic)));
        probe(address, Duration::from_secs(10)).await.unwrap();
        run(open(address, &traffic), &traffic).await;
        assert_eq!(traffic.faults(), []);
        assert!(traffic.upload.is_equal() && traffic.download.is_equal());
        assert_ne!(traffic.upload.sent_hash.get(), traffic.download.sent_hash.get());
        assert!(traffic.answers.load(Ordering::Relaxed) >= 3);
        assert!((traffic.share() - 1.0).abs() < 1e-9);
        while traffic.clean_ends.load(Ordering::Relaxed) < traffic.flows() {
            tokio::task::yield_now().await;
        }
        serving.abort();
    }

    /// A way in between that changes the byte at `at` of what the consumer sends, or resets there.
    async fn meddler(to: SocketAddr, at: usize, reset: bool) -> SocketAddr {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            while let Ok((inner, _)) = listener.accept().await {
                let outer = TcpStream::connect(to).await.unwrap();
                let (mut inner_read, mut inner_write) = inner.into_split();
                let (mut outer_read, mut outer_write) = outer.into_split();
                let back = tokio::spawn(async move { tokio::io::copy(&mut outer_read, &mut inner_write).await });
                tokio::spawn(async move {
                    let (mut seen, mut piece) = (0, [0; 64]);
                    while let Ok(length @ 1..) = inner_read.read(&mut piece).await {
                        if (seen..seen + length).contains(&at) {
                            if reset {
                                let socket = socket2::SockRef::from(outer_write.as_ref());
                                socket.set_linger(Some(Duration::ZERO)).unwrap();
                                outer_write.forget();
                                return back.abort();
                            }
                            piece[at - seen] ^= 1;
                        }
                        seen += length;
                        outer_write.write_all(&piece[..length]).await.unwrap();
                    }
                    outer_write.shutdown().await.unwrap();
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_changed_byte_is_noticed() {
        let (listener, address) = listener().await;
        let meddler = meddler(address, 7_777, false).await;
        let traffic = Traffic::new(64 << 10, 0);
        let serving = tokio::spawn(serve(listener, Arc::clone(&traffic)));
        run(open(meddler, &traffic), &traffic).await;
        let faults = traffic.faults();
        assert!(matches!(&faults[..], [Fault::Bytes(said)] if said.contains("other bytes")), "{faults:?}");
        assert!(!traffic.upload.is_equal() && traffic.download.is_equal());
        serving.abort();
    }

    #[tokio::test]
    async fn a_flow_that_is_cut_is_noticed_at_both_ends() {
        let (listener, address) = listener().await;
        let meddler = meddler(address, 250, true).await;
        let traffic = Traffic::new(0, 1);
        let serving = tokio::spawn(serve(listener, Arc::clone(&traffic)));
        let mut flows = open(meddler, &traffic);
        flows.chats.join_next().await;
        let faults = traffic.faults();
        assert!(!faults.is_empty(), "nobody has noticed");
        assert_eq!(traffic.clean_ends.load(Ordering::Relaxed), 0);
        serving.abort();
    }
}
