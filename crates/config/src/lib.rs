//! The configuration: redis.conf, redis-server's command line, and CONFIG GET, SET and REWRITE.
//!
//! The table in `directives.rs` holds everything that is known about a directive; reading, checking, showing
//! and rewriting follow from its row. `Settings` is a value that never changes in place. CONFIG SET makes a
//! new value, so readers see a change of several directives completely or not at all, and need no lock.
//!
//! | file | |
//! |---|---|
//! | `directives.rs` | the table |
//! | `fields.rs`, `typed.rs` | the fields that the server reads, and their types |
//! | `value.rs`, `lists.rs` | words to values and back, with Redis' reasons for a refusal |
//! | `line.rs`, `file.rs`, `paths.rs` | lines, files, includes |
//! | `launch.rs` | the command line |
//! | `rewrite.rs` | CONFIG REWRITE |
//! | `reference.rs`, `summaries.rs` | the table in words, for the manual page and completions |
//! | `errors.rs`, `nearest.rs` | error texts, and the directive that a misspelt name probably means |
//!
//! Absent: the effect of a directive. This crate knows names and values. It depends on the patterns of
//! `runtime::glob`; the meaning of `user` lines is passed in ([`UserLines`]). The caller of `set` puts a
//! change into effect, and drops the new settings if it cannot.

mod directives;
mod errors;
mod fields;
mod file;
mod launch;
mod line;
mod lists;
mod nearest;
mod paths;
mod reference;
mod rewrite;
mod summaries;
#[cfg(test)]
mod testing;
mod typed;
mod value;

pub use errors::{Mistakes, SetError, cause};
pub use file::UserLines;
pub use launch::{Action, FLAGS, Flag, Launch, NoEffect, USAGE};
pub use line::{plain_or_quoted, quoted, split as split_words};
pub use lists::endpoints_of;
pub use reference::{DirectiveReference, reference};
#[cfg(fuzzing)]
pub use rewrite::fuzzing;
pub use rewrite::{ConfigFile, Extent, replace as replace_file};
pub use typed::{
    AuthClients, Bind, CertifiedUser, ChannelsOfNew, Cpus, DisklessLoad, EndpointType, Facility, Fsync,
    LogFormat, LogLevel, LogTimes, OomScore, OutputLimit, OutputLimits, Permit, Policy, Preload, Primary,
    SavePoint, ShutdownOptions, Supervised, VersionCheck, WriteAcks,
};
pub use value::{Word, memory_size};

use directives::{Change, Directive, find_setting, settings};
use evenkeel_runtime::glob;
use evenkeel_runtime::server_log::{LineFormat, Target, TimeFormat};
use fields::Fields;
use std::collections::BTreeMap;
use std::ops::Deref;
use value::{Before, Reason, Value};

/// The values of all directives: `settings.port` for a directive with a field, `get` for all.
#[derive(Clone, Debug)]
pub struct Settings {
    fields: Fields,
    /// Directives without a field that differ from their default.
    inert: BTreeMap<&'static str, Value>,
}

impl Deref for Settings {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.fields
    }
}

/// All defaults; `dir` is `.` until a start makes it absolute.
impl Default for Settings {
    fn default() -> Self {
        let mut new = Settings { fields: Fields::default(), inert: BTreeMap::new() };
        for row in settings().filter(|row| row.field().is_some()) {
            new.put(row, row.default_value());
        }
        new
    }
}

impl Settings {
    /// Returns the forms of the server log's lines and of their times.
    pub fn log_format(&self) -> (LineFormat, TimeFormat) {
        let lines = match self.log_format {
            LogFormat::Legacy => LineFormat::Legacy,
            LogFormat::Logfmt => LineFormat::Logfmt,
            LogFormat::Json => LineFormat::Json,
        };
        let times = match self.log_timestamp_format {
            LogTimes::Legacy => TimeFormat::Legacy,
            LogTimes::Iso8601 => TimeFormat::Iso8601,
            LogTimes::Milliseconds => TimeFormat::Milliseconds,
        };
        (lines, times)
    }

    /// Returns the destinations of the server log.
    pub fn log_target(&self) -> Target {
        let ident = || String::from_utf8_lossy(&self.syslog_ident).into_owned();
        Target {
            file: self.logfile.clone(),
            syslog: self.syslog_enabled.then(|| (ident(), self.syslog_facility.code())),
        }
    }

