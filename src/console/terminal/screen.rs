//! What is open in the terminal console and what each key does to it. Pure: keys and answers in, an address out.

use std::collections::BTreeMap;

use postroad_cluster::trace::TraceId;
use ratatui::{
    crossterm::event::{KeyCode, KeyModifiers},
    widgets::TableState,
};
use serde::de::DeserializeOwned;

use crate::{
    cli::output::Output,
    console::{
        grid::{self, Grid, Target},
        model::{overview::Overview, tree::Tree},
        query::Query,
    },
    errors::Failure,
};

/// Pages in the order of the bar.
pub(super) const PAGES: [(Page, &str); 6] = [
    (Page::Overview, "Overview"),
    (Page::Actors, "Actors"),
    (Page::Tree, "Tree"),
    (Page::Control, "Control"),
    (Page::Why, "Why"),
    (Page::Topology, "Topology"),
];

/// What a list of actors can be sorted by, in the order of the key.
const SORTS: [&str; 6] = ["busy", "depth", "wait", "rate", "restarts", "path"];

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Overview,
    Actors,
    Tree,
    Control,
    Why,
    Topology,
    Actor(String),
    Trace(TraceId),
}

/// What the node answered to a question.
pub(super) struct Answer {
    pub(super) address: String,
    pub(super) result: Result<Output, Failure>,
}

/// Everything that is on the screen.
pub(super) struct Screen {
    pub(super) page: Page,
    pub(super) query: Query,
    /// The pages before this one.
    back: Vec<(Page, Query)>,
    pub(super) grids: Vec<Grid>,
    pub(super) warnings: Vec<String>,
    pub(super) failure: Option<String>,
    pub(super) nodes: Vec<String>,
    /// The row that is marked, among all rows of all grids.
    pub(super) at: usize,
    pub(super) scroll: TableState,
    /// What is typed, while a search is.
    pub(super) typing: Option<String>,
    pub(super) held: bool,
    pub(super) help: bool,
    /// The events that can be shown of the open actor, and the last one.
    known: Option<(u64, u64)>,
    /// The traces of its messages, by event.
    traces: BTreeMap<u64, TraceId>,
    /// The tree that is shown, to open and close its branches.
    tree: Option<Tree>,
}

impl Screen {
    pub(super) fn new(node: Option<String>) -> Self {
        let query = Query::default().with("node", &node.unwrap_or_default());
        Self {
            page: Page::Overview,
            query,
            back: Vec::new(),
            grids: Vec::new(),
            warnings: Vec::new(),
            failure: None,
            nodes: Vec::new(),
            at: 0,
            scroll: TableState::default(),
            typing: None,
            held: false,
            help: false,
            known: None,
            traces: BTreeMap::new(),
            tree: None,
        }
    }

    /// The page of the API that is to be shown.
    pub(super) fn address(&self) -> String {
        let page = match &self.page {
            Page::Overview => "overview".to_owned(),
            Page::Actors => "actors".to_owned(),
            Page::Tree => "tree".to_owned(),
            Page::Control => "control".to_owned(),
            Page::Why => "why".to_owned(),
            Page::Topology => "topology".to_owned(),
            Page::Actor(path) => format!("actor/{path}"),
            Page::Trace(trace) => format!("trace/{trace}"),
        };
        let query = match self.page {
            Page::Overview | Page::Control | Page::Topology | Page::Trace(_) => Query::default(),
            Page::Why => self.query.only(&["relay", "link"]),
            _ => self.query.clone(),
        };
        query.address(&format!("/api/console/{page}"))
    }

    /// Shows what the node answered, if that is still wanted.
    pub(super) fn take(&mut self, answer: Answer) {
        if self.held || answer.address != self.address() {
            return;
        }
        match answer.result.and_then(|output| self.show(&output).map(|()| output.warnings)) {
            Ok(warnings) => {
                self.warnings = warnings;
                self.failure = None;
            }
            // What was shown stays, with the reason why it gets no younger.
            Err(failure) => self.failure = Some(failure.to_string()),
        }
        self.at = self.at.min(self.rows().saturating_sub(1));
    }

