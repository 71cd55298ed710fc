//! The overview: key values, curves, workers, top commands.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::{curve, put, put_right, rule};
use super::{Theme, lists};
use crate::app::App;
use crate::metrics::{Metrics, STAGES, WorkerShares};
use crate::text::{bytes, count, duration, or_absent, percent, rate};

/// Width of a key value with its label, and of the gap behind it.
const CELL: u16 = 17;
const CELL_GAP: u16 = 3;

/// Width from which each group of key values has a column.
const WIDE: u16 = 108;

/// Lines that curves of a line each leave to the rest of the view; further lines go to the curves.
const PLAIN: u16 = 24;

/// Least width of a worker's bar with its number and percentage.
const WORKER_MIN: u16 = 24;

/// Fewest lines for the top commands, with their titles.
const COMMANDS_MIN: u16 = 6;

/// Draws the view.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let mut y = area.y + key_values(buffer, area, &app.metrics, theme);
    if !app.is_once {
        let lines = (area.height.saturating_sub(PLAIN) / 3).clamp(1, 6);
        y += curves(buffer, below(area, y), app, lines, theme);
    }
    y += workers(buffer, below(area, y), app, theme);
    lists::top_commands(buffer, below(area, y), app, theme);
}

/// Returns the part of an area from the line `y` on.
fn below(area: Rect, y: u16) -> Rect {
    Rect::new(area.x, y.min(area.bottom()), area.width, area.bottom().saturating_sub(y))
}

/// Draws the key values: a line for each group, or in a wide area a column for each. Returns the number of
/// lines.
fn key_values(buffer: &mut Buffer, area: Rect, metrics: &Metrics, theme: Theme) -> u16 {
    let groups = groups(metrics);
    let is_wide = area.width >= WIDE;
    let columns = if is_wide { 5 } else { ((area.width + CELL_GAP) / (CELL + CELL_GAP)).clamp(1, 4) };
    let pitch = if is_wide { (area.width + CELL_GAP * 2) / 5 } else { CELL + CELL_GAP };
    let width = if is_wide { pitch - CELL_GAP * 2 } else { CELL };
    for (group, cells) in groups.iter().enumerate() {
        for (at, (label, value)) in cells.iter().enumerate() {
            let number = (group * cells.len() + at) as u16;
            let (column, line) =
                if is_wide { (group as u16, at as u16) } else { (number % columns, number / columns) };
            let (x, y) = (area.x + column * pitch, area.y + line);
            if y < area.bottom() {
                put(buffer, x, y, width, label, theme.label());
                put_right(buffer, x, y, width, value, theme.title());
            }
        }
    }
    if is_wide { 4 } else { 20_u16.div_ceil(columns) }
}

/// A label and a value.
type Cell = (&'static str, String);

/// Returns labels and values in groups.
fn groups(metrics: &Metrics) -> [[Cell; 4]; 5] {
    let rates = |value| or_absent(value, rate);
    let numbers = |value| or_absent(value, count);
    let sizes = |value| or_absent(value, bytes);
    let times = |value| or_absent(value, duration);
    let shares = |value| or_absent(value, percent);
    [
        [
            ("commands/s", rates(metrics.commands_per_s)),
            ("p50", times(metrics.p50_us)),
            ("p99", times(metrics.p99_us)),
            ("max", or_absent(metrics.max_us, |us| format!("<{}", duration(us)))),
        ],
        [
            ("memory", sizes(metrics.used)),
            ("resident", sizes(metrics.resident)),
            ("frag ratio", or_absent(metrics.fragmentation, |ratio| format!("{ratio:.2}"))),
            ("maxmemory", shares(metrics.memory_share)),
        ],
        [
            ("clients", numbers(metrics.clients)),
            ("blocked", numbers(metrics.blocked)),
            ("in/s", sizes(metrics.in_per_s)),
            ("out/s", sizes(metrics.out_per_s)),
        ],
        [
            ("hit ratio", shares(metrics.hit_ratio)),
            ("expired/s", rates(metrics.expired_per_s)),
            ("evicted/s", rates(metrics.evicted_per_s)),
            ("errors/s", rates(metrics.errors_per_s)),
        ],
        [
            ("cpu", shares(metrics.cpu)),
            ("workers", or_absent(busy(metrics), percent)),
            ("replica lag", sizes(metrics.replica_lag)),
            ("journal lag", sizes(metrics.journal_lag)),
        ],
    ]
}

/// Returns the mean share of the workers' time that was not idle.
fn busy(metrics: &Metrics) -> Option<f64> {
    let sum: f64 = metrics.workers.iter().map(WorkerShares::busy).sum();
    (!metrics.workers.is_empty()).then(|| sum / metrics.workers.len() as f64)
}

/// Draws the curves of rate, latency and memory. Returns the number of lines.
fn curves(buffer: &mut Buffer, area: Rect, app: &App, lines: u16, theme: Theme) -> u16 {
    let history = &app.history;
    rule(buffer, area, area.y, "History", &theme);
    let rows = [
        ("commands/s", &history.rates, rate as fn(f64) -> String),
        ("p99", &history.p99_us, duration),
        ("memory", &history.memory, bytes),
    ];
    const LABEL: u16 = 12;
    const MOST: u16 = 12;
    let mut y = area.y + 1;
    for (label, values, show) in rows {
        if y + lines > area.bottom() {
            break;
        }
        put(buffer, area.x, y, LABEL, label, theme.label());
        let width = area.width.saturating_sub(LABEL + MOST);
        let field = Rect::new(area.x + LABEL, y, width, lines);
        let most = curve(buffer, field, values.iter(), theme.curve());
        let text = or_absent(most, |most| format!("max {}", show(most)));
        put_right(buffer, area.right().saturating_sub(MOST), y, MOST, &text, theme.dim());
        y += lines;
    }
    y - area.y
}

/// Draws the workers' bars. Returns the number of lines.
fn workers(buffer: &mut Buffer, area: Rect, app: &App, theme: Theme) -> u16 {
    if area.height < 2 {
        return 0;
    }
    let workers = &app.metrics.workers;
    let x = rule(buffer, area, area.y, "Workers", &theme);
    let field = below(area, area.y + 1);
    if workers.is_empty() {
        put(buffer, field.x, field.y, field.width, reason_for_none(app), theme.dim());
        return 2;
    }
    legend(buffer, x + 1, area.y, area.right(), theme);
    let most = (field.height.saturating_sub(COMMANDS_MIN)).clamp(1, 8);
    let columns_max = ((field.width + 2) / (WORKER_MIN + 2)).max(1);
    let columns = (workers.len() as u16).div_ceil(most);
    if columns > columns_max {
        return 1 + aggregate(buffer, field, workers, theme);
    }
    let lines = (workers.len() as u16).div_ceil(columns);
    let width = (field.width + 2) / columns - 2;
    for (index, worker) in workers.iter().enumerate() {
        let (column, line) = (index as u16 / lines, index as u16 % lines);
        let cell = Rect::new(field.x + column * (width + 2), field.y + line, width, 1);
        worker_bar(buffer, cell, &format!("w{}", worker.index), &worker.stages, theme);
    }
    1 + lines
}

fn reason_for_none(app: &App) -> &'static str {
    let sample = app.sample.as_ref();
    match sample.map(|sample| sample.info.numbered("worker").is_empty()) {
        Some(true) => "This server does not account for the stages of its threads.",
        Some(false) => "Waiting for the second poll.",
        None => "Waiting for the first poll.",
    }
}

