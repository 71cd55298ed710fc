//! Allowed differences between two correct servers, by name. Everything else must be the same byte for byte.

use evenkeel_resp::value::{Value, decode};

use super::Args;
use crate::program::Reference;
use crate::transcript::matches;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Identical,
    /// Different, for a reason in the list below.
    Allowed,
    Different,
}

struct Rule {
    /// The command, with its subcommand where it has one.
    command: &'static str,
    same: fn(&Value, &Value) -> bool,
}

/// Seconds that a time may differ by: the servers execute one after the other, and seconds are rounded.
const SECONDS_APART: i64 = 2;

#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { command: "KEYS", same: same_items }, // a hash table has no order
    Rule { command: "SCAN", same: both_pages }, // a hash table has no order; whole walks are compared
    Rule { command: "RANDOMKEY", same: same_kind }, // it is random
    Rule { command: "HKEYS", same: same_items }, // a hash table has no order
    Rule { command: "HVALS", same: same_items }, // a hash table has no order
    Rule { command: "HGETALL", same: same_pairs }, // a hash table has no order
    Rule { command: "HSCAN", same: both_pages }, // a hash table has no order; whole walks are compared
    Rule { command: "HRANDFIELD", same: same_size }, // it is random
    Rule { command: "SMEMBERS", same: same_items }, // a hash table has no order
    Rule { command: "SINTER", same: same_items }, // a hash table has no order
    Rule { command: "SUNION", same: same_items }, // a hash table has no order
    Rule { command: "SDIFF", same: same_items }, // a hash table has no order
    Rule { command: "SSCAN", same: both_pages }, // a hash table has no order; whole walks are compared
    Rule { command: "SRANDMEMBER", same: same_size }, // it is random
    Rule { command: "SPOP", same: same_size }, // it is random
    Rule { command: "ZSCAN", same: both_pages }, // a hash table has no order; whole walks are compared
    Rule { command: "ZRANDMEMBER", same: same_size }, // it is random
    Rule { command: "SORT", same: same_before_zeros }, // texts are compared as C strings, up to a zero byte
    Rule { command: "SORT_RO", same: same_before_zeros },
    Rule { command: "TTL", same: seconds_close }, // time passes
    Rule { command: "PTTL", same: milliseconds_close }, // time passes
    Rule { command: "EXPIRETIME", same: seconds_close }, // a relative time was set at another moment
    Rule { command: "PEXPIRETIME", same: milliseconds_close }, // a relative time was set at another moment
    Rule { command: "HTTL", same: all_seconds_close }, // time passes
    Rule { command: "HPTTL", same: all_milliseconds_close }, // time passes
    Rule { command: "HEXPIRETIME", same: all_seconds_close }, // a relative time was set at another moment
    // a relative time was set at another moment
    Rule { command: "HPEXPIRETIME", same: all_milliseconds_close },
    Rule { command: "TIME", same: same_kind }, // time passes
    Rule { command: "OBJECT IDLETIME", same: same_kind }, // clocks of this purpose are coarse
    Rule { command: "CLIENT LIST", same: same_kind }, // ports, ages and sizes
    Rule { command: "OBJECT REFCOUNT", same: both_positive }, // sharing of small integers is internal
    Rule { command: "MEMORY USAGE", same: both_positive }, // layouts differ on purpose
    Rule { command: "CLIENT ID", same: both_positive }, // connections are numbered from the server's start
    Rule { command: "XPENDING", same: same_but_times }, // time passes
    // time passes, and trees differ in layout
    Rule { command: "XINFO", same: same_but_times },
    Rule { command: "DUMP", same: same_kind }, // a value has many encodings, and a version
    Rule { command: "HELLO", same: same_greeting }, // a server replies its own name, version and modules
];

/// A reply in which Evenkeel differs from this oracle on purpose.
struct AllowedDifference {
    oracle: Reference,
    command: &'static str,
    /// Patterns, as in transcripts.
    subject_reply: &'static str,
    oracle_reply: &'static str,
}

const fn differs(
    oracle: Reference,
    command: &'static str,
    subject_reply: &'static str,
    oracle_reply: &'static str,
) -> AllowedDifference {
    AllowedDifference { oracle, command, subject_reply, oracle_reply }
}

