//! A selector: a set of permissions, which has to contain everything that a command needs. A user has at
//! least one.
//!
//! Permitted commands are a bitmap, so a check is a shift and a mask. The selector's text consists of its
//! rules in their order. A rule about the same command as an earlier rule, or about a command that contains
//! it, replaces the earlier rule, and `+@all` and `-@all` drop all rules. Redis 7.2 writes rules in the same
//! way. Redis 7.0 derives rules from the bitmap, in an order that changes with every start.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::{self, Category, Databases, Need};
use super::{absent, has_spaces};
use evenkeel_command::table::table;
use evenkeel_command::{Args, Flags, Id};
use evenkeel_runtime::glob;

/// Why a rule is malformed, in Redis' words.
pub(crate) type RuleError = &'static str;

pub(super) const UNKNOWN: RuleError = "Unknown command or category name in ACL";
pub(super) const SYNTAX: RuleError = "Syntax error";
const AFTER_ALL_KEYS: RuleError = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid \
                                   and does not have any effect. Try 'resetkeys' to start with an empty list \
                                   of patterns";
const AFTER_ALL_CHANNELS: RuleError = "Adding a pattern after the * pattern (or the 'allchannels' flag) is \
                                       not valid and does not have any effect. Try 'resetchannels' to start \
                                       with an empty list of channels";
const FAR_DATABASE: RuleError = "The provided database ID is out of range";
const DEEP: RuleError = "Allowing first-arg of a subcommand is not supported";

/// The missing permission of a command. Later variants say more, and are reported in preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// Index of the argument that names the database, as below; zero: the command needs a database that it
    /// does not name.
    Database(usize),
    Command,
    Key(usize),
    Channel(usize),
}

#[derive(Clone, Debug)]
struct KeyPattern {
    pattern: Box<[u8]>,
    may: Need,
}

/// A set of permissions; see the module's text.
#[derive(Clone, Debug)]
pub struct Selector {
    /// Commands are permitted unless a rule denies them, commands of later versions as well.
    from_all: bool,
    /// All commands are permitted, and no rule has denied any.
    all_commands: bool,
    commands: Box<[u64]>,
    /// Commands that are permitted only with these first arguments.
    first_args: BTreeMap<usize, Vec<Box<[u8]>>>,
    /// Rules after `+@all` or `-@all`, such as `+get` or `-@string`, in lower case.
    rules: Vec<Box<[u8]>>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Box<[u8]>>,
    /// `None`: all databases.
    databases: Option<BTreeSet<u32>>,
}

impl Selector {
    /// Creates a selector that permits nothing, except perhaps all channels.
    pub(super) fn new(all_channels: bool) -> Selector {
        Selector {
            from_all: false,
            all_commands: false,
            commands: vec![0; table().rows().len().div_ceil(64)].into(),
            first_args: BTreeMap::new(),
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
            databases: None,
        }
    }

    pub(super) fn is_unrestricted(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels && self.databases.is_none()
    }

    // Changes.

