//! Searching for places.
//!
//! The members of each cell that the shape touches are a range of the sorted set, and each member is tested.
//! The set is cloned, so that a search through many members can be offloaded.

use std::cmp::Ordering;
use std::ops::Range;

use evenkeel_store::Hasher;
use evenkeel_store::collection::{Gather, ZSet};

use super::cell::{self, Cell};
use super::options::{Order, Query, Syntax};
use super::shape::Shape;
use super::{Point, reply_distance};
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::zset::{Limits, Made};
use crate::{Args, Call, Keys};

/// The source, and the destination if an option names it.
pub(super) const STORED: Keys = Keys::Across(|args, db, _, key| {
    key(1, db);
    if let Some(destination) = destination(args) {
        key(destination, db);
    }
});

/// Returns the argument that the last STORE or STOREDIST names. An argument that counts as an option's value
/// here does so for the parser as well, or is refused there.
fn destination(args: &Args<'_>) -> Option<usize> {
    let (mut found, mut at) = (None, 5);
    while at + 1 < args.len() {
        if args.is(at, "STORE") || args.is(at, "STOREDIST") {
            at += 1;
            found = Some(at);
        }
        at += 1;
    }
    found
}

/// GEORADIUS key longitude latitude radius unit [options] [STORE | STOREDIST destination]
pub(super) fn georadius(call: &mut Call<'_, '_>) -> Done {
    search(call, Syntax::Radius { may_store: true }, 0, 1)
}

/// GEORADIUS_RO key longitude latitude radius unit [options]
pub(super) fn georadius_ro(call: &mut Call<'_, '_>) -> Done {
    search(call, Syntax::Radius { may_store: false }, 0, 1)
}

/// GEORADIUSBYMEMBER key member radius unit [options] [STORE | STOREDIST destination]
pub(super) fn georadiusbymember(call: &mut Call<'_, '_>) -> Done {
    search(call, Syntax::RadiusByMember { may_store: true }, 0, 1)
}

/// GEORADIUSBYMEMBER_RO key member radius unit [options]
pub(super) fn georadiusbymember_ro(call: &mut Call<'_, '_>) -> Done {
    search(call, Syntax::RadiusByMember { may_store: false }, 0, 1)
}

/// GEOSEARCH key <FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius unit | BYBOX width
/// height unit> | BYPOLYGON count longitude latitude [longitude latitude ...] [options]
pub(super) fn geosearch(call: &mut Call<'_, '_>) -> Done {
    search(call, Syntax::Search, 0, 1)
}

/// GEOSEARCHSTORE destination key ... [STOREDIST]
pub(super) fn geosearchstore(call: &mut Call<'_, '_>) -> Done {
    search(call, Syntax::SearchStore, 1, 0)
}

/// `source` and `destination` are keys of the row; the second may be missing if no result is stored.
fn search(call: &mut Call<'_, '_>, syntax: Syntax, source: usize, destination: usize) -> Done {
    let hasher = &call.guard.keyspace().hasher;
    let zset = call.guard.collection::<ZSet>(&call.keys[source])?.map(|zset| ZSet::clone(&zset));
    let place = |member: &[u8]| zset.as_ref().and_then(|zset| Point::of(zset, hasher, member));
    let query = Query::parse(&call.args, syntax, if zset.is_some() { Some(&place) } else { None })?;
    let (Some(zset), Some(shape)) = (zset, &query.shape) else {
        if query.stores {
            let key = &call.keys[destination];
            if call.guard.remove(key) {
                call.log(&[b"DEL", key.bytes]);
            }
            call.reply.int(0);
        } else {
            call.reply.array(0);
        }
        return Ok(Flow::Replied);
    };
    let position_ranges: Vec<Range<u64>> = shape.cells().map(|cell| positions_in(&zset, cell)).collect();
    let members: u64 = position_ranges.iter().map(|positions| positions.end - positions.start).sum();
    let work = members.saturating_mul(shape.units());
    let search = Search { zset, query, position_ranges };
    match (search.query.stores, call.is_worth_offloading(work as usize)) {
        (false, false) => search.reply(call.reply),
        (false, true) => {
            return call.offload(Work::reads(move |reply| {
                search.reply(reply);
                Ok(())
            }));
        }
        (true, false) => {
            // Sines are not the same on all machines.
            return search.store(hasher, Limits::of(call.settings)).store_and_log(call, destination);
        }
        (true, true) => return offload_store(call, search, source, destination),
    }
    Ok(Flow::Replied)
}

