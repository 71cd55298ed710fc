//! ARGREP: the values in a range that fulfil one or all of several predicates.

use evenkeel_runtime::glob;
use evenkeel_store::collection::Array;

use super::index_of;
use super::range::{Span, limit, reply_pair};
use super::regex::Regex;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Args, Call};

const PREDICATES_MAX: usize = 250;
const REGEX_LEN_MAX: usize = 2048;

/// An end of the range.
#[derive(Clone, Copy)]
enum End {
    /// `-`
    First,
    /// `+`
    Last,
    At(u64),
}

impl End {
    fn parse(text: &[u8]) -> Result<End, Error> {
        match text {
            b"-" => Ok(End::First),
            b"+" => Ok(End::Last),
            text => index_of(text).map(End::At),
        }
    }

    fn index(self, array: &Array) -> u64 {
        match self {
            End::First => 0,
            End::Last => array.len() - 1,
            End::At(index) => index,
        }
    }
}

enum Predicate {
    Exact(Vec<u8>),
    Match(Vec<u8>),
    Glob(Vec<u8>),
    Regex(Regex),
}

impl Predicate {
    fn fits(&self, value: &[u8], ignore_case: bool) -> bool {
        match self {
            Predicate::Exact(text) if ignore_case => value.eq_ignore_ascii_case(text),
            Predicate::Exact(text) => value == text,
            Predicate::Match(text) if ignore_case => contains_in_any_case(value, text),
            Predicate::Match(text) => memchr::memmem::find(value, text).is_some(),
            Predicate::Glob(pattern) => glob::matches(pattern, value, ignore_case),
            Predicate::Regex(regex) => regex.is_match(value),
        }
    }

    /// The length of a regular expression, to which the time per byte of a value may be in proportion.
    fn steps(&self) -> usize {
        match self {
            Predicate::Regex(regex) => regex.len(),
            _ => 1,
        }
    }
}

fn contains_in_any_case(value: &[u8], text: &[u8]) -> bool {
    let Some(first) = text.first() else { return true };
    let Some(last) = value.len().checked_sub(text.len()) else { return false };
    let starts = memchr::memchr2_iter(first.to_ascii_lowercase(), first.to_ascii_uppercase(), value);
    starts.take_while(|at| *at <= last).any(|at| value[at..at + text.len()].eq_ignore_ascii_case(text))
}

/// The predicates and options, which may come in any order.
struct Query {
    predicates: Vec<Predicate>,
    all: bool,
    limit: u64,
    with_values: bool,
    ignore_case: bool,
}

impl Query {
    fn parse(args: &Args<'_>, first: usize) -> Result<Query, Error> {
        let mut query = Query {
            predicates: Vec::new(),
            all: false,
            limit: u64::MAX,
            with_values: false,
            ignore_case: false,
        };
        // Case is known once all arguments are read.
        let (mut found, mut at) = (Vec::new(), first);
        while at < args.len() {
            let word = args.word(at);
            match word.as_bytes() {
                kind @ (b"EXACT" | b"MATCH" | b"GLOB" | b"RE") => {
                    let text = args.get(at + 1).ok_or(Error::Syntax)?;
                    if found.len() == PREDICATES_MAX {
                        let max = format!("ERR too many predicates, maximum is {PREDICATES_MAX}");
                        return Err(Error::text(max));
                    }
                    if kind == b"RE" && text.len() > REGEX_LEN_MAX {
                        return Err(Error::text(format!(
                            "ERR regular expression is too long, maximum is {REGEX_LEN_MAX} bytes"
                        )));
                    }
                    found.push((kind.to_vec(), text));
                    at += 1;
                }
                b"LIMIT" if at + 1 < args.len() => {
                    query.limit = limit(args, at + 1)?;
                    at += 1;
                }
                b"WITHVALUES" => query.with_values = true,
                b"NOCASE" => query.ignore_case = true,
                b"AND" => query.all = true,
                b"OR" => query.all = false,
                _ => return Err(Error::Syntax),
            }
            at += 1;
        }
        if found.is_empty() {
            return Err(Error::Syntax);
        }
        for (kind, text) in found {
            query.predicates.push(match &kind[..] {
                b"EXACT" => Predicate::Exact(text.to_vec()),
                b"MATCH" => Predicate::Match(text.to_vec()),
                b"GLOB" => Predicate::Glob(text.to_vec()),
                _ => Predicate::Regex(Regex::new(text, query.ignore_case)?),
            });
        }
        Ok(query)
    }

    fn fits(&self, value: &[u8]) -> bool {
        let mut each = self.predicates.iter().map(|predicate| predicate.fits(value, self.ignore_case));
        if self.all { each.all(|fits| fits) } else { each.any(|fits| fits) }
    }

    fn reply(&self, reply: &mut Reply, array: &Array, span: &Span) {
        let (mut found, mut count) = (Reply::default(), 0);
        found.resp3 = reply.resp3;
        span.walk(array, |at, index, value| {
            if self.fits(value) {
                if self.with_values {
                    reply_pair(&mut found, array, at, (index, value));
                } else {
                    found.uint(index);
                }
                count += 1;
            }
            (count as u64) < self.limit
        });
        reply.array(count);
        reply.append(found);
    }

    /// Whether a search through a range takes long: about as long as a walk over so many elements.
    fn work(&self, array: &Array, span: &Span) -> usize {
        /// Bytes that take as long to search as an element.
        const BYTES_PER_ELEMENT: usize = 32;
        /// Enough to be much in any case.
        const MUCH: usize = 1 << 20;
        let steps: usize = self.predicates.iter().map(Predicate::steps).sum();
        let mut work = 0_usize;
        span.walk(array, |_, _, value| {
            work += steps + value.len().saturating_mul(steps) / BYTES_PER_ELEMENT;
            work < MUCH
        });
        work
    }
}

/// ARGREP key start end <EXACT string | MATCH string | GLOB pattern | RE pattern> ...
/// [AND | OR | LIMIT limit | WITHVALUES | NOCASE ...]
pub(super) fn argrep(call: &mut Call<'_, '_>) -> Done {
    let (start, end) = (End::parse(call.args.at(2))?, End::parse(call.args.at(3))?);
    let query = Query::parse(&call.args, 4)?;
    let array = call.guard.collection::<Array>(&call.keys[0])?.map(|array| Array::clone(&array));
    let Some(array) = array else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let span = Span::of(start.index(&array), end.index(&array));
    if call.is_worth_offloading(query.work(&array, &span)) {
        return call.offload_reply(move |reply| query.reply(reply, &array, &span));
    }
    query.reply(call.reply, &array, &span);
    Ok(Flow::Replied)
}
