//! Names of commands' effects in keyspace notifications: `set`, `lpush`, `del`.
//!
//! The store records events on keys while there are listeners. After a handler has run, and before the keys
//! are unlocked, this module adds the names. Nearly always the command determines them: a row of [`RULES`]
//! has the name for a key that the command has written, and the event for a key that is gone in the end.
//! Handlers whose keys meet different fates (LMOVE, RENAME) emit events themselves ([`Call::say`]) and have
//! no row.
//!
//! The names and their order are those of Redis 7.0, or Valkey's for newer commands; a test compares.

use std::collections::HashMap;
use std::sync::OnceLock;

use evenkeel_store::events::{Event, Fields, What};
use evenkeel_store::{Key, Kind};

use crate::call::HasCall;
use crate::class::*;
use crate::flow::{Done, Mode};
use crate::set_options::{Of, Options};
use crate::table::table;
use crate::{Args, Call, Flags};

/// How a name is found.
#[derive(Clone, Copy)]
enum Name {
    Is(&'static str),
    By(fn(&Args<'_>) -> &'static str),
}

use Name::{By, Is};
use Replaces::{After, Before, Untyped};

/// The names for a command's changes.
struct Rule {
    commands: &'static [&'static str],
    class: u32,
    name: Name,
    /// The event of a key whose last element was taken comes before `del`. Without this, only `del` is
    /// emitted.
    empties: bool,
    /// Whether a call gives the keys that it writes a deadline.
    expires: Option<fn(&Args<'_>) -> bool>,
    /// It looks for keys to read, too.
    reads: bool,
    /// The event that a value was replaced.
    replaces: Replaces,
    /// The fields of a hash that the event is about, in the arguments from this one on, in such steps.
    fields: Option<(usize, usize)>,
}

/// Events of a key whose value a command has replaced: `overwritten`, and `type_changed` if the new value is
/// of another type. Redis sends them since 8.2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replaces {
    No,
    /// They come before the command's own event.
    Before,
    /// They come after it.
    After,
    /// After it comes `overwritten` alone.
    Untyped,
}

const fn rule(commands: &'static [&'static str], class: u32, name: Name) -> Rule {
    Rule {
        commands,
        class,
        name,
        empties: false,
        expires: None,
        reads: false,
        replaces: Replaces::No,
        fields: None,
    }
}

impl Rule {
    /// Takes elements, possibly the last.
    const fn empties(self) -> Rule {
        Rule { empties: true, ..self }
    }

