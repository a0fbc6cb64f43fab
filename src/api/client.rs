//! How a command asks the node on this host: one request over the Unix socket, one answer in the envelope.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::http::{Method, Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::{REQUEST_WAIT, socket};
use crate::{
    cli::output::Output,
    errors::{Exit, Failure},
};

/// The largest answer that is read: every link of a full cluster, with room.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// How long a command waits: a little longer than the node takes, so that the node's own words are heard.
const WAIT: Duration = Duration::from_secs(REQUEST_WAIT.as_secs() + 5);

/// The way to a node.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    /// How to start the node, for whoever finds that it does not run.
    start: String,
}

impl Client {
    /// The way to the node behind `socket`, which is started by `start`.
    pub const fn new(socket: PathBuf, start: String) -> Self {
        Self { socket, start }
    }

    /// Asks. The output has no text for people yet.
    ///
    /// # Errors
    /// That the node does not run or does not answer, or what it answered.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Output, Failure> {
        match timeout(WAIT, self.exchange(method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::timed_out(format!("the node did not answer within {} s", WAIT.as_secs()))
                .hint("Whether it was done is not known: look before you try again")),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Output, Failure> {
        let broken = |error: &dyn std::fmt::Display| {
            Failure::unreachable(format!("the node stopped answering on {}: {error}", self.socket.display()))
                .hint("Look at its log; whether the request was done is not known")
        };
        let stream = socket::connect(&self.socket).await.map_err(|error| self.absent(&error))?;
        exchange(stream, method, path, body).await.map_err(|error| broken(&error))?
    }

    fn absent(&self, error: &std::io::Error) -> Failure {
        let socket = self.socket.display();
        let message = match error.kind() {
            ErrorKind::NotFound => format!("no node runs here: {socket} is not there"),
            ErrorKind::ConnectionRefused => format!("no node runs here: nobody listens on {socket}"),
            ErrorKind::PermissionDenied => {
                return Failure::unreachable(format!("{socket} belongs to another user"))
                    .hint("Run as the node's user");
            }
            _ => format!("could not connect to {socket}: {error}"),
        };
        Failure::unreachable(message).hint(format!("Start it: {}", self.start))
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// One request over an open connection; an error says that the other side stopped answering.
///
/// # Errors
/// The outer one as said, the inner one what the other side answered.
pub(crate) async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Result<Output, Failure>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "postroad")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(bytes));
    let request = match request {
        Ok(request) => request,
        Err(error) => return Ok(Err(Failure::wrong_use(format!("{path:?} is no path of the API: {error}")))),
    };
    let response = sender.send_request(request).await?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
    connection.abort();
    Ok(parse(parts.status.as_u16(), &body))
}

/// An answer in the envelope as what it says.
///
/// # Errors
/// The failure in it, or that it is no answer.
pub(crate) fn parse(status: u16, body: &[u8]) -> Result<Output, Failure> {
    let malformed = || Failure::failed("ANSWER_MALFORMED", "the node's answer is not one of this program's");
    let mut envelope: Value = serde_json::from_slice(body).map_err(|_| malformed())?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(error) = envelope.get_mut("error").map(Value::take) {
        let code = text(&error["code"]).ok_or_else(malformed)?;
        let message = text(&error["message"]).ok_or_else(malformed)?;
        let exit = exit_of(status);
        return Err(Failure {
            code: code.into(),
            message,
            hint: text(&error["hint"]),
            details: error["details"].clone(),
            exit,
        });
    }
    let warnings = envelope["warnings"].as_array().into_iter().flatten().filter_map(text).collect();
    let trace = envelope["trace"].as_str().and_then(|trace| trace.parse().ok());
    let data = envelope.get_mut("data").map(Value::take).ok_or_else(malformed)?;
    Ok(Output { data, warnings, trace, ..Output::default() })
}

const fn exit_of(status: u16) -> Exit {
    match status {
        400 | 405 | 413 => Exit::WrongUse,
        404 | 409 => Exit::Refused,
        503 => Exit::Unreachable,
        504 => Exit::TimedOut,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back_as_it_was_given() {
        let failures = [
            Failure::refused("LINK_UNKNOWN", "there is no link db").hint("postroad link list"),
            Failure::refused("NAME_TAKEN", "there is a link db already"),
            Failure::wrong_use("no such path"),
            Failure::unreachable("nobody leads"),
            Failure::timed_out("no answer"),
            Failure::failed("DISK", "full").details(serde_json::json!({ "free": 0 })),
        ];
        for failure in failures {
            let status = super::super::status_of(&failure).as_u16();
            assert_eq!(parse(status, failure.envelope().to_string().as_bytes()).unwrap_err(), failure);
        }
        let output = Output::new(serde_json::json!({ "links": 1 }), "").warn(["old".to_owned()]);
        let parsed = parse(200, output.envelope().to_string().as_bytes()).unwrap();
        assert_eq!((parsed.data, parsed.warnings), (output.data, output.warnings));
        assert_eq!(parse(200, b"<html>").unwrap_err().code, "ANSWER_MALFORMED");
    }
}
