//! What is on disk, after everything that can happen to a server: it is killed, its disk is full, its files are cut or changed,
//! they are taken to another server. What was acknowledged is there, and what is there happened.

mod broken;
mod exchange;
pub(crate) mod full;
mod held_back;
mod kill;
mod lock;
mod moment;
mod plain;
mod reload;
mod settings;
mod stuck;
