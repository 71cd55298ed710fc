//! ACL: users and their permissions. docs/acl.md says when a change takes effect.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Args, Command, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session};
use crate::executor::permission;
use evenkeel_acl::{self as acl, CATEGORIES, Category, DEFAULT, Denied, Selector, User, Users};
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::pubsub::SubscriptionKind;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Work;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::table::table;
use evenkeel_runtime::random::fill_random;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("ACL", Group::Server, &[
        session("ACL|CAT",     at_least(2), Group::Server, categories),
        session("ACL|DELUSER", at_least(3), Group::Server, delete    ).admin(),
        session("ACL|DRYRUN",  at_least(4), Group::Server, dry_run   ).admin(),
        session("ACL|GENPASS", at_least(2), Group::Server, password  ),
        session("ACL|GETUSER", exactly(3),  Group::Server, get       ).admin(),
        session("ACL|HELP",    exactly(2),  Group::Server, help      ).scriptable(),
        session("ACL|LIST",    exactly(2),  Group::Server, list      ).admin(),
        session("ACL|LOAD",    exactly(2),  Group::Server, load      ).admin(),
        session("ACL|LOG",     at_least(2), Group::Server, log       ).admin(),
        session("ACL|SAVE",    exactly(2),  Group::Server, save      ).admin(),
        session("ACL|SETUSER", at_least(3), Group::Server, set       ).admin(),
        session("ACL|USERS",   exactly(2),  Group::Server, users     ).admin(),
        session("ACL|WHOAMI",  exactly(2),  Group::Server, who_am_i  ),
    ]),
];

/// ACL HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "ACL");
    Ok(Flow::Replied)
}

/// ACL CAT [category]
fn categories(call: &mut ServerCall<'_, '_>) -> Done {
    match call.base.args.len() {
        2 => {
            call.base.reply.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|name| call.base.reply.bulk(&name.as_bytes()[1..]));
        }
        3 => {
            let name = call.base.args.at(2);
            let unknown = || Error::Bytes([b"ERR Unknown category '", name, b"'"].concat());
            let category = Category::named(name).ok_or_else(unknown)?;
            let names: Vec<String> = category.commands().map(|id| table().row(id).lower_name()).collect();
            call.base.reply.array(names.len());
            names.iter().for_each(|name| call.base.reply.bulk(name.as_bytes()));
        }
        _ => return Err(call.wrong_form("ACL")),
    }
    Ok(Flow::Replied)
}

/// ACL WHOAMI
fn who_am_i(call: &mut ServerCall<'_, '_>) -> Done {
    match call.session.access.who() {
        Some(who) => call.base.reply.bulk(&who.name),
        None => call.base.reply.null(),
    }
    Ok(Flow::Replied)
}

/// ACL USERS
fn users(call: &mut ServerCall<'_, '_>) -> Done {
    let users = call.server.acl.users();
    call.base.reply.array(users.len());
    users.keys().for_each(|name| call.base.reply.bulk(name));
    Ok(Flow::Replied)
}

/// ACL LIST
fn list(call: &mut ServerCall<'_, '_>) -> Done {
    let users = call.server.acl.users();
    call.base.reply.array(users.len());
    acl::lines(&users).for_each(|line| call.base.reply.bulk(&line));
    Ok(Flow::Replied)
}

/// ACL GETUSER username
fn get(call: &mut ServerCall<'_, '_>) -> Done {
    let Some(user) = call.server.acl.user(call.base.args.at(2)) else {
        call.base.reply.null();
        return Ok(Flow::Replied);
    };
    let reply = &mut *call.base.reply;
    reply.map(7);
    reply.bulk(b"flags");
    reply.set(user.flags().len());
    user.flags().iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    user.passwords().for_each(|digest| reply.bulk(digest.as_bytes()));
    let (own, others) = user.selectors().split_first().expect("it has its own");
    describe(call, own);
    call.base.reply.bulk(b"selectors");
    call.base.reply.array(others.len());
    for selector in others {
        call.base.reply.map(4);
        describe(call, selector);
    }
    Ok(Flow::Replied)
}

fn describe(call: &mut ServerCall<'_, '_>, selector: &Selector) {
    let parts = [
        ("commands", selector.commands_text()),
        ("keys", selector.keys_text()),
        ("channels", selector.channels_text()),
        ("databases", selector.databases_text()),
    ];
    for (name, text) in parts {
        call.base.reply.bulk(name.as_bytes());
        call.base.reply.bulk(&text);
    }
}

