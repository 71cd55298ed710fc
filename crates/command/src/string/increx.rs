//! INCREX: an increment with bounds, a condition and an expiration.
//!
//! The syntax is that of Redis 8.8 and Valkey 9.2 together: Valkey adds the conditions NX and XX. As in
//! Redis, no option may be repeated. A result out of bounds leaves the key as it is, unless SATURATE takes
//! the nearest bound instead.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::{Expire, Str};

use super::{log_set, remove, string_to_change};
use crate::class::{GENERIC, STRING};
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::set_options::Time;
use crate::x87_float::Extended;
use crate::{Args, Call};

/// INCREX key [NX | XX] [BYINT increment | BYFLOAT increment] [LBOUND lowerbound] [UBOUND upperbound]
/// [SATURATE] [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | PERSIST] [ENX]
///
/// Replies with the value and the increment that was applied.
pub(super) fn increx(call: &mut Call<'_, '_>) -> Done {
    let options = Options::parse(&call.args)?;
    if options.only_if_timeless && options.time.is_none() {
        return Err(Error::text("ERR ENX flag requires an expiration"));
    }
    let sum = Sum::parse(&options)?;
    let deadline = options.time.map(|time| time.deadline(call.counts_from_ms(), "increx")).transpose()?;
    let present = match string_to_change(call, 0)? {
        None => None,
        Some(Str::Flat(bytes)) => Some(sum.read(bytes)?),
        Some(Str::Rope(_)) => return Err(sum.not_a_number()),
    };
    let wanted = if present.is_some() { !options.if_absent } else { !options.if_present };
    let before = present.unwrap_or(sum.zero());
    let after = if wanted { sum.after(before, options.saturates) } else { None };
    let applied = after.map_or(Ok(sum.zero()), |after| after.minus(before))?;
    if let Some(after) = after {
        let had_deadline = call.guard.peek(&call.keys[0]).is_some_and(|view| view.deadline().is_some());
        let expire = match deadline {
            Some(_) if options.only_if_timeless && had_deadline => Expire::Keep,
            Some(deadline) => Expire::At(deadline),
            None if options.persists => Expire::Clear,
            None => Expire::Keep,
        };
        store(call, after, expire, had_deadline);
    }
    call.reply.array(2);
    after.unwrap_or(before).reply(call.reply);
    applied.reply(call.reply);
    Ok(Flow::Replied)
}

/// Stores the new value with its deadline, or removes the key if the deadline has passed; and logs that.
fn store(call: &mut Call<'_, '_>, value: Number, expire: Expire, had_deadline: bool) {
    let key = &call.keys[0];
    if matches!(expire, Expire::At(deadline) if call.passes()(deadline)) {
        if remove(call) {
            call.say(key, GENERIC, "del");
        }
        return;
    }
    let text = value.text();
    let event = match value {
        Number::Integer(_) => {
            call.guard.set_string(key, text.as_bytes(), expire);
            "incrby"
        }
        Number::Float(_) => {
            call.guard.set_text(key, text.as_bytes(), expire);
            "incrbyfloat"
        }
    };
    log_set(call, key.bytes, text.as_bytes(), expire);
    call.say(key, STRING, event);
    match expire {
        Expire::At(_) => call.say(key, GENERIC, "expire"),
        Expire::Clear if had_deadline => call.say(key, GENERIC, "persist"),
        Expire::Clear | Expire::Keep => {}
    }
}

/// Options as given.
#[derive(Default)]
struct Options<'a> {
    if_absent: bool,
    if_present: bool,
    by_float: bool,
    increment: Option<&'a [u8]>,
    lower: Option<&'a [u8]>,
    upper: Option<&'a [u8]>,
    saturates: bool,
    time: Option<Time<'a>>,
    persists: bool,
    /// ENX: the time counts only for a key without a deadline.
    only_if_timeless: bool,
}

impl<'a> Options<'a> {
    fn parse(args: &Args<'a>) -> Result<Options<'a>, Error> {
        let (mut options, mut at) = (Options::default(), 2);
        while at < args.len() {
            at += options.take(args, at).ok_or(Error::Syntax)?;
        }
        Ok(options)
    }

    /// Takes the option at `at`, and returns how many arguments it used. `None` if it is not an option, is
    /// repeated, or conflicts with an option before it.
    fn take(&mut self, args: &Args<'a>, at: usize) -> Option<usize> {
        let word = args.word(at);
        let fresh = match word.as_bytes() {
            b"NX" if !self.if_present => !std::mem::replace(&mut self.if_absent, true),
            b"XX" if !self.if_absent => !std::mem::replace(&mut self.if_present, true),
            b"SATURATE" => !std::mem::replace(&mut self.saturates, true),
            b"ENX" if !self.persists => !std::mem::replace(&mut self.only_if_timeless, true),
            b"PERSIST" if self.time.is_none() && !self.only_if_timeless => {
                !std::mem::replace(&mut self.persists, true)
            }
            name => return self.take_value(name, args.get(at + 1)?),
        };
        fresh.then_some(1)
    }

    fn take_value(&mut self, name: &[u8], value: &'a [u8]) -> Option<usize> {
        let is_repeated = match name {
            b"BYINT" | b"BYFLOAT" => {
                self.by_float = name == b"BYFLOAT";
                self.increment.replace(value).is_some()
            }
            b"LBOUND" => self.lower.replace(value).is_some(),
            b"UBOUND" => self.upper.replace(value).is_some(),
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if !self.persists => {
                let (seconds, relative) = (name.starts_with(b"E"), !name.ends_with(b"AT"));
                self.time.replace(Time { text: value, seconds, relative }).is_some()
            }
            _ => true,
        };
        (!is_repeated).then_some(2)
    }
}

/// A value or an increment.
#[derive(Clone, Copy)]
enum Number {
    Integer(i64),
    Float(Extended),
}

impl Number {
    /// Returns the difference, which is the increment that was applied.
    fn minus(self, before: Number) -> Result<Number, Error> {
        match (self, before) {
            (Number::Integer(after), Number::Integer(before)) => {
                let applied = after.checked_sub(before).map(Number::Integer);
                applied.ok_or(Error::text("ERR applied increment would overflow"))
            }
            (Number::Float(after), Number::Float(before)) => {
                let applied = after.plus(before.negated()).map(Number::Float);
                applied.ok_or(Error::text("ERR applied increment would be Infinity"))
            }
            _ => unreachable!("a call has numbers of a single kind"),
        }
    }