    /// CONFIG GET: returns names and values that match any of the patterns, sorted by name, each name once.
    ///
    /// A full name is shown as the client has spelt it, and finds hidden directives too. An alias is a name
    /// of its own.
    pub fn get(&self, patterns: &[&[u8]]) -> Vec<(Word, Word)> {
        let mut found: BTreeMap<Word, (Word, Word)> = BTreeMap::new();
        for pattern in patterns {
            if !glob::is_pattern(pattern) {
                if let Some(row) = find_setting(pattern) {
                    found.insert(pattern.to_ascii_lowercase(), (pattern.to_vec(), self.show(row)));
                }
                continue;
            }
            for row in settings().filter(|row| !row.hidden) {
                for name in row.names().map(str::as_bytes).filter(|name| glob::matches(pattern, name, true)) {
                    found.entry(name.to_vec()).or_insert_with(|| (name.to_vec(), self.show(row)));
                }
            }
        }
        found.into_values().collect()
    }

    /// CONFIG SET of all pairs or none: returns the new settings, and the directives that differ from now.
    ///
    /// This alone changes nothing. If the caller cannot put a change into effect, it replies with
    /// `SetError::failed` and keeps its settings. `local`: the client is on this machine, a condition of
    /// `enable-protected-configs local`.
    pub fn set(
        &self,
        pairs: &[(&[u8], &[u8])],
        local: bool,
    ) -> Result<(Settings, Vec<&'static str>), SetError> {
        for (index, (name, word)) in pairs.iter().enumerate() {
            let again = pairs[..index].iter().any(|(earlier, _)| earlier.eq_ignore_ascii_case(name));
            self.check_change(name, word, again, local)?;
        }
        let mut new = self.clone();
        for (name, word) in pairs {
            let row = find_setting(name).expect("checked above");
            let before = new.value(row);
            let value = row.parse(&[word.to_vec()], Before { value: Some(&before), repeated: false });
            let failed = |reason| failed(&name.to_ascii_lowercase(), reason);
            new.put(row, value.map_err(failed)?);
        }
        if new.write_acks.in_sync && new.cluster_store.is_empty() {
            return Err(SetError::failed("write-acks", "in-sync needs cluster-store"));
        }
        let changed =
            settings().filter(|row| new.value(row) != self.value(row)).map(|row| row.name).collect();
        Ok((new, changed))
    }