    fn show(&mut self, output: &Output) -> Result<(), Failure> {
        self.grids = match &self.page {
            Page::Overview => {
                let page: Overview = read(output)?;
                self.nodes = page.cards.iter().map(|card| card.name.clone()).collect();
                grid::overview(&page)
            }
            Page::Actors => vec![grid::actors(&read(output)?)],
            Page::Tree => {
                let page: Tree = read(output)?;
                let grids = vec![grid::tree(&page)];
                self.tree = Some(page);
                grids
            }
            Page::Control => grid::control(&read(output)?),
            Page::Why => grid::why(&read(output)?),
            Page::Topology => grid::topology(&read(output)?),
            Page::Trace(_) => vec![grid::trace(&read(output)?)],
            Page::Actor(_) => {
                let page: crate::console::model::actor::Actor = read(output)?;
                self.known = page.known;
                self.traces = page.messages.iter().map(|message| (message.number, message.trace)).collect();
                grid::actor(&page)
            }
        };
        Ok(())
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.grids.iter().map(|grid| grid.rows.len()).sum()
    }

    fn target(&self) -> Option<Target> {
        self.grids.iter().flat_map(|grid| &grid.rows).nth(self.at)?.target.clone()
    }

    fn open(&mut self, page: Page, query: Query) {
        if self.page == page && self.query == query {
            return;
        }
        let (page, query) = (std::mem::replace(&mut self.page, page), std::mem::replace(&mut self.query, query));
        self.back.push((page, query));
        // As far back as anybody remembers.
        if self.back.len() > 64 {
            self.back.remove(0);
        }
        self.anew();
    }

    fn anew(&mut self) {
        (self.at, self.failure, self.held) = (0, None, false);
        self.grids.clear();
        self.scroll = TableState::default();
    }

    fn node(&self) -> Query {
        self.query.only(&["node"])
    }