#[rustfmt::skip]
const ALLOWED_DIFFERENCES: &[AllowedDifference] = &[
    // The nodes of Valkey's quicklists decide when a list becomes a listpack again.
    differs(Reference::Valkey, "OBJECT ENCODING", "\"quicklist\"", "\"listpack\""),
    differs(Reference::Valkey, "OBJECT ENCODING", "\"listpack\"", "\"quicklist\""),
    // Redis does not look at the type's name.
    differs(Reference::Redis8, "SCAN", "-ERR unknown type name *", "*"),
    // Redis keeps the key in the same block as a short text, so that a text is `raw` earlier.
    differs(Reference::Redis8, "OBJECT ENCODING", "\"embstr\"", "\"raw\""),
    // Redis looks at other arguments first, and at the key before the arguments.
    differs(Reference::Redis8, "BITCOUNT", "*", "-ERR *"),
    differs(Reference::Redis8, "GETEX", "-ERR *", "*"),
    differs(Reference::Redis8, "ZADD", "-ERR *", "-WRONGTYPE *"),
    differs(Reference::Redis8, "ZINCRBY", "-ERR *", "-WRONGTYPE *"),
    // Redis keeps a sorted set small by its present members, Valkey by the members that ZADD names.
    differs(Reference::Redis8, "OBJECT ENCODING", "\"skiplist\"", "\"listpack\""),
    // Redis names one more form of ids.
    differs(Reference::Redis8, "XREAD", "-ERR Unbalanced *", "-ERR Unbalanced *"),
    differs(Reference::Redis8, "XREADGROUP", "-ERR Unbalanced *", "-ERR Unbalanced *"),
    // Redis looks at the key before the payload.
    differs(Reference::Redis8, "RESTORE", "-ERR DUMP payload *", "-BUSYKEY *"),
    differs(Reference::Redis8, "OBJECT ENCODING", "\"quicklist\"", "\"listpack\""),
    differs(Reference::Redis8, "OBJECT ENCODING", "\"listpack\"", "\"quicklist\""),
    // The reference servers reserve memory for as many entries as were asked for.
    differs(Reference::Valkey, "XAUTOCLAIM", "*", "-ERR Insufficient memory*"),
    differs(Reference::Redis8, "XAUTOCLAIM", "*", "-ERR Insufficient memory*"),
    // Valkey does not consider the lengths of key and expiry for a text that comes from a payload.
    differs(Reference::Valkey, "OBJECT ENCODING", "\"raw\"", "\"embstr\""),
    // Valkey takes a key named "fields" for the keyword.
    differs(Reference::Valkey, "HGETEX", "*", "-ERR value is not an integer *"),
    differs(Reference::Valkey, "HSETEX", "*", "-ERR value is not an integer *"),
];

/// Compares the replies to a command; `queued` are the commands that it executes if it is an EXEC.
pub(super) fn replies(
    reference: Reference,
    args: &Args,
    queued: &[Args],
    subject: &[u8],
    oracle: &[u8],
) -> Verdict {
    if subject == oracle {
        return Verdict::Identical;
    }
    let (Some(subject), Some(oracle)) = (whole(subject), whole(oracle)) else { return Verdict::Different };
    // Equal values from different bytes: one server spells a length or a number oddly.
    let spelled = subject == oracle && !std::iter::once(args).chain(queued).any(returns_scores);
    let allowed = !spelled && same_values(reference, args, queued, &subject, &oracle);
    if allowed { Verdict::Allowed } else { Verdict::Different }
}

/// Returns whether the replies to this command are allowed to differ in some way.
pub(super) fn is_loose(args: &Args) -> bool {
    rule_for(args).is_some() || returns_scores(args)
}

/// Returns whether the reply may hold scores that the reference servers print differently: their algorithm
/// prints a digit more than needed for some numbers of 16 digits.
fn returns_scores(args: &Args) -> bool {
    let name = args.first().map_or(&b""[..], Vec::as_slice).to_ascii_uppercase();
    name.starts_with(b"Z") || name.starts_with(b"BZ")
}

/// Returns whether the values are the same except for the digits of numbers.
fn same_numbers(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_numbers(a, b))
        }
        (Value::Bulk(one), Value::Bulk(other)) => {
            one == other || number(one).is_some_and(|a| number(other) == Some(a))
        }
        _ => a == b,
    }
}

