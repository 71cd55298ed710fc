//! MODULE: there are none, and none can be loaded.

use super::{Command, Flags, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

const GROUP: Group = Group::Server;
const AT_REST: Flags = Flags::LOADING.with(Flags::STALE);
const ALONE: Flags = Flags::NO_ASYNC_LOADING;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("MODULE", GROUP, &[
        session("MODULE|HELP",   exactly(2),  GROUP, help  ).scriptable(),
        session("MODULE|LIST",   exactly(2),  GROUP, list  ).admin().without(AT_REST),
        session("MODULE|LOAD",   at_least(3), GROUP, refuse).admin().without(AT_REST).flag(ALONE),
        session("MODULE|LOADEX", at_least(3), GROUP, refuse).admin().without(AT_REST).flag(ALONE),
        session("MODULE|UNLOAD", exactly(3),  GROUP, refuse).admin().without(AT_REST).flag(ALONE),
    ]),
];

/// MODULE HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "MODULE");
    Ok(Flow::Replied)
}

/// MODULE LIST
fn list(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.array(0);
    Ok(Flow::Replied)
}

/// MODULE LOAD, LOADEX, UNLOAD
fn refuse(_: &mut ServerCall<'_, '_>) -> Done {
    Err(Error::text("ERR MODULE command not allowed: modules are not supported"))
}

#[cfg(test)]
mod tests {
    use crate::testing::World;

    #[test]
    fn there_are_no_modules() {
        World::new().check(
            "
            > MODULE LIST                      < []
            > MODULE LIST x                    < -ERR wrong number of arguments for 'module|list' command
            > MODULE LOAD x                    < -ERR MODULE command not allowed*
            > MODULE LOADEX x ARGS 1           < -ERR MODULE command not allowed*
            > MODULE UNLOAD x                  < -ERR MODULE command not allowed*
            > MODULE nosuch                    < -ERR unknown subcommand 'nosuch'. Try MODULE HELP.
            > MODULE HELP                      < [MODULE <subcommand> *]
        ",
        );
        // No setting makes it allowed.
        World::new().check("> MODULE LOAD x < -ERR MODULE command not allowed: modules are not supported");
    }
}
