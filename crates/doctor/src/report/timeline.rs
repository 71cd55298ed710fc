//! The time line of requests in hand, as a drawing for the page: an area for the clients' requests inside the
//! server, and above it an area for its own requests to other servers.
//!
//! The drawing has only numbers and fixed words, so it is markup and not data of the page's script.

use std::fmt::Write;

use crate::recording::{Moment, Recording};

/// Units of the drawing, which the page stretches.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 100.0;

/// A section of the page; nothing if no request was in hand at any moment.
pub(super) fn section(recording: &Recording) -> String {
    let (moments, window_ms) = (&recording.moments, recording.window_ns as f64 / 1e6);
    let most = moments.iter().map(|moment| moment.inside.max(moment.upstream)).max().unwrap_or(0);
    if most == 0 || window_ms <= 0.0 {
        return String::new();
    }
    let inside = area(moments, window_ms, most, |moment| moment.inside);
    let has_upstream = moments.iter().any(|moment| moment.upstream > 0);
    let upstream = if has_upstream { area(moments, window_ms, most, |m| m.upstream) } else { String::new() };
    let key = match has_upstream {
        true => "<span class=\"key upstream\">its requests to other servers</span>",
        false => "",
    };
    let seconds = |part: f64| format!("{:.1} s", window_ms / 1e3 * part);
    format!(
        "<section id=\"timeline\"><h2>Requests in hand</h2>\
         <p class=\"legend\"><span class=\"key inside\">clients' requests inside for 10 ms and more</span>\
         {key}</p>\
         <div class=\"plot\"><div class=\"y\"><span>{most}</span><span>0</span></div>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Requests in hand over the window, at most {most}\">\
         <path class=\"inside\" d=\"{inside}\"/><path class=\"upstream\" d=\"{upstream}\"/></svg>\
         <div class=\"x\"><span>0 s</span><span>{}</span><span>{}</span></div></div></section>",
        seconds(0.5),
        seconds(1.0)
    )
}

/// The path of an area: each value lasts until the next moment.
fn area(moments: &[Moment], window_ms: f64, most: u64, value: impl Fn(&Moment) -> u64) -> String {
    let x = |at_ms: u64| (at_ms as f64 / window_ms).clamp(0.0, 1.0) * WIDTH;
    let y = |value: u64| HEIGHT - value as f64 / most as f64 * HEIGHT;
    let first = moments.first().map_or(0.0, |moment| x(moment.at_ms));
    let mut path = format!("M{first:.1} {HEIGHT}");
    for moment in moments {
        let _ = write!(path, "H{:.1}V{:.1}", x(moment.at_ms), y(value(moment)));
    }
    let _ = write!(path, "H{WIDTH}V{HEIGHT}Z");
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn an_area_is_as_high_as_its_requests_and_without_requests_there_is_none() {
        let mut recording = golden::idle();
        let moment = |at_ms, inside, upstream| Moment { at_ms, inside, upstream };
        recording.moments = vec![moment(0, 0, 0), moment(5_000, 0, 0)];
        assert_eq!(section(&recording), "");
        recording.moments = vec![moment(0, 0, 0), moment(5_000, 4, 1), moment(99_000, 2, 0)];
        let drawn = section(&recording);
        assert!(drawn.contains("M0.0 100H0.0V100.0H300.0V0.0H600.0V50.0H600V100Z"), "{drawn}");
        assert!(drawn.contains("M0.0 100H0.0V100.0H300.0V75.0H600.0V100.0H600V100Z"), "{drawn}");
        assert!(drawn.contains("<span>4</span>") && drawn.contains("<span>10.0 s</span>"), "{drawn}");
        recording.moments[1].upstream = 0;
        assert!(!section(&recording).contains("other servers"), "no key without its area");
    }
}
