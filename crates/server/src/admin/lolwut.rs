//! LOLWUT: a picture. A ship lies on a sea which is as rough as the latencies of commands are uneven.

use std::fmt::Write as _;

use super::{Command, Flags, Group, ServerCall, ServerHandler, at_least, session};
use crate::observe::info::latencies_of;
use crate::observe::stats::Latencies;
use crate::startup::VERSION;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::table::table;
use evenkeel_runtime::random::fill_random;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("LOLWUT", at_least(1), Group::Server, lolwut).fast().scriptable()
        .without(Flags::LOADING.with(Flags::STALE)).flag(Flags::READONLY),
];

const SHIP: [&str; 6] = [
    r"        |\       ",
    r"        | \      ",
    r"        |  \     ",
    r"        |___\    ",
    r"  \_____|______/ ",
    r"   \__________/  ",
];
/// Rows of the ship that are below the water where that is flat.
const DRAUGHT: usize = 1;

/// Characters in a row: a number that fits most terminals, and the bounds of the argument.
const COLUMNS: i64 = 66;
const COLUMNS_MIN: i64 = 24;
const COLUMNS_MAX: i64 = 400;

/// Rows between the crest of the highest wave and its trough.
const SWELL_MAX: usize = 6;

/// LOLWUT [VERSION version] [columns]
///
/// Every version has the same picture.
fn lolwut(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let with_version = args.len() > 2 && args.is(1, "VERSION");
    if with_version {
        args.int(2)?;
    }
    let columns_at = if with_version { 3 } else { 1 };
    let columns = if args.len() > columns_at && !args.is(columns_at, "VERSION") {
        args.int(columns_at)?.clamp(COLUMNS_MIN, COLUMNS_MAX)
    } else {
        COLUMNS
    };
    let mut all = Latencies::default();
    (0..table().rows().len()).for_each(|index| all.add(&latencies_of(call.server, index)));
    let mut chance = [0; 2];
    fill_random(&mut chance);
    let mut text = picture(columns as usize, swell(&all), chance);
    let (half, thousandth) = (all.percentile_us(50.0), all.percentile_us(99.9));
    if all.count() > 0 {
        let _ = writeln!(
            text,
            "\nHalf of the commands took up to {half:.1} us, one in a thousand more than {thousandth:.1} us."
        );
    }
    let _ = writeln!(text, "\nEvenkeel ver. {VERSION}");
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}

/// Returns the height of the waves: a row for each doubling of the slowest thousandth, relative to the
/// median, from four times on.
fn swell(latencies: &Latencies) -> usize {
    if latencies.count() == 0 {
        return 0;
    }
    let uneven = latencies.percentile_us(99.9) / latencies.percentile_us(50.0).max(0.001);
    (uneven.log2() - 1.0).clamp(0.0, SWELL_MAX as f64) as usize
}

/// Draws waves of this height, with the ship upright on them. At random: the place of the ship, and where the
/// waves begin.
fn picture(columns: usize, swell: usize, [place, phase]: [u8; 2]) -> String {
    let width = SHIP[0].len();
    let ship_at = usize::from(place) * (columns - width) / 255;
    let wave = |column: usize| {
        let angle = (column as f64 / 11.0 + f64::from(phase) / 255.0) * std::f64::consts::TAU;
        ((angle.sin() + 1.0) / 2.0 * swell as f64).round() as usize
    };
    // It floats on the water amidships.
    let deck = SHIP.len() - DRAUGHT;
    let ship_top = wave(ship_at + width / 2);
    let mut rows = vec![vec![' '; columns]; deck + swell + DRAUGHT + 1];
    for column in 0..columns {
        let surface = deck + wave(column);
        rows[surface][column] = '~';
        (surface + 1..rows.len())
            .filter(|row| (row + column) % 3 == 0)
            .for_each(|row| rows[row][column] = '-');
    }
    for (row, line) in SHIP.iter().enumerate() {
        let (first, last) = (line.find(|c| c != ' '), line.rfind(|c| c != ' '));
        let (Some(first), Some(last)) = (first, last) else { continue };
        for (column, sign) in line.chars().enumerate().take(last + 1).skip(first) {
            let cell = &mut rows[ship_top + row][ship_at + column];
            // Between mast and sail the sea is visible; the hull is solid.
            if sign != ' ' || row >= deck - 1 {
                *cell = sign;
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        let row: String = row.into_iter().collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, check};

    #[test]
    fn lolwut_draws_for_each_version() {
        World::new().check(
            "
            > LOLWUT                    < \"*~~~*Evenkeel ver. *\"
            > LOLWUT 30                 < \"*~~~*Half of the commands took up to *\"
            > LOLWUT VERSION 5 40       < \"*~~~*\"
            > LOLWUT VERSION            < \"*~~~*\"
            > LOLWUT 9223372036854775807 < \"*~~~*\"
            > LOLWUT -1                 < \"*~~~*\"
            > LOLWUT x                  < -ERR value is not an integer or out of range
            > LOLWUT VERSION 5 x        < -ERR value is not an integer or out of range
        ",
        );
        check("> LOLWUT VERSION x < -ERR value is not an integer or out of range");
    }

    #[test]
    fn the_ship_floats_on_every_sea() {
        for columns in [COLUMNS_MIN as usize, 66, 400] {
            for swell in 0..=SWELL_MAX {
                for chance in [[0, 0], [255, 255], [7, 100], [200, 31]] {
                    let text = picture(columns, swell, chance);
                    assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
                    let mast: Vec<usize> = text.lines().filter_map(|line| line.find('|')).collect();
                    assert_eq!(mast.len(), 5, "{text}");
                    assert!(mast.iter().all(|column| *column == mast[0]), "{text}");
                    assert!(text.contains(r"\__________/"), "{text}");
                }
            }
        }
    }

    #[test]
    fn waves_follow_the_spread_of_latencies() {
        let mut even = Latencies::default();
        (0..2_000).for_each(|_| even.record(1_000));
        assert_eq!(swell(&Latencies::default()), 0);
        assert_eq!(swell(&even), 0);
        let mut uneven = even.clone();
        (0..10).for_each(|_| uneven.record(16_500));
        assert_eq!(swell(&uneven), 3);
        (0..10).for_each(|_| uneven.record(1_000_000_000));
        assert_eq!(swell(&uneven), SWELL_MAX);
    }
}
