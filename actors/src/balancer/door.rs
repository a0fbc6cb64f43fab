//! One port of a balancer: opened at the start or as soon as that can be done, and kept through restarts of the actor.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use postroad_cluster::{balancer::database::settings::Port, limits::LISTEN_RETRY};
use postroad_transport::network::{Network, TcpListener};

use super::Shared;
use crate::{directory::lock, ports::sleep};

/// A port.
pub(super) struct Door {
    /// Which.
    pub(super) port: Port,
    wanted: SocketAddr,
    state: Mutex<State>,
}

enum State {
    /// Not open, and why not if it was tried.
    Shut(Option<String>),
    Open(Arc<dyn TcpListener>),
    /// Closed for good.
    Ended,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({} on {})", self.port.word(), self.wanted)
    }
}

impl Door {
    pub(super) const fn new(port: Port, wanted: SocketAddr) -> Self {
        Self { port, wanted, state: Mutex::new(State::Shut(None)) }
    }

    /// The listener, which is opened unless it is open.
    pub(super) fn open(&self, network: &dyn Network) -> io::Result<Arc<dyn TcpListener>> {
        let mut state = lock(&self.state);
        match &*state {
            State::Open(listener) => return Ok(Arc::clone(listener)),
            State::Ended => return Err(io::Error::other("the balancer has ended")),
            State::Shut(_) => {}
        }
        let opened = network.tcp_listen(self.wanted);
        *state = match &opened {
            Ok(listener) => State::Open(Arc::clone(listener)),
            Err(error) => State::Shut(Some(error.to_string())),
        };
        opened
    }

    /// The listener, as soon as it can be opened: an address that is taken may be free later.
    pub(super) async fn opened(&self, shared: &Shared) -> Arc<dyn TcpListener> {
        let mut said = false;
        loop {
            match self.open(&*shared.network) {
                Ok(listener) => return listener,
                Err(error) if !said => {
                    said = true;
                    let (port, address) = (self.port.word(), self.wanted);
                    tracing::warn!(port, %address, %error, "cannot listen; tried again by itself");
                }
                Err(_) => {}
            }
            sleep(&*shared.clock, LISTEN_RETRY).await;
        }
    }

    /// Where it listens, or is to.
    pub(super) fn address(&self) -> SocketAddr {
        match &*lock(&self.state) {
            State::Open(listener) => listener.local_address().unwrap_or(self.wanted),
            State::Shut(_) | State::Ended => self.wanted,
        }
    }

    /// Why it could not be opened, while it is not.
    pub(super) fn failure(&self) -> Option<String> {
        match &*lock(&self.state) {
            State::Shut(failure) => failure.clone(),
            State::Open(_) | State::Ended => None,
        }
    }

    /// Closes it for good.
    pub(super) fn close(&self) {
        *lock(&self.state) = State::Ended;
    }
}
