//! Access control: users and their permissions.
//!
//! | file | |
//! |---|---|
//! | `rows.rs` | per command: its categories, its use of keys, its channels |
//! | `absent.rs` | commands of other servers, which rules may name |
//! | `selector.rs` | a set of permissions, the rules that change it, and its text |
//! | `user.rs` | a user: passwords and selectors |
//! | `access.rs` | permissions of a session, checked for every command |
//! | `file.rs` | reading, checking and writing the ACL file |
//! | `log.rs` | ACL LOG |
//!
//! Users are values and never change in place. A change makes another user, and with it another map of all
//! users, which replaces the former map as a whole. So readers see a change completely or not at all, however
//! many users it affects.
//!
//! A generation is incremented with every change. Each session remembers the generation at which it knew its
//! user's permissions, so detecting a change costs a comparison per command, and a session whose user may do
//! everything pays no more than that. docs/acl.md has the rules by which changes take effect.

mod absent;
mod access;
pub mod file;
pub mod log;
mod rows;
mod selector;
mod user;

pub use absent::absent_commands;
pub use access::Access;
pub use rows::{CATEGORIES, Category, Databases};
pub use selector::{Denied, Selector};
pub use user::{Rule, User, Who, lines};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use parking_lot::{Mutex, RwLock};

use evenkeel_config::{ChannelsOfNew, Settings, UserLines};
use log::AclLog;

/// All users, ordered by name.
pub type Users = BTreeMap<Box<[u8]>, Arc<User>>;

/// The meaning of `user` lines in a configuration file.
pub const USER_LINES: UserLines = UserLines { check: file::check_line, at_start: file::lines_at_start };

/// The user as which every connection begins.
pub const DEFAULT: &[u8] = b"default";

/// Alone on its cache lines: every command reads it, so no frequently written data may share them.
#[repr(align(128))]
struct Apart(AtomicU64);

/// The users of the server; see the module's text.
pub struct Acl {
    generation: Apart,
    users: RwLock<Arc<Users>>,
    /// Locked while users change. The number of the next user.
    changing: Mutex<u64>,
    /// Locked while users are written to a file.
    saving: Mutex<()>,
    pub log: AclLog,
}

impl Acl {
    /// Creates the users: only the default user, as `requirepass` defines it.
    pub fn new(settings: &Settings) -> Acl {
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

    /// Returns a number that is incremented with every change, once the change is visible.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.0.load(Acquire)
    }

    pub fn users(&self) -> Arc<Users> {
        self.users.read().clone()
    }

    pub fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// Returns the present state of a user. `None`: the user was deleted, even if there is a new user of its
    /// name.
    pub fn current(&self, who: &Who) -> Option<Arc<User>> {
        self.user(&who.name).filter(|user| user.who.is(who))
    }

    pub fn default_user(&self) -> Arc<User> {
        self.user(DEFAULT).expect("the default user is never removed")
    }

    /// Replaces the users by the result of `change`, unless that fails. `change` gets the number of the next
    /// new user. Changes run one after the other; readers do not wait for them.
    pub fn change<R, E>(&self, change: impl FnOnce(&mut Users, &mut u64) -> Result<R, E>) -> Result<R, E> {
        let mut next = self.changing.lock();
        let mut users = Users::clone(&self.users());
        let result = change(&mut users, &mut next)?;
        assert!(users.contains_key(DEFAULT), "connections begin as somebody");
        *self.users.write() = Arc::new(users);
        self.generation.0.fetch_add(1, Release);
        Ok(result)
    }

    /// Sets the default user's password, after a change of `requirepass`.
    pub fn set_default_password(&self, password: &[u8]) {
        let changed = self.change(|users, _| {
            let mut user = User::clone(&users[DEFAULT]);
            user.set_only_password(password);
            users.insert(DEFAULT.into(), Arc::new(user));
            Ok::<(), std::convert::Infallible>(())
        });
        changed.unwrap_or_else(|never| match never {});
    }
}

/// Whether new and reset users may use all channels.
pub fn all_channels_for_new(settings: &Settings) -> bool {
    settings.acl_pubsub_default == ChannelsOfNew::All
}

/// Joins arguments that form a single rule: from an argument with an open parenthesis to the argument that
/// closes it. The error is the argument whose parenthesis stays open.
pub fn join_selectors<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Rule>, &'a [u8]> {
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

/// Whether a name or pattern contains bytes that cannot be written into an ACL file.
pub fn has_spaces(word: &[u8]) -> bool {
    word.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}