    /// Takes a key; false to leave.
    pub(super) fn key(&mut self, key: KeyCode, modifiers: KeyModifiers) -> bool {
        if modifiers.contains(KeyModifiers::CONTROL) && key == KeyCode::Char('c') {
            return false;
        }
        if self.typing.is_some() {
            self.type_key(key);
            return true;
        }
        if std::mem::take(&mut self.help) {
            return true;
        }
        let last = self.rows().saturating_sub(1);
        match key {
            KeyCode::Char('q') => return false,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Char('j') | KeyCode::Down => self.at = (self.at + 1).min(last),
            KeyCode::Char('k') | KeyCode::Up => self.at = self.at.saturating_sub(1),
            KeyCode::PageDown => self.at = (self.at + 20).min(last),
            KeyCode::PageUp => self.at = self.at.saturating_sub(20),
            KeyCode::Home => self.at = 0,
            KeyCode::End | KeyCode::Char('G') => self.at = last,
            KeyCode::Char(digit @ '1'..='6') => {
                let page = PAGES[digit as usize - '1' as usize].0.clone();
                let query = self.node();
                self.open(page, query);
            }
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(PAGES.len() - 1),
            KeyCode::Char('n') => self.next_node(1),
            KeyCode::Char('p') => self.next_node(self.nodes.len().saturating_sub(1)),
            KeyCode::Char('t') => self.follow(),
            KeyCode::Char('s') if self.page == Page::Actors => self.next_sort(),
            KeyCode::Char('/') => self.typing = Some(self.query.get("q").to_owned()),
            KeyCode::Char(' ') => self.held = !self.held,
            KeyCode::Char('[') => self.travel(-1),
            KeyCode::Char(']') => self.travel(1),
            KeyCode::Char('l') | KeyCode::Right if self.fold(true) => {}
            KeyCode::Char('h') | KeyCode::Left if self.fold(false) => {}
            KeyCode::Enter | KeyCode::Char('l') | KeyCode::Right => self.enter(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Char('h') | KeyCode::Left => {
                if let Some((page, query)) = self.back.pop() {
                    (self.page, self.query) = (page, query);
                    self.anew();
                }
            }
            _ => {}
        }
        true
    }

    fn type_key(&mut self, key: KeyCode) {
        let Some(typed) = &mut self.typing else { return };
        match key {
            KeyCode::Char(sign) if typed.chars().count() < 100 => typed.push(sign),
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Esc => self.typing = None,
            KeyCode::Enter => {
                let typed = self.typing.take().unwrap_or_default();
                let page = if self.page == Page::Tree { Page::Tree } else { Page::Actors };
                let query = self.node().with("q", &typed);
                self.open(page, query);
            }
            _ => {}
        }
    }

    fn turn(&mut self, by: usize) {
        let at = PAGES.iter().position(|(page, _)| *page == self.page).unwrap_or(1);
        let query = self.node();
        self.open(PAGES[(at + by) % PAGES.len()].0.clone(), query);
    }

    fn next_node(&mut self, by: usize) {
        if self.nodes.is_empty() {
            return;
        }
        let at = self.nodes.iter().position(|node| node == self.query.get("node"));
        let next = at.map_or(0, |at| (at + by) % self.nodes.len());
        let query = self.query.only(&["sort", "q"]).with("node", &self.nodes[next].clone());
        let page = match &self.page {
            Page::Tree => Page::Tree,
            _ => Page::Actors,
        };
        self.open(page, query);
    }

    fn next_sort(&mut self) {
        let sort = self.query.get("sort");
        let at = SORTS.iter().position(|known| *known == sort).unwrap_or(0);
        self.query = self.query.with("sort", SORTS[(at + 1) % SORTS.len()]);
    }

    /// Goes to the event before, or the one after, of those that can be shown.
    fn travel(&mut self, by: i64) {
        let (Page::Actor(_), Some((first, last))) = (&self.page, self.known) else { return };
        let at = self.query.number("at").unwrap_or(last);
        let at = at.saturating_add_signed(by).clamp(first, last);
        self.query = self.query.with("at", &if at == last && by > 0 { String::new() } else { at.to_string() });
        self.held = false;
    }

    /// Opens the marked branch of the tree, or closes it; false if it is so already or there is none.
    fn fold(&mut self, open: bool) -> bool {
        let (Page::Tree, Some(Target::Actor(path)), Some(tree)) = (&self.page, self.target(), &self.tree) else {
            return false;
        };
        let branch = tree.branches.iter().find(|branch| branch.path == path);
        let Some(branch) = branch.filter(|branch| branch.children > 0 && branch.open != open) else { return false };
        self.query = tree.toggled(branch, &self.query);
        self.held = false;
        true
    }

    /// Follows the marked message through actors and nodes.
    fn follow(&mut self) {
        let Some(Target::Event(number)) = self.target() else { return };
        if let Some(trace) = self.traces.get(&number).copied() {
            let query = self.node();
            self.open(Page::Trace(trace), query);
        }
    }

    fn enter(&mut self) {
        match self.target() {
            Some(Target::Node(node)) => self.open(Page::Actors, Query::default().with("node", &node)),
            Some(Target::Actor(path)) => {
                let query = self.node();
                self.open(Page::Actor(path), query);
            }
            Some(Target::Event(number)) => {
                self.query = self.query.with("at", &number.to_string());
                self.held = false;
            }
            Some(Target::Turn { node, path, event }) => {
                let query = Query::default().with("node", &node).with("at", &event.to_string());
                self.open(Page::Actor(path), query);
            }
            Some(Target::Relay(relay)) => self.open(Page::Why, self.node().with("relay", &relay)),
            None => {}
        }
    }
}

fn read<T: DeserializeOwned>(output: &Output) -> Result<T, Failure> {
    serde_json::from_value(output.data.clone()).map_err(|error| {
        Failure::failed("PAGE_MALFORMED", format!("the node's page is not what this release knows: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(screen: &mut Screen, text: &str) {
        for sign in text.chars() {
            let code = match sign {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '<' => KeyCode::Esc,
                sign => KeyCode::Char(sign),
            };
            assert!(screen.key(code, KeyModifiers::NONE));
        }
    }

    fn with_rows(screen: &mut Screen, targets: Vec<Target>) {
        let row = |target| crate::console::grid::Row { target: Some(target), ..Default::default() };
        screen.grids = vec![Grid { rows: targets.into_iter().map(row).collect(), ..Grid::default() }];
    }

    #[test]
    fn keys_lead_from_page_to_page_and_back() {
        let mut screen = Screen::new(None);
        assert_eq!(screen.address(), "/api/console/overview");
        with_rows(&mut screen, vec![Target::Node("web".into()), Target::Node("db".into())]);
        keys(&mut screen, "jjj\n");
        assert_eq!(screen.address(), "/api/console/actors?node=db");
        keys(&mut screen, "s");
        assert_eq!(screen.address(), "/api/console/actors?node=db&sort=depth");
        keys(&mut screen, "/relay 3\n");
        assert_eq!(screen.address(), "/api/console/actors?node=db&q=relay%203");
        with_rows(&mut screen, vec![Target::Actor("node/control".into())]);
        keys(&mut screen, "\n");
        assert_eq!(screen.address(), "/api/console/actor/node/control?node=db");
        screen.known = Some((3, 9));
        let trace = TraceId::drawn(1);
        screen.traces.insert(8, trace);
        with_rows(&mut screen, vec![Target::Event(8)]);
        keys(&mut screen, "t");
        assert_eq!(screen.address(), format!("/api/console/trace/{trace}"));
        with_rows(&mut screen, vec![Target::Turn { node: "fra".into(), path: "node/relay".into(), event: 5 }]);
        keys(&mut screen, "\n");
        assert_eq!(screen.address(), "/api/console/actor/node/relay?at=5&node=fra");
        keys(&mut screen, "<<");
        keys(&mut screen, "[[");
        assert_eq!(screen.address(), "/api/console/actor/node/control?at=7&node=db");
        keys(&mut screen, "[[[[[[");
        assert!(screen.address().contains("at=3"));
        keys(&mut screen, "]]]]]]");
        assert!(!screen.address().contains("at="), "{}", screen.address());
        keys(&mut screen, "<<<");
        assert_eq!(screen.address(), "/api/console/overview");
        keys(&mut screen, "5");
        assert_eq!(screen.address(), "/api/console/why");
        assert!(!screen.key(KeyCode::Char('q'), KeyModifiers::NONE));
    }

    #[test]
    fn branches_of_the_tree_open_and_close() {
        let row = |path: &str, children| postroad_actors::inspect::ActorRow {
            path: path.into(),
            kind: "link".into(),
            status: postroad_actors::inspect::Status::Alive,
            supervisor: None,
            children,
            depth: 0,
            wait_p99_us: 0,
            rate: 0.0,
            busy_share: 0.0,
            busy_for_ms: None,
            restarts: 0,
            refused: 0,
            handled: 0,
        };
        let mut rows = vec![row("node", 1), row("node/links", 70)];
        rows.extend((0..70).map(|at| row(&format!("node/links/link-{at}"), 0)));
        let mut screen = Screen::new(Some("web".to_owned()));
        keys(&mut screen, "3");
        let shown = |screen: &mut Screen| {
            let page = crate::console::model::tree::tree("web", &rows, &screen.query, |_| Vec::new());
            let address = screen.address();
            let data = serde_json::to_value(page).unwrap();
            screen.take(Answer { address, result: Ok(Output { data, ..Output::default() }) });
            screen.rows()
        };
        assert_eq!(shown(&mut screen), 2);
        keys(&mut screen, "jl");
        assert_eq!(screen.address(), "/api/console/tree?node=web&open=node,node/links");
        assert_eq!(shown(&mut screen), 72);
        assert_eq!(screen.at, 1, "the mark stays");
        keys(&mut screen, "h");
        assert_eq!(shown(&mut screen), 2);
        keys(&mut screen, "kh");
        assert_eq!(shown(&mut screen), 1);
        keys(&mut screen, "h");
        assert_eq!(screen.page, Page::Overview, "what is closed leads back");
    }

    #[test]
    fn an_answer_for_another_page_is_not_shown_and_a_failure_keeps_what_is() {
        let mut screen = Screen::new(None);
        with_rows(&mut screen, vec![Target::Node("web".into())]);
        let late = Answer { address: "/api/console/tree".into(), result: Err(Failure::unreachable("gone")) };
        screen.take(late);
        assert_eq!(screen.failure, None);
        let address = screen.address();
        screen.take(Answer { address, result: Err(Failure::unreachable("gone")) });
        assert_eq!((screen.failure.as_deref(), screen.rows()), (Some("gone"), 1));
    }

    #[test]
    fn what_is_typed_is_no_command() {
        let mut screen = Screen::new(None);
        keys(&mut screen, "/q5");
        assert_eq!(screen.typing.as_deref(), Some("q5"));
        keys(&mut screen, "<");
        assert_eq!((screen.typing.clone(), screen.address().as_str()), (None, "/api/console/overview"));
    }
}
