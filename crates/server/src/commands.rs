//! All commands: the families of data and of the server in a single table.

use std::sync::OnceLock;

use crate::admin::{self, ServerHandler};
use evenkeel_command::table::{self, Table};
use evenkeel_command::{Command, DataHandler, Id, Spec};

#[cfg(test)]
mod specs_tests;
#[cfg(test)]
mod table_tests;

/// The function that runs a command.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    Data(DataHandler),
    Server(ServerHandler),
    /// The command only groups subcommands. Admission refuses it.
    Container,
}

/// Returns the handler of a command.
#[inline]
pub(crate) fn handler(id: Id) -> Handler {
    handlers()[id.index()]
}

fn handlers() -> &'static [Handler] {
    static HANDLERS: OnceLock<Vec<Handler>> = OnceLock::new();
    HANDLERS.get_or_init(|| all().into_iter().map(|(_, handler)| handler).collect())
}

/// Makes the table of all commands known to [`table::table`], and returns it. May be called more than once.
pub(crate) fn install() -> &'static Table {
    table::install(|| all().into_iter().map(|(spec, _)| spec).collect())
}

/// All rows; subcommands follow their container.
fn all() -> Vec<(&'static Spec, Handler)> {
    let mut rows = Vec::new();
    for family in evenkeel_command::FAMILIES {
        add(family, Handler::Data, &mut rows);
    }
    for family in admin::FAMILIES {
        add(family, Handler::Server, &mut rows);
    }
    #[cfg(test)]
    add(crate::testing::COMMANDS, Handler::Data, &mut rows);
    rows
}

fn add<H: Copy>(
    family: &'static [Command<H>],
    handler: fn(H) -> Handler,
    rows: &mut Vec<(&'static Spec, Handler)>,
) {
    for command in family {
        rows.push((&command.spec, command.handler.map_or(Handler::Container, handler)));
        add(command.subcommands, handler, rows);
    }
}
