//! BITFIELD: integers of 1 to 64 bits anywhere in a string, the highest bit first.
//!
//! A field of up to 64 bits lies in at most nine bytes: they are read into a 128-bit number, changed there,
//! and written back if they differ. Sums are computed in 128 bits, too, so no overflow has to be foreseen.

use evenkeel_store::Str;

use crate::Call;
use crate::bitmap::bit_offset;
use crate::class::STRING;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::string::string_to_change;

/// Bytes that a field can touch.
const WINDOW: usize = 9;

/// The type and place of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    signed: bool,
    /// 1 to 64; at most 63 if not signed.
    bits: u32,
    /// The first bit.
    offset: u64,
}

/// The action for a value that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Clone, Copy, Debug)]
struct Step {
    field: Field,
    action: Action,
    overflow: Overflow,
}

/// BITFIELD key [GET encoding offset | [OVERFLOW WRAP | SAT | FAIL] SET encoding offset value | INCRBY
/// encoding offset increment ...]
pub fn bitfield(call: &mut Call<'_, '_>) -> Done {
    let steps = parse(call)?;
    if steps.iter().all(|step| step.action == Action::Get) {
        return read_all(call, &steps);
    }
    string_to_change(call, 0)?;
    call.reply.array(steps.len());
    let mut said = Vec::with_capacity(steps.len());
    for step in &steps {
        said.push(run(call, step)?);
    }
    let writes = steps.iter().filter(|step| step.action != Action::Get);
    let end = writes.map(|step| step.field.last_byte() + 1).max().unwrap_or(0);
    let len = string_to_change(call, 0)?.map_or(0, |value| value.len());
    let grows = len < end;
    if grows {
        // A value that did not fit makes the string longer all the same.
        call.guard.write_range(&call.keys[0], end - 1, &[0])?;
    } else {
        // It counts as a write even if every value was there already.
        call.guard.write_same(&call.keys[0])?;
    }
    // A string that became longer only for values that did not fit has no event.
    if said.contains(&Fate::Changed) || grows && said.contains(&Fate::Same) {
        let key = call.keys[0];
        call.say(&key, STRING, "setbit");
    }
    Ok(Flow::Replied)
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Read,
    /// Its value did not fit.
    Failed,
    /// Its value was there already.
    Same,
    Changed,
}

