//! XADD, XTRIM, XDEL, XLEN, XSETID: changes to the entries of a stream.

use evenkeel_store::collection::stream::{ENTRY_MAX, NodeLimits, Stream, StreamId};
use evenkeel_store::{Concerns, Edit};

use super::id::{self, NewId};
use super::idmp::{self, Source};
use super::trim::{Effect, Trim, TrimOptions};
use crate::class::STREAM;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Args, Call};
use evenkeel_config::Settings;

/// The options before the fields.
struct AddOptions {
    only_if_there: bool,
    trim: Option<Trim>,
    source: Option<Source>,
    id: NewId,
    /// The index of the first field's name.
    first_field: usize,
}

impl AddOptions {
    fn parse(args: &Args<'_>, settings: &Settings, is_replay: bool) -> Result<AddOptions, Error> {
        let (mut only_if_there, mut source, mut at) = (false, None, 2);
        let mut trim = TrimOptions::default();
        let id = loop {
            match args.get(at) {
                None => break None,
                Some(b"*") => break Some(NewId::Auto),
                Some(text) => match trim.read(args, at)? {
                    Some(next) => at = next,
                    None if args.is(at, "NOMKSTREAM") => {
                        only_if_there = true;
                        at += 1;
                    }
                    None => match Source::read(args, at, source.is_some())? {
                        Some((found, next)) => (source, at) = (Some(found), next),
                        None => break Some(NewId::parse(text)?),
                    },
                },
            }
        };
        if source.is_some() && !is_replay && id.is_some_and(|id| id != NewId::Auto) {
            return Err(idmp::needs_auto_id());
        }
        let trim = trim.finish(settings, is_replay)?;
        let id = id.ok_or(Error::Arity("XADD"))?;
        Ok(AddOptions { only_if_there, trim, source, id, first_field: at + 1 })
    }
}

/// XADD key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [IDMPAUTO producer | IDMP producer iid] [<MAXLEN | MINID>
/// [= | ~] threshold [LIMIT count]] <* | id> field value [field value ...]
pub(super) fn xadd(call: &mut Call<'_, '_>) -> Done {
    let options = AddOptions::parse(&call.args, call.settings, call.is_replay() || call.replays)?;
    let fields = call.args.from(options.first_field);
    if fields.len() < 2 || fields.len() % 2 == 1 {
        return Err(Error::Arity(call.name()));
    }
    if options.id == NewId::Exactly(StreamId::MIN) {
        return Err(Error::text("ERR The ID specified in XADD must be greater than 0-0"));
    }
    if fields.clone().map(<[u8]>::len).sum::<usize>() > ENTRY_MAX {
        return Err(Error::text("ERR Elements are too large to be stored"));
    }
    let source = options.source.map(|source| source.resolve(&call.args, fields.clone()));
    if let Some((producer, iid)) = &source
        && let Some(before) = idmp::find(call, (producer, iid), options.id)?
    {
        log_add(call, before, &Effect::Nothing, (source, options.first_field));
        id::reply(call.reply, before);
        return Ok(Flow::Replied);
    }
    let (now, limits) = (call.now_ms(), limits(call.settings));
    // A replay gets the configuration from its source.
    let configuration = idmp::default_of(call.settings).filter(|_| !call.replays && !call.is_replay());
    let mut is_configured = false;
    let add = |edit: &mut Edit<'_, Stream>| {
        let added = add(edit, &options, fields, limits, now)?;
        if let Some((producer, iid)) = &source {
            if let Some((duration_s, entries_max)) = configuration.filter(|_| edit.idmp().is_none()) {
                is_configured = edit.idmp_mut().configure(duration_s, entries_max);
            }
            edit.idmp_mut().remember(producer, iid, added.0);
        }
        Ok::<_, Error>(added)
    };
    let (id, effect) = if options.only_if_there {
        match call.guard.edit_if_there(&call.keys[0], add)? {
            Some(added) => added?,
            None => {
                call.reply.null();
                return Ok(Flow::Replied);
            }
        }
    } else {
        call.guard.edit(&call.keys[0], add)??
    };
    call.say(&call.keys[0], STREAM, "xadd");
    if !matches!(&effect, Effect::Nothing) && !matches!(&effect, Effect::Deleted(ids) if ids.is_empty()) {
        call.say(&call.keys[0], STREAM, "xtrim");
    }
    match source {
        Some(origin) if is_configured => {
            log_add(call, id, &effect, (None, options.first_field));
            idmp::log_configured(call, configuration, &origin, id);
        }
        source => log_add(call, id, &effect, (source, options.first_field)),
    }
    id::reply(call.reply, id);
    Ok(Flow::Replied)
}

