//! What must always hold, each property once: asserts, tests and simulations ask these functions.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    balancer::{self, database::settings::check_node_id, limits::BALANCERS_MAX},
    behavior::ReplyId,
    command::implied_roles,
    id::Role,
    limits::{AUDIT_LINES_MAX, LINKS_MAX, NODES_MAX, SPREAD_MAX, TOKENS_REMEMBERED_MAX},
    relay::{Effect, Relay},
    state::{
        State,
        address::{host_and_port, listen_address, listens_clash},
    },
};

fn holds(condition: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(broken()) }
}

/// Whether nothing in the agreed state contradicts anything else in it.
///
/// # Errors
/// The first contradiction, for people.
pub fn state_consistent(state: &State) -> Result<(), String> {
    nodes_consistent(state)?;
    links_consistent(state)?;
    balancers_consistent(state)?;
    for (token, record) in &state.tokens {
        holds(record.used.is_none() || record.revoked.is_none(), || format!("{token} is both used and revoked"))?;
        let joined = record.used.as_ref().is_none_or(|used| used.node <= state.last_node);
        holds(joined, || format!("{token} was used by a node that never was"))?;
    }
    holds(state.tokens.len() <= TOKENS_REMEMBERED_MAX, || "too many tokens are remembered".to_owned())?;
    for (name, setting) in &state.settings {
        let (known, value) = setting.describe();
        let sound = known.name == name && setting.is_valid() && value != known.default;
        holds(sound, || format!("setting {name} is out of bounds, misnamed or its default"))?;
    }
    holds(state.audit.len() <= AUDIT_LINES_MAX, || "the audit has too many lines".to_owned())?;
    let ordered = state.audit.windows(2).all(|pair| pair[0].version < pair[1].version && pair[0].at <= pair[1].at);
    holds(ordered, || "the audit is out of order".to_owned())?;
    let last = state.audit.last().is_none_or(|line| line.version <= state.version && line.at <= state.time);
    holds(last && state.grants_issued <= state.time, || "something is newer than the state".to_owned())
}

fn nodes_consistent(state: &State) -> Result<(), String> {
    let nodes = &state.nodes;
    holds(nodes.len() <= NODES_MAX, || "there are too many nodes".to_owned())?;
    let names: BTreeSet<_> = nodes.values().map(|record| &record.name).collect();
    let keys: BTreeSet<_> = nodes.values().map(|record| record.public).collect();
    holds(names.len() == nodes.len() && keys.len() == nodes.len(), || "two nodes share a name or key".to_owned())?;
    let mut places = BTreeSet::new();
    for (node, record) in nodes {
        holds(*node <= state.last_node, || format!("{node} is beyond {}", state.last_node))?;
        holds(!state.revoked_nodes.contains(node), || format!("{node} is revoked and still there"))?;
        holds(implied_roles(&record.roles) == record.roles, || format!("{node} lacks an implied role"))?;
        let relay = record.roles.contains(&Role::Relay);
        holds(!relay || record.advertised.is_some(), || format!("relay {node} advertises nothing"))?;
        holds(relay || !(record.ready || record.drain.is_some()), || format!("{node} is ready without being a relay"))?;
        if let Some(text) = &record.advertised {
            let place = host_and_port("the address", text).map_err(|refusal| refusal.to_string())?;
            holds(places.insert(place), || format!("two nodes advertise {text}"))?;
        }
    }
    for node in state.issuers.keys() {
        let control = nodes.get(node).is_some_and(|record| record.roles.contains(&Role::Control));
        holds(control, || format!("{node} signs and is no control node"))?;
    }
    holds(state.cluster.is_none() || !state.issuers.is_empty(), || "nobody can sign".to_owned())
}

fn links_consistent(state: &State) -> Result<(), String> {
    holds(state.links.len() <= LINKS_MAX, || "there are too many links".to_owned())?;
    let names: BTreeSet<_> = state.links.values().map(|record| &record.name).collect();
    holds(names.len() == state.links.len(), || "two links share a name".to_owned())?;
    let mut listens: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (link, record) in &state.links {
        let spec = &record.spec;
        holds(*link <= state.last_link, || format!("{link} is beyond {}", state.last_link))?;
        holds(!spec.consumers.is_empty(), || format!("{link} has no consumer"))?;
        holds(!spec.consumers.contains_key(&spec.target), || format!("{link} leads from a node to itself"))?;
        for node in spec.consumers.keys().chain([&spec.target]) {
            let there = state.nodes.get(node).is_some_and(|record| record.roles.contains(&Role::Node));
            holds(there, || format!("{link} has the end {node}, which is no node"))?;
        }
        holds((1..=SPREAD_MAX).contains(&spec.spread), || format!("{link} has the spread {}", spec.spread))?;
        host_and_port("the target address", &spec.target_address).map_err(|refusal| refusal.to_string())?;
        for (consumer, text) in &spec.consumers {
            let address = listen_address(text).map_err(|refusal| refusal.to_string())?;
            let taken = listens.entry(*consumer).or_default();
            holds(!taken.iter().any(|other| listens_clash(*other, address)), || {
                format!("{consumer} listens twice at {text}")
            })?;
            taken.push(address);
        }
    }
    Ok(())
}