pub(super) fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn same_values(reference: Reference, args: &Args, queued: &[Args], subject: &Value, oracle: &Value) -> bool {
    if subject == oracle {
        return true;
    }
    match (subject, oracle) {
        (Value::Array(subject), Value::Array(oracle)) if names("EXEC", args) => {
            let lengths = [subject.len(), oracle.len()];
            let mut each = queued.iter().zip(subject).zip(oracle);
            lengths == [queued.len(); 2] && each.all(|((args, a), b)| same_values(reference, args, &[], a, b))
        }
        _ => {
            let allowed = rule_for(args).is_some_and(|rule| (rule.same)(subject, oracle));
            let spelled = returns_scores(args) && same_numbers(subject, oracle);
            allowed || spelled || is_allowed_difference(reference, args, subject, oracle)
        }
    }
}

fn is_allowed_difference(reference: Reference, args: &Args, subject: &Value, oracle: &Value) -> bool {
    ALLOWED_DIFFERENCES.iter().any(|difference| {
        difference.oracle == reference
            && names(difference.command, args)
            && matches(difference.subject_reply, &subject.to_string())
            && matches(difference.oracle_reply, &oracle.to_string())
    })
}

fn rule_for(args: &Args) -> Option<&'static Rule> {
    RULES.iter().find(|rule| names(rule.command, args))
}

fn names(command: &str, args: &Args) -> bool {
    let mut words = command.split(' ');
    words.clone().count() <= args.len()
        && words.by_ref().zip(args).all(|(word, arg)| arg.eq_ignore_ascii_case(word.as_bytes()))
}

fn whole(bytes: &[u8]) -> Option<Value> {
    match decode(bytes) {
        Ok(Some((value, used))) if used == bytes.len() => Some(value),
        _ => None,
    }
}

fn same_items(a: &Value, b: &Value) -> bool {
    same_kind(a, b) && sorted(a).is_some_and(|items| sorted(b) == Some(items))
}

fn sorted(value: &Value) -> Option<Vec<String>> {
    let (Value::Array(items) | Value::Set(items)) = value else { return None };
    let mut items: Vec<String> = items.iter().map(Value::to_string).collect();
    items.sort_unstable();
    Some(items)
}

/// Compares texts up to a zero byte, as texts with the same beginning may come in any order.
fn same_before_zeros(a: &Value, b: &Value) -> bool {
    fn same(a: &Value, b: &Value) -> bool {
        let text = |value: &Value| {
            value.as_bytes().and_then(|bytes| bytes.split(|&byte| byte == 0).next().map(<[u8]>::to_vec))
        };
        text(a).is_some() && text(a) == text(b)
    }
    all(a, b, same)
}

fn same_pairs(a: &Value, b: &Value) -> bool {
    pairs(a).is_some_and(|items| pairs(b) == Some(items)) && same_kind(a, b)
}

/// Returns the fields of a map with their values, sorted; in RESP2 they alternate.
fn pairs(value: &Value) -> Option<Vec<String>> {
    let mut pairs: Vec<String> = match value {
        Value::Map(pairs) => pairs.iter().map(|(field, value)| format!("{field} {value}")).collect(),
        Value::Array(items) => {
            items.chunks(2).map(|pair| format!("{} {}", pair[0], pair[pair.len() - 1])).collect()
        }
        _ => return None,
    };
    pairs.sort_unstable();
    Some(pairs)
}

fn same_size(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) | (Value::Set(a), Value::Set(b)) => a.len() == b.len(),
        _ => same_kind(a, b),
    }
}

fn both_pages(a: &Value, b: &Value) -> bool {
    let is_page = |value: &Value| matches!(value.as_items(), Some([Value::Bulk(_), Value::Array(_)]));
    is_page(a) && is_page(b)
}

fn same_kind(a: &Value, b: &Value) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b) && !a.is_error()
}

fn close(a: &Value, b: &Value, apart: i64) -> bool {
    match (a.as_int(), b.as_int()) {
        // -1 and -2 are not times.
        (Some(a), Some(b)) => a >= 0 && b >= 0 && a.abs_diff(b) <= apart.unsigned_abs(),
        _ => false,
    }
}

fn seconds_close(a: &Value, b: &Value) -> bool {
    close(a, b, SECONDS_APART)
}

fn milliseconds_close(a: &Value, b: &Value) -> bool {
    close(a, b, SECONDS_APART * 1_000)
}

