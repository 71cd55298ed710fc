//! Patterns as KEYS, SCAN, PSUBSCRIBE, CONFIG GET and ACL rules take them: `*`, `?`, `[a-z]`, `[^a]`, and `\`
//! before a character that stands for itself. They match bytes, not characters, as in Redis.
//!
//! The matcher is a loop with a single point to go back to: when a byte does not match, only the last `*` can
//! help, by taking another byte. An earlier star need never be tried again, because the last star can take
//! every byte that the earlier star would have taken. So the cost is at most pattern length x text length,
//! and `a*a*a*a*b` from a client cannot occupy a worker for minutes.
//!
//! Odd patterns mean the same as in Redis: an unclosed `[ab` is closed at its end, `[z-a]` is `[a-z]`, `[]`
//! matches nothing, a last `\` is itself. The empty text matches a single star, but not two.

/// Whether `pattern` matches the whole of `text`; with `ignore_case` ASCII letters are equal in both cases.
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        return matches!(pattern, b"" | b"*");
    }
    let (mut p, mut t) = (0, 0);
    // The pattern's position behind the last star, and the first byte that this star has not taken yet.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
        } else if let Some(length) = fits_one(&pattern[p..], text[t], ignore_case) {
            p += length;
            t += 1;
        } else if let Some((after, taken)) = star {
            (p, t) = (after, taken + 1);
            star = Some((p, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Whether `pattern` can match more than one text, so that a look-up by name is not enough.
pub fn is_pattern(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Returns the length of the pattern's first element if that element, which is no star, matches `byte`.
fn fits_one(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let (fits, length) = match *pattern {
        [] => (false, 0),
        [b'?', ..] => (true, 1),
        [b'[', ..] => fits_class(pattern, byte, ignore_case),
        [b'\\', escaped, ..] => (same(escaped, byte, ignore_case), 2),
        [plain, ..] => (same(plain, byte, ignore_case), 1),
    };
    fits.then_some(length)
}

/// Whether the class at the start of `pattern` contains `byte`, and the length of the class with its
/// brackets.
fn fits_class(pattern: &[u8], byte: u8, ignore_case: bool) -> (bool, usize) {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    loop {
        let (fits, length) = match pattern[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => (same(escaped, byte, ignore_case), 2),
            [first, b'-', last, ..] => (within(first, last, byte, ignore_case), 3),
            [plain, ..] => (same(plain, byte, ignore_case), 1),
        };
        found |= fits;
        at += length;
    }
    (found != negated, at)
}

fn same(a: u8, b: u8, ignore_case: bool) -> bool {
    a == b || (ignore_case && a.eq_ignore_ascii_case(&b))
}

fn within(first: u8, last: u8, byte: u8, ignore_case: bool) -> bool {
    let fold = |b: u8| if ignore_case { b.to_ascii_lowercase() } else { b };
    let (first, last, byte) = (fold(first), fold(last), fold(byte));
    (first.min(last)..=first.max(last)).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, fitting: &[&str], other: &[&str]) {
        for text in fitting {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} should fit {text}");
        }
        for text in other {
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} should not fit {text}");
        }
    }

    #[test]
    fn elements() {
        check("", &[""], &["a"]);
        check("*", &["", "a", "any thing"], &[]);
        check("h?llo", &["hello", "h?llo"], &["hllo", "heello"]);
        check("h*llo", &["hllo", "heeeello"], &["hllo!", "ello"]);
        check("h[ae]llo", &["hello", "hallo"], &["hillo"]);
        check("h[^e]llo", &["hallo", "h^llo"], &["hello", "hllo"]);
        check("h[a-c]llo", &["hallo", "hbllo"], &["hdllo", "h-llo"]);
        check(r"h\*llo", &["h*llo"], &["hello", r"h\llo"]);
        check("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a", "b"]);
        check("a*?", &["ab", "abc"], &["a"]);
    }

    #[test]
    fn odd_patterns_mean_what_they_mean_to_redis() {
        check("[z-a]", &["a", "m", "z"], &["-", "["]);
        check("[ab", &["a", "b"], &["[", "ab", "["]);
        check("[]", &[], &["", "]", "["]);
        check("[^]", &["a", "]"], &["", "ab"]);
        check("[", &[], &["", "["]);
        check(r"a\", &[r"a\"], &["a", "aa"]);
        check(r"[\]]", &["]"], &[r"\"]);
        check("[a-]", &["a", "^"], &["-", "b"]);
        check("**", &["a", "ab"], &[""]);
    }

    #[test]
    fn case_is_ignored_on_demand() {
        assert!(matches(b"MaxMemory*", b"maxmemory-POLICY", true));
        assert!(matches(b"[A-C]x[^y]", b"bXz", true));
        assert!(!matches(b"x[^y]", b"xY", true));
        assert!(!matches(b"A", b"a", false));
    }

    #[test]
    fn many_stars_are_cheap() {
        let pattern = "a*".repeat(2_000) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 20_000], false));
    }

    /// The definition, read off: a star takes nothing, or a byte and stays. Exponential, for short inputs
    /// only.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => model(rest, text) || (!text.is_empty() && model(pattern, &text[1..])),
            (_, []) => false,
            ([b'?', rest @ ..], [_, more @ ..]) => model(rest, more),
            ([b'[', ..], [byte, more @ ..]) => {
                let (members, rest, negated) = model_class(&pattern[1..]);
                members.contains(byte) != negated && model(rest, more)
            }
            ([b'\\', plain, rest @ ..] | [plain, rest @ ..], [byte, more @ ..]) => {
                plain == byte && model(rest, more)
            }
        }
    }

    /// Every byte that is a member, the pattern after the class, and whether the class begins with `^`.
    fn model_class(inside: &[u8]) -> (Vec<u8>, &[u8], bool) {
        let (negated, mut rest) = match inside {
            [b'^', rest @ ..] => (true, rest),
            _ => (false, inside),
        };
        let mut members = Vec::new();
        loop {
            match rest {
                [] => return (members, rest, negated),
                [b']', after @ ..] => return (members, after, negated),
                [b'\\', plain, after @ ..] => {
                    members.push(*plain);
                    rest = after;
                }
                [first, b'-', last, after @ ..] => {
                    members
                        .extend((0..=255).filter(|b| (first <= b && b <= last) || (last <= b && b <= first)));
                    rest = after;
                }
                [plain, after @ ..] => {
                    members.push(*plain);
                    rest = after;
                }
            }
        }
    }

    #[test]
    fn agrees_with_the_model_on_random_patterns() {
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        let mut fitting = 0;
        for round in 0..200_000 {
            let mut word = |alphabet: &[u8], most: usize| -> Vec<u8> {
                (0..random(most + 1)).map(|_| alphabet[random(alphabet.len())]).collect()
            };
            let (pattern, text) = (word(b"aabc***??[[]]^-\\", 9), word(b"aaabc]-\\^", 7));
            let expected = model(&pattern, &text) && (!text.is_empty() || pattern.len() < 2);
            let shown = (String::from_utf8_lossy(&pattern), String::from_utf8_lossy(&text));
            assert_eq!(matches(&pattern, &text, false), expected, "round {round}: {shown:?}");
            fitting += usize::from(expected);
        }
        assert!(fitting > 10_000, "the random patterns are too strict to show anything: {fitting}");
    }
}
