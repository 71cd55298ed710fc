//! COMMAND: the server's commands, described for clients.

use super::{Args, Command, Group, ServerCall, ServerHandler, at_least, exactly, session};
use evenkeel_command::Spec;
use evenkeel_command::docs::{self, Argument, Doc};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::reply::Reply;
use evenkeel_command::specs::{self, Find, KeySpec};
use evenkeel_command::table::table;
use evenkeel_runtime::glob;

const GROUP: Group = Group::Connection;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("COMMAND", at_least(1), GROUP, all).scriptable().with_subcommands(&[
        session("COMMAND|COUNT",           exactly(2),  GROUP, count             ).scriptable(),
        session("COMMAND|DOCS",            at_least(2), GROUP, docs_of           ).scriptable(),
        session("COMMAND|GETKEYS",         at_least(3), GROUP, get_keys          ).scriptable(),
        session("COMMAND|GETKEYSANDFLAGS", at_least(3), GROUP, get_keys_and_flags).scriptable(),
        session("COMMAND|HELP",            exactly(2),  GROUP, help              ).scriptable(),
        session("COMMAND|INFO",            at_least(2), GROUP, info              ).scriptable(),
        session("COMMAND|LIST",            at_least(2), GROUP, list              ).scriptable(),
    ]),
];

/// Commands in the order of the table, without subcommands.
fn commands() -> impl Iterator<Item = &'static Spec> + Clone {
    table().rows().iter().copied().filter(|row| !row.name.contains('|'))
}

fn find(call: &ServerCall<'_, '_>, name: &[u8]) -> Option<&'static Spec> {
    call.server.table.find_full(name).map(|id| table().row(id))
}

/// COMMAND
fn all(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.array(commands().count());
    commands().for_each(|row| describe(call.base.reply, row));
    Ok(Flow::Replied)
}

/// COMMAND COUNT
fn count(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.int(commands().count() as i64);
    Ok(Flow::Replied)
}

/// COMMAND HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "COMMAND");
    Ok(Flow::Replied)
}

/// COMMAND INFO [command-name ...]
fn info(call: &mut ServerCall<'_, '_>) -> Done {
    let names = call.base.args.from(2);
    if names.len() == 0 {
        return all(call);
    }
    call.base.reply.array(names.len());
    for name in names {
        match find(call, name) {
            Some(row) => describe(call.base.reply, row),
            None => call.base.reply.null(),
        }
    }
    Ok(Flow::Replied)
}

fn describe(reply: &mut Reply, row: &'static Spec) {
    let specs = specs::key_specs(row);
    let (first, last, step) = specs::key_range(&specs);
    reply.array(10);
    reply.bulk(row.lower_name().as_bytes());
    reply.int(row.arity.as_i32().into());
    set_of_words(reply, &specs::flags(row, &specs));
    [first, last, step].iter().for_each(|number| reply.int(i64::from(*number)));
    set_of_words(reply, &specs::categories(row));
    let tips = specs::tips(row);
    reply.set(tips.len());
    tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(specs.len());
    specs.iter().for_each(|spec| key_spec(reply, spec));
    let subcommands = table().subcommands(row);
    reply.array(subcommands.len());
    subcommands.iter().for_each(|sub| describe(reply, sub));
}

fn set_of_words(reply: &mut Reply, words: &[&str]) {
    reply.set(words.len());
    words.iter().for_each(|word| reply.simple(word));
}

fn key_spec(reply: &mut Reply, spec: &KeySpec) {
    reply.map(3 + usize::from(!spec.notes.is_empty()));
    if !spec.notes.is_empty() {
        reply.bulk(b"notes");
        reply.bulk(spec.notes.as_bytes());
    }
    reply.bulk(b"flags");
    set_of_words(reply, &spec.flags.split(' ').collect::<Vec<_>>());
    match spec.find {
        Find::HalfAfter(word) => after_word(reply, word, spec.first),
        _ if !spec.keyword.is_empty() => after_word(reply, spec.keyword, spec.first),
        Find::Beyond | Find::Anywhere => step(reply, "begin_search", "unknown", &[]),
        _ => step(reply, "begin_search", "index", &[("index", spec.first)]),
    }
    match spec.find {
        Find::HalfAfter(_) => {
            step(reply, "find_keys", "range", &[("lastkey", -1), ("keystep", 1), ("limit", 2)]);
        }
        Find::Beyond | Find::Anywhere => step(reply, "find_keys", "unknown", &[]),
        Find::Range { last, step: every } => {
            step(reply, "find_keys", "range", &[("lastkey", last), ("keystep", every), ("limit", 0)]);
        }
        Find::Counted { step: every } => {
            step(reply, "find_keys", "keynum", &[("keynumidx", 0), ("firstkey", 1), ("keystep", every)]);
        }
    }
}

