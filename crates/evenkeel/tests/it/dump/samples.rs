//! Values of every type, at sizes around each change of form, and the commands that build them.

use super::Args;

/// A key `v` under construction.
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) commands: Vec<Args>,
    pub(super) needs: Needs,
}

/// The servers that accept a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Every server.
    Nothing,
    /// A server with active times of consumers, for version 11 of the format.
    ActiveTimes,
    /// A server with expiring fields of hashes.
    FieldExpiry,
}

/// Sizes at and around the servers' default bounds of forms.
const SIZES: [usize; 12] = [1, 2, 63, 64, 127, 128, 129, 511, 512, 513, 514, 3000];

/// A time in the year 2100, in milliseconds.
const FAR_MS: u64 = 4_102_444_800_000;

/// Kinds of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementForm {
    Small,
    Wide,
    Word,
    /// Longer than elements of small values.
    Long,
    Binary,
    /// Longer than a page, and than a reply buffer.
    Huge,
}

const ELEMENT_FORMS: [ElementForm; 6] = [
    ElementForm::Small,
    ElementForm::Wide,
    ElementForm::Word,
    ElementForm::Long,
    ElementForm::Binary,
    ElementForm::Huge,
];

fn element(form: ElementForm, number: usize) -> Vec<u8> {
    let mixed = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    match form {
        ElementForm::Small => number.to_string().into(),
        ElementForm::Wide => (mixed as i64).to_string().into(),
        ElementForm::Word => format!("word {:x}", mixed >> 40).into(),
        ElementForm::Long => format!("{number:>70}").into(),
        ElementForm::Binary => mixed.to_le_bytes().iter().chain(b"\r\n\0\"").copied().collect(),
        ElementForm::Huge => mixed.to_le_bytes().iter().copied().cycle().take(20_000 + number).collect(),
    }
}

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn words(line: &str) -> Args {
    line.split(' ').map(word).collect()
}

pub(super) fn all() -> Vec<Sample> {
    let mut all = strings();
    for form in ELEMENT_FORMS {
        let sizes = SIZES.into_iter().filter(|size| form != ElementForm::Huge || *size < 3);
        for size in sizes {
            let elements = || (0..size).map(|number| element(form, number));
            all.push(made(format!("list of {size} {form:?}"), "RPUSH", elements()));
            all.push(made(format!("set of {size} {form:?}"), "SADD", elements()));
            let scored = elements().enumerate().flat_map(|(number, member)| [score(number), member]);
            all.push(made(format!("zset of {size} {form:?}"), "ZADD", scored));
            let pairs = elements()
                .enumerate()
                .flat_map(|(number, value)| [element(ElementForm::Word, number), value]);
            all.push(made(format!("hash of {size} {form:?}"), "HSET", pairs));
        }
    }
    all.extend(streams());
    all.extend(timed_hashes());
    all
}

/// A small sample of each form, for tests that try many changes of each.
pub(super) fn few() -> Vec<Sample> {
    let is_short = |sample: &Sample| {
        let bytes: usize = sample.commands.iter().flatten().map(Vec::len).sum();
        bytes < 1_000 || sample.name.ends_with("of 129 Small") && !sample.name.starts_with("list")
    };
    all().into_iter().filter(is_short).collect()
}

fn made(name: String, command: &str, rest: impl Iterator<Item = Vec<u8>>) -> Sample {
    let args = [word(command), word("v")].into_iter().chain(rest).collect();
    Sample { name, commands: vec![args], needs: Needs::Nothing }
}

fn score(number: usize) -> Vec<u8> {
    match number % 7 {
        0 => word("inf"),
        1 => word("-inf"),
        2 => word("-0"),
        3 => format!("{}", number as f64 / 7.0).into(),
        4 => format!("-{number}e200").into(),
        5 => word("9007199254740993"),
        _ => number.to_string().into(),
    }
}

fn strings() -> Vec<Sample> {
    let texts = [
        word(""),
        word("a"),
        word("-1"),
        word("12345"),
        word("-32769"),
        word("2147483648"),
        word("9223372036854775807"),
        word("007"),
        word("3.0e3"),
        vec![b'x'; 20],
        vec![b'x'; 21],
        vec![b'x'; 44],
        vec![b'x'; 45],
        element(ElementForm::Binary, 7),
        vec![b'z'; 16 * 1024],
        vec![b'z'; 16 * 1024 + 1],
        element(ElementForm::Huge, 1).repeat(7),
        element(ElementForm::Huge, 1).repeat(100),
    ];
    let set = texts.into_iter().map(|text| {
        let commands = vec![vec![word("SET"), word("v"), text]];
        Sample { name: format!("string of {}", commands[0][2].len()), commands, needs: Needs::Nothing }
    });
    let hole = vec![words("SETRANGE v 300000 end")];
    let hole = Sample { name: "string with a hole".into(), commands: hole, needs: Needs::Nothing };
    let sparse =
        made("sparse HyperLogLog".into(), "PFADD", (0..20).map(|number| element(ElementForm::Word, number)));
    let dense =
        made("dense HyperLogLog".into(), "PFADD", (0..9000).map(|number| element(ElementForm::Word, number)));
    set.chain([hole, sparse, dense]).collect()
}

