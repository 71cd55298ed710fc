//! Views with a table or a text: commands, slow log, clients, findings.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Theme;
use super::canvas::{Column, Table, number, put, words};
use crate::app::App;
use crate::metrics::CommandRates;
use crate::poll::{ClientFields, Extra, SlowCommand, View};
use crate::text::{ABSENT, age, bytes, count, duration, moment, or_absent, percent, rate, wrapped};

const WAITING: &str = "Waiting for the server's reply.";

const COMMAND_COLUMNS: &[Column] = &[
    words("command", 22, 0),
    number("calls/s", 8, 0),
    number("share", 7, 0),
    number("per call", 8, 0),
    number("p50", 8, 2),
    number("p99", 8, 0),
    number("max", 8, 3),
    number("failed/s", 8, 1),
    number("calls", 8, 4),
];

/// Draws all commands.
pub(crate) fn commands(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let rows = sorted_commands(app);
    let table = commands_table(app);
    draw_scrolled(buffer, area, app, theme, &table, &rows, command_row);
}

/// Draws the commands of the last interval, on the overview.
pub(crate) fn top_commands(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let rows = sorted_commands(app);
    let called = rows.iter().filter(|row| row.calls_per_s > 0.0).map(command_row);
    commands_table(app).draw(buffer, area, &theme, &called.collect::<Vec<_>>());
}

fn commands_table(app: &App) -> Table<'static> {
    let empty = "No commands in the last interval.";
    Table { columns: COMMAND_COLUMNS, order: app.order(app.request.view), rest: 0, empty }
}

fn sorted_commands(app: &App) -> Vec<CommandRates> {
    let mut rows = app.metrics.commands.clone();
    let order = app.order(app.request.view);
    let key = |row: &CommandRates| match order {
        "calls/s" => row.calls_per_s,
        "per call" => row.us_per_call.unwrap_or(0.0),
        "p99" => row.p99_us.unwrap_or(0.0),
        "failed/s" => row.failed_per_s,
        "command" => 0.0,
        _ => row.share,
    };
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn command_row(row: &CommandRates) -> Vec<String> {
    let time = |us| or_absent(us, duration);
    let failed = if row.failed_per_s > 0.0 { rate(row.failed_per_s) } else { ABSENT.into() };
    vec![
        row.name.clone(),
        rate(row.calls_per_s),
        percent(row.share),
        time(row.us_per_call),
        time(row.p50_us),
        time(row.p99_us),
        or_absent(row.max_us, |us| format!("<{}", duration(us))),
        failed,
        count(row.calls),
    ]
}

const SLOW_COLUMNS: &[Column] = &[
    words("time (UTC)", 19, 1),
    number("took", 7, 0),
    words("client", 21, 2),
    words("name", 12, 3),
    words("command", 0, 0),
];

/// Draws the slow log, the latest entry first.
pub(crate) fn slow_log(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let (entries, empty) = match &app.slow_log {
        Some(Extra::SlowLog(entries)) => (entries.clone(), "The slow log is empty."),
        _ => (Vec::new(), refusal(app)),
    };
    let table = Table { columns: SLOW_COLUMNS, order: "", rest: 40, empty };
    draw_scrolled(buffer, area, app, theme, &table, &entries, slow_row);
}

fn slow_row(entry: &SlowCommand) -> Vec<String> {
    let took = duration(entry.us as f64);
    vec![moment(entry.unix_s), took, entry.address.clone(), entry.client.clone(), entry.command.clone()]
}

const CLIENT_COLUMNS: &[Column] = &[
    number("id", 8, 2),
    words("address", 21, 0),
    words("name", 16, 1),
    words("user", 10, 4),
    number("age", 5, 0),
    number("idle", 5, 0),
    number("db", 3, 6),
    number("memory", 7, 0),
    number("output", 7, 3),
    words("flags", 5, 5),
    words("command", 0, 0),
];

/// Draws the clients.
pub(crate) fn clients(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let (mut clients, empty) = match &app.clients {
        Some(Extra::Clients(clients)) => (clients.clone(), "No clients."),
        _ => (Vec::new(), refusal(app)),
    };
    let order = app.order(View::Clients);
    sort_clients(&mut clients, order);
    let table = Table { columns: CLIENT_COLUMNS, order, rest: 14, empty };
    draw_scrolled(buffer, area, app, theme, &table, &clients, client_row);
}

fn sort_clients(clients: &mut [ClientFields], order: &str) {
    let number = |client: &ClientFields, name: &str| -> f64 { number_of(client, name).unwrap_or(0.0) };
    let text = |client: &ClientFields, name: &str| client.get(name).cloned().unwrap_or_default();
    let field = match order {
        "age" => "age",
        "idle" => "idle",
        "output" => "omem",
        _ => "tot-mem",
    };
    clients.sort_by(|a, b| match order {
        "command" => text(a, "cmd").cmp(&text(b, "cmd")),
        "address" => text(a, "addr").cmp(&text(b, "addr")),
        _ => number(b, field).total_cmp(&number(a, field)),
    });
}

fn number_of(client: &ClientFields, name: &str) -> Option<f64> {
    client.get(name)?.parse().ok().filter(|number: &f64| number.is_finite())
}

fn client_row(client: &ClientFields) -> Vec<String> {
    let text = |name: &str| {
        let value = client.get(name).filter(|value| !value.is_empty());
        value.map_or_else(|| ABSENT.to_owned(), String::clone)
    };
    let size = |name| or_absent(number_of(client, name), bytes);
    let time = |name| or_absent(number_of(client, name), age);
    vec![
        text("id"),
        text("addr"),
        text("name"),
        text("user"),
        time("age"),
        time("idle"),
        text("db"),
        size("tot-mem"),
        size("omem"),
        text("flags"),
        text("cmd").replace('|', " "),
    ]
}

/// Draws a table of a whole view: the rows from the scroll position on. Only these get texts.
fn draw_scrolled<T>(
    buffer: &mut Buffer,
    area: Rect,
    app: &mut App,
    theme: Theme,
    table: &Table<'_>,
    rows: &[T],
    row: fn(&T) -> Vec<String>,
) {
    let height = area.height.saturating_sub(1).into();
    app.bound_scroll(rows.len(), height);
    let shown = rows.iter().skip(app.scroll()).take(height).map(row);
    table.draw(buffer, area, &theme, &shown.collect::<Vec<_>>());
}

/// Draws the report of LATENCY DOCTOR.
pub(crate) fn findings(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let text = match &app.findings {
        Some(Extra::Findings(text)) => text.clone(),
        _ => refusal(app).to_owned(),
    };
    let lines = wrapped(&text, area.width.min(100).into());
    app.bound_scroll(lines.len(), area.height.into());
    for (line, y) in lines.iter().skip(app.scroll()).zip(area.y..area.bottom()) {
        put(buffer, area.x, y, area.width, line, theme.value());
    }
}

/// Returns the reason why the reply for a view is missing.
fn refusal(app: &App) -> &'static str {
    let command = app.request.view.command().map(|words| words.join(" ")).unwrap_or_default();
    let is_forbidden = app.forbidden().iter().any(|name| command.starts_with(name));
    if is_forbidden { "The user has no permission for this view's command." } else { WAITING }
}
