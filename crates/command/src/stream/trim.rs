//! Trimming: MAXLEN and MINID of XADD and XTRIM remove entries at a stream's start.
//!
//! An approximate trim takes whole pages of the tree, as Redis takes whole nodes, and no more than its limit;
//! an exact trim takes all entries beyond the threshold. Either is a cut through the tree, whatever its size.
//! The policy for entries that groups have not acknowledged costs a look at each such entry.

use evenkeel_store::collection::Cut;
use evenkeel_store::collection::stream::{Stream, StreamId};

use super::id;
use crate::error::Error;
use crate::{Args, Call};
use evenkeel_config::Settings;

/// The policy for references to a deleted entry, in the groups' lists of pending entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Refs {
    /// They stay.
    #[default]
    Keep,
    /// They go with the entry.
    Delete,
    /// The entry stays until every group has got and acknowledged it.
    Acked,
}

impl Refs {
    pub(super) fn parse(word: &[u8]) -> Option<Refs> {
        match word {
            b"KEEPREF" => Some(Refs::Keep),
            b"DELREF" => Some(Refs::Delete),
            b"ACKED" => Some(Refs::Acked),
            _ => None,
        }
    }
}

/// Which entries are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threshold {
    /// The first, so that no more than this are left.
    MaxLen(u64),
    /// All before this ID.
    MinId(StreamId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trim {
    threshold: Threshold,
    /// Whole pages, and no more than so many entries.
    approximately: Option<u64>,
    refs: Refs,
}

/// The outcome of a trim.
#[derive(Default)]
pub(super) struct Trimmed {
    /// Number of removed entries.
    pub(super) count: u64,
    /// Memory to be freed.
    pub(super) cut: Cut,
    pub(super) effect: Effect,
}

/// The outcome for the journal: an approximate trim depends on where pages end, which differs between
/// servers.
#[derive(Default)]
pub(super) enum Effect {
    #[default]
    Nothing,
    /// Only the last `len` entries are left; with DELREF the groups have forgotten the rest.
    CutTo { len: u64, forgets: bool },
    /// These were deleted.
    Deleted(Vec<StreamId>),
}

impl Effect {
    /// Returns the options for an XADD or XTRIM that trims exactly as much.
    pub(super) fn words(&self) -> Vec<Vec<u8>> {
        let Effect::CutTo { len, forgets } = self else { return Vec::new() };
        let refs = forgets.then(|| b"DELREF".to_vec());
        let trim = [b"MAXLEN".to_vec(), b"=".to_vec(), len.to_string().into_bytes()];
        refs.into_iter().chain(trim).collect()
    }

    /// Logs the entries that XADD or XTRIM has deleted individually.
    pub(super) fn log_deleted(&self, call: &mut Call<'_, '_>, key: &[u8]) {
        if let Effect::Deleted(ids) = self {
            call.log_each(&[b"XDEL", key], 1, ids.iter().map(StreamId::to_string));
        }
    }
}

/// Options of XADD and XTRIM, as far as they are parsed.
#[derive(Default)]
pub(super) struct TrimOptions {
    threshold: Option<Threshold>,
    approximate: bool,
    limit: Option<u64>,
    refs: Option<Refs>,
}

impl TrimOptions {
    /// Parses the option at `at`, if it is among these; returns the index of the next argument.
    pub(super) fn read(&mut self, args: &Args<'_>, at: usize) -> Result<Option<usize>, Error> {
        let word = args.word(at);
        let has_value = at + 1 < args.len();
        match word.as_bytes() {
            b"MAXLEN" | b"MINID" if has_value => {
                let value = self.begin(args, at)?;
                self.threshold = Some(match word.as_bytes() {
                    b"MAXLEN" => Threshold::MaxLen(not_negative(args, value, "MAXLEN")?),
                    _ => Threshold::MinId(id::strict(args.at(value), 0)?),
                });
                Ok(Some(value + 1))
            }
            b"LIMIT" if has_value => {
                self.limit = Some(not_negative(args, at + 1, "LIMIT")?);
                Ok(Some(at + 2))
            }
            word => match Refs::parse(word) {
                Some(refs) if self.refs.is_none() => {
                    self.refs = Some(refs);
                    Ok(Some(at + 1))
                }
                Some(_) => Err(Error::Syntax),
                None => Ok(None),
            },
        }
    }

    /// Returns the index of the threshold after MAXLEN or MINID at `at`.
    fn begin(&mut self, args: &Args<'_>, at: usize) -> Result<usize, Error> {
        if self.threshold.is_some() {
            return Err(Error::text(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ));
        }
        let sign = args.get(at + 1).filter(|_| at + 2 < args.len());
        self.approximate = sign == Some(b"~");
        Ok(at + 1 + usize::from(self.approximate || sign == Some(b"=")))
    }

    /// Evaluates the options; `None` if nothing is to be trimmed. Redis' journal has the exact outcome of an
    /// approximate trim, and keeps the client's LIMIT, which a replay ignores.
    pub(super) fn finish(self, settings: &Settings, is_replay: bool) -> Result<Option<Trim>, Error> {
        /// Most entries that go without a LIMIT, if the node's number of entries is not limited.
        const LIMIT_UNLIMITED: u64 = 10_000;
        const LIMIT_MAX: u64 = 1_000_000;
        let Some(threshold) = self.threshold else {
            return match self.limit {
                Some(1..) => Err(Error::text(
                    "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
                )),
                _ => Ok(None),
            };
        };
        if self.limit.is_some() && !self.approximate && !is_replay {
            return Err(Error::text("ERR syntax error, LIMIT cannot be used without the special ~ option"));
        }
        let limit = match (self.limit, settings.stream_node_max_entries as u64) {
            (Some(0), _) => u64::MAX,
            (Some(limit), _) => limit,
            (None, 0) => LIMIT_UNLIMITED,
            (None, entries) => entries.saturating_mul(100).min(LIMIT_MAX),
        };
        let refs = self.refs.unwrap_or_default();
        Ok(Some(Trim { threshold, approximately: self.approximate.then_some(limit), refs }))
    }
}

fn not_negative(args: &Args<'_>, at: usize, name: &str) -> Result<u64, Error> {
    u64::try_from(args.int(at)?).map_err(|_| Error::text(format!("ERR The {name} argument must be >= 0.")))
}

impl Trim {
    /// Trims the stream.
    pub(super) fn apply(&self, stream: &mut Stream) -> Trimmed {
        let entries = stream.entries();
        let beyond = match self.threshold {
            Threshold::MaxLen(max) => entries.len().saturating_sub(max),
            Threshold::MinId(id) => entries.position(id),
        };
        let first = match self.approximately {
            Some(limit) => entries.whole_pages(beyond.min(limit)),
            None => beyond,
        };
        if first == 0 {
            return Trimmed::default();
        }
        match self.refs {
            Refs::Keep => cut_off(stream, first, false),
            Refs::Delete => {
                stream.forget_first(first);
                cut_off(stream, first, true)
            }
            Refs::Acked => {
                let most = matches!(self.threshold, Threshold::MaxLen(_)).then_some(first);
                let deleted = self.trim_acknowledged(stream, first, most);
                let count = deleted.len() as u64;
                Trimmed { count, cut: Cut::default(), effect: Effect::Deleted(deleted) }
            }
        }
    }

    /// Deletes unreferenced entries: among the first `first`, or, for an exact MAXLEN, up to `most` wherever
    /// they are.
    fn trim_acknowledged(&self, stream: &mut Stream, first: u64, most: Option<u64>) -> Vec<StreamId> {
        let among = match most {
            Some(_) if self.approximately.is_none() => stream.len(),
            _ => first,
        };
        let free: Vec<StreamId> = stream.unreferenced(among).take(first as usize).collect();
        free.iter().for_each(|id| _ = stream.delete(*id));
        free
    }
}

fn cut_off(stream: &mut Stream, first: u64, forgets: bool) -> Trimmed {
    let cut = stream.trim(first);
    Trimmed { count: first, cut, effect: Effect::CutTo { len: stream.len(), forgets } }
}
