//! Positions in a replication stream, as files state them.

/// A position in a stream: the history's name, and the number of bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    pub id: String,
    pub offset: u64,
    /// The database that is selected there.
    pub db: u32,
}

/// A point at which journal and stream meet: the data up to this record are the data at this position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub record: u64,
    pub position: Position,
}

/// The highest offset at which a replica accepts a stream. Offsets are sent as signed numbers, and must stay
/// below the largest of these for the life of the stream: 4 EiB more are never sent.
pub const OFFSET_MAX: u64 = 1 << 62;

/// The prefix of a position in the append-only file.
const NOTE: &str = "REPL:";

impl Position {
    /// The line of the append-only file, behind its last command, that has the position.
    pub fn note(&self) -> String {
        format!("{NOTE}{}:{}:{}", self.id, self.offset, self.db)
    }

    /// Parses a line of an append-only file, with its `#`. Returns `None` if it has no position.
    pub fn from_note(line: &[u8]) -> Option<Position> {
        let text = std::str::from_utf8(line).ok()?.strip_prefix('#')?.strip_prefix(NOTE)?;
        let mut parts = text.split(':');
        let id = parts.next().filter(|id| is_id(id))?.to_owned();
        let (offset, db) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        (parts.next().is_none() && offset <= OFFSET_MAX).then_some(Position { id, offset, db })
    }

    /// Whether a stream can continue there on a server with so many databases.
    pub fn is_possible(&self, databases: usize) -> bool {
        is_id(&self.id) && self.offset <= OFFSET_MAX && (self.db as usize) < databases
    }
}

/// Whether this is the name of a history: forty digits, of which some servers use letters beyond `f`.
pub fn is_id(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip() {
        let position = Position { id: "0a".repeat(20), offset: OFFSET_MAX, db: 15 };
        let line = format!("#{}", position.note());
        assert_eq!(Position::from_note(line.as_bytes()), Some(position));
        let id = "0a".repeat(20);
        let others = ["#", "#TS:1", "#REPL:", "#REPL:0a:1:0", "REPL", "#REPL:::"].map(str::to_owned);
        let more = [":1", ":1:0:0", ":-1:0", ":1:-1", ":x:0", ":1:99999999999", ":9223372036854775808:0"];
        let more = more.map(|rest| format!("#REPL:{id}{rest}"));
        for line in others.iter().chain(&more) {
            assert_eq!(Position::from_note(line.as_bytes()), None, "{line}");
        }
        assert_eq!(Position::from_note(b"#REPL:\xff"), None);
    }
}
