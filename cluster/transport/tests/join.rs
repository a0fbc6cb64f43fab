//! Joining with a token: dead seeds, wrong fingerprints, refused tokens, and what a joiner takes for an answer
//! (RP-6, RP-9, R12).

#[path = "support/quic.rs"]
mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use postroad_cluster::{
    command::{Enrolment, Refusal},
    domain::FailureDomain,
    id::{NodeId, Role, TokenId},
    limits::{CERTIFICATE_LIFETIME, HANDSHAKE_WAIT, JOIN_ANSWER_WAIT, JOIN_SEED_WAIT},
    time::{Clock, Entropy, Span},
    wire::join::JoinResponse,
};
use postroad_transport::{
    endpoint::{Accepted, Expect, transport},
    join::{JoinAnswer, JoinError, JoinOptions, Joined, SeedFailure, answer_join, join},
    tls::{Identity, Protocol},
};
use postroad_trust::{Fingerprint, JoinSecret, PublicKey, SigningKey, Subject, TokenVerifier};
use support::{Node, World, paused};

/// What a control node of the tests does with joins.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    Honest,
    /// Has no leader.
    Leaderless,
    /// Never decides.
    Slow,
    /// Welcomes with a certificate for another key.
    WrongKey,
}

/// The verifiers of tokens and, once used, the key that has used each.
type Tokens = BTreeMap<TokenId, (TokenVerifier, Option<[u8; 32]>)>;

struct Control {
    world: Arc<World>,
    node: Node,
    tokens: Mutex<Tokens>,
    commits: AtomicUsize,
    answers: Mutex<Vec<JoinAnswer>>,
    behaviour: Behaviour,
}

impl Control {
    fn start(world: &Arc<World>, number: u64, behaviour: Behaviour) -> Arc<Self> {
        let node = world.node(number, &[Role::Control], &[Protocol::Control, Protocol::Join]);
        let control = Arc::new(Self {
            world: Arc::clone(world),
            node,
            tokens: Mutex::default(),
            commits: AtomicUsize::new(0),
            answers: Mutex::default(),
            behaviour,
        });
        let serving = Arc::clone(&control);
        tokio::spawn(async move {
            while let Some(Accepted::Joiner(joiner)) = serving.node.endpoint.accept().await {
                let one = Arc::clone(&serving);
                tokio::spawn(async move {
                    let (lookup, commit) = (Arc::clone(&one), Arc::clone(&one));
                    let answer = answer_join(
                        joiner,
                        move |token| lookup.verifier(token),
                        move |token, enrolment| async move { commit.commit(token, enrolment).await },
                    )
                    .await;
                    one.answers.lock().unwrap().push(answer);
                });
            }
        });
        control
    }

    fn token(&self) -> JoinSecret {
        let secret = JoinSecret::generate(&*self.world.entropy);
        self.tokens.lock().unwrap().insert(secret.id(), (secret.verifier(), None));
        secret
    }

    fn verifier(&self, token: TokenId) -> Result<TokenVerifier, Refusal> {
        let unknown = || Refusal::new("TOKEN_UNKNOWN", "there is no such token", "Make another.");
        self.tokens.lock().unwrap().get(&token).map(|(verifier, _)| verifier.clone()).ok_or_else(unknown)
    }

    async fn commit(&self, token: TokenId, enrolment: Enrolment) -> JoinResponse {
        self.commits.fetch_add(1, Ordering::Relaxed);
        match self.behaviour {
            Behaviour::Leaderless => {
                return JoinResponse::Refused(Refusal::new("CONTROL_NOT_LEADER", "no leader", "Try later."));
            }
            Behaviour::Slow => std::future::pending::<()>().await,
            Behaviour::Honest | Behaviour::WrongKey => {}
        }
        {
            let mut tokens = self.tokens.lock().unwrap();
            let used = &mut tokens.get_mut(&token).unwrap().1;
            if used.is_some_and(|by| by != enrolment.public) {
                return JoinResponse::Refused(Refusal::new("TOKEN_USED", "this token was used", "Make another."));
            }
            *used = Some(enrolment.public);
        }
        self.welcome(&enrolment)
    }

    fn welcome(&self, enrolment: &Enrolment) -> JoinResponse {
        let roles: BTreeSet<Role> = [Role::Node].into();
        let subject = Subject { node: NodeId(50), roles: roles.clone(), lifetime: CERTIFICATE_LIFETIME };
        let mut public = PublicKey(enrolment.public);
        if self.behaviour == Behaviour::WrongKey {
            public = SigningKey::generate(&*self.world.entropy).public();
        }
        let world = &self.world;
        JoinResponse::Welcome {
            cluster: world.authority.cluster().clone(),
            node: NodeId(50),
            roles,
            chain: world.issuer.issue(&subject, public, world.clock.wall(), &*world.entropy).unwrap(),
            authorities: vec![world.authority.certificate().to_vec()],
            controls: [(NodeId(1), self.node.address.to_string())].into(),
        }
    }
}