/// BITFIELD_RO key [GET encoding offset ...]
pub fn bitfield_ro(call: &mut Call<'_, '_>) -> Done {
    let steps = parse(call)?;
    if steps.iter().any(|step| step.action != Action::Get) {
        return Err(Error::text("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read_all(call, &steps)
}

fn read_all(call: &mut Call<'_, '_>, steps: &[Step]) -> Done {
    let value = call.guard.string(&call.keys[0])?.unwrap_or(Str::Flat(b""));
    call.reply.array(steps.len());
    for step in steps {
        call.reply.int(step.field.decode(&step.field.window(value)));
    }
    Ok(Flow::Replied)
}

fn parse(call: &Call<'_, '_>) -> Result<Vec<Step>, Error> {
    let (args, mut steps, mut overflow, mut at) = (call.args, Vec::new(), Overflow::Wrap, 2);
    while at < args.len() {
        let left = args.len() - at - 1;
        let used = match args.word(at).as_bytes() {
            b"GET" if left >= 2 => 2,
            b"SET" | b"INCRBY" if left >= 3 => 3,
            b"OVERFLOW" if left >= 1 => {
                overflow = match args.word(at + 1).as_bytes() {
                    b"WRAP" => Overflow::Wrap,
                    b"SAT" => Overflow::Saturate,
                    b"FAIL" => Overflow::Fail,
                    _ => return Err(Error::text("ERR Invalid OVERFLOW type specified")),
                };
                at += 2;
                continue;
            }
            _ => return Err(Error::Syntax),
        };
        let (signed, bits) = parse_type(args.at(at + 1))?;
        let field = Field { signed, bits, offset: bit_offset(call, args.at(at + 2), Some(bits))? };
        let action = match args.word(at).as_bytes() {
            b"GET" => Action::Get,
            b"SET" => Action::Set(args.int(at + 3)?),
            _ => Action::Add(args.int(at + 3)?),
        };
        steps.push(Step { field, action, overflow });
        at += 1 + used;
    }
    Ok(steps)
}

/// Parses `i16` or `u8`: whether it is signed, and its number of bits.
fn parse_type(text: &[u8]) -> Result<(bool, u32), Error> {
    let parsed = match text {
        [b'i', bits @ ..] => Some((true, bits, 64)),
        [b'u', bits @ ..] => Some((false, bits, 63)),
        _ => None,
    };
    let parsed = parsed.and_then(|(signed, bits, most)| {
        let bits = evenkeel_resp::number::parse_i64(bits).filter(|bits| (1..=most).contains(bits))?;
        Some((signed, bits as u32))
    });
    parsed.ok_or(Error::text(
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
    ))
}

/// Runs a step, and writes its reply: the old value for SET, the new value for INCRBY, null if it failed.
fn run(call: &mut Call<'_, '_>, step: &Step) -> Result<Fate, Error> {
    let field = step.field;
    let value = string_to_change(call, 0)?.unwrap_or(Str::Flat(b""));
    let (window, len) = (field.window(value), value.len());
    let old = field.decode(&window);
    let Some(new) = (match step.action {
        Action::Get => Some(old),
        Action::Set(value) => field.fit(field.given(value), step.overflow),
        Action::Add(value) => field.fit(i128::from(old) + i128::from(value), step.overflow),
    }) else {
        call.reply.null();
        return Ok(Fate::Failed);
    };
    let mut fate = Fate::Read;
    if step.action != Action::Get {
        let (first, last) = (field.first_byte(), field.last_byte());
        let encoded = field.encode(window, new);
        let bytes = &encoded[..=last - first];
        // Where the string ends before the field does, a write makes it longer.
        fate = Fate::Same;
        if last >= len || *bytes != window[..=last - first] {
            call.guard.write_range(&call.keys[0], first, bytes)?;
            fate = Fate::Changed;
        }
    }
    call.reply.int(if let Action::Set(_) = step.action { old } else { new });
    Ok(fate)
}

impl Field {
    fn first_byte(self) -> usize {
        (self.offset / 8) as usize
    }

    fn last_byte(self) -> usize {
        ((self.offset + u64::from(self.bits) - 1) / 8) as usize
    }

    /// Returns the bytes from the field's first byte on; zeros beyond the string's end.
    fn window(self, value: Str<'_>) -> [u8; WINDOW] {
        let first = self.first_byte();
        match value {
            Str::Flat(bytes) if first + WINDOW <= bytes.len() => {
                bytes[first..first + WINDOW].try_into().expect("as long")
            }
            _ => std::array::from_fn(|at| value.byte(first + at)),
        }
    }

    /// Returns the distance of the field's last bit from the window's end.
    fn shift(self) -> u32 {
        WINDOW as u32 * 8 - (self.offset % 8) as u32 - self.bits
    }

    fn decode(self, window: &[u8; WINDOW]) -> i64 {
        let raw = (number(window) >> self.shift()) as u64;
        let unused = 64 - self.bits;
        if self.signed { (raw << unused) as i64 >> unused } else { (raw << unused >> unused) as i64 }
    }

    fn encode(self, window: [u8; WINDOW], value: i64) -> [u8; WINDOW] {
        let mask = u128::from(u64::MAX >> (64 - self.bits));
        let bits = (value as u64 as u128 & mask) << self.shift();
        let whole = number(&window) & !(mask << self.shift()) | bits;
        std::array::from_fn(|at| (whole >> (8 * (WINDOW - 1 - at))) as u8)
    }

    fn range(self) -> (i128, i128) {
        if self.signed {
            (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)
        } else {
            (0, (1 << self.bits) - 1)
        }
    }

    /// Returns the value that SET means. For an unsigned field, a negative argument counts as the 64-bit
    /// number with the same bits. So does an argument so far below a signed field that its distance from the
    /// largest value exceeds 64 bits: Redis takes it to be above.
    fn given(self, value: i64) -> i128 {
        let below = || self.range().1 - i128::from(value) <= i128::from(i64::MAX);
        if self.signed && (self.bits == 64 || below()) { value.into() } else { (value as u64).into() }
    }

    /// Returns the number to store for `value`; `None` if the step has to fail.
    fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        let (min, max) = self.range();
        if (min..=max).contains(&value) {
            return Some(value as i64);
        }
        match overflow {
            Overflow::Fail => None,
            Overflow::Saturate => Some(value.clamp(min, max) as i64),
            Overflow::Wrap => {
                let unused = 64 - self.bits;
                let raw = (value as u64) << unused;
                Some(if self.signed { raw as i64 >> unused } else { (raw >> unused) as i64 })
            }
        }
    }
}

fn number(window: &[u8; WINDOW]) -> u128 {
    window.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::printed as random;

    #[test]
    fn fields_of_any_width_at_any_offset() {
        let mut random = random();
        for _ in 0..20_000 {
            let signed = random.chance(50);
            let bits = random.between(1, if signed { 64 } else { 63 }) as u32;
            let field = Field { signed, bits, offset: random.below(64) as u64 };
            let first = field.first_byte();
            let plain: Vec<u8> = (0..first + random.below(12)).map(|_| random.below(256) as u8).collect();
            let window = field.window(Str::Flat(&plain));
            let bit = |at: u64| plain.get((at / 8) as usize).map_or(0, |byte| byte >> (7 - at % 8) & 1);
            let raw = (field.offset..field.offset + u64::from(bits))
                .fold(0_i128, |raw, at| raw << 1 | i128::from(bit(at)));
            let value = if signed && raw >> (bits - 1) == 1 { raw - (1 << bits) } else { raw };
            assert_eq!(i128::from(field.decode(&window)), value, "{field:?}");
            let new = field.fit(i128::from(random.draw()), Overflow::Wrap).expect("it wraps");
            let changed = field.encode(window, new);
            assert_eq!(field.decode(&changed), new, "{field:?}");
            assert_eq!(field.encode(changed, value as i64), window, "only the field has changed");
        }
    }

    #[test]
    fn overflows() {
        let field = |signed, bits| Field { signed, bits, offset: 0 };
        for (field, value, wrapped, saturated) in [
            (field(true, 8), 128, -128, 127),
            (field(true, 8), -129, 127, -128),
            (field(false, 8), 256, 0, 255),
            (field(false, 8), -1, 255, 0),
            (field(true, 64), i128::from(i64::MAX) + 1, i64::MIN, i64::MAX),
            (field(true, 64), i128::from(i64::MIN) - 1, i64::MAX, i64::MIN),
            (field(false, 63), 1 << 63, 0, i64::MAX),
            (field(true, 1), 1, -1, 0),
        ] {
            assert_eq!(field.fit(value, Overflow::Wrap), Some(wrapped), "{field:?} {value}");
            assert_eq!(field.fit(value, Overflow::Saturate), Some(saturated), "{field:?} {value}");
            assert_eq!(field.fit(value, Overflow::Fail), None, "{field:?} {value}");
        }
    }
}
