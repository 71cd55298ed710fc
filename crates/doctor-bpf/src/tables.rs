//! Unwind tables: the rules of .eh_frame as sorted rows, for each executable mapping. A row says how to find
//! the caller's frame.
//!
//! Compilers emit these rules for exceptions, also for code that never throws. So binaries without frame
//! pointers and without symbols can be walked. `bpf/unwind.h` uses the rows. It does not support two kinds of
//! rules: a CFA from another register, and a CFA by an expression (signal frames). Such rows are marked, and
//! a walk that meets them is broken. The lazy stub of .plt is an expression that every binary has; it gets a
//! row kind of its own.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, NativeEndian, RegisterRule, UnwindContext, UnwindSection,
    X86_64,
};
use object::elf::PF_X;
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};

use crate::shared::{CFA_BP, CFA_END, CFA_PLT, CFA_SP, CFA_UNKNOWN, MAPPINGS_MAX, Mapping, Row};

/// Bound of the table in the kernel: 64 MiB. A browser has two million rows.
pub(crate) const ROWS_MAX: usize = 4 << 20;
/// A mapped file is read whole; larger files are walked by frame pointers.
const FILE_BYTES_MAX: u64 = 2 << 30;
const VDSO_BYTES_MAX: u64 = 64 << 10;
const PAGE: u64 = 4096;

#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) rows: Vec<Row>,
    /// Parallel to `mappings`.
    pub(crate) modules: Vec<Module>,
    pub(crate) notes: Vec<String>,
}

/// The origin of code, to name functions without a symbol.
#[derive(Debug, Clone, Default)]
pub(crate) struct Module {
    pub(crate) name: String,
    /// First addresses of functions, in the file, sorted.
    pub(crate) starts: Vec<u32>,
}

/// Executable memory, and the file that it maps.
#[derive(Debug, Clone)]
pub(crate) struct Area {
    start: u64,
    end: u64,
    offset: u64,
    pub(crate) path: String,
}

impl Area {
    /// The file name without its folder.
    pub(crate) fn module(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("")
    }
}

/// Returns the executable mappings of a process.
pub(crate) fn areas(pid: i32) -> Result<Vec<Area>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("its mappings cannot be read")?;
    Ok(maps.lines().filter_map(parse_area).collect())
}

/// Builds the tables of all executable mappings of a process.
pub(crate) fn build(pid: i32) -> Result<Tables> {
    let mut tables = Tables::default();
    let mut known: HashMap<String, (u32, u32, Vec<u32>)> = HashMap::new();
    for area in areas(pid)? {
        if tables.mappings.len() == MAPPINGS_MAX {
            tables.notes.push(format!("only the first {MAPPINGS_MAX} executable mappings are walked"));
            break;
        }
        let name = area.module().to_string();
        let mut mapping = Mapping {
            start: area.start,
            end: area.end,
            bias: 0,
            first_row: 0,
            rows: 0,
            frame_pointers: 1,
            pad: 0,
        };
        let mut starts = Vec::new();
        match read_area(pid, &area).and_then(|image| Ok((bias(&image, &area)?, image))) {
            Ok((bias, image)) => {
                mapping.bias = bias;
                if let Some((first, count, of)) = rows_of(&area.path, &image, &mut known, &mut tables) {
                    (mapping.first_row, mapping.rows, mapping.frame_pointers) = (first, count, 0);
                    starts = of;
                }
            }
            Err(error) if area.path.starts_with('/') => {
                tables.notes.push(format!("{}: {error:#}", area.path))
            }
            Err(_) => {} // code without a file, made at run time: frame pointers, if anything
        }
        tables.mappings.push(mapping);
        tables.modules.push(Module { name, starts });
    }
    Ok(tables)
}

/// Parses a line of /proc/PID/maps. Returns `None` if the mapping is not executable.
fn parse_area(line: &str) -> Option<Area> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if !fields.next()?.contains('x') {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let offset = hex(fields.next()?)?;
    let path = fields.skip(2).collect::<Vec<_>>().join(" ");
    if path == "[vsyscall]" {
        return None;
    }
    Some(Area { start: hex(start)?, end: hex(end)?, offset, path })
}

/// Returns a path to the file behind a mapping. map_files also reaches files that were replaced, or have
/// another path in a container.
pub(crate) fn path_for_us(pid: i32, area: &Area) -> Result<String> {
    ensure!(area.path.starts_with('/'), "no file");
    let exact = format!("/proc/{pid}/map_files/{:x}-{:x}", area.start, area.end);
    let named = format!("/proc/{pid}/root{}", area.path);
    Ok(if fs::metadata(&exact).is_ok() { exact } else { named })
}

