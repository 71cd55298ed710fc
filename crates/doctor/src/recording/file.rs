//! A recording on disk: a header line, then JSON.
//!
//! ```text
//! evenkeel-doctor recording 4 18342 9f3c...e1\n      version, length of the JSON, CRC64 of header and JSON
//! {"made_by":"evenkeel-doctor 0.1.0", ...}
//! ```
//!
//! `head -1` identifies the file, the length detects truncation, and the checksum detects damage. The format
//! is JSON because recordings are small (stacks are stored once), are attached to bug reports, and are read
//! by scripts. A field may be added within a version; a change of meaning needs a new version.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use crc_fast::{CrcAlgorithm, Digest};

use super::{Recording, redacted};
use crate::private;

const MAGIC: &str = "evenkeel-doctor recording";
/// 3: `host.steal` is a share of the requested CPU time. 4: the checksum covers the version and the length,
/// too.
const VERSION: u32 = 4;
/// The last version whose checksum covers the JSON only.
const SUM_OF_BODY: u32 = 3;
/// Bound of the file's length; a recording of 10,000 threads with 100,000 stacks is smaller.
const BYTES_MAX: u64 = 1 << 30;
const SUM_DIGITS: usize = 16;
/// Magic, two numbers of at most 10 digits, 16 hexadecimal digits, and blanks.
const HEADER_MAX: usize = 80;

