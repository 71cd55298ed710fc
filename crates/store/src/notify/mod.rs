//! Notification of changes: the subscribers of a slot (watchers and waiters of its keys), and the listener of
//! all events.
//!
//! The types here hold the subscribers. The guard of a slot notifies them ([`crate::guard`]).

pub mod events;
pub(crate) mod subscribers;
pub(crate) mod wait;
pub(crate) mod watch;
