//! The console's door: who comes in, and how. On loopback everybody does, unencrypted; from other machines whoever has a
//! token, over TLS with the operator's certificate.

use std::{fs, io, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{
    ServerConfig, crypto,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::act::{Acting, Role};
use crate::errors::Failure;

/// How long a handshake may take: a few round trips over a slow line.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);

/// Handshakes under way at a time; more wait in the system's queue.
const HANDSHAKES_MAX: usize = 64;

/// How long the door waits when the system gives it no connection, such as when descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long a wrong token waits for its answer, so that guessing is slow.
const WRONG_TOKEN_WAIT: Duration = Duration::from_secs(1);

/// Wrong tokens that wait at a time; more are answered at once with that there are too many.
const WRONG_TOKENS_MAX: usize = 16;

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

type Arrived = (Box<dyn Stream>, SocketAddr);

/// Where connections come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// A certificate with its key, for connections from other machines.
#[derive(Clone)]
pub struct Certified(TlsAcceptor);

impl std::fmt::Debug for Certified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certified(hidden)")
    }
}

impl Certified {
    /// What two PEM files hold.
    ///
    /// # Errors
    /// When they cannot be read, others may read the key, or they do not belong together.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, Failure> {
        let wrong = |path: &Path, error: &dyn std::fmt::Display| {
            Failure::failed("CONSOLE_CERTIFICATE", format!("could not use {}: {error}", path.display()))
                .hint("console.certificate and console.key are PEM files: the chain, leaf first, and its key")
        };
        let mode = fs::metadata(key).map_err(|error| wrong(key, &error))?.permissions().mode();
        if mode & 0o077 != 0 {
            let message = format!("{} is open to other users, who could pose as this console", key.display());
            return Err(Failure::refused("CONSOLE_KEY_EXPOSED", message).hint("Close it: chmod 600"));
        }
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| wrong(certificate, &error))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong(certificate, &error))?;
        let config = builder.with_no_client_auth().with_single_cert(chain, private);
        let mut config = config.map_err(|error| wrong(certificate, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// The listening door.
pub(super) struct Door {
    listener: TcpListener,
    tls: Option<Certified>,
    handshakes: Arc<Semaphore>,
    done: mpsc::Receiver<Arrived>,
    ready: mpsc::Sender<Arrived>,
}

impl Door {
    pub(super) fn new(listener: TcpListener, tls: Option<Certified>) -> Self {
        let (ready, done) = mpsc::channel(HANDSHAKES_MAX);
        Self { listener, tls, handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)), done, ready }
    }

    /// Shakes hands beside the door, so that nobody who is slow holds up the next.
    fn greet(&self, certified: Certified, tcp: TcpStream, from: SocketAddr, permit: OwnedSemaphorePermit) {
        let ready = self.ready.clone();
        tokio::spawn(async move {
            let _permit = permit;
            match timeout(HANDSHAKE_WAIT, certified.0.accept(tcp)).await {
                // The door may be closed meanwhile.
                Ok(Ok(stream)) => drop(ready.send((Box::new(stream), from)).await),
                Ok(Err(error)) => tracing::debug!(%from, %error, "no TLS with somebody at the console"),
                Err(_) => tracing::debug!(%from, "somebody at the console did not finish the handshake"),
            }
        });
    }
}