    /// Returns all directives that have a value, for a process that is to have the same settings.
    pub fn transfer(&self) -> Vec<Transferred> {
        let transferred = |row: &'static Directive| {
            let value = self.value(row);
            let is_default = value == row.default_value();
            Transferred { name: row.name.to_owned(), value: self.show(row), is_default }
        };
        settings().map(transferred).collect()
    }

    /// Returns these settings with the values of another process, also of directives that CONFIG SET cannot
    /// change.
    ///
    /// # Errors
    /// A directive is unknown here and has not its default there, or its value is not valid here.
    pub fn with_transferred(&self, all: &[Transferred]) -> Result<Settings, String> {
        let mut new = self.clone();
        for Transferred { name, value, is_default } in all {
            let Some(row) = find_setting(name.as_bytes()) else {
                if *is_default {
                    continue;
                }
                return Err(format!("this program does not know the directive '{name}', which is in use"));
            };
            let before = new.value(row);
            if row.kind.show(&before) == *value {
                continue;
            }
            let parsed =
                row.parse(std::slice::from_ref(value), Before { value: Some(&before), repeated: false });
            let value =
                parsed.map_err(|reason| format!("the value of '{name}' is not valid here: {reason}"))?;
            new.put(row, value);
        }
        Ok(new)
    }

    /// Returns the bytes that all clients together may take; zero: no limit. As in Redis, there is always
    /// room for a few clients.
    pub fn client_memory_max(&self) -> usize {
        /// With less, a client that connects to raise the limit would be evicted.
        const LEAST: usize = 128 * 1024;
        let bytes = match self.maxmemory_clients {
            percent @ ..0 => i128::from(self.maxmemory) * -percent / 100,
            bytes => bytes,
        };
        match usize::try_from(bytes).unwrap_or(usize::MAX) {
            0 => 0,
            bytes => bytes.max(LEAST),
        }
    }

    /// Returns the named directives that request an effect that the server lacks.
    pub fn in_vain(&self, names: &[&str]) -> impl Iterator<Item = NoEffect> {
        launch::without_effect(self, settings().filter(|row| names.contains(&row.name)))
    }

    /// Returns the settings of a process that is about to take over from another: it touches no file of the
    /// data, and follows the other process in memory alone.
    pub fn to_follow_in_memory(&self) -> Settings {
        let mut new = self.clone();
        new.fields.appendonly = false;
        new.fields.save = Vec::new();
        new.fields.replicaof = None;
        new.fields.repl_diskless_load = DisklessLoad::FlushBeforeLoad;
        new.fields.preload_file = None;
        new
    }

    /// Returns the settings with another primary.
    pub fn with_primary(&self, primary: Option<Primary>) -> Settings {
        let mut new = self.clone();
        new.fields.replicaof = primary;
        new
    }

    /// Returns the settings with another `maxclients`.
    pub fn with_maxclients(&self, clients: u32) -> Settings {
        let mut new = self.clone();
        new.fields.maxclients = clients;
        new
    }

    /// Returns the number of databases that clients can select.
    pub fn database_count(&self) -> usize {
        if self.cluster_enabled { self.cluster_databases } else { self.databases }
    }

    /// Returns the settings with other `user` lines.
    pub fn with_users(&self, users: Vec<Vec<Word>>) -> Settings {
        let mut new = self.clone();
        new.fields.users = users;
        new
    }

    /// Returns the settings with another `quicklist_packed_threshold`, which no directive sets.
    pub fn with_packed_threshold(&self, bytes: usize) -> Settings {
        let mut new = self.clone();
        new.fields.quicklist_packed_threshold = bytes;
        new
    }

    /// Returns the settings with another `skips_checksums`, which no directive sets.
    pub fn with_skipped_checksums(&self, skips: bool) -> Settings {
        let mut new = self.clone();
        new.fields.skips_checksums = skips;
        new
    }

    /// The versions of the RDB format that are read.
    pub fn rdb_versions(&self) -> evenkeel_rdb::Versions {
        match self.rdb_version_check {
            VersionCheck::Strict => evenkeel_rdb::Versions::Known,
            VersionCheck::Relaxed => evenkeel_rdb::Versions::Any,
        }
    }

    fn check_change(&self, name: &[u8], word: &[u8], again: bool, local: bool) -> Result<(), SetError> {
        let unknown = || SetError::Unknown { name: String::from_utf8_lossy(name).into_owned() };
        let row = find_setting(name).ok_or_else(unknown)?;
        let permitted = match self.enable_protected_configs {
            Permit::Everybody => true,
            Permit::Local => local,
            Permit::Nobody => false,
        };
        match row.change {
            // Setting the present value is allowed, so that all pairs of CONFIG GET can be set again.
            Change::Nobody if !again && self.show(row) == word => Ok(()),
            Change::Nobody => Err(failed(name, "can't set immutable config".into())),
            Change::Permitted if !permitted => Err(failed(name, "can't set protected config".into())),
            _ if again => Err(failed(name, "duplicate parameter".into())),
            _ => Ok(()),
        }
    }

    fn show(&self, row: &Directive) -> Word {
        row.kind.show(&self.value(row))
    }

    fn value(&self, row: &Directive) -> Value {
        match row.field() {
            Some(field) => (field.load)(&self.fields),
            None => self.inert.get(row.name).cloned().unwrap_or_else(|| row.default_value()),
        }
    }

    fn put(&mut self, row: &'static Directive, value: Value) {
        match row.field() {
            Some(field) => (field.store)(&mut self.fields, &value),
            None if value == row.default_value() => drop(self.inert.remove(row.name)),
            None => drop(self.inert.insert(row.name, value)),
        }
    }
}

/// A directive's value on its way to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transferred {
    pub name: String,
    pub value: Word,
    pub is_default: bool,
}

/// Whether the value of a directive must not appear in logs.
pub fn is_secret(name: &[u8]) -> bool {
    const SECRETS: [&str; 8] = [
        "cluster-store-password",
        "requirepass",
        "masterauth",
        "primaryauth",
        "masteruser",
        "primaryuser",
        "tls-key-file-pass",
        "tls-client-key-file-pass",
    ];
    SECRETS.iter().any(|secret| secret.as_bytes().eq_ignore_ascii_case(name))
}

fn failed(name: &[u8], reason: Reason) -> SetError {
    SetError::failed(&String::from_utf8_lossy(name), reason)
}

#[cfg(test)]
mod tests;
