//! Permissions of a session, checked for every command.
//!
//! A session holds its user and the generation of users at which it looked the user up
//! ([`super::Acl::generation`]). If the user may do everything, the check of a command is a comparison of two
//! generations. After a change of any user, the session looks its own user up again. It finds the changed
//! user, or none, and then the connection is closed.

use std::sync::Arc;

use super::Acl;
use super::log::{Reason, Refusal};
use super::selector::Denied;
use super::user::{User, Who};
use crate::admin::ServerCall;
use crate::admin::client;
use crate::clients::ClientInfo;
use crate::server::Server;
use crate::session::Session;
use evenkeel_command::error::Error;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Flags, Id};

/// The user for whom a session acts.
pub(crate) struct Access {
    /// `None`: the server itself, for replayed commands and commands from the primary, which may do
    /// everything.
    user: Option<Arc<User>>,
    is_authenticated: bool,
    /// Generation at which `user` was looked up.
    known_at: u64,
    /// Generation at which everything was known to be permitted; zero: never.
    free_at: u64,
}

/// Origin of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    TopLevel,
    Multi,
    Script,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::TopLevel => "toplevel",
            Place::Multi => "multi",
            Place::Script => "lua",
        }
    }
}

impl Access {
    /// Returns the server's own access.
    pub(crate) fn of_server() -> Access {
        Access { user: None, is_authenticated: true, known_at: 0, free_at: 0 }
    }

    /// Returns the access of a new connection.
    pub(crate) fn of_new_connection(acl: &Acl) -> Access {
        let known_at = acl.generation();
        let user = acl.default_user();
        Access { is_authenticated: user.admits_everybody(), user: Some(user), known_at, free_at: 0 }
    }

    /// Returns the access of a client's command that runs outside its session.
    pub(crate) fn of_client(acl: &Acl, client: &ClientInfo) -> Access {
        let known_at = acl.generation();
        let who = client.user.lock().clone();
        // Without the user, the connection is about to be closed; until then it acts as a user without any
        // permission.
        let user = who
            .map(|who| acl.current(&who).unwrap_or_else(|| Arc::new(User::new(&who.name, u64::MAX, false))));
        Access { user, is_authenticated: true, known_at, free_at: 0 }
    }

    /// Returns the access of a user that has authenticated.
    pub(crate) fn of_user(acl: &Acl, user: Arc<User>) -> Access {
        // Outdated on purpose: the user may have changed since it was found, and is looked up again before
        // the next command.
        let known_at = acl.generation().wrapping_sub(1);
        Access { user: Some(user), is_authenticated: true, known_at, free_at: 0 }
    }

    pub(crate) fn who(&self) -> Option<&Arc<Who>> {
        self.user.as_ref().map(|user| &user.who)
    }

    /// Whether everything was permitted at this generation.
    #[inline]
    pub(crate) fn is_free_at(&self, generation: u64) -> bool {
        self.free_at == generation
    }

    /// Returns the generation at which the present command was permitted.
    pub(crate) fn checked_at(&self) -> u64 {
        self.known_at
    }