    /// Applies a rule.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let word = rule.to_ascii_lowercase();
        match (&word[..], rule) {
            (b"allkeys" | b"~*", _) => (self.all_keys, self.keys) = (true, Vec::new()),
            (b"resetkeys", _) => (self.all_keys, self.keys) = (false, Vec::new()),
            (b"allchannels" | b"&*", _) => (self.all_channels, self.channels) = (true, Vec::new()),
            (b"resetchannels", _) => (self.all_channels, self.channels) = (false, Vec::new()),
            (b"alldbs", _) => self.databases = None,
            (b"resetdbs", _) => self.databases = Some(BTreeSet::new()),
            ([b'd', b'b', b'=', numbers @ ..], _) => self.databases = Some(parse_databases(numbers)?),
            (b"allcommands" | b"+@all", _) => self.begin_with(true),
            (b"nocommands" | b"-@all", _) => self.begin_with(false),
            (_, [b'~', pattern @ ..]) => self.add_keys(pattern, Some(Need::all()))?,
            (_, [b'%', rest @ ..]) => {
                let (pattern, may) = permissions(rest);
                self.add_keys(pattern, may)?;
            }
            (_, [b'&', pattern @ ..]) => self.add_channels(pattern)?,
            ([sign @ (b'+' | b'-'), b'@', name @ ..], _) => {
                let category = Category::named(name).ok_or(UNKNOWN)?;
                category.commands().for_each(|id| self.change(id, *sign == b'+'));
                self.append_rule(*sign, category.name().as_bytes());
            }
            ([sign @ (b'+' | b'-'), name @ ..], _) if absent::is_one(name) => self.append_rule(*sign, name),
            ([b'+', name @ ..], _) => self.permit(name)?,
            ([b'-', name @ ..], _) => {
                let id = table().find_full(name).ok_or(UNKNOWN)?;
                self.change(id, false);
                self.append_rule(b'-', table().row(id).lower_name().as_bytes());
            }
            _ => return Err(SYNTAX),
        }
        Ok(())
    }

    fn begin_with(&mut self, all: bool) {
        (self.from_all, self.all_commands) = (all, all);
        self.commands.fill(if all { u64::MAX } else { 0 });
        self.first_args.clear();
        self.rules.clear();
    }

    fn add_keys(&mut self, pattern: &[u8], may: Option<Need>) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(AFTER_ALL_KEYS);
        }
        let may = may.filter(|_| !has_spaces(pattern)).ok_or(SYNTAX)?;
        match self.keys.iter_mut().find(|one| *one.pattern == *pattern) {
            Some(there) => there.may |= may,
            None => self.keys.push(KeyPattern { pattern: pattern.into(), may }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(AFTER_ALL_CHANNELS);
        }
        if has_spaces(pattern) {
            return Err(SYNTAX);
        }
        if !self.channels.iter().any(|one| **one == *pattern) {
            self.channels.push(pattern.into());
        }
        Ok(())
    }

    /// Permits `+name`, `+container|sub`, or `+name|argument` for a command without subcommands; in lower
    /// case.
    fn permit(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(bar) = name.iter().rposition(|byte| *byte == b'|') else {
            let id = table().find_full(name).ok_or(UNKNOWN)?;
            self.change(id, true);
            self.append_rule(b'+', name);
            return Ok(());
        };
        let (command, sub) = (&name[..bar], &name[bar + 1..]);
        let id = table().find_full(command).ok_or(UNKNOWN)?;
        if command.contains(&b'|') {
            return Err(DEEP);
        }
        // An argument with spaces could not be read from a file again.
        if sub.is_empty() || has_spaces(sub) {
            return Err(SYNTAX);
        }
        if !table().row(id).has_subcommands() {
            let allowed = self.first_args.entry(id.index()).or_default();
            if !allowed.iter().any(|one| **one == *sub) {
                allowed.push(sub.into());
            }
        } else {
            let id = table().find_full(name).ok_or(UNKNOWN)?;
            self.change(id, true);
        }
        self.append_rule(b'+', name);
        Ok(())
    }

    /// Permits or denies a command with all its subcommands.
    fn change(&mut self, id: Id, permitted: bool) {
        self.all_commands &= permitted;
        self.first_args.remove(&id.index());
        for index in std::iter::once(id.index()).chain(rows::subcommands(id)) {
            let (word, bit) = (&mut self.commands[index / 64], 1 << (index % 64));
            if permitted { *word |= bit } else { *word &= !bit }
        }
    }

    /// Appends a rule to the text, and drops the rules that it makes void.
    fn append_rule(&mut self, sign: u8, name: &[u8]) {
        self.rules.retain(|rule| {
            let rest = rule[1..].strip_prefix(name);
            !rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'|')
        });
        self.rules.push([&[sign], name].concat().into());
    }

    // Checks.

    #[inline]
    fn permits(&self, id: Id) -> bool {
        self.commands[id.index() / 64] >> (id.index() % 64) & 1 != 0
    }

    /// Checks whether a call is permitted.
    pub(super) fn check(&self, id: Id, args: &Args<'_>, databases: Databases) -> Result<(), Denied> {
        if let Some(allowed) = &self.databases
            && let Some(index) = rows::refused_database(id, args, databases, |db| allowed.contains(&db))
        {
            return Err(Denied::Database(index));
        }
        if !self.permits(id) && !self.permits_first_arg(id, args) {
            return Err(Denied::Command);
        }
        if !self.all_keys
            && let Some(index) = rows::refused_key(id, args, |key, need| self.may_use_key(key, need))
        {
            return Err(Denied::Key(index));
        }
        if !self.all_channels {
            let (channels, are_patterns) = rows::channels(id, args);
            for index in channels {
                if !self.may_use_channel(args.at(index), are_patterns) {
                    return Err(Denied::Channel(index));
                }
            }
        }
        Ok(())
    }

    fn permits_first_arg(&self, id: Id, args: &Args<'_>) -> bool {
        if table().row(id).flags.has(Flags::NO_AUTH) {
            return true; // without AUTH a client could never change its user
        }
        let (Some(allowed), Some(arg)) = (self.first_args.get(&id.index()), args.get(1)) else {
            return false;
        };
        allowed.iter().any(|one| one.eq_ignore_ascii_case(arg))
    }

    fn may_use_key(&self, key: &[u8], need: Need) -> bool {
        let fits = |one: &KeyPattern| one.may.contains(need) && glob::matches(&one.pattern, key, false);
        self.keys.iter().any(fits)
    }

    /// Whether a channel may be used. A pattern must equal a pattern of the selector; the channels that it
    /// matches are not compared.
    pub(super) fn may_use_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let fits = |one: &[u8]| if is_pattern { one == channel } else { glob::matches(one, channel, false) };
        self.all_channels || self.channels.iter().any(|one| fits(one))
    }

    /// Whether the selector may read all keys, whatever their names.
    pub(super) fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|one| *one.pattern == *b"*" && one.may.contains(Need::READ))
    }

    pub(super) fn has_all_channels(&self) -> bool {
        self.all_channels
    }

    // Text.

    /// Returns the keys as `~a* %R~b*`.
    pub fn keys_text(&self) -> Vec<u8> {
        self.keys_as_rules(b"~")
    }

    /// Returns the keys with `both` before each pattern that may be read and written.
    fn keys_as_rules(&self, both: &[u8]) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let text = |one: &KeyPattern| {
            let may: &[u8] = match one.may {
                Need::READ => b"%R~",
                Need::WRITE => b"%W~",
                _ if *one.pattern == *b"*" => both,
                _ => b"~",
            };
            [may, &one.pattern].concat()
        };
        self.keys.iter().map(text).collect::<Vec<_>>().join(&b' ')
    }

    /// Returns the channels as `&a &b*`.
    pub fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|one| [b"&", &one[..]].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// Returns the databases as `db=0,3`; nothing if there are none.
    pub fn databases_text(&self) -> Vec<u8> {
        match &self.databases {
            None => b"alldbs".to_vec(),
            Some(none) if none.is_empty() => Vec::new(),
            Some(some) => {
                let numbers: Vec<String> = some.iter().map(u32::to_string).collect();
                format!("db={}", numbers.join(",")).into_bytes()
            }
        }
    }

    /// Returns the commands as `-@all +get`.
    pub fn commands_text(&self) -> Vec<u8> {
        let first: &[u8] = if self.from_all { b"+@all" } else { b"-@all" };
        let all: Vec<&[u8]> = std::iter::once(first).chain(self.rules.iter().map(|rule| &rule[..])).collect();
        all.join(&b' ')
    }

    /// Returns the rules that produce this selector from an empty one. A pattern `*` beside other patterns is
    /// not written as `~*`, since no pattern may follow that.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut parts = vec![self.keys_as_rules(b"%RW~")];
        if !self.all_channels {
            parts.push(b"resetchannels".to_vec());
        }
        parts.push(self.channels_text());
        // All databases are the default, which servers without the rule can read.
        parts.extend(self.databases.as_ref().map(|some| match some.is_empty() {
            true => b"resetdbs".to_vec(),
            false => self.databases_text(),
        }));
        parts.push(self.commands_text());
        parts.retain(|part| !part.is_empty());
        parts.join(&b' ')
    }
}

/// Parses `0,3`.
fn parse_databases(numbers: &[u8]) -> Result<BTreeSet<u32>, RuleError> {
    let number = |word: &[u8]| {
        let digits = word.strip_prefix(b"-").unwrap_or(word);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(SYNTAX);
        }
        let number = str::from_utf8(word).ok().and_then(|word| word.parse::<i32>().ok());
        number.and_then(|number| u32::try_from(number).ok()).ok_or(FAR_DATABASE)
    };
    numbers.split(|byte| *byte == b',').map(number).collect()
}

/// Splits `%RW~pattern` behind the `%` into pattern and permissions; `None` for unknown permissions.
fn permissions(rest: &[u8]) -> (&[u8], Option<Need>) {
    let tilde = rest.iter().position(|byte| *byte == b'~').unwrap_or(rest.len());
    let may = rest[..tilde].iter().try_fold(Need::empty(), |may, letter| {
        let more = match letter.to_ascii_uppercase() {
            b'R' => Need::READ,
            b'W' => Need::WRITE,
            _ => return None,
        };
        (!may.contains(more)).then(|| may | more)
    });
    (rest.get(tilde + 1..).unwrap_or_default(), may.filter(|may| !may.is_empty()))
}
