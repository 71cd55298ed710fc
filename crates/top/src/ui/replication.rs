//! The view of replication and persistence.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Theme;
use super::canvas::{Column, Table, number, put, put_right, rule, words};
use crate::app::App;
use crate::info::{Info, Pairs};
use crate::text::{ABSENT, age, bytes, count, or_absent};

const LABEL: u16 = 18;
const VALUE: u16 = 18;
const GAP: u16 = 3;

const REPLICA_COLUMNS: &[Column] = &[
    words("replica", 22, 0),
    words("state", 14, 0),
    number("offset", 16, 1),
    number("behind", 8, 0),
    number("last ack", 8, 0),
];

/// Draws the view.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, app: &mut App, theme: Theme) {
    let Some(sample) = &app.sample else { return };
    let info = &sample.info;
    let mut y = area.y;
    let primary = [
        ("role", super::role(info)),
        ("offset", text(info, "master_repl_offset")),
        ("failover", text(info, "master_failover_state")),
        ("backlog size", size(info, "repl_backlog_size")),
        ("backlog used", size(info, "repl_backlog_histlen")),
        ("backlog on disk", size(info, "repl_backlog_on_disk")),
        ("full syncs", number_text(info, "sync_full")),
        ("partial syncs", number_text(info, "sync_partial_ok")),
        ("partial refused", number_text(info, "sync_partial_err")),
    ];
    y += block(buffer, area, y, "Replication", &primary, theme);
    if info.text("master_host").is_some() {
        y += block(buffer, area, y, "Primary", &link(info), theme);
    }
    y += block(buffer, area, y, "Persistence", &persistence(info), theme);
    if y < area.bottom() {
        rule(buffer, area, y, "Replicas", &theme);
        y += 1;
    }
    let offset = info.number("master_repl_offset");
    let rows: Vec<Vec<String>> =
        info.numbered("slave").iter().map(|(_, replica)| replica_row(replica, offset)).collect();
    let height = area.bottom().saturating_sub(y);
    app.bound_scroll(rows.len(), height.saturating_sub(1).into());
    let from = app.scroll().min(rows.len());
    let field = Rect::new(area.x, y.min(area.bottom()), area.width, height);
    let table = Table { columns: REPLICA_COLUMNS, order: "", rest: 0, empty: "No replicas." };
    table.draw(buffer, field, &theme, &rows[from..]);
}

fn text(info: &Info, name: &str) -> String {
    info.text(name).unwrap_or_else(|| ABSENT.into())
}

fn size(info: &Info, name: &str) -> String {
    or_absent(info.number(name), bytes)
}

fn number_text(info: &Info, name: &str) -> String {
    or_absent(info.number(name), count)
}

/// Returns a flag as a word.
fn flag(info: &Info, name: &str) -> String {
    or_absent(info.number(name), |on| if on > 0.0 { "yes" } else { "no" }.into())
}

/// Returns the values of a replica's link to its primary.
fn link(info: &Info) -> [(&'static str, String); 9] {
    let seconds = |name| or_absent(info.number(name).filter(|seconds| *seconds >= 0.0), age);
    let received = info.number("slave_read_repl_offset");
    let behind = received.zip(info.number("slave_repl_offset")).map(|(read, done)| (read - done).max(0.0));
    [
        ("host", text(info, "master_host")),
        ("port", text(info, "master_port")),
        ("link", text(info, "master_link_status")),
        ("last message", seconds("master_last_io_seconds_ago")),
        ("down for", seconds("master_link_down_since_seconds")),
        ("not applied", or_absent(behind, bytes)),
        ("full sync", flag(info, "master_sync_in_progress")),
        ("sync left", size(info, "master_sync_left_bytes")),
        ("read-only", flag(info, "slave_read_only")),
    ]
}

fn persistence(info: &Info) -> [(&'static str, String); 9] {
    let is_on = info.number("aof_enabled").is_some_and(|on| on > 0.0);
    let of_log = |name| if is_on { size(info, name) } else { ABSENT.into() };
    [
        ("append-only file", flag(info, "aof_enabled")),
        ("last write", text(info, "aof_last_write_status")),
        ("not written", of_log("aof_buffer_length")),
        ("log size", of_log("aof_current_size")),
        ("rewriting", flag(info, "aof_rewrite_in_progress")),
        ("delayed syncs", if is_on { number_text(info, "aof_delayed_fsync") } else { ABSENT.into() }),
        ("saving", flag(info, "rdb_bgsave_in_progress")),
        ("last save", text(info, "rdb_last_bgsave_status")),
        ("changes since", number_text(info, "rdb_changes_since_last_save")),
    ]
}

/// Draws labels and values in columns below a title. Returns the number of lines.
fn block(
    buffer: &mut Buffer,
    area: Rect,
    y: u16,
    title: &str,
    values: &[(&str, String)],
    theme: Theme,
) -> u16 {
    if y >= area.bottom() {
        return 0;
    }
    rule(buffer, area, y, title, &theme);
    let columns = ((area.width + GAP) / (LABEL + VALUE + GAP)).max(1);
    let lines = (values.len() as u16).div_ceil(columns);
    for (index, (label, value)) in values.iter().enumerate() {
        let (column, line) = (index as u16 / lines, index as u16 % lines);
        let (x, y) = (area.x + column * (LABEL + VALUE + GAP), y + 1 + line);
        if y < area.bottom() {
            put(buffer, x, y, LABEL, label, theme.label());
            put_right(buffer, x + LABEL, y, VALUE, value, theme.value());
        }
    }
    lines + 1
}

fn replica_row(replica: &Pairs, offset: Option<f64>) -> Vec<String> {
    let text = |name| replica.text(name).unwrap_or_else(|| ABSENT.into());
    let behind = offset.zip(replica.number("offset")).map(|(all, acked)| (all - acked).max(0.0));
    vec![
        format!("{}:{}", text("ip"), text("port")),
        text("state"),
        text("offset"),
        or_absent(behind, bytes),
        or_absent(replica.number("lag"), age),
    ]
}