/// ACL SETUSER username [rule [rule ...]]
fn set(call: &mut ServerCall<'_, '_>) -> Done {
    let (server, name) = (call.server, call.base.args.at(2));
    if acl::has_spaces(name) {
        return Err(Error::text("ERR Usernames can't contain spaces or null characters"));
    }
    let rules = acl::join_selectors(call.base.args.from(3)).map_err(|first| {
        let start = b"ERR Unmatched parenthesis in acl selector starting at '";
        Error::Bytes([start, first, b"'."].concat())
    })?;
    let all_channels = acl::all_channels_for_new(&server.core.settings());
    let changed = server.acl.change(|users, next| {
        let before = users.get(name).cloned();
        let mut user = match &before {
            Some(user) => User::clone(user),
            None => {
                *next += 1;
                User::new(name, *next - 1, all_channels)
            }
        };
        for rule in &rules {
            user.apply(rule, all_channels).map_err(|error| {
                let start = b"ERR Error in ACL SETUSER modifier '";
                Error::Bytes([start, &rule[..], b"': ", error.as_bytes()].concat())
            })?;
        }
        let user = Arc::new(user);
        users.insert(name.into(), user.clone());
        Ok::<_, Error>(before.map(|_| user))
    })?;
    if let Some(user) = changed {
        close_deaf(call, &user);
    }
    call.reply_in_force(|reply| reply.ok())
}

/// Closes the clients of a user that listen to a channel which the user may no longer use.
fn close_deaf(call: &mut ServerCall<'_, '_>, user: &User) {
    if user.may_use_all_channels() {
        return;
    }
    let mut found: Vec<Arc<ClientInfo>> = Vec::new();
    for kind in [SubscriptionKind::Channel, SubscriptionKind::Pattern, SubscriptionKind::Shard] {
        call.server.hub.pubsub.each_subscription(kind, |name, client| {
            let is_its_own = client.user.lock().as_ref().is_some_and(|who| who.is(&user.who));
            if is_its_own && !user.may_listen_to(name, kind == SubscriptionKind::Pattern) {
                found.push(client.clone());
            }
        });
    }
    found.sort_unstable_by_key(|client| client.id);
    found.dedup_by_key(|client| client.id);
    close(call, found);
}

/// Closes connections; the caller's own after its reply is sent.
fn close(call: &mut ServerCall<'_, '_>, mut clients: Vec<Arc<ClientInfo>>) {
    let (own, others) = (call.session.client.id, clients.len());
    clients.retain(|client| client.id != own);
    call.session.closing |= clients.len() != others;
    if !clients.is_empty() {
        call.server.kill(&clients);
    }
}

/// Closes connections whose user is no longer the current user of its name.
fn close_orphans(call: &mut ServerCall<'_, '_>, users: &Users) {
    let mut clients = call.server.hub.clients.list();
    clients.retain(|client| {
        let who = client.user.lock();
        who.as_ref().is_some_and(|who| !users.get(&who.name).is_some_and(|user| who.is(&user.who)))
    });
    close(call, clients);
}

/// ACL DELUSER username [username ...]
fn delete(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    if args.from(2).any(|name| name == DEFAULT) {
        return Err(Error::text("ERR The 'default' user cannot be removed"));
    }
    let deleted = call.server.acl.change(|users, _| {
        Ok::<_, Infallible>(args.from(2).filter(|name| users.remove(*name).is_some()).count())
    });
    let deleted = deleted.unwrap_or_else(|never| match never {});
    if deleted > 0 {
        let users = call.server.acl.users();
        close_orphans(call, &users);
    }
    call.reply_in_force(move |reply| reply.int(deleted as i64))
}

