//! The searched area: a circle, a box or a polygon; the cells that cover it, and the places inside.
//!
//! The earth is a sphere, and distances are great-circle distances by the haversine formula. Floating point
//! is done in Redis' order of operations, so that both agree on every place and on every digit of a distance.

use super::Point;
use super::cell::{Cell, STEPS_MAX};

/// The quadratic mean of the radii of WGS 84, in metres.
const EARTH_RADIUS_M: f64 = 6_372_797.560_856;

/// Half the side of a square map of the earth, in metres.
const MERCATOR_MAX_M: f64 = 20_037_726.37;

const RADIAN: f64 = std::f64::consts::PI / 180.0;

/// Sides of a polygon that are examined in the time that a distance takes.
const CORNERS_A_UNIT: u64 = 8;

fn radians(degrees: f64) -> f64 {
    degrees * RADIAN
}

fn degrees(radians: f64) -> f64 {
    radians / RADIAN
}

/// Returns the distance between two places, in metres.
pub(super) fn distance_m(a: Point, b: Point) -> f64 {
    let v = ((radians(b.longitude) - radians(a.longitude)) / 2.0).sin();
    if v == 0.0 {
        return distance_north_m(a, b);
    }
    let u = ((radians(b.latitude) - radians(a.latitude)) / 2.0).sin();
    let square = u * u + radians(a.latitude).cos() * radians(b.latitude).cos() * v * v;
    2.0 * EARTH_RADIUS_M * square.sqrt().asin()
}

/// Returns the distance along a meridian.
fn distance_north_m(a: Point, b: Point) -> f64 {
    EARTH_RADIUS_M * (radians(b.latitude) - radians(a.latitude)).abs()
}

/// A unit of distance, in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit(pub(super) f64);

#[derive(Clone, Debug)]
pub(super) enum Form {
    /// All in the shape's unit.
    Circle {
        radius: f64,
    },
    Box {
        width: f64,
        height: f64,
    },
    /// Three corners at least, and the bounds of the polygon.
    Polygon(Vec<Point>, Bounds),
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Distances are measured from here.
    pub(super) centre: Point,
    pub(super) unit: Unit,
    form: Form,
}

/// Degrees that enclose a shape; some may lie beyond the map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

impl Bounds {
    /// Whether a place may lie in the shape. Rounding moves the sides of a polygon by far less than the
    /// margin.
    fn may_hold(&self, place: Point) -> bool {
        const MARGIN: f64 = 1e-9;
        (self.west - MARGIN..=self.east + MARGIN).contains(&place.longitude)
            && (self.south - MARGIN..=self.north + MARGIN).contains(&place.latitude)
    }
}

impl Shape {
    /// Returns a circle or a box around a place.
    pub(super) fn around(centre: Point, unit: Unit, form: Form) -> Shape {
        debug_assert!(!matches!(form, Form::Polygon(..)), "a polygon has its own centre");
        Shape { centre, unit, form }
    }

    /// Returns a polygon; its centre is that of the corners' mean position in space.
    pub(super) fn polygon(corners: Vec<Point>) -> Shape {
        let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
        for corner in &corners {
            let (longitude, latitude) = (radians(corner.longitude), radians(corner.latitude));
            x += latitude.cos() * longitude.cos();
            y += latitude.cos() * longitude.sin();
            z += latitude.sin();
        }
        let centre =
            Point { longitude: degrees(y.atan2(x)), latitude: degrees(z.atan2((x * x + y * y).sqrt())) };
        let bounds = bounds_of(&corners);
        Shape { centre, unit: Unit(1.0), form: Form::Polygon(corners, bounds) }
    }

    /// Returns how far a place is from the centre, in metres; `None` if it lies outside.
    pub(super) fn distance_to(&self, place: Point) -> Option<f64> {
        let outside = match &self.form {
            Form::Circle { radius } => {
                let distance = distance_m(self.centre, place);
                return if distance > radius * self.unit.0 { None } else { Some(distance) };
            }
            Form::Box { width, height } => {
                let due_east = Point { longitude: self.centre.longitude, ..place };
                distance_north_m(self.centre, place) > height * self.unit.0 / 2.0
                    || distance_m(place, due_east) > width * self.unit.0 / 2.0
            }
            Form::Polygon(corners, bounds) => !bounds.may_hold(place) || !encloses(corners, place),
        };
        if outside { None } else { Some(distance_m(self.centre, place)) }
    }

    /// Returns the cost of [`Shape::distance_to`], as a multiple of the cost for a circle.
    pub(super) fn units(&self) -> u64 {
        match &self.form {
            Form::Polygon(corners, _) => 1 + corners.len() as u64 / CORNERS_A_UNIT,
            Form::Circle { .. } | Form::Box { .. } => 1,
        }
    }

    fn bounds(&self) -> Bounds {
        let (width, height) = match &self.form {
            Form::Circle { radius } => (*radius, *radius),
            Form::Box { width, height } => (width / 2.0, height / 2.0),
            Form::Polygon(_, bounds) => return *bounds,
        };
        let Point { longitude, latitude } = self.centre;
        let (width, height) = (self.unit.0 * width, self.unit.0 * height);
        let up = degrees(height / EARTH_RADIUS_M);
        // The edge that is nearer to a pole spans more degrees.
        let edge = if latitude < 0.0 { latitude - up } else { latitude + up };
        let aside = degrees(width / EARTH_RADIUS_M / radians(edge).cos());
        Bounds {
            west: longitude - aside,
            east: longitude + aside,
            south: latitude - up,
            north: latitude + up,
        }
    }

