//! Natural numbers of any size, as far as parsing and printing floats needs them: up to some 35,000 bits.

use std::cmp::Ordering;

/// The largest power of ten in 64 bits, and its exponent.
const CHUNK: u64 = 10_000_000_000_000_000_000;
const CHUNK_DIGITS: usize = 19;

/// See the module's text. Least significant word first; the last word is not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Natural(Vec<u64>);

impl From<u128> for Natural {
    fn from(value: u128) -> Natural {
        Natural(vec![value as u64, (value >> 64) as u64]).trimmed()
    }
}

/// `base^exponent`, for a base of ten at most.
pub fn power_of(base: u64, exponent: usize) -> Natural {
    let mut power = Natural(vec![1]);
    for _ in 0..exponent / CHUNK_DIGITS {
        power.multiply_add(base.pow(CHUNK_DIGITS as u32), 0);
    }
    power.multiply_add(base.pow((exponent % CHUNK_DIGITS) as u32), 0);
    power
}

/// `10^exponent`.
pub fn ten_to(exponent: usize) -> Natural {
    power_of(10, exponent)
}

impl Natural {
    fn trimmed(mut self) -> Natural {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    /// Converts decimal digits, most significant first, as values.
    pub fn from_digits(digits: &[u8]) -> Natural {
        let mut number = Natural(Vec::new());
        for chunk in digits.chunks(CHUNK_DIGITS) {
            let value = chunk.iter().fold(0, |value, digit| value * 10 + u64::from(*digit));
            number.multiply_add(10_u64.pow(chunk.len() as u32), value);
        }
        number
    }

    fn multiply_add(&mut self, factor: u64, add: u64) {
        let mut carry = add;
        for word in &mut self.0 {
            let product = u128::from(*word) * u128::from(factor) + u128::from(carry);
            (*word, carry) = (product as u64, (product >> 64) as u64);
        }
        if carry != 0 {
            self.0.push(carry);
        }
    }

    pub fn times(&self, other: &Natural) -> Natural {
        let mut product = Natural(vec![0; self.0.len() + other.0.len()]);
        for (at, factor) in other.0.iter().enumerate() {
            let mut carry = 0;
            for (word, mine) in product.0[at..].iter_mut().zip(&self.0) {
                let sum = u128::from(*mine) * u128::from(*factor) + u128::from(*word) + u128::from(carry);
                (*word, carry) = (sum as u64, (sum >> 64) as u64);
            }
            product.0[at + self.0.len()] = carry;
        }
        product.trimmed()
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |last| 64 * self.0.len() - last.leading_zeros() as usize)
    }

    pub fn shifted_left(&self, by: usize) -> Natural {
        let (words, bits) = (by / 64, by % 64);
        let mut shifted = vec![0; words];
        let mut carry = 0;
        for word in &self.0 {
            let wide = u128::from(*word) << bits | carry;
            shifted.push(wide as u64);
            carry = wide >> 64;
        }
        shifted.push(carry as u64);
        Natural(shifted).trimmed()
    }

    /// Returns the highest 128 bits (or all), the exponent of two that scales them, and whether any bit below
    /// them is set.
    pub fn top_bits(&self) -> (u128, i64, bool) {
        let bits = self.0.iter().rev().take(2).fold(0, |bits, word| bits << 64 | u128::from(*word));
        let below = self.0.len().saturating_sub(2);
        (bits, 64 * below as i64, self.0[..below].iter().any(|word| *word != 0))
    }

    /// [`Natural::top_bits`] of `self / divisor`, but with 66 or 67 bits. Neither is zero.
    pub fn quotient_bits(&self, divisor: &Natural) -> (u128, i64, bool) {
        const STEPS: usize = 67;
        // Shifted so that their quotient is less than 1 and more than 1/4.
        let apart = divisor.bits() as i64 - self.bits() as i64 - 1;
        let (mut rest, divisor) = if apart >= 0 {
            (self.shifted_left(apart as usize), divisor.clone())
        } else {
            (self.clone(), divisor.shifted_left(-apart as usize))
        };
        let mut bits = 0;
        for _ in 0..STEPS {
            rest.multiply_add(2, 0);
            bits <<= 1;
            if rest.compare(&divisor) != Ordering::Less {
                rest.subtract(&divisor);
                bits |= 1;
            }
        }
        (bits, -apart - STEPS as i64, !rest.0.is_empty())
    }

    fn compare(&self, other: &Natural) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Subtracts `other`, which is not larger.
    fn subtract(&mut self, other: &Natural) {
        let mut borrow = false;
        for (at, word) in self.0.iter_mut().enumerate() {
            let take = other.0.get(at).copied().unwrap_or(0);
            let (less, first) = word.overflowing_sub(take);
            let (less, second) = less.overflowing_sub(u64::from(borrow));
            (*word, borrow) = (less, first || second);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// Returns the decimal digits.
    pub fn print(mut self) -> String {
        let mut chunks = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0;
            for word in self.0.iter_mut().rev() {
                let wide = u128::from(rest) << 64 | u128::from(*word);
                *word = (wide / u128::from(CHUNK)) as u64;
                rest = (wide % u128::from(CHUNK)) as u64;
            }
            chunks.push(rest);
            self = self.trimmed();
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        chunks.iter().rev().for_each(|chunk| text.push_str(&format!("{chunk:019}")));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_parsed() {
        let text = "9".repeat(5_000);
        let digits: Vec<u8> = text.bytes().map(|byte| byte - b'0').collect();
        let nines = Natural::from_digits(&digits);
        assert!(nines.clone().print() == text);
        // 99..9 * 10^40 + 0, and 2^k by shifting and by multiplying.
        assert!(nines.times(&ten_to(40)).print() == text + &"0".repeat(40));
        assert_eq!(
            Natural::from(3).shifted_left(200).print(),
            (0..200).fold(Natural::from(3), |n, _| n.times(&Natural::from(2))).print()
        );
        assert_eq!(Natural::from(0).print(), "0");
    }

    #[test]
    fn division_reports_inexact_quotients() {
        let value =
            |(bits, exponent, rest): (u128, i64, bool)| (bits as f64 * (exponent as f64).exp2(), rest);
        assert_eq!(value(Natural::from(6).quotient_bits(&Natural::from(3))), (2.0, false));
        assert_eq!(
            value(Natural::from(1).quotient_bits(&Natural::from(1 << 100))),
            ((-100_f64).exp2(), false)
        );
        assert_eq!(value(ten_to(30).quotient_bits(&ten_to(29))), (10.0, false));
        assert_eq!(value(Natural::from(1).quotient_bits(&Natural::from(3))), (1.0 / 3.0, true));
        assert!(ten_to(5_000).top_bits().2);
        assert_eq!(Natural::from(5).top_bits(), (5, 0, false));
    }
}
