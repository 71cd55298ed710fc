//! Reports: a diagnosis for people at a terminal or with a browser, and for scripts.

mod export;
mod flame;
mod html;
mod json;
pub(crate) mod probes;
pub(crate) mod questions;
pub(crate) mod tables;
mod terminal;

pub(crate) use export::{folded, pprof};
pub(crate) use html::{differences, html};
pub(crate) use json::json;
pub(crate) use terminal::{comparison, terminal};
