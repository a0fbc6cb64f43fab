//! The handlers of `/api/console/trace` and of what it asks each node for: the steps of one request, from every node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use postroad_cluster::{id::NodeId, limits::TRACE_SHOWN_MAX, time::Span, trace::TraceId};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    super::{Answer, Core, client, route::data},
    ASKED_MAX,
};
use crate::{
    console::{
        model::trace::{self, Part, Silent},
        query::Query,
    },
    errors::Failure,
};

/// How long the page waits for all nodes together: those that are there answer within milliseconds.
const STEPS_WAIT: Duration = Duration::from_millis(700);

/// How old a page may be while several look.
const TRACE_AGE: Span = Span::from_millis(900);

fn wanted(id: &str) -> Result<TraceId, Failure> {
    id.trim().to_lowercase().parse().map_err(|error: String| {
        Failure::wrong_use(error).hint("Messages show theirs: postroad actor PATH; changes do with --json")
    })
}

impl Core {
    /// What this node knows of a trace.
    pub(super) fn steps(&self, query: &Query) -> Answer {
        let trace = wanted(query.get("trace"))?;
        Ok(data(self.own_part(trace)))
    }

    fn own_part(&self, trace: TraceId) -> Part {
        let fabric = self.fabric();
        let (turns, mut times) = fabric.directory.traced(trace, TRACE_SHOWN_MAX + 1);
        times.note(fabric.now(), fabric.wall());
        trace::part(fabric.name.as_str(), &turns, &fabric.steps.of(trace), &times, TRACE_SHOWN_MAX)
    }

    /// The page: of the whole fleet on a control node; others ask one, and know their own steps without.
    pub(super) async fn trace(&self, id: &str, carried: bool) -> Answer {
        let trace = wanted(id)?;
        let address = format!("/api/console/trace/{trace}");
        let mut warnings = Vec::new();
        if self.consensus().is_err() && !carried {
            if let Some(answer) = self.of_control(&address).await {
                return answer;
            }
            let name = &self.fabric().name;
            warnings.push(format!("no control node answers, so this is what {name} knows by itself"));
        }
        let now = self.fabric().now();
        if let Some((at, page)) = self.memory.recall(&address)
            && now.since(at) < TRACE_AGE
        {
            return Ok(data(page));
        }
        let (parts, silent, names) = self.all_parts(trace).await;
        let page = trace::trace(trace, self.fabric().wall(), parts, silent, &names);
        let output = data(page).warn(warnings);
        self.memory.remember(&address, now, &output.data);
        Ok(output)
    }

    /// The parts of every node, as far as they answer in time; the names of nodes by number.
    async fn all_parts(&self, trace: TraceId) -> (Vec<(String, Part)>, Vec<Silent>, BTreeMap<String, String>) {
        let fabric = self.fabric();
        let mut parts = vec![(fabric.name.to_string(), self.own_part(trace))];
        let mut names = BTreeMap::from([(fabric.me.to_string(), fabric.name.to_string())]);
        let (Some(service), Ok(consensus)) = (self.node.service(), self.consensus()) else {
            return (parts, Vec::new(), names);
        };
        let state = consensus.state();
        names.extend(state.nodes.iter().map(|(id, record)| (id.to_string(), record.name.to_string())));
        let mut missing: BTreeMap<NodeId, String> =
            state.nodes.iter().map(|(id, record)| (*id, record.name.to_string())).collect();
        missing.remove(&fabric.me);
        let (mut asking, permits) = (JoinSet::new(), Arc::new(Semaphore::new(ASKED_MAX)));
        let address = Query::default().with("trace", &trace.to_string()).address("/api/console/steps");
        for id in missing.keys().copied() {
            let (service, permits, address) = (Arc::clone(service), Arc::clone(&permits), address.clone());
            asking.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let seen = service.look(id, address).await.map_err(|refusal| refusal.message);
                let part = seen.and_then(|(status, body)| {
                    let output = client::parse(status, &body).map_err(|failure| failure.message)?;
                    serde_json::from_value::<Part>(output.data).map_err(|error| error.to_string())
                });
                (id, part)
            });
        }
        let until = Instant::now() + STEPS_WAIT;
        let mut silent = Vec::new();
        while let Ok(Some(Ok((id, part)))) = timeout_at(until, asking.join_next()).await {
            let Some(node) = missing.remove(&id) else { continue };
            match part {
                Ok(part) => parts.push((node, part)),
                Err(reason) => silent.push(Silent { node, reason }),
            }
        }
        let late = format!("no answer within {} ms", STEPS_WAIT.as_millis());
        silent.extend(missing.into_values().map(|node| Silent { node, reason: late.clone() }));
        silent.sort_by(|one, other| one.node.cmp(&other.node));
        (parts, silent, names)
    }
}
