//! Finds a function of a process by name: the mapped file and the offset in it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::symbols::demangle;
use crate::tables::{self, Area};

/// Candidates that the error for an ambiguous name lists.
const SHOWN_MAX: usize = 5;

/// The start of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The full name, which may be longer than the requested name.
    pub name: String,
    /// The file name without its folder.
    pub module: String,
    /// A path by which this process can open the file.
    pub path: String,
    /// In the file.
    pub offset: u64,
}

/// Finds the function of a process with this name. The name is one of:
///
/// - a symbol, mangled or not;
/// - the last part of a symbol (`Store::get`);
/// - the file and an address in it, as functions without symbols are shown (`redis-server+0x13c0b0`).
///
/// Fails for a name that several functions of a file have, and lists some of them. The program itself is
/// searched before its libraries.
pub fn find(pid: i32, name: &str) -> Result<Function> {
    let mut seen = BTreeSet::new();
    for area in tables::areas(pid)? {
        if !area.path.starts_with('/') || !seen.insert(area.path.clone()) {
            continue;
        }
        let Ok(image) = tables::read_area(pid, &area) else { continue };
        let found = in_file(&image, &area, name);
        if found.len() > 1 {
            let names: Vec<&str> = found.values().take(SHOWN_MAX).map(String::as_str).collect();
            bail!("{} functions of {} have that name: {}", found.len(), area.module(), names.join(", "));
        }
        if let Some((offset, name)) = found.into_iter().next() {
            let (module, path) = (area.module().to_string(), tables::path_for_us(pid, &area)?);
            return Ok(Function { name, module, path, offset });
        }
    }
    bail!("it has no function named {name}; names are as `evenkeel-doctor cpu` shows them")
}

/// Offsets and full names of the file's functions with that name. Symbols that equal the name win over
/// symbols that end with it.
fn in_file(image: &[u8], area: &Area, name: &str) -> BTreeMap<u64, String> {
    let Ok(file) = object::File::parse(image) else { return BTreeMap::new() };
    if let Some(address) = name.strip_prefix(area.module()).and_then(|rest| rest.strip_prefix("+0x")) {
        let address = u64::from_str_radix(address, 16).ok();
        let offset = address.and_then(|address| offset_of(&file, address));
        return offset.map(|offset| (offset, name.to_string())).into_iter().collect();
    }
    let (mut whole, mut ends) = (BTreeMap::new(), BTreeMap::new());
    let last_part = format!("::{name}");
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let is_code = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        let (true, Ok(raw)) = (is_code, symbol.name()) else { continue };
        let shown = demangle(raw);
        let Some(offset) = offset_of(&file, symbol.address()) else { continue };
        if raw == name || shown == name {
            whole.insert(offset, shown);
        } else if shown.ends_with(&last_part) {
            ends.insert(offset, shown);
        }
    }
    if whole.is_empty() { ends } else { whole }
}

/// Returns the file offset of an address of the file.
pub(crate) fn offset_of(file: &object::File<'_>, address: u64) -> Option<u64> {
    file.segments().find_map(|segment| {
        let (offset, size) = segment.file_range();
        let into = address.checked_sub(segment.address())?;
        (into < size).then(|| offset + into)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The optimizer may put a test itself into the function that calls it.
    #[inline(never)]
    fn own_function() -> i32 {
        std::hint::black_box(std::process::id().cast_signed())
    }

    #[test]
    fn our_own_functions_are_found_by_the_end_of_their_name() {
        let own = own_function();
        let found = find(own, "functions::tests::own_function");
        let found = found.expect("our own file has symbols");
        assert!(found.offset > 0 && found.path.starts_with("/proc/"), "{found:?}");
        let by_address = find(own, &format!("{}+0x0", found.module));
        assert!(by_address.is_ok_and(|function| function.offset == 0), "the start of the file");
        let error = find(own, "no_such_function").expect_err("there is none");
        assert!(error.to_string().starts_with("it has no function named no_such_function"), "{error}");
    }
}
