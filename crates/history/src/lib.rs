//! The flight recorder's data: rows of metrics over time, events, and incidents with their causes.
//!
//! The crate has no clock, no thread and no socket: the server's thread `recorder` hands it a [`Row`] every
//! 50 ms, the HTTP thread and LATENCY DOCTOR read from it. Times are Unix milliseconds.
//!
//! | file | |
//! |---|---|
//! | `schema.rs` | kinds of columns, and how rows are merged |
//! | `columns.rs` | the columns of a row |
//! | `ring.rs` | rows as bytes, in chunks, the oldest of which is dropped |
//! | `history.rs` | the rows of 50 ms, a second and a minute |
//! | `incident.rs` | a time in which clients waited, with its cause |
//! | `log.rs` | events and incidents |
//! | `detector.rs` | from a second's rows to the incidents in it |
//! | `findings.rs` | from the incidents of a span to ranked causes |
//! | `file.rs` | frames on disk, so that the past survives a restart |

pub mod columns;
mod detector;
mod file;
mod findings;
mod history;
mod incident;
mod log;
mod ring;
mod schema;

pub use columns::Columns;
pub use detector::{Detector, Slow};
#[cfg(fuzzing)]
pub use file::fuzzing;
pub use file::{Files, Frame};
pub use findings::{Finding, Findings, RuledOut, findings};
pub use history::{FINE_MS, History, Series};
pub use incident::{Evidence, Incident, Rule};
pub use log::{Event, EventKind, Log};
pub use ring::Row;
pub use schema::{Column, Merge, Schema, Unit};
