//! Finds the directive that a misspelt name probably means.

use super::directives::DIRECTIVES;

/// Most bytes of a name that is compared; directives have 42 at most.
const LEN_MAX: usize = 64;

/// Returns the directive with the fewest edits from `name`, unless these are too many for its length.
pub(super) fn nearest(name: &[u8]) -> Option<&'static str> {
    let written = spelling(name);
    if written.len() > LEN_MAX {
        return None;
    }
    let edits_max = 1.max(written.len() / 3);
    let names = DIRECTIVES.iter().filter(|row| !row.hidden).flat_map(|row| row.names());
    let edits = names.map(|name| (edits_to(&written, &spelling(name.as_bytes())), name.len(), name));
    edits.min().filter(|(edits, ..)| *edits <= edits_max).map(|(.., name)| name)
}

/// Returns the letters and digits of a name, up to a possible value: `--max_memory=1gb` is spelt like
/// `maxmemory`.
fn spelling(name: &[u8]) -> Vec<u8> {
    let name = name.split(|byte| matches!(byte, b'=' | b':')).next().unwrap_or_default();
    name.iter().filter(|byte| !matches!(byte, b'-' | b'_')).map(u8::to_ascii_lowercase).collect()
}

/// Counts the edits that turn the written name into `name`: a letter added, removed or changed, or two
/// letters exchanged. A beginning of a name counts as a single edit.
fn edits_to(written: &[u8], name: &[u8]) -> usize {
    /// A shorter beginning is ambiguous.
    const BEGINNING: usize = 5;
    if written.len() >= BEGINNING && written.len() < name.len() && name.starts_with(written) {
        return 1;
    }
    // The edit distance of every pair of prefixes, row by row; an exchange of letters needs the last two
    // rows.
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=name.len()).collect();
    for (at, byte) in written.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, wanted) in name.iter().enumerate() {
            let changed = last[to] + usize::from(byte != wanted);
            let mut least = changed.min(last[to + 1] + 1).min(row[to] + 1);
            let is_exchanged = at > 0 && to > 0 && *byte == name[to - 1] && written[at - 1] == *wanted;
            if is_exchanged {
                least = least.min(before_last[to - 1] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_directive_is_taken_for_the_nearest() {
        for (written, meant) in [
            ("maxmemry", "maxmemory"),
            ("MAX_MEMORY", "maxmemory"),
            ("maxmemory=1gb", "maxmemory"),
            ("prot", "port"),
            ("append-only", "appendonly"),
            ("maxmem", "maxmemory"),
            ("append-fsync", "appendfsync"),
            ("slave-of", "slaveof"),
            ("tls-certfile", "tls-cert-file"),
            ("log-file", "logfile"),
            ("acl-file", "aclfile"),
            ("bindd", "bind"),
        ] {
            assert_eq!(nearest(written.as_bytes()), Some(meant), "{written}");
        }
        for strange in ["", "zzz", "x", "::1", "help", "vm-enabled", &"x".repeat(10_000), "\u{fffd}"] {
            assert_eq!(nearest(strange.as_bytes()), None, "{strange}");
        }
    }
}