fn balancers_consistent(state: &State) -> Result<(), String> {
    holds(state.balancers.len() <= BALANCERS_MAX, || "there are too many balancers".to_owned())?;
    for (name, record) in &state.balancers {
        let spec = &record.spec;
        let led = (1..=balancer::limits::NODES_MAX).contains(&spec.databases.len());
        holds(led && !spec.on.is_empty(), || format!("balancer {name} leads nowhere, or nobody runs it"))?;
        for (database, address) in &spec.databases {
            check_node_id(database).map_err(|wrong| format!("balancer {name}: {database:?} {wrong}"))?;
            host_and_port("the database node's address", address).map_err(|refusal| refusal.to_string())?;
        }
        for node in &spec.on {
            let there = state.nodes.get(node).is_some_and(|record| record.roles.contains(&Role::Node));
            holds(there, || format!("balancer {name} runs on {node}, which is no node"))?;
        }
        holds(record.changed <= state.version, || format!("balancer {name} is newer than the state"))?;
    }
    Ok(())
}

/// Whether a relay's sessions are one a node, each of a connection that is there and was greeted (R17).
///
/// # Errors
/// The first session that is not so.
pub fn sessions_unique(relay: &Relay) -> Result<(), String> {
    for (node, connection) in &relay.sessions {
        let sound =
            relay.connections.get(connection).is_some_and(|known| known.node == *node && known.session.is_some());
        holds(sound, || format!("the session of {node} is of no connection of it"))?;
    }
    for (connection, known) in &relay.connections {
        let sound = known.session.is_none() || relay.sessions.get(&known.node) == Some(connection);
        holds(sound, || format!("{} has a second session, connection {connection}", known.node))?;
    }
    Ok(())
}

/// Whether every registration is of a node with a session, or of one that said goodbye, and of a live route.
///
/// # Errors
/// The first registration that is not so.
pub fn registrations_live(relay: &Relay) -> Result<(), String> {
    for (link, known) in &relay.registrations {
        let there = relay.sessions.contains_key(&known.node) == known.gone_until.is_none();
        holds(there, || format!("{link} is registered by {}, which is not here", known.node))?;
        let route = relay.policy.as_ref().and_then(|held| held.policy.routes.get(link));
        holds(route.is_some_and(|route| route.target == known.node), || format!("{link} is registered without route"))?;
    }
    Ok(())
}

/// Whether no registration went back to an older generation of the same node (R5, RP-31).
///
/// # Errors
/// The first registration that did.
pub fn registrations_guarded(before: &Relay, after: &Relay) -> Result<(), String> {
    for (link, known) in &after.registrations {
        let older = before.registrations.get(link).filter(|older| older.node == known.node);
        holds(older.is_none_or(|older| older.generation <= known.generation), || {
            format!("{link} went back to generation {}", known.generation)
        })?;
    }
    Ok(())
}

/// Whether every channel joins two live sessions whose nodes a live route joins, by tokens that are all different.
///
/// # Errors
/// The first channel that does not.
pub fn channels_joined(relay: &Relay) -> Result<(), String> {
    let mut tokens = BTreeSet::new();
    for (key, channel) in &relay.channels {
        let joined = relay.policy.as_ref().is_some_and(|held| held.joins(key.low, key.high));
        holds(joined, || format!("a channel joins {} and {}, but no link does", key.low, key.high))?;
        for end in &channel.ends {
            let live = relay.sessions.get(&end.node) == Some(&end.connection);
            holds(live, || format!("a channel of {} outlives its session", end.node))?;
            holds(tokens.insert(end.token_out) && tokens.insert(end.token_in), || "two ends share a token".to_owned())?;
        }
    }
    Ok(())
}

/// Everything that must hold of a relay after each event.
///
/// # Errors
/// The first that does not.
pub fn relay_consistent(relay: &Relay) -> Result<(), String> {
    sessions_unique(relay)?;
    registrations_live(relay)?;
    channels_joined(relay)
}

/// Whether these requests were answered exactly once by these effects, but for those that the relay still owes.
///
/// # Errors
/// The first request that was answered twice, never, or although it was not asked.
pub fn replies_once<'a>(
    asked: &BTreeSet<ReplyId>,
    effects: impl IntoIterator<Item = &'a Effect>,
    relay: &Relay,
) -> Result<(), String> {
    let mut open = asked.clone();
    for effect in effects {
        if let Effect::Reply { reply, .. } = effect {
            holds(open.remove(reply), || format!("{reply:?} was answered twice or never asked"))?;
        }
    }
    let owed = relay.owed();
    holds(open == owed, || format!("{open:?} were not answered, but the relay owes {owed:?}"))
}
