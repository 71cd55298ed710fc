//! Places as scores: the earth as a square grid whose cells are numbered along a Z-shaped curve.
//!
//! A step halves each cell both ways and appends two bits to its number, the longitude's above the
//! latitude's. So the cells inside a cell are a range of numbers. After 26 steps, 52 bits, a number is an
//! integer that a score holds exactly: a cell of 0.6 m at most. Scores from other origins are decoded as
//! well, to some place.

use super::Point;

/// Steps of a score.
pub(super) const STEPS_MAX: u32 = 26;

pub(super) const LONGITUDE_MAX: f64 = 180.0;
/// Where the Mercator projection of the whole earth is a square.
pub(super) const LATITUDE_MAX: f64 = 85.051_128_78;

/// Bits of the latitude, and of the longitude.
const NORTH: u64 = 0x5555_5555_5555_5555;
const EAST: u64 = NORTH << 1;

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// A cell of the grid after so many steps: 1 to `STEPS_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    bits: u64,
    steps: u32,
}

/// The area of a cell, in degrees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) west: f64,
    pub(super) east: f64,
    pub(super) south: f64,
    pub(super) north: f64,
}

impl Cell {
    /// Returns the cell of a place. The eastern and the northern edge of the map lie in cells beyond the
    /// grid.
    pub(super) fn of(place: Point, steps: u32) -> Cell {
        Cell { bits: bits_of(place, LATITUDE_MAX, steps), steps }
    }

    /// Returns the cell of a score.
    pub(super) fn of_score(score: f64) -> Cell {
        Cell { bits: to_u64(score), steps: STEPS_MAX }
    }

    /// Returns the cell's number as a score, if it has `STEPS_MAX` steps; else the lowest score inside it.
    pub(super) fn score(self) -> f64 {
        (self.bits << (2 * (STEPS_MAX - self.steps))) as f64
    }

    /// Returns the scores inside it: from the first, and below the second.
    pub(super) fn scores(self) -> (f64, f64) {
        (self.score(), Cell { bits: self.bits + 1, ..self }.score())
    }

    pub(super) fn area(self) -> Area {
        let cells = (1_u64 << self.steps) as f64;
        let edge = |index: u32, max: f64| -max + f64::from(index) / cells * (max + max);
        let (north, east) = (every_other(self.bits), every_other(self.bits >> 1));
        Area {
            west: edge(east, LONGITUDE_MAX),
            east: edge(east.wrapping_add(1), LONGITUDE_MAX),
            south: edge(north, LATITUDE_MAX),
            north: edge(north.wrapping_add(1), LATITUDE_MAX),
        }
    }

    /// Returns its middle, as far as that is on the map.
    pub(super) fn middle(self) -> Point {
        let area = self.area();
        Point {
            longitude: ((area.west + area.east) / 2.0).clamp(-LONGITUDE_MAX, LONGITUDE_MAX),
            latitude: ((area.south + area.north) / 2.0).clamp(-LATITUDE_MAX, LATITUDE_MAX),
        }
    }

    /// Returns the cell so many columns to the east and rows to the north, each -1, 0 or 1; the map has no
    /// edges.
    pub(super) fn neighbour(self, east: i32, north: i32) -> Cell {
        let bits = moved(self.bits, EAST, self.steps, east);
        Cell { bits: moved(bits, NORTH, self.steps, north), ..self }
    }
}

/// Adds to the number that the bits in `mask` form. The bits between are set for the sum, so that a carry
/// runs through them.
fn moved(bits: u64, mask: u64, steps: u32, by: i32) -> u64 {
    let inside = u64::MAX >> (u64::BITS - 2 * steps);
    let (mine, others, between) = (bits & mask, bits & !mask, !mask & inside);
    let sum = match by {
        0 => return bits,
        1 => mine.wrapping_add(between + 1),
        _ => (mine | between).wrapping_sub(between + 1),
    };
    sum & mask & inside | others
}

/// Returns the number of a cell on a map up to this latitude.
fn bits_of(place: Point, latitude_max: f64, steps: u32) -> u64 {
    let cells = (1_u64 << steps) as f64;
    let index = |degrees: f64, max: f64| ((degrees + max) / (max + max) * cells) as u32;
    spread(index(place.latitude, latitude_max)) | spread(index(place.longitude, LONGITUDE_MAX)) << 1
}