fn offload_store(call: &mut Call<'_, '_>, search: Search, source: usize, destination: usize) -> Done {
    let (hasher, limits) = (call.guard.keyspace().hasher.clone(), Limits::of(call.settings));
    let zset = search.zset.clone();
    call.offload(Work::writes(
        move || Ok(search.store(&hasher, limits)),
        move |call| {
            let now = call.guard.collection::<ZSet>(&call.keys[source]);
            matches!(now, Ok(Some(now)) if now.is_same(&zset))
        },
        move |call, made: Made| made.store_and_log(call, destination),
    ))
}

/// Returns the positions of the members that lie in a cell.
fn positions_in(zset: &ZSet, cell: Cell) -> Range<u64> {
    let (from, to) = cell.scores();
    zset.count_below(from, false)..zset.count_below(to, false)
}

/// A search with all its inputs.
struct Search {
    zset: ZSet,
    query: Query,
    /// Positions of the members to look at.
    position_ranges: Vec<Range<u64>>,
}

struct GeoMatch<'z> {
    member: &'z [u8],
    score: f64,
    place: Point,
    distance_m: f64,
}

impl Search {
    fn shape(&self) -> &Shape {
        self.query.shape.as_ref().expect("a search has a shape")
    }

    /// Returns the places inside the shape, in the requested order.
    fn find(&self) -> Vec<GeoMatch<'_>> {
        let (query, shape) = (&self.query, self.shape());
        let inside = |(member, score): (_, f64)| {
            let place = Cell::of_score(score).middle();
            shape.distance_to(place).map(|distance_m| GeoMatch { member, score, place, distance_m })
        };
        let found = self
            .position_ranges
            .iter()
            .flat_map(|positions| self.zset.range(positions.clone()))
            .filter_map(inside);
        match (query.count, query.any) {
            (Some(count), true) => sorted(found.take(count).collect(), query.order, count),
            // The nearest places, by default.
            (Some(count), false) => sorted(found.collect(), query.order.or(Some(Order::Ascending)), count),
            (None, _) => sorted(found.collect(), query.order, usize::MAX),
        }
    }

    fn reply(&self, reply: &mut Reply) {
        let (found, query) = (self.find(), &self.query);
        let asked_for = [query.with_distance, query.with_score, query.with_place];
        let more = asked_for.iter().filter(|asked_for| **asked_for).count();
        reply.array(found.len());
        for GeoMatch { member, score, place, distance_m } in found {
            if more > 0 {
                reply.array(1 + more);
            }
            reply.bulk(member);
            if query.with_distance {
                reply_distance(reply, distance_m / self.shape().unit.0);
            }
            if query.with_score {
                reply.int(cell::to_i64(score));
            }
            if query.with_place {
                place.reply(reply);
            }
        }
    }

    /// Returns the sorted set of the places found.
    fn store(&self, hasher: &Hasher, limits: Limits) -> Made {
        let mut gather = Gather::new(hasher);
        for found in self.find() {
            let distance = found.distance_m / self.shape().unit.0;
            gather.push(found.member, if self.query.stores_distances { distance } else { found.score });
        }
        Made::of(gather.merge(|score, _| score), limits)
    }
}

/// Returns the first `count` places in this order. Equally distant places keep the order in which they were
/// found.
fn sorted(found: Vec<GeoMatch<'_>>, order: Option<Order>, count: usize) -> Vec<GeoMatch<'_>> {
    let compare = |a: f64, b: f64| match order {
        None => Ordering::Equal,
        Some(Order::Ascending) => a.total_cmp(&b),
        Some(Order::Descending) => b.total_cmp(&a),
    };
    let mut found: Vec<(usize, GeoMatch<'_>)> = found.into_iter().enumerate().collect();
    let by_place = |a: &(usize, GeoMatch<'_>), b: &(usize, GeoMatch<'_>)| {
        compare(a.1.distance_m, b.1.distance_m).then(a.0.cmp(&b.0))
    };
    if count < found.len() {
        found.select_nth_unstable_by(count, by_place);
        found.truncate(count);
    }
    if order.is_some() {
        found.sort_unstable_by(by_place);
    }
    found.into_iter().map(|(_, found)| found).collect()
}
