//! Sorted sets: single members.
//!
//! The form of a sorted set (OBJECT ENCODING) follows Redis: a `listpack` until a member is longer than
//! `zset-max-listpack-value`, or there are more than `zset-max-listpack-entries` members, and a `skiplist`
//! ever after.

mod combine;
mod pop;
mod range;
mod scan;

use evenkeel_resp::float;
use evenkeel_store::Edit;
use evenkeel_store::collection::{Collection, Gathered, ZSet};

use crate::effect::log_zset;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::random::zrandmember;
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use evenkeel_config::Settings;

const GROUP: Group = Group::SortedSet;
const COUNTED_FIRST: Keys = Keys::Counted { at: 1, step: 1 };
const COUNTED_SECOND: Keys = Keys::Counted { at: 2, step: 1 };
const ALL_BUT_LAST: Keys = Keys::Range { first: 1, last: -2, step: 1 };
const STORED: Keys = Keys::Across(combine::keys_of_store);

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("ZADD",             at_least(4), Keys::FIRST,     GROUP, zadd            ).grows().fast()
        .members(3, 2),
    write("ZINCRBY",          exactly(4),  Keys::FIRST,     GROUP, zincrby         ).grows().fast()
        .members(3, 2),
    write("ZREM",             at_least(3), Keys::FIRST,     GROUP, zrem            ).fast().members(2, 1),
    read ("ZCARD",            exactly(2),  Keys::FIRST,     GROUP, zcard           ).fast(),
    read ("ZSCORE",           exactly(3),  Keys::FIRST,     GROUP, zscore          ).fast().members(2, 1),
    read ("ZMSCORE",          at_least(3), Keys::FIRST,     GROUP, zmscore         ).fast().members(2, 1),
    read ("ZRANK",            at_least(3), Keys::FIRST,     GROUP, zrank           ).fast().members(2, 1),
    read ("ZREVRANK",         at_least(3), Keys::FIRST,     GROUP, zrevrank        ).fast().members(2, 1),
    read ("ZCOUNT",           exactly(4),  Keys::FIRST,     GROUP, range::zcount          ).fast(),
    read ("ZLEXCOUNT",        exactly(4),  Keys::FIRST,     GROUP, range::zlexcount       ).fast(),
    read ("ZRANGE",           at_least(4), Keys::FIRST,     GROUP, range::zrange          ),
    read ("ZREVRANGE",        at_least(4), Keys::FIRST,     GROUP, range::zrevrange       ),
    read ("ZRANGEBYSCORE",    at_least(4), Keys::FIRST,     GROUP, range::zrangebyscore   ),
    read ("ZREVRANGEBYSCORE", at_least(4), Keys::FIRST,     GROUP, range::zrevrangebyscore),
    read ("ZRANGEBYLEX",      at_least(4), Keys::FIRST,     GROUP, range::zrangebylex     ),
    read ("ZREVRANGEBYLEX",   at_least(4), Keys::FIRST,     GROUP, range::zrevrangebylex  ),
    write("ZRANGESTORE",      at_least(5), Keys::FIRST_TWO, GROUP, range::zrangestore     ).grows(),
    write("ZREMRANGEBYRANK",  exactly(4),  Keys::FIRST,     GROUP, range::zremrangebyrank ),
    write("ZREMRANGEBYSCORE", exactly(4),  Keys::FIRST,     GROUP, range::zremrangebyscore),
    write("ZREMRANGEBYLEX",   exactly(4),  Keys::FIRST,     GROUP, range::zremrangebylex  ),
    write("ZPOPMIN",          at_least(2), Keys::FIRST,     GROUP, pop::zpopmin           ).fast(),
    write("ZPOPMAX",          at_least(2), Keys::FIRST,     GROUP, pop::zpopmax           ).fast(),
    write("ZMPOP",            at_least(4), COUNTED_FIRST,   GROUP, pop::zmpop             ),
    write("BZPOPMIN",         at_least(3), ALL_BUT_LAST,    GROUP, pop::bzpopmin          ).fast()
        .blocks(),
    write("BZPOPMAX",         at_least(3), ALL_BUT_LAST,    GROUP, pop::bzpopmax          ).fast()
        .blocks(),
    write("BZMPOP",           at_least(5), COUNTED_SECOND,  GROUP, pop::bzmpop            ).blocks(),
    read ("ZRANDMEMBER",      at_least(2), Keys::FIRST,     GROUP, zrandmember            ),
    read ("ZSCAN",            at_least(3), Keys::FIRST,     GROUP, scan::zscan            ),
    read ("ZUNION",           at_least(3), COUNTED_FIRST,   GROUP, combine::zunion        ),
    read ("ZINTER",           at_least(3), COUNTED_FIRST,   GROUP, combine::zinter        ),
    read ("ZDIFF",            at_least(3), COUNTED_FIRST,   GROUP, combine::zdiff         ),
    read ("ZINTERCARD",       at_least(3), COUNTED_FIRST,   GROUP, combine::zintercard    ),
    write("ZUNIONSTORE",      at_least(4), STORED,          GROUP, combine::zunionstore   ).grows(),
    write("ZINTERSTORE",      at_least(4), STORED,          GROUP, combine::zinterstore   ).grows(),
    write("ZDIFFSTORE",       at_least(4), STORED,          GROUP, combine::zdiffstore    ).grows(),
];

