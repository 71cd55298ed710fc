//! Directives with several words, and texts with rules of their own.
//!
//! A list's value is kept as plain words or numbers. Its typed field, if there is such a field, parses them
//! again in `fields.rs`, where they are known to be valid.

use super::line;
use super::typed::WriteAcks;
use super::value::{Before, Reason, Value, Word, decimal, memory_size, memory_with_unit, strict_integer};

pub(super) struct ListKind {
    /// Combines the words of a line, or of a CONFIG SET, with the value before.
    pub(super) parse: fn(&[Word], Before<'_>) -> Result<Value, Reason>,
    /// Returns the lines, without the directive's name, that CONFIG REWRITE writes.
    pub(super) lines: fn(&Value) -> Vec<Word>,
    /// Lines of the same start add to each other.
    pub(super) adds_up: bool,
    /// A line that cancels all lines before it, for lists that have no other way to express an empty value,
    /// or that add up.
    pub(super) forget: Option<&'static [u8]>,
}

impl ListKind {
    const fn new(parse: fn(&[Word], Before<'_>) -> Result<Value, Reason>) -> ListKind {
        ListKind { parse, lines: one_line, adds_up: false, forget: None }
    }
}

/// `bind`: addresses; an address that begins with `-` may be missing on this machine, `*` stands for all of
/// IPv4.
pub(super) const ADDRESSES: ListKind = ListKind::new(addresses);
pub(super) const SAVE_POINTS: ListKind =
    ListKind { lines: save_lines, adds_up: true, forget: Some(b"\"\""), ..ListKind::new(save_points) };
pub(super) const OUTPUT_LIMITS: ListKind =
    ListKind { lines: output_limit_lines, ..ListKind::new(output_limits) };
pub(super) const PERCENTILES: ListKind = ListKind::new(percentiles);
pub(super) const OOM_SCORES: ListKind = ListKind::new(oom_scores);
pub(super) const PRIMARY: ListKind =
    ListKind { lines: primary_lines, forget: Some(b"no one"), ..ListKind::new(primary) };

/// Most addresses: Redis' own bound, and more than any machine needs.
const ADDRESSES_MAX: usize = 16;

/// Highest processor that an affinity mask can name.
const CPU_MAX: usize = 1023;

fn one_line(value: &Value) -> Vec<Word> {
    let words = match value {
        Value::Words(words) => words.clone(),
        Value::Numbers(numbers) => numbers.iter().map(|n| n.to_string().into_bytes()).collect(),
        Value::Decimals(decimals) => decimals.iter().map(|&d| decimal(d).into_bytes()).collect(),
        Value::Flag(_) | Value::Number(_) | Value::Choice(_) | Value::Text(_) => Vec::new(),
    };
    vec![joined(&words)]
}

/// Joins words. No words become `""`: a bare name means "wrong number of arguments" to many directives.
fn joined(words: &[Word]) -> Word {
    match words {
        [] => line::quoted(b""),
        _ => words.iter().map(|word| line::quoted_if_needed(word)).collect::<Vec<_>>().join(&b' '),
    }
}

fn addresses(words: &[Word], _: Before<'_>) -> Result<Value, Reason> {
    if words.len() > ADDRESSES_MAX {
        return Err("Too many bind addresses specified.".into());
    }
    Ok(Value::Words(words.iter().filter(|word| !word.is_empty()).cloned().collect()))
}

/// Treats a single empty word as no words.
fn without_lone_blank(words: &[Word]) -> &[Word] {
    match words {
        [word] if word.is_empty() => &[],
        _ => words,
    }
}

/// Parses pairs of seconds and changes.
fn save_points(words: &[Word], before: Before<'_>) -> Result<Value, Reason> {
    const REFUSED: &str = "Invalid save parameters";
    let words = without_lone_blank(words);
    let mut points = match before {
        Before { value: Some(Value::Numbers(points)), repeated: true } if !words.is_empty() => points.clone(),
        _ => Vec::new(),
    };
    if !words.len().is_multiple_of(2) {
        return Err(REFUSED.into());
    }
    for pair in words.chunks_exact(2) {
        let seconds = strict_integer(&pair[0]).filter(|seconds| *seconds >= 1).ok_or(REFUSED)?;
        let changes = strict_integer(&pair[1]).filter(|changes| *changes >= 0).ok_or(REFUSED)?;
        points.extend([seconds, changes]);
    }
    Ok(Value::Numbers(points))
}

fn save_lines(value: &Value) -> Vec<Word> {
    let Value::Numbers(points) = value else { return Vec::new() };
    if points.is_empty() {
        return vec![line::quoted(b"")];
    }
    points.chunks_exact(2).map(|p| format!("{} {}", p[0], p[1]).into_bytes()).collect()
}

/// Classes in the order in which they are shown, under the names that CONFIG GET has kept for compatibility.
const CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

/// Parses groups of class, hard limit, soft limit and seconds; a class that is not named keeps its limits.
fn output_limits(words: &[Word], before: Before<'_>) -> Result<Value, Reason> {
    if !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut limits = match before.value {
        Some(Value::Words(limits)) => limits.clone(),
        _ => {
            CLASSES.iter().flat_map(|class| [*class, "0", "0", "0"]).map(|w| w.as_bytes().to_vec()).collect()
        }
    };
    for group in words.chunks_exact(4) {
        let class =
            class_index(&group[0]).ok_or("Invalid client class specified in buffer limit configuration.")?;
        let numbers = limit_numbers(group)
            .ok_or("Error in hard, soft or soft_seconds setting in buffer limit configuration.")?;
        for (place, number) in limits[class * 4 + 1..].iter_mut().zip(numbers) {
            *place = number.to_string().into_bytes();
        }
    }
    Ok(Value::Words(limits))
}

fn class_index(word: &[u8]) -> Option<usize> {
    let word = if word.eq_ignore_ascii_case(b"replica") { b"slave" } else { word };
    CLASSES.iter().position(|class| class.as_bytes().eq_ignore_ascii_case(word))
}

fn limit_numbers(group: &[Word]) -> Option<[u64; 3]> {
    let seconds = strict_integer(&group[3]).and_then(|seconds| u64::try_from(seconds).ok())?;
    Some([memory_size(&group[1])?, memory_size(&group[2])?, seconds])
}

fn output_limit_lines(value: &Value) -> Vec<Word> {
    let Value::Words(limits) = value else { return Vec::new() };
    limits.chunks_exact(4).map(output_limit_line).collect()
}

fn output_limit_line(group: &[Word]) -> Word {
    let class = if group[0] == b"slave" { b"replica".to_vec() } else { group[0].clone() };
    let size = |word: &[u8]| memory_with_unit(memory_size(word).unwrap_or(0).into());
    [class, size(&group[1]), size(&group[2]), group[3].clone()].join(&b' ')
}

fn percentiles(words: &[Word], _: Before<'_>) -> Result<Value, Reason> {
    let mut percentiles = Vec::with_capacity(words.len());
    for word in without_lone_blank(words) {
        let text = std::str::from_utf8(word).unwrap_or("");
        let percentile = text.parse::<f64>().ok().filter(|p| !p.is_nan());
        let percentile = percentile.ok_or("Invalid latency-tracking-info-percentiles parameters")?;
        if !(0.0..=100.0).contains(&percentile) {
            return Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".into());
        }
        percentiles.push(percentile);
    }
    Ok(Value::Decimals(percentiles))
}

fn oom_scores(words: &[Word], _: Before<'_>) -> Result<Value, Reason> {
    if words.len() != 3 {
        return Err("wrong number of arguments".into());
    }
    let score = |word: &Word| strict_integer(word).filter(|score| (-2000..=2000).contains(score));
    let scores = words.iter().map(score).collect::<Option<Vec<_>>>();
    let scores = scores.ok_or("Invalid oom-score-adj-values, elements must be between -2000 and 2000.")?;
    Ok(Value::Numbers(scores))
}

/// Parses `replicaof host port`, `replicaof no one`, and an empty value, which means the same as the latter.
fn primary(words: &[Word], before: Before<'_>) -> Result<Value, Reason> {
    let [host, port] = words else {
        return if words.is_empty() && before.value.is_none() {
            Ok(Value::Words(Vec::new()))
        } else {
            Err("wrong number of arguments".into())
        };
    };
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        return Ok(Value::Words(Vec::new()));
    }
    let valid = strict_integer(port).is_some_and(|port| (0..=65_535).contains(&port));
    if valid { Ok(Value::Words(words.to_vec())) } else { Err("Invalid primary port".into()) }
}

/// Returns no line for a server without a primary, as in Redis: tools that search for the line take it for a
/// replica.
fn primary_lines(value: &Value) -> Vec<Word> {
    match value {
        Value::Words(words) if words.is_empty() => Vec::new(),
        _ => one_line(value),
    }
}

/// Letters of keyspace events, in the order in which they are shown; `A` stands for all letters before `n`.
/// Only Redis 8.8 has the letter of arrays: `A` is shown if the others are there.
const EVENTS: &[u8] = b"g$lshzxetdanocKEmSTIV";
const EVENTS_OF_A: &[u8] = b"g$lshzxetd";

pub(super) fn keyspace_events(word: &[u8]) -> Result<Word, Reason> {
    if !word.iter().all(|byte| *byte == b'A' || EVENTS.contains(byte)) {
        return Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".into());
    }
    let all = word.contains(&b'A') || EVENTS_OF_A.iter().all(|byte| word.contains(byte));
    let is_of_a = |byte: &u8| *byte == b'a' || EVENTS_OF_A.contains(byte);
    let listed = |byte: &&u8| word.contains(byte) && !(all && is_of_a(byte));
    Ok(all.then_some(b'A').into_iter().chain(EVENTS.iter().filter(listed).copied()).collect())
}

pub(super) fn db_file_name(word: &[u8]) -> Result<Word, Reason> {
    file_name("dbfilename", "filename", word)
}

pub(super) fn append_file_name(word: &[u8]) -> Result<Word, Reason> {
    file_name("appendfilename", "filename", word)
}

pub(super) fn append_directory_name(word: &[u8]) -> Result<Word, Reason> {
    file_name("appenddirname", "dirname", word)
}

pub(super) fn backup_directory_name(word: &[u8]) -> Result<Word, Reason> {
    file_name("backupdirname", "dirname", word)
}

/// Checks `rdb:<path>` or `aof:<path of a manifest>`. The ending says the format a second time, so that a
/// wrong file is refused before anything is read.
pub(super) fn preload_file(word: &[u8]) -> Result<Word, Reason> {
    let ending = match word {
        b"" => return Ok(Word::new()),
        [b'r', b'd', b'b', b':', ..] => &b".rdb"[..],
        [b'a', b'o', b'f', b':', ..] => b".manifest",
        _ => return Err("argument must be in the format rdb:<path> or aof:<path>".into()),
    };
    if word.contains(&0) {
        return Err("preload-file can't contain a zero byte".into());
    }
    if !word.ends_with(ending) || word.len() <= 4 + ending.len() {
        return Err("preload-file must end with an extension: .rdb for rdb:, .manifest for aof:".into());
    }
    Ok(word.to_vec())
}

/// Checks a name that is joined to `dir`: a slash would lead out of it. Redis refuses slashes as well, but
/// takes an empty `dbfilename`, with which no snapshot is ever written.
fn file_name(name: &str, what: &str, word: &[u8]) -> Result<Word, Reason> {
    if word.is_empty() {
        return Err(format!("{name} can't be empty").into());
    }
    if word.contains(&0) {
        return Err(format!("{name} can't contain a zero byte").into());
    }
    if word.iter().any(|byte| matches!(byte, b'/' | b'\\')) {
        return Err(format!("{name} can't be a path, just a {what}").into());
    }
    Ok(word.to_vec())
}

pub(super) fn host_name(word: &[u8]) -> Result<Word, Reason> {
    if word.len() >= 256 {
        return Err("Hostnames must be less than 256 characters".into());
    }
    if !word.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')) {
        return Err("Hostnames may only contain alphanumeric characters, hyphens or dots".into());
    }
    Ok(word.to_vec())
}

