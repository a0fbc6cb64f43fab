//! Who supervises whom: branches that are open by the address, and on each closed one the worst that is below it.

use std::collections::{BTreeMap, BTreeSet};

use postroad_actors::inspect::{ActorRow, RestartView, Status};
use serde::{Deserialize, Serialize};

use super::vitals::{DEEP, STUCK_MS};
use crate::console::query::Query;

/// Branches on one page; what is beyond is found by the search.
const BRANCHES_MAX: usize = 1_000;

/// How an actor looks to somebody who has a second for it, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Look {
    /// Nothing to see.
    #[default]
    Well,
    /// It has been restarted.
    Restarted,
    /// Many events wait for it.
    Deep,
    /// Its present turn takes too long.
    Stuck,
    /// It waits for its restart.
    Restarting,
    /// It will not come back by itself.
    Failed,
}

/// How an actor looks.
pub fn look(row: &ActorRow) -> Look {
    match row.status {
        Status::Failed | Status::Killed => Look::Failed,
        Status::Restarting => Look::Restarting,
        _ if row.busy_for_ms.is_some_and(|ms| ms >= STUCK_MS) => Look::Stuck,
        _ if row.depth >= DEEP => Look::Deep,
        _ if row.restarts > 0 => Look::Restarted,
        _ => Look::Well,
    }
}

/// One branch, in the order in which it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    /// Its path.
    pub path: String,
    /// The last part of its path.
    pub name: String,
    /// How deep it stands.
    pub level: usize,
    /// The noun of its behavior.
    pub kind: String,
    /// How it fares.
    pub status: Status,
    /// How it looks.
    pub look: Look,
    /// How many children it has.
    pub children: usize,
    /// Whether they are shown.
    pub open: bool,
    /// How many actors are below it.
    pub below: usize,
    /// The worst of them, if it is worse than well.
    pub worst: Option<(Look, String)>,
    /// Events that wait for it, and for those below.
    pub depth: usize,
    /// Turns a second of it, and of those below.
    pub rate: f64,
    /// Restarts.
    pub restarts: u64,
    /// Its last restarts, newest first.
    pub history: Vec<RestartView>,
    /// Whether the search found it.
    pub found: bool,
}

/// The page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// The node.
    pub node: String,
    /// How many actors there are.
    pub total: usize,
    /// How many the search found; nothing if nothing is searched.
    pub found: Option<usize>,
    /// The branches.
    pub branches: Vec<Branch>,
    /// How many were left out.
    pub left_out: usize,
}

impl Tree {
    /// The query with this branch opened, or closed.
    pub fn toggled(&self, branch: &Branch, query: &Query) -> Query {
        let mut open = opened(query);
        if open.is_empty() {
            // What is open by itself has to be named once something else is.
            open = self.branches.iter().filter(|branch| branch.open).map(|branch| branch.path.clone()).collect();
        }
        if branch.open {
            open.remove(&branch.path);
        } else {
            open.insert(branch.path.clone());
        }
        let mut open: Vec<String> = open.into_iter().collect();
        if open.is_empty() {
            // None at all would mean those that are open by themselves.
            open.push("-".to_owned());
        }
        query.with("open", &open.join(",")).with("q", "")
    }
}

/// What is below a branch.
#[derive(Clone, Debug, Default)]
struct Sum {
    below: usize,
    depth: usize,
    rate: f64,
    worst: (Look, String),
}

