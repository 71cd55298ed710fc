//! Places in sorted sets: a member's score is the number of its grid cell.
//!
//! [`cell`] turns places into scores and back, [`shape`] covers the searched area and tests places,
//! [`options`] parses the queries of the six searching commands, and [`search`] runs them.

mod cell;
mod options;
mod search;
mod shape;

use evenkeel_resp::float;
use evenkeel_store::collection::ZSet;
use evenkeel_store::{Edit, Hasher};

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::zset::{self, How, Limits, Outcome};
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, read, write};
use cell::{Cell, LATITUDE_MAX, LONGITUDE_MAX, STEPS_MAX};
use search::{
    STORED, georadius, georadius_ro, georadiusbymember, georadiusbymember_ro, geosearch, geosearchstore,
};
use shape::Unit;

const GROUP: Group = Group::Geo;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("GEOADD",               at_least(5), Keys::FIRST,     GROUP, geoadd              ).grows(),
    read ("GEODIST",              at_least(4), Keys::FIRST,     GROUP, geodist             ),
    read ("GEOHASH",              at_least(2), Keys::FIRST,     GROUP, geohash             ),
    read ("GEOPOS",               at_least(2), Keys::FIRST,     GROUP, geopos              ),
    write("GEORADIUS",            at_least(6), STORED,          GROUP, georadius           ).grows(),
    read ("GEORADIUS_RO",         at_least(6), Keys::FIRST,     GROUP, georadius_ro        ),
    write("GEORADIUSBYMEMBER",    at_least(5), STORED,          GROUP, georadiusbymember   ).grows(),
    read ("GEORADIUSBYMEMBER_RO", at_least(5), Keys::FIRST,     GROUP, georadiusbymember_ro),
    read ("GEOSEARCH",            at_least(7), Keys::FIRST,     GROUP, geosearch           ),
    write("GEOSEARCHSTORE",       at_least(8), Keys::FIRST_TWO, GROUP, geosearchstore      ).grows(),
];

/// A place on the map, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    longitude: f64,
    latitude: f64,
}

impl Point {
    /// Parses the place in the arguments from `at` on.
    fn parse(args: &Args<'_>, at: usize) -> Result<Point, Error> {
        let degrees = |at| float::parse(args.at(at)).ok_or(Error::NotFloat);
        let (longitude, latitude) = (degrees(at)?, degrees(at + 1)?);
        if longitude.abs() > LONGITUDE_MAX || latitude.abs() > LATITUDE_MAX {
            return Err(Error::text(format!(
                "ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}"
            )));
        }
        Ok(Point { longitude, latitude })
    }

    /// Returns the place of a member.
    fn of(zset: &ZSet, hasher: &Hasher, member: &[u8]) -> Option<Point> {
        zset.score(hasher, member).map(|score| Cell::of_score(score).middle())
    }

    fn reply(self, reply: &mut Reply) {
        reply.array(2);
        [self.longitude, self.latitude].iter().for_each(|degrees| {
            let text = format!("{degrees:.17}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            reply.double_text(if text == "-0" { "0" } else { text }.as_bytes());
        });
    }
}

impl Unit {
    fn parse(args: &Args<'_>, at: usize) -> Result<Unit, Error> {
        match args.word(at).as_bytes() {
            b"M" => Ok(Unit(1.0)),
            b"KM" => Ok(Unit(1_000.0)),
            b"FT" => Ok(Unit(0.3048)),
            b"MI" => Ok(Unit(1_609.34)),
            _ => Err(Error::text("ERR unsupported unit provided. please use M, KM, FT, MI")),
        }
    }
}

/// Replies with a distance, with four decimals.
fn reply_distance(reply: &mut Reply, distance: f64) {
    reply.bulk(format!("{distance:.4}").as_bytes());
}

/// GEOADD key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]
fn geoadd(call: &mut Call<'_, '_>) -> Done {
    let (args, mut how, mut count_moved, mut first) = (call.args, How::default(), false, 2);
    while first < args.len() {
        match args.word(first).as_bytes() {
            b"NX" => how.if_absent = true,
            b"XX" => how.if_present = true,
            b"CH" => count_moved = true,
            _ => break,
        }
        first += 1;
    }
    let given = args.len() - first;
    if given == 0 || !given.is_multiple_of(3) || how.if_absent && how.if_present {
        return Err(Error::Syntax);
    }
    let places = (first..args.len()).step_by(3);
    let scores: Vec<f64> = places
        .clone()
        .map(|at| Ok(Cell::of(Point::parse(&args, at)?, STEPS_MAX).score()))
        .collect::<Result<_, Error>>()?;
    let (hasher, limits) = (&call.guard.keyspace().hasher, Limits::of(call.settings));
    let mut added = 0;
    let changed = call.guard.edit(&call.keys[0], |edit: &mut Edit<'_, ZSet>| {
        for (at, score) in places.zip(scores) {
            let outcome = zset::add(edit, hasher, limits, how, args.at(at + 2), score);
            added += u64::from(matches!(outcome, Outcome::Added(_)));
        }
        edit.changes
    })?;
    call.reply.int(if count_moved { changed } else { added } as i64);
    Ok(Flow::Replied)
}

/// GEODIST key member1 member2 [M | KM | FT | MI]
fn geodist(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let unit = match args.len() {
        4 => Unit(1.0),
        5 => Unit::parse(&args, 4)?,
        _ => return Err(Error::Syntax),
    };
    let hasher = &call.guard.keyspace().hasher;
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    let place = |at| zset.as_ref().and_then(|zset| Point::of(zset, hasher, args.at(at)));
    match place(2).zip(place(3)) {
        Some((a, b)) => reply_distance(call.reply, shape::distance_m(a, b) / unit.0),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// GEOHASH key [member ...]
fn geohash(call: &mut Call<'_, '_>) -> Done {
    reply_places(call, |reply, place| match place {
        Some(place) => reply.bulk(&cell::text_of(place)),
        None => reply.null(),
    })
}

/// GEOPOS key [member ...]
fn geopos(call: &mut Call<'_, '_>) -> Done {
    reply_places(call, |reply, place| match place {
        Some(place) => place.reply(reply),
        None => reply.null_array(),
    })
}

/// Replies for the place of each member.
fn reply_places(call: &mut Call<'_, '_>, each: fn(&mut Reply, Option<Point>)) -> Done {
    let hasher = &call.guard.keyspace().hasher;
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    let members = call.args.from(2);
    call.reply.array(members.len());
    for member in members {
        each(call.reply, zset.as_ref().and_then(|zset| Point::of(zset, hasher, member)));
    }
    Ok(Flow::Replied)
}
