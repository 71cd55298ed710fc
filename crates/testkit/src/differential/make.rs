//! Draws episodes: the family, the command, the connection, and sometimes a spoilt command.
//!
//! Few keys, and a few values that servers treat specially, come over and over: most bugs lie in the state
//! that a command leaves for the next. This module spoils commands for all families at once (an argument too
//! few or too many, swapped, doubled, replaced), so a family only describes well-formed commands.

use super::{Action, Args, CONNECTIONS, Episode, FAMILIES, Family, Plan, Step, Weighted, same};
use crate::program::Reference;
use crate::random::Random;

/// Arguments of mixed kinds: text, numbers as text, drawn bytes.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { vec![$(Vec::<u8>::from($arg)),*] };
}
pub(super) use args;

/// Ten keys. Two share a hash tag, two are awkward; all fit in a line of a finding.
const KEYS: &[&str] =
    &["k1", "k2", "k3", "k4", "counter", "{tag}a", "{tag}b", "", "a\r\n\0b", "k:long:long:long:long"];

/// Edge cases of integers. None lies between 2^20 and 2^32, where it would be a legal and huge offset.
#[rustfmt::skip]
const EDGES: &[&str] = &[
    "0", "1", "-1", "2", "7", "8", "9", "10", "15", "16", "100", "-100", "9999", "10000", "65535",
    "9223372036854775807", "-9223372036854775808", "9223372036854775806", "9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "4611686018427387904", "9223372036854776",
    "4294967296", "8589934592", "99999999999999999999999",
];

/// Texts that look like numbers and are not, or are numbers only for some commands.
///
/// Nothing here, or anywhere else in these tests, lies beyond the range of a double: it would make Redis
/// leave `errno` set, and the next SORT would fail. Transcripts have such numbers.
#[rustfmt::skip]
const NEARLY_NUMBERS: &[&str] = &[
    "", " 1", "1 ", "+1", "-0", "01", "1.0", "1e3", "0x10", "abc", "--1", "-", "inf", "-inf", "+inf", "nan",
    "1_000", ".5", "5.", "1.5e-3", "- 1", "1\0", "1\n",
];

/// Replacements for any argument. No small positive number: as a time to live it would end within the test.
#[rustfmt::skip]
const JUNK: &[&str] = &[
    "", "abc", "-1", "0", "nx", "XX", "GET", "EX", "PX", "KEEPTTL", "*", "[", "(1", "1.5",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "\r\n", "k1", "4294967296", "u64",
    "i65", "<", "count",
];

/// The year 2100: a moment that is ahead whenever a seed is repeated.
const FAR_S: i64 = 4_102_444_800;

const MALFORMED_PERCENT: usize = 8;
const SWITCH_PERCENT: usize = 12;
const FLUSH_PERCENT: usize = 20;

/// Builds an episode step by step.
pub(super) struct Maker {
    pub(super) random: Random,
    pub(super) oracle: Reference,
    steps: Vec<Step>,
    connection: usize,
    families: Vec<&'static Family>,
    family: &'static str,
}

/// Draws an episode of at least `length` steps from a seed.
pub(super) fn episode(seed: u64, length: usize, plan: Plan) -> Episode {
    let oracle = plan.oracle;
    let fits = |family: &&Family| {
        family.only.is_none_or(|reference| reference == oracle) && !plan.except.contains(&family.name)
    };
    let families = FAMILIES.iter().copied().filter(fits);
    let mut random = Random::new(seed);
    let protocols = std::array::from_fn(|_| if random.chance(50) { 2 } else { 3 });
    let mut maker =
        Maker { random, oracle, steps: Vec::new(), connection: 0, families: families.collect(), family: "" };
    while maker.steps.len() < length {
        maker.draw();
    }
    Episode { oracle, protocols, steps: maker.steps }
}

impl Maker {
    fn draw(&mut self) {
        if self.random.chance(SWITCH_PERCENT) {
            self.connection = self.random.below(CONNECTIONS);
        }
        let family = self.family_by_weight(|family| family.weight);
        self.family = family.name;
        let (commands, scenes) = (total(family.commands), total(family.scenes));
        if self.random.below(commands + scenes) < commands {
            let args = self.command_of(family);
            self.command(args);
        } else {
            let scene = weighted(&mut self.random, family.scenes);
            scene(self);
        }
    }

