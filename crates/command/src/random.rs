//! HRANDFIELD and ZRANDMEMBER: fields and members at random.

use std::collections::HashSet;

use evenkeel_store::Millis;
use evenkeel_store::collection::sample::Dice;
use evenkeel_store::collection::{Collection, Hash, ZSet};

use crate::Call;
use crate::error::Error;
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::{BULK_MIN, Reply};

/// Where more than a third of the fields are requested, choosing the fields to leave out takes fewer tries.
const SHARE: u64 = 3;

const OUT_OF_RANGE: &str = "ERR value is out of range";

/// HRANDFIELD key [count [WITHVALUES]]
pub(super) fn hrandfield(call: &mut Call<'_, '_>) -> Done {
    at_random::<Hash>(call)
}

/// ZRANDMEMBER key [count [WITHSCORES]]
pub(super) fn zrandmember(call: &mut Call<'_, '_>) -> Done {
    at_random::<ZSet>(call)
}

/// A collection to choose from: items at positions, each with a companion (a value or a score).
trait Choice: Collection {
    type With<'a>: Copy;

    /// The option that requests the companions.
    const OPTION: &'static str;

    /// Number of positions, of which some may hold expired items.
    fn size(&self) -> u64;

    /// Number of items that have not expired.
    fn count(&self, now: Millis) -> u64;

