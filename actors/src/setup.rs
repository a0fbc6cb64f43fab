//! How a node comes to be: the first one founds a cluster, every other one joins, and control nodes are certified.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    sync::Arc,
};

use postroad_cluster::{
    command::{Action, Command, Enrolment, IssuerRecord, Outcome, Refusal},
    id::{Name, NodeId, Role},
    limits::CERTIFICATE_LIFETIME,
};
use postroad_raft::{Consensus, ConsensusError, Options};
use postroad_store::{Databases, StoreError};
use postroad_transport::{
    join::{JoinError, JoinOptions, join},
    node_socket::NodeSocket,
};
use postroad_trust::{Authority, Fingerprint, Issuer, JoinSecret, SigningKey, Subject, TrustError};

use crate::{
    carrier::{ControlCarrier, RaftCarrier},
    identity::{IssuingKeys, Kept, KeptError},
    ports::{FlooredClock, Ports, Settings},
    service::Service,
};

/// Why a node was not made.
#[derive(Debug)]
pub enum SetupError {
    /// The data directory belongs to a node already.
    AlreadyJoined {
        /// The cluster.
        cluster: Name,
        /// The node's name.
        name: Name,
    },
    /// The store failed.
    Store(StoreError),
    /// A key or certificate is not good.
    Trust(TrustError),
    /// The Raft group was not founded.
    Consensus(ConsensusError),
    /// The cluster refused.
    Refused(Refusal),
    /// No seed let the node in.
    Join(JoinError),
    /// What is on the disk does not read.
    Kept(KeptError),
    /// A socket could not be opened.
    Socket(std::io::Error),
}

impl SetupError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> String {
        match self {
            Self::AlreadyJoined { .. } => "ALREADY_JOINED".to_owned(),
            Self::Store(error) => error.code().to_owned(),
            Self::Trust(error) => error.code().to_owned(),
            Self::Consensus(error) => error.code().to_owned(),
            Self::Refused(refusal) => refusal.code.clone(),
            Self::Join(error) => error.code().to_owned(),
            Self::Kept(error) => error.code().to_owned(),
            Self::Socket(_) => "SOCKET".to_owned(),
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyJoined { cluster, name } => write!(
                f,
                "this data directory belongs to the node {name} of {cluster} already. Use another with --data, or leave the cluster first: postroad leave"
            ),
            Self::Store(error) => error.fmt(f),
            Self::Trust(error) => error.fmt(f),
            Self::Consensus(error) => error.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Join(error) => error.fmt(f),
            Self::Kept(error) => error.fmt(f),
            Self::Socket(error) => write!(f, "cannot open a UDP socket: {error}"),
        }
    }
}

impl std::error::Error for SetupError {}

