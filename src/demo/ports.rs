//! Free ports on loopback, found by binding them.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
};

/// Below the range from which Linux gives ports by itself: a port that is free for a moment while its relay restarts
/// is given to nobody else.
const FIRST: u16 = 20_000;
const LAST: u16 = 31_999;

/// `count` ports that nobody uses, over TCP and UDP. Two demonstrations begin at different places, by `seed`.
///
/// # Errors
/// If there are not as many, which says that the host refuses loopback sockets.
pub fn free(count: usize, seed: u32) -> io::Result<Vec<u16>> {
    let span = u32::from(LAST - FIRST) + 1;
    let first = seed.wrapping_mul(97) % span;
    let ports = (0..span).map(|step| FIRST + ((first + step) % span) as u16);
    let found: Vec<u16> = ports.filter(|port| is_free(*port)).take(count).collect();
    if found.len() == count {
        return Ok(found);
    }
    let message = format!("only {} of {count} ports from {FIRST} to {LAST} are free on 127.0.0.1", found.len());
    Err(io::Error::new(io::ErrorKind::AddrInUse, message))
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_leave_out_what_is_taken() {
        let first = free(1, 7).unwrap()[0];
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        let mut ports = free(12, 7).unwrap();
        assert!(!ports.contains(&first));
        ports.dedup();
        assert_eq!(ports.len(), 12);
        drop(held);
    }
}