/// Writes the first step as a search for a word from an argument on.
fn after_word(reply: &mut Reply, word: &str, first: i16) {
    step_start(reply, "begin_search", "keyword", 2);
    pair(reply, "keyword", word);
    step_number(reply, "startfrom", first);
}

/// Writes either of the two steps by which a client finds keys.
fn step(reply: &mut Reply, name: &str, kind: &str, spec: &[(&str, i16)]) {
    step_start(reply, name, kind, spec.len());
    spec.iter().for_each(|(name, value)| step_number(reply, name, *value));
}

/// Writes a step up to its `len` pairs.
fn step_start(reply: &mut Reply, name: &str, kind: &str, len: usize) {
    reply.bulk(name.as_bytes());
    reply.map(2);
    pair(reply, "type", kind);
    reply.bulk(b"spec");
    reply.map(len);
}

fn step_number(reply: &mut Reply, name: &str, value: i16) {
    reply.bulk(name.as_bytes());
    reply.int(value.into());
}

/// COMMAND LIST [FILTERBY MODULE module-name | ACLCAT category | PATTERN pattern]
fn list(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let every =
        || commands().flat_map(|row| std::iter::once(row).chain(table().subcommands(row).iter().copied()));
    let chosen: Vec<&Spec> = match args.len() {
        2 => every().collect(),
        5 if args.is(2, "FILTERBY") => {
            let wanted = args.at(4);
            match args.word(3).as_bytes() {
                b"MODULE" => Vec::new(),
                b"ACLCAT" => every().filter(|row| is_in_category(row, wanted)).collect(),
                b"PATTERN" => {
                    every().filter(|row| glob::matches(wanted, row.lower_name().as_bytes(), true)).collect()
                }
                _ => return Err(Error::Syntax),
            }
        }
        _ => return Err(Error::Syntax),
    };
    call.base.reply.array(chosen.len());
    chosen.iter().for_each(|row| call.base.reply.bulk(row.lower_name().as_bytes()));
    Ok(Flow::Replied)
}

/// Categories are given without their `@`. A container has none: only its subcommands can be called.
fn is_in_category(row: &Spec, wanted: &[u8]) -> bool {
    !specs::is_container(row)
        && specs::categories(row).iter().any(|category| category.as_bytes()[1..].eq_ignore_ascii_case(wanted))
}

/// COMMAND GETKEYS command [arg ...]
fn get_keys(call: &mut ServerCall<'_, '_>) -> Done {
    let found = keys_of_call(call)?;
    call.base.reply.array(found.len());
    found.iter().for_each(|(key, _)| call.base.reply.bulk(key));
    Ok(Flow::Replied)
}

/// COMMAND GETKEYSANDFLAGS command [arg ...]
fn get_keys_and_flags(call: &mut ServerCall<'_, '_>) -> Done {
    let found = keys_of_call(call)?;
    call.base.reply.array(found.len());
    for (key, flags) in found {
        call.base.reply.array(2);
        call.base.reply.bulk(key);
        set_of_words(
            call.base.reply,
            &flags.split(' ').filter(|flag| *flag != "variable_flags").collect::<Vec<_>>(),
        );
    }
    Ok(Flow::Replied)
}

/// Returns the keys of the call that follows the subcommand's name, and the use of each.
fn keys_of_call<'a>(call: &ServerCall<'a, '_>) -> Result<Vec<(&'a [u8], &'static str)>, Error> {
    let args: Args<'a> = call.base.args.skip(2);
    let id = call.server.table.find_call(&args).ok_or(Error::text("ERR Invalid command specified"))?;
    let row = table().row(id);
    if row.keys.is_none() {
        return Err(Error::text("ERR The command has no key arguments"));
    }
    if !row.arity.admits(args.len()) {
        return Err(Error::text("ERR Invalid number of arguments specified for command"));
    }
    let mut found = Vec::new();
    if !specs::for_each_key(row, &args, |index, flags| found.push((args.at(index), flags))) {
        if row.runs_scripts() {
            return Ok(Vec::new()); // it needs no key
        }
        return Err(Error::text("ERR Invalid arguments specified for command"));
    }
    Ok(found)
}

/// COMMAND DOCS [command-name ...]: unknown names are left out.
fn docs_of(call: &mut ServerCall<'_, '_>) -> Done {
    let names = call.base.args.from(2);
    let found: Vec<(&'static Spec, &'static Doc)> = if names.len() == 0 {
        commands().filter_map(with_doc).collect()
    } else {
        names.filter_map(|name| find(call, name)).filter_map(with_doc).collect()
    };
    call.base.reply.map(found.len());
    for (row, doc) in found {
        call.base.reply.bulk(row.lower_name().as_bytes());
        describe_doc(call.base.reply, row, doc);
    }
    Ok(Flow::Replied)
}

