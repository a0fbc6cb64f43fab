//! Method and path to handler: the whole table of the API.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Answer, Core, act};
use crate::{cli::output::Output, errors::Failure};

/// One request.
pub(super) struct Call {
    /// `GET`, `POST` or `DELETE`.
    pub(super) method: String,
    /// The path without its query.
    pub(super) path: String,
    /// The query, without its question mark.
    pub(super) query: String,
    /// The body.
    pub(super) body: Vec<u8>,
    /// Whether another control node has carried it here; such a call is not carried on.
    pub(super) carried: bool,
}

impl Call {
    pub(super) fn new(method: &str, uri: &str, body: Vec<u8>) -> Self {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        Self { method: method.to_owned(), path: path.to_owned(), query: query.to_owned(), body, carried: false }
    }

    /// The body as what the handler takes.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        // The parser's words may quote the body, which may hold a passphrase, so only where it failed is said.
        serde_json::from_slice(&self.body).map_err(|error| {
            let at = format!("line {}, column {}", error.line(), error.column());
            Failure::wrong_use(format!("the body of {} {} is not what it takes ({at})", self.method, self.path))
        })
    }
}

/// Answers a request.
pub(super) async fn route(core: &Core, call: Call) -> Answer {
    let path = call.path.clone();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let ["api", rest @ ..] = parts.as_slice() else { return Err(no_route(&call)) };
    match (call.method.as_str(), rest) {
        ("GET", ["status"]) => Ok(core.status().await.output()),
        ("GET", ["leader"]) => core.leader(),
        ("GET", ["nodes"]) => core.node_list().await,
        ("GET", ["nodes", name]) => core.node_show(name).await,
        ("DELETE", ["nodes", name]) => core.node_remove(&call, name).await,
        ("GET", ["relays"]) => core.relay_list().await,
        ("GET", ["relays", name]) => core.relay_show(name).await,
        ("POST", ["relays", name, "drain"]) => core.relay_drain(name).await,
        ("POST", ["relays", name, "resume"]) => core.relay_resume(name).await,
        ("POST", ["relays", name, "disconnect"]) => core.relay_disconnect(name).await,
        ("GET", ["links"]) => core.link_list().await,
        ("POST", ["links"]) => core.link_add(call.read()?).await,
        ("GET", ["links", name]) => core.link_show(name).await,
        ("POST", ["links", name]) => core.link_set(name, call.read()?).await,
        ("POST", ["links", name, "target"]) => core.link_retarget(name, call.read()?).await,
        ("DELETE", ["links", name]) => core.link_remove(name).await,
        // It drops packets of this node, so it is asked for on this host only.
        ("POST", ["links", name, "trial"]) if !call.carried => core.link_trial(name, &call.read()?).await,
        ("GET", ["balancers"]) => core.balancer_list().await,
        ("POST", ["balancers"]) => core.balancer_add(call.read()?).await,
        ("GET", ["balancers", name]) => core.balancer_show(name).await,
        ("POST", ["balancers", name]) => core.balancer_set(name, call.read()?).await,
        ("DELETE", ["balancers", name]) => core.balancer_remove(name).await,
        ("GET", ["control"]) => core.control_list().await,
        ("POST", ["control", "promote"]) => core.control_promote(&call).await,
        ("POST", ["control", "step-down"]) => core.control_step_down(&call).await,
        ("POST", ["control", "voters", name]) => core.voter_add(&call, name).await,
        ("DELETE", ["control", "voters", name]) => core.voter_remove(&call, name).await,
        ("DELETE", ["control", name]) => core.control_remove(&call, name).await,
        ("GET", ["tokens"]) => core.token_list().await,
        ("POST", ["tokens"]) => core.token_create(call.read()?).await,
        ("DELETE", ["tokens", id]) => core.token_revoke(id).await,
        ("GET", ["settings"]) => core.setting_list().await,
        ("GET", ["settings", name]) => core.setting_show(name).await,
        ("POST", ["settings", name]) => core.setting_set(name, call.read()?).await,
        ("GET", ["console", page @ ..]) => core.console(&call, page).await,
        ("GET", ["actors"]) => Ok(data(core.fabric().directory.inspect())),
        ("GET", ["actors", path @ ..]) => actor(core, &path.join("/")),
        ("POST", ["relays", "rebalance"]) if !call.carried => core.rebalance(call.read()?).await,
        ("GET", ["audit"]) => core.audit(call.carried).await,
        ("POST", ["restart", path @ ..]) => core.restart(&call, &act::actor_path(path)).await,
        // What a control node has planned.
        ("POST", ["moves", circuit]) if call.carried => core.move_circuit(&call, circuit),
        // A node leaves by its own command line only.
        ("POST", ["leave"]) if !call.carried => core.leave().await,
        _ => Err(no_route(&call)),
    }
}

fn no_route(call: &Call) -> Failure {
    let (method, path) = (&call.method, &call.path);
    Failure::wrong_use(format!("the API has no {method} {path}")).hint("The command and the node differ in release?")
}

/// Facts that serialize.
pub(super) fn data(value: impl serde::Serialize) -> Output {
    // What we show are plain structs and maps by text or number, which JSON always holds.
    Output { data: serde_json::to_value(value).unwrap_or(Value::Null), ..Output::default() }
}

/// Events of an actor's journal that are shown.
const JOURNAL_SHOWN: usize = 20;

fn actor(core: &Core, path: &str) -> Answer {
    let directory = &core.fabric().directory;
    let view = directory.view(path).ok_or_else(|| {
        let known = directory.inspect();
        let paths = known.iter().map(|view| view.path.as_str());
        super::unknown("ACTOR_UNKNOWN", "actor", path, paths, "See them all: GET /api/actors")
    })?;
    let (state, journal) = (directory.state(path), directory.journal(path, JOURNAL_SHOWN));
    Ok(data(json!({ "actor": view, "state": state, "journal": journal })))
}
