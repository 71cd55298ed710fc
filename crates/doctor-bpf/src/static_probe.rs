//! Static probes (USDT): places in a program that its author has marked, with numbers in registers.
//!
//! A note in the file gives the address of each place and the location of its arguments. The compiler may
//! copy the code around a probe, so a name may have many places. Only the simplest arguments are supported:
//! two numbers of 8 bytes, in the registers of a function's first two arguments.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::{Link, Object as Loaded};
use object::{Object, ObjectSection};

use crate::functions::offset_of;
use crate::probe::{first, load, program};
use crate::shared::{self, PROBE_TOTALS_MAX};
use crate::tables;

const SECTION: &str = ".note.stapsdt";
const ARGUMENTS: &str = "8@%rdi 8@%rsi";
/// Each place is a breakpoint trap.
const PLACES_MAX: usize = 256;

/// Watches a static probe of a process: sums its second number by its first.
#[derive(Debug)]
pub struct StaticProbe {
    object: Loaded,
    /// The probes are detached when these are dropped.
    _links: Vec<Link>,
}

/// For a first number: how often the probe was met, and the sum of the second number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeTotal {
    pub count: u64,
    pub sum: u64,
}

impl StaticProbe {
    pub fn start(pid: i32, provider: &str, name: &str) -> Result<StaticProbe> {
        let (path, offsets) = find(pid, provider, name)?;
        let object = load(pid, &["on_static_probe"])?;
        let mut links = Vec::new();
        for offset in offsets {
            let link = program(&object, "on_static_probe")?.attach_uprobe(
                false,
                pid,
                &path,
                usize::try_from(offset)?,
            );
            links.push(link.with_context(|| format!("the probe {provider}:{name} cannot be watched"))?);
        }
        Ok(StaticProbe { object, _links: links })
    }

    /// Returns the counts and sums so far, indexed by the first number.
    pub fn totals(&self) -> Vec<ProbeTotal> {
        let of = |which| first::<shared::ProbeTotal>(&self.object, "probe_totals", which);
        let all = (0..PROBE_TOTALS_MAX as u32).map_while(of);
        all.map(|total| ProbeTotal { count: total.count, sum: total.sum }).collect()
    }
}

/// Returns the file that has the probe, and its offsets in it.
fn find(pid: i32, provider: &str, name: &str) -> Result<(String, BTreeSet<u64>)> {
    let mut seen = BTreeSet::new();
    for area in tables::areas(pid)? {
        if !area.path.starts_with('/') || !seen.insert(area.path.clone()) {
            continue;
        }
        let Ok(image) = tables::read_area(pid, &area) else { continue };
        let Ok(file) = object::File::parse(&*image) else { continue };
        let Some(notes) = file.section_by_name(SECTION).and_then(|section| section.data().ok()) else {
            continue;
        };
        let places: BTreeSet<u64> = parse(notes)
            .filter(|note| (note.provider, note.name) == (provider, name))
            .filter(|note| note.arguments == ARGUMENTS)
            .filter_map(|note| offset_of(&file, note.address))
            .collect();
        if !places.is_empty() {
            let many = places.len();
            ensure!(
                many <= PLACES_MAX,
                "{many} places have the probe {provider}:{name}, and {PLACES_MAX} are the most"
            );
            return Ok((tables::path_for_us(pid, &area)?, places));
        }
    }
    bail!("it has no static probe {provider}:{name}")
}

#[derive(Debug, PartialEq, Eq)]
struct Note<'a> {
    /// 0 if the linker removed the code.
    address: u64,
    provider: &'a str,
    name: &'a str,
    arguments: &'a str,
}

/// Parses consecutive notes: lengths of owner and content, a kind, the owner, the content. Owner and content
/// are padded to 4 bytes.
fn parse(mut bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        const HEAD: usize = 12;
        loop {
            let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
            let (owner, content) = (word(0)?, word(4)?);
            let begin = HEAD.checked_add(owner.checked_next_multiple_of(4)?)?;
            let end = begin.checked_add(content)?;
            let note = bytes.get(begin..end)?;
            bytes = bytes.get(end.next_multiple_of(4)..).unwrap_or(&[]);
            if let Some(note) = parse_content(note).filter(|note| note.address != 0) {
                return Some(note);
            }
        }
    })
}

/// Parses three addresses, the first of which is the place, and three texts.
fn parse_content(content: &[u8]) -> Option<Note<'_>> {
    const ADDRESSES: usize = 24;
    let address = u64::from_ne_bytes(content.get(..8)?.try_into().ok()?);
    let mut texts = content.get(ADDRESSES..)?.split(|&byte| byte == 0).map(std::str::from_utf8);
    let mut text = || texts.next()?.ok();
    Some(Note { address, provider: text()?, name: text()?, arguments: text()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(address: u64, name: &str) -> Vec<u8> {
        let mut content = [address, 0, 0].map(u64::to_ne_bytes).concat();
        content.extend_from_slice(format!("provider\0{name}\0{ARGUMENTS}\0").as_bytes());
        let mut bytes = [8, content.len() as u32, 3].map(u32::to_ne_bytes).concat();
        bytes.extend_from_slice(b"stapsdt\0");
        bytes.extend_from_slice(&content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn notes_are_read_and_notes_of_removed_code_are_left_out() {
        let bytes = [note(0x10, "one"), note(0, "gone"), note(0x20, "another one")].concat();
        let found: Vec<(u64, &str)> = parse(&bytes).map(|note| (note.address, note.name)).collect();
        assert_eq!(found, [(0x10, "one"), (0x20, "another one")]);
        assert_eq!(parse(&bytes).next().expect("a note").arguments, ARGUMENTS);
    }

    #[test]
    fn invalid_notes_are_ignored() {
        let whole = note(0x10, "one");
        for length in 0..whole.len() - 4 {
            assert_eq!(parse(&whole[..length]).count(), 0, "{length}");
        }
        assert_eq!(parse(&[0xff; 64]).count(), 0);
        assert_eq!(parse(&[0; 64]).count(), 0);
    }
}
