//! Line charts: a record's `curves`, which show a metric by the number of cores, or of clients.
//!
//! A chart contains all servers, each named at the end of its line. Dashes and the form of the dots
//! distinguish them where there are no colours. The lines join medians; the range of the rounds stands at
//! each, a little beside its neighbours'.

use std::fmt::Write;

use super::axis::{NUMBER_MAX, label, step, ticks};
use super::escaped;
use crate::json::Json;
use crate::read::{list, text};

/// All lengths in the drawing's own units.
const WIDTH: f64 = 815.0;
const LEFT: f64 = 95.0;
const HEIGHT_MIN: f64 = 220.0;
const TOP: f64 = 10.0;
const FOOT_HEIGHT: f64 = 40.0;
/// Between the plot's edges and the nearest points.
const MARGIN: f64 = 14.0;
/// The names at the right, each behind a piece of its line.
const LABEL_HEIGHT: f64 = 16.0;
const LEADER: f64 = 18.0;
const SAMPLE: f64 = 30.0;
/// Approximate width of a letter, and most letters of a name.
const LETTER: f64 = 6.0;
const LETTERS_MAX: usize = 36;
/// Between the ranges of two servers at the same place.
const ASIDE: f64 = 3.0;
/// An x-axis with a larger span is logarithmic.
const LINEAR_MAX: f64 = 16.0;
/// On a logarithmic axis, zero stands this share of its length before the first number.
const NOUGHT: f64 = 0.08;
const IDEAL: &str = "perfect scaling";
/// Points of a curve that is not straight.
const IDEAL_POINTS: usize = 40;
/// Dashes of servers other than Evenkeel. `page.css` repeats the number of colours.
const DASHES: [&str; 5] = ["7 3", "2 3", "10 3 2 3", "4 2", "10 3 2 3 2 3"];
const COLOURS: usize = 5;

struct Point {
    x: f64,
    median: f64,
    min: f64,
    max: f64,
}

struct Line {
    name: String,
    style: Style,
    points: Vec<Point>,
}

#[derive(Clone, Copy)]
struct Style {
    is_ours: bool,
    /// Index among Evenkeel's lines, or among the other lines.
    number: usize,
}

pub(super) fn draw(record: &Json, out: &mut String) {
    let says_ideal = |of: &Json| of.get("ideal").and_then(Json::as_bool) == Some(true);
    for curve in list(record, "curves") {
        let lines = lines(curve);
        if !lines.is_empty() {
            let chart = Chart::new(lines, says_ideal(curve) || says_ideal(record));
            chart.draw(text(curve, "what"), text(curve, "x"), out);
        }
    }
}

/// Returns the servers that have at least a point.
fn lines(curve: &Json) -> Vec<Line> {
    let numbers = |of, name| -> Vec<Option<f64>> {
        let number = |value: &Json| value.as_f64().filter(|number| number.abs() <= NUMBER_MAX);
        list(of, name).map(number).collect()
    };
    let xs = numbers(curve, "x_values");
    let mut lines: Vec<Line> = Vec::new();
    for series in list(curve, "series") {
        let [medians, least, most] = ["median", "min", "max"].map(|name| numbers(series, name));
        let at = |values: &[Option<f64>], index: usize| values.get(index).copied().flatten();
        let mut points: Vec<Point> = (0..xs.len())
            .filter_map(|index| {
                let (x, median) = (at(&xs, index).filter(|x| *x >= 0.0)?, at(&medians, index)?);
                let (min, max) = (at(&least, index).unwrap_or(median), at(&most, index).unwrap_or(median));
                Some(Point { x, median, min: min.min(median), max: max.max(median) })
            })
            .collect();
        if points.is_empty() {
            continue;
        }
        points.sort_by(|one, other| one.x.total_cmp(&other.x));
        let name = text(series, "server").to_owned();
        let is_ours = name.starts_with("evenkeel");
        let number = lines.iter().filter(|line| line.style.is_ours == is_ours).count();
        lines.push(Line { name, style: Style { is_ours, number }, points });
    }
    lines
}

impl Style {
    fn class(self) -> String {
        if self.is_ours { "ours".to_owned() } else { format!("other{}", self.number % COLOURS) }
    }

