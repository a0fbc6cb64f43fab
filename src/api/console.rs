//! The handlers of `/api/console`: what the pages of the console show, of this node or of any other. The browser, the
//! terminal and scripts ask here.

mod trace;
mod why;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use postroad_actors::{
    inspect::ActorRow,
    look,
    status::{self, Status},
};
use postroad_cluster::{
    command::Refusal,
    id::{NodeId, Role},
    time::{Clock as _, Moment, Span},
};
use serde::Serialize;
use serde_json::Value;
use tokio::{task::JoinSet, time::timeout};

use super::{
    Answer, Core, client,
    route::{Call, data},
    unknown,
};
use crate::{
    cli::{output::Output, relative},
    console::{
        model::{
            actor::{self, Facts},
            actors,
            control::{self, OwnMember},
            overview::{self, Heard, Overview},
            topology, tree,
            vitals::{self, Vitals},
        },
        query::{Query, decode},
    },
    errors::{Exit, Failure},
};

/// How old a status may be on a page.
const STATUS_AGE: Span = Span::from_millis(900);

/// How long a page waits for what only the leader knows; without it, it shows what this node knows.
const STATUS_WAIT: Duration = Duration::from_millis(400);

/// How old what others said may be while somebody looks.
const FLEET_AGE: Span = Span::from_secs(2);

/// How long the first page waits for others; later ones show what came in the meantime.
const FLEET_WAIT: Duration = Duration::from_millis(500);

/// Nodes that are asked at a time.
const ASKED_MAX: usize = 8;

/// Pages of other nodes that are remembered, for when they fall silent.
const PAGES_MAX: usize = 64;

/// Terms that are remembered: some elections, or one night of an unlucky group.
const TERMS_MAX: usize = 64;

/// What was seen of the fleet, so that no page waits for a silent node.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    status: Mutex<Option<(Moment, Arc<Status>)>>,
    heard: Mutex<BTreeMap<NodeId, Last>>,
    polled: tokio::sync::Mutex<Option<Moment>>,
    pages: Mutex<BTreeMap<String, (Moment, Value)>>,
    terms: Mutex<VecDeque<control::Term>>,
    rows: Mutex<BTreeMap<usize, (Moment, Rows)>>,
}

/// Every actor of the node.
pub(super) type Rows = Arc<[ActorRow]>;

/// What a node said last.
#[derive(Debug, Default)]
struct Last {
    vitals: Option<(Moment, Vitals)>,
    silence: Option<String>,
    /// Bytes a second that its relay forwarded between its last two words.
    forwards: Option<u64>,
}

/// Words that are further apart than this say nothing of the load now, nor do those that are nearer than a moment.
const LOAD_APART: std::ops::RangeInclusive<u64> = 500..=30_000;

/// What a relay has forwarded a second between two words of its node.
fn forwarded(before: &Vitals, after: &Vitals) -> Option<u64> {
    let (relay, earlier) = (after.relay.as_ref()?, before.relay.as_ref()?);
    let ms = after.now.0.checked_sub(before.now.0).filter(|ms| LOAD_APART.contains(ms))?;
    // A relay that was restarted counts from nothing.
    Some(relay.bytes.checked_sub(earlier.bytes)? * 1_000 / ms)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn note(&self, node: NodeId, now: Moment, said: Result<Vitals, String>) {
        let mut heard = lock(&self.heard);
        let last = heard.entry(node).or_default();
        match said {
            Ok(vitals) => {
                let forwards = last.vitals.as_ref().and_then(|(_, before)| forwarded(before, &vitals));
                *last = Last { vitals: Some((now, vitals)), silence: None, forwards };
            }
            Err(reason) => last.silence = Some(reason),
        }
    }

    fn heard(&self, node: NodeId, now: Moment) -> Heard {
        let heard = lock(&self.heard);
        let Some(last) = heard.get(&node) else { return Heard::default() };
        Heard {
            vitals: last.vitals.as_ref().map(|(_, vitals)| vitals.clone()),
            age_ms: last.vitals.as_ref().map(|(at, _)| now.since(*at).as_millis() as u64),
            silence: last.silence.clone(),
            forwards: last.forwards.filter(|_| last.silence.is_none()),
        }
    }

    /// Notes the term that a status shows, with its leader and cause, if that is news.
    pub(super) fn note_term(&self, status: &Status) {
        let Some(view) = &status.control else { return };
        let leader = view.leader.map(|leader| {
            let member = view.members.iter().find(|member| member.id == leader);
            member.map_or_else(|| leader.to_string(), |member| member.name.clone())
        });
        let mut terms = lock(&self.terms);
        let last = terms.front();
        if last.is_some_and(|last| last.term == view.term && last.leader == leader) {
            return;
        }
        let term = control::Term { term: view.term, leader, cause: view.cause.clone(), since: status.now };
        // A term in which a leader was found replaces the one in which there was none yet.
        if last.is_some_and(|last| last.term == term.term && last.leader.is_none()) {
            terms.pop_front();
        }
        terms.push_front(term);
        terms.truncate(TERMS_MAX);
    }

    fn terms(&self) -> Vec<control::Term> {
        lock(&self.terms).iter().cloned().collect()
    }

    fn remember(&self, address: &str, now: Moment, page: &Value) {
        let mut pages = lock(&self.pages);
        pages.insert(address.to_owned(), (now, page.clone()));
        while pages.len() > PAGES_MAX {
            let oldest = pages.iter().min_by_key(|(_, (at, _))| *at).map(|(address, _)| address.clone());
            let Some(oldest) = oldest else { return };
            pages.remove(&oldest);
        }
    }

    fn recall(&self, address: &str) -> Option<(Moment, Value)> {
        lock(&self.pages).get(address).cloned()
    }
}