fn all_seconds_close(a: &Value, b: &Value) -> bool {
    all(a, b, seconds_close)
}

fn all_milliseconds_close(a: &Value, b: &Value) -> bool {
    all(a, b, milliseconds_close)
}

fn all(a: &Value, b: &Value, same: fn(&Value, &Value) -> bool) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || same(a, b))
        }
        _ => false,
    }
}

fn both_positive(a: &Value, b: &Value) -> bool {
    a.as_int().is_some_and(|a| a > 0) && b.as_int().is_some_and(|b| b > 0)
}

/// Compares XINFO and XPENDING replies, except for times and for values that depend on the layout.
fn same_but_times(subject: &Value, oracle: &Value) -> bool {
    same_shape(subject, oracle)
}

/// Fields of XINFO that are not compared.
const LOOSE: [&[u8]; 6] =
    [b"idle", b"inactive", b"seen-time", b"active-time", b"radix-tree-keys", b"radix-tree-nodes"];

/// Returns whether a group's lag leaves out trimmed entries, where Valkey 9.1 counts them or
/// reports no lag.
fn is_better_lag(subject: &Value, oracle: &Value) -> bool {
    subject.as_int().is_some_and(|lag| oracle.as_int().is_none_or(|other| lag <= other))
}

fn same_shape(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            let is_loose = |at: usize| {
                at > 0 && a[at - 1].as_bytes().is_some_and(|name| LOOSE.contains(&name))
                    || at == 2 && is_pending_entry(a)
            };
            let is_lag = |at: usize| at > 0 && a[at - 1].as_bytes() == Some(b"lag");
            let same = |at: usize| {
                is_loose(at) && both_times(&a[at], &b[at])
                    || is_lag(at) && is_better_lag(&a[at], &b[at])
                    || same_shape(&a[at], &b[at])
            };
            a.len() == b.len() && (0..a.len()).all(same)
        }
        (Value::Map(a), Value::Map(b)) => {
            let is_loose = |name: &Value| name.as_bytes().is_some_and(|name| LOOSE.contains(&name));
            let same = |((name, a), (other, b)): (&(Value, Value), &(Value, Value))| {
                let is_lag = name.as_bytes() == Some(b"lag");
                name == other
                    && (is_loose(name) && both_times(a, b)
                        || is_lag && is_better_lag(a, b)
                        || same_shape(a, b))
            };
            a.len() == b.len() && a.iter().zip(b).all(same)
        }
        _ => a == b || both_moments(a, b),
    }
}

/// Both values mean "never", or neither does.
fn both_times(a: &Value, b: &Value) -> bool {
    a.as_int().zip(b.as_int()).is_some_and(|(a, b)| (a < 0) == (b < 0))
}

/// A pending entry: an id, its consumer, a time, and the number of deliveries.
fn is_pending_entry(items: &[Value]) -> bool {
    matches!(
        items,
        [Value::Bulk(_), Value::Bulk(_), since, count] if since.as_int().and(count.as_int()).is_some()
    )
}

/// Both values are current Unix times in milliseconds, a few seconds apart.
fn both_moments(a: &Value, b: &Value) -> bool {
    const LONG_AGO_MS: i64 = 1_000_000_000_000;
    let moments = a.as_int().zip(b.as_int());
    moments.is_some_and(|(a, b)| a.min(b) > LONG_AGO_MS && a.abs_diff(b) < 10_000)
}

/// Compares protocol, mode and role, in the same type of reply.
fn same_greeting(a: &Value, b: &Value) -> bool {
    let fields = ["proto", "mode", "role"];
    same_kind(a, b) && fields.iter().all(|name| field(a, name).is_some() && field(a, name) == field(b, name))
}