fn with_doc(row: &'static Spec) -> Option<(&'static Spec, &'static Doc)> {
    docs::find(row.name).map(|doc| (row, doc))
}

fn describe_doc(reply: &mut Reply, row: &'static Spec, doc: &Doc) {
    let (flags, arguments) = (doc.doc_flags(), doc.arguments());
    let subcommands: Vec<_> = table().subcommands(row).iter().copied().filter_map(with_doc).collect();
    let lines = [
        ("summary", doc.summary),
        ("since", doc.since),
        ("group", doc.group),
        ("complexity", doc.complexity),
    ];
    let optional = [!flags.is_empty(), !arguments.is_empty(), !subcommands.is_empty()];
    let deprecated = if doc.deprecated.is_some() { 2 } else { 0 };
    reply.map(lines.len() + deprecated + optional.iter().filter(|is_there| **is_there).count());
    lines.iter().for_each(|(name, text)| pair(reply, name, text));
    if !flags.is_empty() {
        reply.bulk(b"doc_flags");
        set_of_words(reply, flags);
    }
    if let Some(deprecated) = &doc.deprecated {
        pair(reply, "deprecated_since", deprecated.since);
        pair(reply, "replaced_by", deprecated.replaced_by);
    }
    if !arguments.is_empty() {
        reply.bulk(b"arguments");
        describe_arguments(reply, &arguments);
    }
    if !subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(subcommands.len());
        for (row, doc) in subcommands {
            reply.bulk(row.lower_name().as_bytes());
            describe_doc(reply, row, doc);
        }
    }
}

fn pair(reply: &mut Reply, name: &str, value: &str) {
    reply.bulk(name.as_bytes());
    reply.bulk(value.as_bytes());
}

fn describe_arguments(reply: &mut Reply, arguments: &[Argument]) {
    reply.array(arguments.len());
    for argument in arguments {
        describe_argument(reply, argument);
    }
}