/// ACL DRYRUN username command [arg ...]
fn dry_run(call: &mut ServerCall<'_, '_>) -> Done {
    let (name, args): (&[u8], Args<'_>) = (call.base.args.at(2), call.base.args.skip(3));
    let not_found =
        |what: &[u8], name: &[u8]| Error::Bytes([b"ERR ", what, b" '", name, b"' not found"].concat());
    let user = call.server.acl.user(name).ok_or_else(|| not_found(b"User", name))?;
    let id = call.server.table.find_call(&args).ok_or_else(|| not_found(b"Command", args.at(0)))?;
    let row = table().row(id);
    if !row.arity.admits(args.len()) {
        return Err(Error::Arity(row.name));
    }
    let databases = permission::databases_of(call.session, call.server.core.keyspace.databases());
    let Err(denied) = user.check(id, &args, databases) else {
        call.base.reply.ok();
        return Ok(Flow::Replied);
    };
    let name = row.lower_name();
    let [start, object, end]: [&[u8]; 3] = match denied {
        Denied::Command => [b"run the '", name.as_bytes(), b"' command"],
        Denied::Key(at) => [b"access the '", args.at(at), b"' key"],
        Denied::Channel(at) => [b"access the '", args.at(at), b"' channel"],
        // As Valkey: the name of the command stands for its client's database.
        Denied::Database(at) => [b"access database ", args.at(at), b""],
    };
    let who = &user.who.name[..];
    call.base.reply.bulk(&[b"User ", who, b" has no permissions to ", start, object, end].concat());
    Ok(Flow::Replied)
}

/// ACL GENPASS [bits]
fn password(call: &mut ServerCall<'_, '_>) -> Done {
    const TEXT: &str = "ERR ACL GENPASS argument must be the number of bits for the output password, a \
                        positive number up to 4096";
    let bits = match call.base.args.len() {
        2 => 256,
        3 => call.base.args.int(2)?,
        _ => return Err(call.wrong_form("ACL")),
    };
    if !(1..=4096).contains(&bits) {
        return Err(Error::text(TEXT));
    }
    let digits = (bits as usize).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    fill_random(&mut bytes);
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    call.base.reply.bulk(&text.as_bytes()[..digits]);
    Ok(Flow::Replied)
}

/// ACL LOG [count | RESET]
fn log(call: &mut ServerCall<'_, '_>) -> Done {
    let log = &call.server.acl.log;
    let count = match call.base.args.len() {
        2 => 10,
        3 if call.base.args.is(2, "RESET") => {
            log.clear();
            call.base.reply.ok();
            return Ok(Flow::Replied);
        }
        3 => usize::try_from(call.base.args.int(2)?).unwrap_or(0),
        _ => return Err(call.wrong_form("ACL")),
    };
    let entries = log.latest(count);
    let (now_ms, reply) = (call.now_ms(), &mut *call.base.reply);
    reply.array(entries.len());
    for entry in entries {
        let last = &entry.last;
        reply.map(10);
        reply.bulk(b"count");
        reply.int(entry.count as i64);
        let texts: [(&str, &[u8]); 4] = [
            ("reason", last.reason.name().as_bytes()),
            ("context", last.context.as_bytes()),
            ("object", &last.object),
            ("username", &last.user),
        ];
        for (name, text) in texts {
            reply.bulk(name.as_bytes());
            reply.bulk(text);
        }
        reply.bulk(b"age-seconds");
        reply.double(now_ms.saturating_sub(last.now_ms) as f64 / 1000.0);
        reply.bulk(b"client-info");
        reply.bulk(&last.client);
        let numbers = [
            ("entry-id", entry.id),
            ("timestamp-created", entry.created_ms),
            ("timestamp-last-updated", last.now_ms),
        ];
        for (name, number) in numbers {
            reply.bulk(name.as_bytes());
            reply.int(number as i64);
        }
    }
    Ok(Flow::Replied)
}

fn file(call: &ServerCall<'_, '_>) -> Result<PathBuf, Error> {
    const TEXT: &str = "ERR This instance is not configured to use an ACL file. You may want to specify \
                        users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have \
                        a configuration file set) in order to store users in the configuration.";
    call.server.core.settings().aclfile.clone().ok_or(Error::text(TEXT))
}

/// ACL LOAD
///
/// All or nothing. It reads a file while this worker's clients wait.
fn load(call: &mut ServerCall<'_, '_>) -> Done {
    let (server, path) = (call.server, file(call)?);
    let loaded = call.base.guard.outside_gate(|| server.acl.load(&path, &server.core.settings()));
    loaded.map_err(|error| Error::text(format!("ERR {error}")))?;
    let users = server.acl.users();
    close_orphans(call, &users);
    users.values().for_each(|user| close_deaf(call, user));
    call.reply_in_force(|reply| reply.ok())
}

/// ACL SAVE, as CONFIG REWRITE does it.
fn save(call: &mut ServerCall<'_, '_>) -> Done {
    let (server, path) = (call.server.clone(), file(call)?);
    call.offload_io(Work::waits_for_disk(move || {
        server.acl.save(&path).map_err(|error| {
            log::warn!("Error saving the ACL file {}: {error}", path.display());
            Error::text(
                "ERR There was an error trying to save the ACLs. Please check the server logs for more \
                 information",
            )
        })
    }))
}

#[cfg(test)]
mod tests;
