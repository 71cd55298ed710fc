//! Comparisons of a string with a value or a digest, and the commands that are about them: DIGEST, DELEX.
//!
//! The digest is the XXH3 hash of the bytes, in 64 bits. A long string is shared and hashed by another
//! thread, without the lock of its slot; the command then goes on if the string is still the same.

use std::hash::Hasher;

use evenkeel_store::rope::Rope;
use evenkeel_store::{Kind, Str};
use twox_hash::XxHash3_64;

use super::{holds, remove, string_to_change};
use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow, Work};
use crate::set_options::Comparison;

/// Bytes that take about as long to hash as an element of a collection takes to write.
const BYTES_PER_ELEMENT: usize = 1_000;

/// DIGEST key
///
/// Replies with sixteen hexadecimal digits.
pub(super) fn digest(call: &mut Call<'_, '_>) -> Done {
    let key = &call.keys[0];
    let Some(value) = call.guard.string(key)? else {
        call.reply.null();
        return Ok(Flow::Replied);
    };
    let len = value.len();
    if call.is_worth_offloading(len / BYTES_PER_ELEMENT)
        && let Some(rope) = call.guard.peek(key).and_then(|view| view.rope())
    {
        return call.offload(Work::reads(move |reply| {
            reply.bulk(&digits(digest_of(Str::Rope(&rope))));
            Ok(())
        }));
    }
    let digest = digest_of(string_to_change(call, 0)?.unwrap_or(Str::Flat(b"")));
    call.reply.bulk(&digits(digest));
    Ok(Flow::Replied)
}

/// DELEX key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]
///
/// As in Redis, a missing key is noticed before the arguments are looked at.
pub(super) fn delex(call: &mut Call<'_, '_>) -> Done {
    let kind = call.guard.peek(&call.keys[0]).map(|view| view.kind());
    let comparison = match (kind, call.args.len()) {
        (None, _) | (_, 2) => {
            let removed = remove(call);
            call.reply.int(i64::from(removed));
            return Ok(Flow::Replied);
        }
        (_, 4) => Comparison::named(call.args.word(2).as_bytes(), call.args.at(3)),
        _ => return Err(Error::Arity("delex")),
    };
    let comparison =
        comparison.ok_or_else(|| Error::text("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"))?;
    if kind != Some(Kind::String) {
        return Err(Error::text("ERR Key should be of string type if conditions are specified"));
    }
    if !comparison.by_digest {
        return delete_if(call, comparison, None);
    }
    let wants_equal = comparison.wants_equal;
    compare_digest(call, comparison, move |call, digest| {
        let comparison = Comparison { with: call.args.at(3), by_digest: true, wants_equal };
        delete_if(call, comparison, digest)
    })
}

fn delete_if(call: &mut Call<'_, '_>, comparison: Comparison<'_>, digest: Option<u64>) -> Done {
    // A missing key is not equal to anything, and yet there is nothing to delete.
    let removed = compared(call, comparison, digest)? && remove(call);
    call.reply.int(i64::from(removed));
    Ok(Flow::Replied)
}

/// Runs the rest of a command that compares the digest of its key: at once, or with the digest of a long
/// string when another thread has computed it.
pub(super) fn compare_digest(
    call: &mut Call<'_, '_>,
    comparison: Comparison<'_>,
    rest: impl FnOnce(&mut Call<'_, '_>, Option<u64>) -> Done + Send + 'static,
) -> Done {
    digest_given(comparison.with)?;
    let len = string_to_change(call, 0)?.map_or(0, |value| value.len());
    if !call.is_worth_offloading(len / BYTES_PER_ELEMENT) {
        return rest(call, None);
    }
    let Some(rope) = long_string(call) else { return rest(call, None) };
    let known = rope.clone();
    call.offload(Work::writes(
        move || Ok(digest_of(Str::Rope(&rope))),
        move |call| long_string(call).is_some_and(|now| now.is_same(&known)),
        move |call, digest| rest(call, Some(digest)),
    ))
}

/// Returns the string at the command's key if it is a rope.
fn long_string(call: &mut Call<'_, '_>) -> Option<Rope> {
    let view = call.guard.peek(&call.keys[0]).filter(|view| view.kind() == Kind::String)?;
    view.rope()
}

/// Whether the comparison of the command's key comes out as wanted. `digest` is that of the present value, if
/// it is known. A missing key is equal to nothing.
pub(super) fn compared(
    call: &mut Call<'_, '_>,
    comparison: Comparison<'_>,
    digest: Option<u64>,
) -> Result<bool, Error> {
    let is_equal = if comparison.by_digest {
        let given = digest_given(comparison.with)?;
        let present = string_to_change(call, 0)?.map(|value| digest.unwrap_or_else(|| digest_of(value)));
        present == Some(given)
    } else {
        holds(call, comparison.with)?
    };
    Ok(is_equal == comparison.wants_equal)
}

/// Parses a digest: up to sixteen hexadecimal digits, in any case.
fn digest_given(text: &[u8]) -> Result<u64, Error> {
    let is_one = (1..=16).contains(&text.len()) && text.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(text).ok().filter(|_| is_one);
    let digest = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digest.ok_or_else(|| Error::text("ERR a digest has up to 16 hexadecimal digits"))
}

fn digits(digest: u64) -> Vec<u8> {
    format!("{digest:016x}").into_bytes()
}

fn digest_of(value: Str<'_>) -> u64 {
    let mut hasher = XxHash3_64::default();
    value.for_each(0..value.len(), |piece| hasher.write(piece));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of a text that Redis' documentation shows, and those of another server's.
    #[test]
    fn digests_are_those_of_other_servers() {
        for (text, digits_expected) in [
            ("Hello world", "b6acb9d84a38ff74"),
            ("Hello, Dragonfly!", "063b4909128e92b7"),
            ("hello", "9555e8555c62dcfd"),
            ("test", "9ec9f7918d7dfc40"),
        ] {
            let digest = digest_of(Str::Flat(text.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&digits(digest)), digits_expected, "{text}");
            assert_eq!(digest_given(digits_expected.to_ascii_uppercase().as_bytes()).ok(), Some(digest));
        }
        for wrong in ["", "x", "0123456789abcdef0", "-1", "+1", " 1"] {
            assert!(digest_given(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    /// Pieces of a rope count as one string, its holes as zeros.
    #[test]
    fn the_digest_of_a_rope_is_that_of_its_bytes() {
        let mut rope = Rope::new(b"beginning");
        rope.write(300_000, b"end");
        let flat = Str::Rope(&rope).bytes().into_owned();
        assert_eq!(digest_of(Str::Rope(&rope)), digest_of(Str::Flat(&flat)));
        assert_eq!(flat.len(), 300_003);
    }
}