pub(super) fn node_name(word: &[u8]) -> Result<Word, Reason> {
    plain_name(word, "Announced human node name contained invalid character")
}

pub(super) fn announced_ip(word: &[u8]) -> Result<Word, Reason> {
    plain_name(word, "cluster-announce-ip contains invalid character")
}

/// `cluster-config-file`: a name in `dir`.
pub(super) fn cluster_file_name(word: &[u8]) -> Result<Word, Reason> {
    if word.is_empty() || word.contains(&b'/') {
        return Err("cluster-config-file is the name of a file in 'dir', not a path".into());
    }
    Ok(word.to_vec())
}

/// `cluster-store`: empty, or what [`endpoints_of`] reads.
pub(super) fn cluster_store(word: &[u8]) -> Result<Word, Reason> {
    if word.is_empty() {
        return Ok(Word::new());
    }
    endpoints_of(word).map(|_| word.to_vec())
}

/// Reads `etcd://host:port[,host:port]...`, or `etcds://` for TLS. Returns whether there is TLS, and
/// `host:port` of each member.
///
/// # Errors
/// The reason, which names the part that is wrong.
pub fn endpoints_of(word: &[u8]) -> Result<(bool, Vec<String>), Reason> {
    const FORM: &str = "argument must have the form etcd://host:port[,host:port] or etcds://...";
    let text = std::str::from_utf8(word).map_err(|_| FORM)?;
    let (scheme, members) = text.split_once("://").ok_or(FORM)?;
    let has_tls = match scheme {
        "etcd" => false,
        "etcds" => true,
        _ => return Err(FORM.into()),
    };
    let member = |member: &str| {
        let (host, port) = member.rsplit_once(':').unwrap_or((member, ""));
        let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?#".contains(c));
        match port.parse::<u16>() {
            Ok(1..) if is_host => Ok(member.to_owned()),
            _ => Err(Reason::from(format!("'{member}' in cluster-store is no host:port"))),
        }
    };
    let members: Result<Vec<String>, Reason> = members.split(',').map(member).collect();
    Ok((has_tls, members?))
}