    /// Whether the session's last command was checked against the users of this generation.
    pub(crate) fn is_checked_at(&self, generation: u64) -> bool {
        self.known_at == generation || self.free_at == generation
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether the client has to authenticate before any other command. No password is required once the
    /// default user needs none.
    pub(crate) fn lacks_auth(&self, acl: &Acl) -> bool {
        !self.is_authenticated && !self.is_free_at(acl.generation()) && !acl.default_user().admits_everybody()
    }

    /// Brings the user up to this generation. Returns an error if it was deleted.
    fn refresh(&mut self, acl: &Acl, generation: u64) -> Result<(), Gone> {
        if self.known_at != generation {
            if let Some(user) = &mut self.user {
                *user = acl.current(&user.who).ok_or(Gone)?;
            }
            self.known_at = generation;
        }
        Ok(())
    }

    /// Whether everything is permitted; if so, records the generation.
    fn is_free(&mut self, generation: u64) -> bool {
        let is_free = self.user.as_ref().is_none_or(|user| user.is_unrestricted());
        if is_free && self.is_authenticated {
            self.free_at = generation;
        }
        is_free
    }
}

/// The user of a session has been deleted.
struct Gone;

/// Checks whether a client's command may be run or queued. `Ok(false)`: its user has been deleted, and the
/// connection is to be closed without a reply.
#[inline(never)]
pub(crate) fn admit(
    server: &Server,
    session: &mut Session,
    id: Id,
    args: &Args<'_>,
    now_ms: u64,
) -> Result<bool, Error> {
    let generation = server.acl.generation();
    let access = &mut session.access;
    if access.refresh(&server.acl, generation).is_err() {
        session.closing = true;
        return Ok(false);
    }
    let row = table().row(id);
    if !row.flags.has(Flags::NO_AUTH) && access.lacks_auth(&server.acl) {
        return Err(Error::NoAuth);
    }
    if access.is_free(generation) {
        return Ok(true);
    }
    if session.multi.is_some() && row.flags.has(Flags::NO_MULTI) {
        return Err(Error::text("ERR Command not allowed inside a transaction"));
    }
    let place = if session.multi.is_some() { Place::Multi } else { Place::TopLevel };
    match check(session, id, args) {
        Ok(()) => Ok(true),
        Err(denied) => {
            note(server, session, denied, (id, args), place, now_ms);
            Err(refusal(denied, id))
        }
    }
}

fn check(session: &Session, id: Id, args: &Args<'_>) -> Result<(), Denied> {
    session.access.user.as_ref().map_or(Ok(()), |user| user.check(id, args))
}

fn refusal(denied: Denied, id: Id) -> Error {
    Error::text(match denied {
        Denied::Command => {
            let name = table().row(id).lower_name();
            return Error::text(format!("NOPERM this user has no permissions to run the '{name}' command"));
        }
        Denied::Key(_) => "NOPERM this user has no permissions to access one of the keys used as arguments",
        Denied::Channel(_) => {
            "NOPERM this user has no permissions to access one of the channels used as arguments"
        }
    })
}

/// Checks a command, after bringing the user up to date.
fn check_again(server: &Server, session: &mut Session, id: Id, args: &Args<'_>) -> Result<(), Denied> {
    let generation = server.acl.generation();
    if session.access.is_free_at(generation) {
        return Ok(());
    }
    if session.access.refresh(&server.acl, generation).is_err() {
        session.closing = true;
        return Err(Denied::Command);
    }
    if session.access.is_free(generation) { Ok(()) } else { check(session, id, args) }
}

/// Checks whether a queued command may still be run.
pub(crate) fn admit_in_exec(
    server: &Server,
    session: &mut Session,
    (id, args): (Id, &Args<'_>),
    now_ms: u64,
) -> Result<(), Error> {
    let Err(denied) = check_again(server, session, id, args) else { return Ok(()) };
    note(server, session, denied, (id, args), Place::Multi, now_ms);
    let reason = match denied {
        Denied::Command => "no permission to execute the command or subcommand",
        Denied::Key(_) => "no permission to touch the specified keys",
        Denied::Channel(_) => "no permission to access one of the channels used as arguments",
    };
    Err(Error::text(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
         This command is no longer allowed for the following reason: {reason}"
    )))
}

/// Checks whether a script may call this. The caller logs the refusal once the run is known to count.
pub(crate) fn admit_in_script(
    call: &mut ServerCall<'_, '_>,
    id: Id,
    args: &Args<'_>,
) -> Result<(), Box<(Error, Refusal)>> {
    let Err(denied) = check_again(call.server, call.session, id, args) else { return Ok(()) };
    let refusal = refused(call.session, denied, (id, args), Place::Script, call.now_ms());
    let reason = match denied {
        Denied::Command => "can't run this command or subcommand",
        Denied::Key(_) => "can't access at least one of the keys mentioned in the command arguments",
        Denied::Channel(_) => "can't publish to the channel mentioned in the command",
    };
    Err(Box::new((Error::text(format!("ERR The user executing the script {reason}")), refusal)))
}

/// Checks whether a command that has waited, and was permitted at this generation, may still be run.
pub(crate) fn admit_waiting(
    server: &Server,
    client: &Arc<ClientInfo>,
    id: Id,
    args: &Args<'_>,
    now_ms: u64,
) -> Result<(), Error> {
    let access = Access::of_client(&server.acl, client);
    let session = Session::new(client.clone(), access);
    check(&session, id, args).map_err(|denied| {
        note(server, &session, denied, (id, args), Place::TopLevel, now_ms);
        refusal(denied, id)
    })
}

/// Whether the permissions for this call include reading any key, as BY and GET of SORT do.
pub(crate) fn reads_all_keys(acl: &Acl, session: &Session, id: Id, args: &Args<'_>) -> bool {
    let access = &session.access;
    let user = access.user.as_ref().filter(|_| !access.is_free_at(acl.generation()));
    user.is_none_or(|user| user.check_reading_all_keys(id, args))
}

/// Checks a subscription again after it was made. A thread that revokes a permission searches all
/// subscriptions after the change. A subscription made just behind that search is missed by it, but then this
/// check sees the change.
pub(crate) fn after_joining(call: &mut ServerCall<'_, '_>) {
    let (id, args) = (call.base.id, call.base.args);
    if check_again(call.server, call.session, id, &args).is_err() {
        call.session.closing = true;
    }
}

/// Whether a script's ACL query is answered with yes.
pub(crate) fn may_call(call: &mut ServerCall<'_, '_>, id: Id, args: &Args<'_>) -> bool {
    check_again(call.server, call.session, id, args).is_ok()
}

fn refused(
    session: &Session,
    denied: Denied,
    (id, args): (Id, &Args<'_>),
    place: Place,
    now_ms: u64,
) -> Refusal {
    let (reason, object) = match denied {
        Denied::Command => (Reason::Command, table().row(id).lower_name().into_bytes()),
        Denied::Key(index) => (Reason::Key, args.at(index).to_vec()),
        Denied::Channel(index) => (Reason::Channel, args.at(index).to_vec()),
    };
    let user = session.access.who().map(|who| who.name.to_vec()).unwrap_or_default();
    let client = client::describe(&session.client, now_ms, None);
    Refusal { reason, context: place.name(), object, user, client, now_ms }
}

fn note(
    server: &Server,
    session: &Session,
    denied: Denied,
    command: (Id, &Args<'_>),
    place: Place,
    now_ms: u64,
) {
    let refusal = refused(session, denied, command, place, now_ms);
    server.acl.log.note(refusal, server.settings().acllog_max_len);
}

/// Logs a client in by its certificate, without a password, as the first of these users that exists and is
/// enabled. Without such a user, the session keeps its user.
pub(crate) fn log_in_as_one_of(server: &Server, session: &mut Session, names: &[Vec<u8>], now_ms: u64) {
    let address = &session.client.address;
    let found = names.iter().find_map(|name| server.acl.user(name).filter(|user| user.is_enabled()));
    if let Some(user) = found {
        let name = String::from_utf8_lossy(&user.who.name);
        log::debug!("TLS: the certificate of client {address} authenticates user '{name}'");
        return session.become_user(Access::of_user(&server.acl, user));
    }
    let Some(last) = names.last() else {
        return log::debug!("TLS: the certificate of client {address} does not name an existing user");
    };
    let refusal = Refusal {
        reason: Reason::Certificate,
        context: Place::TopLevel.name(),
        object: Vec::new(),
        user: last.clone(),
        client: client::describe(&session.client, now_ms, None),
        now_ms,
    };
    server.acl.log.note(refusal, server.settings().acllog_max_len);
}

/// AUTH or HELLO: logs the session in as this user, if the password matches.
pub(crate) fn log_in(call: &mut ServerCall<'_, '_>, name: &[u8], password: &[u8]) -> Result<(), Error> {
    let user = call.server.acl.user(name).filter(|user| user.admits(password));
    let Some(user) = user else {
        let place = if call.session.multi.is_some() { Place::Multi } else { Place::TopLevel };
        let refusal = Refusal {
            reason: Reason::Auth,
            context: place.name(),
            object: call.base.args.at(0).to_vec(),
            user: name.to_vec(),
            client: client::describe(&call.session.client, call.now_ms(), None),
            now_ms: call.now_ms(),
        };
        call.server.acl.log.note(refusal, call.server.settings().acllog_max_len);
        return Err(Error::text("WRONGPASS invalid username-password pair or user is disabled."));
    };
    call.session.become_user(Access::of_user(&call.server.acl, user));
    Ok(())
}