    /// Returns the item at a position, which is in bounds, unless it has expired.
    fn item(&self, at: u64, now: Millis) -> Option<(&[u8], Self::With<'_>)>;

    /// Returns the items that have not expired.
    fn items(&self, now: Millis) -> impl Iterator<Item = (&[u8], Self::With<'_>)>;

    fn reply(reply: &mut Reply, with: Self::With<'_>);
}

impl Choice for Hash {
    type With<'a> = &'a [u8];
    const OPTION: &'static str = "WITHVALUES";

    fn size(&self) -> u64 {
        Hash::size(self)
    }

    fn count(&self, now: Millis) -> u64 {
        self.len(now)
    }

    fn item(&self, at: u64, now: Millis) -> Option<(&[u8], &[u8])> {
        let field = self.at(at).expect("a position inside");
        field.is_live(now).then_some((field.name, field.value))
    }

    fn items(&self, now: Millis) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.iter(now)
    }

    fn reply(reply: &mut Reply, value: &[u8]) {
        reply.bulk(value);
    }
}

impl Choice for ZSet {
    type With<'a> = f64;
    const OPTION: &'static str = "WITHSCORES";

    fn size(&self) -> u64 {
        self.len()
    }

    fn count(&self, _: Millis) -> u64 {
        self.len()
    }

    fn item(&self, at: u64, _: Millis) -> Option<(&[u8], f64)> {
        self.get(at)
    }

    fn items(&self, _: Millis) -> impl Iterator<Item = (&[u8], f64)> {
        self.range(0..self.len())
    }

    fn reply(reply: &mut Reply, score: f64) {
        reply.double(score);
    }
}

fn at_random<T: Choice>(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    if args.len() == 2 {
        return one::<T>(call);
    }
    let count = args.int(2)?;
    if count == i64::MIN {
        return Err(Error::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let with = args.len() == 4 && args.is(3, T::OPTION);
    if args.len() > 4 || args.len() == 4 && !with {
        return Err(Error::Syntax);
    }
    if with && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Error::text(OUT_OF_RANGE));
    }
    if count < 0 {
        any::<T>(call, count.unsigned_abs(), with)
    } else {
        distinct::<T>(call, count as u64, with)
    }
}

fn one<T: Choice>(call: &mut Call<'_, '_>) -> Done {
    let (mut dice, now) = (Dice::new(call.guard.ctx.random()), call.now_ms());
    let Some(all) = call.guard.collection::<T>(&call.keys[0])? else {
        call.reply.null();
        return Ok(Flow::Replied);
    };
    let reply_one = move |all: &T, dice: &mut Dice, reply: &mut Reply| match choose(dice, all, now) {
        Some((name, _)) => reply.bulk(name),
        None => reply.null(),
    };
    if are_few(&*all, now) && is_much(all.size()) {
        let all = T::clone(&all);
        return call.offload_reply(move |reply| reply_one(&all, &mut dice, reply));
    }
    reply_one(&all, &mut dice, call.reply);
    Ok(Flow::Replied)
}

/// Chooses `count` items, with repetitions.
///
/// The count has no bound, so the reply has: the client's output buffer limit, at which its connection is
/// closed with nothing sent, or else the longest string.
fn any<T: Choice>(call: &mut Call<'_, '_>, count: u64, with: bool) -> Done {
    let (mut dice, now) = (Dice::new(call.guard.ctx.random()), call.now_ms());
    let (len_max, longest) = (call.reply_len_max(), call.settings.proto_max_bulk_len);
    let all = call.guard.collection::<T>(&call.keys[0])?;
    let Some(all) = all.filter(|all| all.count(now) > 0).map(|all| T::clone(&all)) else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    if len_max == usize::MAX && count > longest as u64 / BULK_MIN {
        return Err(Error::text(OUT_OF_RANGE));
    }
    let (size, are_few) = (all.size(), are_few(&all, now));
    let mut show = move |reply: &mut Reply| {
        let live: Vec<_> = if are_few { all.items(now).collect() } else { Vec::new() };
        let (mark, start) = (reply.mark(), reply.len());
        let mut list = List::begin(reply, count, with);
        for _ in 0..count {
            let item = if are_few {
                live[dice.below(live.len() as u64) as usize]
            } else {
                choose(&mut dice, &all, now).expect("there is one")
            };
            list.item::<T>(item);
            if list.reply.cut_beyond(len_max) {
                break;
            }
            if len_max == usize::MAX && list.reply.len() - start > longest {
                list.reply.rewind(mark);
                return Err(Error::text(OUT_OF_RANGE));
            }
        }
        Ok(())
    };
    let much = if are_few { size.max(count) } else { count };
    if is_much(much) { call.offload(Work::reads(show)) } else { show(call.reply).map(|()| Flow::Replied) }
}

/// Chooses `count` different items, or all.
fn distinct<T: Choice>(call: &mut Call<'_, '_>, count: u64, with: bool) -> Done {
    let (mut dice, now) = (Dice::new(call.guard.ctx.random()), call.now_ms());
    let Some(all) = call.guard.collection::<T>(&call.keys[0])?.map(|all| T::clone(&all)) else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let (len, size) = (all.count(now), all.size());
    let goes_over_all = count > len / SHARE || are_few(&all, now);
    let mut show = move |reply: &mut Reply| {
        let list = List::begin(reply, count.min(len), with);
        if goes_over_all {
            sift(list, &all, count, &mut dice, now);
        } else {
            pick(list, &all, count, &mut dice, now);
        }
    };
    if is_much(if goes_over_all { size } else { count }) {
        return call.offload_reply(show);
    }
    show(call.reply);
    Ok(Flow::Replied)
}

/// Whether so many items have expired in place that random tries would take long.
fn are_few<T: Choice>(all: &T, now: Millis) -> bool {
    all.count(now) < all.size() / 2
}

/// Chooses `count` different items by a pass over all.
fn sift<T: Choice>(mut list: List<'_>, all: &T, count: u64, dice: &mut Dice, now: Millis) {
    let (mut left, len) = (count, all.count(now));
    for (at, item) in all.items(now).enumerate() {
        // Each item is taken with the probability that leaves the required number for the rest.
        if dice.below(len - at as u64) < left {
            list.item::<T>(item);
            left -= 1;
        }
    }
}

/// Chooses `count` different items out of many more.
fn pick<T: Choice>(mut list: List<'_>, all: &T, count: u64, dice: &mut Dice, now: Millis) {
    let mut taken = HashSet::new();
    while (taken.len() as u64) < count {
        let at = dice.below(all.size());
        if let Some(item) = all.item(at, now)
            && taken.insert(at)
        {
            list.item::<T>(item);
        }
    }
}

/// Items, alone or with their companions, on their way into the reply.
struct List<'r> {
    reply: &'r mut Reply,
    with: bool,
}

impl<'r> List<'r> {
    fn begin(reply: &'r mut Reply, count: u64, with: bool) -> List<'r> {
        let flat = with && !reply.resp3;
        reply.array(count as usize * if flat { 2 } else { 1 });
        List { reply, with }
    }

    fn item<T: Choice>(&mut self, (name, with): (&[u8], T::With<'_>)) {
        if self.with && self.reply.resp3 {
            self.reply.array(2);
        }
        self.reply.bulk(name);
        if self.with {
            T::reply(self.reply, with);
        }
    }
}

/// Chooses an item, each with the same probability. If most have expired in place, any that has not.
fn choose<'a, T: Choice>(dice: &mut Dice, all: &'a T, now: Millis) -> Option<(&'a [u8], T::With<'a>)> {
    /// Random tries before a search.
    const TRIES: usize = 32;
    if all.count(now) == 0 {
        return None;
    }
    let found = (0..TRIES).find_map(|_| all.item(dice.below(all.size()), now));
    found.or_else(|| {
        let from = dice.below(all.size());
        (from..all.size()).chain(0..from).find_map(|at| all.item(at, now))
    })
}
