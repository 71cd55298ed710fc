//! Conversions between the table's values and the types of the fields.
//!
//! A row and its field are written together, so a type that does not fit is a mistake in the table and stops
//! the first test that touches it; no input reaches that panic.

use super::lists::cpus;
use super::value::{Value, Word};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

pub(super) trait Typed: Sized {
    fn of(value: &Value) -> Self;
    fn value(&self) -> Value;
}

#[track_caller]
fn misfit(value: &Value, wanted: &str) -> ! {
    panic!("the row holds {value:?}, but its field wants {wanted}")
}

impl Typed for bool {
    fn of(value: &Value) -> Self {
        match value {
            Value::Flag(on) => *on,
            other => misfit(other, "a flag"),
        }
    }

    fn value(&self) -> Value {
        Value::Flag(*self)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Typed for $number {
            fn of(value: &Value) -> Self {
                match value {
                    Value::Number(number) => {
                        (*number).try_into().expect("the row's range fits the field's type")
                    }
                    other => misfit(other, "a number"),
                }
            }

            fn value(&self) -> Value {
                Value::Number(i128::try_from(*self).expect("i128 holds every type in this list"))
            }
        }
    )*};
}
numbers!(u16, u32, u64, usize, i32, i64, i128);

impl Typed for Word {
    fn of(value: &Value) -> Self {
        match value {
            Value::Text(word) => word.clone(),
            other => misfit(other, "a text"),
        }
    }

    fn value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl Typed for PathBuf {
    fn of(value: &Value) -> Self {
        PathBuf::from(OsString::from_vec(Word::of(value)))
    }

    fn value(&self) -> Value {
        Value::Text(self.as_os_str().as_bytes().to_vec())
    }
}

/// The empty text stands for `None`.
impl Typed for Option<PathBuf> {
    fn of(value: &Value) -> Self {
        Some(PathBuf::of(value)).filter(|path| !path.as_os_str().is_empty())
    }

    fn value(&self) -> Value {
        Value::Text(self.as_deref().map_or(OsStr::new(""), |path| path.as_os_str()).as_bytes().to_vec())
    }
}

/// A file to be loaded at the start, whose path may be relative to `dir`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preload {
    /// A snapshot.
    Snapshot(PathBuf),
    /// The manifest of append-only files in its folder.
    Manifest(PathBuf),
}

impl Typed for Option<Preload> {
    fn of(value: &Value) -> Self {
        let word = Word::of(value);
        let path = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path));
        match (word.strip_prefix(b"rdb:"), word.strip_prefix(b"aof:")) {
            (Some(file), _) => Some(Preload::Snapshot(path(file))),
            (_, Some(file)) => Some(Preload::Manifest(path(file))),
            (None, None) => None,
        }
    }

    fn value(&self) -> Value {
        let (kind, path) = match self {
            Some(Preload::Snapshot(path)) => (&b"rdb:"[..], path),
            Some(Preload::Manifest(path)) => (&b"aof:"[..], path),
            None => return Value::Text(Word::new()),
        };
        Value::Text([kind, path.as_os_str().as_bytes()].concat())
    }
}

impl Typed for Vec<f64> {
    fn of(value: &Value) -> Self {
        match value {
            Value::Decimals(decimals) => decimals.clone(),
            other => misfit(other, "decimals"),
        }
    }

    fn value(&self) -> Value {
        Value::Decimals(self.clone())
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// A name or number; `*` is every IPv4 address, `::*` every IPv6 address.
    pub address: String,
    /// Written with a leading `-`: a missing address is no error.
    pub optional: bool,
}

impl Typed for Vec<Bind> {
    fn of(value: &Value) -> Self {
        let Value::Words(words) = value else { misfit(value, "words") };
        let bind = |word: &Word| {
            let word = String::from_utf8_lossy(word);
            match word.strip_prefix('-') {
                Some(address) => Bind { address: address.to_owned(), optional: true },
                None => Bind { address: word.into_owned(), optional: false },
            }
        };
        words.iter().map(bind).collect()
    }