/// The forms for OBJECT ENCODING: `LISTPACK` until the set was once too large for it.
pub const LISTPACK: u8 = 0;
pub const SKIPLIST: u8 = 1;

/// Up to where Redis would keep a sorted set in a single block.
#[derive(Clone, Copy)]
pub struct Limits {
    members: u64,
    member_len: usize,
}

impl Limits {
    pub fn of(settings: &Settings) -> Limits {
        Limits {
            members: settings.zset_max_listpack_entries as u64,
            member_len: settings.zset_max_listpack_value,
        }
    }

    /// Returns the form of a set that was built at once, whose longest member has this length.
    pub fn form(&self, members: u64, member_len: usize) -> u8 {
        if members <= self.members && member_len <= self.member_len { LISTPACK } else { SKIPLIST }
    }
}

/// The conditions and the kind of ZADD's change to a member.
#[derive(Clone, Copy, Default)]
pub struct How {
    pub if_absent: bool,
    pub if_present: bool,
    pub if_greater: bool,
    pub if_less: bool,
    /// Add to the current score.
    pub increment: bool,
}

/// The outcome for a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The conditions did not hold.
    Left,
    Same(f64),
    Added(f64),
    Moved(f64),
    /// The score would not be a number.
    NotANumber,
}

impl How {
    fn decide(&self, old: Option<f64>, given: f64) -> Outcome {
        let Some(old) = old else {
            return if self.if_present { Outcome::Left } else { Outcome::Added(given) };
        };
        if self.if_absent {
            return Outcome::Left;
        }
        let score = if self.increment { old + given } else { given };
        if score.is_nan() {
            Outcome::NotANumber
        } else if self.if_less && score >= old || self.if_greater && score <= old {
            Outcome::Left
        } else if score == old {
            Outcome::Same(score)
        } else {
            Outcome::Moved(score)
        }
    }
}

/// Adds a member to a sorted set or changes its score, and records that in the edit.
pub fn add(
    edit: &mut Edit<'_, ZSet>,
    hasher: &evenkeel_store::Hasher,
    limits: Limits,
    how: How,
    member: &[u8],
    given: f64,
) -> Outcome {
    let mut outcome = Outcome::Left;
    let small = edit.form == LISTPACK && edit.len() < limits.members && member.len() <= limits.member_len;
    let form = edit.form;
    edit.update(hasher, member, |old| {
        outcome = how.decide(old, given);
        match outcome {
            Outcome::Added(score) => Some(kept(score, if small { LISTPACK } else { SKIPLIST })),
            Outcome::Moved(score) => Some(kept(score, form)),
            _ => None,
        }
    });
    match outcome {
        Outcome::Added(_) => {
            edit.changes += 1;
            if !small {
                edit.form = SKIPLIST;
            }
        }
        Outcome::Moved(_) => edit.changes += 1,
        _ => {}
    }
    outcome
}