struct Joining {
    key: SigningKey,
    options: JoinOptions,
}

fn joining(world: &World, from: &str, seeds: &[SocketAddr], secret: &JoinSecret) -> Joining {
    let key = SigningKey::generate(&*world.entropy);
    let enrolment = Enrolment {
        name: "web-4".parse().unwrap(),
        public: key.public().0,
        advertised: None,
        domain: FailureDomain::default(),
    };
    let options = JoinOptions {
        socket: world.fabric.bind(from),
        clock: Arc::clone(&world.clock) as Arc<dyn Clock>,
        entropy: Arc::clone(&world.entropy) as Arc<dyn Entropy>,
        seeds: seeds.to_vec(),
        fingerprint: world.authority.fingerprint(),
        cluster: None,
        secret: secret.clone(),
        enrolment,
    };
    Joining { key, options }
}

fn world(seed: u64) -> Arc<World> {
    Arc::new(World::new(seed))
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

// RP-6: the command's token, seeds and fingerprint are enough, and what comes of it is a certificate that works.
#[test]
fn a_joiner_becomes_a_node_past_dead_seeds() {
    paused(|| async {
        let world = world(1);
        let control = Control::start(&world, 1, Behaviour::Honest);
        let secret = control.token();
        let seeds = [address("10.0.8.1:9443"), address("10.0.8.2:9443"), control.node.address];
        let Joining { key, options } = joining(&world, "10.0.7.1:1", &seeds, &secret);
        let begin = tokio::time::Instant::now();
        let joined: Joined = join(options).await.unwrap();
        assert!(begin.elapsed() < 2 * JOIN_SEED_WAIT + Span::from_secs(1), "{:?}", begin.elapsed());
        assert_eq!((joined.node, joined.through), (NodeId(50), control.node.address));
        assert_eq!(joined.controls[&NodeId(1)], "10.0.0.1:9443");
        tokio::time::sleep(Span::from_secs(1)).await;
        let answered = JoinAnswer::Answered { token: secret.id(), refused: None, received: true };
        assert_eq!(*control.answers.lock().unwrap(), [answered]);
        // The certificate opens what a node may open.
        let identity = Identity::new(joined.chain, key, &world.anchors()).unwrap();
        let relay = world.node(2, &[Role::Relay], &[Protocol::Relay]);
        let node = world.node_with(50, identity, &[], transport::listener());
        let expect = Expect { node: Some(NodeId(2)), role: Role::Relay };
        assert!(node.endpoint.connect(relay.address, Protocol::Relay, expect, transport::session()).await.is_ok());
    });
}

// R12: one use; the same key again gets the same answer, another key does not.
#[test]
fn a_used_token_counts_for_its_own_key_alone() {
    paused(|| async {
        let world = world(2);
        let control = Control::start(&world, 1, Behaviour::Honest);
        let secret = control.token();
        let seeds = [control.node.address];
        let first = joining(&world, "10.0.7.1:1", &seeds, &secret);
        let mut again = joining(&world, "10.0.7.2:1", &seeds, &secret);
        again.options.enrolment = first.options.enrolment.clone();
        let other = joining(&world, "10.0.7.3:1", &seeds, &secret);
        let first = join(first.options).await.unwrap();
        assert_eq!(join(again.options).await.unwrap().node, first.node);
        let error = join(other.options).await.unwrap_err();
        assert_eq!(error.code(), "TOKEN_USED", "{error}");
        assert!(error.to_string().starts_with("join refused by 10.0.0.1:9443: this token was used"), "{error}");
    });
}

#[test]
fn unknown_tokens_and_false_proofs_commit_nothing() {
    paused(|| async {
        let world = world(3);
        let control = Control::start(&world, 1, Behaviour::Honest);
        let seeds = [control.node.address];
        let unknown = JoinSecret::generate(&*world.entropy);
        let error = join(joining(&world, "10.0.7.1:1", &seeds, &unknown).options).await.unwrap_err();
        assert_eq!(error.code(), "TOKEN_UNKNOWN", "{error}");
        // Another's token under this one's number: the proof does not hold.
        let victim = control.token();
        let verifier = control.tokens.lock().unwrap().remove(&victim.id()).unwrap();
        control.tokens.lock().unwrap().insert(unknown.id(), verifier);
        let error = join(joining(&world, "10.0.7.2:1", &seeds, &unknown).options).await.unwrap_err();
        assert_eq!(error.code(), "TOKEN_PROOF_INVALID", "{error}");
        assert_eq!(control.commits.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_wrong_fingerprint_is_refused_before_anything_is_proved() {
    paused(|| async {
        let world = world(4);
        let control = Control::start(&world, 1, Behaviour::Honest);
        let secret = control.token();
        let mut joining = joining(&world, "10.0.7.1:1", &[control.node.address], &secret);
        joining.options.fingerprint = Fingerprint([7; 32]);
        let error = join(joining.options).await.unwrap_err();
        assert_eq!(error.code(), "FINGERPRINT_MISMATCH", "{error}");
        let shown = world.authority.fingerprint();
        assert!(error.to_string().contains(&format!("it showed {shown}")), "{error}");
        let JoinError::NoAnswer(attempts) = &error else { panic!("{error}") };
        assert!(matches!(attempts[..], [(_, SeedFailure::Untrusted { .. })]));
        tokio::time::sleep(Span::from_secs(10)).await;
        assert!(control.answers.lock().unwrap().is_empty());
        assert_eq!(control.node.endpoint.counts().refused["FINGERPRINT_MISMATCH"], 1);
    });
}

#[test]
fn who_is_no_control_node_gets_no_proof() {
    paused(|| async {
        let world = world(5);
        let relay = world.node(1, &[Role::Relay], &[Protocol::Join]);
        let secret = JoinSecret::generate(&*world.entropy);
        let error = join(joining(&world, "10.0.7.1:1", &[relay.address], &secret).options).await.unwrap_err();
        assert_eq!(error.code(), "ROLE_MISSING", "{error}");
        let error = join(joining(&world, "10.0.7.2:1", &[], &secret).options).await.unwrap_err();
        assert_eq!(error, JoinError::NoSeeds);
    });
}

#[test]
fn seeds_that_cannot_decide_are_passed_over() {
    paused(|| async {
        let world = world(6);
        let leaderless = Control::start(&world, 1, Behaviour::Leaderless);
        let slow = Control::start(&world, 2, Behaviour::Slow);
        let honest = Control::start(&world, 3, Behaviour::Honest);
        let secret = honest.token();
        for control in [&leaderless, &slow] {
            control.tokens.lock().unwrap().insert(secret.id(), (secret.verifier(), None));
        }
        let seeds = [leaderless.node.address, slow.node.address, honest.node.address];
        let begin = tokio::time::Instant::now();
        let joined = join(joining(&world, "10.0.7.1:1", &seeds, &secret).options).await.unwrap();
        assert_eq!(joined.through, honest.node.address);
        assert!(begin.elapsed() <= JOIN_ANSWER_WAIT + Span::from_secs(1), "{:?}", begin.elapsed());
        let error = join(joining(&world, "10.0.7.2:1", &seeds[..1], &secret).options).await.unwrap_err();
        assert_eq!(error.code(), "CONTROL_NOT_LEADER", "{error}");
    });
}

#[test]
fn no_seed_at_all_says_what_each_did() {
    paused(|| async {
        let world = world(7);
        let secret = JoinSecret::generate(&*world.entropy);
        let seeds = [address("10.0.8.1:9443"), address("10.0.8.2:9443")];
        let error = join(joining(&world, "10.0.7.1:1", &seeds, &secret).options).await.unwrap_err();
        assert_eq!(error.code(), "SEEDS_UNREACHABLE");
        let text = error.to_string();
        assert!(text.contains("10.0.8.1:9443: no answer within 3000 ms") && text.contains("10.0.8.2:9443"), "{text}");
        assert!(!text.contains(&secret.reveal()));
    });
}

#[test]
fn a_welcome_that_does_not_fit_is_none() {
    paused(|| async {
        let world = world(8);
        let control = Control::start(&world, 1, Behaviour::WrongKey);
        let secret = control.token();
        let error = join(joining(&world, "10.0.7.1:1", &[control.node.address], &secret).options).await.unwrap_err();
        assert_eq!(error.code(), "MALFORMED", "{error}");
    });
}

// A node with a certificate that speaks the joiners' protocol, and a joiner that asks nothing: both cost a bounded wait.
#[test]
fn a_joiner_that_says_nothing_is_let_go() {
    paused(|| async {
        let world = world(9);
        let control = Control::start(&world, 1, Behaviour::Honest);
        let node = world.node(2, &[Role::Node], &[]);
        let expect = Expect { node: None, role: Role::Control };
        // It waits to be told that it was taken, which joiners never are.
        let error = node.endpoint.connect(control.node.address, Protocol::Join, expect, transport::control()).await;
        assert!(error.is_err());
        tokio::time::sleep(2 * HANDSHAKE_WAIT).await;
        assert_eq!(*control.answers.lock().unwrap(), [JoinAnswer::Nothing]);
    });
}