fn field<'a>(greeting: &'a Value, name: &str) -> Option<&'a Value> {
    match greeting {
        Value::Map(pairs) => {
            pairs.iter().find(|(key, _)| key.as_bytes() == Some(name.as_bytes())).map(|(_, value)| value)
        }
        Value::Array(items) => {
            let at = items.iter().position(|item| item.as_bytes() == Some(name.as_bytes()))?;
            items.get(at + 1)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(command: &str, queued: &[&str], subject: &str, oracle: &str) -> Verdict {
        let args = |line: &str| crate::words::split(line).expect("a command line");
        let queued: Vec<Args> = queued.iter().map(|line| args(line)).collect();
        replies(Reference::Valkey, &args(command), &queued, subject.as_bytes(), oracle.as_bytes())
    }

    #[test]
    fn equal_bytes_need_no_rule_and_unequal_ones_do() {
        assert_eq!(verdict("GET k", &[], "$1\r\na\r\n", "$1\r\na\r\n"), Verdict::Identical);
        assert_eq!(verdict("GET k", &[], "$1\r\na\r\n", "$1\r\nb\r\n"), Verdict::Different);
        assert_eq!(verdict("GET k", &[], "$-1\r\n", "_\r\n"), Verdict::Different);
        assert_eq!(verdict("GET k", &[], "$1\r\na\r\n", "$01\r\na\r\n"), Verdict::Different);
    }

    #[test]
    fn rules_apply_to_their_command_only() {
        let (ab, ba) = ("*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*2\r\n$1\r\nb\r\n$1\r\na\r\n");
        assert_eq!(verdict("keys *", &[], ab, ba), Verdict::Allowed);
        assert_eq!(verdict("MGET a b", &[], ab, ba), Verdict::Different);
        assert_eq!(verdict("SMEMBERS k", &[], "~2\r\n:1\r\n:2\r\n", "~2\r\n:2\r\n:1\r\n"), Verdict::Allowed);
        assert_eq!(verdict("SMEMBERS k", &[], "~1\r\n:1\r\n", "*1\r\n:1\r\n"), Verdict::Different);
        assert_eq!(verdict("SPOP k 2", &[], "~1\r\n:1\r\n", "~2\r\n:1\r\n:2\r\n"), Verdict::Different);
        let (zero_first, zero_last) = ("*2\r\n$2\r\na\0\r\n$1\r\na\r\n", "*2\r\n$1\r\na\r\n$2\r\na\0\r\n");
        assert_eq!(verdict("SORT k ALPHA", &[], zero_first, zero_last), Verdict::Allowed);
        assert_eq!(verdict("SORT k ALPHA", &[], ab, ba), Verdict::Different);
        let (pairs, riaps) = ("*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n", "*4\r\n:3\r\n:4\r\n:1\r\n:2\r\n");
        assert_eq!(verdict("HGETALL k", &[], pairs, riaps), Verdict::Allowed);
        assert_eq!(verdict("HGETALL k", &[], pairs, "*4\r\n:1\r\n:4\r\n:3\r\n:2\r\n"), Verdict::Different);
        assert_eq!(verdict("HRANDFIELD k 3", &[], ab, "*1\r\n$1\r\na\r\n"), Verdict::Different);
        assert_eq!(verdict("TTL k", &[], ":100\r\n", ":99\r\n"), Verdict::Allowed);
        assert_eq!(verdict("TTL k", &[], ":100\r\n", ":90\r\n"), Verdict::Different);
        assert_eq!(verdict("TTL k", &[], ":0\r\n", ":-1\r\n"), Verdict::Different);
        let httl = |subject, oracle| verdict("HTTL k FIELDS 2 a b", &[], subject, oracle);
        assert_eq!(httl("*2\r\n:-1\r\n:9\r\n", "*2\r\n:-1\r\n:10\r\n"), Verdict::Allowed);
        assert_eq!(httl("*2\r\n:-1\r\n:9\r\n", "*2\r\n:-2\r\n:9\r\n"), Verdict::Different);
        assert_eq!(verdict("OBJECT REFCOUNT k", &[], ":1\r\n", ":2147483647\r\n"), Verdict::Allowed);
        assert_eq!(verdict("OBJECT ENCODING k", &[], "$3\r\nraw\r\n", "$3\r\nint\r\n"), Verdict::Different);
        assert_eq!(verdict("OBJECT", &[], ":1\r\n", ":2\r\n"), Verdict::Different);
    }

    #[test]
    fn an_exec_is_compared_command_by_command() {
        let (subject, oracle) = ("*2\r\n:5\r\n:100\r\n", "*2\r\n:5\r\n:99\r\n");
        assert_eq!(verdict("EXEC", &["INCR n", "TTL k"], subject, oracle), Verdict::Allowed);
        assert_eq!(verdict("EXEC", &["INCR n", "STRLEN k"], subject, oracle), Verdict::Different);
        assert_eq!(verdict("EXEC", &["INCR n"], subject, oracle), Verdict::Different);
    }
}
