//! AROP: sums, extremes, bits and counts of the values in a range.

use std::cmp::Ordering;

use evenkeel_rdb::Numeral;
use evenkeel_resp::number::parse_i64;
use evenkeel_store::collection::Array;

use super::range::Span;
use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::x87_float::Extended;

enum Op {
    Sum,
    Min,
    Max,
    And,
    Or,
    Xor,
    Match(Vec<u8>),
    Used,
}

impl Op {
    fn parse(call: &Call<'_, '_>) -> Result<Op, Error> {
        let op = match call.args.word(4).as_bytes() {
            b"SUM" => Op::Sum,
            b"MIN" => Op::Min,
            b"MAX" => Op::Max,
            b"AND" => Op::And,
            b"OR" => Op::Or,
            b"XOR" => Op::Xor,
            b"USED" => Op::Used,
            b"MATCH" if call.args.len() == 6 => return Ok(Op::Match(call.args.at(5).to_vec())),
            b"MATCH" => return Err(Error::text("ERR MATCH requires a value argument")),
            _ => return Err(Error::text("ERR unknown operation")),
        };
        if call.args.len() == 5 { Ok(op) } else { Err(Error::Arity(call.name())) }
    }

    fn reply_for_nothing(&self, reply: &mut Reply) {
        match self {
            Op::Match(_) | Op::Used => reply.int(0),
            _ => reply.null(),
        }
    }

    fn reply(&self, reply: &mut Reply, array: &Array, span: &Span) {
        match self {
            Op::Used => {
                let positions = array.positions(span.indices.clone());
                reply.uint(positions.end - positions.start);
            }
            Op::Match(wanted) => reply.uint(count_equal(array, span, wanted)),
            Op::And => reply_bits(reply, array, span, |all, one| all & one),
            Op::Or => reply_bits(reply, array, span, |all, one| all | one),
            Op::Xor => reply_bits(reply, array, span, |all, one| all ^ one),
            Op::Sum => reply_number(reply, array, span, sum),
            Op::Min => reply_number(reply, array, span, |all, one| Some(all.extreme(one, Ordering::Less))),
            Op::Max => reply_number(reply, array, span, |all, one| Some(all.extreme(one, Ordering::Greater))),
        }
    }
}

fn count_equal(array: &Array, span: &Span, wanted: &[u8]) -> u64 {
    let mut count = 0;
    span.walk(array, |_, _, value| {
        count += u64::from(value == wanted);
        true
    });
    count
}

/// A number with the precision in which Redis keeps it.
fn number_of(value: &[u8]) -> Option<Extended> {
    if let Some(number) = parse_i64(value) {
        return Some(Extended::from(number));
    }
    match Numeral::of(value) {
        Some(Numeral::Float(number)) => Some(Extended::from(number)),
        _ => Extended::parse(value),
    }
}

fn fold<T>(
    array: &Array,
    span: &Span,
    one: impl Fn(&[u8]) -> Option<T>,
    join: impl Fn(T, T) -> T,
) -> Option<T> {
    let mut all = None;
    span.walk(array, |_, _, value| {
        if let Some(one) = one(value) {
            all = Some(match all.take() {
                Some(all) => join(all, one),
                None => one,
            });
        }
        true
    });
    all
}

fn reply_bits(reply: &mut Reply, array: &Array, span: &Span, join: impl Fn(i64, i64) -> i64) {
    let whole = |value: &[u8]| parse_i64(value).or_else(|| number_of(value)?.whole());
    match fold(array, span, whole, join) {
        Some(bits) => reply.int(bits),
        None => reply.null(),
    }
}

fn reply_number(
    reply: &mut Reply,
    array: &Array,
    span: &Span,
    join: impl Fn(Extended, Extended) -> Option<Extended>,
) {
    // `None`: infinities of both signs, which make no number.
    let join = |all: Option<Extended>, one: Option<Extended>| join(all?, one?);
    match fold(array, span, |value| number_of(value).map(Some), join) {
        Some(Some(number)) => reply.bulk(number.print_general().as_bytes()),
        Some(None) => reply.bulk(b"-nan"),
        None => reply.null(),
    }
}

fn sum(all: Extended, one: Extended) -> Option<Extended> {
    match (all.is_finite(), one.is_finite()) {
        // Two finite numbers of a sign may be too large for any number.
        (true, true) => {
            let infinite = Extended::Infinite { negative: all.is_negative() };
            Some(all.plus(one).unwrap_or(infinite))
        }
        (false, false) if all.is_negative() != one.is_negative() => None,
        (false, _) => Some(all),
        (true, false) => Some(one),
    }
}

/// AROP key start end <SUM | MIN | MAX | AND | OR | XOR | MATCH value | USED>
pub(super) fn arop(call: &mut Call<'_, '_>) -> Done {
    let (span, op) = (Span::parse(&call.args, 2)?, Op::parse(call)?);
    let array = call.guard.collection::<Array>(&call.keys[0])?.map(|array| Array::clone(&array));
    let Some(array) = array else {
        op.reply_for_nothing(call.reply);
        return Ok(Flow::Replied);
    };
    let positions = array.positions(span.indices.clone());
    if is_much(positions.end - positions.start) && !matches!(op, Op::Used) {
        return call.offload_reply(move |reply| op.reply(reply, &array, &span));
    }
    op.reply(call.reply, &array, &span);
    Ok(Flow::Replied)
}
