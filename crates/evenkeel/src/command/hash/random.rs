//! HRANDFIELD: fields at random.

use std::collections::HashSet;

use evenkeel_store::Millis;
use evenkeel_store::collection::{Field, Hash};

use super::Call;
use crate::error::{Done, Error};
use crate::reply::Reply;

/// Where more than one field in so many is asked for, choosing which ones are left out takes fewer tries.
const SHARE: u64 = 3;

const OUT_OF_RANGE: &str = "ERR value is out of range";

/// HRANDFIELD key [count [WITHVALUES]]
pub(super) fn hrandfield(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    if args.len() == 2 {
        return one(call);
    }
    let count = args.int(2)?;
    if count == i64::MIN {
        return Err(Error::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let with_values = args.len() == 4 && args.is(3, "WITHVALUES");
    if args.len() > 4 || args.len() == 4 && !with_values {
        return Err(Error::Syntax);
    }
    if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Error::text(OUT_OF_RANGE));
    }
    if count < 0 {
        any(call, count.unsigned_abs(), with_values)
    } else {
        distinct(call, count as u64, with_values)
    }
}

fn one(call: &mut Call<'_, '_>) -> Done {
    let (mut dice, now) = (Dice(call.held.seat.random()), call.now_ms());
    let hash = call.held.collection::<Hash>(&call.keys[0])?;
    match hash.as_ref().and_then(|hash| dice.field(hash, now)) {
        Some(field) => call.reply.bulk(field.name),
        None => call.reply.null(),
    }
    Ok(())
}

/// As many as asked for, the same ones again and again if need be.
///
/// There is no bound to what may be asked for, so there is one to the reply: the client's output buffer limit, at which
/// its connection is closed with nothing sent, or else the longest string.
fn any(call: &mut Call<'_, '_>, count: u64, with_values: bool) -> Done {
    let (mut dice, now) = (Dice(call.held.seat.random()), call.now_ms());
    let limit = call.settings.client_output_buffer_limit.normal.hard_bytes;
    let (mark, start) = (call.reply.mark(), call.reply.len());
    let hash = call.held.collection::<Hash>(&call.keys[0])?;
    let Some(hash) = hash.filter(|hash| hash.len(now) > 0) else {
        call.reply.array(0);
        return Ok(());
    };
    let mut list = List::begin(call.reply, count, with_values);
    for _ in 0..count {
        let field = dice.field(&hash, now).expect("there is one");
        list.item(field.name, field.value);
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
fn distinct(call: &mut Call<'_, '_>, count: u64, with_values: bool) -> Done {
    let (mut dice, now) = (Dice(call.held.seat.random()), call.now_ms());
    let hash = call.held.collection::<Hash>(&call.keys[0])?;
    let len = hash.as_ref().map_or(0, |hash| hash.len(now));
    let mut list = List::begin(call.reply, count.min(len), with_values);
    let Some(hash) = hash else { return Ok(()) };
    if count > len / SHARE || len < hash.size() / 2 {
        let mut left = count;
        for (at, (name, value)) in hash.iter(now).enumerate() {
            // Each one is taken with the chance that leaves as many for the rest as are needed.
            if dice.below(len - at as u64) < left {
                list.item(name, value);
                left -= 1;
            }
        }
        return Ok(());
    }
    let mut taken = HashSet::new();
    while (taken.len() as u64) < count {
        let at = dice.below(hash.size());
        let field = hash.at(at).expect("a position inside");
        if field.is_live(now) && taken.insert(at) {
            list.item(field.name, field.value);
        }
    }
    Ok(())
}

/// Fields, or fields with values, on their way into the reply.
struct List<'r> {
    reply: &'r mut Reply,
    with_values: bool,
}

impl<'r> List<'r> {
    fn begin(reply: &'r mut Reply, count: u64, with_values: bool) -> List<'r> {
        let flat = with_values && !reply.resp3;
        reply.array(count as usize * if flat { 2 } else { 1 });
        List { reply, with_values }
    }

    fn item(&mut self, name: &[u8], value: &[u8]) {
        if self.with_values && self.reply.resp3 {
            self.reply.array(2);
        }
        self.reply.bulk(name);
        if self.with_values {
            self.reply.bulk(value);
        }
    }
}

/// Random numbers for as long as the seat's own cannot be reached (splitmix64, begun with one of those).
struct Dice(u64);

impl Dice {
    /// A field, each with the same chance, unless most have expired and are still there: then any that has not.
    fn field<'a>(&mut self, hash: &'a Hash, now: Millis) -> Option<Field<'a>> {
        /// Fields tried before looking for one.
        const TRIES: usize = 32;
        if hash.len(now) == 0 {
            return None;
        }
        let position = |dice: &mut Dice| dice.below(hash.size());
        let found = (0..TRIES).find_map(|_| hash.at(position(self)).filter(|field| field.is_live(now)));
        found.or_else(|| {
            let from = position(self);
            let behind = hash.fields_from(from).find(|field| field.is_live(now));
            behind.or_else(|| hash.fields().find(|field| field.is_live(now)))
        })
    }

    /// A number below `end`, which is not zero.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(end)) >> 64) as u64
    }
}
