//! The two ends of a flow: what they write, what they read, and how they end.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    sync::Arc,
};

use postroad_transport::network::{TcpRead, TcpStream, TcpWrite};
use tokio::{sync::Notify, time::Instant};

use super::{
    Shared,
    flow::{Direction, Ending, Flow, Seen},
};

/// What an application reads at a time.
const READ_BYTES: usize = 16 << 10;

/// How a half of an end was left.
enum Half {
    /// It was closed, or its end of file was read.
    Closed,
    /// This end has reset the flow on purpose.
    Reset,
}

/// The consumer: says which flow it is, then writes and reads.
pub(super) async fn client(shared: &Arc<Shared>, flow: &Arc<Flow>, stream: TcpStream) {
    let TcpStream { mut read, mut write, .. } = stream;
    let result = match write_all(&mut *write, &flow.number.to_be_bytes()).await {
        Ok(()) => both(shared, flow, Direction::Up, &mut *read, &mut *write).await,
        Err(error) => Err(error),
    };
    note(shared, flow, Direction::Up, result);
}

/// The target: reads which flow it is, then writes and reads.
pub(super) async fn server(shared: Arc<Shared>, stream: TcpStream) {
    let TcpStream { mut read, mut write, .. } = stream;
    let mut number = [0; 8];
    // A consumer that vanishes before its first bytes came has no flow that could be judged here.
    if read_exact(&mut *read, &mut number).await.is_err() {
        return;
    }
    let number = u64::from_be_bytes(number);
    let Some(flow) = shared.flow(number) else {
        return shared.trace.note(format_args!("a target got bytes of no flow: {number}"));
    };
    let twice = flow.with(|state| state.accepted.replace(Instant::now()).is_some());
    if twice {
        flow.with(|state| state.wrong = Some("a second connection came for it".to_owned()));
    }
    let result = both(&shared, &flow, Direction::Down, &mut *read, &mut *write).await;
    note(&shared, &flow, Direction::Down, result);
}

fn note(shared: &Shared, flow: &Flow, mine: Direction, result: io::Result<()>) {
    let seen = match result {
        Ok(()) => Seen::Whole,
        Err(error) => Seen::Failed(error.kind().to_string()),
    };
    let end = if mine == Direction::Up { "consumer" } else { "target" };
    shared.trace.note(format_args!("flow {} ended at its {end}: {seen:?}", flow.number));
    flow.with(|state| {
        let place = if mine == Direction::Up { &mut state.client } else { &mut state.server };
        *place = Some((seen, Instant::now()));
    });
}

/// Writes the direction `mine` and reads the other, until both have ended or one has failed.
async fn both(
    shared: &Shared,
    flow: &Flow,
    mine: Direction,
    read: &mut dyn TcpRead,
    write: &mut dyn TcpWrite,
) -> io::Result<()> {
    let theirs = if mine == Direction::Up { Direction::Down } else { Direction::Up };
    let ended = Notify::new();
    let writing = writing(shared, flow, mine, write, &ended);
    let reading = reading(flow, theirs, read);
    tokio::pin!(writing, reading);
    let (mut writes, mut reads) = (true, true);
    while writes || reads {
        tokio::select! {
            biased;
            result = &mut writing, if writes => match result? {
                Half::Closed => writes = false,
                Half::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
            },
            result = &mut reading, if reads => {
                result?;
                reads = false;
                ended.notify_one();
            }
        }
    }
    Ok(())
}