/// Reads the file behind a mapping.
pub(crate) fn read_area(pid: i32, area: &Area) -> Result<Vec<u8>> {
    if area.path == "[vdso]" {
        let length = area.end.saturating_sub(area.start).min(VDSO_BYTES_MAX);
        let mut image = vec![0; length as usize];
        fs::File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut image, area.start)?;
        return Ok(image);
    }
    let path = path_for_us(pid, area)?;
    let length = fs::metadata(&path)?.len();
    ensure!(length <= FILE_BYTES_MAX, "the file is too large to be looked into");
    Ok(fs::read(path)?)
}

/// Returns the difference between an address in memory and the address in the file.
fn bias(image: &[u8], area: &Area) -> Result<u64> {
    let file = object::File::parse(image)?;
    // Two segments may share a page of the file, which is mapped for both: only executable segments count
    // here.
    let executes = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
    for segment in file.segments().filter(|segment| executes(segment.flags())) {
        let (offset, size) = segment.file_range();
        let first = offset & !(PAGE - 1);
        if area.offset >= first && area.offset < offset.saturating_add(size) {
            let address = segment.address().wrapping_add(area.offset.wrapping_sub(offset));
            return Ok(area.start.wrapping_sub(address));
        }
    }
    anyhow::bail!("no segment of the file is mapped there")
}

/// The rows of a file: index of the first, their number, and the starts of its functions. `None` without
/// rules.
fn rows_of(
    path: &str,
    image: &[u8],
    known: &mut HashMap<String, (u32, u32, Vec<u32>)>,
    tables: &mut Tables,
) -> Option<(u32, u32, Vec<u32>)> {
    if let Some(found) = known.get(path) {
        return Some(found.clone());
    }
    let (rows, starts) = match flatten(image) {
        Ok(found) => found,
        Err(error) => {
            tables.notes.push(format!("{path}: {error:#}: walked by frame pointers"));
            return None;
        }
    };
    if tables.rows.len() + rows.len() > ROWS_MAX {
        tables.notes.push(format!("{path}: too many rules: walked by frame pointers"));
        return None;
    }
    let found = (tables.rows.len() as u32, rows.len() as u32, starts);
    tables.rows.extend(rows);
    known.insert(path.to_string(), found.clone());
    Some(found)
}

/// Returns all rules of an ELF file as sorted rows, and the starts of its functions.
pub(crate) fn flatten(image: &[u8]) -> Result<(Vec<Row>, Vec<u32>)> {
    let file = object::File::parse(image)?;
    let section = file.section_by_name(".eh_frame").context("it has no .eh_frame")?;
    let data = section.data()?;
    let frames = EhFrame::new(data, NativeEndian);
    let mut bases = BaseAddresses::default().set_eh_frame(section.address());
    if let Some(text) = file.section_by_name(".text") {
        bases = bases.set_text(text.address());
    }
    if let Some(got) = file.section_by_name(".got") {
        bases = bases.set_got(got.address());
    }
    let mut context = UnwindContext::new();
    let (mut rows, mut starts) = (Vec::new(), Vec::new());
    let mut entries = frames.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(function) = partial.parse(UnwindSection::cie_from_offset) else { continue };
        let (Ok(start), Ok(end)) =
            (u32::try_from(function.initial_address()), u32::try_from(function.end_address()))
        else {
            continue;
        };
        starts.push(start);
        let stub = function.len() % 16 == 0;
        let Ok(mut table) = function.rows(&frames, &bases, &mut context) else { continue };
        while let Ok(Some(row)) = table.next_row() {
            if let Ok(pc) = u32::try_from(row.start_address()) {
                rows.push(flat(pc, row, stub));
            }
        }
        // The gap up to the next function has no rules.
        rows.push(Row { pc: end, cfa_offset: 0, bp_offset: 0, cfa: CFA_UNKNOWN, bp_saved: 0 });
    }
    ensure!(!rows.is_empty(), "its .eh_frame is empty");
    starts.sort_unstable();
    starts.dedup();
    Ok((compact(rows), starts))
}

fn flat<S>(pc: u32, row: &gimli::UnwindTableRow<usize, S>, stub: bool) -> Row
where
    S: gimli::UnwindContextStorage<usize>,
{
    let unknown = Row { pc, cfa_offset: 0, bp_offset: 0, cfa: CFA_UNKNOWN, bp_saved: 0 };
    if matches!(row.register(X86_64::RA), Some(RegisterRule::Undefined)) {
        return Row { cfa: CFA_END, ..unknown };
    }
    let (cfa, offset) = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } if *register == X86_64::RSP => (CFA_SP, *offset),
        CfaRule::RegisterAndOffset { register, offset } if *register == X86_64::RBP => (CFA_BP, *offset),
        CfaRule::Expression(_) if stub => (CFA_PLT, 0),
        _ => return unknown,
    };
    let (bp_saved, bp_offset) = match row.register(X86_64::RBP) {
        Some(RegisterRule::Offset(offset)) => (1, offset),
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => (0, 0),
        Some(_) => return unknown,
    };
    match (i32::try_from(offset), i16::try_from(bp_offset)) {
        (Ok(cfa_offset), Ok(bp_offset)) => Row { cfa_offset, bp_offset, cfa, bp_saved, ..unknown },
        _ => unknown,
    }
}

