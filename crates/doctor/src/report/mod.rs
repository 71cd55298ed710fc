//! Reports: a diagnosis for people at a terminal or with a browser, and for scripts.

mod flame;
mod html;
mod json;
pub(crate) mod tables;
mod terminal;

pub(crate) use html::html;
pub(crate) use json::json;
pub(crate) use terminal::{comparison, terminal};
