//! The pages of the whole fleet as grids.

use std::time::Duration;

use postroad_actors::status::{Health, control::ControlView, relays::Standing};
use postroad_cluster::time::WallTime;

use super::{Grid, Row, Target, Tone, blocks};
use crate::{
    cli::relative,
    console::{
        figures::{figure, nanoseconds, percent},
        model::{
            control::Group,
            overview::{Card, Overview, within},
            why::{Choice, Outcome, Why},
        },
    },
};

const fn health(health: Health) -> Tone {
    match health {
        Health::Well => Tone::Good,
        Health::AtRisk => Tone::Warn,
        Health::Degraded | Health::Failing => Tone::Bad,
    }
}

/// The overview: how the fleet stands, what is wrong, who is in it.
pub fn overview(page: &Overview) -> Vec<Grid> {
    let head = Grid::default().line(format!("{}: {}", page.cluster, page.sentence), health(page.health));
    let mut alarms = Grid { title: format!("Alarms ({})", page.problems.len()), ..Grid::default() };
    for problem in &page.problems {
        let since = relative::span(page.now.since(problem.since));
        alarms = alarms
            .line(format!("{} for {since}: {} ({})", problem.about, problem.what, problem.code), health(problem.health))
            .line(format!("    {}", problem.next), Tone::Dim);
    }
    let mut grids = vec![head];
    if !page.problems.is_empty() {
        grids.push(alarms);
    }
    grids.extend(page.control.as_ref().map(|control| group(control, page.now)));
    let columns = ["relay", "state", ">flows", ">load", ">reached by", ">not by", ">nearest", "on"];
    grids.push(Grid::new("Relays", columns).rows(page.relays.list.iter().map(|relay| {
        let nearest = relay.reached_by.values().min().map_or_else(String::new, |us| nanoseconds(us * 1_000));
        let tone = match relay.state {
            Standing::Ready => Tone::Plain,
            Standing::Pending => Tone::Dim,
            Standing::Draining => Tone::Warn,
            Standing::Unreachable => Tone::Bad,
        };
        let place = relay.domain.host.as_ref().map_or_else(String::new, ToString::to_string);
        let (reached, missed) = (relay.reached_by.len().to_string(), figure(relay.missed_by.len() as u64));
        let heard = page.cards.iter().find(|card| card.name == relay.name).and_then(|card| card.heard.forwards);
        let load = heard.map_or_else(String::new, |bytes| format!("{}/s", relative::bytes(bytes)));
        let flows = relay.flows.map_or_else(String::new, figure);
        Row::new([relay.name.clone(), relay.state_words(), flows, load, reached, missed, nearest, place])
            .tone(tone)
            .to(Target::Relay(relay.name.clone()))
    })));
    grids.push(nodes(&page.cards));
    if page.flows.refused > 0 {
        let rows = page.refusals().map(|(end, code, count)| Row::new([code.to_owned(), end.to_owned(), figure(count)]));
        grids.push(Grid::new("Refused tunnels of this node", ["reason", "at its end as", ">tunnels"]).rows(rows));
    }
    if !page.flows.stalls.is_empty() {
        let rows =
            page.flows.stalls.iter().map(|stall| {
                Row::new([stall.cause.clone(), figure(stall.count), within(stall, 50), within(stall, 99)])
            });
        let columns = ["cause", ">times", ">half within", ">99 % within"];
        grids.push(Grid::new("Stalls of this node's flows", columns).rows(rows));
    }
    grids
}

