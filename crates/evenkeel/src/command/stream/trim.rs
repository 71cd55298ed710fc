//! Trimming: what MAXLEN and MINID of XADD and XTRIM take off a stream's start.
//!
//! An approximate trim takes whole pages of the tree, as Redis takes whole nodes, and no more than its limit; an exact one
//! takes what is beyond the threshold. Either is a cut through the tree, whatever its size. What becomes of the entries
//! that groups have not acknowledged is the policy's affair, and takes a look at each of those.

use evenkeel_store::collection::Cut;
use evenkeel_store::collection::stream::{Stream, StreamId};

use super::super::Args;
use super::id;
use crate::config::Settings;
use crate::error::Error;

/// What becomes of references to an entry that is to be deleted, in the groups' lists of pending entries.
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

/// What is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threshold {
    /// The first ones, so that no more than this are left.
    MaxLen(u64),
    /// Those before this id.
    MinId(StreamId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trim {
    threshold: Threshold,
    /// Whole pages, and no more than so many entries.
    approximately: Option<u64>,
    refs: Refs,
}

/// Options of XADD and XTRIM, as far as they have been read.
#[derive(Default)]
pub(super) struct TrimOptions {
    threshold: Option<Threshold>,
    approximate: bool,
    limit: Option<u64>,
    refs: Option<Refs>,
}

impl TrimOptions {
    /// Reads the option at `at`, if it is one of these; returns the index of the next argument.
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

    /// After MAXLEN or MINID at `at`: where the threshold is.
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

    /// What they come to; `None`: nothing is to be trimmed.
    pub(super) fn finish(self, settings: &Settings) -> Result<Option<Trim>, Error> {
        /// Most entries that go where no limit was given, and the node's number of entries is not limited.
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
        if self.limit.is_some() && !self.approximate {
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
    /// Trims the stream; how many entries have gone, and what there is to be freed.
    pub(super) fn apply(&self, stream: &mut Stream) -> (u64, Cut) {
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
            return (0, Cut::default());
        }
        match self.refs {
            Refs::Keep => (first, stream.trim(first)),
            Refs::Delete => {
                stream.forget_first(first);
                (first, stream.trim(first))
            }
            Refs::Acked => {
                let most = matches!(self.threshold, Threshold::MaxLen(_)).then_some(first);
                (self.trim_acknowledged(stream, first, most), Cut::default())
            }
        }
    }

    /// Deletes entries that nobody refers to: of the first `first` ones, or, by number, so many wherever they are.
    fn trim_acknowledged(&self, stream: &mut Stream, first: u64, most: Option<u64>) -> u64 {
        let among = match most {
            Some(_) if self.approximately.is_none() => stream.len(),
            _ => first,
        };
        let free = stream.entries().range(0..among).map(|entry| entry.id);
        let free = free.filter(|id| !stream.is_referenced(*id)).take(first as usize);
        let free: Vec<StreamId> = free.collect();
        free.iter().for_each(|id| _ = stream.delete(*id));
        free.len() as u64
    }
}
