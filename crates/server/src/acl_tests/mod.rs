//! Access control with the table of all commands.

mod databases;
mod rewrite;
mod users;
