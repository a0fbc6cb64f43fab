//! The first page: is the fleet well, what may it still lose, what is wrong, and who is in it.

use postroad_actors::status::{CanLose, Health, Problem, Status, control::ControlView, local::Flows, relays::Relays};
use postroad_cluster::{
    id::{NodeId, Role},
    time::WallTime,
};
use serde::{Deserialize, Serialize};

use super::{lints::lints, vitals::Vitals};

/// What a node said last, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// What it said; nothing if it never did.
    pub vitals: Option<Vitals>,
    /// How long ago, in milliseconds.
    pub age_ms: Option<u64>,
    /// Why the last question got no answer, if it got none.
    pub silence: Option<String>,
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

/// The page of the node with this status, which heard `heard` of others and has seen things `since` then.
pub fn overview(
    status: Status,
    members: Vec<Member>,
    heard: impl Fn(NodeId) -> Heard,
    since: impl Fn(&str) -> WallTime,
) -> Overview {
    let leader = status.control.as_ref().and_then(|control| control.leader);
    let mut cards: Vec<Card> = members
        .into_iter()
        .map(|(id, name, roles)| Card { id, name, roles, leads: Some(id) == leader, heard: heard(id) })
        .collect();
    cards.sort_by_key(|card| (rank(&card.roles), card.id));
    let mut problems = status.problems;
    let known: Vec<(String, String)> = problems.iter().map(|it| (it.code.clone(), it.about.clone())).collect();
    let seen = lints(&cards, &status.relays, status.now, &since).into_iter();
    problems.extend(seen.filter(|lint| !known.contains(&(lint.code.clone(), lint.about.clone()))));
    problems.sort_by(|one, other| other.health.cmp(&one.health).then(one.since.cmp(&other.since)));
    let health = problems.iter().map(|problem| problem.health).max().unwrap_or_default();
    Overview {
        cluster: status.cluster.to_string(),
        node: status.node.name.to_string(),
        now: status.now,
        health,
        sentence: sentence(health, status.can_lose, &problems),
        can_lose: status.can_lose,
        problems,
        control: status.control,
        relays: status.relays,
        links: status.link_count,
        flows: status.flows,
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
