//! CONFIG: the settings of the running server.
//!
//! `config` defines the directives and validates their values. Here a change is put into effect. Most
//! directives are read where they matter and need nothing more than new settings. But sockets have to be
//! opened before the reply can confirm that the server listens there.

use super::{Command, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session};
use crate::server::Server;
use crate::startup::{level_of, raise_file_limit, watchdog};
use evenkeel_command::error::Error;
use evenkeel_command::flow::Work;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_config::{Extent, SetError, Settings, cause};
use evenkeel_history::EventKind;
use evenkeel_net::tls::Change;
use evenkeel_persist::rewrite;
use evenkeel_replication::link;
use evenkeel_runtime::{crash, server_log};
use log::Level;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("CONFIG", Group::Server, &[
        session("CONFIG|GET",       at_least(3), Group::Server, get       ).admin(),
        session("CONFIG|HELP",      exactly(2),  Group::Server, help      ).scriptable(),
        session("CONFIG|RESETSTAT", exactly(2),  Group::Server, reset_stat).admin(),
        session("CONFIG|REWRITE",   exactly(2),  Group::Server, rewrite   ).admin(),
        session("CONFIG|SET",       at_least(4), Group::Server, set       ).admin(),
    ]),
];

/// CONFIG HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "CONFIG");
    Ok(Flow::Replied)
}

/// CONFIG GET parameter [parameter ...]
fn get(call: &mut ServerCall<'_, '_>) -> Done {
    let patterns: Vec<&[u8]> = call.base.args.from(2).collect();
    // Not the call's settings, which an earlier command of the same batch may have changed.
    let found = call.server.core.settings().get(&patterns);
    call.base.reply.map(found.len());
    for (name, value) in found {
        call.base.reply.bulk(&name);
        call.base.reply.bulk(&value);
    }
    Ok(Flow::Replied)
}

/// CONFIG SET parameter value [parameter value ...]
fn set(call: &mut ServerCall<'_, '_>) -> Done {
    let words: Vec<&[u8]> = call.base.args.from(2).collect();
    if !words.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    let pairs: Vec<(&[u8], &[u8])> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let (server, local) = (call.server, call.session.client.is_local());
    // The data being loaded would be taken for complete, or be looked for in another place.
    let is_of_files =
        |name: &[u8]| [&b"appendonly"[..], b"dir"].iter().any(|own| name.eq_ignore_ascii_case(own));
    if server.persist.is_loading() && pairs.iter().any(|(name, _)| is_of_files(name)) {
        return Err(evenkeel_persist::loading());
    }
    // Certificates may be on a disk that hangs.
    let mut names = Vec::new();
    let changed = call.base.guard.outside_gate(|| {
        server.core.change_settings(|settings| {
            let (new, changed) = settings.set(&pairs, local)?;
            put_into_effect(server, (settings, &new), &changed, &pairs)?;
            names = changed;
            Ok(new)
        })
    });
    changed.map_err(|error: SetError| Error::text(format!("ERR {error}")))?;
    if !names.is_empty() {
        // Without the values: some are passwords.
        let text = format!("CONFIG SET has changed {}", names.join(", "));
        server.recorder.record(EventKind::Config, None, text);
    }
    // The control thread does whatever has to wait for a snapshot's end.
    rewrite::follow_soon(&server.persist);
    watchdog::follow(server);
    if pairs.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"aof-disable-auto-gc")) {
        rewrite::collect_soon(&server.persist);
    }
    let is_in_title = |name: &[u8]| {
        [&b"proc-title-template"[..], b"bind", b"port", b"tls-port"]
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
    };
    if pairs.iter().any(|(name, _)| is_in_title(name)) {
        server.set_title();
    }
    server.scripts.is_insecure.store(server.core.settings().lua_enable_insecure_api, Relaxed);
    server.persist.follow(&server.core.settings());
    server.replication.follow(&server.core.settings());
    link::follow_settings(&server.replication);
    let clients_max = server.core.settings().client_memory_max();
    if clients_max > 0 && pairs.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"maxmemory-clients")) {
        server.evict_clients(clients_max);
    }
    call.reply_in_force(|reply| reply.ok())
}

