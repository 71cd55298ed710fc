//! Random numbers: Redis' generator, so that a seed gives the same sequence.

use std::cell::Cell;

use mlua::{Lua, MultiValue, Value};

use crate::native::Raise;
use crate::values::{number, one};

const RANDOM_MAX: f64 = i32::MAX as f64;

thread_local! {
    static RANDOM: Cell<u64> = const { Cell::new(0x330e) };
}

fn next_random() -> f64 {
    const MULTIPLIER: u64 = 0x5_deec_e66d;
    let next = (RANDOM.get().wrapping_mul(MULTIPLIER) + 0xb) & 0xffff_ffff_ffff;
    RANDOM.set(next);
    ((next >> 17) % i32::MAX as u64) as f64 / RANDOM_MAX
}

fn argument(lua: &Lua, args: &MultiValue, index: usize, name: &str) -> Result<f64, Raise> {
    let value = args.get(index);
    number(lua, value).ok_or_else(|| {
        let got = value.map_or("no value", Value::type_name);
        Raise::here(format!("bad argument #{} to '{name}' (number expected, got {got})", index + 1))
    })
}

/// `math.random([lower,] [upper])`
pub fn random(lua: &Lua, args: MultiValue) -> Result<MultiValue, Raise> {
    let random = next_random();
    let int = |index| argument(lua, &args, index, "random").map(|number| number as i64 as f64);
    let empty = |index| Raise::here(format!("bad argument #{index} to 'random' (interval is empty)"));
    let value = match args.len() {
        0 => random,
        1 => {
            let upper = int(0)?;
            if upper < 1.0 {
                return Err(empty(1));
            }
            (random * upper).floor() + 1.0
        }
        2 => {
            let (lower, upper) = (int(0)?, int(1)?);
            if lower > upper {
                return Err(empty(2));
            }
            (random * (upper - lower + 1.0)).floor() + lower
        }
        _ => return Err(Raise::here("wrong number of arguments")),
    };
    one(Value::Number(value))
}

/// `math.randomseed(seed)`
pub fn random_seed(lua: &Lua, args: MultiValue) -> Result<MultiValue, Raise> {
    let seed = argument(lua, &args, 0, "randomseed")? as i64 as u32;
    RANDOM.set(u64::from(seed) << 16 | 0x330e);
    Ok(MultiValue::new())
}
