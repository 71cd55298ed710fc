//! SLOWLOG and COMMANDLOG.

use super::{Args, Command, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session};
use crate::observe::commandlog::CommandLogKind;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

const GROUP: Group = Group::Server;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("COMMANDLOG", GROUP, &[
        session("COMMANDLOG|GET",   at_least(4), GROUP, get        ).admin().scriptable(),
        session("COMMANDLOG|HELP",  exactly(2),  GROUP, help       ).scriptable(),
        session("COMMANDLOG|LEN",   exactly(3),  GROUP, len        ).admin().scriptable(),
        session("COMMANDLOG|RESET", exactly(3),  GROUP, reset      ).admin().scriptable(),
    ]),
    container("SLOWLOG", GROUP, &[
        session("SLOWLOG|GET",      at_least(2), GROUP, get_slow   ).admin().scriptable(),
        session("SLOWLOG|HELP",     exactly(2),  GROUP, help_slow  ).scriptable(),
        session("SLOWLOG|LEN",      exactly(2),  GROUP, len_slow   ).admin().scriptable(),
        session("SLOWLOG|RESET",    exactly(2),  GROUP, reset_slow ).admin().scriptable(),
    ]),
];

/// COMMANDLOG HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "COMMANDLOG");
    Ok(Flow::Replied)
}

/// SLOWLOG HELP
fn help_slow(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "SLOWLOG");
    Ok(Flow::Replied)
}

/// COMMANDLOG GET count type [STAGES]
fn get(call: &mut ServerCall<'_, '_>) -> Done {
    let with_stages = match call.base.args.len() {
        4 => false,
        5 if call.base.args.is(4, "STAGES") => true,
        _ => return Err(Error::Arity("COMMANDLOG|GET")),
    };
    let count = count(&call.base.args)?;
    reply_newest(call, kind(&call.base.args, 3)?, count, with_stages);
    Ok(Flow::Replied)
}

/// SLOWLOG GET [count [STAGES]]
fn get_slow(call: &mut ServerCall<'_, '_>) -> Done {
    const USUAL_COUNT: usize = 10;
    let (count, with_stages) = match call.base.args.len() {
        2 => (USUAL_COUNT, false),
        3 => (count(&call.base.args)?, false),
        4 if call.base.args.is(3, "STAGES") => (count(&call.base.args)?, true),
        _ => return Err(call.wrong_form("SLOWLOG")),
    };
    reply_newest(call, CommandLogKind::Slow, count, with_stages);
    Ok(Flow::Replied)
}

/// Parses the number of entries; -1 means all.
fn count(args: &Args<'_>) -> Result<usize, Error> {
    match args.int(2) {
        Ok(-1) => Ok(usize::MAX),
        Ok(count @ 0..) => Ok(count as usize),
        _ => Err(Error::text("ERR count should be greater than or equal to -1")),
    }
}

fn kind(args: &Args<'_>, index: usize) -> Result<CommandLogKind, Error> {
    let kind = CommandLogKind::ALL.into_iter().find(|kind| args.is(index, kind.name()));
    kind.ok_or(Error::text("ERR type should be one of the following: slow, large-request, large-reply"))
}

/// An entry has six parts, which clients rely on; `STAGES` adds how the time was spent.
fn reply_newest(call: &mut ServerCall<'_, '_>, kind: CommandLogKind, count: usize, with_stages: bool) {
    let entries = call.server.commandlog.newest(kind, count.min(kind.len_max(call.base.settings)));
    call.base.reply.array(entries.len());
    for entry in entries {
        call.base.reply.array(6 + usize::from(with_stages));
        call.base.reply.int(entry.id as i64);
        call.base.reply.int((entry.at_ms / 1000) as i64);
        call.base.reply.int(entry.amount as i64);
        call.base.reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| call.base.reply.bulk(arg));
        call.base.reply.bulk(entry.address.as_bytes());
        call.base.reply.bulk(&entry.name);
        if with_stages {
            call.base.reply.map(entry.stages.len());
            for (stage, us) in entry.stages {
                call.base.reply.bulk(stage.as_bytes());
                call.base.reply.int(us as i64);
            }
        }
    }
}

/// COMMANDLOG LEN type
fn len(call: &mut ServerCall<'_, '_>) -> Done {
    reply_len(call, kind(&call.base.args, 2)?);
    Ok(Flow::Replied)
}

