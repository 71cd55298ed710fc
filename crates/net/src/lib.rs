//! Sockets: waiting for them, accepting from them, reading and writing, in the clear and with TLS.
//!
//! | module | |
//! |---|---|
//! | `poll` | epoll, `poll` on a single descriptor, wake-ups from other threads |
//! | `channel` | messages with descriptors between two processes |
//! | `listener` | listening sockets, which follow the settings |
//! | `socket` | receiving and sending on a descriptor |
//! | [`Stream`] | the socket of a connection, with TLS or without |
//! | `tls` | certificates, contexts, encrypted streams |
//! | `region` | memory that requests are read into, and that is lent to the journal |
//!
//! Absent: sessions, the protocol, commands, queues of replies, and threads. A worker decides when it reads,
//! and the meaning of the bytes is its own. Of the store, `region` knows the journal's type of a lent region.

pub mod channel;
pub mod listener;
pub mod poll;
pub mod region;
pub mod socket;
mod stream;
pub mod tls;

pub use stream::Stream;
