//! Access control with the table of all commands.

mod rewrite;
mod users;
