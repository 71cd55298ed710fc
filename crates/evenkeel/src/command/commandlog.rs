//! SLOWLOG.

use super::{Call, Command, Group, at_least, container, docs, exactly, session};
use crate::error::{Done, Error};

const GROUP: Group = Group::Server;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    container("SLOWLOG", GROUP, &[
        session("SLOWLOG|GET",   at_least(2), GROUP, get  ).admin().scriptable(),
        session("SLOWLOG|HELP",  exactly(2),  GROUP, help ).scriptable(),
        session("SLOWLOG|LEN",   exactly(2),  GROUP, len  ).admin().scriptable(),
        session("SLOWLOG|RESET", exactly(2),  GROUP, reset).admin().scriptable(),
    ]),
];

/// SLOWLOG HELP
fn help(call: &mut Call<'_, '_>) -> Done {
    docs::reply_help(call, "SLOWLOG");
    Ok(())
}

/// SLOWLOG GET [count]: -1 is all of them.
fn get(call: &mut Call<'_, '_>) -> Done {
    const USUAL_COUNT: usize = 10;
    let args = call.args;
    let count = match args.len() {
        2 => USUAL_COUNT,
        3 => match args.int(2) {
            Ok(-1) => usize::MAX,
            Ok(count @ 0..) => count as usize,
            _ => return Err(Error::text("ERR count should be greater than or equal to -1")),
        },
        _ => {
            let text = "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.";
            return Err(Error::text(text));
        }
    };
    let entries = call.server.slowlog.newest(count.min(call.settings.slowlog_max_len));
    call.reply.array(entries.len());
    for entry in entries {
        call.reply.array(6);
        call.reply.int(entry.id as i64);
        call.reply.int(entry.unix_s as i64);
        call.reply.int(entry.us as i64);
        call.reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| call.reply.bulk(arg));
        call.reply.bulk(entry.address.as_bytes());
        call.reply.bulk(&entry.name);
    }
    Ok(())
}

/// SLOWLOG LEN
fn len(call: &mut Call<'_, '_>) -> Done {
    let len = call.server.slowlog.len().min(call.settings.slowlog_max_len);
    call.reply.int(len as i64);
    Ok(())
}

/// SLOWLOG RESET
fn reset(call: &mut Call<'_, '_>) -> Done {
    call.server.slowlog.reset();
    call.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
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
            > SLOWLOG GET 2                       < [[:*, :*, :*, [\"EXISTS\", *, \"... (10 more arguments)\"], \"*\", \"\"], [:*, :*, :*, [\"SET\", \"k\", \"*x... (22 more bytes)\"], \"*\", \"\"]]
            > AUTH secret                         < -ERR *
            > CONFIG SET masterauth secret timeout 0
            > SLOWLOG GET 2                       < [[*, [\"CONFIG\", \"SET\", \"masterauth\", \"(redacted)\", \"timeout\", \"0\"], *], [*, [\"AUTH\", \"(redacted)\"], *]]
            > SLOWLOG LEN                         < :3
            > CONFIG SET slowlog-log-slower-than -1
            > SLOWLOG RESET                       < OK
            > PING                                < PONG
            > SLOWLOG LEN                         < :0
            > SLOWLOG GET -2                      < -ERR count should be greater than or equal to -1
            > SLOWLOG GET x                       < -ERR count should be greater than or equal to -1
            > SLOWLOG GET 1 2                     < -ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.
        "
        ));
    }

    #[test]
    fn a_transaction_is_in_it_by_its_commands() {
        check(
            "
            > CONFIG SET slowlog-log-slower-than 0
            > MULTI
            > SET k v
            > GET k
            > EXEC                                < [OK, \"v\"]
            > SLOWLOG GET 3                       < [[*, [\"GET\", \"k\"], *], [*, [\"SET\", \"k\", \"v\"], *], [*, [\"MULTI\"], *]]
        ",
        );
    }

    #[test]
    fn workers_have_one_log_together() {
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
}
