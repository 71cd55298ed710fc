//! A selector: a set of permissions that a command has to have all of. A user has one, and perhaps more.
//!
//! Which commands it permits is a bit for each; asking is a shift and a mask. What is written down is the rules that led
//! there, in their order: a rule that says the opposite of an earlier one about the same command, or contains it, takes its
//! place, and `+@all` and `-@all` begin anew. That is how Redis 7.2 writes them. Redis 7.0 works rules out from the bits,
//! in an order that is another one after each start.

use std::collections::BTreeMap;

use super::rows::{self, Category, Need};
use super::{absent, has_spaces};
use crate::command::table::table;
use crate::command::{Args, Flags, Id};
use evenkeel_runtime::glob;

/// Why a rule is none, in Redis' words.
pub(crate) type RuleError = &'static str;

pub(super) const UNKNOWN: RuleError = "Unknown command or category name in ACL";
pub(super) const SYNTAX: RuleError = "Syntax error";
const AFTER_ALL_KEYS: RuleError = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not \
                                   have any effect. Try 'resetkeys' to start with an empty list of patterns";
const AFTER_ALL_CHANNELS: RuleError = "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and \
                                       does not have any effect. Try 'resetchannels' to start with an empty list of channels";
const DEEP: RuleError = "Allowing first-arg of a subcommand is not supported";

/// What a command lacks permission for. The later ones say more, and are told in preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denied {
    Command,
    /// The index of the argument.
    Key(usize),
    Channel(usize),
}

#[derive(Clone, Debug)]
struct KeyPattern {
    pattern: Box<[u8]>,
    may: Need,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    /// Commands are permitted unless a rule says otherwise: those of later versions are.
    from_all: bool,
    /// All commands, and no rule has taken one away.
    all_commands: bool,
    commands: Box<[u64]>,
    /// Commands that are permitted with these first arguments alone.
    first_args: BTreeMap<usize, Vec<Box<[u8]>>>,
    /// `+get`, `-@string`: after `+@all` or `-@all`, in lower case.
    rules: Vec<Box<[u8]>>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Box<[u8]>>,
}

