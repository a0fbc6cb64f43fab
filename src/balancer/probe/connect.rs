//! A probe's TCP connection: from the address that was asked for, with the PROXY header of the balancer itself.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use postroad_cluster::balancer::{
    database::evidence::{Cause, Failure},
    proxy_header::Header,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream},
    task::AbortHandle,
};

use super::ProbeSettings;

/// Connects to `address`. The whole probe's timeout bounds the wait.
pub(super) async fn tcp(settings: &ProbeSettings, address: SocketAddr) -> Result<TcpStream, Failure> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(|error| Failure::new(Cause::Connection, error))?;
    if let Some(source) = settings.source {
        let unusable = |error| Failure::new(Cause::Source, format_args!("{source}: {error}"));
        socket.bind(SocketAddr::new(source, 0)).map_err(unusable)?;
    }
    let mut stream = socket.connect(address).await.map_err(|error| refused(address, &error))?;
    stream.set_nodelay(true).map_err(|error| Failure::new(Cause::Connection, error))?;
    if settings.proxy_protocol {
        // LOCAL: the probe is the balancer's own, so the account's host is the balancer's address (DB-17).
        let written = stream.write_all(&Header::Local.encode()).await;
        written.map_err(|error| Failure::new(Cause::HandshakeClosed, error))?;
    }
    Ok(stream)
}

fn refused(address: SocketAddr, error: &io::Error) -> Failure {
    let cause = match error.kind() {
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Cause::Source,
        io::ErrorKind::TimedOut => Cause::Timeout,
        _ => Cause::Refused,
    };
    Failure::new(cause, format_args!("{address}: {error}"))
}

/// A port of this host that leads to `far`, once: for a driver that makes its own connections, and so would send no
/// header and choose no local address. Whoever else on this host came first would take one probe away and gain nothing:
/// it could connect to the node by itself.
pub(super) async fn doorway(mut far: TcpStream) -> Result<(u16, Doorway), Failure> {
    let failed = |error: io::Error| Failure::new(Cause::Connection, format_args!("a port for the probe: {error}"));
    let listener = TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let passing = tokio::spawn(async move {
        let Ok((mut near, _)) = listener.accept().await else { return };
        drop(listener);
        // An error ends both sides, and the driver tells of it.
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    Ok((port, Doorway(passing.abort_handle())))
}

/// Closes its doorway when it is dropped.
pub(super) struct Doorway(AbortHandle);

impl Drop for Doorway {
    fn drop(&mut self) {
        self.0.abort();
    }
}