/// Logs an entry with its ID, and the trim by its effect.
fn log_add(
    call: &mut Call<'_, '_>,
    id: StreamId,
    effect: &Effect,
    (source, first_field): (Option<idmp::Origin<'_>>, usize),
) {
    if !call.is_logged() {
        return;
    }
    let (key, id, trim) = (call.keys[0].bytes, id.to_string(), effect.words());
    let source = source.iter().flat_map(|(producer, iid)| [b"IDMP", *producer, iid.as_slice()]);
    let head = [b"XADD", key].into_iter().chain(source).chain(trim.iter().map(Vec::as_slice));
    let words: Vec<&[u8]> = head.chain([id.as_bytes()]).chain(call.args.from(first_field)).collect();
    call.log(&words);
    effect.log_deleted(call, key);
}

fn add<'f>(
    edit: &mut Edit<'_, Stream>,
    options: &AddOptions,
    fields: impl ExactSizeIterator<Item = &'f [u8]> + Clone,
    limits: NodeLimits,
    now_ms: u64,
) -> Result<(StreamId, Effect), Error> {
    let last = edit.log().last_id();
    if last == StreamId::MAX {
        return Err(Error::text(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    let id = options.id.after(last, now_ms).ok_or(Error::text(
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
    ))?;
    edit.append(id, fields, limits).expect("an id after the last is greater");
    edit.changes = 1;
    let Some(trim) = &options.trim else { return Ok((id, Effect::Nothing)) };
    let trimmed = trim.apply(edit);
    edit.discard(trimmed.cut);
    Ok((id, trimmed.effect))
}

pub(super) fn limits(settings: &Settings) -> NodeLimits {
    NodeLimits::new(settings.stream_node_max_entries, settings.stream_node_max_bytes)
}

/// XTRIM key <MAXLEN | MINID> [= | ~] threshold [LIMIT count] [KEEPREF | DELREF | ACKED]
pub(super) fn xtrim(call: &mut Call<'_, '_>) -> Done {
    let (mut trim, mut at) = (TrimOptions::default(), 2);
    while at < call.args.len() {
        at = trim.read(&call.args, at)?.ok_or(Error::Syntax)?;
    }
    let trim = trim
        .finish(call.settings, call.is_replay())?
        .ok_or(Error::text("ERR syntax error, XTRIM must be called with a trimming strategy"))?;
    let trimmed = call.guard.edit_if_there(&call.keys[0], |edit: &mut Edit<'_, Stream>| {
        let trimmed = trim.apply(edit);
        edit.discard(trimmed.cut);
        edit.changes = trimmed.count;
        (trimmed.count, trimmed.effect)
    })?;
    let (trimmed, effect) = trimmed.unwrap_or_default();
    if trimmed > 0 && call.is_logged() {
        log_trim(call, &effect);
    }
    call.reply.int(trimmed as i64);
    Ok(Flow::Replied)
}

fn log_trim(call: &mut Call<'_, '_>, effect: &Effect) {
    let (key, trim) = (call.keys[0].bytes, effect.words());
    if !trim.is_empty() {
        call.log(&[b"XTRIM", key].into_iter().chain(trim.iter().map(Vec::as_slice)).collect::<Vec<_>>());
    }
    effect.log_deleted(call, key);
}

/// XDEL key id [id ...]
pub(super) fn xdel(call: &mut Call<'_, '_>) -> Done {
    if call.guard.peek_collection::<Stream>(&call.keys[0])?.is_none() {
        call.reply.int(0);
        return Ok(Flow::Replied);
    }
    let ids = id::all(&call.args, 2)?;
    let deleted = call.guard.edit(&call.keys[0], |edit: &mut Edit<'_, Stream>| {
        edit.changes = ids.iter().map(|id| u64::from(edit.delete(*id))).sum();
        edit.changes
    })?;
    call.reply.int(deleted as i64);
    Ok(Flow::Replied)
}

/// XLEN key
pub(super) fn xlen(call: &mut Call<'_, '_>) -> Done {
    let len = call.guard.collection::<Stream>(&call.keys[0])?.map_or(0, |stream| stream.len());
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// The arguments of XSETID.
struct History {
    last_id: StreamId,
    added: Option<u64>,
    max_deleted_id: Option<StreamId>,
}

impl History {
    fn parse(args: &Args<'_>, is_replay: bool) -> Result<History, Error> {
        let last_id = id::strict(args.at(2), 0)?;
        let (mut history, mut at) = (History { last_id, added: None, max_deleted_id: None }, 3);
        while at < args.len() {
            match args.word(at).as_bytes() {
                b"ENTRIESADDED" if at + 1 < args.len() => {
                    let positive = |_| Error::text("ERR entries_added must be positive");
                    history.added = Some(u64::try_from(args.int(at + 1)?).map_err(positive)?);
                }
                b"MAXDELETEDID" if at + 1 < args.len() => {
                    let deleted = id::strict(args.at(at + 1), 0)?;
                    if last_id < deleted && !is_replay {
                        return Err(Error::text(
                            "ERR The ID specified in XSETID is smaller than the provided \
                             max_deleted_entry_id",
                        ));
                    }
                    history.max_deleted_id = Some(deleted).filter(|deleted| *deleted > StreamId::MIN);
                }
                _ => return Err(Error::Syntax),
            }
            at += 2;
        }
        Ok(history)
    }

    /// Redis 7.0 lets the last ID be set back behind deleted entries, so its journal is accepted.
    fn check(&self, stream: &Stream, is_replay: bool) -> Result<(), Error> {
        if self.last_id < stream.log().max_deleted_id() && !is_replay {
            return Err(Error::text(
                "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
            ));
        }
        let Some(last) = stream.entries().last() else { return Ok(()) };
        if self.last_id < last.id {
            return Err(Error::text(
                "ERR The ID specified in XSETID is smaller than the target stream top item",
            ));
        }
        if self.added.is_some_and(|added| added < stream.len()) {
            return Err(Error::text(
                "ERR The entries_added specified in XSETID is smaller than the target stream length",
            ));
        }
        Ok(())
    }
}

/// XSETID key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]
pub(super) fn xsetid(call: &mut Call<'_, '_>) -> Done {
    let is_replay = call.is_replay();
    let history = History::parse(&call.args, is_replay)?;
    let key = &call.keys[0];
    let stream = call.guard.peek_collection::<Stream>(key)?.ok_or(Error::NoSuchKey)?;
    history.check(&stream, is_replay)?;
    call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
        let (added, deleted) = (edit.log().added(), edit.log().max_deleted_id());
        let (added, deleted) = (history.added.unwrap_or(added), history.max_deleted_id.unwrap_or(deleted));
        edit.set_history(history.last_id, added, deleted);
        (edit.changes, edit.concerns) = (1, Concerns::Nobody);
    })?;
    call.say(key, STREAM, "xsetid");
    call.reply.ok();
    Ok(Flow::Replied)
}