/// Writes a file beside `path` and renames it, so that an interrupted run leaves no partial file at `path`.
pub(crate) fn save(recording: &Recording, path: &Path) -> Result<()> {
    let bytes = encode(recording)?;
    let beside = path.with_extension("part");
    let write = || -> std::io::Result<()> {
        let mut file = private::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().with_context(|| format!("cannot write the recording {}", path.display()))
}

pub(crate) fn load(path: &Path) -> Result<Recording> {
    let shown = path.display();
    let length = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.len();
    ensure!(length <= BYTES_MAX, "{shown} has {length} bytes; no recording is larger than {BYTES_MAX}");
    let bytes = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    decode(&bytes).with_context(|| format!("cannot use {shown}"))
}

fn encode(recording: &Recording) -> Result<Vec<u8>> {
    let body = serde_json::to_vec(recording).context("the recording cannot be written as JSON")?;
    let words = format!("{MAGIC} {VERSION} {} ", body.len());
    let mut bytes = format!("{words}{:016x}\n", sum(VERSION, &words, &body)).into_bytes();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<Recording> {
    let end = bytes.iter().take(HEADER_MAX).position(|&byte| byte == b'\n');
    let header = end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok());
    let Some((end, fields)) = end.zip(header.and_then(|line| line.strip_prefix(MAGIC))) else {
        bail!("it is not a recording of evenkeel-doctor");
    };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let version = fields.first().and_then(|field| field.parse::<u32>().ok());
    let version = version.filter(|&version| version > 0).context("its first line is damaged")?;
    ensure!(
        version <= VERSION,
        "it is of version {version}, and this evenkeel-doctor reads up to {VERSION}: use a newer one"
    );
    let [_, length, expected] = fields[..] else { bail!("its first line is damaged") };
    let length: usize = length.parse().context("its first line is damaged")?;
    ensure!(expected.len() == SUM_DIGITS, "its first line is damaged"); // a leading zero may be a blank
    let words = header.and_then(|line| line.strip_suffix(expected)).context("its first line is damaged")?;
    let expected = u64::from_str_radix(expected, 16).context("its first line is damaged")?;
    let body = &bytes[end + 1..];
    ensure!(body.len() >= length, "it is cut: {} of {length} bytes are there", body.len());
    ensure!(body.len() == length, "{} bytes follow its end", body.len() - length);
    ensure!(sum(version, words, body) == expected, "its checksum is wrong: the file is damaged");
    let mut recording: Recording =
        serde_json::from_slice(body).context("its content does not fit its version")?;
    check(&recording)?;
    // Recordings of earlier versions have unredacted arguments.
    recording.target.arguments = redacted(recording.target.arguments.iter().map(String::as_str));
    Ok(recording)
}

/// Analyses index `stacks` and `frames` with values of the file, and divide by the window.
fn check(recording: &Recording) -> Result<()> {
    let stacks = recording.stacks.len() as u64;
    let frames = recording.frames.len() as u64;
    let stack_refs = recording.samples.iter().map(|s| s.stack).chain(recording.waits.iter().map(|w| w.stack));
    ensure!(
        stack_refs.clone().all(|index| u64::from(index) < stacks),
        "it refers to a stack that is not there"
    );
    let mut frame_refs = recording.stacks.iter().flatten();
    ensure!(frame_refs.all(|&index| u64::from(index) < frames), "it refers to a frame that is not there");
    ensure!(recording.window_ns > 0, "its window has no length");
    Ok(())
}

/// `words`: the first line up to the checksum.
fn sum(version: u32, words: &str, body: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Redis);
    if version > SUM_OF_BODY {
        digest.update(words.as_bytes());
    }
    digest.update(body);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;
    use crate::golden;

    fn refusal(bytes: &[u8]) -> String {
        format!("{:#}", decode(bytes).expect_err("a damaged recording is refused"))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let recording = golden::busy();
        let again = decode(&encode(&recording).expect("encodes")).expect("decodes");
        assert_eq!(again.calls, recording.calls);
        assert_eq!(again.target.name, recording.target.name);
    }

    #[test]
    fn secrets_in_old_recordings_are_redacted() {
        let mut recording = golden::idle();
        recording.target.arguments = ["evenkeel", "--requirepass", "s3cret"].map(str::to_string).to_vec();
        let again = decode(&encode(&recording).expect("encodes")).expect("decodes");
        assert_eq!(again.target.arguments, ["evenkeel", "--requirepass", "(redacted)"]);
        let once_more = decode(&encode(&again).expect("encodes")).expect("decodes");
        assert_eq!(once_more.target.arguments, again.target.arguments);
    }

    #[test]
    fn files_that_are_not_whole_are_refused_with_a_sentence() {
        let whole = encode(&golden::busy()).expect("encodes");
        assert_eq!(refusal(b""), "it is not a recording of evenkeel-doctor");
        assert_eq!(refusal(b"\x7fELF\x02\x01\x01\n"), "it is not a recording of evenkeel-doctor");
        assert!(refusal(&whole[..whole.len() - 1]).starts_with("it is cut: "));
        assert_eq!(refusal(&[&whole[..], b"x"].concat()), "1 bytes follow its end");
        let (version, next) = (format!(" {VERSION} "), format!(" {} ", VERSION + 1));
        let newer = String::from_utf8(whole).expect("text").replacen(&version, &next, 1);
        assert!(
            refusal(newer.as_bytes()).starts_with(&format!("it is of version {}, and this", VERSION + 1)),
            "{}",
            refusal(newer.as_bytes())
        );
    }

    #[test]
    fn a_reference_to_nothing_is_refused() {
        let mut recording = golden::busy();
        recording.stacks[0].push(9_999);
        assert_eq!(refusal(&encode(&recording).expect("encodes")), "it refers to a frame that is not there");
    }

    #[test]
    fn a_checksum_that_lacks_a_digit_is_refused() {
        let text = String::from_utf8(encode(&golden::idle()).expect("encodes")).expect("it is JSON");
        let end = text.find('\n').expect("a first line");
        let cut = format!("{} {}", &text[..end - SUM_DIGITS], &text[end - SUM_DIGITS + 1..]);
        assert!(refusal(cut.as_bytes()).contains("its first line is damaged"));
    }

    /// The version defines the meaning of fields, so a changed version is damage, too. Older recordings are
    /// still readable.
    #[test]
    fn another_version_is_noticed() {
        let whole = String::from_utf8(encode(&golden::idle()).expect("encodes")).expect("it is JSON");
        let of =
            |version: u32| whole.replacen(&format!("{MAGIC} {VERSION}"), &format!("{MAGIC} {version}"), 1);
        for version in 1..VERSION {
            assert!(refusal(of(version).as_bytes()).contains("its checksum is wrong"), "{version}");
        }
        let body = whole.split_once('\n').expect("a first line").1;
        let words = format!("{MAGIC} {SUM_OF_BODY} {} ", body.len());
        let before = format!("{words}{:016x}\n{body}", sum(SUM_OF_BODY, &words, body.as_bytes()));
        assert!(decode(before.as_bytes()).is_ok());
    }

    #[test]
    fn no_change_of_a_byte_goes_unnoticed_and_none_panics() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        let whole = encode(&golden::busy()).expect("encodes");
        for _ in 0..2_000 {
            let mut bytes = whole.clone();
            let at = random.below(bytes.len());
            let flip = 1 << random.below(8);
            bytes[at] ^= flip;
            // The case of a hexadecimal digit, and a different blank, do not change the meaning.
            let harmless = bytes[..at.min(HEADER_MAX)].len() < HEADER_MAX && flip == 0x20;
            assert!(decode(&bytes).is_err() || harmless, "byte {at} xor {flip:#x} went unnoticed");
        }
    }
}
