//! What is wrong: each problem with its cause, since when, and what to do next; worst first.

mod fleet;
mod own;

use std::time::Duration;

use super::{Health, Problem, Status, View};

/// How long something may be under way before it counts as wrong: joins, starts and elections take less.
const SETTLED: Duration = Duration::from_secs(10);

/// Problems that are shown; more of them have one cause.
const PROBLEMS_MAX: usize = 100;

/// Collects problems.
pub(super) struct Finder<'a> {
    status: &'a Status,
    view: &'a View<'a>,
    found: Vec<Problem>,
    /// Whether what is found next is of this node alone.
    own: bool,
}

/// What a problem is called and how bad it is.
#[derive(Clone, Copy)]
struct Kind {
    health: Health,
    code: &'static str,
    /// Whether it counts only once it has lasted.
    settles: bool,
}

const fn at_once(health: Health, code: &'static str) -> Kind {
    Kind { health, code, settles: false }
}

const fn lasting(health: Health, code: &'static str) -> Kind {
    Kind { health, code, settles: true }
}

impl Finder<'_> {
    fn add(&mut self, kind: Kind, about: impl Into<String>, what: impl Into<String>, next: impl Into<String>) {
        let about = about.into();
        let since = self.view.seen.since(format_args!("{} {about}", kind.code), self.view.now);
        if kind.settles && self.view.now.since(since) < SETTLED {
            return;
        }
        let (what, next) = (what.into(), next.into());
        let (health, code, own) = (kind.health, kind.code.to_owned(), self.own);
        self.found.push(Problem { health, code, about, since, what, next, own });
    }
}

/// Everything that is wrong, by `status`. `leaderless` says that the leader's facts are not there.
pub(super) fn find(status: &Status, view: &View<'_>, leaderless: bool) -> Vec<Problem> {
    let mut finder = Finder { status, view, found: Vec::new(), own: false };
    if let Some(control) = &status.control {
        finder.control(control, leaderless);
        finder.reports(leaderless);
        finder.balancers_elsewhere();
    }
    finder.relays();
    finder.own = true;
    finder.connections();
    finder.sessions();
    finder.links();
    finder.circuits();
    finder.balancers();
    finder.watch();
    finder.actors();
    let mut found = finder.found;
    found.sort_by(|one, other| other.health.cmp(&one.health).then(one.since.cmp(&other.since)));
    found.truncate(PROBLEMS_MAX);
    found
}

/// Some names of many: `a, b, c and 4 more`.
fn some(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 3 { format!("{shown} and {} more", names.len() - 3) } else { shown }
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(some(["a", "b", "c"]), "a, b, c");
        assert_eq!(some(["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!(plural(1, "relay", "relays"), "1 relay");
    }
}