macro_rules! from {
    ($($variant:ident($error:ty)),+ $(,)?) => {
        $(impl From<$error> for SetupError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from!(Store(StoreError), Trust(TrustError), Consensus(ConsensusError), Join(JoinError), Kept(KeptError));

/// What founding a cluster brings: the authority, which belongs into a safe place and on no node.
pub struct Founded {
    /// Who the node is.
    pub node: NodeId,
    /// The cluster's authority.
    pub authority: Authority,
}

fn refuse_joined(databases: &Databases) -> Result<(), SetupError> {
    match Kept::load(&databases.node) {
        Ok(kept) => Err(SetupError::AlreadyJoined { cluster: kept.cluster, name: kept.name }),
        Err(KeptError::Absent) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn secret(ports: &Ports) -> [u8; 32] {
    let mut secret = [0; 32];
    ports.entropy.fill(&mut secret);
    secret
}

/// Founds a cluster with this node as its first control node, relay and node.
///
/// # Errors
/// If the directory belongs to a node, or a step fails; a failed founding leaves a directory to be thrown away.
pub async fn found(
    ports: &Ports,
    settings: &Settings,
    databases: &Databases,
    cluster: Name,
    name: Name,
) -> Result<Founded, SetupError> {
    refuse_joined(databases)?;
    let clock = FlooredClock::new(ports, &databases.node)?;
    let wall = postroad_cluster::time::Clock::wall(&clock);
    let node = NodeId(1);
    let authority = Authority::create(&cluster, &*ports.entropy, wall)?;
    let keys = certify(&authority, ports, node, wall)?;
    let key = SigningKey::generate(&*ports.entropy);
    let roles: BTreeSet<Role> = [Role::Control, Role::Relay, Role::Node].into();
    let certificate = keys.certificate.clone().unwrap_or_default();
    let issuer = Issuer::new(cluster.clone(), SigningKey::from_seed(*keys.issuer.seed()), certificate)?;
    let subject = Subject { node, roles: roles.clone(), lifetime: CERTIFICATE_LIFETIME };
    let chain = issuer.issue(&subject, key.public(), wall, &*ports.entropy)?;
    let enrolment = Enrolment {
        name: name.clone(),
        public: key.public().0,
        advertised: settings.advertised.clone(),
        domain: settings.domain.clone(),
    };
    let address = settings.advertised.clone().unwrap_or_default();
    let action = Action::Found {
        cluster: cluster.clone(),
        authority: authority.certificate().to_vec(),
        first: enrolment,
        issuer: record(&keys),
    };
    // Refused here, nothing is written yet: the same rules as in the log.
    let command = Command { at: wall, by: node, expected: None, action };
    let mut trial = postroad_cluster::state::State::default();
    if let Outcome::Refused(refusal) = trial.apply(1, command.clone()) {
        return Err(SetupError::Refused(refusal));
    }
    let mut kept = Kept::new(
        cluster,
        node,
        name,
        roles,
        &key,
        chain,
        vec![authority.certificate().to_vec()],
        BTreeMap::from([(node, address.clone())]),
        secret(ports),
    );
    kept.set_issuing(&keys);
    begin_group(ports, settings, databases, &address, command).await?;
    // Last: without it the directory belongs to nobody.
    kept.save(&databases.node)?;
    Ok(Founded { node, authority })
}

async fn begin_group(
    ports: &Ports,
    settings: &Settings,
    databases: &Databases,
    address: &str,
    command: Command,
) -> Result<(), SetupError> {
    let consensus = Consensus::start(Options {
        me: NodeId(1),
        log: databases.log.clone(),
        state: databases.state.clone(),
        carrier: Arc::new(RaftCarrier(Arc::new(ControlCarrier::default()))),
        entropy: Arc::clone(&ports.entropy),
        observer: settings.observer.clone(),
        timing: settings.timing,
        retention: settings.retention,
    })
    .await?;
    consensus.found(address.to_owned()).await?;
    let _ = consensus.leadership().until(|it| it.leader == Some(NodeId(1))).await;
    let outcome = consensus.propose(command).await;
    consensus.shutdown().await;
    match outcome {
        Ok((_, Outcome::Refused(refusal))) => Err(SetupError::Refused(refusal)),
        Ok(_) => Ok(()),
        Err(error) => {
            let hint = "Empty the data directory and try again";
            Err(SetupError::Refused(Refusal::new(error.code(), error.to_string(), hint)))
        }
    }
}

fn certify(
    authority: &Authority,
    ports: &Ports,
    node: NodeId,
    wall: postroad_cluster::time::WallTime,
) -> Result<IssuingKeys, TrustError> {
    let issuer = SigningKey::generate(&*ports.entropy);
    let snapshot = SigningKey::generate(&*ports.entropy);
    let certificate = authority.certify_issuer(issuer.public(), node, wall, &*ports.entropy)?;
    let snapshot_key_signature = authority.certify_snapshot_key(node, &snapshot.public());
    Ok(IssuingKeys {
        issuer,
        snapshot,
        certificate: Some(certificate),
        snapshot_key_signature: Some(snapshot_key_signature),
    })
}

fn record(keys: &IssuingKeys) -> IssuerRecord {
    IssuerRecord {
        certificate: keys.certificate.clone().unwrap_or_default(),
        snapshot_key: keys.snapshot.public().0,
        snapshot_key_signature: keys.snapshot_key_signature.clone().unwrap_or_default(),
    }
}

/// What a join needs besides the node's settings.
pub struct Invitation {
    /// Control nodes' addresses, tried in order; some may be dead.
    pub seeds: Vec<String>,
    /// The fingerprint of the cluster's authority.
    pub fingerprint: Fingerprint,
    /// The one-time token.
    pub secret: JoinSecret,
    /// The name that the node is to have.
    pub name: Name,
}

/// Joins a cluster; the data directory then belongs to the new node.
///
/// # Errors
/// If the directory belongs to a node, or no seed lets it in; the directory is unchanged but for the key, so that
/// trying again with the same token gets the same answer.
pub async fn enrol(
    ports: &Ports,
    settings: &Settings,
    databases: &Databases,
    invitation: Invitation,
) -> Result<Kept, SetupError> {
    refuse_joined(databases)?;
    let clock = Arc::new(FlooredClock::new(ports, &databases.node)?);
    let key = pending_key(ports, databases)?;
    let udp = ports.network.udp_bind(settings.outbound).map_err(SetupError::Socket)?;
    let (socket, _events) = NodeSocket::new(udp, clock.clone());
    let joined = join(JoinOptions {
        socket,
        clock,
        entropy: Arc::clone(&ports.entropy),
        seeds: resolve(ports, &invitation.seeds).await,
        fingerprint: invitation.fingerprint,
        cluster: None,
        secret: invitation.secret,
        enrolment: Enrolment {
            name: invitation.name.clone(),
            public: key.public().0,
            advertised: settings.advertised.clone(),
            domain: settings.domain.clone(),
        },
    })
    .await?;
    let kept = Kept::new(
        joined.cluster,
        joined.node,
        invitation.name,
        joined.roles,
        &key,
        joined.chain,
        joined.authorities,
        joined.controls,
        secret(ports),
    );
    kept.save(&databases.node)?;
    Ok(kept)
}

/// Seeds that do not resolve are dead seeds: the others are tried.
async fn resolve(ports: &Ports, seeds: &[String]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for seed in seeds {
        match ports.network.resolve(seed).await {
            Ok(addresses) => found.extend(addresses),
            Err(error) => tracing::warn!(seed, %error, "a seed has no address"),
        }
    }
    found
}

/// The key of a join that has not succeeded yet, so that a repeated join shows the same one.
fn pending_key(ports: &Ports, databases: &Databases) -> Result<SigningKey, StoreError> {
    const PENDING: &[u8] = b"pending key";
    let table = postroad_store::Table::Identity;
    let kept = databases.node.get(table, PENDING)?.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    if let Some(seed) = kept {
        return Ok(SigningKey::from_seed(seed));
    }
    let key = SigningKey::generate(&*ports.entropy);
    let value = Some(key.seed().to_vec());
    databases.node.write(vec![postroad_store::Put { table, key: PENDING.to_vec(), value }])?;
    Ok(key)
}

impl Service {
    /// Certifies this control node with the cluster's authority: new issuing and snapshot keys, kept here, agreed on by
    /// the cluster. The authority itself is not kept.
    ///
    /// # Errors
    /// A refusal: another cluster's authority, or the cluster did not take it.
    pub async fn certify(&self, authority: &Authority) -> Result<(), Refusal> {
        let refused = |code: &str, message: String| Refusal::new(code, message, "Use this cluster's authority file");
        let trusted = self.fabric.kept().authorities;
        if !trusted.iter().any(|known| known == authority.certificate()) {
            let message = format!("the authority is that of {}, not this cluster's", authority.cluster());
            return Err(refused("AUTHORITY_FOREIGN", message));
        }
        let wall = postroad_cluster::time::Clock::wall(&*self.fabric.clock);
        let node = self.fabric.me;
        let issuer = SigningKey::generate(&*self.fabric.entropy);
        let snapshot = SigningKey::generate(&*self.fabric.entropy);
        let certificate = authority
            .certify_issuer(issuer.public(), node, wall, &*self.fabric.entropy)
            .map_err(|error| refused(error.code(), error.to_string()))?;
        let signature = authority.certify_snapshot_key(node, &snapshot.public());
        let keys =
            IssuingKeys { issuer, snapshot, certificate: Some(certificate), snapshot_key_signature: Some(signature) };
        // Kept first: an agreed issuer whose keys are lost would be of no use.
        self.fabric
            .keep(|kept| kept.set_issuing(&keys))
            .map_err(|error| Refusal::new(error.code(), error.to_string(), "Look at this node's disk"))?;
        self.propose(Action::Certify { node, issuer: record(&keys) }, None).await.map(|_| ())
    }
}
