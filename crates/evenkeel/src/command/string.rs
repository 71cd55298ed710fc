//! Strings.

use super::{Call, Command, Group, Keys, at_least, exactly, read, write};
use crate::error::Done;
use evenkeel_store::Expire;

#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[
    read ("GET", exactly(2),  Keys::FIRST, Group::String, get).fast(),
    write("SET", at_least(3), Keys::FIRST, Group::String, set).grows(),
];

/// GET key
fn get(call: &mut Call<'_, '_>) -> Done {
    match call.held.string(&call.keys[0])? {
        Some(value) => call.reply.string(value),
        None => call.reply.null(),
    }
    Ok(())
}

/// SET key value
fn set(call: &mut Call<'_, '_>) -> Done {
    call.held.set_string(&call.keys[0], call.args.at(2), Expire::Clear);
    call.reply.ok();
    Ok(())
}