    fn value(&self) -> Value {
        let word =
            |bind: &Bind| format!("{}{}", if bind.optional { "-" } else { "" }, bind.address).into_bytes();
        Value::Words(self.iter().map(word).collect())
    }
}

/// A snapshot is due when this many keys have changed and this many seconds have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoint {
    pub seconds: u64,
    pub changes: u64,
}

/// For a primary, a replica, and a process that saves.
impl Typed for [i64; 3] {
    fn of(value: &Value) -> Self {
        let Value::Numbers(numbers) = value else { misfit(value, "numbers") };
        numbers.as_slice().try_into().expect("the list has checked how many there are")
    }

    fn value(&self) -> Value {
        Value::Numbers(self.to_vec())
    }
}

/// How to end: the options of SHUTDOWN, or the configuration for a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownOptions {
    /// Whether to take a snapshot; `None`: if there are save points.
    pub save: Option<bool>,
    /// Whether to end without waiting for replicas.
    pub now: bool,
    /// Whether to end even if the snapshot fails.
    pub force: bool,
    /// Not while this node serves slots that no other node could take over, unless `force` is set.
    pub safe: bool,
    /// Without effect: an orderly end hands the shard over in any case.
    pub failover: bool,
}

impl Typed for ShutdownOptions {
    fn of(value: &Value) -> Self {
        let Value::Words(words) = value else { misfit(value, "words") };
        let has = |word: &str| words.iter().any(|other| other == word.as_bytes());
        let save = has("save").then_some(true).or_else(|| has("nosave").then_some(false));
        ShutdownOptions {
            save,
            now: has("now"),
            force: has("force"),
            safe: has("safe"),
            failover: has("failover"),
        }
    }

    fn value(&self) -> Value {
        let named = [
            ("save", self.save == Some(true)),
            ("nosave", self.save == Some(false)),
            ("now", self.now),
            ("force", self.force),
            ("safe", self.safe),
            ("failover", self.failover),
        ];
        let mut words: Vec<Word> =
            named.iter().filter(|(_, is)| *is).map(|(name, _)| name.as_bytes().to_vec()).collect();
        if words.is_empty() {
            words.push(b"default".to_vec());
        }
        Value::Words(words)
    }
}

impl Typed for Vec<SavePoint> {
    fn of(value: &Value) -> Self {
        let Value::Numbers(numbers) = value else { misfit(value, "numbers") };
        let point =
            |pair: &[i64]| SavePoint { seconds: pair[0].unsigned_abs(), changes: pair[1].unsigned_abs() };
        numbers.chunks_exact(2).map(point).collect()
    }

    fn value(&self) -> Value {
        let numbers = self.iter().flat_map(|point| [point.seconds, point.changes]);
        Value::Numbers(numbers.map(|n| n.try_into().expect("read from an i64")).collect())
    }
}

/// Bytes that may wait to be sent to a client before it is dropped; zero: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    pub hard_bytes: u64,
    /// The client is dropped after `soft_seconds` above this.
    pub soft_bytes: u64,
    pub soft_seconds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimits {
    pub normal: OutputLimit,
    pub replica: OutputLimit,
    pub pubsub: OutputLimit,
}

impl OutputLimits {
    /// Returns the limit of a client that is no replica.
    #[inline]
    pub fn of_client(&self, is_subscriber: bool) -> OutputLimit {
        if is_subscriber { self.pubsub } else { self.normal }
    }
}

impl Typed for OutputLimits {
    fn of(value: &Value) -> Self {
        let Value::Words(words) = value else { misfit(value, "words") };
        let number = |word: &Word| -> u64 {
            let text = std::str::from_utf8(word).ok();
            text.and_then(|text| text.parse().ok()).expect("the list holds numbers that were checked")
        };
        let limit = |group: &[Word]| OutputLimit {
            hard_bytes: number(&group[1]),
            soft_bytes: number(&group[2]),
            soft_seconds: number(&group[3]),
        };
        OutputLimits { normal: limit(&words[..4]), replica: limit(&words[4..8]), pubsub: limit(&words[8..]) }
    }

