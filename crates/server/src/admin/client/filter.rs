//! The filters of CLIENT LIST and CLIENT KILL: for both, the filters of Redis 7.0 and of Valkey 9.1, each of
//! which can be negated (`NOT-USER`).
//!
//! All given filters must hold. The last of several filters of the same kind counts, but IDs are gathered.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_resp::number::parse_i64;

use super::{flags_of, one_of};
use crate::admin::ServerCall;
use evenkeel_client::clients::ClientInfo;
use evenkeel_command::Args;
use evenkeel_command::error::Error;

/// The use of a filter: a list includes the caller, a kill spares it by default.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    List,
    Kill,
}

/// See the module's text.
pub(super) struct Filter {
    conditions: Vec<Condition>,
    skip_caller: bool,
}

struct Condition {
    is_negated: bool,
    test: Test,
}

enum Test {
    Ids(BTreeSet<u64>),
    Type(Type),
    User(Vec<u8>),
    Address(Vec<u8>),
    LocalAddress(Vec<u8>),
    /// The address without the port.
    Ip(Vec<u8>),
    Name(Vec<u8>),
    LibName(Vec<u8>),
    LibVersion(Vec<u8>),
    /// All of these letters.
    Flags(Vec<u8>),
    Db(u32),
    /// In seconds, as below. It is never negated.
    AgeMin(u64),
    IdleMin(u64),
    /// CLIENT CAPA.
    Capable,
}

impl Filter {
    pub(super) fn parse(call: &ServerCall<'_, '_>, first: usize, purpose: Purpose) -> Result<Filter, Error> {
        let args = call.base.args;
        let mut filter = Filter { conditions: Vec::new(), skip_caller: purpose == Purpose::Kill };
        let mut at = first;
        while at < args.len() {
            let value = args.get(at + 1).ok_or(Error::Syntax)?;
            let mut used = 2;
            let word = args.word(at);
            let (is_negated, name) = match word.as_bytes().strip_prefix(b"NOT-") {
                Some(name) => (true, name),
                None => (false, word.as_bytes()),
            };
            let test = match name {
                b"SKIPME" if !is_negated => {
                    filter.skip_caller = one_of(args, at + 1, "YES", "NO")?;
                    at += used;
                    continue;
                }
                b"MAXAGE" if !is_negated => Test::AgeMin(seconds(value, "maxage")?),
                b"IDLE" if !is_negated => Test::IdleMin(seconds(value, "idle")?),
                b"ID" => {
                    let ids = ids(args, at + 1)?;
                    used = 1 + ids.len();
                    Test::Ids(ids.into_iter().collect())
                }
                b"TYPE" => Test::Type(Type::parse(value)?),
                b"USER" => Test::User(known_user(call, value)?),
                b"ADDR" => Test::Address(value.to_vec()),
                b"LADDR" => Test::LocalAddress(value.to_vec()),
                b"IP" => Test::Ip(value.to_vec()),
                b"NAME" => Test::Name(value.to_vec()),
                b"LIB-NAME" => Test::LibName(value.to_vec()),
                b"LIB-VER" => Test::LibVersion(value.to_vec()),
                b"FLAGS" => Test::Flags(known(value, b"AbBcCdeEGiIMNOPrRStTuUx", "flags")?),
                b"DB" => Test::Db(database(call, value)?),
                b"CAPA" => known(value, b"r", "capa").map(|_| Test::Capable)?,
                _ => return Err(Error::Syntax),
            };
            filter.add(Condition { is_negated, test });
            at += used;
        }
        Ok(filter)
    }

    fn add(&mut self, new: Condition) {
        let is_alike = |old: &&mut Condition| {
            old.is_negated == new.is_negated && discriminant(&old.test) == discriminant(&new.test)
        };
        match (self.conditions.iter_mut().find(is_alike), new) {
            (Some(Condition { test: Test::Ids(ids), .. }), Condition { test: Test::Ids(more), .. }) => {
                ids.extend(more);
            }
            (Some(old), new) => *old = new,
            (None, new) => self.conditions.push(new),
        }
    }

    pub(super) fn admits(&self, call: &ServerCall<'_, '_>, client: &ClientInfo) -> bool {
        let is_caller = client.id == call.session.client.id;
        let holds = |condition: &Condition| {
            condition.test.admits(client, is_caller, call.now_ms()) != condition.is_negated
        };
        self.conditions.iter().all(holds) && !(self.skip_caller && is_caller)
    }
}

