//! Bytes from socket to socket through a pipe of the kernel, by `splice(2)`.

use std::{io, os::fd::AsFd};

use postroad_cluster::limits::{SPLICE_PIPE_BYTES, SPLICE_PIPES_MAX};
use postroad_transport::network::{Pipe, PipeEnds, PipePool};
use rustix::{
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with},
    process::{Resource, getrlimit},
};

/// Of so many descriptors that this process may have, one pipe takes two: connections come first.
const DESCRIPTORS_PER_PIPE: u64 = 32;

/// A pool for this process.
pub(super) fn pool() -> PipePool {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    PipePool::new((descriptors / DESCRIPTORS_PER_PIPE).min(SPLICE_PIPES_MAX as u64) as usize)
}

/// Makes a pipe of [`SPLICE_PIPE_BYTES`], or of the system's usual size where that is not granted.
pub(super) fn pipe() -> io::Result<PipeEnds> {
    let (drain, fill) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A small pipe works too, with more calls.
    let _ = fcntl_setpipe_size(&fill, SPLICE_PIPE_BYTES);
    Ok(PipeEnds { fill, drain })
}

/// From the socket into the empty pipe. 0 is the end of the stream; `WouldBlock` says that the socket has nothing.
pub(super) fn fill(socket: impl AsFd, pipe: &mut Pipe, bytes_max: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let count = rustix::pipe::splice(socket, None, &pipe.ends().fill, None, bytes_max, flags)?;
    pipe.filled(count);
    Ok(count)
}

/// What the pipe holds into the socket. `WouldBlock` says that the socket takes nothing.
pub(super) fn drain(socket: impl AsFd, pipe: &mut Pipe) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let count = rustix::pipe::splice(&pipe.ends().drain, None, socket, None, pipe.held(), flags)?;
    pipe.drained(count);
    Ok(count)
}
