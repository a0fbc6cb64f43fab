//! Socket options of Linux that no library of ours wraps.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

/// The part of the kernel's `struct tcp_info` (linux/tcp.h) that is read here, up to `tcpi_notsent_bytes`. Fields are
/// only ever added behind it.
const TCP_INFO_BYTES: usize = 148;

/// For how long the peer of a TCP socket has left bytes unanswered: zero while it answers, `None` if it has all or the
/// socket cannot be asked.
pub(super) fn unanswered(socket: impl AsFd) -> Option<Duration> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    let socket = socket.as_fd();
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is as long and lives through the call, and the
    // true length to `length`. Every pattern of bits is a byte array, and the borrow keeps the descriptor open.
    #[allow(unsafe_code, reason = "no safe wrapper gives tcpi_notsent_bytes and tcpi_probes")]
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if failed != 0 || (length as usize) < TCP_INFO_BYTES {
        return None;
    }
    read(&info)
}

fn read(info: &[u8; TCP_INFO_BYTES]) -> Option<Duration> {
    let number = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let (retransmits, probes) = (info[2], info[3]);
    let (unacknowledged, not_sent) = (number(24), number(144));
    if unacknowledged == 0 && not_sent == 0 {
        return None;
    }
    // Both counts begin anew with each acknowledgement, that of a full window included. Of probes of a full window one
    // may be lost, or not answered because it came within half a second of another.
    let silent = retransmits > 0 || probes > 1;
    Some(if silent { Duration::from_millis(number(56).into()) } else { Duration::ZERO })
}

/// Lets a socket be bound to a local address without taking one of its ports before the connection is made: else one
/// address could have no more connections than ports, whatever number of peers.
pub(super) fn bind_without_port(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an int from `on`, which lives through the call and whose size is given.
    #[allow(unsafe_code, reason = "no library of ours wraps IP_BIND_ADDRESS_NO_PORT")]
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_answers_a_full_window_is_not_silent() {
        let mut info = [0; TCP_INFO_BYTES];
        assert_eq!(read(&info), None, "it has all");
        info[144..148].copy_from_slice(&70_000_u32.to_ne_bytes());
        info[56..60].copy_from_slice(&90_000_u32.to_ne_bytes());
        assert_eq!(read(&info), Some(Duration::ZERO), "its window is full, and its last word answered a probe");
        info[3] = 1;
        assert_eq!(read(&info), Some(Duration::ZERO), "one probe may be lost");
        info[3] = 2;
        assert_eq!(read(&info), Some(Duration::from_secs(90)), "two probes were not answered");
        (info[3], info[2], info[24]) = (0, 1, 5);
        assert_eq!(read(&info), Some(Duration::from_secs(90)), "a retransmission was not answered");
    }
}