    const fn expires(self, when: fn(&Args<'_>) -> bool) -> Rule {
        Rule { expires: Some(when), ..self }
    }

    const fn reads(self) -> Rule {
        Rule { reads: true, ..self }
    }

    const fn replaces(self, replaces: Replaces) -> Rule {
        Rule { replaces, ..self }
    }

    const fn fields(self, first: usize, step: usize) -> Rule {
        Rule { fields: Some((first, step)), ..self }
    }
}

#[rustfmt::skip]
const RULES: &[Rule] = &[
    rule(&["SET"],                                             STRING,  Is("set"))
        .expires(|args| have_deadline(args, 3, Of::Set)).reads().replaces(Before),
    rule(&["SETNX", "MSET", "MSETNX"],                         STRING,  Is("set")).replaces(Before),
    rule(&["GETSET"],                                          STRING,  Is("set")).reads().replaces(Before),
    rule(&["MSETEX"],                                          STRING,  Is("set"))
        .expires(|args| have_deadline(args, behind_pairs(args), Of::MSetEx)).replaces(Before),
    rule(&["SETEX", "PSETEX"],                                 STRING,  Is("set"))
        .expires(|_| true).replaces(Before),
    rule(&["BITOP"],                                           STRING,  Is("set")).reads().replaces(Before),
    rule(&["APPEND"],                                          STRING,  Is("append")),
    rule(&["SETRANGE"],                                        STRING,  Is("setrange")),
    rule(&["INCR", "DECR", "INCRBY", "DECRBY"],                STRING,  Is("incrby")),
    rule(&["INCRBYFLOAT"],                                     STRING,  Is("incrbyfloat")),
    rule(&["SETBIT"],                                          STRING,  Is("setbit")),
    rule(&["PFADD"],                                           STRING,  Is("pfadd")),
    rule(&["PFMERGE"],                                         STRING,  Is("pfadd")).reads(),
    rule(&["GETEX"],                                           GENERIC,
        By(|args| if args.is(2, "PERSIST") { "persist" } else { "expire" })).reads(),
    rule(&["GETDEL", "DEL", "UNLINK", "DELEX", "DELIFEQ", "MIGRATE"],   GENERIC, Is("del")).reads(),
    rule(&["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"],      GENERIC, Is("expire")),
    rule(&["PERSIST"],                                         GENERIC, Is("persist")),
    rule(&["COPY"],                                            GENERIC, Is("copy_to")).reads()
        .replaces(After),
    rule(&["RESTORE", "RESTORE-ASKING"],                       GENERIC, Is("restore"))
        .replaces(Untyped),
    rule(&["LPUSH", "LPUSHX"],                                 LIST,    Is("lpush")),
    rule(&["RPUSH", "RPUSHX"],                                 LIST,    Is("rpush")),
    rule(&["LPOP", "BLPOP"],                                   LIST,    Is("lpop")).empties(),
    rule(&["RPOP", "BRPOP"],                                   LIST,    Is("rpop")).empties(),
    rule(&["LMPOP", "BLMPOP"],                                 LIST,
        By(|args| if names(args, "LEFT") { "lpop" } else { "rpop" })).empties(),
    rule(&["LINSERT"],                                         LIST,    Is("linsert")),
    rule(&["LSET"],                                            LIST,    Is("lset")),
    rule(&["LREM"],                                            LIST,    Is("lrem")).empties(),
    rule(&["LTRIM"],                                           LIST,    Is("ltrim")).empties(),
    rule(&["SADD"],                                            SET,     Is("sadd")),
    rule(&["SREM"],                                            SET,     Is("srem")).empties(),
    rule(&["SPOP"],                                            SET,     Is("spop")).empties(),
    rule(&["SINTERSTORE"],                                     SET,     Is("sinterstore")).reads()
        .replaces(Before),
    rule(&["SUNIONSTORE"],                                     SET,     Is("sunionstore")).reads()
        .replaces(Before),
    rule(&["SDIFFSTORE"],                                      SET,     Is("sdiffstore")).reads()
        .replaces(Before),
    rule(&["HSET", "HMSET", "HSETNX"],                         HASH,    Is("hset")).fields(2, 2),
    rule(&["HINCRBY"],                                         HASH,    Is("hincrby")).fields(2, 2),
    rule(&["HINCRBYFLOAT"],                                    HASH,    Is("hincrbyfloat")).fields(2, 2),
    rule(&["ZADD"],                                            ZSET,
        By(|args| if increments(args) { "zincr" } else { "zadd" })),
    rule(&["GEOADD"],                                          ZSET,    Is("zadd")),
    rule(&["ZINCRBY"],                                         ZSET,    Is("zincr")),
    rule(&["ZREM"],                                            ZSET,    Is("zrem")).empties(),
    rule(&["ZREMRANGEBYRANK"],                                 ZSET,    Is("zremrangebyrank")).empties(),
    rule(&["ZREMRANGEBYSCORE"],                                ZSET,    Is("zremrangebyscore")).empties(),
    rule(&["ZREMRANGEBYLEX"],                                  ZSET,    Is("zremrangebylex")).empties(),
    rule(&["ZPOPMIN", "BZPOPMIN"],                             ZSET,    Is("zpopmin")).empties(),
    rule(&["ZPOPMAX", "BZPOPMAX"],                             ZSET,    Is("zpopmax")).empties(),
    rule(&["ZMPOP", "BZMPOP"],                                 ZSET,
        By(|args| if names(args, "MIN") { "zpopmin" } else { "zpopmax" })).empties(),
    rule(&["ZUNIONSTORE"],                                     ZSET,    Is("zunionstore")).reads()
        .replaces(Before),
    rule(&["ZINTERSTORE"],                                     ZSET,    Is("zinterstore")).reads()
        .replaces(Before),
    rule(&["ZDIFFSTORE"],                                      ZSET,    Is("zdiffstore")).reads()
        .replaces(Before),
    rule(&["ZRANGESTORE"],                                     ZSET,    Is("zrangestore")).reads()
        .replaces(Before),
    rule(&["GEOSEARCHSTORE"],                                  ZSET,    Is("geosearchstore")).reads()
        .replaces(Before),
    rule(&["GEORADIUS", "GEORADIUSBYMEMBER"],                  ZSET,    Is("georadiusstore")).reads()
        .replaces(Before),
    rule(&["ARSET"],                                           ARRAY,   Is("arset")),
    rule(&["ARMSET"],                                          ARRAY,   Is("armset")),
    rule(&["ARINSERT"],                                        ARRAY,   Is("arinsert")),
    rule(&["ARRING"],                                          ARRAY,   Is("arring")),
    rule(&["ARSEEK"],                                          ARRAY,   Is("arseek")),
    rule(&["ARDEL"],                                           ARRAY,   Is("ardel")).empties(),
    rule(&["ARDELRANGE"],                                      ARRAY,   Is("ardelrange")).empties(),
    rule(&["XTRIM"],                                           STREAM,  Is("xtrim")),
    rule(&["XDEL", "XDELEX", "XACKDEL"],                       STREAM,  Is("xdel")),
];

/// Commands without a rule that may write, and look for keys to read.
const READING: &[&str] = &["SORT", "XACK", "XAUTOCLAIM", "XCLAIM", "XREADGROUP"];

/// Commands that read, and emit no event for missing keys.
const QUIET: &[&str] =
    &["MEMORY|USAGE", "OBJECT|ENCODING", "OBJECT|FREQ", "OBJECT|IDLETIME", "OBJECT|REFCOUNT"];

/// Whether the options from `first` on give a deadline.
fn have_deadline(args: &Args<'_>, first: usize, of: Of) -> bool {
    Options::parse_sent(args, first, of, true).is_ok_and(|options| options.has_deadline())
}

/// Returns where the options of MSETEX begin: behind its pairs.
fn behind_pairs(args: &Args<'_>) -> usize {
    let pairs = args.int(1).ok().and_then(|count| usize::try_from(count).ok());
    pairs.and_then(|pairs| pairs.checked_mul(2)?.checked_add(2)).unwrap_or(args.len())
}

/// Whether LMPOP or ZMPOP takes from this end: the word behind the keys.
fn names(args: &Args<'_>, end: &str) -> bool {
    let count_at =
        if args.get(0).is_some_and(|name| matches!(name.first(), Some(b'b' | b'B'))) { 2 } else { 1 };
    let count = args.int(count_at).ok().and_then(|count| usize::try_from(count).ok());
    count.and_then(|count| count.checked_add(count_at + 1)).is_some_and(|at| args.is(at, end))
}

/// Whether ZADD adds to scores.
fn increments(args: &Args<'_>) -> bool {
    const OPTIONS: [&str; 5] = ["NX", "XX", "GT", "LT", "CH"];
    let mut options = (2..args.len())
        .take_while(|at| args.is(*at, "INCR") || OPTIONS.iter().any(|option| args.is(*at, option)));
    options.any(|at| args.is(at, "INCR"))
}

/// The names of the commands whose effects a rule names.
pub fn with_rules() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rule| rule.commands.iter().copied())
}

