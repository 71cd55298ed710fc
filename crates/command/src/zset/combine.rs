//! Combinations of sorted sets: ZUNION, ZINTER, ZDIFF, their STORE forms, and ZINTERCARD.
//!
//! Sets are sources as well; their members have the score 1. The sources are cloned, and the result is a
//! function of the clones alone. As in Redis, unions and intersections begin with the smallest source: the
//! order of the additions shows in the last digits of the scores.

use evenkeel_resp::float;
use evenkeel_store::collection::set::Member;
use evenkeel_store::collection::{Gather, Set, ZSet};
use evenkeel_store::{Hasher, Kind, View};

use super::range::reply_members;
use super::{GATHER_UNITS, Limits, Made};
use crate::error::Error;
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Args, Call, Keys};

/// How several scores of a member become a single score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
    /// Counts the sources that have the member: each gives its weight, whatever the score.
    Count,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // Two infinities that cancel each other out are zero.
            Aggregate::Sum | Aggregate::Count if (a + b).is_nan() => 0.0,
            Aggregate::Sum | Aggregate::Count => a + b,
            Aggregate::Min => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            Aggregate::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Inter,
    Diff,
}

/// A value to combine.
enum Value {
    Sorted(ZSet),
    Plain(Set),
    Missing,
}

impl Value {
    fn len(&self) -> u64 {
        match self {
            Value::Sorted(zset) => zset.len(),
            Value::Plain(set) => set.len(),
            Value::Missing => 0,
        }
    }

    fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Sorted(this), Value::Sorted(other)) => this.is_same(other),
            (Value::Plain(this), Value::Plain(other)) => this.is_same(other),
            (Value::Missing, Value::Missing) => true,
            _ => false,
        }
    }

    fn discard(self, call: &mut Call<'_, '_>) {
        match self {
            Value::Sorted(zset) => call.guard.discard(zset),
            Value::Plain(set) => call.guard.discard(set),
            Value::Missing => {}
        }
    }

    fn score(&self, hasher: &Hasher, member: &[u8]) -> Option<f64> {
        match self {
            Value::Sorted(zset) => zset.score(hasher, member),
            Value::Plain(set) => set.contains(hasher, member).then_some(1.0),
            Value::Missing => None,
        }
    }

    fn for_each<'v>(&'v self, mut each: impl FnMut(Member<'v>, f64)) {
        self.try_for_each(|member, score| {
            each(member, score);
            true
        });
    }

    /// Calls `more` with members and scores until it returns false.
    fn try_for_each<'v>(&'v self, mut more: impl FnMut(Member<'v>, f64) -> bool) {
        match self {
            Value::Sorted(zset) => {
                zset.range(0..zset.len()).all(|(member, score)| more(member.into(), score));
            }
            Value::Plain(set) => _ = set.iter().all(|member| more(member, 1.0)),
            Value::Missing => {}
        }
    }
}

struct Source {
    value: Value,
    weight: f64,
}

impl Source {
    /// Returns what a member of this score contributes to its score in the result.
    fn weighted(&self, score: f64, aggregate: Aggregate) -> f64 {
        let score = self.product(score, aggregate);
        if score.is_nan() { 0.0 } else { score }
    }

    /// [`Source::weighted`], or no number if an infinite score has no weight.
    fn product(&self, score: f64, aggregate: Aggregate) -> f64 {
        if aggregate == Aggregate::Count { self.weight } else { self.weight * score }
    }
}

/// The request of a command.
struct Plan {
    operation: Operation,
    sources: Vec<Source>,
    aggregate: Aggregate,
    with_scores: bool,
}

/// Which options a command takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Reply,
    Store,
    Count,
}

impl Plan {
    /// Parses the arguments from the count of keys on, which is argument `counted`; the source keys are the
    /// keys from `first_key` on.
    fn parse(
        call: &mut Call<'_, '_>,
        operation: Operation,
        form: Form,
        counted: usize,
        first_key: usize,
    ) -> Result<(Plan, u64), Error> {
        let args = call.args;
        let sources = sources(call, counted, first_key)?;
        let mut plan = Plan { operation, sources, aggregate: Aggregate::Sum, with_scores: false };
        let (mut at, mut limit) = (counted + 1 + plan.sources.len(), 0);
        while at < args.len() {
            at = plan.parse_option(&args, at, form, &mut limit)?;
        }
        if operation != Operation::Diff {
            plan.sources.sort_by_key(|source| source.value.len());
        }
        Ok((plan, limit))
    }

