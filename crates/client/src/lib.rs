//! Clients: their sessions, the registry of all clients, the messages that are pushed to them (pub/sub,
//! tracking, MONITOR), and the commands that wait.
//!
//! Absent: sockets and buffers (a connection has a [`session::Session`]), and which commands exist.

pub mod clients;
pub mod fieldsets;
pub mod hub;
pub mod lane_ticket;
pub mod maintenance;
pub mod monitor;
pub mod pubsub;
pub mod replica_hello;
pub mod runner;
pub mod session;
pub mod tracking;
pub mod waiting;

pub use clients::ClientInfo;
pub use hub::Hub;
pub use session::Session;
