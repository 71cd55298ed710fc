//! Numbers in the spelling of Redis. Redis reads scores, weights and coordinates in hexadecimal digits as
//! well, and ends of ranges behind spaces; Evenkeel, like Valkey, refuses these forms from its clients. The
//! streams and append-only files of Redis hold commands as Redis' clients wrote them, so a replayed command
//! is rewritten in decimals before it runs.

use std::borrow::Cow;

use evenkeel_resp::float;

use crate::args::OwnedArgs;
use crate::x87_float::Extended;
use crate::{Args, Group, Spec};

/// Returns the arguments of a replayed command with its numbers in decimals; `None` if they are already.
#[inline]
pub fn in_decimals(row: &Spec, args: &Args<'_>) -> Option<OwnedArgs> {
    let has_numbers = matches!(row.group, Group::SortedSet | Group::Geo);
    (has_numbers && args.len() > 2 && args.from(2).any(is_of_redis)).then(|| rewritten(row, args))
}

/// Whether a text may be a number, or an exclusive end of a range, that only Redis reads.
fn is_of_redis(text: &[u8]) -> bool {
    let number = text.strip_prefix(b"(").unwrap_or(text);
    let digits = number.strip_prefix(b"-").or(number.strip_prefix(b"+")).unwrap_or(number);
    matches!(number, [b' ' | b'\t'..=b'\r', ..]) || matches!(digits, [b'0', b'x' | b'X', ..])
}

#[cold]
fn rewritten(row: &Spec, args: &Args<'_>) -> OwnedArgs {
    let is_option = |at: &usize| {
        let word = args.word(*at);
        [&b"NX"[..], b"XX", b"GT", b"LT", b"CH", b"INCR"].contains(&word.as_bytes())
    };
    let first = (2..args.len()).find(|at| !is_option(at)).unwrap_or(args.len());
    let behind = |word: &str| (2..args.len()).find(|at| args.is(*at, word)).map(|at| at + 1);
    // Ascending. Members are left as they are, although they may look like such numbers.
    let numbers: Vec<usize> = match row.name {
        "ZADD" => (first..args.len()).step_by(2).collect(),
        "GEOADD" => (first..args.len()).filter(|at| (at - first) % 3 < 2).collect(),
        "ZINCRBY" => vec![2],
        "ZREMRANGEBYSCORE" => vec![2, 3],
        "ZRANGESTORE" if behind("BYSCORE").is_some() => vec![3, 4],
        "ZUNIONSTORE" | "ZINTERSTORE" => {
            behind("WEIGHTS").map_or(Vec::new(), |at| (at..args.len()).collect())
        }
        _ => Vec::new(),
    };
    let words: Vec<Cow<'_, [u8]>> = (0..args.len())
        .map(|at| match args.at(at) {
            text if is_of_redis(text) && numbers.binary_search(&at).is_ok() => decimal(text),
            text => Cow::Borrowed(text),
        })
        .collect();
    OwnedArgs::new(words.iter().map(AsRef::as_ref))
}

/// Returns a number in decimals, and any other text as it is.
fn decimal(text: &[u8]) -> Cow<'_, [u8]> {
    let (bracket, number) = text.split_at(usize::from(text.starts_with(b"(")));
    let spaces = number.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    match Extended::parse(&number[spaces..]).map(Extended::nearest_double) {
        Some(value) => Cow::Owned([bracket, float::Text::new(value).as_bytes()].concat()),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FAMILIES;

    fn check(line: &str, expected: Option<&str>) {
        let words =
            |line: &str| -> Vec<Vec<u8>> { line.split('|').map(|word| word.as_bytes().to_vec()).collect() };
        let given = words(line);
        let given = OwnedArgs::new(given.iter().map(Vec::as_slice));
        let mut rows = FAMILIES.iter().copied().flatten().map(|command| &command.spec);
        let row = rows.find(|row| row.name.as_bytes().eq_ignore_ascii_case(given.as_args().at(0)));
        let row = row.expect("a command");
        let rewritten = in_decimals(row, &given.as_args());
        let rewritten = rewritten.map(|args| args.as_args().from(0).map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert_eq!(rewritten, expected.map(words), "{line}");
    }

    #[test]
    fn numbers_of_redis_are_rewritten() {
        check("ZADD|z|NX|CH|0x10|0x10|-0X1p-1|NX", Some("ZADD|z|NX|CH|16|0x10|-0.5|NX"));
        check("zincrby|z|0x10|0x10", Some("zincrby|z|16|0x10"));
        check("ZADD|z|0x1.fffffffffffffp1023|m", Some("ZADD|z|1.7976931348623157e+308|m"));
        check("ZADD|z|0x1p-1074|m", Some("ZADD|z|5e-324|m"));
        check("ZREMRANGEBYSCORE|z|(0x1|0x2", Some("ZREMRANGEBYSCORE|z|(1|2"));
        check("ZREMRANGEBYSCORE|z|(  1|2", Some("ZREMRANGEBYSCORE|z|(1|2"));
        check("ZRANGESTORE|d|z| 1|(\t-0x2|BYSCORE|REV", Some("ZRANGESTORE|d|z|1|(-2|BYSCORE|REV"));
        check(
            "ZUNIONSTORE|d|1|z|WEIGHTS|0x2|AGGREGATE|MAX",
            Some("ZUNIONSTORE|d|1|z|WEIGHTS|2|AGGREGATE|MAX"),
        );
        check("GEOADD|g|NX|0xd|0x26|0xa", Some("GEOADD|g|NX|13|38|0xa"));
        check("ZADD|z|1|a|2.5|b", None);
        check("RPUSH|l| 1|0x10", None);
        // A member looks like a number.
        check("ZADD|z|1| 1", Some("ZADD|z|1| 1"));
    }
}
