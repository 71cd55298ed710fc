//! Changes of payloads, from a single byte to whole parts.

use evenkeel_testkit::payload;
use evenkeel_testkit::random::Random;

use super::blocks;
use super::pieces::{Piece, PieceKind, content, length, length_bytes, split};

/// Versions and a checksum behind the value.
const FOOTER: usize = 10;

/// Numbers of types whose values have the same layout, so that one can be taken for another.
const SIMILAR: [&[u8]; 6] =
    [&[1, 2, 14], &[9, 10, 11, 12, 13, 16, 17, 20, 23], &[4, 22], &[15, 19, 21], &[22, 24], &[10, 14, 18]];

/// Returns a changed payload, with its checksum.
pub(super) fn changed(of: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let (body, footer) = of.split_at(of.len() - FOOTER);
    let mut version = u16::from_le_bytes([footer[0], footer[1]]);
    let mut kind = body[0];
    let mut pieces = split(body, version);
    for _ in 0..=random.below(3) {
        piece_changed(&mut pieces, others, random);
    }
    if random.chance(3) {
        let alike: Vec<&&[u8]> = SIMILAR.iter().filter(|kinds| kinds.contains(&kind)).collect();
        if !alike.is_empty() {
            let kinds = alike[random.below(alike.len())];
            kind = kinds[random.below(kinds.len())];
        }
    }
    let behind: Vec<u8> = pieces.iter().flat_map(|piece| &piece.bytes).copied().collect();
    let mut body = [&[kind][..], &behind].concat();
    if random.chance(15) {
        body = bytes_changed(&body, random);
    }
    if random.chance(3) {
        version = [1, 6, 9, 10, 11, 12, 80][random.below(7)];
    }
    payload::seal(&body, version)
}

fn piece_changed(pieces: &mut Vec<Piece>, others: &[Vec<u8>], random: &mut Random) {
    if pieces.is_empty() {
        return;
    }
    if random.chance(30) {
        let before = pieces.len();
        runs_changed(pieces, random);
        // A count in front is made right, if chance hits it.
        let counts: Vec<usize> = counts(pieces);
        if pieces.len() != before && !counts.is_empty() && random.chance(80) {
            let at = counts[random.below(counts.len())];
            let (count, _) = length(&pieces[at].bytes).expect("a count was read before");
            let count = if pieces.len() > before { count.wrapping_add(1) } else { count.wrapping_sub(1) };
            pieces[at].bytes = length_bytes(count, 0);
        }
        return;
    }
    let at = random.below(pieces.len());
    let piece = &mut pieces[at];
    piece.bytes = match piece.kind {
        PieceKind::Count => count_changed(&piece.bytes, random),
        PieceKind::Text => text_changed(&piece.bytes, random),
        PieceKind::Block(kind) => match content(&piece.bytes) {
            Some(block) => string_of(&blocks::changed(kind, block, random), random),
            None => bytes_changed(&piece.bytes, random),
        },
        PieceKind::Fixed if random.chance(50) => fixed_changed(&piece.bytes, random),
        PieceKind::Fixed | PieceKind::Rest => bytes_changed(&piece.bytes, random),
    };
    if random.chance(2) {
        let other = &others[random.below(others.len())];
        let (body, footer) = other.split_at(other.len() - FOOTER);
        let theirs = split(body, u16::from_le_bytes([footer[0], footer[1]]));
        pieces[at] = theirs[random.below(theirs.len())].clone();
    }
}

fn counts(pieces: &[Piece]) -> Vec<usize> {
    let is_count = |at: &usize| pieces[*at].kind == PieceKind::Count && length(&pieces[*at].bytes).is_some();
    (0..pieces.len()).filter(is_count).collect()
}

fn count_changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let Some((count, _)) = length(bytes) else { return bytes_changed(bytes, random) };
    match random.below(6) {
        0 => length_bytes(count.wrapping_add(1), 0),
        1 => length_bytes(count.wrapping_sub(1), 0),
        2 => length_bytes(count, random.below(4)),
        3 => length_bytes(interesting(random), random.below(2)),
        4 => length_bytes(random.below(4) as u64, 0),
        _ => bytes_changed(bytes, random),
    }
}

