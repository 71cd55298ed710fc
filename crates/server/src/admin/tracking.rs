//! CLIENT TRACKING and related commands: see [`evenkeel_client::tracking`].

use super::client::{on_or_off, redirection};
use super::{Flags, ServerCall};
use crate::server::Server;
use evenkeel_client::session::{Caching, Session};
use evenkeel_client::tracking::mode;
use evenkeel_client::tracking::prefixes::{first_overlap, overlapping};
use evenkeel_command::Spec;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_store::Key;

/// The options of CLIENT TRACKING.
#[derive(Default)]
struct Options<'a> {
    redirect: Option<i64>,
    mode: u32,
    prefixes: Vec<&'a [u8]>,
}

/// CLIENT TRACKING ON | OFF [REDIRECT client-id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]
pub(super) fn tracking(call: &mut ServerCall<'_, '_>) -> Done {
    let options = parse(call)?;
    if on_or_off(call.base.args, 2)? {
        enable(call, &options)?;
    } else {
        call.session.end_tracking(&call.server.hub);
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

fn parse<'a>(call: &ServerCall<'a, '_>) -> Result<Options<'a>, Error> {
    let (args, mut options, mut at) = (call.base.args, Options::default(), 3);
    while at < args.len() {
        let has_value = at + 1 < args.len();
        match args.word(at).as_bytes() {
            b"REDIRECT" if has_value => {
                if options.redirect.is_some() {
                    return Err(Error::text("ERR A client can only redirect to a single other client"));
                }
                at += 1;
                let id = args.int(at)?;
                if call.server.hub.clients.get(id as u64).is_none() {
                    return Err(Error::text("ERR The client ID you want redirect to does not exist"));
                }
                options.redirect = Some(id);
            }
            b"PREFIX" if has_value => {
                at += 1;
                options.prefixes.push(args.at(at));
            }
            b"BCAST" => options.mode |= mode::BROADCAST,
            b"OPTIN" => options.mode |= mode::OPT_IN,
            b"OPTOUT" => options.mode |= mode::OPT_OUT,
            b"NOLOOP" => options.mode |= mode::NO_LOOP,
            _ => return Err(Error::Syntax),
        }
        at += 1;
    }
    Ok(options)
}

fn enable(call: &mut ServerCall<'_, '_>, options: &Options<'_>) -> Result<(), Error> {
    check_modes(call, options)?;
    if options.mode & mode::BROADCAST != 0 {
        check_prefixes(call, &options.prefixes)?;
    }
    let target = options.redirect.and_then(|id| call.server.hub.clients.get(id as u64));
    let events = &call.server.core.keyspace.events;
    call.server.hub.tracking.begin(events, &call.session.client, options.mode, target, &options.prefixes);
    call.session.tracks = options.mode & mode::BROADCAST == 0;
    call.session.receives_push = true;
    Ok(())
}

fn check_modes(call: &ServerCall<'_, '_>, options: &Options<'_>) -> Result<(), Error> {
    let (own, asked) = (&call.session.client.tracked, options.mode);
    let is_broadcast = asked & mode::BROADCAST != 0;
    let (opts_in, opts_out) = (asked & mode::OPT_IN != 0, asked & mode::OPT_OUT != 0);
    let text = if !is_broadcast && !options.prefixes.is_empty() {
        "ERR PREFIX option requires BCAST mode to be enabled"
    } else if own.has(mode::ON) && own.has(mode::BROADCAST) != is_broadcast {
        "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then \
         re-enabling it with a different mode."
    } else if is_broadcast && (opts_in || opts_out) {
        "ERR OPTIN and OPTOUT are not compatible with BCAST"
    } else if opts_in && opts_out {
        "ERR You can't specify both OPTIN mode and OPTOUT mode"
    } else if opts_in && own.has(mode::OPT_OUT) || opts_out && own.has(mode::OPT_IN) {
        "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then \
         re-enabling it with a different mode."
    } else {
        return Ok(());
    };
    Err(Error::text(text))
}

/// No prefix of a client may begin with another: the client would be notified twice.
fn check_prefixes(call: &ServerCall<'_, '_>, prefixes: &[&[u8]]) -> Result<(), Error> {
    let error = |prefix: &[u8], which: &[u8], other: &[u8]| {
        let rest = b"'. Prefixes for a single client must not overlap.";
        Error::Bytes([b"ERR Prefix '", prefix, b"' overlaps with ", which, b" '", other, rest].concat())
    };
    let own = call.session.client.tracked.prefixes.lock();
    let existing =
        || prefixes.iter().enumerate().find_map(|(at, prefix)| Some((at, overlapping(&own, prefix)?)));
    match (existing(), first_overlap(prefixes)) {
        (Some((at, other)), between) if between.is_none_or(|(first, _)| at <= first) => {
            Err(error(prefixes[at], b"an existing prefix", other))
        }
        (_, Some((at, other))) => Err(error(prefixes[at], b"another provided prefix", prefixes[other])),
        (_, None) => Ok(()),
    }
}

/// CLIENT CACHING YES | NO
pub(super) fn caching(call: &mut ServerCall<'_, '_>) -> Done {
    let own = &call.session.client.tracked;
    if !own.has(mode::ON) {
        return Err(Error::text(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT \
             mode enabled",
        ));
    }
    let text = match (call.base.args.is(2, "YES"), call.base.args.is(2, "NO")) {
        (true, _) if !own.has(mode::OPT_IN) => {
            "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
        }
        (_, true) if !own.has(mode::OPT_OUT) => {
            "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
        }
        (false, false) => return Err(Error::Syntax),
        _ => {
            call.session.caching = Caching::Said;
            call.base.reply.ok();
            return Ok(Flow::Replied);
        }
    };
    Err(Error::text(text))
}

/// CLIENT GETREDIR
pub(super) fn get_redir(call: &mut ServerCall<'_, '_>) -> Done {
    call.session.keep_caching();
    call.base.reply.int(redirection(&call.session.client));
    Ok(Flow::Replied)
}

/// CLIENT TRACKINGINFO
pub(super) fn tracking_info(call: &mut ServerCall<'_, '_>) -> Done {
    call.session.keep_caching();
    let own = &call.session.client.tracked;
    let (has, is_said) = (|bit| own.has(bit), call.session.caching != Caching::Unsaid);
    let flags = [
        (!has(mode::ON), "off"),
        (has(mode::ON), "on"),
        (has(mode::BROADCAST), "bcast"),
        (has(mode::OPT_IN), "optin"),
        (has(mode::OPT_IN) && is_said, "caching-yes"),
        (has(mode::OPT_OUT), "optout"),
        (has(mode::OPT_OUT) && is_said, "caching-no"),
        (has(mode::NO_LOOP), "noloop"),
        (has(mode::BROKEN), "broken_redirect"),
    ];
    let set: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
    let prefixes: Vec<Box<[u8]>> = own.prefixes.lock().iter().cloned().collect();
    let redirect = redirection(&call.session.client);
    let reply = &mut *call.base.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(set.len());
    set.iter().for_each(|name| reply.bulk(name.as_bytes()));
    reply.bulk(b"redirect");
    reply.int(redirect);
    reply.bulk(b"prefixes");
    reply.array(prefixes.len());
    prefixes.iter().for_each(|prefix| reply.bulk(prefix));
    Ok(Flow::Replied)
}

/// Records the keys that a tracking client is about to read. For a script, its commands do so.
#[cold]
pub(crate) fn remember_keys(server: &Server, session: &Session, spec: &Spec, keys: &[Key<'_>]) {
    let own = &session.client.tracked;
    let is_said = session.caching != Caching::Unsaid;
    let is_left_out = own.has(mode::OPT_IN) && !is_said || own.has(mode::OPT_OUT) && is_said;
    let reads = spec.flags.has(Flags::READONLY) && !spec.runs_scripts();
    if reads && !is_left_out {
        keys.iter().for_each(|key| server.hub.tracking.remember(key.bytes, &session.client));
    }
}

#[cfg(test)]
mod tests;
