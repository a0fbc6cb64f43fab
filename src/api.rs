//! The node's HTTP API: the same table of routes on a Unix socket for this host and over the control protocol for other
//! control nodes.
//!
//! - [`socket`]: the Unix socket, its permissions, and paths that are too long for one
//! - [`client`]: how a command asks
//! - `route`: method and path to handler
//! - `console`: the pages of the console as JSON, of this node and of others
//! - `act`: what is done by hand
//! - `balancers`, `control`, `links`, `nodes`, `relays`, `settings`, `tokens`, `leave`, `status`: the handlers
//! - [`view`]: what lists and single things look like in JSON

mod act;
mod balancers;
pub mod client;
mod console;
mod control;
mod leave;
mod links;
mod nodes;
mod relays;
mod route;
mod settings;
pub mod socket;
mod status;
mod tokens;
pub mod view;

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::Response,
};
use postroad_actors::{
    fabric::Fabric,
    root::NodeHandle,
    service,
    service::Service,
    status::{ROWS_SECONDS, Sightings},
    trace::Step,
};
use postroad_cluster::{
    command::{Action, Outcome, Refusal},
    id::{Name, NodeId},
    state::{NodeRecord, State as Agreed},
    trace::TraceId,
};
use postroad_raft::Consensus;
use postroad_transport::trace::{self, Doing, carry};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::{
    cli::output::Output,
    config::keys::nearest,
    console::model::vitals::Vitals,
    errors::{Exit, Failure},
};
use console::{Memory, Rows};
use route::Call;

/// The largest body of a request: a sealed authority with its passphrase, with room.
const BODY_BYTES_MAX: usize = 64 << 10;

/// How long a request may take: a promotion waits until its node has learned the log.
pub(crate) const REQUEST_WAIT: Duration = Duration::from_secs(45);

/// How long open requests may go on when the node stops.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// How often problems are looked for while nobody asks, so that their "since" is right.
const SIGHT_INTERVAL: Duration = Duration::from_secs(5);

/// What an API call comes to.
pub(crate) type Answer = Result<Output, Failure>;

/// Lets the API end the node: once it has left its cluster.
#[derive(Debug)]
pub struct Stop(Mutex<Option<oneshot::Sender<()>>>);

impl Stop {
    /// The way to end the node, and where the node waits for it.
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Mutex::new(Some(sender))), receiver)
    }

    fn left(&self) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A node that stops already needs not be told.
            let _ = sender.send(());
        }
    }
}

/// What handlers work with.
pub(crate) struct Core {
    /// Held by a trial: two at a time would measure each other.
    trial: tokio::sync::Mutex<()>,
    node: Arc<NodeHandle>,
    seen: Sightings,
    stop: Stop,
    /// Whether control nodes may have this node restart its actors, for whoever acts from their consoles.
    acts: bool,
    memory: Memory,
    /// Itself, for what goes on beside a request.
    me: Weak<Core>,
}

impl Core {
    fn fabric(&self) -> &Arc<Fabric> {
        self.node.fabric()
    }

    fn service(&self) -> Result<&Arc<Service>, Failure> {
        self.node.service().ok_or_else(|| self.not_control())
    }

    fn consensus(&self) -> Result<&Consensus, Failure> {
        self.fabric().consensus.as_ref().ok_or_else(|| self.not_control())
    }

    fn not_control(&self) -> Failure {
        let name = &self.fabric().name;
        let addresses: Vec<String> = self.fabric().kept().controls.into_values().collect();
        let message = format!("{name} is no control node, and only those know and change the cluster");
        Failure::refused("NOT_CONTROL", message)
            .hint(format!("Run the command on a control node; they are at {}", addresses.join(", ")))
    }

    /// The agreed state with everything that was acknowledged before, or with a warning that it may be older.
    async fn state(&self) -> Result<(Arc<Agreed>, Vec<String>), Failure> {
        let consensus = self.consensus()?;
        let warnings = match consensus.read_index().await {
            Ok(_) => Vec::new(),
            Err(error) => vec![format!("this may be outdated, since the leader was not reached: {error}")],
        };
        Ok((consensus.state(), warnings))
    }

    async fn propose(&self, action: Action) -> Result<Outcome, Failure> {
        self.service()?.propose(action, None).await.map_err(refusal)
    }
}