/// Does the work that readers of the settings cannot do. Fallible steps come first, with the sockets last
/// among them: they cannot be restored for certain.
fn put_into_effect(
    server: &Arc<Server>,
    (old, new): (&Settings, &Settings),
    changed: &[&'static str],
    pairs: &[(&[u8], &[u8])],
) -> Result<(), SetError> {
    let has = |name: &str| changed.contains(&name);
    if has("appendonly") && !new.appendonly && !server.persist.aof.logs() {
        // The base with which it would begin is not wanted, even if it is not being written yet.
        server.persist.cancel_rewrite();
    }
    if has("maxclients") || has("http-port") || has("http-max-connections") {
        raise_file_limit(new).map_err(|clients| {
            if !has("maxclients") {
                let reason = "The limit of open files is too low for so many connections beside maxclients";
                return SetError::failed("http-max-connections", reason);
            }
            let reason =
                "The operating system is not able to handle the specified number of clients, try with";
            SetError::failed("maxclients", format!("{reason} {clients}"))
        })?;
    }
    // A file may have changed under the same name.
    let is_tls = |name: &&[u8]| {
        let name = name.to_ascii_lowercase();
        name.starts_with(b"tls-") || [&b"http-tls"[..], b"http-port"].contains(&&name[..])
    };
    let named = pairs.iter().map(|(name, _)| *name).find(is_tls);
    let tls = named.map(|name| change_tls(server, new, name)).transpose()?;
    let has_score = has("oom-score-adj") || has("oom-score-adj-values");
    let is_replica = server.replication.is_replica();
    if has_score {
        server.core.oom_score.follow(new, is_replica).map_err(|error| {
            log::warn!("Unable to write oom_score_adj: {error}");
            let name = if has("oom-score-adj") { "oom-score-adj" } else { "oom-score-adj-values" };
            SetError::failed(name, "Failed to set current oom_score_adj. Check server logs.")
        })?;
    }
    let has_http = has("http-port") || has("http-bind") || has("http-tls");
    if has_http {
        server.listen_http(new).map_err(|reason| {
            log::warn!("{}", reason);
            let name = if has("http-port") { "http-port" } else { "http-bind" };
            SetError::failed(name, "Unable to listen on this address. Check server logs.")
        })?;
    }
    if has("port") || has("tls-port") || has("bind") {
        server.listen(new).map_err(|reason| {
            log::warn!("{}", reason);
            if has_http && let Err(error) = server.listen_http(old) {
                log::warn!("Unable to restore the HTTP listeners: {error}");
            }
            if has_score && let Err(error) = server.core.oom_score.follow(old, is_replica) {
                log::warn!("Unable to restore oom_score_adj: {error}");
            }
            if has("tls-port") {
                SetError::failed("tls-port", "Unable to listen on this port. Check server logs.")
            } else if has("port") {
                SetError::failed("port", "Unable to listen on this port. Check server logs.")
            } else {
                SetError::failed("bind", "Failed to bind to specified addresses.")
            }
        })?;
    }
    if let Some(tls) = tls {
        tls.put_in_force();
    }
    if has("requirepass") {
        server.acl.set_default_password(&new.requirepass);
    }
    if has("crash-log-enabled") {
        crash::follow(new.crash_log_enabled, new.logfile.as_deref());
    }
    log::set_max_level(level_of(new.loglevel));
    let (lines, times) = new.log_format();
    server_log::set_format(lines, times);
    for one in new.in_vain(changed) {
        let level = if one.is_missed { Level::Warn } else { Level::Info };
        log::log!(level, "{one}");
    }
    Ok(())
}

/// Reads certificates and keys. Like CONFIG REWRITE, that takes milliseconds, at a time of an operator's
/// choosing.
fn change_tls<'s>(server: &'s Server, new: &Settings, name: &[u8]) -> Result<Change<'s>, SetError> {
    server.tls.change(new).map_err(|reason| {
        log::warn!("Failed to configure TLS: {reason}");
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        SetError::failed(&name, format!("Unable to update TLS configuration: {reason}"))
    })
}

/// CONFIG REWRITE
///
/// The file is written, and made durable, before the reply, by a thread that may wait for its disk. A
/// transaction, which has a single reply, waits in place, and delays all clients that want its keys.
fn rewrite(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server.clone();
    call.offload_io(Work::waits_for_disk(move || rewrite_file(&server, Extent::Changes)))
}