    /// Parses the option at `at`; returns where the next begins.
    fn parse_option(
        &mut self,
        args: &Args<'_>,
        at: usize,
        form: Form,
        limit: &mut u64,
    ) -> Result<usize, Error> {
        let (left, combines) = (args.len() - at, self.operation != Operation::Diff && form != Form::Count);
        match args.word(at).as_bytes() {
            b"WEIGHTS" if combines && left > self.sources.len() => {
                for (source, weight) in self.sources.iter_mut().zip(args.from(at + 1)) {
                    source.weight =
                        float::parse(weight).ok_or(Error::text("ERR weight value is not a float"))?;
                }
                Ok(at + 1 + self.sources.len())
            }
            b"AGGREGATE" if combines && left >= 2 => {
                self.aggregate = match args.word(at + 1).as_bytes() {
                    b"SUM" => Aggregate::Sum,
                    b"MIN" => Aggregate::Min,
                    b"MAX" => Aggregate::Max,
                    b"COUNT" => Aggregate::Count,
                    _ => return Err(Error::Syntax),
                };
                Ok(at + 2)
            }
            b"WITHSCORES" if form == Form::Reply => {
                self.with_scores = true;
                Ok(at + 1)
            }
            b"LIMIT" if form == Form::Count && left >= 2 => {
                let given = args.int(at + 1).ok().and_then(|limit| u64::try_from(limit).ok());
                *limit = given.ok_or(Error::text("ERR LIMIT can't be negative"))?;
                Ok(at + 2)
            }
            _ => Err(Error::Syntax),
        }
    }

    /// Returns the amount of work, in the units of [`Call::is_worth_offloading`].
    fn units(&self) -> usize {
        /// The cost of looking a member up in another source.
        const LOOK_UP_UNITS: u64 = 8;
        let lens = || self.sources.iter().map(|source| source.value.len());
        let look_ups = match self.operation {
            Operation::Union => 0,
            Operation::Inter | Operation::Diff => {
                lens().next().unwrap_or(0).saturating_mul(self.sources.len() as u64 - 1)
            }
        };
        let gathered = match self.operation {
            Operation::Union => lens().fold(0, u64::saturating_add),
            Operation::Inter | Operation::Diff => lens().next().unwrap_or(0),
        };
        let units = look_ups.saturating_mul(LOOK_UP_UNITS);
        usize::try_from(units.saturating_add(gathered.saturating_mul(GATHER_UNITS as u64)))
            .unwrap_or(usize::MAX)
    }

    fn reply(&self, hasher: &Hasher, reply: &mut Reply) {
        let members = self.gather(hasher).merge(|a, b| self.aggregate.of(a, b));
        reply_members(reply, members.in_order(), self.with_scores);
    }

    fn make(&self, hasher: &Hasher, limits: Limits) -> Made {
        Made::of(self.gather(hasher).merge(|a, b| self.aggregate.of(a, b)), limits)
    }

    /// Gathers all members with their scores; those of a union possibly more than once.
    fn gather<'p>(&'p self, hasher: &'p Hasher) -> Gather<'p> {
        let (mut gather, aggregate) = (Gather::new(hasher), self.aggregate);
        let (first, others) = self.sources.split_first().expect("one source at least");
        match self.operation {
            Operation::Union => {
                for source in &self.sources {
                    source
                        .value
                        .for_each(|member, score| gather.push(member, source.weighted(score, aggregate)));
                    gather.settle(|a, b| aggregate.of(a, b));
                }
            }
            Operation::Inter => first.value.for_each(|member, score| {
                let score = others.iter().try_fold(first.weighted(score, aggregate), |sum, other| {
                    let score = other.value.score(hasher, &member)?;
                    Some(aggregate.of(sum, other.product(score, aggregate)))
                });
                if let Some(score) = score {
                    gather.push(member, score);
                }
            }),
            Operation::Diff => first.value.for_each(|member, score| {
                if !others.iter().any(|other| other.value.score(hasher, &member).is_some()) {
                    gather.push(member, score);
                }
            }),
        }
        gather
    }

    /// Counts the members common to all sources, up to `limit` unless that is zero.
    fn count(&self, hasher: &Hasher, limit: u64) -> u64 {
        let (first, others) = self.sources.split_first().expect("one source at least");
        let mut count = 0;
        first.value.try_for_each(|member, _| {
            count += u64::from(others.iter().all(|other| other.value.score(hasher, &member).is_some()));
            limit == 0 || count < limit
        });
        count
    }
}

/// Clones the values at the keys that are counted at argument `counted`.
fn sources(call: &mut Call<'_, '_>, counted: usize, first_key: usize) -> Result<Vec<Source>, Error> {
    let count = call.args.int(counted)?;
    if count < 1 {
        let name = call.name().to_ascii_lowercase();
        return Err(Error::text(format!("ERR at least 1 input key is needed for '{name}' command")));
    }
    if count > (call.args.len() - counted - 1) as i64 {
        return Err(Error::Syntax);
    }
    let keys = call.keys[first_key..].iter();
    keys.map(|key| Ok(Source { value: value_of(call.guard.read(key))?, weight: 1.0 })).collect()
}