/// The branches that a query opens: those that it names, and without any the first two levels.
pub fn opened(query: &Query) -> BTreeSet<String> {
    query.get("open").split(',').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

/// The page for a query. `history` gives the restarts of one actor, and is asked for those that have some only.
pub fn tree(node: &str, rows: &[ActorRow], query: &Query, history: impl Fn(&str) -> Vec<RestartView>) -> Tree {
    let words = query.get("q").to_lowercase();
    let opened = opened(query);
    let hit = |row: &ActorRow| {
        !words.is_empty()
            && words.split_whitespace().all(|word| row.path.to_lowercase().contains(word) || row.kind.contains(word))
    };
    // Whoever is above somebody that was found is shown with it.
    let mut above = BTreeSet::new();
    let mut found = 0;
    for row in rows.iter().filter(|row| hit(row)) {
        found += 1;
        above.extend(row.path.match_indices('/').map(|(at, _)| &row.path[..at]));
    }
    let sums = sums(rows);
    let mut branches = Vec::new();
    let mut left_out = 0;
    for row in rows {
        let level = row.path.matches('/').count();
        let is_open = |path: &str, level: usize| {
            if words.is_empty() {
                if query.get("open").is_empty() {
                    level < 1 || (level < 2 && rows.len() <= 60)
                } else {
                    opened.contains(path)
                }
            } else {
                above.contains(path)
            }
        };
        let shown = if words.is_empty() {
            row.path.match_indices('/').enumerate().all(|(level, (at, _))| is_open(&row.path[..at], level))
        } else {
            hit(row) || above.contains(&*row.path)
        };
        if !shown {
            continue;
        }
        if branches.len() >= BRANCHES_MAX {
            left_out += 1;
            continue;
        }
        let sum = sums.get(&*row.path).cloned().unwrap_or_default();
        branches.push(Branch {
            path: row.path.to_string(),
            name: row.path.rsplit('/').next().unwrap_or_default().to_owned(),
            level,
            kind: row.kind.to_string(),
            status: row.status,
            look: look(row),
            children: row.children,
            open: row.children > 0 && is_open(&row.path, level),
            below: sum.below,
            worst: (sum.worst.0 > Look::Well).then_some(sum.worst),
            depth: row.depth + sum.depth,
            rate: row.rate + sum.rate,
            restarts: row.restarts,
            history: if row.restarts > 0 { history(&row.path).into_iter().rev().collect() } else { Vec::new() },
            found: hit(row),
        });
    }
    Tree { node: node.to_owned(), total: rows.len(), found: (!words.is_empty()).then_some(found), branches, left_out }
}

/// What is below each branch, by path.
fn sums(rows: &[ActorRow]) -> BTreeMap<&str, Sum> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for row in rows {
        let look = look(row);
        for (at, _) in row.path.match_indices('/') {
            let sum = sums.entry(&row.path[..at]).or_default();
            sum.below += 1;
            sum.depth += row.depth;
            sum.rate += row.rate;
            if look > sum.worst.0 {
                sum.worst = (look, row.path.to_string());
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, depth: usize, status: Status) -> ActorRow {
        ActorRow {
            path: path.into(),
            kind: "link".into(),
            status,
            supervisor: path.rsplit_once('/').map(|(above, _)| above.into()),
            children: usize::from(path.matches('/').count() < 2),
            depth,
            wait_p99_us: 0,
            rate: 1.0,
            busy_share: 0.0,
            busy_for_ms: None,
            restarts: u64::from(status == Status::Restarting),
            refused: 0,
            handled: 0,
        }
    }

    fn rows() -> Vec<ActorRow> {
        let mut rows = vec![row("node", 0, Status::Alive), row("node/links", 0, Status::Alive)];
        rows.extend((0..80).map(|at| row(&format!("node/links/link-{at:02}"), at, Status::Alive)));
        rows[41].status = Status::Restarting;
        rows[41].restarts = 3;
        rows.push(row("node/sessions", 0, Status::Alive));
        rows
    }

    fn shown(query: &str) -> (Vec<String>, Tree) {
        let tree = tree("fra", &rows(), &Query::parse(query), |_| Vec::new());
        (tree.branches.iter().map(|branch| branch.path.clone()).collect(), tree)
    }

    #[test]
    fn closed_branches_show_the_worst_below_them() {
        let (paths, tree) = shown("");
        assert_eq!(paths, ["node", "node/links", "node/sessions"]);
        let links = &tree.branches[1];
        assert_eq!((links.below, links.open, links.depth), (80, false, (0..80).sum()));
        assert_eq!(links.worst, Some((Look::Restarting, "node/links/link-39".to_owned())));
        assert_eq!(tree.branches[2].worst, None);
        let (paths, _) = shown("open=node,node/links");
        assert_eq!(paths.len(), 83);
        // A branch is opened beside those that are open by themselves, and closed again.
        let query = tree.toggled(links, &Query::default());
        let (paths, tree) = shown(&format!("open={}", query.get("open")));
        assert_eq!(paths.len(), 83);
        let query = tree.toggled(&tree.branches[1], &query);
        assert_eq!(shown(&format!("open={}", query.get("open"))).0, ["node", "node/links", "node/sessions"]);
        let none = tree.toggled(&tree.branches[0], &Query::parse("open=node"));
        assert_eq!(shown(&format!("open={}", none.get("open"))).0, ["node"]);
    }

    #[test]
    fn what_is_searched_is_shown_with_all_that_is_above_it() {
        let (paths, tree) = shown("q=link-7");
        assert_eq!((tree.found, paths.len()), (Some(10), 12));
        assert_eq!(paths[..3], ["node", "node/links", "node/links/link-70"]);
        assert!(!tree.branches[1].found && tree.branches[2].found);
        let (paths, tree) = shown("q=nobody");
        assert_eq!((paths.len(), tree.found), (0, Some(0)));
    }

    #[test]
    fn the_worst_look_wins() {
        let mut one = row("a", 100, Status::Busy);
        assert_eq!(look(&one), Look::Deep);
        one.busy_for_ms = Some(5_000);
        assert_eq!(look(&one), Look::Stuck);
        one.status = Status::Failed;
        assert_eq!(look(&one), Look::Failed);
    }
}
