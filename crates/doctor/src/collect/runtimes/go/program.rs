//! The executable of a Go program: its version, its functions by address, and the runtime's list of
//! goroutines.
//!
//! Go keeps its own table of functions, files and lines (`gopclntab`) in every executable, stripped or not,
//! because its stack traces need it. The list of goroutines is the variable `runtime.allgs`. A stripped
//! executable has no symbol for it; then the code of `runtime.allgadd`, which appends to the list, is
//! searched for the addresses that it uses.

use std::fs::File;

use anyhow::{Context, Result, bail};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache};

use super::super::memory::{Memory, half_word, word};
use crate::collect::procfs;

/// First words of tables of Go 1.18 and 1.19, and from 1.20 on.
const TABLES: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// The table of a program of a million functions is smaller.
const TABLE_MAX: u64 = 1 << 30;
/// Offset of the address of the first function in the runtime's description of the executable.
const TEXT_IN_MODULE: u64 = 176;
/// Bytes of the function that is searched for addresses.
const CODE_MAX: u64 = 1_024;

type Elf<'data> = ElfFile64<'data, Endianness, &'data ReadCache<File>>;

#[derive(Debug)]
pub(super) struct Program {
    /// "Go 1.22.4"
    pub(super) version: String,
    /// Addresses that may be that of the list of goroutines, the likeliest first.
    pub(super) lists: Vec<u64>,
    functions: Functions,
}

impl Program {
    /// `None` if the process does not run a Go program.
    pub(super) fn open(pid: i32) -> Option<Result<Program>> {
        let file = File::open(procfs::path(pid, "exe")).ok()?;
        let cache = ReadCache::new(file);
        let elf = Elf::parse(&cache).ok()?;
        let info = elf.section_by_name(".go.buildinfo")?;
        let version = info.data().ok().and_then(version).unwrap_or_else(|| "Go".to_string());
        Some(Program::read(pid, &elf, version))
    }

    fn read(pid: i32, elf: &Elf<'_>, version: String) -> Result<Program> {
        if elf.architecture() != object::Architecture::X86_64 {
            bail!("goroutines are read on x86-64 alone");
        }
        let bias = bias(pid, elf)?;
        let memory = Memory::of(pid);
        let table =
            [".gopclntab", ".data.rel.ro.gopclntab"].iter().find_map(|name| elf.section_by_name(name));
        let table = table.context("it has no table of its functions")?;
        if table.size() > TABLE_MAX {
            bail!("its table of functions is too large");
        }
        let symbol = |name: &str| {
            let found = elf.symbols().find(|symbol| symbol.name() == Ok(name))?;
            Some(found.address() + bias)
        };
        let text = symbol("runtime.text").map_or_else(|| text(memory, elf, table.address(), bias), Ok)?;
        let functions = Functions::new(table.data()?.to_vec(), text)?;
        let lists = match symbol("runtime.allgs") {
            Some(address) => vec![address],
            None => functions.search("runtime.allgadd", memory)?,
        };
        Ok(Program { version, lists, functions })
    }

    /// The function that contains an address, and the file and line of the address.
    pub(super) fn function(&self, address: u64) -> Option<Function<'_>> {
        self.functions.at(address)
    }
}

/// The version in the section of build information: a string behind 32 bytes of header.
fn version(info: &[u8]) -> Option<String> {
    const INLINE: u8 = 2;
    if !info.starts_with(b"\xff Go buildinf:") || info.get(15)? & INLINE == 0 {
        return None;
    }
    let length = usize::from(*info.get(32)?);
    let text = std::str::from_utf8(info.get(33..33 + length)?).ok()?;
    Some(format!("Go {}", text.trim_start_matches("go")))
}