impl Core {
    /// Answers for one page.
    pub(super) async fn console(&self, call: &Call, page: &[&str]) -> Answer {
        let query = Query::parse(&call.query);
        let wanted = query.get("node");
        if call.carried || wanted.is_empty() || wanted == self.fabric().name.as_str() {
            return self.own_page(page, &query, call.carried).await;
        }
        let node = self.member(wanted).await?;
        if node == self.fabric().me {
            return self.own_page(page, &query, false).await;
        }
        let address = format!("{}?{}", call.path, call.query);
        self.page_of(node, wanted, &address).await
    }

    async fn own_page(&self, page: &[&str], query: &Query, carried: bool) -> Answer {
        match page {
            ["overview"] => self.overview(carried).await,
            ["vitals"] => Ok(data(self.vitals().await)),
            ["tree"] => Ok(data(self.tree(query))),
            ["actors"] => Ok(data(self.actors(query))),
            ["actor", path @ ..] => self.actor(&decode(&path.join("/")), query),
            ["topology"] => self.of_overview(carried, topology::topology).await,
            ["control"] => self.of_overview(carried, |overview| control::group(overview, self.memory.terms())).await,
            ["placements"] => Ok(data(self.placements(query))),
            ["why"] => self.why(query, carried).await,
            ["audit"] => self.audit(carried).await,
            ["trace", id] => self.trace(id, carried).await,
            ["steps"] => self.steps(query),
            ["recording", path @ ..] => self.recording(&decode(&path.join("/")), query),
            _ => Err(Failure::wrong_use(format!("the console has no page {:?}", page.join("/")))),
        }
    }

    /// The page of another node; what it said last, if it is silent now.
    async fn page_of(&self, node: NodeId, name: &str, address: &str) -> Answer {
        let now = self.fabric().now();
        match self.look(node, address).await {
            Ok((status, body)) => {
                let output = client::parse(status, &body)?;
                self.memory.remember(address, now, &output.data);
                Ok(output)
            }
            Err(refusal) => {
                let reason = refusal.message;
                let Some((at, page)) = self.memory.recall(address) else {
                    let message = format!("{name} does not answer, and nobody has looked at this before: {reason}");
                    return Err(Failure::new(Exit::Unreachable, "NODE_SILENT", message)
                        .hint("What it said last is on the overview. Does it run, and reach a control node?")
                        .details(serde_json::json!({ "node": name, "silent": true })));
                };
                let age = relative::span(now.since(at));
                let warning = format!("{name} does not answer; this is what it showed {age} ago ({reason})");
                Ok(Output { data: page, ..Output::default() }.warn([warning]))
            }
        }
    }

    async fn look(&self, node: NodeId, path: &str) -> Result<look::Seen, Refusal> {
        match self.node.service() {
            Some(service) => service.look(node, path.to_owned()).await,
            None => look::from_node(self.fabric(), node, path.to_owned()).await,
        }
    }

    /// The member of that name. A node that is no control node asks one who is there.
    pub(super) async fn member(&self, name: &str) -> Result<NodeId, Failure> {
        if let Ok(consensus) = self.consensus() {
            return super::node_of(&consensus.state(), name).map(|(node, _)| node);
        }
        let overview = self.fleet_by_control().await;
        let cards = overview.map(|overview| overview.cards).unwrap_or_default();
        let found = cards.iter().find(|card| card.name == name).map(|card| card.id);
        found.ok_or_else(|| {
            let names = cards.iter().map(|card| card.name.as_str());
            unknown("NODE_UNKNOWN", "node", name, names, "Only control nodes know all; is one connected?")
        })
    }

