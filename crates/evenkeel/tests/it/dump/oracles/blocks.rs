//! Changes inside of packed blocks. Most of them leave the lengths and counts of the block right.

use evenkeel_testkit::random::Random;

use super::change::{bytes_changed, interesting, runs_changed};
use super::pieces::BlockKind;

/// Returns a changed block.
pub(super) fn changed(kind: BlockKind, block: &[u8], random: &mut Random) -> Vec<u8> {
    let structured = match kind {
        BlockKind::Listpack => listpack(block, random),
        BlockKind::Ziplist => ziplist(block, random),
        BlockKind::Intset => intset(block, random),
        BlockKind::Zipmap => zipmap(block, random),
    };
    match structured {
        Some(changed) if !random.chance(20) => changed,
        _ => with_its_length(kind, bytes_changed(block, random), random),
    }
}

/// Corrects the total length, mostly.
fn with_its_length(kind: BlockKind, mut block: Vec<u8>, random: &mut Random) -> Vec<u8> {
    let has_length = matches!(kind, BlockKind::Listpack | BlockKind::Ziplist) && block.len() >= 4;
    if has_length && random.chance(80) {
        let len = block.len() as u32;
        block[..4].copy_from_slice(&len.to_le_bytes());
    }
    block
}

/// Changes the elements: each is a form with its content, without the length that leads back from it.
fn elements_changed(elements: &mut Vec<Vec<u8>>, random: &mut Random, new: fn(&mut Random) -> Vec<u8>) {
    for _ in 0..=random.below(2) {
        match random.below(5) {
            0 if !elements.is_empty() => {
                let at = random.below(elements.len());
                elements[at] = new(random);
            }
            1 => elements.insert(random.below(elements.len() + 1), new(random)),
            2 if !elements.is_empty() => {
                let at = random.below(elements.len());
                elements[at] = bytes_changed(&elements[at], random);
            }
            _ => runs_changed(elements, random),
        }
    }
}

// ---- listpacks ----

const LISTPACK_HEADER: usize = 6;

fn listpack(block: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut elements = Vec::new();
    let mut at = LISTPACK_HEADER;
    while *block.get(at)? != 0xff {
        let len = listpack_len(block.get(at..)?)?;
        elements.push(block.get(at..at + len)?.to_vec());
        at += len + back_bytes(len).len();
    }
    elements_changed(&mut elements, random, listpack_element);
    let mut out = vec![0; LISTPACK_HEADER];
    for element in &elements {
        out.extend_from_slice(element);
        let mut back = back_bytes(element.len());
        if random.chance(1) {
            back = bytes_changed(&back, random);
        }
        out.extend(back);
    }
    out.push(0xff);
    let total = out.len() as u32;
    out[..4].copy_from_slice(&total.to_le_bytes());
    let count = count(elements.len(), random);
    out[4..6].copy_from_slice(&count.to_le_bytes());
    Some(out)
}

fn count(elements: usize, random: &mut Random) -> u16 {
    match random.below(12) {
        0 => (elements as u16).wrapping_add(1),
        1 => (elements as u16).wrapping_sub(1),
        2 => u16::MAX,
        _ => elements as u16,
    }
}

/// Length of an element's form and content.
fn listpack_len(bytes: &[u8]) -> Option<usize> {
    let byte = |at: usize| bytes.get(at).map(|byte| usize::from(*byte));
    let first = byte(0)?;
    Some(match first {
        0..=0x7f => 1,
        0x80..=0xbf => 1 + (first & 0x3f),
        0xc0..=0xdf => 2,
        0xe0..=0xef => 2 + ((first & 0x0f) << 8 | byte(1)?),
        0xf0 => 5 + u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?) as usize,
        0xf1 => 3,
        0xf2 => 4,
        0xf3 => 5,
        0xf4 => 9,
        _ => return None,
    })
}

fn back_bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![(len & 0x7f) as u8];
    let mut rest = len >> 7;
    while rest > 0 {
        bytes.insert(0, (rest & 0x7f) as u8);
        rest >>= 7;
    }
    for byte in &mut bytes[1..] {
        *byte |= 0x80;
    }
    bytes
}

const TEXTS: [&[u8]; 10] = [b"", b"1", b"-1", b"01", b"12", b"a", b"inf", b"nan", b"1e5", b"0x10"];

fn listpack_element(random: &mut Random) -> Vec<u8> {
    let text = random.pick(&TEXTS);
    let number = if random.chance(50) { interesting(random) } else { random.below(4) as u64 };
    match random.below(9) {
        0 => vec![random.below(128) as u8],
        1 => vec![0xc0 | random.below(32) as u8, number as u8],
        2 => [&[0xe0, text.len() as u8][..], text].concat(),
        3 => [&[0xf0][..], &(text.len() as u32).to_le_bytes(), text].concat(),
        4 => [&[0xf1][..], &(number as u16).to_le_bytes()].concat(),
        5 => [&[0xf2][..], &number.to_le_bytes()[..3]].concat(),
        6 => [&[0xf3][..], &(number as u32).to_le_bytes()].concat(),
        7 => [&[0xf4][..], &number.to_le_bytes()].concat(),
        _ => [&[0x80 | text.len() as u8][..], text].concat(),
    }
}

