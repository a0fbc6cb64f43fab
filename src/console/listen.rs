//! The console's listener: HTTP, pages and their JSON at the same addresses, and a stream for each open page.
//!
//! A page on a stranger's site must not read through somebody's browser: so the name that a request is addressed to has
//! to be this host's own, and answers forbid frames, foreign scripts and caching.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{ConnectInfo, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{
        IntoResponse as _, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::stream;
use maud::{Markup, html};
use serde::de::DeserializeOwned;
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    act::{self, Acting, Line, Wanted},
    door::{Certified, Door, Peer, Porter, Visitor},
    html::{self, Frame},
    metrics,
    model::overview::Overview,
    query::{Query, decode},
};
use crate::{
    api::Pages,
    cli::output::Output,
    errors::{Exit, Failure},
};

/// Pages that are followed at a time. Each costs one page a second at most.
const FOLLOWED_MAX: usize = 24;

/// How often a followed page is made anew.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// How many times as long as it took to make, a page rests before it is made anew: three browsers take a fiftieth of one
/// processor at most, until a page takes longer than 20 ms and [`FOLLOW_EVERY_MAX`] holds.
const FOLLOW_RESTS: u32 = 150;

/// A page rests for no longer than this: who looks at a slow node wants to see it move.
const FOLLOW_EVERY_MAX: Duration = Duration::from_secs(3);

/// Requests that are answered at a time; more wait, so that a crowd of browsers does not slow the node down.
const ANSWERED_MAX: usize = 8;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
const ICON: &str = include_str!("icon.svg");

/// The largest form that is read.
const FORM_BYTES_MAX: usize = 16 << 10;

/// What the listener works with.
#[derive(Clone)]
struct Console {
    pages: Pages,
    /// The files of acting, and whether this node's console may.
    acting: Acting,
    may_act: bool,
    porter: Porter,
    followed: Arc<Semaphore>,
    answered: Arc<Semaphore>,
}

/// A listening console.
#[derive(Debug)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl Listening {
    /// Ends it at once: its pages only read.
    pub fn stop(self) {
        self.server.abort();
    }
}

/// Serves the console of `pages` at `address`, which acts if it `may_act`; encrypted if it is `certified`.
///
/// # Errors
/// When the system does not give the address.
pub async fn listen(
    address: SocketAddr,
    certified: Option<Certified>,
    pages: Pages,
    acting: Acting,
    may_act: bool,
) -> Result<Listening, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed("CONSOLE_SOCKET", format!("the console could not listen on {address}: {error}"))
            .hint("Free the address, or give another by console.listen")
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let console = Console {
        pages,
        porter: Porter::new(acting.clone()),
        acting,
        may_act,
        followed: Arc::new(Semaphore::new(FOLLOWED_MAX)),
        answered: Arc::new(Semaphore::new(ANSWERED_MAX)),
    };
    let app = Router::new().fallback(answer).with_state(console);
    let app = app.into_make_service_with_connect_info::<Peer>();
    let door = Door::new(listener, certified);
    let server = tokio::spawn(async move {
        if let Err(error) = axum::serve(door, app).await {
            tracing::error!(%error, "the console has ended");
        }
    });
    tracing::info!(%address, "the console serves");
    Ok(Listening { address, server })
}

/// Whether a request is addressed to this host by a name that no stranger can give it.
fn is_ours(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name == "localhost" || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
}