/// SLOWLOG LEN
fn len_slow(call: &mut ServerCall<'_, '_>) -> Done {
    reply_len(call, CommandLogKind::Slow);
    Ok(Flow::Replied)
}

fn reply_len(call: &mut ServerCall<'_, '_>, kind: CommandLogKind) {
    let len = call.server.commandlog.len(kind).min(kind.len_max(call.base.settings));
    call.base.reply.int(len as i64);
}

/// COMMANDLOG RESET type
fn reset(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.commandlog.reset(kind(&call.base.args, 2)?);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// SLOWLOG RESET
fn reset_slow(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.commandlog.reset(CommandLogKind::Slow);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::{Program, Reference, Server, transcript};

    use crate::testing::{World, check};

    #[test]
    fn slow_commands_are_kept_newest_first() {
        let long = "x".repeat(150);
        let many: String = (0..40).map(|at| format!(" key:{at}")).collect();
        check(&format!(
            "
            > CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3
            > SLOWLOG RESET                       < OK
            > SET k {long}
            > EXISTS{many}
            > SLOWLOG GET 2
            < [[:*, :*, :*, [\"EXISTS\", *, \"... (10 more arguments)\"], \"*\", \"\"], [:*, :*, :*, \
                [\"SET\", \"k\", \"*x... (22 more bytes)\"], \"*\", \"\"]]
            > AUTH secret                         < -ERR *
            > CONFIG SET masterauth secret timeout 0
            > SLOWLOG GET 2
            < [[*, [\"CONFIG\", \"SET\", \"masterauth\", \"(redacted)\", \"timeout\", \"0\"], *], [*, \
                [\"AUTH\", \"(redacted)\"], *]]
            > SLOWLOG LEN                         < :3
            > CONFIG SET slowlog-log-slower-than -1
            > SLOWLOG RESET                       < OK
            > PING                                < PONG
            > SLOWLOG LEN                         < :0
            > SLOWLOG GET -2                      < -ERR count should be greater than or equal to -1
            > SLOWLOG GET x                       < -ERR count should be greater than or equal to -1
            > SLOWLOG GET 1 2
            < -ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.
            > SLOWLOG gEt 1 2
            < -ERR unknown subcommand or wrong number of arguments for 'gEt'. Try SLOWLOG HELP.
        "
        ));
    }

    #[test]
    fn transactions_are_logged_by_their_commands() {
        check(
            "
            > CONFIG SET slowlog-log-slower-than 0
            > MULTI
            > SET k v
            > GET k
            > EXEC                                < [OK, \"v\"]
            > SLOWLOG GET 3
            < [[*, [\"GET\", \"k\"], *], [*, [\"SET\", \"k\", \"v\"], *], [*, [\"MULTI\"], *]]
        ",
        );
    }

    #[test]
    fn workers_share_one_log() {
        World::new().check(
            "
            > CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 2
            a> ECHO 1
            b> ECHO 2
            a> ECHO 3
            a> CONFIG SET slowlog-log-slower-than -1
            b> SLOWLOG GET -1                     < [[*, [\"ECHO\", \"3\"], *], [*, [\"ECHO\", \"2\"], *]]
            b> SLOWLOG LEN                        < :2
        ",
        );
    }

    /// In process, and on Valkey if it is installed: Redis 7.0 has no COMMANDLOG.
    #[track_caller]
    fn check_valkey(text: &str) {
        World::new().check(text);
        if let Some(oracle) = Program::oracle(Reference::Valkey) {
            transcript::check(&Server::start(&oracle, &[]), text);
        }
    }

    #[test]
    fn large_requests_and_replies_are_kept() {
        let long = "x".repeat(70);
        check_valkey(&format!(
            "
            > CONFIG SET commandlog-execution-slower-than -1
            > CONFIG GET commandlog-re*
            < [\"commandlog-reply-larger-than\", \"1048576\", \"commandlog-request-larger-than\", \"1048576\"]
            > SET k {long}
            > COMMANDLOG LEN large-request            < :0
            > CONFIG SET commandlog-request-larger-than 97 commandlog-reply-larger-than 77
            > SET k {long}                            < OK
            > SET l {long}y                           < OK
            > GET k                                   < \"{long}\"
            > GETRANGE k 0 68                         < *
            > COMMANDLOG GET -1 large-request
            < [[:2, :*, :98, [\"SET\", \"l\", \"{long}y\"], \"*\", \"\"], [:1, :*, :97, [\"SET\", \"k\", \
                \"{long}\"], \"*\", \"\"], [:0, :*, :113, [\"CONFIG\", *], *]]
            > COMMANDLOG GET 0 LARGE-REQUEST          < []
            > CONFIG SET commandlog-request-larger-than -1 commandlog-reply-larger-than -1
            > COMMANDLOG LEN large-reply              < :2
            > COMMANDLOG RESET large-request          < OK
            > COMMANDLOG LEN large-request            < :0
            > COMMANDLOG LEN slow                     < :0
        "
        ));
    }

    /// A command within a transaction or a script has no request of its own.
    #[test]
    fn nested_commands_are_large_only_by_their_reply() {
        let long = "x".repeat(70);
        check_valkey(&format!(
            "
            > SET k {long}
            > CONFIG SET commandlog-execution-slower-than -1 commandlog-request-larger-than 60 \
                commandlog-reply-larger-than 76
            > MULTI
            > SET l {long}
            > GET k
            > EXEC
            > EVAL \"return redis.call('get', KEYS[1])\" 1 k
            > CONFIG SET commandlog-reply-larger-than -1
            > COMMANDLOG GET -1 large-reply
            < [[*, :77, [\"EVAL\", *], *], [*, :77, [\"get\", \"k\"], *], [*, :*, [\"GET\", \"k\"], *]]
            > COMMANDLOG GET 2 large-request
            < [[*, :68, [\"CONFIG\", *], *], [*, :68, [\"EVAL\", *], *]]
        "
        ));
    }

    #[test]
    fn arguments_of_commandlog_are_checked() {
        check_valkey(
            "
            > COMMANDLOG GET 1
            < -ERR wrong number of arguments for 'commandlog|get' command
            > COMMANDLOG GET 1 slow extra
            < -ERR wrong number of arguments for 'commandlog|get' command
            > COMMANDLOG GET 1 fast
            < -ERR type should be one of the following: slow, large-request, large-reply
            > COMMANDLOG GET -2 slow                  < -ERR count should be greater than or equal to -1
            > COMMANDLOG GET x slow                   < -ERR count should be greater than or equal to -1
            > COMMANDLOG LEN
            < -ERR wrong number of arguments for 'commandlog|len' command
            > COMMANDLOG LEN fast
            < -ERR type should be one of the following: slow, large-request, large-reply
            > COMMANDLOG RESET fast
            < -ERR type should be one of the following: slow, large-request, large-reply
            > CONFIG SET commandlog-reply-larger-than -2
            < -ERR CONFIG SET failed (possibly related to argument 'commandlog-reply-larger-than') - \
                argument must be between -1 and 9223372036854775807 inclusive
            > CONFIG SET slowlog-log-slower-than 0
            > COMMANDLOG RESET SLOW                   < OK
            > ECHO 1
            > SLOWLOG LEN                             < :2
            > CONFIG SET commandlog-large-request-max-len 0 commandlog-request-larger-than 0
            > ECHO 1
            > COMMANDLOG GET 5 large-request          < []
        ",
        );
    }

    /// The slow log has a script's commands by themselves.
    #[test]
    fn commands_of_scripts_are_logged() {
        check(
            "
            > CONFIG SET slowlog-log-slower-than 0
            > EVAL \"return redis.call('incr', KEYS[1])\" 1 k
            > SLOWLOG GET 2                           < [[*, [\"EVAL\", *], *], [*, [\"incr\", \"k\"], *]]
        ",
        );
    }

    #[test]
    fn stages_of_entries_are_reported_on_request() {
        let stages = "[\"lock_wait\", :0, \"execute\", :*, \"long\", :0]";
        World::new().check(&format!(
            "
            > CONFIG SET slowlog-log-slower-than 0
            > ECHO 1
            > SLOWLOG GET 1 STAGES
            < [[:*, :*, :*, [\"ECHO\", \"1\"], \"*\", \"\", {stages}]]
            > COMMANDLOG GET 1 slow stages
            < [[:*, :*, :*, [\"SLOWLOG\", *], \"*\", \"\", {stages}]]
        "
        ));
    }
}