impl Listener for Door {
    type Io = Box<dyn Stream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Arrived {
        loop {
            let permit = tokio::select! {
                biased;
                Some(arrived) = self.done.recv() => return arrived,
                Ok(permit) = Arc::clone(&self.handshakes).acquire_owned() => permit,
            };
            let accepted = tokio::select! {
                biased;
                Some(arrived) = self.done.recv() => return arrived,
                accepted = self.listener.accept() => accepted,
            };
            match (accepted, self.tls.clone()) {
                (Ok((tcp, from)), None) => return (Box::new(tcp), from),
                (Ok((tcp, from)), Some(certified)) => self.greet(certified, tcp, from, permit),
                (Err(error), _) => {
                    tracing::warn!(%error, "the console cannot take a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Who asks for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Visitor {
    /// Somebody on this host.
    Local,
    /// Somebody with a token, as it is called.
    Holder(String),
}

/// Looks at who comes.
#[derive(Clone, Debug)]
pub(super) struct Porter {
    acting: Acting,
    wrong: Arc<Semaphore>,
}

impl Porter {
    pub(super) fn new(acting: Acting) -> Self {
        Self { acting, wrong: Arc::new(Semaphore::new(WRONG_TOKENS_MAX)) }
    }

    /// Who comes from an address with that header `authorization`.
    ///
    /// # Errors
    /// `TOKEN_MISSING`, `TOKEN_WRONG` after a while, or `TOKENS_TRIED` when too many are wrong at a time.
    pub(super) async fn visitor(&self, from: SocketAddr, authorization: &str) -> Result<Visitor, Failure> {
        if from.ip().to_canonical().is_loopback() {
            return Ok(Visitor::Local);
        }
        let Some(token) = token_in(authorization) else {
            return Err(Failure::refused("TOKEN_MISSING", "reading from another machine needs a token").hint(
                "Make one on the node's host: postroad console --make-token NAME --role read; it is the password",
            ));
        };
        match self.acting.holder(&token, Role::Read) {
            Ok(name) => Ok(Visitor::Holder(name.to_string())),
            Err(failure) if failure.code == "TOKEN_WRONG" => {
                self.wait().await?;
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    /// What a wrong token costs whoever tries it.
    pub(super) async fn wait(&self) -> Result<(), Failure> {
        let Ok(_permit) = self.wrong.try_acquire() else {
            return Err(Failure::refused("TOKENS_TRIED", "too many wrong tokens are tried at this console")
                .hint("Wait some seconds; the node's log says from where they come"));
        };
        sleep(WRONG_TOKEN_WAIT).await;
        Ok(())
    }
}

/// The token in a header `authorization`: a bearer's, or the password that a browser asks for.
fn token_in(authorization: &str) -> Option<String> {
    let (scheme, rest) = authorization.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return (!rest.is_empty()).then(|| rest.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(base64(rest)?).ok()?;
    let (_, password) = decoded.split_once(':')?;
    (!password.is_empty()).then(|| password.to_owned())
}

/// The bytes of a text in base 64; none if it is no such text.
fn base64(text: &str) -> Option<Vec<u8>> {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text.trim_end_matches('=').bytes() {
        let value = SIGNS.iter().position(|sign| *sign == byte)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_as_bearers_or_as_passwords() {
        assert_eq!(token_in("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(token_in("bearer  abc "), Some("abc".to_owned()));
        // ann:abc
        assert_eq!(token_in("Basic YW5uOmFiYw=="), Some("abc".to_owned()));
        for bad in ["", "Bearer", "Bearer ", "abc", "Basic YW5u", "Basic %%%", "Basic YW5uOg==", "Digest abc"] {
            assert_eq!(token_in(bad), None, "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn loopback_is_open_and_others_need_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let acting = Acting::within(directory.path());
        let token = acting.make_token(&"ann".parse().unwrap(), Role::Read).unwrap();
        let porter = Porter::new(acting);
        let (here, v6, there) = ("127.0.0.1:1", "[::ffff:127.0.0.1]:1", "192.0.2.7:1");
        for local in [here, v6, "[::1]:1"] {
            assert_eq!(porter.visitor(local.parse().unwrap(), "").await.unwrap(), Visitor::Local);
        }
        let visit = async |header: &str| porter.visitor(there.parse().unwrap(), header).await;
        assert_eq!(visit("").await.unwrap_err().code, "TOKEN_MISSING");
        assert_eq!(visit("Bearer guess").await.unwrap_err().code, "TOKEN_WRONG");
        assert_eq!(visit(&format!("Bearer {token}")).await.unwrap(), Visitor::Holder("ann".into()));
        // A crowd of guesses is not even looked at for long.
        let _busy = Arc::clone(&porter.wrong).try_acquire_many_owned(WRONG_TOKENS_MAX as u32).unwrap();
        assert_eq!(visit("Bearer guess").await.unwrap_err().code, "TOKENS_TRIED");
    }
}