async fn answer(State(console): State<Console>, ConnectInfo(from): ConnectInfo<Peer>, request: Request) -> Response {
    let mut response = route(console, from, request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (
            "content-security-policy",
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        ("x-content-type-options", "nosniff"),
        // Without a referrer browsers would send the origin of the form that acts as "null".
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn route(console: Console, Peer(from): Peer, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let host = header(header::HOST);
    let visitor = match console.porter.visitor(from, header(header::AUTHORIZATION)).await {
        Ok(visitor) => visitor,
        Err(failure) => return stranger(from, &failure),
    };
    // Whoever shows a token is not led here by a page; a browser that is has no token for the name that the page used.
    if visitor == Visitor::Local && !is_ours(host) {
        let failure =
            Failure::refused("HOST_FOREIGN", "the console answers only to this host's own names and addresses")
                .hint("Use http://127.0.0.1 and its port");
        return plain(StatusCode::FORBIDDEN, "text/plain", failure.to_string());
    }
    if request.method == "POST" && request.uri.path() == "/act" {
        let fetch_site = header(HeaderName::from_static("sec-fetch-site"));
        let ours = act::is_same_site(header(header::ORIGIN), host, fetch_site);
        return console.act(ours, body).await;
    }
    if request.method != "GET" && request.method != "HEAD" {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "the console only reads: use GET");
    }
    let wants_json = header(header::ACCEPT).split(',').any(|kind| kind.trim_start().starts_with("application/json"));
    let path = decode(request.uri.path());
    let query = Query::parse(request.uri.query().unwrap_or_default());
    match path.as_str() {
        "/style.css" => kept("text/css; charset=utf-8", STYLE),
        "/script.js" => kept("text/javascript; charset=utf-8", SCRIPT),
        "/icon.svg" | "/favicon.ico" => kept("image/svg+xml", ICON),
        "/metrics" => plain(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", console.metrics().await),
        _ if path.starts_with("/live/") => console.follow(path["/live".len()..].to_owned(), query),
        // The search for a trace, which works without scripts.
        "/trace" => to(&Query::default().address(&format!("/trace/{}", query.get("id").trim()))),
        _ if path.starts_with("/recording/") => console.recording(&path, &query).await,
        _ if wants_json || path.starts_with("/api/") => console.json(&path, &query).await,
        _ => console.page(&path, &query).await,
    }
}

/// Who has no token, or a wrong one, is asked for it.
fn stranger(from: SocketAddr, failure: &Failure) -> Response {
    tracing::info!(%from, code = %failure.code, "somebody was not let into the console");
    let status = if failure.code == "TOKENS_TRIED" { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::UNAUTHORIZED };
    let mut response = plain(status, "text/plain", failure.to_string());
    let asks = HeaderValue::from_static("Basic realm=\"postroad console, the password is a token\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, asks);
    response
}

fn plain(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body.into()).into_response()
}

/// Sends the browser to another address of this console.
fn to(address: &str) -> Response {
    let mut response = plain(StatusCode::SEE_OTHER, "text/plain", "elsewhere");
    if let Ok(address) = HeaderValue::from_str(address) {
        response.headers_mut().insert(header::LOCATION, address);
    }
    response
}

fn kept(kind: &'static str, body: &'static str) -> Response {
    let mut response = plain(StatusCode::OK, kind, body);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    response
}

/// The path of the API for the page at `path`.
fn page_of(path: &str) -> Result<String, Failure> {
    match path.trim_matches('/') {
        "" => Ok("overview".to_owned()),
        page @ ("tree" | "actors" | "topology" | "control" | "why") => Ok(page.to_owned()),
        page if ["actor/", "recording/", "trace/"].iter().any(|of| page.starts_with(of)) => Ok(page.to_owned()),
        page => match page.strip_prefix("api/console/") {
            Some(page) => Ok(page.to_owned()),
            None => Err(Failure::refused("PAGE_UNKNOWN", format!("the console has no page at {path:?}")).hint(
                "Its pages are /, /topology, /control, /why, /tree, /actors, /actor/PATH, /trace/ID, /act and /metrics",
            )),
        },
    }
}

fn read<T: DeserializeOwned>(output: &Output) -> Result<T, Failure> {
    // Read where it stands: a page of ten thousand actors is not copied once more.
    T::deserialize(&output.data).map_err(|error| {
        Failure::failed("PAGE_MALFORMED", format!("the node's page is not what this release knows: {error}"))
            .hint("Are all nodes of one release? Ask for the page with Accept: application/json")
    })
}

/// A page that was made.
struct Made {
    title: String,
    frame: Frame,
    main: Markup,
    status: StatusCode,
}

impl Console {
    async fn ask(&self, path: &str, query: &Query) -> Result<Output, Failure> {
        let page = page_of(path)?;
        self.pages.get(&query.address(&format!("/api/console/{page}"))).await
    }

    /// The page at an address, and the frame around it. What cannot be made is a page that says why.
    async fn make(&self, path: &str, query: &Query) -> Made {
        let _permit = self.answered.acquire().await;
        let overview = self.pages.get("/api/console/overview").await;
        let overview_model: Option<Overview> = overview.as_ref().ok().and_then(|output| read(output).ok());
        let mut frame = Frame::new(overview_model.as_ref(), self.pages.node(), path, query);
        let made = match path.trim_matches('/') {
            "" => overview.and_then(|output| {
                let page = read(&output)?;
                frame.warnings = output.warnings;
                Ok(("Overview".to_owned(), html::overview::render(&page)))
            }),
            "act" => {
                let audit = self.pages.get("/api/console/audit").await;
                let shown = html::act::Shown {
                    overview: overview_model.as_ref(),
                    may: self.may_act,
                    node: self.pages.node(),
                    lines: &self.acting.lines(),
                    audit: audit.and_then(|output| read(&output)).ok(),
                    now: crate::cli::now(),
                };
                let main = html::act::render(&shown, query);
                Ok(("Act".to_owned(), main))
            }
            _ => self.ask(path, query).await.and_then(|output| {
                let made = render(path, query, &output)?;
                frame.warnings.clone_from(&output.warnings);
                Ok(made)
            }),
        };
        let (title, main, status) = match made {
            Ok((title, main)) => (title, main, StatusCode::OK),
            Err(failure) => (failure.code.to_string(), html::failure(&failure), crate::api::status_of(&failure)),
        };
        Made { title, frame, main, status }
    }

    async fn page(&self, path: &str, query: &Query) -> Response {
        let made = self.make(path, query).await;
        let page = html::page(&made.frame, &made.title, &made.main).into_string();
        plain(made.status, "text/html; charset=utf-8", page)
    }

    async fn json(&self, path: &str, query: &Query) -> Response {
        let (status, envelope) = match self.ask(path, query).await {
            Ok(output) => (StatusCode::OK, output.envelope()),
            Err(failure) => (crate::api::status_of(&failure), failure.envelope()),
        };
        plain(status, "application/json", envelope.to_string())
    }

    /// A file for `simulations replay`.
    async fn recording(&self, path: &str, query: &Query) -> Response {
        match self.ask(path, query).await {
            Ok(output) => {
                let name: String =
                    path.rsplit('/').next().unwrap_or_default().chars().filter(char::is_ascii_graphic).collect();
                let mut response = plain(StatusCode::OK, "application/json", output.data.to_string());
                let value = format!("attachment; filename=\"{}.recording.json\"", name.replace(['"', '\\'], ""));
                if let Ok(value) = HeaderValue::from_str(&value) {
                    response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
                }
                response
            }
            Err(failure) => plain(crate::api::status_of(&failure), "text/plain", failure.to_string()),
        }
    }

    /// Does what a form wants, writes that down, and says what came of it.
    async fn act(&self, ours: bool, body: Body) -> Response {
        let outcome = self.acted(ours, body).await;
        let wrong = outcome.as_ref().is_err_and(|failure| failure.code == "TOKEN_WRONG");
        let outcome = if wrong { self.porter.wait().await.and(outcome) } else { outcome };
        match outcome {
            // Shown by a page of its own, so that a reload does nothing again.
            Ok(()) => {
                let mut response = plain(StatusCode::SEE_OTHER, "text/plain", "done");
                response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/act"));
                response
            }
            Err(failure) => {
                let frame = Frame { still: true, ..Frame::new(None, self.pages.node(), "/act", &Query::default()) };
                let page = html::page(&frame, &failure.code, &html::failure(&failure)).into_string();
                let status = match &*failure.code {
                    "TOKEN_WRONG" => StatusCode::UNAUTHORIZED,
                    "TOKENS_TRIED" => StatusCode::TOO_MANY_REQUESTS,
                    "CONSOLE_READS" | "CROSS_SITE" => StatusCode::FORBIDDEN,
                    _ => crate::api::status_of(&failure),
                };
                plain(status, "text/html; charset=utf-8", page)
            }
        }
    }

    async fn acted(&self, ours: bool, body: Body) -> Result<(), Failure> {
        if !self.may_act {
            return Err(Failure::refused("CONSOLE_READS", "this node's console only reads")
                .hint("Start the node with console.act = \"on\""));
        }
        if !ours {
            let message = "the form was not sent by a page of this console";
            return Err(Failure::refused("CROSS_SITE", message).hint("Act from its page /act"));
        }
        let too_long = |_| Failure::wrong_use(format!("a form has at most {FORM_BYTES_MAX} bytes"));
        let body = to_bytes(body, FORM_BYTES_MAX).await.map_err(too_long)?;
        let wanted = self.acting.wanted(&Query::parse(&String::from_utf8_lossy(&body)))?;
        let Wanted { deed, by, reason } = wanted;
        let what = deed.words();
        // The cluster writes it down first: what nobody could look up later is not done.
        let acted = match self.pages.note(&by, &what, &reason).await {
            Ok(()) => self.pages.act(&deed.path(), deed.body(), by.as_str()).await,
            Err(failure) => Err(failure),
        };
        let outcome = acted.as_ref().map_or_else(|failure| failure.code.to_string(), |_| "done".to_owned());
        let trace = acted.as_ref().ok().and_then(|output| output.trace);
        self.acting.note(&Line { at: crate::cli::now(), by: by.to_string(), what, reason, outcome, trace })?;
        acted.map(|_| ())
    }

    async fn metrics(&self) -> String {
        let (vitals, rows) = self.pages.figures().await;
        metrics::text(&vitals, &rows)
    }

    /// Sends the inside of a page again whenever it has changed, until the browser goes.
    fn follow(self, path: String, query: Query) -> Response {
        let Ok(permit) = Arc::clone(&self.followed).try_acquire_owned() else {
            let failure =
                Failure::new(Exit::Refused, "CONSOLE_FULL", format!("{FOLLOWED_MAX} pages are followed already"));
            return plain(StatusCode::SERVICE_UNAVAILABLE, "text/plain", failure.to_string());
        };
        let rest = Duration::ZERO;
        let following = Following { console: self, path, query, last: String::new(), rest, _permit: permit };
        let events = stream::unfold(following, |mut following| async move {
            let event = following.next().await;
            Some((Ok::<Event, Infallible>(event), following))
        });
        Sse::new(events).keep_alive(KeepAlive::new()).into_response()
    }
}

/// A page that somebody has open.
struct Following {
    console: Console,
    path: String,
    query: Query,
    last: String,
    /// How long the page rests before it is made anew.
    rest: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    async fn next(&mut self) -> Event {
        sleep(self.rest).await;
        let began = Instant::now();
        let made = self.console.make(&self.path, &self.query).await;
        let inner = html::inner(&made.frame, &made.main).into_string();
        self.rest = rest_after(began.elapsed());
        if inner == self.last {
            return Event::default().event("same").data("");
        }
        self.last.clone_from(&inner);
        // As a JSON string, so that no line of it ends the event.
        let event = Event::default().event("page");
        event.json_data(inner).unwrap_or_else(|_| Event::default().event("same").data(""))
    }
}

/// How long a page rests that took so long to make.
fn rest_after(took: Duration) -> Duration {
    took.saturating_mul(FOLLOW_RESTS).clamp(FOLLOW_EVERY, FOLLOW_EVERY_MAX)
}

/// A page other than the overview from what the API says of it.
fn render(path: &str, query: &Query, output: &Output) -> Result<(String, Markup), Failure> {
    let page = path.trim_matches('/');
    Ok(match page {
        "tree" => {
            let tree: super::model::tree::Tree = read(output)?;
            (format!("Tree of {}", tree.node), html::tree::render(&tree, query, crate::cli::now()))
        }
        "actors" => {
            let actors: super::model::actors::Actors = read(output)?;
            (format!("Actors of {}", actors.node), html::actors::render(&actors, query))
        }
        "topology" => ("Topology".to_owned(), html::topology::render(&read(output)?)),
        "control" => ("Control".to_owned(), html::control::render(&read(output)?)),
        "why" => ("Why".to_owned(), html::why::render(&read(output)?, query)),
        _ if page.starts_with("trace/") => {
            let trace: super::model::trace::Trace = read(output)?;
            (format!("Trace {}", trace.id), html::trace::render(&trace))
        }
        _ if page.starts_with("actor/") => {
            let actor: super::model::actor::Actor = read(output)?;
            (actor.actor.path.clone(), html::actor::render(&actor, query))
        }
        _ => (page.to_owned(), html! { pre { (serde_json::to_string_pretty(&output.data).unwrap_or_default()) } }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_slow_to_make_rests_longer() {
        let ms = Duration::from_millis;
        for (took, rest) in [(0, 1_000), (6, 1_000), (12, 1_800), (20, 3_000), (60_000, 3_000)] {
            assert_eq!(rest_after(ms(took)), ms(rest), "{took} ms");
        }
    }

    #[test]
    fn only_names_of_this_host_are_answered() {
        for ours in ["127.0.0.1:9440", "localhost:9440", "localhost", "[::1]:9440", "10.1.2.3:80", "127.0.0.1"] {
            assert!(is_ours(ours), "{ours}");
        }
        for foreign in ["", "evil.example", "evil.example:9440", "127.0.0.1.evil.example", "localhost.evil.example:1"] {
            assert!(!is_ours(foreign), "{foreign}");
        }
    }

    #[test]
    fn pages_are_those_of_the_api() {
        assert_eq!(page_of("/").unwrap(), "overview");
        assert_eq!(page_of("/actor/node/relay").unwrap(), "actor/node/relay");
        assert_eq!(page_of("/api/console/tree").unwrap(), "tree");
        assert_eq!(page_of("/api/leave").unwrap_err().code, "PAGE_UNKNOWN");
    }
}