fn text_changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let Some(text) = content(bytes) else { return bytes_changed(bytes, random) };
    match random.below(6) {
        0 => string_of(text, random),
        1 => vec![0xc0, random.draw() as u8],
        2 => [&[0xc2][..], &(interesting(random) as u32).to_le_bytes()].concat(),
        3 => string_of(b"", random),
        _ => string_of(&bytes_changed(text, random), random),
    }
}

/// Stores a string, mostly in its usual form.
fn string_of(text: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(20) {
        0 => [length_bytes(text.len() as u64, random.below(4)), text.to_vec()].concat(),
        1 => [length_bytes((text.len() as u64).wrapping_add_signed(random.between(-1, 1)), 0), text.to_vec()]
            .concat(),
        2 | 3 => compressed(text, random),
        _ => [length_bytes(text.len() as u64, 0), text.to_vec()].concat(),
    }
}

/// Stores a string as compressed, which LZF's runs of literal bytes do not make shorter.
fn compressed(text: &[u8], random: &mut Random) -> Vec<u8> {
    const RUN_MAX: usize = 32;
    let runs = text.chunks(RUN_MAX).map(|run| [&[run.len() as u8 - 1][..], run].concat());
    let mut packed = runs.collect::<Vec<_>>().concat();
    let mut len = text.len() as u64;
    match random.below(6) {
        0 => packed = bytes_changed(&packed, random),
        1 => len = len.wrapping_add_signed(random.between(-1, 1)),
        _ => {}
    }
    [vec![0xc3], length_bytes(packed.len() as u64, 0), length_bytes(len, 0), packed].concat()
}

fn fixed_changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 8 {
        let at = random.below(bytes.len() / 8) * 8;
        bytes[at..at + 8].copy_from_slice(&interesting(random).to_le_bytes());
    }
    bytes
}

/// Returns a number at the edge of some width, or a number of any bits.
pub(super) fn interesting(random: &mut Random) -> u64 {
    let bits = [6, 7, 8, 12, 14, 15, 16, 31, 32, 62, 63];
    let edge = 1u64 << bits[random.below(bits.len())];
    match random.below(6) {
        0 => edge - 1,
        1 => edge,
        2 => edge.wrapping_neg(),
        3 => u64::MAX - random.below(3) as u64,
        4 => 0x7ff8_0000_0000_0000 >> random.below(2), // a float that is no number, and another
        _ => random.draw() >> random.below(64),
    }
}

/// Repeats, removes, swaps or moves runs of parts.
pub(super) fn runs_changed<T: Clone>(parts: &mut Vec<T>, random: &mut Random) {
    if parts.is_empty() {
        return;
    }
    let at = random.below(parts.len());
    let len = 1 + random.below((parts.len() - at).min(4));
    let run = parts[at..at + len].to_vec();
    match random.below(5) {
        0 => _ = parts.drain(at..at + len),
        1 => {
            let to = random.below(parts.len());
            parts.swap(at, to);
        }
        2 => _ = parts.splice(at..at, run),
        3 => {
            let to = random.below(parts.len() + 1);
            _ = parts.splice(to..to, run);
        }
        _ => {
            let to = random.below(parts.len());
            parts[to] = run[0].clone();
        }
    }
}

/// Changes, inserts, removes or repeats bytes, or cuts the end off.
pub(super) fn bytes_changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    const BYTES: [u8; 14] = [0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0x81, 0xc0, 0xc3, 0xf0, 0xfd, 0xfe, 0xff];
    let mut bytes = bytes.to_vec();
    if bytes.is_empty() {
        return vec![BYTES[random.below(BYTES.len())]];
    }
    let at = random.below(bytes.len());
    match random.below(10) {
        0 | 1 => bytes[at] = BYTES[random.below(BYTES.len())],
        2 => bytes[at] ^= 1 << random.below(8),
        3 | 4 => bytes[at] = bytes[at].wrapping_add(1),
        5 => bytes[at] = bytes[at].wrapping_sub(1),
        6 => bytes.insert(at, BYTES[random.below(BYTES.len())]),
        7 if random.chance(20) => bytes.truncate(at),
        8 => _ = bytes.remove(at),
        _ => runs_changed(&mut bytes, random),
    }
    bytes
}
