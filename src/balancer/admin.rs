//! The admin port on loopback: status as JSON and metrics. It asks nobody who they are, hence loopback (DB-41, DB-46).

use std::{fmt::Write, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use postroad_actors::balancer::{
    BalancerHandle,
    status::{NodeStatus, Status},
};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    api::{client, status_of},
    cli::output::Output,
    errors::{Exit, Failure},
};

/// How long `status` waits for the admin port.
const WAIT: Duration = Duration::from_secs(5);

/// The open port.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Opens the port at `address`, which is on loopback.
    ///
    /// # Errors
    /// When the address is taken or the system refuses.
    pub async fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed("SOCKET", format!("could not listen on {address} for status and metrics: {error}"))
                .hint("The key is proxy.admin")
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it is.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers for the balancer that `find` finds, until it is dropped.
    pub async fn serve(self, find: Find) {
        let routes = Router::new().route("/status", get(status)).route("/metrics", get(metrics)).with_state(find);
        if let Err(error) = axum::serve(self.listener, routes).await {
            tracing::error!(%error, "the admin port has ended");
        }
    }
}

/// Finds the balancer, or says why there is none: as a role of a node it comes and goes.
pub type Find = Arc<dyn Fn() -> Result<Arc<BalancerHandle>, Failure> + Send + Sync>;

async fn found(find: &Find) -> Result<Status, Failure> {
    let status = find()?.status().await;
    status.map_err(|error| Failure::new(Exit::Unreachable, error.code(), error.to_string()))
}

async fn status(State(find): State<Find>) -> Response {
    match found(&find).await {
        Ok(status) => json(StatusCode::OK, &Output::new(serde_json::json!(status), "").envelope()),
        Err(failure) => json(status_of(&failure), &failure.envelope()),
    }
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(find): State<Find>) -> Response {
    match found(&find).await {
        Ok(status) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], exposition(&status)).into_response(),
        Err(failure) => (status_of(&failure), failure.to_string()).into_response(),
    }
}

/// A figure of a node, where it has one.
type OfNode = fn(&NodeStatus) -> Option<f64>;

/// The figures in the text format of Prometheus.
fn exposition(status: &Status) -> String {
    let mut text = String::new();
    let mut figure = |name: &str, kind: &str, says: &str, rows: &[(String, f64)]| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP postroad_database_{name} {says}\n# TYPE postroad_database_{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "postroad_database_{name}{labels} {value}");
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    figure("uptime_seconds", "gauge", "Since it started.", &one(status.uptime_ms as f64 / 1e3));
    figure("generation", "counter", "Changes of where writes go.", &one(status.generation as f64));
    figure("primary_known", "gauge", "1 if there is a primary.", &one(f64::from(status.primary.is_some())));
    let old = one(status.old_write_connections as f64);
    figure("old_write_connections", "gauge", "Write connections open to what is no longer the primary.", &old);
    for (name, says) in [("passed", "Connections led to a node."), ("refused", "Connections without a node.")] {
        let rows = status.ports.iter().map(|port| {
            let count = if name == "passed" { port.totals.passed } else { port.totals.refused };
            (format!("{{port=\"{}\"}}", port.port.word()), count as f64)
        });
        figure(&format!("connections_{name}_total"), "counter", says, &rows.collect::<Vec<_>>());
    }
    let nodes: [(&str, &str, &str, OfNode); 9] = [
        ("node_healthy", "gauge", "1 if the node counts.", |node| Some(f64::from(node.report.healthy))),
        ("node_reads", "gauge", "1 if the node gets reads.", |node| Some(f64::from(node.report.reads))),
        ("node_epoch", "gauge", "The node's epoch.", |node| Some(node.report.epoch as f64)),
        ("node_connections", "gauge", "Open to the node, by anybody.", |node| Some(node.report.connections as f64)),
        ("node_connections_max", "gauge", "The node's own maximum.", |node| Some(node.report.connections_max as f64)),
        ("node_active_sessions", "gauge", "Sessions that run a command.", |node| Some(node.report.active as f64)),
        ("node_score", "gauge", "What is compared for reads.", |node| Some(node.score as f64)),
        ("node_lag_bytes", "gauge", "Bytes behind the primary.", |node| node.report.lag_bytes.map(|lag| lag as f64)),
        ("node_lag_seconds", "gauge", "Seconds behind it.", |node| node.report.lag_ms.map(|lag| lag as f64 / 1e3)),
    ];
    for (name, kind, says, value) in nodes {
        let rows = status.nodes.iter();
        let rows = rows.filter_map(|node| Some((format!("{{node=\"{}\"}}", node.report.node), value(node)?)));
        figure(name, kind, says, &rows.collect::<Vec<_>>());
    }
    let open = status.nodes.iter().flat_map(|node| {
        let row = |port: &str, count: u64| (format!("{{node=\"{}\",port=\"{port}\"}}", node.report.node), count as f64);
        [row("rw", node.open.rw), row("ro", node.open.ro)]
    });
    figure("open_connections", "gauge", "Open through this balancer.", &open.collect::<Vec<_>>());
    text
}

/// Asks the balancer behind the admin port at `address`.
///
/// # Errors
/// That nobody listens there or answers.
pub async fn ask(address: SocketAddr) -> Result<Output, Failure> {
    let absent = |error: std::io::Error| {
        Failure::unreachable(format!("no balancer answers on {address}: {error}"))
            .hint("Start it: postroad balance database --config proxy.toml; or name another port by --admin")
    };
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(absent)?;
        client::exchange(stream, Method::GET, "/status", None)
            .await
            .map_err(|error| Failure::unreachable(format!("the balancer on {address} stopped answering: {error}")))?
    };
    let expired = |_| Failure::timed_out(format!("the balancer on {address} did not answer in {} s", WAIT.as_secs()));
    tokio::time::timeout(WAIT, exchange).await.map_err(expired)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_scrapers_read_them() {
        let status = Status {
            version: "0".into(),
            uptime_ms: 1_500,
            generation: 3,
            primary: Some("db-1".into()),
            epoch: Some(2),
            no_primary: None,
            ambiguous: vec![],
            old_write_connections: 0,
            connections_max: 10,
            ports: vec![],
            nodes: vec![],
        };
        let text = exposition(&status);
        assert!(text.starts_with("# HELP postroad_database_uptime_seconds Since it started.\n"), "{text}");
        assert!(text.contains("\npostroad_database_uptime_seconds 1.5\n"), "{text}");
        assert!(text.contains("\npostroad_database_primary_known 1\n"), "{text}");
    }
}