/// `cluster-name`: a part of a key in the store.
pub(super) fn cluster_name(word: &[u8]) -> Result<Word, Reason> {
    if word.is_empty() || word.contains(&b'/') {
        return Err("cluster-name can't be empty, and has no slash".into());
    }
    plain_name(word, "cluster-name contains invalid character")
}

pub(super) fn write_acks(word: &[u8]) -> Result<Word, Reason> {
    match WriteAcks::parse(word) {
        Some(_) => Ok(word.to_ascii_lowercase()),
        None => {
            Err(format!("argument must be a number of replicas up to {}, or in-sync", WriteAcks::COUNT_MAX)
                .into())
        }
    }
}

/// Refuses bytes that could break a line of nodes.conf or of CLUSTER NODES.
fn plain_name(word: &[u8], refused: &'static str) -> Result<Word, Reason> {
    let breaks = |byte: &u8| byte.is_ascii_control() || b" !\"#$%&'()*+,;<=>?@[\\]^{|}~".contains(byte);
    if word.iter().any(breaks) { Err(refused.into()) } else { Ok(word.to_vec()) }
}

pub(super) fn ipv4(word: &[u8]) -> Result<Word, Reason> {
    ip_address::<std::net::Ipv4Addr>(word, "Invalid IPv4 address")
}

