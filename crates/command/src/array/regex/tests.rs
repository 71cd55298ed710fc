use evenkeel_testkit::random::{Random, fresh_seed};

use super::*;

fn fits(pattern: &str, text: &str) -> bool {
    Regex::new(pattern.as_bytes(), false)
        .unwrap_or_else(|error| panic!("{pattern}: {error:?}"))
        .is_match(text.as_bytes())
}

fn refusal(pattern: &str) -> String {
    let error =
        Regex::new(pattern.as_bytes(), false).err().unwrap_or_else(|| panic!("{pattern} is accepted"));
    let line = String::from_utf8_lossy(&error.line()).into_owned();
    line.strip_prefix("ERR invalid regular expression: ").unwrap_or(&line).to_owned()
}

#[test]
fn expressions_fit_texts() {
    for (pattern, yes, no) in [
        ("foo|bar", "xbarx", "baz"),
        ("^foo[0-9]+$", "foo77", "foo"),
        ("^(a|b)*c$", "abbac", "abbd"),
        ("^a{2,3}$", "aaa", "aaaa"),
        ("^a{2,}$", "aaaaa", "a"),
        ("^a{,2}$", "", "aaa"),
        ("^a{2}{2}$", "aaaa", "aaa"),
        ("^a+?b*?$", "aab", "b"),
        ("^[]a]+$", "]a]", "b"),
        ("^[^]a]$", "b", "]"),
        (r"^[a\]$", r"\", "b"),
        ("^[a-]$", "-", "b"),
        ("^[[:digit:][:upper:]_]+$", "A1_", "a"),
        ("^[[:space:]]$", "\t", "x"),
        (r"^\w+\s\d\W\S\D$", "ab_ 1-xy", "ab"),
        (r"\<word\>", "a word.", "swords"),
        (r"\bcat\B", "cats", "cat"),
        (r"^\x41\x{42}\Qa.*\E$", "ABa.*", "ABaxx"),
        (r"^\.\*$", ".*", "xx"),
        ("^.$", "\n", ""),
        ("*a", "a", "b"),
        ("a||b", "zzz", "\0never\0\0"),
        ("(?i:AB)c", "abc", "ABC"),
        ("(?i)ab(?-i)C", "ABC", "abc"),
        ("a(?#comment)b", "ab", "a"),
        ("a)b", "a)b", "ab"),
        ("x{0}y", "y", "x"),
    ] {
        assert!(fits(pattern, yes), "{pattern} fits {yes}");
        assert!(pattern == "a||b" || !fits(pattern, no), "{pattern} does not fit {no}");
    }
    assert!(!fits(r"\x{1ff}", "\u{1ff}"));
}

#[test]
fn case_may_be_ignored() {
    let regex = |pattern: &str| Regex::new(pattern.as_bytes(), true).expect("an expression");
    assert!(regex("^foo[x-z]$").is_match(b"FOOY") && regex("^[^a]$").is_match(b"b"));
    assert!(!regex("^[^a]$").is_match(b"A"));
    assert!(regex("\u{e4}").is_match("\u{e4}".as_bytes()) && !regex("\u{e4}").is_match("\u{c4}".as_bytes()));
}

#[test]
fn expressions_are_refused_in_the_words_of_tre() {
    for (pattern, reason) in [
        ("", "ERR regular expression is empty"),
        ("(", "Missing ')'"),
        ("(a", "Missing ')'"),
        ("[a", "Missing ']'"),
        ("[]", "Missing ']'"),
        ("a{2", "Missing '}'"),
        ("a{", "Missing '}'"),
        ("a{}", "Invalid contents of {}"),
        ("a{x}", "Invalid contents of {}"),
        ("a{3,2}", "Invalid contents of {}"),
        ("a{256}", "Invalid contents of {}"),
        ("a**", "Invalid use of repetition operators"),
        ("[z-a]", "Invalid character range"),
        ("[a-c-e]", "Invalid character range"),
        ("[[.a.]]", "Unknown collating element"),
        ("[[:word:]]", "Unknown character class name"),
        ("a\\", "Trailing backslash"),
        (r"\x{1", "Missing '}'"),
        (r"\1", "Invalid back reference"),
        (r"(a)\1", "ERR regular expression backreferences are not supported"),
        ("(?z)", "Invalid regexp"),
        ("(((a{255}){255}){255}){255}", "Out of memory"),
    ] {
        assert_eq!(refusal(pattern), reason, "{pattern}");
    }
    assert_eq!(refusal(&"(".repeat(2000)), "Out of memory");
}

/// Any pattern of these parts compiles or is refused, and what compiles matches or does not.
#[test]
fn no_pattern_panics() {
    const PARTS: [&str; 30] = [
        "a",
        "b",
        ".",
        "*",
        "+",
        "?",
        "{2}",
        "{1,3}",
        "{",
        "}",
        "[",
        "]",
        "[^",
        "-",
        "(",
        ")",
        "(?i",
        ":",
        "|",
        "^",
        "$",
        "\\",
        "\\w",
        "\\b",
        "\\x",
        "{4",
        "[:alpha:]",
        "\\Q",
        "\\E",
        "\u{ff}",
    ];
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut accepted = 0;
    for _ in 0..3_000 {
        let pattern: String = (0..1 + random.below(9)).map(|_| PARTS[random.below(PARTS.len())]).collect();
        if let Ok(regex) = Regex::new(pattern.as_bytes(), random.below(2) == 0) {
            accepted += 1;
            for text in ["", "a", "ab\nba", "\u{ff}ABC 12"] {
                regex.is_match(text.as_bytes());
            }
        }
    }
    assert!(accepted > 300, "{accepted}");
}
