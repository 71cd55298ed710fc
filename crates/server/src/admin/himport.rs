//! HIMPORT: many hashes with the same fields, whose names a client sends once.
//!
//! A fieldset belongs to its connection, or to a run of a script, and ends with it. A hash made from it is a
//! hash like any other. (Redis keeps the names once for all such hashes, and calls their form
//! `template-listpack` or `template-array`.)

use std::collections::HashSet;

use super::{
    Command, Flags, Group, Keys, ServerCall, ServerHandler, at_least, container, exactly, session, write,
};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::hash;

const GROUP: Group = Group::Hash;

/// They are commands like those on data, in scripts and while data are loaded.
const OF_SESSION: Flags = Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("HIMPORT", GROUP, &[
        session("HIMPORT|DISCARD",    exactly(3),  GROUP, discard    ).without(OF_SESSION),
        session("HIMPORT|DISCARDALL", exactly(2),  GROUP, discard_all).without(OF_SESSION),
        session("HIMPORT|PREPARE",    at_least(4), GROUP, prepare    ).without(OF_SESSION).grows(),
        write  ("HIMPORT|SET",        at_least(5), Keys::SECOND, GROUP, set).grows(),
    ]),
];

/// HIMPORT PREPARE fieldset-name field [field ...]
fn prepare(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let mut seen = HashSet::new();
    if !args.from(3).all(|field| seen.insert(field)) {
        return Err(Error::text("ERR duplicate field name in fieldset"));
    }
    let fields = args.from(3).map(Box::from).collect();
    call.session.change_fieldsets(|fieldsets| fieldsets.set(args.at(2), fields));
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// HIMPORT DISCARD fieldset-name
fn discard(call: &mut ServerCall<'_, '_>) -> Done {
    let name = call.base.args.at(2);
    let removed = call.session.change_fieldsets(|fieldsets| fieldsets.remove(name));
    call.base.reply.int(i64::from(removed));
    Ok(Flow::Replied)
}

/// HIMPORT DISCARDALL
fn discard_all(call: &mut ServerCall<'_, '_>) -> Done {
    let removed = call.session.take_fieldsets().map_or(0, |fieldsets| fieldsets.len());
    call.session.put_fieldsets(None);
    call.base.reply.int(removed as i64);
    Ok(Flow::Replied)
}

/// HIMPORT SET key fieldset-name value [value ...]
fn set(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let fields = call.session.fieldset(args.at(3)).ok_or(Error::text("ERR no such fieldset"))?;
    if fields.len() != args.len() - 4 {
        return Err(Error::text("ERR value count does not match the number of fields in the fieldset"));
    }
    hash::import(&mut call.base, fields, 4)
}

#[cfg(test)]
mod tests;
