//! XGROUP and XACK: creating and removing groups and consumers, and acknowledging entries.

use evenkeel_store::collection::stream::{Group, Stream, StreamId};
use evenkeel_store::{Concerns, Edit};

use super::id;
use crate::class::STREAM;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Args, Call, docs};

/// The options behind the ID.
#[derive(Default)]
struct GroupOptions {
    make_stream: bool,
    entries_read: Option<u64>,
}

impl GroupOptions {
    fn parse(args: &Args<'_>, may_make: bool) -> Result<GroupOptions, Error> {
        let (mut options, mut at) = (GroupOptions::default(), 5);
        while at < args.len() {
            match args.word(at).as_bytes() {
                b"MKSTREAM" if may_make => {
                    options.make_stream = true;
                    at += 1;
                }
                b"ENTRIESREAD" if at + 1 < args.len() => {
                    options.entries_read =
                        match args.int(at + 1)? {
                            -1 => None,
                            read => Some(u64::try_from(read).map_err(|_| {
                                Error::text("ERR value for ENTRIESREAD must be positive or -1")
                            })?),
                        };
                    at += 2;
                }
                _ => return Err(super::bad_subcommand(args, "XGROUP")),
            }
        }
        Ok(options)
    }
}

/// Each option once: Redis counts arguments, and does so after checking that the key exists.
fn check_count(args: &Args<'_>, options_max: usize) -> Result<(), Error> {
    if args.len() <= 5 + options_max { Ok(()) } else { Err(super::bad_subcommand(args, "XGROUP")) }
}

/// XGROUP CREATE key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]
pub(super) fn create(call: &mut Call<'_, '_>) -> Done {
    let options = GroupOptions::parse(&call.args, true)?;
    let (key, name) = (&call.keys[0], call.args.at(3));
    let found = call.guard.peek_collection::<Stream>(key)?;
    let last_id = match &found {
        Some(stream) => stream.log().last_id(),
        None if options.make_stream => StreamId::MIN,
        None => return Err(key_needed()),
    };
    check_count(&call.args, 3)?;
    let is_new = found.is_none();
    let at = position(&call.args, last_id, id::strict)?;
    if found.is_some_and(|stream| stream.group(name).is_some()) {
        return Err(Error::text("BUSYGROUP Consumer Group name already exists"));
    }
    call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
        edit.add_group(name, Group::new(at, options.entries_read));
        edit.changes = 1;
        // A new group concerns no listener, a new key does.
        edit.concerns = if is_new { Concerns::Everybody } else { Concerns::Nobody };
    })?;
    call.say(key, STREAM, "xgroup-create");
    call.reply.ok();
    Ok(Flow::Replied)
}

/// Returns the ID from which a group reads.
fn position(
    args: &Args<'_>,
    last_id: StreamId,
    parse: fn(&[u8], u64) -> Result<StreamId, Error>,
) -> Result<StreamId, Error> {
    match args.at(4) {
        b"$" => Ok(last_id),
        text => parse(text, 0),
    }
}

fn key_needed() -> Error {
    Error::text(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the \
         MKSTREAM option to create an empty stream automatically.",
    )
}

/// Checks that the stream and the group exist; returns the stream's last ID.
fn find_group(call: &mut Call<'_, '_>) -> Result<StreamId, Error> {
    let stream = call.guard.peek_collection::<Stream>(&call.keys[0])?.ok_or_else(key_needed)?;
    match stream.group(call.args.at(3)) {
        Some(_) => Ok(stream.log().last_id()),
        None => Err(super::no_group(&call.args, 3)),
    }
}

/// Changes the group, which exists.
fn edit_group<R>(
    call: &mut Call<'_, '_>,
    change: impl FnOnce(&mut Edit<'_, Stream>, &[u8]) -> R,
) -> Result<R, Error> {
    let name = call.args.at(3);
    Ok(call.guard.edit(&call.keys[0], |edit: &mut Edit<'_, Stream>| {
        edit.concerns = Concerns::Nobody;
        change(edit, name)
    })?)
}

