//! The walk of `bpf/unwind.h` in user space: over registers and a copy of the stack, by the same tables.

use crate::shared::{
    CFA_BP, CFA_END, CFA_PLT, CFA_SP, FRAMES_MAX, Mapping, Row, STACK_BROKEN, STACK_COMPLETE, STACK_CUT,
};
use crate::tables::Tables;

/// Registers of a thread in user code at a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registers {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
}

/// Memory from the stack pointer on.
#[derive(Debug, Clone, Copy)]
struct Copied<'a> {
    from: u64,
    bytes: &'a [u8],
}

impl Copied<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let start = usize::try_from(address.checked_sub(self.from)?).ok()?;
        let word = self.bytes.get(start..start.checked_add(8)?)?;
        Some(u64::from_ne_bytes(word.try_into().ok()?))
    }
}

enum Step {
    To(Registers),
    End,
    Broken,
}

/// Returns addresses from the innermost on, and how the walk ended: STACK_COMPLETE, STACK_CUT or
/// STACK_BROKEN.
pub(crate) fn walk(tables: &Tables, start: Registers, stack: &[u8]) -> (Vec<u64>, u32) {
    let memory = Copied { from: start.sp, bytes: stack };
    let mut frame = start;
    let mut addresses = Vec::new();
    while addresses.len() < FRAMES_MAX {
        addresses.push(frame.ip);
        match step(tables, memory, frame, addresses.len() == 1) {
            Step::To(next) => frame = next,
            Step::End => return (addresses, STACK_COMPLETE),
            Step::Broken => return (addresses, STACK_BROKEN),
        }
    }
    (addresses, STACK_CUT)
}

/// `inner`: this is the innermost frame, whose address is not a return address.
fn step(tables: &Tables, memory: Copied<'_>, frame: Registers, inner: bool) -> Step {
    let pc = if inner { frame.ip } else { frame.ip.wrapping_sub(1) };
    let Some(mapping) = mapping_of(tables, pc) else { return Step::Broken };
    if mapping.frame_pointers != 0 {
        return match memory.word(frame.bp) {
            _ if frame.bp == 0 => Step::End,
            Some(bp) => climb(memory, frame, frame.bp.wrapping_add(16), bp),
            None => Step::Broken,
        };
    }
    let Some(row) = row_of(tables, mapping, pc) else { return Step::Broken };
    let cfa = match row.cfa {
        CFA_SP => frame.sp.wrapping_add_signed(i64::from(row.cfa_offset)),
        CFA_BP => frame.bp.wrapping_add_signed(i64::from(row.cfa_offset)),
        CFA_PLT => frame.sp.wrapping_add(if pc & 15 >= 11 { 16 } else { 8 }),
        CFA_END => return Step::End,
        _ => return Step::Broken,
    };
    let bp = match row.bp_saved {
        0 => Some(frame.bp),
        _ => memory.word(cfa.wrapping_add_signed(i64::from(row.bp_offset))),
    };
    bp.map_or(Step::Broken, |bp| climb(memory, frame, cfa, bp))
}

fn climb(memory: Copied<'_>, frame: Registers, cfa: u64, bp: u64) -> Step {
    if cfa <= frame.sp {
        return Step::Broken;
    }
    match memory.word(cfa.wrapping_sub(8)) {
        Some(0) => Step::End,
        Some(ip) => Step::To(Registers { ip, sp: cfa, bp }),
        None => Step::Broken,
    }
}

fn mapping_of(tables: &Tables, pc: u64) -> Option<&Mapping> {
    let index = tables.mappings.partition_point(|mapping| mapping.start <= pc).checked_sub(1)?;
    tables.mappings.get(index).filter(|mapping| pc < mapping.end)
}

fn row_of<'a>(tables: &'a Tables, mapping: &Mapping, pc: u64) -> Option<&'a Row> {
    let rows = tables.rows.get(mapping.first_row as usize..)?.get(..mapping.rows as usize)?;
    let in_file = u32::try_from(pc.wrapping_sub(mapping.bias)).ok()?;
    rows.get(rows.partition_point(|row| row.pc <= in_file).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x40_0000;
    const STACK: u64 = 0x7000_0000;

    /// A file with three functions: by the stack pointer at 0x100, by the frame pointer at 0x200, outermost
    /// at 0x300.
    fn tables() -> Tables {
        let row = |pc, cfa, cfa_offset, bp_saved| Row { pc, cfa_offset, bp_offset: -16, cfa, bp_saved };
        let rows = vec![row(0x100, CFA_SP, 16, 0), row(0x200, CFA_BP, 16, 1), row(0x300, CFA_END, 0, 0)];
        let mapping = Mapping {
            start: CODE,
            end: CODE + 0x1000,
            bias: CODE,
            first_row: 0,
            rows: 3,
            frame_pointers: 0,
            pad: 0,
        };
        Tables { mappings: vec![mapping], rows, ..Tables::default() }
    }

    fn stack(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn frames_are_found_by_both_pointers_up_to_the_outermost() {
        let start = Registers { ip: CODE + 0x150, sp: STACK, bp: STACK + 24 };
        // Local, return into the second function, local, its saved frame pointer, return into the outermost
        // function.
        let memory = stack(&[7, CODE + 0x250, 7, 0x1234, CODE + 0x350]);
        let (addresses, end) = walk(&tables(), start, &memory);
        assert_eq!(addresses, [CODE + 0x150, CODE + 0x250, CODE + 0x350]);
        assert_eq!(end, STACK_COMPLETE);
    }

    #[test]
    fn missing_memory_or_rules_end_the_walk() {
        let start = Registers { ip: CODE + 0x150, sp: STACK, bp: 0 };
        assert_eq!(walk(&tables(), start, &stack(&[7])), (vec![CODE + 0x150], STACK_BROKEN));
        let elsewhere = Registers { ip: 0x10, ..start };
        assert_eq!(walk(&tables(), elsewhere, &[]), (vec![0x10], STACK_BROKEN));
        let forever = Registers { ip: CODE + 0x250, sp: STACK, bp: STACK };
        let memory = stack(&[STACK, CODE + 0x250]);
        assert!(walk(&tables(), forever, &memory).0.len() <= 2, "a stack only grows outwards");
    }
}