impl Test {
    fn admits(&self, client: &ClientInfo, is_caller: bool, now_ms: u64) -> bool {
        let seconds_since = |ms: u64| now_ms.saturating_sub(ms) / 1000;
        match self {
            Test::Ids(ids) => ids.contains(&client.id),
            Test::Type(kind) => *kind == Type::of(client),
            Test::User(name) => client.user.lock().as_ref().is_some_and(|who| *who.name == **name),
            Test::Address(address) => client.address.as_bytes() == address,
            Test::LocalAddress(address) => client.local_address.as_bytes() == address,
            Test::Ip(ip) => {
                let host = client.address.rsplit_once(':').map_or("", |(host, _)| host);
                host.trim_start_matches('[').trim_end_matches(']').as_bytes() == ip
            }
            Test::Name(name) => *client.name.lock() == *name,
            Test::LibName(name) => *client.lib_name.lock() == *name,
            Test::LibVersion(version) => *client.lib_version.lock() == *version,
            Test::Flags(flags) => {
                let has = flags_of(client);
                flags.iter().all(|flag| has.as_bytes().contains(flag))
            }
            Test::Db(db) => client.db.load(Relaxed) == *db,
            Test::AgeMin(least) => seconds_since(client.created_ms) >= *least,
            Test::IdleMin(least) => !is_caller && seconds_since(client.active_ms.load(Relaxed)) >= *least,
            Test::Capable => client.redirects.load(Relaxed),
        }
    }
}

/// Parses IDs from `first` on, as many as there are.
fn ids(args: Args<'_>, first: usize) -> Result<Vec<u64>, Error> {
    let positive = |id: i64| u64::try_from(id).ok().filter(|id| *id > 0);
    let too_small = || Error::text("ERR client-id should be greater than 0");
    args.from(first).map_while(parse_i64).map(|id| positive(id).ok_or_else(too_small)).collect()
}

/// The type of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Normal,
    Master,
    Replica,
    PubSub,
}

impl Type {
    fn parse(word: &[u8]) -> Result<Type, Error> {
        const TYPES: [(&str, Type); 6] = [
            ("normal", Type::Normal),
            ("master", Type::Master),
            ("primary", Type::Master),
            ("replica", Type::Replica),
            ("slave", Type::Replica),
            ("pubsub", Type::PubSub),
        ];
        let found = TYPES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        found
            .map(|(_, kind)| *kind)
            .ok_or_else(|| Error::Bytes([b"ERR Unknown client type '", word, b"'"].concat()))
    }

    fn of(client: &ClientInfo) -> Type {
        match () {
            () if client.is_primary.load(Relaxed) => Type::Master,
            () if client.is_replica.load(Relaxed) => Type::Replica,
            () if client.is_subscriber() => Type::PubSub,
            () => Type::Normal,
        }
    }
}

fn known_user(call: &ServerCall<'_, '_>, name: &[u8]) -> Result<Vec<u8>, Error> {
    if call.server.acl.user(name).is_none() {
        return Err(Error::Bytes([b"ERR No such user '", name, b"'"].concat()));
    }
    Ok(name.to_vec())
}

/// Returns the letters if all are known.
fn known(letters: &[u8], all: &[u8], what: &str) -> Result<Vec<u8>, Error> {
    if letters.is_empty() || !letters.iter().all(|letter| all.contains(letter)) {
        let text = format!("ERR Unknown {what} found in the provided filter: ");
        return Err(Error::Bytes([text.as_bytes(), letters].concat()));
    }
    Ok(letters.to_vec())
}

fn database(call: &ServerCall<'_, '_>, number: &[u8]) -> Result<u32, Error> {
    let number = parse_i64(number).ok_or(Error::text("ERR DB is not an integer or out of range"))?;
    let last = call.server.core.keyspace.databases() - 1;
    let db = u32::try_from(number).ok().filter(|db| *db as usize <= last);
    db.ok_or_else(|| Error::text(format!("ERR DB number should be between 0 and {last}")))
}

fn seconds(number: &[u8], what: &str) -> Result<u64, Error> {
    let number = parse_i64(number);
    let number =
        number.ok_or_else(|| Error::text(format!("ERR {what} is not an integer or out of range")))?;
    let positive = u64::try_from(number).ok().filter(|number| *number > 0);
    positive.ok_or_else(|| Error::text(format!("ERR {what} should be greater than 0")))
}