/// A refusal as a failure: some codes say that nobody could decide.
pub(crate) fn refusal(refusal: Refusal) -> Failure {
    let exit = match refusal.code.as_str() {
        "NO_LEADER" | "CONTROL_NOT_LEADER" | "CONTROL_STOPPED" | "CONTROL_NO_QUORUM" => Exit::Unreachable,
        "CONTROL_OUTCOME_UNKNOWN" => Exit::TimedOut,
        "CONTROL_BUSY" => Exit::Failed,
        _ => Exit::Refused,
    };
    let Refusal { code, message, hint } = refusal;
    let failure = Failure::new(exit, code, message);
    if hint.is_empty() { failure } else { failure.hint(hint) }
}

/// The node of a name, or of its number as `n3`.
fn node_of<'a>(state: &'a Agreed, text: &str) -> Result<(NodeId, &'a NodeRecord), Failure> {
    let named = text.parse::<Name>().ok().and_then(|name| state.node_named(&name));
    let numbered = || {
        let id = NodeId(text.strip_prefix('n')?.parse().ok()?);
        Some((id, state.nodes.get(&id)?))
    };
    named.or_else(numbered).ok_or_else(|| {
        let names = state.nodes.values().map(|record| record.name.as_str());
        unknown("NODE_UNKNOWN", "node", text, names, "See who there is: postroad node list")
    })
}

/// There is nothing of this name, but perhaps one that was meant.
fn unknown<'a>(
    code: &'static str,
    noun: &str,
    text: &str,
    names: impl IntoIterator<Item = &'a str>,
    hint: &str,
) -> Failure {
    let shown: String = text.chars().take(80).collect();
    match nearest(&shown, names) {
        Some(near) => Failure::refused(code, format!("there is no {noun} {shown:?}; did you mean {near}?")).hint(hint),
        None => Failure::refused(code, format!("there is no {noun} {shown:?}")).hint(hint),
    }
}

/// The status of HTTP for a failure.
pub(crate) fn status_of(failure: &Failure) -> StatusCode {
    match failure.exit {
        Exit::Done => StatusCode::OK,
        Exit::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        Exit::WrongUse => StatusCode::BAD_REQUEST,
        Exit::Refused if failure.code.ends_with("_UNKNOWN") => StatusCode::NOT_FOUND,
        Exit::Refused => StatusCode::CONFLICT,
        Exit::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
        Exit::TimedOut => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// Routes a call within its time. One that may change something is a step of a trace, which it begins unless whoever
/// carried it here did.
async fn followed(core: &Core, call: Call) -> Answer {
    let late = || {
        Err(Failure::timed_out(format!("the node did not answer within {} s", REQUEST_WAIT.as_secs()))
            .hint("It may still act: look at postroad status before you try again"))
    };
    if call.method == "GET" {
        return timeout(REQUEST_WAIT, route::route(core, call)).await.unwrap_or_else(|_| late());
    }
    let (fabric, begun) = (core.fabric(), trace::doing());
    let trace = begun.trace.unwrap_or_else(|| TraceId::begun(fabric.entropy.next_u64()));
    let (at, kind) = (fabric.now(), format!("{} {}", call.method, call.path.chars().take(200).collect::<String>()));
    let doing = Doing { trace: Some(trace), by: Some("api".into()) };
    let answer = timeout(REQUEST_WAIT, carry(doing, route::route(core, call))).await.unwrap_or_else(|_| late());
    fabric.steps.note(Step {
        trace,
        place: "api",
        kind,
        by: begun.by.unwrap_or_else(|| "this host".into()),
        at,
        took: fabric.now().since(at),
        outcome: answer.as_ref().map_or_else(|failure| failure.code.to_string(), |_| "done".to_owned()),
        failed: answer.is_err(),
    });
    answer.map(|output| Output { trace: Some(trace), ..output })
}

/// Answers a call, whichever way it came.
async fn answer(core: &Core, call: Call) -> (StatusCode, Vec<u8>) {
    match followed(core, call).await {
        Ok(output) => (StatusCode::OK, output.envelope().to_string().into_bytes()),
        Err(failure) => (status_of(&failure), failure.envelope().to_string().into_bytes()),
    }
}

async fn handle(State(core): State<Arc<Core>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (status, bytes) = if let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await {
        answer(&core, Call::new(parts.method.as_str(), &parts.uri.to_string(), body.to_vec())).await
    } else {
        let failure = Failure::wrong_use(format!("the request did not arrive whole within {BODY_BYTES_MAX} bytes"));
        (StatusCode::PAYLOAD_TOO_LARGE, failure.envelope().to_string().into_bytes())
    };
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The API over the control protocol. The service that holds it is the node's own, so it must not keep the node alive.
struct Carried(Weak<Core>);

impl service::Api for Carried {
    fn answer(
        &self,
        method: String,
        path: String,
        body: Vec<u8>,
    ) -> Pin<Box<dyn Future<Output = (u16, Vec<u8>)> + Send>> {
        let core = self.0.upgrade();
        Box::pin(async move {
            let Some(core) = core else {
                let failure = Failure::unreachable("this control node stops");
                return (status_of(&failure).as_u16(), failure.envelope().to_string().into_bytes());
            };
            let (status, body) = answer(&core, Call { carried: true, ..Call::new(&method, &path, body) }).await;
            (status.as_u16(), body)
        })
    }
}

/// The API of a running node.
pub struct Serving {
    core: Arc<Core>,
    path: PathBuf,
    end: oneshot::Sender<()>,
    server: JoinHandle<()>,
    sighting: JoinHandle<()>,
}

/// Serves the node's API on the Unix socket at `path`, and to other control nodes; `acts` says whether those may have it
/// act.
///
/// # Errors
/// When the socket is another process's, or the system refuses it.
pub fn serve(path: &Path, node: Arc<NodeHandle>, stop: Stop, acts: bool) -> Result<Serving, Failure> {
    let listener = socket::bind(path)?;
    let core = Arc::new_cyclic(|me| Core {
        node,
        seen: Sightings::default(),
        stop,
        acts,
        memory: Memory::default(),
        me: Weak::clone(me),
        trial: tokio::sync::Mutex::default(),
    });
    core.fabric().serve_api(Arc::new(Carried(Arc::downgrade(&core))));
    let (end, ended) = oneshot::channel::<()>();
    let app = Router::new().fallback(handle).with_state(Arc::clone(&core));
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        // Dropped or told: either way nobody wants more.
        let _ = ended.await;
    });
    let server = tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the API has ended");
        }
    });
    let sighted = Arc::clone(&core);
    let sighting = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(SIGHT_INTERVAL);
        loop {
            ticks.tick().await;
            sighted.status().await;
        }
    });
    tracing::info!(socket = %path.display(), "the API serves");
    Ok(Serving { core, path: path.to_owned(), end, server, sighting })
}