/// Returns the rule of each command, by its number.
fn rules() -> &'static [Option<&'static Rule>] {
    static BY_ID: OnceLock<Vec<Option<&'static Rule>>> = OnceLock::new();
    BY_ID.get_or_init(|| {
        let of = |name: &str| RULES.iter().find(|rule| rule.commands.contains(&name));
        table().rows().iter().map(|row| of(row.name)).collect()
    })
}

/// Runs `f`, and names its effects on keys.
#[cold]
pub(crate) fn announced<'a, 'h: 'a, C: HasCall<'a, 'h>>(
    call: &mut C,
    f: impl FnOnce(&mut C) -> Done,
) -> Done {
    let base = call.call();
    let before = base.guard.events_noted();
    let replaced = base.values_to_replace();
    let client = base.host.client_id();
    let actor = std::mem::replace(&mut base.guard.ctx.acting, client);
    let done = f(call);
    let base = call.call();
    base.guard.ctx.acting = actor;
    base.name_events(before, replaced);
    // The effects of a script may be undone; the script reports its events once they are not.
    if base.mode != Mode::Script {
        base.guard.report_events();
    }
    done
}

/// The numbers of the keys of a name, each with the type of the value before the command.
type Kinds<'a> = HashMap<&'a [u8], Vec<(usize, Option<Kind>)>>;

