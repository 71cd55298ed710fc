//! The queries of the searching commands.
//!
//! GEORADIUS and GEORADIUSBYMEMBER have the place and the distance as positional arguments, GEOSEARCH and
//! GEOSEARCHSTORE as options; the rest is common. Errors are found from left to right, as in Redis, a missing
//! member among them, and all of them before it matters whether the key exists.

use evenkeel_resp::float;

use super::shape::{Form, Shape, Unit};
use super::{Args, Point};
use crate::error::Error;

/// The syntax of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// `key longitude latitude radius unit`, then options.
    Radius { may_store: bool },
    /// `key member radius unit`, then options.
    RadiusByMember { may_store: bool },
    /// `key`, then options.
    Search,
    /// `destination key`, then options.
    SearchStore,
}

impl Syntax {
    fn may_store_by_option(self) -> bool {
        matches!(self, Syntax::Radius { may_store: true } | Syntax::RadiusByMember { may_store: true })
    }

    fn is_search(self) -> bool {
        matches!(self, Syntax::Search | Syntax::SearchStore)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// A parsed query.
#[derive(Debug)]
pub(super) struct Query {
    /// `None` only if there is no source.
    pub(super) shape: Option<Shape>,
    pub(super) order: Option<Order>,
    /// Maximum number of places.
    pub(super) count: Option<usize>,
    /// Any `count` places will do.
    pub(super) any: bool,
    pub(super) with_distance: bool,
    pub(super) with_score: bool,
    pub(super) with_place: bool,
    /// The result is stored.
    pub(super) stores: bool,
    /// With distances as scores.
    pub(super) stores_distances: bool,
}

/// The source as far as options need it: returns the place of a member. `None`: there is no source.
pub(super) type Source<'s> = Option<&'s dyn Fn(&[u8]) -> Option<Point>>;

/// Parts of a shape, in any order.
#[derive(Default)]
struct Parts {
    from_member: bool,
    from_place: bool,
    by_radius: bool,
    by_box: bool,
    by_polygon: bool,
    centre: Option<Point>,
    extent: Option<(Unit, Form)>,
    polygon: Option<Shape>,
}

impl Parts {
    fn shape(self) -> Option<Shape> {
        let around =
            || self.centre.zip(self.extent).map(|(centre, (unit, form))| Shape::around(centre, unit, form));
        self.polygon.or_else(around)
    }
}

impl Query {
    pub(super) fn parse(args: &Args<'_>, syntax: Syntax, source: Source<'_>) -> Result<Query, Error> {
        let mut parts = Parts::default();
        let first = match syntax {
            Syntax::Radius { .. } => {
                parts.centre = Some(Point::parse(args, 2)?);
                parts.extent = Some(circle(args, 4)?);
                6
            }
            Syntax::RadiusByMember { .. } => {
                // Without a source, the radius is not checked.
                if source.is_some() {
                    parts.centre = place_of(args.at(2), source)?;
                    parts.extent = Some(circle(args, 3)?);
                }
                5
            }
            Syntax::Search => 2,
            Syntax::SearchStore => 3,
        };
        let mut query = Query {
            shape: None,
            order: None,
            count: None,
            any: false,
            with_distance: false,
            with_score: false,
            with_place: false,
            stores: syntax == Syntax::SearchStore,
            stores_distances: false,
        };
        let mut at = first;
        while at < args.len() {
            at += 1 + match query.option(args, at, syntax)? {
                Some(taken) => taken,
                None if syntax.is_search() => parts.option(args, at, source)?,
                None => return Err(Error::Syntax),
            };
        }
        query.check(args, syntax, &parts)?;
        query.shape = parts.shape();
        Ok(query)
    }

    /// Parses the option at `at`, unless it is not among the common options; returns how many arguments it
    /// takes.
    fn option(&mut self, args: &Args<'_>, at: usize, syntax: Syntax) -> Result<Option<usize>, Error> {
        let has_value = at + 1 < args.len();
        match args.word(at).as_bytes() {
            b"WITHDIST" => self.with_distance = true,
            b"WITHHASH" => self.with_score = true,
            b"WITHCOORD" => self.with_place = true,
            b"ANY" => self.any = true,
            b"ASC" => self.order = Some(Order::Ascending),
            b"DESC" => self.order = Some(Order::Descending),
            b"COUNT" if has_value => {
                let count = usize::try_from(args.int(at + 1)?).ok().filter(|count| *count > 0);
                self.count = Some(count.ok_or(Error::text("ERR COUNT must be > 0"))?);
                return Ok(Some(1));
            }
            word @ (b"STORE" | b"STOREDIST") if syntax.may_store_by_option() && has_value => {
                (self.stores, self.stores_distances) = (true, word == b"STOREDIST");
                return Ok(Some(1));
            }
            b"STOREDIST" if syntax == Syntax::SearchStore => self.stores_distances = true,
            _ => return Ok(None),
        }
        Ok(Some(0))
    }

    fn check(&self, args: &Args<'_>, syntax: Syntax, parts: &Parts) -> Result<(), Error> {
        if self.stores && (self.with_distance || self.with_score || self.with_place) {
            let what =
                if syntax == Syntax::SearchStore { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            let text = format!("ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options");
            return Err(Error::text(text));
        }
        let exactly_one_of = |options: &[u8]| {
            let name = args.quoted(0, usize::MAX);
            Err(Error::Bytes([b"ERR exactly one of ", options, b" can be specified for ", name].concat()))
        };
        if syntax.is_search() && !(parts.from_member || parts.from_place || parts.by_polygon) {
            return exactly_one_of(b"FROMMEMBER or FROMLONLAT");
        }
        if syntax.is_search() && !(parts.by_radius || parts.by_box || parts.by_polygon) {
            return exactly_one_of(b"BYRADIUS, BYBOX and BYPOLYGON");
        }
        if self.any && self.count.is_none() {
            return Err(Error::text("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }
}

impl Parts {
    /// Parses the option at `at`; returns how many arguments it takes.
    fn option(&mut self, args: &Args<'_>, at: usize, source: Source<'_>) -> Result<usize, Error> {
        let (left, centred) = (args.len() - at - 1, self.from_member || self.from_place);
        match args.word(at).as_bytes() {
            b"FROMMEMBER" if left >= 1 && !self.from_place && !self.by_polygon => {
                self.from_member = true;
                self.centre = place_of(args.at(at + 1), source)?;
                Ok(1)
            }
            b"FROMLONLAT" if left >= 2 && !self.from_member && !self.by_polygon => {
                self.from_place = true;
                self.centre = Some(Point::parse(args, at + 1)?);
                Ok(2)
            }
            b"BYRADIUS" if left >= 2 && !self.by_box && !self.by_polygon => {
                self.by_radius = true;
                self.extent = Some(circle(args, at + 1)?);
                Ok(2)
            }
            b"BYBOX" if left >= 3 && !self.by_radius && !self.by_polygon => {
                self.by_box = true;
                self.extent = Some(box_of(args, at + 1)?);
                Ok(3)
            }
            b"BYPOLYGON" if left >= 2 && !centred && !self.by_radius && !self.by_box => {
                self.by_polygon = true;
                let corners = polygon(args, at + 1)?;
                let taken = 1 + 2 * corners.len();
                self.polygon = Some(Shape::polygon(corners));
                Ok(taken)
            }
            _ => Err(Error::Syntax),
        }
    }
}

/// Returns the place of a member, which must exist if there is a source.
fn place_of(member: &[u8], source: Source<'_>) -> Result<Option<Point>, Error> {
    let Some(place) = source.map(|place| place(member)) else { return Ok(None) };
    place.map(Some).ok_or_else(|| {
        let member = &member[..member.iter().position(|byte| *byte == 0).unwrap_or(member.len())];
        Error::Bytes([b"ERR member ".as_slice(), member, b" does not exist"].concat())
    })
}

/// `radius unit`
fn circle(args: &Args<'_>, at: usize) -> Result<(Unit, Form), Error> {
    let radius = float::parse(args.at(at)).ok_or(Error::text("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(Error::text("ERR radius cannot be negative"));
    }
    Ok((Unit::parse(args, at + 1)?, Form::Circle { radius }))
}

/// `width height unit`
fn box_of(args: &Args<'_>, at: usize) -> Result<(Unit, Form), Error> {
    let width = float::parse(args.at(at)).ok_or(Error::text("ERR need numeric width"))?;
    let height = float::parse(args.at(at + 1)).ok_or(Error::text("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(Error::text("ERR height or width cannot be negative"));
    }
    Ok((Unit::parse(args, at + 2)?, Form::Box { width, height }))
}

/// `count longitude latitude [longitude latitude ...]`
fn polygon(args: &Args<'_>, at: usize) -> Result<Vec<Point>, Error> {
    let count = args.int(at).ok().and_then(|count| i32::try_from(count).ok());
    let count = count.ok_or(Error::text("ERR invalid number of vertices"))?;
    let room = (args.len() - at - 1) / 2;
    match usize::try_from(count) {
        Ok(count) if (3..=room).contains(&count) => {
            (0..count).map(|corner| Point::parse(args, at + 1 + 2 * corner)).collect()
        }
        _ => Err(Error::text("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices")),
    }
}