    /// The first line of Evenkeel is solid.
    fn dashes(self) -> &'static str {
        match (self.is_ours, self.number) {
            (true, 0) => "none",
            (true, number) => DASHES[(number - 1) % DASHES.len()],
            (false, number) => DASHES[number % DASHES.len()],
        }
    }

    fn dot(self, x: f64, y: f64, out: &mut String) {
        let class = self.class();
        let _ = match (self.is_ours, self.number % 4) {
            (true, _) => write!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\"/>"),
            (false, 0) => {
                write!(out, "<circle class=\"{class} hollow\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"/>")
            }
            (false, 1) => write!(
                out,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\"/>",
                x - 3.0,
                y - 3.0
            ),
            (false, 2) => {
                write!(out, "<path class=\"{class}\" d=\"M{x:.1} {:.1}l4 7h-8z\"/>", y - 4.0)
            }
            (false, _) => {
                write!(out, "<path class=\"{class} hollow\" d=\"M{x:.1} {:.1}l4 4l-4 4l-4 -4z\"/>", y - 4.0)
            }
        };
    }
}

/// The lines with their scales.
struct Chart {
    lines: Vec<Line>,
    is_ideal: bool,
    /// The right end of the plot; the names stand to its right.
    right: f64,
    height: f64,
    is_logarithmic: bool,
    /// All places of points, ascending.
    xs: Vec<f64>,
    /// The y-axis, in whole steps.
    bottom: f64,
    top: f64,
    step: f64,
}

impl Chart {
    /// There is at least one line, and each has a point.
    fn new(lines: Vec<Line>, is_ideal: bool) -> Self {
        let points = || lines.iter().flat_map(|line| &line.points);
        let mut xs: Vec<f64> = points().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let least = xs.iter().copied().find(|x| *x > 0.0);
        let is_logarithmic = least.is_some_and(|least| xs[xs.len() - 1] > LINEAR_MAX * least);
        let most = points().map(|point| point.max).fold(0.0, f64::max);
        let least = points().map(|point| point.min).fold(0.0, f64::min);
        let span = if most > least { most - least } else { 1.0 };
        let step = step(span, 4.0);
        let whole = |value: f64| if most > least { (value / step).ceil() * step } else { value + span };
        let (top, bottom) = (whole(most), (least / step).floor() * step);
        let names = lines.iter().map(|line| line.name.chars().count().min(LETTERS_MAX));
        let letters = names.chain(is_ideal.then_some(IDEAL.len())).max().unwrap_or(0);
        let right = WIDTH - LEADER - SAMPLE - LETTER * letters as f64 - 6.0;
        let labels = lines.len() + usize::from(is_ideal);
        let height = HEIGHT_MIN.max(LABEL_HEIGHT * labels as f64);
        Self { lines, is_ideal, right, height, is_logarithmic, xs, bottom, top, step }
    }

    fn x(&self, x: f64) -> f64 {
        let (width, most) = (self.right - LEFT - MARGIN, self.xs[self.xs.len() - 1]);
        if self.xs.len() == 1 {
            return LEFT + width / 2.0;
        }
        if !self.is_logarithmic {
            return LEFT + x / most * width;
        }
        let least = self.xs.iter().copied().find(|x| *x > 0.0).unwrap_or(most);
        let nought = if self.xs[0] <= 0.0 { NOUGHT } else { 0.0 };
        let share =
            if x <= 0.0 { 0.0 } else { nought + (1.0 - nought) * (x / least).ln() / (most / least).ln() };
        LEFT + MARGIN + share * (width - MARGIN)
    }

    fn y(&self, y: f64) -> f64 {
        TOP + (self.top - y) / (self.top - self.bottom) * self.height
    }

