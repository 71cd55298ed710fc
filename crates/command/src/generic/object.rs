//! OBJECT: the representation of a value.
//!
//! Values have other forms than in Redis. Clients and tests query them all the same, so the answers are
//! Redis' answers for the same value with the same history.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::{Access, Kind, Str, View, evict};

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Call, Command, DataHandler, Flags, Group, Keys, container, docs, exactly, list, read, session};
use evenkeel_config::Settings;

const GROUP: Group = Group::Keyspace;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    container("OBJECT", GROUP, &[
        object ("OBJECT|ENCODING", encoding),
        object ("OBJECT|FREQ",     freq),
        session("OBJECT|HELP",     exactly(2), GROUP, help).scriptable(),
        object ("OBJECT|IDLETIME", idletime),
        object ("OBJECT|REFCOUNT", refcount),
    ]).flags(Flags::NONE),
];

const fn object(name: &'static str, handler: DataHandler) -> Command<DataHandler> {
    read(name, exactly(3), Keys::SECOND, GROUP, handler)
}

/// OBJECT HELP
fn help(call: &mut Call<'_, '_>) -> Done {
    docs::reply_help(call, "OBJECT");
    Ok(Flow::Replied)
}

/// OBJECT ENCODING key
fn encoding(call: &mut Call<'_, '_>) -> Done {
    let settings = call.settings;
    match call.guard.look(&call.keys[0]).map(|view| encoding_of(view, settings)) {
        Some(encoding) => call.reply.bulk(encoding.as_bytes()),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// Returns the form that Valkey would keep a value in, as OBJECT ENCODING names it.
pub fn encoding_of(view: View<'_>, settings: &Settings) -> &'static str {
    match (view.kind(), view.form()) {
        (Kind::String, _) => encoding_of_string(view),
        (Kind::List, form) => list::form::Limits::of(settings).name(form, &view.collection()),
        (Kind::Set, 0) => "intset",
        (Kind::Set, 1) | (Kind::Hash | Kind::ZSet, 0) => "listpack",
        (Kind::Set | Kind::Hash, _) => "hashtable",
        (Kind::ZSet, _) => "skiplist",
        (Kind::Stream, _) => "stream",
        (Kind::Array, _) => "sliced-array",
    }
}

fn encoding_of_string(view: View<'_>) -> &'static str {
    match view.string() {
        _ if view.is_raw() => "raw",
        Str::Flat(bytes) if !view.is_text() && parse_i64(bytes).is_some() => "int",
        Str::Flat(bytes) if is_embedded(&view, bytes.len()) => "embstr",
        _ => "raw",
    }
}

/// Whether Valkey would allocate a string of this length together with its key and header, in two cache
/// lines.
fn is_embedded(view: &View<'_>, len: usize) -> bool {
    const LINES: usize = 128;
    let key = view.key().len();
    let key = key + if key < 32 { 3 } else { 5 };
    let deadline = if view.deadline().is_some() { 8 } else { 0 };
    8 + key + deadline + len + 4 <= LINES
}

/// OBJECT FREQ key
fn freq(call: &mut Call<'_, '_>) -> Done {
    let (now, access) = (call.now_ms(), call.guard.ctx.access);
    match (call.guard.look(&call.keys[0]), access) {
        (None, _) => call.reply.null(),
        (Some(view), Access::Lfu { decay_minutes, .. }) => {
            call.reply.int(i64::from(evict::lfu_counter(view.access(), now, decay_minutes)));
        }
        (Some(_), Access::Lru | Access::Lrm) => return Err(Error::text(NO_FREQUENCY)),
    }
    Ok(Flow::Replied)
}

const NO_FREQUENCY: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
                            Please note that when switching between policies at runtime LRU and LFU data \
                            will take some time to adjust.";

/// OBJECT IDLETIME key
fn idletime(call: &mut Call<'_, '_>) -> Done {
    let (now, access) = (call.now_ms(), call.guard.ctx.access);
    match (call.guard.look(&call.keys[0]), access) {
        (None, _) => call.reply.null(),
        (Some(view), Access::Lru | Access::Lrm) => {
            call.reply.int((evict::idle_ms(view.access(), now) / 1000) as i64);
        }
        (Some(_), Access::Lfu { .. }) => return Err(Error::text(NO_IDLE_TIME)),
    }
    Ok(Flow::Replied)
}

const NO_IDLE_TIME: &str = "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that \
                            when switching between policies at runtime LRU and LFU data will take some time \
                            to adjust.";

/// OBJECT REFCOUNT key
fn refcount(call: &mut Call<'_, '_>) -> Done {
    match call.guard.look(&call.keys[0]) {
        Some(_) => call.reply.int(1),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}
