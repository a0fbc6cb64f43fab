//! One direction of a path: reads what is there, writes it at once, and holds only what the other side does not take.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use postroad_cluster::limits::{SPLICE_BULK_READS, SPLICE_COPY_BYTES, SPLICE_PIPE_BYTES, SPLICE_TURN_BYTES};

use crate::network::{Network, Pipe, TcpRead, TcpWrite};

thread_local! {
    /// Bytes on their way from one socket to the other, within one poll.
    static COPIED: RefCell<Box<[u8]>> = RefCell::new(vec![0; SPLICE_COPY_BYTES].into_boxed_slice());
}

/// Which end broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The one that is read.
    Reading(io::ErrorKind),
    /// The one that is written.
    Writing(io::ErrorKind),
}

fn writing(error: &io::Error) -> Broken {
    Broken::Writing(error.kind())
}

/// What was read and not written yet.
enum Held {
    Nothing,
    /// From `usize` on.
    Bytes(Vec<u8>, usize),
    Piped(Pipe),
    /// The end of file, after which nothing comes.
    End,
    /// The end of file was passed on.
    Ended,
}

/// One direction.
pub(super) struct Direction {
    /// What was written.
    pub(super) bytes: u64,
    held: Held,
    /// Reads in a row that filled the buffer.
    full_reads: u8,
}

impl Direction {
    /// A direction that writes `first` before it reads.
    pub(super) fn new(first: Vec<u8>) -> Self {
        let held = if first.is_empty() { Held::Nothing } else { Held::Bytes(first, 0) };
        Self { bytes: 0, held, full_reads: 0 }
    }

    /// Whether the end of file was passed on.
    pub(super) const fn is_ended(&self) -> bool {
        matches!(self.held, Held::Ended)
    }

    /// Whether it waits for something to read, and so notices if that side is reset.
    pub(super) const fn is_reading(&self) -> bool {
        matches!(self.held, Held::Nothing)
    }

    /// Moves bytes until there are none, the other side takes none, or others must have their turn. `last` says that the
    /// other direction has ended, so that the path ends with this one.
    pub(super) fn carry(
        &mut self,
        context: &mut Context<'_>,
        (read, write): (&mut dyn TcpRead, &mut dyn TcpWrite),
        network: &dyn Network,
        last: bool,
    ) -> Result<(), Broken> {
        let enough = self.bytes + SPLICE_TURN_BYTES;
        loop {
            let moved = match self.held {
                Held::Ended => return Ok(()),
                Held::Nothing => self.take(context, read, write, network),
                Held::Bytes(..) | Held::Piped(_) | Held::End => self.give(context, write, last),
            };
            match moved {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(broken)) => return Err(broken),
                Poll::Ready(Ok(())) if self.bytes >= enough => {
                    context.waker().wake_by_ref();
                    return Ok(());
                }
                Poll::Ready(Ok(())) => {}
            }
        }
    }

    /// Writes what is held.
    fn give(&mut self, context: &mut Context<'_>, write: &mut dyn TcpWrite, last: bool) -> Poll<Result<(), Broken>> {
        let written = match &mut self.held {
            Held::Bytes(bytes, from) => {
                let written = ready!(write.poll_write(context, &[IoSlice::new(&bytes[*from..])]));
                let written = written.map_err(|error| writing(&error))?;
                *from += written;
                if *from == bytes.len() {
                    self.held = Held::Nothing;
                }
                written
            }
            Held::Piped(pipe) => {
                let written = ready!(write.poll_drain(context, pipe)).map_err(|error| writing(&error))?;
                if pipe.held() == 0 {
                    self.held = Held::Nothing;
                }
                written
            }
            Held::End => {
                let ended = if last { write.poll_finish(context) } else { write.poll_shutdown(context) };
                ready!(ended).map_err(|error| writing(&error))?;
                self.held = Held::Ended;
                return Poll::Ready(Ok(()));
            }
            Held::Nothing | Held::Ended => return Poll::Ready(Ok(())),
        };
        if written == 0 {
            return Poll::Ready(Err(Broken::Writing(io::ErrorKind::WriteZero)));
        }
        self.bytes += written as u64;
        Poll::Ready(Ok(()))
    }

    /// Reads what is there, and writes what can be written of it.
    fn take(
        &mut self,
        context: &mut Context<'_>,
        read: &mut dyn TcpRead,
        write: &mut dyn TcpWrite,
        network: &dyn Network,
    ) -> Poll<Result<(), Broken>> {
        if self.full_reads >= SPLICE_BULK_READS
            && let Some(pipe) = network.pipe()
        {
            return self.take_piped(context, read, pipe);
        }
        COPIED.with_borrow_mut(|buffer| self.take_copied(context, read, write, buffer))
    }

    fn take_copied(
        &mut self,
        context: &mut Context<'_>,
        read: &mut dyn TcpRead,
        write: &mut dyn TcpWrite,
        buffer: &mut [u8],
    ) -> Poll<Result<(), Broken>> {
        let count = match read.try_read(buffer) {
            Ok(0) => {
                self.held = Held::End;
                return Poll::Ready(Ok(()));
            }
            Ok(count) => count,
            Err(error) => return wait_to_read(context, read, &error),
        };
        self.full_reads = if count == buffer.len() { self.full_reads.saturating_add(1) } else { 0 };
        let mut from = 0;
        while from < count {
            match write.poll_write(context, &[IoSlice::new(&buffer[from..count])]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Broken::Writing(io::ErrorKind::WriteZero))),
                Poll::Ready(Ok(written)) => {
                    from += written;
                    self.bytes += written as u64;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(writing(&error))),
                Poll::Pending => {
                    self.held = Held::Bytes(buffer[from..count].to_vec(), 0);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take_piped(
        &mut self,
        context: &mut Context<'_>,
        read: &mut dyn TcpRead,
        mut pipe: Pipe,
    ) -> Poll<Result<(), Broken>> {
        match read.try_fill(&mut pipe, SPLICE_PIPE_BYTES) {
            Ok(0) => self.held = Held::End,
            Ok(count) => {
                if count < SPLICE_COPY_BYTES {
                    self.full_reads = 0;
                }
                self.held = Held::Piped(pipe);
            }
            Err(error) => return wait_to_read(context, read, &error),
        }
        Poll::Ready(Ok(()))
    }
}

/// After a read that failed: waits for something to read if that was all.
fn wait_to_read(context: &mut Context<'_>, read: &mut dyn TcpRead, error: &io::Error) -> Poll<Result<(), Broken>> {
    if error.kind() != io::ErrorKind::WouldBlock {
        return Poll::Ready(Err(Broken::Reading(error.kind())));
    }
    read.poll_readable(context).map_err(|error| Broken::Reading(error.kind()))
}