/// Draws the stages' names with their marks.
fn legend(buffer: &mut Buffer, mut x: u16, y: u16, right: u16, theme: Theme) {
    for (index, name) in STAGES.iter().enumerate() {
        let (symbol, style) = theme.stage(index);
        let width = name.len() as u16 + 4;
        if x + width > right {
            return;
        }
        put(buffer, x, y, width, " ", theme.value());
        put(buffer, x + 1, y, 1, symbol, style);
        put(buffer, x + 2, y, width - 2, &format!(" {name} "), theme.value());
        x += width;
    }
}

/// Draws the mean of all workers, the busiest and the least busy. Returns the number of lines.
fn aggregate(buffer: &mut Buffer, area: Rect, workers: &[WorkerShares], theme: Theme) -> u16 {
    let mut mean = [0.0; STAGES.len()];
    for worker in workers {
        for (sum, share) in mean.iter_mut().zip(worker.stages) {
            *sum += share / workers.len() as f64;
        }
    }
    let by_use = |a: &&WorkerShares, b: &&WorkerShares| a.busy().total_cmp(&b.busy());
    let extremes = [workers.iter().max_by(by_use), workers.iter().min_by(by_use)];
    let mut rows = vec![(format!("mean of {}", workers.len()), mean)];
    let named = extremes.into_iter().flatten().zip(["most", "least"]);
    rows.extend(named.map(|(worker, word)| (format!("{word}: w{}", worker.index), worker.stages)));
    for ((name, stages), y) in rows.iter().zip(area.y..area.bottom()) {
        worker_bar(buffer, Rect::new(area.x, y, area.width, 1), name, stages, theme);
    }
    rows.len() as u16
}

/// Draws a name, a bar by stage, and the percentage that is not idle.
fn worker_bar(buffer: &mut Buffer, area: Rect, name: &str, stages: &[f64; STAGES.len()], theme: Theme) {
    let name_width = (name.len() as u16 + 1).max(5);
    let width = area.width.saturating_sub(name_width + 5);
    put(buffer, area.x, area.y, name_width, name, theme.label());
    let mut cells = vec![("·", theme.dim()); width.into()];
    let (mut end, mut from) = (0.0, 0);
    for (index, share) in stages.iter().enumerate() {
        end += share * f64::from(width);
        let to = (end.round() as usize).min(cells.len());
        cells[from.min(to)..to].fill(theme.stage(index));
        from = to.max(from);
    }
    for ((symbol, style), x) in cells.into_iter().zip(area.x + name_width..) {
        put(buffer, x, area.y, 1, symbol, style);
    }
    let busy: f64 = stages.iter().sum();
    let style: Style = if busy > 0.9 { theme.alarm() } else { theme.value() };
    let text = format!("{:.0}%", busy * 100.0);
    put_right(buffer, area.right().saturating_sub(5), area.y, 5, &text, style);
}