pub(super) fn ipv6(word: &[u8]) -> Result<Word, Reason> {
    ip_address::<std::net::Ipv6Addr>(word, "Invalid IPv6 address")
}

fn ip_address<A: std::str::FromStr>(word: &[u8], refused: &'static str) -> Result<Word, Reason> {
    let text = std::str::from_utf8(word).unwrap_or("?");
    if text.is_empty() || text.parse::<A>().is_ok() { Ok(word.to_vec()) } else { Err(refused.into()) }
}

/// Checks a text whose `{variables}` must all be known.
pub(super) fn title_template(word: &[u8]) -> Result<Word, Reason> {
    const KNOWN: [&str; 7] =
        ["title", "listen-addr", "server-mode", "port", "tls-port", "unixsocket", "config-file"];
    let text = String::from_utf8_lossy(word);
    let known = text.split('{').skip(1).all(|part| {
        part.is_empty() || part.split_once('}').is_some_and(|(variable, _)| KNOWN.contains(&variable))
    });
    if text.trim().is_empty() || !known {
        return Err("template format is invalid or contains unknown variables".into());
    }
    Ok(word.to_vec())
}

/// `reported-redis-version`: checks three numbers of up to three digits, `7.4.0`.
pub(super) fn version(word: &[u8]) -> Result<Word, Reason> {
    let is_number = |part: &[u8]| matches!(part.len(), 1..=3) && part.iter().all(u8::is_ascii_digit);
    let parts = word.split(|byte| *byte == b'.');
    if parts.clone().count() != 3 || !parts.clone().all(is_number) {
        return Err("argument must be a version such as 7.4.0".into());
    }
    Ok(word.to_vec())
}

