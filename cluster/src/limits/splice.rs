//! The byte path of balancers, and PROXY headers.

use crate::time::Span;

/// Bytes that one read of a spliced path copies at most: what databases send in one write, and what a path may hold for
/// a peer that takes nothing.
pub const SPLICE_COPY_BYTES: usize = 16 << 10;

/// Reads in a row that fill that buffer before bytes go through a pipe: less would take pipes for single large rows.
pub const SPLICE_BULK_READS: u8 = 2;

/// Bytes that a pipe is filled with at once: past 256 KiB the processor's cache is left, and no call is saved.
pub const SPLICE_PIPE_BYTES: usize = 256 << 10;

/// Pipes of one process: as many bulk transfers go through the kernel at once, the others are copied. With 64 pages each
/// they stay under the 16,384 pages that Linux grants a user.
pub const SPLICE_PIPES_MAX: usize = 64;

/// Bytes that one direction of a path moves before the other paths of its thread have their turn, well under 1 ms.
pub const SPLICE_TURN_BYTES: u64 = 1 << 20;

/// How long a connection may stay silent whose other side has ended (DB-33): longer than a database's longest query
/// without a byte would be, and a forgotten one is gone within the hour.
pub const SPLICE_SILENT_WAIT: Span = Span::from_mins(30);

/// How long a peer's host may leave bytes unanswered: some seven retransmissions, where Linux would try for 15 minutes.
pub const SPLICE_UNANSWERED_WAIT: Span = Span::from_secs(30);

/// The least and the longest distance between two looks at paths that may have to be given up.
pub const SPLICE_LOOK_MIN: Span = Span::from_millis(10);

/// See [`SPLICE_LOOK_MIN`].
pub const SPLICE_LOOK_MAX: Span = Span::from_secs(5);

/// The longest PROXY header: its fixed part, and what a length of 16 bits can say.
pub const PROXY_HEADER_BYTES_MAX: usize = 16 + u16::MAX as usize;

/// The addresses of a PROXY header for Unix sockets, which are skipped.
pub const PROXY_HEADER_UNIX_BYTES: usize = 216;

/// How long a trusted address may take to send its PROXY header; it sends it at once, so a second is for a lost packet.
pub const PROXY_HEADER_WAIT: Span = Span::from_secs(3);

/// Addresses and networks from which PROXY headers are read; each is compared for every connection.
pub const PROXY_SOURCES_MAX: usize = 64;

/// The longest startup message of a PostgreSQL client; the server's own bound.
pub const STARTUP_BYTES_MAX: usize = 10_000;

/// How long a client may take to be refused: its startup message, and its end after it has read the error.
pub const REFUSAL_WAIT: Span = Span::from_secs(5);

/// Bytes of a PROXY header read at once: usual ones have 28 to 52.
pub const PROXY_HEADER_READ_BYTES: usize = 256;