/// Who leads, and how far the others are behind.
fn group(control: &ControlView, now: WallTime) -> Grid {
    let name = |id| control.members.iter().find(|member| Some(member.id) == id).map(|member| member.name.as_str());
    let head = match name(control.leader) {
        Some(leader) => {
            let since = relative::span(now.since(control.leads_since));
            let cause = control.cause.as_ref().map_or_else(String::new, |cause| format!(", since {cause}"));
            (format!("{leader} leads in term {} for {since}{cause}", control.term), Tone::Plain)
        }
        None => (format!("nobody leads; the newest term is {}", control.term), Tone::Bad),
    };
    let log = format!("log {}, committed {}", relative::count(control.log), relative::count(control.committed));
    let members = control.members.iter().map(|member| {
        let (word, tone) = match (control.leader == Some(member.id), member.live, member.votes) {
            (true, _, _) => ("leads", Tone::Good),
            (_, Some(false), _) => ("silent", Tone::Bad),
            (_, _, false) => ("without a vote", Tone::Dim),
            _ => ("follows", Tone::Plain),
        };
        let behind = member.lag_entries.map_or_else(String::new, figure);
        let answered = member.silent_ms.map_or_else(String::new, |ms| format!("{ms} ms"));
        Row::new([member.name.clone(), word.to_owned(), behind, answered])
            .tone(tone)
            .to(Target::Node(member.name.clone()))
    });
    Grid::new("Control", ["node", "role", ">behind", ">answered"])
        .line(head.0, head.1)
        .line(log, Tone::Dim)
        .rows(members)
}

fn nodes(cards: &[Card]) -> Grid {
    let columns =
        ["node", "stands", ">flows", ">actors", ">waiting", "last minute", "busiest", ">busy %", ">restarts", ">age"];
    Grid::new("Nodes", columns).rows(cards.iter().map(|card| {
        let target = Target::Node(card.name.clone());
        let name = if card.leads { format!("{} *", card.name) } else { card.name.clone() };
        let age = card.heard.age_ms.map_or_else(String::new, |ms| match ms {
            0..5_000 if !card.silent() => "now".to_owned(),
            _ => relative::span(Duration::from_millis(ms)),
        });
        let Some(vitals) = &card.heard.vitals else {
            let word = if card.silent() { "silent" } else { "not heard yet" };
            return Row::new([name, word.to_owned()]).tone(Tone::Dim).to(target);
        };
        let (word, tone) = if card.silent() {
            ("silent", Tone::Dim)
        } else {
            (card.stands.word(), if card.stands == Health::Well { Tone::Plain } else { health(card.stands) })
        };
        let busiest = vitals.busiest.clone().unwrap_or_default();
        Row::new([
            name,
            word.to_owned(),
            figure(vitals.flows.open),
            vitals.actors.to_string(),
            figure(vitals.depth as u64),
            blocks(&vitals.turns),
            busiest.path.trim_start_matches("node/").to_owned(),
            percent(busiest.busy_share),
            figure(vitals.restarts),
            age,
        ])
        .tone(tone)
        .to(target)
    }))
}

/// The control group.
pub fn control(page: &Group) -> Vec<Grid> {
    let count = |number: Option<u64>| number.map_or_else(String::new, relative::count);
    let members = page.voters.iter().map(|voter| {
        let (word, tone) = match (voter.leads, voter.live, voter.votes) {
            (true, _, _) => ("leads", Tone::Good),
            (_, Some(false), _) => ("silent", Tone::Bad),
            (_, _, false) => ("without a vote", Tone::Dim),
            _ => ("follows", Tone::Plain),
        };
        let own = voter.own.as_ref();
        Row::new([
            voter.name.clone(),
            word.to_owned(),
            voter.voted_for.clone().unwrap_or_default(),
            count(own.map(|own| own.term)),
            count(own.map(|own| own.log)),
            count(voter.matched),
            count(own.map(|own| own.applied)),
            voter.silent_ms.map_or_else(String::new, |ms| format!("{ms} ms")),
        ])
        .tone(tone)
        .to(Target::Node(voter.name.clone()))
    });
    let columns = ["node", "state", "voted for", ">term", ">log", ">matches", ">applied", ">answered"];
    let group = Grid::new("Control group", columns).rows(members);
    let terms = page.terms.iter().map(|term| {
        let leader = term.leader.clone().unwrap_or_else(|| "nobody".to_owned());
        let cause = term.cause.clone().unwrap_or_default();
        Row::new([term.term.to_string(), leader, relative::moment(term.since, page.now), cause])
    });
    let policies = page.policies.iter().map(|policy| {
        let ends = |at: Option<WallTime>| at.map_or_else(String::new, |at| relative::moment(at, page.now));
        Row::new([
            policy.node.clone(),
            count(policy.version),
            policy.behind.map_or_else(String::new, figure),
            ends(policy.lease_ends),
            ends(Some(policy.certificate_expires)),
        ])
        .tone(if policy.silent { Tone::Dim } else { Tone::Plain })
        .to(Target::Node(policy.node.clone()))
    });
    let mut grids = vec![
        group,
        Grid::new("Terms", [">term", "leader", "seen", "began"]).rows(terms),
        Grid::new("Policies", ["node", ">policy", ">behind", ">lease ends", ">certificate ends"]).rows(policies),
    ];
    let mut suspicions = Grid { title: "Suspicions".to_owned(), ..Grid::default() };
    for suspicion in &page.suspicions {
        let tone = if suspicion.believed { Tone::Bad } else { Tone::Warn };
        suspicions =
            suspicions.line(format!("{} is not reached by {}", suspicion.relay, suspicion.missed_by.len()), tone);
        for (node, why) in &suspicion.missed_by {
            suspicions = suspicions.line(format!("    {node}: {why}"), Tone::Dim);
        }
    }
    if !page.suspicions.is_empty() {
        grids.push(suspicions);
    }
    grids
}