impl Selector {
    /// One that permits nothing, but perhaps all channels.
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
        }
    }

    pub(super) fn is_unrestricted(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels
    }

    // Changing it.

    /// Takes up a rule.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let word = rule.to_ascii_lowercase();
        match (&word[..], rule) {
            (b"allkeys" | b"~*", _) => (self.all_keys, self.keys) = (true, Vec::new()),
            (b"resetkeys", _) => (self.all_keys, self.keys) = (false, Vec::new()),
            (b"allchannels" | b"&*", _) => (self.all_channels, self.channels) = (true, Vec::new()),
            (b"resetchannels", _) => (self.all_channels, self.channels) = (false, Vec::new()),
            (b"allcommands" | b"+@all", _) => self.begin_with(true),
            (b"nocommands" | b"-@all", _) => self.begin_with(false),
            (_, [b'~', pattern @ ..]) => self.add_keys(pattern, Some(Need::ALL))?,
            (_, [b'%', rest @ ..]) => {
                let (pattern, may) = permissions(rest);
                self.add_keys(pattern, may)?;
            }
            (_, [b'&', pattern @ ..]) => self.add_channels(pattern)?,
            ([sign @ (b'+' | b'-'), b'@', name @ ..], _) => {
                let category = Category::named(name).ok_or(UNKNOWN)?;
                category.commands().for_each(|id| self.change(id, *sign == b'+'));
                self.note_rule(*sign, category.name().as_bytes());
            }
            ([sign @ (b'+' | b'-'), name @ ..], _) if absent::is_one(name) => self.note_rule(*sign, name),
            ([b'+', name @ ..], _) => self.permit(name)?,
            ([b'-', name @ ..], _) => {
                let id = table().find_full(name).ok_or(UNKNOWN)?;
                self.change(id, false);
                self.note_rule(b'-', table().row(id).lower_name().as_bytes());
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
            Some(there) => there.may = there.may.with(may),
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

    /// `+name`, `+container|sub`, or `+name|argument` for a command without subcommands; in lower case.
    fn permit(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(bar) = name.iter().rposition(|byte| *byte == b'|') else {
            let id = table().find_full(name).ok_or(UNKNOWN)?;
            self.change(id, true);
            self.note_rule(b'+', name);
            return Ok(());
        };
        let (command, sub) = (&name[..bar], &name[bar + 1..]);
        let id = table().find_full(command).ok_or(UNKNOWN)?;
        if command.contains(&b'|') {
            return Err(DEEP);
        }
        // What has spaces could not be read again from a file.
        if sub.is_empty() || has_spaces(sub) {
            return Err(SYNTAX);
        }
        if table().row(id).subcommands.is_empty() {
            let allowed = self.first_args.entry(id.index()).or_default();
            if !allowed.iter().any(|one| **one == *sub) {
                allowed.push(sub.into());
            }
        } else {
            let id = table().find_full(name).ok_or(UNKNOWN)?;
            self.change(id, true);
        }
        self.note_rule(b'+', name);
        Ok(())
    }

    /// Permits a command with all its subcommands, or takes that away.
    fn change(&mut self, id: Id, permitted: bool) {
        self.all_commands &= permitted;
        self.first_args.remove(&id.index());
        for index in std::iter::once(id.index()).chain(rows::subcommands(id)) {
            let (word, bit) = (&mut self.commands[index / 64], 1 << (index % 64));
            if permitted { *word |= bit } else { *word &= !bit }
        }
    }

    /// Writes a rule down behind the others, of which those go that it makes void.
    fn note_rule(&mut self, sign: u8, name: &[u8]) {
        self.rules.retain(|rule| {
            let rest = rule[1..].strip_prefix(name);
            !rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'|')
        });
        self.rules.push([&[sign], name].concat().into());
    }

    // Asking it.

    #[inline]
    fn permits(&self, id: Id) -> bool {
        self.commands[id.index() / 64] >> (id.index() % 64) & 1 != 0
    }

    /// Whether a call may be made.
    pub(super) fn check(&self, id: Id, args: &Args<'_>) -> Result<(), Denied> {
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
            return true; // else nobody could become another user
        }
        let (Some(allowed), Some(arg)) = (self.first_args.get(&id.index()), args.get(1)) else {
            return false;
        };
        allowed.iter().any(|one| one.eq_ignore_ascii_case(arg))
    }

    fn may_use_key(&self, key: &[u8], need: Need) -> bool {
        let fits = |one: &KeyPattern| one.may.covers(need) && glob::matches(&one.pattern, key, false);
        self.keys.iter().any(fits)
    }

    /// A pattern of channels has to be one of the selector's own: what else it may fit is not asked.
    pub(super) fn may_use_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let fits = |one: &[u8]| if is_pattern { one == channel } else { glob::matches(one, channel, false) };
        self.all_channels || self.channels.iter().any(|one| fits(one))
    }

    /// Whether it may read all keys, whatever their names.
    pub(super) fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|one| *one.pattern == *b"*" && one.may.covers(Need::READ))
    }

    pub(super) fn has_all_channels(&self) -> bool {
        self.all_channels
    }

    // Writing it down.

    /// `~a* %R~b*`
    pub(crate) fn keys_text(&self) -> Vec<u8> {
        self.keys_as_rules(b"~")
    }

    /// The same, with what stands before a pattern of keys that may be read and written.
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

    /// `&a &b*`
    pub(crate) fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|one| [b"&", &one[..]].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// `-@all +get`
    pub(crate) fn commands_text(&self) -> Vec<u8> {
        let first: &[u8] = if self.from_all { b"+@all" } else { b"-@all" };
        let all: Vec<&[u8]> = std::iter::once(first).chain(self.rules.iter().map(|rule| &rule[..])).collect();
        all.join(&b' ')
    }

    /// The rules that make it from one that permits nothing. A pattern `*` beside others is not `~*`, after which no other
    /// may come.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut parts = vec![self.keys_as_rules(b"%RW~")];
        if !self.all_channels {
            parts.push(b"resetchannels".to_vec());
        }
        parts.extend([self.channels_text(), self.commands_text()]);
        parts.retain(|part| !part.is_empty());
        parts.join(&b' ')
    }
}

/// What `%RW~pattern` says behind the `%`; `None`: nothing that there is.
fn permissions(rest: &[u8]) -> (&[u8], Option<Need>) {
    let tilde = rest.iter().position(|byte| *byte == b'~').unwrap_or(rest.len());
    let may = rest[..tilde].iter().try_fold(Need::NONE, |may, letter| {
        let more = match letter.to_ascii_uppercase() {
            b'R' => Need::READ,
            b'W' => Need::WRITE,
            _ => return None,
        };
        (!may.covers(more)).then(|| may.with(more))
    });
    (rest.get(tilde + 1..).unwrap_or_default(), may.filter(|may| *may != Need::NONE))
}
