//! Checks for the fuzz targets (folder `fuzz` of the repository).

use super::*;
use crate::errors::Place;

/// Checks that a file is read or refused line by line, and that each rewritten file gives the settings that
/// were wanted, and does not change when it is rewritten again.
///
/// The first byte chooses the settings that are wanted, and how much is written.
pub fn file(data: &[u8]) {
    let Some((&choice, text)) = data.split_first() else { return };
    // An include reads other files, and `dir` looks at folders, which others change.
    let is_own = |line: &&[u8]| {
        let name = file::words(line).flatten().and_then(|words| words.into_iter().next());
        !name.is_some_and(|name| [&b"include"[..], b"dir"].iter().any(|one| name.eq_ignore_ascii_case(one)))
    };
    let own: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(is_own).collect();
    let text = own.join(&b'\n');
    let user_lines = UserLines { check: |_| Ok(()), at_start: |_| Some(Vec::new()) };
    let origin = Origin { here: PathBuf::from("/"), user_lines };
    let loader = || {
        let mut loader = Loader::new(user_lines, None, &origin.here);
        // A start makes it absolute.
        loader.line(b"dir /").expect("there is a root");
        loader
    };
    let defaults = loader().settings;
    let mut loader = loader();
    loader.text(&text, |line| Place::Stdin { line });
    assert!(loader.mistakes.iter().all(|mistake| !mistake.to_string().is_empty()));
    let wanted = if choice & 1 == 0 { loader.settings } else { defaults };
    let extent = if choice & 2 == 0 { Extent::Changes } else { Extent::All };
    let new = rewritten(&text, &wanted, extent, &origin);
    let again = read(lines(&new).iter(), &origin);
    for row in settings() {
        assert_eq!(again.value(row), wanted.value(row), "{}", row.name);
    }
    // It takes as long as everything above.
    if choice & 4 != 0 {
        assert_eq!(rewritten(&new, &wanted, extent, &origin), new);
    }
}
