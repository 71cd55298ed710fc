//! Reports: a diagnosis for people at a terminal or with a browser, and for scripts.

mod chains;
mod export;
mod facts;
mod flame;
mod html;
mod json;
mod look;
mod names;
pub(crate) mod probes;
pub(crate) mod questions;
mod sheet;
mod table;
pub(crate) mod tables;
mod tasks;
mod terminal;
mod timeline;

pub(crate) use export::{folded, pprof};
pub(crate) use html::{differences, html};
pub(crate) use json::json;
pub(crate) use look::{Color, Look};
pub(crate) use sheet::shown;
pub(crate) use tasks::tasks;
pub(crate) use terminal::{comparison, terminal};