    /// A status that is a second old at most, or older where the leader does not answer.
    pub(super) async fn recent_status(&self) -> Arc<Status> {
        let fabric = self.fabric();
        let known = lock(&self.memory.status).clone();
        if let Some((at, status)) = &known
            && fabric.now().since(*at) < STATUS_AGE
        {
            return Arc::clone(status);
        }
        let fresh = if let Ok(found) = timeout(STATUS_WAIT, self.status()).await {
            found.into_inner()
        } else {
            // What this node knows by itself takes no wait.
            let (switch, rows) = (self.node.switch().map(|switch| &**switch), self.rows(status::ROWS_SECONDS));
            status::status(fabric, switch, None, &rows, &self.seen)
        };
        let fresh = Arc::new(fresh);
        *lock(&self.memory.status) = Some((fabric.now(), Arc::clone(&fresh)));
        fresh
    }

    pub(super) async fn vitals(&self) -> Vitals {
        let directory = &self.fabric().directory;
        vitals::vitals(
            &*self.recent_status().await,
            self.fabric().wall(),
            &self.rows(status::ROWS_SECONDS),
            directory.turns(),
            self.own_member(),
        )
    }

    /// Every actor as a row, at most a second old: several readers cost the node no more than one.
    pub(super) fn rows(&self, window: usize) -> Rows {
        let now = self.fabric().now();
        let mut kept = lock(&self.memory.rows);
        match kept.get(&window) {
            Some((at, rows)) if now.since(*at) < STATUS_AGE => Arc::clone(rows),
            _ => {
                let rows: Rows = self.fabric().directory.rows(window).into();
                // One list a window, of which there are three.
                kept.insert(window, (now, Arc::clone(&rows)));
                rows
            }
        }
    }

    fn own_member(&self) -> Option<OwnMember> {
        let status = self.consensus().ok()?.status();
        Some(OwnMember {
            role: serde_json::to_value(status.role).ok()?.as_str()?.to_lowercase(),
            term: status.term,
            voted_for: status.voted_for,
            log: status.last_log.unwrap_or_default(),
            committed: status.committed.unwrap_or_default(),
            applied: status.applied.unwrap_or_default(),
            snapshot: status.snapshot,
            purged: status.purged,
        })
    }

    /// A page by whichever control node answers, for nodes that are none; nothing if none does.
    pub(super) async fn of_control(&self, address: &str) -> Option<Answer> {
        for control in self.fabric().controls().into_keys() {
            if let Ok((status, body)) = self.look(control, address).await {
                return Some(client::parse(status, &body));
            }
        }
        None
    }