/// A listpack stores integers, and no negative zero.
fn kept(score: f64, form: u8) -> f64 {
    if form == LISTPACK { score + 0.0 } else { score }
}

/// The costs of adding a member to a set that is built at once, and of removing a member from a large set, in
/// the units of [`Call::is_worth_offloading`]: both trees are visited.
const GATHER_UNITS: usize = 10;
const REMOVE_UNITS: u64 = 10;

/// A sorted set that was built at once, to be stored.
pub struct Made {
    zset: ZSet,
    form: u8,
}

impl Made {
    pub fn of(mut gathered: Gathered<'_>, limits: Limits) -> Made {
        let form = limits.form(gathered.len(), gathered.longest());
        gathered.map(|score| kept(score, form));
        Made { zset: gathered.into_set(), form }
    }

    fn nothing(limits: Limits) -> Made {
        Made { zset: ZSet::new(), form: limits.form(0, 0) }
    }

    /// Stores it at the call's first key, or removes the key if it is empty, and replies with its size.
    fn store(self, call: &mut Call<'_, '_>) -> Done {
        call.reply.int(self.zset.len() as i64);
        call.guard.set_collection(&call.keys[0], self.zset, self.form, None);
        Ok(Flow::Replied)
    }

    /// [`Made::store`] for the call's key of this index. Logs the stored set: the command could have another
    /// result on another server.
    pub fn store_and_log(self, call: &mut Call<'_, '_>, key: usize) -> Done {
        call.reply.int(self.zset.len() as i64);
        let (key, stored) = (&call.keys[key], self.zset.clone());
        let before = call.guard.changes();
        call.guard.set_collection(key, self.zset, self.form, None);
        if call.guard.changes() != before && call.is_logged() {
            log_zset(call.guard, call.db, key.bytes, &stored);
        }
        Ok(Flow::Replied)
    }
}

/// ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]
fn zadd(call: &mut Call<'_, '_>) -> Done {
    let mut options = AddOptions::default();
    options.parse(&call.args);
    zadd_with(call, options)
}

/// ZINCRBY key increment member
fn zincrby(call: &mut Call<'_, '_>) -> Done {
    // Redis parses the options of ZADD here, too, and finds no pairs behind them.
    let mut options = AddOptions::default();
    options.parse(&call.args);
    options.how.increment = true;
    zadd_with(call, options)
}

#[derive(Default)]
struct AddOptions {
    how: How,
    /// Reply with the number of changed members, not only of new members.
    count_moved: bool,
    /// Where the scores and members begin.
    first: usize,
}

impl AddOptions {
    fn parse(&mut self, args: &Args<'_>) {
        self.first = 2;
        while self.first < args.len() {
            match args.word(self.first).as_bytes() {
                b"NX" => self.how.if_absent = true,
                b"XX" => self.how.if_present = true,
                b"GT" => self.how.if_greater = true,
                b"LT" => self.how.if_less = true,
                b"INCR" => self.how.increment = true,
                b"CH" => self.count_moved = true,
                _ => return,
            }
            self.first += 1;
        }
    }