async fn writing(
    shared: &Shared,
    flow: &Flow,
    mine: Direction,
    write: &mut dyn TcpWrite,
    ended: &Notify,
) -> io::Result<Half> {
    let pace = flow.plan.pace(mine);
    let client = mine == Direction::Up;
    let closes_at = match (flow.plan.ending, client) {
        (Ending::ClientFirst(after), true) | (Ending::ServerFirst(after), false) => Some(flow.began + after),
        _ => None,
    };
    let resets_at = match (flow.plan.ending, client) {
        (Ending::ClientReset(after), true) | (Ending::ServerReset(after), false) => Some(flow.began + after),
        _ => None,
    };
    let mut next = Instant::now();
    let mut peer_ended = false;
    let mut buffer = vec![0; pace.bytes.max(flow.plan.rest_bytes)];
    loop {
        let now = Instant::now();
        if resets_at.is_some_and(|at| now >= at) {
            flow.with(|state| state.reset = Some(now));
            write.reset();
            return Ok(Half::Reset);
        }
        // The world's end comes by the consumer, whose close the target then answers.
        if peer_ended || closes_at.is_some_and(|at| now >= at) || (client && shared.is_stopping()) {
            if peer_ended {
                put(flow, mine, write, &mut buffer[..flow.plan.rest_bytes]).await?;
            }
            flow.with(|state| state.closed[mine as usize] = true);
            poll_fn(|context| write.poll_shutdown(context)).await?;
            return Ok(Half::Closed);
        }
        if now >= next {
            put(flow, mine, write, &mut buffer[..pace.bytes]).await?;
            next += pace.every;
            continue;
        }
        let wake = [closes_at, resets_at].into_iter().flatten().fold(next, Instant::min);
        tokio::select! {
            biased;
            () = ended.notified(), if !peer_ended => peer_ended = true,
            () = shared.wait(wake), if client => {}
            () = tokio::time::sleep_until(wake), if !client => {}
            () = poll_fn(|context| write.poll_closed(context)) => return Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

/// Writes the next bytes of a direction.
async fn put(flow: &Flow, mine: Direction, write: &mut dyn TcpWrite, buffer: &mut [u8]) -> io::Result<()> {
    let position = flow.with(|state| state.sent[mine as usize]);
    flow.fill(mine, position, buffer);
    // Counted before, since the reader may have them before this end goes on.
    flow.with(|state| state.sent[mine as usize] += buffer.len() as u64);
    write_all(write, buffer).await
}

async fn reading(flow: &Flow, theirs: Direction, read: &mut dyn TcpRead) -> io::Result<()> {
    let place = theirs as usize;
    let mut buffer = vec![0; READ_BYTES];
    let mut right = vec![0; READ_BYTES];
    loop {
        poll_fn(|context| read.poll_readable(context)).await?;
        let count = match read.try_read(&mut buffer) {
            Ok(0) => {
                flow.with(|state| {
                    state.ended[place] = true;
                    let (got, sent) = (state.got[place], state.sent[place]);
                    if !state.closed[place] {
                        let found = format!("an end of file came {theirs:?} after {got} bytes, though nobody closed");
                        state.wrong.get_or_insert(found);
                    } else if got != sent {
                        let found = format!("an end of file came {theirs:?} after {got} bytes of {sent}");
                        state.wrong.get_or_insert(found);
                    }
                });
                return Ok(());
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let position = flow.with(|state| state.got[place]);
        flow.fill(theirs, position, &mut right[..count]);
        let wrong = buffer[..count].iter().zip(&right[..count]).position(|(is, should)| is != should);
        let now = Instant::now();
        flow.with(|state| {
            if let Some(at) = wrong {
                let found = format!("byte {} {theirs:?} is {}, not {}", position + at as u64, buffer[at], right[at]);
                state.wrong.get_or_insert(found);
            }
            state.got[place] += count as u64;
            let since = state.last[place].replace(now).or(state.accepted);
            let stall = since.map_or(std::time::Duration::ZERO, |since| now - since);
            state.longest_stall = state.longest_stall.max(stall.saturating_sub(flow.plan.pace(theirs).every));
        });
    }
}

async fn write_all(write: &mut dyn TcpWrite, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += poll_fn(|context| write.poll_write(context, &[IoSlice::new(&bytes[sent..])])).await?;
    }
    Ok(())
}

async fn read_exact(read: &mut dyn TcpRead, bytes: &mut [u8]) -> io::Result<()> {
    let mut got = 0;
    while got < bytes.len() {
        poll_fn(|context| read.poll_readable(context)).await?;
        match read.try_read(&mut bytes[got..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
