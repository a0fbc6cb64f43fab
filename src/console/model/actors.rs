//! The actors of a node as a list: sorted by what hurts, filtered by words, a page of them at a time.

use std::{cmp::Ordering, collections::BTreeSet};

use postroad_actors::inspect::{ActorRow, Status};
use serde::{Deserialize, Serialize};

use crate::console::query::Query;

/// Windows that rates can be taken over, in seconds.
pub const WINDOWS: [usize; 3] = [5, 20, 59];

/// Rows on one page, unless asked otherwise, and at most.
const ROWS: usize = 100;
const ROWS_MAX: usize = 1_000;

/// What a list is sorted by.
pub const SORTS: [&str; 7] = ["path", "depth", "wait", "rate", "busy", "restarts", "handled"];

/// One actor, with its last minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The actor.
    #[serde(flatten)]
    pub actor: ActorRow,
    /// Turns in each of the last seconds, oldest first.
    pub seconds: Vec<u32>,
}

/// The page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actors {
    /// The node.
    pub node: String,
    /// What it is sorted by.
    pub sort: String,
    /// Whether the least comes first.
    pub ascending: bool,
    /// The window of rates, in seconds.
    pub window: usize,
    /// How many actors there are.
    pub total: usize,
    /// How many of them the filters let through.
    pub found: usize,
    /// The first row that is shown, from 0.
    pub first: usize,
    /// Rows on a page.
    pub limit: usize,
    /// Every kind, for the filter.
    pub kinds: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// The window that a query asks for.
pub fn window(query: &Query) -> usize {
    let asked = query.number("window").unwrap_or(20) as usize;
    WINDOWS.into_iter().find(|window| *window >= asked).unwrap_or(WINDOWS[2])
}

fn order(sort: &str, one: &ActorRow, other: &ActorRow) -> Ordering {
    match sort {
        "depth" => one.depth.cmp(&other.depth),
        "wait" => one.wait_p99_us.cmp(&other.wait_p99_us),
        "rate" => one.rate.total_cmp(&other.rate),
        "busy" => {
            let now = |row: &ActorRow| row.busy_for_ms.filter(|ms| *ms >= super::vitals::STUCK_MS);
            now(one).cmp(&now(other)).then(one.busy_share.total_cmp(&other.busy_share))
        }
        "restarts" => one.restarts.cmp(&other.restarts),
        "handled" => one.handled.cmp(&other.handled),
        // Names read from a to z, so that what counts as the most is the first.
        _ => other.path.cmp(&one.path),
    }
}

/// The page for a query. `seconds` gives the last seconds of one actor, and is asked for those that are shown only.
pub fn actors(node: &str, all: &[ActorRow], query: &Query, seconds: impl Fn(&str) -> Vec<u32>) -> Actors {
    let total = all.len();
    let kinds: BTreeSet<&str> = all.iter().map(|row| &*row.kind).collect();
    let (words, kind, status) = (query.get("q").to_lowercase(), query.get("kind"), query.get("status"));
    let is_wanted = |row: &&ActorRow| {
        words.split_whitespace().all(|word| row.path.to_lowercase().contains(word) || row.kind.contains(word))
            && (kind.is_empty() || row.kind == kind)
            && match status {
                "" => true,
                "down" => !matches!(row.status, Status::Alive | Status::Busy),
                "busy" => row.status == Status::Busy,
                "waiting" => row.depth > 0,
                "restarted" => row.restarts > 0,
                _ => false,
            }
    };
    let mut rows: Vec<&ActorRow> = all.iter().filter(is_wanted).collect();
    let sort = SORTS.into_iter().find(|sort| *sort == query.get("sort")).unwrap_or("busy");
    let ascending = query.get("dir") == "up";
    let by = |one: &&ActorRow, other: &&ActorRow| {
        let order = order(sort, one, other);
        // Of two that are equal the one of the lesser name comes first, so that rows do not dance.
        (if ascending { order } else { order.reverse() }).then_with(|| one.path.cmp(&other.path))
    };
    let limit = (query.number("limit").unwrap_or(ROWS as u64) as usize).clamp(1, ROWS_MAX);
    let first = (query.number("from").unwrap_or(0) as usize).min(rows.len());
    // Only the rows up to the last one that is shown need an order.
    let end = (first + limit).min(rows.len());
    if end > 0 && end < rows.len() {
        rows.select_nth_unstable_by(end - 1, by);
    }
    rows[..end].sort_unstable_by(by);
    let shown = rows[first..end].iter().map(|row| Row { actor: (*row).clone(), seconds: seconds(&row.path) });
    Actors {
        node: node.to_owned(),
        sort: sort.to_owned(),
        ascending,
        window: window(query),
        total,
        found: rows.len(),
        first,
        limit,
        kinds: kinds.into_iter().map(str::to_owned).collect(),
        rows: shown.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn row(path: &str, depth: usize, rate: f64, restarts: u64) -> ActorRow {
        ActorRow {
            path: path.into(),
            kind: if path.contains("relay") { "session" } else { "link" }.into(),
            status: Status::Alive,
            supervisor: path.rsplit_once('/').map(|(above, _)| above.into()),
            children: 0,
            depth,
            wait_p99_us: depth as u64 * 10,
            rate,
            busy_share: rate / 100.0,
            busy_for_ms: None,
            restarts,
            refused: 0,
            handled: 1,
        }
    }

    fn paths(query: &str) -> Vec<String> {
        let rows = vec![
            row("node/a", 3, 1.0, 0),
            row("node/relay-2", 9, 0.5, 2),
            row("node/c", 3, 7.0, 1),
            row("node/relay-1", 0, 2.0, 0),
        ];
        let page = actors("fra", &rows, &Query::parse(query), |path| vec![path.len() as u32]);
        assert_eq!((page.total, page.kinds.len()), (4, 2));
        assert!(page.rows.iter().all(|row| row.seconds == [row.actor.path.len() as u32]));
        page.rows.into_iter().map(|row| row.actor.path.trim_start_matches("node/").to_owned()).collect()
    }

    #[test]
    fn rows_are_sorted_filtered_and_paged_by_the_query() {
        assert_eq!(paths(""), ["c", "relay-1", "a", "relay-2"]);
        assert_eq!(paths("sort=depth"), ["relay-2", "a", "c", "relay-1"]);
        assert_eq!(paths("sort=depth&dir=up"), ["relay-1", "a", "c", "relay-2"]);
        assert_eq!(paths("sort=path"), ["a", "c", "relay-1", "relay-2"]);
        assert_eq!(paths("sort=restarts&limit=2"), ["relay-2", "c"]);
        assert_eq!(paths("sort=path&limit=2&from=1"), ["c", "relay-1"]);
        assert_eq!(paths("sort=path&from=99"), [""; 0]);
        assert_eq!(paths("q=RELAY+1"), ["relay-1"]);
        assert_eq!(paths("kind=session&sort=path"), ["relay-1", "relay-2"]);
        assert_eq!(paths("status=restarted&sort=path"), ["c", "relay-2"]);
        assert_eq!(paths("status=nonsense"), [""; 0]);
    }

    #[test]
    fn windows_are_those_that_there_are() {
        for (asked, given) in [("", 20), ("window=1", 5), ("window=20", 20), ("window=600", 59), ("window=x", 20)] {
            assert_eq!(window(&Query::parse(asked)), given, "{asked}");
        }
    }
}