/// Spreads the bits of a number, with a free bit above each.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in SPREADING.into_iter().rev() {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Gathers every other bit into a number.
fn every_other(bits: u64) -> u32 {
    let mut bits = bits & NORTH;
    for (shift, mask) in GATHERING {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

/// Groups of bits, with groups of zeros of the same width between them.
const SPREADING: [(u32, u64); 5] = [
    (1, NORTH),
    (2, 0x3333_3333_3333_3333),
    (4, 0x0f0f_0f0f_0f0f_0f0f),
    (8, 0x00ff_00ff_00ff_00ff),
    (16, 0x0000_ffff_0000_ffff),
];
const GATHERING: [(u32, u64); 5] = [
    (1, 0x3333_3333_3333_3333),
    (2, 0x0f0f_0f0f_0f0f_0f0f),
    (4, 0x00ff_00ff_00ff_00ff),
    (8, 0x0000_ffff_0000_ffff),
    (16, 0x0000_0000_ffff_ffff),
];

/// Returns the place in the notation of geohash.org, which divides the latitudes up to the poles. It has
/// eleven digits of five bits; the last would need three bits more than there are, and is zero.
pub(super) fn text_of(place: Point) -> [u8; 11] {
    const DIGITS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    let bits = bits_of(place, 90.0, STEPS_MAX);
    std::array::from_fn(|at| match at {
        10 => DIGITS[0],
        _ => DIGITS[(bits >> (47 - 5 * at)) as usize & 31],
    })
}

/// Converts a score to an integer, if it fits 64 bits, signed or not; other scores as x86-64 converts them,
/// as Redis shows that.
fn to_u64(score: f64) -> u64 {
    if score < TWO_TO_63 { to_i64(score) as u64 } else { to_i64(score - TWO_TO_63) as u64 ^ 1 << 63 }
}

/// [`to_u64`] for signed integers.
pub(super) fn to_i64(score: f64) -> i64 {
    if score < TWO_TO_63 { score as i64 } else { i64::MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(longitude: f64, latitude: f64) -> Point {
        Point { longitude, latitude }
    }

    /// The scores and texts of redis-server 7.0.15.
    #[test]
    fn scores_match_redis() {
        for (longitude, latitude, score, text) in [
            (13.361389, 38.115556, 3_479_099_956_230_698.0, "sqc8b49rny0"),
            (-5.6, 42.6, 2_157_242_200_379_188.0, "ezs42e44yx0"),
            (180.0, 85.051_128_78, 13_510_798_882_111_488.0, "bp05b5048p0"),
            (-180.0, -85.051_128_78, 0.0, "00bh0hbj200"),
            (180.0, 0.0, 10_133_099_161_583_616.0, "80000000000"),
            (0.0, 85.051_128_78, 6_755_399_441_055_744.0, "up05b5048p0"),
        ] {
            let cell = Cell::of(point(longitude, latitude), STEPS_MAX);
            assert_eq!(cell.score(), score, "{longitude} {latitude}");
            assert_eq!(Cell::of_score(score), cell);
            assert_eq!(std::str::from_utf8(&text_of(cell.middle())), Ok(text));
        }
    }

    #[test]
    fn cells_contain_their_points_and_smaller_cells() {
        let mut random = evenkeel_testkit::random::printed();
        for _ in 0..20_000 {
            let mut degrees =
                |max: f64| (random.draw() >> 11) as f64 / (1_u64 << 53) as f64 * 2.0 * max - max;
            let place = point(degrees(LONGITUDE_MAX), degrees(LATITUDE_MAX));
            let score = Cell::of(place, STEPS_MAX).score();
            for steps in 1..=STEPS_MAX {
                let cell = Cell::of(place, steps);
                let (from, to) = cell.scores();
                assert!((from..to).contains(&score));
                let area = cell.area();
                assert!((area.west..area.east).contains(&place.longitude), "{place:?} {area:?}");
                assert!((area.south..area.north).contains(&place.latitude), "{place:?} {area:?}");
                assert_eq!(Cell::of(cell.middle(), steps), cell);
            }
        }
    }

    #[test]
    fn neighbouring_cells_adjoin_also_across_the_date_line() {
        let mut random = evenkeel_testkit::random::printed();
        for _ in 0..20_000 {
            let steps = random.between(1, 26) as u32;
            let cell = Cell { bits: random.draw() >> (64 - 2 * steps), steps };
            for (east, north) in [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)] {
                let other = cell.neighbour(east, north);
                assert_eq!(other.neighbour(-east, -north), cell);
                let index = |cell: Cell| [every_other(cell.bits >> 1), every_other(cell.bits)];
                let side = 1_i64 << steps;
                let [x, y] = [0, 1].map(|axis| i64::from(index(cell)[axis]));
                let expected =
                    [(x + i64::from(east)).rem_euclid(side), (y + i64::from(north)).rem_euclid(side)];
                assert_eq!(index(other).map(i64::from), expected);
            }
        }
    }

    /// Bits beyond 52 mean a longitude beyond the map, and so on.
    #[test]
    fn any_score_decodes_to_coordinates() {
        let places = [-1.0, f64::INFINITY, f64::NEG_INFINITY, 1e19, 9.3e18, 0.5, 4_503_599_627_370_496.0]
            .map(|score| Cell::of_score(score).middle());
        let (east, west) = (180.0, -179.999_997_317_791);
        let (north, south) = (85.051_128_78, -85.051_127_512_639_43);
        let expected = [
            (east, north),
            (west, south),
            (east, south),
            (east, north),
            (east, north),
            (west, south),
            (west, north),
        ];
        for (place, (longitude, latitude)) in places.into_iter().zip(expected) {
            assert!((place.longitude - longitude).abs() < 1e-9, "{place:?}");
            assert!((place.latitude - latitude).abs() < 1e-9, "{place:?}");
        }
    }
}