    /// The overview by whichever control node answers; for nodes that are none.
    async fn fleet_by_control(&self) -> Result<Overview, Refusal> {
        let fabric = self.fabric();
        let mut last = Refusal::new("CONTROL_UNREACHABLE", "no control node is connected", "");
        for control in fabric.controls().into_keys() {
            match look::from_node(fabric, control, "/api/console/overview".to_owned()).await {
                Ok((status, body)) => {
                    let parsed = client::parse(status, &body).ok();
                    if let Some(overview) = parsed.and_then(|output| serde_json::from_value(output.data).ok()) {
                        return Ok(overview);
                    }
                }
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    async fn overview(&self, carried: bool) -> Answer {
        let fabric = self.fabric();
        if self.consensus().is_ok() {
            self.hear_all().await;
        } else if !carried {
            match self.fleet_by_control().await {
                Ok(overview) => return Ok(data(overview)),
                Err(refusal) => {
                    self.memory.note(fabric.me, fabric.now(), Ok(self.vitals().await));
                    let warning = format!(
                        "no control node answers, so this is what {} knows by itself: {}",
                        fabric.name, refusal.message
                    );
                    return Ok(data(self.own_overview().await).warn([warning]));
                }
            }
        }
        Ok(data(self.own_overview().await))
    }

    /// A page that is made of the overview.
    async fn of_overview<T: Serialize>(&self, carried: bool, make: impl Fn(&Overview) -> T) -> Answer {
        let output = self.overview(carried).await?;
        let overview: Overview = serde_json::from_value(output.data).map_err(|error| {
            Failure::failed("PAGE_MALFORMED", format!("the overview is not what this release knows: {error}"))
        })?;
        Ok(data(make(&overview)).warn(output.warnings))
    }

    async fn own_overview(&self) -> Overview {
        let (status, fabric) = (self.recent_status().await, self.fabric());
        let members = match &fabric.consensus {
            Some(consensus) => {
                let state = consensus.state();
                let member = |(id, record): (&NodeId, &postroad_cluster::state::NodeRecord)| {
                    (*id, record.name.to_string(), record.roles.iter().copied().collect::<Vec<Role>>())
                };
                state.nodes.iter().map(member).collect()
            }
            None => vec![(status.node.id, status.node.name.to_string(), status.node.roles.clone())],
        };
        let now = fabric.now();
        let since = |what: &str| self.seen.since(what, status.now);
        overview::overview(Status::clone(&status), fabric.wall(), members, |node| self.memory.heard(node, now), since)
    }

    /// Asks every node for its vitals, if that was not done lately. Waits for those that answer at once; what comes later
    /// is there for the next page.
    async fn hear_all(&self) {
        let Ok(mut polled) = self.memory.polled.try_lock() else { return };
        let now = self.fabric().now();
        if polled.is_some_and(|at| now.since(at) < FLEET_AGE) {
            return;
        }
        *polled = Some(now);
        let own = self.vitals().await;
        self.memory.note(self.fabric().me, now, Ok(own));
        let Some(service) = self.node.service().cloned() else { return };
        let Some(consensus) = &self.fabric().consensus else { return };
        let state = consensus.state();
        lock(&self.memory.heard).retain(|node, _| state.nodes.contains_key(node));
        let mut asking = JoinSet::new();
        let permits = Arc::new(tokio::sync::Semaphore::new(ASKED_MAX));
        for node in state.nodes.keys().copied().filter(|node| *node != self.fabric().me) {
            let (service, permits) = (Arc::clone(&service), Arc::clone(&permits));
            asking.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let said = match service.look(node, "/api/console/vitals".to_owned()).await {
                    Ok((status, body)) => match client::parse(status, &body) {
                        Ok(output) => serde_json::from_value(output.data).map_err(|error| error.to_string()),
                        Err(failure) => Err(failure.message),
                    },
                    Err(refusal) => Err(refusal.message),
                };
                (node, said)
            });
        }
        let core = self.me.upgrade();
        let collect = async move {
            while let Some(Ok((node, said))) = asking.join_next().await {
                let Some(core) = &core else { return };
                core.memory.note(node, core.fabric().now(), said);
            }
        };
        // The rest goes on beside the page, each within its own wait.
        let mut collecting = tokio::spawn(collect);
        let _ = timeout(FLEET_WAIT, &mut collecting).await;
    }

    fn tree(&self, query: &Query) -> tree::Tree {
        let directory = &self.fabric().directory;
        let history = |path: &str| directory.view(path).map(|view| view.history).unwrap_or_default();
        tree::tree(self.fabric().name.as_str(), &self.rows(actors::window(query)), query, history)
    }

    fn actors(&self, query: &Query) -> actors::Actors {
        let directory = &self.fabric().directory;
        let seconds = |path: &str| directory.view(path).map(|view| view.seconds).unwrap_or_default();
        actors::actors(self.fabric().name.as_str(), &self.rows(actors::window(query)), query, seconds)
    }

    fn actor(&self, path: &str, query: &Query) -> Answer {
        let fabric = self.fabric();
        let directory = &fabric.directory;
        let view = directory.view(path).ok_or_else(|| self.no_actor(path))?;
        let state_at = |number| directory.state_at(path, number);
        let most = query.number("messages").map_or(actor::MESSAGES, |most| most as usize).clamp(1, actor::MESSAGES_MAX);
        let mut facts = Facts {
            published: directory.state(path),
            messages: directory.journal(path, most).unwrap_or_default(),
            known: directory.known(path),
            ..Facts::default()
        };
        let before = |number: u64| state_at(number.checked_sub(1)?)?.ok();
        if let Some(number) = query.number("at") {
            let state = state_at(number).unwrap_or(Ok(Value::Null)).map_err(|error| error.to_string());
            facts.past = Some((number, state, before(number)));
            // The message of that moment may be older than those that are listed.
            if !facts.messages.iter().any(|message| message.number == number) {
                facts.messages = directory.journal(path, actor::MESSAGES_MAX).unwrap_or_default();
                let at = facts.messages.iter().position(|message| message.number >= number).unwrap_or(0);
                let first = at.saturating_sub(most / 2);
                facts.messages = facts.messages.split_off(first);
                facts.messages.truncate(most);
            }
        } else if let Some(after) = facts.published.as_ref().and_then(|published| published.after) {
            facts.before = before(after);
        }
        Ok(data(actor::actor(fabric.name.as_str(), fabric.clock.wall(), view, facts)))
    }

    fn recording(&self, path: &str, query: &Query) -> Answer {
        let directory = &self.fabric().directory;
        let last = directory.known(path).map(|(_, last)| last).ok_or_else(|| self.no_actor(path))?;
        match directory.recording(path, query.number("at").unwrap_or(last)) {
            Some(Ok(recording)) => Ok(data(recording)),
            Some(Err(error)) => Err(Failure::refused(error.code(), error.to_string())),
            None => Err(self.no_actor(path)),
        }
    }

    pub(super) fn no_actor(&self, path: &str) -> Failure {
        let rows = self.fabric().directory.rows(1);
        let paths = rows.iter().map(|row| &*row.path);
        let hint = format!("See them all: postroad top; others are on other nodes than {}", self.fabric().name);
        unknown("ACTOR_UNKNOWN", "actor", path, paths, &hint)
    }
}