/// What the console shows, asked of the node itself.
#[derive(Clone)]
pub struct Pages(Arc<Core>);

impl Pages {
    /// The node's name.
    pub(crate) fn node(&self) -> &str {
        self.0.fabric().name.as_str()
    }

    /// The page at a path of the API, with its query.
    pub(crate) async fn get(&self, address: &str) -> Answer {
        followed(&self.0, Call::new("GET", address, Vec::new())).await
    }

    /// Does what the path of the API does, for somebody who is called so.
    pub(crate) async fn act(&self, path: &str, body: &str, by: &str) -> Answer {
        let doing = Doing { trace: None, by: Some(by.into()) };
        // What some of the handlers hold is large.
        Box::pin(carry(doing, followed(&self.0, Call::new("POST", path, body.as_bytes().to_vec())))).await
    }

    /// Has the cluster write down what somebody is about to do.
    pub(crate) async fn note(&self, who: &Name, what: &str, reason: &str) -> Result<(), Failure> {
        timeout(REQUEST_WAIT, self.0.note(who, what, reason)).await.unwrap_or_else(|_| {
            Err(Failure::timed_out(format!(
                "the cluster did not agree on the audit within {} s",
                REQUEST_WAIT.as_secs()
            ))
            .hint("Nothing was done; see postroad status"))
        })
    }

    /// The figures of this node.
    pub(crate) async fn figures(&self) -> (Vitals, Rows) {
        (self.0.vitals().await, self.0.rows(ROWS_SECONDS))
    }
}

impl Serving {
    /// What the console shows.
    pub fn pages(&self) -> Pages {
        Pages(Arc::clone(&self.core))
    }

    /// Ends it once open requests are answered, at most after some seconds, and removes the socket.
    pub async fn stop(self) {
        self.sighting.abort();
        socket::remove(&self.path);
        let _ = self.end.send(());
        let mut server = self.server;
        if timeout(STOP_WAIT, &mut server).await.is_err() {
            server.abort();
        }
    }
}
