//! Tells a client in its own protocol that it cannot be served, and ends its connection so that it reads that.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
};

use postroad_cluster::{
    balancer::refusal::{Refusal, Step},
    limits::{REFUSAL_WAIT, STARTUP_BYTES_MAX},
    time::Clock,
};

use crate::network::TcpStream;

/// Refuses the connection, within [`REFUSAL_WAIT`]. Whether the client has read it cannot be known and matters to
/// nobody here; a client that is slower is reset.
pub async fn refuse(stream: TcpStream, refusal: Refusal, clock: &dyn Clock) {
    let deadline = clock.sleep_until(clock.now().after(REFUSAL_WAIT));
    tokio::select! {
        biased;
        // An error says that the client has gone.
        _ = tell(stream, refusal) => {}
        () = deadline => {}
    }
}

async fn tell(mut stream: TcpStream, mut refusal: Refusal) -> io::Result<()> {
    let mut step = refusal.begin();
    loop {
        let bytes = match step {
            Step::Read => read(&mut stream, refusal.wanted()).await?,
            Step::Reply(reply) => {
                write(&mut stream, &reply).await?;
                read(&mut stream, refusal.wanted()).await?
            }
            Step::End(last) => {
                write(&mut stream, &last).await?;
                poll_fn(|context| stream.write.poll_shutdown(context)).await?;
                return linger(&mut stream).await;
            }
        };
        if bytes.is_empty() {
            return Ok(());
        }
        step = refusal.take(&bytes);
    }
}

/// Reads until the client has ended too: a close with bytes unread would be a reset, which may overtake the error.
async fn linger(stream: &mut TcpStream) -> io::Result<()> {
    let mut left = STARTUP_BYTES_MAX;
    while left > 0 {
        let bytes = read(stream, left).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        left -= bytes.len();
    }
    Ok(())
}

/// Reads at most `wanted` bytes; none are the end.
async fn read(stream: &mut TcpStream, wanted: usize) -> io::Result<Vec<u8>> {
    loop {
        let mut buffer = vec![0; wanted];
        match stream.read.try_read(&mut buffer) {
            Ok(count) => {
                buffer.truncate(count);
                return Ok(buffer);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                drop(buffer);
                poll_fn(|context| stream.read.poll_readable(context)).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn write(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll_fn(|context| stream.write.poll_write(context, &[IoSlice::new(bytes)])).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    Ok(())
}
