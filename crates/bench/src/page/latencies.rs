//! Latency over time: a record's `timelines` below each other, all on the same scales.
//!
//! A moment without a reply has no point: the line goes on to the reply that was waited for.

use std::fmt::Write;

use super::axis::{NUMBER_MAX, label, step, ticks};
use super::escaped;
use crate::json::Json;
use crate::read::{list, text};
use crate::table::time_us;

/// All lengths in the drawing's own units.
const LEFT: f64 = 75.0;
const WIDTH: f64 = 720.0;
const RIGHT: f64 = 20.0;
const NAME_HEIGHT: f64 = 22.0;
const FOOT_HEIGHT: f64 = 20.0;
/// Three panels of 120 and five of 90 fill less than half a page of paper, and two thirds.
const HEIGHT: f64 = 120.0;
const HEIGHT_OF_MANY: f64 = 90.0;
const FEW: usize = 3;
/// Most panels in a figure, which has to fit on a page of paper.
const PANELS_MAX: usize = 5;
/// Most points of a curve: of neighbours, the longest is drawn.
const POINTS_MAX: usize = 700;
/// The scale's lower end, and its largest upper end.
const LEAST_US: f64 = 10.0;
const MOST_US: f64 = 1e10;

struct Timeline<'a> {
    server: &'a str,
    slice_ms: f64,
    /// Microseconds per slice; NaN for a slice without a reply.
    longest: Vec<f64>,
    event: &'a str,
    event_ms: Option<(f64, f64)>,
}

impl<'a> Timeline<'a> {
    /// `None` if there is nothing to draw.
    fn of(record: &'a Json) -> Option<Self> {
        let slice_ms = record.get("slice_ms").and_then(Json::as_f64)?;
        let numbers = |name| list(record, name).map(|value| value.as_f64().unwrap_or(f64::NAN));
        let longest: Vec<f64> = numbers("longest_us").collect();
        let event_ms = match numbers("event_ms").collect::<Vec<f64>>()[..] {
            [from, to] if from <= to => Some((from, to)),
            _ => None,
        };
        let timeline = Self {
            server: text(record, "server"),
            slice_ms,
            longest,
            event: text(record, "event"),
            event_ms,
        };
        (timeline.most() > 0.0 && (0.0..NUMBER_MAX).contains(&timeline.whole_ms()) && slice_ms > 0.0)
            .then_some(timeline)
    }

    fn most(&self) -> f64 {
        self.longest.iter().copied().fold(0.0, f64::max).min(MOST_US)
    }

    fn whole_ms(&self) -> f64 {
        self.slice_ms * self.longest.len() as f64
    }
}

/// The scales of all panels.
struct Scales {
    whole_ms: f64,
    top_us: f64,
    height: f64,
}

impl Scales {
    fn x(&self, ms: f64) -> f64 {
        LEFT + ms.clamp(0.0, self.whole_ms) / self.whole_ms * WIDTH
    }

    /// Offset below the panel's top, logarithmic.
    fn y(&self, us: f64) -> f64 {
        let share = (us.clamp(LEAST_US, self.top_us) / LEAST_US).log10() / (self.top_us / LEAST_US).log10();
        self.height * (1.0 - share)
    }
}

pub(super) fn draw(record: &Json, out: &mut String) {
    let timelines: Vec<Timeline<'_>> = list(record, "timelines").filter_map(Timeline::of).collect();
    let most = timelines.iter().map(Timeline::most).fold(LEAST_US * 10.0, f64::max);
    let scales = Scales {
        whole_ms: timelines.iter().map(Timeline::whole_ms).fold(0.0, f64::max),
        top_us: 10f64.powf(most.log10().ceil()),
        height: if timelines.len() <= FEW { HEIGHT } else { HEIGHT_OF_MANY },
    };
    for panels in timelines.chunks(PANELS_MAX) {
        figure(panels, &scales, out);
    }
}

