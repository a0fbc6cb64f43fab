//! What systemd hears of a node: that it is ready, that it lives, that it stops. Without `NOTIFY_SOCKET` nothing is said.

use std::{
    ffi::OsString,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// The shortest interval of signs of life: a watchdog below a second would be a mistake in the unit.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The node serves.
pub(crate) fn ready() {
    tell("READY=1");
}

/// It reads its configuration anew; [`ready`] follows.
pub(crate) fn reloading() {
    // The time that systemd wants beside it is the monotonic clock's.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let microseconds = now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1_000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
}

/// The node stops in order.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

/// Says that the node lives, as often as systemd wants it twice; ends at once if it wants nothing.
pub(crate) async fn watchdog() {
    let wanted = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
    let ours = std::env::var("WATCHDOG_PID").ok().is_none_or(|pid| pid == std::process::id().to_string());
    let Some(wanted) = wanted.filter(|_| ours).map(Duration::from_micros) else { return };
    let mut ticks = tokio::time::interval((wanted / 2).max(INTERVAL_MIN));
    loop {
        ticks.tick().await;
        tell("WATCHDOG=1");
    }
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, socket = %socket.display(), "systemd was not told {state}");
    }
}

fn send(socket: &OsString, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_a_path_and_at_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let abstract_name = format!("postroad-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(&path.into_os_string(), "READY=1").unwrap();
        send(&OsString::from(format!("@{abstract_name}")), "READY=1").unwrap();
        for socket in [by_path, by_name] {
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut text = [0; 20];
            let length = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
    }
}
