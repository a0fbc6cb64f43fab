//! The frame around every page: where one is, how the fleet stands, which node is looked at, and the way elsewhere.

use maud::{DOCTYPE, Markup, html};
use postroad_actors::status::Health;

use super::health_class;
use crate::{
    console::{
        model::overview::{Card, Overview},
        query::Query,
    },
    errors::Failure,
};

/// Pages in the order of the bar: address, name, key.
const PAGES: [(&str, &str, &str); 7] = [
    ("/", "Overview", "o"),
    ("/topology", "Topology", "y"),
    ("/control", "Control", "c"),
    ("/why", "Why", "w"),
    ("/tree", "Tree", "t"),
    ("/actors", "Actors", "a"),
    ("/act", "Act", "x"),
];

/// Pages that are one node's, so that the bar keeps the node.
const OF_A_NODE: [&str; 2] = ["/tree", "/actors"];

/// What the frame shows around a page.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The cluster.
    pub cluster: String,
    /// The node that serves the page.
    pub serves: String,
    /// Health, and its sentence.
    pub health: Option<(Health, String)>,
    /// The fleet.
    pub cards: Vec<Card>,
    /// The page's path.
    pub path: String,
    /// The page's filters.
    pub query: Query,
    /// What is odd: a node that is silent, or a view that is old.
    pub warnings: Vec<String>,
    /// Whether the page stands still, since it says what came of a form.
    pub still: bool,
}

impl Frame {
    /// The frame of a page, as far as the fleet is known.
    pub fn new(overview: Option<&Overview>, serves: &str, path: &str, query: &Query) -> Self {
        Self {
            cluster: overview.map(|overview| overview.cluster.clone()).unwrap_or_default(),
            serves: serves.to_owned(),
            health: overview.map(|overview| (overview.health, overview.sentence.clone())),
            cards: overview.map(|overview| overview.cards.clone()).unwrap_or_default(),
            path: path.to_owned(),
            query: query.clone(),
            warnings: Vec::new(),
            still: false,
        }
    }

    /// The node that is looked at.
    pub fn node(&self) -> &str {
        let asked = self.query.get("node");
        if asked.is_empty() { &self.serves } else { asked }
    }

    fn is_of_a_node(&self) -> bool {
        OF_A_NODE.contains(&self.path.as_str()) || self.path.starts_with("/actor/")
    }
}

/// The whole page around `main`.
pub fn page(frame: &Frame, title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · " (frame.cluster) }
                link rel="stylesheet" href="/style.css";
                link rel="icon" href="/icon.svg" type="image/svg+xml";
                script src="/script.js" defer {}
                // A form must not be emptied while somebody fills it in.
                @if !frame.still && frame.path != "/act" { noscript { meta http-equiv="refresh" content="5"; } }
            }
            body data-path=(frame.path) data-still[frame.still] {
                a.skip href="#main" { "Skip to the page" }
                (bar(frame))
                div #live { (inner(frame, main)) }
                (keys())
            }
        }
    }
}

/// What is replaced while somebody looks: the sentence, the warnings and the page.
pub fn inner(frame: &Frame, main: &Markup) -> Markup {
    html! {
        @if let Some((health, sentence)) = &frame.health {
            p.sentence.(health_class(*health)) role="status" {
                b { (frame.cluster) }
                span { (sentence) }
            }
        }
        @for warning in &frame.warnings {
            p.warning { (warning) }
        }
        @if frame.is_of_a_node() && !frame.cards.is_empty() { (nodes(frame)) }
        main #main tabindex="-1" { (main) }
    }
}

fn bar(frame: &Frame) -> Markup {
    html! {
        header {
            a.mark href="/" title="Postroad" {
                svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" {
                    path class="way" d="M3 17 C8 17 8 7 12 7 S16 17 21 17" {}
                    circle class="end" cx="3.5" cy="17" r="2.5" {}
                    circle class="relay" cx="12" cy="7" r="3" {}
                    circle class="end" cx="20.5" cy="17" r="2.5" {}
                }
                span { "postroad" }
            }
            nav aria-label="Pages" {
                @for (path, name, key) in PAGES {
                    @let here = frame.path == path || (path == "/actors" && frame.path.starts_with("/actor/"));
                    @let query = if OF_A_NODE.contains(&path) { frame.query.only(&["node"]) } else { Query::default() };
                    a href=(query.address(path)) aria-current=[here.then_some("page")] data-key=(key) { (name) }
                }
            }
            span.live title="The page follows the node" { span.beat {} span.age { "live" } }
            button.help type="button" title="Keys" aria-label="Keys" { "?" }
        }
    }
}

/// Every node, to look at the same page of it.
fn nodes(frame: &Frame) -> Markup {
    html! {
        nav.nodes aria-label="Nodes" {
            @for card in &frame.cards {
                @let query = frame.query.only(&["sort", "dir", "window", "q", "kind", "status"]).with("node", &card.name);
                @let path = if frame.path.starts_with("/actor/") { "/actors" } else { &frame.path };
                a href=(query.address(path)) aria-current=[(card.name == frame.node()).then_some("true")]
                    class=(if card.silent() { "silent" } else { "" }) {
                    @let class = card.heard.vitals.as_ref().map_or("quiet", |_| health_class(card.stands));
                    span class={ "dot " (if card.silent() { "silent" } else { class }) } {}
                    (card.name)
                }
            }
        }
    }
}

fn keys() -> Markup {
    const KEYS: [(&str, &str); 9] = [
        ("g then o, y, c, w, t, a, x", "overview, topology, control, why, tree, actors, act"),
        ("/", "search"),
        ("j, k", "next row, row before"),
        ("Enter", "open the row"),
        ("[, ]", "a message back, one on"),
        ("f", "follow the row's message through actors and nodes"),
        ("n, p", "next node, node before"),
        ("Space", "hold the page, go on"),
        ("?", "this list"),
    ];
    html! {
        dialog #keys {
            h2 { "Keys" }
            dl { @for (key, does) in KEYS { dt { kbd { (key) } } dd { (does) } } }
            form method="dialog" { button { "Close" } }
        }
    }
}

/// A page that could not be made.
pub fn failure(failure: &Failure) -> Markup {
    html! {
        section.failure {
            h1 { (failure.code) }
            p { (failure.message) }
            @if let Some(hint) = &failure.hint { p.muted { (hint) } }
            p { a href="/" { "To the overview" } }
        }
    }
}