fn figure(panels: &[Timeline<'_>], scales: &Scales, out: &mut String) {
    let mut events: Vec<&str> =
        panels.iter().map(|one| one.event).filter(|event| !event.is_empty()).collect();
    events.dedup();
    let mut caption = "longest latency over time".to_owned();
    if let [event] = events[..] {
        caption += &format!("; shaded: {event}");
    }
    let (width, each) = (LEFT + WIDTH + RIGHT, NAME_HEIGHT + scales.height);
    let height = each * panels.len() as f64 + FOOT_HEIGHT;
    let caption = escaped(&caption);
    let _ = write!(
        out,
        "<figure>\n<figcaption>{caption}</figcaption>\n\
         <svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{caption}\">\n"
    );
    for (index, timeline) in panels.iter().enumerate() {
        let top = each * index as f64 + NAME_HEIGHT;
        let event = if events.len() > 1 { timeline.event } else { "" };
        panel(timeline, scales, top, event, out);
    }
    let step_ms = step(scales.whole_ms, 4.0);
    for ms in ticks(step_ms, 0.0, scales.whole_ms) {
        let (x, y) = (scales.x(ms), height - 6.0);
        let _ =
            writeln!(out, "<text class=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{} s</text>", label(ms / 1e3));
    }
    out.push_str("</svg>\n</figure>\n");
}

/// The event is named if the panels of a figure have different events.
fn panel(timeline: &Timeline<'_>, scales: &Scales, top: f64, event: &str, out: &mut String) {
    let (left, right, bottom) = (scales.x(0.0), scales.x(scales.whole_ms), top + scales.height);
    let mut words = format!("longest {}", time_us(timeline.most()));
    if !event.is_empty() {
        words += &format!("; shaded: {event}");
    }
    let _ = writeln!(
        out,
        "<text x=\"{left}\" y=\"{:.1}\"><tspan class=\"strong\">{}</tspan> \u{a0}{}</text>",
        top - 6.0,
        escaped(timeline.server),
        escaped(&words)
    );
    if let Some((from, to)) = timeline.event_ms {
        let (from, to) = (scales.x(from), scales.x(to));
        let _ = writeln!(
            out,
            "<rect class=\"event\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{}\">\
             <title>{}</title></rect>",
            to - from,
            scales.height,
            escaped(timeline.event)
        );
    }
    for ms in ticks(step(scales.whole_ms, 4.0), 0.0, scales.whole_ms) {
        let x = scales.x(ms);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>"
        );
    }
    let decades = (scales.top_us / LEAST_US).log10().round() as i32;
    for us in (0..=decades).map(|decade| LEAST_US * 10f64.powi(decade)) {
        let y = top + scales.y(us);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            y + 4.0,
            power(us)
        );
    }
    let class = if timeline.server.starts_with("evenkeel") { "ours" } else { "theirs" };
    let _ = writeln!(out, "<polyline class=\"curve {class}\" points=\"{}\"/>", points(timeline, scales, top));
}

/// `10 us`, `1 ms`, `100 s`: each tick is ten times the tick before.
fn power(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.0} s", us / 1e6),
    }
}

fn points(timeline: &Timeline<'_>, scales: &Scales, top: f64) -> String {
    let each = timeline.longest.len().div_ceil(POINTS_MAX);
    let chunks = timeline.longest.chunks(each).enumerate();
    let longest = chunks.filter_map(|(index, part)| {
        let us = part.iter().copied().filter(|us| *us > 0.0).reduce(f64::max)?;
        let ms = index as f64 * each as f64 * timeline.slice_ms;
        Some(format!("{:.1},{:.1}", scales.x(ms), top + scales.y(us)))
    });
    longest.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drawn(timelines: Json) -> String {
        let mut out = String::new();
        draw(&json!({ "timelines": timelines }), &mut out);
        assert!(!out.contains("NaN") && !out.contains("inf"), "{out}");
        out
    }

    #[test]
    fn all_have_the_scales_of_the_longest() {
        let drawn = drawn(json!([
            {"server": "evenkeel", "slice_ms": 500, "longest_us": [10.0, 100.0],
             "event": "BGSAVE", "event_ms": [0, 500]},
            {"server": "valkey", "slice_ms": 1000, "longest_us": [10.0, 2e6, 10.0, 10.0], "event": "BGSAVE"},
        ]));
        assert_eq!((drawn.matches("<figure>").count(), drawn.matches("<polyline").count()), (1, 2));
        assert_eq!(drawn.matches(">10 s<").count(), 2, "both reach up to it");
        // 500 ms of four seconds; 100 us are one of six decades.
        assert!(drawn.contains("points=\"75.0,142.0 165.0,122.0\""), "{drawn}");
        assert!(drawn.contains(">4 s<") && drawn.contains("shaded: BGSAVE<"), "{drawn}");
        assert!(drawn.contains(">valkey</tspan> \u{a0}longest 2.00 s<"), "{drawn}");
    }

    #[test]
    fn many_are_more_than_one_figure_and_different_events_are_named_at_each() {
        let one = |event: &str| {
            json!({"server": "a<b", "slice_ms": 10, "longest_us": [5, null, 7],
                   "event": event})
        };
        let drawn = drawn(json!([one("x"), one("y&z"), one("x"), one("x"), one("x"), one("x")]));
        assert_eq!((drawn.matches("<figure>").count(), drawn.matches("<polyline").count()), (2, 6));
        assert!(drawn.contains("a&lt;b") && drawn.contains("y&amp;z") && !drawn.contains("a<b"), "{drawn}");
    }

    #[test]
    fn a_moment_without_an_answer_has_no_point() {
        let drawn = drawn(json!([{"server": "x", "slice_ms": 1000, "longest_us": [10, 0, null, 100]}]));
        assert!(drawn.contains("points=\"75.0,142.0 615.0,22.0\""), "{drawn}");
    }

    #[test]
    fn invalid_timelines_are_left_out() {
        let odd = json!([
            {}, 3, null,
            {"server": "x", "slice_ms": 10, "longest_us": []},
            {"server": "x", "slice_ms": 10, "longest_us": [0, 0]},
            {"server": "x", "slice_ms": 10, "longest_us": [null]},
            {"server": "x", "slice_ms": 0, "longest_us": [1]},
            {"server": "x", "slice_ms": -1, "longest_us": [1]},
            {"server": "x", "slice_ms": 1e308, "longest_us": [1, 1, 1]},
            {"server": "x", "slice_ms": null, "longest_us": [1]},
        ]);
        assert_eq!(drawn(odd), "");
        let one_value = json!([{"slice_ms": 10, "longest_us": [1e300], "event_ms": [9, 1]}]);
        assert_eq!(drawn(one_value).matches("<polyline").count(), 1);
        assert_eq!(drawn(json!("text")), "");
    }
}