impl<'a> Call<'a, '_> {
    /// Returns the types of the values that the command may replace.
    fn values_to_replace(&mut self) -> Kinds<'a> {
        let mut kinds = Kinds::new();
        let replaces = rules()[self.id.index()].is_some_and(|rule| rule.replaces != Replaces::No);
        if replaces && self.guard.keyspace().events.are_notices_wanted() {
            for (at, key) in self.keys.iter().enumerate() {
                let kind = self.guard.peek(key).map(|view| view.kind());
                kinds.entry(key.bytes).or_default().push((at, kind));
            }
        }
        kinds
    }

    /// Emits the events of a key whose value was replaced.
    fn say_replaced(&mut self, rule: &Rule, event: &Event, kinds: &mut Kinds<'_>) {
        let keys = kinds.get_mut(&event.key[..]).into_iter().flatten();
        let is_it = |(at, _): &&mut (usize, _)| self.keys[*at].place.db() as u32 == event.db;
        let Some((at, before)) = keys.into_iter().find(is_it) else { return };
        let key = self.keys[*at];
        // A key that MSETEX has written with a time in the past stays until it is looked for.
        let is_there = !self.guard.has_expired(&key);
        let now = if is_there { self.guard.peek(&key).map(|view| view.kind()) } else { None };
        if let Some(before) = std::mem::replace(before, now) {
            let is_other = rule.replaces != Untyped && now.is_some_and(|now| now != before);
            self.say_overwritten(&key, is_other);
        }
    }

    /// Emits the events of a key whose value was replaced, `is_other`: by a value of another type.
    pub(crate) fn say_overwritten(&mut self, key: &Key<'_>, is_other: bool) {
        self.say(key, OVERWRITTEN, "overwritten");
        if is_other {
            self.say(key, TYPE_CHANGED, "type_changed");
        }
    }

    /// Names the events since `before`.
    fn name_events(&mut self, before: usize, mut kinds: Kinds<'a>) {
        let row = self.spec;
        let rule = rules()[self.id.index()];
        let reads = match rule {
            Some(rule) => rule.reads,
            // For a key that a script misses, the script's commands have emitted the event.
            None if row.flags.has(Flags::READONLY) => !row.runs_scripts() && !QUIET.contains(&row.name),
            None => READING.contains(&row.name),
        };
        if (rule.is_some() || reads) && self.guard.keyspace().events.are_notices_wanted() {
            let events = self.guard.take_events(before);
            let removals = removals(&events);
            for (event, is_removal) in events.iter().zip(removals) {
                self.guard.put_event(event.clone());
                match (event.what, rule) {
                    (What::Missed, _) if reads => self.guard.say(event.db, &event.key, MISSES, "keymiss"),
                    (What::Written, Some(rule)) => self.say_written(rule, event, &mut kinds),
                    (What::Removed, Some(rule)) if is_removal => self.say_removed(rule, event),
                    _ => {}
                }
            }
        }
    }

    fn say_written(&mut self, rule: &Rule, event: &Event, kinds: &mut Kinds<'_>) {
        if rule.replaces == Before {
            self.say_replaced(rule, event, kinds);
        }
        let fields = match rule.fields {
            Some((first, step)) if self.wants_fields() => fields(self.args.from(first).step_by(step)),
            _ => Fields::default(),
        };
        self.guard.say_fields(event.db, &event.key, rule.class, self.name_by(rule), fields);
        if matches!(rule.replaces, After | Untyped) {
            self.say_replaced(rule, event, kinds);
        }
        if rule.expires.is_some_and(|when| when(&self.args)) {
            self.guard.say(event.db, &event.key, GENERIC, "expire");
        }
    }

    fn say_removed(&mut self, rule: &Rule, event: &Event) {
        if rule.empties {
            self.guard.say(event.db, &event.key, rule.class, self.name_by(rule));
        }
        self.guard.say(event.db, &event.key, GENERIC, "del");
    }

    fn name_by(&self, rule: &Rule) -> &'static str {
        match rule.name {
            Is(name) => name,
            By(find) => find(&self.args),
        }
    }

    /// Emits the event of a key, where the command alone does not determine it.
    pub fn say(&mut self, key: &Key<'_>, class: u32, name: &'static str) {
        self.guard.say(key.place.db() as u32, key.bytes, class, name);
    }

    /// Emits the event of a hash, and of these of its fields.
    pub fn say_fields<'f>(
        &mut self,
        key: &Key<'_>,
        name: &'static str,
        names: impl IntoIterator<Item = &'f [u8]>,
    ) {
        let fields = if self.wants_fields() { fields(names) } else { Fields::default() };
        self.guard.say_fields(key.place.db() as u32, key.bytes, HASH, name, fields);
    }

    /// Emits the event of a key, and `del` if the key is gone.
    pub fn say_taken(&mut self, key: &Key<'_>, class: u32, name: &'static str) {
        self.say(key, class, name);
        self.say_gone(key);
    }

    /// Emits `del` if the key is gone.
    pub fn say_gone(&mut self, key: &Key<'_>) {
        if self.guard.keyspace().events.are_notices_wanted() && self.guard.peek(key).is_none() {
            self.say(key, GENERIC, "del");
        }
    }

    /// Whether the names of the fields that an event is about are wanted.
    #[inline]
    pub fn wants_fields(&self) -> bool {
        self.guard.keyspace().events.are_fields_wanted()
    }
}

fn fields<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Fields {
    names.into_iter().map(Box::from).collect()
}

/// Returns for each of a command's events whether it is a removal of a key by the command: the key neither
/// expired nor was evicted, and it did not come back, as a key does that RESTORE replaces. In a single pass:
/// a command may remove a million keys.
fn removals(events: &[Event]) -> Vec<bool> {
    if let [event] = events {
        return vec![event.what == What::Removed];
    }
    let mut is_removal = vec![false; events.len()];
    // The last event of a key, and its removals that stand so far.
    type Fate = (What, Vec<usize>);
    let mut fates: HashMap<(u32, &[u8]), Fate> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        let (last, removals) = fates.entry((event.db, &event.key)).or_insert((What::Missed, Vec::new()));
        match event.what {
            What::Removed if !matches!(last, What::Expired | What::AllFieldsExpired | What::Evicted) => {
                is_removal[at] = true;
                removals.push(at);
            }
            What::Added => removals.drain(..).for_each(|at| is_removal[at] = false),
            _ => {}
        }
        *last = event.what;
    }
    is_removal
}

#[cfg(test)]
mod tests;