    fn family_by_weight(&mut self, weight: fn(&Family) -> usize) -> &'static Family {
        let mut left = self.random.below(self.families.iter().map(|family| weight(family)).sum());
        for family in &self.families {
            match left.checked_sub(weight(family)) {
                None => return family,
                Some(rest) => left = rest,
            }
        }
        unreachable!("the number drawn is below the sum of the weights")
    }

    fn command_of(&mut self, family: &'static Family) -> Args {
        let make = weighted(&mut self.random, family.commands);
        let args = make(self);
        self.perhaps_malformed(args)
    }

    // ---- for scenes ----

    /// A command of any family: the content of a transaction or of a stream of bytes.
    pub(super) fn any_command(&mut self) -> Args {
        let family =
            self.family_by_weight(|family| if family.commands.is_empty() { 0 } else { family.weight });
        self.command_of(family)
    }

    pub(super) fn command(&mut self, args: Args) {
        self.step(Action::Command(args));
    }

    pub(super) fn step(&mut self, action: Action) {
        let alone = !matches!(action, Action::Command(_) | Action::Inline(_));
        let flush = alone || self.random.chance(FLUSH_PERCENT);
        self.steps.push(Step { connection: self.connection, action, flush, family: self.family });
    }

    /// Continues on the other connection; returns the previous connection.
    pub(super) fn switch(&mut self) -> usize {
        let before = self.connection;
        self.connection = (before + 1) % CONNECTIONS;
        before
    }

    pub(super) fn go_on_with(&mut self, connection: usize) {
        self.connection = connection;
    }

    /// A command to which all servers must reply with the same bytes: for streams in which replies cannot be
    /// told apart.
    pub(super) fn any_strict_command(&mut self) -> Args {
        loop {
            let args = self.any_command();
            if !same::is_loose(&args) {
                return args;
            }
        }
    }

    // ---- arguments ----

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.random.chance(percent)
    }

    pub(super) fn word(&mut self, words: &[&str]) -> Vec<u8> {
        let word = self.random.pick(words);
        if self.chance(15) { word.to_ascii_lowercase().into() } else { word.into() }
    }

    pub(super) fn key(&mut self) -> Vec<u8> {
        // Half of the draws use three keys: commands must meet.
        let bound = if self.chance(50) { 3 } else { KEYS.len() };
        KEYS[self.random.below(bound)].into()
    }

    pub(super) fn keys(&mut self, count_max: usize) -> Args {
        (0..=self.random.below(count_max)).map(|_| self.key()).collect()
    }

    /// Keys with values, one after the other.
    pub(super) fn pairs(&mut self, count_max: usize) -> Args {
        (0..=self.random.below(count_max)).flat_map(|_| [self.key(), self.value()]).collect()
    }

    pub(super) fn value(&mut self) -> Vec<u8> {
        match self.random.below(100) {
            0..30 => self.small_int(),
            30..45 => self.int(),
            45..55 => self.float(),
            55..60 => Vec::new(),
            60..70 => self.random.bytes(12),
            70..95 => (0..self.random.below(60)).map(|_| b"abcdab "[self.random.below(7)]).collect(),
            95..99 => self.random.bytes(600),
            _ => self.random.bytes(40_000),
        }
    }

    /// An integer that, most of the time, every command accepts.
    pub(super) fn int(&mut self) -> Vec<u8> {
        match self.random.below(100) {
            0..60 => self.small_int(),
            60..90 => self.random.pick(EDGES).into(),
            _ => match self.random.pick(NEARLY_NUMBERS) {
                // A score for Redis, and an error for Valkey.
                "0x10" if self.oracle == Reference::Redis8 => "16x".into(),
                text => text.into(),
            },
        }
    }

    pub(super) fn small_int(&mut self) -> Vec<u8> {
        self.random.between(-20, 200).to_string().into()
    }

    pub(super) fn float(&mut self) -> Vec<u8> {
        match self.random.below(10) {
            0..4 => format!("{}.{}", self.random.between(-50, 50), self.random.below(1_000)).into(),
            4..7 => {
                self.word(&["0.1", "1.5", "3.0e3", "-2.75", "1e17", "5.0e-3", "200.0e-1", "1e-10", "-1e5"])
            }
            _ => self.int(),
        }
    }

    /// Seconds to live: a range so wide that no two draws are alike, and that no key expires during the test.
    pub(super) fn seconds_to_live(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => self.word(&["0", "-1", "-5", "abc", "1.5", "9223372036854775807", "9223372036854776", ""]),
            _ => self.random.between(1_000, 100_000_000).to_string().into(),
        }
    }

    pub(super) fn ms_to_live(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => self.word(&["0", "-1", "abc", "9223372036854775807", "-9223372036854775808", " 1"]),
            _ => self.random.between(1_000_000, 100_000_000_000).to_string().into(),
        }
    }

    /// A Unix time in seconds: far ahead, or long past.
    pub(super) fn moment_s(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => self.word(&["0", "-1", "abc", "9223372036854775807", "9223372036854775", "1e10"]),
            1..3 => self.random.between(1, 1_000_000_000).to_string().into(),
            _ => (FAR_S + self.random.between(0, 100_000_000)).to_string().into(),
        }
    }

    pub(super) fn moment_ms(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => self.word(&["0", "-1", "abc", "9223372036854775807", "-9223372036854775808"]),
            1..3 => self.random.between(1, 1_000_000_000_000).to_string().into(),
            _ => (FAR_S * 1_000 + self.random.between(0, 100_000_000_000)).to_string().into(),
        }
    }

    // ---- spoiling ----

    fn perhaps_malformed(&mut self, mut args: Args) -> Args {
        if self.chance(10) {
            args[0].make_ascii_lowercase();
        }
        if !self.random.chance(MALFORMED_PERCENT) {
            return args;
        }
        // A misplaced argument could become a time to live of milliseconds, and replies would depend on
        // timing.
        let keep_order = counts_milliseconds(&args) || is_delicate(&args) || makes_ids(&args);
        let kinds = if keep_order { 3 } else { 6 };
        let (at, other) = (self.random.below(args.len()), self.random.below(args.len()));
        match self.random.below(kinds) {
            // Without ALPHA, SORT would sort as numbers: see `sorts`.
            0 if !args[args.len() - 1].eq_ignore_ascii_case(b"ALPHA") => drop(args.pop()),
            1 => args.push(self.random.pick(JUNK).into()),
            2 => args[0] = self.word(&["NOSUCH", "GETX", "", "SE", "a\r\nb", "OBJECTS"]),
            3 if at > 0 => args[at] = self.random.pick(JUNK).into(),
            4 if at > 0 && other > 0 => args.swap(at, other),
            _ => args.push(args[at].clone()),
        }
        if args.is_empty() { args!["PING"] } else { args }
    }
}

