//! Access control: users, and what each may do.
//!
//! | file | |
//! |---|---|
//! | `rows.rs` | what is to be known of each command: its categories, what it does with its keys, its channels |
//! | `absent.rs` | commands of others, which rules may name |
//! | `selector.rs` | a set of permissions, the rules that change it, and how it is written down |
//! | `user.rs` | a user: passwords and selectors |
//! | `access.rs` | what a session may do: the check on the road of every command |
//! | `file.rs` | the file of users: reading it, and what is wrong with it |
//! | `log.rs` | ACL LOG |
//!
//! Users are values. Nobody changes one in place: a change makes another user, and with it another map of all users, which
//! takes the place of the one before as a whole. So a change is seen whole or not at all, however many users it is about.
//! A number goes up with every change; each session remembers at which number it knew what its user may do, so noticing a
//! change costs one comparison per command, and a session whose user may do everything does no more than that.
//! docs/acl.md has the rules by which changes take effect.

mod absent;
mod access;
pub(crate) mod file;
pub(crate) mod log;
#[cfg(test)]
mod rewrite_tests;
mod rows;
mod selector;
#[cfg(test)]
mod tests;
mod user;

pub(crate) use access::{
    Access, admit, admit_in_exec, admit_in_script, admit_waiting, after_joining, log_in, log_in_as_one_of,
    may_call, reads_all_keys,
};
pub(crate) use rows::{CATEGORIES, Category};
pub(crate) use selector::{Denied, Selector};
pub(crate) use user::{Rule, User, Who, lines};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use parking_lot::{Mutex, RwLock};

use evenkeel_config::{ChannelsOfNew, Settings, UserLines};
use log::AclLog;

/// All users by name, in order.
pub(crate) type Users = BTreeMap<Box<[u8]>, Arc<User>>;

/// The meaning of `user` lines in a configuration file.
pub(crate) const USER_LINES: UserLines =
    UserLines { check: file::check_line, at_start: file::lines_at_start };

/// The user that every connection begins as.
pub(crate) const DEFAULT: &[u8] = b"default";

/// Alone on its cache lines: every command reads it, and nothing that is written often may be beside it.
#[repr(align(128))]
struct Apart(AtomicU64);

/// See the module's text.
pub(crate) struct Acl {
    generation: Apart,
    users: RwLock<Arc<Users>>,
    /// Held by who changes them. The number of the next user.
    changing: Mutex<u64>,
    /// Held by who writes them into a file.
    saving: Mutex<()>,
    pub(crate) log: AclLog,
}

impl Acl {
    /// With the default user alone, as `requirepass` has it.
    pub(crate) fn new(settings: &Settings) -> Acl {
        let mut default = User::default_user();
        default.set_only_password(&settings.requirepass);
        let users = Users::from([(DEFAULT.into(), Arc::new(default))]);
        Acl {
            generation: Apart(AtomicU64::new(1)),
            users: RwLock::new(Arc::new(users)),
            changing: Mutex::new(1),
            saving: Mutex::default(),
            log: AclLog::default(),
        }
    }

    /// Goes up with every change, once it can be seen.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.0.load(Acquire)
    }

    pub(crate) fn users(&self) -> Arc<Users> {
        self.users.read().clone()
    }

    pub(crate) fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// The user as it is now; `None`: it has been deleted, even if there is another one of its name.
    pub(crate) fn current(&self, who: &Who) -> Option<Arc<User>> {
        self.user(&who.name).filter(|user| user.who.is(who))
    }

    pub(crate) fn default_user(&self) -> Arc<User> {
        self.user(DEFAULT).expect("the default user is never removed")
    }

    /// Puts what `change` makes of the users in their place, unless that fails. It gets the number of the next new user.
    /// One change at a time; who reads does not wait for it.
    pub(crate) fn change<R, E>(
        &self,
        change: impl FnOnce(&mut Users, &mut u64) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut next = self.changing.lock();
        let mut users = Users::clone(&self.users());
        let result = change(&mut users, &mut next)?;
        assert!(users.contains_key(DEFAULT), "connections begin as somebody");
        *self.users.write() = Arc::new(users);
        self.generation.0.fetch_add(1, Release);
        Ok(result)
    }

    /// `requirepass` is another one now.
    pub(crate) fn set_default_password(&self, password: &[u8]) {
        let changed = self.change(|users, _| {
            let mut user = User::clone(&users[DEFAULT]);
            user.set_only_password(password);
            users.insert(DEFAULT.into(), Arc::new(user));
            Ok::<(), std::convert::Infallible>(())
        });
        changed.unwrap_or_else(|never| match never {});
    }
}

/// Whether new users, and reset ones, may use all channels.
pub(crate) fn all_channels_for_new(settings: &Settings) -> bool {
    settings.acl_pubsub_default == ChannelsOfNew::All
}

/// Puts arguments together that make one rule: from one with an open parenthesis to the one that closes it.
/// The error is the argument whose parenthesis nobody closes.
pub(crate) fn join_selectors<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Rule>, &'a [u8]> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut open: Option<(&[u8], Rule)> = None;
    for word in words {
        open = match open.take() {
            None if word.starts_with(b"(") && !word.ends_with(b")") => Some((word, word.to_vec())),
            None => {
                rules.push(word.to_vec());
                None
            }
            Some((first, mut rule)) => {
                rule.push(b' ');
                rule.extend_from_slice(word);
                if word.ends_with(b")") {
                    rules.push(rule);
                    None
                } else {
                    Some((first, rule))
                }
            }
        };
    }
    match open {
        Some((first, _)) => Err(first),
        None => Ok(rules),
    }
}

/// Whether a name or pattern holds what cannot be written into a file of users.
pub(crate) fn has_spaces(word: &[u8]) -> bool {
    word.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}
