//! HRANDFIELD and ZRANDMEMBER: fields and members at random.

use std::collections::HashSet;

use evenkeel_store::collection::{Collection, Hash, ZSet};

use super::Call;
use crate::error::{Done, Error};
use crate::reply::Reply;

/// Where more than one field in so many is asked for, choosing which ones are left out takes fewer tries.
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

/// What is chosen from: items at positions, each of which has something that goes with it.
trait Choice: Collection {
    type With<'a>;

    /// The option that asks for what goes with an item.
    const OPTION: &'static str;

    fn count(&self) -> u64;

    /// The item at a position, which is inside.
    fn item(&self, at: u64) -> (&[u8], Self::With<'_>);

    fn items(&self) -> impl Iterator<Item = (&[u8], Self::With<'_>)>;

    fn reply(reply: &mut Reply, with: Self::With<'_>);
}

impl Choice for Hash {
    type With<'a> = &'a [u8];
    const OPTION: &'static str = "WITHVALUES";

    fn count(&self) -> u64 {
        self.len()
    }

    fn item(&self, at: u64) -> (&[u8], &[u8]) {
        self.at(at).expect("a position inside")
    }

    fn items(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.iter()
    }

    fn reply(reply: &mut Reply, value: &[u8]) {
        reply.bulk(value);
    }
}

impl Choice for ZSet {
    type With<'a> = f64;
    const OPTION: &'static str = "WITHSCORES";

    fn count(&self) -> u64 {
        self.len()
    }

    fn item(&self, at: u64) -> (&[u8], f64) {
        self.get(at).expect("a position inside")
    }

    fn items(&self) -> impl Iterator<Item = (&[u8], f64)> {
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
    let mut dice = Dice(call.held.seat.random());
    match call.held.collection::<T>(&call.keys[0])? {
        Some(all) => call.reply.bulk(all.item(dice.below(all.count())).0),
        None => call.reply.null(),
    }
    Ok(())
}

/// As many as asked for, the same ones again and again if need be.
///
/// There is no bound to what may be asked for, so there is one to the reply: the client's output buffer limit, at which
/// its connection is closed with nothing sent, or else the longest string.
fn any<T: Choice>(call: &mut Call<'_, '_>, count: u64, with: bool) -> Done {
    let mut dice = Dice(call.held.seat.random());
    let limit = call.settings.client_output_buffer_limit.normal.hard_bytes;
    let (mark, start) = (call.reply.mark(), call.reply.len());
    let Some(all) = call.held.collection::<T>(&call.keys[0])? else {
        call.reply.array(0);
        return Ok(());
    };
    let mut list = List::begin(call.reply, count, with);
    for _ in 0..count {
        list.item::<T>(all.item(dice.below(all.count())));
        let len = list.reply.len();
        if limit > 0 && len as u64 > limit {
            break; // no byte of it will be sent
        }
        if limit == 0 && len - start > call.settings.proto_max_bulk_len {
            list.reply.rewind(mark);
            return Err(Error::text(OUT_OF_RANGE));
        }
    }
    Ok(())
}

/// As many different ones as asked for, or all.
fn distinct<T: Choice>(call: &mut Call<'_, '_>, count: u64, with: bool) -> Done {
    let mut dice = Dice(call.held.seat.random());
    let all = call.held.collection::<T>(&call.keys[0])?;
    let len = all.as_ref().map_or(0, |all| all.count());
    let mut list = List::begin(call.reply, count.min(len), with);
    let Some(all) = all else { return Ok(()) };
    if count > len / SHARE {
        let mut left = count;
        for (at, item) in all.items().enumerate() {
            // Each one is taken with the chance that leaves as many for the rest as are needed.
            if dice.below(len - at as u64) < left {
                list.item::<T>(item);
                left -= 1;
            }
        }
        return Ok(());
    }
    let mut taken = HashSet::new();
    while (taken.len() as u64) < count {
        let at = dice.below(len);
        if taken.insert(at) {
            list.item::<T>(all.item(at));
        }
    }
    Ok(())
}

/// Items, alone or with what goes with them, on their way into the reply.
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

/// Random numbers for as long as the seat's own cannot be reached (splitmix64, begun with one of those).
struct Dice(u64);

impl Dice {
    /// A number below `end`, which is not zero.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(end)) >> 64) as u64
    }
}