/// Sorts the rows; keeps one row per address, and drops rows equal to their predecessor.
fn compact(mut rows: Vec<Row>) -> Vec<Row> {
    // Where a function ends and the next begins, the rule wins over the mark of the gap.
    rows.sort_by_key(|row| (row.pc, row.cfa != CFA_UNKNOWN));
    let says = |row: &Row| (row.cfa, row.cfa_offset, row.bp_saved, row.bp_offset);
    let mut kept: Vec<Row> = Vec::with_capacity(rows.len());
    for row in rows {
        match kept.last_mut() {
            Some(last) if last.pc == row.pc => *last = row,
            Some(last) if says(last) == says(&row) => {}
            _ => kept.push(row),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_are_found() {
        let line = "7f00-7f10 r-xp 00001000 08:01 12 /usr/lib/with blank.so";
        let area = parse_area(line).expect("an area");
        assert_eq!((area.start, area.end, area.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!(area.path, "/usr/lib/with blank.so");
        assert!(parse_area("7f00-7f10 r--p 00001000 08:01 12 /x").is_none());
        assert!(parse_area("7f00-7f10 r-xp 00000000 00:00 0 [vsyscall]").is_none());
        assert!(parse_area("broken").is_none());
    }

    #[test]
    fn a_gap_marker_yields_to_the_rule_of_the_next_function() {
        let row = |pc, cfa, cfa_offset| Row { pc, cfa_offset, bp_offset: 0, cfa, bp_saved: 0 };
        let rows =
            vec![row(0x20, CFA_SP, 8), row(0x10, CFA_SP, 8), row(0x18, CFA_SP, 8), row(0x20, CFA_UNKNOWN, 0)];
        let kept: Vec<(u32, u8)> = compact(rows).iter().map(|row| (row.pc, row.cfa)).collect();
        assert_eq!(kept, [(0x10, CFA_SP), (0x20, CFA_SP)]);
    }

    #[test]
    fn our_own_tables_cover_this_function() {
        let tables = build(std::process::id().cast_signed()).expect("we may read our own mappings");
        let here = our_own_tables_cover_this_function as *const () as u64;
        let index = tables.mappings.iter().position(|m| m.start <= here && here < m.end).expect("our code");
        let mapping = &tables.mappings[index];
        assert_eq!(mapping.frame_pointers, 0);
        let start = u32::try_from(here - mapping.bias).expect("a small address");
        assert!(tables.modules[index].starts.binary_search(&start).is_ok(), "the function has an entry");
        let rows = &tables.rows[mapping.first_row as usize..][..mapping.rows as usize];
        let at = rows.partition_point(|row| row.pc <= start) - 1;
        assert_eq!((rows[at].cfa, rows[at].cfa_offset), (CFA_SP, 8), "at its first instruction");
    }

    /// Returns an ELF file of headers alone, with segments of (flags, offset, address, size).
    fn elf(segments: &[(u32, u64, u64, u64)]) -> Vec<u8> {
        let mut image = vec![0_u8; 64];
        image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        image[16..20].copy_from_slice(&[3, 0, 62, 0]); // shared object, x86-64
        image[20] = 1;
        image[32] = 64; // the program headers follow at once
        image[52] = 64;
        image[54..58].copy_from_slice(&[56, 0, segments.len() as u8, 0]);
        for &(flags, offset, address, size) in segments {
            image.extend([1_u32, flags].map(u32::to_le_bytes).concat());
            image.extend([offset, address, address, size, size, 0x1000].map(u64::to_le_bytes).concat());
        }
        image
    }

    #[test]
    fn where_two_segments_meet_in_a_page_code_is_where_its_own_segment_says() {
        let image = elf(&[(4, 0, 0, 0x2345), (5, 0x2350, 0x3350, 0x9000)]);
        let area = Area { start: 0x7000_3000, end: 0x7000_d000, offset: 0x2000, path: String::new() };
        assert_eq!(bias(&image, &area).expect("it is mapped"), 0x7000_0000);
        let nowhere = Area { offset: 0x10_0000, ..area };
        assert!(bias(&image, &nowhere).is_err());
    }

    #[test]
    fn a_file_that_is_not_elf_is_an_error() {
        assert!(flatten(b"").is_err());
        assert!(flatten(b"\x7fELF").is_err());
        let mut image = fs::read("/proc/self/exe").expect("our own file");
        image.truncate(4096);
        assert!(flatten(&image).is_err());
    }
}
