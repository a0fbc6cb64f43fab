//! Reads a PROXY header from a connection whose peer is trusted to send one, and nothing of what follows it.

use std::{future::poll_fn, io};

use postroad_cluster::{
    balancer::proxy_header::{Header, Parser, Refused},
    limits::{PROXY_HEADER_READ_BYTES, PROXY_HEADER_WAIT},
    time::Clock,
};

use crate::network::TcpStream;

/// Reads the header that must come first, within [`PROXY_HEADER_WAIT`] (DB-32).
///
/// # Errors
/// Why it was not taken; the connection is to be dropped, which resets it.
pub async fn read(stream: &mut TcpStream, clock: &dyn Clock) -> Result<Header, Refused> {
    let deadline = clock.sleep_until(clock.now().after(PROXY_HEADER_WAIT));
    tokio::select! {
        biased;
        header = read_all(stream) => header,
        () = deadline => Err(Refused::Late),
    }
}

async fn read_all(stream: &mut TcpStream) -> Result<Header, Refused> {
    let mut parser = Parser::default();
    let mut buffer = [0; PROXY_HEADER_READ_BYTES];
    loop {
        let wanted = parser.wanted().min(buffer.len());
        match stream.read.try_read(&mut buffer[..wanted]) {
            Ok(0) => return Err(Refused::Ended),
            Ok(count) => {
                if let Some(header) = parser.take(&buffer[..count])? {
                    return Ok(header);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let readable = poll_fn(|context| stream.read.poll_readable(context)).await;
                readable.map_err(|_| Refused::Ended)?;
            }
            Err(_) => return Err(Refused::Ended),
        }
    }
}