// ---- ziplists ----

const ZIPLIST_HEADER: usize = 10;

fn ziplist(block: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut elements = Vec::new();
    let mut at = ZIPLIST_HEADER;
    while *block.get(at)? != 0xff {
        at += if *block.get(at)? == 0xfe { 5 } else { 1 };
        let len = ziplist_len(block.get(at..)?)?;
        elements.push(block.get(at..at + len)?.to_vec());
        at += len;
    }
    elements_changed(&mut elements, random, ziplist_element);
    let mut out = vec![0; ZIPLIST_HEADER];
    let (mut before, mut tail) = (0, ZIPLIST_HEADER);
    for element in &elements {
        tail = out.len();
        let is_long = before >= 254 || random.chance(5);
        match is_long {
            false => out.push(before as u8),
            true => out.extend_from_slice(&[&[0xfe][..], &(before as u32).to_le_bytes()].concat()),
        }
        out.extend_from_slice(element);
        before = out.len() - tail;
    }
    out.push(0xff);
    let total = out.len() as u32;
    out[..4].copy_from_slice(&total.to_le_bytes());
    out[4..8].copy_from_slice(&(tail as u32).to_le_bytes());
    let count = count(elements.len(), random);
    out[8..10].copy_from_slice(&count.to_le_bytes());
    Some(out)
}

fn ziplist_len(bytes: &[u8]) -> Option<usize> {
    let byte = |at: usize| bytes.get(at).map(|byte| usize::from(*byte));
    let first = byte(0)?;
    Some(match first {
        0..=0x3f => 1 + first,
        0x40..=0x7f => 2 + ((first & 0x3f) << 8 | byte(1)?),
        0x80 => 5 + u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?) as usize,
        0xc0 => 3,
        0xd0 => 5,
        0xe0 => 9,
        0xf0 => 4,
        0xf1..=0xfd => 1,
        0xfe => 2,
        _ => return None,
    })
}

fn ziplist_element(random: &mut Random) -> Vec<u8> {
    let text = random.pick(&TEXTS);
    let number = if random.chance(50) { interesting(random) } else { random.below(4) as u64 };
    match random.below(9) {
        0 => vec![0xf1 + random.below(13) as u8],
        1 => [&[0x40, text.len() as u8][..], text].concat(),
        2 => [&[0x80 | random.below(2) as u8][..], &(text.len() as u32).to_be_bytes(), text].concat(),
        3 => [&[0xc0][..], &(number as u16).to_le_bytes()].concat(),
        4 => [&[0xd0][..], &(number as u32).to_le_bytes()].concat(),
        5 => [&[0xe0][..], &number.to_le_bytes()].concat(),
        6 => [&[0xf0][..], &number.to_le_bytes()[..3]].concat(),
        7 => vec![0xfe, number as u8],
        _ => [&[text.len() as u8][..], text].concat(),
    }
}

// ---- intsets and zipmaps ----

fn intset(block: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const HEADER: usize = 8;
    let width = match block.first()? {
        width @ (2 | 4 | 8) => usize::from(*width),
        _ => return None,
    };
    let mut members: Vec<Vec<u8>> = block.get(HEADER..)?.chunks(width).map(<[u8]>::to_vec).collect();
    elements_changed(&mut members, random, |random| random.draw().to_le_bytes().to_vec());
    for member in &mut members {
        member.resize(width, 0);
    }
    let count = match random.below(12) {
        0 => members.len() + 1,
        1 => members.len().wrapping_sub(1),
        _ => members.len(),
    };
    let header = [&[width as u8, 0, 0, 0][..], &(count as u32).to_le_bytes()].concat();
    Some([header, members.concat()].concat())
}

/// Rebuilds the pairs, with lengths of either form and unused bytes.
fn zipmap(block: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut at = 1;
    while *block.get(at)? != 0xff {
        let is_value = parts.len() % 2 == 1;
        let (len, header) = match *block.get(at)? {
            0xfe => (u32::from_le_bytes(block.get(at + 1..at + 5)?.try_into().ok()?) as usize, 5),
            len => (usize::from(len), 1),
        };
        let start = at + header + usize::from(is_value);
        parts.push(block.get(start..start.checked_add(len)?)?.to_vec());
        at = start + len + if is_value { usize::from(block[start - 1]) } else { 0 };
    }
    elements_changed(&mut parts, random, |random| random.pick(&TEXTS).to_vec());
    let pairs = match random.below(12) {
        0 => 254,
        1 => (parts.len() / 2) as u8 + 1,
        _ => (parts.len() / 2) as u8,
    };
    let mut out = vec![pairs];
    for (number, part) in parts.iter().enumerate() {
        let len = if random.chance(3) { interesting(random) as u32 } else { part.len() as u32 };
        match len {
            0..254 if !random.chance(10) => out.push(len as u8),
            len => out.extend_from_slice(&[&[0xfe][..], &len.to_le_bytes()].concat()),
        }
        let unused = if number % 2 == 1 { random.below(6).saturating_sub(3) } else { 0 };
        if number % 2 == 1 {
            out.push(unused as u8);
        }
        out.extend_from_slice(part);
        out.extend(std::iter::repeat_n(0, unused));
    }
    out.push(0xff);
    Some(out)
}