    fn check(&self, args: &Args<'_>) -> Result<(), Error> {
        let given = args.len() - self.first;
        let How { if_absent, if_present, if_greater, if_less, increment } = self.how;
        if given == 0 || !given.is_multiple_of(2) {
            return Err(Error::Syntax);
        }
        if if_absent && if_present {
            return Err(Error::text("ERR XX and NX options at the same time are not compatible"));
        }
        if if_absent && (if_greater || if_less) || if_greater && if_less {
            return Err(Error::text("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if increment && given > 2 {
            return Err(Error::text("ERR INCR option supports a single increment-element pair"));
        }
        Ok(())
    }
}

fn zadd_with(call: &mut Call<'_, '_>, options: AddOptions) -> Done {
    let args = call.args;
    options.check(&args)?;
    let pairs = (options.first..args.len()).step_by(2);
    if pairs.clone().any(|at| float::parse(args.at(at)).is_none()) {
        return Err(Error::NotFloat);
    }
    let (hasher, limits, how) = (&call.guard.keyspace().hasher, Limits::of(call.settings), options.how);
    // As in Valkey, ZADD chooses the encoding by all members of its call, also by members that it does not
    // add.
    let longest = pairs.clone().map(|at| args.at(at + 1).len()).max().unwrap_or(0);
    let form = limits.form(pairs.len() as u64, longest);
    let (mut added, mut last) = (0, Outcome::Left);
    let changed = call.guard.edit(&call.keys[0], |edit: &mut Edit<'_, ZSet>| {
        edit.form = edit.form.max(form);
        for at in pairs {
            let given = float::parse(args.at(at)).expect("all of them were read before");
            last = add(edit, hasher, limits, how, args.at(at + 1), given);
            added += u64::from(matches!(last, Outcome::Added(_)));
        }
        edit.changes
    })?;
    if changed == 0 && form == SKIPLIST {
        call.guard.set_form(&call.keys[0], form);
    }
    match last {
        Outcome::NotANumber => {
            return Err(Error::text("ERR resulting score is not a number (NaN)"));
        }
        Outcome::Left if how.increment => call.reply.null(),
        Outcome::Same(score) | Outcome::Added(score) | Outcome::Moved(score) if how.increment => {
            call.reply.double(score);
        }
        _ => call.reply.int(if options.count_moved { changed } else { added } as i64),
    }
    Ok(Flow::Replied)
}

/// ZREM key member [member ...]
fn zrem(call: &mut Call<'_, '_>) -> Done {
    let (args, hasher) = (call.args, &call.guard.keyspace().hasher);
    let removed = call.guard.edit_if_there(&call.keys[0], |edit: &mut Edit<'_, ZSet>| {
        for member in args.from(2) {
            edit.changes += u64::from(edit.remove(hasher, member).is_some());
        }
        edit.changes
    })?;
    call.reply.int(removed.unwrap_or(0) as i64);
    Ok(Flow::Replied)
}

/// ZCARD key
fn zcard(call: &mut Call<'_, '_>) -> Done {
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    call.reply.int(zset.map_or(0, |zset| zset.len()) as i64);
    Ok(Flow::Replied)
}

/// ZSCORE key member
fn zscore(call: &mut Call<'_, '_>) -> Done {
    let hasher = &call.guard.keyspace().hasher;
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    match zset.and_then(|zset| zset.score(hasher, call.args.at(2))) {
        Some(score) => call.reply.double(score),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// ZMSCORE key member [member ...]
fn zmscore(call: &mut Call<'_, '_>) -> Done {
    let hasher = &call.guard.keyspace().hasher;
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    let members = call.args.from(2);
    call.reply.array(members.len());
    for member in members {
        match zset.as_ref().and_then(|zset| zset.score(hasher, member)) {
            Some(score) => call.reply.double(score),
            None => call.reply.null(),
        }
    }
    Ok(Flow::Replied)
}

/// ZRANK key member [WITHSCORE]
fn zrank(call: &mut Call<'_, '_>) -> Done {
    rank(call, false)
}

/// ZREVRANK key member [WITHSCORE]
fn zrevrank(call: &mut Call<'_, '_>) -> Done {
    rank(call, true)
}

fn rank(call: &mut Call<'_, '_>, reverse: bool) -> Done {
    let args = call.args;
    if args.len() > 4 {
        return Err(Error::Arity(call.name()));
    }
    let with_score = args.len() == 4;
    if with_score && !args.is(3, "WITHSCORE") {
        return Err(Error::Syntax);
    }
    let hasher = &call.guard.keyspace().hasher;
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    let found = zset.and_then(|zset| {
        let score = zset.score(hasher, args.at(2))?;
        let rank = zset.rank(args.at(2), score);
        Some((if reverse { zset.len() - 1 - rank } else { rank }, score))
    });
    match found {
        None if with_score => call.reply.null_array(),
        None => call.reply.null(),
        Some((rank, score)) => {
            if with_score {
                call.reply.array(2);
            }
            call.reply.int(rank as i64);
            if with_score {
                call.reply.double(score);
            }
        }
    }
    Ok(Flow::Replied)
}