    fn text(self) -> String {
        match self {
            Number::Integer(value) => value.to_string(),
            Number::Float(value) => value.print(),
        }
    }

    fn reply(self, reply: &mut Reply) {
        match self {
            Number::Integer(value) => reply.int(value),
            Number::Float(value) => reply.double_text(value.print().as_bytes()),
        }
    }
}

/// The increment and the bounds: integers, or floats with BYFLOAT. The bounds are in order.
enum Sum {
    Integers { increment: i64, lower: i64, upper: i64 },
    Floats { increment: Extended, lower: Extended, upper: Extended },
}

impl Sum {
    fn parse(options: &Options<'_>) -> Result<Sum, Error> {
        let in_order = if options.by_float {
            let float = |text: Option<&[u8]>, name: &str, default| match text {
                None => Ok(default),
                Some(text) => Extended::parse(text)
                    .ok_or_else(|| Error::text(format!("ERR {name} is not a valid float"))),
            };
            let increment = float(options.increment, "Increment", Extended::ZERO)?;
            if !increment.is_finite() {
                return Err(Error::text("ERR BYFLOAT increment cannot be Infinity"));
            }
            let lower = float(options.lower, "LBOUND", Extended::MAX.negated())?;
            let upper = float(options.upper, "UBOUND", Extended::MAX)?;
            lower.compare(upper).is_le().then_some(Sum::Floats { increment, lower, upper })
        } else {
            let integer = |text: Option<&[u8]>, name: &str, default| match text {
                None => Ok(default),
                Some(text) => parse_i64(text)
                    .ok_or_else(|| Error::text(format!("ERR {name} is not an integer or out of range"))),
            };
            let increment = integer(options.increment, "Increment", 1)?;
            let lower = integer(options.lower, "LBOUND", i64::MIN)?;
            let upper = integer(options.upper, "UBOUND", i64::MAX)?;
            (lower <= upper).then_some(Sum::Integers { increment, lower, upper })
        };
        in_order.ok_or(Error::text("ERR LBOUND can't be greater than UBOUND"))
    }

    fn not_a_number(&self) -> Error {
        if matches!(self, Sum::Integers { .. }) { Error::NotInteger } else { Error::NotFloat }
    }

    fn zero(&self) -> Number {
        match self {
            Sum::Integers { .. } => Number::Integer(0),
            Sum::Floats { .. } => Number::Float(Extended::ZERO),
        }
    }

    /// Parses the present value.
    fn read(&self, text: &[u8]) -> Result<Number, Error> {
        let number = match self {
            Sum::Integers { .. } => parse_i64(text).map(Number::Integer),
            Sum::Floats { .. } => Extended::parse(text).map(Number::Float),
        };
        match number.ok_or_else(|| self.not_a_number())? {
            Number::Float(value) if !value.is_finite() => Err(Error::text("ERR value cannot be Infinity")),
            number => Ok(number),
        }
    }

    /// Returns the value after the increment; `None` if that is out of bounds and does not saturate.
    fn after(&self, before: Number, saturates: bool) -> Option<Number> {
        match (self, before) {
            (Sum::Integers { increment, lower, upper }, Number::Integer(before)) => {
                let (lower, upper) = (i128::from(*lower), i128::from(*upper));
                let sum = i128::from(before) + i128::from(*increment);
                let value = sum.clamp(lower, upper);
                let fits = saturates || value == sum;
                fits.then(|| Number::Integer(i64::try_from(value).expect("between two of 64 bits")))
            }
            (Sum::Floats { increment, lower, upper }, Number::Float(before)) => {
                let sum = before.plus(*increment);
                // Only an increment in the direction of the value overflows.
                let limit = if increment.is_negative() { Extended::MAX.negated() } else { Extended::MAX };
                let value = sum.unwrap_or(limit);
                let within = match () {
                    () if value.compare(*lower).is_lt() => *lower,
                    () if value.compare(*upper).is_gt() => *upper,
                    () => value,
                };
                let fits = saturates || sum == Some(within);
                fits.then_some(Number::Float(within))
            }
            _ => unreachable!("a call has numbers of a single kind"),
        }
    }
}