    fn draw(&self, what: &str, x: &str, out: &mut String) {
        let caption = match x {
            "" => what.to_owned(),
            x => format!("{what}, by {x}"),
        };
        let caption = escaped(&caption);
        let mut points = self.lines.iter().flat_map(|line| &line.points);
        let has_ranges = points.any(|point| point.min < point.max);
        let rounds = if has_ranges { " (medians, and the range of the rounds)" } else { "" };
        let height = TOP + self.height + FOOT_HEIGHT;
        let _ = write!(
            out,
            "<figure>\n<figcaption>{caption}{rounds}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{caption}\">\n"
        );
        self.draw_axes(x, out);
        // The end of each label's line.
        let mut ends: Vec<(f64, f64)> = Vec::new();
        let ideal = self.ideal();
        if let Some(points) = &ideal {
            let _ = writeln!(out, "<polyline class=\"ideal\" points=\"{}\"/>", joined(points));
        }
        // Evenkeel last, so that its lines lie on top.
        let ours_last = |index: &usize| self.lines[*index].style.is_ours;
        let (ours, others): (Vec<usize>, Vec<usize>) = (0..self.lines.len()).partition(ours_last);
        others.into_iter().chain(ours).for_each(|index| self.draw_line(index, out));
        for (index, line) in self.lines.iter().enumerate() {
            let end = &line.points[line.points.len() - 1];
            ends.push((self.x(end.x) + self.aside(index), self.y(end.median)));
        }
        ends.extend(ideal.iter().filter_map(|points| points.last().copied()));
        let ys: Vec<f64> = ends.iter().map(|(_, y)| *y).collect();
        let places = apart(&ys, LABEL_HEIGHT, TOP + self.height);
        for (index, ((x, y), place)) in ends.into_iter().zip(places).enumerate() {
            self.draw_label(self.lines.get(index), (x, y), place, out);
        }
        out.push_str("</svg>\n</figure>\n");
    }

    fn draw_axes(&self, x: &str, out: &mut String) {
        for value in ticks(self.step, self.bottom, self.top) {
            let (y, class) = (self.y(value), if value == 0.0 { "axis" } else { "grid" });
            let _ = writeln!(
                out,
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                self.right,
                LEFT - 6.0,
                y + 4.0,
                label(value)
            );
        }
        let foot = TOP + self.height;
        let mut free = 0.0;
        for value in &self.xs {
            let (at, words) = (self.x(*value), label(*value));
            let half = words.chars().count() as f64 * LETTER / 2.0;
            let _ = writeln!(
                out,
                "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{foot:.1}\" y2=\"{:.1}\"/>",
                foot + 4.0
            );
            if at - half >= free {
                let _ = writeln!(
                    out,
                    "<text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{words}</text>",
                    foot + 16.0
                );
                free = at + half + LETTER;
            }
        }
        let scale = if self.is_logarithmic { " (logarithmic)" } else { "" };
        let _ = writeln!(
            out,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}{scale}</text>",
            (LEFT + self.right) / 2.0,
            foot + 33.0,
            escaped(x)
        );
    }

    /// Returns how far a server's points are moved, so that ranges do not hide each other.
    fn aside(&self, index: usize) -> f64 {
        let middle = (self.lines.len() as f64 - 1.0) / 2.0;
        let each = ASIDE.min(MARGIN / (middle + 1.0));
        (index as f64 - middle) * each
    }

    fn draw_line(&self, index: usize, out: &mut String) {
        let (line, aside) = (&self.lines[index], self.aside(index));
        let (class, dashes) = (line.style.class(), line.style.dashes());
        let at = |point: &Point| (self.x(point.x) + aside, self.y(point.median));
        let points: Vec<(f64, f64)> = line.points.iter().map(at).collect();
        let _ = writeln!(
            out,
            "<polyline class=\"line {class}\" stroke-dasharray=\"{dashes}\" points=\"{}\"/>",
            joined(&points)
        );
        for (point, (x, y)) in line.points.iter().zip(points) {
            if point.min < point.max {
                let _ = write!(
                    out,
                    "<line class=\"span {class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                    self.y(point.min),
                    self.y(point.max)
                );
            }
            line.style.dot(x, y, out);
            out.push('\n');
        }
    }

    /// Returns the line in proportion to the x-axis through the first value, as far as the chart reaches. The
    /// first value is Evenkeel's, if it takes part.
    fn ideal(&self) -> Option<Vec<(f64, f64)>> {
        let line = self.lines.iter().find(|line| line.style.is_ours).or(self.lines.first())?;
        let first = line.points.iter().find(|point| point.x > 0.0 && point.median > 0.0)?;
        let slope = first.median / first.x;
        let end = self.xs[self.xs.len() - 1].min(self.top / slope);
        if !self.is_ideal || end <= first.x {
            return None;
        }
        let point = |index: usize| {
            let x = first.x * (end / first.x).powf(index as f64 / IDEAL_POINTS as f64);
            (self.x(x), self.y(x * slope))
        };
        Some((0..=IDEAL_POINTS).map(point).collect())
    }

    /// Draws a piece of the line with its server's name; without a line, the name of perfect scaling.
    fn draw_label(&self, line: Option<&Line>, end: (f64, f64), place: f64, out: &mut String) {
        let left = self.right + LEADER;
        // From a line that ends within the plot, a leader would cross the other lines.
        if end.0 >= self.right - 2.0 * MARGIN {
            let _ = write!(
                out,
                "<line class=\"leader\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{place:.1}\"/>",
                end.0 + 6.0,
                left - 3.0,
                end.1
            );
        }
        let piece = format!("points=\"{left:.1},{place:.1} {:.1},{place:.1}\"", left + SAMPLE - 5.0);
        let (name, all) = match line {
            Some(line) => {
                let (class, dashes) = (line.style.class(), line.style.dashes());
                let _ =
                    write!(out, "<polyline class=\"line {class}\" stroke-dasharray=\"{dashes}\" {piece}/>");
                line.style.dot(left + (SAMPLE - 5.0) / 2.0, place, out);
                (shortened(&line.name), line.name.as_str())
            }
            None => {
                let _ = write!(out, "<polyline class=\"ideal\" {piece}/>");
                (IDEAL.to_owned(), IDEAL)
            }
        };
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}<title>{}</title></text>",
            left + SAMPLE,
            place + 4.0,
            escaped(&name),
            escaped(all)
        );
    }
}