/// The difference between addresses in memory and in the file.
fn bias(pid: i32, elf: &Elf<'_>) -> Result<u64> {
    let endian = elf.endian();
    let segments = elf.elf_header().program_headers(endian, elf.data())?;
    let loaded = segments.iter().filter(|segment| segment.p_type(endian) == object::elf::PT_LOAD);
    let lowest = loaded.map(|segment| segment.p_vaddr(endian)).min().context("it has no code")?;
    let maps = procfs::read(procfs::path(pid, "maps")).context("its mappings cannot be read")?;
    let program = std::fs::read_link(procfs::path(pid, "exe")).context("its executable is hidden")?;
    let program = program.to_string_lossy();
    let start = maps.lines().filter(|line| line.ends_with(&*program)).find_map(|line| {
        let start = line.split('-').next()?;
        u64::from_str_radix(start, 16).ok()
    });
    let start = start.context("its executable is not mapped")?;
    start.checked_sub(lowest & !0xfff).context("its executable is mapped at a strange place")
}

/// The address of the first function in memory. The table had it up to Go 1.25; from then on it is in the
/// runtime's description of the executable.
fn text(memory: Memory, elf: &Elf<'_>, table: u64, bias: u64) -> Result<u64> {
    let [in_table] = memory.words(table + bias + 24)?;
    if in_table != 0 {
        return Ok(in_table);
    }
    if let Some(module) = elf.section_by_name(".go.module") {
        let [text] = memory.words(module.address() + bias + TEXT_IN_MODULE)?;
        return Ok(text);
    }
    Ok(elf.section_by_name(".text").context("it has no code")?.address() + bias)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// Without folders.
    pub(super) file: &'a str,
    pub(super) line: u32,
}

/// Go's table of functions. All offsets in it are checked: the file may be damaged.
#[derive(Debug)]
struct Functions {
    table: Vec<u8>,
    text: u64,
    count: usize,
    names: usize,
    units: usize,
    files: usize,
    values: usize,
    functions: usize,
}

impl Functions {
    fn new(table: Vec<u8>, text: u64) -> Result<Functions> {
        if !TABLES.contains(&half_word(&table, 0)) || table.get(7) != Some(&8) {
            bail!("its table of functions has an unknown form (Go before 1.18?)");
        }
        let field = |index: usize| usize::try_from(word(&table, 8 + index * 8)).unwrap_or(usize::MAX);
        let [count, names, units, files, values, functions] = [0, 3, 4, 5, 6, 7].map(field);
        let end = count.checked_mul(8).and_then(|length| length.checked_add(functions));
        if end.is_none_or(|end| end > table.len()) {
            bail!("its table of functions is cut");
        }
        Ok(Functions { table, text, count, names, units, files, values, functions })
    }

    /// The start of a function and the place of its record, by index.
    fn entry(&self, index: usize) -> (u32, u32) {
        let at = self.functions + index * 8;
        (half_word(&self.table, at), half_word(&self.table, at + 4))
    }

