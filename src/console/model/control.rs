//! The control group and what it has handed out: who leads and since which cause, who voted for whom, how far the log
//! has come everywhere, which policy each node works by, and which relay somebody does not reach.

use postroad_actors::status::control::ControlView;
use postroad_cluster::{id::NodeId, time::WallTime};
use serde::{Deserialize, Serialize};

use super::overview::{Card, Overview};

/// A member of the group by its own word, which travels with its vitals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnMember {
    /// `leader`, `follower`, `candidate`, `learner` or `stopped`.
    pub role: String,
    /// The term that it knows.
    pub term: u64,
    /// The node that it gave its vote to in that term.
    pub voted_for: NodeId,
    /// The end of its log.
    pub log: u64,
    /// How far it knows the log to be committed.
    pub committed: u64,
    /// How far it has applied it.
    pub applied: u64,
    /// The last entry in its snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that it has removed from its log.
    pub purged: Option<u64>,
}

/// A term as one node has seen it begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// Its number.
    pub term: u64,
    /// Who led.
    pub leader: Option<String>,
    /// Why it began, where the node saw that.
    pub cause: Option<String>,
    /// When the node saw it first.
    pub since: WallTime,
}

/// A member of the group, by the leader's word and by its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voter {
    /// Its name.
    pub name: String,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it votes.
    pub votes: bool,
    /// Whether the authority has certified it.
    pub certified: bool,
    /// Whether it answers the leader.
    pub live: Option<bool>,
    /// How far its log matches the leader's, as the leader knows.
    pub matched: Option<u64>,
    /// Entries that it is behind.
    pub lag_entries: Option<u64>,
    /// How long ago it answered, in milliseconds.
    pub silent_ms: Option<u64>,
    /// By its own word.
    pub own: Option<OwnMember>,
    /// The name of the node that it voted for.
    pub voted_for: Option<String>,
    /// How old its own word is, in milliseconds.
    pub age_ms: Option<u64>,
}

/// The policy that a node works by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The node.
    pub node: String,
    /// The version of its snapshot.
    pub version: Option<u64>,
    /// Versions behind the newest that any node has.
    pub behind: Option<u64>,
    /// When that was issued.
    pub issued: Option<WallTime>,
    /// When its lease ends.
    pub lease_ends: Option<WallTime>,
    /// When its certificate ends.
    pub certificate_expires: WallTime,
    /// When that is renewed.
    pub certificate_renews: WallTime,
    /// Why the last renewal failed.
    pub certificate_failure: Option<String>,
    /// How far its clock is from this node's, in milliseconds, as far as the way lets one see.
    pub clock_ms: i64,
    /// Whether it is silent.
    pub silent: bool,
}

/// A relay that somebody does not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// The relay.
    pub relay: String,
    /// Who reaches it, with the round trip in microseconds.
    pub reached_by: Vec<(String, u64)>,
    /// Who does not, with the reason.
    pub missed_by: Vec<(String, String)>,
    /// Whether the group takes it for unreachable.
    pub believed: bool,
}

/// The page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The cluster.
    pub cluster: String,
    /// When.
    pub now: WallTime,
    /// The group, where it is known.
    pub view: Option<ControlView>,
    /// Its members.
    pub voters: Vec<Voter>,
    /// Terms as the node that was asked has seen them, newest first.
    pub terms: Vec<Term>,
    /// Policies, node by node.
    pub policies: Vec<Policy>,
    /// Relays that somebody does not reach.
    pub suspicions: Vec<Suspicion>,
}

/// The page of a fleet.
pub fn group(overview: &Overview, terms: Vec<Term>) -> Group {
    let name = |id: NodeId| {
        overview.cards.iter().find(|card| card.id == id).map_or_else(|| id.to_string(), |card| card.name.clone())
    };
    let view = overview.control.clone();
    let leader_log = view.as_ref().map(|view| view.log);
    let voters = view.iter().flat_map(|view| &view.members).map(|member| {
        let card = overview.cards.iter().find(|card| card.id == member.id);
        let own = card.and_then(|card| card.heard.vitals.as_ref()?.member.clone());
        Voter {
            name: member.name.clone(),
            leads: view.as_ref().and_then(|view| view.leader) == Some(member.id),
            votes: member.votes,
            certified: member.certified,
            live: member.live,
            matched: leader_log.zip(member.lag_entries).map(|(log, lag)| log.saturating_sub(lag)),
            lag_entries: member.lag_entries,
            silent_ms: member.silent_ms,
            voted_for: own.as_ref().map(|own| name(own.voted_for)),
            own,
            age_ms: card.and_then(|card| card.heard.age_ms),
        }
    });
    let voters = voters.collect();
    let newest = overview.cards.iter().filter_map(|card| card.heard.vitals.as_ref()?.watch.snapshot).max();
    let policies = overview.cards.iter().filter_map(|card| policy(card, newest, overview.now)).collect();
    let suspicions = overview.relays.list.iter().filter(|relay| !relay.missed_by.is_empty()).map(|relay| Suspicion {
        relay: relay.name.clone(),
        reached_by: relay.reached_by.iter().map(|(node, us)| (node.clone(), *us)).collect(),
        missed_by: relay.missed_by.iter().map(|(node, why)| (node.clone(), why.clone())).collect(),
        believed: relay.state == postroad_actors::status::relays::Standing::Unreachable,
    });
    let suspicions = suspicions.collect();
    Group { cluster: overview.cluster.clone(), now: overview.now, view, voters, terms, policies, suspicions }
}

fn policy(card: &Card, newest: Option<u64>, now: WallTime) -> Option<Policy> {
    let vitals = card.heard.vitals.as_ref()?;
    let watch = &vitals.watch;
    Some(Policy {
        node: card.name.clone(),
        version: watch.snapshot,
        behind: newest.zip(watch.snapshot).map(|(newest, own)| newest.saturating_sub(own)),
        issued: watch.snapshot_issued,
        lease_ends: watch.lease_ends,
        certificate_expires: watch.certificate_expires,
        certificate_renews: watch.certificate_renews,
        certificate_failure: watch.certificate_failure.clone(),
        clock_ms: card.heard.clock_ahead_ms(now).unwrap_or_default(),
        silent: card.silent(),
    })
}
