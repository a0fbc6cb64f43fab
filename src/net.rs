//! The real network: UDP with segmentation offload, TCP for the two ends of a flow, names from the system's resolver.

pub(crate) mod delay;
mod option;
mod splice;
mod tcp;
mod udp;

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Once},
};

use postroad_transport::network::{Network, Pending, Pipe, PipePool, TcpListener, TcpStream, UdpSocket};

/// The network of this host. Its methods must be called within a tokio runtime whose I/O is enabled.
#[derive(Debug)]
pub struct SystemNetwork {
    /// So that one warning serves every socket.
    small_buffers: Once,
    pipes: PipePool,
}

impl Default for SystemNetwork {
    fn default() -> Self {
        Self { small_buffers: Once::new(), pipes: splice::pool() }
    }
}

impl Network for SystemNetwork {
    fn udp_bind(&self, address: SocketAddr) -> io::Result<Arc<dyn UdpSocket>> {
        let socket = udp::SystemUdp::bind(address, &self.small_buffers)
            .map_err(|error| tried(&error, format_args!("bind UDP {address}")))?;
        Ok(Arc::new(socket))
    }

    fn tcp_listen(&self, address: SocketAddr) -> io::Result<Arc<dyn TcpListener>> {
        let listener = tcp::SystemListener::bind(address)
            .map_err(|error| tried(&error, format_args!("listen on TCP {address}")))?;
        Ok(Arc::new(listener))
    }

    fn tcp_connect(&self, address: SocketAddr) -> Pending<TcpStream> {
        Box::pin(async move {
            tcp::connect(address).await.map_err(|error| tried(&error, format_args!("connect to TCP {address}")))
        })
    }

    fn tcp_connect_from(&self, source: Option<IpAddr>, address: SocketAddr) -> Pending<TcpStream> {
        Box::pin(async move {
            let connected = tcp::connect_from(source, address).await;
            connected.map_err(|error| match source {
                Some(source) => tried(&error, format_args!("connect from {source} to TCP {address}")),
                None => tried(&error, format_args!("connect to TCP {address}")),
            })
        })
    }

    fn pipe(&self) -> Option<Pipe> {
        self.pipes.take(splice::pipe)
    }

    fn resolve(&self, host_port: &str) -> Pending<Vec<SocketAddr>> {
        let host_port = host_port.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host(&host_port)
                .await
                .map_err(|error| tried(&error, format_args!("look up {host_port}")))?;
            Ok(found.collect())
        })
    }
}

/// Says what was tried, and keeps the kind so that callers can tell errors apart.
fn tried(error: &io::Error, what: fmt::Arguments<'_>) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