fn counts_milliseconds(args: &Args) -> bool {
    const NAMES: [&[u8]; 15] = [
        b"PX",
        b"PXAT",
        b"EXAT",
        b"PSETEX",
        b"PEXPIRE",
        b"PEXPIREAT",
        b"EXPIREAT",
        b"HPEXPIRE",
        b"HPEXPIREAT",
        b"HEXPIREAT",
        b"XCLAIM",
        b"XAUTOCLAIM",
        b"IDLE",
        b"TIME",
        b"RESTORE",
    ];
    args.iter().any(|arg| NAMES.iter().any(|name| arg.eq_ignore_ascii_case(name)))
}

/// Returns whether spoilt arguments of this command could make two servers differ from then on:
///
/// - LREM: Redis 7.0 removes everything when the count is `i64::MIN`, which has no opposite.
/// - LSET: Valkey takes the lower half of an index.
/// - SORT: BY a pattern without a star shows the order of a set.
/// - HSETEX, HGETEX: Valkey parses options from the key on, and sends replicas a different key if the key is
///   called like an option.
/// - MIGRATE: it would go to another host, where Redis takes any line for a good answer.
fn is_delicate(args: &Args) -> bool {
    let names = ["LREM", "LSET", "SORT", "SORT_RO", "HSETEX", "HGETEX", "MIGRATE"];
    names.iter().any(|name| args[0].eq_ignore_ascii_case(name.as_bytes()))
}

/// An id made from the time would differ between two servers.
fn makes_ids(args: &Args) -> bool {
    args[0].eq_ignore_ascii_case(b"XADD")
}

fn total<T>(rows: &[Weighted<T>]) -> usize {
    rows.iter().map(|(weight, _)| weight).sum()
}

fn weighted<T: Copy>(random: &mut Random, rows: &[Weighted<T>]) -> T {
    let mut left = random.below(total(rows));
    for (weight, row) in rows {
        match left.checked_sub(*weight) {
            None => return *row,
            Some(rest) => left = rest,
        }
    }
    unreachable!("the number drawn is below the sum of the weights")
}