/// Clones the value at a key.
fn value_of(view: Option<View<'_>>) -> Result<Value, Error> {
    let Some(view) = view else { return Ok(Value::Missing) };
    match view.kind() {
        Kind::ZSet => Ok(Value::Sorted(ZSet::clone(&view.collection()))),
        Kind::Set => Ok(Value::Plain(Set::clone(&view.collection()))),
        _ => Err(Error::WrongType),
    }
}

/// ZUNION numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]
/// [WITHSCORES]
pub(super) fn zunion(call: &mut Call<'_, '_>) -> Done {
    reply(call, Operation::Union)
}

/// ZINTER numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]
/// [WITHSCORES]
pub(super) fn zinter(call: &mut Call<'_, '_>) -> Done {
    reply(call, Operation::Inter)
}

/// ZDIFF numkeys key [key ...] [WITHSCORES]
pub(super) fn zdiff(call: &mut Call<'_, '_>) -> Done {
    reply(call, Operation::Diff)
}

fn reply(call: &mut Call<'_, '_>, operation: Operation) -> Done {
    let (plan, _) = Plan::parse(call, operation, Form::Reply, 1, 0)?;
    let hasher = &call.guard.keyspace().hasher;
    if call.is_worth_offloading(plan.units()) {
        let hasher = hasher.clone();
        return call.offload_reply(move |reply| plan.reply(&hasher, reply));
    }
    plan.reply(hasher, call.reply);
    Ok(Flow::Replied)
}

/// ZUNIONSTORE destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX |
/// COUNT>]
pub(super) fn zunionstore(call: &mut Call<'_, '_>) -> Done {
    store(call, Operation::Union)
}

/// ZINTERSTORE destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX |
/// COUNT>]
pub(super) fn zinterstore(call: &mut Call<'_, '_>) -> Done {
    store(call, Operation::Inter)
}

/// ZDIFFSTORE destination numkeys key [key ...]
pub(super) fn zdiffstore(call: &mut Call<'_, '_>) -> Done {
    store(call, Operation::Diff)
}

fn store(call: &mut Call<'_, '_>, operation: Operation) -> Done {
    let (plan, _) = Plan::parse(call, operation, Form::Store, 2, 1)?;
    let (hasher, limits) = (&call.guard.keyspace().hasher, Limits::of(call.settings));
    if !call.is_worth_offloading(plan.units()) {
        return store_made(call, plan.make(hasher, limits), plan.aggregate);
    }
    let (hasher, known) = (hasher.clone(), found(call)?);
    call.offload(Work::writes(
        move || Ok((plan.make(&hasher, limits), plan)),
        move |call| found(call).is_ok_and(|now| now.iter().zip(&known).all(|(now, then)| now.is_same(then))),
        |call, (made, plan)| {
            let aggregate = plan.aggregate;
            // These may be the last shares of the sources: they are not dropped before the locks are
            // released.
            plan.sources.into_iter().for_each(|source| source.value.discard(call));
            store_made(call, made, aggregate)
        },
    ))
}

/// Stores the result. Readers of the journal may not know COUNT, so that the result is logged in its place.
fn store_made(call: &mut Call<'_, '_>, made: Made, aggregate: Aggregate) -> Done {
    if aggregate == Aggregate::Count { made.store_and_log(call, 0) } else { made.store(call) }
}

/// Clones the values at the source keys of a STORE command.
fn found(call: &mut Call<'_, '_>) -> Result<Vec<Value>, Error> {
    call.keys[1..].iter().map(|key| value_of(call.guard.peek(key))).collect()
}

/// ZINTERCARD numkeys key [key ...] [LIMIT limit]
pub(super) fn zintercard(call: &mut Call<'_, '_>) -> Done {
    let (plan, limit) = Plan::parse(call, Operation::Inter, Form::Count, 1, 0)?;
    let hasher = &call.guard.keyspace().hasher;
    if call.is_worth_offloading(plan.units()) {
        let hasher = hasher.clone();
        return call.offload_reply(move |reply| reply.int(plan.count(&hasher, limit) as i64));
    }
    call.reply.int(plan.count(hasher, limit) as i64);
    Ok(Flow::Replied)
}

/// The destination, and the keys that are counted behind it.
pub(super) fn keys_of_store(args: &Args<'_>, db: u32, databases: u32, key: &mut dyn FnMut(usize, u32)) {
    key(1, db);
    Keys::Counted { at: 2, step: 1 }.for_each(args, db, databases, key);
}
