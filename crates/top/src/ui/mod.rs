//! The screen: a header, the tabs, a view, and a footer.

mod canvas;
mod lists;
mod overview;
mod replication;
#[cfg(test)]
mod tests;
mod theme;

use std::time::Instant;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::App;
use crate::info::Info;
use crate::poll::View;
use crate::text::{bytes, uptime};
use canvas::{put, put_right};
pub(crate) use theme::Theme;

const KEYS: &[(&str, &str)] = &[
    ("1 .. 6, Tab", "choose a view"),
    ("arrows, PgUp, PgDn", "scroll"),
    ("s", "sort by the next column"),
    ("p", "pause, and continue"),
    ("+ -", "longer, shorter interval"),
    ("?", "open and close this list"),
    ("q, Ctrl-C", "quit"),
];

/// Greatest height of a screen on which each line counts.
const LOW: u16 = 27;

/// Draws the screen.
pub(crate) fn draw(buffer: &mut Buffer, app: &mut App, theme: Theme) {
    let area = buffer.area;
    header(buffer, area, app, theme);
    // A low screen has no empty line below the tabs.
    let (top, bottom) = if app.is_once { (2, 0) } else { (2 + u16::from(area.height > LOW), 1) };
    if !app.is_once {
        tabs(buffer, area, app, theme);
    }
    let height = area.height.saturating_sub(top + bottom);
    let inner = Rect::new(area.x + 1, area.y + top, area.width.saturating_sub(2), height);
    app.lines = None;
    match app.request.view {
        View::Overview => overview::draw(buffer, inner, app, theme),
        View::Commands => lists::commands(buffer, inner, app, theme),
        View::SlowLog => lists::slow_log(buffer, inner, app, theme),
        View::Clients => lists::clients(buffer, inner, app, theme),
        View::Replication => replication::draw(buffer, inner, app, theme),
        View::Findings => lists::findings(buffer, inner, app, theme),
    }
    if !app.is_once {
        footer(buffer, area, app, theme);
    }
    if app.is_help_open {
        help(buffer, area, theme);
    }
}

/// Draws the server's name and state, or the reason why there is no connection.
fn header(buffer: &mut Buffer, area: Rect, app: &App, theme: Theme) {
    let width = area.width.saturating_sub(2);
    if let Some(lost) = &app.lost {
        let seconds = lost.retry.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
        let text = format!("{}: no connection: {}", app.address, lost.reason);
        put(buffer, area.x + 1, area.y, width, &text, theme.alarm());
        let next = format!("  next attempt in {seconds:.0} s");
        if text.len() + next.len() <= usize::from(width) {
            put_right(buffer, area.x + 1, area.y, width, &next, theme.dim());
        }
        return;
    }
    let Some(sample) = &app.sample else {
        put(buffer, area.x + 1, area.y, width, &format!("connecting to {}", app.address), theme.dim());
        return;
    };
    let info = &sample.info;
    let name = name(info);
    put(buffer, area.x + 1, area.y, width, &name, theme.title());
    let mut x = area.x + 1 + name.len() as u16;
    for part in [role(info), app.address.clone(), memory(info), up(info)] {
        let length = part.chars().count() as u16;
        let is_first = x == area.x + 1 + name.len() as u16;
        if !part.is_empty() && (is_first || x + 2 + length < area.right()) {
            put(buffer, x + 2, area.y, length, &part, theme.value());
            x += 2 + length;
        }
    }
}

/// Returns the server's name and version.
fn name(info: &Info) -> String {
    let name = info.text("server_name").filter(|name| name != "redis").unwrap_or_else(|| "redis".into());
    let version = info.text(&format!("{name}_version")).or_else(|| info.text("redis_version"));
    format!("{name} {}", version.unwrap_or_default()).trim_end().to_owned()
}

/// Returns the role, under its modern name.
fn role(info: &Info) -> String {
    match info.text("role").as_deref() {
        Some("master") => "primary".into(),
        Some("slave") => "replica".into(),
        other => other.unwrap_or_default().into(),
    }
}

fn up(info: &Info) -> String {
    info.number("uptime_in_seconds").map(|seconds| format!("up {}", uptime(seconds))).unwrap_or_default()
}

/// Returns the use of `maxmemory`.
fn memory(info: &Info) -> String {
    match (info.number("used_memory"), info.number("maxmemory")) {
        (Some(used), Some(limit)) if limit > 0.0 => {
            format!("memory {} of {}", bytes(used), bytes(limit))
        }
        (Some(_), Some(_)) => "no maxmemory".into(),
        _ => String::new(),
    }
}

fn tabs(buffer: &mut Buffer, area: Rect, app: &App, theme: Theme) {
    let mut x = area.x;
    for (index, view) in View::ALL.into_iter().enumerate() {
        let title = format!(" {} {} ", index + 1, view.title());
        let style = if view == app.request.view { theme.chosen() } else { theme.label() };
        put(buffer, x, area.y + 1, area.right().saturating_sub(x), &title, style);
        x += title.len() as u16;
    }
}

/// Draws the keys, and at the right a message.
fn footer(buffer: &mut Buffer, area: Rect, app: &App, theme: Theme) {
    let y = area.bottom().saturating_sub(1);
    let seconds = app.request.interval.as_secs_f64();
    let keys = format!("q quit  ? help  p pause  s sort  +/- interval {seconds}s");
    put(buffer, area.x + 1, y, area.width.saturating_sub(2), &keys, theme.dim());
    let forbidden = app.forbidden().join(", ");
    let (message, style) = match app.request.is_paused {
        true => ("PAUSED".to_owned(), theme.alarm()),
        false if !forbidden.is_empty() => (format!("no permission: {forbidden}"), theme.warning()),
        false => (lines(app), theme.dim()),
    };
    if message.is_empty() {
        return;
    }
    let width = (message.chars().count() as u16 + 2).min(area.width.saturating_sub(2));
    let x = area.right().saturating_sub(1 + width);
    put(buffer, x, y, width, &" ".repeat(width.into()), theme.value());
    put_right(buffer, x, y, width, &message, style);
}

/// Returns the lines that a list shows, if it has more.
fn lines(app: &App) -> String {
    match app.lines {
        Some((all, height)) if all > height => {
            let from = app.scroll();
            format!("{} - {} of {all}", from + 1, (from + height).min(all))
        }
        _ => String::new(),
    }
}

fn help(buffer: &mut Buffer, area: Rect, theme: Theme) {
    let (width, height) = (54.min(area.width), (KEYS.len() as u16 + 4).min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let inner = usize::from(width.saturating_sub(2));
    for line in 0..height {
        let (left, fill, right) = match line {
            0 => ("┌", "─", "┐"),
            _ if line + 1 == height => ("└", "─", "┘"),
            _ => ("│", " ", "│"),
        };
        let text = format!("{left}{}{right}", fill.repeat(inner));
        put(buffer, x, y + line, width, &text, theme.value());
    }
    put(buffer, x + 2, y, width.saturating_sub(4), " Keys ", theme.title());
    for ((key, effect), line) in KEYS.iter().zip(2..height.saturating_sub(1)) {
        put(buffer, x + 3, y + line, 20, key, theme.name());
        put(buffer, x + 24, y + line, width.saturating_sub(26), effect, theme.value());
    }
}