fn entries(count: usize, fields: usize) -> Vec<Args> {
    let entry = |number: usize| {
        let id = format!("{}-{}", 1_000 + number / 3, number % 3);
        let fields = (0..fields)
            .flat_map(|field| [format!("f{}", field + number / 50), format!("{}", number * field)]);
        [word("XADD"), word("v"), word(&id)].into_iter().chain(fields.map(|text| word(&text))).collect()
    };
    (0..count).map(entry).collect()
}

fn streams() -> Vec<Sample> {
    let stream = |name: &str, commands: Vec<Args>, needs| Sample { name: name.into(), commands, needs };
    let lines = |lines: &[&str]| lines.iter().map(|line| words(line)).collect::<Vec<Args>>();
    let grouped = [
        &entries(30, 2)[..],
        &lines(&[
            "XGROUP CREATE v g1 0",
            "XGROUP CREATE v g2 1003-0 ENTRIESREAD 9",
            "XREADGROUP GROUP g1 alice COUNT 7 STREAMS v >",
            "XREADGROUP GROUP g1 bob COUNT 5 STREAMS v >",
            "XREADGROUP GROUP g2 carol STREAMS v >",
            "XACK v g1 1000-0 1001-1",
            "XCLAIM v g1 bob 0 1000-2 TIME 1700000000000 RETRYCOUNT 9",
            "XDEL v 1000-1 1009-0",
        ]),
    ]
    .concat();
    let idle = [&grouped[..], &lines(&["XGROUP CREATECONSUMER v g1 dave"])].concat();
    vec![
        stream("stream of 1", entries(1, 1), Needs::Nothing),
        stream("stream of 20", entries(20, 3), Needs::Nothing),
        stream("stream of 101", entries(101, 1), Needs::Nothing),
        stream("stream of 700", entries(700, 4), Needs::Nothing),
        stream("stream without entries", lines(&["XADD v 5-1 a 1", "XDEL v 5-1"]), Needs::Nothing),
        stream("stream of a group", lines(&["XGROUP CREATE v g $ MKSTREAM"]), Needs::Nothing),
        stream(
            "stream with a past",
            [
                &entries(40, 2)[..],
                &lines(&["XDEL v 1000-0 1004-1", "XSETID v 2000-7 ENTRIESADDED 90 MAXDELETEDID 1999-0"]),
            ]
            .concat(),
            Needs::Nothing,
        ),
        stream("stream with groups", grouped, Needs::Nothing),
        stream("stream with an idle consumer", idle, Needs::ActiveTimes),
        // Names that Evenkeel writes with each entry.
        stream(
            "stream of long names",
            (1..150)
                .map(|n| {
                    [words("XADD v"), vec![word(&format!("{n}-0")), word(&"n".repeat(1_100)), word("")]]
                        .concat()
                })
                .collect(),
            Needs::Nothing,
        ),
        stream(
            "stream of long entries",
            (1..4)
                .map(|n| {
                    [words("XADD v"), vec![word(&format!("{n}-0")), word("f"), element(ElementForm::Huge, n)]]
                        .concat()
                })
                .collect(),
            Needs::Nothing,
        ),
    ]
}

fn timed_hashes() -> Vec<Sample> {
    let timed = |size: usize, every: usize| {
        let pairs = (0..size)
            .flat_map(|number| [element(ElementForm::Word, number), element(ElementForm::Small, number)]);
        let mut commands = made(String::new(), "HSET", pairs).commands;
        commands.extend((0..size).step_by(every).map(|number| {
            let until = format!("HPEXPIREAT v {} FIELDS 1", FAR_MS + number as u64);
            [words(&until), vec![element(ElementForm::Word, number)]].concat()
        }));
        Sample {
            name: format!("hash of {size}, every {every}th expires"),
            commands,
            needs: Needs::FieldExpiry,
        }
    };
    vec![timed(1, 1), timed(20, 3), timed(513, 2), timed(3000, 100)]
}