    /// Returns the radius of a circle that covers it, in metres.
    fn radius_m(&self, bounds: &Bounds) -> f64 {
        match &self.form {
            Form::Circle { radius } => radius * self.unit.0,
            Form::Box { width, height } => {
                let (width, height) = (width / 2.0, height / 2.0);
                (width * width + height * height).sqrt() * self.unit.0
            }
            Form::Polygon(..) => {
                let Bounds { west, east, south, north } = *bounds;
                let corners = [(west, north), (east, north), (west, south), (east, south)];
                let distances = corners
                    .map(|(longitude, latitude)| distance_m(self.centre, Point { longitude, latitude }));
                distances.into_iter().fold(0.0, f64::max)
            }
        }
    }

    /// Returns the cells that cover it, in search order: the cell of the centre, and its eight neighbours
    /// except useless cells.
    pub(super) fn cells(&self) -> impl Iterator<Item = Cell> {
        /// As columns to the east and rows to the north.
        const NEIGHBOURS: [(i32, i32); 8] =
            [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let bounds = self.bounds();
        let mut steps = steps_for(self.radius_m(&bounds), self.centre.latitude);
        let mut middle = Cell::of(self.centre, steps);
        if steps > 1 && !covers(middle, &bounds) {
            steps -= 1;
            middle = Cell::of(self.centre, steps);
        }
        let area = middle.area();
        let useful = move |(east, north): &(i32, i32)| {
            steps < 2
                || !(*north < 0 && area.south < bounds.south
                    || *north > 0 && area.north > bounds.north
                    || *east < 0 && area.west < bounds.west
                    || *east > 0 && area.east > bounds.east)
        };
        let mut last = None;
        let neighbours = NEIGHBOURS.into_iter().filter(useful).filter_map(move |(east, north)| {
            let cell = middle.neighbour(east, north);
            // Among a few large cells, neighbours on both sides may be the same.
            (last.replace(cell) != Some(cell)).then_some(cell)
        });
        std::iter::once(middle).chain(neighbours)
    }
}

/// Returns the number of steps at which a circle around a place is covered by the place's cell and its
/// neighbours, or nearly so.
fn steps_for(mut radius_m: f64, latitude: f64) -> u32 {
    if radius_m == 0.0 {
        return STEPS_MAX;
    }
    let mut steps = 1_i32;
    while radius_m < MERCATOR_MAX_M {
        radius_m *= 2.0;
        steps += 1;
    }
    // Towards the poles, cells are narrower than the map shows.
    let narrower = i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    (steps - 2 - narrower).clamp(1, STEPS_MAX as i32) as u32
}

/// Whether the cell's four neighbours reach as far as the bounds, or the bounds are not numbers.
fn covers(cell: Cell, bounds: &Bounds) -> bool {
    let is_short = cell.neighbour(0, 1).area().north < bounds.north
        || cell.neighbour(0, -1).area().south > bounds.south
        || cell.neighbour(1, 0).area().east < bounds.east
        || cell.neighbour(-1, 0).area().west > bounds.west;
    !is_short
}

fn bounds_of(corners: &[Point]) -> Bounds {
    let fold = |of: fn(&Point) -> f64, start: f64, choose: fn(f64, f64) -> f64| {
        corners.iter().map(of).fold(start, choose)
    };
    Bounds {
        west: fold(|corner| corner.longitude, f64::INFINITY, f64::min),
        east: fold(|corner| corner.longitude, f64::NEG_INFINITY, f64::max),
        south: fold(|corner| corner.latitude, f64::INFINITY, f64::min),
        north: fold(|corner| corner.latitude, f64::NEG_INFINITY, f64::max),
    }
}

/// Whether a ray from the place to the east crosses an odd number of sides, on a flat map.
fn encloses(corners: &[Point], place: Point) -> bool {
    let last = corners.last().copied();
    let starts = last.into_iter().chain(corners.iter().copied());
    let crossed = corners.iter().zip(starts).filter(|(a, b)| {
        let between = (a.latitude > place.latitude) != (b.latitude > place.latitude);
        between && {
            let slope =
                (b.longitude - a.longitude) * (place.latitude - a.latitude) / (b.latitude - a.latitude);
            place.longitude < slope + a.longitude
        }
    });
    crossed.count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::printed as random;
    use std::time::{Duration, Instant};

    /// The sides alone decide whether a place lies in a polygon; the bounds only save examining them.
    #[test]
    fn bounding_boxes_lose_no_point_of_a_polygon() {
        let mut random = random();
        let mut inside = 0;
        for _ in 0..2_000 {
            let mut point = || Point {
                longitude: 10.0 + random.below(40) as f64 / 8.0,
                latitude: random.below(40) as f64 / 8.0,
            };
            let corners: Vec<Point> = (0..5).map(|_| point()).collect();
            let shape = Shape::polygon(corners.clone());
            for place in (0..20).map(|_| point()).chain(corners.clone()) {
                let is_in = encloses(&corners, place);
                inside += usize::from(is_in);
                assert_eq!(shape.distance_to(place).is_some(), is_in, "{place:?} in {corners:?}");
            }
        }
        assert!(inside > 1_000, "{inside} places");
    }

    /// Examining all sides for each place would take twenty thousand million steps: half a minute.
    #[test]
    fn points_outside_the_bounds_skip_the_polygon_test() {
        let corner = |at: u32| {
            let (sine, cosine) = f64::from(at).sin_cos();
            Point { longitude: 10.0 + cosine, latitude: 10.0 + sine }
        };
        let (shape, began) = (Shape::polygon((0..20_000).map(corner).collect()), Instant::now());
        for step in 0..1_000_000 {
            let place = Point { longitude: 11.5, latitude: 9.0 + f64::from(step) / 500_000.0 };
            assert!(shape.distance_to(place).is_none());
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
