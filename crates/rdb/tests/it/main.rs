//! Values through the whole crate: payloads of real servers, broken payloads, and round trips with running
//! servers.

mod aof;
mod aof_cut;
mod ask;
mod bounds;
mod broken;
mod file;
mod file_broken;
mod file_servers;
mod golden;
mod model;
mod newer_streams;
mod random;
mod servers;