fn describe_argument(reply: &mut Reply, argument: &Argument) {
    let flags = [
        (argument.optional, "optional"),
        (argument.multiple, "multiple"),
        (argument.multiple_token, "multiple_token"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
    let there = [
        argument.display_text.is_some(),
        argument.key_spec_index.is_some(),
        argument.token.is_some(),
        !flags.is_empty(),
        !argument.arguments.is_empty(),
    ];
    reply.map(2 + there.iter().filter(|is_there| **is_there).count());
    pair(reply, "name", &argument.name);
    pair(reply, "type", argument.kind.name());
    if let Some(text) = &argument.display_text {
        pair(reply, "display_text", text);
    }
    if let Some(index) = argument.key_spec_index {
        reply.bulk(b"key_spec_index");
        reply.int(index as i64);
    }
    if let Some(token) = &argument.token {
        pair(reply, "token", token);
    }
    if !flags.is_empty() {
        reply.bulk(b"flags");
        set_of_words(reply, &flags);
    }
    if !argument.arguments.is_empty() {
        reply.bulk(b"arguments");
        describe_arguments(reply, &argument.arguments);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{World, check};

    #[test]
    fn command_info_matches_redis() {
        let key = "\"begin_search\", [\"type\", \"index\", \"spec\", [\"index\", :1]], \"find_keys\", \
                   [\"type\", \"range\", \"spec\", [\"lastkey\", :0, \"keystep\", :1, \"limit\", :0]]";
        let word = "\"begin_search\", [\"type\", \"keyword\", \"spec\", [\"keyword\", \"STREAMS\", \
                    \"startfrom\", :1]], \"find_keys\", [\"type\", \"range\", \"spec\", [\"lastkey\", :-1, \
                    \"keystep\", :1, \"limit\", :2]]";
        check(&format!(
            "
            > COMMAND INFO get
            < [[\"get\", :2, [readonly, fast], :1, :1, :1, [@read, @string, @fast], [], [[\"flags\", [RO, \
                access], {key}]], []]]
            > COMMAND INFO rename
            < [[\"rename\", :3, [write], :1, :2, :1, [@keyspace, @write, @slow], [], [*], []]]
            > COMMAND INFO bitop
            < [[\"bitop\", :-4, [write, denyoom], :2, :-1, :1, [@write, @bitmap, @slow], [], [*], []]]
            > COMMAND INFO config|get
            < [[\"config|get\", :-3, [admin, noscript, loading, stale], :0, :0, :0, [@admin, @slow, \
                @dangerous], [], [], []]]
            > COMMAND INFO xread
            < [[\"xread\", :-4, [readonly, blocking, movablekeys], :0, :0, :0, [@read, @stream, @slow, \
                @blocking], [], [[\"flags\", [RO, access], {word}]], []]]
            > COMMAND INFO sort
            < [[\"sort\", :-2, [write, denyoom, movablekeys], :1, :1, :1, [@write, @set, @sortedset, @list, \
                @slow, @dangerous], [], [*, *, *], []]]
            > COMMAND INFO get|x nosuch < [(nil), (nil)]
            > COMMAND INFO memory       < [[\"memory\", :-2, [], :0, :0, :0, [@slow], [], [], [*]]]
        "
        ));
    }

    #[test]
    fn command_list_filters() {
        check(
            "
            > COMMAND LIST FILTERBY ACLCAT nosuch    < []
            > COMMAND LIST FILTERBY MODULE nosuch    < []
            > COMMAND LIST FILTERBY PATTERN mse*nx   < [\"msetnx\"]
            > COMMAND LIST FILTERBY PATTERN *|usage  < [\"memory|usage\"]
            > COMMAND LIST FILTERBY COLOUR blue      < -ERR syntax error
            > COMMAND LIST blue                      < -ERR syntax error
            > COMMAND COUNT x
            < -ERR wrong number of arguments for 'command|count' command
        ",
        );
    }

    #[test]
    fn command_getkeys_returns_the_keys() {
        check(
            "
            > COMMAND GETKEYS mset a 1 b 2           < [\"a\", \"b\"]
            > COMMAND GETKEYS copy a b db 3          < [\"a\", \"b\"]
            > COMMAND GETKEYS zunionstore d 0 a      < -ERR Invalid arguments specified for command
            > COMMAND GETKEYS sintercard 0 a         < -ERR Invalid arguments specified for command
            > COMMAND GETKEYS eval x 0 a             < []
            > COMMAND GETKEYS memory usage k         < [\"k\"]
            > COMMAND GETKEYS nosuch a               < -ERR Invalid command specified
            > COMMAND GETKEYS set k                  < -ERR Invalid number of arguments specified for command
            > COMMAND GETKEYS config get x           < -ERR The command has no key arguments
            > COMMAND GETKEYS sort a                 < [\"a\"]
            > COMMAND GETKEYS sort a STORE b BY c LIMIT 0 1 STORE d DESC < [\"a\", \"d\"]
            > COMMAND GETKEYS sort_ro a BY c         < [\"a\"]
            > COMMAND GETKEYSANDFLAGS sort a STORE b < [[\"a\", [RO, access]], [\"b\", [OW, update]]]
            > COMMAND GETKEYSANDFLAGS set k v        < [[\"k\", [OW, update]]]
            > COMMAND GETKEYSANDFLAGS set k v GET    < [[\"k\", [RW, access, update]]]
            > COMMAND GETKEYSANDFLAGS bitfield k GET u8 0    < [[\"k\", [RO, access]]]
            > COMMAND GETKEYSANDFLAGS bitfield k SET u8 0 1  < [[\"k\", [RW, access, update]]]
            > COMMAND GETKEYS migrate h 1 k 0 10      < [\"k\"]
            > COMMAND GETKEYS migrate h 1 '' 0 10     < [\"\"]
            > COMMAND GETKEYS migrate h 1 '' 0 10 copy keys              < [\"\"]
            > COMMAND GETKEYS migrate h 1 '' 0 10 auth2 keys x keys a b  < [\"a\", \"b\"]
            > COMMAND GETKEYS migrate h 1 k 0 10 keys a
            < -ERR Invalid arguments specified for command
            > COMMAND GETKEYSANDFLAGS migrate h 1 '' 0 10 keys a         < [[\"a\", [RW, access, delete]]]
            > COMMAND GETKEYSANDFLAGS rename a b     < [[\"a\", [RW, access, delete]], [\"b\", [OW, update]]]
        ",
        );
        // As Valkey; Redis 7.0 returns the first STORE, and uses the last.
        World::new().check(
            "
            > COMMAND GETKEYS georadius a 1 2 3 m STORE b STORE c            < [\"a\", \"c\"]
            > COMMAND GETKEYS georadius a STORE 2 3 m STORE b STOREDIST c    < [\"a\", \"c\"]
            > COMMAND GETKEYSANDFLAGS georadiusbymember a m 3 m STOREDIST a STORE b
            < [[\"a\", [RO, access]], [\"b\", [OW, update]]]
            > COMMAND GETKEYS msetex 2 a 1 b 2 NX    < [\"a\", \"b\"]
            > COMMAND GETKEYS msetex 9 a 1 b 2       < -ERR Invalid arguments specified for command
            > COMMAND GETKEYS msetex x a 1           < -ERR Invalid arguments specified for command
        ",
        );
    }

    #[test]
    fn every_command_has_its_documentation() {
        let mut world = World::new();
        for row in super::commands().filter(|row| !row.name.starts_with("TEST.")) {
            let reply = world.run(&format!("COMMAND DOCS {}", row.lower_name()));
            assert!(reply.contains("\"summary\""), "{}: {reply}", row.name);
        }
        world.check("> COMMAND DOCS nosuch < []");
    }
}
