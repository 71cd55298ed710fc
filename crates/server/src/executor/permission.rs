//! Checks of permissions on the road of a command, and logins.

use std::sync::Arc;

use crate::admin::{ServerCall, client};
use crate::server::Server;
use evenkeel_acl::log::{Reason, Refusal};
use evenkeel_acl::{Access, Databases, Denied};
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::session::Session;
use evenkeel_command::error::Error;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Flags, Id};

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
    let place = if session.multi.is_some() { Place::Multi } else { Place::TopLevel };
    match check(server, session, id, args) {
        Ok(()) => Ok(true),
        Err(denied) => {
            note(server, session, denied, (id, args), place, now_ms);
            Err(refusal(session, denied, id))
        }
    }
}

fn check(server: &Server, session: &Session, id: Id, args: &Args<'_>) -> Result<(), Denied> {
    let databases = databases_of(session, server.core.keyspace.databases());
    session.access.user.as_ref().map_or(Ok(()), |user| user.check(id, args, databases))
}

/// Returns the database in which the session's next command will run, inside MULTI as well.
pub(crate) fn databases_of(session: &Session, count: usize) -> Databases {
    let current = session.multi.as_ref().and_then(|multi| multi.selected).unwrap_or(session.db);
    Databases { current, count: count as u32 }
}

fn refusal(session: &Session, denied: Denied, id: Id) -> Error {
    Error::Bytes([b"NOPERM ", &explained(session, denied, id)[..]].concat())
}

/// Returns the reason of a refusal, without the names of keys, channels and databases.
fn explained(session: &Session, denied: Denied, id: Id) -> Vec<u8> {
    match denied {
        Denied::Command => {
            let who = session.access.who().map_or(&b""[..], |who| &who.name);
            let name = table().row(id).lower_name();
            [b"User ", who, b" has no permissions to run the '", name.as_bytes(), b"' command"].concat()
        }
        Denied::Key(_) => b"No permissions to access a key".to_vec(),
        Denied::Channel(_) => b"No permissions to access a channel".to_vec(),
        Denied::Database(_) => b"No permissions to access database".to_vec(),
    }
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
    if session.access.is_free(generation) { Ok(()) } else { check(server, session, id, args) }
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
        Denied::Database(_) => "no permission",
    };
    Err(Error::text(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
         This command is no longer allowed for the following reason: {reason}"
    )))
}

/// Checks whether a script may call this. The caller logs the refusal once the run is known to count.
pub(crate) fn admit_in_script(
    server: &Server,
    session: &mut Session,
    (id, args): (Id, &Args<'_>),
    now_ms: u64,
) -> Result<(), Box<(Error, Refusal)>> {
    let Err(denied) = check_again(server, session, id, args) else { return Ok(()) };
    let refusal = refused(session, denied, (id, args), Place::Script, now_ms);
    let error = [b"ERR ACL failure in script: ", &explained(session, denied, id)[..]].concat();
    Err(Box::new((Error::Bytes(error), refusal)))
}

/// Checks whether a command that has waited, and was permitted at this generation, may still be run.
pub(crate) fn admit_waiting(
    server: &Server,
    client: &Arc<ClientInfo>,
    (id, db): (Id, u32),
    args: &Args<'_>,
    now_ms: u64,
) -> Result<(), Error> {
    let access = Access::of_client(&server.acl, client.user());
    let mut session = Session::new(client.clone(), access);
    session.db = db;
    check(server, &session, id, args).map_err(|denied| {
        note(server, &session, denied, (id, args), Place::TopLevel, now_ms);
        refusal(&session, denied, id)
    })
}

/// Whether the permissions for this call include reading any key, as BY and GET of SORT do.
pub(crate) fn reads_all_keys(server: &Server, session: &Session, id: Id, args: &Args<'_>) -> bool {
    let (acl, access) = (&server.acl, &session.access);
    let databases = databases_of(session, server.core.keyspace.databases());
    let user = access.user.as_ref().filter(|_| !access.is_free_at(acl.generation()));
    user.is_none_or(|user| user.check_reading_all_keys(id, args, databases))
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
pub(crate) fn may_call(server: &Server, session: &mut Session, id: Id, args: &Args<'_>) -> bool {
    check_again(server, session, id, args).is_ok()
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
        Denied::Database(0) => (Reason::Database, table().row(id).lower_name().into_bytes()),
        Denied::Database(index) => (Reason::Database, args.at(index).to_vec()),
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
    server.acl.log.note(refusal, server.core.settings().acllog_max_len);
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
    server.acl.log.note(refusal, server.core.settings().acllog_max_len);
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
        call.server.acl.log.note(refusal, call.server.core.settings().acllog_max_len);
        return Err(Error::text("WRONGPASS invalid username-password pair or user is disabled."));
    };
    call.session.become_user(Access::of_user(&call.server.acl, user));
    Ok(())
}
