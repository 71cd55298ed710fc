//! PFSELFTEST: whether registers keep their values, the encodings agree, and counts are as good as promised.
//!
//! Redis counts ten million elements and takes seconds. Here it is 100,000, about 2 ms: the worker's other
//! clients wait meanwhile, and the estimator has no special ranges that only large counts would reach.

use super::hash::{self, Place};
use super::{HEADER, REGISTERS, Registers, count, dense, empty, encoding, raise_all, to_dense};

const ELEMENTS: u64 = 100_000;

/// The usual `hll-sparse-max-bytes`, whatever its setting: elements take their time in long sparse values.
const SPARSE_MAX: usize = 3_000;

/// Rounds of random registers.
const ROUNDS: u64 = 20;

/// Six times the standard error, 1.04 / sqrt(registers): a correct implementation fails such a test once in a
/// billion, and the elements are always the same.
const ERROR_MAX: f64 = 6.0 * 1.04 / 128.0;
const _: () = assert!(REGISTERS == 128 * 128);

/// So few elements are counted exactly or within 1.
const EXACT_MAX: u64 = 10;

/// Returns the first failure as a text.
pub fn self_test() -> Result<(), String> {
    registers_keep_their_values()?;
    let fault = |_| "a value of its own making is corrupt".to_owned();
    let mut sparse = empty();
    let mut dense = to_dense(&sparse).map_err(fault)?;
    let mut checkpoint = 1;
    for number in 1..=ELEMENTS {
        let place = hash::place(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        for value in [&mut sparse, &mut dense] {
            raise_all(value, std::iter::once(place), SPARSE_MAX).map_err(fault)?;
        }
        if number == checkpoint {
            checkpoint *= 10;
            if to_dense(&sparse) != to_dense(&dense) {
                return Err(format!("dense and {} disagree after {number}", encoding_of(&sparse)));
            }
            let error = count(&dense).map_err(fault)?.abs_diff(number);
            let error_max = if number <= EXACT_MAX { 1 } else { (ERROR_MAX * number as f64).ceil() as u64 };
            if error > error_max {
                return Err(format!("{number} elements are miscounted by {error}"));
            }
        }
    }
    Ok(())
}

fn encoding_of(value: &[u8]) -> &'static str {
    encoding(value).map_or("nothing", |encoding| encoding.name())
}

fn registers_keep_their_values() -> Result<(), String> {
    let mut packed = to_dense(&empty()).map_err(|_| "empty is corrupt".to_owned())?;
    let mut plain = [0; REGISTERS];
    for round in 0..ROUNDS {
        for (index, register) in plain.iter_mut().enumerate() {
            let rank = (hash::place(&(round << 32 | index as u64).to_le_bytes()).index % 64) as u8;
            let raised = dense::raise(&mut packed[HEADER..], Place { index, rank });
            if raised != (rank > *register) {
                return Err(format!("register {index} is {register} and does not take {rank} as that"));
            }
            *register = rank.max(*register);
        }
    }
    let mut unpacked = Registers::zeros();
    dense::merge_into(&mut unpacked, &packed[HEADER..]);
    let mut pairs = unpacked.iter().zip(plain).enumerate();
    match pairs.find(|(_, (unpacked, plain))| unpacked != plain) {
        Some((at, (unpacked, plain))) => Err(format!("register {at} should be {plain} and is {unpacked}")),
        None => Ok(()),
    }
}
