//! A user: identity, passwords, and selectors.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::selector::{Denied, RuleError, SYNTAX, Selector};
use super::{DEFAULT, Databases, Users};
use evenkeel_command::{Args, Id};
use evenkeel_config::{plain_or_quoted, quoted, split_words};

/// A rule as ACL SETUSER takes it: `+get`, `>password`.
pub type Rule = Vec<u8>;

const UNKNOWN_PASSWORD: RuleError = "The password you are trying to remove from the user does not exist";
const BAD_DIGEST: RuleError =
    "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters";

/// Identity of a user, apart from its permissions. A deleted user and a new user of the same name differ.
#[derive(Debug)]
pub struct Who {
    pub name: Box<[u8]>,
    pub(super) number: u64,
}

impl Who {
    pub fn is(&self, other: &Who) -> bool {
        (self.number, &self.name) == (other.number, &other.name)
    }
}

/// SHA-256 of a password: passwords themselves are never stored.
type Digest = [u8; 32];

/// A user; see the module's text.
#[derive(Clone, Debug)]
pub struct User {
    pub who: Arc<Who>,
    is_enabled: bool,
    /// Every password is accepted.
    is_open: bool,
    passwords: Vec<Digest>,
    /// At least one; the first is the root selector.
    selectors: Vec<Selector>,
}

impl User {
    /// Creates a disabled user without permissions.
    pub fn new(name: &[u8], number: u64, all_channels: bool) -> User {
        User {
            who: Arc::new(Who { name: name.into(), number }),
            is_enabled: false,
            is_open: false,
            passwords: Vec::new(),
            selectors: vec![Selector::new(all_channels)],
        }
    }

    /// Returns the initial default user. Its number is zero, so its identity never changes.
    pub fn default_user() -> User {
        let mut user = User::new(DEFAULT, 0, false);
        for rule in ["on", "nopass", "~*", "&*", "+@all"] {
            user.apply(rule.as_bytes(), false).expect("these are rules");
        }
        user
    }

    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// Whether the user may do everything.
    pub fn is_unrestricted(&self) -> bool {
        self.selectors.iter().any(Selector::is_unrestricted)
    }

    /// Whether the user needs no password.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether a new connection may begin as this user.
    pub fn admits_everybody(&self) -> bool {
        self.is_open && self.is_enabled
    }

    /// Whether this is the user's password. The time depends only on the length of `password`.
    pub fn admits(&self, password: &[u8]) -> bool {
        let digest = digest(password);
        // Every digest is compared, and to its end.
        let known = self.passwords.iter().fold(false, |known, one| known | same(one, &digest));
        self.is_enabled && (self.is_open || known)
    }

    /// Whether both accept the same passwords.
    pub fn has_passwords_of(&self, other: &User) -> bool {
        self.is_open == other.is_open && self.passwords == other.passwords
    }

    /// Applies `requirepass`: accepts only this password, or any if it is empty.
    pub(super) fn set_only_password(&mut self, password: &[u8]) {
        self.is_open = password.is_empty();
        self.passwords = if self.is_open { Vec::new() } else { vec![digest(password)] };
    }