/// Writes the settings into the configuration file.
pub(crate) fn rewrite_file(server: &Server, extent: Extent) -> Result<(), Error> {
    let Some(file) = &server.config_file else {
        return Err(Error::text("ERR The server is running without a config file"));
    };
    let rewritten = file.rewrite(extent, || {
        let settings = server.core.settings();
        settings.with_users(server.acl.words_for_config(&settings))
    });
    match rewritten {
        Ok(()) => {
            log::info!("CONFIG REWRITE executed with success.");
            Ok(())
        }
        Err(error) => {
            let cause = cause(&error);
            log::warn!("CONFIG REWRITE failed: {}: {cause}", file.path.display());
            Err(Error::text(format!("ERR Rewriting config file: {cause}")))
        }
    }
}

/// CONFIG RESETSTAT
fn reset_stat(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.reset_stats();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use crate::testing::{World, check};

    #[test]
    fn config_set_applies_all_values_or_none() {
        check(
            "
            > CONFIG SET maxmemory 100mb timeout 7       < OK
            > CONFIG GET maxmemory                       < [\"maxmemory\", \"104857600\"]
            > CONFIG SET maxmemory 1 timeout x
            < -ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed \
                into an integer
            > CONFIG SET maxmemory 1 maxmemory 2
            < -ERR CONFIG SET failed (possibly related to argument 'maxmemory') - duplicate parameter
            > CONFIG SET maxmemory 1 daemonize yes
            < -ERR CONFIG SET failed (possibly related to argument 'daemonize') - can't set immutable config
            > CONFIG SET acl-pubsub-default foo
            < -ERR *argument(s) must be one of the following: allchannels, resetchannels
            > CONFIG SET maxmemory 1 timeout             < -ERR syntax error
            > CONFIG SET maxmemory 1 nosuch 1
            < -ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'
            > CONFIG GET maxmemory                       < [\"maxmemory\", \"104857600\"]
            > CONFIG GET timeout                         < [\"timeout\", \"7\"]
            > CONFIG GET nosuch                          < []
        ",
        );
    }

    #[test]
    fn config_changes_apply_from_the_next_command() {
        check(
            "
            > MULTI
            > CONFIG SET timeout 9
            > CONFIG GET timeout
            > EXEC                                       < [OK, [\"timeout\", \"9\"]]
            > CONFIG SET maxmemory 1                     < OK
            > SET k v                                    < -OOM *
            > CONFIG SET maxmemory 0                     < OK
            > SET k v                                    < OK
        ",
        );
    }

    #[test]
    fn a_new_password_applies_to_new_connections() {
        check(
            "
            > CONFIG SET requirepass secret              < OK
            > PING                                       < PONG
            > CONFIG SET requirepass \"\"                 < OK
        ",
        );
    }

    #[test]
    fn resetstat_resets_statistics() {
        check(
            "
            > NOSUCH
            < -ERR unknown command 'NOSUCH', with args beginning with: *
            > INFO errorstats                            < \"*errorstat_ERR:count=*\"
            > CONFIG RESETSTAT                           < OK
            > INFO errorstats                            < \"# Errorstats\\r\\n\"
            > EVAL \"return redis.error_reply('MY:#ERR text')\" 0 < -MY:#ERR text
            > EVAL \"return {err='barbaz'}\" 0          < -barbaz
            > EVAL \"return {err='LINE\\\\r\\\\nERR x'}\" 0   < -LINE  ERR x
            > EVAL \"return redis.error_reply(string.rep('X', 31) .. ' y')\" 0 < -XXX*
            > EVAL \"return redis.error_reply(string.rep('Y', 30) .. ' y')\" 0 < -YYY*
            > INFO errorstats                            < \"# Errorstats\\r\\nerrorstat_ERR:count=2\\r\\n\
                errorstat_LINE:count=1\\r\\nerrorstat_MY__ERR:count=1\\r\\n\
                errorstat_YYYYYYYYYYYYYYYYYYYYYYYYYYYYYY:count=1\\r\\n\"
            > CONFIG RESETSTAT                           < OK
            > INFO commandstats                          < \"# Commandstats\\r\\ncmdstat_*:calls=1,usec=*\"
        ",
        );
    }

    #[test]
    fn rewrite_without_a_file_is_refused() {
        check("> CONFIG REWRITE < -ERR The server is running without a config file");
        World::new()
            .check("> DEBUG CONFIG-REWRITE-FORCE-ALL < -ERR The server is running without a config file");
    }
}