    fn value(&self) -> Value {
        let classes = [("normal", self.normal), ("slave", self.replica), ("pubsub", self.pubsub)];
        let words = classes.iter().flat_map(|(class, limit)| {
            let numbers = [limit.hard_bytes, limit.soft_bytes, limit.soft_seconds];
            std::iter::once((*class).to_owned()).chain(numbers.map(|number| number.to_string()))
        });
        Value::Words(words.map(String::into_bytes).collect())
    }
}

/// The server to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    pub host: String,
    pub port: u16,
}

/// No words stand for `None`.
impl Typed for Option<Primary> {
    fn of(value: &Value) -> Self {
        let Value::Words(words) = value else { misfit(value, "words") };
        let [host, port] = words.as_slice() else { return None };
        let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
        Some(Primary {
            host: String::from_utf8_lossy(host).into_owned(),
            port: port.expect("the list has checked it"),
        })
    }

    fn value(&self) -> Value {
        let words = |primary: &Primary| {
            vec![primary.host.clone().into_bytes(), primary.port.to_string().into_bytes()]
        };
        Value::Words(self.as_ref().map_or_else(Vec::new, words))
    }
}

/// Processors to which threads are bound, in the order in which workers take them; empty: the kernel decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus {
    pub list: Vec<usize>,
    written: Word,
}

impl Typed for Cpus {
    fn of(value: &Value) -> Self {
        let written = Word::of(value);
        Cpus { list: cpus(&written).expect("the row's check has read it"), written }
    }

    fn value(&self) -> Value {
        Value::Text(self.written.clone())
    }
}

/// What a reply to a write waits for, at other servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteAcks {
    /// So many replicas have the write.
    pub count: u8,
    /// All nodes of the cluster have it that may become the primary of the shard.
    pub in_sync: bool,
}

impl WriteAcks {
    /// The highest count.
    pub const COUNT_MAX: u8 = 16;

    const IN_SYNC: &[u8] = b"in-sync";

    /// Parses a count, or `in-sync`.
    pub fn parse(word: &[u8]) -> Option<WriteAcks> {
        if word.eq_ignore_ascii_case(WriteAcks::IN_SYNC) {
            return Some(WriteAcks { count: 0, in_sync: true });
        }
        let count = std::str::from_utf8(word).ok()?.parse().ok()?;
        (count <= WriteAcks::COUNT_MAX).then_some(WriteAcks { count, in_sync: false })
    }

    /// Whether replies wait for no replica.
    #[inline]
    pub fn is_none(self) -> bool {
        self == WriteAcks::default()
    }

    /// What satisfies both.
    #[inline]
    pub fn and(self, other: WriteAcks) -> WriteAcks {
        WriteAcks { count: self.count.max(other.count), in_sync: self.in_sync || other.in_sync }
    }
}

impl Typed for WriteAcks {
    fn of(value: &Value) -> Self {
        WriteAcks::parse(&Word::of(value)).expect("the row's check has read it")
    }

    fn value(&self) -> Value {
        let word =
            if self.in_sync { WriteAcks::IN_SYNC.to_vec() } else { self.count.to_string().into_bytes() };
        Value::Text(word)
    }
}

/// Defines an enum whose variants are the words of a choice; the first is the value in an empty `Fields`.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident {
        $first:ident = $first_word:literal,
        $($variant:ident = $word:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            #[default]
            $first,
            $($variant,)*
        }

        impl $name {
            pub(super) const NAMES: &'static [&'static str] = &[$first_word, $($word,)*];

            /// Returns the directive's word.
            pub fn name(self) -> &'static str {
                match self {
                    $name::$first => $first_word,
                    $($name::$variant => $word,)*
                }
            }
        }

        impl Typed for $name {
            fn of(value: &Value) -> Self {
                match value {
                    Value::Choice($first_word) => $name::$first,
                    $(Value::Choice($word) => $name::$variant,)*
                    other => misfit(other, stringify!($name)),
                }
            }

            fn value(&self) -> Value {
                Value::Choice(self.name())
            }
        }
    };
}