/// XGROUP SETID key group <id | $> [ENTRIESREAD entries-read]
pub(super) fn setid(call: &mut Call<'_, '_>) -> Done {
    let options = GroupOptions::parse(&call.args, false)?;
    let last_id = find_group(call)?;
    check_count(&call.args, 2)?;
    let at = position(&call.args, last_id, id::loose)?;
    edit_group(call, |edit, name| {
        let (group, _) = edit.group_mut(name).expect("seen above");
        group.set_position(at, options.entries_read);
        edit.changes = 1;
    })?;
    call.say(&call.keys[0], STREAM, "xgroup-setid");
    call.reply.ok();
    Ok(Flow::Replied)
}

/// XGROUP DESTROY key group
pub(super) fn destroy(call: &mut Call<'_, '_>) -> Done {
    call.guard.peek_collection::<Stream>(&call.keys[0])?.ok_or_else(key_needed)?;
    let destroyed = edit_group(call, |edit, name| {
        let cut = edit.remove_group(name);
        let destroyed = cut.is_some();
        cut.into_iter().for_each(|cut| edit.discard(cut));
        // Clients that wait for the group have to be notified.
        (edit.changes, edit.concerns) = (destroyed.into(), Concerns::Waiters);
        destroyed
    })?;
    if destroyed {
        call.say(&call.keys[0], STREAM, "xgroup-destroy");
    }
    call.reply.int(destroyed.into());
    Ok(Flow::Replied)
}

/// XGROUP CREATECONSUMER key group consumer
pub(super) fn create_consumer(call: &mut Call<'_, '_>) -> Done {
    find_group(call)?;
    let (now, consumer) = (call.counts_from_ms(), call.args.at(4));
    let created = edit_group(call, |edit, name| {
        let (group, _) = edit.group_mut(name).expect("seen above");
        let created = group.add_consumer(consumer, now);
        edit.changes = created.into();
        created
    })?;
    if created {
        call.say(&call.keys[0], STREAM, "xgroup-createconsumer");
    }
    call.reply.int(created.into());
    Ok(Flow::Replied)
}

/// XGROUP DELCONSUMER key group consumer
pub(super) fn delete_consumer(call: &mut Call<'_, '_>) -> Done {
    find_group(call)?;
    let consumer = call.args.at(4);
    let removed = edit_group(call, |edit, name| {
        let (group, _) = edit.group_mut(name).expect("seen above");
        let (pending, cut) = group.remove_consumer(consumer)?;
        edit.discard(cut);
        edit.changes = 1;
        Some(pending)
    })?;
    if removed.is_some() {
        call.say(&call.keys[0], STREAM, "xgroup-delconsumer");
    }
    call.reply.int(removed.unwrap_or(0) as i64);
    Ok(Flow::Replied)
}

/// XGROUP HELP
pub(super) fn help(call: &mut Call<'_, '_>) -> Done {
    docs::reply_help(call, "XGROUP");
    Ok(Flow::Replied)
}

/// XACK key group id [id ...]
pub(super) fn xack(call: &mut Call<'_, '_>) -> Done {
    let name = call.args.at(2);
    let found = call.guard.collection::<Stream>(&call.keys[0])?;
    if found.is_none_or(|stream| stream.group(name).is_none()) {
        call.reply.int(0);
        return Ok(Flow::Replied);
    }
    let ids = id::all(&call.args, 3)?;
    let acknowledged = call.guard.edit(&call.keys[0], |edit: &mut Edit<'_, Stream>| {
        let (group, _) = edit.group_mut(name).expect("seen above");
        let acknowledged = ids.iter().map(|id| u64::from(group.forget(*id))).sum();
        (edit.changes, edit.concerns) = (acknowledged, Concerns::Nobody);
        acknowledged
    })?;
    call.reply.int(acknowledged as i64);
    Ok(Flow::Replied)
}
