//! The first page: is the fleet well, what may it still lose, what is wrong, and who is in it.

use postroad_actors::status::{
    CanLose, Health, Problem, Status,
    control::ControlView,
    flows::{Flows, Stall},
    relays::Relays,
};
use postroad_cluster::{
    id::{NodeId, Role},
    time::WallTime,
};
use serde::{Deserialize, Serialize};

use super::{alarms, lints::lints, vitals::Vitals};

/// What a node said last, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// What it said; nothing if it never did.
    pub vitals: Option<Vitals>,
    /// How long ago, in milliseconds.
    pub age_ms: Option<u64>,
    /// Why the last question got no answer, if it got none.
    pub silence: Option<String>,
    /// Bytes a second that its relay forwarded between the last two answers.
    #[serde(default)]
    pub forwards: Option<u64>,
}

impl Heard {
    /// How far its clock is ahead of this node's, which shows `now`, in milliseconds, as far as the way lets one see.
    pub fn clock_ahead_ms(&self, now: WallTime) -> Option<i64> {
        let vitals = self.vitals.as_ref()?;
        // Both clocks have gone on since it spoke.
        let then = now.0.cast_signed() - self.age_ms?.cast_signed();
        Some(vitals.clock.unwrap_or(vitals.now).0.cast_signed() - then)
    }
}

/// A member of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<Role>,
    /// Whether it leads the control group.
    pub leads: bool,
    /// What it said last.
    pub heard: Heard,
    /// How it stands by what is wrong with itself. What follows from a trouble of the fleet, such as a dead relay, is told
    /// once and not of every node.
    #[serde(default)]
    pub stands: Health,
}

impl Card {
    /// Whether it has answered lately, as far as it was asked.
    pub fn silent(&self) -> bool {
        self.heard.silence.is_some()
    }
}

/// The page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// The cluster.
    pub cluster: String,
    /// The node that says this.
    pub node: String,
    /// When.
    pub now: WallTime,
    /// The worst of the problems.
    pub health: Health,
    /// Health in one sentence.
    pub sentence: String,
    /// What may still be lost.
    pub can_lose: CanLose,
    /// What is wrong, worst first.
    pub problems: Vec<Problem>,
    /// The control group, where it is known.
    pub control: Option<ControlView>,
    /// The relays.
    pub relays: Relays,
    /// How many links there are.
    pub links: usize,
    /// Flows.
    pub flows: Flows,
    /// The fleet.
    pub cards: Vec<Card>,
}

impl Overview {
    /// Why tunnels were refused at this node, as end, reason and count.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let ends = self.flows.refused_by_reason.iter();
        ends.flat_map(|(end, reasons)| reasons.iter().map(move |(code, count)| (end.as_str(), code.as_str(), *count)))
    }
}

/// A bound of stalls in words: what half or nearly all of them stayed within.
pub fn within(stall: &Stall, percent: u64) -> String {
    stall.share_ms(percent).map_or_else(|| "over 60 s".to_owned(), |ms| format!("{ms} ms"))
}

/// Small numbers as words.
fn words(count: u64) -> String {
    const WORDS: [&str; 10] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    WORDS.get(count as usize).map_or_else(|| count.to_string(), |word| (*word).to_owned())
}

fn plural(count: u64, one: &str) -> String {
    format!("{} more {one}{}", words(count), if count == 1 { "" } else { "s" })
}

/// Health in one sentence: how it stands, what may still be lost, and what is worst.
pub fn sentence(health: Health, can_lose: CanLose, problems: &[Problem]) -> String {
    let relays = plural(can_lose.relays, "relay");
    let lose = match can_lose.controls {
        Some(0) if can_lose.relays == 0 => "cannot lose any control node or relay".to_owned(),
        Some(controls) => format!("can lose {} and {relays}", plural(controls, "control node")),
        None if can_lose.relays == 0 => "cannot lose any relay".to_owned(),
        None => format!("can lose {relays}"),
    };
    match problems {
        [] => format!("{}; {lose}", health.word()),
        [worst] => format!("{}: {}; {lose}", health.word(), worst.what),
        [worst, more @ ..] => {
            format!("{}: {}, and {} more; {lose}", health.word(), worst.what, words(more.len() as u64))
        }
    }
}

/// A member's number, name and roles.
pub type Member = (NodeId, String, Vec<Role>);

/// The page of the node with this status, whose clock shows `now`, which heard `heard` of others and has seen things
/// `since` then.
pub fn overview(
    status: Status,
    now: WallTime,
    members: Vec<Member>,
    heard: impl Fn(NodeId) -> Heard,
    since: impl Fn(&str) -> WallTime,
) -> Overview {
    let leader = status.control.as_ref().and_then(|control| control.leader);
    let mut cards: Vec<Card> = members
        .into_iter()
        .map(|(id, name, roles)| {
            let (heard, leads) = (heard(id), Some(id) == leader);
            let stands = alarms::stands(heard.vitals.as_ref(), &status.problems);
            Card { id, name, roles, leads, heard, stands }
        })
        .collect();
    cards.sort_by_key(|card| (rank(&card.roles), card.id));
    let mut problems = alarms::alarms(status.problems, &cards, status.node.id);
    let own = format!("node {}", status.node.name);
    let known: Vec<(String, String)> = problems.iter().map(|it| (it.code.clone(), it.about.clone())).collect();
    let is_known = |lint: &Problem| {
        known.iter().any(|(code, about)| *code == lint.code && (*about == lint.about || lint.about == own))
    };
    let seen = lints(&cards, &status.relays, now, &since).into_iter();
    problems.extend(seen.filter(|lint| !is_known(lint)));
    problems.sort_by(|one, other| other.health.cmp(&one.health).then(one.since.cmp(&other.since)));
    let health = problems.iter().map(|problem| problem.health).max().unwrap_or_default();
    Overview {
        cluster: status.cluster.to_string(),
        node: status.node.name.to_string(),
        now,
        health,
        sentence: sentence(health, status.can_lose, &problems),
        can_lose: status.can_lose,
        problems,
        control: status.control,
        relays: status.relays,
        links: status.link_count,
        flows: status.flows.clone(),
        cards,
    }
}

/// Control nodes first, then relays, then the others.
fn rank(roles: &[Role]) -> u8 {
    if roles.contains(&Role::Control) { 0 } else { u8::from(!roles.contains(&Role::Relay)) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_answers_whether_it_is_safe() {
        let lose = |controls, relays| CanLose { controls, relays };
        assert_eq!(
            sentence(Health::Well, lose(Some(1), 2), &[]),
            "well; can lose one more control node and two more relays"
        );
        assert_eq!(sentence(Health::Well, lose(None, 1), &[]), "well; can lose one more relay");
        let problem = Problem {
            health: Health::AtRisk,
            code: "X".into(),
            about: "relay par".into(),
            since: WallTime(0),
            what: "relay par is not reached".into(),
            next: String::new(),
            own: false,
        };
        assert_eq!(
            sentence(Health::AtRisk, lose(Some(0), 0), std::slice::from_ref(&problem)),
            "at risk: relay par is not reached; cannot lose any control node or relay"
        );
        let three = vec![problem.clone(), problem.clone(), problem];
        let text = sentence(Health::AtRisk, lose(Some(0), 3), &three);
        assert!(text.ends_with("and two more; can lose no more control nodes and three more relays"), "{text}");
    }
}
