//! Permissions of a session, checked for every command.
//!
//! A session holds its user and the generation of users at which it looked the user up
//! ([`super::Acl::generation`]). If the user may do everything, the check of a command is a comparison of two
//! generations. After a change of any user, the session looks its own user up again. It finds the changed
//! user, or none, and then the connection is closed.

use std::sync::Arc;

use super::Acl;
use super::user::{User, Who};

/// The user for whom a session acts.
pub struct Access {
    /// `None`: the server itself, for replayed commands and commands from the primary, which may do
    /// everything.
    pub user: Option<Arc<User>>,
    is_authenticated: bool,
    /// Generation at which `user` was looked up.
    known_at: u64,
    /// Generation at which everything was known to be permitted; zero: never.
    free_at: u64,
}

impl Access {
    /// Returns the server's own access.
    pub fn of_server() -> Access {
        Access { user: None, is_authenticated: true, known_at: 0, free_at: 0 }
    }

    /// Returns the access of a new connection.
    pub fn of_new_connection(acl: &Acl) -> Access {
        let known_at = acl.generation();
        let user = acl.default_user();
        Access { is_authenticated: user.admits_everybody(), user: Some(user), known_at, free_at: 0 }
    }

    /// Returns the access of a command that a client of this user runs outside its session.
    pub fn of_client(acl: &Acl, who: Option<Arc<Who>>) -> Access {
        let known_at = acl.generation();
        // Without the user, the connection is about to be closed; until then it acts as a user without any
        // permission.
        let user = who
            .map(|who| acl.current(&who).unwrap_or_else(|| Arc::new(User::new(&who.name, u64::MAX, false))));
        Access { user, is_authenticated: true, known_at, free_at: 0 }
    }

    /// Returns the access of a user that has authenticated.
    pub fn of_user(acl: &Acl, user: Arc<User>) -> Access {
        // Outdated on purpose: the user may have changed since it was found, and is looked up again before
        // the next command.
        let known_at = acl.generation().wrapping_sub(1);
        Access { user: Some(user), is_authenticated: true, known_at, free_at: 0 }
    }

    pub fn who(&self) -> Option<&Arc<Who>> {
        self.user.as_ref().map(|user| &user.who)
    }

    /// Whether everything was permitted at this generation.
    #[inline]
    pub fn is_free_at(&self, generation: u64) -> bool {
        self.free_at == generation
    }

    /// Returns the generation at which the present command was permitted.
    pub fn checked_at(&self) -> u64 {
        self.known_at
    }

    /// Whether the session's last command was checked against the users of this generation.
    pub fn is_checked_at(&self, generation: u64) -> bool {
        self.known_at == generation || self.free_at == generation
    }

    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether the client has to authenticate before any other command. No password is required once the
    /// default user needs none.
    pub fn lacks_auth(&self, acl: &Acl) -> bool {
        !self.is_authenticated && !self.is_free_at(acl.generation()) && !acl.default_user().admits_everybody()
    }

    /// Brings the user up to this generation. Returns an error if it was deleted.
    pub fn refresh(&mut self, acl: &Acl, generation: u64) -> Result<(), Gone> {
        if self.known_at != generation {
            if let Some(user) = &mut self.user {
                *user = acl.current(&user.who).ok_or(Gone)?;
            }
            self.known_at = generation;
        }
        Ok(())
    }

    /// Whether everything is permitted; if so, records the generation.
    pub fn is_free(&mut self, generation: u64) -> bool {
        let is_free = self.user.as_ref().is_none_or(|user| user.is_unrestricted());
        if is_free && self.is_authenticated {
            self.free_at = generation;
        }
        is_free
    }
}

/// The user of a session has been deleted.
pub struct Gone;
