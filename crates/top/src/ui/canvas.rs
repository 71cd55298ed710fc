//! Drawing into a buffer: texts, tables, curves.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::theme::Theme;

/// Heights of a column of a curve, an eighth of a line each.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Columns between two columns of a table.
const GAP: u16 = 2;

/// Puts a text into a field of `width` columns. A longer text is cut, and ends with an ellipsis.
pub(crate) fn put(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
    let area = buffer.area;
    if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() {
        return;
    }
    let width = width.min(area.right() - x);
    if text.chars().count() <= usize::from(width) {
        buffer.set_stringn(x, y, text, width.into(), style);
    } else if width > 0 {
        buffer.set_stringn(x, y, text, usize::from(width - 1), style);
        buffer.set_stringn(x + width - 1, y, "…", 1, style);
    }
}

/// Puts a text at the right end of a field.
pub(crate) fn put_right(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
    let length = (text.chars().count() as u16).min(width);
    put(buffer, x + (width - length), y, length, text, style);
}

/// Draws a line with a title; returns the first column after the title.
pub(crate) fn rule(buffer: &mut Buffer, area: Rect, y: u16, title: &str, theme: &Theme) -> u16 {
    put(buffer, area.x, y, area.width, &"─".repeat(area.width.into()), theme.dim());
    put(buffer, area.x + 1, y, area.width.saturating_sub(2), &format!(" {title} "), theme.title());
    area.x + 1 + title.chars().count() as u16 + 2
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// 0: all columns that the rest leaves.
    pub(crate) width: u16,
    pub(crate) is_number: bool,
    /// Columns of the highest rank are left out first where space is short; rank 0 stays.
    pub(crate) rank: u8,
}

pub(crate) const fn words(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, is_number: false, rank }
}

pub(crate) const fn number(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, is_number: true, rank }
}

/// A table: its columns, and the title of the column by which the rows are sorted.
pub(crate) struct Table<'a> {
    pub(crate) columns: &'a [Column],
    pub(crate) order: &'a str,
    /// Fewest columns for the column that takes the rest.
    pub(crate) rest: u16,
    /// Text in place of the rows, if there are none.
    pub(crate) empty: &'a str,
}

impl Table<'_> {
    /// Draws the titles and the rows that fit. A row has a text per column.
    pub(crate) fn draw(&self, buffer: &mut Buffer, area: Rect, theme: &Theme, rows: &[Vec<String>]) {
        if area.height == 0 {
            return;
        }
        let fields = self.fields(area);
        for &(at, x, width) in &fields {
            let column = &self.columns[at];
            let is_order = column.title == self.order;
            let style = if is_order { theme.order() } else { theme.dim() };
            align(column)(buffer, x, area.y, width, column.title, style);
        }
        if rows.is_empty() {
            put(buffer, area.x, area.y + 1, area.width, self.empty, theme.dim());
        }
        for (row, y) in rows.iter().zip(area.y + 1..area.bottom()) {
            for &(at, x, width) in &fields {
                let text = row.get(at).map_or("", String::as_str);
                let style = if at == 0 { theme.name() } else { theme.value() };
                align(&self.columns[at])(buffer, x, y, width, text, style);
            }
        }
    }

    /// Returns the columns that fit: number, position and width of each.
    fn fields(&self, area: Rect) -> Vec<(usize, u16, u16)> {
        let mut chosen: Vec<usize> = (0..self.columns.len()).collect();
        while self.width(&chosen) > area.width {
            let rank = |at: usize| (self.columns[at].rank, at);
            let optional = chosen.iter().copied().filter(|at| self.columns[*at].rank > 0);
            let Some(last) = optional.max_by_key(|at| rank(*at)) else { break };
            chosen.retain(|at| *at != last);
        }
        let left = area.width.saturating_sub(self.width(&chosen));
        let mut x = area.x;
        let place = |at: usize| {
            let width = match self.columns[at].width {
                0 => self.rest + left,
                width => width,
            };
            let from = x;
            x += width + GAP;
            (at, from, width.min(area.right().saturating_sub(from)))
        };
        chosen.into_iter().map(place).collect()
    }

    fn width(&self, chosen: &[usize]) -> u16 {
        let widths = chosen.iter().map(|at| match self.columns[*at].width {
            0 => self.rest,
            width => width,
        });
        widths.map(|width| width + GAP).sum::<u16>().saturating_sub(GAP)
    }
}

type Put = fn(&mut Buffer, u16, u16, u16, &str, Style);

fn align(column: &Column) -> Put {
    if column.is_number { put_right } else { put }
}

/// Draws the last values of a curve, the latest at the right end, scaled to the greatest of them. Returns
/// that value.
pub(crate) fn curve<'a>(
    buffer: &mut Buffer,
    area: Rect,
    values: impl DoubleEndedIterator<Item = &'a Option<f64>>,
    style: Style,
) -> Option<f64> {
    let shown: Vec<Option<f64>> = values.rev().take(area.width.into()).copied().collect();
    let most = shown.iter().flatten().copied().reduce(f64::max)?;
    for (value, x) in shown.into_iter().zip((area.left()..area.right()).rev()) {
        let Some(value) = value else { continue };
        let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
        // A value above zero shows at least a line.
        let full = usize::from(area.height) * 8;
        let eighths = ((share * full as f64).round() as usize).max(1);
        for line in 0..area.height {
            let filled = eighths.saturating_sub(usize::from(line) * 8).min(8);
            put(buffer, x, area.bottom() - 1 - line, 1, EIGHTHS[filled], style);
        }
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(buffer: &Buffer) -> Vec<String> {
        let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(line).collect()
    }

    #[test]
    fn long_texts_are_cut() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 2));
        put(&mut buffer, 0, 0, 4, "abcdef", Style::new());
        put_right(&mut buffer, 0, 1, 8, "12", Style::new());
        put(&mut buffer, 9, 0, 4, "beyond", Style::new());
        put(&mut buffer, 0, 2, 4, "below", Style::new());
        assert_eq!(lines(&buffer), ["abc…    ", "      12"]);
    }

    #[test]
    fn columns_of_high_rank_give_way() {
        let columns = [words("name", 0, 0), number("a", 5, 1), number("b", 5, 2)];
        let table = Table { columns: &columns, order: "a", rest: 12, empty: "none" };
        let fields = |width| table.fields(Rect::new(0, 0, width, 1));
        assert_eq!(fields(30), [(0, 0, 16), (1, 18, 5), (2, 25, 5)]);
        assert_eq!(fields(20), [(0, 0, 13), (1, 15, 5)]);
        assert_eq!(fields(10), [(0, 0, 10)]);
    }

    #[test]
    fn a_curve_ends_at_the_right() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 5, 2));
        let area = buffer.area;
        let values = [Some(0.0), None, Some(8.0), Some(16.0)];
        let most = curve(&mut buffer, area, values.iter(), Style::new());
        assert_eq!((most, lines(&buffer)), (Some(16.0), vec!["    █".to_owned(), " ▁ ██".to_owned()]));
        assert_eq!(curve(&mut buffer, area, [None].iter(), Style::new()), None);
    }
}