    /// Applies a rule; after an error the user is unchanged. `all_channels`: new selectors permit all
    /// channels.
    pub fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        match (&rule.to_ascii_lowercase()[..], rule) {
            (b"", _) => {}
            (b"on", _) => self.is_enabled = true,
            (b"off", _) => self.is_enabled = false,
            (b"nopass", _) => (self.is_open, self.passwords) = (true, Vec::new()),
            (b"resetpass", _) => (self.is_open, self.passwords) = (false, Vec::new()),
            // All payloads of RESTORE are checked.
            (b"sanitize-payload" | b"skip-sanitize-payload", _) => {}
            (b"clearselectors", _) => self.selectors.truncate(1),
            (b"reset", _) => {
                let fresh = User::new(b"", 0, all_channels);
                *self = User { who: self.who.clone(), ..fresh };
            }
            (_, [b'>', password @ ..]) => self.add_password(digest(password)),
            (_, [b'<', password @ ..]) => self.remove_password(&digest(password))?,
            (_, [b'#', text @ ..]) => self.add_password(parse_digest(text)?),
            (_, [b'!', text @ ..]) => self.remove_password(&parse_digest(text)?)?,
            (_, [b'(', rules @ .., b')']) => self.selectors.push(selector(rules, all_channels)?),
            _ => self.selectors[0].apply(rule)?,
        }
        Ok(())
    }

    fn add_password(&mut self, digest: Digest) {
        self.is_open = false;
        if !self.passwords.contains(&digest) {
            self.passwords.push(digest);
        }
    }

    fn remove_password(&mut self, digest: &Digest) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|one| one == digest).ok_or(UNKNOWN_PASSWORD)?;
        self.passwords.remove(at);
        Ok(())
    }

    /// Checks whether a call is permitted. If no selector permits it, returns the greatest of their refusals:
    /// a later argument rather than an earlier one, and a key or a channel rather than the command.
    pub fn check(&self, id: Id, args: &Args<'_>, databases: Databases) -> Result<(), Denied> {
        let mut denied = Denied::Database(0);
        for selector in &self.selectors {
            match selector.check(id, args, databases) {
                Ok(()) => return Ok(()),
                Err(more) => denied = denied.max(more),
            }
        }
        Err(denied)
    }

    /// Whether a selector that may read all keys permits the call.
    pub fn check_reading_all_keys(&self, id: Id, args: &Args<'_>, databases: Databases) -> bool {
        self.selectors.iter().any(|one| one.reads_all_keys() && one.check(id, args, databases).is_ok())
    }

    /// Whether a client of this user may subscribe to a channel or a pattern.
    pub fn may_listen_to(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.selectors.iter().any(|one| one.may_use_channel(channel, is_pattern))
    }

    pub fn may_use_all_channels(&self) -> bool {
        self.selectors.iter().any(Selector::has_all_channels)
    }

    /// Returns the flags that ACL GETUSER shows.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_enabled { "on" } else { "off" }];
        flags.extend(self.is_open.then_some("nopass"));
        flags
    }

    /// Returns the digests of the passwords in hexadecimal digits.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(hex)
    }

    /// Returns `user name rules...`, the form of files and ACL LIST.
    pub fn line(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = vec![b"user".to_vec(), self.who.name.to_vec()];
        words.extend(self.flags().iter().map(|flag| flag.as_bytes().to_vec()));
        words.extend(self.passwords().map(|digest| [b"#", digest.as_bytes()].concat()));
        words.push(self.selectors[0].text());
        words.extend(self.selectors[1..].iter().map(|one| [b"(", &inside(&one.text())[..], b")"].concat()));
        words.join(&b' ')
    }
}

/// Parses the rules of a selector, without its parentheses.
fn selector(rules: &[u8], all_channels: bool) -> Result<Selector, RuleError> {
    let mut selector = Selector::new(all_channels);
    // As in Redis, unbalanced quotes make an empty selector.
    for rule in split_words(rules).unwrap_or_default() {
        if rule.is_empty() {
            return Err(SYNTAX);
        }
        selector.apply(&rule)?;
    }
    Ok(selector)
}

/// Returns rules in the form for parentheses, where quotes have a meaning and a word that ends with `)`
/// closes.
fn inside(rules: &[u8]) -> Vec<u8> {
    let rule = |rule: &[u8]| if rule.ends_with(b")") { quoted(rule) } else { plain_or_quoted(rule) };
    rules.split(|byte| *byte == b' ').map(rule).collect::<Vec<_>>().join(&b' ')
}

/// Returns the lines of all users, ordered by name.
pub fn lines(users: &Users) -> impl ExactSizeIterator<Item = Vec<u8>> {
    users.values().map(|user| user.line())
}

fn digest(password: &[u8]) -> Digest {
    Sha256::digest(password).into()
}

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_digest(text: &[u8]) -> Result<Digest, RuleError> {
    let mut digest = Digest::default();
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(BAD_DIGEST),
    };
    if text.len() != 2 * digest.len() {
        return Err(BAD_DIGEST);
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(digest)
}

/// Compares in constant time, so that the time does not reveal where the digests differ.
fn same(a: &Digest, b: &Digest) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}
