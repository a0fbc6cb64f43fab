//! The console of a node: pages for a browser, each made from the same model that the terminal and scripts get.
//!
//! - [`model`]: what each page shows, by pure functions
//! - [`query`]: the filters, which are all in the address
//! - [`html`]: the models as HTML
//! - [`grid`]: the models as grids of text, for the terminal
//! - [`terminal`]: the console in a terminal
//! - [`chart`]: pictures in SVG
//! - [`figures`]: how figures are written everywhere
//! - [`metrics`]: figures in Prometheus' format
//! - [`act`]: what may be done from it, by whom, and the audit of that
//! - [`listen`]: what is answered at each address
//! - [`door`]: who comes in, and how
//!
//! Pages only read what actors publish, so a stuck actor is shown and nobody waits for one. Nothing of it is an actor.

pub mod act;
pub mod chart;
pub mod door;
pub mod figures;
pub mod grid;
pub mod html;
pub mod listen;
pub mod metrics;
pub mod model;
pub mod query;
pub mod terminal;