fn outcome(choice: &Choice) -> String {
    match &choice.if_it_dies {
        Outcome::Stays => "stays".to_owned(),
        Outcome::Moves { to } => format!("moves to {to}"),
        Outcome::Waits => "waits".to_owned(),
    }
}

/// Why circuits are on their relays.
pub fn why(page: &Why) -> Vec<Grid> {
    let mut head = Grid::default();
    for line in page.about.iter().chain(&page.relay) {
        head = head.line(line.clone(), Tone::Plain);
    }
    let mut grids = if head.lines.is_empty() { Vec::new() } else { vec![head] };
    let without = page.without.iter().map(|row| {
        let tone = if row.waiting > 0 { Tone::Bad } else { Tone::Plain };
        let figures =
            [figure(row.moving as u64), figure(row.flows), figure(row.waiting as u64), row.can_lose.to_string()];
        Row::new([row.relay.clone()].into_iter().chain(figures)).tone(tone).to(Target::Relay(row.relay.clone()))
    });
    let columns = ["if it dies", ">circuits move", ">with flows", ">circuits wait", ">relays to lose then"];
    grids.push(Grid::new("What if", columns).rows(without));
    for placement in &page.placements {
        let relay = placement.relay.as_deref().unwrap_or("no relay");
        let links =
            if placement.links.is_empty() { String::new() } else { format!(" of {}", placement.links.join(", ")) };
        let title = format!("{} → {} over {relay}, {} flows{links}", placement.node, placement.peer, placement.flows);
        let rows = placement.choices.iter().map(|choice| {
            let against = [
                (choice.last_resort, "drains or too small"),
                (choice.shares_domain && !choice.carries, "shares a domain"),
                (choice.unheard, "not heard since its silence began"),
            ];
            let against: Vec<&str> = against.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect();
            let tone = match (choice.carries, choice.candidate) {
                (true, _) => Tone::Good,
                (_, true) => Tone::Plain,
                (_, false) => Tone::Dim,
            };
            Row::new([
                if choice.carries { format!("{} *", choice.relay) } else { choice.relay.clone() },
                if choice.candidate { "yes".to_owned() } else { "no".to_owned() },
                choice.round_trip_us.map_or_else(String::new, |us| nanoseconds(us * 1_000)),
                against.join(", "),
                choice.place.map_or_else(String::new, |place| format!("{place}.")),
                outcome(choice),
            ])
            .tone(tone)
            .to(Target::Relay(choice.relay.clone()))
        });
        let columns = ["relay", "may carry", ">round trip", "against it", ">place", "if it dies"];
        let mut grid = Grid::new(title, columns).rows(rows);
        if !placement.opens.is_empty() {
            grid = grid.line(format!("new flows: {}", placement.opens_words()), Tone::Dim);
        }
        grids.push(grid);
    }
    if !page.silent.is_empty() {
        grids.push(Grid::default().line(format!("no answer of {}", page.silent.join(", ")), Tone::Warn));
    }
    grids
}