    fn at(&self, address: u64) -> Option<Function<'_>> {
        let offset = u32::try_from(address.checked_sub(self.text)?).ok()?;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle).0 <= offset { low = middle + 1 } else { high = middle }
        }
        let (start, record) = self.entry(low.checked_sub(1)?);
        let record = self.functions.checked_add(record as usize)?;
        let name = self.text_at(self.names.checked_add(half_word(&self.table, record + 4) as usize)?)?;
        let value = |field: usize, at| self.value(half_word(&self.table, record + field), start, at);
        // Code of an inlined function has that function's file and line. The nearest code before it of the
        // function's own file is that of the call.
        let (own, _) = value(20, start)?;
        let mut offset = offset;
        while let Some((_, from)) = value(20, offset).filter(|(file, from)| *file != own && *from > start) {
            offset = from - 1;
        }
        let file = Some(own).and_then(|file| {
            let unit = half_word(&self.table, record + 32) as usize;
            let at =
                self.units.checked_add(unit.checked_add(usize::try_from(file).ok()?)?.checked_mul(4)?)?;
            self.text_at(self.files.checked_add(half_word(&self.table, at) as usize)?)
        });
        let file = file.map_or("", |file| file.rsplit('/').next().unwrap_or(file));
        let line = value(24, offset).and_then(|(line, _)| u32::try_from(line).ok()).unwrap_or(0);
        Some(Function { name, file, line })
    }

    /// The value at `offset` in a table of values by address, and the offset from which on it holds. The
    /// table has pairs of differences, as variable-length numbers.
    fn value(&self, table: u32, start: u32, offset: u32) -> Option<(i64, u32)> {
        let mut bytes = self.table.get(self.values.checked_add(table as usize)?..)?;
        let (mut value, mut at) = (-1_i64, u64::from(start));
        loop {
            let difference = number(&mut bytes)?;
            if difference == 0 && at != u64::from(start) {
                return None;
            }
            let half = i64::from(difference >> 1);
            value += if difference & 1 == 1 { !half } else { half };
            let from = at;
            at += u64::from(number(&mut bytes)?);
            if u64::from(offset) < at {
                return Some((value, u32::try_from(from).ok()?));
            }
        }
    }

    fn text_at(&self, at: usize) -> Option<&str> {
        let rest = self.table.get(at..)?;
        let end = rest.iter().take(4_096).position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// Addresses of data that the code of a function may use: each four bytes of it could be a distance from
    /// the end of an instruction.
    fn search(&self, name: &str, memory: Memory) -> Result<Vec<u64>> {
        let index = (0..self.count).find(|&index| {
            let record = self.functions.saturating_add(self.entry(index).1 as usize);
            let at = self.names.saturating_add(half_word(&self.table, record.saturating_add(4)) as usize);
            self.text_at(at) == Some(name)
        });
        let index = index.with_context(|| format!("it has no function {name}"))?;
        let (start, _) = self.entry(index);
        let end = u64::from(self.entry(index + 1).0);
        let length = end.saturating_sub(u64::from(start)).min(CODE_MAX) as usize;
        let start = self.text + u64::from(start);
        let mut code = vec![0; length];
        memory.read(start, &mut code)?;
        let distances = code.windows(4).enumerate().map(|(at, bytes)| {
            let distance = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            (start + at as u64 + 4).wrapping_add_signed(i64::from(distance))
        });
        let mut found: Vec<u64> = distances.filter(|address| address % 8 == 0).collect();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0_u64;
    for shift in (0..35).step_by(7) {
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return u32::try_from(value).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with one function, `main.f` at 0x100 in `f.go`: line 7, and line 9 from 0x10 on.
    fn table() -> Vec<u8> {
        let mut table = vec![0; 72];
        table[..8].copy_from_slice(&[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8]);
        let mut part = |field: usize, bytes: &[u8]| {
            let at = table.len() as u64;
            table[8 + field * 8..16 + field * 8].copy_from_slice(&at.to_le_bytes());
            table.extend(bytes);
        };
        part(3, b"main.f\0");
        part(4, &[0, 0, 0, 0]);
        part(5, b"/src/f.go\0");
        // File 0 everywhere; line 7 (-1 + 8), then 9.
        part(6, &[0, 2, 0x40, 0, 16, 16, 4, 0x30, 0]);
        let record = |words: [u32; 10]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let entries = [0x100_u32, 12, 0x140].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        part(7, &[entries, record([0x100, 0, 0, 0, 0, 1, 4, 0, 0, 0])].concat());
        table[8] = 1;
        table
    }

    #[test]
    fn a_function_is_named_with_its_file_and_line() {
        let functions = Functions::new(table(), 0x40_0000).expect("a table");
        let function = |line| Some(Function { name: "main.f", file: "f.go", line });
        assert_eq!(functions.at(0x40_0100), function(7));
        assert_eq!(functions.at(0x40_0112), function(9));
        assert_eq!(functions.at(0x40_0000), None);
    }

    #[test]
    fn a_damaged_table_is_refused_or_names_nothing() {
        let whole = table();
        for length in 0..whole.len() {
            if let Ok(functions) = Functions::new(whole[..length].to_vec(), 0) {
                let _ = functions.at(0x110);
            }
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            if let Ok(functions) = Functions::new(bytes, 0) {
                let _ = functions.at(0x110);
            }
        }
    }

    #[test]
    fn the_version_is_read_from_the_build_information() {
        let mut info = b"\xff Go buildinf:\x08\x02".to_vec();
        info.resize(32, 0);
        info.extend(b"\x08go1.22.4");
        assert_eq!(version(&info).as_deref(), Some("Go 1.22.4"));
        assert_eq!(version(&info[..36]), None);
        assert_eq!(version(b""), None);
    }
}
