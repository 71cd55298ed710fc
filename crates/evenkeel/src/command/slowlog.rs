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