fn joined(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<String>>().join(" ")
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= LETTERS_MAX {
        return name.to_owned();
    }
    name.chars().take(LETTERS_MAX - 1).chain(['…']).collect()
}

/// Moves the places as little as necessary to be `gap` apart, none of them below `bottom`.
fn apart(places: &[f64], gap: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|one, other| places[*one].total_cmp(&places[*other]));
    let mut found = places.to_vec();
    for pair in order.windows(2) {
        found[pair[1]] = found[pair[1]].max(found[pair[0]] + gap);
    }
    let mut limit = bottom;
    for index in order.into_iter().rev() {
        found[index] = found[index].min(limit);
        limit = found[index] - gap;
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drawn(curve: Json) -> String {
        let mut out = String::new();
        draw(&json!({ "curves": [curve] }), &mut out);
        assert!(!out.contains("NaN") && !out.contains("inf"), "{out}");
        out
    }

    fn series(server: &str, median: &[f64]) -> Json {
        json!({"server": server, "median": median, "min": median, "max": median})
    }

    #[test]
    fn a_chart_has_all_servers_and_no_foreign_markup() {
        let drawn = drawn(json!({
            "what": "requests <per> second", "x": "clients & more", "x_values": [1, 10, 100],
            "series": [
                {"server": "valkey", "median": [10, 20, 30], "min": [9, 19, 29], "max": [11, 21, 31]},
                {"server": "evenkeel", "median": [10, 30, 90], "min": [10, 25, 80], "max": [10, 35, 95]},
                series("a<b", &[1.0, 2.0, 3.0]),
            ],
        }));
        for part in [
            "requests &lt;per&gt; second, by clients &amp; more",
            "(logarithmic)",
            ">valkey<",
            "a&lt;b",
            "class=\"line ours\" stroke-dasharray=\"none\"",
            "class=\"line other0\" stroke-dasharray=\"7 3\"",
            "class=\"line other1\" stroke-dasharray=\"2 3\"",
            ">100</text>",
            ">80</text>",
        ] {
            assert!(drawn.contains(part), "{part} in {drawn}");
        }
        assert!(!drawn.contains("a<b") && !drawn.contains(IDEAL), "{drawn}");
        assert_eq!(drawn.matches("class=\"span").count(), 5, "{drawn}");
    }

    #[test]
    fn the_axis_is_logarithmic_for_a_wide_span() {
        let chart = |xs: &[f64]| {
            let curve = json!({"x_values": xs, "series": [series("x", &vec![1.0; xs.len()])]});
            Chart::new(lines(&curve), false)
        };
        assert!(!chart(&[1.0, 16.0]).is_logarithmic && chart(&[1.0, 16.1]).is_logarithmic);
        assert!(!chart(&[0.0, 1.0, 2.0]).is_logarithmic && !chart(&[0.0]).is_logarithmic);
        let wide = chart(&[0.0, 1.0, 10.0, 100.0]);
        let [nought, one, ten, hundred] = [0.0, 1.0, 10.0, 100.0].map(|x| wide.x(x));
        assert!(nought < one && ((hundred - ten) - (ten - one)).abs() < 1e-9 && hundred < wide.right);
        let narrow = chart(&[1.0, 2.0, 4.0]);
        assert!((narrow.x(4.0) - LEFT - 4.0 * (narrow.x(1.0) - LEFT)).abs() < 1e-9, "from nought");
    }

    #[test]
    fn perfect_scaling_is_drawn_if_the_record_says_so() {
        let curve = |ideal: Json| {
            json!({"x": "cores", "x_values": [1, 2, 4], "ideal": ideal,
                                         "series": [series("redis", &[5.0, 6.0, 8.0]),
                                                    series("evenkeel", &[2.0, 4.0, 7.0])]})
        };
        assert!(drawn(curve(true.into())).contains(IDEAL));
        for no in [Json::Null, false.into(), "true".into()] {
            assert!(!drawn(curve(no)).contains(IDEAL));
        }
        let chart = Chart::new(lines(&curve(true.into())), true);
        let ideal = chart.ideal().expect("it is drawn");
        let (last, expected) = (ideal[ideal.len() - 1], (chart.x(4.0), chart.y(8.0)));
        assert!((last.0 - expected.0).abs() < 1e-6 && (last.1 - expected.1).abs() < 1e-6, "{last:?}");
    }

    #[test]
    fn odd_curves_are_drawn_as_far_as_they_go() {
        for nothing in [
            json!({}),
            json!(7),
            json!({"x_values": [], "series": [series("x", &[])]}),
            json!({"x_values": [1], "series": []}),
            json!({"x_values": [null, "a", -1], "series": [series("x", &[1.0, 2.0, 3.0])]}),
            json!({"x_values": [1], "series": [{"server": "x", "median": [null]}]}),
            json!({"x_values": [1], "series": [{"server": "x", "median": [1e300]}]}),
            json!({"x_values": 3, "series": [{"server": 5, "median": "m"}]}),
        ] {
            assert_eq!(drawn(nothing.clone()), "", "{nothing}");
        }
        for some in [
            json!({"x_values": [5], "series": [series("one value", &[3.0])], "ideal": true}),
            json!({"x_values": [0], "series": [series("x", &[3.0])], "ideal": true}),
            json!({"x_values": [0, 0], "series": [series("x", &[0.0, 0.0])], "ideal": true}),
            json!({"x_values": [1, 2], "series": [series("zeros", &[0.0, 0.0])], "ideal": true}),
            json!({"x_values": [1, 1e15], "series": [series("x", &[1e-12, 1e15])]}),
            json!({"x_values": [1, 2, 3],
                   "series": [{"server": "gap", "median": [1, null, 3], "min": [null, 1], "max": []}]}),
            json!({"x_values": [1, 2], "series": [series("below", &[-3.0, -1.0])]}),
        ] {
            assert_eq!(drawn(some.clone()).matches("<figure>").count(), 1, "{some}");
        }
    }

    #[test]
    fn names_keep_apart() {
        assert_eq!(apart(&[10.0, 11.0, 50.0], 5.0, 60.0), [10.0, 15.0, 50.0]);
        assert_eq!(apart(&[60.0, 60.0, 58.0], 5.0, 60.0), [55.0, 60.0, 50.0]);
        assert_eq!(apart(&[], 5.0, 60.0), Vec::<f64>::new());
        assert_eq!(shortened(&"é".repeat(50)).chars().count(), LETTERS_MAX);
    }
}
