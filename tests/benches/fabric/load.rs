//! The applications at both ends of whatever carries their connections: one transfer, exchanges, connections, and
//! connections that only stay. A connection begins with 16 bytes of which the first says what it is for.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// The length of what a connection begins with.
const HELLO_BYTES: usize = 16;
/// What one write of a transfer takes.
const BLOCK_BYTES: usize = 64 << 10;
/// The length of one message of an exchange.
pub(crate) const MESSAGE_BYTES: usize = 100;

/// Echoes its hello and ends: what the demonstration's own probe wants.
const PROBE: u8 = b'P';
/// Sends until its end of file, and hears how many bytes came.
const BULK: u8 = b'B';
/// Messages that come back.
const ECHO: u8 = b'E';

/// Takes connections until it is dropped.
pub(crate) async fn serve(listener: Arc<TcpListener>) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                // A connection that ends early is its client's to report.
                Ok((stream, _)) => _ = open.spawn(async move { answer(stream).await.unwrap_or(()) }),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    match hello[0] {
        BULK => {
            let mut buffer = vec![0; 256 << 10];
            let mut count = 0_u64;
            loop {
                match stream.read(&mut buffer).await? {
                    0 => return stream.write_all(&count.to_be_bytes()).await,
                    more => count += more as u64,
                }
            }
        }
        ECHO => {
            let mut message = [0; MESSAGE_BYTES];
            loop {
                stream.read_exact(&mut message).await?;
                stream.write_all(&message).await?;
            }
        }
        _ => stream.write_all(&hello).await,
    }
}

async fn connect(to: SocketAddr, kind: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let mut hello = [0; HELLO_BYTES];
    hello[0] = kind;
    stream.write_all(&hello).await?;
    Ok(stream)
}

/// One connection there and back.
pub(crate) async fn probe(to: SocketAddr) -> io::Result<()> {
    let mut stream = connect(to, PROBE).await?;
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    if hello[0] == PROBE { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Sends so many bytes over one connection; how long that took until the other end had them all.
pub(crate) async fn bulk(to: SocketAddr, bytes: u64) -> io::Result<Duration> {
    let mut stream = connect(to, BULK).await?;
    let block: Vec<u8> = (0..BLOCK_BYTES).map(|place| (place * 31) as u8).collect();
    let began = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(BLOCK_BYTES as u64) as usize;
        stream.write_all(&block[..piece]).await?;
        left -= piece as u64;
    }
    stream.shutdown().await?;
    let mut count = [0; 8];
    stream.read_exact(&mut count).await?;
    let arrived = u64::from_be_bytes(count);
    if arrived == bytes {
        return Ok(began.elapsed());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{arrived} of {bytes} bytes arrived")))
}

/// Exchanges messages over so many connections, each as fast as its answers come; the round trips in microseconds.
pub(crate) async fn exchange(to: SocketAddr, flows: usize, span: Duration) -> io::Result<Vec<f64>> {
    let mut tasks = JoinSet::new();
    for _ in 0..flows {
        tasks.spawn(async move {
            let mut stream = connect(to, ECHO).await?;
            let mut round_trips = Vec::new();
            turn(&mut stream).await?;
            let began = Instant::now();
            while began.elapsed() < span {
                let sent = Instant::now();
                turn(&mut stream).await?;
                round_trips.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            io::Result::Ok(round_trips)
        });
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done.map_err(io::Error::other)??);
    }
    Ok(all)
}

/// Exchanges messages over so many connections until it is dropped, and the longest that one took in microseconds since
/// somebody has last set that to 0.
pub(crate) fn restless(to: SocketAddr, flows: usize) -> (JoinSet<io::Result<()>>, Arc<AtomicU64>) {
    let longest_us = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..flows {
        let longest_us = Arc::clone(&longest_us);
        tasks.spawn(async move {
            let mut stream = connect(to, ECHO).await?;
            loop {
                let sent = Instant::now();
                turn(&mut stream).await?;
                longest_us.fetch_max(sent.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
        });
    }
    (tasks, longest_us)
}

async fn turn(stream: &mut TcpStream) -> io::Result<()> {
    let mut message = [7; MESSAGE_BYTES];
    stream.write_all(&message).await?;
    stream.read_exact(&mut message).await?;
    Ok(())
}

/// Opens, uses once and closes connections, so many at a time; how many there were.
pub(crate) async fn connections(to: SocketAddr, at_a_time: usize, span: Duration) -> io::Result<u64> {
    let mut tasks = JoinSet::new();
    for _ in 0..at_a_time {
        tasks.spawn(async move {
            let (began, mut count) = (Instant::now(), 0);
            while began.elapsed() < span {
                probe(to).await?;
                count += 1;
            }
            io::Result::Ok(count)
        });
    }
    let mut all = 0;
    while let Some(done) = tasks.join_next().await {
        all += done.map_err(io::Error::other)??;
    }
    Ok(all)
}

/// Opens so many connections, each used once, and leaves them open.
pub(crate) async fn idle(to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(to, ECHO).await?;
        turn(&mut stream).await?;
        open.push(stream);
    }
    Ok(open)
}