choices! {
    /// The form of the server log's lines.
    LogFormat {
        Legacy = "legacy",
        Logfmt = "logfmt",
        Json = "json",
    }
}

choices! {
    /// The form of the times in the server log.
    LogTimes {
        Legacy = "legacy",
        Iso8601 = "iso8601",
        Milliseconds = "milliseconds",
    }
}

choices! {
    /// The service manager that is notified of start and stop.
    Supervised {
        Upstart = "upstart",
        Systemd = "systemd",
        Auto = "auto",
        No = "no",
    }
}

choices! {
    /// The channels that a new user may use.
    ChannelsOfNew {
        All = "allchannels",
        None = "resetchannels",
    }
}

choices! {
    /// The address of a node that clients of a cluster get first.
    EndpointType {
        Ip = "ip",
        HostName = "hostname",
        Unknown = "unknown-endpoint",
    }
}

choices! {
    /// The keys that are evicted when memory is full.
    Policy {
        VolatileLru = "volatile-lru",
        VolatileLfu = "volatile-lfu",
        VolatileRandom = "volatile-random",
        VolatileTtl = "volatile-ttl",
        VolatileLrm = "volatile-lrm",
        AllkeysLru = "allkeys-lru",
        AllkeysLfu = "allkeys-lfu",
        AllkeysRandom = "allkeys-random",
        AllkeysLrm = "allkeys-lrm",
        NoEviction = "noeviction",
    }
}

choices! {
    /// From the most lines to none.
    LogLevel {
        Debug = "debug",
        Verbose = "verbose",
        Notice = "notice",
        Warning = "warning",
        Nothing = "nothing",
    }
}

choices! {
    /// Whether and how the kernel's OOM score of this process is set.
    OomScore {
        No = "no",
        Yes = "yes",
        Relative = "relative",
        Absolute = "absolute",
    }
}

choices! {
    /// The facility of lines in syslog.
    Facility {
        User = "user",
        Local0 = "local0",
        Local1 = "local1",
        Local2 = "local2",
        Local3 = "local3",
        Local4 = "local4",
        Local5 = "local5",
        Local6 = "local6",
        Local7 = "local7",
    }
}

impl Facility {
    /// Returns the C library's value.
    pub fn code(self) -> i32 {
        match self {
            Facility::User => libc::LOG_USER,
            Facility::Local0 => libc::LOG_LOCAL0,
            Facility::Local1 => libc::LOG_LOCAL1,
            Facility::Local2 => libc::LOG_LOCAL2,
            Facility::Local3 => libc::LOG_LOCAL3,
            Facility::Local4 => libc::LOG_LOCAL4,
            Facility::Local5 => libc::LOG_LOCAL5,
            Facility::Local6 => libc::LOG_LOCAL6,
            Facility::Local7 => libc::LOG_LOCAL7,
        }
    }
}

choices! {
    /// When the append-only file is made durable.
    Fsync {
        EverySecond = "everysec",
        Always = "always",
        Never = "no",
    }
}

choices! {
    /// How a replica takes over its primary's data.
    DisklessLoad {
        Disabled = "disabled",
        OnEmptyDb = "on-empty-db",
        SwapDb = "swapdb",
        FlushBeforeLoad = "flush-before-load",
    }
}

choices! {
    /// The versions of the RDB format that are read.
    VersionCheck {
        Strict = "strict",
        Relaxed = "relaxed",
    }
}

choices! {
    /// The clients that may use a potentially harmful command.
    Permit {
        Nobody = "no",
        Everybody = "yes",
        Local = "local",
    }
}

choices! {
    /// Whether clients have to present a certificate.
    AuthClients {
        No = "no",
        Yes = "yes",
        Optional = "optional",
    }
}

choices! {
    /// The field of a client's certificate that names its user.
    CertifiedUser {
        Off = "off",
        Cn = "CN",
        Uri = "URI",
    }
}
