//! The state of a server that does not depend on clients or commands: pauses, blockers, the lazy-free thread,
//! the kernel's out-of-memory score, and the service manager.
//!
//! Absent: which commands a pause or a blocker concerns (admission decides that), sockets, sessions.

pub mod blockers;
pub mod latency;
pub mod lazy_free;
pub mod oom;
pub mod pause;
pub mod sd_notify;
pub mod state;

pub use state::Core;
