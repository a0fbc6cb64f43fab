//! The alarms of the whole fleet in one list: what the node that is asked knows, and what others say of themselves. An
//! operator who looks at one node must hear of a stuck actor on any other.

use postroad_actors::status::{Health, Problem};
use postroad_cluster::id::NodeId;

use super::{overview::Card, vitals::Vitals};

/// What is said of every node by the look at the whole fleet.
const SAID_OF_ALL: &str = "LEASE_ENDING";

/// The problems of the node `me` and those that other nodes tell of themselves. What several tell alike is one alarm, and
/// what follows from one of the fleet is none.
pub fn alarms(mut known: Vec<Problem>, cards: &[Card], me: NodeId) -> Vec<Problem> {
    let fleet: Vec<Problem> = known.iter().filter(|problem| !problem.own).cloned().collect();
    known.retain(|problem| !problem.own || problem.code == SAID_OF_ALL || !is_said(problem, &fleet));
    let mut found: Vec<(Problem, Vec<&str>)> = Vec::new();
    for card in cards.iter().filter(|card| card.id != me && !card.silent()) {
        let told = card.heard.vitals.iter().flat_map(|vitals| &vitals.alarms);
        for alarm in told.filter(|alarm| !is_said(alarm, &known)) {
            let same = |(it, _): &&mut (Problem, Vec<&str>)| it.code == alarm.code && it.about == alarm.about;
            match found.iter_mut().find(same) {
                Some((first, nodes)) => {
                    first.since = first.since.min(alarm.since);
                    nodes.push(&card.name);
                }
                None => found.push((alarm.clone(), vec![&card.name])),
            }
        }
    }
    known.extend(found.into_iter().map(|(alarm, nodes)| of(alarm, &nodes)));
    known
}

/// How a node stands by its own alarms, without those that follow from what is `known` of the fleet.
pub fn stands(vitals: Option<&Vitals>, known: &[Problem]) -> Health {
    let own = vitals.into_iter().flat_map(|vitals| &vitals.alarms);
    own.filter(|alarm| alarm.code == SAID_OF_ALL || !is_said(alarm, known))
        .map(|alarm| alarm.health)
        .max()
        .unwrap_or_default()
}

/// Whether the node that is asked says as much: of the same thing, or of what leads to it.
fn is_said(alarm: &Problem, known: &[Problem]) -> bool {
    let by = |it: &Problem| it.code == alarm.code || (alarm.code == "SESSION_DOWN" && it.code.starts_with("RELAY_"));
    alarm.code == SAID_OF_ALL || known.iter().any(|it| !it.own && it.about == alarm.about && by(it))
}

fn of(alarm: Problem, nodes: &[&str]) -> Problem {
    let Some((first, others)) = nodes.split_first() else { return alarm };
    let others = match others {
        [] => String::new(),
        [one] => format!("; so does {one}"),
        others => format!("; so do {}", others.join(", ")),
    };
    // Commands that look inside are told where.
    let on = if alarm.next.contains("postroad actor ") { format!(" --on {first}") } else { String::new() };
    Problem {
        about: format!("{} on {}", alarm.about, nodes.join(", ")),
        what: format!("{first} says: {}{others}", alarm.what),
        next: format!("{}{on}", alarm.next),
        ..alarm
    }
}

#[cfg(test)]
mod tests {
    use postroad_cluster::time::WallTime;

    use super::*;
    use crate::console::model::lints::tests::card;

    fn alarm(code: &str, about: &str, what: &str, since: u64, own: bool) -> Problem {
        Problem {
            health: Health::AtRisk,
            code: code.to_owned(),
            about: about.to_owned(),
            since: WallTime(since),
            what: what.to_owned(),
            next: format!("See what it does: postroad {about}"),
            own,
        }
    }

    fn node(id: u64, name: &str, alarms: Vec<Problem>) -> Card {
        let mut card = card(name, 0);
        card.id = NodeId(id);
        card.heard.vitals.as_mut().unwrap().alarms = alarms;
        card
    }

    #[test]
    fn what_is_wrong_on_any_node_is_told_with_where() {
        let stuck =
            alarm("ACTOR_STUCK", "actor node/self", "the actor node/self has been in one turn for 9 s", 5, true);
        let later = Problem { since: WallTime(3), ..stuck.clone() };
        let cards = [
            node(1, "ams", vec![stuck.clone()]),
            node(2, "web", vec![stuck.clone(), alarm("SESSION_DOWN", "relay fra", "no session", 1, true)]),
            node(3, "db", vec![later, alarm("LEASE_ENDING", "policy", "it ends", 1, true)]),
        ];
        let known = vec![alarm("RELAY_UNREACHABLE", "relay fra", "fra is not reached", 1, false), stuck.clone()];
        let found = alarms(known.clone(), &cards, NodeId(1));
        assert_eq!(found[..2], known, "its own are as they were");
        let mut more = known.clone();
        more.insert(1, alarm("SESSION_DOWN", "relay fra", "no session", 1, true));
        assert_eq!(alarms(more, &cards, NodeId(1)), found, "that it has no session follows");
        let [told] = &found[2..] else { panic!("{found:?}") };
        assert_eq!(told.about, "actor node/self on web, db");
        assert_eq!(told.what, "web says: the actor node/self has been in one turn for 9 s; so does db");
        assert_eq!(
            (told.next.as_str(), told.since),
            ("See what it does: postroad actor node/self --on web", WallTime(3))
        );
        let standing = |card: &Card| stands(card.heard.vitals.as_ref(), &known);
        assert_eq!(cards.each_ref().map(standing), [Health::AtRisk; 3]);
        let only_follows = node(4, "par", vec![alarm("SESSION_DOWN", "relay fra", "no session", 1, true)]);
        assert_eq!((standing(&only_follows), stands(None, &known)), (Health::Well, Health::Well));
        let mut silent = cards;
        for card in &mut silent {
            card.heard.silence = Some("gone".to_owned());
        }
        assert_eq!(
            alarms(known.clone(), &silent, NodeId(1)),
            known,
            "what a silent node said is over for all one knows"
        );
    }
}