/// `thread-affinity`: checks a list of processors and ranges, `0-3,8`.
pub(super) fn cpu_list(word: &[u8]) -> Result<Word, Reason> {
    cpus(word).map(|_| word.to_vec()).ok_or("argument must be a list of CPUs such as 0-3,8".into())
}

/// Returns the processors of a list, in its order.
pub(super) fn cpus(word: &[u8]) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    if word.is_empty() {
        return Some(cpus);
    }
    for part in std::str::from_utf8(word).ok()?.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (cpu(first)?, cpu(last)?);
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

fn cpu(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|cpu| digits && *cpu <= CPU_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::ValueKind;

    /// Applies lines in their order to a value, like the lines of a file.
    fn read(list: &'static ListKind, lines: &[&str]) -> Result<String, Reason> {
        let kind = ValueKind::List(list);
        let mut value = None;
        for (index, line) in lines.iter().enumerate() {
            let before = Before { value: value.as_ref(), repeated: index > 0 };
            let words: Vec<Word> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            value = Some(kind.parse(&words, before)?);
        }
        Ok(String::from_utf8(kind.show(&value.expect("one line at least"))).expect("these lists are text"))
    }

    #[track_caller]
    fn check(list: &'static ListKind, lines: &[&str], expected: Result<&str, &str>) {
        assert_eq!(read(list, lines).as_deref().map_err(|r| &**r), expected, "{lines:?}");
    }

    #[test]
    fn save_points_add_up_until_an_empty_line() {
        check(&SAVE_POINTS, &["3600 1 300 100"], Ok("3600 1 300 100"));
        check(&SAVE_POINTS, &["1 2", "3 4"], Ok("1 2 3 4"));
        check(&SAVE_POINTS, &["1 2", "", "3 4"], Ok("3 4"));
        check(&SAVE_POINTS, &["1 2", ""], Ok(""));
        for line in ["1", "1 2 3", "0 1", "1 -1", "a b", "1 2 x 3"] {
            check(&SAVE_POINTS, &[line], Err("Invalid save parameters"));
        }
    }

    #[test]
    fn output_limits_keep_the_classes_not_named() {
        let limits = "normal 1048576 2 60 slave 1 2 3 pubsub 0 0 0";
        check(&OUTPUT_LIMITS, &["NORMAL 1mb 2 60 replica 1 2 3"], Ok(limits));
        check(&OUTPUT_LIMITS, &["normal 1mb 2 60", "slave 1 2 3"], Ok(limits));
        check(&OUTPUT_LIMITS, &["normal 1mb 2 60 slave 1 2 3", ""], Ok(limits));
        let count = "Wrong number of arguments in buffer limit configuration.";
        check(&OUTPUT_LIMITS, &["normal 1 2"], Err(count));
        let class = "Invalid client class specified in buffer limit configuration.";
        check(&OUTPUT_LIMITS, &["primary 1 2 3"], Err(class));
        let number = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
        check(&OUTPUT_LIMITS, &["normal a 2 3"], Err(number));
        check(&OUTPUT_LIMITS, &["normal 1 2 -3"], Err(number));
    }

    #[test]
    fn percentiles_lie_between_0_and_100() {
        check(&PERCENTILES, &["0.0 100.0 33.333333333333 99.999"], Ok("0 100 33.333333 99.999"));
        check(&PERCENTILES, &["50"], Ok("50"));
        check(&PERCENTILES, &["nan"], Err("Invalid latency-tracking-info-percentiles parameters"));
        let range = "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]";
        check(&PERCENTILES, &["50 101"], Err(range));
        check(&PERCENTILES, &["-1"], Err(range));
    }

    #[test]
    fn other_lists() {
        check(&OOM_SCORES, &["-5 2 3"], Ok("-5 2 3"));
        check(&OOM_SCORES, &["1 2"], Err("wrong number of arguments"));
        let scores = "Invalid oom-score-adj-values, elements must be between -2000 and 2000.";
        check(&OOM_SCORES, &["1 2 5000"], Err(scores));
        check(&PRIMARY, &["host 6379"], Ok("host 6379"));
        check(&PRIMARY, &["NO ONE"], Ok(""));
        check(&PRIMARY, &["host 99999"], Err("Invalid primary port"));
        check(&PRIMARY, &["host"], Err("wrong number of arguments"));
        check(&ADDRESSES, &["127.0.0.1 -::1"], Ok("127.0.0.1 -::1"));
        check(&ADDRESSES, &[&["::1"; 17].join(" ")], Err("Too many bind addresses specified."));
    }

    #[test]
    fn keyspace_events_are_normalised() {
        for (given, shown) in [
            ("KEA", "AKE"),
            ("KExg$", "g$xKE"),
            ("Kg$lshzxetd", "AK"),
            ("aKA", "AK"),
            ("Ka", "aK"),
            ("KEmn", "nKEm"),
            ("", ""),
            ("md", "dm"),
        ] {
            assert_eq!(keyspace_events(given.as_bytes()).expect(given), shown.as_bytes());
        }
        assert!(keyspace_events(b"Kq").is_err());
    }

    #[test]
    fn texts_with_rules() {
        for name in [&b"a/b"[..], b"a\\b"] {
            assert!(db_file_name(name).is_err() && append_file_name(name).is_err());
        }
        assert!(append_file_name(b"").is_err());
        assert!(host_name(b"host-1.example").is_ok());
        assert!(host_name(b"host_1").is_err());
        assert!(title_template(b"{title} {port}").is_ok());
        assert!(title_template(b"{title} {foo}").is_err());
        assert!(title_template(b"{title").is_err());
        assert!(ipv4(b"1.2.3.4").is_ok());
        assert!(ipv4(b"::1").is_err());
        assert!(ipv6(b"::1").is_ok());
        assert!(announced_ip(b"a b").is_err());
    }

    #[test]
    fn processors() {
        assert_eq!(cpus(b"0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpus(b""), Some(vec![]));
        for list in ["a", "3-1", "1-", ",", "1,,2", "-1", "+1", "1024", "0-99999999999999999999"] {
            assert_eq!(cpus(list.as_bytes()), None, "{list}");
        }
    }
}
